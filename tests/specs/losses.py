"""The specifications of the operations in `_ops/losses.py`."""

# ruff: noqa: ARG001  (every formula takes the format)

import math
from functools import partial
from math import e, inf, log, nan

import mpmath
import numpy as np

import safeops as so
import slices
from exponents import rounded
from formulas import of_two, whole_line
from points import FLAT, OwnSpec, Row, Spec, two
from slices import SliceSpec

S = 1 / (1 + 1 / e)  # the sigmoid of 1
SP = log(1 + e)  # softplus of 1


def plain_focal(xp, x, y, gamma):
    """Return what people write: a power of one less the probability."""
    p = 1 / (1 + xp.exp(-x))
    ours = y * p + (1 - y) * (1 - p)
    return -((1 - ours) ** gamma) * xp.log(ours)


def focal_point_of_one(x, gamma):
    """Return the loss of a label of 1, its slope and its second derivative."""
    s, t = 1 / (1 + math.exp(-x)), 1 / (1 + math.exp(x))
    loss, power = log(1 + math.exp(-x)), t**gamma
    second = gamma * s * (gamma * s * loss + t) + s * t * (gamma * (1 - loss) + 1)
    return power * loss, -power * (gamma * s * loss + t), power * second


def focal_point(args, gamma):
    """Return a point of the focal loss."""
    x, y = args
    (a, a1, a2), (b, b1, b2) = focal_point_of_one(x, gamma), focal_point_of_one(-x, gamma)
    gradient = (y * a1 - (1 - y) * b1, a - b)
    return two(args, y * a + (1 - y) * b, gradient, (y * a2 + (1 - y) * b2, a1 + b1, 0))


def cross_entropy_of_two(form, x, y):
    """`safe_binary_cross_entropy`."""
    far = np.exp(-np.abs(x))
    rest, tail = np.log1p(far), far / (1 + far)
    line, slope = np.where(x > 0, x * (1 - y), -x * y), np.where(x > 0, 1 - y, -y)
    zero = np.zeros_like(x)
    return of_two(
        line + rest,
        (slope + np.where(x > 0, -tail, tail), -x),
        tail / (1 + far),
        zero - 1,
        zero,
        gradient_size=(np.abs(slope) + tail, np.abs(x)),
    )


def focal_of_one(x):
    """Return the focal loss of a label of 1, its derivatives, and the sizes of these."""
    far = np.exp(-np.abs(x))
    small, large = far / (1 + far), 1 / (1 + far)
    s, t = np.where(x > 0, large, small), np.where(x > 0, small, large)
    loss = np.where(x > 0, 0, -x) + np.log1p(far)
    power = t**2
    second = 2 * s * (2 * s * loss + t) + s * t * (2 * (1 - loss) + 1)
    size = 2 * s * (2 * s * loss + t) + s * t * (2 * (1 + loss) + 1)
    found = power * loss, -power * (2 * s * loss + t), power * second
    # The power is the exponential of a rounded number.
    blur = 1 + np.abs(np.where(x > 0, x, 0)) / 2
    return found, (found[0] * blur, -found[1] * blur, power * size * blur)


def focal(form, x, y):
    """`safe_focal_loss`."""
    ((a, a1, a2), at), ((b, b1, b2), bt) = focal_of_one(x), focal_of_one(-x)
    one, other = np.abs(y), np.abs(1 - y)
    return of_two(
        y * a + (1 - y) * b,
        (y * a1 - (1 - y) * b1, a - b),
        y * a2 + (1 - y) * b2,
        a1 + b1,
        np.zeros_like(x),
        size=one * at[0] + other * bt[0],
        gradient_size=(one * at[1] + other * bt[1], at[0] + bt[0]),
        hessian_size=one * at[2] + other * bt[2] + at[1] + bt[1],
    )


def logits_and_labels(dtype):
    """Return logits of every exponent, and some where no exponential is 0 or 1, with labels."""
    x = np.concatenate([*whole_line(dtype), np.linspace(-40, 40, 81)])
    x, y = np.meshgrid(x[:: 7 if dtype == "float64" else 1], [0, 0.25, 0.5, 1])
    return rounded(x.ravel(), dtype), rounded(y.ravel(), dtype)


def focal_of_mpmath(x):
    """Return the focal loss of a label of 1."""
    return (1 + mpmath.exp(x)) ** -2 * mpmath.log1p(mpmath.exp(-x))


SPECS = (
    Spec(
        "safe_binary_cross_entropy",
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
        formula=cross_entropy_of_two,
        domain=logits_and_labels,
        mpmath=lambda x, y: (
            y * mpmath.log1p(mpmath.exp(-x)) + (1 - y) * mpmath.log1p(mpmath.exp(x))
        ),
    ),
    Spec(
        "safe_focal_loss",
        plain_focal,
        variants=tuple(
            Row(
                f"safe_focal_loss, gamma={gamma}",
                partial(so.safe_focal_loss, gamma=gamma),
                partial(plain_focal, gamma=gamma),
                (
                    focal_point((0.0, 1.0), gamma),
                    focal_point((0.0, 0.0), gamma),
                    focal_point((1.0, 1.0), gamma),
                    focal_point((-2.0, 1.0), gamma),
                    focal_point((1.0, 0.25), gamma),
                    two((900.0, 1.0), 0, (0, -900), (0, -1, 0)),
                    two((900.0, 0.0), 900, (1, -900), (0, -1, 0)),
                    two((-900.0, 1.0), 900, (-1, 900), (0, -1, 0)),
                    two((inf, 1.0), 0, *FLAT),
                    two((-inf, 1.0), inf, *FLAT),
                ),
            )
            for gamma in (0, 0.5, 2)
        ),
        formula=focal,
        domain=logits_and_labels,
        mpmath=lambda x, y: y * focal_of_mpmath(x) + (1 - y) * focal_of_mpmath(-x),
    ),
    OwnSpec("safe_nll"),  # which picks a number: `test_losses.py` compares it with cross entropy
    SliceSpec(
        "safe_kl_divergence",
        (
            slices.Row(
                "safe_kl_divergence",
                lambda p, q, where: so.safe_kl_divergence(p, q, where=where),
                lambda xp, p, q, where: xp.sum(xp.where(where, p * xp.log(p / q), 0.0), axis=-1),
                lambda p, q: sum(s * mpmath.log(s / t) for s, t in zip(p, q, strict=True)),
                (
                    slices.Slice(((0.25, 0.5, 0.25), (0.5, 0.25, 0.25))),
                    slices.Slice(((0.25, 0.75, nan), (0.5, 0.5, nan)), slices.PART),
                    slices.Slice(((0.25, 0.75, -inf), (0.5, 0.5, 0.0)), slices.PART),
                    slices.Slice(((0.0, 0.0, 0.0), (0.5, 0.5, 0.0)), flat=0),
                    slices.Slice((slices.V, (0.25, 0.5, 0.25)), slices.NONE, 0),
                ),
            ),
        ),
    ),
)
