"""What a masked backward pass has to know of processes that share a gradient."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import distributed
from torch.utils.weak import WeakTensorKeyDictionary

from safeops._backends.torch import private
from safeops._typing import Array
from safeops.autodiff._options import tell
from safeops.autodiff.torch._evaluator import BY_NAMESPACE, Call, unknown
from safeops.autodiff.torch._masks import folded, is_partial, spread, tensors_of
from safeops.autodiff.torch._nodes import words
from safeops.autodiff.torch._sharded import is_sharded, local_of
from safeops.autodiff.torch._tags import Tags, leaf_of, name_of

# Of FSDP2, which moves a gradient on as soon as it is there; a group of one rank does so too.
MOVES_GRADIENTS = "RegisterPostBackwardFunctionBackward"
# The nodes in which gradients of parameters are reduced, behind which nothing comes.
LAST = ("torch::autograd::AccumulateGrad", MOVES_GRADIENTS)
# What this rank has reached of a leaf, in a process group.
HERE: Any = WeakTensorKeyDictionary()


def in_group() -> bool:
    """Whether there is a process group, be it of one rank."""
    return bool(distributed.is_available() and distributed.is_initialized())


def ranks() -> int:
    """Return how many processes work together."""
    return distributed.get_world_size() if in_group() else 1


def moves_gradients(nodes: Iterable[Any]) -> bool:
    """Whether FSDP2 takes gradients away during the pass."""
    return any(name_of(node) == MOVES_GRADIENTS for node in nodes)


def require_one_rank(nodes: Iterable[Any]) -> None:
    """
    Refuse a decision by values where a pass has collectives, or hooks that use gradients up.

    The reducer of DDP takes part in the first pass after a forward one, and in no other: each rank
    would keep what it has found alone. One that decides otherwise would wait for the others.
    """
    reason = ""
    if ranks() > 1:
        reason = (
            f"one of {ranks()} ranks, which may decide differently, and of which the second pass "
            "would not be reduced"
        )
    elif moves_gradients(nodes):
        reason = "parameters of FSDP2, which moves gradients away during the pass"
    if reason:
        msg = f"expected lazy=True in one process without hooks on gradients, got {reason}; "
        raise RuntimeError(msg + WAY_OUT)


WAY_OUT = "pass lazy=False, whose one pass is right on all ranks"


def require_gradients(leaves: Sequence[Array]) -> None:
    """Raise RuntimeError if what is decided by, the gradients, has been taken away."""
    gone = [leaf for leaf in leaves if leaf.grad is None]
    hooked = any(private.gradient_hooks(leaf) for leaf in gone)
    if gone and (hooked or in_group() or len(gone) == len(leaves)):
        msg = (
            f"expected gradients to decide by, got {len(gone)} of {len(leaves)} leaves without: a "
            f"hook or a wrapper has used them up, and a second pass would do so again; {WAY_OUT}"
        )
        raise RuntimeError(msg)


def require_kept_gradients(leaves: Iterable[Array]) -> None:
    """Raise RuntimeError where a leaf had a gradient whose mask is no longer known."""
    if any(leaf.grad is None and leaf in HERE and HERE[leaf] is not None for leaf in leaves):
        msg = (
            "expected gradients that stay on their leaves, got some that were moved away, as FSDP2 "
            "does, which has no masks; they are in place, and return_mask=False asks for no more"
        )
        raise RuntimeError(msg)


@contextmanager
def noted_here(nodes: Iterable[Any], tags: Tags) -> Iterator[None]:
    """Note what this rank reaches of each leaf, before that is reduced over ranks."""
    if not in_group():
        yield
        return
    pairs = [(node, leaf_of(node)) for node in nodes]
    pairs = [(node, leaf) for node, leaf in pairs if leaf is not None]
    for _, leaf in pairs:
        if leaf.grad is None:
            HERE[leaf] = None
    handles = [node.register_prehook(partial(note, leaf, tags)) for node, leaf in pairs]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def note(leaf: Array, tags: Tags, cotangents: Sequence[Any]) -> None:
    """Note what is active in the cotangent of a leaf, beside what an earlier pass has reached."""
    (cotangent,) = map(local_of, cotangents)
    if cotangent is None or is_sharded(leaf):
        return
    active, earlier = tags.read(cotangent), HERE.get(leaf)
    mask = spread(True if active is None else active, cotangent).clone()
    HERE[leaf] = mask if earlier is None else mask | earlier


def mask_here(leaf: Array) -> Array | None:
    """Return where this rank has reached a leaf with a gradient; None if unknown."""
    known = HERE.get(leaf)
    return None if known is None else known.clone()


def union_over(group: Any, mask: Array | None, like: Array) -> Array | None:
    """Return where a mask is active on one of the ranks; None if none of them has a mask."""
    known = torch.full((1,), mask is not None, dtype=torch.uint8, device=like.device)
    here = like.new_zeros(like.shape, dtype=torch.uint8) if mask is None else mask.to(torch.uint8)
    every = torch.cat((here.reshape(-1), known))
    distributed.all_reduce(every, distributed.ReduceOp.MAX, group=group)
    return every[:-1].reshape(like.shape) != 0 if every[-1] else None


def reduced(call: Call) -> Any:
    """
    Exchange gradients in place: all that comes back counts as active.

    What is absent here may be a number on another rank. An error on this rank alone would leave the
    others waiting: there is none, whatever `on_unknown` says.
    """
    value = call.run()
    if call.name in SENDS:
        return value
    for x in tensors_of(call.args[0]):  # their schemas do not say what they write into (2.13)
        call.mode.state(x, active=True)
    node = private.current_node()
    last = node is None or name_of(node) in LAST
    if any(map(is_partial, call.masks.values())) and not last:
        tell_once(call)
    return value


def tell_once(call: Call) -> None:
    """Say that absent entries went to another rank, where they are zeros."""
    if call.name in call.mode.reported:
        return
    call.mode.reported.add(call.name)
    msg = (
        f"{call.name} between ranks: absent entries count as zeros in it, and a NaN may stay that "
        "nothing selected"
    )
    tell(msg, "warn" if call.mode.on_unknown == "error" else call.mode.on_unknown)


def in_a_stage() -> bool:
    """Whether a pipeline schedule calls; it sends zeros to the stage before as numbers."""
    if not in_group():
        return False
    frame: Any = sys._getframe()  # noqa: SLF001  (`inspect` reads source files too)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("torch.distributed.pipelining"):
            return True
        frame = frame.f_back
    return False


def tell_of_stage(on_unknown: str) -> None:
    """Say that masks end where a stage of a pipeline does; an error would leave others waiting."""
    msg = (
        "masks end where a stage of a pipeline does: what is absent is sent as zeros to the stage "
        "before, and a NaN may stay there that nothing selected; use safe operations in it"
    )
    tell(msg, "warn" if on_unknown == "error" else on_unknown)


def exchanged(call: Call) -> Any:
    """Exchange entries between the parts of a DTensor, and their masks likewise, on all ranks."""
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
