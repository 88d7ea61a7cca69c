"""The lines of a PyTorch program: which one made each node of its graph, and the first NaN."""

import sys
from bisect import bisect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from safeops._backends.torch import private
from safeops._backends.torch.private import tree_leaves
from safeops._typing import Array
from safeops.autodiff._explain.locations import Location, frame_of_user, location_of
from safeops.autodiff._explain.names import METHODS, OF_ENTRIES
from safeops.autodiff.torch._tags import is_number

KEY = "safeops.autodiff"  # of the record in the metadata of a node


@dataclass
class Record:
    """What is known of one operation of the forward pass."""

    frame: tuple[Any, int, int] | None  # code, instruction, line: a location is made on demand
    name: str
    # Where the result is not finite; where of these entries all operands are, or none is NaN.
    bad: Array | None = None
    first: Array | None = None
    first_nan: Array | None = None
    nan_operand: bool = False
    what: str = ""
    cause: "Record | None" = None  # of a constant operand that was not finite

    @property
    def operation(self) -> str:
        """The name of the function, without the marks of a method that Python calls."""
        name = self.name.strip("_")  # and of one that works in place
        return METHODS.get(name, name)

    @property
    def where(self) -> Location | None:
        """The line of the user's program."""
        return None if self.frame is None else location_of(*self.frame)


def record_of(node: Any) -> Record | None:
    """Return what is known of a node."""
    return node.metadata.get(KEY)


class RecordLines(TorchFunctionMode):
    """Write the user's line on each node of the graph that is made."""

    def __init__(self) -> None:
        super().__init__()
        # What constants were made of: only those that are not finite are here.
        self.constants: Any = WeakTensorKeyDictionary()
        # What ran in a transform of torch.func, by the numbers of the nodes that it made.
        self.inside: list[tuple[int, int, Record]] = []
        self.longest = 10_000

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one function of PyTorch."""
        del types
        if torch.compiler.is_compiling():  # what is traced into a kernel has no nodes
            return func(*args, **(kwargs or {}))
        # There is no public way to ask which nodes are new.
        first = private.next_number()
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in IGNORED:
            return result
        made = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            made += [x for x in args[:1] if isinstance(x, torch.Tensor)]
        if made:
            frame = frame_of_user(sys._getframe(1))  # noqa: SLF001  (`inspect` reads source files)
            at = None if frame is None else (frame.f_code, frame.f_lasti, frame.f_lineno)
            with unseen():
                self.note(Record(at, name), made, (args, kwargs), first)
        return result

    def note(self, record: Record, made: list[Array], given: Any, first: int) -> None:
        """Write a record on the new nodes."""
        if in_a_transform():  # whose tensors have neither numbers nor nodes
            last = private.next_number()
            self.inside.append((first, last, record))
            del self.inside[: -self.longest]
            return
        for x in made:
            if (bad := seen_in(x)) is not None:
                record.bad, record.what = bad, what_of(x.detach()[bad], "nan")
                self.note_origin(record, x, given)
            self.label(x, record, first)

    def label(self, x: Array, record: Record, first: int) -> None:
        """Write a record on the nodes that were made since, and on those from a transform."""
        bases = [x] if private.base_of(x) is None else [x, private.base_of(x)]
        stack = [node for node in map(node_of, bases) if node is not None]
        while stack:
            node = stack.pop()
            number = private.number_of_node(node)
            if KEY in node.metadata or number >= LEAF:
                continue
            found = record if number >= first else self.record_inside(number)
            if found is not None:
                node.metadata[KEY] = found
                stack.extend(n for n, _ in node.next_functions if n is not None)

    def record_inside(self, number: int) -> Record | None:
        """Return the record of the operation in a transform that made a node."""
        i = bisect(self.inside, number, key=lambda entry: entry[0])
        _, last, record = self.inside[i - 1] if i else (0, 0, None)
        return record if number < last else None

    def note_origin(self, record: Record, x: Array, given: Any) -> None:
        """Say what of a result is not finite although what it was made of is."""
        tensors = [y for y in tree_leaves(given) if isinstance(y, torch.Tensor) and y is not x]
        nonfinite = [y for y in tensors if seen_in(y) is not None]
        record.nan_operand = any(bool(y.isnan().any()) for y in nonfinite)
        record.cause = next((self.constants[y] for y in nonfinite if y in self.constants), None)
        if not x.requires_grad:
            self.constants[x] = record.cause or record
        # A constant is no result: what it brings in is first there.
        derived = [y.detach() for y in nonfinite if y.requires_grad]
        by_entry = record.operation in OF_ENTRIES and all(fits(y, x) for y in derived)
        nan = x.detach().isnan()
        record.first = unlike(record.bad, [~y.isfinite() for y in derived], by_entry=by_entry)
        record.first_nan = unlike(nan, [y.isnan() for y in derived], by_entry=by_entry)


def fits(x: Array, result: Array) -> bool:
    """Whether a tensor can be broadcast to the shape of a result."""
    pairs = zip(reversed(x.shape), reversed(result.shape), strict=False)
    return x.dim() <= result.dim() and all(m in (1, n) for m, n in pairs)


def unlike(made: Any, given: list[Array], *, by_entry: bool) -> Array | None:
    """Return the entries of a result that are so although no entry that they are made of is."""
    if not by_entry:
        return None if any(mask.any() for mask in given) else made
    for mask in given:
        made = made & ~mask.expand_as(made)
    return made if made.any() else None


def node_of(x: Array) -> Any:
    """
    Return the node that made a tensor, or None if PyTorch does not say.

    For a view that was made without gradients, and whose base was written since, it raises: whether
    the view has a gradient could be meant either way. A program that does not ask is correct.
    """
    try:
        return x.grad_fn
    except RuntimeError:
        return None


@contextmanager
def unseen() -> Iterator[None]:
    """Let the watching call operations that neither classes nor modes of the program see."""
    modes = private.dispatch_modes()
    others = private.without_modes() if modes else nullcontext()
    with private.without_functions(), others:
        yield


def seen_in(x: Array) -> Array | None:
    """Return where a plain tensor is not finite; what another class has in it is its own."""
    if type(x) not in (torch.Tensor, torch.nn.Parameter) or torch.jit.is_tracing():
        return None
    return not_finite(x)


# They return what was there before.
IGNORED = frozenset(["__get__", "detach", "requires_grad_", "backward"])


def not_finite(x: Array) -> Array | None:
    """Return where entries are not finite, or None if all are, or if nobody can tell."""
    if not is_number(x) or x.is_meta or x.is_nested or not is_there(x):
        return None
    try:
        # One sum: a NaN or an inf stays in it. (If it overflows, the entries say.)
        if stored(x.detach()).sum().isfinite():
            return None
    except NotImplementedError:  # for a dtype that PyTorch stores and does not compute with
        return None
    bad = ~(x.detach() if x.layout is torch.strided else x.detach().to_dense()).isfinite()
    return bad if bad.any() else None


def stored(x: Array) -> Array:
    """Return the entries that a tensor stores, in a dtype that has sums."""
    if x.layout is torch.sparse_coo:
        return private.stored_values(x)
    x = x if x.layout is torch.strided else x.values()
    return x.float() if x.element_size() == 1 else x


def is_there(x: Array) -> bool:
    """Whether the memory of a tensor is there; a program may have freed it, as FSDP does."""
    if x.layout is not torch.strided or not x.numel():
        return True
    pairs = zip(x.shape, x.stride(), strict=True)
    last = x.storage_offset() + sum((size - 1) * stride for size, stride in pairs)
    return x.untyped_storage().nbytes() >= (last + 1) * x.element_size()


def what_of(values: Array, first: str = "inf") -> str:
    """Return what a number that is not finite is: one of a kind that is asked for, if there is."""
    values = values.real if values.is_complex() else values
    nan = bool(values.isnan().any())
    infinite = values[values.isinf()].flatten()
    if not infinite.numel() or (nan and first == "nan"):
        return "nan" if nan else ""
    return "inf" if infinite[0] > 0 else "-inf"


def in_a_transform() -> bool:
    """Whether a transform of torch.func is at work."""
    # There is no public way to ask.
    return private.peek_transform() is not None


# The number of the node that accumulates into a leaf is as large as can be.
LEAF = 2**64 - 1
