"""What clipping and standard scores hold at edges that the table of formulas has not."""

import numpy as np
import pytest

import safeops as so
from assertions import assert_close
from frameworks import asarray, to_numpy
from safeops._backends import load
from whole import gradient_in, pytest_generate_tests

__all__ = ["pytest_generate_tests"]  # runs the tests below in each `way`

nan, inf = np.nan, np.inf


@pytest.mark.parametrize(
    ("radius", "slopes"), [(13.0, [1, 1, 1]), (inf, [1, 1, 1]), (0.0, [0, 0, 0])]
)
def test_the_slope_on_the_sphere_is_that_of_the_inside(radius, slopes, way):
    """A vector as long as the radius has the identity; in a ball of one point all slopes are 0."""
    x = [[3.0, 4.0, 12.0], [0.0, 0.0, 0.0]]

    slope = gradient_in(way, lambda x: so.safe_clip_by_norm(x, radius, axis=-1), x)

    assert_close(slope, [slopes, slopes], 0.0)


def test_what_fits_comes_back_bit_for_bit(framework):
    """A vector that is not too long is not multiplied; its neighbour with a NaN is NaN alone."""
    x = np.array([[0.1, 0.2, 0.3], [nan, 1.0, 2.0], [1e308, 1e308, 1e308]])

    clipped = to_numpy(so.safe_clip_by_norm(asarray(framework, x), 1.0, axis=-1))

    np.testing.assert_array_equal(clipped[0], x[0])
    assert np.isnan(clipped[1]).all()
    assert_close(clipped[2], [3**-0.5] * 3, 1e-15)


def test_radii_are_one_for_each_slice(framework):
    """An array has length 1 in the axes of a slice; a negative entry counts as 0."""
    x = asarray(framework, [[3.0, 4.0], [3.0, 4.0]])

    clipped = to_numpy(so.safe_clip_by_norm(x, asarray(framework, [[1.0], [-1.0]]), axis=-1))

    assert_close(clipped, [[0.6, 0.8], [0.0, 0.0]], 1e-15)
    with pytest.raises(ValueError, match=r"of shape \(2, 1\), got shape \(2,\)"):
        so.safe_clip_by_norm(x, asarray(framework, [1.0, 2.0]), axis=-1)
    with pytest.raises(ValueError, match="at least 0 as max_norm, got -1"):
        so.safe_clip_by_norm(x, -1.0)


def test_a_radius_of_nan_has_no_slope(way):
    """NaN as radius makes its slice and its slopes NaN, at a zero slice too, and no other."""
    xp, x = load(way[0]).xp, [[0.0, 0.0], [3.0, 4.0]]

    def clipped(x, radius):
        return xp.sum(so.safe_clip_by_norm(x, radius, axis=-1), axis=-1)

    fixed = [asarray(way[0], y) for y in (x, [[nan], [1.0]])]
    of_x = gradient_in(way, lambda x: clipped(x, fixed[1]), x)
    of_radius = gradient_in(way, lambda radius: clipped(fixed[0], radius), [[nan], [1.0]])

    assert_close(of_x, [[nan, nan], [0.032, -0.024]], 1e-14)
    assert_close(of_radius, [[nan], [1.4]], 1e-14)


def test_the_slope_for_the_radius(way):
    """The radius has slope 0 inside, and the sum of the direction outside."""
    xp, x = load(way[0]).xp, asarray(way[0], [[3.0, 4.0], [0.0, 0.0], [0.3, 0.4]])

    def total(radius):
        return xp.sum(so.safe_clip_by_norm(x, radius, axis=-1), axis=-1)

    assert_close(gradient_in(way, total, [[1.0], [1.0], [1.0]]), [[1.4], [0.0], [0.0]], 1e-15)


@pytest.mark.parametrize("offset", [0.0, 1e9, -1e6])
def test_scores_keep_their_digits_far_from_zero(offset, framework):
    """An offset costs no digits, a constant slice is exactly 0, and NaN stays in its slice."""
    x = np.array([[1.0, 2.0, 4.0], [0.1, 0.1, 0.1], [nan, 1.0, 2.0]]) + offset

    scores = to_numpy(so.safe_standardize(asarray(framework, x), axis=-1))

    assert_close(scores[0], np.array([-4.0, -1.0, 5.0]) / 14**0.5, 1e-15)
    assert (scores[1] == 0).all()
    assert np.isnan(scores[2]).all()


def test_a_correction_is_that_of_the_deviation(framework):
    """With 1 the deviation is the unbiased one, and a slice of one entry has none."""
    x, keep = asarray(framework, [[1.0, 3.0], [7.0, nan]]), [[True, True], [True, False]]
    where = asarray(framework, keep, "bool")

    scores = to_numpy(so.safe_standardize(x, axis=-1, correction=1, where=where))

    assert_close(scores, [[-(0.5**0.5), 0.5**0.5], [0.0, 0.0]], 1e-15)
