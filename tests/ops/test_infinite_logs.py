"""Sums of exponentials with entries at inf: the sum is inf, and these entries share its slope."""

import numpy as np
import pytest

import safeops as so
from assertions import assert_close
from derivatives import MODES, SECOND, derivatives_in, directions
from frameworks import asarray, to_numpy
from safeops import segments
from safeops._backends import load
from whole import gradient_in, pytest_generate_tests

__all__ = ["pytest_generate_tests"]  # runs the tests below in each `way`

nan, inf = np.nan, np.inf
# What a framework cannot do, for any function.
FORWARD = {
    ("tensorflow", mode): (("forward", "rev-fwd", "fwd-fwd"), "the jvp of 2 * inf is NaN (2.21)")
    for mode in MODES["tensorflow"]
}
X = np.array([[inf, 1.0, -inf, 1e4], [inf, 0.0, inf, inf], [inf, inf, 2.0, -inf]])
SHARES = np.array([[1.0, 0, 0, 0], [1 / 3, 0, 1 / 3, 1 / 3], [0.5, 0.5, 0, 0]])


def of_segments(framework):
    """Return a function: the logarithms of sums along the last axis, as one segment each."""
    ids, xp = asarray(framework, [0] * 4, "int32"), load(framework).xp
    return lambda x: segments.segment_logsumexp(xp.permute_dims(x, (1, 0)), ids, 1)[0, :]


def with_axis(x):
    """Return the logarithms of sums along the last axis."""
    return so.safe_logsumexp(x, axis=-1)


# Of a framework: functions of rows of four.
SUMS = {
    "safe_logsumexp": lambda _: with_axis,
    "safe_logsumexp, b": lambda framework: (
        lambda x: so.safe_logsumexp(x, axis=-1, b=load(framework).xp.ones_like(x) * 0.25)
    ),
    "safe_logmeanexp": lambda _: lambda x: so.safe_logmeanexp(x, axis=-1),
    "safe_logcumsumexp": lambda _: lambda x: so.safe_logcumsumexp(x, axis=-1)[..., -1],
    "segment_logsumexp": of_segments,
}


@pytest.mark.parametrize("name", SUMS)
def test_entries_at_inf_share_the_slope(name, way):
    """The value is inf, and each entry at inf has an even share of the slope."""
    f = SUMS[name](way[0])

    assert_close(to_numpy(f(asarray(way[0], X))), [inf] * 3, 0.0)
    assert_close(gradient_in(way, f, X), SHARES, 1e-15)


def test_second_derivatives_at_inf_are_0(way):
    """Forward mode has the same shares, and each composition of second order has 0."""
    framework, mode = way
    (v,), (u,) = directions([X.shape])
    args = [[asarray(framework, a)] for a in (X, v, u)]

    got = derivatives_in(mode, framework, with_axis, lambda y: y, *args, FORWARD)

    wanted = {"value": np.full(3, inf), "reverse": SHARES, "forward": (SHARES * v).sum(-1)}
    wanted |= dict.fromkeys(SECOND[:3], np.zeros_like(X)) | {"fwd-fwd": np.zeros(3)}
    for order, out in got.items():
        found = out[0] if order in ("reverse", *SECOND[:3]) else out
        assert_close(to_numpy(found + 0.0), wanted[order], 1e-14, order)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_entries_at_inf_share_the_slope_in_each_dtype(dtype, autodiff_framework):
    """In dtypes of 16 bits too, where the sum is formed in float32."""
    way = autodiff_framework, {"torch": "autograd"}.get(autodiff_framework, "eager")
    for name in ("safe_logsumexp", "safe_logsumexp, b", "segment_logsumexp"):
        slope = gradient_in(way, SUMS[name](way[0]), X, dtype)

        assert_close(slope, SHARES, 1e-2, name)


def test_what_is_left_out_is_not_at_inf(way):
    """An inf with ``where=False`` is absent: value and slope are those of the rest."""
    keep = asarray(way[0], [False, True, True], "bool")
    x = np.array([[inf, 0.0, 0.0], [inf, inf, 1.0]])
    f = lambda x: so.safe_logsumexp(x, axis=-1, where=keep)  # noqa: E731

    assert_close(to_numpy(f(asarray(way[0], x))), [np.log(2), inf], 1e-15)
    assert_close(gradient_in(way, f, x), [[0, 0.5, 0.5], [0, 1, 0]], 1e-15)


def test_a_nan_beside_inf_stays(way):
    """A slice with both is NaN, and so is the slope of all that is present."""
    x = [[inf, nan, -inf, 1.0]]
    slope = [[nan, nan, 0, nan]]
    for name in ("safe_logsumexp", "safe_logsumexp, b", "segment_logsumexp"):
        f = SUMS[name](way[0])

        assert np.isnan(to_numpy(f(asarray(way[0], x)))), name
        assert_close(gradient_in(way, f, x), slope, 0.0, name)


# b, and the slope for x and for b: exp(x - out), where equal infinities have the quotient 1.
FACTORS = {
    "shared by factors": ((1.0, 3.0, 1.0), (0.25, 0.75, 0.0), (0.25, 0.25, 0.0)),
    "a factor of 0": ((0.0, 4.0, 1.0), (0.0, 1.0, 0.0), (0.25, 0.25, 0.0)),
    "far apart": ((1e-300, 1e300, 1.0), (0.0, 1.0, 0.0), (1e-300, 1e-300, 0.0)),
}


@pytest.mark.parametrize("case", FACTORS)
def test_factors_of_entries_at_inf(case, way):
    """Entries at inf share the slope by their factors."""
    b, for_x, for_b = FACTORS[case]
    args = np.array([[inf, inf, 2.0], b])

    def f(both):
        return so.safe_logsumexp(both[0, :], b=both[1, :])

    assert to_numpy(f(asarray(way[0], args))) == inf
    assert_close(gradient_in(way, f, args), [for_x, for_b], 1e-15)


def test_factors_of_both_signs_at_inf(framework):
    """The difference of two infinite exponentials is not known: NaN, as that of a negative sum."""
    x = asarray(framework, [inf, inf, 1.0])
    with np.errstate(invalid="ignore"):
        for b in ([2.0, -1.0, 1.0], [-1.0, 0.0, 1.0]):
            assert np.isnan(to_numpy(so.safe_logsumexp(x, b=asarray(framework, b))))


def test_running_sums_at_inf(way):
    """From the first inf on the sum is inf; each inf has an even share of each sum from there."""
    x = [-inf, 1.0, inf, 2.0, inf]
    weights = asarray(way[0], [1.0, 1.0, 1.0, 1.0, 3.0])

    def weighted(x):
        out = so.safe_logcumsumexp(x)
        return load(way[0]).xp.where(out > -inf, out, 0.0) * weights

    value = to_numpy(so.safe_logcumsumexp(asarray(way[0], x)))
    np.testing.assert_array_equal(value, [-inf, 1, inf, inf, inf])
    assert_close(gradient_in(way, weighted, x), [0, 1, 3.5, 0, 1.5], 1e-15)


def test_softmax_at_inf_is_nan(framework):
    """Shares at inf would be a choice, and are NaN; that of -inf is 0."""
    with np.errstate(invalid="ignore"):
        value = to_numpy(so.safe_softmax(asarray(framework, [inf, 1.0, -inf])))

    assert np.isnan(value[0])
    assert value[2] == 0
