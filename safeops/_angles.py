"""Angles and lengths of a plane, inverse trigonometric and hyperbolic functions, and sinc."""

import math

from safeops._backends import enter, kernel_first, limits
from safeops._typing import Array, Function, Namespace
from safeops._where import double_where, stop_gradient


@kernel_first
def safe_asin(x: Array, /) -> Array:
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
        Radians in [-pi/2, pi/2]; framework, dtype and device of `x`.

    Raises
    ------
    TypeError
        If `x` is not a real array of a supported framework.

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
    xp, x = enter(x)
    return _clipped(xp, x, xp.asin, below=-math.pi / 2, above=math.pi / 2)


@kernel_first
def safe_acos(x: Array, /) -> Array:
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
        Radians in [0, pi]; framework, dtype and device of `x`.

    Raises
    ------
    TypeError
        If `x` is not a real array of a supported framework.

    Notes
    -----
    **Gradient.** ``-1 / sqrt(1 - x**2)`` inside, 0 elsewhere, at every order. At the ends the slope
    is infinite: 0 is chosen.

    **Source.** As for `safe_asin`.

    Examples
    --------
    >>> import numpy as np
    >>> safe_acos(np.asarray([1.0, -2.0]))
    array([0.        , 3.14159265])
    """
    xp, x = enter(x)
    return _clipped(xp, x, xp.acos, below=math.pi, above=0.0)


@kernel_first
def safe_acosh(x: Array, /) -> Array:
    """
    Inverse hyperbolic cosine that is 0, with gradient 0, at and below 1.

    Same as ``acosh(max(x, 1))``, elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN.

    Returns
    -------
    array, shape (...)
        Framework, dtype and device of `x`.

    Raises
    ------
    TypeError
        If `x` is not a real array of a supported framework.

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
    xp, x = enter(x)
    return double_where(xp, x <= 1, (x,), 0.0, xp.acosh, dead=2.0)


@kernel_first
def safe_atanh(x: Array, /) -> Array:
    """
    Inverse hyperbolic tangent that stays finite, with gradient 0, at and beyond -1 and 1.

    Same as ``atanh(min(max(x, -largest), largest))``, elementwise, where ``largest`` is the largest
    number of the dtype below 1.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN.

    Returns
    -------
    array, shape (...)
        Framework, dtype and device of `x`.

    Raises
    ------
    TypeError
        If `x` is not a real array of a supported framework.

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
    xp, x = enter(x)
    largest = 1 - limits(xp, x).eps / 2
    end = math.log((1 + largest) / (1 - largest)) / 2
    return _clipped(xp, x, xp.atanh, below=-end, above=end)


@kernel_first
def safe_atan2(y: Array, x: Array, /) -> Array:
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
        Radians in [-pi, pi]; framework and device of the arguments, their dtypes promoted.

    Raises
    ------
    TypeError
        If the arguments are not real arrays of one supported framework.

    Notes
    -----
    **Gradient.** ``x / (x**2 + y**2)`` for `y` and ``-y / (x**2 + y**2)`` for `x`; 0 and 0 at the
    origin, at every order. The coordinates are scaled first, so that the squares neither
    overflow nor vanish (frameworks: NaN at 1e-30 in float32).

    **Source.** JAX issue 1052, where the angle at the origin was asked for.

    Examples
    --------
    >>> import numpy as np
    >>> safe_atan2(np.asarray([0.0, 1.0]), np.asarray([0.0, 0.0]))
    array([0.        , 1.57079633])
    """
    xp, y, x = enter(y, x)
    origin, scale = _scale(xp, x, y)
    return double_where(xp, origin, (y, x), 0.0, lambda y, x: xp.atan2(scale * y, scale * x))


@kernel_first
def safe_hypot(x: Array, y: Array, /) -> Array:
    """
    Length of the vector (x, y), with gradient 0 at the origin, without over- or underflow.

    Same as ``sqrt(x**2 + y**2)``, elementwise.

    Parameters
    ----------
    x, y : array, shape (...), real floating
        Coordinates. NaN stays NaN, also beside an infinite one.

    Returns
    -------
    array, shape (...)
        Framework and device of the arguments, their dtypes promoted.

    Raises
    ------
    TypeError
        If the arguments are not real arrays of one supported framework.

    Notes
    -----
    **Gradient.** ``x / hypot(x, y)`` and ``y / hypot(x, y)``; 0 and 0 at the origin, the
    subgradient of minimum norm, at every order.

    **Source.** Scaling by constants, as in J. L. Blue's norm (1978), today that of BLAS.

    Examples
    --------
    >>> import numpy as np
    >>> safe_hypot(np.asarray([3.0, 0.0]), np.asarray([4.0, 0.0]))
    array([5., 0.])
    """
    xp, x, y = enter(x, y)
    origin, scale = _scale(xp, x, y)
    unit = stop_gradient(
        1.0 / scale
    )  # exact; TensorFlow takes the slope of a divisor, 1 / scale**2

    def length(x: Array, y: Array) -> Array:
        x, y = scale * x, scale * y
        return unit * xp.sqrt(x * x + y * y)

    return double_where(xp, origin, (x, y), 0.0, length)


@kernel_first
def sinc(x: Array, /) -> Array:
    """
    ``sin(pi * x) / (pi * x)``, which is 1 with gradient 0 at zero.

    Same as ``sin(pi * x) / (pi * x) if x != 0 else 1``, elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN.

    Returns
    -------
    array, shape (...)
        Framework, dtype and device of `x`.

    Raises
    ------
    TypeError
        If `x` is not a real array of a supported framework.

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
    xp, x = enter(x)
    t = math.pi * x
    return double_where(xp, xp.abs(t) < 1, (t,), _sinc_series, lambda t: xp.sin(t) / t)


def _sinc_series(t: Array) -> Array:
    """Return sin(t) / t for t in [-1, 1] by Horner's rule; the next term is below 1e-19."""
    square = t * t
    total = 1.0 - square / (18 * 19)
    for n in range(16, 0, -2):
        total = 1.0 - square / (n * (n + 1)) * total
    return total


def _clipped(xp: Namespace, x: Array, f: Function, *, below: float, above: float) -> Array:
    """Return `f` inside (-1, 1), the constants at and beyond the ends."""
    ends = xp.where(x > 0, above, xp.full_like(x, below))
    return double_where(xp, xp.abs(x) >= 1, (x,), ends, f, dead=0.0)


def _scale(xp: Namespace, x: Array, y: Array) -> tuple[Array, Array]:
    """
    Return where both coordinates are 0, and a scale with which their squares keep all digits.

    The scale is 1 or a power of 2, which rounds nothing. It is a constant, as it cancels. Its own
    square, of which second derivatives consist, is finite but at the very end of the range.
    """
    x, y = stop_gradient(xp.abs(x)), stop_gradient(xp.abs(y))
    bound = limits(xp, x)
    origin = xp.logical_and(x < bound.smallest_nonzero, y < bound.smallest_nonzero)  # no NaN is
    larger = xp.where(origin, 1.0, xp.where(x > y, x, y))
    bits = math.frexp(bound.max)[1] / 128  # 8, 1, 1/8: parts of the range of float32

    def power(exponent: float) -> float:
        return 2.0 ** math.floor(bits * exponent)

    small = xp.where(larger < power(-102), power(96), xp.full_like(x, power(62)))
    small = xp.where(larger < power(-40), small, 1.0)
    return origin, xp.where(larger > power(48), power(-96), small)
