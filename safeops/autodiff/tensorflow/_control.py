"""
Control flow over pairs: masks are carried by the loop or branch as further values.

The body of a call is inlined. The body of a loop or a branch is traced again, with `tf.while_loop`
and `tf.cond`, so that outer tapes and compilers see loops and branches.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from safeops._core.types import Array
from safeops.autodiff._pairs import Pair
from safeops.autodiff.tensorflow import _evaluator as evaluator
from safeops.autodiff.tensorflow._choosers import arguments, bodies, is_fixed
from safeops.autodiff.tensorflow._evaluator import Frame
from safeops.autodiff.tensorflow._running import value_of


def call(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
    """Run the body of a call in its place."""
    (graph,) = bodies(op)
    return evaluator.evaluate(graph.outputs, entered(op, graph, ins, frame))


def entered(op: Any, graph: Any, ins: Sequence[Any], frame: Frame) -> Frame:
    """Return the frame of a body with given inputs."""
    given = list(zip(graph.inputs, arguments(op), strict=True))
    return Frame(
        frame.how,
        known={x.ref(): value for x, value in zip(graph.inputs, ins, strict=True)},
        arguments={x.ref(): (y, frame) for i, (x, y) in enumerate(given) if is_fixed(op, graph, i)},
        inner=True,
    )


def pack(xs: Sequence[Any], linear: Sequence[bool]) -> list[Array]:
    """Return values as tensors, followed by the masks of the linear ones."""
    masks = [
        evaluator.spread(evaluator.active_of(x), value_of(x))
        for x, yes in zip(xs, linear, strict=True)
        if yes
    ]
    return [value_of(x) for x in xs] + masks


def unpack(tensors: Sequence[Array], linear: Sequence[bool]) -> list[Any]:
    values, masks = tensors[: len(linear)], iter(tensors[len(linear) :])
    return [Pair(x, next(masks)) if yes else x for x, yes in zip(values, linear, strict=True)]


def linear_results(graph: Any, ins: Sequence[bool], frame: Frame) -> list[bool]:
    """Return which results of a body are linear, given which of its inputs are."""
    seeds = [x for x, yes in zip(graph.inputs, ins, strict=True) if yes]
    _, reached = evaluator.dependents(seeds, graph.get_operations(), frame.how)
    return [x.ref() in reached for x in graph.outputs]


def branch(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
    """Run one of several branches over pairs."""
    index, *operands = ins
    if isinstance(index, Pair):
        return evaluator.unknown(op, ins, frame)
    graphs = bodies(op)
    given = [isinstance(x, Pair) for x in operands]
    every = [linear_results(graph, given, frame) for graph in graphs]
    linear = [any(some) for some in zip(*every, strict=True)]

    def traced(graph: Any) -> Any:
        return lambda: pack(
            evaluator.evaluate(graph.outputs, entered(op, graph, operands, frame)), linear
        )

    branches = [traced(graph) for graph in graphs]
    if op.type in ("If", "StatelessIf"):
        return unpack(tf.nest.flatten(tf.cond(index, *branches)), linear)
    return unpack(tf.nest.flatten(tf.switch_case(index, branches)), linear)


def while_loop(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
    """Repeat a body over pairs; loop variables that it does not change are not carried."""
    (graph,), (test,) = bodies(op), bodies(op, ("cond",))
    carried = [i for i, x in enumerate(graph.inputs) if graph.outputs[i] is not x]
    linear = _linear_carry(graph, [isinstance(x, Pair) for x in ins], frame)
    kinds = [linear[i] for i in carried]

    def inputs(tensors: Sequence[Array]) -> list[Any]:
        every = list(ins)
        for i, x in zip(carried, unpack(tensors, kinds), strict=True):
            every[i] = x
        return every

    def goes_on(*tensors: Array) -> Array:
        values = [value_of(x) for x in inputs(tensors)]
        return evaluator.evaluate(test.outputs, entered(op, test, values, frame))[0]

    def step(*tensors: Array) -> list[Array]:
        outs = evaluator.evaluate(
            [graph.outputs[i] for i in carried], entered(op, graph, inputs(tensors), frame)
        )
        return pack(outs, kinds)

    start = pack([ins[i] for i in carried], kinds)
    shapes = [graph.inputs[i].shape for i in carried]
    shapes += [shape for shape, yes in zip(shapes, kinds, strict=True) if yes]
    last = tf.while_loop(goes_on, step, start, shape_invariants=shapes)
    return inputs(last)


def _linear_carry(graph: Any, linear: list[bool], frame: Frame) -> list[bool]:
    """Return which loop variables are linear, as a fixed point."""
    while True:
        after = linear_results(graph, linear, frame)
        joined = [
            (a or b) and evaluator.is_linear(x)
            for a, b, x in zip(linear, after, graph.inputs, strict=True)
        ]
        if joined == linear:
            return linear
        linear = joined
