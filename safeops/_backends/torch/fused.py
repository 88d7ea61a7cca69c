"""
Losses, log-softmax and standard scores by PyTorch's fused functions, where these are right.

Each asks first, or looks at its result: a NaN, an infinity or an option that PyTorch has not goes
to the steps. A class here has the pullback of first order; a derivative of a higher order is that
of the steps, so that all orders are right. The questions take a pass over the result, which is
short for a loss.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from safeops._backends.torch import private
from safeops._backends.torch.fast_paths import (
    _LIMITS,
    FillingFunction,
    _are_finite,
    _are_plain,
    _has_memory,
    _in_numpy,
    _is_watched,
    _least,
    _most,
    _places,
    _records,
    _total,
    _zero_where_at_most,
)
from safeops._backends.torch.slices import _is_mask, _kept
from safeops._core.types import Array, Axis, Function

_log_softmax_backward: Function = private.log_softmax_backward


class Given(NamedTuple):
    """What a pullback is given: the arguments, what `run` kept, and which cotangents it needs."""

    args: Sequence[Any]
    kept: Sequence[Array]
    needs: Sequence[bool]


class Few:
    """Entries that a fused function leaves out: at given places, and where it is not finite."""

    def __init__(self, places: Sequence[Array] = ()) -> None:
        self.positions = places

    def left_out(self, out: Array) -> Array:
        """Return a result with 0 there."""
        out = self.put(out, 0.0)
        if not _are_finite(out):
            found = _places(~np.isfinite(_in_numpy(out)))
            pairs = zip(self.positions, found, strict=True)
            self.positions = [torch.cat(pair) for pair in pairs] if self.positions else found
        return self.put(out, 0.0)

    def put(self, x: Array, number: float) -> Array:
        """Return numbers with another one there, in their memory if nothing records it."""
        if not self.positions:
            return x
        if not x.ndim:  # a number, which has no indices
            return torch.full_like(x, number) if self.positions[0].numel() else x
        value = x.new_full((), number)
        return (
            x.index_put(self.positions, value)
            if _records(x)
            else x.index_put_(self.positions, value)
        )


class Fused(FillingFunction):
    """
    A fused function of arrays; before these are the steps in its place, and what it leaves out.

    A class that is derived has `run`, which returns the value and what `pull` needs beside the
    arguments, and `pull`, which returns the cotangents of the arguments.
    """

    @classmethod
    def value(cls, _: Function, few: Few | None, *args: Any) -> Array:
        """Return the value alone."""
        out = cls.run(*args)[0]
        return out if few is None else few.left_out(out)

    @classmethod
    def run(cls, *args: Any) -> tuple[Array, ...]:
        """Return the value and what `pull` needs."""
        raise NotImplementedError

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        """Return the cotangents of the arguments."""
        raise NotImplementedError

    @classmethod
    def recorded(cls, *args: Any) -> Array:
        """Return the value, with a node of autograd."""
        return cls.apply(cls, *args)

    @staticmethod
    def forward(
        ctx: Any, kind: "type[Fused]", steps: Function, few: Few | None, *args: Any
    ) -> Array:
        """Return the value; keep arguments and results."""
        out, *kept = kind.run(*args)
        out = out if few is None else few.left_out(out)
        tensors = [x if isinstance(x, torch.Tensor) else None for x in args]
        ctx.kind, ctx.steps, ctx.few = kind, steps, few or Few()
        ctx.settings = [x if y is None else None for x, y in zip(args, tensors, strict=True)]
        ctx.save_for_backward(*tensors, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> tuple[Any, ...]:
        """Return the pullback; that of the steps where it is differentiated again, or batched."""
        number, saved = len(ctx.settings), ctx.saved_tensors  # a checkpoint gives them once
        tensors, kept = saved[:number], saved[number:]
        args = [x if y is None else y for x, y in zip(ctx.settings, tensors, strict=True)]
        if torch.is_grad_enabled() or _is_watched() or not _has_memory(cotangent):
            return (None, None, None, *_pulled_by_steps(ctx.steps, ctx.few, args, cotangent))
        pulled = ctx.kind.pull(cotangent, Given(args, kept, ctx.needs_input_grad[3:]))
        return (None, None, None, *(x if x is None else ctx.few.put(x, 0.0) for x in pulled))


def _pulled_by_steps(steps: Function, few: Few, args: Sequence[Any], cotangent: Array) -> list[Any]:
    with torch.enable_grad():
        wanted = [i for i, x in enumerate(args) if _records(x)]
        # Not the arguments: a derivative with respect to these may run through the cotangent.
        inner = [x.view_as(x) if i in wanted else x for i, x in enumerate(args)]
        out = steps(*(few.put(x, 0.5) if i in wanted else x for i, x in enumerate(inner)))
        found = torch.autograd.grad(
            out, [inner[i] for i in wanted], cotangent, create_graph=True, allow_unused=True
        )
    cotangents: list[Any] = [None] * len(args)
    for i, x in zip(wanted, found, strict=True):
        cotangents[i] = x
    return cotangents


_FEW_OF = 20  # a part of the entries for which the steps may run beside the function


def of_most(
    kind: type[Fused],
    steps: Function,
    args: Sequence[Array],
    *settings: Any,
    places: Sequence[Array] = (),
) -> Array | None:
    """Return a fused function of numbers, and the steps of a few: None if they are not few."""
    # These are the numbers at `places`, and those of which the fused function is not finite.
    few = Few(places)
    out = kind.of(lambda *given: steps(*given[: len(args)]), few, *args, *settings)
    if not few.positions or not len(few.positions[0]):
        return out
    if len(few.positions[0]) * _FEW_OF > out.numel():
        return None
    rest = steps(*(x[tuple(few.positions)] for x in args))
    return out.index_put(few.positions, rest, accumulate=True)


class _Kept(FillingFunction):
    """Numbers where a mask is True, and 0 elsewhere."""

    @staticmethod
    def value(x: Array, where: Array) -> Array:
        return _kept(x, where, 0.0)

    @staticmethod
    def forward(ctx: Any, x: Array, where: Array) -> Array:
        ctx.save_for_backward(where)
        return _Kept.value(x, where)

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> tuple[Array, None]:
        (where,) = ctx.saved_tensors
        return _zero_where_at_most(cotangent, where.to(cotangent.dtype), 0.5), None


# Softmax and its losses.


class _LogSoftmax(FillingFunction):
    """The logarithm of a softmax, in which entries at -inf are absent; NaN for an empty slice."""

    @staticmethod
    def value(x: Array, where: Array | None, axis: int) -> Array:
        return torch.log_softmax(x if where is None else _kept(x, where, -math.inf), axis)

    @staticmethod
    def forward(ctx: Any, x: Array, where: Array | None, axis: int) -> Array:
        out = _LogSoftmax.value(x, where, axis)
        ctx.save_for_backward(out)
        ctx.axis = axis
        ctx.has_absent = out.numel() > 0 and not out.amin() > -math.inf  # no row may be left
        return out

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> tuple[Array, None, None]:
        (out,) = ctx.saved_tensors
        if not ctx.has_absent:
            return _log_softmax_backward(cotangent, out, ctx.axis, out.dtype), None, None
        size, least = out.detach(), -_LIMITS[out.dtype].max
        # Nothing comes from an absent entry, an infinite cotangent neither, and nothing to it.
        cotangent = _zero_where_at_most(cotangent, size, least)
        slope = _log_softmax_backward(cotangent, out, ctx.axis, out.dtype)
        return _zero_where_at_most(slope, size, least), None, None


def _log_softmax(x: Array, *, axis: Axis = -1, where: Any = None) -> Array | None:
    if not isinstance(axis, int) or not x.numel() or not x.ndim or not _are_plain(x):
        return None
    if where is not None and not _is_mask(where, x):
        return None
    out = _LogSoftmax.of(x, where, axis)
    return None if math.isnan(_total(out)) else out


def _cross_entropy(
    logits: Array,
    labels: Any,
    /,
    *,
    axis: Any = -1,
    where: Any = None,
    label_smoothing: Any = 0.0,
    weights: Any = None,
) -> Array | None:
    """Cross entropy without weights, if each slice that counts has a finite one."""
    if where is not None or weights is not None or not _are_slices(logits, axis):
        return None
    if type(label_smoothing) is not float or not 0 <= label_smoothing <= 1:
        return None
    if type(labels) is torch.Tensor and labels.dtype is logits.dtype:
        return _soft_cross_entropy(logits, labels, axis, label_smoothing)

    def loss(x: Array, classes: Array) -> Array:
        parts = _LogSoftmax.of(x, None, -1)
        total = functional.nll_loss(parts, classes, reduction="none")
        if label_smoothing:
            total = (1 - label_smoothing) * total - label_smoothing * parts.mean(-1)
        return total

    return _of_classes(loss, logits, labels, axis)


def _soft_cross_entropy(logits: Array, labels: Array, axis: int, part: float) -> Array | None:
    if labels.shape != logits.shape or not _are_plain(logits, labels):
        return None
    if part:
        labels = (1 - part) * labels + part / logits.shape[axis]
    out = -(labels * _LogSoftmax.of(logits, None, axis)).sum(axis)
    return out if _are_finite(out) else None


def _nll(log_probs: Array, labels: Any, /, *, axis: Any = -1, where: Any = None) -> Array | None:
    if where is not None or not _are_slices(log_probs, axis):
        return None
    return _of_classes(_entries, log_probs, labels, axis, ignores=True)


def _entries(rows: Array, classes: Array) -> Array:
    """Return minus the entry of each row at its class, 0 for a negative class."""
    return functional.nll_loss(rows, classes.clamp(min=-1), ignore_index=-1, reduction="none")


def _are_slices(x: Array, axis: Any) -> bool:
    return type(axis) is int and _are_plain(x) and x.numel() > 0 and -x.ndim <= axis < x.ndim


CLASSES = {torch.int64, torch.int32, torch.int16, torch.int8}


def _of_classes(
    loss: Function, x: Array, labels: Any, axis: int, *, ignores: bool = False
) -> Array | None:
    """Return a loss of rows and their classes, 0 for a negative one; None if it is not finite."""
    # Rows that it leaves out are taken away before, unless the loss ignores them itself.
    rows = x.movedim(axis, -1)
    if type(labels) is not torch.Tensor or labels.dtype not in CLASSES or not labels.is_cpu:
        return None
    if labels.shape != rows.shape[:-1]:
        return None
    rows, classes = rows.reshape(-1, rows.shape[-1]), labels.reshape(-1).long()
    if not _most(classes) < rows.shape[-1]:
        return None
    if ignores or _least(classes) >= 0:
        out = loss(rows, classes)
        return out.reshape(labels.shape) if _are_finite(out) else None
    kept = (classes >= 0).nonzero()[:, 0]
    out = loss(rows.index_select(0, kept), classes[kept])
    if not _are_finite(out):
        return None
    return out.new_zeros(len(classes)).index_copy(0, kept, out).reshape(labels.shape)


class _Binary(Fused):
    """Binary cross entropy of finite logits, with all digits of its value and its slope."""

    @classmethod
    def run(cls, *args: Any) -> tuple[Array]:
        x, y, where = args
        out = x.abs().neg_().exp_().log1p_().addcmul_(_away(x, y), x)
        return (_left(out, where),)

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        x, y, where = given.args
        # The other probability, with the sign of x, that of 0 being plus.
        other = x.abs().neg_().sigmoid_().copysign_(x + 0.0)
        of_x = _away(x, y).sub_(other).mul_(cotangent)
        of_y = _left(-x * cotangent, where) if given.needs[1] else None
        return _left(of_x, where), of_y, None


def _left(x: Array, where: Array | None) -> Array:
    """Return x, and 0 where the mask is not True, whatever x is there."""
    return x if where is None else _zero_where_at_most(x, where.to(x.dtype), 0.5, x)


def _away(x: Array, y: Array) -> Array:
    """Return how far the label is from the class that a logit says: from 0 below 0, else from 1."""
    return torch.ge(x, 0, out=torch.empty_like(x)).sub_(y)


def _binary_cross_entropy(
    steps: Function, logits: Array, labels: Any, /, *, where: Any = None
) -> Array | None:
    if not _are_plain(logits, labels) or logits.shape != labels.shape:
        return None
    if where is None:
        return of_most(_Binary, steps, (logits, labels), None)
    if not _is_mask(where, logits):
        return None
    out = _Binary.of(lambda x, y, where: steps(x, y, where=where), None, logits, labels, where)
    return out if _are_finite(out) else None


class _Focal(Fused):
    """Focal loss of finite logits; the slopes add numbers of one sign for labels in [0, 1]."""

    @classmethod
    def run(cls, *args: Any) -> tuple[Array, ...]:
        x, y, gamma, on_one, on_zero = args
        rest = x.abs().neg_().exp_().log1p_()
        zero = x.clamp(min=0).add_(rest)  # log(1 + exp(x))
        one = rest.sub_(x.clamp(max=0))
        wrong, right = (zero * -gamma).exp_(), (one * -gamma).exp_()
        loss = (wrong * one).mul_(y).mul_(on_one)
        return loss.add_((right * zero).mul_(1 - y), alpha=on_zero), one, zero, wrong, right

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        (x, y, gamma, on_one, on_zero), (one, zero, wrong, right) = given.args, given.kept
        p, q = x.sigmoid(), (-x).sigmoid_()
        to_x = torch.addcmul(p, q, zero, value=gamma).mul_(right).mul_(1 - y).mul_(on_zero)
        to_x.sub_(torch.addcmul(q, p, one, value=gamma).mul_(wrong).mul_(y), alpha=on_one)
        to_y = None
        if given.needs[1]:
            to_y = (wrong * one).mul_(on_one).sub_(right * zero, alpha=on_zero).mul_(cotangent)
        return to_x.mul_(cotangent), to_y, None, None, None


def _focal_loss(
    steps: Function,
    logits: Array,
    labels: Any,
    /,
    *,
    gamma: Any = 2.0,
    alpha: Any = None,
    where: Any = None,
) -> Array | None:
    usual = where is None and type(gamma) is float and (alpha is None or type(alpha) is float)
    if not usual or not 0 <= gamma < math.inf or not (alpha is None or 0 <= alpha <= 1):
        return None
    if not _are_plain(logits, labels) or logits.shape != labels.shape:
        return None
    on_one, on_zero = (1.0, 1.0) if alpha is None else (alpha, 1.0 - alpha)
    settled = partial(steps, gamma=gamma, alpha=alpha)
    return of_most(_Focal, settled, (logits, labels), gamma, on_one, on_zero)


class _Standard(Fused):
    """Deviations over their size, by layer normalisation; NaN where that would lose digits."""

    @classmethod
    def run(cls, x: Array) -> tuple[Array, ...]:
        out, mean, scale = torch.native_layer_norm(x, x.shape[-1:], None, None, 0.0)
        off = _most(mean.abs() * scale)  # of which the mean is rounded
        if not (off <= _OFF and _least(scale) >= _FLAT and _most(scale) <= _FINE):
            out.fill_(math.nan)
        return out, mean, scale

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        (x,) = given.args
        shape, parts = x.shape[-1:], [True, False, False]
        to_x, *_ = private.layer_norm_backward(cotangent, x, shape, *given.kept, None, None, parts)
        return (to_x,)


_OFF = 2.0  # deviations
_FLAT, _FINE = 1e-9, 1e9  # of one over the deviation, whose cube is formed


def _standardize(
    steps: Function, x: Array, /, *, axis: Any = None, correction: Any = 0, where: Any = None
) -> Array | None:
    if where is not None or correction != 0 or type(axis) is not int or not _are_plain(x):
        return None
    if not x.numel() or axis not in {-1, x.ndim - 1}:
        return None
    out = _Standard.of(partial(steps, axis=axis), None, x)
    return out if _are_finite(out) else None


KERNELS: dict[str, Function] = {
    "safe_cross_entropy": _cross_entropy,
    "safe_log_softmax": _log_softmax,
    "safe_nll": _nll,
}
# These take the steps that they stand for first.
OF_STEPS: dict[str, Function] = {
    "safe_binary_cross_entropy": _binary_cross_entropy,
    "safe_focal_loss": _focal_loss,
    "safe_standardize": _standardize,
}
