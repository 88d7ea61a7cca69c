"""
Convolutions and resampling: what a window reads.

Absent entries meet no coefficient; a pixel that is read is active, even with weight 0.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch

from safeops._backends.torch import private
from safeops._core.types import Array
from safeops.autodiff.torch import _masks
from safeops.autodiff.torch._contractions import product
from safeops.autodiff.torch._evaluator import Call, aten, unknown


def convolve_backward(call: Call) -> Any:
    """Differentiate a convolution for its input, its weights and its bias."""
    cotangent, *_, wanted = call.args
    masks = dict(call.masks)
    if masks.get(0) is True and not reads_all(call):
        masks[0] = _masks.spread(masks[0], cotangent)
    if not any(_masks.is_partial(m) for m in masks.values()):
        return unknown(call)
    reached: tuple[Any, Any] = (None, None)
    if not any(_masks.is_partial(m) for i, m in masks.items() if i):  # the others are coefficients
        active = _masks.spread(masks[0], cotangent)
        reached = of_input(active, call), of_weights(active, call)
    values = at_once(call, reached)
    results = list(part_by_part(call, masks, reached) if values is None else values)
    if wanted[2]:
        axes = (0, *range(2, cotangent.dim()))
        if results[2] is None:
            results[2] = cotangent.sum(axes)
        call.mode.state(results[2], _masks.any_over(_masks.spread(call.active(0), cotangent), axes))
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
        if not wanted[1 - i] or _masks.is_finite(factors[i]):
            continue
        factors[i] = torch.where(known, factors[i], 0)
        if call.mode.exact if _masks.is_traced() else not _masks.is_finite(factors[i]):
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
    if _masks.is_partial(active) and not _masks.is_finite(value):
        value = _masks.cleaned(value, active)
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
    cotangent, x, weight, _, *how, transposed, _, _, _ = call.args
    count = x.dim() - 2
    steps = [n if len(n) == count else list(n) * count for n in how]  # one number stands for all
    sizes = (weight.shape[2:], *steps, x.shape[2:], cotangent.shape[2:], [transposed] * count)
    return [Axis(*row) for row in zip(*sizes, strict=True)]


def reads_all(call: Call) -> bool:
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
    if not _masks.is_traced():
        met = met_over(met, (2,))
    for i, axis in axes:
        met = laid(met, i, axis)
    if _masks.is_traced():  # the sum is an array in memory; the compiler would lay it for each tap
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
    return active.float() if _masks.is_traced() else active


def met_over(met: Array, axes: tuple[int, ...]) -> Array:
    """Return where marks meet any along axes."""
    return (
        met.sum(axes, keepdim=True)
        if _masks.is_traced()
        else _masks.any_over(met, axes, keepdim=True)
    )


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
        met = one + two if _masks.is_traced() else one | two
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


# For each kind of resampling along one axis: its operation, and at which distances from the pixels
# with weights it may read pixels with weight 0.
KINDS: dict[str, tuple[Callable[..., Array], tuple[int, ...]]] = {
    "linear": (aten.upsample_linear1d, (1,)),
    "bicubic": (aten.upsample_bicubic2d, (-1, 1, 2)),
    "antialiased": (private.upsample_linear, (-1, 1)),
    "antialiased cubic": (private.upsample_cubic, (-2, -1, 1, 2)),
}
KIND = {
    "upsample_linear1d_backward": "linear",
    "upsample_bilinear2d_backward": "linear",
    "upsample_trilinear3d_backward": "linear",
    "upsample_bicubic2d_backward": "bicubic",
    "_upsample_bilinear2d_aa_backward": "antialiased",
    "_upsample_bicubic2d_aa_backward": "antialiased cubic",
}


def resampled(call: Call) -> Any:
    """Make all pixels active that were read: axis by axis, as weights are products over axes."""
    cotangent, _, size, corners, *given = call.args
    if 0 not in call.masks:
        return unknown(call)
    scales = given + [None] * (len(size) - 2 - len(given))
    dtype = torch.promote_types(cotangent.dtype, torch.float32)  # the kernel's dtype of positions
    active = _masks.as_numbers(_masks.spread(call.masks[0], cotangent), dtype)
    for axis in range(2, len(size)):
        old, new = size[axis], cotangent.shape[axis]
        find = read.__wrapped__ if _masks.is_traced() else read  # what is traced is of one trace
        reads = find(KIND[call.name], old, new, corners, scales[axis - 2], dtype)
        active = (active.movedim(axis, -1) @ reads.to(active)).movedim(-1, axis)
    return call.finish(active > 0)


@lru_cache(maxsize=64)
def read(kind: str, old: int, new: int, corners: Any, scale: Any, dtype: Any) -> Array:
    """Return a mask (new, old) along one axis: which old pixels each new pixel reads."""
    resample, neighbours = KINDS[kind]
    if kind == "linear":
        weights = resample(torch.eye(old, dtype=dtype)[None], [new], corners, scale)[0].T
    else:
        row = torch.eye(old, dtype=dtype)[None, :, None, :]
        weights = resample(row, [1, new], corners, None, scale)[0, :, 0].T
    reads = weights != 0
    alone = reads & ((reads.sum(-1, keepdim=True) == 1) if kind in ("linear", "bicubic") else True)
    for step in neighbours:
        moved = torch.zeros_like(reads)
        length = max(old - abs(step), 0)
        start, end = max(step, 0), max(-step, 0)
        moved[:, start : start + length] = alone[:, end : end + length]
        reads = reads | moved
    return reads


NEAREST, CUBIC = 1, 2  # interpolation modes of grid_sample; 0 is linear


def sampled(call: Call) -> Any:
    """Differentiate grid_sample: a pixel that no active point reads is absent, even a NaN."""
    cotangent, x, grid, *how, wanted = call.args
    if set(call.masks) != {0}:
        return unknown(call)
    active = _masks.spread(call.masks[0], cotangent)
    reached = _masks.any_over(active, (1,))[..., None]
    nan = None
    if not _masks.is_finite(grid):
        # From a NaN the kernel makes an index out of range, and reads memory there (PyTorch 2.13).
        grid = torch.where(reached, grid, 0)
        if _masks.is_traced():
            nan = grid.isnan()
            grid = torch.where(nan, -1, grid)  # what PyTorch says that it stands for
        elif not _masks.is_finite(grid):
            return unknown(call)
    reads = pixels_read(call, active, grid)
    if call.masks[0] is True and _masks.is_traced():
        found = list(call.run())
    elif _masks.is_finite(x):
        found = list(call.func(cotangent, x, grid, *how, wanted))
    else:
        found = beside_holes(call, active, grid, reads)
        if wanted[1] and nan is not None:
            found[1] = torch.where(nan, math.nan, found[1])
    for value, mask in zip(found, (reads, reached), strict=True):
        call.mode.state(value, mask)  # no tensor for a gradient that was not asked for
    return tuple(found)


def beside_holes(call: Call, active: Array, grid: Array, reads: Array) -> list[Any]:
    """Differentiate grid_sample of an image with entries that are not finite."""
    cotangent, x, _, *how, wanted = call.args
    used = torch.where(reads, x, 0)
    holes = ~used.isfinite()
    found = list(call.func(cotangent, torch.where(holes, 0, used), grid, *how, wanted))
    if wanted[1] and _masks.is_any(holes):
        # An active point reads a pixel that is not finite: there the kernel's result stands.
        hit = _masks.any_over(active & reads_one_of(call, holes, grid), (1,))[..., None]
        whole = call.func(cotangent, used, grid, *how, wanted)[1]
        found[1] = torch.where(hit, whole, found[1])
    return found


def pixels_read(call: Call, active: Array, grid: Array) -> Array:
    """Return a mask, maybe too large, of the pixels that active points read, even with weight 0."""
    cotangent, x, _, *how, _ = call.args
    inner = tuple(range(2, x.dim()))
    if how[0] == CUBIC:  # some weights are negative, and sums of weights may cancel
        return _masks.any_over(active, inner, keepdim=True).expand(x.shape)
    ones = _masks.as_numbers(active, cotangent.dtype)
    weights, _ = call.func(ones, torch.zeros_like(x), grid, *how, [True, False])
    if how[0] == NEAREST:
        return weights > 0
    reads = neighbours(weights > 0, 1)
    for axis, near in edges(x, grid, how[2]):
        reads.select(axis, 0).logical_or_(
            _masks.any_over(active & near, inner, keepdim=True).squeeze(-1)
        )
    return reads


def reads_one_of(call: Call, pixels: Array, grid: Array) -> Array:
    """Return a mask, perhaps too large, of the points that read any of the given pixels."""
    cotangent, x, _, *how, _ = call.args
    inner = tuple(range(2, x.dim()))
    if how[0] == CUBIC:
        return _masks.any_over(pixels, inner, keepdim=True).expand(cotangent.shape)
    wide = pixels if how[0] == NEAREST else neighbours(pixels, -1)
    sample = aten.grid_sampler_2d if x.dim() == 4 else aten.grid_sampler_3d  # noqa: PLR2004  (axes)
    hit = sample(wide.to(x.dtype), grid, *how) > 0
    for axis, near in edges(x, grid, how[2]):
        first = pixels.narrow(axis, 0, 1)
        hit = hit | (near & _masks.any_over(first, inner, keepdim=True))
    return hit


def edges(x: Array, grid: Array, corners: bool) -> Iterator[tuple[int, Array]]:  # noqa: FBT001  (an option of the kernel)
    """Yield, for each axis, the points one pixel before the first pixel, which they read too."""
    for i in range(grid.shape[-1]):
        axis = x.dim() - 1 - i
        place, size = grid[:, None, ..., i] + 1, x.shape[axis]
        pixel = place / 2 * (size - 1) if corners else (place * size - 1) / 2
        yield axis, (pixel + 1).abs() < NEAR


NEAR = 0.05  # pixels: far more than the rounding of a float16 position


def neighbours(pixels: Array, step: int) -> Array:
    """Return pixels and their next neighbours along each axis: a point between two reads both."""
    for axis in range(2, pixels.dim()):
        length = pixels.shape[axis] - 1
        start, end = max(step, 0), max(-step, 0)
        moved = torch.zeros_like(pixels)
        moved.narrow(axis, start, length).copy_(pixels.narrow(axis, end, length))
        pixels = pixels | moved
    return pixels
