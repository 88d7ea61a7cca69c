"""The specifications of the operations in `_ops/norms.py`."""

from math import inf, nan

import mpmath

import safeops as so
import slice_formulas as swept
from slice_formulas import Scaled, Sweep
from slices import NONE, PART, Row, Slice, SliceSpec, V, norm, plain_norm

SPECS = (
    SliceSpec(
        "safe_norm",
        (
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
            ),
            Row(
                "safe_norm, ord=1",
                lambda x, where: so.safe_norm(x, axis=-1, where=where, ord=1),
                lambda xp, x, where: xp.sum(xp.where(where, xp.sqrt(x * x), 0.0), axis=-1),
                lambda x: norm(x, 1),
                (Slice((V,)), Slice(((-3.0, 4.0, nan),), PART), Slice(((0.0, 0.0, 0.0),), flat=0)),
            ),
            Row(
                "safe_norm, ord=inf",
                lambda x, where: so.safe_norm(x, axis=-1, where=where, ord=inf),
                lambda xp, x, where: xp.max(xp.where(where, xp.sqrt(x * x), 0.0), axis=-1),
                lambda x: max(x, key=abs) * mpmath.sign(max(x, key=abs)),
                (Slice((V,)), Slice(((-3.0, 1.0, nan),), PART), Slice(((0.0, 0.0, 0.0),), flat=0)),
            ),
            Row(
                "safe_norm, ord=3",
                lambda x, where: so.safe_norm(x, axis=-1, where=where, ord=3),
                lambda xp, x, where: (
                    xp.sum(xp.where(where, xp.abs(x) ** 3, 0.0), axis=-1) ** (1 / 3)
                ),
                lambda x: norm(x, 3),
                (Slice((V,)), Slice(((-3.0, 4.0, nan),), PART), Slice(((0.0, 0.0, 0.0),), flat=0)),
            ),
            Row(
                "safe_norm, min_norm=6",
                lambda x, where: so.safe_norm(x, axis=-1, where=where, min_norm=6),
                lambda xp, x, where: xp.where(
                    plain_norm(xp, x, where) < 6, 6.0, plain_norm(xp, x, where)
                ),
                norm,
                (
                    Slice((V,)),
                    Slice(((3.0, 4.0, nan),), PART, 6),
                    Slice(((0.0, 0.0, 0.0),), flat=6),
                ),
            ),
        ),
        scaled=(
            *(Scaled(swept.norm_of(p), {"ord": p}, curved=p == 2) for p in (1, 2, inf)),
            *(Scaled(swept.norm_of(p), {"ord": p}, curved=p == 3, cubes=True) for p in (1.5, 3)),
        ),
        synonyms="linalg.norm, vector_norm, length of a vector",
    ),
    SliceSpec(
        "squared_norm",
        (
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
        ),
        (Sweep(swept.square, most=(4.0, 2)),),
    ),
    SliceSpec(
        "safe_rms",
        (
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
            ),
        ),
        scaled=(Scaled(swept.rms, curved=True),),
    ),
    SliceSpec(
        "safe_distance",
        (
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
            ),
        ),
        scaled=(Scaled(swept.norm_of(2), call=lambda x: so.safe_distance(x, 0 * x), curved=True),),
        synonyms="Euclidean distance, pairwise distance",
    ),
    SliceSpec(
        "safe_cosine_similarity",
        (
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
            ),
        ),
        (
            Sweep(
                swept.cosine,
                call=lambda x: so.safe_cosine_similarity(x, swept.constant(x, swept.WEIGHTS)),
            ),
        ),
        synonyms="cosine distance",
    ),
    SliceSpec(
        "safe_normalize",
        (
            Row(
                "safe_normalize",
                lambda x, _: so.safe_normalize(x),
                lambda xp, x, _: x / xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True)),
                lambda x: [t / norm(x) for t in x],
                (Slice((V,)), Slice(((0.0, 0.0, 0.0),), flat=0), Slice(((0.0, -2.0, 0.0),))),
                absent=0.0,
            ),
            Row(
                "safe_normalize, ord=1",
                lambda x, _: so.safe_normalize(x, ord=1),
                lambda xp, x, _: x / xp.sum(xp.abs(x), axis=-1, keepdims=True),
                lambda x: [t / norm(x, 1) for t in x],
                (Slice((V,)), Slice(((0.0, 0.0, 0.0),), flat=0)),
                absent=0.0,
            ),
        ),
        (Sweep(swept.direction),),
        synonyms="l2_normalize, unit vector",
    ),
)
