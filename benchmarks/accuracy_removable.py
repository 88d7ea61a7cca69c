"""Functions with a removable singularity, and incomplete gamma functions: points and formulas."""

# ruff: noqa: ARG001  (every formula takes the format)

from math import factorial

import accuracy_points
import numpy as np

from by_mpmath import exactly
from exponents import FORMATS, rounded, wide
from formulas import Exact
from specs import incomplete

TERMS = 30  # of series up to 1, whose last term is below 1e-30
SHAPES = 150  # of the gamma distribution, each with eight arguments


def first(value, *slopes):
    """Return a value with its slopes; nothing here measures second derivatives."""
    return Exact(value, slopes, ())


def ratio(x):
    """Return (exp(x) - 1) / x, and its derivative, by a series where the quotient cancels."""
    near = np.abs(x) < 1
    u, v = np.where(near, x, 0), np.where(near, 1, x)
    value, slope = (
        sum(k**order * u ** (k - order) / wide(factorial(k + 1)) for k in range(order, TERMS))
        for order in (0, 1)
    )
    far = (np.exp(v) * (v - 1) + 1) / v / v
    return np.where(near, value, np.expm1(v) / v), np.where(near, slope, far)


def exprel(form, x):
    """`exprel`."""
    return first(*ratio(x))


def sinhc(form, x):
    """`sinhc`."""
    near = np.abs(x) < 1
    u, v = np.where(near, x, 0), np.where(near, 1, x)
    slope = sum(2 * k * u ** (2 * k - 1) / wide(factorial(2 * k + 1)) for k in range(1, TERMS // 2))
    far = (v * np.cosh(v) - np.sinh(v)) / v / v
    return first(np.where(x == 0, 1, np.sinh(x) / x), np.where(near, slope, far))


def logarithm(x):
    """Return the logarithm, whose argument near 1 has all digits."""
    return np.where(np.abs(x - 1) < 0.5, np.log1p(x - 1), np.log(x))  # noqa: PLR2004  (near 1)


def boxcox(form, x, p):
    """`boxcox`: a logarithm times a ratio."""
    log = logarithm(x)
    value, slope = ratio(p * log)
    return first(log * value, np.exp((p - 1) * log), log * log * slope)


def inv_boxcox(form, y, p):
    """`inv_boxcox`: an exponential of y times log(1 + w) / w."""
    w = p * y
    near = np.abs(w) < 2.0**-6
    u, v = np.where(near, w, 0), np.where(near | (w <= -1), 1, w)
    part = np.where(near, sum((-u) ** k / (k + 1) for k in range(TERMS)), np.log1p(v) / v)
    slope = -sum(k * (-u) ** (k - 1) / wide(k + 1) for k in range(1, TERMS))
    slope = np.where(near, slope, (v / (1 + v) - np.log1p(v)) / v / v)
    known = (w > -1) & (np.abs(w) <= form.max)  # the domain: whose product is finite
    value = np.where(known, np.exp(y * part), np.nan)
    least = np.minimum(1, 1 / np.abs(p)) * value / (1 + w)
    value = np.where(least >= 16 * form.normal, value, np.nan)  # the domain of the derivatives
    return first(value, value / (1 + w), value * y * y * slope)


def logarithmic_mean(form, x, y):
    """`logarithmic_mean`: y times a ratio of the logarithm of x / y."""
    close = np.abs(x - y) < y / 2
    log = np.where(close, np.log1p((x - y) / y), np.log(x / y))
    value, slope = ratio(log)
    _, turned = ratio(-log)
    return first(y * value, slope * (y / x), turned * (x / y))


def gammainc(form, a, x):
    """`safe_gammainc`, with a slope for x."""
    below, _, density = exactly(incomplete.shares, a, x)
    return first(below, density)


def gammaincc(form, a, x):
    """`safe_gammaincc`, likewise."""
    _, above, density = exactly(incomplete.shares, a, x)
    return first(above, -density)


def positive_pairs(dtype):
    """Return two positive arguments."""
    return tuple(map(np.abs, accuracy_points.pairs(dtype)))


def boxes(dtype):
    """Return positive numbers, and exponents."""
    x, p = accuracy_points.pairs(dtype)
    return np.abs(x), p


def shares(dtype):
    """Return shapes from 1/64 on, and arguments around each of them."""
    most = min(14, FORMATS[dtype].most - 2)
    random = np.random.default_rng(0)
    a = np.repeat(2 ** random.uniform(-6, most, SHAPES), 8)
    around = a * np.exp(random.normal(size=a.size) * np.minimum(2, 3 / np.sqrt(a)))
    return rounded(a, dtype), rounded(np.maximum(around, FORMATS[dtype].normal), dtype)


# Of each: points, and the formula.
ROWS = {
    "exprel": (accuracy_points.whole_line, exprel),
    "sinhc": (accuracy_points.whole_line, sinhc),
    "boxcox": (boxes, boxcox),
    "inv_boxcox": (accuracy_points.pairs, inv_boxcox),
    "logarithmic_mean": (positive_pairs, logarithmic_mean),
    "safe_gammainc": (shares, gammainc),
    "safe_gammaincc": (shares, gammaincc),
}
