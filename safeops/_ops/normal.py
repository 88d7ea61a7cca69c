"""The normal distribution: the logarithm of its probability, and its quantiles."""

import math
from functools import partial

from safeops._core.dtypes import limits
from safeops._core.types import Array, Namespace, T
from safeops._dispatch import backend_of, fast_path, promote
from safeops._ops.precision import in_float32
from safeops._ops.series import economized, polynomial
from safeops._ops.usual import Usual, usual
from safeops._ops.where import double_where, stop_gradient

# ``(1 + 2 * y) * exp(y**2) * erfc(y)`` for y >= 0, in powers of ``(y - 4) / (y + 4)``: Chebyshev's
# series, computed with 60 digits. The first term left out is below 1e-20.
_MIDDLE = 4.0
_SCALED_TAIL = economized(
    (
        *(1.2329951186255526, -0.1396211168405625, 0.015379652102620043),
        *(0.06809705425469155, -0.10103906603632537, 0.09373283499839602),
        *(-0.06633036581163648, 0.037167515536644054, -0.01619773406615478),
        *(0.005031969985840801, -0.0007577732176142186, -0.00019925673497964245),
        *(0.0001506212960600685, -2.4399106195828323e-05, -1.1220708546326432e-05),
        *(5.709646373555177e-06, 2.9078487407825146e-07, -8.257585894673802e-07),
        *(7.916369199346504e-08, 1.112176348040389e-07, -2.2220120163347e-08),
        *(-1.5745226073176955e-08, 4.256113632752916e-09, 2.431139789646191e-09),
        *(-7.153294871835132e-10, -3.852889957880852e-10, 1.0615119876562158e-10),
        *(5.1924090941432475e-11, -1.2408637799763429e-11, -4.0458686489340045e-12),
        *(8.282292682106803e-13,),
    )
)
# ``erfinv(x) / x`` in powers of ``x**2``, up to 1 / 4, likewise.
_INVERSE_ERROR = (
    *(0.886226925452758, 0.23201366653465452, 0.12755617530558838),
    *(0.08655212924282246, 0.06495961765647168, 0.051731285726666916),
    *(0.0428366175384727, 0.036467886101379035, 0.031662611868406326),
    *(0.028238248392742315, 0.023190295694946423, 0.032058803795265545),
    *(-0.014096066123994245, 0.10612369279622898, -0.12059384892802115),
    *(0.12862360857918426,),
)
# Minus the quantile of ``exp(-r**2 / 2)`` over r, in powers of the place from -1 to 1 that
# ``(r - 4) / (r + 4)`` has between the probabilities 1 / 4 and 1e-330.
_FAR_QUANTILE = (
    *(0.9233681349804326, 0.16282443438915647, -0.14650925415125973),
    *(0.09166238183765595, -0.05343667858397875, 0.029571155637226048),
    *(-0.016090548058886406, 0.008591766402098647, -0.004567910223465288),
    *(0.002402913918792504, -0.0012637157190938716, 0.0006590750139627456),
    *(-0.00034453342508076947, 0.00017865067009148448, -9.310593727392125e-05),
    *(4.80153966547513e-05, -2.4916384852643304e-05, 1.2947582740557227e-05),
    *(-6.963252293914602e-06, 3.104610912985852e-06, -1.1187338683526723e-06),
    *(1.6144483586931578e-06, -1.6891029750834206e-06, -9.774927249964822e-07),
    *(1.5227342103808826e-06, 1.6293891456936056e-06, -1.689754107699454e-06),
    *(-1.479531386537601e-06, 1.1828233821360473e-06, 1.031278940790138e-06),
    *(-5.874316654883117e-07, -4.801375354635277e-07, 1.755503794012713e-07),
    *(1.3836182785351676e-07, -2.5256827276291096e-08, -1.8431787127238236e-08),
)
_SPLIT = 0.25
_ENDS = [1.0 - 2.0 * _MIDDLE / (r + _MIDDLE) for r in (math.sqrt(-2.0 * math.log(_SPLIT)), 39.0)]
_CENTRE, _RADIUS = sum(_ENDS) / 2.0, (_ENDS[1] - _ENDS[0]) / 2.0
ROOT_OF_2 = math.sqrt(2.0)
_ROOT = math.sqrt(2.0 / math.pi)
_FAR = 64.0  # exp(-x * x / 2) is 0 here in every dtype
_GRID = 16.0


@fast_path
def log_ndtr(x: T, /) -> T:
    """
    Logarithm of the normal distribution function, with a slope that is right in the far tail.

    Same as ``log((1 + erf(x / sqrt(2))) / 2)``, elementwise, in every framework: none of its
    special functions is needed.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN.

    Returns
    -------
    array, shape (...)
        0 at inf, -inf at -inf.

    Notes
    -----
    **Gradient.** The derivative, the density over the probability, exact at every order: for
    x -> -inf it is ``-x``, and its own derivative -1. At the infinities 0, which for -inf is
    chosen: the slope is infinite there.

    **Source.** `scipy.special.log_ndtr` for the value. The slope of `torch.special.log_ndtr` at
    -1e4 in float32 is 64930, and 0 at -1e10; that of `jax.scipy.special.log_ndtr` is 2981 and 1
    (torch 2.13, jax 0.10.2). Here the tail is a polynomial, and the slope is that of the formula.

    Examples
    --------
    >>> import numpy as np
    >>> log_ndtr(np.asarray([0.0, -1e4]))
    array([-6.93147181e-01, -5.00000101e+07])
    """
    xp, x = promote(x)
    return in_float32(xp, partial(_log_ndtr, xp))(x)


@fast_path
def safe_ndtri(p: T, /) -> T:
    """
    Quantile of the normal distribution that stays finite, with gradient 0, at and beyond 0 and 1.

    Same as ``ndtri(min(max(p, finfo.smallest_normal), 1 - finfo.eps / 2))``, elementwise, in every
    framework: none of its special functions is needed.

    Parameters
    ----------
    p : array, shape (...), real floating
        Probability; any value is taken. NaN stays NaN.

    Notes
    -----
    **Gradient.** One over the density at the quantile inside, 0 elsewhere, at every order. At the
    ends the slope is infinite: 0 is chosen. A second derivative that is out of range, as below
    1e-150 in float64, is NaN.

    **Source.** `scipy.special.ndtri`, which is infinite at the ends and NaN beyond. Computed by
    polynomials, of ``p - 1 / 2`` and of ``sqrt(-2 * log(p))``.

    Examples
    --------
    >>> import numpy as np
    >>> safe_ndtri(np.asarray([0.5, 0.0, 1.0]))
    array([  0.        , -37.51937935,   8.20953615])
    """
    xp, p = promote(p)
    bound = limits(xp, p)
    least, most = bound.smallest_normal, 1.0 - bound.eps / 2.0
    low, high = p < least, p > most
    ends = xp.where(low, -_AT_END[least], xp.full_like(p, _AT_END[1.0 - most]))
    formula = in_float32(xp, usual(xp, partial(_quantile, xp), QUANTILE))
    return double_where(xp, xp.logical_or(low, high), (p,), ends, formula, placeholder=0.5)


@fast_path
def safe_erfinv(x: T, /) -> T:
    """
    Inverse error function that stays finite, with gradient 0, at and beyond -1 and 1.

    Same as ``erfinv(min(max(x, -largest), largest))``, elementwise, where ``largest`` is the
    largest number of the dtype below 1, in every framework.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN.

    Notes
    -----
    **Gradient.** ``sqrt(pi) / 2 * exp(erfinv(x)**2)`` inside, 0 elsewhere, at every order. At the
    ends the slope is infinite: 0 is chosen.

    **Source.** `scipy.special.erfinv`, which is infinite at the ends. `torch.erfinv` is infinite at
    the largest number below 1 too, and `tf.math.erfinv` errs by 3e-6 at 0.001 (float64; torch 2.13,
    tensorflow 2.21). Computed as `safe_ndtri` is.

    Examples
    --------
    >>> import numpy as np
    >>> safe_erfinv(np.asarray([0.0, 1.0, -2.0]))
    array([ 0.        ,  5.86358475, -5.86358475])
    """
    xp, x = promote(x)
    largest = 1.0 - limits(xp, x).eps / 2.0

    def slope(x: Array) -> Array:
        return _slope_of_inverse_error(xp, x, inverse(x), largest)

    def is_end(x: Array) -> Array:
        return xp.abs(x) > largest

    inverse = backend_of(x).with_slope(partial(_inverse_error, xp, largest), slope, is_end)
    return in_float32(xp, inverse)(x)


def scaled_tail(y: Array) -> Array:
    """Return ``(1 + 2 * y) * exp(y * y) * erfc(y)`` for y >= 0: a number from 1 to 1.29."""
    return polynomial(1.0 - 2.0 * _MIDDLE / (y + _MIDDLE), _SCALED_TAIL)


def _log_ndtr(xp: Namespace, x: Array) -> Array:
    """Return the logarithm: below 0 of the tail, above 0 of one less the other tail."""
    formulas = (partial(f, xp) for f in (_log_ndtr_value, _hazard, _is_filled))
    return backend_of(x).with_slope(*formulas)(x)


def _log_ndtr_value(xp: Namespace, x: Array) -> Array:
    filled = _is_filled(xp, x)
    inside, below, y, tail, density = _parts(xp, x, filled)
    left = -0.5 * inside * inside + (xp.log(0.5 * tail) - xp.log1p(2.0 * y))
    other = 0.5 * density * tail / (1.0 + 2.0 * y)
    value = xp.where(below, left, xp.log1p(-other))
    return xp.where(filled, xp.where(x == -math.inf, -math.inf, xp.zeros_like(x)), value)


def _hazard(xp: Namespace, x: Array) -> Array:
    """Return the density over the probability: below 0 by the tail, which both have a factor of."""
    _, below, y, tail, density = _parts(xp, x, _is_filled(xp, x))
    width = 1.0 + 2.0 * y
    left = (0.5 + y) * (2.0 * _ROOT / tail)  # which is in range
    return xp.where(below, left, 0.5 * _ROOT * density / (1.0 - 0.5 * density * tail / width))


def _is_filled(xp: Namespace, x: Array) -> Array:
    return xp.logical_or(x > _FAR, x == -math.inf)


def _parts(xp: Namespace, x: Array, filled: Array) -> tuple[Array, Array, Array, Array, Array]:
    """Return x inside, whether it is below 0, its size over the root of 2, tail and density."""
    inside, below = xp.where(filled, 0.0, x), x <= 0
    y = xp.where(below, -inside, inside) / ROOT_OF_2
    density = _exp_of_square(xp, xp.where(below, 0.0, inside))
    return inside, below, y, scaled_tail(y), density


def _exp_of_square(xp: Namespace, x: Array) -> Array:
    """Return ``exp(-x * x / 2)``: the square of a number of few bits is exact, the rest small."""
    near = stop_gradient(xp.floor(x * _GRID) / _GRID)
    # The choice keeps XLA from making one exponential of two, which loses the digits again.
    main = xp.where(near > 0, xp.exp(-0.5 * near * near), 1.0)
    return main * xp.exp(-0.5 * (x - near) * (x + near))


def _quantile(xp: Namespace, p: Array) -> Array:
    """Return the quantile of a probability between 0 and 1."""
    upper = p > 0.5  # noqa: PLR2004  (the middle)
    beyond = xp.where(upper, 1.0 - p, p)
    far = beyond < _SPLIT
    middle = ROOT_OF_2 * _central(xp.where(far, 0.0, 2.0 * p - 1.0))
    tail = _far_quantile(xp, xp.where(far, beyond, _SPLIT))
    return xp.where(far, xp.where(upper, tail, -tail), middle)


def _quantile_slopes(xp: Namespace, out: Array, _: Array) -> tuple[Array]:
    return (math.sqrt(2.0 * math.pi) * xp.exp(0.5 * (out * out)),)


# Beyond these the exponential has the rounding of the quantile 40 times.
QUANTILE = Usual(_quantile, _quantile_slopes, ((1e-9, 1.0 - 2.0**-22),))


def _inverse_error(xp: Namespace, largest: float, x: Array) -> Array:
    """Return the inverse error function of a number, or of the nearest one inside."""
    low, high = x < -largest, x > largest
    inside = xp.where(xp.logical_or(low, high), 0.0, x)
    lower = inside < 0
    beyond = 0.5 * (1.0 - xp.where(lower, -inside, inside))
    far = beyond < _SPLIT
    middle = _central(xp.where(far, 0.0, inside))
    tail = _far_quantile(xp, xp.where(far, beyond, _SPLIT)) / ROOT_OF_2
    value = xp.where(far, xp.where(lower, -tail, tail), middle)
    last = _AT_END[0.5 * (1.0 - largest)] / ROOT_OF_2
    return xp.where(low, -last, xp.where(high, last, value))


def _slope_of_inverse_error(xp: Namespace, x: Array, value: Array, largest: float) -> Array:
    """Return ``sqrt(pi) / 2 * exp(value**2)``, for numbers near the ends by the tail."""
    # There the exponential has the rounding of the value 30 times.
    size = xp.abs(x)
    far = xp.logical_and(size >= 0.5, size <= largest)  # noqa: PLR2004  (where 1 - x is exact)
    y = xp.where(far, xp.abs(value), 0.0)
    by_tail = scaled_tail(y) / ((1.0 + 2.0 * y) * xp.where(far, 1.0 - size, 1.0))
    inside = xp.where(far, 0.0, value)
    return math.sqrt(math.pi) / 2.0 * xp.where(far, by_tail, xp.exp(inside * inside))


def _central(x: Array) -> Array:
    """Return the inverse error function from -1 / 2 to 1 / 2."""
    return x * polynomial(x * x, _INVERSE_ERROR)


def _far_quantile(xp: Namespace, p: Array) -> Array:
    """Return minus the quantile of a probability up to `_SPLIT`; of a number with `math`."""
    root = xp.sqrt(-2.0 * xp.log(p))
    place = 1.0 - 2.0 * _MIDDLE / (root + _MIDDLE)
    return root * polynomial((place - _CENTRE) / _RADIUS, _FAR_QUANTILE)


# The ends of each dtype: the smallest normal number, half of eps, and a quarter of it. Not computed
# in a call: torch.compile makes them symbols there, whose last bit its own guard denies (2.13).
_EXPONENTS = (-14, -126, -1022, -11, -8, -24, -53, -12, -9, -25, -54)
_AT_END = {2.0**n: _far_quantile(math, 2.0**n) for n in _EXPONENTS}
