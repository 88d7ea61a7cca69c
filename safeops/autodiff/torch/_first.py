"""
An ordinary backward pass before the masked one, where nobody can tell that there were two.

Where the ordinary gradient is finite the masked one is equal to it, and takes two to three times as
long in eager mode. So the ordinary pass runs first, if a second one would repeat no work of others:
no hook, no function of the user, nothing of a checkpoint, no other process. What of these is known
beforehand is asked beforehand. The rest is Python that the engine calls: it ends the pass before it
runs, and the masked pass is the first that it sees.
"""

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from safeops._backends.torch import private
from safeops._typing import Array
from safeops.autodiff.torch._evaluator import Call, Kind, Masking
from safeops.autodiff.torch._graph import Graph
from safeops.autodiff.torch._nodes import APPLY, is_foreign
from safeops.autodiff.torch._passes import masking
from safeops.autodiff.torch._ranks import in_group, require_one_rank
from safeops.autodiff.torch._tags import is_leaf, is_plain

# Leaves in whose backward pass Python ran: it will run in the next one too.
MET: Any = WeakTensorKeyDictionary()


class Known(threading.local):
    """The hooks that a thread has seen, and the number of the first node made after them."""

    hooks = private.hooks_made()
    number = 0

    def note(self) -> None:
        """Take the hooks that are there as known: they are on graphs that are there alone."""
        if self.hooks != private.hooks_made():
            self.hooks, self.number = private.hooks_made(), private.next_number()


KNOWN = Known()
# Held during an ordinary pass, after which gradients may be restored: what another thread adds to
# them meanwhile would be lost. No Python of others runs in it, so that it waits for nobody.
ALONE = threading.RLock()
MASKED: list[None] = []  # one for each masked pass that runs


class PythonRunsError(Exception):
    """The engine was about to call Python code that is not ours."""


def chosen(lazy: bool | None, *others: bool) -> bool | None:  # noqa: FBT001  (as above)
    """Return the option `lazy`: False by default if another option is of a masked pass alone."""
    return False if lazy is None and any(others) else lazy


def carried(
    run: Callable[..., Any],
    attempt: Callable[..., Any],
    graph: Graph,
    inputs: Sequence[Array],
    *,
    lazy: bool | None,
    keep: bool,
    **how: Any,
) -> tuple[Any, Any]:
    """Return what a pass makes, and the mode in which it was masked, None if it was not."""
    found, kind = tried(lazy, attempt, run, graph, inputs)
    if found is not None:
        if lazy is None and not keep:
            free(graph, inputs)
        return found, None
    seeds = (graph.outputs, graph.cotangents)
    with not_alone(), masking(graph.nodes, *seeds, kind=kind, **how) as mode:
        found = run(retain_graph=keep)
    return found, mode


@contextmanager
def not_alone() -> Iterator[None]:
    """Context in which a masked pass runs, and no ordinary one of another thread."""
    with ALONE:
        MASKED.append(None)
    try:
        yield
    finally:
        MASKED.pop()
        KNOWN.note()


def tried(
    lazy: bool | None,  # noqa: FBT001  (the option as it was given)
    attempt: Callable[..., Any],
    run: Callable[..., Any],
    graph: Graph,
    inputs: Sequence[Array],
) -> tuple[Any, type[Masking]]:
    """Return what an ordinary pass makes, None if it has to be masked; and the mode for that."""
    if lazy:
        require_one_rank(graph.nodes)
        return attempt(run, graph, inputs), Second
    if lazy is False or not is_unseen(graph, inputs):
        return None, Masking
    try:
        with ALONE:
            if MASKED:
                return None, Masking
            return attempt(partial(watched, run), graph, inputs), Second
    except PythonRunsError:
        MET.update(dict.fromkeys((*graph.leaves, *inputs), True))
    except RuntimeError:  # of a NaN that the masked pass does not meet, or of both passes
        pass
    return None, Second


def is_unseen(graph: Graph, inputs: Sequence[Array]) -> bool:
    """Whether nothing that is known beforehand would notice a second pass."""
    leaves = graph.leaves if inputs is graph.leaves else (*graph.leaves, *inputs)
    return not (
        private.hooks_made() != KNOWN.hooks
        or in_group()
        or torch.is_anomaly_enabled()
        or private.is_in_mode()
        or sys.getprofile() is not None
        or any(y.retains_grad for y in graph.outputs)
        or not all(x.is_leaf and is_quiet(x) for x in leaves)
        or not all(map(is_quiet, graph.outputs))
        or any(map(is_seen, set(map(type, graph.nodes))))
        or any(private.number_of_node(node) < KNOWN.number for node in graph.nodes)
    )


def is_quiet(x: Array) -> bool:
    """Whether a tensor is a plain one without hooks; on a device the engine has other threads."""
    plain = type(x) in PLAIN and x.is_cpu and is_plain(x) and not (MET and x in MET)
    return plain and not private.tensor_hooks(x) and not private.gradient_hooks(x)


PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_seen(kind: type) -> bool:
    """Whether nodes are Python code of others, or PyTorch's gradient may be finite and wrong."""
    if issubclass(kind, private.Custom):
        return not is_of_safeops(kind)
    if kind.__name__ in BETWEEN_DEVICES:
        return torch.accelerator.is_available()
    return kind.__name__ == "EmbeddingBagBackward0"  # by frequency (2.13)


# Where a program may come back from a device, in whose thread of the engine no profile function is.
BETWEEN_DEVICES = ("ToCopyBackward0", "CopyBackwards", "CopySlices")


def is_of_safeops(node: Any) -> bool:
    """Whether a custom function, or the class of its nodes, is one of this package."""
    return private.forward_class(node).__module__.startswith("safeops.")


def watched(run: Callable[..., Any], **how: Any) -> Any:
    """Run a backward pass, and raise PythonRunsError before it calls Python that is not ours."""
    collects = gc.isenabled()
    gc.disable()  # what it calls would count as called by the engine (before Python 3.12)
    sys.setprofile(Profile())
    try:
        return run(**how)
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()


class Profile:
    """A profile function, which is told of each call before it begins."""

    def __init__(self) -> None:
        # In how many runs of the engine: the backward method of a function may start another one.
        # Outside, a signal may call Python where the engine has returned.
        self.depth = 0

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        """Take note of one event."""
        if event != "call":
            if getattr(arg, "__name__", None) == "run_backward":
                self.depth += 1 if event == "c_call" else -1
        elif self.depth and is_called_by_engine(frame) and not is_ours(frame):
            raise PythonRunsError


def is_called_by_engine(frame: FrameType) -> bool:
    """Whether no Python stands between a call and the engine."""
    return frame.f_back is not None and frame.f_back.f_code.co_name == private.ENGINE


def is_ours(frame: FrameType) -> bool:
    """Whether a call is of the backward method of a function of this package."""
    return frame.f_code in APPLY and is_of_safeops(frame.f_locals["self"])


def free(graph: Graph, inputs: Sequence[Array]) -> None:
    """Free the graph by a backward pass without cotangents, in which formulas compute nothing."""
    if not graph.nodes:
        return
    with torch.enable_grad():
        ends = [private.without_gradient(y) for y in graph.outputs]
    with suppress(RuntimeError):  # a gradient that the graph has saved has been added to
        torch.autograd.grad(ends, inputs, graph.cotangents, allow_unused=True)


class Second(Masking):
    """The mode of a masked pass after an ordinary one; what that has left must not count twice."""

    def evaluate(self, call: Call, kind: Kind) -> Any:
        """Run one operation."""
        if call.name != "add" or not self.is_of_retained(call):
            return super().evaluate(call, kind)
        ordinary, new = call.args[:2]
        if not is_alone(ordinary, new):
            raise RuntimeError(RETAINED)
        with self:
            return new.clone()

    def is_of_retained(self, call: Call) -> bool:
        """
        Whether PyTorch adds a gradient to that of a tensor with `retain_grad`.

        No formula adds a cotangent to a coefficient, and no node tells that somebody retains.
        """
        earlier, new = call.args[:2]
        known = self.active(earlier) is not None or not isinstance(earlier, torch.Tensor)
        if known or self.active(new) is None or call.is_literal_zero(earlier):
            return False
        return not (call.node is None or is_leaf(call.node) or is_foreign(call.node))


def is_alone(ordinary: Array, masked: Array) -> bool:
    """
    Whether a retained gradient is of the ordinary pass alone, as its finite entries tell.

    They are those of the masked pass, but for rounding. Zeros tell nothing of entries that are NaN.
    """
    finite = ordinary.isfinite()
    if not ordinary.numel():
        return True
    size = torch.where(finite, masked, 0.0).abs().max().item()
    away = torch.where(finite, ordinary - masked, 0.0).abs().max().item()
    tells = size > 0.0 or bool(finite.all())
    return tells and away <= size * torch.finfo(masked.dtype).eps ** 0.5


RETAINED = (
    "expected gradients of leaves alone, got a tensor on the way with retain_grad(), whose earlier "
    "gradient cannot be told from what the ordinary pass has added; pass lazy=False, whose one "
    "pass is masked"
)
