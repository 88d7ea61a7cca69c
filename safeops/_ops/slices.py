"""What norms, softmax and reductions do with slices: masks, empty slices, dropped axes."""

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from safeops._core.dtypes import NARROW, dtype_name
from safeops._core.types import Array, Axis, DType, Namespace
from safeops._dispatch import backend_of, promote, promote_mask


def enter_slices(
    *args: Array, where: Any, complex_too: bool = False
) -> tuple[Namespace, DType, Array | None, list[Array]]:
    """Return the namespace, the dtype of the result, `where` as an array, and `args`."""
    # float16 and bfloat16 become float32: the square of 256 overflows in float16, and a sum of a
    # few squares loses digits in both. Frameworks accumulate in float32 too.
    xp, *arrays = promote(*args, complex_too=complex_too)
    dtype = arrays[0].dtype
    keep = promote_mask(where, arrays[0])
    require_fit(keep, arrays[0])
    if dtype_name(dtype) in NARROW:
        arrays = [xp.astype(x, xp.float32) for x in arrays]
    return xp, dtype, keep, arrays


def with_same_slices(xp: Namespace, arrays: Sequence[Array], axis: Axis) -> Sequence[Array]:
    """Return arrays whose slices have the same entries: broadcast, unless they have."""
    first, *others = shapes = [x.shape for x in arrays]
    if any(getattr(shape, "rank", 0) is None for shape in shapes):
        return xp.broadcast_arrays(*arrays)
    least = min(len(shape) for shape in shapes)
    axes = range(least) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    of_one_rank = all(len(shape) == len(first) for shape in others)
    same = all(-least <= a < (least if of_one_rank else 0) for a in axes) and all(
        first[a] is not None and shape[a] is not None and first[a] == shape[a]
        for shape in others
        for a in axes
    )
    return arrays if same else xp.broadcast_arrays(*arrays)


def enter_number(wanted: str, option: Any) -> float:
    """Return an option as a Python float; TypeError if it is not a real number."""
    # Numbers are tested first: torch.compile cannot ask a symbolic number for its shape (2.13).
    number = isinstance(option, (float, Integral, np.floating)) and not isinstance(option, bool)
    other = not number and not isinstance(option, np.generic)
    if not (number or (other and getattr(option, "shape", None) == ())):
        msg = f"{wanted}, got {option!r}"
        raise TypeError(msg)
    return float(option)


def equal(a: int | None, b: int | None) -> bool:
    """Whether two lengths may be equal, of which None is not known."""
    # They are compared one by one: a set of them makes numbers of the symbols of `torch.compile`.
    return a is None or b is None or a == b


def ends_of(first: Any, second: Any) -> list[tuple[Any, Any]]:
    """Return the last lengths of two shapes side by side, as many as the shorter one has."""
    # Dynamo of PyTorch 2.9 takes a zip with ``strict=False`` for a strict one.
    a, b = tuple(first), tuple(second)
    count = min(len(a), len(b))
    return list(zip(a[len(a) - count :], b[len(b) - count :], strict=True))


def require_fit(keep: Array | None, x: Array) -> None:
    """Raise ValueError if `keep` has a shape that does not broadcast against the shape of `x`."""
    if keep is None or any(getattr(y.shape, "rank", 0) is None for y in (keep, x)):
        return
    if not all(equal(a, b) or a == 1 or b == 1 for a, b in ends_of(keep.shape, x.shape)):
        msg = (
            f"expected where of a shape that broadcasts against {tuple(x.shape)}, "
            f"got {tuple(keep.shape)}"
        )
        raise ValueError(msg)


def require_rank(name: str, x: Array) -> None:
    """Raise ValueError for an array of TensorFlow of which the number of axes is not known."""
    if getattr(x.shape, "rank", 0) is None:
        msg = (
            f"expected {name} with a known number of dimensions, got a tensor of unknown shape; "
            f"lengths may be unknown: pass tf.ensure_shape({name}, [None, None]), a None for each"
        )
        raise ValueError(msg)


def require_axes(x: Array, axis: Axis) -> None:
    """Raise ValueError for an array without axes, which NumPy and PyTorch take for one of one."""
    if axis is not None and getattr(x.shape, "rank", 0) is not None and len(x.shape) == 0:
        msg = f"expected arrays with axis {axis}, got one without axes"
        raise ValueError(msg)


def scale_of(
    xp: Namespace, x: Array, axis: Axis, *, of_none: float, of_sum: bool, rough: bool = False
) -> Array:
    """
    Return the largest number of each slice as a constant, `of_none` for slices without an entry.

    With `of_sum` the largest number may pass over a NaN: the caller sums the scaled entries, and
    the NaN is in that sum. With `rough` it may be less, or up to the norm, and of a slice with an
    infinite number it may be finite.
    """
    backend = backend_of(x)
    if is_empty(x):  # frameworks raise for the maximum of nothing
        return xp.sum(x, axis=axis, keepdims=True) + of_none
    if rough:
        peak = backend.rough_size(x, axis)
    else:
        peak = backend.rough_max(x, axis) if of_sum else xp.max(x, axis=axis, keepdims=True)
    return backend.stop_gradient(peak)


def is_empty(x: Array) -> bool:
    """Whether `x` is known to have no entry; False if the shape is unknown."""
    shape = x.shape
    return getattr(shape, "rank", 0) is not None and 0 in tuple(shape)


def length(x: Array, axis: Axis) -> int | None:
    """Return how many entries a slice has; None if the number is unknown."""
    if getattr(x.shape, "rank", 0) is None:
        return None
    axes = range(len(x.shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    sizes = [x.shape[a] for a in axes]
    return None if None in sizes else math.prod(sizes)


def same_shape(x: Array, y: Array) -> bool:
    """Whether two arrays are known to have the same shape."""
    if getattr(x.shape, "rank", 0) is None or getattr(y.shape, "rank", 0) is None:
        return False
    return None not in tuple(x.shape) and tuple(x.shape) == tuple(y.shape)


def drop_axes(xp: Namespace, x: Array, axis: Axis, *, keepdims: bool) -> Array:
    """Remove the axes that a reduction kept."""
    if keepdims:
        return x
    return xp.reshape(x, ()) if axis is None else xp.squeeze(x, axis=axis)


def count(xp: Namespace, x: Array, keep: Array | None, axis: Axis) -> Array:
    """Return how many entries of each slice are kept, in the dtype of `x`, axes kept."""
    if keep is None:
        return backend_of(x).lengths(x, axis)
    return xp.sum(xp.where(keep, xp.ones_like(x), 0.0), axis=axis, keepdims=True)
