"""The explanation of a JAX gradient: which passes run, and their findings."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from safeops._backends.jax.bodies import Program, opened
from safeops._backends.jax.private import Passing, traced
from safeops._core.types import Array
from safeops.autodiff._explain.evidence import Evidence, Forward, missing, name_of, reaching
from safeops.autodiff._explain.finding import Finding, entries_in_words
from safeops.autodiff._explain.marks import Marked
from safeops.autodiff._explain.report import Report, make_report, never_clean, operations
from safeops.autodiff._explain.trial import Program as Trial
from safeops.autodiff._explain.trial import tried, untried
from safeops.autodiff._options import places_of
from safeops.autodiff.jax import _evaluator as pairs
from safeops.autodiff.jax._evaluator import Options
from safeops.autodiff.jax._explain.backward import Backward
from safeops.autodiff.jax._explain.compiled_loops import LoopBudget, cost_of
from safeops.autodiff.jax._explain.forward import Watch, watching
from safeops.autodiff.jax._known import moved_here
from safeops.autodiff.jax._lines import Sites, count_of, eval_jaxpr_with, named, numbers_of
from safeops.autodiff.jax._passes import check_inputs, check_output
from safeops.autodiff.jax._recording import Callbacks, Record
from safeops.autodiff.jax._rules import RULES

LIMIT = 20.0  # of the time that a gradient takes
MOST = 2000  # operations that run one by one, with edits
# The least time of a gradient in seconds, for the limit: a compiled gradient takes almost none.
LEAST = 1.0


def explained_call(
    f: Callable[..., Any],
    args: Sequence[Any],
    argnums: int | Sequence[int],
    limit: float = LIMIT,
    progress: Callable[[str], None] | None = None,
    batch: int = 0,
    *,
    interim: bool = False,
    trial: bool = False,
) -> Report:
    """Take the gradient of a function, and explain what is not finite; with `trial` edits run."""
    places = places_of(argnums, len(args))
    chosen = _arrays(args, places)
    of_chosen = _of_chosen(f, args, places)
    callbacks, record, start = Callbacks(), Record(), time.monotonic()
    value, slopes, count, cost = _ordinary(callbacks.noting(record.recording(of_chosen)), chosen)
    entries = sum(np.size(x) for x in jax.tree.leaves(chosen))
    checked = f"the gradient at {entries_in_words(entries)}, through {operations(count)}"
    ordinary = _bad(slopes)
    bad = not np.isfinite(value)
    if not (ordinary or bad or interim):
        return make_report("jax", (), checked)
    trial = trial and cost <= MOST
    slopes = slopes if trial else []
    took = max(time.monotonic() - start, LEAST)
    looking = LoopBudget(limit * took, progress)
    findings, gradients, on_the_way = _found(callbacks, record, chosen, looking, batch)
    what, masked = name_of(np.asarray(value)), _bad(gradients)
    found = [*findings, *missing(findings, value=what, ordinary=ordinary, masked=masked)]
    every = [*(found if ordinary or bad else ()), *(on_the_way if interim else ())]
    report = make_report("jax", every, checked, looking.notes())
    if not (ordinary or bad):
        return report
    if trial:
        before = [value, *slopes]
        report = tried(report, _program(callbacks, of_chosen, chosen, before, gradients))
    else:
        report = untried(report)
    return never_clean(report)


def _ordinary(f: Callable[..., Any], chosen: Sequence[Any]) -> tuple[Array, list[Array], int, int]:
    """Return value and gradient, and how many operations its pullback has, and runs."""
    value, pullback = jax.vjp(f, *chosen)
    check_output(value)
    start = jnp.ones_like(value)
    closed = program_of(pullback, start)
    slopes = eval_jaxpr_with(closed, [start], moved_here)
    return value, slopes, count_of(opened(closed)), cost_of(opened(closed))


def program_of(pullback: Callable[..., Any], start: Array) -> Program:
    """Return the program of a pullback."""
    # JAX prints, with its arrays, what is no function.
    return jax.make_jaxpr(lambda *start: pullback(*start))(start)  # noqa: PLW0108  (see above)


def _arrays(args: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """Return the arguments that are differentiated for as arrays."""
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(args)):
        msg = "expected arrays, got traced ones, which have no values; call explain outside of jit"
        raise TypeError(msg)
    chosen = [jax.tree.map(jnp.asarray, args[i]) for i in places]
    check_inputs(chosen, allow_int=False)
    return chosen


def _of_chosen(f: Callable[..., Any], args: Sequence[Any], places: Sequence[int]) -> Any:
    """Return a function as one of some of its arguments."""

    def of_chosen(*chosen: Any) -> Any:
        every = list(args)
        for i, x in zip(places, chosen, strict=True):
            every[i] = x
        return f(*every)

    return of_chosen


def _bad(arrays: Sequence[Array]) -> int:
    """Return the number of nonfinite entries."""
    return sum(int((~np.isfinite(x)).sum()) for x in arrays)


class Compiling(Passing):
    """Compile each operation as elsewhere: by another setting JAX would compile it once more."""

    def operation(self, primitive: Any, args: Any, params: Any) -> Any:
        """Run one operation."""
        with jax.disable_jit(disable=False):
            return super().operation(primitive, args, params)


def _program(
    callbacks: Callbacks,
    f: Callable[..., Any],
    chosen: Sequence[Any],
    before: Sequence[Any],
    masked: Sequence[Any],
) -> Trial:
    """Return how to run a function again, at other numbers or with edits; JAX compiles none."""
    leaves, form = jax.tree.flatten(list(chosen))

    def arrays(given: Sequence[Any]) -> list[np.ndarray]:
        numbers = map(np.asarray, given)
        return [x.astype(np.result_type(x.dtype, np.float32), copy=False) for x in numbers]

    def value_and_grad() -> Any:
        with jax.disable_jit():
            value, pullback = jax.vjp(traced(callbacks.answering(f), Compiling), *chosen)
            closed = program_of(pullback, jnp.ones_like(value))
        gradients = eval_jaxpr_with(closed, [jnp.ones_like(value)], moved_here)
        return arrays([value])[0], arrays(gradients)

    def value_at(given: Sequence[np.ndarray]) -> Any:
        new = [jnp.asarray(y, x.dtype) for x, y in zip(leaves, given, strict=True)]
        return arrays([callbacks.answering(f)(*jax.tree.unflatten(form, new))])[0]

    half = any(x.dtype == jnp.float16 for x in leaves)
    was = arrays(before)
    known = was[0], was[1:]
    return Trial(value_and_grad, value_at, arrays(leaves), arrays(masked), half, known)


def _found(
    callbacks: Callbacks, record: Record, chosen: Sequence[Any], looking: LoopBudget, batch: int
) -> tuple[list[Finding], list[Any], Iterator[Finding]]:
    """Return the findings, the masked gradients, and INTERIM."""
    while True:
        result, evidence, outs = _looked_at(callbacks, record, chosen, looking, batch)
        results = ((x.tainted, np.asarray(x.value)) for x in outs if isinstance(x, Marked))
        causes = list(reaching(results))
        # A loop that ran whole may contain the selection of a finding: run it again, step by step.
        asked = evidence.selections(causes) & looking.whole - looking.opened
        if not asked:
            break
        looking.opened |= asked
    cut = {(named(site), site.where) for site in looking.stopped}
    findings = [
        replace(x, reason="loop") if x.kind == "UNKNOWN" and (x.operation, x.where) in cut else x
        for x in evidence.findings(causes, result, named)
    ]
    return findings, [pairs.value_of(x) for x in outs], evidence.interim(result, named)


def _looked_at(
    callbacks: Callbacks, record: Record, chosen: Sequence[Any], looking: LoopBudget, batch: int
) -> tuple[Any, Evidence, list[Any]]:
    """Return the value of a watched run, what its backward pass has met, and the gradients."""
    sites = Sites()
    runs: list[tuple[Forward, Any]] = []

    def watched(*given: Any) -> Any:
        leaves = jax.tree.leaves(given)
        forward = Forward(numbers_of, leaves)
        again = callbacks.answering(watching(record.run, Watch(forward, sites, looking)))
        runs.append((forward, again(leaves, {})))
        return runs[-1][1]

    value, pullback = jax.vjp(watched, *chosen)
    ((forward, result),) = runs
    evidence = Evidence(forward, batch, [x.shape for x in jax.tree.leaves(chosen)])
    closed = program_of(pullback, jnp.ones_like(value))
    how = Options(RULES, exact=True, on_unknown="ignore")
    start = Marked(jnp.ones_like(value), np.ones((), bool))
    return result, evidence, Backward(how, sites, evidence, looking).body(closed, [start])
