"""Arrays of dask: block by block, lazily, beside arrays of NumPy."""

import numpy as np
import pytest

import operations
import safeops as so

pytestmark = pytest.mark.only("array-api-strict")

X = np.linspace(-1.0, 2.0, 30).reshape(6, 5)
KEEP = np.cos(7 * X) > 0
Y = 1.5 + np.cos(7 * X)
OF_TWO = """
    safe_div safe_mul safe_pow safe_atan2 safe_hypot xlogy xlog1py xdivy rel_entr safe_logaddexp
    safe_logsubexp safe_gammainc safe_gammaincc
"""
OF_ONE = """
    safe_reciprocal safe_sqrt safe_rsqrt safe_log safe_log2 safe_log10 safe_log1p safe_exp
    safe_expm1 safe_asin safe_acos safe_acosh safe_atanh entr sinc safe_logit log_ndtr
    safe_ndtri safe_erfinv safe_lgamma safe_digamma log1mexp log_cosh log_expm1 log_sech2 log_sinhc
"""


@pytest.fixture
def blocks():
    """Return a function that cuts an array; nothing is computed until the test does so."""
    import dask
    import dask.array as da

    def refuse(*_args, **_options):
        pytest.fail("computed too early")

    with dask.config.set(scheduler=refuse):
        yield lambda x, chunks=(2, 3): da.from_array(x, chunks=chunks)


def assert_lazy_equal(got, wanted):
    """Check what an array of dask is when it is computed."""
    assert (got.shape, got.dtype) == (np.shape(wanted), np.asarray(wanted).dtype)
    np.testing.assert_allclose(got.compute(scheduler="sync"), wanted, rtol=1e-14)


def test_a_wrong_array_of_dask_is_seen(blocks):
    """The assertion of this file can fail: another value, shape or dtype is not let through."""
    x = blocks(X)

    for wrong in (X + 1e-12, X[:5], X.astype("float32")):
        with pytest.raises(AssertionError):
            assert_lazy_equal(x, wrong)


def tasks(x):
    """Return how many tasks an array is made of."""
    return len(dict(x.__dask_graph__()))


@pytest.mark.parametrize("name", OF_ONE.split())
def test_functions_of_one_array(name, blocks):
    """A graph has one task for each block, beside that of the block itself."""
    f, x = getattr(so, name), blocks(X)

    got = f(x)

    assert tasks(got) == tasks(np.abs(x))
    assert got.chunks == x.chunks
    assert_lazy_equal(got, f(X))


@pytest.mark.parametrize("name", OF_TWO.split())
def test_functions_of_two_arrays(name, blocks):
    """A second argument is one of dask or of NumPy, or a number, in either order."""
    f, x, y = getattr(so, name), blocks(X), blocks(Y)

    assert tasks(f(x, y)) == tasks(x + y)
    for others in ((x, y), (x, Y), (X, y), (x, Y[:1]), (x, 2.0), (x, np.float64(2.0)), (2.0, y)):
        plain = [X if a is x else Y if a is y else a for a in others]
        assert_lazy_equal(f(*others), f(*plain))


def test_fills_and_dtypes(blocks):
    """A fill is an array of either too; float32 stays so."""
    x, fill = blocks(X), np.arange(30.0).reshape(6, 5)

    for value, plain in ((fill, fill), (blocks(fill), fill), (7.0, 7.0)):
        assert_lazy_equal(so.safe_log(x, fill_value=value), so.safe_log(X, fill_value=plain))
    single = X.astype(np.float32)
    assert_lazy_equal(so.safe_sqrt(blocks(single)), so.safe_sqrt(single))


def test_masks_of_numpy(blocks):
    """Reductions take a mask of NumPy beside an array of dask."""
    for f in (so.nansum, so.safe_mean, so.safe_softmax, so.safe_logsumexp, so.safe_norm):
        how = {} if f is so.safe_softmax else {"axis": 0}
        got = f(blocks(X), where=KEEP, **how)
        wanted = f(X, where=KEEP, **how)
        np.testing.assert_allclose(got.compute(scheduler="sync"), wanted, rtol=1e-12)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [0, -1, (0, 1)])
def test_quantiles_along_axes(axis, keepdims, blocks):
    """Each slice becomes one chunk, with and without a mask."""
    x = np.where(X > 1.5, np.nan, X)
    how = {"axis": axis, "keepdims": keepdims}

    assert_lazy_equal(so.nanmedian(blocks(x), **how), so.nanmedian(x, **how))
    for keep in (KEEP, blocks(KEEP, (6, 1))):
        got = so.nanquantile(blocks(x), 0.3, where=keep, **how)
        assert_lazy_equal(got, so.nanquantile(x, 0.3, where=KEEP, **how))


def test_quantiles_of_all_are_refused(blocks):
    """The error says why, and names map_blocks."""
    with pytest.raises(NotImplementedError, match=r"expected axes.*map_blocks"):
        so.nanmedian(blocks(X))
    with pytest.raises(NotImplementedError, match=r"one number as q.*map_blocks"):
        so.nanquantile(blocks(X), [0.1, 0.2], axis=0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of the naive parts of plain dask
@pytest.mark.parametrize("name", operations.ROWS)
def test_operations_in_blocks(name, blocks):
    """Each operation is as of NumPy, in whatever axis the blocks are, and computes nothing."""
    op = operations.ROWS[name]
    args = op.args(6)
    wanted = op.ours(*args)

    for axes in op.parts.values():
        pairs = zip(args, axes, strict=True)
        cut = [blocks(x, tuple(2 if k == a else -1 for k in range(x.ndim))) for x, a in pairs]
        got = op.ours(*cut)
        assert (got.shape, got.dtype) == (np.shape(wanted), np.asarray(wanted).dtype)
        value = got.compute(scheduler="sync")
        np.testing.assert_allclose(value, wanted, rtol=1e-10, atol=1e-12)


def test_results_of_matrices(blocks):
    """Each of several results is an array; a matrix in blocks becomes one."""
    a = operations.spd(4)
    values, vectors = so.linalg.safe_eigh(blocks(a, (2, 1, 2)))

    assert_lazy_equal(values, so.linalg.safe_eigvalsh(a))
    assert_lazy_equal(vectors, so.linalg.safe_eigh(a)[1])
    assert values.chunks == ((2, 2), (3,))


def test_other_processes(blocks):
    """What is computed elsewhere is found there by its name."""
    made = so.safe_log(blocks(X))

    np.testing.assert_array_equal(made.compute(scheduler="processes"), so.safe_log(X))


def test_errors_are_those_of_numpy(blocks):
    """What makes no sense raises when it is called, and not when it is computed."""
    with pytest.raises(TypeError, match="safe_log: expected a dtype"):
        so.safe_log(blocks(X) + 1j)
    with pytest.raises(TypeError, match="safe_div"):
        so.safe_div(blocks(X), "2")
