"""Special functions where a compiler, or a flush of subnormal numbers, took their digits."""

import mpmath
import numpy as np
import pytest

import safeops as so
from derivatives import tools
from frameworks import asarray, to_numpy
from safeops._backends import load

COMPILED = {"torch": "compile", "jax": "jit", "tensorflow": "xla"}


def in_compiled(framework, f):
    """Return a function, compiled."""
    around, *_ = tools(framework, COMPILED[framework])
    return around(f)


def gradient(framework, op, x, cotangent=1.0):
    """Return the gradient of an operation, compiled, times a cotangent."""
    backend = load(framework)
    seed = asarray(framework, np.full(np.shape(x), cotangent), "float32")
    slope = backend.grad(lambda x: backend.xp.sum(seed * op(x)))
    return to_numpy(in_compiled(framework, slope)(asarray(framework, x, "float32"))[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_upper_tail_keeps_its_digits_in_a_compiler(dtype, autodiff_framework):
    """XLA makes one exponential of a product of two, which errs by the size of the exponent."""
    points = {"float32": [4.3, 8.694612, 11.6, 12.9], "float64": [8.7, 20.3, 34.9673687, 37.17]}
    x = np.array(points[dtype], dtype)
    ratio = [mpmath.log1p(-mpmath.ncdf(-mpmath.mpf(float(t)))) for t in x]

    value = in_compiled(autodiff_framework, so.log_ndtr)(asarray(autodiff_framework, x, dtype))

    exact = np.array([float(t) for t in ratio])
    rtol = 8 * np.finfo(dtype).eps
    np.testing.assert_allclose(to_numpy(value).astype(float), exact, rtol=rtol)


@pytest.mark.only("jax")
def test_xla_makes_one_exponential_of_two():
    """Without a choice between them the product errs by tens of units: the test above can fail."""
    import jax
    import jax.numpy as jnp

    a, b = -610.3144531, -0.1049382
    exact = float(mpmath.exp(mpmath.mpf(a)) * mpmath.exp(mpmath.mpf(b)))

    product = jax.jit(lambda a, b: jnp.exp(a) * jnp.exp(b))(jnp.float64(a), jnp.float64(b))

    assert abs(float(product) / exact - 1) > 16 * np.finfo(float).eps


def test_the_slope_of_digamma_is_finite_where_its_square_is_flushed(autodiff_framework):
    """The square of 7e-20 is subnormal in float32, and the slope, 2e38, in range."""
    x = np.array([6.8e-20, 1e-19], "float32")

    slope = gradient(autodiff_framework, so.safe_digamma, x)

    np.testing.assert_allclose(slope, 1 / x.astype(float) ** 2, rtol=1e-6)


def test_a_chosen_slope_of_0_stays_0_for_an_infinite_cotangent(autodiff_framework):
    """At (1 / 2, 0) and (3, 0) nothing of x comes through; at (1, 0) x itself does."""
    a = asarray(autodiff_framework, [0.5, 3.0, 1.0], "float32")

    slope = gradient(autodiff_framework, lambda x: so.safe_gammainc(a, x), [0.0] * 3, np.inf)

    assert slope[:2].tolist() == [0, 0]
    assert not np.isfinite(slope[2])
