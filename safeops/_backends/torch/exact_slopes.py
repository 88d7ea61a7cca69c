"""
Functions whose rule in PyTorch 2.13 loses digits of the slope, with a rule that keeps them.

PyTorch's slopes of the inverse functions divide by ``1 - x**2``, which cancels next to the ends;
here the divisor is ``(1 - x) * (1 + x)``. PyTorch's slope of `expm1` is ``expm1(x) + 1``, which is
0 below -17 in float32.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from safeops._backends.torch.barriers import in_forward_mode
from safeops._backends.torch.elementwise import _Exponential
from safeops._backends.torch.fast_paths import (
    _LIMITS,
    FillingFunction,
    _are_plain,
    _is_watched,
    _out_option,
    _records,
    _zero_where_at_most,
)
from safeops._core.types import Array, Function


class _Inverse(NamedTuple):
    """An inverse function on [-1, 1]: its value, its sign, and whether its slope has a root."""

    value: Function
    sign: float
    of_root: bool
    end: Callable[[Array], float]  # the largest argument with a finite value


def _one(_: Array) -> float:
    return 1.0


def _below_one(x: Array) -> float:
    return 1.0 - _LIMITS[x.dtype].eps / 2


_INVERSES = {
    "safe_asin": _Inverse(torch.asin_, 1.0, of_root=True, end=_one),
    "safe_acos": _Inverse(torch.acos_, -1.0, of_root=True, end=_one),
    "safe_atanh": _Inverse(torch.atanh_, 1.0, of_root=False, end=_below_one),
}


class _Clipped(FillingFunction):
    @staticmethod
    def value(x: Array, kind: _Inverse) -> Array:
        end = kind.end(x)
        return kind.value(x.clamp(-end, end))

    @staticmethod
    def forward(ctx: Any, x: Array, kind: _Inverse) -> Array:
        ctx.save_for_backward(x)
        ctx.kind = kind
        return _Clipped.value(x, kind)

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> tuple[Array, None]:
        (x,), kind = ctx.saved_tensors, ctx.kind
        size = x.detach().abs().neg_()
        inside = _zero_where_at_most(x, size, -1.0)  # 0 at and beyond the ends
        divisor = 1.0 + inside
        divisor = torch.mul(divisor, 1.0 - inside, **_out_option(divisor, x))
        if _records(inside):  # the slope ``(1 - x) - (1 + x)`` of the product cancels near 0
            square = inside * inside
            divisor = divisor.detach() + (square.detach() - square)
        if kind.of_root:
            divisor = torch.sqrt(divisor, **_out_option(divisor))
        slope = torch.div(cotangent, divisor, **_out_option(divisor, cotangent))
        slope = _zero_where_at_most(slope, size, -1.0, slope)
        return (-slope if kind.sign < 0 else slope), None


def _inverse(kind: _Inverse, x: Array) -> Array | None:
    return _Clipped.of(x, kind) if _are_plain(x) else None


class _Expm1(FillingFunction):
    @staticmethod
    def value(x: Array) -> Array:
        return x.expm1().clamp_(max=_LIMITS[x.dtype].max)

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        ctx.save_for_backward(x)
        return _Expm1.value(x)

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> Array:
        (x,) = ctx.saved_tensors
        size = -x
        slope = _zero_where_at_most(cotangent, size, -_first_overflow(x), size)
        power = _Exponential.of(x)
        return torch.mul(slope, power, **_out_option(slope, power))


def _first_overflow(x: Array) -> float:
    """Return the least number whose exponential is infinite."""
    bound = _LIMITS[x.dtype]
    last = bound.largest_exponent()
    return last + bound.eps * 2.0 ** math.floor(math.log2(last))


def _expm1(x: Array) -> Array | None:
    return _Expm1.of(x) if _are_plain(x) else None


def _product(special: Function, log: Function) -> Function:
    """Return a product with a logarithm, by PyTorch's own function where a transform sees it."""

    # The rules of that function form ``x / y / y``; those of ``x * log(y)`` form ``1 / y**2`` in
    # forward mode over forward mode, and x comes after. Eagerly it takes ten times as long;
    # compiled, where Inductor (2.13) looks for NaN one by one, 2.2 of ``x * log(y)`` in place of
    # 1.4. Where the logarithm is infinite they would make 0 of a cotangent of 0, of which NaN is
    # right.
    def product(x: Array, y: Array) -> Array:
        if _is_watched() and (in_forward_mode() or not torch.compiler.is_dynamo_compiling()):
            finite = torch.isfinite(log(y))
            usual, other = (
                tuple(torch.where(kept, z, n) for z, n in ((x, 0.0), (y, 1.0)))
                for kept in (finite, ~finite)
            )
            return torch.where(finite, special(*usual), other[0] * log(other[1]))
        return x * log(y)

    return product


_log_product = _product(torch.special.xlogy, torch.log)
FORMULAS: dict[str, Function] = {
    "exponent": _log_product,
    "log_product": _log_product,
    "log1p_product": _product(torch.special.xlog1py, torch.log1p),
    "entropy": torch.special.entr,
}
KERNELS: dict[str, Function] = {"safe_expm1": _expm1}
KERNELS |= {name: partial(_inverse, kind) for name, kind in _INVERSES.items()}
