"""
TensorFlow: eager and symbolic tensors and variables, under names of the array API standard.

array-api-compat has no TensorFlow (1.16; its pull request 441 is open): the first part goes when
it has. Every function runs eagerly, in `tf.function`, under XLA, and without static shapes.
Comments name the faults of TensorFlow 2.21, on CPU, that are repaired here, and their issues.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, reduce
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import tensorflow as tf

from safeops._backends.array_api import ArrayAPI
from safeops._dtypes import SCALARS
from safeops._typing import Array, Axis, DType, Function

# By hash: dtypes compare in Python, which takes a fifth of an operation for each.
SIGNED = frozenset((tf.int8, tf.int16, tf.int32, tf.int64))
UNSIGNED = frozenset((tf.uint8, tf.uint16, tf.uint32, tf.uint64))
REAL = frozenset((tf.float16, tf.bfloat16, tf.float32, tf.float64))
COMPLEX = frozenset((tf.complex64, tf.complex128))
INEXACT = REAL | COMPLEX
NUMERIC = SIGNED | UNSIGNED | INEXACT
_WEAK = (tf.Tensor, bool, int, float)  # and what changes no dtype of floating point
MAX_DOUBLINGS = 31  # of a length that is not known: int32 indexes the longest axis

xp = SimpleNamespace(__name__="tensorflow")
for _dtype in (tf.bool, *NUMERIC):
    setattr(xp, _dtype.name, _dtype)


def standard(function: Function, *, described: Function | None = None) -> Function:
    """Add a function to the namespace; the underscore that spares a builtin falls off."""
    function.__doc__ = (described or function).__doc__
    function.__name__ = (described or function).__name__.rstrip("_")
    setattr(xp, function.__name__, function)
    return function


# Dtypes and conversion


def floating(dtype: DType) -> DType:
    """Return the dtype in which `tf.truediv` divides; for bool, which it refuses, float32."""
    if dtype in INEXACT:
        return dtype
    return tf.float32 if dtype == tf.bool or dtype.size < tf.int32.size else tf.float64


@cache
def promote(a: DType, b: DType) -> DType:
    """
    Return the least dtype that holds both, by the standard's table.

    Where that has no entry: bool gives way to all, integers give way to floats, float16 with
    bfloat16 is float32, uint64 with a signed integer is float64, as in NumPy.
    """
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


@standard
def result_type(*args: Any) -> DType:
    """
    Return the common dtype of arrays, dtypes and Python scalars; scalars are weak.

    A scalar changes the dtype only if that cannot hold its kind: an integer tensor with a float
    becomes what `tf.truediv` makes of it, a boolean one with an int becomes int64.
    """
    found = {x.dtype for x in args if isinstance(x, tf.Tensor)}
    if len(found) == 1 and found <= REAL and all(isinstance(x, _WEAK) for x in args):
        return found.pop()  # the usual case, in a tenth of the time
    scalars = [x for x in args if isinstance(x, SCALARS)]
    dtypes = [tf.as_dtype(getattr(x, "dtype", x)) for x in args if not isinstance(x, SCALARS)]
    if not dtypes:
        return reduce(promote, (tf.constant(x).dtype for x in scalars))
    dtype = reduce(promote, dtypes)
    if any(isinstance(x, complex) for x in scalars):
        return promote(floating(dtype), tf.complex64)
    if any(isinstance(x, float) for x in scalars):
        return floating(dtype)
    return tf.int64 if dtype == tf.bool and {*map(type, scalars)} - {bool} else dtype


@standard
def finfo(x: Any, /) -> Any:
    """Return the limits of a floating dtype or array; those of the parts if it is complex."""
    limits: Any = ml_dtypes.finfo  # which has no types
    return limits(tf.as_dtype(getattr(x, "dtype", x)).real_dtype.as_numpy_dtype)


@standard
def iinfo(x: Any, /) -> Any:
    """Return the limits of an integer dtype or array."""
    limits: Any = ml_dtypes.iinfo
    return limits(tf.as_dtype(getattr(x, "dtype", x)).as_numpy_dtype)


@standard
def asarray(x: Any, /, *, dtype: DType = None) -> Array:
    """Return `x` as a tensor of `dtype`; Python floats default to float32."""
    if isinstance(x, tf.Tensor) and x.dtype is dtype:
        return x
    if isinstance(x, SCALARS):
        # tf.constant takes no True for a number.
        return tf.constant(int(x) if isinstance(x, bool) and dtype in NUMERIC else x, dtype)
    x = tensor(x)
    if dtype == tf.bool != x.dtype:
        return tf.not_equal(x, tf.zeros([], x.dtype))  # tf.cast looks at the real part alone
    if dtype in COMPLEX and x.dtype not in COMPLEX:
        x = tf.cast(x, dtype.real_dtype)
        return tf.complex(x, tf.zeros_like(x))  # the gradient of tf.cast would log a warning
    return x if dtype is None or x.dtype == dtype else tf.cast(x, dtype)


@standard
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
    # What is usual first, as the rest takes half of the time of an operation.
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


def _converting(function: Function, convert: Function) -> Function:
    return lambda *args, **options: function(*convert(*args), **options)


# Elementwise

_KERNELS: dict[str, Function] = {
    "exp expm1 log log1p sqrt sin cos asin acos acosh atanh": lambda x: (inexact(x),),
    "real imag": lambda x: (tensor(x),),
    "multiply logical_and logical_or": pair,
    "atan2": lambda x, y: map(inexact, pair(x, y)),
}
for _names, _convert in _KERNELS.items():
    for _name in _names.split():
        setattr(xp, _name, _converting(getattr(tf.math, _name), _convert))


# `tf.where`, `tf.truediv` and `tf.abs` convert once more, which takes as long as the operation.


@standard
def where(cond: Array, x: Any, y: Any, /) -> Array:
    """`x` where `cond`, else `y`; its gradient is the same selection, from zeros."""
    x, y = pair(x, y)
    return tf.raw_ops.SelectV2(condition=tensor(cond), t=x, e=y)


@standard
def divide(x: Any, y: Any, /) -> Array:
    """Quotient; integers divide in floating point."""
    x, y = map(inexact, pair(x, y))
    return tf.raw_ops.RealDiv(x=x, y=y)


@standard
def quotient(x: Any, y: Any, /) -> Array:
    """
    Quotient by what is not 0.

    XLA makes ``x / (y * y)`` of the slope of `tf.divide`, NaN at 0 / 1e-25; not of this one, which
    has a select between the two divisions.
    """
    x, y = map(inexact, pair(x, y))
    return tf.raw_ops.DivNoNan(x=x, y=y)


@standard
def hypot(x: Any, y: Any, /) -> Array:
    """
    Length of the vector (x, y), whose slopes are right over the whole range; at the origin NaN.

    For a constant unit vector (c, s) along the given one, ``along = c * x + s * y`` is the length
    and ``across = c * y - s * x`` is 0, but for rounding. As functions of x and y they make the
    length, ``along + across * t / (1 + sqrt(1 + t * t))`` with ``t = across / along``, of which
    no part is multiplied with the size of the vector.
    """
    x, y = map(inexact, pair(x, y))
    larger = tf.stop_gradient(where(abs_(x) > abs_(y), abs_(x), abs_(y)))
    infinite = tf.equal(larger, tf.constant(math.inf, x.dtype))
    inside = (where(infinite, 1.0, part) for part in (x, y, larger))
    return where(infinite, abs_(x) + abs_(y), _finite_length(*inside))


def _finite_length(x: Array, y: Array, larger: Array) -> Array:
    # The product of the ends is a little below 4: the scale is as normal as the number it divides.
    info = finfo(x)
    scale = tf.stop_gradient(float(info.smallest_normal) * float(info.max) / larger)
    u, v = scale * x, scale * y
    unit = tf.stop_gradient(tf.math.rsqrt(u * u + v * v))
    c, s = tf.stop_gradient(u) * unit, tf.stop_gradient(v) * unit
    turn = (c * v - s * u) / (c * u + s * v)
    return c * x + s * y + (c * y - s * x) * (turn / (1.0 + tf.sqrt(1.0 + turn * turn)))


def with_slope_of(formula: Array, value: Array) -> Array:
    """Return `value` with the derivatives of the formula."""
    return tf.stop_gradient(value) + (formula - tf.stop_gradient(formula))


@standard
def asinh(x: Array, /) -> Array:
    """Inverse hyperbolic sine; TensorFlow's slope, ``1 / cosh`` of it, has its error times 60."""
    x = inexact(x)
    y = tf.where(tf.math.is_inf(x), tf.ones_like(x), x)  # inf - inf is NaN
    return with_slope_of(tf.math.log(tf.abs(y) + tf.sqrt(y * y + 1)) * tf.sign(y), tf.asinh(x))


@standard
def log_by_quotient(x: Array, /, value: Function = tf.math.log) -> Array:
    """
    Return the logarithm, with ``cotangent / x`` for a slope.

    TensorFlow multiplies with ``1 / x``, which is flushed to 0 above 8.5e37 in float32, and with
    its square, which is infinite below 1e-19.
    """
    size, least = abs_(x), tf.constant(float(finfo(x).smallest_normal), x.dtype)
    edge = tf.logical_or(tf.equal(size, tf.constant(math.inf, x.dtype)), size < least)
    finite = where(edge, 1.0, x)
    given = tf.stop_gradient(finite)
    return tf.stop_gradient(value(x)) + tf.math.log1p(quotient(finite - given, given))


@standard
def log_product(x: Array, y: Array, /) -> Array:
    """Product ``x * log(y)``."""
    return x * log_by_quotient(y)


@standard
def log1p_product(x: Array, y: Array, /) -> Array:
    """Product ``x * log(1 + y)``."""
    return x * log_by_quotient(1.0 + y, lambda _: tf.math.log1p(y))


@standard
def entropy(p: Array, /) -> Array:
    """``-p * log(p)``."""
    return -p * log_by_quotient(p)


@standard
def log_difference(p: Array, q: Array, /) -> Array:
    """``log(p) - log(q)``."""
    return log_by_quotient(p) - log_by_quotient(q)


@standard
def log2(x: Array, /) -> Array:
    """Logarithm to base 2."""
    return xp.log(x) / math.log(2.0)


@standard
def log10(x: Array, /) -> Array:
    """Logarithm to base 10."""
    return xp.log(x) / math.log(10.0)


@standard
def pow_(x: Any, y: Any, /) -> Array:
    """`x` to the power of `y`."""
    x, y = pair(x, y)
    if x.dtype in INEXACT:
        return tf.pow(x, y)
    # tf.pow has no unsigned integers; int64 agrees with them modulo 2**64.
    return tf.cast(tf.pow(tf.cast(x, tf.int64), tf.cast(y, tf.int64)), x.dtype)


@standard
def abs_(x: Array, /) -> Array:
    """Absolute value."""
    x = tensor(x)
    if x.dtype in REAL:
        return tf.raw_ops.Abs(x=x)
    return x if x.dtype == tf.bool or x.dtype in UNSIGNED else tf.abs(x)


@standard
def floor(x: Array, /) -> Array:
    """Greatest integer not above `x`."""
    x = tensor(x)
    return tf.floor(x) if x.dtype in INEXACT else x


@standard
def round_(x: Array, /) -> Array:
    """Nearest integer, the even one of two."""
    x = tensor(x)
    return tf.round(x) if x.dtype in INEXACT else x


@standard
def logical_not(x: Array, /) -> Array:
    """Elementwise negation."""
    # Grappler turns LogicalNot(x <= 0) into x > 0, which NaN fails too, in every tf.function.
    return tf.equal(tensor(x), tf.constant(value=False))


@standard
def maximum(x: Any, y: Any, /) -> Array:
    """Return the greater of two, NaN if one is; a tie splits the gradient evenly."""
    return xp.max(_pairs(x, y), axis=0)


@standard
def minimum(x: Any, y: Any, /) -> Array:
    """Return the lesser of two, NaN if one is; a tie splits the gradient evenly."""
    return xp.min(_pairs(x, y), axis=0)


def _pairs(x: Any, y: Any) -> Array:
    # In tf.maximum, XLA drops a NaN in the second operand (118673); a tie gives all to the first.
    return tf.stack(broadcast_arrays(*together(x, y)))


def _test(name: str, *, of_integers: bool, of_parts: Function) -> None:
    # tf.math.is_nan, is_inf and is_finite refuse integers and complex numbers.
    kernel = getattr(tf.math, name.replace("is", "is_"))

    def test(x: Array, /) -> Array:
        x = tensor(x)
        if x.dtype in COMPLEX:
            return of_parts(kernel(tf.math.real(x)), kernel(tf.math.imag(x)))
        return kernel(x) if x.dtype in REAL else full_like(x, of_integers, dtype=tf.bool)

    setattr(xp, name, test)


_test("isnan", of_integers=False, of_parts=tf.logical_or)
_test("isinf", of_integers=False, of_parts=tf.logical_or)
_test("isfinite", of_integers=True, of_parts=tf.logical_and)


# Shapes

for _name in ("expand_dims", "reshape", "ones_like", "zeros_like"):
    setattr(xp, _name, _converting(getattr(tf, _name), lambda x, *args: (tensor(x), *args)))


@standard
def squeeze(x: Array, /, axis: Axis) -> Array:
    """Remove axes of length 1; no axes remove none, of which tf.squeeze makes all."""
    return tensor(x) if axis == () else tf.squeeze(tensor(x), axis)


@standard
def full_like(x: Array, fill_value: Any, /, *, dtype: DType = None) -> Array:
    """`fill_value` in the shape of `x`."""
    x = tensor(x)
    return tf.broadcast_to(asarray(fill_value, dtype=dtype or x.dtype), tf.shape(x))


@standard
def permute_dims(x: Array, /, axes: tuple[int, ...]) -> Array:
    """Reorder the axes."""
    return tf.transpose(tensor(x), [axis % len(axes) for axis in axes])  # XLA takes none below 0


@standard
def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """Join along an axis; None joins all entries."""
    parts = together(*arrays)
    return tf.concat([_flat(x) for x in parts] if axis is None else parts, axis or 0)


@standard
def broadcast_arrays(*arrays: Array) -> list[Array]:
    """Repeat all to fill their common shape."""
    tensors = [tensor(x) for x in arrays]
    shape = reduce(tf.broadcast_dynamic_shape, map(tf.shape, tensors))
    return [tf.broadcast_to(x, shape) for x in tensors]


def _flat(x: Array) -> Array:
    return tf.reshape(x, [-1])


def _swapped(x: Array, axis: int) -> Array:
    """Exchange `axis` and the last one, which undoes itself; axis=-1 needs no rank."""
    if axis == -1:
        return x
    if x.shape.rank is None:
        axes, last = tf.range(tf.rank(x)), tf.rank(x) - 1
        axis = axis % tf.rank(x)
        return tf.transpose(x, tf.where(axes == axis, last, tf.where(axes == last, axis, axes)))
    order = list(range(x.shape.rank))
    order[axis], order[-1] = order[-1], order[axis]
    return tf.transpose(x, order)


def _length(x: Array) -> int | None:
    return None if x.shape.rank is None else x.shape[-1]


def _along_axis(default: int | None = None) -> Function:
    def decorator(function: Function) -> Function:
        def moved(x: Array, /, *, axis: int | None = default, **options: Any) -> Array:
            x = tensor(x)
            if axis is None and x.shape.rank not in (None, 1):
                msg = f"expected an axis for {x.shape.rank} dimensions, got None"
                raise ValueError(msg)
            axis = -1 if axis is None else axis
            return _swapped(function(_swapped(x, axis), **options), axis)

        return standard(moved, described=function)

    return decorator


# Reductions


def _reduction(function: Function) -> Function:
    def reduced(x: Array, /, *, axis: Axis = None, keepdims: bool = False, **options: Any) -> Array:
        return function(tensor(x), axis, keepdims, **options)

    return standard(reduced, described=function)


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
    """
    Return `x`, of which only what is extreme in its slice has a slope.

    The rule of tf.reduce_max multiplies the cotangent with 0 for the others: inf becomes NaN.
    """
    others = tf.stop_gradient(x)
    peak = _extreme(function, others, axis, True)  # noqa: FBT003  (keepdims)
    beyond = tf.less if function is tf.reduce_max else tf.greater
    return where(beyond(others, peak), others, x)


def _extreme(function: Function, x: Array, *axes: Any) -> Array:
    # XLA drops NaN in reduce_max and reduce_min, with gradient 0 (116992, 118673). The product
    # makes value and gradient NaN again; selecting a NaN would leave the gradient at 0. It sees no
    # inf, which ForwardAccumulator would multiply by 0, the tangent of the factor.
    found = function(x, *axes)
    if x.dtype not in REAL or (tf.executing_eagerly() and "CPU" in x.device):
        return found
    nan, one = tf.constant(math.nan, x.dtype), tf.constant(1.0, x.dtype)
    lost = tf.reduce_any(tf.math.is_nan(x), *axes)
    return tf.where(lost, tf.where(lost, found, one) * tf.where(lost, nan, one), found)


@_reduction
def sum_(x: Array, *axes: Any, dtype: DType = None) -> Array:
    """Sum; integers in 64 bits, as tf.reduce_sum overflows."""
    return tf.reduce_sum(_accumulator(x, dtype), *axes)


@_reduction
def mean(x: Array, *axes: Any) -> Array:
    """Mean; integers in floating point, as tf.reduce_mean truncates."""
    x = inexact(x)
    return tf.cast(tf.reduce_mean(_widened(x), *axes), x.dtype)


@_reduction
def prod(x: Array, axis: Axis, keepdims: Any, *, dtype: DType = None) -> Array:
    """Product, with all its derivatives; integers in 64 bits."""
    # The gradient of tf.reduce_prod divides by the entries: no second derivative at zeros.
    x = _accumulator(x, dtype)
    if x.dtype not in INEXACT:
        return tf.reduce_prod(x, axis, keepdims)
    if axis is None:
        return tf.reshape(_product(_flat(x)), tf.ones_like(tf.shape(x)) if keepdims else [])
    for one in axis if isinstance(axis, tuple) else (axis,):
        x = _swapped(_product(_swapped(x, one)), one)
    return tf.reduce_sum(x, axis, keepdims)  # of one entry each


def _product(x: Array) -> Array:
    product_of_none = tf.cast(tf.shape(x)[-1] == 0, x.dtype)
    total = _cumulative_product(x)[..., -1:]  # one entry, or none
    return tf.reduce_sum(total, -1, keepdims=True) + product_of_none


def _cumulative_product(x: Array) -> Array:
    # By doubling. tf.custom_gradient would allow a faster value, but a tape in its backward pass is
    # 0 for ForwardAccumulator.
    places, one = tf.range(tf.shape(x)[-1]), tf.constant(1, x.dtype)
    length = _length(x)
    for doubling in range(MAX_DOUBLINGS if length is None else (length - 1).bit_length()):
        shift = 2**doubling
        x *= tf.where(places < shift, one, tf.roll(x, shift, -1))
    return x


def _accumulator(x: Array, dtype: DType) -> Array:
    if dtype is None and x.dtype not in INEXACT:
        dtype = tf.uint64 if x.dtype in UNSIGNED else tf.int64
    return asarray(x, dtype=dtype)


def _widened(x: Array) -> Array:
    # Outside XLA, the sum in a mean of float16 overflows and a running one of bfloat16 sticks at
    # 256. XLA has no cumsum of uint64, with which int64 agrees modulo 2**64.
    if x.dtype in (tf.float16, tf.bfloat16):
        return tf.cast(x, tf.float32)
    return tf.cast(x, tf.int64) if x.dtype == tf.uint64 else x


@_along_axis()
def cumulative_sum(x: Array, *, dtype: DType = None) -> Array:
    """Return the sums of the first entries."""
    x = _accumulator(x, dtype)
    if x.dtype in COMPLEX:  # XLA has no cumsum for these
        return tf.complex(tf.cumsum(tf.math.real(x), -1), tf.cumsum(tf.math.imag(x), -1))
    return tf.cast(tf.cumsum(_widened(x), -1), x.dtype)


@_along_axis()
def cumulative_prod(x: Array, *, dtype: DType = None) -> Array:
    """Return the products of the first entries, with all their derivatives."""
    # The gradient of tf.math.cumprod divides by the entries: it is wrong at zeros. And XLA has none
    # of complex numbers and of uint64.
    return _cumulative_product(_accumulator(x, dtype))


# Order


@standard
def argmax(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Position of the first greatest entry, or of the first NaN."""
    return _first(tensor(x), xp.max, axis, keepdims=keepdims)


@standard
def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Position of the first least entry, or of the first NaN."""
    return _first(tensor(x), xp.min, axis, keepdims=keepdims)


def _first(x: Array, extreme: Function, axis: int | None, *, keepdims: bool) -> Array:
    # tf.argmax and tf.argmin pass over NaN, eagerly in another way than in XLA (118177, 118647),
    # and promise no order among ties.
    if axis is None:
        found = _first(_flat(x), extreme, -1, keepdims=False)
        return tf.reshape(found, tf.ones_like(tf.shape(x))) if keepdims else found
    x = _swapped(x, axis)
    hit = tf.logical_or(tf.equal(x, extreme(x, axis=-1, keepdims=True)), xp.isnan(x))
    length = tf.shape(x, tf.int64)[-1]
    found = tf.reduce_min(tf.where(hit, tf.range(length), length), -1, keepdims=True)
    found = _swapped(found, axis)
    return found if keepdims else tf.squeeze(found, [axis])


@_along_axis(-1)
def sort(x: Array) -> Array:
    """Entries in ascending order, NaN last."""
    return _picked(x, argsort(x))


@_along_axis(-1)
def argsort(x: Array) -> Array:
    """Positions of the entries in ascending order, NaN last; it is stable."""
    # tf.sort and tf.argsort leave numbers unsorted where there are NaN (117287, 119359), and XLA
    # puts -0 before 0. So NaN becomes inf, and a second, stable sort puts it behind the others.
    if x.dtype not in REAL:
        # tf.argsort has no bool, and in XLA no uint16.
        x = tf.cast(x, tf.int32) if x.dtype in (tf.bool, tf.uint16) else x
        return tf.cast(tf.argsort(x, stable=True), tf.int64)
    nan = tf.math.is_nan(x)
    key = where(nan, math.inf, where(x == 0, 0, x))
    order = tf.cast(tf.argsort(key, stable=True), tf.int64)
    nan_last = tf.argsort(tf.cast(_picked(nan, order), tf.int32), stable=True)
    return _picked(order, tf.cast(nan_last, tf.int64))


@standard
def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """Entries of `x` at `indices` along an axis; the other axes broadcast."""
    x, indices = _swapped(tensor(x), axis), _swapped(tensor(indices), axis)
    width, count = tf.shape(x)[-1:], tf.shape(indices)[-1:]
    batch = tf.broadcast_dynamic_shape(tf.shape(x)[:-1], tf.shape(indices)[:-1])
    x = tf.broadcast_to(x, tf.concat([batch, width], 0))
    indices = tf.broadcast_to(indices, tf.concat([batch, count], 0))
    from_start = tf.where(indices < 0, indices + tf.cast(width, indices.dtype), indices)
    return _swapped(_picked(x, from_start), axis)


def _picked(x: Array, indices: Array) -> Array:
    """Take along the last axis, in two dimensions, as tf.gather needs a rank."""
    table, places = tf.reshape(x, _rows(x)), tf.reshape(indices, _rows(indices))
    return tf.reshape(tf.gather(table, places, batch_dims=1), tf.shape(indices))


def _rows(x: Array) -> Any:
    if x.shape.is_fully_defined():
        return [math.prod(x.shape[:-1]), x.shape[-1]]
    return tf.stack([tf.reduce_prod(tf.shape(x)[:-1]), tf.shape(x)[-1]])


# The backend

_tapes_only: ContextVar[bool] = ContextVar("_tapes_only", default=False)


class TensorFlow(ArrayAPI):
    """TensorFlow tensors and variables."""

    keeps_exponent = False  # 0 * inf (2.21)

    def owns(self, x: object) -> bool:
        """Whether `x` is of TensorFlow or a symbol of Keras; `check` refuses some of those."""
        return tf.is_tensor(x) or _is_of_keras(x)

    def check(self, x: Array) -> None:
        """Refuse ragged and sparse tensors, whose empty entries have no place in a `where`."""
        if isinstance(x, tf.Tensor):
            return
        kind = type(x).__name__
        for refused, way_out in (
            (tf.RaggedTensor, "pass x.to_tensor(), and where= for its padding"),
            (tf.SparseTensor, "pass tf.sparse.to_dense(x)"),
            (tf.IndexedSlices, "pass tf.convert_to_tensor(x)"),
        ):
            if isinstance(x, refused):
                msg = f"expected a dense tensor, got {kind}; {way_out}"
                raise TypeError(msg)
        if _is_of_keras(x):
            msg = f"expected a tensor, got {kind}; wrap the call in keras.layers.Lambda or a Layer"
            raise TypeError(msg)

    def takes(self, x: Any) -> bool:
        """Take all of NumPy's, as TensorFlow does."""
        del x
        return True

    def constant(self, x: Any, like: Array) -> Array:
        """Return a tensor: real numbers in the dtype of `like`, if that is real too."""
        as_like = x.dtype.kind == "f" and like.dtype in REAL
        return tf.constant(x, like.dtype if as_like else None)

    def result_type(self, args: Sequence[Any]) -> DType:
        """Return the standard's promotion; integers divide to what `tf.truediv` makes of them."""
        return floating(result_type(*args))

    def cast(self, x: Any, dtype: DType, like: Array) -> Array:
        """Array, variable or Python scalar as a tensor of `dtype`."""
        del like  # TensorFlow moves a scalar to the device of what it meets
        return asarray(x, dtype=dtype)

    def flattened(self, x: Array, start: int) -> Array:
        """Return `x` with its axes from `start` on as one, of a length that need not be known."""
        shape = tf.shape(x)
        return tf.reshape(x, tf.concat([shape[:start], [tf.reduce_prod(shape[start:])]], 0))

    def extreme(self, x: Array, axis: Axis, sign: int) -> Array:
        """Return the largest or smallest entry of each slice, axes kept; no other has a slope."""
        function = tf.reduce_max if sign == 1 else tf.reduce_min
        x = loses(function, x, axis) if x.dtype in REAL else x
        return super().extreme(x, axis, sign)

    def rough_max(self, x: Array, axis: Axis) -> Array:
        """Return the largest entry of each slice, axes kept; XLA passes over NaN."""
        return tf.reduce_max(x, axis, keepdims=True)

    def stop_gradient(self, x: Array) -> Array:
        """Return `x` without its derivative."""
        return tf.stop_gradient(tensor(x))

    def grad(self, f: Function) -> Function:
        """Reverse mode, by `tf.GradientTape`."""

        def gradients(*args: Any) -> tuple[Array, ...]:
            args = _fresh(args)
            with tf.GradientTape() as tape:
                tape.watch([x for x in args if x.dtype in INEXACT])  # TensorFlow warns of others
                value = tensor(f(*args))
            return _pulled_back(tape, value, args)

        return gradients

    def jvp(self, f: Function) -> Function:
        """Forward mode, by `tf.autodiff.ForwardAccumulator`; inside another, by two tapes."""

        def tangent(args: Sequence[Any], tangents: Sequence[Any]) -> Array:
            args = _fresh(args)
            push = _transposed if _tapes_only.get() else _accumulated
            pairs = [(x, t) for x, t in zip(args, tangents, strict=True) if x.dtype in INEXACT]
            along = [asarray(t, dtype=x.dtype) for x, t in pairs]
            return push(lambda: tensor(f(*args)), [x for x, _ in pairs], along)

        return tangent

    @contextmanager
    def nan_detector(self) -> Iterator[None]:
        """
        Raise InvalidArgumentError where a NaN or inf is made, by `enable_check_numerics`.

        A `tf.function` traced inside keeps its checks, one traced before has none, and XLA compiles
        none. `jvp` goes by tapes here: ForwardAccumulator traces each op once and for all.
        """
        was_on = _detects()
        with _by_tapes_only():
            if not was_on:
                tf.debugging.enable_check_numerics()
            try:
                yield
            finally:
                if not was_on:
                    tf.debugging.disable_check_numerics()


def _is_of_keras(x: object) -> bool:
    symbol = getattr(sys.modules.get("keras"), "KerasTensor", None)
    return symbol is not None and isinstance(x, symbol)


def _detects() -> bool:
    with tf.init_scope():  # leaves the graph, if there is one
        try:
            tf.math.log(tf.constant(-1.0))
        except tf.errors.InvalidArgumentError:
            return True
    return False


def _fresh(args: Sequence[Any]) -> tuple[Array, ...]:
    # Tapes know a tensor by identity: a function inside f that closes over x, and is given x,
    # would be differentiated with respect to both.
    return tuple(tf.identity(x) for x in args)


def _pulled_back(tape: Any, value: Array, args: Sequence[Array], *seed: Array) -> tuple[Array, ...]:
    found = tape.gradient(value, args, *seed, unconnected_gradients="zero")
    return tuple(_dense(gradient, x) for gradient, x in zip(found, args, strict=True))


def _dense(gradient: Array, x: Array) -> Array:
    # That of tf.gather is IndexedSlices, whose conversion warns where shapes are unknown.
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    at = tf.expand_dims(gradient.indices, -1)
    return tf.tensor_scatter_nd_add(tf.zeros_like(x), at, gradient.values)


@contextmanager
def _by_tapes_only() -> Iterator[None]:
    token = _tapes_only.set(True)
    try:
        yield
    finally:
        _tapes_only.reset(token)


def _accumulated(f: Function, primals: Sequence[Array], tangents: Sequence[Array]) -> Array:
    with _by_tapes_only(), tf.autodiff.ForwardAccumulator(primals, tangents) as accumulator:
        value = f()
    return accumulator.jvp(value, unconnected_gradients=tf.UnconnectedGradients.ZERO)


def _transposed(f: Function, primals: Sequence[Array], tangents: Sequence[Array]) -> Array:
    # A ForwardAccumulator in another raises IndexError in graph mode, for tf.where among others.
    # So: the transposed Jacobian is linear in the seed, and its derivative is the Jacobian.
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(primals)
            value = f()
        seed = tf.ones_like(value)
        outer.watch(seed)
        gradients = _pulled_back(inner, value, primals, seed)
    return outer.gradient(gradients, seed, tangents, unconnected_gradients="zero")


backend = TensorFlow(xp)
