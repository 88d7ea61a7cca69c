"""
Reductions, products and quantiles in the way that is fast in PyTorch on the CPU.

An absent entry is a NaN, and so is 0 in ``eq(x, x)``.
"""

import math
from functools import partial
from typing import Any

import numpy as np
import torch

from safeops._backends.methods import METHODS
from safeops._backends.shapes import dropped
from safeops._backends.torch import namespace, private
from safeops._backends.torch.fast_paths import (
    FillingFunction,
    _are_finite,
    _are_plain,
    _has_memory,
    _is_watched,
    _least,
    _most,
    _ones_where,
    _records,
    _total,
    _unseen,
    _zero_where_at_most,
)
from safeops._backends.torch.slices import _norm
from safeops._core.types import Array, Axis, Function


def _present(x: Array) -> Array:
    """Return 1.0 where x is not NaN, else 0.0."""
    return _ones_where(x, x.detach())


class _Nansum(FillingFunction):
    """
    `torch.nansum`; the rule of PyTorch (2.13) multiplies a cotangent by 0, and inf becomes NaN.

    For its backward pass this class keeps one byte for each entry, not the entry.
    """

    @staticmethod
    def value(x: Array, axis: Axis) -> Array:
        return torch.nansum(x, axis, keepdim=True)

    @staticmethod
    def forward(ctx: Any, x: Array, axis: Axis) -> Array:
        ctx.save_for_backward(_present(x).to(torch.int8))
        return _Nansum.value(x, axis)

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> tuple[Array, None]:
        (kept,) = ctx.saved_tensors
        return _zero_where_at_most(
            cotangent.expand(kept.shape), kept.to(cotangent.dtype), 0.5
        ), None


class _Centred(FillingFunction):
    """Distances from the mean of a slice, 0 where absent: a projection, and so its own adjoint."""

    @staticmethod
    def value(x: Array, axis: Axis, number: Array) -> Array:
        # The largest entry is subtracted first: so distances in a constant slice are exactly 0.
        away = x - _Extreme.value(x, axis, 1, skips=True)
        away -= torch.nansum(away, axis, keepdim=True) / number
        return _zero_where_at_most(away, _present(x), 0.5, away)

    @staticmethod
    def forward(ctx: Any, x: Array, axis: Axis, number: Array) -> Array:
        ctx.save_for_backward(_present(x).to(torch.int8), number)
        ctx.axis = axis
        return _Centred.value(x, axis, number)

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> tuple[Array, None, None]:
        kept, number = ctx.saved_tensors
        kept = kept.to(cotangent.dtype)
        mean = _zero_where_at_most(cotangent, kept, 0.5).sum(ctx.axis, keepdim=True) / number
        slope = cotangent - mean
        return _zero_where_at_most(slope, kept, 0.5, slope), None, None


class _Extreme(FillingFunction):
    """Largest or smallest entry; ties share the slope evenly; NaN counts unless `skips`."""

    @staticmethod
    def value(x: Array, axis: Axis, sign: int, skips: bool) -> Array:  # noqa: FBT001  (`apply` takes no keywords)
        numbers = x.nan_to_num(-sign * math.inf, math.inf, -math.inf) if skips else x
        extreme = torch.amax if sign > 0 else torch.amin
        return extreme(numbers, () if axis is None else axis, keepdim=True)

    @staticmethod
    def forward(ctx: Any, x: Array, axis: Axis, sign: int, skips: bool) -> Array:  # noqa: FBT001  (as above)
        out = _Extreme.value(x, axis, sign, skips)
        ctx.save_for_backward(x, out)
        ctx.axis = axis
        return out

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> tuple[Array, None, None, None]:
        x, out = ctx.saved_tensors
        ties = _ones_where(x, out.detach())
        share = cotangent / ties.sum(ctx.axis, keepdim=True)
        return _zero_where_at_most(share.expand(x.shape), ties, 0.5), None, None, None


class _Product(torch.autograd.Function):
    """Product along the last axis; the slope for an entry is the product of the other entries."""

    # The rule of torch.prod (2.13) divides the product by the entry: where the product is out of
    # range, the slope is 0 or inf. And with two zeros it makes all slopes 0, even beside a NaN.

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        out = torch.prod(x, -1, keepdim=True)
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> Array:
        x, out = ctx.saved_tensors
        if _records(x, cotangent) or _is_watched():
            others = _product_of_others(x, cumulative_product)
        elif _is_normal(out):
            others = out / x
        else:
            others = _product_of_others(x, partial(torch.cumprod, dim=-1))
        return cotangent * others.conj()


@_unseen
def _is_normal(x: Array) -> bool:
    size, bound = x.detach().abs(), torch.finfo(x.dtype)
    return bool((size >= bound.smallest_normal).all() and (size <= bound.max).all())


def _product_of_others(x: Array, cumulative: Function) -> Array:
    """Return for each entry of the last axis the product of the entries before and behind it."""
    one = torch.ones_like(x[..., :1])
    before = cumulative(torch.cat((one, x[..., :-1]), -1))
    behind = cumulative(torch.cat((one, x[..., 1:].flip(-1)), -1)).flip(-1)
    return before * behind


def cumulative_product(x: Array) -> Array:
    """Return running products along the last axis, by doubling."""
    # Forward mode of torch.cumprod divides by the products, so that second derivatives at a zero
    # are NaN or wrong (2.13).
    shift = 1
    while shift < x.shape[-1]:
        ones = torch.ones_like(x[..., :shift])
        x = x * torch.cat((ones, x[..., :-shift]), -1)
        shift *= 2
    return x


def product(x: Array) -> Array:
    """Return the product along the last axis, which is kept."""
    if torch.compiler.is_compiling() or not (x.is_floating_point() or x.is_complex()):
        return torch.prod(x, -1, keepdim=True)
    # What `torch.func.vjp` returns is called outside of it, where the rule of torch.prod divides.
    if (private.in_transform() or private.forward_level() >= 0) and x.shape[-1]:
        return cumulative_product(x)[..., -1:]
    usual = _records(x) and not _is_watched() and _has_memory(x) and not x.is_meta
    return _Product.apply(x) if usual else torch.prod(x, -1, keepdim=True)


def loses(x: Array, axis: Axis, sign: int) -> Array:
    """Return `x`, with slope 0 at the entries that are not extreme in their slice."""
    # For these entries the rules of torch.amax and torch.amin (2.13) multiply the cotangent with 0,
    # which makes NaN of inf.
    if not (torch.is_grad_enabled() and x.is_floating_point() and x.numel()):
        return x
    others = x.detach()
    if sign > 0:
        return torch.where(others < others.amax(axis, keepdim=True), others, x)
    return torch.where(others > others.amin(axis, keepdim=True), others, x)


def _is_reduced(x: Array, axis: Axis, *rare: Any) -> bool:
    return axis != () and all(option is None for option in rare) and x.numel() and _are_plain(x)


def nansum(
    x: Array,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Any = None,
    initial: Any = None,
    fill_value: Any = None,
) -> Array | None:
    """Sum by `torch.nansum`."""
    if not _is_reduced(x, axis, where, initial, fill_value):
        return None
    return dropped(_Nansum.of(x, axis), axis, keepdims=keepdims)


def nanmean(
    x: Array,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Any = None,
    count: Any = None,
    weights: Any = None,
    fill_value: Any = math.nan,
) -> Array | None:
    """Sum, divided by the number of entries; None if a slice has none."""
    if not _is_reduced(x, axis, where, count, weights) or type(fill_value) is not float:
        return None
    number = _present(x).sum(axis, keepdim=True)
    if not number.all():
        return None
    return dropped(_Nansum.of(x, axis) / number, axis, keepdims=keepdims)


def _spread(
    of: Function,
    x: Array,
    *,
    axis: Axis = None,
    correction: float = 0,
    keepdims: bool = False,
    where: Any = None,
    weights: Any = None,
    fill_value: Any = math.nan,
) -> Array | None:
    """Reduce the distances from the mean of each slice; None if one has no degree of freedom."""
    if not _is_reduced(x, axis, where, weights) or type(fill_value) is not float:
        return None
    if type(correction) not in (int, float):
        return None
    number = _present(x).sum(axis, keepdim=True)
    if not _least(number) > max(correction, 0) or not _are_finite(x.detach().nansum()):
        return None
    out = of(_Centred.of(x, axis, number), axis, number - correction)
    return None if out is None else dropped(out, axis, keepdims=keepdims)


def _variance(away: Array, axis: Axis, freedom: Array) -> Array:
    return (away * away).sum(axis, keepdim=True) / freedom


def _deviation(away: Array, axis: Axis, freedom: Array) -> Array | None:
    return _root_mean_square(away, freedom, axis=axis)


def _root_mean_square(
    x: Array, number: Array, peak: Array | None = None, *, axis: Axis
) -> Array | None:
    """Norm, divided by the root of a number; None if a square may be lost."""
    norm = None if peak is not None else _norm(x, axis=axis, keepdims=True)
    return None if norm is None else norm / number.sqrt()


def _extreme(
    sign: int,
    x: Array,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Any = None,
    initial: Any = None,
    fill_value: Any = None,
    skips: bool = False,
) -> Array | None:
    """Extreme entry, passing over NaN if `skips`."""
    # None, for the engine to do it, if a slice has a NaN that counts, no entry that counts, or
    # infinite entries alone.
    if not _is_reduced(x, axis, where, initial, fill_value):
        return None
    out = dropped(_Extreme.of(x, axis, sign, skips), axis, keepdims=keepdims)
    if not skips:
        aside = math.isnan(_total(out))
    else:
        aside = math.isinf(_least(out) if sign > 0 else _most(out))
    return None if aside else out


# Quantiles: NumPy sorts the numbers, and entries are taken from their places.
#
# To sort numbers alone takes NumPy a twentieth of the time in which PyTorch 2.13 sorts them with
# their places. The places of two entries are counted: of equal ones the first stands first.


_COUNTED = 2**24  # up to here float32 counts


def _quantile(
    x: Array, q: Any, method: Any, /, *, axis: Axis, keepdims: bool, where: Any, fill_value: Any
) -> Array | None:
    """Return the quantiles along an axis, if each is between two finite numbers."""
    del fill_value  # of empty slices
    if where is not None or type(q) is not float or type(axis) is not int or method not in METHODS:
        return None
    if not _are_plain(x) or not x.numel() or not -x.ndim <= axis < x.ndim:
        return None
    rows = x.movedim(axis, -1)
    found = _sorted(rows, q, method) if rows.shape[-1] < _COUNTED else None
    if found is None:
        return None
    ordered, (*places, part) = found
    if _records(x):
        ends = [rows.gather(-1, _place(rows, ordered, k)) for k in places]
    else:
        ends = [ordered.gather(-1, k) for k in places]
    low, high = ends
    value = _between(low, high, part)
    return value.movedim(-1, axis) if keepdims else value.squeeze(-1)


@_unseen
def _sorted(rows: Array, q: float, method: str) -> tuple[Array, tuple[Array, ...]] | None:
    """Return ordered rows, the ranks of two numbers in each, and the part of the way between."""
    rows = rows.detach().resolve_neg()
    ordered = torch.from_numpy(np.sort(rows.numpy(), axis=-1))  # NaN last
    number = torch.eq(rows, rows, out=torch.empty_like(rows)).sum(-1, keepdim=True)
    if not _least(number) > 0:
        return None
    low, part = METHODS[method](namespace, number, q)
    last = number - 1.0
    ranks = [k.clamp(min=0.0).minimum(last).long() for k in (low, low + 1.0)]
    finite = _are_finite(*(ordered.gather(-1, k) for k in ranks))
    return (ordered, (*ranks, part)) if finite else None


@_unseen
def _place(rows: Array, ordered: Array, rank: Array) -> Array:
    """Return where the entry with a rank stands in its row."""
    rows, number = rows.detach(), ordered.gather(-1, rank)
    mask = torch.lt(rows, number, out=torch.empty_like(rows))
    ordinal = rank - mask.sum(-1, keepdim=True) + 1.0  # among those that are equal
    seen = torch.eq(rows, number, out=mask).cumsum_(-1)
    return torch.lt(seen, ordinal, out=mask).sum(-1, keepdim=True).long()


def _between(low: Array, high: Array, part: Array) -> Array:
    """Return ``(1 - part) * low + part * high``; `low` if `part` is 0 or both are equal."""
    value = (1.0 - part) * low + part * high
    rounding = torch.where(low == high, value - low, 0.0).detach()
    return torch.where(part == 0, low, value - rounding)


KERNELS: dict[str, Function] = {
    "_quantile": _quantile,
    "_root_mean_square": _root_mean_square,
    "nansum": nansum,
    "nanmean": nanmean,
    "nanvar": partial(_spread, _variance),
    "nanstd": partial(_spread, _deviation),
    "nanmax": partial(_extreme, 1, skips=True),
    "nanmin": partial(_extreme, -1, skips=True),
    "safe_max": partial(_extreme, 1),
    "safe_min": partial(_extreme, -1),
}
