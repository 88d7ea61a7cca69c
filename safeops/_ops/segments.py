"""Entries that belong to segments, by a number each; those of no segment count for nothing."""

import math
from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple

from safeops._backends.array_api import ArrayAPI
from safeops._core.dtypes import INTEGER, NARROW, dtype_name, limits, require
from safeops._core.types import Array, DType, Namespace
from safeops._dispatch import backend_of, promote, promote_mask
from safeops._ops.masked_reductions import enter_correction, enter_option
from safeops._ops.norms import scale_of_powers
from safeops._ops.powers import safe_sqrt
from safeops._ops.slices import equal, require_fit
from safeops._ops.where import double_where, is_nan

LONGEST = 31  # doublings of a length that is not known


class Segments(NamedTuple):
    """Entries, which of them are kept, and the segment of each."""

    backend: ArrayAPI
    xp: Namespace
    dtype: DType  # of the result
    x: Array  # float16 and bfloat16 as float32
    keep: Array  # in the shape of `x`
    rows: Array | None  # which entries of the first axis are kept, if the others do not matter
    ids: Array  # 0 for what belongs to no segment, which is not kept
    number: int

    def total(self, x: Array) -> Array:
        """Return the sum of each segment, of one segment at least."""
        return self.backend.segment_sum(x, self.ids, max(self.number, 1))

    def spread(self, table: Array) -> Array:
        """Return what each entry finds at its segment."""
        return self.backend.gather(table, self.ids)

    def kept(self, x: Array, other: Any = 0.0) -> Array:
        """Return numbers of entries, others for those that are left out."""
        return self.xp.where(self.keep, x, other)

    def entries(self) -> Array:
        """Return how many entries of each segment are kept; lengths are 1 if all are alike."""
        if self.rows is None:
            return self.total(self.kept(self.xp.ones_like(self.x)))
        ones = self.xp.astype(self.rows, self.x.dtype)
        return _beside(self.xp, self.total(ones), self.x)

    def peak(self, x: Array) -> Array:
        """Return the largest number of each segment as a constant; it passes over NaN."""
        least = -limits(self.xp, x).max  # not -inf, which NaN detectors report
        x = self.backend.stop_gradient(x)
        there = self.xp.logical_and(self.keep, x > least)  # NaN is not
        return self.backend.segment_max(
            self.xp.where(there, x, least), self.ids, max(self.number, 1), least
        )

    def finish(self, table: Array, empty: Array, fill_value: Any) -> Array:
        """Return the numbers of segments, `fill_value` for those that are empty."""
        table = self.xp.where(empty, enter_option(self.backend, fill_value, table), table)
        table = table if self.number else table[:0, ...]
        return self.xp.astype(table, self.dtype)


def enter_segments(data: Array, ids: Array, number: Any, where: Any) -> Segments:
    """Return entries and their segments; an id below 0, or of `number` or more, drops an entry."""
    backend = backend_of(data, ids)
    xp, x = promote(data)
    _require_ids(ids, number, x)
    dtype = x.dtype
    x = xp.astype(x, xp.float32) if dtype_name(dtype) in NARROW else x
    ids = backend.as_index(backend.cast(ids, ids.dtype, ids))
    keep = rows = xp.logical_and(ids >= 0, ids < int(number))
    ids = xp.where(keep, ids, xp.zeros_like(ids))
    keep = _beside(xp, keep, x)
    where = promote_mask(where, x)
    if where is not None:
        rows = None
        _require_rank(where)
        where = _beside(xp, where, x)
        require_fit(where, x)
        keep = xp.logical_and(keep, where)
    keep = xp.logical_and(keep, xp.ones_like(x) == 1)  # in its shape
    return Segments(backend, xp, dtype, x, keep, rows, ids, int(number))


def _beside(xp: Namespace, mask: Array, x: Array) -> Array:
    """Return a mask of the first axes with an axis of length 1 for each other one."""
    for _ in range(len(x.shape) - len(mask.shape)):
        mask = xp.expand_dims(mask, axis=-1)
    return mask


def _require_rank(*arrays: Array) -> None:
    """Raise ValueError for an array of TensorFlow of which the number of axes is not known."""
    if any(getattr(x.shape, "rank", 0) is None for x in arrays):
        msg = (
            "expected data, segment_ids and where with a known number of dimensions; lengths may "
            "be unknown: tf.ensure_shape"
        )
        raise ValueError(msg)


def _require_ids(ids: Any, number: Any, x: Array) -> None:
    if isinstance(number, bool) or not isinstance(number, Integral):
        msg = (
            f"expected an int as num_segments, got {type(number).__name__}; "
            "a compiled program has to know how many numbers it returns"
        )
        raise TypeError(msg)
    if int(number) < 0:
        msg = f"expected at least 0 as num_segments, got {number}"
        raise ValueError(msg)
    require(ids.dtype, tuple(name for name in INTEGER if name != "bool"), None, "segment_ids")
    _require_rank(x, ids)
    rows = x.shape[0] if len(x.shape) else None
    given = ids.shape[0] if len(ids.shape) == 1 else None
    fits = len(x.shape) and len(ids.shape) == 1
    if not fits or not equal(rows, given):
        msg = (
            f"expected data of shape (n, ...) and segment_ids of shape (n,), got "
            f"{tuple(x.shape)} and {tuple(ids.shape)}"
        )
        raise ValueError(msg)


def mean(s: Segments, fill_value: Any) -> Array:
    """Return the mean of each segment."""
    number = s.entries()
    empty = number == 0
    return s.finish(s.total(s.kept(s.x)) / s.xp.where(empty, 1.0, number), empty, fill_value)


def extreme(s: Segments, sign: int, fill_value: Any) -> Array:
    """Return the largest number of each segment for sign 1, the smallest for -1."""
    # Its slope is that of the mean of those that tie. All entries of a segment with a NaN tie, and
    # their slope is NaN.
    xp = s.xp
    x = s.x if sign == 1 else -s.x
    ones = xp.ones_like(x)
    peak = s.peak(x)
    undefined = s.total(s.kept(xp.where(is_nan(x), ones, 0.0))) > 0
    factor = xp.where(undefined, math.nan, xp.ones_like(peak))
    tie = xp.logical_and(s.keep, x == s.spread(peak))
    some = s.spread(s.total(xp.where(tie, ones, 0.0))) > 0
    # Where all that is kept is -inf, or some of it NaN.
    tie = xp.logical_or(tie, xp.logical_and(x == -math.inf, xp.logical_not(some)))
    tie = xp.logical_and(s.keep, xp.logical_or(tie, is_nan(s.spread(factor))))
    number = s.total(xp.where(tie, ones, 0.0))
    empty = number == 0
    origin = xp.where(xp.isfinite(peak), peak, 0.0)
    # What ties is 0 from a finite peak: the mean of it neither rounds nor overflows.
    away = xp.where(tie, x - s.spread(origin), 0.0)
    value = (origin + s.total(away / s.spread(xp.where(empty, 1.0, number)))) * factor
    return s.finish(value if sign == 1 else -value, empty, fill_value)


def product(s: Segments, fill_value: Any) -> Array:
    """
    Return the product of each segment: those of pairs of neighbours, of pairs of these, and so on.

    Each product that is formed is a factor of the result: one that is not would have a cotangent of
    0, and an inf in it would make that NaN.
    """
    xp, gather = s.xp, s.backend.gather
    order = xp.argsort(s.ids)
    ids, places = gather(s.ids, order), s.backend.as_index(s.backend.positions(s.ids, 0))
    x = gather(s.kept(s.x, 1.0), order)
    number = s.backend.as_index(s.total(xp.ones_like(s.ids)))  # dropped ones are in the first
    first = s.backend.as_index(s.backend.cumulative(number, 0, product=False)) - number
    rank, many = places - gather(first, ids), gather(number, ids)
    length = s.x.shape[0]
    for doubling in range(LONGEST if length is None else max(length - 1, 0).bit_length()):
        pair = xp.logical_and(rank % 2 ** (doubling + 1) == 0, rank + 2**doubling < many)
        other = xp.where(pair, places + 2**doubling, places)
        x = x * xp.where(_beside(xp, pair, x), gather(x, other), 1.0)
    if not length:  # none, or an unknown number
        x = xp.concat([x, xp.ones_like(s.total(s.x))], axis=0)
    some = number > 0
    value = gather(x, xp.where(some, first, xp.zeros_like(first)))
    value = xp.where(_beside(xp, some, x), value, 1.0)
    return s.finish(value, s.entries() == 0, fill_value)


def exponentials(s: Segments, table: Array, top: Array) -> tuple[Array, Array]:
    """Return ``exp(x - peak)``, 0 where absent and 1 at the `top`; and the sums of the segments."""
    xp, peak = s.xp, s.spread(table)
    absent = xp.logical_or(xp.logical_not(s.keep), s.x == -math.inf)
    parts = double_where(
        xp,
        xp.logical_or(absent, top),
        (s.x,),
        xp.where(top, xp.ones_like(s.x), 0.0),
        lambda x: xp.exp(x - peak),
        placeholder=(peak,),
    )
    return parts, s.total(parts)


def softmax(s: Segments, fill_value: Any) -> Array:
    """Return the share of each entry in its segment."""
    parts, total = exponentials(s, s.peak(s.x), s.xp.zeros_like(s.keep))
    out = parts / s.spread(s.xp.where(total == 0, 1.0, total))
    out = s.xp.where(s.x == -math.inf, 0.0, out)  # beside a NaN too
    out = s.kept(out, enter_option(s.backend, fill_value, out))
    return s.xp.astype(out, s.dtype)


def log_sum(s: Segments, fill_value: Any) -> Array:
    """Return the logarithm of the sum of exponentials of each segment, as `safe_logsumexp`."""
    xp, peak = s.xp, s.peak(s.x)
    endless, top = peak == math.inf, xp.logical_and(s.keep, s.x == math.inf)
    peak = xp.where(endless, limits(xp, s.x).max, peak)
    _, total = exponentials(s, peak, top)
    empty, number = total == 0, s.backend.stop_gradient(xp.where(endless, total, 1.0))
    peak = xp.where(endless, s.total(xp.where(top, s.x, 0.0)) / number, peak)
    return s.finish(peak + xp.log(xp.where(empty, 1.0, total)), empty, fill_value)


Rule = Callable[[Segments, Array, Array], Array]


def spread_of(s: Segments, correction: Any, fill_value: Any, rule: Rule) -> Array:
    """Return a rule of the deviations from the mean and the degrees of freedom."""
    # The largest number is subtracted first, so that a constant segment has deviations of exactly
    # 0; and a segment that has no freedom keeps nothing.
    xp, correction = s.xp, enter_correction(correction)
    number = s.entries()
    empty = number <= correction
    origin = s.spread(s.peak(s.x))
    s = s._replace(keep=xp.logical_and(s.keep, s.spread(number) > correction))
    away = s.kept(s.x, origin) - origin
    middle = s.total(s.kept(away)) / xp.where(number == 0, 1.0, number)
    away = s.kept(away - s.spread(middle))
    freedom = xp.where(empty, 1.0, number - correction)
    return s.finish(rule(s, away, freedom), empty, fill_value)


def variance(s: Segments, away: Array, freedom: Array) -> Array:
    """Return the mean square of deviations."""
    return s.total(away * away) / freedom


def deviation(s: Segments, away: Array, freedom: Array) -> Array:
    """Return the root of the mean square of deviations, scaled, with slope 0 at 0."""
    size = s.peak(s.xp.abs(away))
    size = s.xp.where(size < 0, 0.0, size)  # of nothing
    scale = scale_of_powers(s.xp, size, 2, to_one=False)
    scaled = away * s.spread(1.0 / scale)
    return scale * (safe_sqrt(s.total(scaled * scaled)) / s.xp.sqrt(freedom))
