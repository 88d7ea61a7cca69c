"""
The evaluator: PyTorch's backward pass, run over pairs of a value and what of it is active.

The engine and the derivative formulas are PyTorch's. A dispatch mode sees the aten operations of
which the formulas are made, and one function here serves a class of them; the table at the end
gives each operation its class. An invariant holds throughout: a value is 0 where it is not active.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from safeops._backends._torch_kernels import Selection
from safeops._typing import Array
from safeops.autodiff._torch_tags import Mask, Tags, is_number
from safeops.autodiff._unknown import tell

aten = torch.ops.aten


def words(text: str) -> frozenset[str]:
    """Return names, which read best in a row."""
    return frozenset(text.split())


# Nodes whose forward operation is a selection: in their formulas a 0 means "not used". The same
# `where(cond, gradient, 0)` in the formula of a norm or of hardtanh is a convention about a slope,
# and a number. A name that is missing here costs precision, and hides nothing.
OURS = Selection.__name__  # of all functions of ours that derive from it
SELECTIONS = words(
    f"""
    {OURS} Where MaskedFill MaskedScatter Maximum Minimum Fmax Fmin Amax Amin Aminmax Max Min Clamp
    ClampMin ClampMax Nansum NanToNum Median Nanmedian IndexPut IndexFill
    IndexCopy Scatter Tril Triu
    """
)
CLAMPS = frozenset(["Clamp", "ClampMin", "ClampMax"])
COMPARISONS = words("ge gt le lt")
# Selections that PyTorch writes as a product with a boolean tensor.
BY_PRODUCT = words(f"{OURS} Amax Amin Aminmax Max Min Median Nanmedian Nansum NanToNum")
# Nodes that return a literal 0 for what they overwrote. (A slice assignment is a CopySlices.)
OVERWRITES = words("Fill Zero torch::autograd::CopyBackwards")
# Operations that return their argument, which their schemas do not say, or that take no more than
# its shape.
PASSED = words(
    """
    _unsafe_view _reshape_alias unsqueeze_ squeeze_ t_ transpose_ detach_
    new_empty empty_like new_empty_strided ones_like new_ones rand_like randn_like
    """
)
ZEROS = words("zeros zeros_like new_zeros full full_like new_full scalar_tensor")


def node_name() -> tuple[Any, str]:
    """Return the running node of autograd, and the name of its forward operation."""
    # There is no public way to ask which formula an operation belongs to.
    node = torch._C._current_autograd_node()  # noqa: SLF001  (there is no public name)
    if node is None or is_custom(node):  # of which a user chooses the name
        return node, OURS if is_ours(node) else ""
    name = node.name()
    stem, found, _ = name.rpartition("Backward")
    return node, stem if found and name not in OVERWRITES else name


def is_custom(node: Any) -> bool:
    """Whether the formula of a node is Python code of an `autograd.Function`."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def is_ours(node: Any) -> bool:
    """Whether a node is that of a function of ours which leaves entries out."""
    return is_custom(node) and issubclass(node._forward_cls, Selection)  # noqa: SLF001  (there is no public name)


def in_a_hook(node: Any) -> bool:
    """
    Whether an operation is called by Python code, and not by PyTorch's formula.

    A hook runs while the node is current whose input it sees; what it does with zeros is a product.
    """
    if is_custom(node):
        return is_ours(node) and not in_its_method()
    frame: Any = sys._getframe()  # noqa: SLF001  (`inspect` reads source files too)
    while frame is not None and frame.f_code.co_filename in OWN_FILES:
        frame = frame.f_back
    # A device has a thread of its own, where nothing is below the formula.
    return frame is not None and frame.f_code.co_name != ENGINE


def in_its_method() -> bool:
    """Whether the backward method of a custom function calls an operation, and not a hook."""
    frame: Any = sys._getframe()  # noqa: SLF001  (as above)
    while frame is not None and frame.f_code.co_name != ENGINE:
        if frame.f_code is APPLY:
            return True
        frame = frame.f_back
    return False


ENGINE = "_engine_run_backward"
APPLY = torch.autograd.function.BackwardCFunction.apply.__code__  # it calls the method
# Between the engine and an operation there are these files and no other.
WATCH = str(Path(__file__).with_name("_torch_watch.py"))
OWN_FILES = (__file__, WATCH, torch._compile.__file__, torch._dynamo.eval_frame.__file__)  # noqa: SLF001  (there is no public name)


@dataclass
class Call:
    """One operation, with its arguments."""

    mode: "Masking"
    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    node: Any = None
    node_name: str = ""
    masks: dict[int, Mask] = field(default_factory=dict)

    def selects(self, nodes: frozenset[str] = SELECTIONS) -> bool:
        """Whether the operation is part of the formula of a selection."""
        return self.node_name in nodes and not in_a_hook(self.node)

    def run(self) -> Any:
        """Run the operation as it is."""
        return self.func(*self.args, **self.kwargs)

    def active(self, i: int) -> Mask:
        """Return what is active in an operand; a tensor that is no cotangent is a number."""
        if i in self.masks:
            return self.masks[i]
        x = self.args[i] if i < len(self.args) else 0
        if isinstance(x, torch.Tensor):
            return not self.is_literal_zero(x)
        return x != 0

    def is_literal_zero(self, x: Array) -> bool:
        """Whether a tensor is a 0 that this formula wrote."""
        entry = self.mode.tags.find(x)
        return entry is not None and entry.literal_of is not None and entry.literal_of is self.node

    def finish(self, active: Mask, *, clean: bool = False) -> Any:
        """Run the operation, and state what of its result is active."""
        value = self.run()
        if clean and active is not True:
            self.mode.note_absent(value, active)
            cleaned(value, active)
        self.mode.state(value, active)
        return value


class Masking(TorchDispatchMode):
    """Evaluate what the engine does over pairs."""

    def __init__(self, former: Tags, on_unknown: str) -> None:
        super().__init__()
        self.tags = Tags(former)
        self.on_unknown = on_unknown
        self.reported: set[str] = set()
        # What the formula of the running node has found so far: where there are no ties, and what
        # a clamp compares.
        self.empty: tuple[Any, Any] = (None, None)
        self.compared: tuple[Any, list[Array]] = (None, [])

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation."""
        del types
        name = func._opname  # noqa: SLF001  (OpOverload has no public name)
        call = Call(self, func, name, args, kwargs or {})
        if func.is_view or name in PASSED:
            return call.run()
        for i, x in enumerate(args):
            active = self.active(x)
            if active is not None:
                call.masks[i] = active
        keywords = [x for x in call.kwargs.values() if self.active(x) is not None]
        if keywords or "out" in call.kwargs:
            return unknown(call)
        if name in ZEROS:
            return self.zeros(call)
        if not call.masks:
            return self.outside(call)
        call.node, call.node_name = node_name()
        return RULES.get(name.removesuffix("_"), unknown)(call)

    def active(self, x: Any) -> Mask | None:
        """Return what is active in an argument; for a list: whether it has a cotangent."""
        if isinstance(x, torch.Tensor):
            return self.tags.read(x)
        if isinstance(x, (list, tuple)):
            masks = [self.tags.read(y) for y in x if isinstance(y, torch.Tensor)]
            some = any(m is not None for m in masks)
            return all(m is True for m in masks) if some else None
        return None

    def state(self, value: Any, active: Mask) -> None:
        """State what of a result is active."""
        if isinstance(value, torch.Tensor) and is_number(value):
            self.tags.write(value, active if isinstance(active, bool) else folded(active))

    def zeros(self, call: Call) -> Any:
        """Make zeros, which are a literal of the running formula."""
        value = call.run()
        node, name = node_name()
        fill = {"scalar_tensor": 0, "full": 1, "full_like": 1, "new_full": 2}.get(call.name)
        not_zero = fill is not None and (len(call.args) <= fill or call.args[fill] != 0)
        if node is None or not_zero or not is_number(value) or in_a_hook(node):
            return value
        if name in OVERWRITES:
            self.tags.write(value, active=False)
        else:
            self.tags.write_literal(value, node)
        return value

    def outside(self, call: Call) -> Any:
        """Run an operation on coefficients; what it writes into is no literal any more."""
        value = call.run()
        for x in written(call):
            if self.tags.find(x) is not None:
                self.tags.drop(x)
        if call.name == "zero_":
            node, _ = node_name()
            if node is not None and not in_a_hook(node):
                self.tags.write_literal(value, node)
        if call.name in COMPARISONS:
            self.note_comparison(call)
        return value

    def note_absent(self, values: Array, active: Mask) -> None:
        """Take note of what absent entries have met; `explain` does."""

    def note_comparison(self, call: Call) -> None:
        """Remember what a clamp compares with its limits."""
        node, name = node_name()
        if name in CLAMPS:
            earlier = self.compared[1] if self.compared[0] is node else []
            tensors = [x for x in call.args if isinstance(x, torch.Tensor)]
            self.compared = (node, [*earlier, *tensors])

    def report(self, call: Call) -> None:
        """Say that an operation without a rule met absent entries."""
        if call.name in self.reported:
            return
        self.reported.add(call.name)
        msg = (
            f"no rule for {call.name}: absent entries count as zeros in it, "
            "and a NaN may stay that nothing selected"
        )
        tell(msg, self.on_unknown)


def written(call: Call) -> list[Array]:
    """Return the tensors that an operation writes into."""
    schema = call.func._schema  # noqa: SLF001  (OpOverload has no public schema)
    if not schema.is_mutable:
        return []
    into = {a.name: a.alias_info is not None and a.alias_info.is_write for a in schema.arguments}
    names = [a.name for a in schema.arguments]
    given = dict(zip(names, call.args, strict=False)) | call.kwargs
    found = tree_leaves([x for name, x in given.items() if into[name]])
    return [x for x in found if isinstance(x, torch.Tensor)]


# Masks


def folded(active: Array) -> Mask:
    """Return True for a mask that is so throughout; elsewhere than on a CPU it is not read."""
    if active.device.type != "cpu" or not active.numel():
        return active
    every = active.all() if active.numel() < SMALL else active.view(torch.uint8).amin()
    return True if every else active


SMALL = 4096  # entries: below, a call costs more than its work


def any_over(active: Array, dims: tuple[int, ...], *, keepdim: bool = False) -> Array:
    """Return where any entry along some axes is active."""
    if not active.numel():
        return active.any(dim=dims, keepdim=keepdim)
    # The same as `any`, which takes 20 to 50 times as long on a CPU (PyTorch 2.13).
    return active.view(torch.uint8).amax(dims, keepdim=keepdim).view(torch.bool)


def spread(active: Mask, x: Array) -> Array:
    """Return a mask as a tensor in the shape of another."""
    if isinstance(active, bool):
        return torch.full((), active, device=x.device).expand(x.shape)
    return active.expand(x.shape)


def both(a: Mask, b: Mask) -> Mask:
    """Return where two masks are active."""
    if a is True or b is True:
        return b if a is True else a
    return a & b if not isinstance(a, bool) and not isinstance(b, bool) else False


def either(a: Mask, b: Mask) -> Mask:
    """Return where one of two masks is active."""
    if isinstance(a, bool) or isinstance(b, bool):
        first, second = (a, b) if isinstance(a, bool) else (b, a)
        return True if first is True else second
    return a | b


INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def cleaned(x: Array, active: Any) -> Array:
    """Put 0 where nothing is active, in place."""
    if x.is_complex():
        mask = active if isinstance(active, bool) else active[..., None]
        cleaned(torch.view_as_real(x), mask)
        return x
    if active is False:
        return x.zero_()
    # By the bits: masked_fill_ and where take a branch an entry, 15 times slower on a CPU.
    dtype = INTEGERS.get(x.element_size())
    if dtype is None or x.numel() < SMALL:
        return x.masked_fill_(~spread(active, x), 0)
    x.view(dtype).bitwise_and_(active.to(dtype).neg_())
    return x


def is_partial(active: Any) -> bool:
    """Whether a mask has absent entries."""
    return active is not None and active is not True


# Classes


def unknown(call: Call) -> Any:
    """Run an operation without a rule as it is: all of its result counts as active."""
    tensors = [x for x in tree_leaves((call.args, call.kwargs)) if isinstance(x, torch.Tensor)]
    dense = all(x.layout is torch.strided for x in tensors)
    if call.name not in RULES and dense and any(is_partial(m) for m in call.masks.values()):
        # An operation that PyTorch itself defines by others; autograd has no formula for it.
        with call.mode:
            value = call.func.decompose(*call.args, **call.kwargs)
        if value is not NotImplemented:
            return value
    value = call.run()
    entries = [e for e in map(call.mode.tags.find, tensors) if e is not None]
    ours = [e for e in entries if not e.former and e.literal_of is None]
    results = [x for x in tree_leaves(value) if isinstance(x, torch.Tensor) and is_number(x)]
    if results and any(e.active is not True for e in ours):
        call.mode.report(call)
    for x in [*(results if ours else []), *written(call)]:
        call.mode.state(x, active=True)
    return value


def scale(call: Call) -> Any:
    """Multiply each entry by a coefficient: what is absent stays so, whatever the coefficient."""
    factors = LINEAR_IN.get(call.name.removesuffix("_"), (0,))
    used = [call.masks[i] for i in factors if i in call.masks]
    if not used:
        return unknown(call)
    active: Mask = True
    for mask in used:
        active = both(active, mask)
    if call.selects(BY_PRODUCT):
        active = both(active, chosen(call))
    return call.finish(active, clean=True)


def chosen(call: Call) -> Mask:
    """Return what a selection that is written as a product selects; there is none in a NaN."""
    tensors = [x for x in call.args if isinstance(x, torch.Tensor)]
    counts = [x for x in tensors if not is_number(x)]
    if not counts:
        return True
    (which,) = counts
    if call.name == "div":  # by the number of ties: none of them means NaN
        call.mode.empty = (call.node, which == 0)
        return True
    if which.dtype is not torch.bool:
        return True
    node, empty = call.mode.empty
    # A copy, for a program may write into its own condition.
    return which | empty if node is call.node and node is not None else which.clone()


def threshold(call: Call) -> Any:
    """Select by ``x > threshold``, as relu does; NaN is selected too."""
    x, limit = call.args[1:]
    if 0 not in call.masks:
        return unknown(call)
    return call.finish(both(call.masks[0], ~(x <= limit)))  # it writes 0 elsewhere


def add(call: Call) -> Any:
    """Add: absent plus a number is the number."""
    return call.finish(either(call.active(0), call.active(1)))


def same(call: Call) -> Any:
    """Map each entry to itself, linearly."""
    return call.finish(call.masks[0]) if 0 in call.masks else unknown(call)


def copy(call: Call) -> Any:
    """Write over a tensor."""
    active = call.active(1)
    if not isinstance(active, bool):
        active = active.expand(call.args[0].shape)
    return call.finish(active)


def zero(call: Call) -> Any:
    """Write 0 over what a slice assignment has replaced, or, in a hook, over a cotangent."""
    replaced = call.selects(frozenset(["torch::autograd::CopySlices"]))
    return call.finish(call.active(0) if not replaced else False)


def select(call: Call) -> Any:
    """Select by a condition; a 0 that is selected is absent if the forward operation selects."""
    cond, x, y = call.args
    masks = [call.masks.get(i, None) for i in (1, 2)]
    gated = call.selects()
    for i, operand in enumerate((x, y)):
        if masks[i] is None:
            masks[i] = not (gated and is_zero(call, operand))
    if masks[0] is True and masks[1] is True:
        return call.finish(active=True)
    active = selected(cond, x, y, masks)
    if call.node_name in CLAMPS:
        cotangent = either(*(call.masks.get(i, False) for i in (1, 2)))
        active = active | (nan_of(call, active) & spread(cotangent, active))
    return call.finish(active)


def selected(cond: Array, x: Any, y: Any, masks: list[Mask]) -> Array:
    """Return where a selection of two operands is active."""
    shape = torch.broadcast_shapes(cond.shape, *(getattr(v, "shape", ()) for v in (x, y)))
    cond = cond.expand(shape)
    first, second = masks
    if first is True and second is False:
        return cond.clone()  # the program may write into its own
    if first is False and second is True:
        return ~cond
    return torch.where(cond, spread(first, cond), spread(second, cond))


def is_zero(call: Call, x: Any) -> bool:
    """Whether an operand of a selection is a literal 0."""
    if not isinstance(x, torch.Tensor):
        return bool(x == 0)
    return call.is_literal_zero(x) or (x.dim() == 0 and x.device.type == "cpu" and x.item() == 0)


def nan_of(call: Call, like: Array) -> Array:
    """Return where what a clamp compares is NaN: its slope of 0 is a convention there."""
    node, compared = call.mode.compared
    if node is not call.node:
        return torch.ones_like(like)
    nan = torch.zeros_like(like)
    for x in compared:
        nan = nan | x.isnan()
    return nan


def fill(call: Call) -> Any:
    """Fill entries with a number; with 0 they are absent if the forward operation selects."""
    number = call.args[-1]
    is_cotangent = isinstance(number, torch.Tensor) and len(call.args) - 1 in call.masks
    zero = not is_cotangent and bool(number == 0)
    if zero and not call.selects():
        return call.finish(call.active(0))
    base = call.args[0]
    mask = spread(call.active(0), base).clone()
    where = call.args[1:-1]
    new = spread(call.masks[len(call.args) - 1], number) if is_cotangent else not zero
    # The overload that takes a tensor is the functional one of the same packet.
    marked = getattr(aten, call.name.removesuffix("_"))(mask, *where, new)
    return call.finish(marked)


def total(call: Call) -> Any:
    """Sum entries: active where one of them is."""
    active = call.masks[0]
    if active is True:
        return call.finish(active=True)
    x = call.args[0]
    dims = call.args[1] if len(call.args) > 1 else None
    keepdim = call.args[2] if len(call.args) > 2 else False  # noqa: PLR2004  (a place)
    mask = spread(active, x)
    if not dims:
        return call.finish(mask.any())
    return call.finish(any_over(mask, tuple(dims), keepdim=keepdim))


def transport(call: Call) -> Any:
    """Move entries and add them up: the same operation on the masks, as numbers."""
    name = call.name.removesuffix("_")
    places = ENTRIES.get(name, (0,))
    if name in FILLS_NOTHING and all(call.masks.get(i) is True for i in places):
        return call.finish(active=True)
    args = list(call.args)
    if name in ("slice_backward", "select_backward"):  # they take masks as they are
        return call.finish(call.func(spread(call.active(0), args[0]), *args[1:]))
    for i in places:
        if isinstance(args[i], torch.Tensor):
            args[i] = spread(call.active(i), args[i]).to(args[i].dtype)
        elif isinstance(args[i], (list, tuple)):
            args[i] = [_entries(call, x) for x in args[i]]
        else:  # a number that is filled in
            args[i] = int(args[i] != 0 or not call.selects())
    if call.name in ("nll_loss_backward", "nll_loss2d_backward"):
        args[3], args[6] = None, torch.ones_like(args[6])  # weights are no part of the path
    if call.name.endswith("_"):
        args[0] = args[0].clone()
    return call.finish(call.func(*args, **call.kwargs) != 0)


def triangle(call: Call) -> Any:
    """Take a triangle: a selection in the formula of the same operation, else a product."""
    return transport(call) if call.selects() else call.finish(call.active(0))


def batched(call: Call) -> Any:
    """Solve equations: dense within a matrix, one matrix of a batch apart from the others."""
    i = BATCHED_IN[call.name]
    if i not in call.masks:
        return unknown(call)
    active = call.masks[i]
    if isinstance(active, torch.Tensor):
        active = any_over(active, (-2, -1), keepdim=True)
    return call.finish(active, clean=True)


def spectral(call: Call) -> Any:
    """Transform along axes: dense along them, the rest apart."""
    active = call.masks.get(0, True)
    if isinstance(active, torch.Tensor):
        active = any_over(active, tuple(call.args[1]), keepdim=True)
    return call.finish(active, clean=True)


def normalized(call: Call) -> Any:
    """
    Differentiate a softmax: dense within a row, one row apart from the others.

    A NaN in the result of a softmax is a row of NaN, so that no coefficient of an active row meets
    absent entries only.
    """
    if 0 not in call.masks or len(call.masks) > 1:
        return decompose(call)
    active = call.masks[0]
    if isinstance(active, torch.Tensor):
        active = any_over(active, (call.args[2],), keepdim=True)
    return call.finish(active, clean=True)


def _entries(call: Call, x: Array) -> Array:
    active = call.mode.tags.read(x)
    if active is None:
        active = not call.is_literal_zero(x)
    return spread(active, x).to(x.dtype)


def decompose(call: Call) -> Any:
    """Run a fused kernel as its parts, if there is anything absent."""
    if not any(is_partial(m) for m in call.masks.values()):
        return unknown(call)
    parts = decomposition_table.get(call.func)
    if call.name in OWN_PARTS:
        parts = partial(OWN_PARTS[call.name], call.mode)
    if parts is None:
        return unknown(call)
    with call.mode:
        return parts(*call.args, **call.kwargs)


def layer_norm_backward(call: Call) -> Any:
    """Differentiate a layer norm, by its parts if a row with active entries has a NaN."""
    cotangent, x, shape, mean, rstd, *weights, wanted = call.args
    if set(call.masks) != {0} or not is_partial(call.masks[0]):
        return decompose(call)
    active = spread(call.masks[0], cotangent)
    outer = tuple(range(x.dim() - len(shape)))
    of_weights = any_over(active, outer) if outer else active
    of_rows = any_over(active, tuple(range(len(outer), x.dim())), keepdim=True)
    rows = [y if is_finite(y) else torch.where(of_rows, y, 0) for y in (x, mean, rstd)]
    if not all(is_finite(y) for y in (*rows, *weights) if y is not None):
        return decompose(call)
    values = call.func(cotangent, rows[0], shape, *rows[1:], *weights, wanted)
    for value, mask in zip(values, (of_rows, of_weights, of_weights), strict=True):
        call.mode.state(value, mask)  # there is none for what nobody asked for
    return values


# Contractions


def contract(call: Call) -> Any:
    """Multiply and sum: absent entries meet no coefficient."""
    x, y = call.args[:2]
    rest = call.args[2:]
    call_it = lambda a, b: call.func(a, b, *rest, **call.kwargs)  # noqa: E731  (a name for one line)
    value, active = product(call_it, (x, call.masks.get(0)), (y, call.masks.get(1)))
    call.mode.state(value, active)
    return value


def product(
    multiply: Callable[[Array, Array], Array],
    one: tuple[Array, Any],
    two: tuple[Array, Any],
    reach: Callable[[Array, Array], Array] | None = None,
) -> tuple[Array, Mask]:
    """
    Return a bilinear function of two pairs, of which a coefficient (None) is all active.

    `reach` is the same function, made cheaper for a second argument of ones.
    """
    (x, mx), (y, my) = one, two
    if not is_partial(mx) and not is_partial(my):
        return multiply(x, y), True
    ones_x, ones_y = (_ones(v, m) for v, m in (one, two))
    count = multiply if is_partial(my) or reach is None else reach
    reached = folded(met_by(count, ones_x, ones_y))
    if _meets_no_hole(x, my) and _meets_no_hole(y, mx):
        return multiply(x, y), reached
    finite = multiply(*(torch.where(v.isfinite(), v, 0) for v in (x, y)))
    hit = torch.zeros((), dtype=torch.bool, device=x.device)
    # An active entry meets what is not finite: there the IEEE product says what it is.
    if (bad := ~x.isfinite() & (ones_x != 0)).any():
        hit = hit | met_by(multiply, bad.to(x.dtype), ones_y)
    if (bad := ~y.isfinite() & (ones_y != 0)).any():
        hit = hit | met_by(multiply, ones_x, bad.to(y.dtype))
    value = torch.where(hit, multiply(x, y), finite) if hit.any() else finite
    return value, reached


HALF = 0.5  # a count is at least 1, or it is 0 and the rounding of a fast convolution


def met_by(multiply: Callable[[Array, Array], Array], x: Array, y: Array) -> Array:
    """Return where a product of ones and zeros has met a pair of ones."""
    count = multiply(x, y)
    return (count.real if count.is_complex() else count) > HALF


def _ones(x: Array, active: Any) -> Array:
    return spread(active, x).to(x.dtype) if is_partial(active) else torch.ones_like(x)


def _meets_no_hole(values: Array, partner: Any) -> bool:
    """Whether the values are finite, or what they meet has no absent entry."""
    return not is_partial(partner) or is_finite(values)


def is_finite(x: Array) -> bool:
    """Whether all is finite, by a sum, in which a NaN or an inf stays; it may also overflow."""
    return bool(x.sum().isfinite())


def matrix(call: Call) -> Any:
    """Multiply matrices, with the quick ways out."""
    x, y = call.args
    mx, my = (call.masks.get(i) for i in (0, 1))
    if is_partial(mx) == is_partial(my):
        return contract(call)
    summed = -1 if is_partial(mx) else -2
    mask, other = (spread(mx, x), y) if is_partial(mx) else (spread(my, y), x)
    if not other.sum().isfinite():
        met = any_over(mask, (-3 - summed,), keepdim=True).mT  # by the contracted index
        bad = ~other.isfinite().all(summed, keepdim=True)
        if (bad & met).any():
            return contract(call)
        used = torch.where(met, other, 0)
        x, y = (x, used) if summed == -1 else (used, y)
    value = call.func(x, y)
    call.mode.state(value, any_over(mask, (summed,), keepdim=True))
    return value


def convolve_backward(call: Call) -> Any:
    """Contract over windows, for the input, the weights and the bias."""
    cotangent, _, _, _, stride, *_, wanted = call.args
    masks = dict(call.masks)
    if masks.get(0) is True and any(step > 1 for step in stride):  # it may pass over entries
        masks[0] = spread(masks[0], cotangent)
    if not any(is_partial(m) for m in masks.values()):
        return unknown(call)
    results = list(_convolved(call, masks))
    if wanted[2]:
        dims = [0, *range(2, cotangent.dim())]
        if results[2] is None:
            results[2] = cotangent.sum(dims)
        call.mode.state(results[2], any_over(spread(call.active(0), cotangent), tuple(dims)))
    return tuple(results)


def _convolved(call: Call, masks: dict[int, Any]) -> Iterator[Any]:
    """Yield the gradients of a convolution; that of the bias is None if it takes another sum."""
    cotangent, x, weight, _, *rest, wanted = call.args
    transposed, groups = rest[3], rest[5]
    no_hole = set(masks) == {0} and all(_meets_no_hole(v, masks[0]) for v in (x, weight))
    whole = call.run() if no_hole else (None, None, None)  # the very numbers of PyTorch
    for i, (other, j) in enumerate(((weight, 2), (x, 1))):
        if not wanted[i]:
            yield None
            continue
        multiply, pair = _part_of_convolution(call, i), (cotangent, masks.get(0))
        thin = None if transposed or groups != 1 else _thin(multiply, x, weight, i)
        if no_hole:
            reached = folded(met_by(thin or multiply, _ones(*pair), torch.ones_like(other)))
            value = whole[i]
        else:
            value, reached = product(multiply, pair, (other, masks.get(j)), thin)
        call.mode.state(value, reached)
        yield value
    yield whole[2]


def _part_of_convolution(call: Call, i: int) -> Callable[..., Array]:
    """Return the gradient for the input (0) or the weights (1) as a bilinear function."""
    _, x, weight, bias, *rest, _ = call.args
    only = [i == j for j in range(3)]

    def multiply(a: Array, b: Array, x: Array = x, weight: Array = weight) -> Array:
        pair = (x, b) if i == 0 else (b, weight)
        return call.func(a, *pair, bias, *rest, only)[i]

    return multiply


def _thin(multiply: Callable[..., Array], x: Array, weight: Array, i: int) -> Callable[..., Array]:
    """Return that function for a second argument of ones: the channels of the input are alike."""
    x1, weight1 = x[:, :1], weight[:, :1]
    full = x.shape if i == 0 else weight.shape
    return lambda a, b: multiply(a, b[:, :1], x1, weight1).expand(full)


def attention_backward(
    mode: Masking,
    cotangent: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    logsumexp: Array,
    *options: Any,
    attn_mask: Any = None,
    scale: Any = None,
) -> tuple[Array, Array, Array]:
    """Return the gradients of attention without dropout, which its kernel on CPUs has none of."""
    _, is_causal = options
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    heads = key.shape[1]
    shared = query.shape[1] // heads
    key, value = (x.repeat_interleave(shared, 1) for x in (key, value))
    scores = query @ key.mT * scale
    if attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.exp(scores - logsumexp[..., None]).to(query.dtype)
    if is_causal:
        weights = without_future(mode, weights)
    of_value = (weights.mT @ cotangent).unflatten(1, (heads, shared)).sum(2)
    change = cotangent @ value.mT - (cotangent * out).sum(-1, keepdim=True)
    of_scores = weights * change * scale
    of_key = (of_scores.mT @ query).unflatten(1, (heads, shared)).sum(2)
    return of_scores @ key, of_key, of_value


def without_future(mode: Masking, weights: Array) -> Array:
    """Return weights in which keys after their query are absent: nothing has selected them."""
    past = torch.ones(weights.shape[-2:], dtype=torch.bool, device=weights.device).tril()
    weights = torch.where(past, weights, 0)
    mode.state(weights, past.expand(weights.shape))
    return weights


OWN_PARTS = {"_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward}

# The classes of operations. What is not here is unknown.
CLASSES: dict[Callable[[Call], Any], str] = {
    same: "neg clone _to_copy conj_physical _conj_physical lift_fresh alias_copy",
    copy: "copy",
    zero: "zero",
    add: "add sub",
    total: "sum mean",
    select: "where",
    fill: "masked_fill index_fill",
    threshold: "threshold_backward",
    scale: """
        mul div tanh_backward sigmoid_backward gelu_backward silu_backward elu_backward
        leaky_relu_backward hardtanh_backward hardswish_backward hardsigmoid_backward
        xlogy special_xlog1py soft_margin_loss_backward rrelu_with_noise_backward
        softplus_backward softshrink_backward hardshrink_backward mish_backward
        log_sigmoid_backward logit_backward mse_loss_backward smooth_l1_loss_backward
        huber_loss_backward binary_cross_entropy_backward native_dropout_backward
    """,
    transport: """
        index _unsafe_index gather index_select take flip roll repeat cat stack constant_pad_nd
        cumsum _reshape_copy view_copy
        slice_backward select_backward diagonal_backward unfold_backward
        slice_scatter select_scatter diagonal_scatter as_strided_scatter
        index_put _index_put_impl _unsafe_index_put put scatter scatter_add index_add index_copy
        masked_scatter masked_scatter_backward masked_select embedding_dense_backward
        max_pool2d_with_indices_backward max_pool3d_with_indices_backward
        avg_pool2d_backward avg_pool3d_backward
        _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
        adaptive_max_pool2d_backward adaptive_max_pool3d_backward
        fractional_max_pool2d_backward fractional_max_pool3d_backward
        reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward
        replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward
        _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward
        _upsample_nearest_exact3d_backward rot90 diag_embed pixel_shuffle pixel_unshuffle
        channel_shuffle
        upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
        nll_loss_backward nll_loss2d_backward col2im im2col
    """,
    triangle: "tril triu",
    batched: "linalg_solve_triangular linalg_lu_solve cholesky_solve",
    spectral: "_fft_c2c _fft_r2c _fft_c2r",
    matrix: "mm bmm",
    contract: "mv dot vdot",
    convolve_backward: "convolution_backward",
    normalized: "_softmax_backward_data _log_softmax_backward_data",
    layer_norm_backward: "native_layer_norm_backward",
    decompose: """
        native_group_norm_backward native_batch_norm_backward batch_norm_backward
        _fused_rms_norm_backward glu_backward _prelu_kernel_backward linalg_cross addmm baddbmm
        addmv addcmul _unsafe_masked_index _unsafe_masked_index_put_accumulate
        _scaled_dot_product_flash_attention_for_cpu_backward
    """,
}
RULES = {name: rule for rule, names in CLASSES.items() for name in names.split()}

# Which arguments an operation is linear in, and which hold entries; (0,) if it is not here.
LINEAR_IN = {"mul": (0, 1)}
BATCHED_IN = {"linalg_solve_triangular": 1, "linalg_lu_solve": 2, "cholesky_solve": 0}
ENTRIES = {
    "index_put": (0, 2),
    "_index_put_impl": (0, 2),
    "_unsafe_index_put": (0, 2),
    "scatter": (0, 3),
    "scatter_add": (0, 3),
    "index_add": (0, 3),
    "index_copy": (0, 3),
    "masked_scatter": (0, 2),
    "slice_scatter": (0, 1),
    "select_scatter": (0, 1),
    "diagonal_scatter": (0, 1),
    "as_strided_scatter": (0, 1),
}
# Operations whose result has no entry but those of the argument.
FILLS_NOTHING = words(
    """
    index _unsafe_index gather index_select take flip roll repeat cat stack cumsum view_copy
    _reshape_copy masked_select slice_scatter select_scatter diagonal_scatter
    """
)
