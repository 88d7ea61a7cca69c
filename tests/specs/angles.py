"""The specifications of the operations in `_ops/angles.py`."""

# ruff: noqa: ARG001  (every formula takes the format)

import math
from math import inf, log, pi, sqrt

import mpmath
import numpy as np

import safeops as so
from exponents import pairs, wide
from formulas import PI, nonzero, of_one, of_two, whole_line
from frameworks import torch_from
from points import EPS, FLAT, Row, Spec, one, two


def where_cancelled(x, second, terms):
    """Return the sizes of second derivatives; beyond one half those of terms, which cancel."""
    return np.where(np.abs(x) < 0.5, np.abs(second), terms)


def arc_sine(form, x):
    """`safe_asin`."""
    square = (1 - x) * (1 + x)
    slope = 1 / np.sqrt(square)
    ends = np.where(x > 0, PI / 2, -PI / 2)
    second = x * slope / square
    size = where_cancelled(x, second, slope / square)
    derivatives = of_one(np.arcsin(x), slope, second, hessian_size=size)
    return derivatives.filled(np.abs(x) >= 1, ends)


def arc_cosine(form, x):
    """`safe_acos`."""
    square = (1 - x) * (1 + x)
    slope = -1 / np.sqrt(square)
    ends = np.where(x > 0, 0, PI)
    second = x * slope / square
    size = where_cancelled(x, second, np.abs(slope / square))
    derivatives = of_one(np.arccos(x), slope, second, hessian_size=size)
    return derivatives.filled(np.abs(x) >= 1, ends)


def area_cosine(form, x):
    """`safe_acosh`."""
    slope = 1 / np.sqrt(x - 1) / np.sqrt(x + 1)
    second = -x * slope * slope * slope
    return of_one(np.arccosh(x), slope, second).filled(x <= 1, 0)


def area_tangent(form, x):
    """`safe_atanh`."""
    slope = 1 / ((1 - x) * (1 + x))
    largest = wide(1) - form.eps / 2
    ends = np.sign(x) * np.arctanh(largest)
    second = 2 * x * slope * slope
    size = where_cancelled(x, second, 2 * slope * slope)
    derivatives = of_one(np.arctanh(x), slope, second, hessian_size=size)
    return derivatives.filled(np.abs(x) >= 1, ends)


def is_origin(form, x, y):
    """Whether both coordinates count as 0."""
    return (np.abs(x) < nonzero(form)) & (np.abs(y) < nonzero(form))


def angle(form, y, x):
    """`safe_atan2`."""
    r = np.hypot(x, y)
    c, s = x / r, y / r
    along, across = 2 * c * s / r / r, (s - c) * (s + c) / r / r
    derivatives = of_two(np.arctan2(y, x), (c / r, -s / r), -along, across, along)
    return derivatives.filled(is_origin(form, x, y), 0)


def length(form, x, y):
    """`safe_hypot`."""
    r = np.hypot(x, y)
    c, s = x / r, y / r
    derivatives = of_two(r, (c, s), s * s / r, -c * s / r, c * c / r)
    return derivatives.filled(is_origin(form, x, y), 0)


def cardinal_sine(form, x):
    """`sinc`."""
    t = PI * x
    turn = PI * (x - np.rint(x))  # exact before the product, and near 0 where the sine is
    side = np.where(np.mod(np.rint(x), 2) == 1, -1, 1)
    sine, cosine = side * np.sin(turn), side * np.cos(turn)
    small = np.abs(t) < 0.25
    u = np.where(small, t * t, 0)
    t = np.where(small, 1, t)
    value = np.where(small, _series(u, 0), sine / t)
    slope = np.where(small, PI * x * PI * _series(u, 1), PI * (cosine - sine / t) / t)
    second = (
        PI * PI * np.where(small, _series(u, 2), (-sine - 2 * cosine / t + 2 * sine / t / t) / t)
    )
    # Terms of size 1 / t, and pi * t, whose rounding goes into the sine.
    size = np.minimum(1, 1 / np.abs(t)) + 1 * (~small)
    sizes = {"gradient_size": (PI * size,), "hessian_size": PI * PI * size}
    return of_one(value, slope, second, size=size, **sizes)


def _series(u, order):
    """Return sin(t) / t, its derivative over t, or its second derivative, of u = t**2."""
    total = np.zeros_like(u)
    for n in range(14, -1, -1):
        top = (2 * n + 2 * (order > 0), 2 * n + 1)
        factor = (1, top[0], top[0] * top[1])[order]
        shift = n + (order > 0)
        total = total * u + (-1) ** shift * wide(factor) / math.factorial(2 * shift + 1)
    return total


SPECS = (
    Spec(
        "safe_asin",
        lambda xp, x: xp.where(xp.abs(x) < 1, xp.asin(x), 0.0),
        (
            one(0.0, 0, 1, 0),
            one(0.6, math.asin(0.6), 1.25, 0.6 / 0.512),
            one(1.0, pi / 2, 0, 0),
            one(-1.0, -pi / 2, 0, 0),
            one(2.0, pi / 2, 0, 0),
            one(-inf, -pi / 2, 0, 0),
        ),
        formula=arc_sine,
        domain=whole_line,
        mpmath=mpmath.asin,
        synonyms="arcsin",
    ),
    Spec(
        "safe_acos",
        lambda xp, x: xp.where(xp.abs(x) < 1, xp.acos(x), 0.0),
        (
            one(0.0, pi / 2, -1, 0),
            one(0.6, math.acos(0.6), -1.25, -0.6 / 0.512),
            one(1.0, 0, 0, 0),
            one(-1.0, pi, 0, 0),
            one(2.0, 0, 0, 0),
            one(-inf, pi, 0, 0),
        ),
        formula=arc_cosine,
        domain=whole_line,
        mpmath=mpmath.acos,
        synonyms="arccos",
    ),
    Spec(
        "safe_acosh",
        lambda xp, x: xp.where(x > 1, xp.acosh(x), 0.0),
        (
            one(1.25, log(2), 4 / 3, -1.25 / 0.421875),
            one(1.0, 0, 0, 0),
            one(0.0, 0, 0, 0),
            one(-2.0, 0, 0, 0),
        ),
        formula=area_cosine,
        domain=whole_line,
        lost=4,
        mpmath=mpmath.acosh,
        synonyms="arccosh",
    ),
    Spec(
        "safe_atanh",
        lambda xp, x: xp.where(xp.abs(x) < 1, xp.atanh(x), 0.0),
        (
            one(0.5, log(3) / 2, 4 / 3, 16 / 9),
            one(0.25, log(5 / 3) / 2, 16 / 15, 128 / 225),
            one(1.0, log(4 / EPS - 1) / 2, 0, 0),
            one(-1.0, -log(4 / EPS - 1) / 2, 0, 0),
            one(-3.0, -log(4 / EPS - 1) / 2, 0, 0),
        ),
        only_float64=True,
        formula=area_tangent,
        domain=whole_line,
        mpmath=mpmath.atanh,
        synonyms="arctanh",
    ),
    Spec(
        "safe_atan2",
        lambda xp, y, x: xp.where((x == 0) & (y == 0), 0.0, xp.atan2(y, x)),
        (
            two((0.0, 0.0), 0, *FLAT),
            two((-0.0, -0.0), 0, *FLAT),
            two((1.0, 1.0), pi / 4, (0.5, -0.5), (-0.5, 0, 0.5)),
            two((1.0, 0.0), pi / 2, (0, -1), (0, 1, 0)),
            two((0.0, -5.0), pi, (-0.2, 0), (0, -0.04, 0)),
        ),
        naive_is_right={"torch": "its rule for atan2 is 0 at the origin"}
        if torch_from(2, 10)
        else {},
        variants=(
            Row(
                "safe_atan2, scaled",
                so.safe_atan2,
                lambda xp, y, x: xp.atan2(y, x),
                (
                    two((1e-200, 1e-200), pi / 4, (0.5e200, -0.5e200), None),
                    two((1e200, 1e200), pi / 4, (0.5e-200, -0.5e-200), None),
                ),
            ),
        ),
        formula=angle,
        domain=pairs,
        mpmath=mpmath.atan2,
        synonyms="arctan2, angle of a complex number",
    ),
    Spec(
        "safe_hypot",
        lambda xp, x, y: xp.sqrt(x * x + y * y),
        (
            two((0.0, 0.0), 0, *FLAT),
            two((3.0, 4.0), 5, (0.6, 0.8), (0.128, -0.096, 0.072)),
            two((0.0, -2.0), 2, (0, -1), (0.5, 0, 0)),
        ),
        variants=(
            Row(
                "safe_hypot, scaled",
                so.safe_hypot,
                lambda xp, x, y: xp.sqrt(x * x + y * y),
                (
                    two((1e200, 1e200), sqrt(2) * 1e200, (sqrt(0.5), sqrt(0.5)), None),
                    two((1e-200, 0.0), 1e-200, (1, 0), None),
                ),
            ),
        ),
        formula=length,
        domain=pairs,
        mpmath=lambda x, y: mpmath.sqrt(x * x + y * y),
    ),
    Spec(
        "sinc",
        lambda xp, x: xp.where(x == 0, 1.0, xp.sin(pi * x) / (pi * x)),
        (
            one(0.0, 1, 0, -(pi**2) / 3),
            one(0.5, 2 / pi, -4 / pi, 16 / pi - 2 * pi),
            one(1e-8, 1, -(pi**2) / 3 * 1e-8, -(pi**2) / 3),
            one(1.5, -2 / (3 * pi), 4 / (9 * pi), 2 * pi / 3 - 16 / (27 * pi)),
        ),
        formula=cardinal_sine,
        domain=whole_line,
        mpmath=lambda x: mpmath.sin(mpmath.pi * x) / (mpmath.pi * x),
        synonyms="removable singularity",
    ),
)
