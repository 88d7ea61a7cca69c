"""
The case table of norms and softmax: slices with absent entries, against formulas in mpmath.

A formula sees only the entries that are present; mpmath takes its derivatives with 50 digits. A
slice at which the derivative does not exist is listed as flat: gradient 0 is chosen.
"""

from dataclasses import dataclass, field
from math import inf, nan
from typing import NamedTuple

import mpmath
import numpy as np

import safeops as so
from derivatives import SECOND
from points import CONSTANT

WEIGHTS = (1.0, -0.5, 2.0)  # of the entries of a result, where it has a slice's shape


class Slice(NamedTuple):
    """One slice of each argument, which entries are kept, and its value if it is flat."""

    args: tuple
    where: tuple = (True, True, True)
    flat: object = None  # value of a slice with gradient 0


@dataclass(frozen=True)
class Row:
    """An operation on slices."""

    name: str
    op: object  # function of the arguments, then of where
    naive: object  # function of the namespace, the arguments and where
    formula: object  # function of the entries present; returns a number, or one for each of them
    slices: tuple
    absent: float | None = None  # value at absent entries of a result that has the slice's shape
    minus_inf_is_absent: bool = False
    naive_is_right: dict = field(default_factory=dict)
    unsupported: dict = field(default_factory=dict)


def present(row, piece):
    """Return the indices of the entries that are not absent."""
    gone = {-inf} if row.minus_inf_is_absent else set()
    return [i for i, kept in enumerate(piece.where) if kept and piece.args[0][i] not in gone]


def exact(row, piece):
    """Return the value of a slice, and gradient and Hessian of its weighted sum."""
    size = len(piece.args) * 3
    if piece.flat is not None:
        shape = 3 if is_slice(row) else ()
        return np.full(shape, float(piece.flat)), np.zeros(size), np.zeros((size, size))
    here = present(row, piece)
    where = [3 * a + i for a in range(len(piece.args)) for i in here]
    entries = [piece.args[a][i] for a in range(len(piece.args)) for i in here]

    def weighted(*entries):
        out = row.formula(*np.split(np.array(entries, dtype=object), len(piece.args)))
        return sum(WEIGHTS[i] * y for i, y in zip(here, out, strict=True)) if is_slice(row) else out

    with mpmath.workdps(50):
        value = row.formula(*np.split(np.array([mpmath.mpf(x) for x in entries]), len(piece.args)))
        gradient, hessian = np.zeros(size), np.zeros((size, size))
        for i, row_index in enumerate(where):
            gradient[row_index] = mpmath.diff(weighted, entries, unit(i, len(entries)))
            for j, column in enumerate(where):
                order = tuple(np.add(unit(i, len(entries)), unit(j, len(entries))))
                hessian[row_index, column] = mpmath.diff(weighted, entries, order)
    return placed(row, here, value), gradient, hessian


def is_slice(row):
    """Whether the result has the shape of the slice."""
    return row.absent is not None


def placed(row, here, value):
    """Return the value with absent entries filled in."""
    if not is_slice(row):
        return np.array(float(value))
    out = np.full(3, row.absent)
    out[here] = [float(y) for y in value]
    return out


def unit(i, n):
    """Return the order of differentiation once by entry i."""
    return tuple(int(i == k) for k in range(n))


def norm(x, p=2):
    """Return the norm of numbers."""
    return sum(abs(t) ** p for t in x) ** (mpmath.mpf(1) / p)


def softmax(x):
    """Return the softmax of numbers."""
    return [mpmath.exp(t) / sum(map(mpmath.exp, x)) for t in x]


def logsumexp(x):
    """Return the logarithm of the sum of exponentials."""
    return mpmath.log(sum(map(mpmath.exp, x)))


def plain_softmax(xp, x, where):
    """Return the softmax in which entries left out are at -inf."""
    z = xp.exp(xp.where(where, x, -inf) - xp.max(xp.where(where, x, -inf), axis=-1, keepdims=True))
    return z / xp.sum(z, axis=-1, keepdims=True)


def plain_norm(xp, x, where):
    """Return the root of the sum of squares."""
    return xp.sqrt(xp.sum(xp.where(where, x * x, 0.0), axis=-1))


def norm_of(xp, x):
    """Return the norms of slices as people write them, axes kept."""
    return xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True))


def scores(x):
    """Return numbers less their mean, over their deviation."""
    away = [t - sum(x) / len(x) for t in x]
    return [t * mpmath.sqrt(len(x)) / norm(away) for t in away]


def plain_scores(xp, x, where):
    """Return what people write: deviations, over their root mean square."""
    kept = xp.where(where, 1.0, 0.0 * x)
    number = xp.sum(kept, axis=-1, keepdims=True)
    away = xp.where(where, x - xp.sum(kept * x, axis=-1, keepdims=True) / number, 0.0)
    return away / xp.sqrt(xp.sum(away * away, axis=-1, keepdims=True) / number)


def plain_running(xp, x, where):
    """Return running sums of exponentials below one maximum, as people write them."""
    x = xp.where(where, x, -inf)
    peak = xp.max(x, axis=-1, keepdims=True)
    z = xp.exp(x - peak)
    sums = [sum(z[..., j : j + 1] for j in range(i + 1)) for i in range(3)]
    return peak + xp.log(xp.concat(sums, axis=-1))


def one_two_three(x):
    """Return those numbers, weights of classes, as an array of the framework of x."""
    from safeops._dispatch import backend_of

    xp = backend_of(x).xp
    one = xp.ones_like(xp.reshape(x, (-1, 3))[0, :1])
    return xp.concat([one, 2.0 * one, 3.0 * one], axis=0)


SLOW = {
    ("tensorflow", "unknown-shape"): (
        SECOND,
        "31 doublings, each differentiated twice, trace for 20 s",
    ),
}
V = (3.0, 4.0, 12.0)
PART = (True, True, False)
NONE = (False, False, False)
ABSENT = (-inf, -inf, -inf)

ROWS = (
    Row(
        "safe_norm",
        lambda x, where: so.safe_norm(x, axis=-1, where=where),
        plain_norm,
        norm,
        (
            Slice((V,)),
            Slice(((3.0, 4.0, nan),), PART),
            Slice(((-3.0, 4.0, inf),), PART),
            Slice(((0.0, 0.0, 0.0),), flat=0),
            Slice(((0.0, 0.0, nan),), PART, flat=0),
            Slice((V,), NONE, flat=0),
            Slice(((0.0, 2.0, 0.0),)),
        ),
        unsupported=CONSTANT,
    ),
    Row(
        "safe_norm, ord=1",
        lambda x, where: so.safe_norm(x, axis=-1, where=where, ord=1),
        lambda xp, x, where: xp.sum(xp.where(where, xp.sqrt(x * x), 0.0), axis=-1),
        lambda x: norm(x, 1),
        (Slice((V,)), Slice(((-3.0, 4.0, nan),), PART), Slice(((0.0, 0.0, 0.0),), flat=0)),
        unsupported=CONSTANT,
    ),
    Row(
        "safe_norm, ord=inf",
        lambda x, where: so.safe_norm(x, axis=-1, where=where, ord=inf),
        lambda xp, x, where: xp.max(xp.where(where, xp.sqrt(x * x), 0.0), axis=-1),
        lambda x: max(x, key=abs) * mpmath.sign(max(x, key=abs)),
        (Slice((V,)), Slice(((-3.0, 1.0, nan),), PART), Slice(((0.0, 0.0, 0.0),), flat=0)),
        unsupported=CONSTANT,
    ),
    Row(
        "safe_norm, ord=3",
        lambda x, where: so.safe_norm(x, axis=-1, where=where, ord=3),
        lambda xp, x, where: xp.sum(xp.where(where, xp.abs(x) ** 3, 0.0), axis=-1) ** (1 / 3),
        lambda x: norm(x, 3),
        (Slice((V,)), Slice(((-3.0, 4.0, nan),), PART), Slice(((0.0, 0.0, 0.0),), flat=0)),
        unsupported=CONSTANT,
    ),
    Row(
        "safe_norm, min_norm=6",
        lambda x, where: so.safe_norm(x, axis=-1, where=where, min_norm=6),
        lambda xp, x, where: xp.where(plain_norm(xp, x, where) < 6, 6.0, plain_norm(xp, x, where)),
        norm,
        (Slice((V,)), Slice(((3.0, 4.0, nan),), PART, 6), Slice(((0.0, 0.0, 0.0),), flat=6)),
        unsupported=CONSTANT,
    ),
    Row(
        "squared_norm",
        lambda x, where: so.squared_norm(x, axis=-1, where=where),
        lambda xp, x, where: plain_norm(xp, x, where) ** 2,
        lambda x: sum(t * t for t in x),
        (
            Slice((V,)),
            Slice(((3.0, 4.0, nan),), PART),
            Slice(((0.0, 0.0, 0.0),)),
            Slice((V,), NONE, 0),
        ),
    ),
    Row(
        "safe_rms",
        lambda x, where: so.safe_rms(x, axis=-1, where=where),
        lambda xp, x, where: (
            plain_norm(xp, x, where) / xp.sum(xp.where(where, 1.0, 0.0 * x)) ** 0.5
        ),
        lambda x: norm(x) / mpmath.sqrt(len(x)),
        (
            Slice((V,)),
            Slice(((3.0, 4.0, nan),), PART),
            Slice(((0.0, 0.0, 0.0),), flat=0),
            Slice((V,), NONE, 0),
        ),
        unsupported=CONSTANT,
    ),
    Row(
        "safe_normalize",
        lambda x, _: so.safe_normalize(x),
        lambda xp, x, _: x / xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True)),
        lambda x: [t / norm(x) for t in x],
        (Slice((V,)), Slice(((0.0, 0.0, 0.0),), flat=0), Slice(((0.0, -2.0, 0.0),))),
        absent=0.0,
        unsupported=CONSTANT,
    ),
    Row(
        "safe_normalize, ord=1",
        lambda x, _: so.safe_normalize(x, ord=1),
        lambda xp, x, _: x / xp.sum(xp.abs(x), axis=-1, keepdims=True),
        lambda x: [t / norm(x, 1) for t in x],
        (Slice((V,)), Slice(((0.0, 0.0, 0.0),), flat=0)),
        absent=0.0,
        unsupported=CONSTANT,
    ),
    Row(
        "safe_clip_by_norm",
        lambda x, _: so.safe_clip_by_norm(x, 2.0, axis=-1),
        lambda xp, x, _: x * xp.minimum(2 / norm_of(xp, x), xp.ones_like(x)),
        lambda x: [t * min(1, 2 / norm(x)) if any(x) else t for t in x],
        (Slice((V,)), Slice(((0.0, 0.0, 0.0),)), Slice(((0.3, -1.0, 1.5),))),
        absent=0.0,
        unsupported=CONSTANT,
    ),
    Row(
        "safe_clip_by_norm, radii",
        lambda x, radius, _: so.safe_clip_by_norm(x, radius[..., :1], axis=-1),
        lambda xp, x, radius, _: x * xp.minimum(radius[..., :1] / norm_of(xp, x), xp.ones_like(x)),
        lambda x, radius: [t * min(1, radius[0] / norm(x)) if any(x) else t for t in x],
        (
            Slice((V, (2.0, 2.0, 2.0))),
            Slice((V, (14.0, 14.0, 14.0))),
            Slice(((0.0, 0.0, 0.0), (2.0, 2.0, 2.0))),
            Slice(((0.0, 0.0, 0.0), (0.0, 0.0, 0.0)), flat=0),
            Slice(((0.0, -2.0, 0.0), (1.0, 1.0, 1.0))),
            Slice((V, (inf, inf, inf))),
        ),
        absent=0.0,
        unsupported=CONSTANT,
    ),
    Row(
        "safe_standardize",
        lambda x, where: so.safe_standardize(x, axis=-1, where=where),
        plain_scores,
        scores,
        (
            Slice((V,)),
            Slice(((3.0, 4.0, nan),), PART),
            Slice(((-3.0, 1e30, 7.3),), (True, False, True)),
            Slice(((0.1, 0.1, 0.1),), flat=0),
            Slice(((0.1, 0.1, nan),), PART, 0),
            Slice(((inf, nan, 1e30),), NONE, 0),
        ),
        absent=0.0,
        unsupported=CONSTANT,
    ),
    Row(
        "safe_correlation",
        lambda x, y, where: so.safe_correlation(x, y, where=where),
        lambda xp, x, y, where: (
            xp.sum(plain_scores(xp, x, where) * plain_scores(xp, y, where), axis=-1)
            / xp.sum(xp.astype(where, x.dtype), axis=-1)
        ),
        lambda x, y: sum(a * b for a, b in zip(scores(x), scores(y), strict=True)) / len(x),
        (
            Slice((V, (1.0, -1.0, 1.5))),
            Slice(((3.0, 4.0, nan), (1.0, 0.0, inf)), PART),
            Slice((V, (0.1, 0.1, 0.1)), flat=0),
            Slice(((0.1, 0.1, 0.1), V), flat=0),
            Slice((V, V), NONE, 0),
        ),
        unsupported=CONSTANT,
    ),
    Row(
        "safe_distance",
        lambda x, y, where: so.safe_distance(x, y, where=where),
        lambda xp, x, y, where: plain_norm(xp, x - y, where),
        lambda x, y: norm(x - y),
        (
            Slice((V, (1.0, 1.0, 1.0))),
            Slice((V, V), flat=0),
            Slice(((3.0, 4.0, inf), (0.0, 0.0, inf)), PART),
        ),
        unsupported=CONSTANT,
    ),
    Row(
        "safe_cosine_similarity",
        lambda x, y, where: so.safe_cosine_similarity(x, y, where=where),
        lambda xp, x, y, where: (
            xp.sum(xp.where(where, x * y, 0.0), axis=-1)
            / (plain_norm(xp, x, where) * plain_norm(xp, y, where))
        ),
        lambda x, y: sum(x * y) / (norm(x) * norm(y)),
        (
            Slice((V, (1.0, -1.0, 1.0))),
            Slice(((3.0, 4.0, nan), (1.0, 2.0, inf)), PART),
            Slice((V, (0.0, 0.0, 0.0)), flat=0),
            Slice(((0.0, 0.0, 0.0), V), flat=0),
            Slice((V, V), NONE, 0),
        ),
        unsupported=CONSTANT,
    ),
    Row(
        "safe_softmax",
        lambda x, where: so.safe_softmax(x, where=where),
        plain_softmax,
        softmax,
        (
            Slice(((0.0, 1.0, -1.0),)),
            Slice(((0.0, 1.0, -inf),)),
            Slice(((0.0, 1.0, nan),), PART),
            Slice(((0.0, 1.0, inf),), PART),
            Slice(((1000.0, 1001.0, 1e30),), PART),
            Slice((ABSENT,), flat=0),
            Slice(((0.0, nan, 1.0),), NONE, 0),
            Slice(((-inf, 5.0, -inf),)),
        ),
        absent=0.0,
        minus_inf_is_absent=True,
    ),
    Row(
        "safe_log_softmax",
        lambda x, where: so.safe_log_softmax(x, where=where),
        lambda xp, x, where: xp.log(plain_softmax(xp, x, where)),
        lambda x: [t - logsumexp(x) for t in x],
        (
            Slice(((0.0, 1.0, -1.0),)),
            Slice(((0.0, 1.0, -inf),)),
            Slice(((0.0, 1.0, nan),), PART),
            Slice((ABSENT,), flat=-inf),
            Slice(((0.0, nan, 1.0),), NONE, -inf),
        ),
        absent=-inf,
        minus_inf_is_absent=True,
    ),
    Row(
        "safe_logsumexp",
        lambda x, where: so.safe_logsumexp(x, axis=-1, where=where),
        lambda xp, x, where: xp.log(xp.sum(xp.exp(xp.where(where, x, -inf)), axis=-1)),
        logsumexp,
        (
            Slice(((0.0, 1.0, -1.0),)),
            Slice(((0.0, 1.0, -inf),)),
            Slice(((0.0, 1.0, nan),), PART),
            Slice(((1000.0, 1001.0, 999.0),)),
            Slice((ABSENT,), flat=-inf),
            Slice(((0.0, nan, 1.0),), NONE, -inf),
        ),
        minus_inf_is_absent=True,
    ),
    Row(
        "safe_logsumexp with b",
        lambda x, b, where: so.safe_logsumexp(x, axis=-1, where=where, b=b),
        lambda xp, x, b, where: xp.log(xp.sum(xp.where(where, b * xp.exp(x), 0.0), axis=-1)),
        lambda x, b: mpmath.log(sum(c * mpmath.exp(t) for t, c in zip(x, b, strict=True))),
        (
            Slice(((0.0, 1.0, -1.0), (1.0, 2.0, -0.5))),
            Slice(((0.0, 1.0, 2.0), (1.0, 2.0, 0.0))),
            Slice(((0.0, 1.0, nan), (1.0, 2.0, nan)), PART),
            Slice(((0.0, 1.0, -inf), (1.0, 2.0, 3.0))),
            Slice(((0.0, 1.0, 2.0), (0.0, 0.0, 0.0)), flat=-inf),
            Slice((ABSENT, (1.0, 1.0, 1.0)), flat=-inf),
        ),
        minus_inf_is_absent=True,
    ),
    Row(
        "safe_logcumsumexp",
        lambda x, where: so.safe_logcumsumexp(x, axis=-1, where=where),
        plain_running,
        lambda x: [logsumexp(x[: i + 1]) for i in range(len(x))],
        (
            Slice(((0.0, 1.0, -1.0),)),
            Slice(((-inf, 1.0, 3.0),)),
            Slice(((-inf, -inf, 3.0),)),
            Slice(((nan, 1.0, 2.0),), (False, True, True)),
            Slice(((inf, 1e30, 2.0),), (False, False, True)),
            Slice(((-1000.0, 0.0, 1.0),)),
            Slice((ABSENT,), flat=-inf),
            Slice(((0.0, nan, 1.0),), NONE, -inf),
        ),
        absent=-inf,
        minus_inf_is_absent=True,
        unsupported=SLOW,
    ),
    Row(
        "safe_logmeanexp",
        lambda x, where: so.safe_logmeanexp(x, axis=-1, where=where),
        lambda xp, x, where: xp.log(xp.mean(xp.exp(xp.where(where, x, -inf)), axis=-1)),
        lambda x: logsumexp(x) - mpmath.log(len(x)),
        (
            Slice(((0.0, 1.0, -1.0),)),
            Slice(((0.0, 1.0, nan),), PART),
            Slice((ABSENT,), flat=-inf),
            Slice(((0.0, nan, 1.0),), NONE, -inf),
        ),
        minus_inf_is_absent=True,
    ),
    Row(
        "safe_cross_entropy",
        lambda x, p, where: so.safe_cross_entropy(x, p, where=where),
        lambda xp, x, p, where: (
            -xp.sum(xp.where(where, p * xp.log(plain_softmax(xp, x, where)), 0.0), axis=-1)
        ),
        lambda x, p: sum(c * (logsumexp(x) - t) for t, c in zip(x, p, strict=True)),
        (
            Slice(((0.0, 1.0, -1.0), (0.25, 0.5, 0.25))),
            Slice(((0.0, 1.0, -inf), (0.5, 0.5, 0.0))),
            Slice(((0.0, 1.0, nan), (0.5, 0.25, nan)), PART),
            Slice((ABSENT, (0.25, 0.5, 0.25)), flat=0),
            Slice((V, (0.25, 0.5, 0.25)), NONE, 0),
        ),
        minus_inf_is_absent=True,
    ),
    Row(
        "safe_cross_entropy, label_smoothing and weights",
        lambda x, p, where: so.safe_cross_entropy(
            x, p, where=where, label_smoothing=0.25, weights=one_two_three(x)
        ),
        lambda xp, x, p, where: (
            -xp.sum(
                one_two_three(x) * (0.75 * p + 0.25 / 3) * xp.log(plain_softmax(xp, x, where)),
                axis=-1,
            )
        ),
        lambda x, p: sum(
            w * (0.75 * c + mpmath.mpf(1) / 4 / len(x)) * (logsumexp(x) - t)
            for t, c, w in zip(x, p, (1, 2, 3), strict=False)
        ),
        (
            Slice(((0.0, 1.0, -1.0), (0.25, 0.5, 0.25))),
            Slice(((0.0, 1.0, -inf), (0.5, 0.5, 0.0))),
            Slice(((0.0, 1.0, nan), (0.5, 0.25, nan)), PART),
            Slice((ABSENT, (0.25, 0.5, 0.25)), flat=0),
            Slice((V, (0.25, 0.5, 0.25)), NONE, 0),
        ),
        minus_inf_is_absent=True,
    ),
    Row(
        "safe_kl_divergence",
        lambda p, q, where: so.safe_kl_divergence(p, q, where=where),
        lambda xp, p, q, where: xp.sum(xp.where(where, p * xp.log(p / q), 0.0), axis=-1),
        lambda p, q: sum(s * mpmath.log(s / t) for s, t in zip(p, q, strict=True)),
        (
            Slice(((0.25, 0.5, 0.25), (0.5, 0.25, 0.25))),
            Slice(((0.25, 0.75, nan), (0.5, 0.5, nan)), PART),
            Slice(((0.25, 0.75, -inf), (0.5, 0.5, 0.0)), PART),
            Slice(((0.0, 0.0, 0.0), (0.5, 0.5, 0.0)), flat=0),
            Slice((V, (0.25, 0.5, 0.25)), NONE, 0),
        ),
    ),
)
