"""
Short formulas, with slopes, that are right for usual arguments: a backend may take them.

Each is right, with its first slopes, inside of its boxes. Whatever is outside, and what comes after
the first derivative, is left to the steps of the function.
"""

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import NamedTuple

from safeops._core.dtypes import LN2, dtype_name, limits, near_log2
from safeops._core.types import Array, Function, Namespace
from safeops._dispatch import backend_of
from safeops._ops.where import stop_gradient

_TINY = 1e-30  # next to it each function here is what it is at 0
# How far the continued fraction of Langevin's function goes, and how many terms sin(x) / x has.
_LAST = {"float32": 11, "float64": 19}
_TERMS = {"float32": 7, "float64": 13}
Box = tuple[float, float]


class Usual(NamedTuple):
    """A value and the slopes, of a namespace and the arguments, the slopes of the value first."""

    value: Function
    slopes: Function
    boxes: Sequence[Box] | Function = ()  # or the condition itself


def usual(xp: Namespace, steps: Function, short: Usual) -> Function:
    """Return the steps, or what the backend makes of these and a short formula."""

    def formula(*args: Array) -> Array:
        value, slopes = partial(short.value, xp), partial(short.slopes, xp)
        inside = partial(_inside, xp, short) if short.boxes else None
        return backend_of(*args).shortened(steps, value, slopes, inside)(*args)

    return formula


def _inside(xp: Namespace, short: Usual, *args: Array) -> Array:
    if callable(short.boxes):
        return short.boxes(xp, *args)
    pairs = zip(short.boxes, args, strict=True)
    return reduce(xp.logical_and, [(x >= low) & (x <= high) for (low, high), x in pairs])


def _square(x: Array, y: Array) -> Array:
    return x * x + y * y


def _is_square_usual(xp: Namespace, x: Array, y: Array) -> Array:
    return xp.logical_and(_square(x, y) >= 1e-18, _square(x, y) <= 1e18)  # noqa: PLR2004  (powers are in range)


def _length(xp: Namespace, x: Array, y: Array) -> Array:
    return xp.sqrt(_square(x, y))


def _length_slopes(_: Namespace, out: Array, x: Array, y: Array) -> tuple[Array, Array]:
    return x / out, y / out


def _angle(xp: Namespace, y: Array, x: Array) -> Array:
    return xp.atan2(y, x)


def _angle_slopes(_: Namespace, _out: Array, y: Array, x: Array) -> tuple[Array, Array]:
    square = _square(x, y)
    return x / square, -y / square


def _off_zero(xp: Namespace, x: Array) -> Array:
    """Return x, and a tiny number for what is less."""
    return xp.where(xp.abs(x) < _TINY, _TINY, x)


def _langevin(xp: Namespace, x: Array, end: float) -> Array:
    """Return ``1 / tanh(x) - 1 / x`` up to an end of at most 1: ``x / (3 + x**2 / (5 + ...))``."""
    x = -_lesser(xp, -_lesser(xp, x, end), end)
    square = x * x
    last = _LAST[dtype_name(x.dtype)]
    total = square / last
    for n in range(last - 2, 3, -2):
        total = square / (total + float(n))
    return x / (total + 3.0)


def _share(xp: Namespace, x: Array) -> Array:
    """Return the logarithmic slope of ``expm1(x) / x``, between 0 and 1, up to sizes of 1."""
    return 0.5 * (_langevin(xp, 0.5 * x, 0.5) + 1.0)


def _lesser(xp: Namespace, x: Array, y: Array | float) -> Array:
    return xp.where(x < y, x, y)


def _is_far(xp: Namespace, x: Array) -> Array:
    return xp.abs(x) > 1


def _ratio(xp: Namespace, away: Array, lesser: Array) -> Array:
    """Return the logarithm of a ratio, of which the difference and the lesser number are given."""
    log = xp.log1p(xp.abs(away / lesser))
    return xp.where(away < 0, -log, log)


def _entropy(xp: Namespace, p: Array, q: Array) -> Array:
    return p * _ratio(xp, p - q, _lesser(xp, p, q))


def _entropy_slopes(xp: Namespace, _: Array, p: Array, q: Array) -> tuple[Array, ...]:
    return _ratio(xp, p - q, _lesser(xp, p, q)) + 1.0, -p / q


def _exprel(xp: Namespace, x: Array) -> Array:
    x = _off_zero(xp, x)
    return xp.expm1(x) / x


def _exprel_slopes(xp: Namespace, out: Array, x: Array) -> tuple[Array]:
    x = _off_zero(xp, x)
    far = (xp.exp(x) - out) / x
    return (xp.where(_is_far(xp, x), far, _share(xp, x) * out),)


def turned(xp: Namespace, x: Array) -> tuple[Array, Array]:
    """Return the angle beyond the half turns, which rounds nothing, and whether these are odd."""
    turns = stop_gradient(xp.round(x))
    half = 0.5 * turns
    return math.pi * (x - turns), xp.floor(half) < half


def _rest(xp: Namespace, x: Array) -> tuple[Array, Array, Array]:
    """Return ``exp(-x)``, one less that, and what the difference has lost."""
    # By tanh of x, half of which may be subnormal: TensorFlow's expm1 takes five times as long.
    low, power = x < LN2, xp.exp(-x)
    rest = xp.where(low, xp.tanh(x) * ((1.0 + power * power) / (1.0 + power)), 1.0 - power)
    return power, rest, xp.where(low, 0.0, 1.0 - rest - power)


def _log_of_rest(xp: Namespace, x: Array) -> Array:
    _, rest, lost = _rest(xp, x)
    return xp.log(rest) + lost / rest


def _log_of_rest_slopes(xp: Namespace, _: Array, x: Array) -> tuple[Array]:
    power, rest, _ = _rest(xp, x)
    return (power / rest,)


def _log_expm1(xp: Namespace, x: Array) -> Array:
    middle, left = near_log2(limits(xp, x).eps)
    away = x - middle
    near = xp.abs(away) < 0.25  # noqa: PLR2004  (as in the steps)
    half = xp.tanh(0.5 * xp.where(near, away, 0.0))
    return xp.where(near, xp.log1p(half / (0.25 - 0.25 * half) + left), x + _log_of_rest(xp, x))


def _log_expm1_slopes(xp: Namespace, _: Array, x: Array) -> tuple[Array]:
    return (1.0 / _rest(xp, x)[1],)


def _sinc(xp: Namespace, x: Array) -> Array:
    x = _off_zero(xp, x)
    rest, odd = turned(xp, x)
    sine = xp.sin(rest) / (math.pi * x)
    return xp.where(odd, -sine, sine)


def _sinc_slopes(xp: Namespace, out: Array, x: Array) -> tuple[Array]:
    angle = math.pi * x
    square = angle * angle
    number = _TERMS[dtype_name(x.dtype)]
    factors = [(-1) ** n * (2 * n + 2) / math.factorial(2 * n + 3) for n in range(number)]
    near = factors[-1] * square
    for factor in reversed(factors[1:-1]):
        near = (near + factor) * square
    near = (near + factors[0]) * (-math.pi * angle)
    rest, odd = turned(xp, x)
    cosine = xp.cos(rest)
    far = (xp.where(odd, -cosine, cosine) - out) / _off_zero(xp, x)
    return (xp.where(xp.abs(x) > 1 / math.pi, far, near),)


def _boxcox(xp: Namespace, x: Array, lmbda: Array) -> Array:
    log, order = xp.log(x), _off_zero(xp, lmbda)
    product = log * order
    far = xp.pow(x, lmbda) - 1.0
    return xp.where(_is_far(xp, product), far, xp.expm1(product)) / order


def _boxcox_slopes(xp: Namespace, out: Array, x: Array, lmbda: Array) -> tuple[Array, Array]:
    log, order = xp.log(x), _off_zero(xp, lmbda)
    product, power = log * order, xp.pow(x, lmbda)
    far = (log * power - out) / order
    of_order = xp.where(_is_far(xp, product), far, _share(xp, product) * log * out)
    return power / x, of_order


def _mean(xp: Namespace, x: Array, y: Array) -> Array:
    lesser = _lesser(xp, x, y)
    ratio = xp.abs(x - y) / lesser
    ratio = xp.where(ratio < _TINY, _TINY, ratio)
    return lesser * (ratio / xp.log1p(ratio))


def _mean_slopes(xp: Namespace, out: Array, x: Array, y: Array) -> tuple[Array, Array]:
    log = _ratio(xp, x - y, _lesser(xp, x, y))
    far, share, over = _is_far(xp, log), _share(xp, log), _off_zero(xp, log)
    of_x, of_y = out / x, out / y
    first = xp.where(far, (1.0 - of_x) / over, share * of_x)
    return first, xp.where(far, (of_y - 1.0) / over, (1.0 - share) * of_y)


def _log_of_power(xp: Namespace, y: Array, lmbda: Array) -> tuple[Array, Array, Array]:
    """Return the base, its logarithm, and the logarithm of the power."""
    product = _off_zero(xp, lmbda * y)
    log = xp.log1p(product)
    return 1.0 + product, log, y * (log / product)


def _inv_boxcox(xp: Namespace, y: Array, lmbda: Array) -> Array:
    return xp.exp(_log_of_power(xp, y, lmbda)[2])


def _inv_boxcox_slopes(xp: Namespace, out: Array, y: Array, lmbda: Array) -> tuple[Array, Array]:
    base, log, whole = _log_of_power(xp, y, lmbda)
    of_y = out / base
    far = (of_y * y - out * whole) / _off_zero(xp, lmbda)
    return of_y, xp.where(_is_far(xp, log), far, -_share(xp, log) * whole * (of_y * y))


def _log_sech2(xp: Namespace, x: Array) -> Array:
    size = xp.abs(x)
    inside = _lesser(xp, size, 40.0)  # beyond, the logarithm is a line
    root = xp.expm1(-inside)
    return -2.0 * (xp.log1p(0.5 * (root * root / xp.exp(-inside))) + (size - inside))


def _log_sech2_slopes(xp: Namespace, _: Array, x: Array) -> tuple[Array]:
    return (-2.0 * xp.tanh(x),)


def _logit(xp: Namespace, x: Array) -> Array:
    lesser = _lesser(xp, x, 1.0 - x)
    size = xp.log1p((1.0 - 2.0 * lesser) / lesser)
    return xp.where(x > 0.5, size, -size)  # noqa: PLR2004  (the middle)


def _logit_slopes(xp: Namespace, _: Array, x: Array) -> tuple[Array]:
    del xp
    return (1.0 / (x * (1.0 - x)),)


def _product_to_ends(x: Array) -> Array:
    """Return ``1 - x**2``, which keeps its digits next to the ends."""
    return (1.0 - x) * (1.0 + x)


def _arc_slopes(sign: float, xp: Namespace, _: Array, x: Array) -> tuple[Array]:
    return (sign / xp.sqrt(_product_to_ends(x)),)


def _area_slopes(xp: Namespace, _: Array, x: Array) -> tuple[Array]:
    del xp
    return (1.0 / _product_to_ends(x),)


_ORDER = (-4.0, 4.0)  # with a base up to 1e9 the power is in range
_BASE = (1e-9, 1e9)
_INSIDE = 1.0 - 2.0**-22
RELATIVE_ENTROPY = Usual(_entropy, _entropy_slopes, ((1e-18, 1e18),) * 2)
EXPREL = Usual(_exprel, _exprel_slopes, ((-1e15, 80.0),))
SINC = Usual(_sinc, _sinc_slopes, ((-1e6, 1e6),))
BOXCOX = Usual(_boxcox, _boxcox_slopes, (_BASE, _ORDER))
# No number next to the pole, and no power out of range.
INV_BOXCOX = Usual(_inv_boxcox, _inv_boxcox_slopes, ((-0.4, 64.0), (0.0, 2.0)))
LOGARITHMIC_MEAN = Usual(_mean, _mean_slopes, (_BASE, _BASE))
LOG_SECH2 = Usual(_log_sech2, _log_sech2_slopes)
LOG_OF_REST = Usual(_log_of_rest, _log_of_rest_slopes)
LOG_EXPM1 = Usual(_log_expm1, _log_expm1_slopes)
LOGIT = Usual(_logit, _logit_slopes)
ARC_SINE = Usual(lambda xp, x: xp.asin(x), partial(_arc_slopes, 1.0))
ARC_COSINE = Usual(lambda xp, x: xp.acos(x), partial(_arc_slopes, -1.0))
AREA_TANGENT = Usual(lambda xp, x: xp.atanh(x), _area_slopes)
LENGTH = Usual(_length, _length_slopes, _is_square_usual)
ANGLE = Usual(_angle, _angle_slopes, _is_square_usual)
