"""
The backward pass, explained: run over pairs that remember what dropped them and what tainted them.

Program and gradient are one graph, which is run here on concrete values, operation by operation:
the program as it is, and watched; the gradient by the evaluator of masked autodiff. A cotangent
carries two kinds of marks: where each selection dropped it, and where it would not be finite by the
arithmetic of IEEE, because of which operation. Both move as masks do, and by the same rules.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from safeops._typing import Array
from safeops.autodiff._explain.evidence import (
    Cause,
    Count,
    Evidence,
    Meeting,
    Site,
    Slope,
    blamed,
    tell,
    united,
)
from safeops.autodiff._explain.marks import Marked, marks_of, slope_so_far
from safeops.autodiff._pairs import Pair
from safeops.autodiff.tensorflow import _choices as choices
from safeops.autodiff.tensorflow import _control as control
from safeops.autodiff.tensorflow import _pairs as pairs
from safeops.autodiff.tensorflow._explain.sites import Program, numbers_of, site_of, values_of
from safeops.autodiff.tensorflow._pairs import Frame

ELEMENTWISE = (choices.product, choices.quotient, pairs.scale, pairs.root)


class At(NamedTuple):
    """An operation of the backward pass: whose formula it is of, and where that stands."""

    op: Any
    frame: Frame
    site: Site
    drops: Site

    @property
    def key(self) -> tuple[Any, Any]:
        """Tell it from others: there is one run of each operation, or several in a loop."""
        return self.site, (id(self.op.graph), self.op.name)


@dataclass
class Run:
    """One graph that is run: the program with its gradient, or a body of either."""

    frame: Frame
    program: Program
    evidence: Evidence
    is_gradient: bool = False  # of a body of the gradient, in which nothing is the program

    def evaluate(self, targets: Sequence[Array]) -> list[Any]:
        """Return what tensors are; inputs stand in the frame."""
        known = self.frame.known
        for op in self.in_order(targets):
            outs = self.operation(op, [known[x.ref()] for x in op.inputs])
            known.update((x.ref(), out) for x, out in zip(op.outputs, outs, strict=True))
        return [known[x.ref()] for x in targets]

    def in_order(self, targets: Sequence[Array]) -> list[Any]:
        """Return the operations that are still to be run, each after those that it needs."""
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
        for i in pairs.vacant(op, self.frame.since):
            ins[i] = Marked(pairs.value_of(ins[i]), active=False)
        linear = any(isinstance(x, Pair) for x in ins)
        is_gradient = self.is_gradient or op.name in self.frame.since
        if op.type in pairs.BODIES:
            return self.controlled(op, ins, is_gradient=is_gradient)
        if linear and op.type not in self.frame.how.readers:
            return self.marked(self.at(op), ins)
        outs = pairs.run(op, ins)
        if not is_gradient and op.type != "Const":  # which was not made of anything
            self.evidence.forward.made(site_of(op), ins, outs)
        return outs

    def at(self, op: Any) -> At:
        """Return where an operation of the backward pass stands."""
        origin, drops = self.program.origin(op), self.program.dropping(op)
        site = Site(op.type) if origin is None else site_of(origin)
        return At(op, self.frame, site, site if drops is None else site_of(drops))

    # Calls, branches and loops.

    def controlled(self, op: Any, ins: list[Any], *, is_gradient: bool) -> list[Any]:
        """Run a call, a loop or a branch."""
        if op.type in choices.LOOPS:
            return self.loop(op, ins, is_gradient=is_gradient)
        graphs, operands, which = choices.bodies(op), ins, 0
        if op.type in choices.BRANCHES:
            index, *operands = ins
            number = int(pairs.value_of(index))
            two = op.type in ("If", "StatelessIf")
            which = int(not number) if two else min(max(number, 0), len(graphs) - 1)
        outs = self.body(op, graphs[which], operands, which, is_gradient=is_gradient)
        given = [isinstance(x, Pair) for x in operands]
        if len(graphs) == 1 or not any(given):
            return outs
        # What another branch would use is a zero of this one, and absent.
        every = [control.linear_results(graph, given, self.frame) for graph in graphs]
        dropped = self.at(op).drops
        return [
            absent(x, dropped) if any(linear) and not isinstance(x, Pair) else x
            for x, linear in zip(outs, zip(*every, strict=True), strict=True)
        ]

    def loop(self, op: Any, ins: list[Any], *, is_gradient: bool) -> list[Any]:
        """Repeat a body while its condition holds."""
        (graph,), (test,) = choices.bodies(op), choices.bodies(op, ("cond",))
        carry = list(ins)
        while True:
            values = [pairs.value_of(x) for x in carry]
            inner = self.inside(op, test, values, 0, is_gradient=is_gradient)
            if not bool(pairs.value_of(inner.evaluate(test.outputs)[0])):
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
        """Return how to run a body."""
        frame = control.entered(op, graph, ins, self.frame)
        program = self.program
        if not is_gradient:
            program = Program(graph)
        elif (origin := self.program.origin(op)) is not None and origin.type in pairs.BODIES:
            every = choices.bodies(origin)
            program = Program(every[which] if which < len(every) else every[0])
        return Run(frame, program, self.evidence, is_gradient)

    # The gradient.

    def marked(self, at: At, ins: list[Any]) -> list[Any]:
        """Run one operation by its rule, and move the marks."""
        rule, site = rule_of(at), at.site
        linear = [x for x in ins if isinstance(x, Pair) and x.value.dtype != tf.variant]
        self.evidence.uses(site, [mask_of(x) for x in linear])
        outs = rule(at.op, ins, at.frame)
        dropped, tainted = moved(at, ins, "dropped"), moved(at, ins, "tainted")
        new, counts = self.met(at, ins)
        slope = self.slope(at, ins, counts)
        found = []
        for i, out in enumerate(outs):
            if not isinstance(out, Pair):
                found.append(out)
            elif out.value.dtype == tf.variant:
                found.append(Marked(out.value, out.active, dropped[i], tainted[i]))
            else:
                own, absent = united(tainted[i], new), ~mask_of(out)
                if rule is pairs.unknown:
                    own[Cause("UNKNOWN", site)] = ~absent
                self.evidence.overflow(own, site, at.key, values_of(out.value), ~absent)
                dropped_by = blamed(at.drops, absent, dropped[i])
                found.append(Marked(out.value, out.active, dropped_by, own, slope))
        return found

    def met(self, at: At, ins: list[Any]) -> tuple[dict[Cause, np.ndarray], list[Count]]:
        """Return where coefficients that are not finite met entries, and count these."""
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
        """Return what the formula of an operation makes of 1, and tell who has met what."""
        if rule_of(at) not in ELEMENTWISE and at.op.type != "Neg":
            return None
        kept = slope_so_far(ins, at.site)
        value = _of_ones(at, ins, None if kept is None else kept.value)
        every = (*(kept.counts if kept else ()), *counts)
        return tell(Slope(at.site, value, every), values_of(value))


def absent(x: Array, dropped: Site) -> Any:
    """Return a zero as a pair without active entries."""
    if x.dtype == tf.variant or not pairs.is_linear(x):
        return x
    return Marked(x, pairs.active_of(x), {dropped: np.ones(x.shape, bool)})


def is_recomputed(op: Any) -> bool:
    """Whether an operation is of what `tf.recompute_grad` runs again, whose selections are lost."""
    scopes = op.name.split("/")
    return pairs.FORMULA in scopes and "gradients" in scopes[scopes.index(pairs.FORMULA) :]


def rule_of(at: At) -> pairs.Rule:
    """Return the rule of an operation."""
    return at.frame.how.rules.get(at.op.type, pairs.unknown)


def moved(at: At, ins: list[Any], name: str) -> list[dict[Any, Any]]:
    """Return where marks are in the results of an operation."""
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
    """Return a pair that is active where a mark is."""
    if mask is None:
        mask = tf.zeros_like(x.value) if x.value.dtype == tf.variant else False
    return Pair(x.value, mask if isinstance(mask, bool) else tf.convert_to_tensor(mask))


def _moved(at: At, shown: list[Any], key: Cause | Site) -> list[Any]:
    """Run the rule of an operation over marks."""
    rule = rule_of(at)
    if isinstance(key, Cause) and at.op.type in choices.WHERE:
        # It selects in ordinary autodiff, even where it is a convention.
        cond, *cases = shown
        value = pairs.run(at.op, shown)[0]
        masks = [pairs.spread(x.active if isinstance(x, Pair) else False, value) for x in cases]
        return [Pair(value, tf.where(choices.in_shape(cond, at.op, value), *masks))]
    if isinstance(key, Cause) and rule is choices.product:
        rule = pairs.scale  # ordinary autodiff multiplies at a largest entry
    return rule(at.op, shown, at.frame)


def coefficient_of(at: At, ins: list[Any]) -> np.ndarray | None:
    """Return what an operation multiplies cotangents with, None if it does not."""
    linear = [i for i, x in enumerate(ins) if isinstance(x, Pair)]
    if len(linear) != 1 or not pairs.is_linear(ins[linear[0]].value):
        return None
    if rule_of(at) in ELEMENTWISE:
        return numbers_of(_of_ones(at, ins))
    others = [x for x in ins if not isinstance(x, Pair) and pairs.is_linear(x)]
    return numbers_of(others[0]) if rule_of(at) is pairs.contract and others else None


def divides_by_zero(at: At, ins: list[Any]) -> bool:
    """Whether an operation divides cotangents by 0."""
    if rule_of(at) is not choices.quotient or isinstance(ins[1], Pair):
        return False
    return bool((values_of(ins[1]) == 0).any())


def _of_ones(at: At, ins: list[Any], kept: Array | None = None) -> Array:
    """Return what an elementwise operation makes of ones, or of what was kept."""
    ones = [
        Pair(tf.ones_like(x.value) if kept is None else kept) if isinstance(x, Pair) else x
        for x in ins
    ]
    rule = pairs.scale if rule_of(at) is choices.product else rule_of(at)
    return pairs.value_of(rule(at.op, ones, at.frame)[0])


def reached(at: At, ins: list[Any], mask: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Return which entries of a product are made of entries and coefficients in two masks."""
    if rule_of(at) in ELEMENTWISE:
        return np.broadcast_to(mask, bad.shape) & bad
    counts = []
    for x in ins:
        value = pairs.value_of(x)
        if isinstance(x, Pair):
            counts.append(tf.cast(mask, value.dtype))
        else:
            counts.append(tf.cast(bad, value.dtype) if pairs.is_linear(value) else value)
    found: np.ndarray = np.abs(values_of(pairs.run(at.op, counts)[0])) > 0.5  # noqa: PLR2004  (between none and one)
    return found


def mask_of(x: Pair) -> np.ndarray:
    """Return where a pair is active, as an array."""
    if isinstance(x.active, bool):
        return np.full(x.value.shape, x.active)
    return np.broadcast_to(np.asarray(x.active), x.value.shape)
