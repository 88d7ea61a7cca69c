"""Resampling of images: a pixel that is read is active, even with weight 0."""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch

from safeops._backends.torch import private
from safeops._core.types import Array
from safeops.autodiff.torch._evaluator import Call, aten, unknown
from safeops.autodiff.torch._masks import any_over, as_numbers, is_any, is_finite, is_traced, spread

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
    active = as_numbers(spread(call.masks[0], cotangent), dtype)
    for axis in range(2, len(size)):
        old, new = size[axis], cotangent.shape[axis]
        find = read.__wrapped__ if is_traced() else read  # what is traced is of one trace
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
    active = spread(call.masks[0], cotangent)
    reached = any_over(active, (1,))[..., None]
    nan = None
    if not is_finite(grid):
        # From a NaN the kernel makes an index out of range, and reads memory there (PyTorch 2.13).
        grid = torch.where(reached, grid, 0)
        if is_traced():
            nan = grid.isnan()
            grid = torch.where(nan, -1, grid)  # what PyTorch says that it stands for
        elif not is_finite(grid):
            return unknown(call)
    reads = pixels_read(call, active, grid)
    if call.masks[0] is True and is_traced():
        found = list(call.run())
    elif is_finite(x):
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
    if wanted[1] and is_any(holes):
        # An active point reads a pixel that is not finite: there the kernel's result stands.
        hit = any_over(active & reads_one_of(call, holes, grid), (1,))[..., None]
        whole = call.func(cotangent, used, grid, *how, wanted)[1]
        found[1] = torch.where(hit, whole, found[1])
    return found


def pixels_read(call: Call, active: Array, grid: Array) -> Array:
    """Return a mask, maybe too large, of the pixels that active points read, even with weight 0."""
    cotangent, x, _, *how, _ = call.args
    inner = tuple(range(2, x.dim()))
    if how[0] == CUBIC:  # some weights are negative, and sums of weights may cancel
        return any_over(active, inner, keepdim=True).expand(x.shape)
    ones = as_numbers(active, cotangent.dtype)
    weights, _ = call.func(ones, torch.zeros_like(x), grid, *how, [True, False])
    if how[0] == NEAREST:
        return weights > 0
    reads = neighbours(weights > 0, 1)
    for axis, near in edges(x, grid, how[2]):
        reads.select(axis, 0).logical_or_(any_over(active & near, inner, keepdim=True).squeeze(-1))
    return reads


def reads_one_of(call: Call, pixels: Array, grid: Array) -> Array:
    """Return a mask, perhaps too large, of the points that read any of the given pixels."""
    cotangent, x, _, *how, _ = call.args
    inner = tuple(range(2, x.dim()))
    if how[0] == CUBIC:
        return any_over(pixels, inner, keepdim=True).expand(cotangent.shape)
    wide = pixels if how[0] == NEAREST else neighbours(pixels, -1)
    sample = aten.grid_sampler_2d if x.dim() == 4 else aten.grid_sampler_3d  # noqa: PLR2004  (axes)
    hit = sample(wide.to(x.dtype), grid, *how) > 0
    for axis, near in edges(x, grid, how[2]):
        first = pixels.narrow(axis, 0, 1)
        hit = hit | (near & any_over(first, inner, keepdim=True))
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
