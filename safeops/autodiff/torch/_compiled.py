"""
Masked backward passes that `torch.compile` compiles.

AOTAutograd runs the engine once, over tensors without numbers, and records the operations that the
engine runs: the joint graph. Here the dispatch mode of the eager evaluator is active meanwhile, so
that the operations of its rules are recorded too. Where eager mode looks at numbers to do less
work, a traced pass does all of the work.

What a slice leaves out depends on no number, nor does what becomes of that mask, layer by layer.
An operation on such masks alone runs at once, and one that meets tensors of the program gets a
comparison of places in its stead: as operations they would be more than all else in the program.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from safeops._backends.torch import private
from safeops._backends.torch.private import TorchDispatchMode
from safeops._core.types import Array
from safeops.autodiff._options import Reaction, check_options, report_unknown
from safeops.autodiff._small import LARGEST, narrowed, reshaped
from safeops.autodiff.torch._compiled_edges import active_of, noted, with_active
from safeops.autodiff.torch._evaluator import Call, Kind, Masking
from safeops.autodiff.torch._graph import nodes_of
from safeops.autodiff.torch._masks import MARK, is_known, is_partial, spread, tensors_of, thin
from safeops.autodiff.torch._nodes import words
from safeops.autodiff.torch._passes import customs_known
from safeops.autodiff.torch._tags import Entry, Mask, Tags, place_of

RUNS = 4  # of entries side by side; a mask of more is a constant and not made by comparisons


def marked(x: Any, device: torch.device) -> Any:
    """Mark what an operation has made of known tensors."""
    for y in tensors_of(x):
        setattr(y, MARK, device)
    return x


@private.unseen_mode
class Knowing(TorchDispatchMode):
    """A mode that computes with known tensors, and puts them where the program needs them."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[Any, Array] = {}

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether compiled functions run under the mode."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        options = kwargs or {}
        tensors = tensors_of((args, options))
        known = [x for x in tensors if is_known(x)]
        if not known:
            return truth(args, options) if is_truth(func, args) else func(*args, **options)
        if len(known) == len(tensors) and is_worth_it(func, known, args):
            with private.without_modes():
                return marked(func(*args, **options), getattr(known[0], MARK))
        if private.schema(func).is_mutable and is_known(args[0]):
            msg = f"{func} writes a value of the program into a mask that is known"
            raise AssertionError(msg)
        args, options = private.tree_map(self.in_program, (args, options))
        return func(*args, **options)

    def in_program(self, x: Any) -> Any:
        """Return a known tensor as the program has it, and anything else as it is."""
        if not is_known(x):
            return x
        with private.without_modes():
            entries = thin(x)
            ones = (entries != 0).numpy()
            plain = bool((entries == (entries != 0)).all())
        device = getattr(x, MARK)
        if not plain:
            return torch.tensor(entries.tolist(), dtype=x.dtype).to(device).expand(x.shape)
        # A branch of `cond` has a trace of its own.
        trace = private.dispatch_mode(private.mode_keys.PROXY)
        key = (trace, device, x.dtype, x.shape, ones.shape, ones.tobytes())
        if key not in self.made:
            self.made[key] = at_places(ones, device).to(x.dtype).expand(x.shape)
        return self.made[key]


def is_truth(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operation makes the one number of a mask that is the same everywhere."""
    return func is torch.ops.aten.full.default and not args[0] and isinstance(args[1], bool)


def truth(args: tuple[Any, ...], options: dict[str, Any]) -> Array:
    """Return that number, known."""
    device = torch.device(options.get("device") or "cpu")
    with private.without_modes():
        made: Array = marked(torch.full((), args[1]), device)
    return made


def is_worth_it(func: Any, known: list[Array], args: tuple[Any, ...]) -> bool:
    """Whether known tensors are few enough to compute with, and sizes are numbers."""
    few = func.is_view or all(x.numel() <= LARGEST for x in known)
    return few and not any(isinstance(x, torch.SymInt) for x in private.tree_leaves(args))


def at_places(ones: np.ndarray, device: torch.device) -> Array:
    """Return a mask as the program has it; along each axis by itself if it is such a product."""
    axes = range(ones.ndim)
    factors = [np.logical_or.reduce(ones, axis=tuple({*axes} - {i}), keepdims=True) for i in axes]
    whole = np.ones(ones.shape, bool)
    for factor in factors:
        whole = whole & factor
    if not np.array_equal(whole, ones):
        factors = [ones]
    made = [compared(factor, device) for factor in factors if factor.size > 1]
    found = made[0] if made else torch.full(ones.shape, bool(ones.all()), device=device)
    for factor in made[1:]:
        found = found & factor
    return found


def compared(ones: np.ndarray, device: torch.device) -> Array:
    """Return a mask by comparisons of places, or a constant if that takes too many."""
    edges = np.flatnonzero(np.diff(ones.ravel(), prepend=False, append=False)).reshape(-1, 2)
    if len(edges) > RUNS:
        return torch.tensor(ones.tolist()).to(device)
    places = torch.arange(ones.size, device=device).view(ones.shape)
    found = None
    for start, end in edges.tolist():
        within = places >= start
        if end < ones.size:
            within = (places < end) & within if start else places < end
        found = within if found is None else found | within
    return places < 0 if found is None else found


def small(active: Array) -> Mask:
    """Return a known mask of as few entries as it has different ones, True if all are True."""
    with private.without_modes():
        entries = narrowed(thin(active).numpy())
        if entries.all():
            return True
        found: Array = torch.tensor(entries).expand(active.shape)
    return marked(found, getattr(active, MARK))


def in_form(active: Array, shape: tuple[int, ...]) -> Array:
    """Return a known mask in another shape, with no entries that it did not have."""
    with private.without_modes():
        entries = reshaped(thin(active).numpy(), tuple(active.shape), shape)
        found = torch.tensor(entries).expand(shape)
    return marked(found, getattr(active, MARK))


# Views of which the compiler makes copies.
COPIED = words("_unsafe_view")
VIEWS = COPIED | words(
    "alias detach expand permute select slice squeeze t transpose unsqueeze view"
)


class ShapedTags(Tags):
    """Tags that keep masks in the shapes in which they were stated."""

    # Eager mode keeps a mask in the order of memory, and views it in the shape of the tensor. A
    # compiler would take that view for another array, and make another kernel for it.

    def __init__(self, knowing: Knowing) -> None:
        super().__init__()
        self.knowing = knowing
        self.forms: dict[int, dict[str, Mask]] = {}

    def flat_of(self, active: Array, shape: Any) -> Array:
        """Return a mask for the memory of a tensor; it is put in order where somebody asks."""
        return active.expand(shape)

    def flat(self, earlier: Entry | None, count: int, size: int, x: Array) -> Mask:
        """Return a copy of the mask of a storage, into which the program may write."""
        flat = super().flat(earlier, count, size, x)
        return self.knowing.in_program(flat).clone() if is_known(flat) else flat

    def read(self, x: Array) -> Mask | None:
        """Return what is active in a tensor, in a known form if there is one."""
        entry = self.find(x)
        if entry is not None and isinstance(entry.active, torch.Tensor) and not entry.earlier:
            form = self.forms.get(entry.alive.cdata, {}).get(place_of(x))
            if form is not None and entry.literal_of is None:
                return form
        with self.knowing:
            return super().read(x)

    def write(self, x: Array, active: Mask) -> None:
        """State what is active in a tensor, and forget all other forms."""
        super().write(x, active)
        entry = self.find(x)
        if entry is not None:
            self.forms[entry.alive.cdata] = {}
            if isinstance(active, torch.Tensor):
                self.note_form(x, active)

    def note_form(self, x: Array, active: Mask) -> None:
        """Keep the mask of a tensor in its shape."""
        entry = self.find(x)
        if entry is not None and isinstance(entry.active, torch.Tensor):
            form = active if isinstance(active, bool) else active.expand(x.shape)
            self.forms[entry.alive.cdata][place_of(x)] = form


class TracedMasking(Masking):
    """Evaluate over pairs what the engine does while a compiler records it."""

    notes_views = True

    def __init__(self, on_unknown: Reaction, *, exact: bool) -> None:
        super().__init__(Tags(), on_unknown)
        self.exact = exact
        self.knowing = Knowing()
        self.tags: ShapedTags = ShapedTags(self.knowing)
        self.depth = 0

    def evaluate(self, call: Call, kind: Kind) -> Any:
        """Run one operation by the rule of its class, which computes with what is known."""
        if self.depth:
            return super().evaluate(call, kind)
        self.depth += 1
        try:
            with self.knowing:
                return super().evaluate(call, kind)
        finally:
            self.depth -= 1

    def state(self, value: Any, active: Mask) -> None:
        super().state(value, small(active) if is_known(active) else active)

    def apart(self, active: Mask | None, x: Array) -> Array:
        """Return a mask in memory of its own, as the program has it."""
        with self.knowing:
            return self.knowing.in_program(super().apart(active, x)).clone()

    def note_view(self, call: Call, value: Any) -> None:
        """State what is active in a view, by the same view of the mask."""
        active = self.tags.read(call.args[0]) if call.name in VIEWS else None
        if active is None:
            return
        if isinstance(active, torch.Tensor):
            active = self.viewed(call, active, value)
            self.tags.note_form(value, active)
        if call.name in COPIED:
            self.tags.write(value, active)

    @staticmethod
    def viewed(call: Call, active: Array, value: Array) -> Mask:
        """Return a view of a mask, which may have other strides than its values."""
        if "view" not in call.name:
            found = call.func(active, *call.args[1:])
        elif is_known(active) and all(type(n) is int for n in value.shape):
            found = in_form(active, tuple(value.shape))
        else:
            found = active.reshape(value.shape)
        return small(found) if is_known(found) else found

    def report(self, call: Call) -> None:
        """Say that an operation without a rule met absent entries, and for which line of a user."""
        if call.name in self.reported:
            return
        self.reported.add(call.name)
        line = line_of(private.traced_stack())
        msg = (
            f"no rule for {call.name}{f', for {line}' if line else ''}: absent entries count as "
            "zeros in it, and a NaN may stay that nothing selected"
        )
        report_unknown(msg, self.on_unknown)


def line_of(stack: list[str]) -> str:
    """Return the innermost line of a user in a stack that a compiler has kept, as one line."""
    text = "".join(stack).strip().splitlines()
    files = [i for i, line in enumerate(text) if line.lstrip().startswith('File "')]
    inside = torch.__path__[0]  # a custom operation of PyTorch 2.9 is called by a line of PyTorch
    places = [i for i in files if f'File "{inside}' not in text[i]]
    return " ".join(line.strip() for line in text[places[-1] :][:2]) if places else ""


class MaskJointGraph(TorchFunctionMode):
    """Mask the backward pass that AOTAutograd traces, and no other."""

    def __init__(self, on_unknown: Reaction, *, exact: bool = False, edges: bool = False) -> None:
        super().__init__()
        self.on_unknown = on_unknown
        self.exact = exact
        self.edges = edges

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        options = kwargs or {}
        if func is not torch.autograd.grad or not is_of_joint():
            return func(*args, **options)
        nodes = nodes_of(args[0])
        mode = TracedMasking(self.on_unknown, exact=self.exact)
        given = options["grad_outputs"]
        for i, g in enumerate(given):
            mode.tags.write(g, active_of(g, i, len(given)) if self.edges else True)
        with mode, customs_known(nodes, mode.tags):
            found = func(*args, **options)
        return tuple(with_mask(mode, g) for g in found) if self.edges else found


def with_mask(mode: TracedMasking, x: Any) -> Any:
    """Return a gradient of a compiled graph, which states there what of it is active."""
    with mode.knowing:
        active = None if x is None else mode.tags.read(x)
        return with_active(x, spread(active, x)) if is_partial(active) else x


def is_of_joint() -> bool:
    """Whether AOTAutograd asks for the backward pass of a joint graph, and not a program."""
    frame: Any = sys._getframe(1)  # noqa: SLF001  (`inspect` reads source files too)
    joint, *others = private.files_of_joint()
    between = {__file__, torch.overrides.__file__, torch.autograd.__file__, *others}
    while frame is not None and frame.f_code.co_filename in between:
        frame = frame.f_back
    return frame is not None and bool(frame.f_code.co_filename == joint)


@dataclass(unsafe_hash=True)  # and not frozen: PyTorch notes tags on what it finds by its name
class Backend:
    """A backend of `torch.compile` that masks backward passes, and has another compile them."""

    inner: str = "inductor"
    on_unknown: Reaction = "warn"
    edges: bool = False
    exact: bool = False
    # The functions of the program that have a graph with a gradient: one, until the graph breaks.
    frames: set[Any] = field(default_factory=set, compare=False)

    @property
    def __name__(self) -> str:
        """The name that `torch.compile` shows."""
        return f"safeops over {self.inner}"

    def __call__(self, graph: Any, inputs: Any, **options: Any) -> Any:
        inner = private.lookup_backend(self.inner)
        if not self.edges and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
            self.note_frame(private.frame_of_compiler())
        if self.inner == "inductor":
            options = {"config_patches": private.options_of_inductor(**options)}
        # That cache knows a graph from before the trace, and not who traced it.
        joint = MaskJointGraph(self.on_unknown, exact=self.exact, edges=self.edges)
        with private.without_autograd_cache(), joint:
            return noted(inner(graph, inputs, **options), edges=self.edges)

    def note_frame(self, frame: Any) -> None:
        """Say once that the graph breaks, where a second function of the program has one."""
        self.frames.add(frame)
        if len(self.frames) == 2 and self is not backend:  # noqa: PLR2004  (that serves many programs)
            report_unknown(BROKEN, self.on_unknown)


BROKEN = (
    "the graph breaks, and absent entries become zeros between its parts, where a NaN may stay "
    "that nothing selected; use edges=True"
)


def compile(  # noqa: A001  (the name that PyTorch has)
    f: Callable[..., Any],
    /,
    *,
    backend: str = "inductor",
    fullgraph: bool = True,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    edges: bool = False,
    exact: bool = False,
    on_unknown: Reaction = "warn",
) -> Callable[..., Any]:
    """
    `torch.compile`, with a backward pass in which an entry that nothing selected is absent.

    Call an ordinary ``loss.backward()`` on the result; where the loss is in eager code, use
    ``edges=True`` and `backward` of this module.

    Parameters
    ----------
    f : callable or module
        What to compile. Without `edges` the loss belongs inside: a selection outside is not seen,
        and an output that nobody uses has a cotangent of zeros, which are numbers.
    backend : str, default: "inductor"
        What compiles the masked graphs: "inductor", "cudagraphs", or a backend of AOTAutograd such
        as "aot_eager", which traces and compiles nothing.
    fullgraph : bool, default: True
        Whether a graph break is an error. Otherwise masks pass from part to part with `edges`.
    dynamic, mode, options
        As for `torch.compile`.
    edges : bool, default: False
        Whether masks pass between this graph and others: parts after a graph break, other compiled
        functions, and eager code, if its backward pass is `backward` or `masked_backward` of this
        module; with ``return_mask=True`` these also return the masks of a compiled function. All of
        the graph is then masked, so it costs where nothing is selected too. Without it absent
        entries become zeros at an edge.
    exact : bool, default: False
        Whether a NaN coefficient of a matrix product or a convolution that meets absent and active
        entries of one sum spoils the active ones only. It takes three more products, or six more
        convolutions, of each one in which entries may be absent.
    on_unknown : {"warn", "error", "ignore"}, default: "warn"
        What to do, while it compiles, about an operation without a rule that meets absent entries.
        The operation runs as it is, and hides nothing.

    Returns
    -------
    callable or module
        What `torch.compile` returns.

    Raises
    ------
    ValueError
        If `on_unknown` is none of the three, or `backend` does not use AOTAutograd.

    Notes
    -----
    **Gradient.** As for `backward`, with one difference, if not `exact`: if a NaN coefficient of a
    matrix product or a convolution meets absent and active entries, both become NaN. So a
    NaN pixel that one used output reads may spoil each gradient of the weights. If nothing selects,
    the graph is that of `torch.compile`. Second derivatives raise, as they do there.

    **Source.** The joint graph of AOTAutograd, which is traced by PyTorch's own engine. Where
    safeops is installed, ``torch.compile(f, backend="safeops")`` is the same with inductor.

    Examples
    --------
    >>> import torch
    >>> f = compile(lambda x: torch.where(x > 0, x.sqrt(), 0.0).sum(), backend="aot_eager")
    >>> x = torch.tensor([0.0, 4.0], requires_grad=True)
    >>> f(x).backward()
    >>> x.grad
    tensor([0.0000, 0.2500])
    """
    check_options(on_unknown)
    if backend not in WITH_AOT and not str(backend).startswith("aot_"):
        msg = (
            f"expected backend={' or '.join(map(repr, WITH_AOT))} or one that begins with 'aot_', "
            f"got {backend!r}: masks are made where AOTAutograd traces the backward pass"
        )
        raise ValueError(msg)
    made: Callable[..., Any] = torch.compile(
        f,
        backend=Backend(backend, on_unknown, edges, exact),
        fullgraph=fullgraph,
        dynamic=dynamic,
        mode=mode,
        options=options,
    )
    return made


# What ``torch.compile(f, backend="safeops")`` finds by its entry point.
backend = Backend()
WITH_AOT = ("inductor", "cudagraphs")
