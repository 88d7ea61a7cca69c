"""The specifications of the operations in `_ops/rescaling.py`."""

from math import inf, nan

import mpmath

import safeops as so
import slice_formulas as swept
from slice_formulas import Sweep
from slices import NONE, PART, Row, Slice, SliceSpec, V, norm


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


SPECS = (
    SliceSpec(
        "safe_clip_by_norm",
        (
            Row(
                "safe_clip_by_norm",
                lambda x, _: so.safe_clip_by_norm(x, 2.0, axis=-1),
                lambda xp, x, _: x * xp.minimum(2 / norm_of(xp, x), xp.ones_like(x)),
                lambda x: [t * min(1, 2 / norm(x)) if any(x) else t for t in x],
                (Slice((V,)), Slice(((0.0, 0.0, 0.0),)), Slice(((0.3, -1.0, 1.5),))),
                absent=0.0,
            ),
            Row(
                "safe_clip_by_norm, radii",
                lambda x, radius, _: so.safe_clip_by_norm(x, radius[..., :1], axis=-1),
                lambda xp, x, radius, _: (
                    x * xp.minimum(radius[..., :1] / norm_of(xp, x), xp.ones_like(x))
                ),
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
            ),
        ),
        (Sweep(swept.clipped, call=lambda x: so.safe_clip_by_norm(x, 1, axis=-1)),),
        synonyms="gradient clipping, projection onto a ball",
    ),
    SliceSpec(
        "safe_standardize",
        (
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
            ),
        ),
        # Terms of slopes of 1e-36, at the top of float32, are flushed to 0: in forward mode of JAX
        # a slope of 9.7e-37 lacks a twentieth.
        (Sweep(swept.scores, least=2.0**12, most=(256.0, 1)),),
        synonyms="z-score, standard score, layer normalisation",
    ),
    SliceSpec(
        "safe_correlation",
        (
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
            ),
        ),
        (
            Sweep(
                swept.correlation,
                call=lambda x: so.safe_correlation(x, swept.constant(x, swept.WEIGHTS)),
                least=2.0**12,
                most=(256.0, 1),
            ),
        ),
        synonyms="Pearson correlation, corrcoef, concordance",
    ),
)
