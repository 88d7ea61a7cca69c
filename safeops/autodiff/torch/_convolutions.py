"""Convolutions, in which absent entries meet no coefficient."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from safeops._backends.torch import private
from safeops._core.types import Array
from safeops.autodiff.torch._contractions import product
from safeops.autodiff.torch._evaluator import Call, unknown
from safeops.autodiff.torch._masks import (
    any_over,
    cleaned,
    is_finite,
    is_partial,
    is_traced,
    spread,
)


def convolve_backward(call: Call) -> Any:
    """Differentiate a convolution for its input, its weights and its bias."""
    cotangent, *_, wanted = call.args
    masks = dict(call.masks)
    if masks.get(0) is True and not reads_all(call):
        masks[0] = spread(masks[0], cotangent)
    if not any(is_partial(m) for m in masks.values()):
        return unknown(call)
    reached: tuple[Any, Any] = (None, None)
    if not any(is_partial(m) for i, m in masks.items() if i):  # the others are coefficients
        active = spread(masks[0], cotangent)
        reached = of_input(active, call), of_weights(active, call)
    values = at_once(call, reached)
    results = list(part_by_part(call, masks, reached) if values is None else values)
    if wanted[2]:
        axes = (0, *range(2, cotangent.dim()))
        if results[2] is None:
            results[2] = cotangent.sum(axes)
        call.mode.state(results[2], any_over(spread(call.active(0), cotangent), axes))
    return tuple(results)


def at_once(call: Call, reached: tuple[Any, Any]) -> list[Any] | None:
    """
    Return the gradients by one call of PyTorch; None if that may spoil entries that are finite.

    A coefficient that meets no active entry becomes 0 before. One that is not finite may meet both
    kinds: what it makes of them is kept, unless the result has to be exact.
    """
    cotangent, *factors = call.args[:3]
    *rest, wanted = call.args[3:]
    for i, known in enumerate(reached):
        if known is None and wanted[i]:
            return None
        if not wanted[1 - i] or is_finite(factors[i]):
            continue
        factors[i] = torch.where(known, factors[i], 0)
        if call.mode.exact if is_traced() else not is_finite(factors[i]):
            return None
    values = list(call.func(cotangent, *factors, *rest, wanted))
    for i, known in enumerate(reached):
        if wanted[i]:
            values[i] = stated(call, values[i], known)
    return values


def part_by_part(call: Call, masks: dict[int, Any], reached: tuple[Any, Any]) -> Iterator[Any]:
    """Yield the gradients of a convolution as exact products; None for the bias."""
    cotangent, x, weight, *_, wanted = call.args
    for i, (other, j) in enumerate(((weight, 2), (x, 1))):
        if not wanted[i]:
            yield None
            continue
        pair = (cotangent, masks.get(0))
        value, active = product(part_of(call, i), pair, (other, masks.get(j)), reached[i])
        yield stated(call, value, active)
    yield None


def stated(call: Call, value: Array, active: Any) -> Array:
    """Return a gradient whose mask is stated; kernels multiply a NaN with their padding too."""
    if is_partial(active) and not is_finite(value):
        value = cleaned(value, active)
    call.mode.state(value, active)
    return value


def part_of(call: Call, i: int) -> Callable[[Array, Array], Array]:
    """Return a function (cotangent, other factor) to the gradient for input (0) or weights (1)."""
    _, x, weight, *rest, _ = call.args
    only = [i == j for j in range(3)]

    def multiply(a: Array, b: Array) -> Array:
        pair = (x, b) if i == 0 else (b, weight)
        result: Array = call.func(a, *pair, *rest, only)[i]
        return result

    return multiply


# Along each axis a window has taps, and is laid on a fine grid at each place of a coarse one: on
# ``place * stride - padding + tap * dilation``. The fine grid is the input, or, if the convolution
# is transposed, the output.


@dataclass(frozen=True)
class Axis:
    """What a convolution does along one axis of space; `size` and `out` are input and output."""

    taps: int
    stride: int
    padding: int
    dilation: int
    size: int
    out: int
    transposed: bool

    @property
    def reach(self) -> int:
        """Return the distance from the first tap to the last."""
        return (self.taps - 1) * self.dilation


def axes_of(call: Call) -> list[Axis]:
    """Return the axes of space."""
    cotangent, x, weight, _, *how, transposed, _, _, _ = call.args
    count = x.dim() - 2
    steps = [n if len(n) == count else list(n) * count for n in how]  # one number stands for all
    sizes = (weight.shape[2:], *steps, x.shape[2:], cotangent.shape[2:], [transposed] * count)
    return [Axis(*row) for row in zip(*sizes, strict=True)]


def reads_all(call: Call) -> bool:
    """Whether a convolution reads each entry of its input, and with each of its weights."""
    return all(reads_all_along(axis) for axis in axes_of(call))


def reads_all_along(axis: Axis) -> bool:
    """Whether that holds along an axis; for sizes that are symbols, whether it holds for most."""
    known = all(isinstance(n, int) for n in (axis.taps, axis.size, axis.out))
    return found_by_trying(axis) if known else axis.stride == 1


@cache
def found_by_trying(axis: Axis) -> bool:
    """Whether it holds along an axis of numbers."""
    with private.without_modes():
        every = torch.ones(1, 1, axis.out, dtype=torch.bool, device="cpu")
        of_places = stepped(windows(laid(every, 2, axis), 2, axis), 2, axis)
        return bool(of_places.all()) and bool(met_by_taps(every, 2, axis).all())


def of_input(active: Array, call: Call) -> Array:
    """Return which entries of the input an active entry of the output reads."""
    x, groups = call.args[1], call.args[9]
    axes = list(enumerate(axes_of(call), 3))
    met = marks(active.unflatten(1, (groups, -1)))
    if not is_traced():
        met = met_over(met, (2,))
    for i, axis in axes:
        met = laid(met, i, axis)
    if is_traced():  # the sum is an array in memory; the compiler would lay it for each tap
        met = met_over(met, (2,))
    for i, axis in axes:
        met = stepped(windows(met, i, axis), i, axis)
    return (met != 0).expand(*met.shape[:2], x.shape[1] // groups, *x.shape[2:]).reshape(x.shape)


def of_weights(active: Array, call: Call) -> Array:
    """Return which weights an active entry of the output reads."""
    weight, groups = call.args[2], call.args[9]
    met = met_over(marks(active), (0,))
    for i, axis in enumerate(axes_of(call), 2):
        inside = not axis.transposed and axis.padding == 0
        met = met_over(met, (i,)) if inside else met_by_taps(met, i, axis)
    met = (met != 0).expand(1, active.shape[1], *weight.shape[2:])
    if not call.args[7]:
        return met.transpose(0, 1).expand(weight.shape)
    met = met.reshape(groups, 1, *weight.shape[1:])
    return met.expand(-1, weight.shape[0] // groups, *weight.shape[1:]).reshape(weight.shape)


def marks(active: Array) -> Array:
    """Return a mask; as numbers if traced: compiled loops over bool take ten times as long."""
    return active.float() if is_traced() else active


def met_over(met: Array, axes: tuple[int, ...]) -> Array:
    """Return where marks meet any along axes."""
    return met.sum(axes, keepdim=True) if is_traced() else any_over(met, axes, keepdim=True)


def laid(met: Array, i: int, axis: Axis) -> Array:
    """Lay marks on the fine grid, with room for a window around it."""
    if axis.transposed:
        return padded(met, i, axis.padding, (axis.size - 1) * axis.stride + axis.reach + 1)
    if axis.stride > 1:
        met = padded(met.unsqueeze(i + 1), i + 1, 0, axis.stride).flatten(i, i + 1)
    return padded(met, i, axis.reach - axis.padding, axis.size + axis.reach)


def windows(met: Array, i: int, axis: Axis) -> Array:
    """Return where a window that begins there meets a mark."""
    taken = 1
    while taken < axis.taps:
        more = min(taken, axis.taps - taken)
        step = more * axis.dilation
        length = met.shape[i] - step
        one, two = met.narrow(i, 0, length), met.narrow(i, step, length)
        met = one + two if is_traced() else one | two
        taken += more
    return met


def stepped(met: Array, i: int, axis: Axis) -> Array:
    """Return what lies at the places of the input."""
    return part(met, i, 0, None, axis.stride if axis.transposed else 1)


def met_by_taps(met: Array, i: int, axis: Axis) -> Array:
    """Return which taps meet a mark in some window."""
    found = []
    for tap in range(axis.taps):
        place = tap * axis.dilation - axis.padding  # on the fine grid, of the first window
        first = max(0, -(place // axis.stride))  # the first window in which it is on the grid
        if axis.transposed:
            end = torch.sym_max(0, (axis.size - 1) * axis.stride + place + 1)
            met_there = part(met, i, first * axis.stride + place, end, axis.stride)
        else:
            end = torch.sym_max(0, (axis.size - 1 - place) // axis.stride + 1)
            met_there = part(met, i, first, end, 1)
        found.append(met_over(met_there, (i,)))
    return torch.cat(found, i)


def padded(met: Array, i: int, before: int, length: int) -> Array:
    """Return marks with zeros around them, or fewer of them, along an axis."""
    after = length - before - met.shape[i]
    return torch.nn.functional.pad(met, [0, 0] * (met.dim() - i - 1) + [before, after])


def part(met: Array, i: int, start: int, end: int | None, step: int) -> Array:
    """Return every so many marks along an axis."""
    return met[(slice(None),) * i + (slice(start, end, step),)]
