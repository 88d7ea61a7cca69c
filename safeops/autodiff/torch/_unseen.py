"""Nodes and operations into which a dispatch mode cannot see, and why."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from safeops._backends.torch import private
from safeops._backends.torch.private import tree_leaves
from safeops.autodiff._options import report_unknown
from safeops.autodiff.torch._evaluator import PASSED, ZEROS
from safeops.autodiff.torch._lines import not_finite, unseen
from safeops.autodiff.torch._nodes import attached
from safeops.autodiff.torch._rules import RULES
from safeops.autodiff.torch._tags import is_plain, name_of

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
