"""The specifications of the operations in `_ops/division.py`."""

# ruff: noqa: ARG001  (every formula takes the format)

from math import inf, nan

import numpy as np

import safeops as so
from exponents import pairs
from formulas import nonzero, of_one, of_two, whole_line
from points import FLAT, Row, Spec, one, two


def quotient(form, x, y, *, bad):
    """Return x / y."""
    zero = np.zeros_like(x)
    square = 1 / y / y
    derivatives = of_two(x / y, (1 / y, -x * square), zero, -square, 2 * x / y * square)
    return derivatives.filled(bad, 0)


def divided(form, x, y):
    """`safe_div`."""
    return quotient(form, x, y, bad=np.abs(y) < form.normal)


def divided_at_zero(form, x, y):
    """`xdivy`."""
    return quotient(form, x, y, bad=(np.abs(x) < nonzero(form)) & (np.abs(y) < form.normal))


def reciprocal(form, x):
    """`safe_reciprocal`."""
    return of_one(1 / x, -1 / x / x, 2 / x / x / x).filled(np.abs(x) < form.normal, 0)


def product(form, x, y):
    """`safe_mul`."""
    zero = np.zeros_like(x)
    return of_two(x * y, (y, x), zero, zero + 1, zero)


SPECS = (
    Spec(
        "safe_div",
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
        variants=(
            Row(
                "safe_div with fill_value",
                lambda x, y: so.safe_div(x, y, fill_value=7.0),
                lambda xp, x, y: xp.where(y == 0, 7.0, x / y),
                (two((1.0, 0.0), 7, *FLAT), two((1.0, 2.0), 0.5, (0.5, -0.25), (0, -0.25, 0.25))),
            ),
        ),
        formula=divided,
        domain=pairs,
        mpmath=lambda x, y: x / y,
        synonyms="divide, true_divide, divide_no_nan, div_no_nan",
    ),
    Spec(
        "safe_reciprocal",
        lambda xp, x: xp.where(x == 0, 0.0, 1 / x),
        (one(4.0, 0.25, -1 / 16, 2 / 64), one(0.0, 0, 0, 0), one(-0.5, -2, -4, -16)),
        formula=reciprocal,
        domain=whole_line,
        mpmath=lambda x: 1 / x,
    ),
    Spec(
        "safe_mul",
        lambda xp, x, y: xp.where(y == 0, 0.0, x * y),
        (
            two((2.0, 3.0), 6, (3, 2), (0, 1, 0)),
            two((2.0, 0.0), 0, (0, 2), (0, 1, 0)),
            two((inf, 0.0), 0, *FLAT),
            two((nan, 0.0), 0, *FLAT),
            two((-inf, -0.0), 0, *FLAT),
        ),
        formula=product,
        domain=pairs,
        mpmath=lambda x, y: x * y,
        synonyms="multiply_no_nan",
    ),
    Spec(
        "xdivy",
        lambda xp, x, y: xp.where(x == 0, 0.0, x / y),
        (
            two((1.0, 4.0), 0.25, (0.25, -1 / 16), (0, -1 / 16, 2 / 64)),
            two((0.0, 0.0), 0, *FLAT),
            two((0.0, 4.0), 0, (0.25, 0), (0, -1 / 16, 0)),
        ),
        formula=divided_at_zero,
        domain=pairs,
        mpmath=lambda x, y: x / y,
    ),
)
