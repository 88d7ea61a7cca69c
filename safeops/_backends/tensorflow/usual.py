"""
Plain formulas of TensorFlow, with a look at what they give: where that is unusual, the steps.

The steps of a function are right for all arguments, and TensorFlow writes an array at each. A look
at the result of a reduction reads a number for each slice.
"""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from safeops._backends.tensorflow.derivatives import detects
from safeops._backends.tensorflow.dtypes import finfo
from safeops._backends.tensorflow.elementwise import where as select
from safeops._backends.tensorflow.private import has_dtensors, in_xla, is_accumulated
from safeops._backends.tensorflow.rules import pulled_by, short, tried
from safeops._core.dtypes import is_positive_zero
from safeops._core.types import Array, Function

_LENGTHS = (1e-9, 1e9)  # whose squares are in range
# Of the norms of a matrix and its inverse, as a product. Up to here the adjugate has as many digits
# as by singular values.
_MOST = 1e3


def _are_plain(*args: Any) -> bool:
    """Whether all are tensors of one dtype and rank, in a program where something may be tried."""
    # Not where a detector would report it, nor where `rules.short` leaves all to the steps.
    kinds = {(x.dtype, x.shape.rank) for x in args if isinstance(x, tf.Tensor)}
    if len(kinds) != 1 or not all(isinstance(x, tf.Tensor) for x in args):
        return False
    ((dtype, rank),) = kinds
    if dtype not in (tf.float32, tf.float64) or not rank or has_dtensors() or detects():
        return False
    return not (in_xla() or is_accumulated(args))


def _has_axis(x: Array, axis: Any) -> bool:
    return type(axis) is int and -x.shape.rank <= axis < x.shape.rank


def _all_finite(x: Array) -> Array:
    return tf.reduce_all(tf.math.is_finite(x))


def _all_within(x: Array, low: float, high: float) -> Array:
    """Whether all numbers are between two, which NaN is not."""
    return tf.reduce_all(tf.logical_and(x >= low, x <= high))


def _total(x: Array, axis: int) -> Array:
    return tf.reduce_sum(x, axis, keepdims=True)


def _dropped(x: Array, axis: int, *, keepdims: bool) -> Array:
    return x if keepdims else tf.squeeze(x, axis)


def _log_sum(
    steps: Function,
    x: Any,
    /,
    *,
    axis: Any = None,
    keepdims: bool = False,
    where: Any = None,
    b: Any = None,
) -> Array | None:
    """Logarithm of the sum of exponentials along an axis, if all of them are finite."""
    if where is not None or b is not None or not _are_plain(x) or not _has_axis(x, axis):
        return None

    def run(x: Array) -> tuple[Array, Array, Array]:
        peak = tf.reduce_max(x, axis, keepdims=True)
        parts = tf.exp(x - peak)
        total = _total(parts, axis)
        return peak + tf.math.log(total), parts, total

    def pull(cotangent: Array, found: Sequence[Array], _: Array) -> list[Array]:
        _, parts, total = found
        return [parts * (cotangent / total)]

    def is_usual(out: Array, *_: Array) -> Array:
        return _all_finite(out)

    def without(x: Array) -> Array:
        none = tf.constant(-math.inf, x.dtype)
        return select(tf.equal(x, none), none, x)

    # Nothing comes to absent entries, as masked autodiff sees by a select of the program alone.
    x = tf.cond(tf.reduce_min(x) > -math.inf, lambda: tf.identity(x), lambda: without(x))
    f = tried(lambda x: steps(x, axis=axis, keepdims=True), run, pull, is_usual)
    return _dropped(f(x), axis, keepdims=keepdims)


def _length(steps: Function, x: Any, /, *, axis: Any, ord: float) -> Array | None:  # noqa: A002  (of the house)
    """Lengths along an axis, kept, if none is out of the ordinary."""
    if ord != 2 or not _are_plain(x) or not _has_axis(x, axis):  # noqa: PLR2004  (the Euclidean norm)
        return None

    def run(x: Array) -> tuple[Array]:
        return (tf.sqrt(_total(x * x, axis)),)

    def pull(cotangent: Array, found: Sequence[Array], x: Array) -> list[Array]:
        return [x / found[0] * cotangent]

    f = tried(lambda x: steps(x, axis=axis, ord=ord), run, pull, _all_usual)
    return _beside_zeros(f, x, axis)


def _root_mean_square(
    steps: Function, x: Any, /, *, axis: Any = None, keepdims: bool = False, where: Any = None
) -> Array | None:
    """Roots of mean squares along an axis, if none is out of the ordinary."""
    if where is not None or not _are_plain(x) or not _has_axis(x, axis):
        return None

    def run(x: Array) -> tuple[Array]:
        return (tf.sqrt(_total(x * x, axis) / tf.cast(tf.shape(x)[axis], x.dtype)),)

    def pull(cotangent: Array, found: Sequence[Array], x: Array) -> list[Array]:
        number = tf.cast(tf.shape(x)[axis], x.dtype)
        return [x / found[0] * (cotangent / number)]

    f = tried(lambda x: steps(x, axis=axis, keepdims=True), run, pull, _all_usual)
    return _dropped(_beside_zeros(f, x, axis), axis, keepdims=keepdims)


def _direction(
    steps: Function,
    x: Any,
    /,
    *,
    axis: Any = -1,
    ord: Any = 2,  # noqa: A002  (of the house)
    fill_value: Any = 0.0,
) -> Array | None:
    """Slices over their lengths, if none of these is out of the ordinary."""
    plain = type(ord) is int and ord == 2 and is_positive_zero(fill_value)  # noqa: PLR2004  (as above)
    if not plain or not _are_plain(x) or not _has_axis(x, axis):
        return None

    def run(x: Array) -> tuple[Array, Array]:
        length = tf.sqrt(_total(x * x, axis))
        return x / length, length

    def pull(cotangent: Array, found: Sequence[Array], _: Array) -> list[Array]:
        unit, length = found
        return [(cotangent - unit * _total(unit * cotangent, axis)) / length]

    f = tried(lambda x: steps(x, axis=axis), run, pull, lambda _, length: _all_usual(length))
    return _beside_zeros(f, x, axis)


def _all_usual(lengths: Array) -> Array:
    return _all_within(lengths, *_LENGTHS)


def _beside_zeros(f: Function, x: Array, axis: int) -> Array:
    """Return f of slices, and 0 for those of zeros, to which nothing comes: see `_log_sum`."""
    zero = _are_zero(x, axis)

    def filled(fill: float, x: Array) -> Array:
        return tf.cond(tf.reduce_any(zero), lambda: select(zero, fill, x), lambda: tf.identity(x))

    return filled(0.0, f(filled(1.0, x)))


def _cosine_similarity(
    steps: Function,
    x: Any,
    y: Any,
    /,
    *,
    axis: Any = -1,
    keepdims: bool = False,
    where: Any = None,
) -> Array | None:
    """Cosines along an axis, if no length is out of the ordinary."""
    if where is not None or not _are_plain(x, y) or not _has_axis(x, axis):
        return None

    def run(x: Array, y: Array) -> tuple[Array, Array, Array]:
        lengths = tf.sqrt(_total(x * x, axis)), tf.sqrt(_total(y * y, axis))
        return _total(x * y, axis) / (lengths[0] * lengths[1]), *lengths

    def pull(cotangent: Array, found: Sequence[Array], x: Array, y: Array) -> list[Array]:
        cosine, *lengths = found
        u, v = x / lengths[0], y / lengths[1]
        # Of the size of a slope: a product of lengths may leave the range of a cotangent.
        scales = [cotangent / length for length in lengths]
        return [(v - cosine * u) * scales[0], (u - cosine * v) * scales[1]]

    def is_usual(_: Array, *lengths: Array) -> Array:
        return tf.logical_and(*map(_all_usual, lengths))

    out = tried(lambda x, y: steps(x, y, axis=axis, keepdims=True), run, pull, is_usual)(x, y)
    # As in the logarithm of a sum: nothing comes to slices of which one is 0. Beside NaN it is NaN.
    zero = tf.logical_or(_are_zero(x, axis), _are_zero(y, axis))
    zero = tf.logical_and(zero, tf.equal(out, 0.0))
    return _dropped(select(zero, 0.0, out), axis, keepdims=keepdims)


def _are_zero(x: Array, axis: int) -> Array:
    """Whether a slice is 0, which the largest entry is asked for if squares were lost."""
    square = _total(x * x, axis)

    def where_lost() -> Array:
        size = tf.reduce_max(tf.abs(x), axis, keepdims=True)
        return tf.logical_and(tf.equal(square, 0.0), size < float(finfo(x).smallest_normal))

    return tf.cond(tf.reduce_all(square > 0.0), lambda: square < 0.0, where_lost)


def _determinant(steps: Function, a: Any, /) -> Array | None:
    """Determinant, with the adjugate by the inverse if no matrix is nearly singular."""
    if not _are_plain(a) or a.shape.rank < 2 or a.shape[-1] != a.shape[-2]:  # noqa: PLR2004  (a matrix)
        return None
    info = finfo(a)
    least = float(info.smallest_normal) / float(info.eps)

    def in_range(out: Array) -> Array:
        return _all_within(tf.abs(out), least, float(info.max))

    def value(a: Array) -> Array:
        out = tf.linalg.det(a)
        return tf.cond(in_range(out), lambda: out, lambda: steps(a))

    def pull(cotangent: Array, out: Array, a: Array) -> Sequence[Array]:
        # Not by `inv`, which raises for singular matrices: of these this is the inverse of a part,
        # and the trace of the product is the rank.
        number, batch = tf.shape(a)[-1], tf.shape(a)[:-2]
        inverse = tf.linalg.lstsq(a, tf.eye(number, None, batch, a.dtype), fast=False)
        turned = tf.linalg.matrix_transpose(inverse)
        adjugate = out[..., None, None] * turned
        near = tf.norm(a, axis=(-2, -1)) * tf.norm(inverse, axis=(-2, -1))
        rank, full = tf.reduce_sum(a * turned, (-2, -1)), tf.cast(number, a.dtype)
        usual = _all_within(near, 0.0, _MOST) & _all_within(rank, full - 0.5, full + 0.5)
        return tf.cond(
            usual & _all_finite(adjugate) & in_range(out),
            lambda: [cotangent[..., None, None] * adjugate],
            lambda: list(pulled_by(steps, cotangent, a)),
        )

    return short(steps, value, pull)(a)


OF_STEPS: dict[str, Function] = {
    "_length": _length,
    "safe_cosine_similarity": _cosine_similarity,
    "safe_det": _determinant,
    "safe_logsumexp": _log_sum,
    "safe_normalize": _direction,
    "safe_rms": _root_mean_square,
}
