"""The lines of a PyTorch program: which line made each node, and where a value became NaN."""

import sys
from bisect import bisect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from safeops._backends.torch import private
from safeops._backends.torch.private import tree_leaves
from safeops._core.types import Array
from safeops._source.locations import Location, frame_of_user, location_of
from safeops._source.names import METHODS, OF_ENTRIES
from safeops.autodiff.torch._tags import is_number

KEY = "safeops.autodiff"  # the key of a record in the metadata of a node


@dataclass
class Record:
    """One operation of the forward pass."""

    frame: tuple[Any, int, int] | None  # code, instruction, line
    name: str
    # Where the result is not finite; where it is so although all operands are finite; where it is
    # NaN although no operand is.
    bad: Array | None = None
    first: Array | None = None
    first_nan: Array | None = None
    nan_operand: bool = False
    what: str = ""
    cause: "Record | None" = None  # the record of a constant operand that was not finite
    came: "Record | None" = None  # that of a constant infinity of which this made NaN
    before: Array | None = None  # what a `GradScaler` has multiplied to make the result
    module: str = ""  # the module of a guarded model in which it ran

    @property
    def operation(self) -> str:
        """The name of the function, without underscores; of an operator, its operation."""
        name = self.name.strip("_")  # also the one that marks an in-place method
        return METHODS.get(name, name)

    @property
    def where(self) -> Location | None:
        """The line of the user's program."""
        return None if self.frame is None else location_of(*self.frame)


def record_of(node: Any) -> Record | None:
    return node.metadata.get(KEY)


class RecordLines(TorchFunctionMode):
    """Write a record with the user's line on each new node of the graph."""

    def __init__(self) -> None:
        super().__init__()
        # The records of nonfinite constants.
        self.constants: Any = WeakTensorKeyDictionary()
        # Operations inside transforms of torch.func: first and last number of their nodes, and a
        # record.
        self.inside: list[tuple[int, int, Record]] = []
        self.longest = 10_000
        # Calls of functions with a backward of their own, by the number of the node.
        self.calls: dict[int, Record] = {}
        # If asked for: the operations that made something not finite, and where.
        self.made: list[tuple[Record, Array]] | None = None
        self.modules: list[str] = []  # the modules of a guarded model that run, innermost last
        self.looking = Looking()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        if torch.compiler.is_compiling():  # a traced operation has no node
            return func(*args, **(kwargs or {}))
        # Private, as no public function tells which nodes are new.
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
                self.note_call(first)
                self.note_results((args, kwargs))
                module = self.modules[-1] if self.modules else ""
                before = args[0] if name == "mul" and is_called_by_a_scaler() else None
                record = Record(at, name, module=module, before=before)
                self.note(record, made, (args, kwargs), first)
        return result

    def bad_in(self, x: Array) -> Array | None:
        """Return where a plain tensor is not finite; None for tensor subclasses."""
        return self.looking(x) if is_seen(x) else None

    def note_call(self, first: int) -> None:
        """Record the call of an `autograd.Function` whose forward runs, and has its number."""
        frame = None if torch.is_grad_enabled() else sys._getframe(2)  # noqa: SLF001  (as above)
        while frame is not None and (kind := private.called_function(frame)) is None:
            frame = frame.f_back
        if frame is None or first - 1 in self.calls:
            return
        user = frame_of_user(frame.f_back)
        at = None if user is None else (user.f_code, user.f_lasti, user.f_lineno)
        self.calls[first - 1] = Record(at, kind.__name__)

    def note_results(self, given: Any) -> None:
        """Write its record on the node of each such call whose result is used."""
        for x in tree_leaves(given):
            node = node_of(x) if isinstance(x, torch.Tensor) else None
            if not isinstance(node, private.Custom) or KEY in node.metadata:
                continue
            record = self.calls.pop(private.number_of_node(node), None)
            if record is None:
                continue
            node.metadata[KEY] = record
            if (bad := self.bad_in(x)) is not None:
                made = self.constants.get(x)  # in its forward
                record.bad, record.what = bad, what_of(stored(x.detach()), "nan")
                record.first = bad if made is None else made.first
                record.first_nan = x.detach().isnan() if made is None else made.first_nan
                record.cause = made and (made.cause or made)

    def note(self, record: Record, made: list[Array], given: Any, first: int) -> None:
        """Write a record on the new nodes."""
        if in_a_transform():  # its tensors have neither values nor nodes
            last = private.next_number()
            self.inside.append((first, last, record))
            del self.inside[: -self.longest]
            return
        for x in made:
            if (bad := self.bad_in(x)) is not None:
                record.bad, record.what = bad, what_of(stored(x.detach()), "nan")
                self.note_origin(record, x, given)
            self.label(x, record, first)

    def label(self, x: Array, record: Record, first: int) -> None:
        """Write a record on the new nodes of a tensor, and on nodes that come from a transform."""
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
        """Return the record of the operation that made a node inside a transform."""
        i = bisect(self.inside, number, key=lambda entry: entry[0])
        _, last, record = self.inside[i - 1] if i else (0, 0, None)
        return record if number < last else None

    def note_origin(self, record: Record, x: Array, given: Any) -> None:
        """Record where a result is not finite though its operands are, and from which constant."""
        tensors = [y for y in tree_leaves(given) if isinstance(y, torch.Tensor) and y is not x]
        nonfinite = [y for y in tensors if self.bad_in(y) is not None]
        record.nan_operand = any(map(has_nan, nonfinite))
        cause = next((self.constants[y] for y in nonfinite if y in self.constants), None)
        # An infinity that nothing turns into NaN is no culprit; what makes NaN of it is.
        turned = not record.nan_operand and has_nan(x.detach())
        record.cause, record.came = (None, cause) if turned else (cause, None)
        if not x.requires_grad:
            self.constants[x] = record.cause or record
        # A constant is not a result: it counts as made here.
        derived = [y for y in nonfinite if y.requires_grad]
        by_entry = record.operation in OF_ENTRIES and all(fits(y, x) for y in derived)
        masks = derived if by_entry else []
        record.first = record.first_nan = None
        if by_entry or not derived:
            record.first = unlike(record.bad, map(self.bad_in, masks))
        if by_entry or not any(map(has_nan, derived)):
            record.first_nan = unlike(x.detach().isnan(), (y.detach().isnan() for y in masks))
        if self.made is not None and record.first is not None and record.cause is None:
            self.made.append((record, record.first))


def is_called_by_a_scaler() -> bool:
    """Whether a `GradScaler` calls the running operation."""
    frame: Any = sys._getframe(2)  # noqa: SLF001  (as above)
    while frame is not None and frame.f_code.co_name == "__torch_function__":
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == SCALER


def fits(x: Array, result: Array) -> bool:
    """Whether a tensor can be broadcast to the shape of a result."""
    pairs = zip(reversed(x.shape), reversed(result.shape), strict=False)
    return x.dim() <= result.dim() and all(m in (1, n) for m, n in pairs)


def unlike(made: Any, given: Iterable[Any]) -> Array | None:
    """Return where a mask of a result is set and no mask of its operands is; None if nowhere."""
    for mask in given:
        made = made & ~mask.expand_as(made)
    return compact(made) if made.any() else None


def node_of(x: Array) -> Any:
    """Return the node that made a tensor, or None if PyTorch does not say."""
    # PyTorch raises for a view that was made without gradients and whose base was written since, as
    # it is ambiguous whether the view has a gradient. A program that does not ask for it is
    # correct.
    try:
        return x.grad_fn
    except RuntimeError:
        return None


@contextmanager
def unseen() -> Iterator[None]:
    """Run the operations of `explain` without the modes and the tensor classes of the program."""
    modes = private.dispatch_modes()
    others = private.without_modes() if modes else nullcontext()
    with private.without_functions(), others:
        yield


def is_seen(x: Any) -> bool:
    """Whether the entries of a value can be looked at: those of a plain tensor."""
    return type(x) in (torch.Tensor, torch.nn.Parameter) and not torch.jit.is_tracing()


# These return an earlier result.
IGNORED = frozenset(["__get__", "detach", "requires_grad_", "backward"])


def not_finite(x: Array) -> Array | None:
    """Return where entries are not finite; None if all are finite, or if it cannot be told."""
    return None if seems_finite(x) else entries_in(x)


def seems_finite(x: Array) -> bool:
    """Whether the sum of a tensor is finite, or cannot be told."""
    if not is_number(x) or x.is_meta or x.is_nested or not is_there(x):
        return True
    try:
        # A NaN or an inf stays in the sum. If the sum alone overflows, the entries decide.
        return bool(stored(x.detach()).sum().isfinite())
    except NotImplementedError:  # a dtype that PyTorch only stores
        return True


def entries_in(x: Array) -> Array | None:
    """Return where entries are not finite; None if all are."""
    x = x.detach() if x.layout is torch.strided else x.detach().to_dense()
    # The difference is 0 or NaN, and a NaN counts as True: a fifth of the time of `isfinite`.
    bad = ~x.isfinite() if x.is_complex() else (y := stored(x)).sub(y).to(torch.bool)
    return compact(bad) if bad.view(torch.uint8).any() else None


class Looking:
    """Where tensors are not finite: the entries of each are looked at once, until it changes."""

    def __init__(self) -> None:
        self.known: Any = WeakTensorKeyDictionary()  # a version, and the entries then

    def __call__(self, x: Array) -> Array | None:
        """Return where a tensor is not finite; None if all of it is, or if it cannot be told."""
        if seems_finite(x):
            return None
        version = None if x.is_inference() else private.version(x)
        if x not in self.known or self.known[x][0] != version:
            self.known[x] = version, entries_in(x)
        found: Array | None = self.known[x][1]
        return found


def compact(mask: Array) -> Array:
    """Return a mask in memory of its own, with one entry along axes that repeat it."""
    small = mask.view(torch.uint8)  # whose reductions take a twentieth of the time (PyTorch 2.13)
    for axis, size in enumerate(mask.shape if mask.numel() else ()):
        row = small.amax(axis, keepdim=True) if size > 1 else small
        if size > 1 and row.equal(small.amin(axis, keepdim=True)):
            small = row
    return small.view(torch.bool).clone().expand(mask.shape)


def stored(x: Array) -> Array:
    """Return the stored entries of a tensor, in a dtype that has a sum."""
    if x.layout is torch.sparse_coo:
        return private.stored_values(x)
    x = x if x.layout is torch.strided else x.values()
    return x.float() if x.element_size() == 1 else x


def is_there(x: Array) -> bool:
    """Whether the memory of a tensor is allocated; a program may have freed it, as FSDP does."""
    if x.layout is not torch.strided or not x.numel():
        return True
    pairs = zip(x.shape, x.stride(), strict=True)
    last = x.storage_offset() + sum((size - 1) * stride for size, stride in pairs)
    return x.untyped_storage().nbytes() >= (last + 1) * x.element_size()


def has_nan(x: Array) -> bool:
    is_plain = x.layout is torch.strided and not x.is_complex() and x.numel()
    return bool((x.amax() if is_plain else x).isnan().any())  # a maximum takes no memory


def what_of(values: Array, first: str = "inf") -> str:
    """Return "nan", "inf" or "-inf", whichever is among the values; `first` where both are."""
    values = values.real if values.is_complex() else values
    if (nan := has_nan(values)) and first == "nan":
        return "nan"
    infinite = values[values.isinf()].flatten()
    if not infinite.numel():
        return "nan" if nan else ""
    return "inf" if infinite[0] > 0 else "-inf"


def in_a_transform() -> bool:
    """Whether a transform of torch.func runs."""
    # Private, as no public function tells.
    return private.peek_transform() is not None


SCALER = torch.amp.GradScaler.scale.__code__.co_filename
# The nodes that accumulate into leaves have the largest number.
LEAF = 2**64 - 1
