"""
The active entries of each cotangent, by its storage.

A table by tensor would go stale: a view, an alias that is written through, or the one tensor that
autograd makes of a slice and its base is another tensor on the same memory. A table by storage
needs no rule for any of them.
"""

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from safeops._backends.torch import private
from safeops._core.types import Array

# True: all entries are active. None (in signatures): the tensor is no cotangent.
Mask: TypeAlias = bool | Array


@dataclass
class Entry:
    """The active entries of one storage, in the order of its memory."""

    alive: Any
    active: Mask
    itemsize: int
    # The node whose formula wrote these zeros; they are absent inside that formula only.
    literal_of: Any = None
    # Whether it is from an earlier backward pass: then it is a coefficient with absent entries.
    earlier: bool = False
    # Whether it is the gradient of a leaf. It has a mask only while the engine accumulates into it;
    # elsewhere it is data, and its zeros are numbers.
    accumulated: bool = False


class Tags:
    """A table from storages to their active entries."""

    def __init__(self, former: "Tags | None" = None) -> None:
        self.entries: dict[int, Entry] = {}
        self._limit = 64
        for key, entry in list((former.entries if former else {}).items()):
            if not entry.alive.expired():
                self.entries[key] = replace(entry, earlier=True)

    def find(self, x: Array) -> Entry | None:
        if not self.entries or not is_plain(x) or not is_number(x):
            return None
        return self.entries.get(private.storage_id(x.untyped_storage()))

    def read(self, x: Array) -> Mask | None:
        """Return what is active in a tensor."""
        entry = self.find(x)
        if entry is None or entry.literal_of is not None:
            return None
        if entry.accumulated and not is_leaf(private.current_node()):
            return None
        return self.of_entry(entry, x)

    @staticmethod
    def of_entry(entry: Entry, x: Array) -> Mask:
        """Return what an entry states about a tensor."""
        active = entry.active
        if entry.earlier and active is not True:
            # The program may have written into it since: what is not 0 is a number.
            return (x != 0) if active is False else in_shape(active, entry.itemsize, x) | (x != 0)
        return active if isinstance(active, bool) else in_shape(active, entry.itemsize, x)

    def write(self, x: Array, active: Mask) -> None:
        """State what is active in a tensor; the rest of its storage keeps its state."""
        if not is_plain(x):
            return
        storage = x.untyped_storage()
        size = x.element_size()
        earlier = self.entries.get(private.storage_id(storage))
        count = storage.nbytes() // size
        if active is True and (earlier is None or earlier.active is True):
            flat: Mask = True
        elif x.is_contiguous() and x.numel() == count:
            flat = active if isinstance(active, bool) else self.flat_of(active, x.shape)
        else:
            flat = self.flat(earlier, count, size, x)
            if not (flat is True and active is True):
                flat = torch.full((count,), flat, device=x.device) if flat is True else flat
                in_shape(flat, size, x).copy_(torch.as_tensor(active, device=x.device))
        self._put(storage, flat, size)

    def flat_of(self, active: Array, shape: Any) -> Array:
        """Return a mask in the order of memory."""
        return flattened(active, shape)

    def flat(self, earlier: Entry | None, count: int, size: int, x: Array) -> Mask:
        """Return a copy of the mask of a storage; without one all entries count as active."""
        if earlier is None or earlier.active is True:
            return True
        if isinstance(earlier.active, bool):
            return torch.zeros(count, dtype=torch.bool, device=x.device)
        flat = regrained(earlier.active, earlier.itemsize, size)
        return flat.clone(memory_format=torch.contiguous_format)

    def _put(self, storage: Any, active: Mask, size: int, node: Any = None) -> None:
        weak = private.StorageWeakRef(storage)
        # While this weak reference is held no other storage gets the same address.
        self.entries[weak.cdata] = Entry(weak, active, size, node)
        if len(self.entries) > self._limit:
            self.forget_expired()
            self._limit = 2 * len(self.entries) + 64

    def write_literal(self, x: Array, node: Any) -> None:
        """State that a tensor is a literal 0 in the formula of a node."""
        if is_plain(x):
            self._put(x.untyped_storage(), active=False, size=x.element_size(), node=node)

    def drop(self, x: Array) -> None:
        self.entries.pop(private.storage_id(x.untyped_storage()), None)

    def forget_expired(self) -> None:
        """Forget storages that nobody holds."""
        entries = list(self.entries.items())  # other threads may write
        dead = [key for key, entry in entries if entry.alive.expired()]
        for key in dead:
            self.entries.pop(key, None)

    def keep(self, other: "Tags", *, partial: bool) -> None:
        """Take over the entries of another table, those with absent entries only if `partial`."""
        self.forget_expired()
        for key, entry in other.entries.items():
            known = entry.literal_of is None and not entry.alive.expired()
            if known and not (partial and entry.active is True):
                self.entries[key] = entry

    def keep_gradient(self, other: "Tags", x: Array, *, has_graph: bool) -> None:
        """Take over the entry of a gradient; without an entry all of it counts as active."""
        if not is_plain(x):
            return
        entry = other.find(x)
        if entry is None or entry.literal_of is not None:
            self.write(x, active=True)
            entry = self.find(x)
        if entry is not None:
            key = private.storage_id(x.untyped_storage())
            self.entries[key] = replace(entry, accumulated=not has_graph)


def name_of(node: Any) -> str:
    """Return the name of a node, also where a custom function has an attribute `ctx.name`."""
    return str(type(node).name(node))


def leaf_of(node: Any) -> Any:
    """Return the leaf that a node accumulates into; None for any other node."""
    return node.variable if is_leaf(node) else None


def is_leaf(node: Any) -> bool:
    """Whether a node accumulates into a leaf; the class of a custom function ends in Backward."""
    return type(node).__name__ == "AccumulateGrad"


def is_number(x: Array) -> bool:
    """Whether a tensor can be a cotangent."""
    return x.is_floating_point() or x.is_complex()


def is_plain(x: Array) -> bool:
    """Whether a tensor is an array in memory: not sparse, and not nested."""
    return x.layout is torch.strided and not x.is_nested


def place_of(x: Array) -> str:
    """Return where the entries of a tensor are in its storage, also if sizes are symbols."""
    return str((x.dtype, tuple(x.shape), tuple(x.stride()), x.storage_offset()))


def flattened(active: Array, shape: Any) -> Array:
    """Return a mask in the order of memory, from offset 0, as `as_strided` needs it."""
    active = active if active.shape == shape else active.expand(shape)
    whole = active.is_contiguous() and active.storage_offset() == 0
    return active if whole else active.clone(memory_format=torch.contiguous_format)


def in_shape(flat: Array, itemsize: int, x: Array) -> Array:
    """Return the part of a flat mask for a tensor; a view if the item sizes are equal."""
    flat = regrained(flattened(flat, flat.shape), itemsize, x.element_size())
    return flat.as_strided(x.shape, x.stride(), x.storage_offset())


def regrained(flat: Array, old: int, new: int) -> Array:
    """Return a mask for another item size: a complex number may be viewed as two real ones."""
    if old == new:
        return flat
    if old > new:
        return flat.repeat_interleave(old // new)
    parts = flat.reshape(-1, new // old)
    return parts.any(1) if flat.dtype is torch.bool else parts.amax(1)  # numbers, in `explain`
