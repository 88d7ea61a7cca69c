"""The explanation of a JAX gradient: which passes run, and their findings."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from safeops._backends.jax.private import opened
from safeops._typing import Array
from safeops.autodiff._explain.evidence import Evidence, Forward, missing, name_of, reaching
from safeops.autodiff._explain.marks import Marked
from safeops.autodiff._explain.report import (
    Finding,
    Report,
    counted,
    make_report,
    never_clean,
    operations,
)
from safeops.autodiff._options import places_of
from safeops.autodiff.jax import _pairs as pairs
from safeops.autodiff.jax._callbacks import Callbacks
from safeops.autodiff.jax._explain.backward import Backward
from safeops.autodiff.jax._explain.sites import Sites, count_of, named, numbers_of, tagging
from safeops.autodiff.jax._explain.watch import watching
from safeops.autodiff.jax._explain.whole import Looking
from safeops.autodiff.jax._pairs import Options
from safeops.autodiff.jax._passes import check_inputs, check_output
from safeops.autodiff.jax._tables import RULES

# The least time of a gradient in seconds, for the limit: a compiled gradient takes almost none.
LEAST = 1.0


def explained_call(
    f: Callable[..., Any],
    args: Sequence[Any],
    argnums: int | Sequence[int],
    limit: float,
    progress: Callable[[str], None] | None,
    batch: int = 0,
    *,
    interim: bool = False,
) -> Report:
    """
    Take the gradient of a function, and explain it if it is not finite.

    `batch` is the number of rows of the batch; 0 if it is unknown.
    """
    places = places_of(argnums, len(args))
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(args)):
        msg = "expected arrays, got traced ones, which have no values; call explain outside of jit"
        raise TypeError(msg)
    chosen = [jax.tree.map(jnp.asarray, args[i]) for i in places]
    check_inputs(chosen, allow_int=False)

    def of_chosen(*chosen: Any) -> Any:
        every = list(args)
        for i, x in zip(places, chosen, strict=True):
            every[i] = x
        return f(*every)

    callbacks, start = Callbacks(), time.monotonic()
    value, pullback = jax.vjp(callbacks.noting(of_chosen), *chosen)
    check_output(value)
    checked = _checked(pullback, value, chosen)
    ordinary = _bad(jax.tree.leaves(pullback(jnp.ones_like(value))))
    bad = not jnp.isfinite(value)
    if not (ordinary or bad or interim):
        return make_report("jax", (), checked)
    took = max(time.monotonic() - start, LEAST)
    looking = Looking(limit * took, progress)
    findings, masked, on_the_way = _found(of_chosen, chosen, looking, callbacks, batch)
    what = name_of(np.asarray(value))
    found = [*findings, *missing(findings, value=what, ordinary=ordinary, masked=masked)]
    every = [*(found if ordinary or bad else ()), *(on_the_way if interim else ())]
    report = make_report("jax", every, checked, looking.notes())
    return never_clean(report) if ordinary or bad else report


def _bad(arrays: Sequence[Array]) -> int:
    """Return the number of nonfinite entries."""
    return sum(int((~jnp.isfinite(x)).sum()) for x in arrays)


def _checked(pullback: Any, value: Array, chosen: Any) -> str:
    """Return what an explanation has checked, in words."""
    entries = sum(np.size(x) for x in jax.tree.leaves(chosen))
    count = count_of(opened(jax.make_jaxpr(pullback)(jnp.ones_like(value))))
    return f"the gradient at {counted(entries)}, through {operations(count)}"


def _found(
    f: Callable[..., Any],
    chosen: Sequence[Any],
    looking: Looking,
    callbacks: Callbacks,
    batch: int,
) -> tuple[list[Finding], int, Iterator[Finding]]:
    """Return the findings, how many entries of the masked gradient are not finite, and INTERIM."""
    forward, sites = Forward(numbers_of, jax.tree.leaves(chosen)), Sites()
    shapes = [x.shape for x in jax.tree.leaves(chosen)]
    result = callbacks.answering(watching(f, forward, looking))(*chosen)
    value, pullback = jax.vjp(callbacks.answering(tagging(f, sites)), *chosen)
    closed = jax.make_jaxpr(pullback)(jnp.ones_like(value))
    how = Options(RULES, exact=True, on_unknown="ignore")
    start = Marked(jnp.ones_like(value), np.ones((), bool))
    while True:
        evidence = Evidence(forward, batch, shapes)
        outs = Backward(how, sites, evidence, looking).body(closed, [start])
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
    bad = _bad([pairs.value_of(x) for x in outs])
    return findings, bad, evidence.interim(result, named)
