"""One masked pass of TensorFlow: its arguments, its frame, and its results."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from safeops._core.types import Array
from safeops.autodiff._options import check_options
from safeops.autodiff._pairs import Pair
from safeops.autodiff.tensorflow import _evaluator as evaluator
from safeops.autodiff.tensorflow import _running as running
from safeops.autodiff.tensorflow._evaluator import Frame, Options
from safeops.autodiff.tensorflow._rules import READERS, RULES


@dataclass(frozen=True)
class After:
    """The names of operations that are made after others, in one graph."""

    # Those that masked autodiff makes itself are among them: they are no uses by the program.

    others: frozenset[str]

    def __contains__(self, name: object) -> bool:
        return name not in self.others


def options_of(on_unknown: str, *, lazy: bool, return_mask: bool) -> Options:
    check_options(on_unknown, lazy=lazy, return_mask=return_mask)
    return Options(RULES, READERS, on_unknown)


def seeds_of(target: Any, output_gradients: Any) -> Any:
    """Return the cotangents of targets, as new tensors."""

    def seed(y: Any, given: Any = None) -> Array:
        return tf.identity(tf.ones_like(y) if given is None else given)

    if output_gradients is None:
        return tf.nest.map_structure(seed, target)
    given = tf.nest.flatten(output_gradients)
    each = [seed(y, g) for y, g in zip(tf.nest.flatten(target), given, strict=True)]
    return tf.nest.pack_sequence_as(target, each)


def frame_of(seeds: Any, before: int, how: Options) -> Frame:
    """Return the frame of the backward pass in the graph that is being built."""
    operations = tf.compat.v1.get_default_graph().get_operations()
    made, every = operations[before:], tf.nest.flatten(seeds)
    since = After(frozenset(op.name for op in operations[:before]))
    linear, _ = evaluator.dependents(every, made, how, since)
    known, again = {x.ref(): Pair(x) for x in every}, evaluator.recomputed(made)
    return Frame(how, linear, known, since=since, again=again)


def masked(found: Any, frame: Frame, *, lazy: bool, return_mask: bool) -> Any:
    """Return the masked gradients, with their masks if asked."""
    every = tf.nest.flatten(found)
    place = [i for i, x in enumerate(every) if x is not None]
    tensors = [getattr(every[i], "values", every[i]) for i in place]  # of sparse rows, their values

    def run() -> list[Any]:
        return evaluator.evaluate(tensors, frame)

    if lazy:
        healthy = _healthy(tensors, frame)
        values = tf.cond(healthy, lambda: tensors, lambda: [running.value_of(x) for x in run()])
    else:
        values = run()
    out, masks = list(every), list(every)
    for i, x in zip(place, values, strict=True):
        value = running.value_of(x)
        rows = isinstance(every[i], tf.IndexedSlices)
        out[i] = tf.IndexedSlices(value, every[i].indices, every[i].dense_shape) if rows else value
        if return_mask:
            masks[i] = evaluator.spread(evaluator.active_of(x), value)
    pack = functools.partial(tf.nest.pack_sequence_as, found)
    return (pack(out), pack(masks)) if return_mask else pack(out)


def dense(x: Any) -> Any:
    """Return a gradient as a dense tensor; None stays None."""
    return None if x is None else tf.convert_to_tensor(x)


def _healthy(tensors: Sequence[Array], frame: Frame) -> Array:
    """Return whether ordinary gradients are finite, and no kernel has hidden that they are not."""
    healthy = tf.constant(True)  # noqa: FBT003  (a value)
    for x in tensors:
        healthy &= tf.reduce_all(evaluator.is_finite(x))
    graph = tf.compat.v1.get_default_graph()
    for name in frame.backward:
        op = graph.get_operation_by_name(name)
        if op.type in evaluator.BODIES:
            return tf.constant(False)  # noqa: FBT003  (what is in a body is not looked at)
        if RULES.get(op.type) is evaluator.root:
            y = op.inputs[0]
            healthy &= tf.reduce_all(evaluator.is_finite(y))
            if op.type == "SqrtGrad":
                healthy &= tf.reduce_all(tf.not_equal(y, tf.zeros((), y.dtype)))
    return healthy


def with_tensors(args: tuple[Any, ...], numbers: tuple[int, ...]) -> tuple[Any, ...]:
    """Return arguments, with those to differentiate as tensors or variables."""
    every = list(args)
    for i in numbers:
        every[i] = tf.nest.map_structure(_differentiable, every[i])
    return tuple(every)


def _differentiable(x: Any) -> Any:
    """Return an argument as a tensor or a variable of real or complex numbers."""
    x = x if isinstance(x, tf.Variable) else tf.convert_to_tensor(x)
    if not (x.dtype.is_floating or x.dtype.is_complex):
        msg = f"expected real or complex arguments, got {x.dtype.name}; convert them"
        raise TypeError(msg)
    return x


def check_output(value: Any) -> None:
    if not tf.is_tensor(value) or value.shape.rank not in (0, None):
        shapes = tf.nest.map_structure(lambda x: x.shape if tf.is_tensor(x) else x, value)
        msg = f"expected a function with a scalar value, got {shapes}; sum it, or use GradientTape"
        raise TypeError(msg)
    if not value.dtype.is_floating:
        msg = f"expected a function with a real value, got {value.dtype.name}; use GradientTape"
        raise TypeError(msg)
