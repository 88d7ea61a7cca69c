"""Variables of a program and their gradients: names, numbers, and whether these are finite."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from safeops._core.types import Array


def put_back(before: Sequence[Any]) -> None:
    for handle, value in before:
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def put_back_bad(before: Sequence[Any]) -> None:
    """Write into the variables that have become not finite what they were before a step."""
    numbers = [(h, x) for h, x in before if x.dtype.is_floating or x.dtype.is_complex]
    for handle, value in numbers:
        now = tf.raw_ops.ReadVariableOp(resource=handle, dtype=value.dtype)
        if is_finite(value) and not is_finite(now):
            put_back([(handle, value)])


def tensorflow_variable(variable: Any) -> Any:
    """Return the variable of TensorFlow that a variable of Keras holds."""
    held = getattr(variable, "value", None)
    return held if isinstance(held, tf.Variable) else variable


def name_of(variable: Any) -> str:
    """Return the name of a variable: its path in a model of Keras."""
    return str(getattr(variable, "path", None) or variable.name.removesuffix(":0"))


def is_finite(gradient: Any) -> Array:
    values = getattr(gradient, "values", gradient)
    if values.dtype.is_complex:
        values = tf.stack([tf.math.real(values), tf.math.imag(values)])
    return tf.reduce_all(tf.math.is_finite(values))
