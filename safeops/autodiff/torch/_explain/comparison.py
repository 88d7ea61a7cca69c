"""
Where PyTorch's backward pass stops being finite, and whether the entries there were used.

Two passes are watched, node by node. The ordinary pass shows through which nodes a NaN came to a
gradient. The masked pass shows which entries are absent, and which node made them absent.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import torch

from safeops._backends.torch import private
from safeops._core.types import Array
from safeops._source.locations import definition
from safeops._source.names import IN_TORCH, METHODS, OF_ENTRIES
from safeops.autodiff._explain.evidence import missing
from safeops.autodiff._explain.finding import Finding, Kind, entries_in_words
from safeops.autodiff._explain.report import Report, make_report, never_clean, operations
from safeops.autodiff.torch._explain.backward import (
    Blocked,
    CotangentRecord,
    Graph,
    NodeRecord,
    Watching,
    operation_of,
)
from safeops.autodiff.torch._lines import Record, fits, not_finite, record_of, what_of
from safeops.autodiff.torch._masks import spread
from safeops.autodiff.torch._nodes import is_custom, is_ours
from safeops.autodiff.torch._passes import is_script
from safeops.autodiff.torch._tags import Tags, leaf_of

NOT_SEEN = (
    "lines are known for what ran in safeops.autodiff.torch.record_lines(), "
    "except in an autograd.Function or TorchScript"
)


# Where a NaN first came into a PyTorch program, so that all its consequences are one finding.


@dataclass
class Causes:
    """Groups of nodes that met the same NaN."""

    met: Mapping[Any, Blocked]
    # By the first node of a group: the record of the operation that made the NaN, and how many
    # later nodes have met it.
    made: dict[Any, Record] = field(default_factory=dict)
    passed: Counter[Any] = field(default_factory=Counter)
    first_nodes: list[Any] = field(default_factory=list)  # that get a finding

    def __post_init__(self) -> None:
        """Group the nodes by the operation that made the NaN."""
        heads: dict[int, Any] = {}
        followers = set()
        for node in sorted(self.met, key=private.number_of_node):
            record = record_of(node)
            if record is None or not self.is_given(node, record):
                continue
            origin = origin_of(node, record)
            head = heads.setdefault(id(origin), node)
            if head is node:
                self.made[node] = origin.cause or origin
            else:
                self.passed[head] += 1
                followers.add(node)
        self.first_nodes = [node for node in self.met if node not in followers]

    def is_given(self, node: Any, record: Record) -> bool:
        """Whether all that a node met is NaN where its operand or result was NaN already."""
        bad, _, what = self.met[node]
        if record.bad is None or record.what != "nan" or what not in ("", "nan"):
            return False
        by_entry = operation_of(node) in OF_ENTRIES and bad.shape == record.bad.shape
        return not (by_entry and (bad & ~record.bad).any())

    def entered(self, node: Any) -> dict[str, Any]:
        """Return the line and the operation that made the NaN, unless it is that of the node."""
        made, record = self.made.get(node), record_of(node)
        if made is None or record is None or made.where is None:
            return {}
        if str(made.where) == str(record.where):
            return {}
        by = "" if made.nan_operand else IN_TORCH.get(made.operation, made.operation)
        return {"entered_at": made.where, "entered_by": by}


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


def report_of(
    graph: Graph,
    outputs: Sequence[Array],
    leaves: Sequence[Array],
    seeds: Any,
    former: Tags,
    batch: int = 0,
) -> tuple[Report, list[Any]]:
    """Run the backward pass, and masked if it is not finite; return report and masked gradients."""

    def run() -> Any:
        if not any(y.requires_grad for y in outputs):
            return [None] * len(leaves)
        return torch.autograd.grad(outputs, leaves, seeds, retain_graph=True, allow_unused=True)

    entries = sum(x.numel() for x in leaves)
    checked = f"the gradient at {entries_in_words(entries)}, through {operations(len(graph.nodes))}"
    ordinary = Pass(graph, leaves, *graph.watch(run))
    if not (ordinary.bad or any(map(is_bad, outputs))):
        return make_report("torch", (), checked), []
    mode = Watching(former)
    for seed in seeds:
        if seed is not None:
            mode.tags.write(seed, active=True)
    with mode:
        masked = graph.watch(run, mode)
    passes = PassPair(graph, mode, ordinary, Pass(graph, leaves, *masked), batch)
    findings = list(passes.findings(outputs, leaves))
    unplaced = any(f.where is None and f.operation != "input" for f in findings)
    report = make_report("torch", findings, checked, [NOT_SEEN] if unplaced else [])
    return never_clean(report), masked[0]


def is_bad(x: Any) -> bool:
    """Whether a tensor, if there is one, is not finite."""
    return x is not None and not_finite(x) is not None


class Pass:
    """One of the two backward passes."""

    def __init__(
        self, graph: Graph, leaves: Sequence[Array], gradients: Any, seen: dict[Any, NodeRecord]
    ) -> None:
        self.seen = seen
        masks = [None if g is None else not_finite(g) for g in gradients]
        nonfinite = [x for x, mask in zip(leaves, masks, strict=True) if mask is not None]
        # The number of nonfinite entries, and the nodes through which they came.
        self.bad = sum(int(mask.count_nonzero()) for mask in masks if mask is not None)
        self.on_path = graph.on_path(seen, nonfinite)


@dataclass
class PassPair:
    """The ordinary pass and the masked pass."""

    graph: Graph
    mode: Watching
    ordinary: Pass
    masked: Pass
    batch: int = 0

    def selection_of(self, node: Any, entries: Array | None) -> Any:
        """Return the node that dropped the entries; of several the one nearest to the output."""
        # The entries are those of a cotangent or of a result; which, their shape tells.
        into, out = self.masked.seen[node]
        every = [(x, absent_in(x)) for x in (*into, *out) if x is not None and x.active is not True]
        met = [
            (x, absent & entries)
            for x, absent in every
            if entries is not None and fits(entries, absent)
        ]
        for x, absent in (*met, *every):
            numbers = x.dropped_by.expand(absent.shape)[absent]
            if (known := numbers[numbers > 0]).numel():
                return list(self.mode.selections.numbers)[int(known.min()) - 1]
        return None

    def findings(self, outputs: Sequence[Array], leaves: Sequence[Array]) -> Iterator[Finding]:
        """Yield the findings about value and gradient, one for each fact at least."""
        what = next((what_of(y) for y in outputs if is_bad(y)), "")
        of_value = [*self.forward(leaves)] if what else []
        found = [*of_value, *self.backward(value_is_bad=bool(of_value))]
        yield from found
        yield from missing(found, value=what, ordinary=self.ordinary.bad, masked=self.masked.bad)

    def forward(self, leaves: Sequence[Array]) -> Iterator[Finding]:
        """Yield the operations and inputs that made the value itself not finite."""
        infinite = self.makers(lambda record: record.first)
        # An infinity that nothing turns into NaN is no culprit of one, as in inf - inf.
        nan = self.makers(lambda record: record.first_nan)
        found = {id(r): of_record(r, used, self.batch) for _, r, used in nan or infinite}
        for node, record, _ in nan:
            came = (r for n, r, _ in infinite if r is not record and node in self.graph.above([n]))
            found[id(record)] = entered(
                found[id(record)], next(came, (record.cause or record).came)
            )
        inputs = [self.input(leaf) for leaf in leaves]
        yield from (f for f in inputs if f is not None and (f.what == "nan" or not found))
        yield from found.values()

    def makers(self, made: Callable[[Record], Array | None]) -> list[tuple[Any, Record, Array]]:
        """Return which nodes made something nonfinite that is used: node, record, used entries."""
        records = ((node, record_of(node)) for node in self.graph.nodes)
        known = (
            (n, r, made(r)) for n, r in records if r is not None and not overwrote_nonfinite(n, r)
        )
        found = ((n, r, self.used(n, new)) for n, r, new in known if new is not None)
        return [(n, r, used) for n, r, used in found if used is not None]

    def input(self, leaf: Array) -> Finding | None:
        """Return the finding about an input that is not finite, and used."""
        bad = not_finite(leaf)
        if bad is None or not (used := bad & self.active_at(leaf)).any():
            return None
        count, shape = int(used.count_nonzero()), tuple(bad.shape)
        return Finding("FORWARD", "input", None, count, shape, what_of(leaf[used], "nan"))

    def active_at(self, leaf: Array) -> Array:
        """Return which entries of a leaf are used, from the cotangents of its consumers."""
        nodes = [n for n in self.graph.nodes if leaf_of(n) is leaf]
        active = torch.zeros(leaf.shape, dtype=torch.bool, device=leaf.device)
        for node, i in (edge for n in nodes for edge in self.graph.consumers[n]):
            cotangent = self.masked.seen[node].out[i] if node in self.masked.seen else None
            if cotangent is not None:
                reached = spread(
                    cotangent.active, active.new_empty(()).expand(cotangent.like.shape)
                )
                active = active | reached.sum_to_size(active.shape).bool()
        return active

    def used(self, node: Any, bad: Any) -> Array | None:
        """Return which of the given entries of a node's result are used; None if none is."""
        for cotangent in self.masked.seen[node].into if node in self.masked.seen else ():
            if cotangent is not None and cotangent.like.shape == bad.shape:
                found = bad & spread(cotangent.active, bad)
                return found if found.any() else None
        return None

    def backward(self, *, value_is_bad: bool) -> Iterator[Finding]:
        """Yield findings about the formulas in which a gradient becomes nonfinite."""
        origins = ((n, self.origin(n, value_is_bad=value_is_bad)) for n in self.masked.on_path)
        begun = {n: new for n, new in origins if new is not None}
        # Behind a node whose use of entries is unknown, it is unknown whether an entry is used.
        reasons = {n: reason for n in self.graph.nodes if (reason := self.unseen(n)) is not None}
        unclear = {n for n in begun if not self.graph.above([n]).isdisjoint(reasons)}
        to_blame = self.graph.above(list(unclear))
        spared = (
            (n, self.blocked_entries(n)) for n in self.graph.nodes if self.is_finite_when_masked(n)
        )
        causes = Causes({n: met for n, met in spared if met is not None})
        yield from (self.blocked(node, causes) for node in causes.first_nodes)
        for node in self.graph.nodes:
            if node in begun and node not in unclear:
                what = slope(node, self.masked.seen[node], begun[node])
                yield finding("GENUINE", node, begun[node], self.batch, what=what)
            if node in reasons and node in to_blame and not self.follows(node, reasons):
                yield finding("UNKNOWN", node, reason=reasons[node])

    def follows(self, node: Any, reasons: Mapping[Any, str]) -> bool:
        """Whether another node explains that the use of entries of this node is unknown."""
        others = self.graph.above([node]) & set(reasons) - {node}
        return bool(others) and reasons[node] in ("kernel", "sparse")

    def unseen(self, node: Any) -> str | None:
        """Return why it is unknown which entries a node uses; None if it is known."""
        if node not in self.masked.seen:
            return None
        if is_script(node):
            return "script"
        out = (x for x in self.masked.seen[node].out if x is not None)
        # Something nonfinite comes from a kernel that ran no operation of PyTorch, and not of the
        # zeros that a formula writes, such as that of sign.
        of_kernel = any(x.bad is not None and not x.known for x in out)
        of_kernel = of_kernel and any(map(self.is_kernel, self.graph.above([node])))
        return self.mode.unseen.get(node, "kernel" if of_kernel else None)

    def is_kernel(self, node: Any) -> bool:
        """Whether a node was given a mask, and returned a cotangent that has none."""
        if node not in self.masked.seen or operation_of(node) in STEPS:
            return False
        into, out = self.masked.seen[node]
        return all(x.known for x in into if x) and not all(x.known for x in out if x)

    def is_finite_when_masked(self, node: Any) -> bool:
        """Whether a node makes more nonfinite entries in the ordinary than in the masked pass."""
        if node not in self.ordinary.on_path:
            return False
        pairs = zip(self.ordinary.seen[node].out, self.masked.seen[node].out, strict=True)
        return any(count_of(x) > count_of(y) for x, y in pairs)

    def origin(self, node: Any, *, value_is_bad: bool) -> Array | None:
        """Return which entries became nonfinite in the formula of a node; None if none did."""
        by_entry = operation_of(node) in OF_ENTRIES
        new = origin(self.masked.seen[node], by_entry=by_entry)
        record = record_of(node)
        bad = record.bad if record is not None and value_is_bad else None
        if new is None or bad is None:
            return new
        # The slope at a value that is NaN already is a consequence of that value.
        new = new & ~bad if by_entry and new.shape == bad.shape else None
        return new if new is not None and new.any() else None

    def blocked_entries(self, node: Any) -> Blocked | None:
        """Return what absent entries met in a formula: as recorded in it, or else by its result."""
        if node in self.mode.blocked:
            return self.mode.blocked[node]
        by_entry = operation_of(node) in OF_ENTRIES
        new = origin(self.ordinary.seen[node], self.masked.seen[node].out, by_entry=by_entry)
        return None if new is None else Blocked(new, new)

    def blocked(self, node: Any, causes: Causes) -> Finding:
        """Return the finding about absent entries that met a nonfinite slope."""
        bad, entries, what = causes.met[node]
        selection = self.selection_of(node, entries)
        record = None if selection is None else record_of(selection)
        found = finding(
            "BLOCKED",
            node,
            bad,
            self.batch,
            what=slope(node, self.masked.seen[node], bad) or what,
            value=value_at(record_of(node), bad),
            selection="" if selection is None else operation_of(selection),
            selected_at=None if record is None else record.where,
            passed=causes.passed[node],
            **causes.entered(node),
        )
        made = causes.made.get(node)
        if found.rows or made is None or made.bad is None:
            return found
        return replace(found, rows=rows_of(made.bad, self.batch))


def overwrote_nonfinite(node: Any, record: Record) -> bool:
    """Whether an in-place operation may have had a nonfinite operand, which it has overwritten."""
    if not record.name.endswith("_") or record.operation in METHODS:
        return False
    before = (record_of(n) for n, _ in node.next_functions if n is not None)
    return any(r is not None and r is not record and r.bad is not None for r in before)


# Their slopes are zeros, which are numbers.
STEPS = frozenset("ceil floor heaviside nextafter round sgn sign trunc".split())  # noqa: SIM905  (words)


def count_of(x: CotangentRecord | None) -> int:
    """Return the number of nonfinite entries of a cotangent."""
    return 0 if x is None or x.bad is None else int(x.bad.count_nonzero())


def origin(
    node_record: NodeRecord, spared: Sequence[CotangentRecord | None] = (), *, by_entry: bool
) -> Array | None:
    """Return which entries became nonfinite in a formula, and are finite in the other pass."""
    before = [x.bad for x in node_record.into if x is not None and x.bad is not None]
    found: list[Array] = []
    for after, other in zip_longest(node_record.out, spared):
        if after is None or after.bad is None:
            continue
        bad = after.bad if other is None or other.bad is None else after.bad & ~other.bad
        if not before:
            found.append(bad)
        elif by_entry and before[0].shape == bad.shape:
            found.append(bad & ~before[0])
    largest = max(found, key=torch.count_nonzero, default=None)
    return largest if largest is not None and largest.any() else None


def absent_in(x: CotangentRecord) -> Array:
    """Return which entries of a cotangent are absent."""
    return ~spread(x.active, torch.empty((), device=x.device).expand(x.like.shape))


def value_at(record: Record | None, bad: Array) -> str:
    """Return what the result of an operation is at the given entries; "" if unknown."""
    if record is None or record.bad is None:
        return "" if record is None else "finite"
    if record.bad.shape != bad.shape or (bad & record.bad).any():
        return record.what
    return "finite"


# What PyTorch raises where a formula does not run for cotangents of ones: a saved tensor was freed
# (RuntimeError, NotImplementedError), there is no derivative, or it refuses such a cotangent.
REFUSED = (RuntimeError, IndexError, ValueError)


def slope(node: Any, node_record: NodeRecord, bad: Array) -> str:
    """Return the derivative of a node at entries, from its formula for a cotangent of ones."""
    if is_custom(node):  # it may have side effects
        return ""
    with suppress(*REFUSED), torch.no_grad():
        into = node_record.into
        ones = [x if x is None else torch.ones_like(x.like, device=x.device) for x in into]
        found = node(*ones)
        for x in found if isinstance(found, tuple) else (found,):
            if x is not None and x.shape == bad.shape and (what := what_of(x[bad])):
                return what
    return ""


def finding(
    kind: Kind, node: Any, bad: Array | None = None, batch: int = 0, **more: Any
) -> Finding:
    """Return a finding about a node."""
    record = record_of(node)
    rows = () if bad is None or is_of_leaf(node, bad) else rows_of(bad, batch)
    return Finding(
        kind,
        operation_of(node),
        None if record is None else record.where,
        0 if bad is None else int(bad.count_nonzero()),
        () if bad is None else tuple(bad.shape),
        nan_operand=record is not None and record.nan_operand,
        modules=modules_of(record),
        rows=rows,
        **(more | of_backward(node) if kind in ("BLOCKED", "GENUINE") else more),
    )


def of_backward(node: Any) -> dict[str, Any]:
    """Return of a function with a backward of its own that this is at fault, and where it is."""
    if not is_custom(node) or is_ours(node):
        return {}
    code = getattr(private.forward_class(node).backward, "__code__", None)
    at = None if code is None else definition(code)
    return {"reason": "backward", "entered_at": at, "entered_by": ""}


def is_of_leaf(node: Any, bad: Array) -> bool:
    """Whether entries may be those of a parameter, which has no rows of a batch."""
    near = [child for child, _ in node.next_functions if child is not None]
    near += [n for child in near for n, _ in child.next_functions if n is not None]
    leaves = [leaf for leaf in map(leaf_of, near) if leaf is not None]
    return any(bad.shape in (x.shape, x.shape[::-1]) for x in leaves)


def entered(found: Finding, record: Record | None) -> Finding:
    """Return a finding about NaN with the operation that made the infinity it is from."""
    if record is None:
        return found
    name = IN_TORCH.get(record.operation, record.operation)
    return replace(found, entered_at=record.where, entered_by=name)


def rows_of(bad: Array, batch: int) -> tuple[int, ...]:
    """Return the rows of a batch with marked entries; none if all have them, or if unknown."""
    if not batch or not bad.dim() or len(bad) != batch:
        return ()
    rows = bad.reshape(batch, -1).any(1)
    return () if rows.all() else tuple(rows.nonzero().flatten().tolist())


def modules_of(record: Record | None) -> tuple[str, ...]:
    """Return the module in which an operation ran, if it is known."""
    return (record.module,) if record is not None and record.module else ()


def of_record(record: Record, used: Array, batch: int) -> Finding:
    """Return the finding about a value that is not finite."""
    count, shape = int(used.count_nonzero()), tuple(used.shape)
    source = record.cause or record
    name = IN_TORCH.get(source.operation, source.operation)
    given = record.nan_operand and record.cause is None
    return Finding(
        "FORWARD",
        name,
        source.where,
        count,
        shape,
        record.what,
        nan_operand=given,
        modules=modules_of(source),
        rows=rows_of(used, batch),
    )
