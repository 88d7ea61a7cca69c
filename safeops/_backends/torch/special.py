"""Special functions and functions of two numbers, by PyTorch's own where they are right."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from safeops._backends.torch.filling import (
    _LIMITS,
    _are_finite,
    _are_plain,
    _largest_zero,
    _least,
    _most,
    _threshold,
    _zero_where_at_most,
)
from safeops._backends.torch.fused import Fused, Given
from safeops._typing import Array, Function

_FEW_OF = 20  # a part of the entries for which the steps may run beside the function


class _LogGamma(Fused):
    @classmethod
    def run(cls, x: Array) -> tuple[Array]:
        return (torch.lgamma(x),)

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        return (cotangent * torch.digamma(given.args[0]),)


class _LogNormal(Fused):
    @classmethod
    def run(cls, x: Array) -> tuple[Array]:
        return (torch.special.log_ndtr(x),)

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        # The density over the probability.
        scaled = torch.special.erfcx(given.args[0] * -math.sqrt(0.5))
        return (cotangent * (math.sqrt(2 / math.pi) / scaled),)


def _of_number(
    kind: type[Fused], low: float, high: float, steps: Function, x: Array, **options: Any
) -> Array | None:
    """Return a function of numbers between two; of the others, if they are few, by the steps."""
    if options or not _are_plain(x) or not x.numel():
        return None
    if _least(x) >= low and _most(x) <= high:
        return kind.of(steps, x)
    others = ~((x.detach() >= low) & (x.detach() <= high))
    places = others.nonzero(as_tuple=True)
    if len(places[0]) * _FEW_OF > x.numel():
        return None
    return kind.of(steps, torch.where(others, 1.0, x)).index_put(places, steps(x[places]))


class _InverseError(Fused):
    @classmethod
    def run(cls, x: Array) -> tuple[Array, Array]:
        out = torch.erfinv(x)
        return out, out

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        (out,) = given.kept
        return (cotangent * (out * out).exp_().mul_(math.sqrt(math.pi) / 2),)


class _Quantile(Fused):
    @classmethod
    def run(cls, p: Array) -> tuple[Array, Array]:
        out = torch.special.ndtri(p)
        return out, out

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        (out,) = given.kept
        return (cotangent * (out * out).mul_(0.5).exp_().mul_(math.sqrt(2 * math.pi)),)


class _LogAdd(Fused):
    @classmethod
    def run(cls, x: Array, y: Array) -> tuple[Array]:
        return (torch.logaddexp(x, y),)

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        away = given.args[0] - given.args[1]
        other = (-away).sigmoid_().mul_(cotangent)
        return away.sigmoid_().mul_(cotangent), other


class _Length(Fused):
    @classmethod
    def run(cls, x: Array, y: Array) -> tuple[Array, Array]:
        out = torch.hypot(x, y)
        return out, out

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        (out,) = given.kept
        share = _zero_where_at_most(cotangent, out, 0.0)
        size = _threshold(out, 0.0, 1.0)
        return tuple((x / size).mul_(share) for x in given.args)


class _DiGamma(Fused):
    """Of float32 only: PyTorch's trigamma has 9 digits (2.13), its zeta takes 18 times as long."""

    @classmethod
    def run(cls, x: Array) -> tuple[Array]:
        return (torch.digamma(x),)

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        return (torch.polygamma(1, given.args[0]).mul_(cotangent),)


def _log_of_ratio(away: Array, lesser: Array) -> Array:
    """
    Return the logarithm of a ratio, of which the difference and the lesser number are given.

    With all digits next to a ratio of 1, where a quotient is rounded, and without a select.
    """
    ratio = away / lesser
    return ratio.abs().log1p_().copysign_(ratio)


class _Logit(Fused):
    @classmethod
    def run(cls, x: Array) -> tuple[Array]:
        return (_log_of_ratio((2 * x).sub_(1), torch.minimum(x, 1 - x)),)  # exact next to 1 / 2

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        (x,) = given.args
        return (cotangent / (1 - x).mul_(x),)


class _RelativeEntropy(Fused):
    """Relative entropy of p, which may be 0, to a positive q."""

    @classmethod
    def run(cls, p: Array, q: Array) -> tuple[Array, Array]:
        inside = _threshold(p, _largest_zero(p), 1.0)
        log = _log_of_ratio(inside - q, torch.minimum(inside, q))
        return _zero_where_at_most(log * p, p, _largest_zero(p)), log

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        (p, q), (log,) = given.args, given.kept
        to_p = (log + 1.0).mul_(cotangent)
        return _zero_where_at_most(to_p, p, _largest_zero(p), to_p), (p / q).mul_(-cotangent)


def _digamma(steps: Function, x: Array) -> Array | None:
    return _of_number(_DiGamma, 1e-15, 1e15, steps, x) if x.dtype is torch.float32 else None


def _of_two(
    kind: type[Fused], asks: Function, steps: Function, *args: Any, **options: Any
) -> Array | None:
    """Return a function of two numbers, if all of them are right."""
    if options or len(args) != 2:  # noqa: PLR2004  (the generic function says what is wrong)
        return None
    x, y = args
    if not _are_plain(x, y) or x.shape != y.shape or not x.numel() or not _are_finite(x, y):
        return None
    out = kind.of(steps, x, y)
    return out if asks(out) else None


def _are_lengths(out: Array) -> bool:
    """Whether all are far from overflow and from the numbers that lose digits, or 0."""
    bound = _LIMITS[out.dtype]
    least = bound.smallest_normal / bound.eps
    return _least(_threshold(out.detach(), 0.0, 1.0)) >= least and _most(out) <= bound.max / 2


class _Box(NamedTuple):
    """Bounds of numbers; of their sizes, if they may have both signs."""

    low: float
    high: float
    is_signed: bool = False

    def holds(self, x: Array) -> bool:
        """Whether all numbers are inside."""
        if not self.is_signed or not self.low:
            low = -self.high if self.is_signed else self.low
            return _least(x) >= low and _most(x) <= self.high
        size = x.detach().abs()
        return _least(size) >= self.low and _most(size) <= self.high


def _direct(function: Function, boxes: Sequence[_Box], *args: Any, **options: Any) -> Array | None:
    """Return a function of PyTorch, all derivatives of which are right inside of the boxes."""
    if options or len(args) != len(boxes) or not _are_plain(*args) or not args[0].numel():
        return None
    if any(x.shape != args[0].shape for x in args):
        return None
    inside = all(box.holds(x) for box, x in zip(boxes, args, strict=True))
    return function(*args) if inside else None


def _in_boxes(
    kind: type[Fused], boxes: Sequence[_Box], steps: Function, *args: Any, **options: Any
) -> Array | None:
    """Return a function of numbers inside of the boxes, if all of its values are finite."""
    out = _direct(partial(kind.of, steps), boxes, *args, **options)
    return out if out is not None and _are_finite(out) else None


_USUAL, _SIGNED = _Box(1e-9, 1e9), _Box(1e-9, 1e9, is_signed=True)
KERNELS: dict[str, Function] = {
    "entr": partial(_direct, torch.special.entr, (_USUAL,)),
    "safe_acosh": partial(_direct, torch.acosh, (_Box(1.0625, 1e9),)),
    "safe_atan2": partial(_direct, torch.atan2, (_Box(0.0, 1e9, is_signed=True), _SIGNED)),
    "safe_mul": partial(_direct, torch.mul, (_Box(0.0, 1e9, is_signed=True),) * 2),
    "safe_rsqrt": partial(_direct, torch.rsqrt, (_USUAL,)),
    "xdivy": partial(_direct, torch.div, (_Box(0.0, 1e9, is_signed=True), _SIGNED)),
}
# Between these numbers the functions of PyTorch have a value and a slope in range.
_NORMAL = _LIMITS[torch.float32].smallest_normal
_INSIDE = 1.0 - 2.0 * _LIMITS[torch.float32].eps
OF_STEPS: dict[str, Function] = {
    "rel_entr": partial(_in_boxes, _RelativeEntropy, (_Box(0.0, 1e30), _Box(1e-30, 1e30))),
    "safe_digamma": _digamma,
    "log_ndtr": partial(_of_number, _LogNormal, -1e15, 13.0),
    "safe_erfinv": partial(_of_number, _InverseError, -_INSIDE, _INSIDE),
    "safe_hypot": partial(_of_two, _Length, _are_lengths),
    "safe_lgamma": partial(_of_number, _LogGamma, _NORMAL, 1e34),
    "safe_logaddexp": partial(_of_two, _LogAdd, _are_finite),
    "safe_logit": partial(_of_number, _Logit, 1e-30, _INSIDE),
    "safe_ndtri": partial(_of_number, _Quantile, 1e-30, _INSIDE),
}
