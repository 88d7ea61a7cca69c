"""Functions with derivatives that stay in range, where those of `jax.numpy` do not."""

import math
from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from safeops._core.dtypes import limits
from safeops._core.types import Array, Function


def _sum(_: Function, total: Array, *args: Array) -> Array:
    del args
    return total


def with_rule(*slopes: Function, then: Function = _sum) -> Callable[[Function], Function]:
    """Give a function a tangent: the sum of a part for each argument, then changed by `then`."""

    # A slope gets the function itself, the arguments, and the tangent of its argument, and returns
    # the part. `then` gets the function itself, the sum and the arguments.
    def decorator(function: Function) -> Function:
        f: Any = jax.custom_jvp(function)

        def jvp(args: Any, dots: Any) -> tuple[Array, Array]:
            pairs = zip(slopes, dots, strict=True)
            # A constant adds no part: its 0 times an infinite slope would be NaN.
            parts = [slope(f, *args, x) for slope, x in pairs if type(x) is not SymbolicZero]
            return f(*args), then(f, reduce(add, parts), *args)

        f.defjvp(jvp, symbolic_zeros=True)
        return f

    return decorator


def is_small(x: Array) -> Array:
    return jnp.abs(x) < limits(jnp, x).smallest_normal


def normal(y: Array) -> Array:
    return jnp.where(is_small(y), 1, y)


def _part(y: Array) -> Array:
    """
    Return a power of 2 near ``1 / sqrt(y)``: times it twice, which rounds nothing, y is near 1.

    What JAX has transposed it differentiates by rules of its own; that of a quotient squares the
    divisor (0.10.2). And a product of three leaves the range where two of them are not close.
    """
    if jnp.iscomplexobj(y):
        return jnp.ones_like(y)
    info, size = jnp.finfo(y.dtype), jnp.abs(jax.lax.stop_gradient(normal(y)))
    if y.weak_type:  # a number, whose bits are of a dtype that is not
        least = math.sqrt(info.smallest_normal)
        root = jnp.sqrt(jnp.clip(size, least * least, 1 / least / least))
        return jax.lax.reduce_precision(1 / root, info.nexp, 0)
    bits = jax.lax.bitcast_convert_type(size, f"uint{info.bits}")
    whole = bits.dtype.type
    # Half of the exponent, from one and a half of that of 1: sqrt(1 / 2) to sqrt(2) become 1.
    middle = whole((3 * 2 ** (info.nexp - 1) - 2) // 2 << info.nmant)
    exponent = whole((2**info.nexp - 1) << info.nmant)
    return jax.lax.bitcast_convert_type((middle - (bits >> whole(1))) & exponent, y.dtype)


def _times_square(x: Array, part: Array) -> Array:
    return x * part * part


def numerator(_: Function, _x: Array, y: Array, dot: Array) -> Array:
    return _times_square(dot, _part(y))


def denominator(f: Function, x: Array, y: Array, dot: Array) -> Array:
    part = _part(y)
    return -(f(x, y) * part) * (dot * part)


def over_near_1(_: Function, total: Array, _x: Array, y: Array) -> Array:
    return jnp.divide(total, _times_square(y, _part(y)))


def over(dot: Array, y: Array) -> Array:
    """Return ``dot / y``, where the first is a tangent."""
    return jnp.divide(_times_square(dot, _part(y)), _times_square(y, _part(y)))


@with_rule(numerator, denominator, then=over_near_1)
def divide(x: Array, y: Array) -> Array:
    """Return ``x / y``."""
    # The rule of JAX 0.10.2 forms ``y ** -2``, which is inf below 1e-19 in float32: at ``0 /
    # 1e-25`` its gradient is NaN, at ``1e-20 / 1e-25`` inf where the slope is -1e30; above 9e18 it
    # is flushed.
    return jnp.divide(x, y)


@with_rule(
    lambda f, x, y, dot: divide(x, f(x, y)) * dot, lambda f, x, y, dot: divide(y, f(x, y)) * dot
)
def hypot(x: Array, y: Array) -> Array:
    """Return ``sqrt(x**2 + y**2)``, whose slopes in JAX 0.10.2 overflow below 1e-19 in float32."""
    x, y = jnp.abs(x), jnp.abs(y)
    larger, smaller = jnp.maximum(x, y), jnp.minimum(x, y)
    ratio = jnp.where(x == y, 1, smaller / larger)  # also for inf and inf
    return larger * jnp.sqrt(1 + ratio * ratio)


# In JAX 0.10.2 the second derivative of a logarithm forms ``x ** -2``, which leaves the range.


@with_rule(lambda _, x, dot: over(dot, x))
def log(x: Array) -> Array:
    """Return the natural logarithm."""
    return jnp.log(x)


@with_rule(lambda _, x, dot: over(dot * 1.44269504088896340736, x))  # 1 / log(2)
def log2(x: Array) -> Array:
    """Return the logarithm to base 2."""
    return jnp.log2(x)


@with_rule(lambda _, x, dot: over(dot * 0.43429448190325182765, x))  # 1 / log(10)
def log10(x: Array) -> Array:
    """Return the logarithm to base 10."""
    return jnp.log10(x)


@with_rule(lambda f, x, dot: -0.5 * f(x) * over(dot, x))
def reciprocal_root(x: Array) -> Array:
    """Return ``1 / sqrt(x)``; the slope by JAX's rule of a quotient rounds five times."""
    return 1 / jnp.sqrt(x)


@with_rule(lambda _, x, dot: over(dot, 1 + x))
def log1p(x: Array) -> Array:
    """Return ``log(1 + x)``."""
    return jnp.log1p(x)


@with_rule(lambda _, x, dot: over(dot, 1 - x * x))
def atanh(x: Array) -> Array:
    """Return the inverse hyperbolic tangent of arguments below one half."""
    # The rule of JAX 0.10.2 multiplies the reciprocals of 1 + x and 1 - x; the slopes of the two
    # cancel near 0.
    return jnp.arctanh(x)


@with_rule(lambda _, p, _q, dot: over(dot, p), lambda _, _p, q, dot: -over(dot, q))
def log_ratio(p: Array, q: Array) -> Array:
    larger, lesser = jnp.maximum(p, q), jnp.minimum(p, q)
    # A power of 2 rounds nothing; with it the difference is not flushed to 0.
    scale = jnp.where(lesser < 1, 2.0**64, 1.0)  # weak, as p and q may be
    excess = (scale * larger - scale * lesser) / (scale * lesser)
    near = excess < 4  # noqa: PLR2004  (beyond, the root of the quotient has the digits)
    part = jnp.where(near, excess, jnp.sqrt(larger) / jnp.sqrt(lesser) - 1)
    size = jnp.log1p(part) * jnp.where(near, 1.0, 2.0)
    return jnp.where(p > q, size, -size)


@with_rule(
    lambda _, p, q, dot: (log_ratio(p, q) + 1) * dot, lambda _, p, q, dot: -divide(p, q) * dot
)
def relative_entropy(p: Array, q: Array) -> Array:
    """Return ``p * log(p / q)``; JAX's slope of this product is infinite at 1e-20."""
    return p * log_ratio(p, q)


@with_rule(lambda _, p, dot: -(log(p) + 1) * dot)
def entropy(p: Array) -> Array:
    """Return ``-p * log(p)``."""
    return -p * jnp.log(p)


@with_rule(lambda _, _x, y, dot: log1p(y) * dot, lambda _, x, y, dot: divide(x, 1 + y) * dot)
def log1p_product(x: Array, y: Array) -> Array:
    """Return ``x * log(1 + y)``."""
    return x * jnp.log1p(y)


# Functions that `jax.numpy` has with other slopes, or not at all.
FUNCTIONS: dict[str, Function] = {
    f.__name__: f for f in (divide, hypot, log, log2, log10, log1p, atanh, reciprocal_root)
}
PRODUCTS: dict[str, Function] = {f.__name__: f for f in (relative_entropy, entropy, log1p_product)}
