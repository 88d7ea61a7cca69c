"""Where a NaN first came into a PyTorch program, so that all its consequences are one finding."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from safeops._backends.torch import private
from safeops._source.locations import Location
from safeops._source.names import IN_TORCH, OF_ENTRIES
from safeops.autodiff.torch._explain.backward import Blocked
from safeops.autodiff.torch._explain.names import operation_of
from safeops.autodiff.torch._lines import Record, record_of


@dataclass
class Causes:
    """Groups of nodes that met the same NaN."""

    met: Mapping[Any, Blocked]
    # By the first node of a group: the record of the operation that made the NaN; the later nodes.
    entries: dict[Any, Record] = field(default_factory=dict)
    later: dict[Any, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Group the nodes by the operation that made the NaN."""
        first: dict[int, Any] = {}
        for node in sorted(self.met, key=private.number_of_node):
            record = record_of(node)
            if record is None or not self.is_given(node, record):
                continue
            origin = origin_of(node, record)
            head = first.setdefault(id(origin), node)
            if head is node:
                self.entries[node] = origin
            else:
                self.later.setdefault(head, []).append(node)

    def is_given(self, node: Any, record: Record) -> bool:
        """Whether all that a node met is NaN where its operand or result was NaN already."""
        bad, _, what = self.met[node]
        if record.bad is None or record.what != "nan" or what not in ("", "nan"):
            return False
        by_entry = operation_of(node) in OF_ENTRIES and bad.shape == record.bad.shape
        return not (by_entry and (bad & ~record.bad).any())

    def first_nodes(self, nodes: Sequence[Any]) -> Iterator[Any]:
        """Yield the nodes that get a finding: all but the later ones of a group."""
        followers = {id(node) for group in self.later.values() for node in group}
        yield from (node for node in nodes if node in self.met and id(node) not in followers)

    def entry(self, node: Any) -> Record | None:
        """Return the record of the operation that made the NaN of a node."""
        origin = self.entries.get(node)
        return None if origin is None else origin.cause or origin

    def entered_at(self, node: Any) -> Location | None:
        """Return the line that made the NaN, unless it is the line of the node."""
        entry, record = self.entry(node), record_of(node)
        if entry is None or record is None:
            return None
        made, met = entry.where, record.where
        same = made is not None and met is not None and str(made) == str(met)
        return None if same else made

    def entered_by(self, node: Any) -> str:
        """Return the operation that made the NaN on another line, of operands without NaN."""
        made = self.entry(node)
        if made is None or made.nan_operand or self.entered_at(node) is None:
            return ""
        return IN_TORCH.get(made.operation, made.operation)

    def passed(self, node: Any) -> int:
        """Return how many later operations have met the NaN of a node."""
        return len(self.later.get(node, ()))


def origin_of(node: Any, record: Record) -> Record:
    """Return the record of the first operation on the path of a NaN to a node."""
    found = [(private.number_of_node(node), record)]
    stack, met = [(node, record)], {node}
    while stack:
        child, record = stack.pop()
        for parent, _ in child.next_functions:
            if parent is None or parent in met:
                continue
            met.add(parent)
            other = record_of(parent)
            if other is None or other is record:  # no record: look further up
                stack.append((parent, record))
            elif other.bad is not None and other.what == "nan":
                stack.append((parent, other))
                found.append((private.number_of_node(parent), other))
    return min(found, key=lambda pair: pair[0])[1]
