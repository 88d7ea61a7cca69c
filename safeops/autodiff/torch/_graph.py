"""The graph of a PyTorch program: nodes, leaves, and the arguments of a backward pass."""

from cmath import isfinite
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from safeops._backends.torch import private
from safeops._core.types import Array
from safeops.autodiff.torch._compiled_edges import is_compiled, is_of_us
from safeops.autodiff.torch._lines import in_a_transform
from safeops.autodiff.torch._tags import is_number, leaf_of


def listed(x: Any) -> list[Array]:
    """Return a tensor or an edge of a graph, or a sequence of them, as a list."""
    return [x] if isinstance(x, torch.Tensor | GradientEdge) else list(x)


def tensors_of(inputs: Sequence[Any]) -> list[Array]:
    """Return inputs as tensors: of the edge of a leaf the leaf, as PyTorch adds to no other."""
    found = (leaf_of(x.node) if isinstance(x, GradientEdge) else x for x in inputs)
    return [x for x in found if x is not None]


def input_of(x: Any, *, create_graph: bool) -> Array:
    """Return an argument as a leaf of a new graph; with `create_graph`, as a view of itself."""
    if not isinstance(x, torch.Tensor) or not is_number(x):
        kind = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
        msg = f"expected real or complex tensors to differentiate with respect to, got {kind}"
        raise TypeError(msg)
    if create_graph and x.requires_grad:
        return x.view_as(x)
    return x.detach().requires_grad_()


@dataclass
class Graph:
    """What one backward pass runs through."""

    nodes: Sequence[Any]
    leaves: Sequence[Array]
    outputs: Sequence[Array]
    cotangents: Sequence[Any]


def graph_of(outputs: Sequence[Array], given: Any) -> Graph:
    """Return the graph of outputs, with their cotangents; raise RuntimeError if it is fused."""
    nodes = nodes_of(outputs)
    check_graph(nodes)
    # An output may be a leaf, which has no node that leads to it.
    leaves = dict.fromkeys(leaves_of(nodes))
    leaves |= dict.fromkeys(y for y in outputs if y.is_leaf and y.requires_grad)
    return Graph(nodes, list(leaves), outputs, seeds_of(outputs, given))


def cotangents_of(outputs: Sequence[Array], given: Any) -> list[Any]:
    """Return the cotangents of outputs, as new tensors; 1 for a scalar without one."""
    every = [None] * len(outputs) if given is None else listed(given)
    return [
        torch.ones_like(y) if g is None and y.numel() == 1 else None if g is None else g.clone()
        for y, g in zip(outputs, every, strict=True)
    ]


def seeds_of(outputs: Sequence[Array], given: Any) -> list[Any]:
    """Return the cotangents of outputs; None where PyTorch makes the 1 of a scalar."""
    # For a cotangent that it is given PyTorch imports symbolic shapes, which takes 0.3 s (2.13). Of
    # several outputs one may be on the way to another, whose gradient is added to the 1.
    if given is not None or len(outputs) > 1 or not all(map(is_seeded_by_default, outputs)):
        return cotangents_of(outputs, given)
    return [None] * len(outputs)


def is_seeded_by_default(y: Array) -> bool:
    """Whether PyTorch makes the cotangent of an output, and a node receives it."""
    return y.grad_fn is not None and y.numel() == 1 and y.is_floating_point()


def require_one_number(value: Any) -> None:
    """Raise an error for a result that is no scalar, of which PyTorch says it in other words."""
    if not isinstance(value, torch.Tensor):
        kind = type(value).__name__
        msg = f"expected a function to a tensor of one number, got {kind}; return the tensor itself"
        raise TypeError(msg)
    if value.numel() != 1:
        shape = tuple(value.shape)
        msg = f"expected a function to one number, got the shape {shape}; return result.sum()"
        raise ValueError(msg)


def check_graph(nodes: Iterable[Any], *, compiled: bool = True) -> None:
    """Raise RuntimeError for a graph into which the dispatch mode cannot see; `compiled` by us."""
    if in_a_transform():
        msg = (
            "expected a call outside torch.func.grad, vmap and jvp, which have an engine of their "
            "own; use grad or value_and_grad of safeops.autodiff.torch.func, for inner and outer"
        )
        raise RuntimeError(msg)
    # A compiled backward pass is one kernel, which may write into cotangents without the
    # dispatcher.
    customs = [node for node in nodes if isinstance(node, private.Custom)]
    if any(is_compiled(node) and not (compiled and is_of_us(node)) for node in customs):
        msg = (
            "expected a graph of eager operations, got the result of torch.compile, whose backward "
            "pass is fused; safeops.autodiff.torch.compile, with edges=True, has a masked one, and "
            "torch.compiler.set_stance('force_eager') runs the program eagerly"
        )
        raise RuntimeError(msg)


def nodes_of(outputs: Sequence[Array]) -> list[Any]:
    """Return the nodes of the recorded graph."""
    found: dict[Any, None] = {}
    stack = [y.grad_fn for y in outputs if y.grad_fn is not None]
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = None
            stack.extend(n for n, _ in node.next_functions if n is not None)
    return list(found)


def leaves_of(nodes: Iterable[Any]) -> list[Array]:
    return [leaf for leaf in map(leaf_of, nodes) if leaf is not None]


def all_finite(gradients: Any) -> bool:
    """Whether gradients are finite: told by their sum, or, if that overflows, by each entry."""
    given = [g for g in gradients if g is not None]
    return all(isfinite(g.sum().item()) or bool(entries_of(g).isfinite().all()) for g in given)


def entries_of(x: Array) -> Array:
    """Return the entries of a tensor, those that are stored if it is sparse."""
    return x.coalesce().values() if x.layout is torch.sparse_coo else x
