"""
An ordinary backward pass before the masked one, where nobody can tell that there were two.

Where the ordinary gradient is finite the masked one is equal to it, and takes two to three times as
long in eager mode. So the ordinary pass runs first, if no code of others runs in it: it returns
gradients, and what they are added to is as it was until they are known to be finite. What is asked
beforehand, each time, and why; one no, and the pass is masked from the start:

- Options: `lazy` is not False, and nobody wants masks or a graph of the gradient, which an ordinary
  pass has not, nor an error from an operation without a rule, which it does not meet.
- Inputs are leaves, as what is added elsewhere would go on through the graph, and have no hooks:
  these see a gradient when it is returned, and again when it is added.
- No inference mode, in which what frees the graph and adds gradients has no nodes, nor inputs that
  were made there.
- No forward mode: a gradient that is finite may have a tangent that is not.
- No output retains its gradient. A tensor on the way that does cannot be seen: see `Second`. Where
  all that is added is finite, it keeps the ordinary gradient, NaN included.

With ``lazy=True`` that is all. By default:

- No process group: another rank may decide differently, and wait.
- No anomaly detection, no mode, no hooks for what is saved now: they see each pass.
- Inputs and outputs are plain tensors on a CPU: what is asked of a device has to be waited for, and
  was not measured. No copy that may come from a device, where there is one.
- No hook was registered since this thread has masked a pass, and all nodes are younger than that.
  No node tells of its hooks, but PyTorch counts all that are made. Nodes are numbered in each
  thread, so that hooks on those of another one are never known while it runs (daemons, such as
  loaders of data and progress bars, make none).
- Each node is a formula of PyTorch, in C++, or of this package. One that is Python is somebody's;
  an in-place write into a view hides what it has saved; an embedding bag may be finite and wrong.
- What nodes have saved are plain tensors, without hooks: a checkpoint, or what moves tensors away,
  is a hook, and the class of a tensor may run Python. Versions of PyTorch that do not tell (2.9)
  mask from the start.

What is not asked: whether an operator of PyTorch was replaced by Python, which then runs twice,
whether a profiler counts formulas, which then sees those of both passes, and whether a hook that
this thread takes for known is on a node of a daemon, or of a thread that has ended, with a number
that this thread has given since: it runs twice where the ordinary gradient is not finite.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import torch

from safeops._backends.torch import private
from safeops._core.types import Array
from safeops.autodiff.torch._evaluator import Call, Kind, Masking
from safeops.autodiff.torch._graph import Graph, all_finite
from safeops.autodiff.torch._lines import LEAF
from safeops.autodiff.torch._nodes import is_foreign
from safeops.autodiff.torch._passes import EARLIER_GRADIENTS, masking
from safeops.autodiff.torch._ranks import in_group, require_one_rank
from safeops.autodiff.torch._tags import is_leaf, is_plain


class Known(threading.local):
    """How many hooks there were when a thread last masked a pass, and its next node then."""

    hooks = 0
    node = 0

    def note(self) -> None:
        """Take the hooks that are there as known: they are on graphs that are there alone."""
        others = {*threading.enumerate()} - {threading.current_thread()}
        if self.hooks != private.hooks_made() and all(thread.daemon for thread in others):
            self.hooks, self.node = private.hooks_made(), private.next_number()


KNOWN = Known()


def chosen(lazy: bool | None, *others: bool) -> bool | None:  # noqa: FBT001  (as above)
    """Return the option `lazy`: False by default if another option is of a masked pass alone."""
    return False if lazy is None and any(others) else lazy


def carried(
    first: Callable[..., Any],
    run: Callable[..., Any],
    graph: Graph,
    inputs: Sequence[Array],
    *,
    lazy: bool | None,
    keep: bool,
    add: bool = False,
    **how: Any,
) -> tuple[Any, Any]:
    """Return the gradients of `first`, or else what a masked pass makes, and the mode of that."""
    # The mode is None if it was `first`, which returns gradients; with `add` they are then added.
    if lazy:
        require_one_rank(graph.nodes)
    is_tried = (
        lazy is not False
        and not torch.is_inference_mode_enabled()
        and private.forward_level() < 0
        and all(map(is_bare, inputs))
        and not any(y.retains_grad for y in graph.outputs)
        and (lazy or is_unseen(graph, inputs))
    )
    if is_tried and (found := finite(first, inputs)) is not None:
        to = leaves_to(inputs, found, keep=keep) if add else ([], [])
        settle(graph, inputs, *to, is_over=lazy is None and not keep)
        return found, None
    how["kind"] = Second if is_tried else Masking
    with masking(graph.nodes, graph.outputs, graph.cotangents, **how) as mode:
        found = run(retain_graph=keep)
    KNOWN.note()
    return found, mode


def finite(first: Callable[..., Any], inputs: Sequence[Array]) -> Any:
    """Return the gradients of an ordinary pass if all are known to be finite, else None."""
    try:
        found = first(retain_graph=True)
        # Those of a leaf that has got other data since may be added by a masked pass alone.
        fit = all(g is None or is_like(g, x) for g, x in zip(found, inputs, strict=True))
        return found if fit and all_finite(found) else None
    except (RuntimeError, ValueError):  # of a NaN that is not in the masked pass, of both passes,
        return None  # or of numbers of 8 bits, which PyTorch does not add up


def is_like(x: Array, other: Array) -> bool:
    return x.shape == other.shape and x.dtype is other.dtype


def is_bare(x: Any) -> bool:
    """Whether an input is a tensor, a leaf without hooks, and not of inference mode."""
    if not isinstance(x, torch.Tensor) or not (x.is_leaf and x.requires_grad):
        return False
    return not (private.tensor_hooks(x) or private.gradient_hooks(x) or x.is_inference())


def is_unseen(graph: Graph, inputs: Sequence[Array]) -> bool:
    """Whether no code of others runs in an ordinary pass, as the text above has it."""
    return not (
        private.hooks_made() != KNOWN.hooks
        or in_group()
        or torch.is_anomaly_enabled()
        or private.is_in_mode()
        or private.hooks_saving()
        or not all(map(is_usual, (*graph.outputs, *graph.cotangents, *inputs)))
        or not are_silent(graph.nodes)
    )


def is_usual(x: Any) -> bool:
    """Whether a tensor, if it is there, is one that runs no Python, and has numbers at hand."""
    return x is None or (type(x) in PLAIN and x.is_cpu and is_plain(x))


PLAIN = frozenset([torch.Tensor, torch.nn.Parameter, type(None)])


def are_silent(nodes: Iterable[Any]) -> bool:
    """Whether nodes have no hooks, and their formulas call no code of others."""
    first, last = KNOWN.node, private.next_number()
    for node in nodes:
        kind: Any = type(node)
        names = names_if_silent(kind)
        if names is None or not private.are_saved_in(PLAIN, node, names):
            return False
        # A leaf does not run: gradients are added later, once, with its hooks.
        number = private.number_of_node(node)
        if not (first <= number < last or number == LEAF):
            return False
    return True


@cache
def names_if_silent(kind: type) -> tuple[str, ...] | None:
    """Return the names of what nodes of a class have saved; None if they may not run twice."""
    if issubclass(kind, private.Custom):
        is_known = private.forward_class(kind).__module__.startswith("safeops.")
    elif kind.__name__ in BETWEEN_DEVICES:
        is_known = not torch.accelerator.is_available()
    else:  # the classes of PyTorch's own formulas have numbers
        is_formula = kind.__name__[:-1].endswith("Backward") and kind.__name__ != BAG
        is_known = is_formula or kind.__name__ == "AccumulateGrad"
    return private.names_of_saved(kind) if is_known else None


BETWEEN_DEVICES = ("ToCopyBackward0", "CopyBackwards")
BAG = "EmbeddingBagBackward0"  # by frequency (2.13)


def settle(
    graph: Graph, inputs: Sequence[Array], ends: list[Array], given: list[Any], *, is_over: bool
) -> None:
    """Add gradients to inputs, and free a graph that is over, by one pass of the engine."""
    # So hooks of leaves run, and other threads may add too. What frees has no cotangent, without
    # which formulas compute nothing.
    outputs = graph.outputs if is_over and graph.nodes else ()
    with torch.enable_grad():
        over = [private.without_gradient(y) for y in outputs]
    every = [*ends, *over], [*given, *(y.detach() for y in outputs)]
    to = () if inputs is graph.leaves else inputs
    private.run_engine(*every, to, accumulate=bool(ends))
    for x in inputs if ends else ():
        if x.grad is not None and EARLIER_GRADIENTS.find(x.grad) is not None:
            EARLIER_GRADIENTS.drop(x.grad)  # the mask of an ordinary pass is unknown


def leaves_to(
    inputs: Sequence[Array], gradients: Sequence[Any], *, keep: bool
) -> tuple[list[Array], list[Any]]:
    """Return where the engine adds gradients, and these."""
    # It would copy a first gradient, as somebody holds that, into the strides of the leaf. So one
    # that is large, or has others, becomes a view, by a node that leaves strides alone. Where
    # another gradient, or a graph that is kept, may share its memory, it has to copy.
    unique = {id(x): (x, g) for x, g in zip(inputs, gradients, strict=True) if g is not None}
    ends, given = [x for x, _ in unique.values()], [g for _, g in unique.values()]
    pairs = enumerate(zip(ends, given, strict=True))
    views = [] if keep else [i for i, (x, g) in pairs if x.grad is None and is_moved(g, x)]
    owners = Counter(map(memory_of, given)) if views else {}
    with torch.enable_grad():
        for i in views:
            if owners[memory_of(given[i])] == 1:
                ends[i] = ends[i].permute(tuple(range(ends[i].ndim)))
    return ends, given


def is_moved(gradient: Array, x: Array) -> bool:
    """Whether a first gradient is worth a view, or has strides that a copy has not."""
    return is_plain(gradient) and (gradient.numel() > SMALL or gradient.stride() != x.stride())


SMALL = 1 << 12  # entries, which are copied as fast as a node is made


def memory_of(x: Array) -> int | None:
    """Return a number for the memory of a tensor, which its views have too; None if sparse."""
    return private.storage_id(x.untyped_storage()) if is_plain(x) else None


class Second(Masking):
    """The mode of a masked pass after an ordinary one; what that has left must not count twice."""

    def evaluate(self, call: Call, kind: Kind) -> Any:
        if call.name != "add" or not self.is_of_retained(call):
            return super().evaluate(call, kind)
        ordinary, new = call.args[:2]
        if not is_alone(ordinary, new):
            raise RuntimeError(RETAINED)
        with self:
            return new.clone()

    def is_of_retained(self, call: Call) -> bool:
        """Whether PyTorch adds a gradient to that of a tensor with `retain_grad`."""
        # No formula adds a cotangent to a coefficient, and no node tells that somebody retains.
        earlier, new = call.args[:2]
        known = self.active(earlier) is not None or not isinstance(earlier, torch.Tensor)
        if known or self.active(new) is None or call.is_literal_zero(earlier):
            return False
        return not (call.node is None or is_leaf(call.node) or is_foreign(call.node))


def is_alone(ordinary: Array, masked: Array) -> bool:
    """Whether a retained gradient is of the ordinary pass alone, as its finite entries tell."""
    # They are those of the masked pass, but for rounding. Zeros tell nothing of entries that are
    # NaN.
    finite = ordinary.isfinite()
    if not ordinary.numel():
        return True
    size = torch.where(finite, masked, 0.0).abs().max().item()
    away = torch.where(finite, ordinary - masked, 0.0).abs().max().item()
    tells = size > 0.0 or bool(finite.all())
    eps = torch.finfo(masked.dtype).eps
    return tells and away <= size * min(64 * eps, eps**0.5)  # in half precision the root is less


RETAINED = (
    "expected gradients of leaves alone, got a tensor on the way with retain_grad(), whose earlier "
    "gradient cannot be told from what the ordinary pass has added; pass lazy=False, whose one "
    "pass is masked"
)
