"""
Softmax, and losses of classes, by TensorFlow's own kernels.

Each makes one pass of five: the steps of these functions write an array at each step. Entries at
-inf are absent to the kernels too; a slice without others enters them as zeros.
"""

import math
from typing import Any

import tensorflow as tf

from safeops._backends.tensorflow.derivatives import detects
from safeops._backends.tensorflow.dtypes import REAL, SIGNED
from safeops._backends.tensorflow.elementwise import where as select
from safeops._backends.tensorflow.private import has_dtensors
from safeops._core.types import Array, Axis, Function


def _softmax(x: Any, *, axis: Axis = -1, where: Any = None) -> Array | None:
    if type(axis) is not int or not _are_rows(x, axis) or not _is_condition(where, x):
        return None
    absent, _, inside = _entered(x, None if where is None else ~where, axis)
    shares = tf.nn.softmax(inside, axis)
    # In float32 the kernel of a CPU passes over a NaN in all entries but its own.
    total = tf.reduce_sum(tf.stop_gradient(shares), axis, keepdims=True)
    return tf.cast(select(absent, 0.0, shares + (total - total)), x.dtype)


def _cross_entropy(
    logits: Any,
    labels: Any,
    /,
    *,
    axis: Any = -1,
    where: Any = None,
    label_smoothing: Any = 0.0,
    weights: Any = None,
) -> Array | None:
    """Cross entropy of classes along the last axis, without mask, smoothing and weights."""
    usual = where is None and weights is None and type(label_smoothing) is float
    if not usual or label_smoothing != 0 or type(axis) is not int or not _are_rows(logits, axis):
        return None
    if not _are_classes(labels, logits.shape.as_list(), axis):
        return None
    labels, last = tf.cast(labels, tf.int64), tf.shape(logits, tf.int64)[-1] - 1
    _, empty, inside = _entered(logits, (labels < 0)[..., None], -1)
    empty, classes = tf.squeeze(empty, -1), tf.clip_by_value(labels, 0, last)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, inside)
    # Of a class at -inf; a NaN keeps its slope.
    loss = select(tf.math.is_inf(loss), tf.constant(math.inf, loss.dtype), loss)
    loss = select(empty, 0.0, loss)
    unknown = tf.logical_and(labels > last, tf.logical_not(empty))
    # A product, of which the slope is NaN too.
    loss *= select(unknown, tf.constant(math.nan, loss.dtype), 1.0)
    return tf.cast(loss, logits.dtype)


def _nll(log_probs: Any, labels: Any, /, *, axis: Any = -1, where: Any = None) -> Array | None:
    """Minus the entry of each class along the last axis, without mask."""
    if where is not None or type(axis) is not int or not _are_rows(log_probs, axis):
        return None
    if not _are_classes(labels, log_probs.shape.as_list(), axis):
        return None
    labels, last = tf.cast(labels, tf.int64), tf.shape(log_probs, tf.int64)[-1] - 1
    # A product, of which all slopes of a slice with an unknown class are NaN.
    known = select(labels > last, tf.constant(math.nan, log_probs.dtype), 1.0)
    places = tf.clip_by_value(labels, 0, last)[..., None]
    found = tf.gather(log_probs * known[..., None], places, batch_dims=labels.shape.rank)
    return select(labels < 0, 0.0, -tf.squeeze(found, -1))


def _entered(x: Array, left_out: Any, axis: int) -> tuple[Array, Array, Array]:
    """Return which entries are absent, which slices are empty, and what enters a kernel."""
    x = tf.cast(x, tf.float32) if x.dtype.size < tf.float32.size else x
    absent = tf.equal(x, tf.constant(-math.inf, x.dtype))
    absent = absent if left_out is None else tf.logical_or(absent, left_out)
    empty = tf.reduce_all(absent, axis, keepdims=True)
    return absent, empty, select(absent, select(empty, 0.0, tf.constant(-math.inf, x.dtype)), x)


def _are_rows(x: Any, axis: int) -> bool:
    """Whether it is a tensor of real numbers with that axis."""
    # A detector reports a -inf inside, and of a DTensor in parts the kernel's loss is wrong (2.21).
    if not isinstance(x, tf.Tensor) or x.dtype not in REAL or x.shape.rank is None:
        return False
    if has_dtensors() or detects():
        return False
    return -x.shape.rank <= axis < x.shape.rank and x.shape[axis] != 0


def _is_condition(where: Any, x: Array) -> bool:
    """Whether it is none, or booleans for each entry."""
    if where is None:
        return True
    if not isinstance(where, tf.Tensor) or where.dtype != tf.bool or where.shape.rank is None:
        return False
    return bool(where.shape.as_list() == x.shape.as_list())


def _are_classes(labels: Any, shape: list[int | None], axis: int) -> bool:
    """Whether there is a signed integer for each slice along the last axis."""
    if not isinstance(labels, tf.Tensor) or labels.dtype not in SIGNED or labels.shape.rank is None:
        return False
    return axis in {-1, len(shape) - 1} and bool(labels.shape.as_list() == shape[:-1])


KERNELS: dict[str, Function] = {
    "safe_cross_entropy": _cross_entropy,
    "safe_nll": _nll,
    "safe_softmax": _softmax,
}
