"""
Second derivatives where a custom gradient stands in the formula of another.

A masked result is made of new operations, which have TensorFlow's derivatives. Where a custom
gradient made the ordinary result, the masked result gets the user's second derivative as well.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from safeops._backends.tensorflow import private
from safeops._core.types import Array
from safeops.autodiff._pairs import Pair
from safeops.autodiff.tensorflow._choosers import bodies
from safeops.autodiff.tensorflow._evaluator import BODIES, Frame, Rule, cleaned


def with_second_derivative(rule: Rule) -> Rule:
    """Return a rule whose results keep the derivatives of custom gradients."""

    @functools.wraps(rule)
    def run(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
        outs = rule(op, ins, frame)
        # A body is handled where it is called; in `explain` there is no second derivative.
        if frame.inner or tf.executing_eagerly() or not _is_custom(op):
            return outs
        return [_ruled_by(x, y) for x, y in zip(outs, op.outputs, strict=True)]

    return run


def _is_custom(op: Any) -> bool:
    """
    Whether an operation has a custom gradient, or runs an operation that has one.

    `tf.recompute_grad` has one in its formula, which says that there is no second derivative; then
    the derivative is that of the recomputed operations.
    """
    if op.type in BODIES:
        return any(map(_is_custom, _operations(op)))
    if op.type != "IdentityN" or not private.has_custom_gradient(op):
        return False
    return not private.made_by_recomputing(op)


def _operations(op: Any) -> list[Any]:
    return [inner for body in bodies(op) for inner in body.get_operations()]


def _ruled_by(x: Any, ruled: Array) -> Any:
    """Return a masked result with the derivative of the ordinary result, where it is active."""
    if not isinstance(x, Pair) or x.active is False or x.value.dtype == tf.variant:
        return x
    value = tf.stop_gradient(x.value)

    @tf.custom_gradient
    def as_ordinary(ruled: Array) -> tuple[Array, Callable[[Array], Array]]:
        del ruled
        return tf.identity(value), lambda cotangent: cotangent

    return Pair(cleaned(as_ordinary(ruled), x.active), x.active)
