"""The logarithm of the gamma function, and its derivative."""

import math
from functools import partial

from safeops._core.dtypes import limits
from safeops._core.types import Array, Function, Namespace, T
from safeops._dispatch import fast_path, promote
from safeops._ops.precision import in_float32
from safeops._ops.series import BERNOULLI, economized, polynomial
from safeops._ops.usual import Usual, usual
from safeops._ops.where import is_inf, stop_gradient

# ``lgamma(x) / ((x - 1) * (x - 2))`` in powers of x - 2, for x from 1 to 3: Chebyshev's series,
# computed with 50 digits. The first term left out is below 1e-18.
_NEAR = economized(
    (
        *(0.42278433509846713, -0.1003173016743539, 0.03296500062115574),
        *(-0.012384192193374355, 0.004998641164703877, -0.0021081308338291313),
        *(0.0009153769220606788, -0.0004057073999387517, 0.0001825526419770573),
        *(-8.30950999467849e-05, 3.816886281372433e-05, -1.76618554743359e-05),
        *(8.22234752455359e-06, -3.846514242663473e-06, 1.8074596187759183e-06),
        *(-8.554816957122729e-07, 4.055632887824375e-07, -1.861315818147291e-07),
        *(8.745972665553556e-08, -5.2038665332275675e-08, 2.6247261052647615e-08),
        *(-7.860744687083056e-10, -7.603161817337265e-10, -8.952022836709702e-09),
        *(4.927878685807231e-09, 2.4694237633377504e-09, -1.38994451662441e-09),
        *(-8.190037783551156e-10, 4.2453673576593125e-10),
    )
)
_NEAR_SLOPE = economized([n * c for n, c in enumerate(_NEAR.terms)][1:])
_START = 8.0  # of Stirling's series, whose last term is below 1e-16 there
_SERIES = 10
# What Stirling's formula leaves of the logarithm, times x, in powers of ``1 / x**2``.
STIRLING = tuple(
    (-1) ** k * b / (2 * k + 1) / (2 * k + 2) for k, b in enumerate(BERNOULLI[:_SERIES])
)
# Of ``log(x) - 1 / (2 * x) - digamma(x)``, times ``x**2``, likewise.
SLOPE = tuple((-1) ** k * b / (2 * k + 2) for k, b in enumerate(BERNOULLI[:_SERIES]))
# ``2 * ((1 + t) * log(1 + t) - t) / t**2`` in powers of t.
_CURVE = tuple(2.0 * (-1) ** k / ((k + 1) * (k + 2)) for k in range(_SERIES))


@fast_path
def safe_lgamma(x: T, /) -> T:
    """
    Logarithm of the size of the gamma function, inf with gradient 0 at its poles.

    Same as ``log(abs(gamma(x)))``, elementwise, in every framework: none of its special functions
    is needed.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN. Subnormal numbers count as zero.

    Returns
    -------
    array, shape (...)
        inf at zero, at negative whole numbers, which are all numbers far below zero, and at both
        infinities.

    Notes
    -----
    **Gradient.** `safe_digamma`, exact up to the tenth order; 0 at a pole and at an
    infinity. At a pole there is no slope, at inf it is infinite: 0 is chosen.

    **Source.** `scipy.special.gammaln` for the value. Below 5 / 2 a polynomial, from 8 on
    Stirling's series, else a shift or the reflection. Second derivatives of the functions of the
    frameworks are wrong below 0: at -10.3 JAX has 1e18 and TensorFlow 110 in place of 15 (float32,
    jax 0.10.2, tensorflow 2.21).

    Examples
    --------
    >>> import numpy as np
    >>> safe_lgamma(np.asarray([0.5, 0.0, -1.0]))
    array([0.57236494,        inf,        inf])
    """
    xp, x = promote(x)
    pole = _is_pole(xp, x)
    formula = usual(xp, partial(_log_gamma, xp), Usual(_log_gamma, _log_gamma_slopes))
    value = in_float32(xp, formula)(xp.where(pole, 1.0, x))
    return xp.where(pole, math.inf, value)


@fast_path
def safe_digamma(x: T, /) -> T:
    """
    Derivative of the logarithm of the gamma function, -inf with gradient 0 at its poles.

    Same as ``digamma(x)``, elementwise, in every framework: none of its special functions is
    needed.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN. Subnormal numbers count as zero.

    Returns
    -------
    array, shape (...)
        -inf, the limit from above, at zero, at negative whole numbers and at -inf, and inf at inf.

    Notes
    -----
    **Gradient.** The trigamma function, exact at every order; 0 at the poles, which is chosen, and
    at inf, which is the limit. So near a pole that a derivative is out of range it can be NaN.

    **Source.** `scipy.special.digamma` for the value; it is NaN at negative whole numbers. Computed
    as `safe_lgamma` is. The slope of `jax.scipy.special.digamma` at -10.3 is 1e18 in float32, of
    `tf.math.digamma` 110, where it is 15; that of `torch.digamma` at -100.3 is off by 3e-5.

    Examples
    --------
    >>> import numpy as np
    >>> safe_digamma(np.asarray([1.0, 0.5, 0.0]))
    array([-0.57721566, -1.96351003,        -inf])
    """
    xp, x = promote(x)
    pole = _is_pole(xp, x)
    value = in_float32(xp, partial(_reflected, xp, digamma, _cotangent))(xp.where(pole, 1.0, x))
    value = xp.where(x == math.inf, math.inf, value)
    return xp.where(xp.logical_and(pole, x <= 0), -math.inf, value)


def _is_pole(xp: Namespace, x: Array) -> Array:
    """Whether x is infinite, or 0 or a negative whole number."""
    zero = xp.abs(x) < limits(xp, x).smallest_nonzero
    below = xp.logical_and(x < 0, xp.floor(x) == x)
    return xp.logical_or(is_inf(xp, x), xp.logical_or(zero, below))


def _reflected(xp: Namespace, of_positive: Function, of_sine: Function, x: Array) -> Array:
    """
    Return a function of positive numbers, and for negative ones minus it at 1 - x, and a rest.

    The rest is a function of the distance to the next whole number, which is exact.
    """
    below = x < 0
    value = of_positive(xp, xp.where(below, 1.0 - x, x))
    inside = xp.where(below, x, 0.5)
    distance = inside - stop_gradient(xp.round(inside))
    return of_sine(xp, below, value, math.pi * distance)


def _log_gamma(xp: Namespace, x: Array) -> Array:
    return _reflected(xp, log_gamma, _log_sine, x)


def _log_gamma_slopes(xp: Namespace, _: Array, x: Array) -> tuple[Array]:
    middle = xp.abs(x - 1.5) < 0.5  # noqa: PLR2004  (its zero, where digamma has fewer digits)
    above = xp.where(middle, x - 1.0, 0.0)
    near = above * (above - 1.0) * polynomial(above - 1.0, _NEAR_SLOPE)
    near = near + (2.0 * above - 1.0) * polynomial(above - 1.0, _NEAR)
    return (xp.where(middle, near, _reflected(xp, digamma, _cotangent, x)),)


def _log_sine(xp: Namespace, below: Array, value: Array, angle: Array) -> Array:
    sine = xp.sin(angle)
    rest = math.log(math.pi) - xp.log(xp.where(sine < 0, -sine, sine))
    return xp.where(below, rest - value, value)


def _cotangent(xp: Namespace, below: Array, value: Array, angle: Array) -> Array:
    return xp.where(below, value - math.pi * xp.cos(angle) / xp.sin(angle), value)


def log_gamma(xp: Namespace, x: Array) -> Array:
    """Return the logarithm of the gamma function of a positive number."""
    # Down to the middle of the polynomial's range, where its derivatives have their digits, and not
    # up to the series, which would lose digits of the difference.
    small, far = x < 1, x >= _START
    inside = xp.where(far, 1.0, x)
    reduced, product = inside, xp.ones_like(inside)
    for k in range(1, int(_START) - 1):
        passed = inside >= k + 1.5
        reduced = xp.where(passed, inside - float(k), reduced)
        product = product * xp.where(passed, inside - float(k), 1.0)
    # Of x, or of x + 1 for a small x: what lies above 1, which is exact.
    above = xp.where(small, inside, reduced - 1.0)
    near = above * (above - 1.0) * polynomial(above - 1.0, _NEAR)
    rest = xp.log(xp.where(small, inside, product))
    near = xp.where(small, near - rest, near + rest)
    return xp.where(far, _stirling(xp, xp.where(far, x, _START)), near)


def digamma(xp: Namespace, x: Array) -> Array:
    """Return the derivative of that logarithm."""
    shift = x < _START
    y, start = xp.where(shift, x + _START, x), xp.where(shift, x, 1.0)
    total = sum((1.0 / (start + float(k)) for k in range(int(_START) - 1, 0, -1)), 0.0 * start)
    inverse = 1.0 / y
    square = inverse * inverse
    series = xp.log(y) - 0.5 * inverse - square * polynomial(square, SLOPE)
    # Times 4, so that the slope's square of a small x is not flushed to 0.
    return xp.where(shift, series - total - 4.0 / (4.0 * start), series)


def _stirling(xp: Namespace, x: Array) -> Array:
    """Return Stirling's series."""
    # ``x * log(x) - x`` is written with the change of x, which is 0 and has a derivative, so that
    # no derivative has a square of x, which leaves the range.
    fixed = stop_gradient(x)
    change = x - fixed
    step = change * (1.0 / fixed)
    curve = 0.5 * change * (step * polynomial(step, _CURVE))
    main = fixed * (xp.log(fixed) - 1.0) + xp.log(fixed) * change + curve
    inverse = 1.0 / x
    rest = inverse * polynomial(inverse * inverse, STIRLING)
    return main - 0.5 * xp.log(x) + 0.5 * math.log(2.0 * math.pi) + rest
