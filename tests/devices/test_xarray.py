"""Arrays of xarray, by `apply_ufunc`: as they are, and over dask in both modes."""

import numpy as np
import pytest

import safeops as so

pytestmark = pytest.mark.only("array-api-strict")

X = np.linspace(-1.0, 2.0, 24).reshape(4, 6)
MODES = ("parallelized", "allowed")


@pytest.fixture
def xr():
    """Return xarray; what dask would compute too early fails."""
    import dask

    xarray = pytest.importorskip("xarray", reason="only nox -s tests-devices installs xarray")
    with dask.config.set(scheduler=refuse):
        yield xarray


def refuse(*_args, **_options):
    """Fail, as nothing is to be computed yet."""
    pytest.fail("computed too early")


def assert_lazy_equal(got, wanted, dims):
    """Check what an array of xarray is when it is computed."""
    assert got.chunks is not None
    assert got.dims == dims
    np.testing.assert_allclose(got.compute(scheduler="sync"), wanted, rtol=1e-14)


def test_a_wrong_array_of_xarray_is_seen(xr):
    """The assertion of this file can fail: another value or dimension is not let through."""
    x = xr.DataArray(X, dims=("t", "s")).chunk(t=2)

    for wanted, dims in ((X + 1e-12, ("t", "s")), (X, ("s", "t"))):
        with pytest.raises(AssertionError):
            assert_lazy_equal(x, wanted, dims)


@pytest.mark.parametrize("mode", MODES)
def test_elementwise_operations(mode, xr):
    """An operation keeps dimensions, coordinates and chunks; a second array aligns by name."""
    x = xr.DataArray(X, dims=("t", "s"), coords={"t": np.arange(4)}).chunk(t=2)
    y = xr.DataArray(X[0], dims="s")
    how = {"dask": mode, "output_dtypes": [x.dtype]}

    assert_lazy_equal(xr.apply_ufunc(so.safe_log, x, **how), so.safe_log(X), ("t", "s"))
    got = xr.apply_ufunc(so.safe_div, x, y, **how)
    assert_lazy_equal(got, so.safe_div(X, X[0]), ("t", "s"))
    assert (got.chunks, list(got.t)) == (x.chunks, list(x.t))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["nanmean", "nanstd", "nanmedian", "safe_logsumexp", "safe_norm"])
def test_reductions(name, mode, xr):
    """A reduction takes its dimension as the last axis."""
    values = np.where(X > 1.5, np.nan, X)
    x, f = xr.DataArray(values, dims=("t", "s")).chunk(s=3), getattr(so, name)
    how = {"input_core_dims": [["t"]], "kwargs": {"axis": -1}, "output_dtypes": [x.dtype]}

    got = xr.apply_ufunc(f, x, dask=mode, **how)

    assert_lazy_equal(got, f(values, axis=0), ("s",))


def test_a_dimension_in_chunks(xr):
    """Over several chunks "allowed" reduces; "parallelized" raises xarray's own error."""
    x = xr.DataArray(X, dims=("t", "s")).chunk(t=2)
    how = {"input_core_dims": [["t"]], "kwargs": {"axis": -1}, "output_dtypes": [x.dtype]}

    got = xr.apply_ufunc(so.nanstd, x, dask="allowed", **how)
    assert_lazy_equal(got, so.nanstd(X, axis=0), ("s",))
    with pytest.raises(ValueError, match="multiple chunks"):
        xr.apply_ufunc(so.nanstd, x, dask="parallelized", **how)


@pytest.mark.parametrize("mode", MODES)
def test_a_mask_beside_an_array(mode, xr):
    """A mask is a second argument of a function of two, of NumPy or in chunks."""
    x = xr.DataArray(X, dims=("t", "s")).chunk(s=3)
    mean = lambda x, keep: so.safe_mean(x, where=keep, axis=-1)  # noqa: E731
    how = {"input_core_dims": [["t"], ["t"]], "output_dtypes": [x.dtype]}

    for keep in (x > 0, xr.DataArray(X > 0, dims=("t", "s"))):
        got = xr.apply_ufunc(mean, x, keep, dask=mode, **how)
        assert_lazy_equal(got, so.safe_mean(X, where=X > 0, axis=0), ("s",))


def test_arrays_without_chunks(xr):
    """An array of NumPy in xarray is computed at once; xarray's own array is refused in words."""
    x = xr.DataArray(X, dims=("t", "s"))

    np.testing.assert_array_equal(xr.apply_ufunc(so.safe_log, x), so.safe_log(X))
    got = x.reduce(so.nanmean, dim="t")
    np.testing.assert_array_equal(got, so.nanmean(X, axis=0))
    with pytest.raises(TypeError, match=r"safe_log: expected arrays of .*DataArray"):
        so.safe_log(x)
