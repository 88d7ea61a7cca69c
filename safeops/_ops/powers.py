"""Roots, powers and exponentials without an infinite slope or value."""

import math
from functools import partial

from safeops._core.dtypes import limits
from safeops._core.types import Array, Function, IsArray, Namespace, T
from safeops._dispatch import backend_of, fast_path, promote
from safeops._ops.precision import in_float32, with_slope_of
from safeops._ops.where import double_where, is_nan, stop_gradient


@fast_path
def safe_sqrt(x: T, /, *, fill_value: IsArray | complex = 0.0) -> T:
    """
    Square root that is `fill_value`, with gradient 0, at and below zero.

    Same as ``sqrt(x) if x > 0 else fill_value``, elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN. Subnormal numbers count as zero, except in float16, because JAX
        and TensorFlow flush them to zero.
    fill_value : scalar or array, default: 0.0
        Value at and below zero.

    Notes
    -----
    **Gradient.** ``1 / (2 * sqrt(x))`` above zero, 0 elsewhere, at every order. At zero the slope
    is infinite: 0 is chosen, so that masked entries do not move. Inside a smooth composite, such
    as ``safe_sqrt(x)**2``, the chosen 0 is wrong: write the composite in `x`.

    **Source.** Double where: JAX FAQ, "Gradients contain NaN where using where".

    Examples
    --------
    >>> import numpy as np
    >>> safe_sqrt(np.asarray([4.0, 0.0]))
    array([2., 0.])
    """
    xp, x, fill = promote(x, also=(fill_value,))
    return double_where(xp, x < limits(xp, x).smallest_nonzero, (x,), fill, xp.sqrt)


@fast_path
def safe_rsqrt(x: T, /, *, fill_value: IsArray | complex = 0.0) -> T:
    """
    Reciprocal square root that is `fill_value`, with gradient 0, at and below zero.

    Same as ``1 / sqrt(x) if x > 0 else fill_value``, elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN. Subnormal numbers count as zero, except in float16.
    fill_value : scalar or array, default: 0.0
        Value at and below zero.

    Notes
    -----
    **Gradient.** ``-1 / (2 * x * sqrt(x))`` above zero, 0 elsewhere, at every order.

    **Source.** Double where, as for `safe_sqrt`.

    Examples
    --------
    >>> import numpy as np
    >>> safe_rsqrt(np.asarray([4.0, 0.0]))
    array([0.5, 0. ])
    """
    xp, x, fill = promote(x, also=(fill_value,))
    filled = x < limits(xp, x).smallest_nonzero
    formula = getattr(xp, "reciprocal_root", lambda x: 1.0 / xp.sqrt(x))
    return double_where(xp, filled, (x,), fill, in_float32(xp, formula))


@fast_path
def safe_pow(x: T | complex, p: T | complex, /) -> T:
    """
    Power that is 0, with gradient 0, where it is infinite or not real.

    Same as ``x ** p if isreal(x ** p) else 0``, elementwise, with ``0 ** 0 == 1``.

    Parameters
    ----------
    x, p : array, shape (...), real floating
        Base and exponent; the result is floating for integers too. The power is not real for a
        negative base with a fractional exponent, and infinite for a zero base with a negative
        exponent. NaN stays NaN, but ``x ** 0 == 1`` for every `x`, as in IEEE 754.

    Notes
    -----
    **Gradient.** For a positive base ``p * x**(p - 1)`` for `x` and ``x**p * log(x)`` for `p`. For
    a negative base with an integer exponent ``p * x**(p - 1)`` for `x`; 0 is chosen for `p`,
    because the power is not real at exponents beside an integer. For a zero base the first and
    second derivative for `x` are the derivatives of ``x**p``, hence 1 at ``p == 1`` and a second
    derivative of 2 at ``p == 2``; where they are infinite, 0 is chosen. Higher derivatives for `x`
    and all derivatives for `p` are 0 there. Where the power is infinite or not real: 0. For a NaN
    base: 0 and 0 at ``p == 0``, where the power is 1; at other exponents NaN, but 1 for `x` at
    ``p == 1``. For a NaN exponent: NaN for `x`.

    **Source.** IEEE 754 `pow` for the values; the gradient is the power rule.

    Examples
    --------
    >>> import numpy as np
    >>> safe_pow(np.asarray([4.0, -2.0, -2.0, 0.0]), np.asarray([0.5, 3.0, 0.5, -1.0]))
    array([ 2., -8.,  0.,  0.])
    """
    xp, x, p = promote(x, p)
    bound = limits(xp, x).smallest_nonzero
    tiny = xp.abs(x) < bound
    constant = xp.logical_and(is_nan(x), p == 0)  # 1, whatever the base
    zero = xp.logical_or(tiny, constant)
    fractional = xp.floor(p) < p  # False for NaN, which stays NaN
    unreal = xp.logical_or(xp.logical_and(x <= -bound, fractional), xp.logical_and(zero, p < 0))
    edge = xp.where(unreal, 0.0, power_at_zero(xp, xp.where(tiny, x, 0.0), stop_gradient(p)))
    formula = in_float32(xp, partial(_power, xp))
    return double_where(xp, xp.logical_or(zero, unreal), (x, p), edge, formula)


def _power(xp: Namespace, x: Array, p: Array) -> Array:
    """Power of a base that is not zero, by its absolute value: log of a negative base is NaN."""
    negative = x < 0
    p = xp.where(negative, stop_gradient(p), p)
    size = xp.where(negative, -x, x)  # abs(NaN) has slope 0 in PyTorch 2.13, NaN in TensorFlow
    size = (xp.pow if backend_of(x).keeps_exponent else _power_with_exponent(xp))(size, p)
    undefined = xp.logical_and(negative, is_nan(p))
    size = size + xp.where(undefined, p, 0.0)  # 1 ** NaN is 1, but (-1) ** NaN is NaN
    odd = xp.floor(p / 2) < p / 2
    return xp.where(xp.logical_and(negative, odd), -size, size)


def _power_with_exponent(xp: Namespace) -> Function:
    """Return the power of a positive base."""

    # Its slope for x is ``p * x**(p - 1)``. From -1 to 1 / 2 the subtraction ``p - 1`` loses digits
    # of p, and ``x**(p - 1)`` can overflow where the slope does not: there the slope is computed as
    # ``p * x**p / x``. At ``p == 0`` the formula ``p * x**p / x`` still depends on p, as it should.
    # Next to ``p == 1`` its slope cancels.
    def power(x: Array, p: Array) -> Array:
        low = xp.logical_and(xp.abs(p + 0.25) < 0.75, x < math.inf)  # noqa: PLR2004  (from -1 to 1 / 2)
        # The power itself is computed once: where it is `low` its slopes are selected away.
        usual = xp.pow(*(xp.where(low, stop_gradient(z), z) for z in (x, p)))
        exponent = double_where(xp, xp.logical_not(low), (x, p), 0.0, partial(_exponent, xp))
        # The factor is 1 and not 0: a factor of 0 would make NaN of an infinite cotangent.
        factor = xp.exp(exponent - stop_gradient(exponent))
        return xp.where(low, stop_gradient(usual) * factor, usual)

    return power


def _exponent(xp: Namespace, x: Array, p: Array) -> Array:
    product = backend_of(x).formulas.get("exponent")
    return p * xp.log(x) if product is None else product(p, x)


def power_at_zero(xp: Namespace, x: Array, p: Array) -> Array:
    """Monomials, because TensorFlow differentiates pow to ``0 * 0 ** -1`` here (2.21)."""
    absent = is_nan(p)  # NaN stays, also in the slope for x
    other = xp.where(absent, x * xp.where(absent, p, 1.0), 0.0)
    return xp.where(p == 0, 1.0, xp.where(p == 1, x, xp.where(p == 2, x * x, other)))  # noqa: PLR2004  (powers)


@fast_path
def safe_exp(x: T, /) -> T:
    """
    Exponential that is the largest finite number, with gradient 0, where it would overflow.

    Same as ``exp(x) if x <= log(finfo.max) else finfo.max``, elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN.

    Notes
    -----
    **Gradient.** ``exp(x)``; 0 where the largest number stands, at every order.

    **Source.** The derivative of ``min(exp(x), finfo.max)``, taken by a double where.

    Examples
    --------
    >>> import numpy as np
    >>> safe_exp(np.asarray([0.0, 1000.0]))
    array([1.00000000e+000, 1.79769313e+308])
    """
    xp, x = promote(x)
    bound = limits(xp, x)
    return double_where(xp, x > bound.largest_exponent(), (x,), bound.max, xp.exp, placeholder=0.0)


@fast_path
def safe_expm1(x: T, /) -> T:
    """
    ``exp(x) - 1`` that is the largest finite number, with gradient 0, where it would overflow.

    Same as ``expm1(x) if x <= log(finfo.max) else finfo.max``, elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN.

    Notes
    -----
    **Gradient.** ``exp(x)``; 0 where the largest number stands, at every order.

    **Source.** As for `safe_exp`.

    Examples
    --------
    >>> import numpy as np
    >>> safe_expm1(np.asarray([0.0, 1000.0]))
    array([0.00000000e+000, 1.79769313e+308])
    """
    xp, x = promote(x)
    bound = limits(xp, x)
    formula = partial(_expm1, xp)
    return double_where(xp, x > bound.largest_exponent(), (x,), bound.max, formula, placeholder=0.0)


def _expm1(xp: Namespace, x: Array) -> Array:
    """Return expm1 with slope exp; in PyTorch 2.13 and JAX 0.10.2 it is 0 below -17 in float32."""
    return with_slope_of(xp.exp(x), xp.expm1(x))
