"""The rows of special functions in the case table; their numbers are those of mpmath."""

from math import inf, log, pi, sqrt

import mpmath

import safeops as so
from frameworks import Lazy
from points import EPS, TINY, Row, one
from safeops._dispatch import backend_of

DIGITS = 60


def of_framework(name, *args):
    """Return what people use: the framework's own function, by its name in SciPy."""
    module = {"torch": "torch.special", "jax": "jax.scipy.special", "tensorflow": "tensorflow.math"}
    framework = backend_of(*args).name
    name = "lgamma" if (framework, name) == ("tensorflow", "gammaln") else name
    return getattr(Lazy(module[framework]), name)(*args)


def log_probability(x):
    """Return a point of `log_ndtr`."""
    with mpmath.workdps(DIGITS):
        x = mpmath.mpf(x)
        below = mpmath.erfc(-x / mpmath.sqrt(2)) / 2
        slope = mpmath.npdf(x) / below
        return one(float(x), float(mpmath.log(below)), float(slope), float(-slope * (slope + x)))


def quantile(p):
    """Return the quantile of a probability in mpmath."""
    rough = -mpmath.sqrt(-2 * mpmath.log(p)) if p < 0.01 else mpmath.mpf(0)
    return mpmath.findroot(lambda z: mpmath.log(mpmath.ncdf(z)) - mpmath.log(p), rough)


def normal_quantile(p):
    """Return a point of `safe_ndtri`."""
    with mpmath.workdps(DIGITS):
        p = mpmath.mpf(p)
        z = quantile(p) if p < 0.5 else -quantile(1 - p)
        slope = 1 / mpmath.npdf(z)
        return one(float(p), float(z), float(slope), float(z * slope**2))


def error_quantile(x):
    """Return a point of `safe_erfinv`."""
    with mpmath.workdps(DIGITS):
        y = mpmath.erfinv(mpmath.mpf(x))
        slope = mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(y * y)
        return one(x, float(y), float(slope), float(2 * y * slope**2))


def log_gamma(x):
    """Return a point of `safe_lgamma`."""
    with mpmath.workdps(DIGITS):
        value = mpmath.re(mpmath.loggamma(mpmath.mpf(x)))
        return one(x, float(value), *(float(mpmath.psi(n, x)) for n in (0, 1)))


def digamma(x):
    """Return a point of `safe_digamma`."""
    with mpmath.workdps(DIGITS):
        return one(x, *(float(mpmath.psi(n, x)) for n in (0, 1, 2)))


LEAST, MOST = normal_quantile(TINY).value, normal_quantile(1 - EPS / 2).value
FURTHEST = error_quantile(1 - EPS / 2).value

ROWS = (
    Row(
        "log_ndtr",
        so.log_ndtr,
        lambda xp, x: xp.log(0.5 * of_framework("erfc", -x / sqrt(2))),
        (
            one(0.0, -log(2), sqrt(2 / pi), -2 / pi),
            *map(log_probability, (-1.0, 1.0, -30.0, 6.0, 0.01, -0.01)),
            # The second derivatives are in the sweep; differences have no digits here.
            log_probability(-1e4)._replace(hessian=((None,),)),
            one(-1e100, -5e199, 1e100, None),
            one(100.0, 0, 0, 0),
            one(inf, 0, 0, 0),
            one(-inf, -inf, 0, 0),
        ),
    ),
    Row(
        "safe_ndtri",
        so.safe_ndtri,
        lambda xp, p: xp.where((p > 0) & (p < 1), of_framework("ndtri", p), 0.0),
        (
            one(0.5, 0, sqrt(2 * pi), 0),
            *map(normal_quantile, (0.25, 0.9, 1e-4, 1e-100)),
            one(0.0, LEAST, 0, 0),
            one(-1.0, LEAST, 0, 0),
            one(1.0, MOST, 0, 0),
            one(inf, MOST, 0, 0),
        ),
        only_float64=True,
    ),
    Row(
        "safe_erfinv",
        so.safe_erfinv,
        lambda xp, x: xp.where(xp.abs(x) < 1, of_framework("erfinv", x), 0.0),
        (
            one(0.0, 0, sqrt(pi) / 2, 0),
            *map(error_quantile, (0.5, -0.9, 0.001, 1 - 2.0**-40)),
            one(1.0, FURTHEST, 0, 0),
            one(-1.0, -FURTHEST, 0, 0),
            one(2.0, FURTHEST, 0, 0),
            one(-inf, -FURTHEST, 0, 0),
        ),
        only_float64=True,
    ),
    Row(
        "safe_lgamma",
        so.safe_lgamma,
        lambda xp, x: xp.where(x > 0, of_framework("gammaln", x), inf),
        (
            *map(log_gamma, (0.5, 2.5, 3.0, 6.5, 20.0, 1e-8, 1e100, -0.5, -10.25, -1e-8)),
            *(one(x, inf, 0, 0) for x in (0.0, -0.0, -1.0, -1e30, inf, -inf)),
        ),
    ),
    Row(
        "safe_digamma",
        so.safe_digamma,
        lambda xp, x: xp.where(x > 0, of_framework("digamma", x), -inf),
        (
            *map(digamma, (0.5, 2.5, 6.5, 20.0, 1e-8, 1e100, -0.75, -10.25, -1e-8)),
            *(one(x, -inf, 0, 0) for x in (0.0, -0.0, -1.0, -1e30, -inf)),
            one(inf, inf, 0, 0),
        ),
    ),
)
