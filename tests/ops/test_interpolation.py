"""Interpolation: value and derivatives by the closed form, at knots, steps and beyond the ends."""

import mpmath
import numpy as np
import pytest

import safeops as so
from assertions import assert_close
from derivatives import SECOND, derivatives_in, directions
from elementwise import pytest_generate_tests
from frameworks import asarray, to_numpy
from safeops._backends import load
from safeops._core.dtypes import dtype_name, limits
from specs.interpolation import plain_interp

__all__ = ["pytest_generate_tests"]  # runs the tests below in each `way`

nan, inf = np.nan, np.inf
# All of one length: TensorFlow's forward mode of a gradient stacks its parts.
KNOTS = np.array([0.0, 1.0, 1.0, 1.5, 2.25, 2.5, 2.5])
VALUES = np.array([3.0, 5.0, -1.0, 2.0, 0.5, 4.0, -2.0])
X = np.array([-1.0, 0.25, 1.0, 2.0, 2.5, 7.0, 0.0])
LOW = (None, 0, 2, 3, None, None, 0)  # the knot before each number
FLAT = {0: 0, 4: 6, 5: 6}  # numbers beyond the ends, and the knots whose values they have
WEIGHTS = (1.0, -0.5, 2.0, 0.75, 1.5, -1.0, 0.25)
RTOL = 1e-13


def total(*numbers):
    """Return the weighted sum of all values, the intervals being known."""
    x, knots, values = (numbers[a:b] for a, b in ((0, 7), (7, 14), (14, 21)))
    result = 0
    for i, (w, k) in enumerate(zip(WEIGHTS, LOW, strict=True)):
        if k is None:
            result += w * values[FLAT[i]]
            continue
        part = (x[i] - knots[k]) / (knots[k + 1] - knots[k])
        result += w * (values[k] + part * (values[k + 1] - values[k]))
    return result


def exact():
    """Return the gradient and the Hessian of the weighted sum."""
    point = [mpmath.mpf(float(t)) for t in (*X, *KNOTS, *VALUES)]
    n = len(point)
    with mpmath.workdps(50):
        unit = np.eye(n, dtype=int)
        gradient = np.array([float(mpmath.diff(total, point, tuple(e))) for e in unit])
        hessian = np.zeros((n, n))
        for i in range(n):
            for j in range(i + 1):
                order = tuple(map(int, unit[i] + unit[j]))
                hessian[i, j] = hessian[j, i] = float(mpmath.diff(total, point, order))
    return np.round(gradient, 15), np.round(hessian, 15)


def parts_of(x):
    """Return the parts of the three arguments."""
    return x[:7], x[7:14], x[14:]


def test_interpolation_is_exact(way):
    """Value and derivatives for all arguments, at a knot those of the right, in every mode."""
    framework, mode = way
    batch = mode == "vmap"  # else knots have one dimension
    args = (X, KNOTS, VALUES)
    v, u = directions([a.shape for a in args])
    groups = [
        [asarray(framework, np.stack([a] * 2) if batch else a) for a in g] for g in (args, v, u)
    ]
    w = asarray(framework, WEIGHTS)
    xp = load(framework).xp

    got = derivatives_in(
        mode, framework, so.safe_interp, lambda out: xp.sum(out * w, axis=-1), *groups
    )

    gradient, hessian = exact()
    v, u = np.concatenate(v), np.concatenate(u)
    wanted = {"reverse": gradient, **dict.fromkeys(SECOND[:3], hessian @ v)}
    value = to_numpy(got["value"])
    assert_close(value[0] if batch else value, np.interp(X, KNOTS, VALUES), RTOL)
    for order in got.keys() & wanted.keys():
        for x, numbers in zip(got[order], parts_of(wanted[order]), strict=True):
            found = to_numpy(x)[0] if batch else to_numpy(x)
            assert_close(found, numbers, RTOL, order, np.where(numbers == 0, 0.0, RTOL))
    for order, number in (("forward", gradient @ v), ("fwd-fwd", v @ hessian @ u)):
        if order in got:
            found = to_numpy(got[order])
            assert_close(found[0] if batch else found, number, RTOL, order)


def test_values_are_those_of_numpy(framework):
    """Values of any shape are those of `numpy.interp`, NaN and infinities included."""
    rng = np.random.default_rng(0)
    knots = np.sort(rng.integers(0, 9, 20) / 4.0)
    values = rng.normal(size=20)
    x = np.concatenate([rng.uniform(-0.5, 2.5, 90), knots, [nan, inf, -inf]])[:112].reshape(8, 14)

    got = so.safe_interp(*(asarray(framework, a) for a in (x, knots, values)))

    assert_close(to_numpy(got), np.interp(x, knots, values), 1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_one_knot_and_knots_that_tie_at_the_ends(dtype, autodiff_framework):
    """One knot is a constant, and the last of equal knots counts; no slope is infinite."""
    x = asarray(autodiff_framework, [-1.0, 0.0, 1.0], dtype)
    xp, grad = load(autodiff_framework).xp, load(autodiff_framework).grad
    for knots, values, wanted in (
        ([0.0], [2.0], [2, 2, 2]),
        ([0.0, 0.0], [2.0, 3.0], [2, 3, 3]),
        ([-1.0, -1.0, 1.0, 1.0], [9.0, 2.0, 4.0, 8.0], [2, 3, 8]),
    ):
        table = [asarray(autodiff_framework, a, dtype) for a in (knots, values)]

        value = so.safe_interp(x, *table)
        slopes = grad(lambda *a: xp.sum(so.safe_interp(*a)))(x, *table)

        assert dtype_name(value.dtype) == dtype
        assert_close(to_numpy(value).astype(float), wanted, 0.0)
        assert all(np.isfinite(to_numpy(s).astype(float)).all() for s in slopes)


def test_a_nan_stays_with_its_entry(autodiff_framework):
    """A NaN in `x` has gradient NaN, and one in `fp` reaches its two intervals alone."""
    f, backend = asarray, load(autodiff_framework)
    knots = f(autodiff_framework, [0.0, 1.0, 2.0, 3.0])
    values = f(autodiff_framework, [1.0, 3.0, nan, 5.0])
    x = f(autodiff_framework, [0.5, nan, -1.0, 1.5, 3.0])

    value = to_numpy(so.safe_interp(x, knots, values))
    slope = to_numpy(backend.grad(lambda x: backend.xp.sum(so.safe_interp(x, knots, values)))(x)[0])

    np.testing.assert_array_equal(value, [2, nan, 1, nan, 5])
    np.testing.assert_array_equal(slope, [2, nan, 0, nan, 0])


def test_plain_interpolation_has_a_gradient_of_nan(autodiff_framework):
    """A mask of all intervals leaves the slope of an empty one, which is NaN."""
    x, k, v = (asarray(autodiff_framework, a) for a in ([0.5], KNOTS, VALUES))
    backend = load(autodiff_framework)
    xp = backend.xp

    plain = backend.grad(lambda x: xp.sum(plain_interp(xp, x, k, v)))(x)[0]
    assert np.isnan(to_numpy(plain)).all()
    ours = backend.grad(lambda x: xp.sum(so.safe_interp(x, k, v)))(x)[0]
    assert_close(to_numpy(ours), [2.0], 1e-15)


def test_shapes_that_do_not_fit_are_named(framework):
    """Knots and values are vectors of one length, with an entry at least."""
    x = asarray(framework, X)
    for n, m in (((2,), (3,)), ((2, 2), (2, 2)), ((0,), (0,))):
        with pytest.raises(ValueError, match=r"^safe_interp: expected xp and fp of one shape"):
            so.safe_interp(x, *(asarray(framework, np.ones(s)) for s in (n, m)))


def test_a_rise_out_of_range(framework):
    """Values between the largest numbers of either sign are right; so is a number without axes."""
    knots, values = ([0.0, 1.0], [-3e38, 3e38])
    args = [asarray(framework, y, "float32") for y in (knots, values)]

    found = so.safe_interp(asarray(framework, [0.5, 0.25, 0.95], "float32"), *args)
    alone = so.safe_interp(asarray(framework, 0.25, "float32"), *args)

    assert_close(to_numpy(found) / 3e38, [0.0, -0.5, 0.9], 1e-5, atol=1e-6)
    assert to_numpy(alone).shape == ()
    assert_close(to_numpy(alone) / 3e38, -0.5, 1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_knots_at_the_ends_of_the_range(dtype, autodiff_framework):
    """A width out of range is none of the result: value and slopes are those of the formula."""
    load_of = load(autodiff_framework)
    most = float(limits(load_of.xp, asarray(autodiff_framework, [0.0], dtype)).max)
    args = [
        asarray(autodiff_framework, x, dtype)
        for x in ([0.0, most / 2], [-most, most], [-most / 4, most / 4])
    ]

    value = to_numpy(so.safe_interp(*args)).astype(float)
    slopes = load_of.grad(lambda *a: load_of.xp.sum(so.safe_interp(*a)))(*args)

    assert_close(value, [0, most / 8], 1e-2)
    for slope, wanted in zip(
        slopes, ([0.25, 0.25], [-3 / 16, -5 / 16], [3 / 4, 5 / 4]), strict=True
    ):
        assert_close(to_numpy(slope).astype(float), wanted, 1e-2)


@pytest.mark.only("tensorflow")
def test_ranks_that_are_not_known():
    """The error names the function, the argument and the way out."""
    import tensorflow as tf

    some = [tf.TensorSpec(None, tf.float64)]
    calls = {
        "safe_pdist: expected x with": so.safe_pdist,
        "nanquantile: expected q with": lambda q: so.nanquantile(tf.ones(3, tf.float64), q),
    }
    for start, f in calls.items():
        with pytest.raises(ValueError, match=f"{start} a known number.*tf.ensure_shape"):
            tf.function(f, input_signature=some, autograph=False).get_concrete_function()
