"""Logarithms, and the functions of information theory that are limits of ``x * log(y)``."""

import math
from typing import Any

from safeops._core.dtypes import limits
from safeops._core.types import Array, Function, IsArray, Namespace, T
from safeops._dispatch import backend_of, fast_path, promote
from safeops._ops.composites import log_of_rest
from safeops._ops.precision import in_float32, with_slope_of
from safeops._ops.usual import LOGIT, RELATIVE_ENTROPY, usual
from safeops._ops.where import double_where, is_inf, is_nan, stop_gradient


@fast_path
def safe_log(x: T, /, *, fill_value: IsArray | complex | None = None) -> T:
    """
    Natural logarithm that is constant, with gradient 0, below the smallest normal number.

    Same as ``log(max(x, finfo.smallest_normal))``, or ``log(x) if x > 0 else fill_value``,
    elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN. Subnormal numbers count as zero.
    fill_value : scalar or array, optional
        Value at and below zero. Default: the logarithm of the smallest normal number
        (in float32 -87.3), which makes the function continuous.

    Notes
    -----
    **Gradient.** ``1 / x`` above zero, 0 at and below it, at every order.

    **Source.** TensorFlow Probability's `where` note, whose entropy example needs it.

    Examples
    --------
    >>> import numpy as np
    >>> safe_log(np.asarray([1.0, 0.0]), fill_value=0)
    array([0., 0.])
    """
    return _logarithm("log", x, fill_value)


@fast_path
def safe_log2(x: T, /, *, fill_value: IsArray | complex | None = None) -> T:
    """
    Binary logarithm that is constant, with gradient 0, below the smallest normal number.

    Same as ``log2(max(x, finfo.smallest_normal))``, or ``log2(x) if x > 0 else fill_value``,
    elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN. Subnormal numbers count as zero.
    fill_value : scalar or array, optional
        Value at and below zero. Default: the logarithm of the smallest normal number
        (in float32 -126), which makes the function continuous.

    Notes
    -----
    **Gradient.** ``1 / (x * log(2))`` above zero, 0 at and below it, at every order.

    **Source.** As for `safe_log`.

    Examples
    --------
    >>> import numpy as np
    >>> safe_log2(np.asarray([1.0, 0.0]), fill_value=0)
    array([0., 0.])
    """
    return _logarithm("log2", x, fill_value)


@fast_path
def safe_log10(x: T, /, *, fill_value: IsArray | complex | None = None) -> T:
    """
    Decimal logarithm that is constant, with gradient 0, below the smallest normal number.

    Same as ``log10(max(x, finfo.smallest_normal))``, or ``log10(x) if x > 0 else fill_value``,
    elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN. Subnormal numbers count as zero.
    fill_value : scalar or array, optional
        Value at and below zero. Default: the logarithm of the smallest normal number
        (in float32 -37.9), which makes the function continuous.

    Notes
    -----
    **Gradient.** ``1 / (x * log(10))`` above zero, 0 at and below it, at every order.

    **Source.** As for `safe_log`.

    Examples
    --------
    >>> import numpy as np
    >>> safe_log10(np.asarray([1.0, 0.0]), fill_value=0)
    array([0., 0.])
    """
    return _logarithm("log10", x, fill_value)


@fast_path
def safe_log1p(x: T, /, *, fill_value: IsArray | complex | None = None) -> T:
    """
    ``log(1 + x)`` that stays finite, with gradient 0, at and below -1.

    Same as ``log1p(max(x, least))``, where ``least`` is the least number of the dtype above -1, or
    ``log1p(x) if x > -1 else fill_value``, elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN.
    fill_value : scalar or array, optional
        Value at and below -1. Default: the logarithm of the least ``1 + x`` (in float32 -16.6),
        which makes the function continuous.

    Notes
    -----
    **Gradient.** ``1 / (1 + x)`` above -1, 0 at and below it, at every order.

    **Source.** As for `safe_log`.

    Examples
    --------
    >>> import numpy as np
    >>> safe_log1p(np.asarray([0.0, -1.0]), fill_value=0)
    array([0., 0.])
    """
    xp, x, fill = promote(x, also=(fill_value,))
    fill = math.log(limits(xp, x).eps / 2) if fill is None else fill
    return double_where(xp, x <= -1, (x,), fill, xp.log1p, placeholder=0.0)


def _logarithm(name: str, x: Array, fill_value: Any) -> Array:
    """Return the logarithm with this name, which is the same in `math` and in the standard."""
    xp, x, fill = promote(x, also=(fill_value,))
    least = limits(xp, x).smallest_normal
    fill = getattr(math, name)(least) if fill is None else fill
    return double_where(xp, x < least, (x,), fill, in_float32(xp, getattr(xp, name)))


@fast_path
def safe_logit(x: T, /) -> T:
    """
    ``log(x / (1 - x))`` that stays finite, with gradient 0, at and beyond 0 and 1.

    Same as ``log(u / (1 - u))`` with ``u = min(max(x, finfo.smallest_normal), 1 - finfo.eps / 2)``,
    elementwise.

    Parameters
    ----------
    x : array, shape (...), real floating
        Probability; any value is taken. NaN stays NaN.

    Returns
    -------
    array, shape (...)
        Log odds, in nats.

    Notes
    -----
    **Gradient.** ``1 / (x * (1 - x))`` inside, 0 elsewhere, at every order.

    **Source.** `scipy.special.logit`, which is infinite at the ends. Around one half
    ``log1p(t) - log1p(-t)`` with ``t = 2 * x - 1`` keeps the digits that the logarithms lose.

    Examples
    --------
    >>> import numpy as np
    >>> safe_logit(np.asarray([0.5, 0.0, 1.0]))
    array([   0.        , -708.39641853,   36.73680057])
    """
    xp, x = promote(x)
    bound = limits(xp, x)
    low, high = math.log(bound.smallest_normal), -math.log(bound.eps / 2)
    ends = xp.where(x > 0.5, high, xp.full_like(x, low))  # noqa: PLR2004  (the middle)
    filled = xp.logical_or(x < bound.smallest_normal, x >= 1)

    def logit(x: Array) -> Array:
        return double_where(
            xp,
            xp.abs(x - 0.5) < 0.25,  # noqa: PLR2004  (where 2 * x - 1 is exact)
            (x,),
            lambda x: xp.log1p(2.0 * x - 1.0) - xp.log1p(1.0 - 2.0 * x),
            lambda x: xp.log(x) - xp.log1p(-x),
            placeholder=0.5,
        )

    formula = _formula(x, "logit", usual(xp, logit, LOGIT))
    return double_where(xp, filled, (x,), ends, formula, placeholder=0.5)


@fast_path
def xlogy(x: T | complex, y: T | complex, /) -> T:
    """
    ``x * log(y)`` that is 0 where `x` is 0, with a gradient that is finite there.

    Same as ``0 if x == 0 else x * log(y)``, elementwise. Where `y` is 0 and `x` is not, the product
    is infinite, as in mathematics.

    Parameters
    ----------
    x, y : array, shape (...), real floating
        Any value. NaN stays NaN.

    Notes
    -----
    **Gradient.** ``log(y)`` for `x` and ``x / y`` for `y`, also at ``x == 0`` if `y` is positive
    and finite. At ``x == 0`` with another `y`: 0 and 0, at every order.

    **Source.** `scipy.special.xlogy`. The functions of this name in PyTorch and TensorFlow have
    gradient NaN or 0 at ``x == 0``.

    Examples
    --------
    >>> import numpy as np
    >>> xlogy(np.asarray([0.0, 2.0]), np.asarray([0.0, 1.0]))
    array([0., 0.])
    """
    xp, x, y = promote(x, y)
    bound = limits(xp, x)
    return _times_log(xp, x, y, y < bound.smallest_normal, "log", placeholder=1.0)


@fast_path
def xlog1py(x: T | complex, y: T | complex, /) -> T:
    """
    ``x * log(1 + y)`` that is 0 where `x` is 0, with a gradient that is finite there.

    Same as ``0 if x == 0 else x * log1p(y)``, elementwise. Where ``1 + y`` is 0 and `x` is not, the
    product is infinite, as in mathematics.

    Parameters
    ----------
    x, y : array, shape (...), real floating
        Any value. NaN stays NaN.

    Notes
    -----
    **Gradient.** ``log1p(y)`` for `x` and ``x / (1 + y)`` for `y`, also at ``x == 0`` if `y` is
    finite and above -1. At ``x == 0`` with another `y`: 0 and 0, at every order.

    **Source.** `scipy.special.xlog1py`.

    Examples
    --------
    >>> import numpy as np
    >>> xlog1py(np.asarray([0.0, 2.0]), np.asarray([-1.0, 0.0]))
    array([0., 0.])
    """
    xp, x, y = promote(x, y)
    return _times_log(xp, x, y, y <= -1, "log1p", placeholder=0.0)


def _times_log(
    xp: Namespace, x: Array, y: Array, outside: Array, name: str, *, placeholder: float
) -> Array:
    """Return ``x * log(y)``; 0 where x is 0 and the logarithm is not finite."""
    log = getattr(xp, name)
    zero = xp.abs(x) < limits(xp, x).smallest_nonzero
    filled = xp.logical_and(zero, xp.logical_or(outside, y == math.inf))
    formula = _formula(x, f"{name}_product", lambda x, y: x * log(y))
    return double_where(xp, filled, (x, y), 0.0, formula, placeholder=(1.0, placeholder))


@fast_path
def entr(p: T, /) -> T:
    """
    Entropy ``-p * log(p)``, which is 0, with gradient 0, at zero.

    Same as ``-p * log(p) if p > 0 else (0 if p == 0 else -inf)``, elementwise.

    Parameters
    ----------
    p : array, shape (...), real floating
        Probability. NaN stays NaN. Subnormal numbers count as zero.

    Notes
    -----
    **Gradient.** ``-log(p) - 1`` above zero, 0 elsewhere, at every order. At zero the slope is
    infinite: 0 is chosen.

    **Source.** `scipy.special.entr` for the values.

    Examples
    --------
    >>> import numpy as np
    >>> entr(np.asarray([1.0, 0.0, -1.0]))
    array([ -0.,   0., -inf])
    """
    xp, p = promote(p)
    least = limits(xp, p).smallest_normal
    outside = xp.where(p <= -least, -math.inf, xp.zeros_like(p))

    def entropy(p: Array) -> Array:
        # An infinite argument enters the logarithm as a constant: its slope would be inf * 0.
        return -p * xp.log(xp.where(p == math.inf, stop_gradient(p), p))

    formula = _formula(p, "entropy", entropy)
    return double_where(xp, p < least, (p,), outside, formula)


@fast_path
def rel_entr(p: T | complex, q: T | complex, /) -> T:
    """
    Relative entropy ``p * log(p / q)``, which is 0, with gradient 0, where `p` is 0.

    Same as ``p * log(p / q) if p > 0 and q > 0 else (0 if p == 0 and q >= 0 else inf)``,
    elementwise.

    Parameters
    ----------
    p, q : array, shape (...), real floating
        Probabilities. NaN stays NaN. Subnormal numbers count as zero.

    Notes
    -----
    **Gradient.** ``log(p / q) + 1`` for `p` and ``-p / q`` for `q` where both are positive, 0 and 0
    elsewhere, at every order.

    **Source.** `scipy.special.rel_entr` for the values.

    Examples
    --------
    >>> import numpy as np
    >>> rel_entr(np.asarray([1.0, 0.0, 1.0]), np.asarray([1.0, 0.0, 0.0]))
    array([ 0.,  0., inf])
    """
    xp, p, q = promote(p, q)
    least = limits(xp, p).smallest_normal
    both_zero = xp.logical_and(xp.abs(p) < least, q > -least)
    filled = xp.logical_or(p < least, q < least)
    undefined = xp.logical_or(is_nan(p), is_nan(q))
    filled = xp.logical_and(filled, xp.logical_not(undefined))
    steps = usual(xp, lambda p, q: p * _log_ratio(xp, p, q), RELATIVE_ENTROPY)
    formula = _formula(p, "relative_entropy", steps)
    out = double_where(xp, filled, (p, q), 0.0, formula)
    return xp.where(xp.logical_and(filled, xp.logical_not(both_zero)), math.inf, out)


@fast_path
def safe_logaddexp(x: T | complex, y: T | complex, /) -> T:
    """
    ``log(exp(x) + exp(y))``, with gradient 0 where both are -inf.

    Same as ``log(exp(x) + exp(y))`` without overflow, elementwise.

    Parameters
    ----------
    x, y : array, shape (...), real floating
        Any value. NaN stays NaN.

    Notes
    -----
    **Gradient.** ``exp(x - out)`` and ``exp(y - out)``, one half each at a tie; 0 and 0 where
    both are -inf, at every order. An inf is the maximum: 1 for it and 0 for the other, one half
    each where both are, and second derivatives 0.

    **Source.** `numpy.logaddexp`; `torch.logaddexp` has gradient NaN at (-inf, -inf).

    Examples
    --------
    >>> import numpy as np
    >>> safe_logaddexp(np.asarray([0.0, -np.inf]), np.asarray([0.0, -np.inf]))
    array([0.69314718,       -inf])
    """
    xp, x, y = promote(x, y)
    filled = xp.logical_and(is_inf(xp, x), x == y)

    def logaddexp(x: Array, y: Array) -> Array:
        # One comparison for both, so that a tie has one larger and one smaller argument.
        first = x > y
        larger, smaller = xp.where(first, x, y), xp.where(first, y, x)
        return larger + xp.log1p(xp.exp(smaller - larger))

    def infinite(x: Array, y: Array) -> Array:
        return xp.where(x == math.inf, 0.5 * x + 0.5 * y, stop_gradient(x))

    return double_where(xp, filled, (x, y), infinite, in_float32(xp, logaddexp), placeholder=0.0)


@fast_path
def safe_logsubexp(x: T | complex, y: T | complex, /) -> T:
    """
    ``log(exp(x) - exp(y))``, which is -inf, with gradient 0, where `x` is not above `y`.

    Same as ``log(exp(x) - exp(y)) if x > y else -inf`` without overflow, elementwise.

    Parameters
    ----------
    x, y : array, shape (...), real floating
        Any value. NaN stays NaN.

    Notes
    -----
    **Gradient.** ``exp(x - out)`` and ``-exp(y - out)`` where x is above y; 0 and 0 elsewhere, at
    every order. At ``x == y`` the slope is infinite: 0 is chosen.

    **Source.** The difference clipped at 0, in the form of Maechler, "Accurately computing
    ``log(1 - exp(-abs(a)))``" (2012).

    Examples
    --------
    >>> import numpy as np
    >>> safe_logsubexp(np.asarray([1.0, 0.0]), np.asarray([-np.inf, 0.0]))
    array([  1., -inf])
    """
    xp, x, y = promote(x, y)

    def logsubexp(x: Array, y: Array) -> Array:
        return x + log_of_rest(xp, x - y)

    filled = x <= y
    distance = xp.where(filled, 1.0, x) - xp.where(filled, 0.0, y)
    # A difference that counts as 0 has no logarithm.
    filled = xp.logical_or(filled, distance < limits(xp, x).smallest_nonzero)
    formula = in_float32(xp, logsubexp)
    return double_where(xp, filled, (x, y), -math.inf, formula, placeholder=(1.0, 0.0))


def _formula(x: Array, name: str, formula: Function) -> Function:
    """Return the formula, or that of the backend, if it has one with better slopes."""
    backend = backend_of(x)
    return in_float32(backend.xp, backend.formulas.get(name, formula))


def _log_ratio(xp: Namespace, p: Array, q: Array) -> Array:
    """Return ``log(p / q)`` of positive numbers."""
    # Its slopes are the slopes of ``log(p) - log(q)``, which squares no quotient. For p near q this
    # difference cancels, and ``p / q`` rounds to 1: the value is computed from ``(p - q) / q``.
    subtract = getattr(xp, "log_difference", lambda p, q: xp.log(p) - xp.log(q))
    # An infinite argument enters the logarithm as a constant: its slope would be inf * 0.
    difference = subtract(xp.where(p == math.inf, stop_gradient(p), p), q)
    infinite = is_inf(xp, difference)
    value = _log_ratio_value(xp, stop_gradient(p), stop_gradient(q))
    formula, value = (xp.where(infinite, 0.0, x) for x in (difference, value))
    return xp.where(infinite, difference, with_slope_of(formula, value))


def _log_ratio_value(xp: Namespace, p: Array, q: Array) -> Array:
    """Return the logarithm by one of ``1 + t``: of the quotient, or of that of the roots."""
    first = p > q
    larger, lesser = xp.where(first, p, q), xp.where(first, q, p)
    near = 0.25 * larger < lesser
    # A power of 2 rounds nothing; with it the difference is not flushed to 0.
    scale = xp.where(larger < 1, 2.0**64, xp.ones_like(p))
    a, b = (xp.where(near, scale * x, 1.0) for x in (larger, lesser))
    excess = xp.where(near, (a - b) / b, xp.divide(xp.sqrt(larger), xp.sqrt(lesser)) - 1.0)
    size = xp.log1p(excess) * xp.where(near, xp.ones_like(p), 2.0)
    return xp.where(first, size, -size)
