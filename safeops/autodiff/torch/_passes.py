"""One masked backward pass of PyTorch: its masks before and after, and what it cannot see."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from safeops._backends.torch import private
from safeops._backends.torch.private import tree_leaves
from safeops._core.types import Array
from safeops.autodiff._options import report_unknown
from safeops.autodiff.torch._compiled_edges import reporting_edges
from safeops.autodiff.torch._evaluator import PASSED, ZEROS, Masking
from safeops.autodiff.torch._lines import not_finite, unseen
from safeops.autodiff.torch._masks import spread
from safeops.autodiff.torch._nodes import attached, is_custom
from safeops.autodiff.torch._ranks import in_group, local_mask, recording_local_masks
from safeops.autodiff.torch._rules import RULES
from safeops.autodiff.torch._sharded import is_sharded, local_of, whole_of
from safeops.autodiff.torch._tags import Tags, is_plain, name_of

# The masks of earlier gradients, for accumulation and for second derivatives. It holds storages
# weakly.
EARLIER_GRADIENTS = Tags()


@contextmanager
def masking(
    nodes: Iterable[Any],
    outputs: Sequence[Array],
    cotangents: Sequence[Any],
    on_unknown: str,
    *,
    create_graph: bool,
    kind: type[Masking] = Masking,
) -> Iterator[Masking]:
    """Context in which a backward pass is masked; with `create_graph` its masks are kept."""
    EARLIER_GRADIENTS.forget_expired()
    mode = kind(EARLIER_GRADIENTS, on_unknown)
    for g in cotangents:
        if g is not None:
            mode.tags.write(local_of(g), active=True)
    ones = [y for y, g in zip(outputs, cotangents, strict=True) if g is None]
    seeds = seeds_known(ones, mode.tags)
    told = reporting_scripts(nodes, on_unknown)
    edges = reporting_edges(nodes, mode.tags, on_unknown)
    with (
        mode,
        seeds,
        told,
        edges,
        customs_known(nodes, mode.tags),
        recording_local_masks(nodes, mode.tags),
    ):
        yield mode
    if create_graph:
        EARLIER_GRADIENTS.keep(mode.tags, partial=True)


def seeds_known(outputs: Iterable[Array], tags: Tags) -> AbstractContextManager[None]:
    """Mark as active the cotangents that PyTorch makes for outputs, where their nodes get them."""

    def hook(place: int, cotangents: Sequence[Any]) -> None:
        if cotangents[place] is not None:
            tags.write(local_of(cotangents[place]), active=True)

    given = [(y.grad_fn, y.output_nr) for y in outputs if y.grad_fn is not None]
    return attached(node.register_prehook(partial(hook, place)) for node, place in given)


def customs_known(nodes: Iterable[Any], tags: Tags) -> AbstractContextManager[None]:
    """Mark every result of a custom backward as active, even if it was built from constants."""

    def hook(out: Any, into: Any) -> None:
        del into
        for x in map(local_of, out):
            if x is not None and tags.read(x) is None:
                tags.write(x, active=True)

    return attached(node.register_hook(hook) for node in nodes if is_custom(node))


def mask_of_gradient(mode: Masking, x: Array, gradient: Any) -> Array:
    if gradient is None:
        return torch.zeros_like(x, dtype=torch.bool)
    here = local_of(gradient)
    active = mode.tags.read(here)
    return whole_of(spread(True if active is None else active, here).clone(), gradient)


def mask_of_leaf(x: Array) -> Array | None:
    """Return where this rank has reached a leaf; None if unknown."""
    if x.grad is None:
        return torch.zeros_like(x, dtype=torch.bool)
    gradient = local_of(x.grad)
    entry = EARLIER_GRADIENTS.find(gradient)
    if entry is None:
        return None
    if in_group() and not is_sharded(x):  # DDP has reduced the gradient after the pass
        return local_mask(x)
    mask = spread(
        EARLIER_GRADIENTS.of_entry(replace(entry, earlier=True), gradient), gradient
    ).clone()
    return whole_of(mask, x.grad)


def gradients_of(
    grad: Callable[..., Any], value: Array, inputs: Any, *, return_mask: bool, **how: Any
) -> tuple[Any, Any]:
    """Return gradients and masks; for a value without a graph, zeros, none of them active."""
    if not value.requires_grad:
        zeros = [torch.zeros_like(x) for x in inputs]
        return zeros, [torch.zeros_like(x, dtype=torch.bool) for x in inputs]
    found = grad(value, inputs, materialize_grads=True, return_mask=return_mask, **how)
    return found if return_mask else (found, found)


SCRIPTED = (
    "no rule for a graph that TorchScript has compiled: its selections are products there, and a "
    "NaN may stay that nothing selected; run it in torch.jit.optimized_execution(False)"
)


def is_script(node: Any) -> bool:
    """Whether a node is a graph compiled by TorchScript, as it is from the second run on."""
    return type(node).__name__ == "CppFunction" and "DifferentiableGraph" in name_of(node)


def reporting_scripts(nodes: Iterable[Any], on_unknown: str) -> AbstractContextManager[None]:
    """Report a NaN that comes out of a graph of TorchScript."""
    hook = partial(tell_if_bad, on_unknown)
    return attached(node.register_hook(hook) for node in nodes if is_script(node))


def tell_if_bad(on_unknown: str, out: Any, into: Any) -> None:
    """Report a NaN in the outputs of a node; the signature is that of a hook."""
    del into
    with unseen():
        bad = any(x is not None and not_finite(x) is not None for x in out)
    if bad:
        report_unknown(SCRIPTED, on_unknown)


def reason_unseen(func: Any, given: Any) -> str | None:
    """Return why the entries that an operation uses are unknown ("": no rule), or None."""
    tensors = [x for x in tree_leaves(given) if isinstance(x, torch.Tensor)]
    if not all(is_plain(x) for x in tensors):
        return "sparse"
    name = private.name_of_operation(func).removesuffix("_")
    if name in RULES or private.name_of_operation(func) in PASSED | ZEROS or func.is_view:
        return None
    if name.startswith("mkldnn_rnn"):
        return "mkldnn"
    # PyTorch makes a composite of others, which have rules.
    is_composite = func.has_kernel_for_dispatch_key(private.DispatchKey.CompositeImplicitAutograd)
    return None if is_composite else ""
