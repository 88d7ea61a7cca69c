"""
Operations as PyTorch does them fast on the CPU: no select by a mask, and little saved.

Eager `torch.where` takes a branch an entry and a comparison is slow to make booleans: a double
where costs 10 to 40 divisions. `torch.threshold` and its backward function are selects as well,
``value if x <= bound else x`` and ``0 if x <= bound else y``, and vectorised; NaN passes them.
Measured with torch 2.13 on one core.

A kernel has the name and the options of the function that asks it, and returns None for what it
leaves to the double where: other dtypes and devices, subclasses, rare options, and whatever
torch.compile traces, `torch.func` transforms or forward mode sees.
"""

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NamedTuple

import torch

from safeops._backends.shapes import dropped
from safeops._backends.torch import private
from safeops._dtypes import Limits, is_positive_zero, limits
from safeops._typing import Array, Axis, Function

_FEW = 2**11  # entries, of which comparisons and `where` cost less than what replaces them
# Entries of a row of which `vector_norm` adds the squares one by one and loses no digit: of a
# million in float32 it loses three. It takes half of the time of a product and its sum.
_SHORT = 2**8
_PLAIN = {torch.Tensor, torch.nn.Parameter}
_LIMITS = {
    kind: limits(torch, torch.empty(0, dtype=kind, device="cpu"))
    for kind in (torch.float32, torch.float64)
}
_threshold: Function = torch.threshold
_threshold_backward: Function = torch.ops.aten.threshold_backward.default
_threshold_into: Function = torch.ops.aten.threshold_backward.grad_input
_softmax_backward: Function = private.softmax_backward


def _zero_where_at_most(x: Array, size: Array, bound: float, into: Array | None = None) -> Array:
    """Return ``where(size <= bound, 0, x)``, in the memory of `into` if that may be written."""
    if into is not None and _out_option(into, x):
        return _threshold_into(x, size, bound, grad_input=into)
    return _threshold_backward(x, size, bound)


def _out_option(x: Array, *others: Array) -> dict[str, Array]:
    """Return the option by which a function of both writes into x, if nothing keeps or sees it."""
    if torch.is_grad_enabled() or _has_mode() or _is_watched():
        return {}
    if not all(map(_has_memory, (x, *others))):
        return {}
    return {"out": x}


def _has_memory(x: Array) -> bool:
    """Whether x is what it seems; ``is_grads_batched=True`` makes batches that seem tensors."""
    if type(x) not in _PLAIN:
        return False
    try:
        x.data_ptr()
    except RuntimeError:
        return False
    return True


def _has_mode() -> bool:
    """Whether a dispatch mode, such as that of masked autodiff, sees each operation."""
    return private.dispatch_modes() > 0


def _ones_where(x: Array, y: Array | float) -> Array:
    """Return 1.0 where x is y, else 0.0: as floats in a quarter of the time of booleans."""
    x = x.detach()
    return torch.eq(x, y, out=torch.empty_like(x))


def _constant_below(x: Array, size: Array, bound: float) -> Array:
    """Return x, whose own slope is 0 where ``size <= bound``."""
    if not _records(x):
        return x
    return x.detach() + _zero_where_at_most(x - x.detach(), size, bound)


def _records(*args: Any) -> bool:
    tensors = (x for x in args if isinstance(x, torch.Tensor))
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _largest_zero(x: Array) -> float:
    """Return the largest number that counts as zero, just below the smallest normal one."""
    bound = _LIMITS[x.dtype]
    return bound.smallest_normal * (1 - bound.eps)


def _are_plain(x: Any, *others: Any) -> bool:
    """Whether these are dense tensors of the CPU, of one of two dtypes, and nothing looks on."""
    if _is_watched():  # first: torch.compile does not trace what else is asked
        return False
    for y in (x, *others):
        if type(y) not in _PLAIN or y.dtype is not x.dtype or not y.is_cpu or y.is_nested:
            return False
        if y.layout is not torch.strided or _is_of_inference(y):
            return False
    return x.dtype in _LIMITS


def _is_of_inference(x: Array) -> bool:
    """Whether no backward pass may keep x."""
    return bool(x.is_inference()) and not torch.is_inference_mode_enabled()


def _is_watched() -> bool:
    """
    Whether a compiler, a tracer, `torch.func` or forward mode sees what is computed.

    Another dispatch mode, such as that of masked autodiff, is none: what a checkpoint computes
    again under it must be what was computed without.
    """
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or any(private.dispatch_mode(key) is not None for key in _TRACERS)
        or private.in_transform()
        or private.forward_level() >= 0
    )


_KEYS: Any = private.mode_keys
_TRACERS = (_KEYS.PROXY, _KEYS.FAKE, _KEYS.FUNCTIONAL)


class FillingFunction(torch.autograd.Function):
    """
    A function with its own derivative, which is 0 where a fill stands: it leaves entries out.

    Masked autodiff knows by this class that a 0 of its `backward` means "not used": one written by
    `threshold_backward`, `masked_fill`, `where` or as `zeros`, and a product with a boolean tensor.
    What multiplies with 0.0 stays a number, which hides nothing. `backward` is made of
    differentiable functions, and so has derivatives of every order.
    """

    @classmethod
    def of(cls, *args: Any) -> Array:
        """Return the value, recorded where a gradient may be asked for."""
        if not _records(*args):
            return cls.value(*args)
        return cls.recorded(*args)

    @classmethod
    def recorded(cls, *args: Any) -> Array:
        """Return the value, as that of a node of autograd."""
        return cls.apply(*args)

    @staticmethod
    def value(*args: Any) -> Array:
        """Return the value alone."""
        raise NotImplementedError


class _Quotient(FillingFunction):
    @classmethod
    def recorded(cls, *args: Any) -> Array:
        """Return the value: of a batch, or within a transform, by a double where."""
        if _is_watched() or not all(map(_has_memory, args)):
            return _quotient_in_steps(*args)  # `backward` takes quotients too, and its derivatives
        return super().recorded(*args)

    @staticmethod
    def value(x: Array, y: Array) -> Array:
        out, size = x / y, y.abs()
        return _zero_where_at_most(out, size, _largest_zero(y), out)

    @staticmethod
    def forward(ctx: Any, x: Array, y: Array) -> Array:
        # Not the result, which may be written into.
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, y)
        return _Quotient.value(x, y)

    @staticmethod
    def backward(ctx: Any, cotangent: Array) -> tuple[Array | None, Array | None]:
        x, y = ctx.saved_tensors
        size, last = y.abs(), _largest_zero(y)
        # The fill at the end will do, but for the derivatives of each quotient.
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
    """A logarithm: its function, its slope as a divisor, and where it begins."""

    log: Function
    divisor: Function
    last: Callable[[Array], float]  # the last number that is filled
    least: Callable[[Limits], float]  # the first that is not, or one with the value of the fill
    harmless: float


def _last_minus_one(_: Array) -> float:
    return -1.0


def _natural(bound: Limits) -> float:
    return bound.smallest_normal


_LOGARITHMS = {
    "safe_log": _Kind(torch.log_, lambda x: x, _largest_zero, _natural, 1.0),
    "safe_log2": _Kind(torch.log2_, lambda x: x * math.log(2.0), _largest_zero, _natural, 1.0),
    "safe_log10": _Kind(torch.log10_, lambda x: x * math.log(10.0), _largest_zero, _natural, 1.0),
    "safe_log1p": _Kind(
        torch.log1p_, lambda x: 1.0 + x, _last_minus_one, lambda bound: bound.eps / 2 - 1, 0.0
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
    """Power of what is 0 or a normal positive number; 0 where it is infinite at 0."""

    @staticmethod
    def value(x: Array, p: Array) -> Array:
        out = x.pow(p)
        if not p.numel() or (not _is_watched() and _least(p.detach()) >= 0):
            return out
        # Negative where x is 0 and p negative, and there only.
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
            to_x = cotangent * factor * _Power.of(base, p - 1.0)
            used = torch.maximum(_ones_where(p, 1.0), _ones_where(p, 2.0))
            to_x = _zero_where_at_most(to_x, torch.maximum(x.detach(), used), 0.0)
        if not ctx.needs_input_grad[1]:
            return to_x, None
        return to_x, _zero_where_at_most(cotangent * out * _threshold(x, 0.0, 1.0).log(), x, 0.0)


def _of_slope(x: Array, p: Array) -> tuple[Array, Array]:
    """Return p and x, constants at 0 but for the x of powers up to 2: the choice of `safe_pow`."""
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


def _unseen(ask: Function) -> Function:
    """Ask about numbers without the modes, to which masked autodiff would have to say something."""

    @wraps(ask)
    def question(*args: Any) -> Any:
        if not _has_mode():
            return ask(*args)
        with private.without_dispatch():
            return ask(*args)

    return question


@_unseen
def _least(x: Array) -> float:
    return float(x.amin().item())


@_unseen
def _are_equal(x: Array, y: Array) -> bool:
    """Whether these finite numbers are equal, of many in a third of the time of `torch.equal`."""
    if x.numel() <= _FEW:
        return torch.equal(x, y)
    difference = x - y
    return difference.amin().item() == 0 == difference.amax().item()


@_unseen
def _are_finite(*args: Array) -> bool:
    """Whether all is finite, as far as a sum that does not overflow tells."""
    return all(math.isfinite(x.detach().sum().item()) for x in args)


class _TimesLog(FillingFunction):
    """Product with a logarithm, of finite arguments, the first 0 where the second is not above."""

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
        if x.numel() > _FEW and _is_quotient_in_range(cotangent, length):
            return x * _zero_where_at_most(cotangent / length, out, 0.0), None
        slope = x / length
        slope = torch.mul(
            slope, _zero_where_at_most(cotangent, out, 0.0), **_out_option(slope, cotangent)
        )
        return slope, None


@_unseen
def _is_quotient_in_range(x: Array, y: Array) -> bool:
    """Whether no quotient of these lost digits or its size; of many entries a norm saves a pass."""
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
    """Root of the sum of squares, where none of these is at an end of the range."""
    if ord != 2 or where is not None or min_norm != 0 or axis == () or not _are_plain(x):  # noqa: PLR2004  (the Euclidean norm)
        return None
    out = _Norm.of(x, axis) if x.numel() else None
    if out is None or not _is_in_range(x, out.detach(), axis):
        return None
    return dropped(out, axis, keepdims=keepdims)


@_unseen
def _is_in_range(x: Array, norm: Array, axis: Axis) -> bool:
    """Whether no square was lost: what is small is a slice of zeros."""
    bound = _LIMITS[x.dtype]
    if not norm.amax().item() < math.inf:  # or NaN
        return False
    least = math.sqrt(bound.smallest_normal / bound.eps)
    if norm.amin().item() >= least:
        return True
    if isinstance(axis, int) and x.numel() > _FEW:
        return not x.detach().movedim(axis, -1)[norm.squeeze(axis) < least].any()
    peak = x.detach().abs().amax(() if axis is None else axis, keepdim=True)
    return _zero_where_at_most(peak, -norm, -least).amax().item() == 0


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
        slope = _softmax_backward(cotangent, out, ctx.axis, out.dtype)
        if absent is not None:
            slope = _zero_where_at_most(slope, absent.logical_not().to(slope.dtype), 0.5)
        return slope, None, None


@_unseen
def _has_nan(rows: Array, axis: int) -> bool:
    """Whether there is a NaN in rows that are NaN as a whole, or not at all."""
    return math.isnan(rows.detach().select(axis, 0).sum().item())


_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def _kept(x: Array, where: Array, other: float) -> Array:
    """Return ``where(where, x, other)``, of many by bits."""
    if x.numel() <= _FEW:
        return torch.where(where, x.detach(), other)
    kind = _BITS[x.dtype]
    bits = x.new_full((), other).view(kind)
    chosen = x.detach().resolve_neg().view(kind) ^ bits
    chosen &= where.view(torch.int8).neg()
    chosen ^= bits
    return chosen.view(x.dtype)


def _softmax(x: Array, *, axis: Axis = -1, where: Any = None) -> Array | None:
    if not isinstance(axis, int) or not x.numel() or not x.ndim or not _are_plain(x):
        return None
    if where is not None:
        mask = type(where) is torch.Tensor and where.dtype is torch.bool and where.is_cpu
        if not mask or where.shape != x.shape:
            return None
    out = _Softmax.of(x, where, axis)
    # A NaN or inf makes its slice NaN, through which what is absent has slope 0 all the same.
    return None if _has_nan(out, axis) else out


KERNELS: dict[str, Function] = {
    "safe_div": _divide,
    "safe_reciprocal": _reciprocal,
    "safe_sqrt": _root,
    "safe_exp": _exponential,
    "safe_pow": _power,
    "xlogy": _times_log,
    "safe_norm": _norm,
    "safe_softmax": _softmax,
}
KERNELS |= {name: partial(_logarithm, kind) for name, kind in _LOGARITHMS.items()}
