"""
What each rank does with its part of a DTensor, where DTensor (2.13) has no rule or gathers.

What each rank has whole, and uses for its part, becomes a DTensor of copies, in parts along a new
axis; and what each rank makes for all becomes one, which is summed along that axis. So slopes are
those of `expand` and `sum`, at every order. The second derivative of ``from_local`` of a pending
sum has no sum over ranks (2.13).
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from safeops._backends.torch import Torch
from safeops._core.types import Array, Function


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of an array without gaps."""
    return tuple(math.prod(shape[a + 1 :]) for a in range(len(shape)))


def joined(part: Array, like: Array, places: Sequence[Any], shape: Sequence[int]) -> Array:
    """Return the DTensor of a shape of which each rank has made a part."""
    # `redistribute` moves nothing here: it brings a cotangent into these parts. If `from_local` has
    # to bring it, there is no second derivative, without a word (2.13).
    whole = {"shape": torch.Size(shape), "stride": strides(shape)}
    x = DTensor.from_local(part.contiguous(), like.device_mesh, places, run_check=False, **whole)
    return x.redistribute(placements=places) if x.requires_grad else x


def reduced(x: Array) -> Array:
    """Return `x` after the reductions over ranks that are still pending."""
    if not (isinstance(x, DTensor) and any(p.is_partial() for p in x.placements)):
        return x
    places = [Replicate() if p.is_partial() else p for p in x.placements]
    return x.redistribute(placements=places)


def gathered(x: Array, axes: Sequence[int]) -> Array:
    """Return `x` whole along some axes on each rank."""
    places = [Replicate() if p.is_shard() and p.dim in axes else p for p in x.placements]
    return x if places == list(x.placements) else x.redistribute(placements=places)


def of_matrices(generic: Function) -> Function:
    """Return a function of which each rank takes its matrices, each of them whole."""

    def kernel(a: Array, /, *args: Any, **options: Any) -> Any:
        batch = a.ndim - 2
        if batch < 0:
            return None  # the generic function says what is wrong with it
        a = gathered(reduced(a), (batch, batch + 1))
        value = generic(a.to_local(), *args, **options)
        many = isinstance(value, tuple)
        wholes = tuple(
            joined(part, a, a.placements, (*a.shape[:batch], *part.shape[batch:]))
            for part in (value if many else (value,))
        )
        return wholes if many else wholes[0]

    return kernel


def copies(x: Array, mesh_axes: Sequence[int]) -> Array:
    """Return what this rank has of `x`: for each of these axes of the mesh a copy of its own."""
    for mesh_axis in mesh_axes:
        x = x.unsqueeze(0).expand(x.device_mesh.size(mesh_axis), *x.shape)
        places = list(x.placements)
        places[mesh_axis] = Shard(0)
        x = x.redistribute(placements=places)
    return x.to_local().flatten(0, len(mesh_axes))


def pending(table: Array, like: Array, places: Sequence[Any], shape: Sequence[int]) -> Array:
    """Return the DTensors that ranks have made of their parts, one behind the other."""
    sizes = []
    for mesh_axis, place in enumerate(places):
        if place is None:
            sizes.append(like.device_mesh.size(mesh_axis))
            table = table.unsqueeze(0)
    many, new = len(sizes), iter(range(len(sizes)))
    there = [
        Shard(next(new)) if p is None else Shard(p.dim + many) if p.is_shard() else p
        for p in places
    ]
    return joined(table, like, there, (*sizes, *shape)).flatten(0, many - 1)


class OfRanks(Torch):
    """Entries by number, each rank with its part of the numbers or of the axes beside them."""

    def gather(self, x: Array, ids: Array) -> Array:
        """Return the entries of `x` with these indices along the first axis, whole on each rank."""
        require_parts(x)
        x = gathered(reduced(x), (0,))
        if not isinstance(ids, DTensor):  # the same on each rank
            ids = joined(ids, x, [Replicate()] * x.device_mesh.ndim, ids.shape)
        ids = reduced(ids)
        used = [a for a, p in enumerate(ids.placements) if p.is_shard()]
        x = x.redistribute(
            placements=[Replicate() if a in used else p for a, p in enumerate(x.placements)]
        )
        behind = ids.ndim - 1
        places = [
            q if q.is_shard() else Shard(p.dim + behind) if p.is_shard() else p
            for p, q in zip(x.placements, ids.placements, strict=True)
        ]
        here = copies(x, used) if used else x.to_local()
        found = super().gather(here, ids.to_local())
        return joined(found, x, places, (*ids.shape, *x.shape[1:]))

    def ranks(self, knots: Array, x: Array) -> Array:
        """Return for each number how many knots are not above it, by whole knots on each rank."""
        require_parts(knots, x)
        knots, x = gathered(reduced(knots), (0,)).detach(), reduced(x).detach()
        return joined(super().ranks(knots.to_local(), x.to_local()), x, x.placements, x.shape)

    def segment_sum(self, x: Array, ids: Array, number: int) -> Array:
        """Return the sums of the entries of each id: those of each rank, summed."""
        x, ids, places = beside(x, ids)
        table = super().segment_sum(x.to_local(), ids.to_local(), number)
        shape = (number, *x.shape[1:])
        if None not in places:
            return joined(table, x, places, shape)
        return reduced(pending(table, x, places, shape).sum(0))

    def segment_max(self, x: Array, ids: Array, number: int, least: float) -> Array:
        """Return the largest entry of each id: the largest of those of each rank."""
        x, ids, places = beside(x, ids)
        table = super().segment_max(x.to_local(), ids.to_local(), number, least)
        places = [Partial("max") if p is None else p for p in places]
        return reduced(joined(table, x, places, (number, *x.shape[1:])))


def require_parts(*arrays: Array) -> None:
    """Raise TypeError for a tensor of one rank beside those of many."""
    if not all(isinstance(x, DTensor) for x in arrays):
        msg = (
            "expected DTensors alone, got one beside a tensor of one rank; make a DTensor of it: "
            "distribute_tensor(x, mesh, [Replicate()])"
        )
        raise TypeError(msg)


def beside(x: Array, ids: Array) -> tuple[Array, Array, list[Any]]:
    """Return entries and their ids in the same parts, and where the parts of a table of ids are."""
    # None stands for an axis of the mesh along which each rank makes a table of its entries.
    require_parts(x, ids)
    x, ids = reduced(x), reduced(ids)
    here = [
        Shard(0) if Shard(0) in pair else pair[0]
        for pair in zip(x.placements, ids.placements, strict=True)
    ]
    of_ids = [p if p == Shard(0) else Replicate() for p in here]
    x, ids = x.redistribute(placements=here), ids.redistribute(placements=of_ids)
    return x, ids, [None if p == Shard(0) else p for p in here]
