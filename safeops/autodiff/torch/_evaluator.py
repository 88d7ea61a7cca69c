"""
The evaluator: PyTorch's backward pass, run over pairs of a value and its mask of active entries.

The engine and the derivative formulas are PyTorch's. A dispatch mode sees the aten operations of
the formulas, and one function serves a class of operations. An invariant holds throughout: a value
is 0 where it is not active.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch

from safeops._backends.torch import private
from safeops._backends.torch.private import DispatchKey, TorchDispatchMode, decomposition_table
from safeops._core.types import Array
from safeops.autodiff._options import report_unknown
from safeops.autodiff.torch import _nodes
from safeops.autodiff.torch._compiled_edges import is_at_edge, run_at_edge
from safeops.autodiff.torch._masks import cleaned, folded, is_partial, spread, tensors_of
from safeops.autodiff.torch._nodes import node_name
from safeops.autodiff.torch._sharded import is_shape_alone, is_wrapped
from safeops.autodiff.torch._tags import Mask, Tags, is_number, is_plain

aten = torch.ops.aten

# The function for each operation (an operation without one is unknown); for operations in the
# formulas of some nodes; for operations beside sparse tensors. `_rules` fills these.
RULES: dict[str, Callable[["Call"], Any]] = {}
BY_NODE: dict[str, dict[str, Callable[["Call"], Any]]] = {}
SPARSE: dict[str, Callable[["Call"], Any]] = {}
# The function for operations between ranks, by namespace: some share a name with other operations.
BY_NAMESPACE: dict[str, Callable[["Call"], Any]] = {}
# Fused kernels, written out as their parts.
OWN_PARTS: dict[str, Callable[..., Any]] = {}

COMPARISONS = _nodes.words("ge gt le lt")
# Operations that return their argument, though their schemas do not tell, or read its shape only.
PASSED = _nodes.words(
    """
    _unsafe_view _reshape_alias unsqueeze_ squeeze_ t_ transpose_ detach_
    wait_tensor _wrap_tensor_autograd
    new_empty empty_like new_empty_strided ones_like new_ones rand_like randn_like
    """
)
# Operations whose derivative PyTorch has wrong (2.13): a zero there does not mean "not used".
MISTAKEN = {"AsStridedScatter": "as_strided_scatter"}
ZEROS = _nodes.words("zeros zeros_like new_zeros full full_like new_full scalar_tensor")


@dataclass(slots=True)
class Call:
    """One operation, with its arguments."""

    mode: "Masking"
    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    masks: dict[int, Mask] = field(default_factory=dict)
    running: tuple[Any, str] | None = None

    @property
    def node(self) -> Any:
        """The running node of autograd."""
        return self.named()[0]

    @property
    def node_name(self) -> str:
        """The name of its forward operation."""
        return self.named()[1]

    def named(self) -> tuple[Any, str]:
        """Return the running node and its name, which few rules ask for."""
        if self.running is None:
            self.running = node_name()
        return self.running

    def selects(self, nodes: frozenset[str] = _nodes.SELECTIONS) -> bool:
        """Whether the operation is called by the formula of a selection."""
        if self.node_name == _nodes.COPY_SLICES and _nodes.COPY_SLICES not in nodes:
            return not _nodes.in_a_hook(self.node) and self.mode.inner(self) in nodes
        return self.node_name in nodes and not _nodes.in_a_hook(self.node)

    def run(self) -> Any:
        return self.func(*self.args, **self.kwargs)

    def active(self, i: int) -> Mask:
        """Return what is active in an operand; a tensor that is no cotangent is all active."""
        if i in self.masks:
            return self.masks[i]
        x = self.args[i] if i < len(self.args) else 0
        if isinstance(x, torch.Tensor):
            return not self.is_literal_zero(x)
        return x != 0

    def is_literal_zero(self, x: Array) -> bool:
        """Whether a tensor is a literal 0 of the running formula."""
        entry = self.mode.tags.find(x)
        return entry is not None and entry.literal_of is not None and entry.literal_of is self.node

    def finish(self, active: Mask, *, clean: bool = False) -> Any:
        """Run the operation, and state what of its result is active."""
        value = self.run()
        first = value[0] if isinstance(value, tuple) else value  # the rest are no derivatives
        result = first
        if clean and active is not True:
            self.mode.note_absent(first, active)
            result = cleaned(first, active)
        if result is not first and self.name.endswith("_"):
            result = first.copy_(result)
        self.mode.state(result, active)
        return (result, *value[1:]) if isinstance(value, tuple) else result


@private.unseen_mode
class Masking(TorchDispatchMode):
    """A mode that evaluates the operations of the engine over pairs."""

    notes_views = False  # whether a view is handed to `note_view`
    # PyTorch asks a mode whether it is to be handed `cond`, `scan` and their like.
    supports_higher_order_operators = True

    def __init__(self, former: Tags, on_unknown: str) -> None:
        super().__init__()
        self.tags = Tags(former)
        self.on_unknown = on_unknown
        # Whether a matrix product or convolution that is traced keeps a NaN coefficient from absent
        # entries of a sum that has active ones too: that takes further products.
        self.exact = True
        self.reported: set[str] = set()
        # Notes about the running node: where a selection has no tie, what a clamp compares, and
        # which formula runs in a CopySlices.
        self.empty: tuple[Any, Any] = (None, None)
        self.compared: tuple[Any, list[Array]] = (None, [])
        self.within: tuple[Any, str] = (None, "")
        # Conditions and counts as numbers, the latest ones.
        self.casts: list[tuple[Array, Array]] = []

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether compiled functions run under the mode, as where a checkpoint runs them again."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if types and is_wrapped(types):
            return NotImplemented
        kind = KINDS.get(id(func)) or kind_of(func)
        is_told = kind.is_mere_view and args and not self.notes_views and not is_lazy(args[0])
        if is_told or (types and is_shape_alone(types)):
            return func(*args, **(kwargs or {}))
        if kind.has_programs:
            return self.with_programs(func, args, kwargs or {})
        call = Call(self, func, kind.name, args, kwargs or {})
        if is_at_edge(call.name):
            return run_at_edge(call)
        if not any(map(is_lazy, args)):
            return self.evaluate(call, kind)
        # Below Python's dispatcher, kernels ignore the bits "conjugate" and "negative" of a view
        # (PyTorch 2.13), unless their dispatch keys are no longer excluded.
        with without_key(DispatchKey.Conjugate, False), without_key(DispatchKey.Negative, False):  # noqa: FBT003  (no keyword)
            return self.evaluate(call, kind)

    def with_programs(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation that has programs for arguments."""
        partial = any(is_partial(self.tags.read(x)) for x in tensors_of((args, kwargs)))
        if partial and func.name() == "cond":
            return branched(self, func, args)
        value = func(*args, **kwargs)
        if partial:
            self.report(Call(self, func, func.name(), args, kwargs))
        for x in tensors_of(value):
            self.state(x, active=True)
        return value

    def evaluate(self, call: Call, kind: "Kind") -> Any:
        """Run one operation by the rule of its class."""
        if kind.is_view:
            return viewed(call)
        for i, x in enumerate(call.args):
            active = self.active(x)
            if active is not None:
                call.masks[i] = active
        if "out" in call.kwargs:
            return into(call)
        if call.kwargs and any(self.active(x) is not None for x in call.kwargs.values()):
            return unknown(call)
        if kind.is_zeros:
            return self.zeros(call)
        if not call.masks:
            return self.outside(call)
        return rule_of(call, kind)(call)

    def active(self, x: Any) -> Mask | None:
        """Return what is active in an argument; None if nothing in it is a cotangent."""
        if isinstance(x, torch.Tensor):
            return self.tags.read(x)
        if isinstance(x, (list, tuple)):
            masks = [self.tags.read(y) for y in x if isinstance(y, torch.Tensor)]
            some = any(m is not None for m in masks)
            return all(m is True for m in masks) if some else None
        return None

    def state(self, value: Any, active: Mask) -> None:
        if isinstance(value, torch.Tensor) and is_number(value):
            self.tags.write(value, active if isinstance(active, bool) else folded(active))

    def apart(self, active: Mask | None, x: Array) -> Array:
        """Return a mask in memory of its own, as operands and results of a branch have to be."""
        return spread(True if active is None else active, x).clone()

    def zeros(self, call: Call) -> Any:
        """Make zeros, and note them as a literal of the running formula."""
        value = call.run()
        node, name = node_name()
        fill = {"scalar_tensor": 0, "full": 1, "full_like": 1, "new_full": 2}.get(call.name)
        not_zero = fill is not None and (len(call.args) <= fill or call.args[fill] != 0)
        if node is None or not_zero or not is_number(value) or _nodes.is_foreign(node):
            return value
        if name == _nodes.COPY_SLICES:
            name = self.inner(call)
        if name in MISTAKEN:
            self.report(replace(call, name=MISTAKEN[name]))
            return value
        if name in _nodes.OVERWRITES:
            self.tags.write(value, active=False)
        else:
            self.tags.write_literal(value, node)
        return value

    def inner(self, call: Call) -> str:
        """Return the operation on the view whose in-place write is being differentiated."""
        node, _ = node_name()
        if (
            call.kwargs.get("memory_format") is torch.contiguous_format
            and call.name == "zeros_like"
        ):
            return "CopyBackwards"  # a slice assignment; no other formula asks for a format
        if self.within[0] is not node:
            self.within = (node, _nodes.stem_of(_nodes.inner_name(call.name)))
        return self.within[1]

    def outside(self, call: Call) -> Any:
        """Run an operation on coefficients; a tensor that it writes into is no literal any more."""
        value = call.run()
        for x in written(call):
            if self.tags.find(x) is not None:
                self.tags.drop(x)
        self.note_literal(call, value)
        is_cast = call.name == "_to_copy" and not is_number(call.args[0]) and is_number(value)
        if is_cast and node_name()[1] in _nodes.BY_PRODUCT:
            self.casts = [*self.casts[-1:], (value, call.args[0])]
        if call.name in COMPARISONS:
            self.note_comparison(call)
        return value

    def note_literal(self, call: Call, value: Any) -> None:
        """State that what is made of a literal 0 is one."""
        if call.name == "zero_":
            node, _ = node_name()
            if node is not None and not _nodes.is_foreign(node):
                self.tags.write_literal(value, node)
        # addmm scales its literal 0, and `vmap` copies one.
        scaled = call.name == "mul" and not isinstance(call.args[1], torch.Tensor)
        if (scaled or call.name == "clone") and call.is_literal_zero(call.args[0]):
            self.tags.write_literal(value, call.node)

    def note_view(self, call: Call, value: Any) -> None:
        """Take note of a view: its storage tells what of it is active, if it shares one."""

    def as_condition(self, x: Any) -> Array | None:
        """Return a condition, or a count, that an operation multiplies or divides by."""
        if not isinstance(x, torch.Tensor):
            return None
        # `vmap` makes a number of it, in the operation before.
        found = [of for value, of in self.casts if value is x]
        return found[0] if found else None if is_number(x) else x

    def note_absent(self, values: Array, active: Mask) -> None:
        """Record absent entries that are not finite; only `explain` does."""

    def note_comparison(self, call: Call) -> None:
        """Record the operands of a comparison in the formula of a clamp."""
        node, name = node_name()
        if name in _nodes.CLAMPS or name == _nodes.COPY_SLICES:
            earlier = self.compared[1] if self.compared[0] is node else []
            tensors = [x for x in call.args if isinstance(x, torch.Tensor)]
            self.compared = (node, [*earlier, *tensors])

    def report(self, call: Call) -> None:
        """Report that an operation without a rule met absent entries."""
        if call.name in self.reported:
            return
        self.reported.add(call.name)
        msg = (
            f"no rule for {call.name}: absent entries count as zeros in it, "
            "and a NaN may stay that nothing selected"
        )
        report_unknown(msg, self.on_unknown)


def rule_of(call: Call, kind: "Kind") -> Callable[[Call], Any]:
    if kind.between_ranks is not None:
        return kind.between_ranks
    if not all(map(is_plain, tensors_of(call.args))):
        return SPARSE.get(kind.base, unknown)
    if kind.is_special:
        special = BY_NODE.get(call.node_name, {})
        if kind.base in special and not _nodes.in_a_hook(call.node):
            return special[kind.base]
    return RULES.get(kind.base, unknown)


without_key = private.without_key


def is_lazy(x: Any) -> bool:
    """Whether a tensor may be a view with a pending conjugation or negation."""
    if isinstance(x, (list, tuple)):
        return any(map(is_lazy, x))
    return isinstance(x, torch.Tensor) and (x.is_complex() or x.is_neg())


@dataclass(slots=True)
class Kind:
    """What is known of an operation before its arguments."""

    func: Any
    name: str
    base: str  # its name without the mark of an operation in place
    has_programs: bool = False
    is_view: bool = False
    is_mere_view: bool = False  # whether the result is a view, whose mask its storage tells
    is_zeros: bool = False
    is_special: bool = False  # whether its rule depends on the node
    between_ranks: Any = None  # its rule, if it is one between ranks


# By identity, as the hash of an operation is a function in Python.
KINDS: dict[int, Kind] = {}


def kind_of(func: Any) -> Kind:
    """Return what is known of an operation; it is looked up once."""
    if private.has_programs(func):
        kind = Kind(func, func.name(), func.name(), has_programs=True)
    else:
        kind = Kind(func, name := private.name_of_operation(func), name.removesuffix("_"))
        kind.is_view = func.is_view or name in PASSED
        kind.is_mere_view = kind.is_view and not is_composite(func)
        kind.is_zeros = name in ZEROS
        kind.is_special = any(kind.base in rules for rules in BY_NODE.values())
        kind.between_ranks = BY_NAMESPACE.get(func.namespace)
    KINDS[id(func)] = kind
    return kind


@cache
def is_composite(func: Any) -> bool:
    """Whether PyTorch defines an operation by others, in all its overloads."""
    key = DispatchKey.CompositeImplicitAutograd
    return bool(private.has_kernel(func.name(), key))


def written(call: Call) -> list[Array]:
    schema = private.schema(call.func)
    if not schema.is_mutable:
        return []
    into = {a.name: a.alias_info is not None and a.alias_info.is_write for a in schema.arguments}
    names = [a.name for a in schema.arguments]
    given = dict(zip(names, call.args, strict=False)) | call.kwargs
    return tensors_of([x for name, x in given.items() if into[name]])


def viewed(call: Call) -> Any:
    """Return a view; a composite such as reshape may copy, so it is run by its parts."""
    if not is_composite(call.func):
        value = call.run()
        call.mode.note_view(call, value)
        return value
    with call.mode:
        return call.func.decompose(*call.args, **call.kwargs)


def into(call: Call) -> Any:
    """Write a result into the tensor `out`: compute it, then copy it."""
    if not private.schema(call.func).returns:
        call.run()
        return call.mode.state(call.kwargs["out"], active=True)
    rest = {name: x for name, x in call.kwargs.items() if name != "out"}
    with call.mode:
        return call.kwargs["out"].copy_(call.func.overloadpacket(*call.args, **rest))


def unknown(call: Call) -> Any:
    """Run an operation without a rule as it is: all of the result counts as active."""
    tensors = tensors_of((call.args, call.kwargs))
    plain = all(map(is_plain, tensors))
    if call.name not in RULES and plain and any(is_partial(m) for m in call.masks.values()):
        # A composite of PyTorch: its parts may have rules.
        with call.mode:
            value = call.func.decompose(*call.args, **call.kwargs)
        if value is not NotImplemented:
            return value
    value = call.run()
    entries = [e for e in map(call.mode.tags.find, tensors) if e is not None]
    ours = [e for e in entries if not e.earlier and e.literal_of is None]
    results = [x for x in tensors_of(value) if is_number(x)]
    if results and any(e.active is not True for e in ours):
        call.mode.report(call)
    for x in [*(results if ours else []), *written(call)]:
        call.mode.state(x, active=True)
    return value


def decompose(call: Call) -> Any:
    """Run a fused kernel by its parts, if an entry is absent."""
    if not any(is_partial(m) for m in call.masks.values()):
        return unknown(call)
    parts = decomposition_table.get(call.func)
    if call.name in OWN_PARTS:
        parts = partial(OWN_PARTS[call.name], call.mode)
    if parts is None:
        return unknown(call)
    with call.mode:
        return parts(*call.args, **call.kwargs)


# `torch.cond` in a backward pass: both branches over pairs, with masks as further operands.


def branched(mode: Any, func: Any, args: tuple[Any, ...]) -> Any:
    """Run the branch that a condition takes, and state what of its results is active."""
    condition, one, two, operands = args
    masks = [mode.tags.read(x) if isinstance(x, torch.Tensor) else None for x in operands]
    partial = [i for i, mask in enumerate(masks) if is_partial(mask)]
    known = [mode.apart(masks[i], operands[i]) for i in partial]

    def over_pairs(branch: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            inputs = given[: len(masks)]
            own = dict(enumerate(masks)) | dict(zip(partial, given[len(masks) :], strict=True))
            for i, x in enumerate(inputs):
                if own[i] is not None:
                    mode.tags.write(x, own[i])
            with mode:
                results = branch(*inputs)
            return (*results, *(mode.apart(mode.tags.read(y), y) for y in results))

        return run

    every = func(condition, over_pairs(one), over_pairs(two), (*operands, *known))
    results, active = every[: len(every) // 2], every[len(every) // 2 :]
    for y, mask in zip(results, active, strict=True):
        mode.state(y, mask)
    return results
