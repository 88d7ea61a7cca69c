"""Masked backward passes in a process group, whose ranks reduce or exchange gradients."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import distributed
from torch.utils.weak import WeakTensorKeyDictionary

from safeops._backends.torch import private
from safeops._core.types import Array
from safeops.autodiff._options import report_unknown
from safeops.autodiff.torch._evaluator import BY_NAMESPACE, Call, unknown
from safeops.autodiff.torch._masks import folded, is_partial, spread, tensors_of
from safeops.autodiff.torch._nodes import attached, words
from safeops.autodiff.torch._sharded import is_sharded, local_of
from safeops.autodiff.torch._tags import Tags, leaf_of, name_of

# The node of FSDP2 that moves a gradient away as soon as it is made, also in a group of one rank.
MOVES_GRADIENTS = "RegisterPostBackwardFunctionBackward"
# The nodes that reduce the gradient of a parameter; no formula runs after them.
LAST = ("torch::autograd::AccumulateGrad", MOVES_GRADIENTS)
# Where this rank alone has reached a leaf, before the reduction over ranks.
LOCAL_MASKS: Any = WeakTensorKeyDictionary()


def in_group() -> bool:
    """Whether there is a process group, even of one rank."""
    return bool(distributed.is_available() and distributed.is_initialized())


def ranks() -> int:
    """Return the number of processes in the group; 1 without a group."""
    return distributed.get_world_size() if in_group() else 1


def rank() -> int | None:
    """Return the rank of this process in a group of several."""
    return distributed.get_rank() if ranks() > 1 else None


def require_one_rank(nodes: Iterable[Any]) -> None:
    """
    Raise RuntimeError if `lazy` cannot work: in a group of ranks, or where FSDP2 moves gradients.

    The reducer of DDP takes part in the first backward pass after a forward pass, and in no other:
    the second pass of `lazy` would leave on each rank its own gradient. And a rank that needs no
    second pass, while others start one, leaves these waiting.
    """
    reason = ""
    if ranks() > 1:
        reason = (
            f"one of {ranks()} ranks, which may decide differently, and whose second pass would "
            "not be reduced"
        )
    elif any(name_of(node) == MOVES_GRADIENTS for node in nodes):
        reason = "parameters of FSDP2, which moves gradients away during the pass"
    if reason:
        msg = f"expected lazy=True in one process without hooks on gradients, got {reason}; "
        raise RuntimeError(msg + WAY_OUT)


WAY_OUT = "pass lazy=False, whose one pass is right on all ranks"


def require_kept_gradients(leaves: Iterable[Array]) -> None:
    """Raise RuntimeError where FSDP2 has moved the gradient of a leaf, so that its mask is lost."""
    if any(
        leaf.grad is None and leaf in LOCAL_MASKS and LOCAL_MASKS[leaf] is not None
        for leaf in leaves
    ):
        msg = (
            "expected gradients that stay on their leaves, got some that FSDP2 moved away, without "
            "their masks; the gradients are in place: pass return_mask=False to get no masks"
        )
        raise RuntimeError(msg)


@contextmanager
def recording_local_masks(nodes: Iterable[Any], tags: Tags) -> Iterator[None]:
    """Record where this rank reaches each leaf, before its gradient is reduced over ranks."""
    if not in_group():
        yield
        return
    pairs = [(node, leaf_of(node)) for node in nodes]
    pairs = [(node, leaf) for node, leaf in pairs if leaf is not None]
    for _, leaf in pairs:
        if leaf.grad is None:
            LOCAL_MASKS[leaf] = None
    with attached(node.register_prehook(partial(note, leaf, tags)) for node, leaf in pairs):
        yield


def note(leaf: Array, tags: Tags, cotangents: Sequence[Any]) -> None:
    """Add the active entries of a leaf's cotangent to those of earlier passes."""
    (cotangent,) = map(local_of, cotangents)
    if cotangent is None or is_sharded(leaf):
        return
    active, earlier = tags.read(cotangent), LOCAL_MASKS.get(leaf)
    mask = spread(True if active is None else active, cotangent).clone()
    LOCAL_MASKS[leaf] = mask if earlier is None else mask | earlier


def local_mask(leaf: Array) -> Array | None:
    """Return where this rank has reached a leaf with a gradient; None if unknown."""
    known = LOCAL_MASKS.get(leaf)
    return None if known is None else known.clone()


def union_over(group: Any, mask: Array | None, like: Array) -> Array | None:
    """Return where a mask is active on any rank; None if no rank has a mask."""
    known = torch.full((1,), mask is not None, dtype=torch.uint8, device=like.device)
    here = like.new_zeros(like.shape, dtype=torch.uint8) if mask is None else mask.to(torch.uint8)
    every = torch.cat((here.reshape(-1), known))
    distributed.all_reduce(every, distributed.ReduceOp.MAX, group=group)
    return every[:-1].reshape(like.shape) != 0 if every[-1] else None


def reduced(call: Call) -> Any:
    """Reduce gradients between ranks, in place: all of the result counts as active."""
    # An entry that is absent on this rank may be a number on another. ``on_unknown="error"`` warns
    # only: an exception on one rank would leave the others waiting.
    value = call.run()
    if call.name in SENDS:
        return value
    for x in tensors_of(call.args[0]):  # the schemas do not tell that these are written (2.13)
        call.mode.state(x, active=True)
    node = private.current_node()
    last = node is None or name_of(node) in LAST
    if any(map(is_partial, call.masks.values())) and not last:
        tell_once(call)
    return value


def tell_once(call: Call) -> None:
    """Report once for each operation that absent entries go to other ranks as zeros."""
    if call.name in call.mode.reported:
        return
    call.mode.reported.add(call.name)
    msg = (
        f"{call.name} between ranks: absent entries count as zeros in it, and a NaN may stay that "
        "nothing selected"
    )
    report_unknown(msg, "warn" if call.mode.on_unknown == "error" else call.mode.on_unknown)


def in_a_stage() -> bool:
    """Whether a pipeline schedule calls, which sends absent entries to another stage as zeros."""
    if not in_group():
        return False
    frame: Any = sys._getframe()  # noqa: SLF001  (`inspect` reads source files too)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("torch.distributed.pipelining"):
            return True
        frame = frame.f_back
    return False


def tell_of_stage(on_unknown: str) -> None:
    """Report that masks end at a stage; an exception would leave the other stages waiting."""
    msg = (
        "masks end with a stage of a pipeline: absent entries are sent as zeros to the "
        "stage before, where a NaN may stay that nothing selected; use safe operations in it"
    )
    report_unknown(msg, "warn" if on_unknown == "error" else on_unknown)


def exchanged(call: Call) -> Any:
    """Exchange entries between the parts of a DTensor, and their masks in the same way."""
    if call.name not in EXCHANGES or 0 not in call.masks:
        return unknown(call)
    value = call.run()
    mask = spread(call.active(0), call.args[0]).to(torch.uint8).contiguous()
    rest = ["max" if x in SUMS else x for x in call.args[1:]]
    active = private.wait_tensor(call.func(mask, *rest))
    call.mode.state(value, folded(active != 0))
    return value


SENDS = words("send barrier monitored_barrier_")
EXCHANGES = words(
    "all_reduce all_gather_into_tensor reduce_scatter_tensor all_to_all_single broadcast"
)
SUMS = ("sum", "avg")
BY_NAMESPACE.update({"c10d": reduced, "_c10d_functional": exchanged})
