"""Elementwise functions of TensorFlow under names of the array API standard."""

import math
from functools import partial
from typing import Any

import tensorflow as tf

from safeops._backends.tensorflow.dtypes import (
    COMPLEX,
    INEXACT,
    REAL,
    UNSIGNED,
    finfo,
    inexact,
    pair,
    tensor,
)
from safeops._backends.tensorflow.rules import short
from safeops._backends.tensorflow.shapes import full_like
from safeops._core.types import Array, Function


def _of_inexact(function: Function) -> Function:
    return lambda x: function(inexact(x))


def _of_pairs(function: Function) -> Function:
    return lambda x, y: function(*pair(x, y))


exp = _of_inexact(tf.math.exp)
expm1 = _of_inexact(tf.math.expm1)
log = _of_inexact(tf.math.log)
log1p = _of_inexact(tf.math.log1p)
sqrt = _of_inexact(tf.math.sqrt)
sin = _of_inexact(tf.math.sin)
cos = _of_inexact(tf.math.cos)
asin = _of_inexact(tf.math.asin)
acos = _of_inexact(tf.math.acos)
acosh = _of_inexact(tf.math.acosh)
atanh = _of_inexact(tf.math.atanh)
tanh = _of_inexact(tf.math.tanh)
multiply = _of_pairs(tf.math.multiply)
logical_and = _of_pairs(tf.math.logical_and)
logical_or = _of_pairs(tf.math.logical_or)


def real(x: Array, /) -> Array:
    """Real part."""
    return tf.math.real(tensor(x))


def imag(x: Array, /) -> Array:
    """Imaginary part."""
    return tf.math.imag(tensor(x))


def atan2(x: Any, y: Any, /) -> Array:
    """Angle of the point (y, x)."""
    return tf.math.atan2(*map(inexact, pair(x, y)))


# `tf.where`, `tf.truediv` and `tf.abs` convert once more, and that takes as long as the operation.


def where(cond: Array, x: Any, y: Any, /) -> Array:
    """`x` where `cond`, else `y`; its gradient is the cotangent for the operand taken, else 0."""
    x, y = pair(x, y)
    return tf.raw_ops.SelectV2(condition=tensor(cond), t=x, e=y)


def divide(x: Any, y: Any, /) -> Array:
    """Quotient; integers divide in floating point."""
    x, y = map(inexact, pair(x, y))
    return tf.raw_ops.RealDiv(x=x, y=y)


def quotient(x: Any, y: Any, /) -> Array:
    """Quotient by a divisor that is not 0."""
    # XLA rewrites the slope of `tf.divide` as ``x / (y * y)``, which is NaN at 0 / 1e-25. The slope
    # here has a select between its two divisions, which XLA does not merge.
    x, y = map(inexact, pair(x, y))
    return tf.raw_ops.DivNoNan(x=x, y=y)


def quotient_or_infinite(x: Array, y: Array) -> Array:
    """Quotient; division by 0 gives inf."""
    return short(_quotient_or_infinite, divide, _pulled_quotient)(x, y)


def _quotient_or_infinite(x: Array, y: Array) -> Array:
    zero = abs_(y) < tf.constant(float(finfo(y).smallest_normal), abs_(y).dtype)
    x_at, y_at = where(zero, x, 1.0), where(zero, y, 1.0)
    x_off, y_off = where(zero, 1.0, x), where(zero, 1.0, y)
    return where(zero, divide(x_at, y_at), quotient(x_off, y_off))


def _pulled_quotient(cotangent: Array, out: Array, _: Array, y: Array) -> tuple[Array, Array]:
    y = tf.math.conj(y)
    return cotangent / y, -cotangent * (tf.math.conj(out) / y)


def hypot(x: Any, y: Any, /) -> Array:
    """
    Length of the vector (x, y), with slopes that are right over the whole range; NaN at the origin.

    Let (c, s) be the constant unit vector along (x, y). Then ``along = c * x + s * y`` is the
    length, and ``across = c * y - s * x`` is 0, but for rounding. For every (x, y) the length is
    ``along + across * t / (1 + sqrt(1 + t * t))`` with ``t = across / along``. No derivative of
    this formula multiplies with the size of the vector.
    """
    x, y = map(inexact, pair(x, y))
    larger = tf.stop_gradient(where(abs_(x) > abs_(y), abs_(x), abs_(y)))
    infinite = tf.equal(larger, tf.constant(math.inf, x.dtype))
    inside = (where(infinite, 1.0, part) for part in (x, y, larger))
    # At inf the slope is NaN, as inf / inf is; a finite number beside inf has slope 0.
    u, v = (where(infinite, part, 1.0) for part in (x, y))
    return where(infinite, tf.sqrt(u * u + v * v), _finite_length(*inside))


def _finite_length(x: Array, y: Array, larger: Array) -> Array:
    # smallest_normal * max is a little below 4: for each normal number the scale is normal, too.
    info = finfo(x)
    scale = tf.stop_gradient(float(info.smallest_normal) * float(info.max) / larger)
    u, v = scale * x, scale * y
    unit = tf.stop_gradient(tf.math.rsqrt(u * u + v * v))
    c, s = tf.stop_gradient(u) * unit, tf.stop_gradient(v) * unit
    turn = (c * v - s * u) / (c * u + s * v)
    return c * x + s * y + (c * y - s * x) * (turn / (1.0 + tf.sqrt(1.0 + turn * turn)))


def asinh(x: Array, /) -> Array:
    """Inverse hyperbolic sine; TensorFlow's slope ``1 / cosh(y)`` has 60 times the error of y."""
    x = inexact(x)
    infinite = tf.math.is_inf(x)
    y = tf.where(infinite, tf.ones_like(x), x)  # inf - inf is NaN
    formula = tf.math.log(tf.abs(y) + tf.sqrt(y * y + 1)) * tf.sign(y)
    value = tf.asinh(tf.where(infinite, x, tf.stop_gradient(x)))
    return value + (formula - tf.stop_gradient(formula))


def log_by_quotient(x: Array, /) -> Array:
    """Return the logarithm; its backward pass computes ``cotangent / x``."""
    # TensorFlow multiplies the cotangent with ``1 / x``, which is flushed to 0 above 8.5e37 in
    # float32. At second order it multiplies with ``1 / x**2``, which is infinite below 1e-19. At 0
    # and at inf TensorFlow's own slope is used.
    return _by_quotient(tf.math.log, x, x)


def _by_quotient(log: Function, x: Array, divisor: Array) -> Array:
    """Return a logarithm of x whose backward pass computes ``cotangent / divisor``."""
    edge = _is_edge(divisor)
    value = log(where(edge, x, tf.stop_gradient(x)))
    finite = where(edge, 1.0, divisor)
    given = tf.stop_gradient(finite)
    return value + tf.math.log1p(quotient(finite - given, given))


def _is_edge(divisor: Array) -> Array:
    size, least = abs_(divisor), tf.constant(float(finfo(divisor).smallest_normal), divisor.dtype)
    return tf.logical_or(tf.equal(size, tf.constant(math.inf, divisor.dtype)), size < least)


def log_product(x: Array, y: Array, /) -> Array:
    """Product ``x * log(y)``."""
    return _product(tf.math.log, lambda y: y)(x, y)


def log1p_product(x: Array, y: Array, /) -> Array:
    """Product ``x * log(1 + y)``."""
    return _product(tf.math.log1p, lambda y: 1.0 + y)(x, y)


def exponent(p: Array, x: Array, /) -> Array:
    """Product ``p * log(x)`` of which a slope may come back times a power of x."""
    return _times_log(p, x, tf.math.log, lambda x: x)


def _product(log: Function, divisor: Function) -> Function:
    def pull(cotangent: Array, _: Array, x: Array, y: Array) -> tuple[Array, Array]:
        return cotangent * log(y), _scaled_quotient(cotangent, x, divisor(y))

    steps = partial(_times_log, log=log, divisor=divisor)
    return short(steps, lambda x, y: x * log(y), pull)


def _scaled_quotient(scale: Array, x: Array, y: Array) -> Array:
    """Return ``scale * x / y``: what is divided first leaves the range only with the result."""
    is_first = tf.equal(abs_(x) > abs_(scale), abs_(y) > 1.0)
    return divide(where(is_first, x, scale), y) * where(is_first, scale, x)


def _times_log(x: Array, y: Array, log: Function, divisor: Function) -> Array:
    """
    Return ``x * log(y)``, whose derivatives form no reciprocal of the divisor, and no square of it.

    In a graph ForwardAccumulator takes the derivatives of the value, and not the rule (2.21).
    """

    @tf.custom_gradient
    def product(x: Array, y: Array) -> tuple[Array, Function]:
        def slopes(cotangent: Array) -> tuple[Array, Array]:
            # A root of x on each side: a second derivative squares the divisor before what follows.
            tiny = abs_(x) < tf.constant(float(finfo(x).smallest_normal), x.dtype)
            part, root = _part(divisor(y)), _part(where(tiny, divisor(y), x))
            over = cotangent * (part / root) / (divisor(y) * part * part)
            to_y = over * (x * (root * part))
            return cotangent * _by_quotient(log, y, divisor(y)), to_y

        if tf.executing_eagerly():
            return tf.stop_gradient(x * log(y)), slopes
        return _times_log_in_terms(x, y, log, divisor), slopes

    return product(x, y)


def _times_log_in_terms(x: Array, y: Array, log: Function, divisor: Function) -> Array:
    """Return ``x * log(y)`` by its Taylor polynomial and a rest, of which all but a term is 0."""
    known, part = tf.stop_gradient(y), _part(divisor(y))
    edge = tf.logical_or(_is_edge(divisor(y)), logical_not(tf.math.is_finite(x * part)))
    factor, change = where(edge, 0.0, x), where(edge, 0.0, y - known)
    away = change * part / where(edge, 1.0, divisor(known) * part * part)
    first, ratio = factor * part * away, away * part  # ratio = change / divisor; first = x * ratio
    rest = tf.math.log1p(ratio) - ratio + ratio * (ratio / 2)
    return x * log(where(edge, y, known)) + first - first * (ratio / 2) + factor * rest


def _part(y: Array) -> Array:
    """Return a power of 2, times which twice y is near 1, and not rounded."""
    whole, digits = {tf.float32: (tf.int32, 23), tf.float64: (tf.int64, 52)}[y.dtype]
    ones = (1 << (y.dtype.size * 8 - 1 - digits)) - 1  # an exponent of ones
    bits = tf.bitcast(abs_(tf.stop_gradient(y)), whole)
    # Half of the exponent, from one and a half of that of 1: sqrt(1 / 2) to sqrt(2) become 1.
    middle = tf.constant((3 * (ones // 2) + 1) // 2 << digits, whole)
    halved = tf.bitwise.right_shift(bits, tf.constant(1, whole))
    exponent = tf.constant(ones << digits, whole)
    return tf.bitcast(tf.bitwise.bitwise_and(middle - halved, exponent), y.dtype)


def entropy(p: Array, /) -> Array:
    """``-p * log(p)``."""
    return short(_entropy, lambda p: -p * tf.math.log(p), _pulled_entropy)(p)


def _entropy(p: Array) -> Array:
    """Return the entropy; an infinite p enters the logarithm as a constant: no slope inf * 0."""
    infinite = tf.equal(p, tf.constant(math.inf, p.dtype))
    return -log_product(p, where(infinite, tf.stop_gradient(p), p))


def _pulled_entropy(cotangent: Array, _: Array, p: Array) -> tuple[Array]:
    return (-cotangent * (tf.math.log(p) + 1.0),)


def log_difference(p: Array, q: Array, /) -> Array:
    """``log(p) - log(q)``."""
    return log_by_quotient(p) - log_by_quotient(q)


def log2(x: Array, /) -> Array:
    """Logarithm to base 2."""
    return log(x) / math.log(2.0)


def log10(x: Array, /) -> Array:
    """Logarithm to base 10."""
    return log(x) / math.log(10.0)


def pow_(x: Any, y: Any, /) -> Array:
    """`x` to the power of `y`."""
    x, y = pair(x, y)
    if x.dtype in INEXACT:
        return tf.pow(x, y)
    # tf.pow takes no unsigned integers; powers in int64 equal theirs modulo 2**64.
    return tf.cast(tf.pow(tf.cast(x, tf.int64), tf.cast(y, tf.int64)), x.dtype)


def abs_(x: Array, /) -> Array:
    """Absolute value."""
    x = tensor(x)
    if x.dtype in REAL:
        return tf.raw_ops.Abs(x=x)
    return x if x.dtype == tf.bool or x.dtype in UNSIGNED else tf.abs(x)


def floor(x: Array, /) -> Array:
    """Greatest integer not above `x`."""
    x = tensor(x)
    return tf.floor(x) if x.dtype in INEXACT else x


def round_(x: Array, /) -> Array:
    """Nearest integer; at a tie the even one."""
    x = tensor(x)
    return tf.round(x) if x.dtype in INEXACT else x


def logical_not(x: Array, /) -> Array:
    """Elementwise negation."""
    # In every tf.function Grappler turns LogicalNot(x <= 0) into x > 0: wrong for a NaN.
    return tf.equal(tensor(x), tf.constant(value=False))


def _test(kernel: Function, *, of_integers: bool, of_parts: Function) -> Function:
    # tf.math.is_nan, is_inf and is_finite refuse integers and complex numbers.
    def test(x: Array, /) -> Array:
        x = tensor(x)
        if x.dtype in COMPLEX:
            return of_parts(kernel(tf.math.real(x)), kernel(tf.math.imag(x)))
        return kernel(x) if x.dtype in REAL else full_like(x, of_integers, dtype=tf.bool)

    return test


isnan = _test(tf.math.is_nan, of_integers=False, of_parts=tf.logical_or)
isinf = _test(tf.math.is_inf, of_integers=False, of_parts=tf.logical_or)
isfinite = _test(tf.math.is_finite, of_integers=True, of_parts=tf.logical_and)

PRODUCTS: dict[str, Function] = {
    f.__name__: f for f in (exponent, log_product, log1p_product, entropy)
} | {"quotient": quotient_or_infinite}
