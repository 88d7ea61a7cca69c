"""Running sums of exponentials: leading -inf, entries left out in the middle, and long slices."""

import mpmath
import numpy as np
import pytest

import safeops as so
from assertions import assert_close
from frameworks import asarray, to_numpy
from safeops._backends import load
from whole import gradient_in, pytest_generate_tests

__all__ = ["pytest_generate_tests"]  # runs the tests below in each `way`

nan, inf = np.nan, np.inf


def logsumexp(x):
    """Return the logarithm of the sum of exponentials."""
    return float(mpmath.log(mpmath.fsum(map(mpmath.exp, x))))


def test_a_leading_run_of_minus_inf_has_no_slope(way):
    """Entries at -inf, first or later, have gradient 0, and make no other slope NaN."""
    xp = load(way[0]).xp

    def kept(x):
        out = so.safe_logcumsumexp(x, axis=-1)
        return xp.where(xp.isinf(out), 0.0, out)

    slope = gradient_in(way, kept, [-inf, -inf, 0.0, -inf, 0.0])

    assert_close(slope, [0, 0, 2.5, 0, 0.5], 1e-15)


def test_the_first_entry_has_no_slope_at_minus_inf(way):
    """The first sum is the first entry itself; at -inf its gradient is 0, as that of the others."""
    slope = gradient_in(way, so.safe_logcumsumexp, [-inf, -inf, 0.0])

    assert_close(slope, [0, 0, 1], 0.0)


def test_sums_of_entries_of_all_sizes(way):
    """Values and slopes are right from the smallest to the largest numbers of float32."""
    sizes = 2.0 ** np.arange(-120, 124, 4.0)
    x = np.array([[0.5, -1.0, 1.0, 0.25], [-1.0, -1.0, 0.5, 1.0]])[:, None] * sizes[:, None]
    sums = np.logaddexp.accumulate(x, axis=-1)
    within = np.where(np.tril(np.ones((4, 4))), x[..., None, :], -inf)  # entries j of sum i
    shares = np.exp(within - within.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)

    value = so.safe_logcumsumexp(asarray(way[0], x, "float32"), axis=-1)
    slope = gradient_in(way, lambda x: so.safe_logcumsumexp(x, axis=-1), x, "float32")

    assert_close(to_numpy(value), sums, 1e-6, atol=1e-37)
    assert_close(slope, shares.sum(-2), 1e-5, atol=1e-37)


def test_what_is_left_out_leaves_the_sum_as_it_was(way):
    """An entry left out has gradient 0 and the value of the one before it, whatever it holds."""
    keep = asarray(way[0], [True, False, True, False], "bool")

    def running(x):
        return so.safe_logcumsumexp(x, where=keep)

    for held in (nan, inf, 1e30):
        x = [0.0, held, 0.0, held]
        value = to_numpy(running(asarray(way[0], x)))
        assert_close(value, [0, 0, np.log(2), np.log(2)], 1e-15)
        assert_close(gradient_in(way, running, x), [3, 0, 1, 0], 1e-15)


def test_a_nan_stays_from_its_entry_on(framework):
    """What comes before a NaN is a number, what comes after is NaN."""
    value = to_numpy(so.safe_logcumsumexp(asarray(framework, [1.0, nan, 2.0, -inf])))

    np.testing.assert_array_equal(value, [1, nan, nan, nan])


@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_long_slices_keep_their_digits(axis, framework):
    """Each sum is that of mpmath, along each axis, with entries of -700 beside those of 700."""
    x = np.random.default_rng(1).uniform(-700, 700, (7, 9))
    lines = {0: x.T, None: x.reshape(1, -1)}.get(axis, x)
    exact = [[logsumexp(line[: i + 1]) for i in range(line.size)] for line in lines]
    exact = {0: np.transpose(exact), None: np.ravel(exact)}.get(axis, np.array(exact))

    assert_close(to_numpy(so.safe_logcumsumexp(asarray(framework, x), axis=axis)), exact, 1e-14)


def test_several_axes_are_refused(framework):
    """A running sum is along one axis."""
    with pytest.raises(TypeError, match="expected an int or None as axis"):
        so.safe_logcumsumexp(asarray(framework, [[1.0]]), axis=(0, 1))
