"""Logarithms of composites of exponentials, whose plain formulas overflow or lose all digits."""

import math
from functools import partial

from safeops._core.dtypes import LN2, limits, near_log2
from safeops._core.types import Array, Function, Namespace, T
from safeops._dispatch import backend_of, fast_path, promote
from safeops._ops.precision import in_float32
from safeops._ops.series import HYPERBOLIC, economized, polynomial
from safeops._ops.usual import LOG_EXPM1, LOG_OF_REST, LOG_SECH2, usual
from safeops._ops.where import double_where

_HYPERBOLIC = economized(HYPERBOLIC.terms[1:])


@fast_path
def log_cosh(x: T, /) -> T:
    """
    ``log(cosh(x))``, without overflow, and with all its digits near zero.

    Same as ``log(cosh(x))``, elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN.

    Notes
    -----
    **Gradient.** ``tanh(x)``, exact at every order, 0 at zero.

    **Source.** The loss of this name. ``abs(x) + log1p(exp(-2 * abs(x))) - log(2)``, as people
    write it, has no digits near zero and a second derivative of 0 at zero, where 1 is right.

    Examples
    --------
    >>> import numpy as np
    >>> log_cosh(np.asarray([0.0, 1e-8, 1000.0]))
    array([0.00000000e+00, 5.00000000e-17, 9.99306853e+02])
    """
    xp, x = promote(x)
    return in_float32(xp, partial(_log_cosh, xp))(x)


@fast_path
def log_sech2(x: T, /) -> T:
    """
    ``log(1 - tanh(x)**2)``, finite for every finite `x`: the correction of a squashed variable.

    Same as ``-2 * log(cosh(x))``, elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value: what goes into the tanh. NaN stays NaN.

    Notes
    -----
    **Gradient.** ``-2 * tanh(x)``, exact at every order.

    The density of ``a = tanh(u)``, with `u` normal, is ``log_prob(a) = normal.log_prob(u) -
    log_sech2(u)``. Keep `u`: where the tanh has rounded to 1, nothing gives it back.

    **Source.** The change of variables of tanh. ``log(1 - tanh(x)**2)`` is -inf, with gradient NaN,
    from 9.01 on in float32, and ``log(1 - a**2 + eps)`` has the slope of the eps there.

    Examples
    --------
    >>> import numpy as np
    >>> log_sech2(np.asarray([0.0, 1.0, 100.0]))
    array([  -0.        ,   -0.86756166, -198.61370564])
    """
    xp, x = promote(x)
    return in_float32(xp, usual(xp, lambda x: -2.0 * _log_cosh(xp, x), LOG_SECH2))(x)


@fast_path
def log_sinhc(x: T, /) -> T:
    """
    ``log(sinh(x) / x)``, which is 0 with gradient 0 at zero, without overflow.

    Same as ``log(sinh(x) / x) if x != 0 else 0``, elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN.

    Notes
    -----
    **Gradient.** ``1 / tanh(x) - 1 / x``, exact at zero at every order: 0, then 1 / 3.

    **Source.** The normalisation of the von Mises-Fisher distribution on the sphere in three
    dimensions, at ``x = kappa``; the gradient is Langevin's function, its mean length.

    Examples
    --------
    >>> import numpy as np
    >>> log_sinhc(np.asarray([0.0, 1.0, 100.0]))
    array([ 0.        ,  0.16143936, 94.70168263])
    """
    xp, x = promote(x)
    return in_float32(xp, partial(_log_sinhc, xp))(x)


@fast_path
def log1mexp(x: T, /) -> T:
    """
    ``log(1 - exp(-x))``, which is -inf, with gradient 0, at and below zero.

    Same as ``log(1 - exp(-x)) if x > 0 else -inf``, elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value: minus the logarithm of a probability. NaN stays NaN.

    Returns
    -------
    array, shape (...)
        The logarithm of the probability that is left.

    Notes
    -----
    **Gradient.** ``1 / (exp(x) - 1)`` above zero, 0 at and below it, at every order. At zero the
    slope is infinite: 0 is chosen.

    **Source.** Maechler, "Accurately computing ``log(1 - exp(-abs(a)))``" (2012);
    `jax.nn.log1mexp` has its argument in the same direction.

    Examples
    --------
    >>> import numpy as np
    >>> log1mexp(np.asarray([0.0, 1e-20, 50.0]))
    array([           -inf, -4.60517019e+01, -1.92874985e-22])
    """
    return _above_zero(x, log_of_rest)


@fast_path
def log_expm1(x: T, /) -> T:
    """
    ``log(exp(x) - 1)``, the inverse of softplus: -inf, with gradient 0, at and below zero.

    Same as ``log(exp(x) - 1) if x > 0 else -inf``, without overflow, elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN.

    Notes
    -----
    **Gradient.** ``1 / (1 - exp(-x))`` above zero, 0 at and below it, at every order. At zero the
    slope is infinite: 0 is chosen.

    **Source.** The number that softplus turns into `x`, from which a positive parameter starts;
    `tfp.math.softplus_inverse`.

    Examples
    --------
    >>> import numpy as np
    >>> log_expm1(np.asarray([0.0, 1.0, 20.0]))
    array([       -inf,  0.54132485, 20.        ])
    """

    def formula(xp: Namespace, x: Array) -> Array:
        return _formula(x, "log_expm1", usual(xp, partial(_log_expm1, xp), LOG_EXPM1))(x)

    return _above_zero(x, formula)


def _above_zero(x: Array, formula: Function) -> Array:
    """Return a formula of positive numbers; -inf elsewhere."""
    xp, x = promote(x)
    inside = in_float32(xp, partial(formula, xp))
    return double_where(xp, x < limits(xp, x).smallest_nonzero, (x,), -math.inf, inside)


def _formula(x: Array, name: str, formula: Function) -> Function:
    """Return the formula, or that of the backend."""
    return backend_of(x).formulas.get(name, formula)


def log_of_rest(xp: Namespace, x: Array) -> Array:
    """Return ``log(1 - exp(-x))`` of positive numbers."""
    return _formula(x, "log_of_rest", usual(xp, partial(_log_of_rest, xp), LOG_OF_REST))(x)


def _log_of_rest(xp: Namespace, x: Array) -> Array:
    return double_where(
        xp, x < LN2, (x,), lambda x: xp.log(-xp.expm1(-x)), lambda x: xp.log1p(-xp.exp(-x))
    )


def _log_expm1(xp: Namespace, x: Array) -> Array:
    """Return ``log(exp(x) - 1)`` of positive numbers."""
    # Near its zero, log(2), from the distance to `middle`, the next number of the dtype, which is
    # exact. Not from ``x - middle - rest``: XLA adds the two constants.
    middle, rest = near_log2(limits(xp, x).eps)

    def near(x: Array) -> Array:
        return xp.log1p(2.0 * xp.expm1(x - middle) + rest)

    def apart(x: Array) -> Array:
        return double_where(
            xp, x < LN2, (x,), lambda x: xp.log(xp.expm1(x)), lambda x: x + xp.log1p(-xp.exp(-x))
        )

    # 1/4: there a difference from log(2) is exact, and 1 + 2 * expm1 is far from 0.
    return double_where(xp, xp.abs(x - LN2) < 0.25, (x,), near, apart)  # noqa: PLR2004  (as above)


def _log_cosh(xp: Namespace, x: Array) -> Array:
    """Return the logarithm: near 0 of 1 + a square, and of the larger exponential elsewhere."""

    def near(x: Array) -> Array:
        power = xp.expm1(x)
        return xp.log1p(0.5 * power * power * xp.exp(-x))

    def far(x: Array) -> Array:
        size = xp.abs(x)
        return size - LN2 + xp.log1p(xp.exp(-2.0 * size))

    return double_where(xp, xp.abs(x) < 1, (x,), near, far)


def _log_sinhc(xp: Namespace, x: Array) -> Array:
    """Return the logarithm: near 0 by the series of sinhc, and of the exponential elsewhere."""

    def near(x: Array) -> Array:
        square = x * x
        return xp.log1p(square * polynomial(square, _HYPERBOLIC))

    def far(x: Array) -> Array:
        size = xp.abs(x)
        log = xp.log(xp.where(size == math.inf, 1.0, size))  # the larger infinity is left
        return size - log - LN2 + xp.log1p(-xp.exp(-2.0 * size))

    return double_where(xp, xp.abs(x) < 1, (x,), near, far)
