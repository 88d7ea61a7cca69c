"""`weights` of all sizes, in float32: the sum of weights is squared in no slope."""

import numpy as np
import pytest

import safeops as so
from assertions import assert_close
from frameworks import asarray, to_numpy
from whole import gradient_in, pytest_generate_tests

__all__ = ["pytest_generate_tests"]  # runs the tests below in each `way`

EXPONENTS = np.arange(-112.0, 113.0, 4)
X, W = np.array([1.0, -0.75, 0.5, 0.25]), np.array([1.0, 0.5, 2.0, 0.75])
LEAST, MOST = 1e-36, 1e36


def exact(name, x, w):
    """Return the slopes for the weights, in float64, which holds all squares."""
    away = x - (w * x).sum(-1, keepdims=True) / w.sum(-1, keepdims=True)
    spread = (w * away**2).sum(-1, keepdims=True) / w.sum(-1, keepdims=True)
    return (away if name == "mean" else away**2 - spread) / w.sum(-1, keepdims=True)


@pytest.mark.parametrize("power", [0.0, -0.5])
@pytest.mark.parametrize("name", ["mean", "var"])
def test_slopes_for_weights_of_all_sizes(name, power, way):
    """The slope is right wherever it is a number; entries are of size 1, or small by large."""
    x = X * 2.0 ** (power * EXPONENTS)[:, None]
    w = W * 2.0 ** EXPONENTS[:, None]
    wanted = exact(name, x, w)
    size = np.abs(wanted).max(-1, keepdims=True)
    there = (size > LEAST) & (size < MOST)
    op, entries = getattr(so, f"safe_{name}"), asarray(way[0], x, "float32")

    slope = gradient_in(way, lambda w: op(entries, axis=-1, weights=w), w, "float32")

    found, wanted = (np.where(there, y / size, 0.0) for y in (slope, wanted))
    assert there.sum() > len(EXPONENTS) / 2
    assert_close(found, wanted, 0.0, atol=1e-5)


@pytest.mark.parametrize("correction", [0, 1])
def test_weights_whose_sum_is_out_of_range(correction, framework):
    """Shares are right though the sum of the weights is no number of the dtype."""
    x, w = (asarray(framework, y, "float32") for y in ([1.0, 2.0], [3e38, 3e38]))

    # The backend of NumPy is quiet of itself; that of array-api-strict does not know what it wraps.
    with np.errstate(over="ignore" if framework == "array-api-strict" else "warn"):
        average = so.safe_mean(x, weights=w)
        found = so.safe_var(x, weights=w, correction=correction)

    assert_close(to_numpy(average), 1.5, 1e-6)
    assert_close(to_numpy(found), 0.25, 1e-6)
