"""Angles and lengths of a plane, inverse trigonometric and hyperbolic functions, and sinc."""

import math
from functools import partial

from safeops._core.dtypes import limits
from safeops._core.types import Array, Function, Namespace, T
from safeops._dispatch import fast_path, promote
from safeops._ops.precision import in_float32, with_slope_of
from safeops._ops.series import SINE, economized, polynomial
from safeops._ops.usual import (
    ANGLE,
    ARC_COSINE,
    ARC_SINE,
    AREA_TANGENT,
    LENGTH,
    SINC,
    turned,
    usual,
)
from safeops._ops.where import double_where, is_nan, stop_gradient

_SINE = economized(SINE)


@fast_path
def safe_asin(x: T, /) -> T:
    """
    Arc sine of the argument clipped to [-1, 1], with gradient 0 at and beyond the ends.

    Same as ``asin(min(max(x, -1), 1))``, elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN.

    Returns
    -------
    array, shape (...)
        Radians in [-pi/2, pi/2].

    Notes
    -----
    **Gradient.** ``1 / sqrt(1 - x**2)`` inside, 0 elsewhere, at every order. At the ends the slope
    is infinite: 0 is chosen.

    **Source.** Clipping as in quaternion libraries, whose `clamp` keeps the infinite slope.

    Examples
    --------
    >>> import numpy as np
    >>> safe_asin(np.asarray([0.0, 1.0, -2.0]))
    array([ 0.        ,  1.57079633, -1.57079633])
    """
    xp, x = promote(x)
    formula = usual(xp, partial(_arc_sine, xp), ARC_SINE)
    return _clipped(xp, x, formula, below=-math.pi / 2, above=math.pi / 2)


@fast_path
def safe_acos(x: T, /) -> T:
    """
    Arc cosine of the argument clipped to [-1, 1], with gradient 0 at and beyond the ends.

    Same as ``acos(min(max(x, -1), 1))``, elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN.

    Returns
    -------
    array, shape (...)
        Radians in [0, pi].

    Notes
    -----
    **Gradient.** ``-1 / sqrt(1 - x**2)`` inside, 0 elsewhere, at every order. At the ends the slope
    is infinite: 0 is chosen. Inside a smooth composite, such as the square of an angle, that
    0 is wrong, and a cosine has lost the digits of a small angle: use `squared_angle` or
    `safe_angle` of `safeops.rotations`.

    **Source.** As for `safe_asin`.

    Examples
    --------
    >>> import numpy as np
    >>> safe_acos(np.asarray([1.0, -2.0]))
    array([0.        , 3.14159265])
    """
    xp, x = promote(x)
    formula = usual(xp, partial(_arc_cosine, xp), ARC_COSINE)
    return _clipped(xp, x, formula, below=math.pi, above=0.0)


@fast_path
def safe_acosh(x: T, /) -> T:
    """
    Inverse hyperbolic cosine that is 0, with gradient 0, at and below 1.

    Same as ``acosh(max(x, 1))``, elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN.

    Notes
    -----
    **Gradient.** ``1 / sqrt(x**2 - 1)`` above 1, 0 elsewhere, at every order. At 1 the slope is
    infinite: 0 is chosen.

    **Source.** The distance function of hyperbolic embeddings, which meets 1 at equal points.

    Examples
    --------
    >>> import numpy as np
    >>> safe_acosh(np.asarray([np.cosh(2.0), 1.0, 0.0]))
    array([2., 0., 0.])
    """
    xp, x = promote(x)
    return double_where(
        xp, x <= 1, (x,), 0.0, in_float32(xp, partial(_area_cosine, xp)), placeholder=2.0
    )


@fast_path
def safe_atanh(x: T, /) -> T:
    """
    Inverse hyperbolic tangent that stays finite, with gradient 0, at and beyond -1 and 1.

    Same as ``atanh(min(max(x, -largest), largest))``, elementwise, where ``largest`` is the largest
    number of the dtype below 1.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN.

    Notes
    -----
    **Gradient.** ``1 / (1 - x**2)`` inside, 0 elsewhere, at every order.

    **Source.** The derivative of the clipped function, taken by a double where.

    Examples
    --------
    >>> import numpy as np
    >>> safe_atanh(np.asarray([0.0, 1.0, -2.0]))
    array([  0.        ,  18.71497388, -18.71497388])
    """
    xp, x = promote(x)
    largest = 1 - limits(xp, x).eps / 2
    end = math.log((1 + largest) / (1 - largest)) / 2
    formula = usual(xp, partial(_area_tangent, xp), AREA_TANGENT)
    return _clipped(xp, x, formula, below=-end, above=end)


@fast_path
def safe_atan2(y: T | complex, x: T | complex, /) -> T:
    """
    Angle of the point (x, y) that is 0, with gradient 0, at the origin.

    Same as ``0 if x == y == 0 else atan2(y, x)``, elementwise.

    Parameters
    ----------
    y, x : array, shape (...), real floating
        Coordinates, in this order. NaN stays NaN.

    Returns
    -------
    array, shape (...)
        Radians in [-pi, pi].

    Notes
    -----
    **Gradient.** ``x / (x**2 + y**2)`` for `y` and ``-y / (x**2 + y**2)`` for `x`; 0 and 0 at the
    origin, at every order. The coordinates are scaled first, so that no power of the radius
    overflows or vanishes (frameworks: NaN at 1e-30 in float32).

    **Source.** JAX issue 1052, where the angle at the origin was asked for.

    Examples
    --------
    >>> import numpy as np
    >>> safe_atan2(np.asarray([0.0, 1.0]), np.asarray([0.0, 0.0]))
    array([0.        , 1.57079633])
    """
    xp, y, x = promote(y, x)
    formula = in_float32(xp, usual(xp, partial(_angle, xp), ANGLE))
    return double_where(xp, _is_origin(xp, x, y), (y, x), 0.0, formula)


@fast_path
def safe_hypot(x: T | complex, y: T | complex, /) -> T:
    """
    Length of the vector (x, y), with gradient 0 at the origin, without over- or underflow.

    Same as ``sqrt(x**2 + y**2)``, elementwise.

    Parameters
    ----------
    x, y : array, shape (...), real floating
        Coordinates. NaN stays NaN, also beside an infinite one.

    Notes
    -----
    **Gradient.** ``x / hypot(x, y)`` and ``y / hypot(x, y)``; 0 and 0 at the origin, the
    subgradient of minimum norm, at every order. Where the length is beyond the largest number, and
    so infinite: 0 and 0 but in TensorFlow, which has those of the finite length.

    **Source.** `hypot` of C99, with the slopes of PyTorch's rule; JAX and TensorFlow have no such
    rule, and get it here.

    Examples
    --------
    >>> import numpy as np
    >>> safe_hypot(np.asarray([3.0, 0.0]), np.asarray([4.0, 0.0]))
    array([5., 0.])
    """
    xp, x, y = promote(x, y)
    formula = in_float32(xp, usual(xp, partial(_length, xp), LENGTH))
    return double_where(xp, _is_origin(xp, x, y), (x, y), 0.0, formula)


@fast_path
def sinc(x: T, /) -> T:
    """
    ``sin(pi * x) / (pi * x)``, which is 1 with gradient 0 at zero.

    Same as ``sin(pi * x) / (pi * x) if x != 0 else 1``, elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN.

    Notes
    -----
    **Gradient.** The derivative, exact at zero to every order: 0, then ``-pi**2 / 3``. Near zero
    the Taylor series is used: the quotient loses all digits of its derivative there.

    **Source.** `numpy.sinc` for the value; the series of ``sin(t) / t``.

    Examples
    --------
    >>> import numpy as np
    >>> sinc(np.asarray([0.0, 0.5]))
    array([1.        , 0.63661977])
    """
    xp, x = promote(x)
    return in_float32(xp, usual(xp, partial(_sinc, xp), SINC))(x)


def _sinc(xp: Namespace, x: Array) -> Array:
    near = xp.abs(x) < 1 / math.pi
    return double_where(xp, near, (x,), _sinc_series, partial(_sine_over, xp))


def _sine_over(xp: Namespace, x: Array) -> Array:
    """Return the quotient; half turns are taken off first, which rounds nothing."""
    # So the sine is that of a number near 0 at each of its zeros, and keeps its digits there.
    rest, odd = turned(xp, x)
    sine = xp.sin(rest) / math.pi / x
    return xp.where(odd, -sine, sine)


def _sinc_series(x: Array) -> Array:
    t = math.pi * x
    return polynomial(t * t, _SINE)


def _arc_sine(xp: Namespace, x: Array) -> Array:
    return with_slope_of(_arc(xp, x), xp.asin(x))


def _arc_cosine(xp: Namespace, x: Array) -> Array:
    return with_slope_of(-_arc(xp, x), xp.acos(x))


def _arc(xp: Namespace, x: Array) -> Array:
    """
    Arc sine; above 1/2 ``asin(x) - pi / 2``, by half the chord to the end, which keeps the digits.

    The frameworks' slope has ``1 - x**2``, which cancels near the ends. This one is a product, so
    that an infinite cotangent makes it infinite: a sum of two terms would be ``inf - inf``.
    """
    small, size = _is_small(xp, x), xp.where(x < 0, -x, x)
    chord = xp.sqrt(0.5 - 0.5 * xp.where(small, 0.0, size))
    sign = xp.where(x < 0, 2.0, xp.full_like(x, -2.0))
    return xp.where(small, 1.0, sign) * xp.asin(xp.where(small, x, chord))


def _area_tangent(xp: Namespace, x: Array) -> Array:
    """By logarithms, which cancel in the second derivative near 0 and in no slope at the ends."""

    def by_logarithms(x: Array) -> Array:
        return 0.5 * (xp.log1p(x) - xp.log1p(-x))

    return double_where(xp, _is_small(xp, x), (x,), xp.atanh, by_logarithms, placeholder=0.5)


def _is_small(xp: Namespace, x: Array) -> Array:
    """Whether ``1 - x**2`` keeps its digits."""
    return xp.abs(x) < 0.5  # noqa: PLR2004  (it is above 3 / 4)


def _area_cosine(xp: Namespace, x: Array) -> Array:
    """Return the inverse of cosh without ``x**2 - 1``, which overflows, and cancels near 1."""
    return 2.0 * xp.asinh(xp.sqrt(0.5 * x - 0.5))


def _clipped(xp: Namespace, x: Array, f: Function, *, below: float, above: float) -> Array:
    """Return `f` inside (-1, 1), the constants at and beyond the ends."""
    ends = xp.where(x > 0, above, xp.full_like(x, below))
    return double_where(xp, xp.abs(x) >= 1, (x,), ends, in_float32(xp, f), placeholder=0.0)


def _is_origin(xp: Namespace, x: Array, y: Array) -> Array:
    """Whether both coordinates count as 0; no NaN does."""
    bound = limits(xp, x).smallest_nonzero
    return xp.logical_and(xp.abs(x) < bound, xp.abs(y) < bound)


def _angle(xp: Namespace, y: Array, x: Array) -> Array:
    """Return the angle of a point that is not the origin."""
    # A factor, which cancels and so is a constant, makes a very small radius 1 / 8 and a very large
    # one almost 4: no power of it that derivatives are made of leaves the range. Each bound is one
    # for the factor: its own size times a radius of 1e-38, and the least normal number.
    bound = limits(xp, x)
    far = bound.max**0.125
    a, b = stop_gradient(xp.abs(x)), stop_gradient(xp.abs(y))
    larger = xp.where(a > b, a, b)
    usual = xp.logical_and(larger > 0, larger < math.inf)
    larger = xp.where(usual, larger, 1.0)
    radius = xp.where(larger < 1 / far, 0.125, larger)
    radius = xp.where(larger > far, bound.smallest_normal * bound.max, radius)
    scale = stop_gradient(xp.divide(radius, larger))
    return xp.atan2(scale * y, scale * x)


def _length(xp: Namespace, x: Array, y: Array) -> Array:
    """Return the length of a vector; beside NaN `xp.hypot` of inf is inf, as in C, and not here."""
    undefined = xp.logical_or(is_nan(x), is_nan(y))
    nan = 0.5 * x + 0.5 * y
    return xp.hypot(xp.where(undefined, nan, x), xp.where(undefined, nan, y))
