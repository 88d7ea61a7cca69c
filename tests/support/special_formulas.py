"""
The special functions in the sweeps over exponents, by mpmath: NumPy has no such functions.

The numbers have 40 digits before they become extended precision. Points are fewer than for other
operations, because each takes a millisecond.
"""

# ruff: noqa: ARG001  (every formula takes the format)

from functools import cache

import mpmath
import numpy as np

import composites
import formulas
from exponents import around, positive, rounded, signed
from formulas import Row, nonzero, one
from special_cases import quantile

DIGITS = 40


def exactly(function, *args):
    """Return the numbers that a function gives for each point, as arrays of extended precision."""
    with mpmath.workdps(DIGITS):
        rows = [found(function, *map(float, point)) for point in zip(*args, strict=True)]
    return [np.array(column, dtype=np.longdouble) for column in zip(*rows, strict=True)]


@cache
def found(function, *point):
    """Return the numbers of a function at a point."""
    return [np.longdouble(mpmath.nstr(x, 25)) for x in function(*map(mpmath.mpf, point))]


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
    return one(value, slope, second).filled(far, 0)


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
    return one(value, slope, second).filled(low | high, value)


def of_error_quantile(x):
    """Return the inverse error function, its slope and its second derivative."""
    with mpmath.workdps(DIGITS + 20):
        x = mpmath.mpf(x)
        y = quantile((1 - abs(x)) / 2) / mpmath.sqrt(2) if abs(x) > 1e-3 else -mpmath.erfinv(abs(x))
        y = -y if x > 0 else y
        slope = mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(y * y)
        return y, slope, 2 * y * slope**2


def error_quantile(form, x):
    """`safe_erfinv`."""
    end, bad = 1 - form.eps / 2, np.abs(x) >= 1
    value, slope, second = exactly(of_error_quantile, np.clip(x, -end, end))
    return one(value, slope, second).filled(bad, value)


def of_gamma(x):
    """Return `safe_lgamma`, three derivatives, and the sizes of what they are sums of."""
    z = 1 - x if x < 0 else x
    parts = [mpmath.loggamma(z), *(mpmath.psi(n, z) for n in (0, 1, 2))]
    shift = [1 / z ** (n + 1) for n in range(3)] if z < 8 else [0] * 3
    sizes = [abs(parts[0]), *(abs(p) + s for p, s in zip(parts[1:], shift, strict=True))]
    if x > 0:
        return (*parts, *sizes)
    sine, cosine = mpmath.sinpi(x), mpmath.cospi(x)
    pi = mpmath.pi
    rest = [mpmath.log(pi / abs(sine)), -pi * cosine / sine]
    rest += [(pi / sine) ** 2, -2 * pi**3 * cosine / sine**3]
    turned = [sign * p for sign, p in zip((-1, 1, -1, 1), parts, strict=True)]
    # An angle near a right one has a cosine that is rounded.
    rough = [abs(rest[0]), *((pi / abs(sine)) ** n for n in (1, 2)), 2 * (pi / abs(sine)) ** 3]
    sizes = [s + r for s, r in zip(sizes, rough, strict=True)]
    return (*(t + r for t, r in zip(turned, rest, strict=True)), *sizes)


def at_no_pole(form, x):
    """Return the numbers of `of_gamma`, and where there is a pole."""
    pole = np.isinf(x) | (np.abs(x) < nonzero(form)) | ((x < 0) & (np.floor(x) == x))
    return exactly(of_gamma, np.where(pole, 1, x)), pole


def log_gamma(form, x):
    """`safe_lgamma`."""
    (value, slope, second, _, *sizes), pole = at_no_pole(form, x)
    kinds = {"size": sizes[0], "gradient_size": (sizes[1],), "hessian_size": sizes[2]}
    return one(value, slope, second, **kinds).filled(pole, np.inf)


def digamma(form, x):
    """`safe_digamma`."""
    (_, value, slope, second, _, *sizes), pole = at_no_pole(form, x)
    kinds = {"size": sizes[0], "gradient_size": (sizes[1],), "hessian_size": sizes[2]}
    return one(value, slope, second, **kinds).filled(pole, np.where(x > 0, np.inf, -np.inf))


def thinned(numbers, dtype, most=150):
    """Return some of many numbers, the ends among them."""
    numbers = np.unique(rounded(numbers, dtype))
    return numbers[np.unique(np.linspace(0, len(numbers) - 1, most).astype(int))]


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


def beside_poles(dtype):
    """Return numbers of all exponents, of all distances from some poles, and from zeros."""
    near = [around(k, dtype) for k in (-3, -1, 1, 2)]
    points = [thinned(part, dtype, 50) for part in (signed(dtype), signed(dtype), *near)]
    return (np.unique(np.concatenate([*points, rounded(np.linspace(-20, 20, 99), dtype)])),)


ROWS = (
    Row("safe_lgamma", log_gamma, beside_poles, ulps=32),
    Row("safe_digamma", digamma, beside_poles, ulps=32),
    # The second derivative is x**2 times a number that may be lost.
    Row("log_ndtr", log_probability, line, ulps=32, lost=2000),
    Row("safe_ndtri", normal_quantile, unit, ulps=32),
    Row("safe_erfinv", error_quantile, ball, ulps=32, lost=4),
)
EVERY = (*formulas.EVERY, *composites.ROWS, *ROWS)
