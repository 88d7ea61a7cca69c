"""The derivatives of functions of TensorFlow under standard names, in every mode and order."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from assertions import assert_close, differs
from derivatives import derivatives_in, directions
from frameworks import asarray, to_numpy
from namespace import EVERY_MODE, MODES, backend_slope, in_mode, inf, nan, slope
from safeops._backends import load

pytestmark = pytest.mark.only("tensorflow")

WEIGHTS = (1.0, -2.0, 3.0)


class Slope(NamedTuple):
    """A function of points (point, entry), with gradient and Hessian at a point."""

    f: Any
    points: list
    gradient: Any
    hessian: Any
    naive: Any = None  # of TensorFlow's names
    fails: str = ""  # the derivative in which the naive one is wrong
    slow_if_unknown: tuple = ()  # derivatives that take seconds where lengths are unknown


def weighted(ys):
    """Return the sum with weights along the last axis."""
    return sum(w * ys[..., i] for i, w in enumerate(WEIGHTS))


def other_entries(x, *left_out):
    """Return the product of a point without some of its entries."""
    return np.prod(np.delete(x, left_out))


def flat(*_):
    """Return a Hessian of zeros."""
    return np.zeros((3, 3))


def product_hessian(x):
    """Return the second derivatives of a product."""
    return [[0 if i == j else other_entries(x, i, j) for j in range(len(x))] for i in range(len(x))]


def heads(x, derivative, *shape):
    """Return the weighted sum of a derivative of the products of the first entries."""
    total = np.zeros(shape)
    for k, w in enumerate(WEIGHTS, start=1):
        total[(slice(k),) * len(shape)] += w * np.array(derivative(x[:k]))
    return total


def product_gradient(x):
    """Return the first derivatives of a product."""
    return [other_entries(x, i) for i in range(len(x))]


def shared(extreme):
    """Return a gradient that ties share."""
    return lambda x: (x == extreme(x)) / np.sum(x == extreme(x))


def ranks(x):
    """Return the weights in the order of the entries."""
    return np.array(WEIGHTS)[np.argsort(np.argsort(x))]


def power_hessian(x):
    """Return the second derivatives of ``x ** y``."""
    x, y = x
    mixed = x ** (y - 1) * (1 + y * np.log(x))
    return [[y * (y - 1) * x ** (y - 2), mixed], [mixed, x**y * np.log(x) ** 2]]


FACTORS = [[2.0, 3.0, 5.0], [0.0, 3.0, 5.0], [0.0, 0.0, 5.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
TIES = [[1.0, 3.0, 2.0], [3.0, 3.0, 1.0], [2.0, 2.0, 2.0], [inf, 1.0, inf], [-1.0, -inf, -inf]]
PAIRS = [[1.0, 2.0], [2.0, 2.0], [3.0, 2.0], [0.0, -0.0], [inf, inf]]
QUOTIENTS = [[1.0, 2.0], [0.0, -4.0], [-1.0, 0.5]]
POWERS = [[2.0, 3.0], [0.5, -1.5], [4.0, 0.5], [1.0, 0.0]]

# Where a length is unknown it is doubled 31 times, and each derivative of that takes long to trace.
SLOW = ("rev-fwd", "fwd-rev", "fwd-fwd")
PRODUCT = {
    "slow_if_unknown": SLOW,
    "points": FACTORS,
    "gradient": product_gradient,
    "hessian": product_hessian,
}
SLOPES = {
    "prod": Slope(
        f=lambda xp, x: xp.prod(x, axis=-1),
        naive=lambda tf, x: tf.reduce_prod(x, -1),
        fails="rev-rev",
        **PRODUCT,
    ),
    "prod of two axes": Slope(
        f=lambda xp, x: xp.prod(xp.expand_dims(x, axis=1), axis=(2, 1)), **PRODUCT
    ),
    "prod of all axes": Slope(
        f=lambda xp, x: xp.prod(x, keepdims=True)[:, 0], **PRODUCT | {"points": FACTORS[2:3]}
    ),
    "cumulative_prod": Slope(
        f=lambda xp, x: weighted(xp.cumulative_prod(x, axis=1)),
        points=FACTORS,
        gradient=lambda x: heads(x, product_gradient, 3),
        hessian=lambda x: heads(x, product_hessian, 3, 3),
        slow_if_unknown=SLOW,
        naive=lambda tf, x: weighted(tf.math.cumprod(x, 1)),
        fails="reverse",
    ),
    "cumulative_sum": Slope(
        f=lambda xp, x: weighted(xp.cumulative_sum(x, axis=1)),
        points=FACTORS,
        gradient=lambda _: np.cumsum(WEIGHTS[::-1])[::-1],
        hessian=flat,
    ),
    "mean": Slope(
        f=lambda xp, x: xp.mean(x * x, axis=-1),
        points=FACTORS,
        gradient=lambda x: 2 * x / 3,
        hessian=lambda _: np.eye(3) * 2 / 3,
    ),
    "max": Slope(lambda xp, x: xp.max(x, axis=-1), TIES, shared(np.max), flat),
    "min": Slope(lambda xp, x: xp.min(x, axis=-1), TIES, shared(np.min), flat),
    "maximum": Slope(
        f=lambda xp, x: xp.maximum(x[:, 0], x[:, 1]),
        points=PAIRS,
        gradient=shared(np.max),
        hessian=lambda _: np.zeros((2, 2)),
        naive=lambda tf, x: tf.maximum(x[:, 0], x[:, 1]),
        fails="reverse",
    ),
    "minimum": Slope(
        f=lambda xp, x: xp.minimum(x[:, 0], x[:, 1]),
        points=PAIRS,
        gradient=shared(np.min),
        hessian=lambda _: np.zeros((2, 2)),
        naive=lambda tf, x: tf.minimum(x[:, 0], x[:, 1]),
        fails="reverse",
    ),
    "sort": Slope(
        f=lambda xp, x: weighted(xp.sort(x, axis=1)),
        points=[[3.0, 1.0, 2.0], [-1.0, 0.0, 5.0], [2.0, 1.0, -5.0]],
        gradient=ranks,
        hessian=flat,
    ),
    "take_along_axis": Slope(
        f=lambda xp, x: weighted(xp.take_along_axis(x * x, [[2, 0, -3]], axis=1)),
        points=FACTORS[:2],
        gradient=lambda x: 2 * x * [1, 0, 1],  # the weights of 0 are -2 and 3
        hessian=lambda _: np.diag([2.0, 0.0, 2.0]),
    ),
    "divide": Slope(
        f=lambda xp, x: xp.divide(x[:, 0], x[:, 1]),
        points=QUOTIENTS,
        gradient=lambda x: [1 / x[1], -x[0] / x[1] ** 2],
        hessian=lambda x: [[0, -1 / x[1] ** 2], [-1 / x[1] ** 2, 2 * x[0] / x[1] ** 3]],
    ),
    "pow": Slope(
        f=lambda xp, x: xp.pow(x[:, 0], x[:, 1]),
        points=POWERS,
        gradient=lambda x: [x[1] * x[0] ** (x[1] - 1), x[0] ** x[1] * np.log(x[0])],
        hessian=power_hessian,
    ),
    "where": Slope(
        f=lambda xp, x: xp.where(x[:, 0] > 0, x[:, 1] * x[:, 1], 1.0),
        points=[[1.0, 3.0], [-1.0, 3.0]],
        gradient=lambda x: [0, 2 * x[1] if x[0] > 0 else 0],
        hessian=lambda x: [[0, 0], [0, 2.0 if x[0] > 0 else 0]],
    ),
}


def exact_derivatives(row, v, u):
    """Return derivatives by their names, from gradient and Hessian at each point."""
    points = np.array(row.points)
    gradient = np.array([row.gradient(x) for x in points], dtype=float)
    hessian = np.array([row.hessian(x) for x in points], dtype=float)
    along = np.einsum("pij,pj->pi", hessian, v)
    return {
        "reverse": gradient,
        "forward": np.sum(gradient * v, axis=1),
        **dict.fromkeys(("rev-rev", "fwd-rev", "rev-fwd"), along),
        "fwd-fwd": np.sum(along * u, axis=1),
    }


def derivatives(row, f, mode):
    """Return the derivatives of a function in a mode, and the exact ones."""
    shape = np.shape(row.points)
    (v,), (u,) = directions([shape])
    arrays = [[asarray("tensorflow", x)] for x in (row.points, v, u)]
    fewer = {("tensorflow", "unknown-shape"): (row.slow_if_unknown, "")}
    got = derivatives_in(mode, "tensorflow", f, lambda out: out, *arrays, fewer)
    del got["value"]
    got = {order: to_numpy(x[0] if isinstance(x, tuple) else x) for order, x in got.items()}
    return got, exact_derivatives(row, v, u)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SLOPES)
def test_derivatives_are_exact(name, mode):
    """Gradient, forward mode and four second-order compositions are those of mathematics."""
    row = SLOPES[name]

    got, exact = derivatives(row, partial(row.f, load("tensorflow").xp), mode)

    assert {"reverse", "forward"} <= set(got)
    for order, x in got.items():
        assert_close(x, exact[order], 1e-13, order)


@pytest.mark.parametrize("name", [name for name, row in SLOPES.items() if row.naive])
def test_derivatives_of_naive_tensorflow_fail(name):
    """TensorFlow's own function has another derivative at one of the points."""
    import tensorflow as tf

    row = SLOPES[name]

    got, exact = derivatives(row, partial(row.naive, tf), "eager")

    assert differs(got[row.fails], exact[row.fails])


def slope_by_accumulator(f):
    """Return the derivative along ones, by TensorFlow's own forward mode."""

    def tangent(x):
        import tensorflow as tf

        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
            value = f(x)
        return accumulator.jvp(value, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    return tangent


def slope_by_tape(f):
    """Return the gradient, by TensorFlow's own reverse mode."""
    return lambda x: slope(lambda _, x: f(x))(None, x)[0]


def test_forward_mode_in_forward_mode_still_raises_in_graphs():
    """A ForwardAccumulator in another raises IndexError for tf.where; hence the two tapes."""
    import tensorflow as tf

    x = tf.constant([1.0, 2.0])
    twice = slope_by_accumulator(slope_by_accumulator(lambda x: tf.where(x > 1, x * x, x)))

    np.testing.assert_array_equal(in_mode("eager", twice, [x]), [0.0, 2.0])
    with pytest.raises(IndexError):
        in_mode("unknown-shape", twice, [x])


def test_tapes_in_custom_gradients_still_have_no_forward_mode():
    """
    ForwardAccumulator makes 0 of a backward pass that has a tape; hence the doubling.

    So does `jvp` of the backend: it is the forward mode of the user, its faults included.
    """
    import tensorflow as tf

    @tf.custom_gradient
    def f(x):
        def backward(upstream):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = x * x
            return tape.gradient(y, x, upstream)

        return tf.stop_gradient(x * x), backward

    x = tf.constant([3.0])

    np.testing.assert_array_equal(slope_by_tape(f)(x), [6.0])
    np.testing.assert_array_equal(slope_by_accumulator(f)(x), [0.0])
    np.testing.assert_array_equal(backend_slope(load("tensorflow"), f)(x), [0.0])


@EVERY_MODE
@pytest.mark.parametrize("name", ["max", "min", "maximum", "minimum"])
def test_a_nan_reaches_the_gradient(name, mode):
    """A NaN among the entries makes the gradient NaN, and nothing else in other slices."""
    import tensorflow as tf

    backend = load("tensorflow")
    row = SLOPES[name]
    x = tf.constant([[1.0, nan], [nan, 2.0], [1.0, 2.0]])

    def gradient(x):
        return backend.grad(partial(row.f, backend.xp))(x)[0]

    got = in_mode(mode, gradient, [x]).numpy()

    assert np.isnan(got[:2]).any(axis=1).all()
    np.testing.assert_array_equal(got[2], shared(np.max if "max" in name else np.min)(x[2]))


@pytest.mark.parametrize("mode", MODES)
def test_gathered_gradients_are_dense(mode):
    """The gradient of tf.gather is an array, twice differentiable, though TensorFlow's is not."""
    import tensorflow as tf

    at = [2, 0, 0]
    row = Slope(
        f=lambda x: weighted(tf.transpose(tf.gather(tf.transpose(x * x), at))),
        points=FACTORS[:2],
        gradient=lambda x: 2 * x * [1, 0, 1],
        hessian=lambda _: np.diag([2.0, 0.0, 2.0]),
    )
    x = tf.constant([1.0, 2.0])

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.gather(x, [0])
    got, exact = derivatives(row, row.f, mode)

    assert isinstance(tape.gradient(y, x), tf.IndexedSlices)
    for order, found in got.items():
        assert_close(found, exact[order], 1e-13, order)


def test_a_gathered_argument_has_a_dense_gradient():
    """IndexedSlices become an array also where they reach the argument itself, in a graph."""
    import tensorflow as tf

    backend = load("tensorflow")
    x = tf.constant([1.0, 2.0, 3.0])

    def gradient(x):
        return backend.grad(lambda x: tf.gather(x, [2, 0, 0]) * WEIGHTS)(x)[0]

    for mode in MODES:
        np.testing.assert_array_equal(in_mode(mode, gradient, [x]), [1.0, 0.0, 1.0])
