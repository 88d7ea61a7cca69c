"""Kernels of PyTorch along an axis: norms, softmax, logsumexp, and the rough size of slices."""

import math
from typing import Any

import array_api_compat.torch as xp
import torch

from safeops._backends.devices import measures_by_sums
from safeops._backends.shapes import dropped
from safeops._backends.torch import private
from safeops._backends.torch.fast_paths import (
    _FEW,
    _HANDFUL,
    _LIMITS,
    FillingFunction,
    _are_finite,
    _are_plain,
    _has_memory,
    _numbers,
    _out_option,
    _threshold,
    _total,
    _unseen,
    _zero_where_at_most,
)
from safeops._core.types import Array, Axis, Function

# The longest row for `vector_norm`, which takes half of the time of a product and its sum. It adds
# squares one by one: up to this length that loses no digit; a million in float32 lose three digits.
_SHORT = 2**8
_softmax_backward: Function = private.softmax_backward


class _Norm(FillingFunction):
    @staticmethod
    def value(x: Array, axis: Axis) -> Array:
        last = isinstance(axis, int) and axis in (-1, x.ndim - 1)
        if last and x.shape[-1] <= _SHORT:
            return torch.linalg.vector_norm(x, dim=axis, keepdim=True)
        return (x * x).sum(axis, keepdim=True).sqrt_()

    @staticmethod
    def forward(ctx: Any, x: Array, axis: Axis) -> Array:
        out = _Norm.value(x, axis)
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> tuple[Array, None]:
        x, out = ctx.saved_tensors
        length = _threshold(out, 0.0, 1.0)
        # A batch of cotangents, of ``is_grads_batched=True``, has no numbers to look at.
        asks = x.numel() > _FEW and _has_memory(cotangent)
        if asks and _is_quotient_in_range(cotangent, length):
            return x * _zero_where_at_most(cotangent / length, out, 0.0), None
        slope = x / length
        slope = torch.mul(
            slope, _zero_where_at_most(cotangent, out, 0.0), **_out_option(slope, cotangent)
        )
        return slope, None


@_unseen
def _is_quotient_in_range(x: Array, y: Array) -> bool:
    """Whether no quotient of these overflows or loses digits near 0."""
    size, bound = (x / y).detach().abs(), _LIMITS[y.dtype]
    usual = (size >= bound.smallest_normal / bound.eps) & (size <= bound.max)
    return bool((usual | (x == 0)).all())


def _norm(
    x: Array,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    ord: float = 2,  # noqa: A002  (the name in NumPy and the standard)
    where: Any = None,
    min_norm: float = 0.0,
) -> Array | None:
    """Root of the sum of squares, if no square underflows or overflows."""
    if ord != 2 or where is not None or min_norm != 0 or axis == () or not _are_plain(x):  # noqa: PLR2004  (the Euclidean norm)
        return None
    out = _Norm.of(x, axis) if x.numel() else None
    if out is None or not _is_in_range(x, out.detach(), axis):
        return None
    return dropped(out, axis, keepdims=keepdims)


@_unseen
def _is_in_range(x: Array, norm: Array, axis: Axis) -> bool:
    """Whether no square was lost: each small norm belongs to a slice of zeros."""
    bound = _LIMITS[x.dtype]
    least = math.sqrt(bound.smallest_normal / bound.eps)
    numbers, most = _numbers(x), math.sqrt(bound.max / _HANDFUL)
    if numbers and all(a == 0 or least <= abs(a) <= most for a in numbers):
        return True
    if not norm.amax().item() < math.inf:  # inf or NaN
        return False
    if norm.amin().item() >= least:
        return True
    if isinstance(axis, int) and x.numel() > _FEW:
        return not x.detach().movedim(axis, -1)[norm.squeeze(axis) < least].any()
    peak = x.detach().abs().amax(() if axis is None else axis, keepdim=True)
    return _zero_where_at_most(peak, -norm, -least).amax().item() == 0


# How large slices are, roughly, where a compiler sums in one loop with what it does next.
#
# A norm asks for a size first, by which it scales its slice. Inductor (2.13) takes 2.0 of the plain
# norm to find the largest entry of rows of 100 on a CPU, and 0.6 for two sums of squares; one sum
# of sizes, in their place, makes the same norm as fast.


def rough_size(x: Array, axis: Axis) -> Array | None:
    """Return a size of each slice of sizes; None if that takes longer than the largest entry."""
    # A sum of squares would lose slices at both ends: three such sums are needed, and in the one
    # for the large ones squares of entries near 1 are subnormal, and take eight times as long.
    if x.dtype not in _LIMITS or not measures_by_sums(x):
        return None
    x, bound = x.detach(), _LIMITS[x.dtype]
    total = xp.sum(x, axis=axis, keepdims=True).clamp(max=bound.max)
    # A slice of one smallest normal number has that size, and is not taken for a subnormal one.
    least = total.clamp(max=bound.smallest_normal)
    return torch.maximum(total * (x.numel() // total.numel()) ** -0.5, least)


class _Softmax(FillingFunction):
    @staticmethod
    def value(x: Array, where: Array | None, axis: int) -> Array:
        return _Softmax.of_kept(_Softmax.inside(x, where), axis)

    @staticmethod
    def inside(x: Array, where: Array | None) -> Array:
        return x if where is None else _kept(x, where, -math.inf)

    @staticmethod
    def of_kept(inside: Array, axis: int) -> Array:
        out = torch.softmax(inside, axis)
        if _has_nan(out, axis):
            empty = (inside == -math.inf).all(axis, keepdim=True)
            out.masked_fill_(empty, 0.0)
        return out

    @staticmethod
    def forward(ctx: Any, x: Array, where: Array | None, axis: int) -> Array:
        inside = _Softmax.inside(x, where)
        out = _Softmax.of_kept(inside, axis)
        absent = None if inside.amin() > -math.inf else inside == -math.inf
        ctx.save_for_backward(out, absent)
        ctx.axis = axis
        return out

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> tuple[Array, None, None]:
        out, absent = ctx.saved_tensors
        if absent is None:
            return _softmax_backward(cotangent, out, ctx.axis, out.dtype), None, None
        present = absent.logical_not().to(out.dtype)
        # Nothing comes from an absent entry, an infinite cotangent neither, and nothing to it.
        cotangent = _zero_where_at_most(cotangent, present, 0.5)
        slope = _softmax_backward(cotangent, out, ctx.axis, out.dtype)
        return _zero_where_at_most(slope, present, 0.5), None, None


def _has_nan(rows: Array, axis: int) -> bool:
    """Whether there is a NaN, in rows that are all NaN or have none."""
    some = rows if rows.numel() <= _HANDFUL else rows.detach().select(axis, 0)
    return math.isnan(_total(some))


_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def _kept(x: Array, where: Array, other: float) -> Array:
    """Return ``where(where, x, other)``; for many entries by masking bits."""
    if x.numel() <= _FEW:
        return torch.where(where, x, other)  # nothing records it here
    kind = _BITS[x.dtype]
    bits = x.new_full((), other).view(kind)
    chosen = x.detach().resolve_neg().view(kind) ^ bits
    chosen &= where.view(torch.int8).neg()
    chosen ^= bits
    return chosen.view(x.dtype)


def _is_mask(where: Any, x: Array) -> bool:
    """Whether a mask is a boolean tensor on the CPU, of the same shape."""
    mask = type(where) is torch.Tensor and where.dtype is torch.bool and where.is_cpu
    return mask and bool(where.shape == x.shape)


def _softmax(x: Array, *, axis: Axis = -1, where: Any = None) -> Array | None:
    if not isinstance(axis, int) or not x.numel() or not x.ndim or not _are_plain(x):
        return None
    if where is not None and not _is_mask(where, x):
        return None
    out = _Softmax.of(x, where, axis)
    # A NaN or inf makes its slice NaN. The slope of an absent entry must be 0 there all the same,
    # which the double where sees to.
    return None if _has_nan(out, axis) else out


class _LogSum(FillingFunction):
    @staticmethod
    def value(x: Array, axis: int) -> Array:
        return torch.logsumexp(x, axis, keepdim=True)

    @staticmethod
    def forward(ctx: Any, x: Array, axis: int) -> Array:
        ctx.save_for_backward(x)
        ctx.axis, ctx.has_absent = axis, bool(x.amin() == -math.inf)
        return _LogSum.value(x, axis)

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> tuple[Array, None]:
        (x,) = ctx.saved_tensors
        share = _Softmax.of(x, None, ctx.axis)  # not exp(x - out): out is rounded at its own size
        slope = share * cotangent
        if not ctx.has_absent:
            return slope, None
        return _zero_where_at_most(slope, x.detach(), -_LIMITS[x.dtype].max), None


def _log_sum(
    x: Array, *, axis: Axis = None, keepdims: bool = False, where: Any = None, b: Any = None
) -> Array | None:
    """Logarithm of the sum of exponentials, if all of them are finite."""
    if where is not None or b is not None or not isinstance(axis, int):
        return None
    if not _are_plain(x) or not x.numel() or not x.ndim:
        return None
    out = _LogSum.of(x, axis)
    return dropped(out, axis, keepdims=keepdims) if _are_finite(out) else None


KERNELS: dict[str, Function] = {
    "safe_logsumexp": _log_sum,
    "safe_norm": _norm,
    "safe_softmax": _softmax,
}
