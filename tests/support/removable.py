"""
Functions with a removable singularity and functions of a norm, as rows like those of `turning`.

The points are the singular one, and beside it 1e-30, 1e-9, 1e-4 and 1.
"""

from mpmath import mp

import safeops as so
from safeops._dispatch import backend_of
from turning import AXIS, Row, norm

BESIDE = (0.0, 1e-30, -1e-9, 1e-4, 1.0)


def of(x):
    """Return the namespace of an array."""
    return backend_of(x).xp


# What people write: a where over the formula, or the formula over a norm.


def naive_exprel(x):
    """The quotient, which is 0 / 0 at 0."""
    xp = of(x)
    return xp.where(x == 0, 1.0, xp.expm1(x) / x)


def naive_sinhc(x):
    """The quotient, which is 0 / 0 at 0."""
    xp = of(x)
    return xp.where(x == 0, 1.0, (xp.expm1(x) - xp.expm1(-x)) / (2.0 * x))


def naive_boxcox(x, p):
    """The power and the logarithm."""
    xp = of(x)
    return xp.where(p == 0, xp.log(x), (x**p - 1.0) / p)


def naive_inv_boxcox(y, p):
    """The power and the exponential."""
    xp = of(y)
    return xp.where(p == 0, xp.exp(y), (1.0 + p * y) ** (1.0 / p))


def naive_logarithmic_mean(x, y):
    """The quotient, which is 0 / 0 at a tie."""
    xp = of(x)
    return xp.where(x == y, x, (x - y) / (xp.log(x) - xp.log(y)))


def over_root(kernel):
    """Return a kernel over the root of a sum of squares."""
    return lambda x: kernel(of(x).sum(x * x, axis=-1) ** 0.5, of(x).exp)


# Formulas of numbers in lists, as `turning` has them.


def exprel(x, _):
    """(exp(x) - 1) / x."""
    return [(mp.exp(x[0]) - 1) / x[0] if x[0] else mp.mpf(1)]


def sinhc(x, _):
    """sinh(x) / x."""
    return [mp.sinh(x[0]) / x[0] if x[0] else mp.mpf(1)]


def boxcox(x, p, _):
    """(x**p - 1) / p."""
    return [(x[0] ** p[0] - 1) / p[0] if p[0] else mp.log(x[0])]


def inv_boxcox(y, p, _):
    """(1 + p * y)**(1 / p)."""
    return [(1 + p[0] * y[0]) ** (1 / p[0]) if p[0] else mp.exp(y[0])]


def logarithmic_mean(x, y, _):
    """(x - y) / (log(x) - log(y))."""
    x, y = x[0], y[0]
    return [(x - y) / (mp.log(x) - mp.log(y)) if x != y else x]


def matern_three_halves(r, exp):
    """Matern's kernel 3/2, whose third derivative jumps at 0."""
    return (1 + r * 3**0.5) * exp(-(r * 3**0.5))


def matern_five_halves(r, exp):
    """Matern's kernel 5/2."""
    return (1 + r * 5**0.5 + r * r * 5 / 3) * exp(-(r * 5**0.5))


def gaussian(r, exp):
    """Gauss's kernel."""
    return exp(-(r * r) / 2)


def rational_quadratic(r, _):
    """The kernel of a mixture of Gauss's kernels."""
    return (1 + r * r) ** -1.5


# The kernels above have their numbers in floats, so that a formula has the same ones.
KERNELS = (matern_three_halves, matern_five_halves, gaussian, rational_quadratic)
VECTORS = [(size * AXIS,) for size in BESIDE]

ROWS = (
    Row("exprel", so.exprel, exprel, [(x,) for x in BESIDE], naive=naive_exprel),
    Row("sinhc", so.sinhc, sinhc, [(x,) for x in BESIDE], naive=naive_sinhc),
    Row("boxcox", so.boxcox, boxcox, [(1.75, p) for p in BESIDE], naive=naive_boxcox),
    Row(
        "inv_boxcox", so.inv_boxcox, inv_boxcox, [(0.75, p) for p in BESIDE], naive=naive_inv_boxcox
    ),
    Row(
        "logarithmic_mean",
        so.logarithmic_mean,
        logarithmic_mean,
        [(1.75, 1.75 + d) for d in BESIDE],
        naive=naive_logarithmic_mean,
    ),
    *(
        Row(
            f"radial of {kernel.__name__}",
            lambda x, kernel=kernel: so.radial(lambda r: kernel(r, of(r).exp), x),
            lambda x, _, kernel=kernel: [kernel(norm(x), mp.exp)],
            VECTORS,
            naive=over_root(kernel),
        )
        for kernel in KERNELS
    ),
)
