"""Elementwise kernels of PyTorch; the rest is left to the double where."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from safeops._backends.torch.fast_paths import (
    _LIMITS,
    _PLAIN,
    FillingFunction,
    _are_equal,
    _are_finite,
    _are_plain,
    _constant_below,
    _has_memory,
    _is_watched,
    _largest_zero,
    _least,
    _ones_where,
    _out_option,
    _records,
    _threshold,
    _zero_where_at_most,
)
from safeops._core.dtypes import Limits, is_positive_zero
from safeops._core.types import Array, Function


class _Quotient(FillingFunction):
    @classmethod
    def recorded(cls, *args: Any) -> Array:
        """Return the value; for a batch, or within a transform, by a double where."""
        if _is_watched() or not all(map(_has_memory, args)):
            return _quotient_in_steps(*args)  # reached by the derivatives of `backward`
        return super().recorded(*args)

    @staticmethod
    def value(x: Array, y: Array) -> Array:
        out, size = x / y, y.abs()
        return _zero_where_at_most(out, size, _largest_zero(y), out)

    @staticmethod
    def forward(ctx: Any, x: Array, y: Array) -> Array:
        # The result is not saved, because the caller may write into it.
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, y)
        return _Quotient.value(x, y)

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> tuple[Array | None, Array | None]:
        x, y = ctx.saved_tensors
        size, last = y.abs(), _largest_zero(y)
        # One fill at the end is enough, unless the quotients themselves are differentiated.
        divide = _Quotient.of if _records(x, y, cotangent) else torch.div
        to_x = to_y = None
        if ctx.needs_input_grad[0]:
            to_x = divide(cotangent, y)
            to_x = _zero_where_at_most(to_x, size, last, to_x)
        if ctx.needs_input_grad[1]:
            to_y = divide(x, y)
            reused = _out_option(to_y, y, cotangent)
            to_y = divide(to_y, y, **reused)
            to_y = torch.addcmul(y.new_zeros(()), to_y, cotangent, value=-1, **reused)
            to_y = _zero_where_at_most(to_y, size, last, to_y)
        return to_x, to_y


def _quotient_in_steps(x: Array, y: Array) -> Array:
    filled = y.abs() < _LIMITS[y.dtype].smallest_normal
    x, y = (torch.where(filled, 1.0, z) for z in (x, y))
    return torch.where(filled, 0.0, x / y)


def _divide(x: Array, y: Array, *, fill_value: Any = 0.0) -> Array | None:
    if type(y) not in _PLAIN or not is_positive_zero(fill_value) or not _are_plain(x, y):
        return None
    if x.shape != y.shape:
        x, y = torch.broadcast_tensors(x, y)
    return _Quotient.of(x, y)


def _reciprocal(x: Array, *, fill_value: Any = 0.0) -> Array | None:
    if not is_positive_zero(fill_value) or not _are_plain(x):
        return None
    return _Quotient.of(x.new_ones(()).expand(x.shape), x)


class _Root(FillingFunction):
    @staticmethod
    def value(x: Array) -> Array:
        return _threshold(x, _largest_zero(x), 0.0).sqrt_()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        out = _Root.value(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> Array:
        (out,) = ctx.saved_tensors
        slope = _threshold(out, 0.0, 0.5)
        slope = torch.mul(slope, 2.0, **_out_option(slope))
        slope = torch.div(cotangent, slope, **_out_option(slope, cotangent))
        return _zero_where_at_most(slope, out, 0.0, slope)


def _root(x: Array, *, fill_value: Any = 0.0) -> Array | None:
    return _Root.of(x) if is_positive_zero(fill_value) and _are_plain(x) else None


class _Kind(NamedTuple):
    """A logarithm: its function, its slope as a divisor, and where its domain begins."""

    log: Function
    divisor: Function
    last: Callable[[Array], float]  # the last number that is filled
    least: Callable[[Limits], float]  # a number whose logarithm is the default fill
    harmless: float


def _natural(bound: Limits) -> float:
    return bound.smallest_normal


_LOGARITHMS = {
    "safe_log": _Kind(torch.log_, lambda x: x, _largest_zero, _natural, 1.0),
    "safe_log2": _Kind(torch.log2_, lambda x: x * math.log(2.0), _largest_zero, _natural, 1.0),
    "safe_log10": _Kind(torch.log10_, lambda x: x * math.log(10.0), _largest_zero, _natural, 1.0),
    "safe_log1p": _Kind(
        torch.log1p_, lambda x: 1.0 + x, lambda _: -1.0, lambda bound: bound.eps / 2 - 1, 0.0
    ),
}


class _Logarithm(FillingFunction):
    @staticmethod
    def value(x: Array, kind: _Kind, fills: bool) -> Array:  # noqa: FBT001  (`apply` takes no keywords)
        if not fills:
            return kind.log(_threshold(x, kind.last(x), kind.least(_LIMITS[x.dtype])))
        out = kind.log(_threshold(x, kind.last(x), kind.harmless))
        return _zero_where_at_most(out, x, kind.last(x), out)

    @staticmethod
    def forward(ctx: Any, x: Array, kind: _Kind, fills: bool) -> Array:  # noqa: FBT001  (as above)
        ctx.save_for_backward(x)
        ctx.kind = kind
        return _Logarithm.value(x, kind, fills)

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> tuple[Array, None, None]:
        (x,), kind = ctx.saved_tensors, ctx.kind
        slope = kind.divisor(_threshold(x, kind.last(x), kind.harmless))
        slope = torch.div(cotangent, slope, **_out_option(slope, cotangent))
        return _zero_where_at_most(slope, x, kind.last(x), slope), None, None


def _logarithm(kind: _Kind, x: Array, *, fill_value: Any = None) -> Array | None:
    if not (fill_value is None or is_positive_zero(fill_value)) or not _are_plain(x):
        return None
    return _Logarithm.of(x, kind, fill_value is not None)


class _Exponential(FillingFunction):
    @staticmethod
    def value(x: Array) -> Array:
        return x.exp().clamp_(max=_LIMITS[x.dtype].max)

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        out = _Exponential.value(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> Array:
        (out,) = ctx.saved_tensors
        size = -out
        slope = _zero_where_at_most(cotangent, size, -_LIMITS[out.dtype].max, size)
        return torch.mul(slope, out, **_out_option(slope))


def _exponential(x: Array) -> Array | None:
    return _Exponential.of(x) if _are_plain(x) else None


class _Power(FillingFunction):
    """Power of bases that are 0, or positive and normal; 0 where a power of 0 is infinite."""

    @staticmethod
    def value(x: Array, p: Array) -> Array:
        out = x.pow(p)
        if not p.numel() or (not _is_watched() and _least(p) >= 0):
            return out
        # Negative only where x is 0 and p is negative.
        real = torch.maximum(x.sign().sub_(0.5), p.sign())
        return _zero_where_at_most(out, real, -0.25)

    @staticmethod
    def forward(ctx: Any, x: Array, p: Array) -> Array:
        out = _Power.value(x, p)
        ctx.save_for_backward(x, p, out if ctx.needs_input_grad[1] else None)
        return out

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> tuple[Array | None, Array | None]:
        x, p, out = ctx.saved_tensors
        to_x = None
        if ctx.needs_input_grad[0]:
            factor, base = _of_slope(x, p)
            to_x = _times_power(cotangent * factor, base, p)
            used = torch.maximum(_ones_where(p, 1.0), _ones_where(p, 2.0))
            to_x = _zero_where_at_most(to_x, torch.maximum(x.detach(), used), 0.0)
        if not ctx.needs_input_grad[1]:
            return to_x, None
        return to_x, _zero_where_at_most(cotangent * out * _threshold(x, 0.0, 1.0).log(), x, 0.0)


def _times_power(factor: Array, x: Array, p: Array) -> Array:
    """
    Return ``factor * x**(p - 1)``, as two halves of the power where that can be out of range alone.

    It is for p just below 0, and the slope of it for p just below 1. At x = 0 the power is whole:
    the slope of a half is not that of the whole.
    """
    end = 1.0 if _records(factor, x, p) else 0.0
    if not p.numel() or (not _is_watched() and _least(p) >= end):
        return factor * _Power.of(x, p - 1.0)
    halved = (x > 0) & (p < end)
    half = 0.5 * (p - 1.0)
    other = _Power.of(torch.where(halved, x, 1.0), half)
    return factor * _Power.of(x, torch.where(halved, half, p - 1.0)) * other


def _of_slope(x: Array, p: Array) -> tuple[Array, Array]:
    """Return p and x; at x = 0 p is a constant, and so is x for p above 2, as in `safe_pow`."""
    if not _records(x, p):
        return p, x
    falling = torch.maximum(x.sign() - 0.5, 2.0 - p).detach()  # negative at 0 where p is above 2
    least = _LIMITS[p.dtype].smallest_normal
    return _constant_below(p, x, 0.0), _constant_below(x, falling, -least)


def _power(x: Array, p: Any) -> Array | None:
    if type(p) in (int, float):
        if not _are_plain(x):
            return None
        p = x.new_full((), p)
    elif type(p) not in _PLAIN or not _are_plain(x, p):
        return None
    base = x.detach()
    usual = _are_equal(_threshold(base, _largest_zero(x), 0.0), base)
    if not usual or not _are_finite(x, p):
        return None
    if x.shape != p.shape:
        x, p = torch.broadcast_tensors(x, p)
    return _Power.of(x, p)


class _TimesLog(FillingFunction):
    """Product ``x * log(y)`` of finite arguments, for x that is 0 wherever y is not positive."""

    @staticmethod
    def value(x: Array, y: Array) -> Array:
        return x * _threshold(y, _largest_zero(y), 1.0).log_()

    @staticmethod
    def forward(ctx: Any, x: Array, y: Array) -> Array:
        ctx.save_for_backward(x, y)
        return _TimesLog.value(x, y)

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> tuple[Array, Array]:
        x, y = ctx.saved_tensors
        last = _largest_zero(y)
        inside = _threshold(y, last, 1.0)
        to_y = x / inside
        to_y = torch.mul(to_y, cotangent, **_out_option(to_y, x, inside, cotangent))
        to_x = torch.log(inside, **_out_option(inside))
        to_x = torch.mul(to_x, cotangent, **_out_option(to_x, cotangent))
        return _zero_where_at_most(to_x, y, last, to_x), _zero_where_at_most(to_y, y, last, to_y)


def _times_log(x: Array, y: Array) -> Array | None:
    if type(y) not in _PLAIN or not _are_plain(x, y):
        return None
    if x.shape != y.shape:
        x, y = torch.broadcast_tensors(x, y)
    factor = x.detach()
    if not _are_equal(_zero_where_at_most(factor, y.detach(), _largest_zero(y)), factor):
        return None  # an infinite product
    out = _TimesLog.of(x, y)
    return out if _are_finite(out) else None


KERNELS: dict[str, Function] = {
    "safe_div": _divide,
    "safe_reciprocal": _reciprocal,
    "safe_sqrt": _root,
    "safe_exp": _exponential,
    "safe_pow": _power,
    "xlogy": _times_log,
}
KERNELS |= {name: partial(_logarithm, kind) for name, kind in _LOGARITHMS.items()}
