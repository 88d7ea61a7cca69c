"""
Operations with their own derivative rule, where it is faster than the derivative of a double where.

Each guard of a double where is a select in the tangent, and XLA keeps in memory what two guards
need. A rule of its own has one select beside the derivative of the plain operation. Measured with
jax 0.10.2 on one core of a CPU.

A rule selects the tangent, with 0 at filled entries, and multiplies it with a slope that is finite
there. The select makes the 0 of the fill in forward mode, and the finite slope makes it in reverse
mode.

A kernel gets a `Context`, then the arguments of the function: arrays and numbers. It returns None
for arguments that it leaves to the double where.
"""

import math
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from safeops._backends.array_api import ArrayAPI
from safeops._backends.devices import BRANCHES_ON
from safeops._backends.jax.functions import (
    denominator,
    divide,
    is_small,
    log,
    log_ratio,
    normal,
    numerator,
    over,
    over_near_1,
    with_rule,
)
from safeops._backends.shapes import axes_of, dropped
from safeops._core.dtypes import NARROW, dtype_name, is_positive_zero, limits
from safeops._core.types import Array, Axis, Function


class Context(NamedTuple):
    """What asks a kernel."""

    backend: ArrayAPI
    generic: Function  # the steps of the function of the house


def _over_normal(f: Function, total: Array, x: Array, y: Array) -> Array:
    return jnp.where(is_small(y), 0, over_near_1(f, total, x, normal(y)))


@with_rule(numerator, denominator, then=_over_normal)
def _quotient(x: Array, y: Array) -> Array:
    return jnp.where(is_small(y), 0, x) / normal(y)


def _divide(context: Context, x: Array, y: Array, *, fill_value: Any = 0.0) -> Array | None:
    if fill_value is None:
        return None  # the generic function says what is wrong with it
    x, y, fill = context.backend.promoted((x, y), (fill_value,), complex_too=True)
    small = is_small(y)
    y = jnp.where(small, 0, y) if dtype_name(y.dtype) in NARROW else y  # not small in float32
    return _filled(_in_float32(_quotient, x, y), small, fill)


def _in_float32(f: Function, x: Array, y: Array) -> Array:
    """Return f in float32 for dtypes of 16 bits, in which a part of a slope may be subnormal."""
    if dtype_name(x.dtype) not in NARROW:
        return f(x, y)
    return f(*(z.astype(jnp.float32) for z in (x, y))).astype(x.dtype)


def _filled(x: Array, filled: Array, fill: Any) -> Array:
    """Return x with the fill where `filled`; x itself is 0 there."""
    return x if is_positive_zero(fill) else jnp.where(filled, fill, x)


def _is_no_root(x: Array) -> Array:
    return x < limits(jnp, x).smallest_nonzero


def _of_root(f: Function, x: Array, dot: Array) -> Array:
    filled = _is_no_root(x)
    return jnp.where(filled, 0, over(dot, 2 * jnp.where(filled, 1, f(x))))


@with_rule(_of_root)
def _positive_root(x: Array) -> Array:
    return jnp.sqrt(jnp.where(_is_no_root(x), 0, x))


def _root(context: Context, x: Array, *, fill_value: Any = 0.0) -> Array | None:
    if fill_value is None:
        return None  # as above
    x, fill = context.backend.promoted((x,), (fill_value,))
    return _filled(_positive_root(x), _is_no_root(x), fill)


def _overflows(x: Array) -> Array:
    return x > limits(jnp, x).largest_exponent()


# XLA keeps one exponential for the value and the slope if both are what the select made.
@with_rule(lambda f, x, dot: jnp.where(_overflows(x), 0, dot) * f(x))
def _finite_exponential(x: Array) -> Array:
    return jnp.where(_overflows(x), limits(jnp, x).max, jnp.exp(x))


def _exponential(context: Context, x: Array) -> Array:
    return _finite_exponential(*context.backend.promoted((x,)))


def _is_unreal(x: Array, p: Array) -> tuple[Array, Array]:
    """Return two masks: base is zero (or NaN ** 0); power is infinite or not real."""
    bound = limits(jnp, x).smallest_nonzero
    zero = (jnp.abs(x) < bound) | (jnp.isnan(x) & (p == 0))
    return zero, ((x <= -bound) & (jnp.floor(p) < p)) | (zero & (p < 0))


def _is_low(x: Array, p: Array) -> Array:
    """Whether a slope is ``p * x**p / x``, and not ``p * x**(p - 1)``, for a positive base."""
    # From -1 to 1 / 2 p - 1 loses digits of p, and x ** (p - 1) can overflow where the slope does
    # not; next to 1 the slope of the quotient cancels.
    return (jnp.abs(p + 0.25) < 0.75) & (x < math.inf)  # noqa: PLR2004  (as said)


def _over_base(x: Array, low: Array, power: Array) -> Array:
    return jnp.where(low, divide(jnp.where(low, power, 1), jnp.where(low, x, 1)), power)


def _bend(f: Function, x: Array, p: Array, dot: Array) -> Array:
    low = _is_low(x, p)
    return jnp.where(low, _over_base(x, low, f(x, p) * (p - 1)), p * f(x, p - 1)) * dot


def _twist(_: Function, x: Array, p: Array, dot: Array) -> Array:
    low = _is_low(x, p)
    power = _real_power(x, jnp.where(low, p, p - 1))
    return _over_base(x, low, power + p * (power * log(x))) * dot  # p alone may be large


@with_rule(_bend, _twist)
def _slope_of_power(x: Array, p: Array) -> Array:
    """Return the slope for a positive base. What comes back is multiplied last, or is flushed."""
    low = _is_low(x, p)
    return _over_base(x, low, p * _real_power(x, jnp.where(low, p, p - 1)))


def _is_flat(x: Array, p: Array) -> Array:
    return _is_unreal(x, p)[0] | (x < 0)


def _twist_or_flat(f: Function, x: Array, p: Array, dot: Array) -> Array:
    flat = _is_flat(x, p)
    return _twist(f, jnp.where(flat, 1, x), jnp.where(flat, 1, p), jnp.where(flat, 0, dot))


def _times_log_of_base(f: Function, x: Array, p: Array, dot: Array) -> Array:
    flat = _is_flat(x, p)
    return f(x, p) * log(jnp.where(flat, 1, x)) * jnp.where(flat, 0, dot)


@with_rule(_twist_or_flat, _times_log_of_base)
def _power_times_log(x: Array, p: Array) -> Array:
    """Return the slope for the exponent. Where the power is flushed, slopes of this are not."""
    flat = _is_flat(x, p)  # XLA has the power: of the same arguments
    return jnp.where(flat, 0, _real_power(x, p)) * log(jnp.where(flat, 1, x))


def _power_along_base(_: Function, x: Array, p: Array, dot: Array) -> Array:
    zero, unreal = _is_unreal(x, p)
    filled, negative = zero | unreal, x < 0
    # By abs(x): whether p - 1 is odd cannot be told at p = 1e30, where p - 1 equals p. For a
    # negative x the exponent is a constant, because x**p is not real beside an integer.
    size = jnp.where(filled, 1, jnp.abs(x))
    fixed = jnp.where(filled, 1, jnp.where(negative, jax.lax.stop_gradient(p), p))
    slope = _slope_of_power(size, fixed)
    slope = jnp.where(negative & (jnp.floor(p / 2) == p / 2), -slope, slope)
    first, second = p == 1, p == 2  # noqa: PLR2004  (monomials, the powers with a slope at 0)
    absent = jnp.isnan(p)
    idle = unreal | (zero & ~first & ~second & ~absent)
    at_zero = jnp.where(first, 1, jnp.where(second, 2 * x, jnp.where(absent, p, 0)))
    slope = jnp.where(zero, at_zero, slope)
    return jnp.where(idle, 0, dot) * slope


def _power_along_exponent(_: Function, x: Array, p: Array, dot: Array) -> Array:
    return jnp.where(_is_flat(x, p), 0, dot) * _power_times_log(x, p)


@with_rule(_power_along_base, _power_along_exponent)
def _real_power(x: Array, p: Array) -> Array:
    zero, unreal = _is_unreal(x, p)
    at_zero = jnp.where(p > 0, 0, jnp.where(p == 0, 1, p))  # a NaN exponent gives NaN
    normal = jnp.where(p == 0, 0, p)  # a subnormal p equals 0, but `power` does not take it for 0
    out = jnp.where(zero, at_zero, jnp.power(jnp.where(zero | unreal, 1, x), normal))
    return jnp.where(unreal, 0, out)


def _power(context: Context, x: Array, p: Array) -> Array:
    return _in_float32(_real_power, *context.backend.promoted((x, p)))


def _is_product_filled(x: Array, y: Array) -> Array:
    """Whether x is 0 and the logarithm of y is not finite."""
    bound = limits(jnp, x)
    zero = jnp.abs(x) < bound.smallest_nonzero
    return zero & ((y < bound.smallest_normal) | (y == math.inf))


def _along_factor(_: Function, x: Array, y: Array, dot: Array) -> Array:
    filled = _is_product_filled(x, y)
    return jnp.where(filled, 0, dot) * log(jnp.where(filled, 1, y))


def _along_logarithm(_: Function, x: Array, y: Array, dot: Array) -> Array:
    filled = _is_product_filled(x, y)
    return divide(jnp.where(filled, 0, x), jnp.where(filled, 1, y)) * jnp.where(filled, 0, dot)


@with_rule(_along_factor, _along_logarithm)
def _log_product(x: Array, y: Array) -> Array:
    filled = _is_product_filled(x, y)
    return jnp.where(filled, 0, x) * jnp.log(jnp.where(filled, 1, y))


def _times_log(context: Context, x: Array, y: Array) -> Array:
    return _log_product(*context.backend.promoted((x, y)))


def branched(short: Function, steps: Function) -> Function:
    """Return a function of an array: on a CPU `short`, which leaves some arrays to the steps."""
    if jax.device_count() > 1:  # several devices would tell each other the condition
        return steps

    @jax.custom_batching.custom_vmap
    def function(x: Array) -> Any:
        by_short = {BRANCHES_ON: partial(short, steps)}
        return jax.lax.platform_dependent(x, **by_short, default=steps)

    @function.def_vmap  # a branch of each array would compute both ways for all of them
    def batched(size: int, in_batched: Any, x: Array) -> tuple[Any, Any]:
        del size, in_batched
        found = branched(short, steps)(x)
        return found, jax.tree.map(lambda _: True, found)

    return function


def _root_of_squares(scaled: Function, x: Array, axis: Axis) -> Array:
    """Return a Euclidean norm: on a CPU by one sum where no square is lost, else by `scaled`."""
    axes = tuple(a - x.ndim for a in axes_of(axis, x.ndim))  # vmap puts axes before these
    steps = partial(scaled, axis=axes)
    return branched(partial(_by_one_sum, axis=axes), steps)(x) if x.size else steps(x)


def _by_one_sum(steps: Function, x: Array, axis: Axis) -> Array:
    """Return a norm by a sum of squares if it is right for all slices."""
    # On a CPU a maximum takes twice as long as such a sum, and the scaled sum as long again. On
    # other devices a branch waits for its condition, and both passes run at the speed of memory.
    total, bound = jnp.sum(x * x, axis, keepdims=True), limits(jnp, x)
    # All squares together that are flushed are less than a rounding of this.
    least = bound.smallest_normal / bound.eps * (x.size / total.size)
    right = ((least <= total) & (total <= bound.max)) | jnp.isnan(total)

    def root(_: Array) -> Array:
        return jnp.sqrt(total)

    def without_most(x: Array) -> Array:
        zero = jnp.sum(jnp.abs(x), axis, keepdims=True) == 0  # slices whose root is right, too
        return jax.lax.cond(jnp.all(right | zero), root, steps, x)

    return jax.lax.cond(jnp.all(right), root, without_most, x)


@partial(jax.custom_jvp, nondiff_argnums=(0, 2, 3))
def _norm(context: Context, x: Array, axis: Axis, order: float) -> Array:
    scaled = partial(context.generic, ord=order)
    euclidean = order == 2  # noqa: PLR2004  (the order)
    return _root_of_squares(scaled, x, axis) if euclidean else scaled(x, axis=axis)


@_norm.defjvp
def _norm_jvp(context: Context, axis: Axis, order: float, *given: Any) -> tuple[Array, Array]:
    """Multiply with the direction; scaling would take small slopes and cotangents out of range."""
    (x,), (dot,) = given
    norm = _norm(context, x, axis, order)
    zero = norm == 0
    # XLA multiplies with the reciprocal of a norm, and flushes it to 0 for the largest norms.
    large = norm > limits(jnp, norm).max / 2**16  # other entries keep their digits
    part = jax.lax.stop_gradient(jnp.where(large, 1 / 16, jnp.ones_like(norm)))
    slope = divide(jnp.where(zero, 0, x) * part, jnp.where(zero, 1, norm) * part)
    if order != 2:  # noqa: PLR2004  (the Euclidean norm)
        slope = jnp.sign(x) * _power(context, jnp.abs(slope), order - 1)
    return norm, jnp.sum(slope * jnp.where(zero, 0, dot), axis=axis, keepdims=True)


def _length(
    context: Context,
    x: Array,
    *,
    axis: Axis,
    ord: float,  # noqa: A002  (as in `safe_norm`)
) -> Array | None:
    if ord in {1, math.inf} or jnp.iscomplexobj(x):
        return None
    return _norm(context, x, axis, ord)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _softmax_without(x: Array, absent: Array, axis: Axis) -> Array:
    inside = jnp.where(absent, -math.inf, x)
    peak = jnp.max(inside, axis, keepdims=True)
    parts = jnp.exp(inside - jnp.where(peak == -math.inf, 0, peak))
    total = jnp.sum(parts, axis, keepdims=True)
    return jnp.where(absent, 0, parts / jnp.where(total == 0, 1, total))  # 0 beside a NaN too


@_softmax_without.defjvp
def _softmax_jvp(axis: Axis, given: Any, dots: Any) -> tuple[Array, Array]:
    """Multiply with the value: what the generic formula divides again, XLA computes again."""
    (x, absent), (dot, _) = given, dots
    out, dot = _softmax_without(x, absent, axis), jnp.where(absent, 0, dot)
    away = dot - jnp.sum(out * dot, axis, keepdims=True)
    return out, jnp.where(absent, 0, out * away)


def _softmax(context: Context, x: Array, *, axis: Axis = -1, where: Any = None) -> Array | None:
    (x,) = context.backend.promoted((x,))
    if not x.size or not _is_condition(where, x.shape):
        return None  # the generic function knows the way, or says what is wrong
    return _softmax_without(_wide(x), _absent(x, where), axis).astype(x.dtype)


def _below(peak: Array, inside: Array) -> Array:
    """Return the exponentials below a peak; 1 for each inf."""
    most = limits(jnp, peak).max
    return jnp.exp(jnp.minimum(inside, most) - jnp.clip(peak, -most, most))


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _log_sum_without(x: Array, absent: Array, axis: Axis) -> tuple[Array, Array, Array]:
    """Return the logarithm of a sum of exponentials, the peak, and the sum below it."""
    inside = jnp.where(absent, -math.inf, x)
    peak = jnp.max(inside, axis, keepdims=True)
    total = jnp.sum(_below(peak, inside), axis, keepdims=True)
    return peak + jnp.log(jnp.where(total == 0, 1, total)), peak, total


@_log_sum_without.defjvp
def _log_sum_jvp(axis: Axis, given: Any, dots: Any) -> tuple[Any, Any]:
    """Multiply with the softmax, of which each inf has the same share."""
    # It is a quotient: the result, which is rounded at its own size, has fewer digits.
    (x, absent), (dot, _) = given, dots
    out, peak, total = _log_sum_without(x, absent, axis)
    parts = _below(peak, jnp.where(absent, -math.inf, x))
    shares = parts / jnp.where(total == 0, 1, total)
    dot = jnp.sum(shares * jnp.where(absent, 0, dot), axis, keepdims=True)
    return (out, peak, total), (
        dot,
        jnp.zeros_like(peak),
        dot * jnp.where(peak < math.inf, total, 0),
    )


def _log_sum(
    context: Context,
    x: Array,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Any = None,
    b: Any = None,
) -> Array | None:
    (x,) = context.backend.promoted((x,))
    if b is not None or not x.size or not _is_condition(where, x.shape):
        return None  # as above
    out, *_ = _log_sum_without(_wide(x), _absent(x, where), axis)
    return dropped(out.astype(x.dtype), axis, keepdims=keepdims)


def _wide(x: Array) -> Array:
    """Return numbers of 16 bits as float32."""
    return x.astype(jnp.float32) if dtype_name(x.dtype) in NARROW else x


def _absent(x: Array, where: Any) -> Array:
    """Return which entries are at -inf or not kept."""
    absent = x == -math.inf
    return absent if where is None else absent | ~where


def _is_condition(where: Any, shape: tuple[int, ...]) -> bool:
    """Whether it is none, or booleans that broadcast to the shape."""
    if where is None:
        return True
    if not isinstance(where, jax.Array) or where.dtype != bool or where.ndim > len(shape):
        return False
    pairs = zip(reversed(where.shape), reversed(shape), strict=False)
    return all(given in {1, wanted} for given, wanted in pairs)


# Of (t - 1 + exp(-t)) / t**2, and of its derivative.
_TERMS = [(-1.0) ** k / math.factorial(k + 2) for k in range(22)]
_SLOPE_TERMS = [k * term for k, term in enumerate(_TERMS)][1:]


def _series(t: Array, terms: list[float]) -> Array:
    return reduce(lambda total, term: total * t + term, reversed(terms))


def _near_and_far(x: Array, y: Array) -> tuple[Array, Array, Array, Array, Array]:
    """Return where the logarithms are near, their difference there and elsewhere, and x and y."""
    ratio = log_ratio(x, y)
    near = jnp.abs(ratio) < 1
    x, y = (jnp.where(near, 1, z) for z in (x, y))
    return near, jnp.where(near, ratio, 0), jnp.where(near, 1, ratio), x, y


def _ratio_over_square(x: Array, y: Array, far: Array) -> Array:
    """Return ``y / x / far**2``, also where the ratio or, as XLA has it, x * far**2 is infinite."""
    part = jnp.where(x > 1, 2.0**-16, jnp.ones_like(x))
    return divide(y * part / (far * far), x * part)


def _slope_along_own(f: Function, x: Array, y: Array, dot: Array) -> Array:
    near, inside, far, own, other = _near_and_far(x, y)
    apart = 1 / (far * far) - _ratio_over_square(own, other, far) - 2 * f(x, y) / far
    return over(jnp.where(near, _series(inside, _SLOPE_TERMS), apart) * dot, x)


def _slope_along_other(_: Function, x: Array, y: Array, dot: Array) -> Array:
    near, inside, far, own, other = _near_and_far(x, y)
    # Without the ratio y / x, which may be infinite where this is not.
    part = jnp.where(near, 0, dot) / (far * far)
    over_x, over_y = divide(part, own), divide(part, other)
    apart = over_x + over_y + 2 * ((over_x - over_y) / far)
    return jnp.where(near, -over(_series(inside, _SLOPE_TERMS) * dot, y), apart)


@with_rule(_slope_along_own, _slope_along_other)
def _slope_of_mean(x: Array, y: Array) -> Array:
    """Return the slope for x of the logarithmic mean."""
    # Its own derivatives form no square of 1 / x, as those of the mean do.
    near, inside, far, x, y = _near_and_far(x, y)
    apart = (far - 1) / (far * far) + _ratio_over_square(x, y, far)
    return jnp.where(near, _series(inside, _TERMS), apart)


def _of_mean(x: Array, y: Array, dot: Array) -> Array:
    inside = jnp.minimum(x, y) > -limits(jnp, x).smallest_normal
    zero = inside & (is_small(x) | is_small(y))
    keep = jnp.where(inside, jnp.ones_like(x), math.nan)  # a product: its slopes are NaN too
    x, y = (jnp.where(zero, 1, z * keep) for z in (x, y))
    return _slope_of_mean(x, y) * jnp.where(zero, 0, dot)


def _logarithmic_mean(context: Context, x: Array, y: Array) -> Array:
    slopes = (lambda _, x, y, dot: _of_mean(x, y, dot)), (lambda _, x, y, dot: _of_mean(y, x, dot))
    mean = with_rule(*slopes)(context.generic)
    return _in_float32(mean, *context.backend.promoted((x, y)))


KERNELS: dict[str, Function] = {
    "_length": _length,
    "logarithmic_mean": _logarithmic_mean,
    "safe_div": _divide,
    "safe_exp": _exponential,
    "safe_logsumexp": _log_sum,
    "safe_softmax": _softmax,
    "safe_sqrt": _root,
    "safe_pow": _power,
    "xlogy": _times_log,
}
