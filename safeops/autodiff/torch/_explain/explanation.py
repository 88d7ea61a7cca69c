"""Explanations of backward passes: of a function, of a graph, of a call of autograd."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from safeops._backends.torch import private
from safeops._backends.torch.private import tree_leaves, tree_map
from safeops._core.types import Array
from safeops.autodiff._explain.report import Report, merged, unknown_report
from safeops.autodiff._explain.trial import Program, tried, untried
from safeops.autodiff._options import places_of
from safeops.autodiff.torch import _graph as graph
from safeops.autodiff.torch._explain.backward import Graph
from safeops.autodiff.torch._explain.comparison import of_record, report_of
from safeops.autodiff.torch._lines import Record, RecordLines
from safeops.autodiff.torch._passes import EARLIER_GRADIENTS
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
    graph.check_graph([])
    every, numbers = list(args), places_of(argnums, len(args))
    for i in numbers:
        every[i] = tree_map(lambda x: graph.input_of(x, create_graph=False), args[i])
    leaves = tree_leaves([every[i] for i in numbers])
    lines, state = RecordLines(), torch.get_rng_state()
    lines.made = [] if interim else None
    with eagerly(), lines, torch.enable_grad():
        value = f(*every)
    graph.require_one_number(value)
    lines.note_results([value])
    report, masked = both_of(value, leaves)
    if not report.ok:
        report = tried(report, program_of(f, every, numbers, state, masked))
    return with_interim(report, lines.made) if lines.made else report


def program_of(
    f: Callable[..., Array], args: list[Any], numbers: Sequence[int], state: Array, masked: Any
) -> Program:
    """Return how to run a function again, at other numbers or with edits."""
    leaves = tree_leaves([args[i] for i in numbers])

    def value_of(given: Sequence[Array]) -> Array:
        every, new = list(args), iter(given)
        for i in numbers:
            every[i] = tree_map(lambda _: next(new), args[i])
        with eagerly(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            return f(*every)

    def value_and_grad() -> Any:
        fresh = [x.detach().requires_grad_() for x in leaves]
        with torch.enable_grad():
            value = value_of(fresh)
        found = torch.autograd.grad(value, fresh, allow_unused=True)
        return arrays([value], [value])[0], arrays(leaves, found)

    def value_at(given: Sequence[Any]) -> Any:
        pairs = zip(leaves, given, strict=True)
        with torch.no_grad():
            value = value_of([torch.as_tensor(y).to(x) for x, y in pairs])
        return arrays([value], [value])[0]

    half = any(x.dtype == torch.float16 for x in leaves)
    return Program(value_and_grad, value_at, arrays(leaves, leaves), arrays(leaves, masked), half)


def arrays(leaves: Sequence[Array], given: Sequence[Any]) -> list[Any]:
    """Return tensors as arrays of NumPy in double precision, and zeros where there is none."""
    tensors = (
        torch.zeros_like(x) if y is None else y.detach() for x, y in zip(leaves, given, strict=True)
    )
    dense = (y if y.layout is torch.strided else y.to_dense() for y in tensors)
    return [y.to("cpu", torch.promote_types(y.dtype, torch.float64)).numpy() for y in dense]


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
    return untried(both_of(tensors, leaves, grad_tensors, batch=batch)[0])


def both_of(
    tensors: Any, leaves: Any, grad_tensors: Any = None, *, batch: int = 0
) -> tuple[Report, list[Any]]:
    """Return the report on a backward pass, and the masked gradients."""
    outputs = graph.listed(tensors)
    nodes = graph.nodes_of(outputs)
    graph.check_graph(nodes, compiled=False)
    if any(map(is_sharded, (*outputs, *(leaves or ()), *graph.leaves_of(nodes)))):
        msg = "expected tensors of one process, got a DTensor; explain the program of full_tensor()"
        raise TypeError(msg)
    if any(name_of(node) == "CheckpointFunctionBackward" for node in nodes):
        msg = "expected checkpoints with use_reentrant=False, got one with its own backward pass"
        raise RuntimeError(msg)
    EARLIER_GRADIENTS.forget_expired()
    seeds = graph.cotangents_of(outputs, grad_tensors)
    leaves = graph.leaves_of(nodes) if leaves is None else leaves
    return report_of(Graph(nodes), outputs, leaves, seeds, EARLIER_GRADIENTS, batch)


def explained_if_possible(outputs: Any, seeds: Any, leaves: Any, batch: int = 0) -> Report:
    """Explain a backward pass that has run once, or report why it cannot run again."""
    try:
        return explained(outputs, leaves, seeds, batch=batch)
    except Exception as error:  # noqa: BLE001  (whatever a program raises that runs once)
        return unknown_report("torch", "the backward pass", "once", str(error))
