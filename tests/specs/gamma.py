"""The specifications of the operations in `_ops/gamma.py`."""

from math import inf

import mpmath
import numpy as np

from by_mpmath import exactly, thinned
from exponents import around, rounded, signed
from formulas import nonzero, of_one
from points import Spec, of_framework, one

DIGITS = 60


def log_gamma_at(x):
    """Return a point of `safe_lgamma`."""
    with mpmath.workdps(DIGITS):
        value = mpmath.re(mpmath.loggamma(mpmath.mpf(x)))
        return one(x, float(value), *(float(mpmath.psi(n, x)) for n in (0, 1)))


def digamma_at(x):
    """Return a point of `safe_digamma`."""
    with mpmath.workdps(DIGITS):
        return one(x, *(float(mpmath.psi(n, x)) for n in (0, 1, 2)))


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
    return of_one(value, slope, second, **kinds).filled(pole, np.inf)


def digamma(form, x):
    """`safe_digamma`."""
    (_, value, slope, second, _, *sizes), pole = at_no_pole(form, x)
    kinds = {"size": sizes[0], "gradient_size": (sizes[1],), "hessian_size": sizes[2]}
    return of_one(value, slope, second, **kinds).filled(pole, np.where(x > 0, np.inf, -np.inf))


def beside_poles(dtype):
    """Return numbers of all exponents, of all distances from some poles, and from zeros."""
    near = [around(k, dtype) for k in (-3, -1, 1, 2)]
    points = [thinned(part, dtype, 50) for part in (signed(dtype), signed(dtype), *near)]
    return (np.unique(np.concatenate([*points, rounded(np.linspace(-20, 20, 99), dtype)])),)


SPECS = (
    Spec(
        "safe_lgamma",
        lambda xp, x: xp.where(x > 0, of_framework("gammaln", x), inf),
        (
            *map(log_gamma_at, (0.5, 2.5, 3.0, 6.5, 20.0, 1e-8, 1e100, -0.5, -10.25, -1e-8)),
            *(one(x, inf, 0, 0) for x in (0.0, -0.0, -1.0, -1e30, inf, -inf)),
        ),
        formula=log_gamma,
        domain=beside_poles,
        mpmath=lambda x: mpmath.re(mpmath.loggamma(x)),
        ulps=32,
    ),
    Spec(
        "safe_digamma",
        lambda xp, x: xp.where(x > 0, of_framework("digamma", x), -inf),
        (
            *map(digamma_at, (0.5, 2.5, 6.5, 20.0, 1e-8, 1e100, -0.75, -10.25, -1e-8)),
            *(one(x, -inf, 0, 0) for x in (0.0, -0.0, -1.0, -1e30, -inf)),
            one(inf, inf, 0, 0),
        ),
        formula=digamma,
        domain=beside_poles,
        mpmath=mpmath.digamma,
        ulps=32,
    ),
)
