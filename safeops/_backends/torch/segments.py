"""Reductions of segments by PyTorch's scatters, if every entry belongs to one."""

import math
from functools import partial
from typing import Any

import torch

from safeops._backends.torch.fast_paths import (
    FillingFunction,
    _are_finite,
    _are_plain,
    _least,
    _most,
    _ones_where,
    _zero_where_at_most,
)
from safeops._backends.torch.fused import CLASSES
from safeops._core.types import Array, Function


class _SegmentExtreme(FillingFunction):
    """Largest entry of each segment, or smallest; ties share the slope evenly."""

    @staticmethod
    def value(x: Array, ids: Array, number: int, sign: int) -> Array:
        out = x.new_full((number, *x.shape[1:]), -sign * math.inf)
        places = ids.reshape(-1, *[1] * (x.ndim - 1)).expand(x.shape)
        return out.scatter_reduce_(0, places, x, "amax" if sign > 0 else "amin")

    @staticmethod
    def forward(ctx: Any, x: Array, ids: Array, number: int, sign: int) -> Array:
        out = _SegmentExtreme.value(x, ids, number, sign)
        ctx.save_for_backward(x, ids, out)
        return out

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> tuple[Any, ...]:
        x, ids, out = ctx.saved_tensors
        ties = _ones_where(x, out.detach().index_select(0, ids))
        number = torch.zeros_like(out).index_add_(0, ids, ties)
        share = (cotangent / number.clamp_(min=1)).index_select(0, ids)
        return _zero_where_at_most(share, ties, 0.5), None, None, None


def _of_segments(
    reduce: Function,
    data: Array,
    segment_ids: Any,
    num_segments: Any,
    /,
    *,
    where: Any = None,
    fill_value: Any = None,
) -> Array | None:
    """Reduce entries that all belong to a segment, if the result is finite."""
    if where is not None or type(fill_value) is not float or type(num_segments) is not int:
        return None
    if not _are_plain(data) or not data.numel() or not _are_segments(segment_ids, data):
        return None
    ids = segment_ids.long()
    if _least(ids) < 0 or _most(ids) >= num_segments:
        return None
    often = torch.bincount(ids, minlength=num_segments)
    out, empty = reduce(data, ids, num_segments, often), None
    if not often.all():
        empty = (often == 0).reshape(-1, *[1] * (data.ndim - 1))
        out = torch.where(empty, 0.0, out)
    if not _are_finite(out):
        return None
    return out if empty is None else torch.where(empty, fill_value, out)


def _are_segments(ids: Any, data: Array) -> bool:
    """Whether these are integers of a tensor on the CPU, one for each entry."""
    usual = type(ids) is torch.Tensor and ids.dtype in CLASSES and ids.is_cpu and ids.ndim == 1
    return usual and bool(data.shape[:1] == ids.shape)


def _segment_sum(x: Array, ids: Array, number: int, often: Array | None = None) -> Array:
    del often
    return x.new_zeros((number, *x.shape[1:])).index_add(0, ids, x)


def _segment_mean(x: Array, ids: Array, number: int, often: Array) -> Array:
    total = _segment_sum(x, ids, number)
    return total / often.clamp(min=1).reshape(-1, *[1] * (x.ndim - 1))


def _segment_extreme(sign: int, x: Array, ids: Array, number: int, often: Array) -> Array:
    del often
    return _SegmentExtreme.of(x, ids, number, sign)


KERNELS: dict[str, Function] = {
    "segment_sum": partial(_of_segments, _segment_sum, fill_value=0.0),
    "segment_mean": partial(_of_segments, _segment_mean, fill_value=math.nan),
    "segment_max": partial(_of_segments, partial(_segment_extreme, 1), fill_value=math.nan),
    "segment_min": partial(_of_segments, partial(_segment_extreme, -1), fill_value=math.nan),
}
