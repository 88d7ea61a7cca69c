"""The specifications of the operations in `_ops/composites.py`."""

# ruff: noqa: ARG001  (every formula takes the format)

import math
from math import inf

import mpmath
import numpy as np

from exponents import around, positive, rounded, wide
from formulas import LN2, exponents_of_e, nonzero, of_one
from points import Spec, one

TERMS = range(1, 24)
with mpmath.workdps(60):  # log(2) in whole numbers of 2**-20, 2**-80 and 2**-140
    whole = int(mpmath.log(2) * 2**140)
LN2_PARTS = [wide((whole >> shift) % 2**60) * wide(2.0) ** (shift - 140) for shift in (120, 60, 0)]


def log_cosh(form, x):
    """`log_cosh`."""
    a = np.abs(x)
    small, rest = np.minimum(a, 1), np.exp(-2 * a)
    near = np.log1p(2 * np.sinh(small / 2) ** 2)
    value = np.where(a < 1, near, a - LN2 + np.log1p(rest))
    return of_one(value, np.tanh(x), 4 * rest / (1 + rest) ** 2)


def log_sech2(form, x):
    """`log_sech2`."""
    of = log_cosh(form, x)
    return of_one(-2 * of.value, -2 * of.gradient[0], -2 * of.hessian[0][0])


def log_sinhc(form, x):
    """`log_sinhc`: near 0 by series of quotients with the powers of x taken out."""
    a, near = np.abs(x), np.abs(x) < 1
    u, v = np.where(near, x, 0), np.where(near, 1, a)
    square = u * u
    excess = sum(square**k / wide(math.factorial(2 * k + 1)) for k in TERMS)
    # x * cosh(x) - sinh(x) over x**2, and sinh(x)**2 - x**2 over x**4.
    first = u * sum(2 * k * square ** (k - 1) / wide(math.factorial(2 * k + 1)) for k in TERMS)
    second = sum(
        2 * (4 * square) ** k * 4 / wide(math.factorial(2 * k + 4)) for k in range(len(TERMS))
    )
    rest = np.exp(-2 * v)
    far = v - np.log(v) - LN2 + np.log1p(-rest)
    slope = np.sign(x) * ((1 + rest) / (1 - rest) - 1 / v)
    bend = 1 / v / v - 4 * rest / (1 - rest) ** 2
    return of_one(
        np.where(near, np.log1p(excess), far),
        np.where(near, first / (1 + excess), slope),
        np.where(near, second / (1 + excess) ** 2, bend),
        hessian_size=np.where(near, 1, 1 / v / v),
    )


def log1mexp(form, x):
    """`log1mexp`."""
    value = np.where(x < LN2, np.log(-np.expm1(-x)), np.log1p(-np.exp(-x)))
    slope = 1 / np.expm1(x)
    return of_one(value, slope, slope / np.expm1(-x)).filled(x < nonzero(form), -inf)


def log_expm1(form, x):
    """`log_expm1`: near log(2), where it is 0, by the difference in parts."""
    high, rest, least = LN2_PARTS
    away = np.where(np.abs(x - high) < 0.25, x - high - rest - least, 0)
    value = np.where(x < 1, np.log(np.expm1(x)), x + np.log1p(-np.exp(-x)))
    value = np.where(away == 0, value, np.log1p(2 * np.expm1(away)))
    slope = -1 / np.expm1(-x)
    return of_one(value, slope, slope / -np.expm1(x)).filled(x < nonzero(form), -inf)


def upward(dtype):
    """Return points: every exponent, those about 1 and log(2), and some below 0."""
    x = [positive(dtype), around(1, dtype), around(math.log(2), dtype), np.array([-1.0, -1e9])]
    return (np.unique(rounded(np.concatenate([*x, np.linspace(0.1, 120, 99)]), dtype)),)


def exact_log_cosh(x):
    """`log_cosh` in mpmath."""
    return mpmath.log(mpmath.cosh(x))


def exact_log_sech2(x):
    """`log_sech2` in mpmath."""
    return -2 * mpmath.log(mpmath.cosh(x))


def exact_log_sinhc(x):
    """`log_sinhc` in mpmath."""
    return mpmath.log(mpmath.sinh(x) / x)


def exact_log1mexp(x):
    """`log1mexp` in mpmath."""
    return mpmath.log(-mpmath.expm1(-x))


def exact_log_expm1(x):
    """`log_expm1` in mpmath."""
    return mpmath.log(mpmath.expm1(x))


def at(f, *numbers):
    """Return points of a function of mpmath: value and derivatives by differences in 60 digits."""
    found = []
    for x in numbers:
        with mpmath.workdps(60):
            orders = [float(mpmath.diff(f, mpmath.mpf(x), n)) for n in range(3)]
        found.append(one(x, *orders))
    return tuple(found)


def plain_sech2(xp, x):
    """Return what people write: one less the square of a tanh."""
    up, down = xp.exp(x), xp.exp(-x)
    return xp.log(1 - ((up - down) / (up + down)) ** 2)


BELOW = (one(0.0, -inf, 0, 0), one(-1.0, -inf, 0, 0))
FAR = 1000 - math.log(2)
SPECS = (
    Spec(
        "log_cosh",
        lambda xp, x: xp.log((xp.exp(x) + xp.exp(-x)) / 2),
        (
            *at(exact_log_cosh, 0.5, -0.5, 2.0, -2.0),
            one(0.0, 0, 0, 1),
            one(1000.0, FAR, 1, 0),
            one(-1000.0, FAR, -1, 0),
        ),
        formula=log_cosh,
        domain=exponents_of_e,
        mpmath=exact_log_cosh,
        # The second derivative is four times an exponential that may be lost.
        ulps=12,
        lost=4,
        synonyms="logcosh loss",
    ),
    Spec(
        "log_sech2",
        plain_sech2,
        (
            *at(exact_log_sech2, 0.5, -2.0, 9.5),
            one(0.0, 0, 0, -2),
            one(1000.0, -2 * FAR, -2, 0),
        ),
        formula=log_sech2,
        domain=exponents_of_e,
        mpmath=exact_log_sech2,
        # The second derivative is eight times an exponential that may be lost.
        ulps=12,
        lost=8,
        synonyms="squashed normal, tanh bijector, log_abs_det_jacobian",
    ),
    Spec(
        "log_sinhc",
        lambda xp, x: xp.where(x == 0, 0.0, xp.log((xp.exp(x) - xp.exp(-x)) / 2 / x)),
        (
            *at(exact_log_sinhc, 0.5, -0.5, 2.0, -2.0),
            one(0.0, 0, 0, 1 / 3),
            one(1024.0, 1024 - 11 * math.log(2), 1 - 2.0**-10, 2.0**-20),
        ),
        formula=log_sinhc,
        domain=exponents_of_e,
        mpmath=exact_log_sinhc,
        synonyms="von Mises-Fisher, Langevin function",
    ),
    Spec(
        "log1mexp",
        lambda xp, x: xp.where(x > 0, xp.log(1 - xp.exp(-x)), -inf),
        (*at(exact_log1mexp, 0.25, 2.0, 40.0), *BELOW),
        formula=log1mexp,
        domain=upward,
        mpmath=exact_log1mexp,
        synonyms="logarithm of the complement, survival",
    ),
    Spec(
        "log_expm1",
        lambda xp, x: xp.where(x > 0, xp.log(xp.exp(x) - 1), -inf),
        (*at(exact_log_expm1, 0.25, 0.75, 2.0), one(1000.0, 1000, 1, 0), *BELOW),
        formula=log_expm1,
        domain=upward,
        mpmath=exact_log_expm1,
        synonyms="inverse of softplus, softplus_inverse",
    ),
)
