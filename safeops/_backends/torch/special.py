"""Special functions and functions of two numbers, by PyTorch's own where they are right."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from safeops._backends.torch.filling import (
    _LIMITS,
    _are_finite,
    _are_plain,
    _least,
    _most,
    _threshold,
    _zero_where_at_most,
)
from safeops._backends.torch.fused import Fused
from safeops._typing import Array, Function

_FEW_OF = 20  # a part of the entries for which the steps may run beside the function


class _LogGamma(Fused):
    @classmethod
    def run(cls, x: Array) -> tuple[Array]:
        return (torch.lgamma(x),)

    @classmethod
    def pull(
        cls, cotangent: Array, args: Sequence[Any], kept: Sequence[Array], needs: Sequence[bool]
    ) -> tuple[Any, ...]:
        del kept, needs
        return (cotangent * torch.digamma(args[0]),)


class _LogNormal(Fused):
    @classmethod
    def run(cls, x: Array) -> tuple[Array]:
        return (torch.special.log_ndtr(x),)

    @classmethod
    def pull(
        cls, cotangent: Array, args: Sequence[Any], kept: Sequence[Array], needs: Sequence[bool]
    ) -> tuple[Any, ...]:
        del kept, needs
        # The density over the probability.
        scaled = torch.special.erfcx(args[0] * -math.sqrt(0.5))
        return (cotangent * (math.sqrt(2 / math.pi) / scaled),)


def _of_number(
    kind: type[Fused], low: float, high: float, steps: Function, x: Array
) -> Array | None:
    """Return a function of numbers between two; of the others, if they are few, by the steps."""
    if not _are_plain(x) or not x.numel():
        return None
    if _least(x) >= low and _most(x) <= high:
        return kind.of(steps, x)
    others = ~((x.detach() >= low) & (x.detach() <= high))
    places = others.nonzero(as_tuple=True)
    if len(places) == 0 or len(places[0]) * _FEW_OF > x.numel():
        return None
    return kind.of(steps, torch.where(others, 1.0, x)).index_put(places, steps(x[places]))


class _InverseError(Fused):
    @classmethod
    def run(cls, x: Array) -> tuple[Array, Array]:
        out = torch.erfinv(x)
        return out, out

    @classmethod
    def pull(
        cls, cotangent: Array, args: Sequence[Any], kept: Sequence[Array], needs: Sequence[bool]
    ) -> tuple[Any, ...]:
        del args, needs
        (out,) = kept
        return (cotangent * (out * out).exp_().mul_(math.sqrt(math.pi) / 2),)


class _Quantile(Fused):
    @classmethod
    def run(cls, p: Array) -> tuple[Array, Array]:
        out = torch.special.ndtri(p)
        return out, out

    @classmethod
    def pull(
        cls, cotangent: Array, args: Sequence[Any], kept: Sequence[Array], needs: Sequence[bool]
    ) -> tuple[Any, ...]:
        del args, needs
        (out,) = kept
        return (cotangent * (out * out).mul_(0.5).exp_().mul_(math.sqrt(2 * math.pi)),)


class _LogAdd(Fused):
    @classmethod
    def run(cls, x: Array, y: Array) -> tuple[Array]:
        return (torch.logaddexp(x, y),)

    @classmethod
    def pull(
        cls, cotangent: Array, args: Sequence[Any], kept: Sequence[Array], needs: Sequence[bool]
    ) -> tuple[Any, ...]:
        del kept, needs
        away = args[0] - args[1]
        other = (-away).sigmoid_().mul_(cotangent)
        return away.sigmoid_().mul_(cotangent), other


class _Length(Fused):
    @classmethod
    def run(cls, x: Array, y: Array) -> tuple[Array, Array]:
        out = torch.hypot(x, y)
        return out, out

    @classmethod
    def pull(
        cls, cotangent: Array, args: Sequence[Any], kept: Sequence[Array], needs: Sequence[bool]
    ) -> tuple[Any, ...]:
        del needs
        (out,) = kept
        share = _zero_where_at_most(cotangent, out, 0.0)
        size = _threshold(out, 0.0, 1.0)
        return tuple((x / size).mul_(share) for x in args)


def _of_two(kind: type[Fused], asks: Function, steps: Function, x: Array, y: Any) -> Array | None:
    """Return a function of two numbers, if all of them are right."""
    if not _are_plain(x, y) or x.shape != y.shape or not x.numel() or not _are_finite(x, y):
        return None
    out = kind.of(steps, x, y)
    return out if asks(out) else None


def _are_lengths(out: Array) -> bool:
    """Whether all are far from overflow and from the numbers that lose digits, or 0."""
    bound = _LIMITS[out.dtype]
    least = bound.smallest_normal / bound.eps
    return _least(_threshold(out.detach(), 0.0, 1.0)) >= least and _most(out) <= bound.max / 2


# Between these numbers the functions of PyTorch have a value and a slope in range.
_NORMAL = _LIMITS[torch.float32].smallest_normal
_INSIDE = 1.0 - 2.0 * _LIMITS[torch.float32].eps
OF_STEPS: dict[str, Function] = {
    "log_ndtr": partial(_of_number, _LogNormal, -1e15, 13.0),
    "safe_erfinv": partial(_of_number, _InverseError, -_INSIDE, _INSIDE),
    "safe_hypot": partial(_of_two, _Length, _are_lengths),
    "safe_lgamma": partial(_of_number, _LogGamma, _NORMAL, 1e34),
    "safe_logaddexp": partial(_of_two, _LogAdd, _are_finite),
    "safe_ndtri": partial(_of_number, _Quantile, 1e-30, _INSIDE),
}
