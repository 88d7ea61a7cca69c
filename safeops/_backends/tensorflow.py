"""
TensorFlow: eager and symbolic tensors and variables, under names of the array API standard.

array-api-compat has no TensorFlow (1.16; its pull request 441 is open): the first part goes when
it has. Every function runs eagerly, in `tf.function`, under XLA, and without static shapes.
Comments name the faults of TensorFlow 2.21 that are repaired here, on CPU, and their issues.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, reduce
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import tensorflow as tf

from safeops._backends.array_api import SCALARS, ArrayAPI
from safeops._typing import Array, Axis, DType, Function

SIGNED = (tf.int8, tf.int16, tf.int32, tf.int64)
UNSIGNED = (tf.uint8, tf.uint16, tf.uint32, tf.uint64)
REAL = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
COMPLEX = (tf.complex64, tf.complex128)
INEXACT = frozenset(REAL + COMPLEX)
KINDS = {
    "bool": (tf.bool,),
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": SIGNED + UNSIGNED,
    "real floating": REAL,
    "complex floating": COMPLEX,
    "numeric": SIGNED + UNSIGNED + REAL + COMPLEX,
}
MAX_DOUBLINGS = 31  # of a length that is unknown: TensorFlow indexes with int32

xp = SimpleNamespace(__name__="tensorflow")
for _dtype in (tf.bool, *KINDS["numeric"]):
    setattr(xp, _dtype.name, _dtype)


def standard(function: Function) -> Function:
    """Add a function to the namespace; the underscore that spares a builtin falls off."""
    setattr(xp, function.__name__.rstrip("_"), function)
    return function


# Dtypes


def floating(dtype: DType) -> DType:
    """Return the dtype in which `tf.truediv` divides `dtype`; booleans, which it refuses: float32."""
    if dtype in INEXACT:
        return dtype
    return tf.float32 if dtype == tf.bool or dtype.size < tf.int32.size else tf.float64


@cache
def promote(a: DType, b: DType) -> DType:
    """
    Return the dtype that holds both, by the standard's table.

    Where that has no entry: bool gives way to all, integers give way to floats, float16 with
    bfloat16 is float32, uint64 with a signed integer is float64, as in NumPy.
    """
    if a == b or b == tf.bool:
        return a
    if a == tf.bool or (b in INEXACT and a not in INEXACT):
        return b
    if a in INEXACT and b not in INEXACT:
        return a
    if a in COMPLEX or b in COMPLEX:
        return tf.complex128 if {a, b} & {tf.float64, tf.complex128} else tf.complex64
    if a in REAL:
        return tf.float32 if a.size == b.size else max(a, b, key=lambda dtype: dtype.size)
    if (a in SIGNED) == (b in SIGNED):
        return max(a, b, key=lambda dtype: dtype.size)
    signed, unsigned = (a, b) if a in SIGNED else (b, a)
    return {1: tf.int16, 2: tf.int32, 4: tf.int64, 8: tf.float64}[max(unsigned.size, signed.size // 2)]


@standard
def result_type(*args: Any) -> DType:
    """
    Return the common dtype of arrays, dtypes and Python scalars; scalars are weak.

    A scalar changes the dtype only where that cannot hold its kind: an integer tensor with a float
    becomes what `tf.truediv` makes of it, a boolean tensor with an int int64.
    """
    scalars = [x for x in args if isinstance(x, SCALARS)]
    dtypes = [getattr(x, "dtype", x) for x in args if not isinstance(x, SCALARS)]
    if not dtypes:
        return reduce(promote, (tf.convert_to_tensor(x).dtype for x in scalars))
    dtype = reduce(promote, map(tf.as_dtype, dtypes))
    kind = max((SCALARS.index(_kind_of(x)) for x in scalars), default=0)
    if kind == SCALARS.index(complex):
        return promote(floating(dtype), tf.complex64)
    if kind == SCALARS.index(float):
        return floating(dtype)
    return tf.int64 if kind == SCALARS.index(int) and dtype == tf.bool else dtype


def _kind_of(scalar: Any) -> type:
    return next(kind for kind in SCALARS if isinstance(scalar, kind))


@standard
def isdtype(dtype: DType, kind: Any) -> bool:
    """Whether `dtype` is `kind`: a dtype, a name of the standard, or one of a tuple of those."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return any(dtype in KINDS[k] if isinstance(k, str) else dtype == k for k in kinds)


@standard
def finfo(x: Any, /) -> Any:
    """Return the limits of a floating dtype or array; of complex ones those of the parts."""
    return ml_dtypes.finfo(tf.as_dtype(getattr(x, "dtype", x)).real_dtype.as_numpy_dtype)


# Making and converting


def tensor(x: Any) -> Array:
    """Return a tensor, variable, NumPy array, list or Python scalar as a tensor."""
    return x if isinstance(x, tf.Tensor) else tf.convert_to_tensor(x)


def inexact(x: Any) -> Array:
    """Return `x` as a floating or complex tensor."""
    x = tensor(x)
    return x if x.dtype in INEXACT else tf.cast(x, floating(x.dtype))


def together(*args: Any) -> list[Array]:
    """Return all arguments as tensors of one dtype."""
    # TensorFlow raises on mixed dtypes, and in graph mode on a scalar first: where(c, 1.0, half).
    args = tuple(x if isinstance(x, SCALARS) else tensor(x) for x in args)
    dtype = result_type(*args)
    return [asarray(x, dtype=dtype) for x in args]


@standard
def asarray(x: Any, /, *, dtype: DType = None, device: str | None = None) -> Array:
    """Return `x` as a tensor of `dtype` on `device`; Python floats default to float32."""
    if device:
        with tf.device(device):
            return tf.identity(asarray(x, dtype=dtype))
    if isinstance(x, SCALARS):
        return tf.constant(x, dtype)
    x = tensor(x)
    return x if dtype is None or x.dtype == dtype else tf.cast(x, dtype)


@standard
def astype(x: Array, dtype: DType, /) -> Array:
    """Return `x` in `dtype`."""
    return asarray(x, dtype=dtype)


@standard
def ones_like(x: Array, /, *, dtype: DType = None) -> Array:
    """Ones of the shape of `x`."""
    return tf.ones_like(tensor(x), dtype)


@standard
def zeros_like(x: Array, /, *, dtype: DType = None) -> Array:
    """Zeros of the shape of `x`."""
    return tf.zeros_like(tensor(x), dtype)


@standard
def full_like(x: Array, fill_value: Any, /, *, dtype: DType = None) -> Array:
    """`fill_value` in the shape of `x`."""
    x = tensor(x)
    return tf.broadcast_to(asarray(fill_value, dtype=dtype or x.dtype), tf.shape(x))


# Elementwise


@standard
def where(cond: Array, x: Any, y: Any, /) -> Array:
    """`x` where `cond`, else `y`; its gradient is the same selection, from zeros."""
    return tf.where(tensor(cond), *together(x, y))


def _of_inexact(function: Function) -> Function:
    return lambda x, /: function(inexact(x))


for _name in ("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "asin", "acos", "acosh", "atanh"):
    setattr(xp, _name, _of_inexact(getattr(tf.math, _name)))


def _of_promoted(function: Function) -> Function:
    return lambda x, y, /: function(*together(x, y))


for _name, _function in {
    "add": tf.add,
    "multiply": tf.multiply,
    "remainder": tf.math.floormod,
    "equal": tf.equal,
    "not_equal": tf.not_equal,
    "logical_and": tf.logical_and,
    "logical_or": tf.logical_or,
}.items():
    setattr(xp, _name, _of_promoted(_function))


def _of_tensor(function: Function) -> Function:
    return lambda x, /: function(tensor(x))


for _name in ("square", "real", "imag", "conj"):
    setattr(xp, _name, _of_tensor(getattr(tf.math, _name)))


@standard
def log2(x: Array, /) -> Array:
    """Logarithm to base 2."""
    return tf.math.log(inexact(x)) / math.log(2.0)


@standard
def log10(x: Array, /) -> Array:
    """Logarithm to base 10."""
    return tf.math.log(inexact(x)) / math.log(10.0)


@standard
def atan2(y: Any, x: Any, /) -> Array:
    """Angle of the point (`x`, `y`)."""
    return tf.atan2(*map(inexact, together(y, x)))


@standard
def pow_(x: Any, y: Any, /) -> Array:
    """`x` to the power of `y`."""
    x, y = together(x, y)
    if x.dtype in INEXACT:
        return tf.pow(x, y)
    # tf.pow has no unsigned integers; int64 agrees with them modulo 2**64.
    return tf.cast(tf.pow(tf.cast(x, tf.int64), tf.cast(y, tf.int64)), x.dtype)


@standard
def abs_(x: Array, /) -> Array:
    """Absolute value."""
    x = tensor(x)
    return x if x.dtype == tf.bool or x.dtype in UNSIGNED else tf.abs(x)


@standard
def sign(x: Array, /) -> Array:
    """Sign of `x`; NaN stays NaN."""
    x = tensor(x)
    return tf.minimum(x, 1) if x.dtype in UNSIGNED else tf.sign(x)


@standard
def floor(x: Array, /) -> Array:
    """Greatest integer not above `x`."""
    x = tensor(x)
    return tf.floor(x) if x.dtype in INEXACT else x


@standard
def logical_not(x: Array, /) -> Array:
    """Elementwise negation."""
    # Grappler turns LogicalNot(x <= 0) into x > 0, which NaN fails too, in every tf.function.
    return tf.equal(tensor(x), False)  # noqa: FBT003  (the operand of a comparison)


@standard
def maximum(x: Any, y: Any, /) -> Array:
    """Return the greater of two, NaN if one is; a tie splits the gradient evenly."""
    # XLA drops a NaN in the second operand (118673), and a tie sends all to the first.
    x, y = together(x, y)
    return _chosen(x > y, x < y, x, y) if x.dtype in INEXACT else tf.maximum(x, y)


@standard
def minimum(x: Any, y: Any, /) -> Array:
    """Return the lesser of two, NaN if one is; a tie splits the gradient evenly."""
    x, y = together(x, y)
    return _chosen(x < y, x > y, x, y) if x.dtype in INEXACT else tf.minimum(x, y)


def _chosen(first: Array, second: Array, x: Array, y: Array) -> Array:
    # Neither first nor second: a tie, of which the mean is the value and the gradient, or a NaN,
    # which the mean keeps. In float32, as half of the least subnormal of float16 rounds to 0.
    wide = tf.float32 if x.dtype == tf.float16 else x.dtype
    mean_of_both = tf.cast(0.5 * tf.cast(x, wide) + 0.5 * tf.cast(y, wide), x.dtype)
    return tf.where(first, x, tf.where(second, y, mean_of_both))


def _test(name: str, of_integers: bool, of_parts: Function) -> None:
    # tf.math.is_nan, is_inf and is_finite refuse integers and complex numbers.
    kernel = getattr(tf.math, name.replace("is", "is_"))

    def test(x: Array, /) -> Array:
        x = tensor(x)
        if x.dtype in COMPLEX:
            return of_parts(kernel(tf.math.real(x)), kernel(tf.math.imag(x)))
        return kernel(x) if x.dtype in REAL else full_like(x, of_integers, dtype=tf.bool)

    setattr(xp, name, test)


_test("isnan", False, tf.logical_or)
_test("isinf", False, tf.logical_or)
_test("isfinite", True, tf.logical_and)


# Shapes


@standard
def expand_dims(x: Array, /, *, axis: int = 0) -> Array:
    """Insert an axis of length 1."""
    return tf.expand_dims(tensor(x), axis)


@standard
def squeeze(x: Array, /, axis: int | tuple[int, ...]) -> Array:
    """Remove axes of length 1."""
    return tf.squeeze(tensor(x), axis)


@standard
def reshape(x: Array, /, shape: Any) -> Array:
    """Same entries in another shape."""
    return tf.reshape(tensor(x), shape)


@standard
def permute_dims(x: Array, /, axes: tuple[int, ...]) -> Array:
    """Reorder the axes."""
    return tf.transpose(tensor(x), axes)


@standard
def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """Join along an axis; None joins all entries."""
    parts = together(*arrays)
    return tf.concat([_flat(x) for x in parts] if axis is None else parts, axis or 0)


@standard
def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    """Join along a new axis."""
    return tf.stack(together(*arrays), axis)


@standard
def broadcast_to(x: Array, /, shape: Any) -> Array:
    """Repeat `x` to fill `shape`."""
    return tf.broadcast_to(tensor(x), shape)


@standard
def broadcast_arrays(*arrays: Array) -> list[Array]:
    """Repeat all to fill their common shape."""
    tensors = [tensor(x) for x in arrays]
    shape = reduce(tf.broadcast_dynamic_shape, map(tf.shape, tensors))
    return [tf.broadcast_to(x, shape) for x in tensors]


def _flat(x: Array) -> Array:
    return tf.reshape(x, [-1])


def _swapped(x: Array, axis: int) -> Array:
    """Exchange `axis` and the last one, which is its own inverse; axis=-1 needs no rank."""
    if axis == -1:
        return x
    if x.shape.rank is None:
        axes, last = tf.range(tf.rank(x)), tf.rank(x) - 1
        axis = axis % tf.rank(x)
        return tf.transpose(x, tf.where(axes == axis, last, tf.where(axes == last, axis, axes)))
    axes = list(range(x.shape.rank))
    axes[axis], axes[-1] = axes[-1], axes[axis]
    return tf.transpose(x, axes)


# Reductions


def _reduction(function: Function) -> Function:
    def reduced(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
        return function(tensor(x), axis, keepdims)

    reduced.__name__, reduced.__doc__ = function.__name__, function.__doc__
    return standard(reduced)


@_reduction
def any_(x: Array, axis: Axis, keepdims: bool) -> Array:
    """Whether any entry is true."""
    return tf.reduce_any(tf.cast(x, tf.bool), axis, keepdims)


@_reduction
def all_(x: Array, axis: Axis, keepdims: bool) -> Array:
    """Whether all entries are true."""
    return tf.reduce_all(tf.cast(x, tf.bool), axis, keepdims)


@_reduction
def max_(x: Array, axis: Axis, keepdims: bool) -> Array:
    """Greatest entry, NaN if there is one; ties split the gradient evenly."""
    if x.dtype == tf.bool:
        return tf.reduce_any(x, axis, keepdims)
    return tf.reduce_max(x, axis, keepdims) * _nan_if_any(x, axis, keepdims)


@_reduction
def min_(x: Array, axis: Axis, keepdims: bool) -> Array:
    """Least entry, NaN if there is one; ties split the gradient evenly."""
    if x.dtype == tf.bool:
        return tf.reduce_all(x, axis, keepdims)
    return tf.reduce_min(x, axis, keepdims) * _nan_if_any(x, axis, keepdims)


def _nan_if_any(x: Array, axis: Axis, keepdims: bool) -> Array:
    # XLA drops NaN in reduce_max and reduce_min, with gradient 0 (116992, 118673). This factor
    # makes value and gradient NaN again; selecting a NaN would leave the gradient at 0.
    if x.dtype not in INEXACT:
        return tf.ones([], x.dtype)
    return where(tf.reduce_any(xp.isnan(x), axis, keepdims), asarray(math.nan, dtype=x.dtype), 1)
