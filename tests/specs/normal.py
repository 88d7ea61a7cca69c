"""The specifications of the operations in `_ops/normal.py`."""

# ruff: noqa: ARG001  (every formula takes the format)

from math import inf, log, pi, sqrt

import mpmath
import numpy as np

from by_mpmath import exactly, thinned
from exponents import around, positive, rounded, signed
from formulas import of_one
from points import EPS, TINY, Spec, of_framework, one

DIGITS = 60


def quantile(p):
    """Return the quantile of a probability in mpmath."""
    rough = -mpmath.sqrt(-2 * mpmath.log(p)) if p < 0.01 else mpmath.mpf(0)
    return mpmath.findroot(lambda z: mpmath.log(mpmath.ncdf(z)) - mpmath.log(p), rough)


def log_probability_at(x):
    """Return a point of `log_ndtr`."""
    with mpmath.workdps(DIGITS):
        x = mpmath.mpf(x)
        below = mpmath.erfc(-x / mpmath.sqrt(2)) / 2
        slope = mpmath.npdf(x) / below
        return one(float(x), float(mpmath.log(below)), float(slope), float(-slope * (slope + x)))


def normal_quantile_at(p):
    """Return a point of `safe_ndtri`."""
    with mpmath.workdps(DIGITS):
        p = mpmath.mpf(p)
        z = quantile(p) if p < 0.5 else -quantile(1 - p)
        slope = 1 / mpmath.npdf(z)
        return one(float(p), float(z), float(slope), float(z * slope**2))


def error_quantile_at(x):
    """Return a point of `safe_erfinv`."""
    with mpmath.workdps(DIGITS):
        y = mpmath.erfinv(mpmath.mpf(x))
        slope = mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(y * y)
        return one(x, float(y), float(slope), float(2 * y * slope**2))


def of_log_probability(x):
    """Return `log_ndtr`, its slope and its second derivative."""
    x = mpmath.mpf(x)
    if x < -1e6:  # by the first terms, of which the next is below 1e-30
        square = 1 / x**2
        tail = mpmath.log1p(-square + 3 * square**2 - 15 * square**3)
        value = -x * x / 2 - mpmath.log(-x * mpmath.sqrt(2 * mpmath.pi)) + tail
        excess = (-1 / x) * (1 - 2 * square + 10 * square**2)
        slope = excess - x
        return value, slope, -slope * excess
    with mpmath.workdps(80):
        if x > 0:
            value = mpmath.log1p(-mpmath.erfc(x / mpmath.sqrt(2)) / 2)
        else:
            value = mpmath.log(mpmath.erfc(-x / mpmath.sqrt(2)) / 2)
        slope = mpmath.npdf(x) / mpmath.exp(value)
        return value, slope, -slope * (slope + x)


def log_probability(form, x):
    """`log_ndtr`."""
    far = x > 64
    value, slope, second = exactly(of_log_probability, np.where(far, 0, x))
    return of_one(value, slope, second).filled(far, 0)


def of_normal_quantile(p):
    """Return the quantile, its slope and its second derivative."""
    z = quantile(p) if p < 0.5 else -quantile(1 - p)
    slope = 1 / mpmath.npdf(z)
    return z, slope, z * slope**2


def normal_quantile(form, p):
    """`safe_ndtri`."""
    low, high = p < form.normal, p >= 1
    inside = np.where(low, form.normal, np.where(high, 1 - form.eps / 2, p))
    value, slope, second = exactly(of_normal_quantile, inside)
    return of_one(value, slope, second).filled(low | high, value)


def of_error_quantile(x):
    """Return the inverse error function, its slope and its second derivative."""
    with mpmath.workdps(DIGITS):
        x = mpmath.mpf(x)
        y = quantile((1 - abs(x)) / 2) / mpmath.sqrt(2) if abs(x) > 1e-3 else -mpmath.erfinv(abs(x))
        y = -y if x > 0 else y
        slope = mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(y * y)
        return y, slope, 2 * y * slope**2


def error_quantile(form, x):
    """`safe_erfinv`."""
    end, bad = 1 - form.eps / 2, np.abs(x) >= 1
    value, slope, second = exactly(of_error_quantile, np.clip(x, -end, end))
    return of_one(value, slope, second).filled(bad, value)


def line(dtype):
    """Return numbers of all exponents, and numbers near 0."""
    return (
        np.concatenate([thinned(signed(dtype), dtype), rounded(np.linspace(-40, 20, 61), dtype)]),
    )


def unit(dtype):
    """Return probabilities of all exponents, and of all distances from one half and from 1."""
    x = (positive(dtype), around(0.5, dtype), around(1, dtype), np.array([-1.0]))
    return (np.unique(np.concatenate([thinned(part, dtype, 60) for part in x])),)


def ball(dtype):
    """Return numbers of all exponents, and of all distances from -1 and 1."""
    x = (signed(dtype), around(-1, dtype), around(1, dtype))
    return (np.unique(np.concatenate([thinned(part, dtype, 60) for part in x])),)


LEAST, MOST = normal_quantile_at(TINY).value, normal_quantile_at(1 - EPS / 2).value
FURTHEST = error_quantile_at(1 - EPS / 2).value

SPECS = (
    Spec(
        "log_ndtr",
        lambda xp, x: xp.log(0.5 * of_framework("erfc", -x / sqrt(2))),
        (
            one(0.0, -log(2), sqrt(2 / pi), -2 / pi),
            *map(log_probability_at, (-1.0, 1.0, -30.0, 6.0, 0.01, -0.01)),
            # The second derivatives are in the sweep; differences have no digits here.
            log_probability_at(-1e4)._replace(hessian=((None,),)),
            one(-1e100, -5e199, 1e100, None),
            one(100.0, 0, 0, 0),
            one(inf, 0, 0, 0),
            one(-inf, -inf, 0, 0),
        ),
        formula=log_probability,
        domain=line,
        mpmath=lambda x: mpmath.log(mpmath.erfc(-x / mpmath.sqrt(2)) / 2),
        ulps=32,
        lost=2000,  # the second derivative is x**2 times a number that may be lost
    ),
    Spec(
        "safe_ndtri",
        lambda xp, p: xp.where((p > 0) & (p < 1), of_framework("ndtri", p), 0.0),
        (
            one(0.5, 0, sqrt(2 * pi), 0),
            *map(normal_quantile_at, (0.25, 0.9, 1e-4, 1e-100)),
            one(0.0, LEAST, 0, 0),
            one(-1.0, LEAST, 0, 0),
            one(1.0, MOST, 0, 0),
            one(inf, MOST, 0, 0),
        ),
        only_float64=True,
        formula=normal_quantile,
        domain=unit,
        mpmath=lambda p: mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1),
        ulps=32,
    ),
    Spec(
        "safe_erfinv",
        lambda xp, x: xp.where(xp.abs(x) < 1, of_framework("erfinv", x), 0.0),
        (
            one(0.0, 0, sqrt(pi) / 2, 0),
            *map(error_quantile_at, (0.5, -0.9, 0.001, 1 - 2.0**-40)),
            one(1.0, FURTHEST, 0, 0),
            one(-1.0, -FURTHEST, 0, 0),
            one(2.0, FURTHEST, 0, 0),
            one(-inf, -FURTHEST, 0, 0),
        ),
        only_float64=True,
        formula=error_quantile,
        domain=ball,
        mpmath=mpmath.erfinv,
        ulps=32,
        lost=4,
    ),
)
