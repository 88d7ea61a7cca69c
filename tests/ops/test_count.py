"""`count` of `safe_mean` and `nanmean`: what to divide by, which a caller knows better."""

import numpy as np
import pytest

import safeops as so
from frameworks import asarray, to_numpy
from safeops._dispatch import backend_of

X = np.asarray([[1.0, 2.0, 6.0], [4.0, 5.0, 7.0]])
KEEP = np.asarray([[True, True, False], [True, False, False]])
MEANS = {
    "safe_mean": lambda framework, x, **how: so.safe_mean(
        x, where=asarray(framework, KEEP, "bool"), **how
    ),
    "nanmean": lambda framework, x, **how: so.nanmean(
        x, where=asarray(framework, KEEP, "bool"), **how
    ),
}


@pytest.mark.parametrize("name", MEANS)
def test_numbers_and_arrays(name, framework):
    """The sum of what is kept is divided by `count`, in the shape of the result."""
    mean, x = MEANS[name], asarray(framework, X, "float64")
    rows = asarray(framework, np.asarray([4.0, 8.0]), "float64")
    column = asarray(framework, np.asarray([[4.0], [8.0]]), "float64")

    assert to_numpy(mean(framework, x, count=14)) == 0.5
    assert to_numpy(mean(framework, x, axis=1, count=rows)).tolist() == [0.75, 0.5]
    kept = mean(framework, x, axis=-1, keepdims=True, count=column)
    assert to_numpy(kept).tolist() == [[0.75], [0.5]]


@pytest.mark.parametrize("name", MEANS)
def test_a_count_of_zero(name, framework):
    """There is nothing to divide: the value is the fill."""
    mean, x = MEANS[name], asarray(framework, X, "float64")
    rows = asarray(framework, np.asarray([0, 2]), "int64")

    assert np.isnan(to_numpy(mean(framework, x, count=0)))
    assert to_numpy(mean(framework, x, axis=1, count=rows, fill_value=-1.0)).tolist() == [-1.0, 2.0]


@pytest.mark.parametrize("name", MEANS)
def test_gradients(name, autodiff_framework):
    """Each entry kept has ``1 / count``, a row whose count is 0 has 0."""
    mean, x = MEANS[name], asarray(autodiff_framework, X, "float64")
    rows = asarray(autodiff_framework, np.asarray([0.0, 8.0]), "float64")
    grad = backend_of(x).grad
    number = asarray(autodiff_framework, 0.0, "float64")

    (got,) = grad(lambda x: mean(autodiff_framework, x, count=4))(x)
    np.testing.assert_array_equal(to_numpy(got), KEEP / 4)
    by_row = lambda x: mean(autodiff_framework, x, axis=1, count=rows, fill_value=0.0)  # noqa: E731
    (got,) = grad(lambda x: so.safe_sum(by_row(x), initial=number))(x)
    np.testing.assert_array_equal(to_numpy(got), KEEP * [[0.0], [1 / 8]])
