"""Distances of points, and attention, by PyTorch's own kernels where they are right."""

import math
from functools import partial
from typing import Any

import torch

from safeops._backends.torch import private
from safeops._backends.torch.fast_paths import _LIMITS, _are_finite, _are_plain, _unseen
from safeops._backends.torch.fused import Fused, Given, _Kept
from safeops._backends.torch.slices import _is_mask
from safeops._core.types import Array, Function


class _Distances(Fused):
    @classmethod
    def run(cls, x: Array, y: Array) -> tuple[Array, Array]:
        out = private.cdist(x, y, 2.0, 2)  # by differences, not by products of matrices
        return out, out

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        (x, y), (out,) = given.args, given.kept

        def pulled(cotangent: Array, x: Array, y: Array, out: Array) -> Any:
            return private.cdist_backward(cotangent.contiguous(), x, y, 2.0, out.contiguous())

        return pulled(cotangent, x, y, out), pulled(cotangent.mT, y, x, out.mT)


def _cdist(
    steps: Function,
    x: Array,
    y: Any,
    /,
    *,
    ord: Any = 2,  # noqa: A002  (the name in NumPy and the standard)
    where: Any = None,
) -> Array | None:
    if ord != 2 or not _are_plain(x, y) or not x.numel() or not y.numel():  # noqa: PLR2004  (the Euclidean norm)
        return None
    if min(x.ndim, y.ndim) < 2 or x.shape[:-2] != y.shape[:-2] or x.shape[-1] != y.shape[-1]:  # noqa: PLR2004  (points)
        return None
    out = _Distances.of(steps, None, x, y)
    if not _are_in_range(out.detach(), x.detach(), y.detach()):
        return None
    if where is None:
        return out
    return _Kept.of(out, where) if _is_mask(where, out) else None


@_unseen
def _are_in_range(out: Array, x: Array, y: Array) -> bool:
    """Whether no square was lost: points that are next to each other coincide."""
    bound = _LIMITS[out.dtype]
    least = math.sqrt(bound.smallest_normal / bound.eps)
    if not out.amax().item() <= math.sqrt(bound.max) / 2:
        return False
    if out.amin().item() >= least:
        return True
    *batch, i, j = (out < least).nonzero(as_tuple=True)
    return torch.equal(x[(*batch, i)], y[(*batch, j)])


class _Attention(Fused):
    @classmethod
    def run(cls, *args: Any) -> tuple[Array, ...]:
        *heads, mask, scale = args
        rows = map(_in_rows, heads)
        out, sums = private.attention(*rows, 0.0, False, attn_mask=mask, scale=scale)  # noqa: FBT003  (its order)
        return out, out, sums

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        *heads, mask, scale = given.args
        pulled = private.attention_backward(
            cotangent,
            *map(_in_rows, heads),
            *given.kept,
            0.0,
            False,  # noqa: FBT003  (as above)
            attn_mask=mask,
            scale=scale,
        )
        return (*pulled, None, None)


def _in_rows(x: Array) -> Array:
    """Return x, copied if the coordinates of a row are not side by side in memory."""
    # The kernel (2.13) takes it that they are, and reads other numbers, also beyond the last one.
    return x if x.stride(-1) == 1 else x.contiguous()


def _attention(
    steps: Function, query: Array, key: Any, value: Any, /, *, where: Any = None, scale: Any = None
) -> Array | None:
    """Attention of finite heads, each query of which keeps a key, by the kernel for a CPU."""
    given = (query, key, value)
    if not _are_plain(*given) or not all(x.ndim == 4 and x.numel() for x in given):  # noqa: PLR2004  (batch, head, place, coordinate)
        return None
    (*batch, n, d), (m, e) = query.shape, key.shape[2:]
    if key.shape != value.shape or list(key.shape[:2]) != batch or e != d:
        return None
    if not (scale is None or type(scale) is float) or not _are_finite(*given):
        return None
    mask = None
    if where is not None:
        mask = _scores(where, torch.Size((*batch, n, m)), query.dtype)
        if mask is None:
            return None
    settled = partial(steps, where=where)
    out = _Attention.of(lambda *args: settled(*args[:3], scale=scale), None, *given, mask, scale)
    return out if _are_finite(out) else None


def _scores(where: Any, shape: torch.Size, dtype: torch.dtype) -> Array | None:
    """Return a mask to add, 0 where True and -inf elsewhere; None if it leaves a query nothing."""
    if type(where) is not torch.Tensor or where.dtype is not torch.bool or not where.is_cpu:
        return None
    if where.ndim > len(shape) or torch.broadcast_shapes(where.shape, shape) != shape:
        return None
    if not where.ndim or not where.any(-1).all():
        return None
    added = where.new_zeros(where.shape, dtype=dtype).masked_fill_(~where, -math.inf)
    return added.expand(shape)


OF_STEPS: dict[str, Function] = {"safe_attention": _attention, "safe_cdist": _cdist}
