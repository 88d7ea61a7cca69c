"""Changes of shape for TensorFlow's arrays, whose shape need not be known."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import tensorflow as tf

from safeops._backends.tensorflow.dtypes import asarray, tensor, together
from safeops._core.types import Array, Axis, DType, Function


def _of_tensor(function: Function) -> Function:
    return lambda x, *args, **options: function(tensor(x), *args, **options)


expand_dims = _of_tensor(tf.expand_dims)
reshape = _of_tensor(tf.reshape)
ones_like = _of_tensor(tf.ones_like)
zeros_like = _of_tensor(tf.zeros_like)


def squeeze(x: Array, /, axis: Axis) -> Array:
    """Remove axes of length 1; an empty tuple removes none, where tf.squeeze removes all."""
    return tensor(x) if axis == () else tf.squeeze(tensor(x), axis)


def full_like(x: Array, fill_value: Any, /, *, dtype: DType = None) -> Array:
    """`fill_value` in the shape of `x`."""
    x = tensor(x)
    return tf.broadcast_to(asarray(fill_value, dtype=dtype or x.dtype), tf.shape(x))


def permute_dims(x: Array, /, axes: tuple[int, ...]) -> Array:
    """Reorder the axes."""
    return tf.transpose(tensor(x), [axis % len(axes) for axis in axes])  # XLA: no negative axes


# Of so few entries a concatenation is a stack: under XLA the gradient of tf.concat has none, as it
# is XlaDynamicUpdateSlice (2.21).
FEW = 16


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """Join along an axis; None joins all entries."""
    parts = together(*arrays)
    if axis is None:
        parts, axis = [flat(x) for x in parts], 0
    lengths: list[Any] = [None if x.shape.rank is None else x.shape[axis] for x in parts]
    if None in lengths or 0 in lengths or sum(lengths) > FEW:  # a stack has no gradient to nothing
        return tf.concat(parts, axis)
    return tf.stack([entry for x in parts for entry in tf.unstack(x, axis=axis)], axis)


def broadcast_arrays(*arrays: Array) -> list[Array]:
    """Repeat all to fill their common shape."""
    tensors = [tensor(x) for x in arrays]
    shape = reduce(tf.broadcast_dynamic_shape, map(tf.shape, tensors))
    return [tf.broadcast_to(x, shape) for x in tensors]


def flat(x: Array) -> Array:
    return tf.reshape(x, [-1])


def swapped(x: Array, axis: int) -> Array:
    """Exchange `axis` and the last axis; twice is no change; axis=-1 needs no known rank."""
    if axis == -1:
        return x
    if x.shape.rank is None:
        axes, last = tf.range(tf.rank(x)), tf.rank(x) - 1
        axis = axis % tf.rank(x)
        return tf.transpose(x, tf.where(axes == axis, last, tf.where(axes == last, axis, axes)))
    order = list(range(x.shape.rank))
    order[axis], order[-1] = order[-1], order[axis]
    return tf.transpose(x, order)


def length(x: Array) -> int | None:
    return None if x.shape.rank is None else x.shape[-1]
