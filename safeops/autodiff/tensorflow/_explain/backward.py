"""
The backward pass of `explain`: run over marked pairs, on concrete values.

Program and gradient are one graph, which runs here operation by operation: the program as it is,
and watched; the gradient by the evaluator of masked autodiff. The marks of a cotangent tell which
selections dropped its entries, and which operations would make them nonfinite in IEEE arithmetic.
Marks move by the rules for masks.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from safeops._backends.tensorflow import private
from safeops._core.types import Array
from safeops.autodiff._explain.evidence import (
    Cause,
    Count,
    Evidence,
    Meeting,
    Site,
    Slope,
    dropped_by_selection,
    united,
    update_counts,
)
from safeops.autodiff._explain.marks import Marked, marks_of, slope_so_far
from safeops.autodiff._pairs import Pair
from safeops.autodiff.tensorflow import _choosers as choosers
from safeops.autodiff.tensorflow import _control as control
from safeops.autodiff.tensorflow import _evaluator as evaluator
from safeops.autodiff.tensorflow import _running as running
from safeops.autodiff.tensorflow._evaluator import Frame
from safeops.autodiff.tensorflow._lines import Program, numbers_of, site_of, values_of

ELEMENTWISE = (choosers.product, choosers.quotient, evaluator.scale, evaluator.root)


class At(NamedTuple):
    """An operation of the backward pass, and the site whose formula it belongs to."""

    op: Any
    frame: Frame
    site: Site
    drops: Site

    @property
    def key(self) -> tuple[Any, Any]:
        """A key for the operation and its run: in a loop there are several runs."""
        return self.site, (id(self.op.graph), self.op.name)


@dataclass
class Run:
    """The run of one graph: the program with its gradient, or a body of either."""

    frame: Frame
    program: Program
    evidence: Evidence
    is_gradient: bool = False  # a body of the gradient contains no operation of the program

    def evaluate(self, targets: Sequence[Array]) -> list[Any]:
        """Return the values of tensors; the inputs of the graph stand in the frame."""
        known = self.frame.known
        for op in self.in_order(targets):
            outs = self.operation(op, [known[x.ref()] for x in op.inputs])
            known.update((x.ref(), out) for x, out in zip(op.outputs, outs, strict=True))
        return [known[x.ref()] for x in targets]

    def in_order(self, targets: Sequence[Array]) -> list[Any]:
        """Return the operations that are still to be run, each after those that it depends on."""
        known = self.frame.known
        order: dict[Any, Any] = {}
        stack = [(x.op, False) for x in targets]
        while stack:
            op, done = stack.pop()
            if done:
                order[op.name] = op
            elif op.name not in order and any(x.ref() not in known for x in op.outputs):
                stack.append((op, True))
                stack.extend((x.op, False) for x in op.inputs)
        return list(order.values())

    def operation(self, op: Any, ins: list[Any]) -> list[Any]:
        """Run one operation."""
        if op.type == "Placeholder":
            msg = f"expected a value for {op.name}, got none; pass it to the function"
            raise NotImplementedError(msg)
        for i in evaluator.unused_cotangents(op, self.frame.since):
            ins[i] = Marked(running.value_of(ins[i]), active=False)
        linear = any(isinstance(x, Pair) for x in ins)
        is_gradient = self.is_gradient or op.name in self.frame.since
        if op.type in evaluator.BODIES:
            return self.controlled(op, ins, is_gradient=is_gradient)
        if linear and op.type not in self.frame.how.readers:
            return self.marked(self.at(op), ins)
        outs = running.run(op, ins)
        if not is_gradient and op.type != "Const":  # a constant has no operands
            self.evidence.forward.record_operation(site_of(op), ins, outs)
        return outs

    def at(self, op: Any) -> At:
        """Return an operation of the backward pass with its site."""
        origin, drops = self.program.origin(op), self.program.dropping(op)
        site = Site(op.type) if origin is None else site_of(origin)
        return At(op, self.frame, site, site if drops is None else site_of(drops))

    # Calls, branches and loops

    def controlled(self, op: Any, ins: list[Any], *, is_gradient: bool) -> list[Any]:
        """Run a call, a loop or a branch."""
        if op.type in choosers.LOOPS:
            return self.loop(op, ins, is_gradient=is_gradient)
        graphs, operands, which = choosers.bodies(op), ins, 0
        if op.type in choosers.BRANCHES:
            index, *operands = ins
            number = int(running.value_of(index))
            two = op.type in ("If", "StatelessIf")
            which = int(not number) if two else min(max(number, 0), len(graphs) - 1)
        outs = self.body(op, graphs[which], operands, which, is_gradient=is_gradient)
        given = [isinstance(x, Pair) for x in operands]
        if len(graphs) == 1 or not any(given):
            return outs
        # A result that only another branch uses is a zero in this one, and absent.
        every = [control.linear_results(graph, given, self.frame) for graph in graphs]
        dropped = self.at(op).drops
        return [
            absent(x, dropped) if any(linear) and not isinstance(x, Pair) else x
            for x, linear in zip(outs, zip(*every, strict=True), strict=True)
        ]

    def loop(self, op: Any, ins: list[Any], *, is_gradient: bool) -> list[Any]:
        """Repeat a body while its condition holds."""
        (graph,), (test,) = choosers.bodies(op), choosers.bodies(op, ("cond",))
        carry = list(ins)
        while True:
            values = [running.value_of(x) for x in carry]
            inner = self.inside(op, test, values, 0, is_gradient=is_gradient)
            if not bool(running.value_of(inner.evaluate(test.outputs)[0])):
                return carry
            carry = self.body(op, graph, carry, 0, is_gradient=is_gradient)

    def body(
        self, op: Any, graph: Any, ins: Sequence[Any], which: int, *, is_gradient: bool
    ) -> list[Any]:
        """Run a body."""
        inner = self.inside(op, graph, ins, which, is_gradient=is_gradient)
        return inner.evaluate(graph.outputs)

    def inside(
        self, op: Any, graph: Any, ins: Sequence[Any], which: int, *, is_gradient: bool
    ) -> "Run":
        """Return the run of a body."""
        frame = control.entered(op, graph, ins, self.frame)
        program = self.program
        if not is_gradient:
            program = Program(graph)
        elif (origin := self.program.origin(op)) is not None and origin.type in evaluator.BODIES:
            every = choosers.bodies(origin)
            program = Program(every[which] if which < len(every) else every[0])
        return Run(frame, program, self.evidence, is_gradient)

    # The gradient

    def marked(self, at: At, ins: list[Any]) -> list[Any]:
        """Run one operation by its rule, and move the marks by the same rule."""
        rule, site = rule_of(at), at.site
        linear = [x for x in ins if isinstance(x, Pair) and x.value.dtype != tf.variant]
        self.evidence.uses(site, [mask_of(x) for x in linear])
        outs = rule(at.op, ins, at.frame)
        dropped, tainted = moved(at, ins, "dropped"), moved(at, ins, "tainted")
        new, counts = self.blocked_entries(at, ins)
        slope = self.slope(at, ins, counts)
        found = []
        for i, out in enumerate(outs):
            if not isinstance(out, Pair):
                found.append(out)
            elif out.value.dtype == tf.variant:
                found.append(Marked(out.value, out.active, dropped[i], tainted[i]))
            else:
                own, absent = united(tainted[i], new), ~mask_of(out)
                if rule is evaluator.unknown:
                    own[Cause("UNKNOWN", site)] = ~absent
                self.evidence.overflow(own, site, at.key, values_of(out.value), ~absent)
                dropped_by = dropped_by_selection(at.drops, absent, dropped[i])
                self.evidence.spare(own, at.key, absent, dropped_by)
                found.append(Marked(out.value, out.active, dropped_by, own, slope))
        return found

    def blocked_entries(
        self, at: At, ins: list[Any]
    ) -> tuple[dict[Cause, np.ndarray], list[Count]]:
        """Return by cause where nonfinite coefficients meet entries, and the counts of these."""
        slope = coefficient_of(at, ins)
        if slope is None:
            return {}, []
        pair = next(x for x in ins if isinstance(x, Pair))
        meeting = Meeting(
            at.site,
            at.key,
            slope,
            mask_of(pair),
            marks_of(pair, "dropped"),
            marks_of(pair, "tainted"),
            functools.partial(reached, at, ins),
            elementwise=rule_of(at) in ELEMENTWISE,
            used="UNKNOWN" if is_recomputed(at.op) else "GENUINE",
            own=divides_by_zero(at, ins),
        )
        return self.evidence.meet(meeting)

    def slope(self, at: At, ins: list[Any], counts: Sequence[Count]) -> Slope | None:
        """Return the formula of an operation at 1, and update the counts of what has met it."""
        if rule_of(at) not in ELEMENTWISE and at.op.type != "Neg":
            return None
        kept = slope_so_far(ins, at.site)
        value = _of_ones(at, ins, None if kept is None else kept.value)
        every = (*(kept.counts if kept else ()), *counts)
        return update_counts(Slope(at.site, value, every), values_of(value))


def absent(x: Array, dropped: Site) -> Any:
    """Return a pair of zeros without active entries."""
    if x.dtype == tf.variant or not evaluator.is_linear(x):
        return x
    return Marked(x, evaluator.active_of(x), {dropped: np.ones(x.shape, bool)})


def is_recomputed(op: Any) -> bool:
    """Whether `tf.recompute_grad` runs an operation again, whose selections are then unknown."""
    scopes = op.name.split("/")
    of_tape = private.FORMULA in scopes
    return of_tape and private.in_gradients(scopes[scopes.index(private.FORMULA) :])


def rule_of(at: At) -> evaluator.Rule:
    """Return the rule of an operation."""
    return at.frame.how.rules.get(at.op.type, evaluator.unknown)


def moved(at: At, ins: list[Any], name: str) -> list[dict[Any, Any]]:
    """Return the masks of marks in the results of an operation, by mark."""
    found: list[dict[Any, Any]] = [{} for _ in at.op.outputs]
    linear = [x for x in ins if isinstance(x, Pair)]
    for key in dict.fromkeys(key for x in linear for key in marks_of(x, name)):
        shown = [_shown(x, marks_of(x, name).get(key)) if isinstance(x, Pair) else x for x in ins]
        for marks, out in zip(found, _moved(at, shown, key), strict=True):
            if not isinstance(out, Pair):
                continue
            if out.value.dtype == tf.variant:
                marks[key] = out.active
            elif (mask := mask_of(out)).any():
                marks[key] = mask
    return found


def _shown(x: Pair, mask: Any) -> Pair:
    """Return a pair whose active entries are those of a mark."""
    if mask is None:
        mask = tf.zeros_like(x.value) if x.value.dtype == tf.variant else False
    return Pair(x.value, mask if isinstance(mask, bool) else tf.convert_to_tensor(mask))


def _moved(at: At, shown: list[Any], key: Cause | Site) -> list[Any]:
    """Run the rule of an operation over marks."""
    rule = rule_of(at)
    if isinstance(key, Cause) and at.op.type in choosers.WHERE:
        # In ordinary autodiff it selects, even where it is a convention.
        cond, *cases = shown
        value = running.run(at.op, shown)[0]
        masks = [evaluator.spread(x.active if isinstance(x, Pair) else False, value) for x in cases]
        return [Pair(value, tf.where(choosers.in_shape(cond, at.op, value), *masks))]
    if isinstance(key, Cause) and rule in (choosers.product, evaluator.rectify):
        rule = (
            evaluator.scale
        )  # ordinary autodiff multiplies at a largest entry, and in a rectifier
    return rule(at.op, shown, at.frame)


def coefficient_of(at: At, ins: list[Any]) -> np.ndarray | None:
    """Return the coefficient of cotangents in an operation; None if it has none."""
    linear = [i for i, x in enumerate(ins) if isinstance(x, Pair)]
    if len(linear) != 1 or not evaluator.is_linear(ins[linear[0]].value):
        return None
    if rule_of(at) in ELEMENTWISE:
        return numbers_of(_of_ones(at, ins))
    others = [x for x in ins if not isinstance(x, Pair) and evaluator.is_linear(x)]
    return numbers_of(others[0]) if rule_of(at) is evaluator.contract and others else None


def divides_by_zero(at: At, ins: list[Any]) -> bool:
    """Whether an operation divides cotangents by 0."""
    if rule_of(at) is not choosers.quotient or isinstance(ins[1], Pair):
        return False
    return bool((values_of(ins[1]) == 0).any())


def _of_ones(at: At, ins: list[Any], kept: Array | None = None) -> Array:
    """Return the result of an elementwise operation for cotangents of ones, or for `kept`."""
    ones = [
        Pair(tf.ones_like(x.value) if kept is None else kept) if isinstance(x, Pair) else x
        for x in ins
    ]
    rule = evaluator.scale if rule_of(at) is choosers.product else rule_of(at)
    return running.value_of(rule(at.op, ones, at.frame)[0])


def reached(at: At, ins: list[Any], mask: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Return which result entries depend on an entry in `mask` and a coefficient in `bad`."""
    if rule_of(at) in ELEMENTWISE:
        return np.broadcast_to(mask, bad.shape) & bad
    counts = []
    for x in ins:
        value = running.value_of(x)
        if isinstance(x, Pair):
            counts.append(tf.cast(mask, value.dtype))
        else:
            counts.append(tf.cast(bad, value.dtype) if evaluator.is_linear(value) else value)
    found: np.ndarray = np.abs(values_of(running.run(at.op, counts)[0])) > 0.5  # noqa: PLR2004  (between none and one)
    return found


def mask_of(x: Pair) -> np.ndarray:
    """Return where a pair is active, as an array."""
    if isinstance(x.active, bool):
        return np.full(x.value.shape, x.active)
    return np.broadcast_to(np.asarray(x.active), x.value.shape)
