"""NumPy's kernels of the nan* family: the values of the generic engine, and when they are asked."""

import inspect
from contextlib import contextmanager
from itertools import product
from math import fsum, inf, nan
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import safeops as so
from assertions import assert_close
from safeops import nan_reductions
from safeops._backends.methods import METHODS
from safeops._backends.numpy import backend
from safeops._backends.numpy import reductions as kernels

pytestmark = pytest.mark.only("numpy")

EXACT = ("nanmax", "nanmin", "nanargmax", "nanargmin", "nancumsum", "nancumprod")
ALONG_ONE = ("nanargmax", "nanargmin", "nancumsum", "nancumprod")
NAMES = [name for name in kernels.KERNELS if name.startswith("nan")] + ["nanmedian"]
DTYPES = ("float32", "float64")
# As users have it; and small arrays treated as large ones, in blocks of a few entries.
SIZES = {"plain": {"_SMALL": 256}, "in blocks": {"_SMALL": 0, "_BLOCK": 64}}
WAYS = pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)


@contextmanager
def sized(sizes):
    """Set the sizes from which arrays are treated in another way."""
    with patch.multiple(kernels, **sizes):
        yield


def generic(f, *args, **options):
    """Return what the generic engine makes of the arguments."""
    with patch.object(backend, "kernels", {}):
        return f(*args, **options)


def laid_out(x, layout):
    """Return `x` with another layout in memory, read-only."""
    if layout == "F":
        x = np.asfortranarray(x)
    elif layout == "strided":
        wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), 7.0, x.dtype)
        wide[..., ::2] = x
        x = wide[..., ::2]
    elif layout == "backwards":
        x = x[..., ::-1]
    x.flags.writeable = False
    return x


@st.composite
def calls(draw, name):
    """Return an array and options."""
    dtype = draw(st.sampled_from(DTYPES))
    bound = 2.0**10 if "prod" in name else 2.0**50
    numbers = st.floats(-bound, bound, width=int(dtype[-2:]), allow_subnormal=False)
    numbers = numbers.filter(lambda x: x == 0 or abs(x) > 1e-3)
    special = st.sampled_from([nan, nan, inf, -inf, 0.0, 1.0, 1.0])
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=9))
    x = draw(hnp.arrays(dtype, shape, elements=st.one_of(numbers, special), fill=st.just(nan)))
    axes = [None, *range(-x.ndim, x.ndim)]
    if name not in ALONG_ONE:
        axes += [(), tuple(range(x.ndim)), (-1,), (x.ndim - 1, 0)[: x.ndim]]
    options = {"axis": draw(st.sampled_from(axes))}
    if not name.startswith("nancum"):
        options["keepdims"] = draw(st.booleans())
    if draw(st.booleans()):
        options["where"] = draw(hnp.arrays(bool, shape))
    return laid_out(x, draw(st.sampled_from(["C", "F", "strided", "backwards"]))), options


def tolerance(name, x, options):
    """Return what rounding may do: relative to the result, and to the entries of a sum."""
    eps = np.finfo(x.dtype).eps
    if name in ("nansum", "nanmean"):
        with np.errstate(invalid="ignore"):
            size = np.abs(np.where(np.isfinite(x), x, 0.0), dtype=float)
        size = size * np.broadcast_to(options.get("where", True), x.shape)
        axis, keepdims = options["axis"], options["keepdims"]
        return 2 * eps, 2 * eps * size.sum(axis=axis, keepdims=keepdims)
    # Deviations are rounded to the distance between the ends, sqrt(2 * n) times their root mean.
    return {"nanvar": 64, "nanstd": 32, "nanprod": 512}.get(name, 2) * eps, 0.0


@WAYS
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_values_are_those_of_the_generic_engine(name, sizes, data):
    """A kernel has value, shape and dtype of the generic engine, and raises only as that does."""
    f = getattr(so, name)
    x, options = data.draw(calls(name))
    with np.errstate(all="ignore"):
        wanted = generic(f, x, **options)

    try:
        with sized(sizes), np.errstate(all="raise", under="ignore"):
            got = f(x, **options)
    except FloatingPointError:
        with pytest.raises(FloatingPointError), np.errstate(all="raise", under="ignore"):
            generic(f, x, **options)
        return

    assert type(got) is (np.ndarray if np.ndim(got) else got.dtype.type)
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    rtol, atol = (0.0, 0.0) if name in EXACT else tolerance(name, x, options)
    assert_close(got, wanted, rtol, name, atol)


@pytest.mark.parametrize("method", METHODS)
@given(data=st.data())
def test_quantiles_are_those_of_the_generic_engine(method, data):
    """The kernel has the quantiles of the generic engine, by every method."""
    x, options = data.draw(calls("nanquantile"))
    q = data.draw(st.floats(0, 1) | st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]))
    with np.errstate(all="ignore"):
        wanted = generic(so.nanquantile, x, q, method=method, **options)

    with np.errstate(invalid="ignore"):  # -inf + inf
        got = so.nanquantile(x, q, method=method, **options)

    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    assert_close(got, wanted, 4 * np.finfo(x.dtype).eps)


@pytest.mark.parametrize("fill_value", [0.0, 7])
@pytest.mark.parametrize(
    "name", [n for n in NAMES if "fill_value" in str(inspect.signature(getattr(so, n)))]
)
def test_empty_slices_are_filled(name, fill_value):
    """A slice of NaN has the fill value, for a kernel as for the generic engine."""
    f = getattr(so, name)
    x = np.array([[1.0, nan, 4.0], [nan, nan, nan]])

    got = f(x, axis=-1, fill_value=fill_value)

    assert_close(got, generic(f, x, axis=-1, fill_value=fill_value), 1e-15)
    assert got[1] == fill_value


@pytest.mark.parametrize("correction", [1, 2, 2.5])
@pytest.mark.parametrize("size", [3, 1000])
def test_too_few_entries_have_no_variance(size, correction):
    """A slice with no more entries than `correction` has variance NaN, others that of NumPy."""
    x = np.full((2, size), nan)
    x[0, :2], x[1, :3] = (1.0, 2.0), (1.0, 2.0, 4.0)

    got = so.nanvar(x, axis=-1, correction=correction)

    assert_close(got, generic(so.nanvar, x, axis=-1, correction=correction), 1e-15)


def plain(name, x):
    """Call the kernel of a name."""
    more = (0.5, "linear") if name == "_quantile" else ()
    return kernels.KERNELS[name](x, *more)


@pytest.mark.parametrize("name", kernels.KERNELS)
def test_kernels_are_asked(name):
    """A kernel has the name of a function that asks it, and answers for floats."""
    f = getattr(nan_reductions, name)
    asked = []
    with patch.dict(backend.kernels, {name: lambda *args, **_: asked.append(args)}):
        f(np.ones(3), *((0.5, "linear") if name == "_quantile" else ()), **DEFAULTS[name])

    assert len(asked) == 1
    assert plain(name, np.ones(3)) is not None


NO_DEFAULTS = {"axis": None, "keepdims": False, "where": None, "fill_value": nan}
DEFAULTS = {name: NO_DEFAULTS if name == "_quantile" else {} for name in kernels.KERNELS}


@pytest.mark.parametrize("name", kernels.KERNELS)
def test_kernels_leave_the_rest(name):
    """Other dtypes, subclasses and empty arrays are the generic engine's."""

    class Subclass(np.ndarray):
        pass

    others = [
        np.array(1.0),
        *(np.ones(3, dtype) for dtype in ("int64", "bool", "float16", "complex64", ">f4")),
    ]
    others += [np.ones(3).view(Subclass), np.empty(0), np.float64(1.0)]

    assert [plain(name, x) for x in others] == [None] * len(others)


@pytest.mark.parametrize("dtype", DTYPES)
def test_constant_slices_have_no_spread(dtype):
    """Variance and standard deviation of equal entries are exactly 0, whatever they are."""
    values = (0.1, 0.7, 1e8 / 3, 1e30, -7e-20)
    for size, value, bad in product((3, 300, 777, 50_000), values, (0, 2)):
        x = np.full((2, size), value, dtype)
        x[:, :bad] = nan
        x[1, 2 + bad :] = nan

        for f, array, axis in product((so.nanvar, so.nanstd), (x, x.T.copy()), (None, 0, -1)):
            entries = np.logical_not(np.isnan(array)).any(axis=axis)
            assert (f(array, axis=axis)[entries] == 0).all(), (size, value, axis)


@pytest.mark.parametrize("size", [100, 1000, 100_000])
@pytest.mark.parametrize(("dtype", "offset"), [("float32", 1e4), ("float64", 1e8)])
def test_an_offset_costs_no_digits(size, dtype, offset):
    """The variance of numbers far from 0 is that of the exact sum, to 8 units in the last place."""
    x = (np.random.default_rng(0).normal(size=size) + offset).astype(dtype)
    x[::3] = nan
    numbers = x[~np.isnan(x)].tolist()
    centre = fsum(numbers) / len(numbers)
    exact = fsum((t - centre) ** 2 for t in numbers) / len(numbers)

    assert_close(so.nanvar(x), exact, 8 * np.finfo(dtype).eps)


@pytest.mark.parametrize("trend", [1.0, -1e6])
def test_a_trend_costs_no_digits(trend):
    """A slice whose sample lies far from its mean is summed again, from the mean."""
    x = np.zeros(100_000)
    x[np.arange(100_000) % (100_000 // 24) != 0] = trend

    others = np.count_nonzero(x)
    assert_close(so.nanvar(x), trend**2 * (x.size - others) * others / x.size**2, 1e-14)


def test_sums_of_float32_are_pairwise():
    """A million equal entries, a third of them absent, lose no more than 4 units."""
    x = np.full(1_500_000, 0.1, "float32")
    x[::3] = nan

    exact = 1_000_000 * float(np.float32(0.1))
    assert_close(so.nansum(x), exact, 4 * np.finfo("float32").eps)
    assert_close(so.nanmean(x), float(np.float32(0.1)), 4 * np.finfo("float32").eps)


@pytest.mark.parametrize("name", NAMES)
def test_signalling_nan_is_silent(name):
    """A signalling NaN, which arithmetic reports, is absent like the quiet one."""
    x = np.ones(1000)
    x.view(np.int64)[::2] = 0x7FF0000000000001

    for part in (x, x[:10]):
        with np.errstate(all="raise"):
            got = getattr(so, name)(part)
        assert np.isfinite(got).all()


@pytest.mark.parametrize("times", [1, 100])
@pytest.mark.parametrize("scale", [1e-200, 1e-160, 1e200])
def test_extremes_of_spread_are_left_to_the_generic_engine(scale, times):
    """Squares that over- or underflow do not spoil the standard deviation."""
    x = scale * np.array([1.0, 3.0, nan] * times)

    assert_close(so.nanstd(x), scale, 1e-14)


@pytest.mark.parametrize("size", [10, 1000])
@pytest.mark.parametrize(("value", "step"), [(1e-30, 1e-30), (1e38, 1e34)])
def test_entries_near_the_ends_of_the_range_are_silent(value, step, size):
    """A sum or square out of range that the generic engine does not form is not reported."""
    x = np.full(size, value, "float32")
    x[::2] += np.float32(step)

    with np.errstate(all="raise"):
        got = so.nanstd(x)

    assert_close(got, float(x[0] - x[1]) / 2, 1e-6)
