"""Short paths of usual arguments leave to the steps what only looks usual."""

import numpy as np
import pytest

import safeops as so
from derivatives import MODES, tools
from frameworks import asarray, to_numpy
from safeops._backends import load

nan, inf = np.nan, np.inf
AFTER_A_NUMBER = [  # arguments, value, slopes
    ("safe_mul", (nan, 0.0), 0.0, (0.0, 0.0)),
    ("rel_entr", (0.0, nan), nan, (nan, nan)),
]
AT_THE_END = [  # of the domain of `inv_boxcox`: arguments and slopes, those of `safe_pow` at 0
    ((-1.0, 1.0), (1.0, -1.0)),
    ((-2.0, 0.5), (0.0, 0.0)),
    ((-0.5, 2.0), (0.0, 0.0)),
    ((1.0, -1.0), (0.0, 0.0)),
    ((2.0, -0.5), (0.0, 0.0)),
]
CURVED = [  # arguments, which slope, its slopes: that of the other one is infinite
    ("xlogy", (2.0, 0.0), 0, (0.0, inf)),
    ("boxcox", (1e-29, 0.5), 1, (-2.11161e16, -16.0)),
]


def pytest_generate_tests(metafunc):
    """Run a test in two modes of each framework."""
    if "way" in metafunc.fixturenames:
        ways = [(name, mode) for name, modes in MODES.items() for mode in modes[:2]]
        metafunc.parametrize("way", ways, ids="-".join)


def slopes(f, way, *args):
    """Return the slopes of a number, the sum of an elementwise operation, in float32."""
    around, within, grad, _ = tools(*way)
    xp, f = load(way[0]).xp, within(f)
    found = around(grad(lambda *args: xp.sum(f(*args))))
    return [to_numpy(x) for x in found(*(asarray(way[0], a, "float32") for a in args))]


@pytest.mark.parametrize(("name", "args", "value", "exact"), AFTER_A_NUMBER)
def test_a_nan_after_a_number_is_seen(way, name, args, value, exact):
    """The least of a few numbers is asked for, and Python's `min` passes over a later NaN."""
    op, pairs = getattr(so, name), [(0.5, x) for x in args]

    found = to_numpy(op(*(asarray(way[0], pair, "float32") for pair in pairs)))

    np.testing.assert_array_equal(found[1], value)
    np.testing.assert_array_equal([x[1] for x in slopes(op, way, *pairs)], exact)


@pytest.mark.parametrize(("args", "exact"), AT_THE_END)
def test_slopes_at_the_end_of_inv_boxcox(way, args, exact):
    """They are those of `safe_pow` at 0, beside a usual entry as well."""
    found = slopes(so.inv_boxcox, way, *((x, 0.5) for x in args))

    np.testing.assert_array_equal([x[0] for x in found], exact)


@pytest.mark.parametrize(("name", "args", "which", "exact"), CURVED)
def test_a_slope_that_nothing_uses_makes_no_nan(way, name, args, which, exact):
    """The slopes of one slope are right where those of the other are infinite."""
    around, within, grad, _ = tools(*way)
    xp, f = load(way[0]).xp, within(getattr(so, name))
    slope = grad(lambda *args: xp.sum(f(*args)))
    second = around(grad(lambda *args: xp.sum(slope(*args)[which])))

    found = second(*(asarray(way[0], [x], "float32") for x in args))

    np.testing.assert_allclose([to_numpy(x)[0] for x in found], exact, 1e-4)


@pytest.mark.parametrize("p", [0.25, 0.1, -0.5])
def test_a_power_of_the_largest_numbers_has_a_slope(way, p):
    """It is ``p * x**p / x``, of which ``p / x`` alone is 0 in float32."""
    x = float(np.float32(3e38))
    found, _ = slopes(so.safe_pow, way, [x], [p])

    np.testing.assert_allclose(found, [p * x ** (p - 1)], 2e-5, atol=1e-44)


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize(
    ("name", "slope", "curvature"),
    [("exprel", 0.612209, 0.418134), ("safe_hypot", 0.447214, 1.192570)],
)
def test_tapes_and_accumulators_around_a_function(name, slope, curvature):
    """The derivatives of a `tf.function` are taken outside of its graph, and right there too."""
    import tensorflow as tf

    args = [tf.constant([x]) for x in (0.3, 0.6)][: 1 if name == "exprel" else 2]
    op = getattr(so, name)
    f = tf.function(lambda *args: op(*args))  # noqa: PLW0108  (a name that TensorFlow can read)
    with tf.GradientTape() as outer:
        outer.watch(args)
        with tf.GradientTape() as tape:
            tape.watch(args)
            value = f(*args)
        found = tape.gradient(value, args[0])
    with tf.autodiff.ForwardAccumulator(args[0], tf.ones_like(args[0])) as accumulator:
        f = tf.function(lambda *args: op(*args))  # noqa: PLW0108  (one of its own)
        value = f(*args)

    np.testing.assert_allclose(found, [slope], 1e-5)
    np.testing.assert_allclose(accumulator.jvp(value), [slope], 1e-5)
    np.testing.assert_allclose(outer.gradient(found, args[0]), [curvature], 1e-5)
