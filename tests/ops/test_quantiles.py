"""Quantiles of the entries kept: NumPy's methods, shapes, infinities, slopes, refusals."""

import numpy as np
import pytest

import safeops as so
from assertions import assert_close
from frameworks import asarray, to_numpy
from reducing import RTOL, derivatives, inf, nan

METHODS = (
    "inverted_cdf",
    "averaged_inverted_cdf",
    "closest_observation",
    "interpolated_inverted_cdf",
    "hazen",
    "weibull",
    "linear",
    "median_unbiased",
    "normal_unbiased",
    "lower",
    "higher",
    "midpoint",
    "nearest",
)
QS = (0.0, 0.125, 0.25, 0.3, 0.5, 0.625, 0.9, 1.0)


def holed(shape, seed=0):
    """Return random numbers, of which a third is NaN, with at least one in each last slice."""
    random = np.random.default_rng(seed)
    x = np.where(random.random(shape) < 1 / 3, nan, random.normal(size=shape))
    x[..., 0] = random.normal(size=shape[:-1])
    return x


@pytest.mark.parametrize("method", METHODS)
def test_quantiles_are_those_of_numpy(method, framework):
    """Each method has NumPy's values, for each q and for all at once, along one axis and two."""
    if method == "closest_observation" and np.__version__ == "2.0.0":
        pytest.skip("NumPy took the odd one of two as close until 2.0.1 (numpy 26656)")
    x = holed((3, 4, 9))
    many = asarray(framework, QS)
    array = asarray(framework, x)

    for axis in (-1, (0, 2)):
        wanted = np.nanquantile(x, QS, axis=axis, method=method)
        got = [so.nanquantile(array, q, axis=axis, method=method) for q in QS]
        assert_close([to_numpy(g) for g in got], wanted, 1e-12, atol=1e-12)
        assert_close(
            to_numpy(so.nanquantile(array, many, axis=axis, method=method)),
            wanted,
            1e-12,
            atol=1e-12,
        )


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, -3, (2, 0)], ids=str)
def test_shapes_of_quantiles(axis, keepdims, framework):
    """Many quantiles come first, before the axes that stay."""
    x = np.arange(24.0).reshape(2, 3, 4) ** 2
    x[0, 1, 2] = nan
    array, many = asarray(framework, x), asarray(framework, [0.5, 0.75])

    for q, ours in ((0.5, 0.5), ([0.5, 0.75], many)):
        wanted = np.nanquantile(x, q, axis=axis, keepdims=keepdims)
        value = to_numpy(so.nanquantile(array, ours, axis=axis, keepdims=keepdims))
        assert value.shape == wanted.shape
        assert_close(value, wanted, RTOL, atol=RTOL)


@pytest.mark.parametrize(
    ("entries", "q", "wanted"),
    [
        ((1.0, inf, inf), 0.5, inf),
        ((1.0, 2.0, inf), 0.5, 2.0),
        ((1.0, 2.0, inf), 0.75, inf),
        ((-inf, 2.0, 3.0), 0.25, -inf),
        ((-inf, -inf, 3.0), 0.0, -inf),
        ((-inf, -inf, nan), 0.3, -inf),
        ((inf, nan, nan), 0.5, inf),
        ((inf, inf, nan), 0.7, inf),
    ],
)
def test_quantiles_of_infinite_entries(entries, q, wanted, framework):
    """Infinite entries are at the ends; between two numbers they are not met."""
    assert to_numpy(so.nanquantile(asarray(framework, entries), q)) == wanted


def test_quantiles_have_a_slope_in_q(autodiff_framework):
    """The derivative by q is that of the line between two entries, of which there are n - 1."""
    x = asarray(autodiff_framework, [[1.0, nan, 2.0, 6.0], [nan, nan, nan, nan]])
    q = asarray(autodiff_framework, [0.25, 0.75])

    gradient, slope = derivatives(lambda q: so.nanquantile(x, q, axis=-1, fill_value=0.0), q, q)

    assert_close(gradient, [2.0, 8.0], RTOL)
    assert_close(slope, 6.5, RTOL)


@pytest.mark.parametrize(
    ("q", "error", "words"),
    [
        (1.5, ValueError, "a quantile from 0 to 1, got 1.5"),
        (-0.1, ValueError, "a quantile from 0 to 1, got -0.1"),
        (nan, ValueError, "a quantile from 0 to 1, got nan"),
        (None, TypeError, "got None"),
        ([0.5, 1.5], ValueError, "a quantile from 0 to 1, got 1.5"),
        ([], ValueError, r"a list of numbers as q, got \[\]"),
        ([[0.5]], ValueError, r"a list of numbers as q, got \[\(0.5,\)\]"),
        ("0.5", TypeError, "got str"),
    ],
)
def test_what_is_no_quantile(q, error, words, framework):
    """A number outside [0, 1], and what is no number, is refused in words."""
    with pytest.raises(error, match=words):
        so.nanquantile(asarray(framework, [1.0, 2.0]), q)


def test_arrays_that_are_no_quantiles(framework):
    """In an array what is outside [0, 1] gives NaN, as nothing can raise; two axes are refused."""
    x, q = asarray(framework, [1.0, 2.0]), asarray(framework, [0.5, 1.5, -0.1, nan])

    np.testing.assert_array_equal(to_numpy(so.nanquantile(x, q)), [1.5, nan, nan, nan])
    with pytest.raises(ValueError, match="at most one dimension as q, got 2"):
        so.nanquantile(x, q[None, :])


def test_percentiles_are_quantiles_by_a_hundred(framework):
    """Numbers, lists and arrays from 0 to 100 have NumPy's values; others are refused in words."""
    x, qs = holed((3, 9)), [0, 12.5, 100]
    array = asarray(framework, x)
    wanted = np.nanpercentile(x, qs, axis=-1)

    for q in (qs, tuple(qs), asarray(framework, qs)):
        assert_close(to_numpy(so.nanpercentile(array, q, axis=-1)), wanted, 1e-12)
    many = so.nanquantile(array, [0, 0.125, 1], axis=-1, keepdims=True)
    assert_close(to_numpy(many), wanted[..., None], 1e-12)
    for q, value in zip(qs, wanted, strict=True):
        assert_close(to_numpy(so.nanpercentile(array, q, axis=-1)), value, 1e-12)
    with pytest.raises(ValueError, match="nanpercentile: expected a percentile from 0 to 100, got"):
        so.nanpercentile(array, 100.5)


def test_an_unknown_method_is_refused(framework):
    """The error lists the methods."""
    with pytest.raises(ValueError, match=r"a method out of \(.*hazen.*\), got 'hasen'"):
        so.nanquantile(asarray(framework, [1.0]), 0.5, method="hasen")
