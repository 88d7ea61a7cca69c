"""Special functions and functions of two numbers, by PyTorch's own where they are right."""

import math
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import torch

from safeops._backends.torch.fast_paths import (
    _LIMITS,
    _are_finite,
    _are_plain,
    _in_numpy,
    _largest_zero,
    _least,
    _most,
    _places,
    _threshold,
    _unseen,
    _zero_where_at_most,
)
from safeops._backends.torch.fused import Fused, Given, of_most
from safeops._core.types import Array, Function


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
    """Return the logarithm of a ratio, of which the difference and the lesser number are given."""
    # With all digits next to a ratio of 1, where a quotient is rounded, and without a select.
    ratio = away / lesser
    return ratio.abs().log1p_().copysign_(ratio)


class _Logit(Fused):
    """By ``log1p((1 - 2 * m) / m)`` of the lesser m of x and 1 - x, with the sign of x - 1 / 2."""

    @classmethod
    def run(cls, x: Array) -> tuple[Array]:
        lesser = 1 - x
        lesser = torch.minimum(x, lesser, out=lesser)
        ratio = torch.rsub(lesser, 1, alpha=2).div_(lesser)
        return (ratio.log1p_().copysign_(torch.sub(x, 0.5, out=lesser)),)

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        return (torch.ops.aten.logit_backward.default(cotangent, given.args[0], None),)


def _log_of_rest(away: Array) -> tuple[Array, Array, Array]:
    """Return ``log(1 - exp(away))``, the exponential and the difference; `away` is written over."""
    # The logarithm is that of two factors, of a share below 1 / 2 and above.
    rest = away.expm1().neg_()
    rest = _threshold(rest, _largest_zero(rest), 0.0)
    share = away.exp_()
    out = share.clamp(max=0.5).neg_().log1p_()
    return out.add_(rest.clamp(max=0.5).mul_(2).log_()), share, rest


class _LogOfRest(Fused):
    """Logarithm of ``1 - exp(-x)``."""

    @classmethod
    def run(cls, x: Array) -> tuple[Array, ...]:
        return _log_of_rest(-x)

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        share, rest = given.kept
        return ((share / rest).mul_(cotangent),)


class _LogDifference(Fused):
    """Logarithm of ``exp(x) - exp(y)``."""

    @classmethod
    def run(cls, x: Array, y: Array) -> tuple[Array, ...]:
        out, share, rest = _log_of_rest(y - x)
        return out.add_(x), share, rest

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        share, rest = given.kept
        to_x = cotangent / rest
        return to_x, (to_x * share).neg_()


class _LogCosh(Fused):
    """Logarithm of cosh, which is 1 and ``expm1(-a)**2 * exp(a) / 2`` for the size a."""

    factor = 1.0

    @classmethod
    def run(cls, x: Array) -> tuple[Array]:
        size = x.abs().neg_()
        root = size.expm1()
        return (root.mul_(root).div_(size.exp_()).mul_(0.5).log1p_().mul_(cls.factor),)

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        return (given.args[0].tanh().mul_(cls.factor).mul_(cotangent),)


class _LogSech2(_LogCosh):
    factor = -2.0


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
        last, to_p, to_q = _largest_zero(p), (log + 1.0).mul_(cotangent), (p / q).mul_(-cotangent)
        return tuple(_zero_where_at_most(x, p, last, x) for x in (to_p, to_q))


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

    def lacks(self, x: Any) -> Any:
        """Return which numbers of NumPy are outside."""
        size = np.abs(x) if self.is_signed else x
        return ~((size >= self.low) & (size <= self.high))


def _fitting(
    boxes: Sequence[_Box], args: Sequence[Any], options: Mapping[str, Any]
) -> Sequence[Array] | None:
    """Return plain arrays of one shape, one for each box; None if there is anything else."""
    arrays = [x for x in args if isinstance(x, torch.Tensor)]
    if options or len(args) != len(boxes) or not arrays or not _are_plain(*arrays):
        return None
    if not all(x.numel() for x in arrays):
        return None
    if len(arrays) < len(args):
        if not all(isinstance(x, torch.Tensor) or type(x) is float for x in args):
            return None
        args = [arrays[0].new_full((), x) if type(x) is float else x for x in args]
    if all(x.shape == args[0].shape for x in args):
        return args
    try:
        return torch.broadcast_tensors(*args)
    except RuntimeError:  # of which the steps say what is wrong
        return None


def _in_boxes(
    kind: type[Fused], boxes: Sequence[_Box], steps: Function, *args: Any, **options: Any
) -> Array | None:
    """Return a fused function of numbers inside of the boxes, and the steps of a few others."""
    arrays = _fitting(boxes, args, options)
    if arrays is None:
        return None
    return of_most(kind, steps, arrays, places=_outside(boxes, arrays))


@_unseen
def _outside(boxes: Sequence[_Box], arrays: Sequence[Array]) -> Sequence[Array]:
    """Return where a number is outside of its box."""
    found = [(box, x) for box, x in zip(boxes, arrays, strict=True) if not box.holds(x)]
    if not found:
        return ()
    lacking = reduce(np.logical_or, (box.lacks(_in_numpy(x)) for box, x in found))
    return _places(lacking)


def _direct(function: Function, boxes: Sequence[_Box], *args: Any, **options: Any) -> Array | None:
    """Return a function of PyTorch, all derivatives of which are right inside of the boxes."""
    # To find a few numbers outside takes as long as such a function.
    arrays = _fitting(boxes, args, options)
    if arrays is None or not all(box.holds(x) for box, x in zip(boxes, arrays, strict=True)):
        return None
    return function(*arrays)


def _length(steps: Function, x: Array, y: Any) -> Array | None:
    if not _are_plain(x, y) or x.shape != y.shape or not x.numel() or not _are_finite(x, y):
        return None
    out = _Length.of(steps, None, x, y)
    return out if _are_lengths(out) else None


def _digamma(steps: Function, x: Array) -> Array | None:
    return _in_boxes(_DiGamma, (_Box(1e-15, 1e15),), steps, x) if x.dtype is torch.float32 else None


_USUAL, _SIGNED = _Box(1e-9, 1e9), _Box(1e-9, 1e9, is_signed=True)
# Between these numbers the functions of PyTorch have a value and a slope in range.
_LIMIT = _LIMITS[torch.float32]
_FINITE = _Box(0.0, _LIMIT.max, is_signed=True)
_INSIDE = 1.0 - 2.0 * _LIMIT.eps
KERNELS: dict[str, Function] = {
    "entr": partial(_direct, torch.special.entr, (_USUAL,)),
    "safe_acosh": partial(_direct, torch.acosh, (_Box(1.0625, 1e9),)),
    "safe_atan2": partial(_direct, torch.atan2, (_Box(0.0, 1e9, is_signed=True), _SIGNED)),
    "safe_mul": partial(_direct, torch.mul, (_Box(0.0, 1e9, is_signed=True),) * 2),
    "safe_rsqrt": partial(_direct, torch.rsqrt, (_USUAL,)),
    "xdivy": partial(_direct, torch.div, (_Box(0.0, 1e9, is_signed=True), _SIGNED)),
}
OF_STEPS: dict[str, Function] = {
    "log1mexp": partial(_in_boxes, _LogOfRest, (_Box(1e-30, _LIMIT.max),)),
    "log_cosh": partial(_in_boxes, _LogCosh, (_Box(0.0, 60.0, is_signed=True),)),
    "log_ndtr": partial(_in_boxes, _LogNormal, (_Box(-1e15, 13.0),)),
    "log_sech2": partial(_in_boxes, _LogSech2, (_Box(0.0, 60.0, is_signed=True),)),
    "rel_entr": partial(_in_boxes, _RelativeEntropy, (_Box(0.0, 1e30), _Box(1e-30, 1e30))),
    "safe_digamma": _digamma,
    "safe_erfinv": partial(_in_boxes, _InverseError, (_Box(-_INSIDE, _INSIDE),)),
    "safe_hypot": _length,
    "safe_lgamma": partial(_in_boxes, _LogGamma, (_Box(_LIMIT.smallest_normal, 1e34),)),
    "safe_logaddexp": partial(_in_boxes, _LogAdd, (_FINITE, _FINITE)),
    "safe_logit": partial(_in_boxes, _Logit, (_Box(1e-30, _INSIDE),)),
    "safe_logsubexp": partial(_in_boxes, _LogDifference, (_FINITE, _FINITE)),
    "safe_ndtri": partial(_in_boxes, _Quantile, (_Box(1e-30, _INSIDE),)),
}
