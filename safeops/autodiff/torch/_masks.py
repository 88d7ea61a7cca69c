"""Masks: which entries of a tensor are active."""

import cmath
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from safeops._backends.torch import private
from safeops._core.types import Array
from safeops.autodiff.torch._tags import Mask


def tensors_of(tree: Any) -> list[Array]:
    """Return the tensors in arguments or results; PyTorch's own walk takes ten times as long."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if not isinstance(tree, (tuple, list, dict)):
        return []
    parts = tree.values() if isinstance(tree, dict) else tree
    return [x for part in parts for x in tensors_of(part)]


def is_traced() -> bool:
    """Whether a compiler traces: there are no numbers to look at."""
    return private.dispatch_mode(private.mode_keys.PROXY) is not None


def folded(active: Array) -> Mask:
    """Return True for a mask that is True everywhere; only masks on a CPU are read."""
    if is_traced() or not active.is_cpu or not active.numel():
        return active
    if active.numel() < SMALL:  # one call, in place of two
        return active if b"\0" in active.numpy().tobytes() else True
    return True if active.view(torch.uint8).amin() else active


SMALL = 4096  # entries: below, the overhead of a call costs more than its work


def any_over(active: Array, dims: tuple[int, ...], *, keepdim: bool = False) -> Array:
    """Return where any entry along some axes is active."""
    if is_traced() and active.dim():  # PyTorch takes an axis of a number too
        rows = thin(active)
        shape = list(active.shape)
        for axis in dims:
            shape[axis] = 1
        if any(rows.shape[axis] != 1 for axis in dims):
            rows = rows.any(dim=dims, keepdim=True)
        return rows.expand(shape) if keepdim else rows.expand(shape).squeeze(dims)
    if is_traced() or not active.numel():
        return active.any(dim=dims, keepdim=keepdim)
    # The same as `any`, which takes 2 to 50 times as long on a CPU (PyTorch 2.13).
    return active.view(torch.uint8).amax(dims, keepdim=keepdim).view(torch.bool)


# The attribute of a tensor that is known while a compiler traces: the device for which it is one.
MARK = "_safeops_known_for"


def is_known(x: Any) -> bool:
    """Whether a tensor is known while a compiler traces."""
    return hasattr(x, MARK)


def is_whole(active: Array) -> bool:
    """Whether a known mask is True everywhere."""
    with private.without_modes():
        return bool(thin(active).all())


def repeats(active: Array, axis: int) -> bool:
    """Whether a known mask has the same entries all along an axis."""
    return is_known(active) and (active.shape[axis] == 1 or active.stride(axis) == 0)


def thin(active: Array, *, but: int | None = None) -> Array:
    """Return a mask with length 1 along the axes, but one, along which it repeats an entry."""
    # A compiler does not know that it does, and would make the whole array, and reduce it.
    for axis, (size, stride) in enumerate(zip(active.shape, active.stride(), strict=True)):
        # A length or a stride that is not known while a compiler traces is no int.
        repeats = isinstance(stride, int) and stride == 0
        if repeats and axis != but and not (isinstance(size, int) and size <= 1):
            active = active.narrow(axis, 0, 1)
    return active


def combined(f: Callable[..., Array], *masks: Array) -> Array:
    """Return a function of masks, entry by entry, of as few entries as a compiler needs."""
    if not is_traced():
        return f(*masks)
    return f(*map(thin, masks)).expand(common_shape(*(m.shape for m in masks)))


def common_shape(*shapes: Sequence[Any]) -> Sequence[Any]:
    """Return what shapes broadcast to; PyTorch's function imports symbolic shapes, in 0.3 s."""
    if all(type(length) is int for shape in shapes for length in shape):
        return np.broadcast_shapes(*map(tuple, shapes))
    found: torch.Size = torch.broadcast_shapes(*shapes)
    return found


def spread(active: Mask, x: Array) -> Array:
    """Return a mask as a tensor of the shape of `x`."""
    if isinstance(active, bool):
        return torch.full((), active, device=x.device).expand(x.shape)
    return active.expand(x.shape)


def as_numbers(active: Array, dtype: torch.dtype) -> Array:
    """Return a mask as ones and zeros; on a CPU bytes convert 5 times as fast (PyTorch 2.13)."""
    return active.to(dtype) if is_traced() else active.view(torch.uint8).to(dtype)


def not_zero(x: Array) -> Array:
    """Return ``x != 0``; on a CPU this conversion is 2 to 8 times as fast (PyTorch 2.13)."""
    return x != 0 if is_traced() or x.is_complex() else x.to(torch.bool)


def both(a: Mask, b: Mask) -> Mask:
    if a is True or b is True:
        return b if a is True else a
    if isinstance(a, bool) or isinstance(b, bool):
        return False
    return combined(torch.bitwise_and, a, b)


def either(a: Mask, b: Mask) -> Mask:
    if isinstance(a, bool) or isinstance(b, bool):
        first, second = (a, b) if isinstance(a, bool) else (b, a)
        return True if first is True else second
    return combined(torch.bitwise_or, a, b)


INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def cleaned(x: Array, active: Any) -> Array:
    """Put 0 where nothing is active, in place; in a new tensor if a compiler traces."""
    if is_traced():
        if is_known(active) and is_whole(active):
            return x
        # Written in place, `x` would keep its strides, and views of it would get others: the
        # masks of these would be read from other entries (PyTorch 2.13).
        return torch.where(spread(active, x), x, 0)
    if x.is_complex():
        mask = active if isinstance(active, bool) else active[..., None]
        cleaned(torch.view_as_real(x.conj() if x.is_conj() else x), mask)
        return x
    if active is False:
        return x.zero_()
    # By bits: masked_fill_ and where branch at each entry, which is 15 times slower on a CPU.
    dtype = INTEGERS.get(x.element_size())
    if dtype is None or x.numel() < SMALL or x.is_neg():
        return x.masked_fill_(~spread(active, x), 0)
    x.view(dtype).bitwise_and_(active.to(dtype).neg_())
    return x


def beside(active: Array, x: Array) -> Array:
    """Return coefficients with 0 where they meet absent entries only."""
    return x if is_known(active) and is_whole(active) else torch.where(active, x, 0)


def is_partial(active: Any) -> bool:
    return active is not None and active is not True


def is_finite(x: Array) -> bool:
    """Whether all entries are finite, told by their sum; False also if the sum overflows."""
    return not is_traced() and cmath.isfinite(x.sum().item())


def is_any(x: Array) -> bool:
    """Whether any entry is True, or there are no numbers to look at."""
    return is_traced() or bool(x.any())
