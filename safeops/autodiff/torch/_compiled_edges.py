"""
Masks at the edges of compiled graphs: which cotangents come in active, and which go out.

Two operators stand in a compiled backward pass. `active_of` asks, when it runs, what of a cotangent
is active: the evaluator of eager mode answers, or, in an ordinary backward pass, what another
compiled graph has stated. `with_active` states it of a gradient.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any

import torch

from safeops._backends.torch import private
from safeops._core.types import Array
from safeops.autodiff._options import report_unknown
from safeops.autodiff.torch._nodes import attached, in_its_method, is_custom
from safeops.autodiff.torch._sharded import local_of
from safeops.autodiff.torch._tags import Mask, Tags, name_of, place_of


class Stated:
    """What compiled graphs have stated of gradients, until somebody writes into these."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[Any, int, str, Mask]] = {}

    def write(self, x: Array, active: Mask) -> None:
        for key in [k for k, (alive, *_) in list(self.entries.items()) if alive.expired()]:
            self.entries.pop(key, None)
        alive = private.StorageWeakRef(x.untyped_storage())
        self.entries[alive.cdata] = (alive, private.version(x), place_of(x), active)

    def read(self, x: Array) -> Mask | None:
        """Return what is active in a tensor; None if unknown, also if it has been written into."""
        entry = self.entries.get(private.storage_id(x.untyped_storage()))
        known = entry is not None and entry[1:3] == (private.version(x), place_of(x))
        return entry[3] if entry is not None and known else None


STATED = Stated()


@torch.library.custom_op("safeops::active_of", mutates_args=())
def active_of(x: torch.Tensor, number: int, count: int) -> torch.Tensor:
    """Return what is active in one of so many cotangents; all of it, if nobody knows."""
    return dense_mask(False if is_unused(number, count) else STATED.read(x), x)


@torch.library.custom_op("safeops::with_active", mutates_args=())
def with_active(x: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
    """Return a gradient of which it is known what is active."""
    out = x.clone()
    STATED.write(out, active)
    return out


@active_of.register_fake
def _(x: Array, number: int, count: int) -> Array:
    del number, count
    return torch.empty_like(x, dtype=torch.bool)


@with_active.register_fake
def _(x: Array, active: Array) -> Array:
    del active
    return x.clone()


def dense_mask(active: Mask | None, x: Array) -> Array:
    """Return a mask in the shape and the strides of a tensor."""
    mask = torch.empty_like(x, dtype=torch.bool)
    if isinstance(active, torch.Tensor):
        return mask.copy_(active)
    return mask.fill_(active is not False)


def is_at_edge(name: str) -> bool:
    """Whether an operation is of a compiled graph, or at an edge of one."""
    if name in ("active_of", "with_active"):
        return True
    node = private.current_node()
    return node is not None and is_compiled(node) and in_its_method()


def run_at_edge(call: Any) -> Any:
    """Run an operation of a compiled graph as it is; the operators above know the masks."""
    tags: Tags = call.mode.tags
    x = call.args[COPIES.get(call.name, 0)] if call.args else None
    if call.name == "active_of":
        return dense_mask(False if is_unused(*call.args[1:]) else tags.read(x), x)
    value = call.run()
    if call.name == "with_active":
        tags.write(value, call.args[1])
    elif call.name in COPIES and (active := tags.read(x)) is not None:
        tags.write(value, active)
    return value


# Copies of a cotangent that has not the strides that were compiled: which argument it is.
COPIES = {"clone": 0, "_to_copy": 0, "copy_": 1}


def is_compiled(node: Any) -> bool:
    """Whether a node of autograd is a graph that `torch.compile` has compiled."""
    named = is_custom(node) and name_of(node) == "CompiledFunctionBackward"
    return named and private.forward_class(node).__module__.startswith("torch._functorch")


def is_of_us(node: Any) -> bool:
    """Whether the backward pass of a compiled graph is masked."""
    return KEY in node.metadata


# In the metadata of a node, only of ours: which of its outputs nobody used, for those that have a
# cotangent in its graph. None if the graph has not the operators above.
KEY = "safeops"


def noted(run: Callable[..., Any], *, edges: bool) -> Callable[..., Any]:
    """Return a compiled function whose nodes are known, and know which outputs are not used."""

    # Without the attributes of `run`, by which Dynamo (up to 2.10) goes past this function to it.
    @wraps(run, updated=())
    def wrapped(*args: Any) -> Any:
        earlier = {made[0] for made in map(made_by, args) if made}
        outputs = run(*args)
        places: dict[Any, set[int]] = {}
        for node, place in filter(None, map(made_by, outputs)):
            if node not in earlier:
                places.setdefault(node, set()).add(place)
        for node, of_outputs in places.items():
            node.metadata[KEY] = () if edges else None
            if edges:
                node.register_prehook(partial(note_unused, node.metadata, sorted(of_outputs)))
        return outputs

    return wrapped


def made_by(x: Any) -> tuple[Any, int] | None:
    """Return the compiled graph that made a tensor, and the place of that among its outputs."""
    if not isinstance(x, torch.Tensor):
        return None
    node, place = x.grad_fn, x.output_nr
    for _ in range(VIEWS):
        if node is None or is_compiled(node):
            return node and (node, place)
        node, place = node.next_functions[0] if node.next_functions else (None, 0)
    return None


VIEWS = 4  # at most, between what a compiled graph makes and what it returns


def note_unused(metadata: dict[str, Any], places: list[int], given: tuple[Any, ...]) -> None:
    """Note which cotangents of a node autograd does not have, before it makes zeros of them."""
    metadata[KEY] = [given[i] is None for i in places]


def is_unused(number: int, count: int) -> bool:
    """Whether nobody used the output that one of so many cotangents is of."""
    node = private.current_node()
    unused = node.metadata.get(KEY) if node is not None and is_compiled(node) else None
    return unused is not None and len(unused) == count and unused[number]


def reporting_edges(
    nodes: Iterable[Any], tags: Tags, on_unknown: str
) -> AbstractContextManager[None]:
    """Report absent entries that meet a graph which was compiled without edges."""

    def hook(given: Any) -> None:
        masks = [tags.read(local_of(x)) for x in given if x is not None]
        if any(mask is not None and mask is not True for mask in masks):
            report_unknown(WITHOUT, on_unknown)

    ours = [node for node in nodes if is_compiled(node) and node.metadata.get(KEY) is None]
    return attached(node.register_prehook(hook) for node in ours)


WITHOUT = (
    "no rule for the edge of a compiled graph: absent entries count as zeros in it, and a NaN may "
    "stay that nothing selected; compile it with edges=True"
)
