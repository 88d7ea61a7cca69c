"""Slopes at NaN and at infinity, and digits next to zeros, are the same in every framework."""

from functools import partial

import numpy as np
import pytest

import safeops as so
from derivatives import MODES, tools
from frameworks import asarray, to_numpy
from safeops._backends import load

nan, inf = np.nan, np.inf
POWERS = [  # base, exponent, value, slopes
    ((nan, 0.0), 1.0, (0.0, 0.0)),  # 1, whatever the base
    ((nan, 1.0), nan, (1.0, nan)),
    ((nan, 2.0), nan, (nan, nan)),
    ((nan, 0.5), nan, (nan, nan)),
    ((nan, -1.0), nan, (nan, nan)),
    ((2.0, nan), nan, (nan, nan)),
    ((-2.0, nan), nan, (nan, 0.0)),
    ((0.0, nan), nan, (nan, 0.0)),
]
FAR = {  # arguments, and the slopes that the formula has there
    "rel_entr": [((inf, 1.0), (inf, -inf)), ((inf, inf), (nan, nan)), ((1.0, inf), (-inf, 0.0))],
    "xlogy": [
        ((1.0, 0.0), (-inf, inf)),
        ((1.0, inf), (inf, 0.0)),
        ((inf, inf), (inf, nan)),
        ((inf, 1.0), (0.0, inf)),
    ],
    "xlog1py": [
        ((1.0, -1.0), (-inf, inf)),
        ((1.0, inf), (inf, 0.0)),
        ((inf, inf), (inf, nan)),
        ((inf, 0.0), (0.0, inf)),
    ],
    "safe_hypot": [((inf, 1.0), (nan, 0.0)), ((inf, inf), (nan, nan))],
    "safe_acosh": [((inf,), (0.0,))],
    "boxcox": [((-1.0, 0.0), (nan, nan)), ((-1.0, 2.0), (nan, nan))],  # of what is NaN
    "logarithmic_mean": [((-1.0, -2.0), (nan, nan)), ((-1.0, 0.0), (nan, nan))],
    "inv_boxcox": [((-2.0, 1.0), (nan, nan)), ((-3.0, 0.5), (nan, nan))],
}


def pytest_generate_tests(metafunc):
    """Run a test in two modes of each framework; XLA is the third of TensorFlow."""
    if "way" in metafunc.fixturenames:
        ways = [(name, mode) for name, modes in MODES.items() for mode in modes[:2]]
        metafunc.parametrize("way", ways, ids="-".join)
    if "curved_way" in metafunc.fixturenames:
        ways = [(name, mode) for name, modes in MODES.items() for mode in modes[:3]]
        metafunc.parametrize("curved_way", ways, ids="-".join)


def slopes(op, way, *args, cotangent=1.0):
    """Return the slopes of an elementwise operation, times a cotangent."""
    framework, mode = way
    around, within, grad, _ = tools(framework, mode)
    xp, f = load(framework).xp, within(op)
    both = around(grad(lambda *args: xp.sum(cotangent * f(*args))))
    return [to_numpy(x) for x in both(*(asarray(framework, a, "float32") for a in args))]


def curvatures(op, way, *args):
    """Return the second derivative of an elementwise operation for its first argument."""
    framework, mode = way
    around, within, grad, _ = tools(framework, mode)
    xp, f = load(framework).xp, within(op)
    slope = grad(lambda *args: xp.sum(f(*args)))
    second = around(grad(lambda *args: xp.sum(slope(*args)[0])))
    return to_numpy(second(*(asarray(framework, a, "float32") for a in args))[0])


def test_powers_of_nan_have_one_slope(way):
    """The slopes of a power of NaN, or to NaN, are those that the docstring states."""
    x, p = zip(*(args for args, _, _ in POWERS), strict=True)

    found = slopes(so.safe_pow, way, x, p)

    expected = zip(*(exact for _, _, exact in POWERS), strict=True)
    np.testing.assert_array_equal(found, list(expected))


@pytest.mark.parametrize("name", FAR)
def test_slopes_at_infinity_are_those_of_the_formula(way, name):
    """No rule of a framework makes a number of a slope that is infinite or undefined."""
    args, exact = (list(zip(*rows, strict=True)) for rows in zip(*FAR[name], strict=True))

    np.testing.assert_array_equal(slopes(getattr(so, name), way, *args), exact)


@pytest.mark.parametrize("name", FAR)
def test_a_cotangent_that_is_nan_stays_at_infinity(way, name):
    """Where nothing is filled a NaN from above goes on to every argument."""
    args = zip(*(args for args, _ in FAR[name]), strict=True)

    assert np.isnan(slopes(getattr(so, name), way, *args, cotangent=nan)).all()


@pytest.mark.parametrize("cotangent", [inf, -inf])
@pytest.mark.parametrize(("name", "sign"), [("safe_asin", 1), ("safe_acos", -1), ("safe_atanh", 1)])
def test_an_infinite_cotangent_stays_infinite(way, name, sign, cotangent):
    """The slope of an inverse function is a product: no term of it is taken from another."""
    x = [-1.0, -0.99, -0.5, -1e-30, 0.0, 0.3, 0.99, 1.0, 2.0]

    (found,) = slopes(getattr(so, name), way, x, cotangent=cotangent)

    inside = np.abs(x) < 1
    assert (found[inside] == sign * cotangent).all()
    assert not found[~inside].any()


@pytest.mark.parametrize(("x", "cotangent"), [(1e-30, 1e-30), (1e-36, 1e-30), (1e30, 1e30)])
def test_a_cotangent_goes_with_a_slope_out_of_range(way, x, cotangent):
    """The slope ``-x**-1.5 / 2`` of the reciprocal root is inf or 0 in float32, the product not."""
    (found,) = slopes(so.safe_rsqrt, way, [x], cotangent=cotangent)

    np.testing.assert_allclose(found, [-0.5 * x**-1.5 * cotangent], 1e-5)


@pytest.mark.parametrize(("x", "p"), [(1.5e-38, -0.02), (1.5e-38, -0.01)])
def test_a_power_out_of_range_goes_with_a_small_exponent(way, x, p):
    """The power ``x**(p - 1)`` may be inf in float32 where the slope ``p * x**(p - 1)`` is not."""
    found, _ = slopes(so.safe_pow, way, [x], [p])

    np.testing.assert_allclose(found, [p * x ** (p - 1)], 2e-5)


def test_a_power_out_of_range_goes_with_a_small_curvature(way):
    """The same of ``x**(p - 2)`` and of the second derivative."""
    least = 1.768e-38 if way == ("torch", "autograd") else 1.2e-37  # elsewhere in one power
    x, p = (float(np.float32(a)) for a in (least, 0.96071))
    found = curvatures(so.safe_pow, way, [x], [p])

    np.testing.assert_allclose(found, [p * (p - 1) * x ** (p - 2)], 5e-5)


@pytest.mark.parametrize("x", [2.5, 0.3, 1e-3, 7.6e-17, 9e-21, 1e-30, 1e5, 1e20])
def test_powers_next_to_one_have_a_curvature(curved_way, x):
    """It is ``p * (p - 1) * x**(p - 2)``; the slope ``p * x**p / x`` has one that cancels."""
    p = np.append(1 - 2.0 ** -np.arange(2, 25), 1 + 2.0 ** -np.arange(2, 24))
    x = np.full(len(p), np.float32(x), float)
    wanted = p * (p - 1) * x ** (p - 2)

    found = curvatures(so.safe_pow, curved_way, x, p)
    np.testing.assert_allclose(found, wanted, 3e-5)


def test_a_slope_by_a_quotient_cancels_next_to_one(curved_way):
    """Its derivative for the base, the curvature of the power, keeps no digit at ``1 - eps``."""
    x, p = [np.float32(1e-3)], [1 - 2.0**-24]
    found = slopes(lambda x, p: p * so.safe_pow(x, p) / x, curved_way, x, p)[0]

    assert abs(found / (p[0] * (p[0] - 1) * x[0] ** (p[0] - 2)) - 1) > 0.1


def test_a_power_of_a_variable_to_itself_has_a_curvature(way):
    """Of ``x**x`` it is ``x**x * ((log(x) + 1)**2 + 1 / x)``, though ``x**(x - 2)`` is inf."""
    x = 1e-30
    found = curvatures(lambda x: so.safe_pow(x, x), way, [x])

    np.testing.assert_allclose(found, [x**x * ((np.log(x) + 1) ** 2 + 1 / x)], 1e-5)


@pytest.mark.parametrize(
    ("x", "p"),
    [(5.554e26, 1.0412831), (1.03e28, 0.8746), (1e30, 1.1), (2.92e-23, 1.6413), (1e-20, 0.5)],
)
def test_boxcox_has_a_curvature_at_large_and_small_numbers(curved_way, x, p):
    """It is ``(p - 1) * x**(p - 2)``; half of a power has none, and a logarithm an infinite one."""
    x, p = (float(np.float32(a)) for a in (x, p))
    found = curvatures(so.boxcox, curved_way, [x], [p])

    np.testing.assert_allclose(found, [(p - 1) * x ** (p - 2)], 5e-5)


@pytest.mark.parametrize(("x", "p"), [(3.6256677e-12, -2.321699), (1e-9, -3.2), (1.9e36, 0.014)])
def test_boxcox_has_a_slope_next_to_the_ends_of_the_range(way, x, p):
    """It is ``x**(p - 1)``, which half of x would take out of range for a p below 0."""
    x, p = (float(np.float32(a)) for a in (x, p))
    found, _ = slopes(so.boxcox, way, [x], [p])

    np.testing.assert_allclose(found, [x ** (p - 1)], 5e-5)


def test_powers_of_nan_have_their_values(framework):
    """NaN to the power 0 is 1, and to another power NaN."""
    x, p = zip(*(args for args, _, _ in POWERS), strict=True)

    value = so.safe_pow(*(asarray(framework, a, "float32") for a in (x, p)))

    np.testing.assert_array_equal(to_numpy(value), [exact for _, exact, _ in POWERS])


@pytest.mark.parametrize(("name", "y"), [("xlogy", 0.0), ("xlog1py", -1.0)])
def test_nothing_times_an_infinite_logarithm_is_nan(way, name, y):
    """A cotangent of 0 is a number, and its product with a slope of -inf is NaN."""
    found, _ = slopes(getattr(so, name), way, [0.5], [y], cotangent=0.0)

    assert np.isnan(found).all()


def test_entropy_falls_at_infinity(way):
    """The slope of the entropy at inf is -inf, the limit of ``-log(p) - 1``."""
    (slope,) = slopes(so.entr, way, [1.0, inf])

    assert slope.tolist() == [-1, -inf]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sinc_keeps_its_digits_at_its_zeros(framework, dtype):
    """Next to a whole number it is the sine of the distance over pi * x, and 0 at the number."""
    n = np.array([1.0, -2.0, 7.0, 1e6 + 1])
    near = np.nextafter(n.astype(dtype), np.array(inf, dtype))
    distance = near.astype(np.float64) - n

    at_zeros, beside = (to_numpy(so.sinc(asarray(framework, x, dtype))) for x in (n, near))

    assert not at_zeros.any()
    exact = np.where(n % 2 == 1, -1, 1) * np.sin(np.pi * distance) / (np.pi * near)
    np.testing.assert_allclose(beside, exact, rtol=8 * np.finfo(dtype).eps)


@pytest.mark.only("tensorflow")
def test_large_numbers_keep_their_digits_in_a_graph():
    """A graph makes a `Reciprocal` of ``1 / x``, of which 12 bits are right from 2**112 on."""
    import tensorflow as tf

    x = asarray("tensorflow", np.full((64, 4), 1e37), "float32")

    def in_graph(f):
        return to_numpy(tf.function(f)(x))

    norm = in_graph(lambda x: so.safe_norm(x, axis=-1, ord=3))
    np.testing.assert_allclose(norm, 4 ** (1 / 3) * 1e37, rtol=1e-6)
    np.testing.assert_allclose(in_graph(lambda x: so.exprel(-x)), 1e-37, rtol=1e-6)
    assert not np.allclose(in_graph(lambda x: 1.0 / x), 1e-37, rtol=1e-6, atol=0.0)


@pytest.mark.only("jax")
@pytest.mark.parametrize("over", ["hessian", "jacrev of jacrev"])
def test_both_orders_of_a_mixed_curvature_of_powers_are_equal(over):
    """Where the power is flushed, and where what comes back over a large base would be."""
    import jax

    x = np.array([1e-23, 1e-13, 1e-20, 6e37, 6e37, 1e37, 1e36, 1e-31, 2.0, 7.0], "float32")
    p = np.array([2.0, 3.5, 2.0, 0.4999, 0.25, 0.1, 0.01, 0.75, 3.0, -0.3], "float32")
    wide, order = x.astype("float64"), p.astype("float64")
    wanted = wide ** (order - 1) * (1 + order * np.log(wide))

    def mixed(f):
        both = jax.jacfwd if over == "hessian" else jax.jacrev
        (_, xp), (px, _) = jax.jit(jax.vmap(both(jax.jacrev(f, (0, 1)), (0, 1))))(x, p)
        return np.array([xp, px])

    np.testing.assert_allclose(mixed(so.safe_pow), [wanted, wanted], rtol=2e-5)
    plain = mixed(jax.numpy.power)
    assert not np.allclose(plain, [wanted, wanted], rtol=2e-5, atol=0.0)


NORMS = ["safe_norm", "safe_rms", "safe_normalize", "safe_standardize"]


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("name", NORMS)
def test_reverse_over_forward_mode_under_xla_is_in_range(name):
    """Value, tangent and curvature: XLA takes the scale out of a sum of squares if it can."""
    import tensorflow as tf

    x = tf.constant([[3e37, 4e37], [3e30, 4e30], [3e-30, 4e-30], [3.0, 4.0]])
    along = tf.constant([[1.0, 2.0]] * 4)

    def derivatives(f):
        def call(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                with tf.autodiff.ForwardAccumulator(x, along) as forward:
                    out = f(x)
                tangent = forward.jvp(out)
            return out, tangent, tape.gradient(tangent, x)

        return call

    def scaled(x):
        scale = tf.stop_gradient(tf.reduce_max(tf.abs(x), -1, keepdims=True))
        return scale[..., 0] * tf.sqrt(tf.reduce_sum((x * (1 / scale)) ** 2, -1))

    def found(f, *, jit):
        return [to_numpy(x) for x in tf.function(derivatives(f), jit_compile=jit)(x)]

    safe = partial(getattr(so, name), axis=-1)
    for got, wanted in zip(found(safe, jit=True), found(safe, jit=False), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted[3]).max())
    assert np.isfinite(found(scaled, jit=False)[0]).all()
    assert not np.isfinite(found(scaled, jit=True)[0]).all()
