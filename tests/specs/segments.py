"""
The specifications of the functions in `segments.py`: what each makes of the numbers of a segment.

What is derived of them, in every order, is in `test_segments.py`, at one array of data.
"""

from dataclasses import dataclass
from math import inf, nan

import mpmath

from points import OwnSpec


@dataclass(frozen=True, eq=False)
class SegmentSpec(OwnSpec):
    """A reduction of segments."""

    formula: object = None  # in mpmath, of the numbers of a segment
    empty: float = nan  # the value of a segment without numbers


def mean(x):
    """Return the mean."""
    return mpmath.fsum(x) / len(x)


def variance(x):
    """Return the variance."""
    return mean([(t - mean(x)) ** 2 for t in x])


def shared(choose):
    """Return a formula for an extreme: ties share it."""

    def formula(x):
        top = choose(x, key=lambda t: round(float(t), 9))
        return mean([t for t in x if abs(t - top) < 1e-9])

    return formula


def plain_softmax(backend, x, ids, number):
    """Return the softmax of segments as people write it."""
    peak = backend.segment_max(backend.stop_gradient(x), ids, number, -inf)
    parts = backend.xp.exp(x - backend.gather(peak, ids))
    return parts / backend.gather(backend.segment_sum(parts, ids, number), ids)


def plain_std(backend, x, ids, number):
    """Return the deviation of segments as people write it."""
    count = backend.segment_sum(backend.xp.ones_like(x), ids, number)
    middle = backend.segment_sum(x, ids, number) / count
    away = x - backend.gather(middle, ids)
    return backend.xp.sqrt(backend.segment_sum(away**2, ids, number) / count)


SPECS = (
    SegmentSpec("segment_sum", formula=mpmath.fsum, empty=0.0),
    SegmentSpec("segment_mean", formula=mean),
    SegmentSpec("segment_max", formula=shared(max)),
    SegmentSpec("segment_min", formula=shared(min)),
    SegmentSpec("segment_prod", formula=mpmath.fprod, empty=1.0),
    SegmentSpec("segment_var", formula=variance),
    SegmentSpec("segment_std", naive=plain_std, formula=lambda x: mpmath.sqrt(variance(x))),
    SegmentSpec(
        "segment_logsumexp",
        formula=lambda x: mpmath.log(mpmath.fsum(map(mpmath.exp, x))),
        empty=-inf,
    ),
    SegmentSpec("segment_softmax", naive=plain_softmax),
)
