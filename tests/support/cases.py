"""
The case table: one row an operation, with exact values and derivatives at its singular points.

Numbers come from mathematics, written as formulas of the `math` module. `naive` is what people
write; a test shows that it fails at one of the points. A row whose naive version is right on a
framework says why in `naive_is_right`.
"""

import math
from functools import partial
from math import e, inf, log, nan, pi, sqrt

import composites
import safeops as so
import special_cases
from derivatives import MODES
from frameworks import torch_from
from points import EPS, FLAT, MAX, TINY, Row, one, two

SINH, COSH = math.sinh(1), math.cosh(1)
S = 1 / (1 + 1 / e)  # the sigmoid of 1
SP = log(1 + e)  # softplus of 1


# For operations that multiply by a scale.
CONSTANT = {
    ("torch", "compile"): (
        ("fwd-fwd",),
        "torch.compile traces no jvp of a jvp of ``x * c`` with a constant tensor c (torch 2.13)",
    ),
}


def plain_focal(xp, x, y, gamma):
    """Return what people write: a power of one less the probability."""
    p = 1 / (1 + xp.exp(-x))
    ours = y * p + (1 - y) * (1 - p)
    return -((1 - ours) ** gamma) * xp.log(ours)


def focal_of_one(x, gamma):
    """Return the loss of a label of 1, its slope and its second derivative."""
    s, t = 1 / (1 + math.exp(-x)), 1 / (1 + math.exp(x))
    loss, power = log(1 + math.exp(-x)), t**gamma
    second = gamma * s * (gamma * s * loss + t) + s * t * (gamma * (1 - loss) + 1)
    return power * loss, -power * (gamma * s * loss + t), power * second


def focal(args, gamma):
    """Return a point of the focal loss."""
    x, y = args
    (a, a1, a2), (b, b1, b2) = focal_of_one(x, gamma), focal_of_one(-x, gamma)
    gradient = (y * a1 - (1 - y) * b1, a - b)
    return two(args, y * a + (1 - y) * b, gradient, (y * a2 + (1 - y) * b2, a1 + b1, 0))


ROWS = (
    Row(
        "safe_div",
        so.safe_div,
        lambda xp, x, y: xp.where(y == 0, 0.0, x / y),
        (
            two((1.0, 4.0), 0.25, (0.25, -1 / 16), (0, -1 / 16, 2 / 64)),
            two((1.0, 0.0), 0, *FLAT),
            two((-1.0, -0.0), 0, *FLAT),
            two((0.0, 0.0), 0, *FLAT),
            two((nan, 0.0), 0, *FLAT),
            two((inf, 0.0), 0, *FLAT),
            two((0.0, 2.0), 0, (0.5, 0), (0, -0.25, 0)),
        ),
    ),
    Row(
        "safe_div with fill_value",
        lambda x, y: so.safe_div(x, y, fill_value=7.0),
        lambda xp, x, y: xp.where(y == 0, 7.0, x / y),
        (two((1.0, 0.0), 7, *FLAT), two((1.0, 2.0), 0.5, (0.5, -0.25), (0, -0.25, 0.25))),
    ),
    Row(
        "safe_reciprocal",
        so.safe_reciprocal,
        lambda xp, x: xp.where(x == 0, 0.0, 1 / x),
        (one(4.0, 0.25, -1 / 16, 2 / 64), one(0.0, 0, 0, 0), one(-0.5, -2, -4, -16)),
    ),
    Row(
        "safe_mul",
        so.safe_mul,
        lambda xp, x, y: xp.where(y == 0, 0.0, x * y),
        (
            two((2.0, 3.0), 6, (3, 2), (0, 1, 0)),
            two((2.0, 0.0), 0, (0, 2), (0, 1, 0)),
            two((inf, 0.0), 0, *FLAT),
            two((nan, 0.0), 0, *FLAT),
            two((-inf, -0.0), 0, *FLAT),
        ),
    ),
    Row(
        "xdivy",
        so.xdivy,
        lambda xp, x, y: xp.where(x == 0, 0.0, x / y),
        (
            two((1.0, 4.0), 0.25, (0.25, -1 / 16), (0, -1 / 16, 2 / 64)),
            two((0.0, 0.0), 0, *FLAT),
            two((0.0, 4.0), 0, (0.25, 0), (0, -1 / 16, 0)),
        ),
    ),
    Row(
        "safe_sqrt",
        so.safe_sqrt,
        lambda xp, x: xp.where(x > 0, xp.sqrt(x), 0.0),
        (one(4.0, 2, 0.25, -1 / 32), one(0.0, 0, 0, 0), one(-4.0, 0, 0, 0), one(-inf, 0, 0, 0)),
    ),
    Row(
        "safe_rsqrt",
        so.safe_rsqrt,
        lambda xp, x: xp.where(x > 0, 1 / xp.sqrt(x), 0.0),
        (one(4.0, 0.5, -1 / 16, 3 / 128), one(0.0, 0, 0, 0), one(-4.0, 0, 0, 0)),
    ),
    Row(
        "safe_pow",
        so.safe_pow,
        lambda xp, x, p: xp.where(x > 0, xp.pow(x, p), 0.0),
        (
            two(
                (2.0, 3.0),
                8,
                (12, 8 * log(2)),
                (12, 4 + 12 * log(2), 8 * log(2) ** 2),
            ),
            two((4.0, 0.5), 2, (0.25, 2 * log(4)), (-1 / 32, 0.5 + log(4) / 4, 2 * log(4) ** 2)),
            two((4.0, 0.0), 1, (0, log(4)), (0, 0.25, log(4) ** 2)),
            two((0.0, 0.0), 1, *FLAT),
            two((0.0, 0.5), 0, *FLAT),
            two((0.0, 1.0), 0, (1, 0), (0, 0, 0)),
            two((0.0, 1.5), 0, *FLAT),
            two((0.0, 2.0), 0, (0, 0), (2, 0, 0)),
            two((0.0, 3.0), 0, *FLAT),
            two((0.0, -1.0), 0, *FLAT),
            two((-2.0, 3.0), -8, (12, 0), (-12, 0, 0)),
            two((-2.0, 2.0), 4, (-4, 0), (2, 0, 0)),
            two((-2.0, 0.0), 1, *FLAT),
            two((-2.0, -1.0), -0.5, (-0.25, 0), (-0.25, 0, 0)),
            two((-2.0, 0.5), 0, *FLAT),
        ),
        unsupported=CONSTANT,
    ),
    Row(
        "safe_exp",
        so.safe_exp,
        lambda xp, x: xp.where(x > 700, MAX, xp.exp(x)),
        (
            one(0.0, 1, 1, 1),
            one(1.0, e, e, e),
            one(1000.0, MAX, 0, 0),
            one(inf, MAX, 0, 0),
            one(-inf, 0, 0, 0),
        ),
        only_float64=True,
    ),
    Row(
        "safe_expm1",
        so.safe_expm1,
        lambda xp, x: xp.where(x > 700, MAX, xp.expm1(x)),
        (
            one(0.0, 0, 1, 1),
            one(1.0, e - 1, e, e),
            one(1000.0, MAX, 0, 0),
            one(inf, MAX, 0, 0),
            one(-inf, -1, 0, 0),
        ),
        only_float64=True,
    ),
    Row(
        "safe_log",
        so.safe_log,
        lambda xp, x: xp.where(x > 0, xp.log(x), log(TINY)),
        (
            one(2.0, log(2), 0.5, -0.25),
            one(0.0, log(TINY), 0, 0),
            one(-2.0, log(TINY), 0, 0),
            one(-inf, log(TINY), 0, 0),
        ),
        only_float64=True,
    ),
    Row(
        "safe_log with fill_value",
        lambda x: so.safe_log(x, fill_value=0),
        lambda xp, x: xp.where(x > 0, xp.log(x), 0.0),
        (one(2.0, log(2), 0.5, -0.25), one(0.0, 0, 0, 0), one(-2.0, 0, 0, 0)),
    ),
    Row(
        "safe_log2",
        lambda x: so.safe_log2(x, fill_value=-1),
        lambda xp, x: xp.where(x > 0, xp.log2(x), -1.0),
        (one(2.0, 1, 0.5 / log(2), -0.25 / log(2)), one(0.0, -1, 0, 0), one(-2.0, -1, 0, 0)),
    ),
    Row(
        "safe_log10",
        lambda x: so.safe_log10(x, fill_value=-1),
        lambda xp, x: xp.where(x > 0, xp.log10(x), -1.0),
        (one(10.0, 1, 0.1 / log(10), -0.01 / log(10)), one(0.0, -1, 0, 0), one(-2.0, -1, 0, 0)),
    ),
    Row(
        "safe_log1p",
        lambda x: so.safe_log1p(x, fill_value=-1),
        lambda xp, x: xp.where(x > -1, xp.log1p(x), -1.0),
        (one(1.0, log(2), 0.5, -0.25), one(-1.0, -1, 0, 0), one(-2.0, -1, 0, 0)),
    ),
    Row(
        "safe_logit",
        so.safe_logit,
        lambda xp, x: xp.where((x > 0) & (x < 1), xp.log(x / (1 - x)), 0.0),
        (
            one(0.5, 0, 4, 0),
            one(0.2, log(0.25), 6.25, -0.6 * 6.25**2),
            one(0.0, log(TINY), 0, 0),
            one(1.0, -log(EPS / 2), 0, 0),
            one(-1.0, log(TINY), 0, 0),
            one(2.0, -log(EPS / 2), 0, 0),
        ),
        only_float64=True,
    ),
    Row(
        "xlogy",
        so.xlogy,
        lambda xp, x, y: xp.where(x == 0, 0.0, x * xp.log(y)),
        (
            two((2.0, 3.0), 2 * log(3), (log(3), 2 / 3), (0, 1 / 3, -2 / 9)),
            two((0.0, 0.0), 0, *FLAT),
            two((0.0, -1.0), 0, *FLAT),
            two((0.0, inf), 0, *FLAT),
            two((0.0, 2.0), 0, (log(2), 0), (0, 0.5, 0)),
        ),
    ),
    Row(
        "xlog1py",
        so.xlog1py,
        lambda xp, x, y: xp.where(x == 0, 0.0, x * xp.log1p(y)),
        (
            two((2.0, 2.0), 2 * log(3), (log(3), 2 / 3), (0, 1 / 3, -2 / 9)),
            two((0.0, -1.0), 0, *FLAT),
            two((0.0, -2.0), 0, *FLAT),
            two((0.0, inf), 0, *FLAT),
            two((0.0, 1.0), 0, (log(2), 0), (0, 0.5, 0)),
        ),
    ),
    Row(
        "entr",
        so.entr,
        lambda xp, p: xp.where(p > 0, -p * xp.log(p), 0.0),
        (
            one(0.5, log(2) / 2, log(2) - 1, -2),
            one(0.1, 0.1 * log(10), 1.30258509299404568, -10),
            one(0.0, 0, 0, 0),
            one(-1.0, -inf, 0, 0),
        ),
    ),
    Row(
        "rel_entr",
        so.rel_entr,
        lambda xp, p, q: xp.where(p == 0, 0.0, p * xp.log(p / q)),
        (
            two((0.5, 0.25), log(2) / 2, (log(2) + 1, -2), (2, -4, 8)),
            two((0.0, 0.0), 0, *FLAT),
            two((0.0, 0.5), 0, *FLAT),
            two((0.5, 0.0), inf, *FLAT),
            two((-0.5, 0.5), inf, *FLAT),
            two((0.0, -0.5), inf, *FLAT),
        ),
    ),
    Row(
        "safe_logaddexp",
        so.safe_logaddexp,
        lambda xp, x, y: xp.log(xp.exp(x) + xp.exp(y)),
        (
            two((0.0, 0.0), log(2), (0.5, 0.5), (0.25, -0.25, 0.25)),
            two((0.0, log(3)), log(4), (0.25, 0.75), (3 / 16, -3 / 16, 3 / 16)),
            two((-inf, -inf), -inf, *FLAT),
            two((-inf, 2.0), 2, (0, 1), (0, 0, 0)),
            two((1000.0, -1000.0), 1000, (1, 0), (0, 0, 0)),
        ),
    ),
    Row(
        "safe_logaddexp, infinite",
        so.safe_logaddexp,
        lambda xp, x, y: xp.log(xp.exp(x) + xp.exp(y)),
        (
            two((0.0, 0.0), log(2), (0.5, 0.5), (0.25, -0.25, 0.25)),
            two((inf, inf), inf, (0.5, 0.5), (0, 0, 0)),
            two((inf, 1.0), inf, (1, 0), (0, 0, 0)),
        ),
        unsupported={
            ("tensorflow", mode): (
                ("forward", "rev-fwd", "fwd-fwd"),
                "the jvp of 2 * inf is NaN (2.21)",
            )
            for mode in MODES["tensorflow"]
        },
    ),
    Row(
        "safe_logsubexp",
        so.safe_logsubexp,
        lambda xp, x, y: xp.log(xp.exp(x) - xp.exp(y)),
        (
            two((log(3), 0.0), log(2), (1.5, -0.5), (-0.75, 0.75, -0.75)),
            two((0.0, 0.0), -inf, *FLAT),
            two((-inf, -inf), -inf, *FLAT),
            two((0.0, 1.0), -inf, *FLAT),
            two((2.0, -inf), 2, (1, 0), (0, 0, 0)),
        ),
    ),
    Row(
        "safe_binary_cross_entropy",
        so.safe_binary_cross_entropy,
        lambda xp, x, y: (
            -y * xp.log(1 / (1 + xp.exp(-x))) - (1 - y) * xp.log(1 - 1 / (1 + xp.exp(-x)))
        ),
        (
            two((0.0, 1.0), log(2), (-0.5, 0), (0.25, -1, 0)),
            two((0.0, 0.0), log(2), (0.5, 0), (0.25, -1, 0)),
            two((1.0, 0.25), SP - 0.25, (S - 0.25, -1), (S * (1 - S), -1, 0)),
            two((900.0, 1.0), 0, (0, -900), (0, -1, 0)),
            two((900.0, 0.0), 900, (1, -900), (0, -1, 0)),
            two((-900.0, 1.0), 900, (-1, 900), (0, -1, 0)),
            two((-900.0, 0.0), 0, (0, 900), (0, -1, 0)),
            two((inf, 1.0), 0, *FLAT),
            two((-inf, 0.0), 0, *FLAT),
            two((-inf, 1.0), inf, *FLAT),
        ),
    ),
    *(
        Row(
            f"safe_focal_loss, gamma={gamma}",
            partial(so.safe_focal_loss, gamma=gamma),
            partial(plain_focal, gamma=gamma),
            (
                focal((0.0, 1.0), gamma),
                focal((0.0, 0.0), gamma),
                focal((1.0, 1.0), gamma),
                focal((-2.0, 1.0), gamma),
                focal((1.0, 0.25), gamma),
                two((900.0, 1.0), 0, (0, -900), (0, -1, 0)),
                two((900.0, 0.0), 900, (1, -900), (0, -1, 0)),
                two((-900.0, 1.0), 900, (-1, 900), (0, -1, 0)),
                two((inf, 1.0), 0, *FLAT),
                two((-inf, 1.0), inf, *FLAT),
            ),
        )
        for gamma in (0, 0.5, 2)
    ),
    Row(
        "safe_asin",
        so.safe_asin,
        lambda xp, x: xp.where(xp.abs(x) < 1, xp.asin(x), 0.0),
        (
            one(0.0, 0, 1, 0),
            one(0.6, math.asin(0.6), 1.25, 0.6 / 0.512),
            one(1.0, pi / 2, 0, 0),
            one(-1.0, -pi / 2, 0, 0),
            one(2.0, pi / 2, 0, 0),
            one(-inf, -pi / 2, 0, 0),
        ),
    ),
    Row(
        "safe_acos",
        so.safe_acos,
        lambda xp, x: xp.where(xp.abs(x) < 1, xp.acos(x), 0.0),
        (
            one(0.0, pi / 2, -1, 0),
            one(0.6, math.acos(0.6), -1.25, -0.6 / 0.512),
            one(1.0, 0, 0, 0),
            one(-1.0, pi, 0, 0),
            one(2.0, 0, 0, 0),
            one(-inf, pi, 0, 0),
        ),
    ),
    Row(
        "safe_acosh",
        so.safe_acosh,
        lambda xp, x: xp.where(x > 1, xp.acosh(x), 0.0),
        (
            one(1.25, log(2), 4 / 3, -1.25 / 0.421875),
            one(1.0, 0, 0, 0),
            one(0.0, 0, 0, 0),
            one(-2.0, 0, 0, 0),
        ),
    ),
    Row(
        "safe_atanh",
        so.safe_atanh,
        lambda xp, x: xp.where(xp.abs(x) < 1, xp.atanh(x), 0.0),
        (
            one(0.5, log(3) / 2, 4 / 3, 16 / 9),
            one(0.25, log(5 / 3) / 2, 16 / 15, 128 / 225),
            one(1.0, log(4 / EPS - 1) / 2, 0, 0),
            one(-1.0, -log(4 / EPS - 1) / 2, 0, 0),
            one(-3.0, -log(4 / EPS - 1) / 2, 0, 0),
        ),
        only_float64=True,
    ),
    Row(
        "safe_atan2",
        so.safe_atan2,
        lambda xp, y, x: xp.where((x == 0) & (y == 0), 0.0, xp.atan2(y, x)),
        (
            two((0.0, 0.0), 0, *FLAT),
            two((-0.0, -0.0), 0, *FLAT),
            two((1.0, 1.0), pi / 4, (0.5, -0.5), (-0.5, 0, 0.5)),
            two((1.0, 0.0), pi / 2, (0, -1), (0, 1, 0)),
            two((0.0, -5.0), pi, (-0.2, 0), (0, -0.04, 0)),
        ),
        {"torch": "its rule for atan2 is 0 at the origin"} if torch_from(2, 10) else {},
        unsupported=CONSTANT,
    ),
    Row(
        "safe_hypot",
        so.safe_hypot,
        lambda xp, x, y: xp.sqrt(x * x + y * y),
        (
            two((0.0, 0.0), 0, *FLAT),
            two((3.0, 4.0), 5, (0.6, 0.8), (0.128, -0.096, 0.072)),
            two((0.0, -2.0), 2, (0, -1), (0.5, 0, 0)),
        ),
        unsupported=CONSTANT,
    ),
    Row(
        "safe_atan2, scaled",
        so.safe_atan2,
        lambda xp, y, x: xp.atan2(y, x),
        (
            two((1e-200, 1e-200), pi / 4, (0.5e200, -0.5e200), None),
            two((1e200, 1e200), pi / 4, (0.5e-200, -0.5e-200), None),
        ),
        unsupported=CONSTANT,
    ),
    Row(
        "safe_hypot, scaled",
        so.safe_hypot,
        lambda xp, x, y: xp.sqrt(x * x + y * y),
        (
            two((1e200, 1e200), sqrt(2) * 1e200, (sqrt(0.5), sqrt(0.5)), None),
            two((1e-200, 0.0), 1e-200, (1, 0), None),
        ),
        unsupported=CONSTANT,
    ),
    Row(
        "sinc",
        so.sinc,
        lambda xp, x: xp.where(x == 0, 1.0, xp.sin(pi * x) / (pi * x)),
        (
            one(0.0, 1, 0, -(pi**2) / 3),
            one(0.5, 2 / pi, -4 / pi, 16 / pi - 2 * pi),
            one(1e-8, 1, -(pi**2) / 3 * 1e-8, -(pi**2) / 3),
            one(1.5, -2 / (3 * pi), 4 / (9 * pi), 2 * pi / 3 - 16 / (27 * pi)),
        ),
    ),
    Row(
        "exprel",
        so.exprel,
        lambda xp, x: xp.where(x == 0, 1.0, xp.expm1(x) / x),
        (
            one(0.0, 1, 1 / 2, 1 / 3),
            one(1e-8, 1 + 0.5e-8, 1 / 2 + 1e-8 / 3, 1 / 3 + 1e-8 / 4),
            one(1.0, e - 1, 1, e - 2),
            one(-1.0, 1 - 1 / e, 1 - 2 / e, 2 - 5 / e),
            one(-inf, 0, 0, 0),
        ),
    ),
    Row(
        "sinhc",
        so.sinhc,
        lambda xp, x: xp.where(x == 0, 1.0, (xp.exp(x) - xp.exp(-x)) / 2 / x),
        (
            one(0.0, 1, 0, 1 / 3),
            one(1e-8, 1, 1e-8 / 3, 1 / 3),
            one(1.0, SINH, COSH - SINH, 3 * SINH - 2 * COSH),
            one(-1.0, SINH, SINH - COSH, 3 * SINH - 2 * COSH),
        ),
    ),
    Row(
        "boxcox",
        so.boxcox,
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
        unsupported=CONSTANT,
    ),
    Row(
        "inv_boxcox",
        so.inv_boxcox,
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
        unsupported=CONSTANT,
    ),
    Row(
        "logarithmic_mean",
        so.logarithmic_mean,
        lambda xp, x, y: xp.where(x == y, x, (x - y) / (xp.log(x) - xp.log(y))),
        (
            two((2.0, 2.0), 2, (1 / 2, 1 / 2), (-1 / 12, 1 / 12, -1 / 12)),
            two((e, 1.0), e - 1, (1 / e, e - 2), ((e - 3) / e**2, (3 - e) / e, e - 3)),
            two((0.0, 3.0), 0, *FLAT),
            two((3.0, 0.0), 0, *FLAT),
            two((0.0, 0.0), 0, *FLAT),
        ),
        unsupported=CONSTANT,
    ),
    *composites.CASES,
    *special_cases.ROWS,
)
