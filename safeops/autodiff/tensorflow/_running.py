"""Operations of a TensorFlow graph, run again on other values."""

import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import tensorflow as tf

from safeops._backends.tensorflow import private
from safeops._core.types import Array
from safeops.autodiff._pairs import Pair

# Told by the scope of the formulas of a tape.
COMPARISONS = ("GreaterEqual", "LessEqual", "Equal", "LogicalAnd")


def is_of_formula(op: Any) -> bool:
    """Whether an operation is of a gradient, by its name."""
    return private.FORMULA in op.name or private.in_gradients(op.name.split("/"))


def run(op: Any, ins: Sequence[Any]) -> list[Array]:
    """Run one operation on values; with its own inputs, return its own outputs."""
    values = [value_of(x) for x in ins]
    if op.inputs and all(x is y for x, y in zip(values, op.inputs, strict=True)):
        return list(op.outputs)
    if op.type == "Const":
        return [tf.constant(tf.make_ndarray(op.get_attr("value")), op.outputs[0].dtype)]
    left, given, inferred = list(values), {}, set()
    for arg in op.op_def.input_arg:
        inferred |= {arg.type_attr, arg.number_attr, arg.type_list_attr}
        count = 1
        if arg.number_attr:
            count = op.get_attr(arg.number_attr)
        elif arg.type_list_attr:
            count = len(op.get_attr(arg.type_list_attr))
        one = not (arg.number_attr or arg.type_list_attr)
        given[arg.name] = left[0] if one else left[:count]
        left = left[count:]
    given |= {a.name: op.get_attr(a.name) for a in op.op_def.attr if a.name not in inferred}
    words = _words(op.type, tuple(given))
    with (
        tf.name_scope(private.FORMULA)
        if op.type in COMPARISONS and is_of_formula(op)
        else nullcontext()
    ):
        outs = getattr(tf.raw_ops, op.type)(**{words[name]: x for name, x in given.items()})
    return _listed(outs, len(op.outputs))


@cache
def _words(kind: str, names: tuple[str, ...]) -> dict[str, str]:
    """Return the argument names of `tf.raw_ops` that differ from those of an operation."""
    if not hasattr(tf.raw_ops, kind):
        msg = f"expected operations of tf.raw_ops, got {kind}, which meets absent entries"
        raise NotImplementedError(msg)
    theirs = [p for p in inspect.signature(getattr(tf.raw_ops, kind)).parameters if p != "name"]
    free = [p for p in theirs if p not in names]
    return {name: name if name in theirs else free.pop(0) for name in names}


def _listed(outs: Any, count: int) -> list[Array]:
    if isinstance(outs, tf.Operation) or count == 0:
        return []
    return [outs] if tf.is_tensor(outs) else list(outs)


def value_of(x: Any) -> Array:
    """Return the value of a Pair; a coefficient is its own value."""
    return x.value if isinstance(x, Pair) else x
