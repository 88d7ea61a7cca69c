"""
What kernels of PyTorch share: filling without a mask, when to step aside, a class of functions.

Eager `torch.where` takes a branch for each entry, and comparisons are slow to make booleans: a
double where costs 10 to 40 divisions. `torch.threshold` and its backward function are selects too,
``value if x <= bound else x`` and ``0 if x <= bound else y``. Both are vectorised, and leave NaN as
it is. Measured with torch 2.13 on one core.

A kernel has the name and the options of the function that asks it. It returns None for what it
leaves to the double where: other dtypes and devices, subclasses, rare options, and whatever
torch.compile, a `torch.func` transform or forward mode sees.
"""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch

from safeops._backends.devices import has_kernels
from safeops._backends.torch import private
from safeops._core.dtypes import limits
from safeops._core.types import Array, Function

_FEW = 2**11  # entries; up to here comparisons and `where` cost less than what replaces them
_HANDFUL = 2**5  # entries; up to here a question asked in Python takes less than one operation
_PLAIN = {torch.Tensor, torch.nn.Parameter}
_LIMITS = {
    kind: limits(torch, torch.empty(0, dtype=kind, device="cpu"))
    for kind in (torch.float32, torch.float64)
}
_threshold: Function = torch.threshold
_threshold_backward: Function = torch.ops.aten.threshold_backward.default
_threshold_into: Function = torch.ops.aten.threshold_backward.grad_input


def _zero_where_at_most(x: Array, size: Array, bound: float, into: Array | None = None) -> Array:
    """Return ``where(size <= bound, 0, x)``, in the memory of `into` if it may be overwritten."""
    if into is not None and _out_option(into, x):
        return _threshold_into(x, size, bound, grad_input=into)
    return _threshold_backward(x, size, bound)


def _out_option(x: Array, *others: Array) -> dict[str, Array]:
    """Return the option ``out=x``, if nothing keeps x and nothing records the operation."""
    if torch.is_grad_enabled() or _has_mode() or _is_watched():
        return {}
    if not all(map(_has_memory, (x, *others))):
        return {}
    return {"out": x}


def _has_memory(x: Array) -> bool:
    """Whether x has memory of its own; ``is_grads_batched=True`` makes batches without any."""
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
    """Return 1.0 where x equals y, else 0.0: floats take a quarter of the time of booleans."""
    x = x.detach()
    return torch.eq(x, y, out=torch.empty_like(x))


def _constant_below(x: Array, size: Array, bound: float) -> Array:
    """Return x, with slope 0 where ``size <= bound``."""
    if not _records(x):
        return x
    return x.detach() + _zero_where_at_most(x - x.detach(), size, bound)


def _records(*args: Any) -> bool:
    if not torch.is_grad_enabled():
        return False
    for x in args:  # noqa: SIM110  (`any` of a generator takes twice as long)
        if isinstance(x, torch.Tensor) and x.requires_grad:
            return True
    return False


def is_unseen(x: Array) -> bool:
    """Whether no tape, transform or compiler sees what is computed of x."""
    return not (_records(x) or _is_watched())


def _largest_zero(x: Array) -> float:
    """Return the largest number that counts as zero: just below the smallest normal number."""
    bound = _LIMITS[x.dtype]
    return bound.smallest_normal * (1 - bound.eps)


def _are_plain(x: Any, *others: Any) -> bool:
    """Whether all are dense CPU tensors, float32 or float64, and nothing watches or traces them."""
    if _is_watched():  # first: torch.compile does not trace the questions below
        return False
    for y in (x, *others):
        if type(y) not in _PLAIN or y.dtype is not x.dtype or not has_kernels(y) or y.is_nested:
            return False
        if y.layout is not torch.strided or _is_of_inference(y):
            return False
    return x.dtype in _LIMITS


def _is_of_inference(x: Array) -> bool:
    """Whether x is an inference tensor, outside inference mode: no backward pass may keep it."""
    return bool(x.is_inference()) and not torch.is_inference_mode_enabled()


def _is_watched() -> bool:
    """Whether a compiler, a tracer, `torch.func` or forward mode sees what is computed."""
    # A dispatch mode that traces nothing, such as the mode of masked autodiff, does not count: a
    # checkpoint that computes again under it must compute the same as before.
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or (_has_mode() and any(private.dispatch_mode(key) is not None for key in _TRACERS))
        or private.in_transform()
        or private.forward_level() >= 0
    )


_KEYS: Any = private.mode_keys
_TRACERS = (_KEYS.PROXY, _KEYS.FAKE, _KEYS.FUNCTIONAL)


class FillingFunction(torch.autograd.Function):
    """
    A function with its own derivative, which is 0 at filled entries: these entries are left out.

    By this class masked autodiff knows which zeros of `backward` mean "not used": those written by
    `threshold_backward`, `masked_fill`, `where` or `zeros`, and by a product with a boolean tensor.
    A product with 0.0 stays a number, and a NaN in it stays NaN. `backward` is made of
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
        """Return the value, with a node of autograd."""
        return cls.apply(*args)

    @staticmethod
    def value(*args: Any) -> Array:
        """Return the value alone."""
        raise NotImplementedError


def _unseen(ask: Function) -> Function:
    """Let `ask` look at numbers without dispatch modes, such as the mode of masked autodiff."""

    @wraps(ask)
    def question(*args: Any) -> Any:
        if not _has_mode():
            return ask(*args)
        with private.without_dispatch():
            return ask(*args)

    return question


@_unseen
def _numbers(x: Array) -> list[Any] | None:
    """Return the entries as numbers of Python; None if they are many."""
    if x.numel() > _HANDFUL:
        return None
    return list((x if x.ndim == 1 else x.detach().ravel()).tolist())


@_unseen
def _asked(x: Array, question: str) -> float:
    return float(getattr(x.detach(), question)().item())


def _least(x: Array) -> float:
    """Return the smallest entry, or NaN if there is one."""
    numbers = _numbers(x)
    return _asked(x, "amin") if numbers is None else _end(min, numbers)


def _most(x: Array) -> float:
    """Return the largest entry, or NaN if there is one."""
    numbers = _numbers(x)
    return _asked(x, "amax") if numbers is None else _end(max, numbers)


def _end(of: Callable[[list[Any]], float], numbers: list[Any]) -> float:
    # Python's `min` and `max` pass over a NaN that is not the first.
    return math.nan if True in map(math.isnan, numbers) else of(numbers)


def _total(x: Array) -> float:
    """Return the sum of all entries."""
    numbers = _numbers(x)
    return _asked(x, "sum") if numbers is None else sum(numbers)


@_unseen
def _are_equal(x: Array, y: Array) -> bool:
    """Whether these finite numbers are equal; many take a third of the time of `torch.equal`."""
    if x.numel() <= _FEW:
        return torch.equal(x, y)
    difference = x - y
    return difference.amin().item() == 0 == difference.amax().item()


def _places(mask: Any) -> tuple[Array, ...]:
    """Return where a mask of NumPy is True: `nonzero` of PyTorch takes ten times as long."""
    if not mask.ndim:
        return torch.from_numpy(np.asarray(mask)).nonzero(as_tuple=True)
    found = np.unravel_index(np.flatnonzero(mask), mask.shape)
    return tuple(torch.from_numpy(axis) for axis in found)


@_unseen
def _in_numpy(x: Array) -> Any:
    return x.detach().resolve_neg().numpy()


def _are_finite(*args: Array) -> bool:
    """Whether the sums of all entries are finite; False also if a sum overflows."""
    return all(math.isfinite(_total(x)) for x in args)
