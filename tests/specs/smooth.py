"""The specifications of the operations in `_ops/smooth.py`."""

import math
from math import e, inf, log

from mpmath import mp

from points import FLAT, Spec, one, two

SINH, COSH = math.sinh(1), math.cosh(1)


SPECS = (
    Spec(
        "exprel",
        lambda xp, x: xp.where(x == 0, 1.0, xp.expm1(x) / x),
        (
            one(0.0, 1, 1 / 2, 1 / 3),
            one(1e-8, 1 + 0.5e-8, 1 / 2 + 1e-8 / 3, 1 / 3 + 1e-8 / 4),
            one(1.0, e - 1, 1, e - 2),
            one(-1.0, 1 - 1 / e, 1 - 2 / e, 2 - 5 / e),
            one(-inf, 0, 0, 0),
        ),
        mpmath=lambda x: (mp.exp(x) - 1) / x if x else mp.mpf(1),
    ),
    Spec(
        "sinhc",
        lambda xp, x: xp.where(x == 0, 1.0, (xp.expm1(x) - xp.expm1(-x)) / (2.0 * x)),
        (
            one(0.0, 1, 0, 1 / 3),
            one(1e-8, 1, 1e-8 / 3, 1 / 3),
            one(1.0, SINH, COSH - SINH, 3 * SINH - 2 * COSH),
            one(-1.0, SINH, SINH - COSH, 3 * SINH - 2 * COSH),
        ),
        mpmath=lambda x: mp.sinh(x) / x if x else mp.mpf(1),
    ),
    Spec(
        "boxcox",
        lambda xp, x, p: xp.where(p == 0, xp.log(x), (xp.pow(x, p) - 1) / p),
        (
            two(
                (2.0, 0.0), log(2), (1 / 2, log(2) ** 2 / 2), (-1 / 4, log(2) / 2, log(2) ** 3 / 3)
            ),
            two((1.0, 0.0), 0, (1, 0), (-1, 0, 0)),
            two((2.0, 1.0), 1, (1, 2 * log(2) - 1), (0, log(2), 2 * (log(2) - 1) ** 2)),
            two((0.0, 1.0), -1, (1, 1), None),
            two((0.0, 2.0), -0.5, (0, 0.25), None),
            two((0.0, 0.5), -2, (0, 4), None),
            two((0.0, 0.0), -inf, *FLAT),
            two((0.0, -1.0), -inf, *FLAT),
        ),
        mpmath=lambda x, p: (x**p - 1) / p if p else mp.log(x),
    ),
    Spec(
        "inv_boxcox",
        lambda xp, y, p: xp.where(p == 0, xp.exp(y), xp.pow(1 + p * y, 1 / p)),
        (
            two((1.0, 0.0), e, (e, -e / 2), (e, -1.5 * e, 11 * e / 12)),
            two((0.0, 0.0), 1, (1, 0), (1, 0, 0)),
            two(
                (1.0, 1.0),
                2,
                (1, 1 - 2 * log(2)),
                (0, -log(2), 2 * (0.5 - log(2)) ** 2 + 4 * log(2) - 2.5),
            ),
            two((-1.0, 1.0), 0, (1, -1), None),
            two((1.0, -1.0), inf, *FLAT),
        ),
        mpmath=lambda y, p: (1 + p * y) ** (1 / p) if p else mp.exp(y),
    ),
    Spec(
        "logarithmic_mean",
        lambda xp, x, y: xp.where(x == y, x, (x - y) / (xp.log(x) - xp.log(y))),
        (
            two((2.0, 2.0), 2, (1 / 2, 1 / 2), (-1 / 12, 1 / 12, -1 / 12)),
            two((e, 1.0), e - 1, (1 / e, e - 2), ((e - 3) / e**2, (3 - e) / e, e - 3)),
            two((0.0, 3.0), 0, *FLAT),
            two((3.0, 0.0), 0, *FLAT),
            two((0.0, 0.0), 0, *FLAT),
        ),
        mpmath=lambda x, y: (x - y) / (mp.log(x) - mp.log(y)) if x != y else x,
    ),
)
