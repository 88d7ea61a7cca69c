"""Reductions, running sums and sorting of TensorFlow under names of the array API standard."""

import math
from typing import Any

import tensorflow as tf

from safeops._backends.devices import keeps_nan
from safeops._backends.tensorflow.dtypes import (
    COMPLEX,
    INEXACT,
    REAL,
    UNSIGNED,
    asarray,
    inexact,
    tensor,
    together,
)
from safeops._backends.tensorflow.elementwise import isnan, where
from safeops._backends.tensorflow.shapes import broadcast_arrays, flat, length, swapped
from safeops._core.types import Array, Axis, DType, Function

MAX_DOUBLINGS = 31  # for an unknown length: an axis is no longer than int32 can index


def _named(function: Function, described: Function) -> Function:
    function.__name__, function.__doc__ = described.__name__, described.__doc__
    return function


def _along_axis(default: int | None = None) -> Function:
    def decorator(function: Function) -> Function:
        def moved(x: Array, /, *, axis: int | None = default, **options: Any) -> Array:
            x = tensor(x)
            if axis is None and x.shape.rank not in (None, 1):
                msg = f"expected an axis for {x.shape.rank} dimensions, got None"
                raise ValueError(msg)
            axis = -1 if axis is None else axis
            return swapped(function(swapped(x, axis), **options), axis)

        return _named(moved, function)

    return decorator


def _reduction(function: Function) -> Function:
    def reduced(x: Array, /, *, axis: Axis = None, keepdims: bool = False, **options: Any) -> Array:
        return function(tensor(x), axis, keepdims, **options)

    return _named(reduced, function)


@_reduction
def any_(x: Array, *axes: Any) -> Array:
    """Whether any entry is true."""
    return tf.reduce_any(asarray(x, dtype=tf.bool), *axes)


@_reduction
def all_(x: Array, *axes: Any) -> Array:
    """Whether all entries are true."""
    return tf.reduce_all(asarray(x, dtype=tf.bool), *axes)


@_reduction
def max_(x: Array, *axes: Any) -> Array:
    """Greatest entry, NaN if there is one; ties split the gradient evenly."""
    return _extreme(tf.reduce_any if x.dtype == tf.bool else tf.reduce_max, x, *axes)


@_reduction
def min_(x: Array, *axes: Any) -> Array:
    """Least entry, NaN if there is one; ties split the gradient evenly."""
    return _extreme(tf.reduce_all if x.dtype == tf.bool else tf.reduce_min, x, *axes)


def loses(function: Function, x: Array, axis: Axis) -> Array:
    """Return `x`, with slope 0 at the entries that are not extreme in their slice."""
    # For these entries the rule of tf.reduce_max multiplies the cotangent with 0: inf becomes NaN.
    others = tf.stop_gradient(x)
    peak = _extreme(function, others, axis, True)  # noqa: FBT003  (keepdims)
    beyond = tf.less if function is tf.reduce_max else tf.greater
    return where(beyond(others, peak), others, x)


def _extreme(function: Function, x: Array, *axes: Any) -> Array:
    # XLA drops NaN in reduce_max and reduce_min, with gradient 0 (116992, 118673). The product with
    # a factor makes value and gradient NaN again; selecting a NaN would leave the gradient at 0.
    # The product gets no inf: ForwardAccumulator would multiply the inf with the tangent of the
    # factor, which is 0.
    found = function(x, *axes)
    if x.dtype not in REAL or (tf.executing_eagerly() and keeps_nan(x)):
        return found
    nan, one = tf.constant(math.nan, x.dtype), tf.constant(1.0, x.dtype)
    has_nan = tf.reduce_any(tf.math.is_nan(x), *axes)
    return tf.where(has_nan, tf.where(has_nan, found, one) * tf.where(has_nan, nan, one), found)


def maximum(x: Any, y: Any, /) -> Array:
    """Return the greater of two, NaN if one is; a tie splits the gradient evenly."""
    return max_(_pairs(x, y), axis=0)


def minimum(x: Any, y: Any, /) -> Array:
    """Return the lesser of two, NaN if one is; a tie splits the gradient evenly."""
    return min_(_pairs(x, y), axis=0)


def _pairs(x: Any, y: Any) -> Array:
    # In tf.maximum XLA drops a NaN in the second operand (118673), and at a tie the first operand
    # gets the whole gradient.
    return tf.stack(broadcast_arrays(*together(x, y)))


@_reduction
def sum_(x: Array, *axes: Any, dtype: DType = None) -> Array:
    """Sum; integers are summed in 64 bits, because tf.reduce_sum overflows."""
    return tf.reduce_sum(_accumulator(x, dtype), *axes)


@_reduction
def mean(x: Array, *axes: Any) -> Array:
    """Mean; integers become floating first, because tf.reduce_mean truncates."""
    x = inexact(x)
    return tf.cast(tf.reduce_mean(_widened(x), *axes), x.dtype)


@_reduction
def prod(x: Array, axis: Axis, keepdims: Any, *, dtype: DType = None) -> Array:
    """Product, with all its derivatives; integers are multiplied in 64 bits."""
    # The gradient of tf.reduce_prod divides by the entries: its second derivative at zeros is NaN.
    x = _accumulator(x, dtype)
    if x.dtype not in INEXACT:
        return tf.reduce_prod(x, axis, keepdims)
    if axis is None:
        return tf.reshape(_product(flat(x)), tf.ones_like(tf.shape(x)) if keepdims else [])
    for one in axis if isinstance(axis, tuple) else (axis,):
        x = swapped(_product(swapped(x, one)), one)
    return tf.reduce_sum(x, axis, keepdims)  # each sum has one entry


def _product(x: Array) -> Array:
    product_of_none = tf.cast(tf.shape(x)[-1] == 0, x.dtype)
    total = _cumulative_product(x)[..., -1:]  # one entry, or none
    return tf.reduce_sum(total, -1, keepdims=True) + product_of_none


def _cumulative_product(x: Array) -> Array:
    # By doubling. With tf.custom_gradient the value could be faster, but ForwardAccumulator takes
    # the derivative of a tape in its backward pass for 0.
    places, one = tf.range(tf.shape(x)[-1]), tf.constant(1, x.dtype)
    last = length(x)
    for doubling in range(MAX_DOUBLINGS if last is None else (last - 1).bit_length()):
        shift = 2**doubling
        x *= tf.where(places < shift, one, tf.roll(x, shift, -1))
    return x


def _accumulator(x: Array, dtype: DType) -> Array:
    if dtype is None and x.dtype not in INEXACT:
        dtype = tf.uint64 if x.dtype in UNSIGNED else tf.int64
    return asarray(x, dtype=dtype)


def _widened(x: Array) -> Array:
    # Outside XLA, the sum in a mean of float16 overflows, and a running sum of bfloat16 sticks at
    # 256. XLA has no cumsum of uint64; sums in int64 equal it modulo 2**64.
    if x.dtype in (tf.float16, tf.bfloat16):
        return tf.cast(x, tf.float32)
    return tf.cast(x, tf.int64) if x.dtype == tf.uint64 else x


@_along_axis()
def cumulative_sum(x: Array, *, dtype: DType = None) -> Array:
    """Return the sums of the first entries."""
    x = _accumulator(x, dtype)
    if x.dtype in COMPLEX:  # XLA has no cumsum of complex numbers
        return tf.complex(tf.cumsum(tf.math.real(x), -1), tf.cumsum(tf.math.imag(x), -1))
    return tf.cast(tf.cumsum(_widened(x), -1), x.dtype)


@_along_axis()
def cumulative_prod(x: Array, *, dtype: DType = None) -> Array:
    """Return the products of the first entries, with all their derivatives."""
    # The gradient of tf.math.cumprod divides by the entries: it is wrong at zeros. And XLA has no
    # cumprod of complex numbers or of uint64.
    return _cumulative_product(_accumulator(x, dtype))


def argmax(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Position of the first greatest entry, or of the first NaN."""
    return _first(tensor(x), max_, axis, keepdims=keepdims)


def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Position of the first least entry, or of the first NaN."""
    return _first(tensor(x), min_, axis, keepdims=keepdims)


def _first(x: Array, extreme: Function, axis: int | None, *, keepdims: bool) -> Array:
    # tf.argmax and tf.argmin pass over NaN, and differ between eager mode and XLA in how they do
    # (118177, 118647). They promise no order among ties.
    if axis is None:
        found = _first(flat(x), extreme, -1, keepdims=False)
        return tf.reshape(found, tf.ones_like(tf.shape(x))) if keepdims else found
    x = swapped(x, axis)
    hit = tf.logical_or(tf.equal(x, extreme(x, axis=-1, keepdims=True)), isnan(x))
    length = tf.shape(x, tf.int64)[-1]
    found = tf.reduce_min(tf.where(hit, tf.range(length), length), -1, keepdims=True)
    found = swapped(found, axis)
    return found if keepdims else tf.squeeze(found, [axis])


@_along_axis(-1)
def sort(x: Array) -> Array:
    """Entries in ascending order, NaN last."""
    return _picked(x, argsort(x))


@_along_axis(-1)
def argsort(x: Array) -> Array:
    """Positions of the entries in ascending order, NaN last; it is stable."""
    # tf.sort and tf.argsort leave numbers unsorted where there is a NaN (117287, 119359), and XLA
    # puts -0 before 0. So NaN is sorted as inf, and a second, stable sort puts NaN behind inf.
    if x.dtype not in REAL:
        # tf.argsort takes no bool, and in XLA no uint16.
        x = tf.cast(x, tf.int32) if x.dtype in (tf.bool, tf.uint16) else x
        return tf.cast(tf.argsort(x, stable=True), tf.int64)
    nan = tf.math.is_nan(x)
    key = where(nan, math.inf, where(x == 0, 0, x))
    order = tf.cast(tf.argsort(key, stable=True), tf.int64)
    nan_last = tf.argsort(tf.cast(_picked(nan, order), tf.int32), stable=True)
    return _picked(order, tf.cast(nan_last, tf.int64))


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """Entries of `x` at `indices` along an axis; the other axes broadcast."""
    x, indices = swapped(tensor(x), axis), swapped(tensor(indices), axis)
    width, count = tf.shape(x)[-1:], tf.shape(indices)[-1:]
    batch = tf.broadcast_dynamic_shape(tf.shape(x)[:-1], tf.shape(indices)[:-1])
    x = tf.broadcast_to(x, tf.concat([batch, width], 0))
    indices = tf.broadcast_to(indices, tf.concat([batch, count], 0))
    from_start = tf.where(indices < 0, indices + tf.cast(width, indices.dtype), indices)
    return swapped(_picked(x, from_start), axis)


def _picked(x: Array, indices: Array) -> Array:
    """Take along the last axis, in two dimensions, because tf.gather needs a known rank."""
    table, places = tf.reshape(x, _rows(x)), tf.reshape(indices, _rows(indices))
    return tf.reshape(tf.gather(table, places, batch_dims=1), tf.shape(indices))


def _rows(x: Array) -> Any:
    if x.shape.is_fully_defined():
        return [math.prod(x.shape[:-1]), x.shape[-1]]
    return tf.stack([tf.reduce_prod(tf.shape(x)[:-1]), tf.shape(x)[-1]])
