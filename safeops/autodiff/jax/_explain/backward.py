"""
The backward pass of `explain`: run over marked pairs, on concrete values.

It is the evaluator of masked autodiff. The marks of a cotangent tell which selections dropped its
entries, and which operations would make them nonfinite in ordinary autodiff. Marks move by the
rules for masks.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from safeops._backends.jax.bodies import Program
from safeops._backends.jax.private import axes_of_product, body_of_call, plain
from safeops._core.types import Array
from safeops.autodiff._explain.evidence import (
    Cause,
    Count,
    Evidence,
    Marks,
    Meeting,
    Site,
    Slope,
    combined,
    compact,
    dropped_by_selection,
    name_of,
    parts,
    thin,
    united,
    update_counts,
)
from safeops.autodiff._explain.marks import Marked, marks_of, slope_so_far
from safeops.autodiff._pairs import Pair
from safeops.autodiff._small import SMALL, narrowed
from safeops.autodiff.jax import _evaluator as pairs
from safeops.autodiff.jax._choosers import CHOOSERS
from safeops.autodiff.jax._evaluator import Factors, Options
from safeops.autodiff.jax._explain.compiled_loops import LOOPS, LoopBudget
from safeops.autodiff.jax._known import entries_of, is_known
from safeops.autodiff.jax._lines import CALLS, Sites, eval_jaxpr_with, numbers_of

ELEMENTWISE = ("mul", "div")
FORMULAS = {"mul": np.multiply, "div": np.divide, "neg": np.negative}
WHOLE = (*LOOPS, "cond", "shard_map")  # whose bodies are not looked into
PRODUCTS = (*ELEMENTWISE, "dot_general", "conv_general_dilated")


class Backward:
    """Run a linear program over marked pairs, and record what it meets."""

    def __init__(self, how: Options, sites: Sites, evidence: Evidence, looking: LoopBudget) -> None:
        self.how, self.sites, self.evidence, self.looking = how, sites, evidence, looking
        self.moved_before: dict[Any, list[np.ndarray | None]] = {}
        self.compiled: dict[Any, Any] = {}  # by identity of the equation, which is kept alive here

    def body(
        self, program: Program, args: Sequence[Any], outer: tuple[Site, int] = (Site("call"), 0)
    ) -> list[Any]:
        """Run a program; what has no site of its own has the outer one."""

        def equation(eqn: JaxprEqn, ins: list[Any]) -> list[Any]:
            if not any(isinstance(x, Pair) for x in ins):
                return pairs.computed(eqn, ins, self.how)
            place = self.sites.of(eqn, outer)
            if eqn.primitive.name in CALLS:
                return self.body(body_of_call(eqn.params), ins, place)
            return self.marked(eqn, ins, *place)

        return eval_jaxpr_with(program, args, equation)

    def marked(self, eqn: JaxprEqn, ins: list[Any], site: Site, run: int) -> list[Any]:
        """Run one equation by its rule, and move the marks by the same rule."""
        if eqn.primitive.name == "select_n":  # its masks are known where the condition is
            ins = [np.asarray(ins[0]), *ins[1:]]
        self.evidence.uses(site, [mask_of(x) for x in ins if isinstance(x, Pair)])
        outs = self.once(eqn, ins, self.how)
        dropped, tainted = self.moved(eqn, ins, site)
        new, counts = self.blocked_entries(eqn, ins, site, run)
        slope = self.slope(eqn, ins, site, counts)
        found = []
        for i, out in enumerate(outs):
            # Before JAX 0.10, shard_map has cotangents of integers, which have no entries.
            if not isinstance(out, Pair) or numbers_of(out.value) is None:
                found.append(out)
                continue
            active, numbers = mask_of(out), np.asarray(out.value)  # which NumPy moves
            absent = combined(np.logical_not, active)
            own = self.evidence.nearest(tainted[i], new)
            if eqn.primitive.name in WHOLE:
                before = Marked(out.value, out.active, dropped[i])
                own = united(own, self.compare((eqn, run), ins, i, before, site))
            if self.is_unclear(eqn, site):
                own[Cause("UNKNOWN", site)] = active
            self.evidence.overflow(own, site, (run, id(eqn)), numbers, active)
            dropped_by = dropped_by_selection(site, absent, dropped[i])
            self.evidence.spare(own, (run, id(eqn)), absent, dropped_by)
            dropped_by, own = (
                {key: compact(mask) for key, mask in marks.items()} for marks in (dropped_by, own)
            )
            found.append(Marked(numbers, thin(active), dropped_by, own, slope))
        return found

    def moved(
        self, eqn: JaxprEqn, ins: list[Any], site: Site
    ) -> tuple[list[dict[Any, np.ndarray]], list[dict[Any, np.ndarray]]]:
        """Return the masks of marks in the results of an equation: of what dropped, and taints."""
        dropped: list[dict[Any, np.ndarray]] = [{} for _ in eqn.outvars]
        tainted: list[dict[Any, np.ndarray]] = [{} for _ in eqn.outvars]

        def of(x: Pair) -> Marks:
            return {**marks_of(x, "dropped"), **marks_of(x, "tainted")}

        keys = dict.fromkeys(key for x in ins if isinstance(x, Pair) for key in of(x))
        # A coefficient has no marks.
        shown = {
            key: [
                Pair(x.value, thin(of(x).get(key, False)))
                if isinstance(x, Pair)
                else pairs.Zero(pairs.value_of(x))
                if pairs.is_inexact(pairs.value_of(x))
                else x
                for x in ins
            ]
            for key in keys
        }
        for key, given in shown.items():
            every = dropped if isinstance(key, Site) else tainted
            for marks, mask in zip(every, self.moves(eqn, site, key, given), strict=True):
                if mask is not None and parts(mask).any():
                    marks[key] = mask
        return dropped, tainted

    def moves(
        self, eqn: JaxprEqn, site: Site, key: Cause | Site, ins: list[Any]
    ) -> list[np.ndarray | None]:
        """Return the masks of results, for pairs whose masks are those of a mark."""
        how = replace(self.how, exact=False)  # which changes values only
        stays = eqn.primitive.name == "select_n" and _stays(key, site)
        ins = [pairs.Zero(ins[0]), *ins[1:]] if stays else ins  # no condition

        def run(ins: list[Any]) -> list[Any]:
            return (pairs.add if stays else self.once)(eqn, ins, how)

        if eqn.primitive.name in WHOLE:
            return masks_of(run(ins))
        form = form_of(eqn, ins)
        found = self.moved_before.get(form) or traced(run, ins)
        if form is not None and found is not None:
            self.moved_before[form] = found
        return masks_of(run(ins)) if found is None else found

    def blocked_entries(
        self, eqn: JaxprEqn, ins: list[Any], site: Site, run: int
    ) -> tuple[dict[Cause, np.ndarray], list[Count]]:
        """Return by cause where nonfinite coefficients meet entries, and the counts of these."""
        factors = pairs.factors_of(eqn, ins) if eqn.primitive.name in PRODUCTS else None
        if factors is None:
            return {}, []
        meeting = Meeting(
            site,
            (run, id(eqn)),
            np.asarray(slope_of(factors)),
            mask_of(factors.pair),
            marks_of(factors.pair, "dropped"),
            marks_of(factors.pair, "tainted"),
            functools.partial(reached, factors),
            elementwise=eqn.primitive.name in ELEMENTWISE,
            own=eqn.primitive.name == "div" and bool((np.asarray(factors.other) == 0).any()),
        )
        return self.evidence.meet(meeting)

    def compare(self, at: Any, ins: list[Any], i: int, out: Marked, site: Site) -> Marks:
        """Return where a body that is run whole is finite, and is not in ordinary autodiff."""
        eqn, run = at
        value = np.asarray(plain(eqn, [pairs.value_of(x) for x in ins])[i])
        bad = ~np.isfinite(value) & np.isfinite(np.asarray(out.value))
        if not bad.any():
            return {}
        cause = Cause("BLOCKED", site)
        count = self.evidence.count(cause, (run, id(eqn)))
        count.add(bad, name_of(value[bad]))
        met = {by: int((mask & bad).sum()) for by, mask in out.dropped.items()}
        count.selections.update({by: entries for by, entries in met.items() if entries})
        return {cause: bad}

    def slope(
        self, eqn: JaxprEqn, ins: list[Any], site: Site, counts: Sequence[Count]
    ) -> Slope | None:
        """Return the formula of an operation at 1, and update the counts of what has met it."""
        if eqn.primitive.name not in FORMULAS:
            return None
        kept = slope_so_far(ins, site)
        one = kept.value if kept else 1
        factors = [one if isinstance(x, Pair) else np.asarray(pairs.value_of(x)) for x in ins]
        with np.errstate(all="ignore"):
            value = FORMULAS[eqn.primitive.name](*factors)
        value = np.broadcast_to(value, eqn.outvars[0].aval.shape)
        return update_counts(Slope(site, value, (*(kept.counts if kept else ()), *counts)), value)

    def is_unclear(self, eqn: JaxprEqn, site: Site) -> bool:
        """Whether it is unknown which entries an operation uses."""
        return site in self.looking.stopped or self.rule(eqn) is pairs.unknown

    def once(self, eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Any]:
        """Run one operation by its rule; a loop is compiled once for all marks."""
        if eqn.primitive.name not in LOOPS:
            return self.rule(eqn)(eqn, ins, how)
        zeros = frozenset(i for i, x in enumerate(ins) if pairs.is_zero(x))
        key = (id(eqn), how.exact, zeros)
        if key not in self.compiled:
            self.compiled[key] = eqn, jax.jit(functools.partial(self.run_whole, eqn, how, zeros))
        at = {i: spread_over(x) for i, x in enumerate(ins) if isinstance(x, Pair)}
        values, masks = self.compiled[key][1]([pairs.value_of(x) for x in ins], at)
        return [Pair(x, masks[i]) if i in masks else x for i, x in enumerate(values)]

    def run_whole(
        self,
        eqn: JaxprEqn,
        how: Options,
        zeros: frozenset[int],
        values: list[Any],
        masks: dict[int, Any],
    ) -> tuple[list[Any], dict[int, Any]]:
        """Run a loop by its rule, from values and masks as arrays."""
        coefficients = [pairs.Zero(x) if i in zeros else x for i, x in enumerate(values)]
        ins = [Pair(values[i], masks[i]) if i in masks else x for i, x in enumerate(coefficients)]
        outs = self.rule(eqn)(eqn, ins, how)
        found = {i: spread_over(x) for i, x in enumerate(outs) if isinstance(x, Pair)}
        return [pairs.value_of(x) for x in outs], found

    def rule(self, eqn: JaxprEqn) -> pairs.Rule:
        """Return the rule of an equation."""
        return self.how.rules.get(eqn.primitive.name, pairs.unknown)


def spread_over(x: Pair) -> Any:
    """Return where a pair is active, as an array of JAX."""
    return jnp.asarray(pairs.spread(x.active, pairs.shape_of(x)))


def slope_of(factors: Factors) -> Array:
    """Return the coefficient as the slope: its reciprocal if the pair is divided by it."""
    if factors.eqn.primitive.name == "div":
        return 1 / jnp.asarray(factors.other)
    return factors.other


def reached(factors: Factors, mask: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Return which result entries depend on an entry in `mask` and a coefficient in `bad`."""
    name, shape = factors.eqn.primitive.name, factors.eqn.outvars[0].aval.shape
    if name in ELEMENTWISE:
        return np.broadcast_to(combined(np.logical_and, mask, bad), shape)
    if name == "dot_general":
        x, y = (mask, bad)[:: 1 if factors.at == 0 else -1]
        return np.broadcast_to(product(axes_of_product(factors.eqn), x, y), shape)
    counts = [jnp.asarray(x, factors.pair.value.dtype) for x in (mask, bad)]
    return np.asarray(factors.product(*counts) != 0)


def product(axes: Any, *masks: np.ndarray) -> np.ndarray:
    """Return where a product of tensors sums entries of both masks; it may have length 1."""
    x, y = map(narrowed, masks)
    (left, right), (left_batch, right_batch) = axes
    for i, j in zip(left, right, strict=True):
        if 1 in (x.shape[i], y.shape[j]):
            x, y = np.any(x, i, keepdims=True), np.any(y, j, keepdims=True)
    rows, free = of_batches(x, left_batch, left)
    columns, other = of_batches(y, right_batch, right)
    counts = rows @ columns.swapaxes(-1, -2)
    return np.asarray(counts.reshape(*counts.shape[:-2], *free, *other) != 0)


def of_batches(
    mask: np.ndarray, batch: Sequence[int], summed: Sequence[int]
) -> tuple[np.ndarray, list[int]]:
    """Return counts as a matrix in each batch, whose rows are summed, and the other lengths."""
    free = [i for i in range(mask.ndim) if i not in (*batch, *summed)]
    lengths = [[mask.shape[i] for i in axes] for axes in (batch, free, summed)]
    counts = mask.transpose(*batch, *free, *summed).astype(np.float32)
    return counts.reshape(*lengths[0], -1, math.prod(lengths[2])), lengths[1]


def mask_of(x: Any) -> np.ndarray:
    """Return where a pair is active, as an array."""
    return np.broadcast_to(np.asarray(entries_of(pairs.mask_of(x))), pairs.shape_of(x))


def masks_of(outs: Sequence[Any]) -> list[np.ndarray | None]:
    """Return where results are active; None for those that are no pairs."""
    return [mask_of(x) if isinstance(x, Pair) else None for x in outs]


def form_of(eqn: JaxprEqn, ins: Sequence[Any]) -> Any:
    """Return all that decides where results are active, as layers repeat it; None if data do."""
    if not all(isinstance(x, (Pair, pairs.Zero)) for x in ins):
        return None
    masks = [np.asarray(x.active) if isinstance(x, Pair) else None for x in ins]
    if any(m is not None and m.nbytes > SMALL for m in masks):
        return None
    keys = [None if m is None else (m.shape, m.tobytes()) for m in masks]
    return eqn.primitive, tuple(eqn.params.items()), (*keys,), tuple(x.aval for x in eqn.invars)


def traced(run: Callable[[list[Any]], list[Any]], ins: list[Any]) -> list[np.ndarray | None] | None:
    """Return where the results of an operation are active; None if that depends on values."""
    found: list[Any] = []

    def trace(values: list[Any]) -> tuple[()]:
        given = iter(values)
        found.extend(run([Pair(next(given), x.active) if isinstance(x, Pair) else x for x in ins]))
        return ()

    jax.eval_shape(trace, [x.value for x in ins if isinstance(x, Pair)])
    known = all(is_known(entries_of(x.active)) for x in found if isinstance(x, Pair))
    return masks_of(found) if known else None


def _stays(key: Cause | Site, site: Site) -> bool:
    """Whether a mark passes a selection."""
    # An entry stays marked with the selection that dropped it, until a `where` drops it again: the
    # nearest `where` counts, and what a loop or branch drops has no other mark. A taint passes
    # where ordinary autodiff multiplies with 0 or 1.
    if isinstance(key, Site):
        return site.operation not in ("select_n", *WHOLE)
    return site.operation in CHOOSERS
