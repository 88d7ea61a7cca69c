"""The explanation of a TensorFlow gradient: which passes run, and their findings."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from safeops._backends.tensorflow import private
from safeops._core.types import Array
from safeops.autodiff._explain.evidence import Evidence, Forward, missing, name_of, reaching
from safeops.autodiff._explain.finding import Finding, entries_in_words
from safeops.autodiff._explain.marks import Marked
from safeops.autodiff._explain.report import Report, make_report, never_clean
from safeops.autodiff._explain.trial import Program as Trial
from safeops.autodiff._explain.trial import tried, untried
from safeops.autodiff._options import places_of
from safeops.autodiff.tensorflow import _evaluator as evaluator
from safeops.autodiff.tensorflow import _running as running
from safeops.autodiff.tensorflow._evaluator import Frame, Options
from safeops.autodiff.tensorflow._explain.backward import Run
from safeops.autodiff.tensorflow._lines import Program, named, numbers_of, values_of
from safeops.autodiff.tensorflow._passes import check_output, seeds_of, with_tensors
from safeops.autodiff.tensorflow._rules import READERS, RULES


def explained_call(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    argnums: int | Sequence[int],
    batch: int = 0,
    *,
    interim: bool = False,
    trial: bool = False,
) -> Report:
    """Trace a function and its gradient, and explain what is not finite; with `trial` edits run."""
    places = places_of(argnums, len(args))
    args = with_tensors(args, places)
    traced = _traced(f, args, places)
    leaves = tf.nest.flatten([args[i] for i in places])
    report, masked = _report(traced, leaves, batch, interim=interim)
    return tried(report, _program(f, args, places, masked)) if trial else untried(report)


def _eagerly(f: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Call a function, each `tf.function` in it as plain Python."""
    eager = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)  # noqa: FBT003  (its one argument)
    try:
        return f(*args)
    finally:
        tf.config.run_functions_eagerly(eager)


def _program(
    f: Callable[..., Any], args: tuple[Any, ...], places: Sequence[int], masked: Sequence[Any]
) -> Trial:
    """Return how to run a function again, eagerly, at other numbers or with edits."""
    leaves = tf.nest.flatten([args[i] for i in places])

    def arrays(given: Sequence[Any]) -> list[np.ndarray]:
        found = (values_of(tf.convert_to_tensor(x)) for x in given)
        return [x.astype(np.promote_types(x.dtype, np.float64)) for x in found]

    def value_of(given: Sequence[Any]) -> Any:
        every = list(args)
        packed = tf.nest.pack_sequence_as([args[i] for i in places], given)
        for i, x in zip(places, packed, strict=True):
            every[i] = x
        return _eagerly(f, every)

    def value_and_grad() -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x for x in leaves if not isinstance(x, tf.Variable)])
            value = value_of(leaves)
        zero = tf.UnconnectedGradients.ZERO
        found = tape.gradient(value, leaves, unconnected_gradients=zero)
        return arrays([value])[0], arrays(found)

    def value_at(given: Sequence[np.ndarray]) -> Any:
        pairs = zip(leaves, given, strict=True)
        return arrays([value_of([tf.constant(y, x.dtype) for x, y in pairs])])[0]

    half = any(x.dtype == tf.float16 for x in leaves)
    return Trial(value_and_grad, value_at, arrays(leaves), masked, half)


def explained_graph(
    targets: Sequence[Array], seeds: Any, sources: Sequence[Any], known: dict[Any, Any]
) -> Report:
    """Explain a gradient of tensors in a graph, which is not run, but made from known values."""
    graph = targets[0].graph
    known |= {inner.ref(): held for inner in graph.inputs if (held := _held(inner)) is not None}
    with graph.as_default(), tf.name_scope(""):
        value = _sum_of(targets, seeds)
        before, seed = len(graph.get_operations()), seeds_of(value, None)
        found = tf.gradients([value], sources, [seed], unconnected_gradients="zero")
    rows = [getattr(x, "values", x) for x in found]
    new = graph.get_operations()[before:]
    read = [x for x in known.values() if tf.is_tensor(x) and x.dtype != tf.resource]
    traced = _Traced(graph, read, known, value, seed, rows, new)
    return untried(_report(traced, sources, 0)[0])


def _sum_of(targets: Sequence[Array], seeds: Any) -> Array:
    """Return a scalar whose gradient is that of several targets, with cotangents."""
    if seeds is None and len(targets) == 1 and targets[0].shape.rank == 0:
        return targets[0]
    given = [tf.ones_like(y) for y in targets] if seeds is None else tf.nest.flatten(seeds)
    return tf.add_n([tf.reduce_sum(y * g) for y, g in zip(targets, given, strict=True)])


def _held(inner: Array) -> Any:
    """Return the variable's handle behind an input of a graph; None if it is something else."""
    while (graph := getattr(inner, "graph", None)) is not None:
        outer = next((x for x, y in private.captures_of(graph) if y is inner), None)
        if outer is None or outer.dtype != tf.resource:
            return None
        if not hasattr(outer, "op"):
            return outer
        inner = outer
    return None


def _report(
    traced: "_Traced", leaves: Sequence[Any], batch: int, *, interim: bool = False
) -> tuple[Report, list[Any]]:
    """Return the report on a program and its gradient, and the masked gradients."""
    checked = f"the gradient at {entries_in_words(sum(math.prod(x.shape) for x in leaves))}"
    found, bad, masked = _found(traced, batch, [tuple(x.shape) for x in leaves], interim=interim)
    report = make_report("tensorflow", found, checked)
    return never_clean(report) if bad else report, masked


class _Traced(NamedTuple):
    """The graph of a program and its gradient, with its inputs and outputs."""

    graph: Any
    inputs: Sequence[Array]
    known: dict[Any, Any]
    value: Array
    seed: Array
    gradients: list[Array]
    since: list[Any]  # the operations of the gradient


def _traced(f: Callable[..., Any], args: tuple[Any, ...], places: Sequence[int]) -> _Traced:
    """Return the graph of a program and its gradient, by `tf.gradients`, which names formulas."""
    every = list(args)
    leaves = tf.nest.flatten([args[i] for i in places])
    inputs = [x for x in leaves if not isinstance(x, tf.Variable)]
    made: list[Any] = []

    @tf.autograph.experimental.do_not_convert
    def both(*tensors: Array) -> Any:
        given = iter(tensors)
        sources = [x if isinstance(x, tf.Variable) else next(given) for x in leaves]
        packed = tf.nest.pack_sequence_as([args[i] for i in places], sources)
        for i, x in zip(places, packed, strict=True):
            every[i] = x
        value = f(*every)
        check_output(value)
        operations = tf.compat.v1.get_default_graph().get_operations
        before, seed = len(operations()), seeds_of(value, None)
        found = tf.gradients([value], sources, [seed], unconnected_gradients="zero")
        rows = [getattr(x, "values", x) for x in found]
        made.extend([value, seed, rows, operations()[before:]])
        return value, rows

    specs = [tf.TensorSpec(x.shape, x.dtype) for x in inputs]
    concrete = tf.function(both, autograph=False).get_concrete_function(*specs)
    known = {x.ref(): y for x, y in zip(concrete.inputs[: len(inputs)], inputs, strict=True)}
    known |= {inner.ref(): outer for outer, inner in private.captures_of(concrete.graph)}
    return _Traced(concrete.graph, inputs, known, *made)


def _found(
    traced: _Traced, batch: int, shapes: Sequence[tuple[int, ...]], *, interim: bool
) -> tuple[list[Finding], bool, list[Any]]:
    """Return the findings, whether value or the tape's gradient is bad, and masked gradients."""
    graph, inputs, known, value, seed, gradients, new = traced
    evidence = Evidence(Forward(numbers_of, inputs), batch, shapes)
    since = frozenset(op.name for op in new)
    how = Options(RULES, READERS, "ignore")
    frame = Frame(how, known=known, since=since, again=evaluator.recomputed(new))
    run = Run(frame, Program(graph), evidence)
    (result,) = run.evaluate([value])
    known[seed.ref()] = Marked(tf.ones_like(result))
    # A gradient that a custom gradient makes from constants alone counts as used everywhere.
    outs = [x if isinstance(x, Marked) else Marked(x) for x in run.evaluate(gradients)]
    values = [values_of(x.value) for x in outs]
    results = zip((x.tainted for x in outs), values, strict=True)
    findings = list(evidence.findings(reaching(results), result, named))
    actives = (evaluator.spread(x.active, x.value).numpy() for x in outs)
    masked = sum(np.sum(~np.isfinite(x) & y) for x, y in zip(values, actives, strict=True))
    bad = name_of(values_of(result))
    ordinary = 0 if any(f.kind == "BLOCKED" for f in findings) else _ordinary(traced, run)
    findings += missing(findings, value=bad, ordinary=ordinary, masked=masked)
    findings += evidence.interim(result, named) if interim else ()
    return findings, bool(bad or ordinary), values


def _ordinary(traced: _Traced, run: Run) -> int:
    """Return how many entries of TensorFlow's own gradient are not finite."""
    new = {x.ref() for op in traced.since for x in op.outputs}
    known = {key: x for key, x in run.frame.known.items() if key not in new}
    known[traced.seed.ref()] = tf.ones_like(known[traced.value.ref()])
    frame = Frame(run.frame.how, known=known, since=frozenset())  # all of it as it is
    plain = Run(frame, run.program, Evidence(Forward(numbers_of, ())))
    try:
        found = map(running.value_of, plain.evaluate(traced.gradients))
    except tf.errors.OpError:  # the gradient of a function of Python runs once
        return 0
    return sum(int(np.sum(~np.isfinite(values_of(x)))) for x in found)
