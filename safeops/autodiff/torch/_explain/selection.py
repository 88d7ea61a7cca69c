"""Which operation dropped entries: a search from the formula that met them up to the output."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from safeops._backends.torch import private
from safeops._core.types import Array
from safeops._source.names import OF_ENTRIES
from safeops.autodiff.torch._explain.backward import (
    CotangentRecord,
    Graph,
    NodeRecord,
    Watching,
    operation_of,
    through_windows,
)
from safeops.autodiff.torch._lines import compact, fits
from safeops.autodiff.torch._masks import spread
from safeops.autodiff.torch._nodes import is_custom, words
from safeops.autodiff.torch._tags import Tags

# A node, the number of one of its results, and a mask of entries of that result.
Place: TypeAlias = tuple[Any, int, Array]

# What PyTorch raises where a formula does not run for cotangents of ones: a saved tensor was freed
# (RuntimeError, NotImplementedError), there is no derivative, or it refuses such a cotangent.
REFUSED = (RuntimeError, IndexError, ValueError)
# Nodes that read each entry of their operand: what is absent in their results was so before.
CARRIERS = words(
    """
    add subtract multiply mul divide div negative matmul linear convolution sum mean clone
    to_copy view unsafe_view reshape reshape_alias transpose permute t expand unsqueeze squeeze
    repeat cat stack layer_norm batch_norm softmax safe_softmax log_softmax gelu silu
    """
)


@dataclass
class Search:
    """The graph, and what each node did in the masked pass."""

    graph: Graph
    seen: dict[Any, NodeRecord]
    # By node and operand: which entries it does not read; from which entries it made given ones.
    unread_by: dict[Any, Array | None] = field(default_factory=dict)
    traced_by: dict[Any, list[tuple[Array, Array | None]]] = field(default_factory=dict)

    def selection_of(self, node: Any, entries: Array | None) -> Any:
        """Return the nearest node towards the output that dropped the entries, best all of them."""
        above = self.may_drop(node)
        if len(above) == 1 and first(self.seen[above[0]].into).active is True:
            return above[0]
        places, met = self.absent(node, entries), set()
        some = None  # a node that drops some
        while places:
            child, number, entries = places.pop(0)
            for parent, i in self.graph.consumers[child]:
                of_another = parent.next_functions[i][1] != number
                if of_another or (parent, i) in met or parent not in self.seen:
                    continue
                met.add((parent, i))
                unread = self.unread_in(parent, i, entries)
                if self.drops(parent, i, entries) or (unread is not None and unread[entries].all()):
                    return parent
                some = some or (parent if unread is not None and unread[entries].any() else None)
                places += self.absent(parent, self.traced_in(parent, i, entries))
        return some or (None if self.absent(node, None) else node)  # such as a max

    def may_drop(self, node: Any) -> list[Any]:
        """Return the nodes above, as far as there is something absent, that may have dropped it."""
        found: dict[Any, None] = {}
        stack, met = [node], {node}
        while stack:
            child = stack.pop()
            if all(x is None or x.active is True for x in self.seen[child].into):
                continue
            for parent, _ in self.graph.consumers[child]:
                if parent in self.seen and parent not in met:
                    met.add(parent)
                    stack.append(parent)
                    if not self.only_carries(parent):
                        found[parent] = None
        return list(found)

    def only_carries(self, node: Any) -> bool:
        """Whether what is absent in the cotangents of a node was so in those that it was given."""
        is_known = is_of_entries(node) or operation_of(node) in CARRIERS
        before, after = first(self.seen[node].into), self.seen[node].out
        return is_known and not any(x and selected(before, x) is not None for x in after)

    def unread_in(self, node: Any, i: int, entries: Array) -> Array | None:
        """Return which entries a node does not read, from one run of its formula."""
        if (node, i) not in self.unread_by:
            self.unread_by[node, i] = self.unread(node, i, entries)
        return self.unread_by[node, i]

    def traced_in(self, node: Any, i: int, entries: Array) -> Array | None:
        """Return the cotangent entries from which a node made the given ones, if known by then."""
        known = self.traced_by.setdefault((node, i), [])
        for given, found in known:
            if given.equal(entries):
                return found
        found = self.traced(node, i, entries)
        known.append((compact(entries), None if found is None else compact(found)))
        return found

    def absent(self, node: Any, entries: Array | None) -> list[Place]:
        """Return what is absent in the cotangents of a node, of the given entries if possible."""
        return [
            (node, i, narrowed(absent_in(x), entries))
            for i, x in enumerate(self.seen[node].into)
            if x is not None and x.active is not True
        ]

    def drops(self, node: Any, i: int, entries: Array) -> bool:
        """Whether active entries that a node was given are absent in what it returned."""
        before, after = first(self.seen[node].into), self.seen[node].out[i]
        absent = entries if after is None else selected(before, after)
        if absent is None:
            return False
        return bool((absent & entries if absent.shape == entries.shape else absent).any())

    def unread(self, node: Any, i: int, entries: Array) -> Array | None:
        """Return which entries a node does not read, from its formula for ones; None if unknown."""
        if is_of_entries(node):
            return torch.zeros_like(entries)
        if is_custom(node):  # it may have side effects
            return None
        mode, ones = Watching(Tags()), ones_like(self.seen[node])
        for x in ones:
            if x is not None:
                mode.tags.write(x, active=True)
        with suppress(*REFUSED), torch.no_grad(), mode:
            made = result(node, ones, i)
            active = None if made is None else mode.tags.read(made)
            return None if active is None else ~spread(active, entries)
        return None

    def traced(self, node: Any, i: int, entries: Array) -> Array | None:
        """Return the cotangent entries from which a node made the given ones; None if unknown."""
        if is_of_entries(node):
            return entries
        if operation_of(node) == "convolution" and i == 0:
            return through_windows(saved_options(node), private.saved(node, "weight"), entries, 0)
        if is_custom(node):
            return None
        ones = [None if x is None else x.requires_grad_() for x in ones_like(self.seen[node])]
        given = [x for x in ones if x is not None]
        with suppress(*REFUSED):
            with torch.enable_grad():
                made = result(node, ones, i)
            if made is None:
                return None
            cotangent, mode = torch.ones_like(made), Watching(Tags())
            mode.tags.write(cotangent, entries.clone())
            with mode:
                (found, *_) = torch.autograd.grad(made, given, cotangent, allow_unused=True)
            active = None if found is None else mode.tags.read(found)
            return None if mode.unseen or active is None else spread(active, found)
        return None


def is_of_entries(node: Any) -> bool:
    """Whether each result entry of a node depends on one entry of each operand."""
    return operation_of(node) in OF_ENTRIES


def saved_options(node: Any) -> tuple[Any, ...]:
    """Return stride, padding, dilation, transposed, output padding and groups of a convolution."""
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    return tuple(private.saved(node, name) for name in names)


def absent_in(x: CotangentRecord) -> Array:
    """Return which entries of a cotangent are absent."""
    return ~spread(x.active, torch.empty((), device=x.device).expand(x.like.shape))


def narrowed(absent: Array, entries: Array | None) -> Array:
    """Return which of the given entries are absent; if none of these is, all absent ones."""
    if entries is None or not fits(entries, absent):
        return absent
    both = absent & entries
    return both if both.any() else absent


def selected(before: CotangentRecord, after: CotangentRecord) -> Array | None:
    """Return which entries a formula made absent; None if that is unknown, or none."""
    if after.active is True:
        return None
    absent = absent_in(after)
    if before.active is True:
        return absent
    if before.like.shape != after.like.shape:
        return None
    given = ~absent_in(before)
    if given.count_nonzero() <= (~absent).count_nonzero():  # they only moved
        return None
    return absent & given


def first(cotangents: Sequence[CotangentRecord | None]) -> CotangentRecord:
    """Return the first cotangent that is not None."""
    return next(x for x in cotangents if x is not None)


def result(node: Any, cotangents: Sequence[Array | None], i: int) -> Any:
    """Return what the formula of a node returns for operand `i`."""
    found = node(*cotangents)
    return (found if isinstance(found, tuple) else (found,))[i]


def ones_like(node_record: NodeRecord) -> list[Array | None]:
    """Return cotangents of ones for a node."""
    return [
        None if x is None else torch.ones_like(x.like, device=x.device) for x in node_record.into
    ]
