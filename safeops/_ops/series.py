"""Power series of functions whose formulas are 0 / 0 at 0."""

import math
from collections.abc import Sequence

from safeops._core.dtypes import limits
from safeops._core.types import Array, Namespace

# How many terms: the first one left out is below 1e-17 where a series is used, and so are its
# first two derivatives.
_TERMS = 12
_OF_ARC = 22
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
EXPONENTIAL = tuple(1 / math.factorial(n + 1) for n in range(_OF_ARC))
HYPERBOLIC = tuple(1 / math.factorial(2 * n + 1) for n in range(_TERMS))
# Of x, for abs(x) < 1 / 8: log(1 + x) / x; of x**2 < 1 / 16: atanh(x) / x.
LOGARITHM = tuple((-1) ** n / (n + 1) for n in range(_OF_ARC))
TANGENT = tuple(1 / (2 * n + 1) for n in range(_OF_ARC))


def polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    """Return ``coefficients[0] + coefficients[1] * x + ...``, by Horner's rule."""
    *rest, last = coefficients
    total = last + 0.0 * x
    for coefficient in reversed(rest):
        total = coefficient + x * total
    return total


def power_series(
    xp: Namespace, x: Array, coefficients: Sequence[float], bound: float = 1.0
) -> Array:
    """Return a series up to a size of x, without the terms that x, of its dtype, does not need."""
    # What is left out is below a rounding in two derivatives too. Each term costs a compiler three
    # steps for an entry, of value and slope, and float32 needs half of those of float64.
    least = limits(xp, x).eps * 2.0**-14
    sizes = ((n + 1) * (n + 2) * abs(c) * bound**n for n, c in enumerate(coefficients))
    return polynomial(x, coefficients[: sum(size > least for size in sizes)])
