"""
Functions with a removable singularity, and logarithms of exponentials, by one rule each.

Each has one formula for all numbers or two, of which a weight of 0 or 1 takes one: `torch.lerp` is
a select then, exact and without a branch. What cancels in a slope next to the singularity goes
through Langevin's function, of which the continued fraction has all digits.
"""

import math
from functools import partial
from typing import Any

import torch

from safeops._backends.torch.fast_paths import _LIMITS
from safeops._backends.torch.fused import Fused, Given
from safeops._backends.torch.special import _Box, _in_boxes
from safeops._core.dtypes import LN2, near_log2
from safeops._core.types import Array, Function

_TINY = 1e-30  # next to it each function here is what it is at 0
# How far the continued fraction of Langevin's function goes, and how many terms sinh(x) / x has.
_LAST = {torch.float32: 11, torch.float64: 19}
_TERMS = {torch.float32: 7, torch.float64: 13}


def _off_zero(x: Array) -> Array:
    """Return x, and a tiny number for what is less."""
    return x.abs().clamp_(min=_TINY).copysign_(x)


def _langevin(x: Array, end: float) -> Array:
    """Return ``1 / tanh(x) - 1 / x`` up to an end of at most 1: ``x / (3 + x**2 / (5 + ...))``."""
    x = x.clamp(-end, end)
    square = x * x
    last = _LAST[x.dtype]
    total = square / last
    for n in range(last - 2, 3, -2):
        total = torch.div(square, total.add_(n), out=total)
    return x.div_(total.add_(3))


def _share(x: Array) -> Array:
    """Return the logarithmic slope of ``expm1(x) / x``, between 0 and 1, up to sizes of 1."""
    return _langevin(0.5 * x, 0.5).add_(1).mul_(0.5)


def _is_far(x: Array) -> Array:
    """Return 1.0 where the size is above 1, else 0.0."""
    size = x.abs()
    return torch.gt(size, 1.0, out=size)


class _OverArgument(Fused):
    """A function over its argument, which is 1 at 0; next to 0 by its logarithmic slope."""

    function: Function
    slope: Function
    near: Function

    @classmethod
    def run(cls, x: Array) -> tuple[Array, Array]:
        x = _off_zero(x)
        out = cls.function(x).div_(x)
        return out, out

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        (x,), (out,) = given.args, given.kept
        far = cls.slope(x).sub_(out).div_(_off_zero(x))
        return (cls.near(x).mul_(out).lerp_(far, _is_far(x)).mul_(cotangent),)


class _ExpRel(_OverArgument):
    function, slope, near = torch.expm1, torch.exp, _share


class _SinhC(_OverArgument):
    function, slope, near = torch.sinh, torch.cosh, partial(_langevin, end=1.0)


class _SinC(Fused):
    """Half turns are taken off first, which rounds nothing."""

    @classmethod
    def run(cls, x: Array) -> tuple[Array, Array]:
        x = _off_zero(x)
        rest, sign = cls._turned(x)
        out = rest.sin_().mul_(sign).div_(x.mul_(math.pi))
        return out, out

    @staticmethod
    def _turned(x: Array) -> tuple[Array, Array]:
        """Return the angle beyond the half turns of x, and 1 or -1, as these are even or odd."""
        turns = x.round()
        rest = (x - turns).mul_(math.pi)
        half = turns.mul_(0.5)
        return rest, half.sub_(half.floor()).mul_(-4.0).add_(1.0)

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        (x,), (out,) = given.args, given.kept
        angle = (x * math.pi).clamp_(-1.0, 1.0)
        square = angle * angle
        factors = [(2 * n + 2) / math.factorial(2 * n + 3) for n in range(_TERMS[x.dtype])]
        near = square * -factors[-1]
        for factor in reversed(factors[1:-1]):
            near.add_(factor).mul_(square).neg_()
        near.add_(factors[0]).mul_(angle.mul_(-math.pi))
        rest, sign = cls._turned(x)
        far = rest.cos_().mul_(sign).sub_(out).div_(_off_zero(x))
        size = x.abs()
        is_far = torch.gt(size, 1.0 / math.pi, out=size)
        return (near.lerp_(far, is_far).mul_(cotangent),)


class _LogSinhC(Fused):
    @classmethod
    def run(cls, x: Array) -> tuple[Array, Array]:
        size = x.abs()
        square = size.clamp(max=1.5)
        square.mul_(square)
        number = _TERMS[x.dtype]
        near = square * (1 / math.factorial(2 * number + 1))
        for n in range(number - 1, 0, -1):
            near.add_(1 / math.factorial(2 * n + 1)).mul_(square)
        outer = size.clamp(min=0.5)
        rest = (outer * -2.0).expm1_()  # exp(-2 * size) - 1
        far = (rest / outer).mul_(-0.5).log_().add_(outer)
        return near.log1p_().lerp_(far, torch.gt(size, 1.5, out=size)), rest

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        (x,), (rest,) = given.args, given.kept
        size = x.abs().clamp_(min=0.5)
        far = (-2.0 / rest).sub_(1.0).sub_(size.reciprocal_()).copysign_(x)
        return (_langevin(x, 1.0).lerp_(far, _is_far(x)).mul_(cotangent),)


class _LogExpm1(Fused):
    """By the distance from `middle`, next to log(2), which is exact; below by ``1 - exp(-x)``."""

    @classmethod
    def run(cls, x: Array) -> tuple[Array, Array]:
        middle, rest_of_two = near_log2(_LIMITS[x.dtype].eps)
        above = x - middle
        power = above.abs().neg_().expm1_()
        # Of exp(x) - 1 below the middle, and of 1 - exp(-x) above it, times 2.
        factor = torch.gt(above, 0.0, out=torch.empty_like(above)).mul_(-3.0).add_(2.0)
        power.mul_(factor).add_(rest_of_two).clamp_(min=-0.75)
        usual = power.log1p_().add_(above.clamp_(min=0.0))
        rest = x.neg().expm1_().neg_()
        low = rest.log().add_(x)
        return usual.lerp_(low, torch.lt(x, LN2 - 0.25, out=factor)), rest

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        return (cotangent / given.kept[0],)


class _BoxCox(Fused):
    @classmethod
    def run(cls, x: Array, lmbda: Array) -> tuple[Array, ...]:
        log, order = x.log(), _off_zero(lmbda)
        product, power = log * order, torch.pow(x, lmbda)
        out = product.expm1().lerp_(power - 1.0, _is_far(product)).div_(order)
        return out, out, log, power

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        (x, lmbda), (out, log, power), of_order = given.args, given.kept, None
        if given.needs[1]:
            order = _off_zero(lmbda)
            product, far = log * order, (log * power).sub_(out).div_(order)
            of_order = _share(product).mul_(log).mul_(out).lerp_(far, _is_far(product))
            of_order.mul_(cotangent)
        return (power / x).mul_(cotangent), of_order


class _InverseBoxCox(Fused):
    """Exponential of ``log(1 + lmbda * y) / lmbda``; no number where the logarithm is none."""

    @classmethod
    def run(cls, y: Array, lmbda: Array) -> tuple[Array, ...]:
        order = _off_zero(lmbda)
        log = (order * y).log1p_()
        out = (log / order).exp_().addcmul_(log, log.new_zeros(()))
        return out, out, log

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        (y, lmbda), (out, log), of_order = given.args, given.kept, None
        order, cotangent = _off_zero(lmbda), cotangent * out
        base = (order * y).add_(1.0)
        if given.needs[1]:
            part, power = y / base, log / order
            far = (part - power).div_(order)
            near = _share(log).mul_(power).mul_(part).neg_()
            of_order = near.lerp_(far, _is_far(log)).mul_(cotangent)
        return cotangent.div_(base), of_order


class _LogarithmicMean(Fused):
    """The lesser number times ``q / log1p(q)`` of the difference over it."""

    @classmethod
    def run(cls, x: Array, y: Array) -> tuple[Array, Array, Array]:
        lesser, away = torch.minimum(x, y), x - y
        ratio = (away / lesser).abs_().clamp_(min=_TINY)
        log = ratio.log1p()
        out = ratio.div_(log).mul_(lesser)
        return out, out, log.copysign_(away)

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        (x, y), (out, log) = given.args, given.kept
        of_x, of_y, far, share = out / x, out / y, _is_far(log), _share(log)
        apart = (1.0 - of_x).div_(log), (of_y - 1.0).div_(log)
        of_x.mul_(share).lerp_(apart[0], far).mul_(cotangent)
        return of_x, of_y.mul_(share.neg_().add_(1.0)).lerp_(apart[1], far).mul_(cotangent)


_ORDER = _Box(0.0, 4.0, is_signed=True)  # with a base up to 1e9 the power is in range
_BASE = _Box(1e-9, 1e9)
_SIZE = _Box(0.0, 80.0, is_signed=True)
OF_STEPS: dict[str, Function] = {
    "boxcox": partial(_in_boxes, _BoxCox, (_BASE, _ORDER)),
    "exprel": partial(_in_boxes, _ExpRel, (_Box(-1e15, 80.0),)),
    "inv_boxcox": partial(_in_boxes, _InverseBoxCox, (_Box(0.0, 1e9, is_signed=True), _ORDER)),
    "log_expm1": partial(_in_boxes, _LogExpm1, (_Box(_TINY, 1e30),)),
    "log_sinhc": partial(_in_boxes, _LogSinhC, (_Box(0.0, 1e15, is_signed=True),)),
    "logarithmic_mean": partial(_in_boxes, _LogarithmicMean, (_BASE, _BASE)),
    "sinc": partial(_in_boxes, _SinC, (_Box(0.0, 1e6, is_signed=True),)),
    "sinhc": partial(_in_boxes, _SinhC, (_SIZE,)),
}
