"""
PyTorch's DTensor: a tensor of which each rank of a mesh holds a part.

Axes are counted from the front before any reduction, because DTensor (2.13) reads other axes
wrongly: ``amax(dim=())`` reduces one part only, and a running sum along a negative axis begins anew
in each part. If a reduction over ranks is still pending, it is done at once: DTensor does not keep
its result, so that each use would reduce again.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import array_api_compat.torch as xp
import torch
from torch.distributed.tensor import DTensor, Replicate

from safeops._backends.array_api import MATRICES
from safeops._backends.shapes import of_one_axis
from safeops._backends.torch import private
from safeops._backends.torch.ranks import OfRanks, gathered, joined, of_matrices, reduced
from safeops._backends.torch.reductions import cumulative_product, loses
from safeops._core.types import Array, Axis, Function


def from_front(x: Array, axis: Axis) -> tuple[int, ...]:
    """Return axes as numbers from 0; all of them for None."""
    rank = x.ndim
    given = range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    for a in given:
        if not -rank <= a < rank:
            msg = f"expected axes of {rank} dimensions, got {axis}"
            raise IndexError(msg)
    return tuple(a % rank for a in given)


def without_empty_parts(x: Array) -> Array:
    """Return `x`, gathered along each axis of which a rank holds nothing: it has no maximum."""
    ranks = dict.fromkeys(range(x.ndim), 1)
    for mesh_axis, place in enumerate(x.placements):
        if place.is_shard():
            ranks[place.dim] *= x.device_mesh.size(mesh_axis)
    empty = [
        a for a, n in ranks.items() if n > 1 and math.ceil(x.shape[a] / n) * (n - 1) >= x.shape[a]
    ]
    return gathered(x, tuple(empty))


class Parts:
    """`array_api_compat.torch` for tensors in parts."""

    def __getattr__(self, name: str) -> Any:
        return getattr(xp, name)

    @staticmethod
    def sum(x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
        """Sum over axes."""
        return reduced(xp.sum(x, axis=from_front(x, axis), keepdims=keepdims))

    @staticmethod
    def max(x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
        """Return the largest entry."""
        return _extreme(torch.amax, x, axis, keepdims=keepdims)

    @staticmethod
    def min(x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
        """Return the smallest entry."""
        return _extreme(torch.amin, x, axis, keepdims=keepdims)

    @staticmethod
    def any(x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
        """Whether one entry is true, by a count; DTensor's `any` would flatten several axes."""
        return Parts.sum(x.to(torch.int32), axis=axis, keepdims=keepdims) > 0

    @staticmethod
    def all(x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
        """Whether no entry is false."""
        return torch.logical_not(Parts.any(torch.logical_not(x), axis=axis, keepdims=keepdims))

    @staticmethod
    def argmax(x: Array, *, axis: int | None = None, keepdims: bool = False) -> Array:
        """Return the place of the first largest entry."""
        axis = axis if axis is None else from_front(x, axis)[0]
        return reduced(xp.argmax(x, axis=axis, keepdims=keepdims))

    @staticmethod
    def sort(x: Array, *, axis: int = -1) -> Array:
        """Sort along an axis, whole on each rank."""
        axes = from_front(x, axis)
        return xp.sort(gathered(x, axes), axis=axes[0])

    @staticmethod
    def take_along_axis(x: Array, places: Array, *, axis: int = -1) -> Array:
        """Take entries along an axis, whole on each rank."""
        axes = from_front(x, axis)
        return xp.take_along_axis(gathered(x, axes), gathered(places, axes), axis=axes[0])


def stacked(arrays: Sequence[Array], axis: Axis) -> tuple[Array, tuple[int, ...]]:
    """Return arrays as one, and its axes for those of each."""
    axes = from_front(arrays[0], axis)
    return torch.stack(list(arrays)), tuple(a + 1 for a in axes)


def _extreme(choose: Function, x: Array, axis: Axis, *, keepdims: bool) -> Array:
    x, axes = without_empty_parts(x), from_front(x, axis)
    return reduced(choose(x, axes, keepdim=keepdims)) if axes else x


class Sharded(OfRanks):
    """Tensors of PyTorch of which each rank holds a part."""

    precedence = 1
    kernels: Mapping[str, Function] = {}
    formulas: Mapping[str, Function] = {}  # DTensor has no xlogy (2.13)

    def kernel(self, name: str, generic: Function) -> Function | None:
        """Return a function of matrices as each rank takes it."""
        return of_matrices(generic) if name in MATRICES.split() else None

    def cast(self, x: Any, dtype: Any, like: Array) -> Array:
        """Return an array of `dtype`; a sum over ranks that is still pending is taken here."""
        x = super().cast(x, dtype, like)
        return reduced(x) if isinstance(x, DTensor) else x

    def rough_max_and_min(self, low: Array, high: Array, axis: Axis) -> tuple[Array, Array | None]:
        """Return both by one collective."""
        both = self.rough_max(*stacked((low, -high), axis))
        return both[0], -both[1]

    def sums(self, arrays: Sequence[Array], axis: Axis) -> Sequence[Array]:
        """Return the sums of slices by one collective, if there is one."""
        axes, (first, *rest) = from_front(arrays[0], axis), arrays
        moves = any(p.is_shard() and p.dim in axes for p in first.placements)
        if not moves or any(x.dtype != first.dtype for x in rest):
            return super().sums(arrays, axis)
        both, axes = stacked(arrays, axis)
        total = Parts.sum(both, axis=axes, keepdims=True)
        return [total[k] for k in range(len(arrays))]

    def lengths(self, x: Array, axis: Axis) -> Array:
        """Return how many entries a slice has, which each rank knows."""
        axes = from_front(x, axis)
        number = math.prod([x.shape[a] for a in axes])  # torch.compile takes no generator (2.13)
        shape = [1 if a in axes else n for a, n in enumerate(x.shape)]
        places = [Replicate() if p.is_shard() and p.dim in axes else p for p in x.placements]
        here, _ = private.part_of(shape, x.device_mesh, places)
        return joined(torch.full(here, number, dtype=x.dtype, device=x.device), x, places, shape)

    def extreme(self, x: Array, axis: Axis, sign: int) -> Array:
        """Return the largest or smallest entry of each slice, axes kept; others have slope 0."""
        axes, x = from_front(x, axis), without_empty_parts(x)
        if not axes:
            return x
        if torch.is_grad_enabled() and x.requires_grad:
            x = loses(x, axes, sign)
        return reduced((torch.amax if sign > 0 else torch.amin)(x, axes, keepdim=True))

    def extreme_and_max(
        self, x: Array, levels: Array, axis: Axis, sign: int
    ) -> tuple[Array, Array]:
        """Return both by one collective; a slope costs one more."""
        both, axes = stacked((x.detach(), sign * levels), axis)
        choose = torch.amax if sign > 0 else torch.amin
        found = _extreme(choose, both, axes, keepdims=True)
        peak, level = found[0], sign * found[1]
        if torch.is_grad_enabled() and x.requires_grad:
            others = x.detach()
            away = others < peak if sign > 0 else others > peak  # as `loses`
            peak = _extreme(choose, torch.where(away, others, x), axis, keepdims=True)
        return peak, level

    def flatten_axes(self, x: Array, axis: Axis) -> Array:
        """Return `x` with these axes as one, the last; each rank then holds them whole."""
        axes = from_front(x, axis)
        return super().flatten_axes(gathered(x, axes), axes or None)

    def product(self, x: Array, axis: Axis) -> Array:
        """Return the product of each slice, axes kept; gathered first if a slope is wanted."""
        for a in from_front(x, axis):
            if x.requires_grad:
                moved = gathered(x, (a,)).movedim(a, -1)
                x = cumulative_product(moved)[..., -1:].movedim(-1, a)
            else:
                x = reduced(torch.prod(x, a, keepdim=True))
        return x

    def cumulative(self, x: Array, axis: int, *, product: bool) -> Array:
        """Return running sums, or running products."""
        (axis,) = from_front(x, axis)
        return super().cumulative(gathered(x, (axis,)), axis, product=product)

    def positions(self, x: Array, axis: int) -> Array:
        """Return the place of each entry along an axis; each rank makes the places of its part."""
        (axis,) = from_front(x, axis)
        places = [p if p.is_shard() and p.dim == axis else Replicate() for p in x.placements]
        shape = of_one_axis(x.shape, axis)
        local, offset = private.part_of(shape, x.device_mesh, places)
        here = torch.arange(local[axis], device=x.device) + offset[axis]
        here = here.reshape(of_one_axis(local, axis))
        return joined(here, x, places, shape)


backend = Sharded(Parts())
