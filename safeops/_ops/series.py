"""Power series of functions whose formulas are 0 / 0 at 0."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from safeops._core.dtypes import dtype_name
from safeops._core.types import Array

# How many terms: the first one left out is below 1e-17 where a series is used, and so are its
# first two derivatives.
_TERMS = 12
_OF_ARC = 22
_ROUNDING = 1e-7  # of float32


class Series(NamedTuple):
    """The coefficients of a polynomial, and those of one with the digits of float32 alone."""

    terms: Sequence[float]
    in_float32: Sequence[float]


def economized(terms: Sequence[float], radius: float = 1.0) -> Series:
    """Return what is used from ``-radius`` to `radius`, and economized for float32."""
    short = [c * radius**n for n, c in enumerate(terms)]
    # What a Chebyshev polynomial less changes, second derivatives at the ends too.
    while abs(short[-1]) / 2.0 ** (len(short) - 2) * (len(short) - 1) ** 4 < _ROUNDING:
        n, last = len(short) - 1, short.pop()
        for k in range(1, n // 2 + 1):
            short[n - 2 * k] -= last * (-0.25) ** k * n / (n - k) * math.comb(n - k, k)
    return Series(terms, [c / radius**n for n, c in enumerate(short)])


# Without their signs.
BERNOULLI = (
    *(1 / 6, 1 / 30, 1 / 42, 1 / 30, 5 / 66, 691 / 2730, 7 / 6, 3617 / 510, 43867 / 798),
    *(174611 / 330, 854513 / 138, 236364091 / 2730),
)

# Of x**2, for x**2 < 3: sin(x) / x, cos(x), (x - sin(x)) / x**3.
SINE = tuple((-1) ** n / math.factorial(2 * n + 1) for n in range(_TERMS))
COSINE = tuple((-1) ** n / math.factorial(2 * n) for n in range(_TERMS))
CUBIC = tuple((-1) ** n / math.factorial(2 * n + 3) for n in range(_TERMS))
# Of x**2 < 1 / 8: atan(x) / x.
ARC_TANGENT = tuple((-1) ** n / (2 * n + 1) for n in range(_OF_ARC))
# Of x**2 < 1: (1 - x / 2 * cot(x / 2)) / x**2.
COTANGENT = tuple(b / math.factorial(2 * n) for n, b in enumerate(BERNOULLI, 1))
# Of x**2 < 1 / 2: (2 * asin(x / 2) / x) ** 2.
ARC_SINE = tuple(2 / (n * n * math.comb(2 * n, n)) for n in range(1, _OF_ARC))
# Of x, for abs(x) < 1: (exp(x) - 1) / x; of x**2 < 1: sinh(x) / x.
EXPONENTIAL = economized(tuple(1 / math.factorial(n + 1) for n in range(_OF_ARC)))
HYPERBOLIC = economized(tuple(1 / math.factorial(2 * n + 1) for n in range(_TERMS)))
# Of x, for abs(x) < 1 / 8: (log(1 + x) - x) / x**2; of x**2 < 1 / 16: atanh(x) / x.
LOGARITHM = economized(tuple((-1) ** n / (n + 1) for n in range(1, _OF_ARC)), 1 / 8)
TANGENT = tuple(1 / (2 * n + 1) for n in range(_OF_ARC))


def polynomial(x: Array, coefficients: Sequence[float] | Series) -> Array:
    """Return ``coefficients[0] + coefficients[1] * x + ...``, by Horner's rule."""
    if isinstance(coefficients, Series):
        narrow = dtype_name(getattr(x, "dtype", None)) == "float32"  # a number of Python has none
        coefficients = coefficients.in_float32 if narrow else coefficients.terms
    *rest, last = coefficients
    total = last + 0.0 * x
    for coefficient in reversed(rest):
        total = coefficient + x * total
    return total
