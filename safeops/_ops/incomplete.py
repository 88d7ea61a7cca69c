"""The incomplete gamma functions: shares of the gamma distribution."""

import math
from functools import partial
from typing import NamedTuple

from safeops._core.dtypes import limits
from safeops._core.errors import INSTALL
from safeops._core.types import Array, Function, Namespace, T
from safeops._dispatch import backend_of, fast_path, promote
from safeops._ops.gamma import SLOPE, STIRLING, digamma, log_gamma
from safeops._ops.normal import scaled_tail
from safeops._ops.precision import in_float32
from safeops._ops.series import TANGENT, polynomial
from safeops._ops.where import is_nan, stop_gradient

# From here on Temme's expansion is right to the last digits.
_LARGE = 200.0
_ORDERS, _POWERS = 6, 30
# Where ``mu - 1 - log(mu)`` is 2: with a above 200 the density is 0 beyond, in every dtype.
_LEAST, _MOST = 0.05, 4.5


def _temme() -> tuple[tuple[float, ...], ...]:
    """Return the coefficients of Temme's expansion, a tuple for each power of ``1 / a``."""
    count = _POWERS + 2 * _ORDERS + 3
    alpha = [0.0, 1.0]
    for n in range(2, count):
        total = sum(j * alpha[j] * alpha[n - j + 1] for j in range(2, n))
        alpha.append((alpha[n - 1] - total) / (n + 1))
    first = [-1 / 3, *((n + 2) * alpha[n + 2] for n in range(1, count - 2))]
    gamma = (1.0, 1 / 12, 1 / 288, -139 / 51840, -571 / 2488320, 163879 / 209018880)
    rows = [first]
    for k in range(1, _ORDERS):
        last = rows[-1]
        pairs = zip(first, last[2:], strict=False)
        rows.append([(-1) ** k * gamma[k] * d + (n + 2) * c for n, (d, c) in enumerate(pairs)])
    return tuple(tuple(row[:_POWERS]) for row in rows)


_TEMME = _temme()


@fast_path
def safe_gammainc(a: T | complex, x: T | complex, /) -> T:
    """
    Share of the gamma distribution below x, with a gradient that is finite at x = 0 and at inf.

    Same as ``gammainc(a, x)``, the regularized lower incomplete gamma function, elementwise.

    Parameters
    ----------
    a : array, shape (...), real floating
        Shape of the distribution, at least 0; below, the result is NaN. NaN stays NaN.
    x : array, shape (...), real floating
        At least 0; below, the result is NaN. NaN stays NaN. Subnormal numbers count as zero.

    Returns
    -------
    array, shape (...)
        0 where x is 0, else 1 where a is 0 or x is inf, 0 where a is inf, NaN where both are inf.

    Raises
    ------
    TypeError
        For arrays of a framework that does not have the function.
    ModuleNotFoundError
        For arrays of NumPy, if SciPy is not installed.

    Notes
    -----
    **Gradient.** ``x**(a - 1) * exp(-x) / gamma(a)`` for `x`, at second order too. At x = 0 it is 1
    for ``a == 1`` and 0 for ``a > 1``, which is exact; for ``a < 1`` it is infinite, and 0 is
    chosen. At inf it is 0. For `a` it is the framework's, at first order; PyTorch has none, and
    raises. From ``a = 200`` on value and gradient are of their own formula. 0 where x is 0 or
    inf, and where a is 0 or inf. Derivatives that are missing are NaN, infinite or an error.

    **Source.** The value is that of `torch.special.gammainc`, `jax.scipy.special.gammainc`,
    `tf.math.igamma` and `scipy.special.gammainc`. From ``a = 200`` on it is Temme's expansion (DLMF
    8.12), because JAX and TensorFlow lose their digits there: at (1e30, 1e30), where it is 0.5, JAX
    has 8e-24 and TensorFlow 2e-27 in float32 (jax 0.10.2, tensorflow 2.21). Below, float64 of
    PyTorch (2.13) has nine digits.

    Examples
    --------
    >>> import numpy as np
    >>> safe_gammainc(np.asarray([1.0, 1.0, 0.0]), np.asarray([0.0, 2.0, 1.0]))
    array([0.        , 0.86466472, 1.        ])
    """
    xp, a, x = promote(a, x)
    return in_float32(xp, partial(_incomplete, xp, "gammainc", 1.0))(a, x)


@fast_path
def safe_gammaincc(a: T | complex, x: T | complex, /) -> T:
    """
    Share of the gamma distribution above x, with a gradient that is finite at x = 0 and at inf.

    Same as ``gammaincc(a, x)``, the regularized upper incomplete gamma function, elementwise: one
    less `safe_gammainc`, with the digits of a small result.

    Parameters
    ----------
    a : array, shape (...), real floating
        Shape of the distribution, at least 0; below, the result is NaN. NaN stays NaN.
    x : array, shape (...), real floating
        At least 0; below, the result is NaN. NaN stays NaN. Subnormal numbers count as zero.

    Returns
    -------
    array, shape (...)
        1 where x is 0, else 0 where a is 0 or x is inf, 1 where a is inf, NaN where both are inf.

    Raises
    ------
    TypeError
        For arrays of a framework that does not have the function.
    ModuleNotFoundError
        For arrays of NumPy, if SciPy is not installed.

    Notes
    -----
    **Gradient.** Minus the gradient of `safe_gammainc`.

    **Source.** As for `safe_gammainc`. For an `a` near 0 JAX and TensorFlow take a small share
    above from 1: at (0.01, 0.61) in float32 JAX errs by 3,000 units in the last place (jax 0.10.2).

    Examples
    --------
    >>> import numpy as np
    >>> safe_gammaincc(np.asarray([1.0, 1.0, 0.0]), np.asarray([0.0, 2.0, 1.0]))
    array([1.        , 0.13533528, 0.        ])
    """
    xp, a, x = promote(a, x)
    return in_float32(xp, partial(_incomplete, xp, "gammaincc", -1.0))(a, x)


def _function_of(x: Array, name: str) -> Function:
    """Return a function of the framework of `x` by its name in `scipy.special`."""
    backend = backend_of(x)
    function = backend.special(name)
    if function is not None:
        return function
    if backend.name == "numpy":
        msg = f"{name} of NumPy is that of SciPy: {INSTALL.format('scipy')}"
        raise ModuleNotFoundError(msg)
    msg = f"{backend.name} has no function {name}; pass arrays of NumPy, PyTorch, JAX or TensorFlow"
    raise TypeError(msg)


class _Edges(NamedTuple):
    """Where the function has no formula: x is 0, it is 1 or 0 for good, or it is not defined."""

    zero: Array
    full: Array
    empty: Array
    lost: Array


def _edges(xp: Namespace, a: Array, x: Array) -> _Edges:
    least = limits(xp, x).smallest_nonzero
    zero_a, zero = xp.abs(a) < least, xp.abs(x) < least
    lost = xp.logical_or(a <= -least, x <= -least)
    lost = xp.logical_or(lost, xp.logical_and(a == math.inf, x == math.inf))
    lost = xp.logical_or(lost, xp.logical_or(is_nan(a), is_nan(x)))
    kept = xp.logical_not(lost)
    zero = xp.logical_and(kept, zero)
    kept = xp.logical_and(kept, xp.logical_not(zero))
    full = xp.logical_and(kept, xp.logical_or(zero_a, x == math.inf))
    return _Edges(zero, full, xp.logical_and(kept, a == math.inf), lost)


def _incomplete(xp: Namespace, name: str, sign: float, a: Array, x: Array) -> Array:
    """Return the share below x for the sign 1, above for -1, with its derivatives at a point."""
    edges = _edges(xp, a, x)
    inner = xp.logical_or(xp.logical_or(edges.zero, edges.full), edges.empty)
    inner = xp.logical_not(xp.logical_or(inner, edges.lost))
    shape, point = xp.where(inner, a, 1.0), xp.where(inner, x, 1.0)
    large = shape >= _LARGE
    at_a, at_x = stop_gradient(shape), stop_gradient(point)
    small, near = xp.where(large, 1.0, shape), xp.where(large, 1.0, at_x)
    # It has the framework's derivative for a, or the framework's error.
    value = _function_of(x, name)(small, near)
    parts = _parts(xp, xp.where(large, at_a, 1e3), xp.where(large, at_x, 1e3))
    value = xp.where(large, parts.below if sign > 0 else parts.above, value)
    ends = xp.where(edges.full, 1.0, xp.zeros_like(x))
    ends = ends if sign > 0 else 1.0 - ends
    if not all(backend_of(z).is_constant(z) for z in (a, x)):
        slope_a = xp.where(large, parts.slope, 0.0)
        value = value + sign * _change(xp, shape - at_a, point - at_x, at_a, at_x, slope_a)
        ends = ends + sign * _from_zero(xp, edges.zero, stop_gradient(a), x)
    # NaN, with gradient NaN.
    nothing = xp.where(edges.lost, a, 0.0) + xp.where(edges.lost, x, 0.0)
    value = xp.where(inner, value, ends)
    return value + nothing * xp.where(edges.lost, math.nan, xp.zeros_like(x))


def _change(
    xp: Namespace, step_a: Array, step_x: Array, a: Array, x: Array, slope_a: Array
) -> Array:
    """Return 0 with the derivatives of the share below x at (a, x), which are constants."""
    # The density times x is the slope in units of x. What has no coefficient here is NaN or
    # infinite: third derivatives, and a second one for a.
    density, ratio = _density(xp, a, x)
    step = step_x * (1.0 / x)
    curve = 0.5 * density * (a - x - 1.0) * (step * step)
    mixed = density * (ratio + _log_less_digamma(xp, a)) * (step * step_a)
    missing = xp.pow(step_x + step_a, 2.5) + xp.pow(step_a, 1.5)
    return density * step + curve + mixed + slope_a * step_a + missing


def _from_zero(xp: Namespace, zero: Array, a: Array, x: Array) -> Array:
    """Return the share below x where x is 0: the terms of ``x**a`` that have a derivative."""
    one = a == 1
    zero = xp.logical_and(zero, xp.logical_or(one, a == 2))  # noqa: PLR2004  (whose curve is 1)
    x = xp.where(zero, x - stop_gradient(xp.where(zero, x, 0.0)), 0.0)
    return xp.where(one, x - 0.5 * (x * x), 0.5 * (x * x))


def _excess(xp: Namespace, a: Array, x: Array) -> tuple[Array, Array, Array]:
    """Return ``m - 1``, ``log(m)`` and ``m - 1 - log(m)`` of ``m = x / a``, with all digits."""
    excess = (x - a) / a  # safeops: ignore[SO001]  (a is above 0)
    near = xp.abs(excess) < 0.5  # noqa: PLR2004  (of the series)
    inside = xp.where(near, excess, 0.0)
    part = inside / (2.0 + inside)
    square = part * part
    log = 2.0 * part * polynomial(square, TANGENT)
    rest = part * (inside - 2.0 * square * polynomial(square, TANGENT[1:]))
    far = xp.log(xp.where(near, 1.0, x)) - xp.log(xp.where(near, 1.0, a))
    return excess, xp.where(near, log, far), xp.where(near, rest, excess - far)


def _density(xp: Namespace, a: Array, x: Array) -> tuple[Array, Array]:
    """Return ``x**a * exp(-x) / gamma(a)`` and ``log(x / a)``, of constants."""
    small = a < 8.0  # noqa: PLR2004  (below Stirling's series)
    _, ratio, rest = _excess(xp, a, x)
    few, many = xp.where(small, a, 1.0), xp.where(small, 8.0, a)
    direct = few * xp.log(x) - x - log_gamma(xp, few)
    correction = polynomial(1.0 / many / many, STIRLING) / many
    far = 0.5 * xp.log(many) - 0.5 * math.log(2.0 * math.pi) - many * rest - correction
    return xp.exp(xp.where(small, direct, far)), ratio


def _log_less_digamma(xp: Namespace, a: Array) -> Array:
    """Return ``log(a) - digamma(a)``, which is nearly ``1 / (2 * a)`` for a large a."""
    small = a < 8.0  # noqa: PLR2004  (below Stirling's series)
    few, inverse = xp.where(small, a, 1.0), 1.0 / xp.where(small, 8.0, a)
    far = inverse * (0.5 + inverse * polynomial(inverse * inverse, SLOPE))
    return xp.where(small, xp.log(few) - digamma(xp, few), far)


class _Parts(NamedTuple):
    """The shares below and above x, and the slope of the share below for a."""

    below: Array
    above: Array
    slope: Array


def _parts(xp: Namespace, a: Array, x: Array) -> _Parts:
    """Return the shares of a large a, by Temme's expansion in ``1 / a``."""
    quotient = x / a
    x = xp.where(quotient < _LEAST, _LEAST * a, xp.where(quotient > _MOST, _MOST * a, x))
    excess, log, rest = _excess(xp, a, x)
    lower, size = excess < 0, xp.sqrt(2.0 * rest)
    eta = xp.where(lower, -size, size)
    series, bend, order = xp.zeros_like(a), xp.zeros_like(a), xp.zeros_like(a)
    for k in range(_ORDERS - 1, -1, -1):
        term = polynomial(eta, _TEMME[k])
        slopes = [n * c for n, c in enumerate(_TEMME[k])][1:]
        series, bend = term + series / a, polynomial(eta, slopes) + bend / a
        order = float(k) * term + order / a
    weight, root = xp.exp(-a * rest), xp.sqrt(2.0 * math.pi * a)
    y = xp.sqrt(a * rest)
    tail = 0.5 * scaled_tail(y) / (1.0 + 2.0 * y)
    outer = weight * xp.where(lower, tail - series / root, tail + series / root)
    turn = xp.where(size == 0, 1.0, excess / xp.where(size == 0, 1.0, eta))
    slope = 0.5 * eta - turn - log * series + (0.5 * series + turn * bend + order) / a
    below = xp.where(lower, outer, 1.0 - outer)
    return _Parts(below, xp.where(lower, 1.0 - outer, outer), weight / root * slope)
