"""The specifications of the operations in `_ops/logs.py`."""

# ruff: noqa: ARG001  (every formula takes the format)

from math import inf, log

import mpmath
import numpy as np

import safeops as so
from derivatives import MODES
from exponents import FORMATS, around, pairs, positive, rounded, signed, wide
from formulas import LN2, LN10, half_line, nonzero, of_one, of_two, whole_line
from points import EPS, FLAT, TINY, Row, Spec, one, two


def logarithm(base, form, x):
    """`safe_log` and its like."""
    bad = x < form.normal
    fill = np.log(wide(form.normal)) / base
    return of_one(np.log(x) / base, 1 / x / base, -1 / x / x / base).filled(bad, fill)


def logarithm_of_1_plus(form, x):
    """`safe_log1p`."""
    y = 1 + x
    bad = x <= -1
    return of_one(np.log1p(x), 1 / y, -1 / y / y).filled(bad, np.log(wide(form.eps / 2)))


def logit(form, x):
    """`safe_logit`."""
    rest = 1 - x
    near = np.abs(x - 0.5) < 0.25
    value = np.where(near, np.log1p((x - rest) / rest), np.log(x) - np.log1p(-x))
    ends = np.where(x > 0.5, -np.log(wide(form.eps / 2)), np.log(wide(form.normal)))
    left, right = 1 / x / x, 1 / rest / rest
    derivatives = of_one(value, 1 / x / rest, right - left, hessian_size=left + right)
    return derivatives.filled((x < form.normal) | (x >= 1), ends)


def log_product(form, x, y):
    """`xlogy`."""
    bad = (np.abs(x) < nonzero(form)) & (y < form.normal)
    zero, log = np.zeros_like(x), np.log(y)
    derivatives = of_two(x * log, (log, x / y), zero, 1 / y, -x / y / y)
    return derivatives.filled(bad, 0)


def log1p_product(form, x, y):
    """`xlog1py`."""
    bad = (np.abs(x) < nonzero(form)) & (y <= -1)
    zero, log, over = np.zeros_like(x), np.log1p(y), 1 / (1 + y)
    square = over * over
    derivatives = of_two(x * log, (log, x * over), zero, over, -x * square)
    return derivatives.filled(bad, 0)


def entropy(form, p):
    """`entr`."""
    log = np.log(p)
    size = (np.abs(log) + 1,)
    derivatives = of_one(-p * log, -log - 1, -1 / p, gradient_size=size)
    return derivatives.filled(p < form.normal, np.where(p <= -form.normal, -np.inf, 0))


def log_ratio(p, q):
    """Return ``log(p / q)``, near 1 from the difference, which is exact there."""
    near = (p < 2 * q) & (q < 2 * p)
    return np.where(near, np.log1p((p - q) / q), np.log(p / q))


def relative_entropy(form, p, q):
    """`rel_entr`."""
    ratio = p / q
    log = log_ratio(p, q)
    derivatives = of_two(
        p * log,
        (log + 1, -ratio),
        1 / p,
        -1 / q,
        ratio / q,
        gradient_size=(np.abs(log) + 1, ratio),
        steps=(1 / p / p, 1 / q / q),
        tangents=(1 / p, 1 / q),
    )
    nothing = (np.abs(p) < form.normal) & (q > -form.normal)
    bad = (p < form.normal) | (q < form.normal)
    return derivatives.filled(bad, np.where(nothing, 0, np.inf))


def by_difference(x, y, *slopes):
    """Return the sizes of slopes that are exponentials of the rounded ``x - y``."""
    return tuple(np.abs(slope) * (1 + np.abs(x - y) / 8) for slope in slopes)


def log_sum(form, x, y):
    """`safe_logaddexp`."""
    rest = np.log1p(np.exp(-np.abs(x - y)))
    value = np.maximum(x, y) + rest
    to_x, to_y = 1 / (1 + np.exp(y - x)), 1 / (1 + np.exp(x - y))
    both = to_x * to_y
    size = np.maximum(np.abs(np.maximum(x, y)), rest)
    slopes = by_difference(x, y, to_x, to_y)
    return of_two(value, (to_x, to_y), both, -both, both, size=size, gradient_size=slopes)


def log_difference(form, x, y):
    """`safe_logsubexp`."""
    d = y - x
    rest = np.where(d > -LN2, np.log(-np.expm1(d)), np.log1p(-np.exp(d)))
    to_x = -1 / np.expm1(d)
    to_y = -np.exp(d) * to_x
    both = to_y * to_x
    size = np.maximum(np.abs(x), np.abs(rest))
    slopes = by_difference(x, y, to_x, to_y)
    exact = of_two(x + rest, (to_x, to_y), both, -both, both, size=size, gradient_size=slopes)
    return exact.filled((x <= y) | (x - y < nonzero(form)), -np.inf)


def near_and_far(dtype):
    """Return two arguments whose difference is of every size, beside those of the grid."""
    x, y = pairs(dtype)
    distance = positive(dtype)
    start = np.array([0.0, 1.0, -3.0])[:, None]
    more = np.broadcast_arrays(start, start - distance)
    x, y = (np.concatenate([a, b.ravel()]) for a, b in zip((x, y), more, strict=True))
    return rounded(x, dtype), rounded(y, dtype)


def probabilities(dtype):
    """
    Return two arguments, none next to the smallest normal number.

    There TensorFlow's product with ``1 / 1``, which it rounds down, is flushed.
    """
    x, y = pairs(dtype)
    form = FORMATS[dtype]
    least = np.minimum(*(np.where(np.abs(a) < form.normal, 1, np.abs(a)) for a in (x, y)))
    usual = least > form.normal * (1 + 4 * form.eps)
    return x[usual], y[usual]


def beside_minus_1(dtype):
    """Return two arguments, the second of which comes near to -1 too."""
    x, y = pairs(dtype)
    more = np.meshgrid(
        signed(dtype, mantissas=(1.0,))[:: 60 if dtype == "float64" else 9], around(-1, dtype)
    )
    return tuple(np.concatenate([a, b.ravel()]) for a, b in zip((x, y), more, strict=True))


def log_of(base):
    """Return the formula of a logarithm."""
    return lambda form, x: logarithm(base, form, x)


SPECS = (
    Spec(
        "safe_log",
        lambda xp, x: xp.where(x > 0, xp.log(x), log(TINY)),
        (
            one(2.0, log(2), 0.5, -0.25),
            one(0.0, log(TINY), 0, 0),
            one(-2.0, log(TINY), 0, 0),
            one(-inf, log(TINY), 0, 0),
        ),
        only_float64=True,
        variants=(
            Row(
                "safe_log with fill_value",
                lambda x: so.safe_log(x, fill_value=0),
                lambda xp, x: xp.where(x > 0, xp.log(x), 0.0),
                (one(2.0, log(2), 0.5, -0.25), one(0.0, 0, 0, 0), one(-2.0, 0, 0, 0)),
            ),
        ),
        formula=log_of(1),
        domain=whole_line,
        mpmath=mpmath.log,
    ),
    Spec(
        "safe_log2",
        lambda xp, x: xp.where(x > 0, xp.log2(x), -1.0),
        (one(2.0, 1, 0.5 / log(2), -0.25 / log(2)), one(0.0, -1, 0, 0), one(-2.0, -1, 0, 0)),
        options={"fill_value": -1},
        formula=log_of(LN2),
        domain=whole_line,
        mpmath=lambda x: mpmath.log(x, 2),
    ),
    Spec(
        "safe_log10",
        lambda xp, x: xp.where(x > 0, xp.log10(x), -1.0),
        (
            one(10.0, 1, 0.1 / log(10), -0.01 / log(10)),
            one(0.0, -1, 0, 0),
            one(-2.0, -1, 0, 0),
        ),
        options={"fill_value": -1},
        formula=log_of(LN10),
        domain=whole_line,
        mpmath=mpmath.log10,
    ),
    Spec(
        "safe_log1p",
        lambda xp, x: xp.where(x > -1, xp.log1p(x), -1.0),
        (one(1.0, log(2), 0.5, -0.25), one(-1.0, -1, 0, 0), one(-2.0, -1, 0, 0)),
        options={"fill_value": -1},
        formula=logarithm_of_1_plus,
        domain=whole_line,
        mpmath=mpmath.log1p,
    ),
    Spec(
        "safe_logit",
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
        formula=logit,
        domain=half_line,
        mpmath=lambda x: mpmath.log(x) - mpmath.log1p(-x),
    ),
    Spec(
        "xlogy",
        lambda xp, x, y: xp.where(x == 0, 0.0, x * xp.log(y)),
        (
            two((2.0, 3.0), 2 * log(3), (log(3), 2 / 3), (0, 1 / 3, -2 / 9)),
            two((0.0, 0.0), 0, *FLAT),
            two((0.0, -1.0), 0, *FLAT),
            two((0.0, inf), 0, *FLAT),
            two((0.0, 2.0), 0, (log(2), 0), (0, 0.5, 0)),
        ),
        formula=log_product,
        domain=pairs,
        mpmath=lambda x, y: x * mpmath.log(y),
    ),
    Spec(
        "xlog1py",
        lambda xp, x, y: xp.where(x == 0, 0.0, x * xp.log1p(y)),
        (
            two((2.0, 2.0), 2 * log(3), (log(3), 2 / 3), (0, 1 / 3, -2 / 9)),
            two((0.0, -1.0), 0, *FLAT),
            two((0.0, -2.0), 0, *FLAT),
            two((0.0, inf), 0, *FLAT),
            two((0.0, 1.0), 0, (log(2), 0), (0, 0.5, 0)),
        ),
        formula=log1p_product,
        domain=beside_minus_1,
        mpmath=lambda x, y: x * mpmath.log1p(y),
    ),
    Spec(
        "entr",
        lambda xp, p: xp.where(p > 0, -p * xp.log(p), 0.0),
        (
            one(0.5, log(2) / 2, log(2) - 1, -2),
            one(0.1, 0.1 * log(10), 1.30258509299404568, -10),
            one(0.0, 0, 0, 0),
            one(-1.0, -inf, 0, 0),
        ),
        formula=entropy,
        domain=half_line,
        mpmath=lambda p: -p * mpmath.log(p),
    ),
    Spec(
        "rel_entr",
        lambda xp, p, q: xp.where(p == 0, 0.0, p * xp.log(p / q)),
        (
            two((0.5, 0.25), log(2) / 2, (log(2) + 1, -2), (2, -4, 8)),
            two((0.0, 0.0), 0, *FLAT),
            two((0.0, 0.5), 0, *FLAT),
            two((0.5, 0.0), inf, *FLAT),
            two((-0.5, 0.5), inf, *FLAT),
            two((0.0, -0.5), inf, *FLAT),
        ),
        formula=relative_entropy,
        domain=probabilities,
        mpmath=lambda p, q: p * mpmath.log(p / q),
        synonyms="KL divergence, Kullback-Leibler",
    ),
    Spec(
        "safe_logaddexp",
        lambda xp, x, y: xp.log(xp.exp(x) + xp.exp(y)),
        (
            two((0.0, 0.0), log(2), (0.5, 0.5), (0.25, -0.25, 0.25)),
            two((0.0, log(3)), log(4), (0.25, 0.75), (3 / 16, -3 / 16, 3 / 16)),
            two((-inf, -inf), -inf, *FLAT),
            two((-inf, 2.0), 2, (0, 1), (0, 0, 0)),
            two((1000.0, -1000.0), 1000, (1, 0), (0, 0, 0)),
        ),
        variants=(
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
        ),
        formula=log_sum,
        domain=near_and_far,
        mpmath=lambda x, y: max(x, y) + mpmath.log1p(mpmath.exp(-abs(x - y))),
    ),
    Spec(
        "safe_logsubexp",
        lambda xp, x, y: xp.log(xp.exp(x) - xp.exp(y)),
        (
            two((log(3), 0.0), log(2), (1.5, -0.5), (-0.75, 0.75, -0.75)),
            two((0.0, 0.0), -inf, *FLAT),
            two((-inf, -inf), -inf, *FLAT),
            two((0.0, 1.0), -inf, *FLAT),
            two((2.0, -inf), 2, (1, 0), (0, 0, 0)),
        ),
        formula=log_difference,
        domain=near_and_far,
        mpmath=lambda x, y: x + mpmath.log(-mpmath.expm1(y - x)),
    ),
)
