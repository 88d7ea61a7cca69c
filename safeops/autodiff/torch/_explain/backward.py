"""What each node of a PyTorch graph gets and returns in a backward pass."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from safeops._backends.torch import private
from safeops._backends.torch.private import tree_leaves
from safeops._core.types import Array
from safeops._source.names import IN_TORCH
from safeops.autodiff.torch._contractions import HALF, contract, matrix
from safeops.autodiff.torch._convolutions import convolve_backward
from safeops.autodiff.torch._evaluator import Call, Masking
from safeops.autodiff.torch._explain.selection import Selections, lean
from safeops.autodiff.torch._lines import Looking, compact, not_finite, stored, what_of
from safeops.autodiff.torch._masks import folded, is_partial, spread
from safeops.autodiff.torch._nodes import attached
from safeops.autodiff.torch._passes import is_script, reason_unseen
from safeops.autodiff.torch._rules import RULES
from safeops.autodiff.torch._tags import Mask, Tags, leaf_of, name_of

CONTRACTIONS = (matrix, contract, convolve_backward)


class CotangentRecord(NamedTuple):
    """A cotangent: its shape, its nonfinite entries, its active entries."""

    like: Array  # without data
    device: Any
    bad: Array | None  # where it is not finite; None if nowhere
    active: Mask
    known: bool = True  # whether the mask is known
    dropped_by: Any = None  # the numbers of nodes, where entries are not active


class NodeRecord(NamedTuple):
    """The cotangents that a node got, and those that it returned."""

    into: list[CotangentRecord | None]
    out: list[CotangentRecord | None]

    def is_bad(self, i: int) -> bool:
        """Whether the cotangent for operand `i` is not finite."""
        cotangent = self.out[i]
        return cotangent is not None and cotangent.bad is not None


class Blocked(NamedTuple):
    """What absent entries met in a formula."""

    bad: Array  # where the derivative is not finite
    entries: Array | None  # the absent entries of the cotangent; None if unknown
    what: str = ""

    @property
    def size(self) -> int:
        """The number of nonfinite entries of the derivative."""
        return int(self.bad.count_nonzero())


def met_entries(bad: Array, factors: Sequence[Any], i: int, active: Any) -> Array | None:
    """Return which absent entries meet nonfinite entries of factor `i` in ``x @ y``."""
    x = factors[1 - i]
    if x.dim() == 1 or bad.dim() == 1:
        return None
    met = bad.any(-1)[..., None, :] if i == 1 else bad.any(-2)[..., :, None]
    entries = ~spread(active, x) & met
    # The formula has transposed the cotangent; transpose the mask back.
    turned = not x.is_contiguous() and x.mT.is_contiguous()
    return entries.mT if turned else entries


def through_windows(options: Sequence[Any], other: Array, entries: Array, i: int) -> Array:
    """Return the result entries of a convolution that depend on given entries of one factor."""
    # `i` is the place of that factor: input (0) or weights (1). `other` is the other factor.
    pair = [torch.ones_like(other, dtype=torch.float32)] * 2
    pair[i] = entries.to(torch.float32)
    stride, padding, dilation, transposed, output_padding, groups = options
    count = torch.convolution(
        *pair, None, stride, padding, dilation, transposed, output_padding, groups
    )
    return count > HALF


@private.unseen_mode
class Watching(Masking):
    """The masked pass, which also records what absent entries met and operations without a rule."""

    def __init__(self, former: Tags) -> None:
        super().__init__(former, "ignore")
        self.paused = False
        self.selections = Selections()
        self.blocked: dict[Any, Blocked] = {}
        # The nodes whose use of entries is unknown, and why.
        self.unseen: dict[Any, str] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation; operations of `explain` itself are run as they are."""
        if self.paused:
            return func(*args, **(kwargs or {}))
        if RULES.get(private.name_of_operation(func)) in CONTRACTIONS:
            self.note_coefficients(func, args)
        self.note_unseen(func, (args, kwargs))
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.selections.note(self, func, args, kwargs or {}, result)
        return result

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Run operations as they are that do not belong to the backward pass."""
        self.paused = True
        try:
            yield
        finally:
            self.paused = False

    def note_absent(self, values: Array, active: Mask) -> None:
        """Record absent entries at which a formula returned something nonfinite."""
        bad = not_finite(values)
        if bad is not None:
            bad = bad & ~spread(active, bad)
            self.keep(Blocked(bad, bad))

    def note_coefficients(self, func: Any, args: Sequence[Any]) -> None:
        """Record nonfinite coefficients that a product sums together with absent entries."""
        is_windows = RULES[private.name_of_operation(func)] is convolve_backward
        factors = args[: 3 if is_windows else 2]
        masks = [self.active(x) for x in factors]
        absent = next((m for m in masks if is_partial(m)), None)
        for i, x in enumerate(factors if absent is not None else ()):
            if masks[i] is None and (bad := not_finite(x)) is not None:
                if is_windows and i:
                    met = through_windows(args[4:10], factors[3 - i], bad, i - 1)
                    entries = met & ~spread(masks[0], met) if is_partial(masks[0]) else None
                else:
                    entries = None if is_windows else met_entries(bad, factors, i, absent)
                self.keep(Blocked(bad, entries, what_of(stored(x.detach()))))

    def keep(self, found: "Blocked") -> None:
        """Record what absent entries met, for each node the largest set."""
        node = private.current_node()
        earlier = self.blocked.get(node)
        if node is not None and found.size > (0 if earlier is None else earlier.size):
            self.blocked[node] = found

    def note_unseen(self, func: Any, given: Any) -> None:
        """Record the node of an operation whose use of entries is unknown."""
        if any(self.active(x) is not None for x in tree_leaves(given)):
            reason = reason_unseen(func, given)
            if reason is not None:
                self.keep_unseen(reason)

    def keep_unseen(self, reason: str) -> None:
        """Record the running node, with the reason."""
        node = private.current_node()
        if node is not None:
            self.unseen.setdefault(node, reason)

    def report(self, call: Call) -> None:
        """Record the node of an operation without a rule that met absent entries."""
        del call
        self.keep_unseen("")


@dataclass
class Graph:
    """The nodes of a backward pass, and for each node those that hand it a cotangent."""

    nodes: Sequence[Any]
    consumers: dict[Any, list[tuple[Any, int]]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        """Invert the edges."""
        for node in self.nodes:
            for i, (child, _) in enumerate(node.next_functions):
                if child is not None:
                    self.consumers[child].append((node, i))

    def above(self, nodes: Sequence[Any]) -> set[Any]:
        """Return the nodes, and all nodes that hand cotangents on to them, directly or not."""
        found, stack = set(nodes), list(nodes)
        while stack:
            new = {parent for parent, _ in self.consumers[stack.pop()]} - found
            found |= new
            stack.extend(new)
        return found

    def watch(self, run: Callable[[], Any], mode: Watching | None = None) -> Any:
        """Run a backward pass; return its result and the records of its nodes."""
        seen: dict[Any, NodeRecord] = {}
        note = partial(noted, seen, Looking(), mode)
        nodes = [n for n in self.nodes if n.next_functions]
        with attached(n.register_hook(partial(note, n)) for n in nodes):
            return run(), seen

    def on_path(self, seen: dict[Any, NodeRecord], leaves: Sequence[Array]) -> set[Any]:
        """Return the nodes through which something nonfinite has come to one of the leaves."""
        found: set[Any] = set()
        stack = [n for n in self.nodes if any(leaf_of(n) is x for x in leaves)]
        while stack:
            for node, i in self.consumers[stack.pop()]:
                if node in seen and node not in found and seen[node].is_bad(i):
                    found.add(node)
                    stack.append(node)
        return found


def noted(
    seen: dict[Any, NodeRecord],
    looking: Looking,
    mode: Watching | None,
    node: Any,
    out: Any,
    into: Any,
) -> None:
    """Record the cotangents of one node."""
    with nullcontext() if mode is None else mode.pause():
        every = [[recorded(mode, looking, g) for g in given] for given in (into, out)]
        seen[node] = NodeRecord(*every)


def recorded(mode: Watching | None, looking: Looking, x: Any) -> CotangentRecord | None:
    """Return the record of a cotangent, without its numbers."""
    if x is None:
        return None
    active = None if mode is None else mode.tags.read(x)
    known = active is not None
    if active is None or (isinstance(active, torch.Tensor) and folded(active) is True):
        active = True
    by = None if mode is None or active is True else lean(mode.selections.of(x))
    active = compact(active) if isinstance(active, torch.Tensor) else active
    like = torch.empty_like(x, device="meta")
    return CotangentRecord(like, x.device, looking(x), active, known, by)


# The names of PyTorch's nodes, as names of operations of the array API standard.


def operation_of(node: Any) -> str:
    """Return the name of the forward operation of a node."""
    if is_script(node):
        return "TorchScript"
    stem = re.sub(r"(Backward\w*)?\d*$", "", name_of(node).removeprefix("torch::autograd::"))
    words_of = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=.)(?=[A-Z][a-z])", "_", stem)
    name = words_of.lower().removeprefix("native_")
    return "attention" if name.startswith("scaled_dot_product") else IN_TORCH.get(name, name)
