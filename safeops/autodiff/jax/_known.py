"""
Masks that are known while a program is traced, moved without their full shape.

Such a mask has length 1 along each axis along which it does not vary, so that it stays a small
constant of the program, whatever the length of the values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import JaxprEqn

from safeops._backends.jax import private
from safeops._core.types import Array
from safeops.autodiff import _pairs
from safeops.autodiff._small import SMALL, Shape, folded, is_worth_it, reshaped


@dataclass(frozen=True, eq=False)
class Made:
    """
    A mask that is known, and too large for a constant: the program makes it where it needs it.

    What most rules do to it makes it small again, so that most are never made.
    """

    entries: np.ndarray
    make: Callable[[], Any]


@dataclass(frozen=True, eq=False)
class Within:
    """
    A mask that depends on data, and a known one that contains it.

    A union of both is the known one: behind a residual connection masks are known again.
    """

    mask: Any
    bound: np.ndarray


def entries_of(mask: Any) -> Any:
    """Return a known mask as it is while the program is traced, and another as it is."""
    if isinstance(mask, Within):
        return mask.mask
    return mask.entries if isinstance(mask, Made) else mask


def in_program(mask: Any) -> Any:
    """Return a mask as the program has it."""
    if isinstance(mask, Within):
        return mask.mask
    return mask.make() if isinstance(mask, Made) else mask


def bound_of(mask: Any) -> Any:
    """Return a known mask that contains another: a known one itself, of any other True."""
    if isinstance(mask, Within):
        return mask.bound
    entries = entries_of(mask)
    return entries if is_known(entries) else True


def within(mask: Any, bound: Any) -> Any:
    """Return a mask that depends on data with a known one that contains it."""
    bound = folded(bound)
    if bound is True or is_known(entries_of(mask)):
        return mask
    return Within(in_program(mask), bound) if isinstance(bound, np.ndarray) else bound


def as_constant(mask: Any, make: Callable[[], Any]) -> Any:
    """Return a known mask that is to be made if it is large."""
    return Made(mask, make) if isinstance(mask, np.ndarray) and mask.nbytes > SMALL else mask


def following(mask: Any, entries: Any, make: Callable[[], Any]) -> Any:
    """
    Return a mask that comes from another, by what its bound becomes.

    A known mask is its own bound; the program makes it if it makes the other.
    """
    entries = folded(entries)
    if isinstance(mask, Within):
        return within(make(), entries)
    return as_constant(entries, make) if isinstance(mask, Made) else entries


def is_known(mask: Any) -> bool:
    """Whether a mask is known while the program is traced; NumPy reduces one to `np.bool_`."""
    return isinstance(mask, (bool, np.bool_, np.ndarray))


def union(*masks: Any) -> Any:
    """Return where any of several masks of one shape is active."""
    whole = _union_of_known([m for m in masks if is_known(entries_of(m))])
    others = [m for m in masks if not is_known(entries_of(m))]
    rest = [m for m in others if not _contains(entries_of(whole), bound_of(m))]
    if whole is True or not rest:
        return whole
    return within(_pairs.union(*map(in_program, (whole, *rest))), either(whole, *rest))


def _union_of_known(masks: Sequence[Any]) -> Any:
    """Return the union of known masks, which is known unless it is too large."""

    def make() -> Any:
        return folded(_pairs.union(*map(in_program, masks)))

    entries = [entries_of(m) for m in masks]
    if any(m is True for m in masks) or not any(isinstance(m, Made) for m in masks):
        return folded(_pairs.union(*masks))
    return as_constant(folded(_pairs.union(*entries)), make) if is_worth_it(*entries) else make()


def either(*masks: Any) -> Any:
    """Return a known mask that contains several."""
    bounds = [bound_of(m) for m in masks]
    return _pairs.union(*bounds) if is_worth_it(*bounds) else True


def _contains(whole: Any, bound: Any) -> bool:
    """Whether a known mask contains another."""
    fits = is_known(whole) and bound is not True and is_worth_it(whole, bound)
    return fits and bool(np.all(whole | np.logical_not(bound)))


def moved(eqn: JaxprEqn, mask: np.ndarray, shape: Shape) -> list[np.ndarray] | None:
    """Return what an operation makes of the mask of a value of a shape; None if it is another."""
    name, outs = eqn.primitive.name, [x.aval.shape for x in eqn.outvars]
    if name == "transpose":
        return [mask.transpose(private.permutation(eqn))]
    if name in ("reshape", "squeeze"):
        return [reshaped(mask, shape, outs[0])]
    if name == "broadcast_in_dim":
        axes = private.axes_of_broadcast(eqn)
        return [np.expand_dims(mask, tuple(i for i in range(len(outs[0])) if i not in axes))]
    if name == "slice":
        return [cut(mask, private.slices_of(eqn))]
    if name == "pad":
        return padded(mask, shape, private.padding_of(eqn))
    return split(mask, shape, outs) if name == "split" else None


def is_here(x: Any) -> bool:
    """Whether an array is known, and in the memory of the processor: NumPy compiles nothing."""
    if isinstance(x, jax.core.Tracer) or not isinstance(x, jax.Array):
        return isinstance(x, np.ndarray)
    return all(device.platform == "cpu" for device in x.devices())


def moved_here(eqn: JaxprEqn, ins: Sequence[Any]) -> list[Array]:
    """Run one operation; what only moves numbers that are here compiles nothing."""
    x: Any = ins[0] if len(ins) == 1 else None
    if is_here(x) and x.size and jax.dtypes.issubdtype(x.dtype, np.inexact):
        parts = moved(eqn, np.asarray(x), x.shape)
        if parts is not None:
            outs = zip(parts, eqn.outvars, strict=True)
            return [np.broadcast_to(part, out.aval.shape) for part, out in outs]
    return private.plain(eqn, ins)


def cut(mask: np.ndarray, parts: Sequence[slice]) -> np.ndarray:
    """Return a part of a mask; along an axis of length 1 it does not vary."""
    each = zip(parts, mask.shape, strict=True)
    return mask[tuple(slice(None) if n == 1 else part for part, n in each)]


def split(mask: np.ndarray, shape: Shape, outs: Sequence[Shape]) -> list[np.ndarray]:
    """Return the parts of a mask along the axis along which results are shorter."""
    axis = next((i for i, n in enumerate(shape) if n != outs[0][i]), 0)
    ends = np.cumsum([out[axis] for out in outs])
    parts = (slice(end - out[axis], end) for end, out in zip(ends, outs, strict=True))
    before = [slice(None)] * axis
    return [cut(mask, [*before, part, *[slice(None)] * (len(shape) - axis - 1)]) for part in parts]


def padded(
    mask: np.ndarray, shape: Shape, widths: Sequence[Sequence[int]]
) -> list[np.ndarray] | None:
    """Return a mask with inactive entries around it; None if these are between, or cut off."""
    if any(low < 0 or high < 0 or between for low, high, between in widths):
        return None
    sizes = zip(mask.shape, shape, widths, strict=True)
    whole = [n if low or high else m for m, n, (low, high, _) in sizes]
    return [np.pad(np.broadcast_to(mask, whole), [(low, high) for low, high, _ in widths])]
