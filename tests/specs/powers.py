"""The specifications of the operations in `_ops/powers.py`."""

from math import e, inf, log

import mpmath
import numpy as np

from exponents import pairs
from formulas import exponents_of_e, largest_exponent, nonzero, of_one, of_two, whole_line
from points import FLAT, MAX, Spec, one, two


def root(form, x):
    """`safe_sqrt`."""
    s = np.sqrt(x)
    return of_one(s, 0.5 / s, -0.25 / s / x).filled(x < nonzero(form), 0)


def reciprocal_root(form, x):
    """`safe_rsqrt`."""
    s = np.sqrt(x)
    return of_one(1 / s, -0.5 / s / x, 0.75 / s / x / x).filled(x < nonzero(form), 0)


def power(form, x, p):
    """`safe_pow`: at 0 monomials, below 0 of whole exponents, which have no slope there."""
    zero = np.abs(x) < nonzero(form)
    unreal = ((x < 0) & ~zero & (np.floor(p) != p)) | (zero & (p < 0))
    size = np.abs(np.where(zero, 1, x))
    sign = np.where((x < 0) & (np.mod(p, 2) == 1), -1, 1)
    log = np.where(x < 0, 0, np.log(size))
    # Below 0 what p would have for a slope is multiplied with 0.
    large = np.log(size) * np.where(size**p * np.log(size) > form.max / 2, np.inf, 1)
    value = sign * size**p
    along = sign * np.sign(x) * size ** (p - 1)
    twice = sign * size ** (p - 2)
    derivatives = of_two(
        value,
        (p * along, np.where((x < 0) & np.isinf(size**p * large), np.nan, value * log)),
        p * (p - 1) * twice,
        np.where(x < 0, 0, along * (1 + p * log)),
        value * log * log,
        steps=((p / size) ** 2,),
        squares=(1 / size / size,),
        transposed=(p * p, np.ones_like(p)),
        tangents=(1 / size,),
    )
    derivatives = derivatives.filled(zero, np.where(p == 0, 1, 0))
    (xx, xy), (_, yy) = derivatives.hessian
    derivatives.gradient = (
        np.where(zero & (p == 1), 1, derivatives.gradient[0]),
        derivatives.gradient[1],
    )
    derivatives.hessian = (np.where(zero & (p == 2), 2, xx), xy), (xy, yy)
    return derivatives.filled(unreal, 0)


def exponential(form, x):
    """`safe_exp`."""
    y = np.exp(x)
    return of_one(y, y, y).filled(x > largest_exponent(form), form.max)


def exponential_minus_1(form, x):
    """`safe_expm1`."""
    y = np.exp(x)
    return of_one(np.expm1(x), y, y).filled(x > largest_exponent(form), form.max)


def bases_and_exponents(dtype):
    """Return bases of every exponent with the powers that people use, and a grid."""
    powers = np.array([-3, -2, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4])
    x, p = np.meshgrid(np.concatenate(whole_line(dtype))[:: 7 if dtype == "float64" else 1], powers)
    more = pairs(dtype)
    return np.concatenate([x.ravel(), more[0]]), np.concatenate([p.ravel(), more[1]])


SPECS = (
    Spec(
        "safe_sqrt",
        lambda xp, x: xp.where(x > 0, xp.sqrt(x), 0.0),
        (
            one(4.0, 2, 0.25, -1 / 32),
            one(0.0, 0, 0, 0),
            one(-4.0, 0, 0, 0),
            one(-inf, 0, 0, 0),
        ),
        formula=root,
        domain=whole_line,
        mpmath=mpmath.sqrt,
    ),
    Spec(
        "safe_rsqrt",
        lambda xp, x: xp.where(x > 0, 1 / xp.sqrt(x), 0.0),
        (one(4.0, 0.5, -1 / 16, 3 / 128), one(0.0, 0, 0, 0), one(-4.0, 0, 0, 0)),
        formula=reciprocal_root,
        domain=whole_line,
        mpmath=lambda x: 1 / mpmath.sqrt(x),
        synonyms="inverse square root",
    ),
    Spec(
        "safe_pow",
        lambda xp, x, p: xp.where(x > 0, xp.pow(x, p), 0.0),
        (
            two(
                (2.0, 3.0),
                8,
                (12, 8 * log(2)),
                (12, 4 + 12 * log(2), 8 * log(2) ** 2),
            ),
            two((4.0, 0.5), 2, (0.25, 2 * log(4)), (-1 / 32, 0.5 + log(4) / 4, 2 * log(4) ** 2)),
            two((4.0, 0.0), 1, (0, log(4)), (0, 0.25, log(4) ** 2)),
            two((0.0, 0.0), 1, *FLAT),
            two((0.0, 0.5), 0, *FLAT),
            two((0.0, 1.0), 0, (1, 0), (0, 0, 0)),
            two((0.0, 1.5), 0, *FLAT),
            two((0.0, 2.0), 0, (0, 0), (2, 0, 0)),
            two((0.0, 3.0), 0, *FLAT),
            two((0.0, -1.0), 0, *FLAT),
            two((-2.0, 3.0), -8, (12, 0), (-12, 0, 0)),
            two((-2.0, 2.0), 4, (-4, 0), (2, 0, 0)),
            two((-2.0, 0.0), 1, *FLAT),
            two((-2.0, -1.0), -0.5, (-0.25, 0), (-0.25, 0, 0)),
            two((-2.0, 0.5), 0, *FLAT),
        ),
        formula=power,
        domain=bases_and_exponents,
        lost=6e5,  # a power times the square of a logarithm
        mpmath=mpmath.power,
        synonyms="power",
    ),
    Spec(
        "safe_exp",
        lambda xp, x: xp.where(x > 700, MAX, xp.exp(x)),
        (
            one(0.0, 1, 1, 1),
            one(1.0, e, e, e),
            one(1000.0, MAX, 0, 0),
            one(inf, MAX, 0, 0),
            one(-inf, 0, 0, 0),
        ),
        only_float64=True,
        formula=exponential,
        domain=exponents_of_e,
        mpmath=mpmath.exp,
        synonyms="overflow",
    ),
    Spec(
        "safe_expm1",
        lambda xp, x: xp.where(x > 700, MAX, xp.expm1(x)),
        (
            one(0.0, 0, 1, 1),
            one(1.0, e - 1, e, e),
            one(1000.0, MAX, 0, 0),
            one(inf, MAX, 0, 0),
            one(-inf, -1, 0, 0),
        ),
        only_float64=True,
        formula=exponential_minus_1,
        domain=exponents_of_e,
        mpmath=mpmath.expm1,
    ),
)
