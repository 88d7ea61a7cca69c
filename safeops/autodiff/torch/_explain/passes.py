"""Explanations of backward passes: of a function, of a graph, of a call of autograd."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from safeops._backends.torch import private
from safeops._backends.torch.private import tree_leaves, tree_map
from safeops._typing import Array
from safeops.autodiff._explain.report import Finding, Report, make_report, merged
from safeops.autodiff._options import places_of
from safeops.autodiff.torch._explain.lines import Record, RecordLines
from safeops.autodiff.torch._explain.report import of_record, report_of
from safeops.autodiff.torch._explain.watch import Graph
from safeops.autodiff.torch._graph import (
    check_graph,
    cotangents_of,
    input_of,
    leaves_of,
    listed,
    nodes_of,
    require_one_number,
)
from safeops.autodiff.torch._passes import FORMER
from safeops.autodiff.torch._sharded import is_sharded
from safeops.autodiff.torch._tags import name_of


def explained_call(
    f: Callable[..., Array],
    args: Sequence[Any],
    argnums: int | Sequence[int],
    *,
    interim: bool = False,
) -> Report:
    """Run a function while recording lines, and explain its gradient."""
    check_graph([])
    every, numbers = list(args), places_of(argnums, len(args))
    for i in numbers:
        every[i] = tree_map(lambda x: input_of(x, create_graph=False), args[i])
    leaves = tree_leaves([every[i] for i in numbers])
    lines = RecordLines()
    lines.made = [] if interim else None
    with eagerly(), lines, torch.enable_grad():
        value = f(*every)
    require_one_number(value)
    report = explained(value, leaves)
    return with_interim(report, lines.made) if lines.made else report


def with_interim(report: Report, made: Sequence[tuple[Record, Array]]) -> Report:
    """Return a report with findings for what is not finite on the way."""
    known = {(f.operation, str(f.where)) for f in report.findings if f.kind == "FORWARD"}
    found = [replace(of_record(*one, 0), kind="INTERIM") for one in made]
    new = [f for f in found if (f.operation, str(f.where)) not in known]
    return replace(report, findings=(*report.findings, *merged(new)))


def eagerly() -> Any:
    """Return a context in which compiled functions run eagerly."""
    # What has compiled nothing has not imported the compiler, which takes seconds.
    is_there = private.is_compiler_there()
    return torch.compiler.set_stance("force_eager") if is_there else nullcontext()


def explained(tensors: Any, leaves: Any, grad_tensors: Any = None, *, batch: int = 0) -> Report:
    """Explain the backward pass of existing tensors."""
    outputs = listed(tensors)
    nodes = nodes_of(outputs)
    check_graph(nodes, compiled=False)
    if any(map(is_sharded, (*outputs, *(leaves or ()), *leaves_of(nodes)))):
        msg = "expected tensors of one process, got a DTensor; explain the program of full_tensor()"
        raise TypeError(msg)
    if any(name_of(node) == "CheckpointFunctionBackward" for node in nodes):
        msg = "expected checkpoints with use_reentrant=False, got one with its own backward pass"
        raise RuntimeError(msg)
    FORMER.forget_expired()
    seeds = cotangents_of(outputs, grad_tensors)
    leaves = leaves_of(nodes) if leaves is None else leaves
    return report_of(Graph(nodes), outputs, leaves, seeds, FORMER, batch)


def explained_if_possible(outputs: Any, seeds: Any, leaves: Any, batch: int = 0) -> Report:
    """Explain a backward pass that has run once, or report why it cannot run again."""
    try:
        return explained(outputs, leaves, seeds, batch=batch)
    except Exception as error:  # noqa: BLE001  (whatever a program raises that runs once)
        finding = Finding("UNKNOWN", "the backward pass", reason="once")
        return make_report("torch", [finding], "the gradient", [str(error)])
