"""
The specifications of the functions in `_ops/incomplete.py`.

The standard has no values of them, and PyTorch no derivative for a: `test_incomplete.py` takes the
slope for x at the points, and has the other numbers.
"""

from math import e, inf

import mpmath

import safeops as so
from points import OwnSpec, Row, of_framework, two
from safeops._dispatch import backend_of


def shares(a, x):
    """Return the share of the gamma distribution below x, that above, and the density."""
    with mpmath.workdps(60):
        below = mpmath.gammainc(a, 0, x, regularized=True)
        above = mpmath.gammainc(a, x, regularized=True)
        return below, above, mpmath.exp((a - 1) * mpmath.log(x) - x - mpmath.loggamma(a))


def share(a, x):
    """Return the share below x and above, the slopes and the second derivatives for x, a and x."""
    with mpmath.workdps(60):
        a, x = mpmath.mpf(a), mpmath.mpf(x)
        below, above, slope = shares(a, x)
        mixed = slope * (mpmath.log(x) - mpmath.digamma(a))
        of_a = mpmath.diff(lambda a: mpmath.gammainc(a, 0, x, regularized=True), a)
        return tuple(map(float, (below, above, slope, of_a, slope * ((a - 1) / x - 1), mixed)))


def at(a, x, value, slope, second):
    """Return a point of a function of a, which counts as a constant, and x."""
    return two((a, x), value, (0, slope), (0, 0, second))


def inside(a, x):
    """Return a point that is at no border."""
    value, _, slope, _, second, _ = share(a, x)
    return at(a, x, value, slope, second)


def naive(xp, a, x):
    """Return what people write."""
    name = "igamma" if backend_of(x).name == "tensorflow" else "gammainc"
    return xp.where(x > 0, of_framework(name, so.stop_gradient(a), x), xp.zeros_like(x))


# One row, so that a compiler meets few programs: PyTorch has no derivative for a.
ROW = Row(
    "safe_gammainc",
    lambda a, x: so.safe_gammainc(so.stop_gradient(a), x),
    naive,
    (
        at(1.0, 0.0, 0, 1, -1),
        at(1.0, -0.0, 0, 1, -1),
        at(2.0, 0.0, 0, 0, 1),
        at(3.5, 0.0, 0, 0, 0),
        at(0.5, 0.0, 0, 0, 0),
        at(0.0, 0.0, 0, 0, 0),
        at(0.0, 1.0, 1, 0, 0),
        at(2.0, inf, 1, 0, 0),
        at(300.0, 1e300, 1, 0, 0),
        at(1.0, 1.0, 1 - 1 / e, 1 / e, -1 / e),
        *(inside(*p) for p in ((3.5, 2.0), (0.5, 1e-20), (0.5, 20.0), (300.0, 250.0))),
        *(inside(300.0, x) for x in (301.0, 390.0)),
    ),
)

SPECS = (OwnSpec("safe_gammainc", (ROW,), naive), OwnSpec("safe_gammaincc"))
