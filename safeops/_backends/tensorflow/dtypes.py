"""Dtypes of TensorFlow by the standard: promotion, limits, conversion."""

from collections.abc import Sequence
from functools import cache, reduce
from typing import Any

import ml_dtypes
import tensorflow as tf

from safeops._core.dtypes import SCALARS
from safeops._core.types import Array, DType

# Looked up by hash: dtypes compare in Python, and each comparison takes a fifth of an operation.
SIGNED = frozenset((tf.int8, tf.int16, tf.int32, tf.int64))
UNSIGNED = frozenset((tf.uint8, tf.uint16, tf.uint32, tf.uint64))
REAL = frozenset((tf.float16, tf.bfloat16, tf.float32, tf.float64))
COMPLEX = frozenset((tf.complex64, tf.complex128))
INEXACT = REAL | COMPLEX
NUMERIC = SIGNED | UNSIGNED | INEXACT
_WEAK = (tf.Tensor, bool, int, float)  # the scalars change no floating dtype


def floating(dtype: DType) -> DType:
    """Return the dtype in which `tf.truediv` divides; for bool, which it refuses, float32."""
    if dtype in INEXACT:
        return dtype
    return tf.float32 if dtype == tf.bool or dtype.size < tf.int32.size else tf.float64


@cache
def common(a: DType, b: DType) -> DType:
    """Return the least dtype that holds both, by the standard's table."""
    # Pairs that the table lacks: bool gives way to every dtype, and an integer to a float; float16
    # with bfloat16 is float32; uint64 with a signed integer is float64, as in NumPy.
    wider = a if a.size >= b.size else b
    for kinds in ({tf.bool}, SIGNED | UNSIGNED):
        if (a in kinds) != (b in kinds):
            return b if a in kinds else a
    if a in COMPLEX or b in COMPLEX:
        return tf.complex128 if {a, b} & {tf.float64, tf.complex128} else tf.complex64
    if a in REAL:
        return tf.float32 if a != b and a.size == b.size else wider
    if (a in SIGNED) == (b in SIGNED) or (wider in SIGNED and a.size != b.size):
        return wider
    return {1: tf.int16, 2: tf.int32, 4: tf.int64, 8: tf.float64}[wider.size]


def result_type(*args: Any) -> DType:
    """Return the common dtype of arrays, dtypes and Python scalars; scalars are weak."""
    # A scalar changes the dtype only if the dtype cannot hold its kind: an integer tensor with a
    # float becomes what `tf.truediv` makes of it, a boolean tensor with an int becomes int64.
    found = {x.dtype for x in args if isinstance(x, tf.Tensor)}
    if len(found) == 1 and found <= REAL and all(isinstance(x, _WEAK) for x in args):
        return found.pop()  # the usual case, in a tenth of the time
    scalars = [x for x in args if isinstance(x, SCALARS)]
    dtypes = [tf.as_dtype(getattr(x, "dtype", x)) for x in args if not isinstance(x, SCALARS)]
    if not dtypes:
        return reduce(common, (tf.constant(x).dtype for x in scalars))
    dtype = reduce(common, dtypes)
    if any(isinstance(x, complex) for x in scalars):
        return common(floating(dtype), tf.complex64)
    if any(isinstance(x, float) for x in scalars):
        return floating(dtype)
    return tf.int64 if dtype == tf.bool and {*map(type, scalars)} - {bool} else dtype


def finfo(x: Any, /) -> Any:
    """Return the limits of a floating dtype or array; of the parts, if it is complex."""
    limits: Any = ml_dtypes.finfo  # ml_dtypes has no type annotations
    return limits(tf.as_dtype(getattr(x, "dtype", x)).real_dtype.as_numpy_dtype)


def iinfo(x: Any, /) -> Any:
    """Return the limits of an integer dtype or array."""
    limits: Any = ml_dtypes.iinfo
    return limits(tf.as_dtype(getattr(x, "dtype", x)).as_numpy_dtype)


def asarray(x: Any, /, *, dtype: DType = None) -> Array:
    """Return `x` as a tensor of `dtype`; Python floats default to float32."""
    if isinstance(x, tf.Tensor) and x.dtype is dtype:
        return x
    if isinstance(x, SCALARS):
        # tf.constant does not take True as a number.
        return tf.constant(int(x) if isinstance(x, bool) and dtype in NUMERIC else x, dtype)
    x = tensor(x)
    if dtype == tf.bool != x.dtype:
        return tf.not_equal(x, tf.zeros([], x.dtype))  # tf.cast looks at the real part alone
    if dtype in COMPLEX and x.dtype not in COMPLEX:
        x = tf.cast(x, dtype.real_dtype)
        return tf.complex(x, tf.zeros_like(x))  # the gradient of tf.cast logs a warning
    return x if dtype is None or x.dtype == dtype else tf.cast(x, dtype)


def astype(x: Array, dtype: DType, /) -> Array:
    """Return `x` in `dtype`."""
    return asarray(x, dtype=dtype)


def tensor(x: Any) -> Array:
    """Return a tensor, variable, NumPy array, list or Python scalar as a tensor."""
    return x if isinstance(x, tf.Tensor) else tf.convert_to_tensor(x)


def inexact(x: Any) -> Array:
    """Return `x` as a floating or complex tensor."""
    x = tensor(x)
    return x if x.dtype in INEXACT else tf.cast(x, floating(x.dtype))


def pair(x: Any, y: Any) -> Sequence[Array]:
    """Return two arguments as tensors of one dtype."""
    # The usual case first: the rest takes half of the time of an operation.
    if isinstance(y, tf.Tensor):
        if isinstance(x, tf.Tensor):
            if x.dtype is y.dtype:
                return x, y
        elif type(x) is float and y.dtype in REAL:
            return tf.constant(x, y.dtype), y
    elif isinstance(x, tf.Tensor) and type(y) is float and x.dtype in REAL:
        return x, tf.constant(y, x.dtype)
    return together(x, y)


def together(*args: Any) -> list[Array]:
    """Return all arguments as tensors of one dtype."""
    # TensorFlow raises on mixed dtypes, and in graph mode on a scalar first: where(c, 1.0, half).
    mixed = [x if isinstance(x, SCALARS) else tensor(x) for x in args]
    dtype = result_type(*mixed)
    return [asarray(x, dtype=dtype) for x in mixed]
