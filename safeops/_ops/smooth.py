"""Functions with a removable singularity: smooth, although their formula is 0 / 0 at a point."""

import math
from functools import partial

from safeops._core.dtypes import limits
from safeops._core.types import Array, IsArray, Namespace, T
from safeops._dispatch import fast_path, promote
from safeops._ops.division import reciprocal
from safeops._ops.powers import power_at_zero, safe_pow
from safeops._ops.precision import in_float32
from safeops._ops.series import EXPONENTIAL, HYPERBOLIC, LOGARITHM, TANGENT, economized, polynomial
from safeops._ops.usual import BOXCOX, EXPREL, INV_BOXCOX, LOGARITHMIC_MEAN, usual
from safeops._ops.where import double_where, stop_gradient

_TANGENT = economized(TANGENT, 1 / 16)


@fast_path
def exprel(x: T, /) -> T:
    """
    ``(exp(x) - 1) / x``, which is 1 with gradient 1 / 2 at zero.

    Same as ``expm1(x) / x if x != 0 else 1``, elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN.

    Returns
    -------
    array, shape (...)
        inf where the result exceeds the largest number.

    Notes
    -----
    **Gradient.** The derivative, exact at zero at every order: 1 / 2, then 1 / 3. Near zero the
    Taylor series is used, because the derivative of the quotient loses all digits there.

    **Source.** `scipy.special.exprel` for the value.

    Examples
    --------
    >>> import numpy as np
    >>> exprel(np.asarray([0.0, 1.0]))
    array([1.        , 1.71828183])
    """
    xp, x = promote(x)
    return in_float32(xp, usual(xp, partial(_exprel, xp), EXPREL))(x)


@fast_path
def sinhc(x: T, /) -> T:
    """
    ``sinh(x) / x``, which is 1 with gradient 0 at zero.

    Same as ``sinh(x) / x if x != 0 else 1``, elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN.

    Returns
    -------
    array, shape (...)
        inf where the result exceeds the largest number.

    Notes
    -----
    **Gradient.** The derivative, exact at zero at every order: 0, then 1 / 3.

    **Source.** The series of ``sinh(x) / x``; the hyperbolic twin of `sinc`, without the factor pi.

    Examples
    --------
    >>> import numpy as np
    >>> sinhc(np.asarray([0.0, 1.0]))
    array([1.        , 1.17520119])
    """
    xp, x = promote(x)
    return in_float32(xp, partial(_sinhc, xp))(x)


@fast_path
def boxcox(x: T | complex, lmbda: IsArray | complex, /) -> T:
    """
    Box-Cox transform ``(x**lmbda - 1) / lmbda``, which is ``log(x)`` at ``lmbda == 0``.

    Same as ``(x**lmbda - 1) / lmbda if lmbda != 0 else log(x)``, elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Positive numbers. At 0 the result is ``-1 / lmbda``, or -inf for ``lmbda <= 0``; below 0 it
        is NaN. NaN stays NaN.
    lmbda : array, shape (...), real floating
        Any value. NaN stays NaN.

    Notes
    -----
    **Gradient.** ``x**(lmbda - 1)`` for `x`, and the derivative for `lmbda`, both exact at every
    order; at ``lmbda == 0`` they are ``1 / x`` and ``log(x)**2 / 2``. At ``x == 0`` the gradient of
    `safe_pow`: exact for ``lmbda >= 1``, and 0 is chosen where the slope is infinite. Second
    derivatives are infinite where ``x**lmbda`` is out of range, and in forward mode over forward
    mode may be NaN for small numbers, in float32 for `x` up to 1e-19. Those for `x` next to
    ``lmbda == 1`` are differences of numbers of size ``1 / x``, of which they keep the rounding.

    **Source.** `scipy.special.boxcox` for the value.

    Examples
    --------
    >>> import numpy as np
    >>> boxcox(np.asarray([2.0, 2.0]), np.asarray([0.0, 1.0]))
    array([0.69314718, 1.        ])
    """
    xp, x, lmbda = promote(x, lmbda)
    return in_float32(xp, partial(_boxcox, xp))(x, lmbda)


@fast_path
def inv_boxcox(y: T | complex, lmbda: IsArray | complex, /) -> T:
    """
    Inverse of `boxcox`: ``(1 + lmbda * y)**(1 / lmbda)``, which is ``exp(y)`` at ``lmbda == 0``.

    Same as ``(1 + lmbda * y)**(1 / lmbda) if lmbda != 0 else exp(y)``, elementwise.

    Parameters
    ----------
    y : array, shape (...), real floating
        Numbers with ``lmbda * y >= -1``; below, the result is NaN. NaN stays NaN.
    lmbda : array, shape (...), real floating
        Any value whose product with `y` is finite. NaN stays NaN.

    Notes
    -----
    **Gradient.** The derivatives, both exact at every order; at ``lmbda == 0`` they are ``exp(y)``
    and ``-y**2 / 2 * exp(y)``. At ``lmbda * y == -1`` the derivatives of `safe_pow` at 0, and 0 at
    the pole, where ``lmbda`` is negative. Where the result over ``lmbda * (1 + lmbda * y)``, or for
    second derivatives over ``(1 + lmbda * y)**2``, is below the smallest normal number, derivatives
    lose digits or are 0.

    **Source.** `scipy.special.inv_boxcox` for the value.

    Examples
    --------
    >>> import numpy as np
    >>> inv_boxcox(np.asarray([1.0, 1.0]), np.asarray([0.0, 1.0]))
    array([2.71828183, 2.        ])
    """
    xp, y, lmbda = promote(y, lmbda)
    return in_float32(xp, usual(xp, partial(_inv_boxcox, xp), INV_BOXCOX))(y, lmbda)


@fast_path
def logarithmic_mean(x: T | complex, y: T | complex, /) -> T:
    """
    ``(x - y) / (log(x) - log(y))``, which is x where x equals y; 0 where one of them is zero.

    Same as ``(x - y) / (log(x) - log(y)) if x != y else x``, elementwise.

    Parameters
    ----------
    x, y : array, shape (...), real floating
        Finite numbers of at least 0; for a negative number the result is NaN. NaN stays NaN.

    Notes
    -----
    **Gradient.** The derivatives; at ``x == y`` they are 1 / 2 and 1 / 2. Where an argument is zero
    its slope is infinite: 0 is chosen for both arguments. JAX and TensorFlow flush subnormal
    numbers: next to the smallest normal one the slopes lose digits there.

    The second derivatives and those above are exact, as long as no step on the way to them leaves
    the range. In JAX no step of the second ones does, if x is an array of JAX. PyTorch and
    TensorFlow have a step ``1 / x**2`` in forward mode, in float32 infinite below 1e-19 where the
    second derivative is about ``1 / x``: the result can be NaN, infinite or wrong there, and in
    every mode where one argument is more than about 1e30 times the other. So it can be for third
    derivatives in every framework, for arguments outside of about 1e-10 to 1e10.

    **Source.** The mean used for heat exchangers and in entropic schemes. Where x and y are of
    about the same size, the power series of ``atanh`` is used.

    Examples
    --------
    >>> import numpy as np
    >>> logarithmic_mean(np.asarray([2.0, 4.0]), np.asarray([2.0, 1.0]))
    array([2.        , 2.16404256])
    """
    xp, x, y = promote(x, y)
    return in_float32(xp, partial(_logarithmic_mean, xp))(x, y)


def _exprel(xp: Namespace, x: Array) -> Array:
    """Return the quotient ``half / x * half``: it stays finite where ``exp(x)`` does not."""
    # What comes back to each half is in range; what comes back to one that is used twice is not.
    near, over, end = xp.abs(x) < 1, x > _too_far(xp, x), x == -math.inf
    outside = xp.where(xp.logical_or(xp.logical_or(near, over), end), 1.0, x)
    far = xp.divide(xp.exp(outside / 2.0), outside) * xp.exp(outside / 2.0) - reciprocal(outside)
    far = xp.where(end, 0.0, xp.where(over, xp.exp(xp.where(over, x, 0.0)), far))
    return xp.where(near, polynomial(xp.where(near, x, 0.0), EXPONENTIAL), far)


def _sinhc(xp: Namespace, x: Array) -> Array:
    """Return the quotient, in which ``exp(x)`` is a product of two halves, as for `exprel`."""
    near, over = xp.abs(x) < 1, xp.abs(x) > _too_far(xp, x)
    outside = xp.abs(xp.where(xp.logical_or(near, over), 1.0, x))
    half = xp.divide(xp.exp(outside / 2.0), 2.0 * outside)
    far = half * xp.exp(outside / 2.0) - xp.exp(-outside) / (2.0 * outside)
    inside = xp.where(near, x, 0.0)
    series = polynomial(inside * inside, HYPERBOLIC)
    infinite = xp.exp(xp.abs(xp.where(over, x, 0.0)))
    return xp.where(near, series, xp.where(over, infinite, far))


def _too_far(xp: Namespace, x: Array) -> float:
    """Return a number x with ``exp(x) / x`` out of range, and ``exp(x / 2)`` in range."""
    return 1.5 * math.log(limits(xp, x).max)


def _boxcox(xp: Namespace, x: Array, lmbda: Array) -> Array:
    """Return the transform; at 0 that of `safe_pow`."""
    zero = xp.abs(x) < limits(xp, x).smallest_nonzero
    formula = usual(xp, partial(_boxcox_of_nonzero, xp), BOXCOX)
    return double_where(xp, zero, (x, lmbda), partial(_boxcox_of_zero, xp), formula)


def _boxcox_of_zero(xp: Namespace, x: Array, lmbda: Array) -> Array:
    pole = lmbda <= 0
    order = xp.where(pole, 1.0, lmbda)
    return xp.where(pole, -math.inf, (power_at_zero(xp, x, order) - 1.0) / order)


def _boxcox_of_nonzero(xp: Namespace, x: Array, lmbda: Array) -> Array:
    """Return the transform: by the series of exprel for small ``lmbda * log(x)``, else by pow."""
    log = xp.log(x)
    # For the conditions alone; of an infinite x with lmbda 0 too.
    exponent = stop_gradient(xp.where(lmbda == 0, 0.0, lmbda * log))
    near, grows = xp.abs(exponent) < 1, exponent >= 1
    # A logarithm of its own: of a small x the second derivative, times 0, would be NaN.
    apart = xp.logical_not(near)
    inside = xp.log(xp.where(apart, 1.0, x))  # safeops: ignore[SO001]  (as above)
    finite = xp.where(inside == math.inf, 1.0, inside)
    series = inside * polynomial(xp.where(near, lmbda, 0.0) * finite, EXPONENTIAL)
    # Of two factors, x**lmbda / lmbda is finite also where x**lmbda overflows. The slopes of half a
    # power are 0 for a large x with a small lmbda: there x is halved, and not lmbda.
    middle = xp.logical_and(lmbda > 0, lmbda < 2)  # noqa: PLR2004  (2**lmbda is more)
    low = xp.logical_or(middle, xp.logical_not(grows))
    base, order = xp.where(grows, x, 1.0), xp.where(grows, lmbda, 1.0)
    share = xp.where(low, xp.ones_like(x), 0.5)
    first = xp.divide(xp.pow(xp.where(low, 2.0, base), order * share), order)
    large = first * xp.pow(xp.where(low, base / 2.0, base), order * share) - 1.0 / order
    rest = xp.logical_or(near, grows)
    order = xp.where(rest, 1.0, lmbda)
    small = (xp.pow(xp.where(rest, 1.0, xp.where(x < 0, math.nan, x)), order) - 1.0) / order
    # The base is NaN here, but NaN ** 0 is 1, with slope 0 in PyTorch.
    lost = x < 0
    given = xp.where(lost, x, 0.0) + xp.where(lost, lmbda, 0.0)
    small = small + xp.where(lost, math.nan, xp.zeros_like(x)) * given
    return xp.where(near, series, xp.where(grows, large, small))


def _inv_boxcox(xp: Namespace, y: Array, lmbda: Array) -> Array:
    """Return the inverse: by the series of ``log1p(z) / z`` for a small product z, else by pow."""
    # A large power ``1 / lmbda`` of ``1 + z`` loses the digits that the sum does not hold. Next to
    # the largest number ``y * exp(y)`` is out of range, a slope on the way to that for y: it is
    # scaled.
    product = lmbda * y
    near, small = xp.abs(product) < 0.125, xp.abs(lmbda) < 0.125  # noqa: PLR2004  (of the series)
    inside = xp.logical_and(xp.logical_and(small, product > -1), xp.logical_not(near))
    # Here exp(y) is 0 or infinite as well, and its slopes are numbers where a square of lmbda is 0.
    far = xp.logical_and(inside, xp.abs(lmbda) < 1e-4)  # noqa: PLR2004  (0.12 over it, as a logarithm)
    steep = xp.logical_and(inside, xp.logical_not(far))
    most = 2.0 ** math.ceil(math.log2(math.log(limits(xp, y).max)))
    scale = xp.where(small, most, xp.ones_like(y))
    low, order = xp.where(near, y, 0.0), xp.where(near, lmbda, 0.0)
    bend = (scale * order) * low * polynomial(xp.where(near, product, 0.0), LOGARITHM)
    series = low + low * bend * (1.0 / scale)
    log = xp.log1p(xp.where(steep, product, 0.0)) / xp.where(steep, lmbda, 1.0)
    ends = xp.where(far, y, 0.0) - xp.where(far, lmbda, 0.0)
    smooth = xp.exp(xp.where(near, series, xp.where(far, ends, log)))
    rest = xp.logical_or(near, inside)
    base = 1.0 + xp.where(rest, 0.0, product)
    base = base * xp.where(base < 0, math.nan, xp.ones_like(base))  # with slopes that are NaN too
    power = safe_pow(base, 1.0 / xp.where(rest, 1.0, lmbda))
    pole = xp.logical_and(base == 0, lmbda < 0)
    return xp.where(rest, smooth, xp.where(pole, math.inf, power))


def _logarithmic_mean(xp: Namespace, x: Array, y: Array) -> Array:
    """Return the mean; 0 where one of two numbers that are not negative is 0."""
    least = limits(xp, x).smallest_nonzero
    zero = xp.logical_or(
        xp.logical_and(xp.abs(x) < least, y > -least), xp.logical_and(xp.abs(y) < least, x > -least)
    )
    formula = usual(xp, partial(_mean_of_nonzero, xp), LOGARITHMIC_MEAN)
    return double_where(xp, zero, (x, y), 0.0, formula)


def _mean_of_nonzero(xp: Namespace, x: Array, y: Array) -> Array:
    """
    Return the mean: by a series of numbers near each other, which a constant scale keeps in range.

    Of a scale with three quarters of their exponent neither what comes back, times the scale, nor a
    square of what is left leaves the range. Else the logarithms get scales of their own: what comes
    back is scaled last, and has the size of a slope on the way.
    """
    root = xp.sqrt(xp.sqrt(xp.abs(x)) * xp.sqrt(xp.abs(y)))
    left = xp.sqrt(root)  # of what is scaled: near 1 a logarithm has most digits
    scale, inverse = _scale(xp, root * left)
    a, b = x * inverse, y * inverse
    middle = 0.5 * a + 0.5 * b
    part = (0.5 * a - 0.5 * b) / middle  # safeops: ignore[SO001]  (0 for unlike signs alone: NaN)
    near = xp.logical_and(xp.logical_and(x > 0, y > 0), xp.abs(part) < 0.25)  # noqa: PLR2004  (of the series)
    inside = xp.where(near, part, 0.0)
    series = scale * (middle / polynomial(inside * inside, _TANGENT))
    log = stop_gradient(
        xp.log(xp.where(near, 2.0, a / left)) - xp.log(xp.where(near, 1.0, b / left))
    )
    x, y = xp.where(near, 2.0, x), xp.where(near, 1.0, y)
    far = (x - y) / (log + _log_change(xp, x) - _log_change(xp, y))
    return xp.where(near, series, far)


def _scale(xp: Namespace, size: Array) -> tuple[Array, Array]:
    """Return a constant scale, and its reciprocal."""
    most = 0.5 / limits(xp, size).smallest_normal  # the reciprocal of a larger one would be 0
    scale = stop_gradient(xp.where(size > most, most, size))
    return scale, stop_gradient(1.0 / scale)


def _log_change(xp: Namespace, x: Array) -> Array:
    """Return 0, with the derivatives of ``log(x)``; a 0 is here beside a negative number: NaN."""
    size = xp.where(x == 0, 1.0, xp.abs(x))
    _, inverse = _scale(xp, size)
    log = xp.log(size * inverse)
    return log - stop_gradient(log)
