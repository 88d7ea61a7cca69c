"""Norms, distances and directions, with gradient 0 at zero and no over- or underflow on the way."""

import math
from typing import Any

from safeops._core.dtypes import COMPLEX, dtype_name, is_complex, limits
from safeops._core.types import Array, Axis, Condition, DType, IsArray, Namespace, T, reduces
from safeops._dispatch import backend_of, fast_path
from safeops._ops.division import reciprocal, safe_div
from safeops._ops.powers import safe_pow, safe_sqrt
from safeops._ops.slices import (
    count,
    drop_axes,
    enter_number,
    enter_slices,
    is_empty,
    scale_of,
    with_same_slices,
)


@reduces
@fast_path
def safe_norm(
    x: T,
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    ord: float = 2,  # noqa: A002  (the name in NumPy and the standard)
    where: Condition | None = None,
    min_norm: float = 0.0,
) -> T:
    """
    Vector norm of each slice, with gradient 0 where it is zero.

    Same as ``max(sum(abs(x) ** ord) ** (1 / ord), min_norm)`` over `axis`, without over- or
    underflow of the powers.

    Parameters
    ----------
    x : array, shape (...), real or complex floating
        Any value. NaN stays NaN.
    axis : int or tuple of ints, optional
        Axes of a slice. Default: all.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    ord : float, default: 2
        At least 1; `math.inf` for the maximum norm.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    min_norm : float, default: 0.0
        Floor of the result, at least 0 and finite, with gradient 0 at and below it.

    Returns
    -------
    array, real floating
        0 for an empty slice.

    Notes
    -----
    **Gradient.** ``x / norm`` for ``ord=2``; at a zero slice 0, the subgradient of minimum norm, at
    every order. Inside a smooth composite the chosen 0 is wrong: at a zero slice the Hessian of
    ``safe_norm(x)**2`` is 0 and not ``2 * I``. Use `squared_norm` for the square,
    `safeops.rotations` for rotations, and `radial` for other composites. For ``ord=inf`` ties share
    the gradient evenly.

    **Source.** `optax.safe_norm` for `min_norm`. Scaling by the largest entry, as in LAPACK:
    without it 1e30 overflows and 1e-30 underflows in float32. Entries whose squares are in range
    are not scaled.

    Examples
    --------
    >>> import numpy as np
    >>> safe_norm(np.asarray([[3.0, 4.0], [0.0, 0.0]]), axis=-1)
    array([5., 0.])
    """
    xp, dtype, keep, (x,) = enter_slices(x, where=where, complex_too=True)
    return _norm(xp, _kept(xp, keep, x), dtype, axis, keepdims, ord, min_norm)


@reduces
@fast_path
def squared_norm(
    x: T, /, *, axis: Axis = None, keepdims: bool = False, where: Condition | None = None
) -> T:
    """
    Sum of squares of each slice; at zero the gradient is 0 and the Hessian ``2 * I``.

    Same as ``sum(abs(x) ** 2)`` over `axis`.

    Parameters
    ----------
    x : array, shape (...), real or complex floating
        Any value. NaN stays NaN.
    axis : int or tuple of ints, optional
        Axes of a slice. Default: all.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.

    Returns
    -------
    array, real floating
        0 for an empty slice.

    Notes
    -----
    **Gradient.** ``2 * x``; Hessian ``2 * I``. Nothing is singular: use the function in place of
    the square of `safe_norm`.

    **Source.** The polynomial itself.

    Examples
    --------
    >>> import numpy as np
    >>> squared_norm(np.asarray([3.0, 4.0]))
    np.float64(25.0)
    """
    xp, dtype, keep, (x,) = enter_slices(x, where=where, complex_too=True)
    total = xp.sum(_squares(xp, _kept(xp, keep, x)), axis=axis, keepdims=True)
    return _finish(xp, total, dtype, axis, keepdims)


@fast_path
def safe_normalize(
    x: T,
    /,
    *,
    axis: Axis = -1,
    ord: float = 2,  # noqa: A002  (the name in NumPy and the standard)
    fill_value: IsArray | complex = 0.0,
) -> T:
    """
    Each slice divided by its norm; a zero slice gives `fill_value`, with gradient 0.

    Same as ``x / norm(x) if norm(x) > 0 else fill_value``, slice by slice.

    Parameters
    ----------
    x : array, shape (...), real or complex floating
        Any value. NaN stays NaN.
    axis : int or tuple of ints, default: -1
        Axes of a slice; None for all.
    ord : float, default: 2
        Order of the norm, at least 1; `math.inf` for the maximum norm.
    fill_value : scalar or array, default: 0.0
        Entries of a zero slice.

    Notes
    -----
    **Gradient.** The projection ``(I - n n^T) / norm`` with ``n = x / norm``; 0 at a zero slice, at
    every order. At a zero slice `torch.nn.functional.normalize` has gradient 1e12 and
    `tf.math.l2_normalize` 1e6.

    **Source.** `safe_div` by `safe_norm`, after scaling.

    Examples
    --------
    >>> import numpy as np
    >>> safe_normalize(np.asarray([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    xp, dtype, _, (x,) = enter_slices(x, where=None, complex_too=True)
    return xp.astype(_direction(xp, x, axis, enter_order(ord), fill_value), dtype)


@fast_path
def safe_distance(
    x: T | complex,
    y: T | complex,
    /,
    *,
    axis: Axis = -1,
    keepdims: bool = False,
    ord: float = 2,  # noqa: A002  (the name in NumPy and the standard)
    where: Condition | None = None,
    min_norm: float = 0.0,
) -> T:
    """
    Norm of ``x - y`` along `axis`, with gradient 0 where the points coincide.

    Same as ``safe_norm(x - y, axis=axis)``, with the points on the last axis.

    Parameters
    ----------
    x, y : array, shape (...), real or complex floating
        Points. NaN stays NaN.
    axis : int or tuple of ints, default: -1
        Axes of the coordinates; None for all.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    ord : float, default: 2
        At least 1; `math.inf` for the maximum norm.
    where : array, boolean, optional
        True = keep. Coordinates left out count for nothing, whatever they hold.
    min_norm : float, default: 0.0
        Floor of the result, at least 0 and finite, with gradient 0 at and below it.

    Notes
    -----
    **Gradient.** ``(x - y) / distance`` for `x`, its negative for `y`; 0 and 0 where the points
    coincide, at every order. Inside a smooth composite, such as the square, use `squared_norm` of
    the difference: where the points coincide its Hessian is ``2 * I``, and the Hessian of
    ``safe_distance(x, y)**2`` is 0.

    **Source.** `safe_norm` of the difference.

    Examples
    --------
    >>> import numpy as np
    >>> points = np.asarray([[0.0, 0.0], [3.0, 4.0]])
    >>> safe_distance(points, points[:1])
    array([0., 5.])
    """
    xp, dtype, keep, (x, y) = enter_slices(x, y, where=where, complex_too=True)
    difference = _kept(xp, keep, x) - _kept(xp, keep, y)
    return _norm(xp, difference, dtype, axis, keepdims, ord, min_norm)


@fast_path
def safe_cosine_similarity(
    x: T | complex,
    y: T | complex,
    /,
    *,
    axis: Axis = -1,
    keepdims: bool = False,
    where: Condition | None = None,
) -> T:
    """
    Cosine of the angle between slices; 0, with gradient 0, if one of them is zero.

    Same as ``sum(x * y) / (norm(x) * norm(y))`` over `axis`, without over- or underflow.

    Parameters
    ----------
    x, y : array, shape (...), real floating
        Vectors. NaN stays NaN.
    axis : int or tuple of ints, default: -1
        Axes of a slice; None for all.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.

    Returns
    -------
    array
        In [-1, 1] up to rounding.

    Notes
    -----
    **Gradient.** ``(y / norm(y) - cosine * x / norm(x)) / norm(x)`` for `x`; 0 and 0 where one of
    the slices is zero, at every order. Inside a smooth composite, such as a function of the angle,
    use `safeops.rotations.safe_angle` or `safeops.rotations.squared_angle`.

    **Source.** The product of two `safe_normalize`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([[1.0, 0.0], [0.0, 0.0]])
    >>> safe_cosine_similarity(x, np.asarray([1.0, 0.0]))
    array([1., 0.])
    """
    xp, dtype, keep, vectors = enter_slices(x, y, where=where)
    kept = with_same_slices(xp, [_kept(xp, keep, v) for v in vectors], axis)
    x, y = (_direction(xp, v, axis, 2, 0.0) for v in kept)
    return _finish(xp, xp.sum(x * y, axis=axis, keepdims=True), dtype, axis, keepdims)


@reduces
@fast_path
def safe_rms(
    x: T, /, *, axis: Axis = None, keepdims: bool = False, where: Condition | None = None
) -> T:
    """
    Root of the mean square of each slice, with gradient 0 where the root is zero.

    Same as ``sqrt(mean(abs(x) ** 2))`` over `axis`, without over- or underflow; 0 for an empty
    slice.

    Parameters
    ----------
    x : array, shape (...), real or complex floating
        Any value. NaN stays NaN.
    axis : int or tuple of ints, optional
        Axes of a slice. Default: all.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out are not counted, whatever they hold.

    Returns
    -------
    array, real floating
        0 for an empty slice.

    Notes
    -----
    **Gradient.** ``x / (n * rms)``, with n the number of entries kept; 0 at a zero slice, at every
    order.

    **Source.** The root of the mean of squares, scaled as in `safe_norm`.

    Examples
    --------
    >>> import numpy as np
    >>> safe_rms(np.asarray([[1.0, 7.0], [0.0, 0.0]]), axis=-1)
    array([5., 0.])
    """
    xp, dtype, keep, (x,) = enter_slices(x, where=where, complex_too=True)
    number = count(xp, xp.real(x) if is_complex(x) else x, keep, axis)
    number = xp.where(number == 0, 1.0, number)
    root = _root_mean_square(_kept(xp, keep, x), number, axis=axis)
    return _finish(xp, root, dtype, axis, keepdims)


def _norm(
    xp: Namespace,
    x: Array,
    dtype: DType,
    axis: Axis,
    keepdims: bool,  # noqa: FBT001  (the public options, passed on)
    ord: float,  # noqa: A002  (the name in NumPy and the standard)
    min_norm: float,
) -> Array:
    norm = _length(x, axis=axis, ord=enter_order(ord))
    if enter_least(min_norm):
        norm = xp.where(norm <= min_norm, min_norm, norm)  # NaN is not below the floor: it stays
    return _finish(xp, norm, dtype, axis, keepdims)


def enter_order(ord: Any) -> float:  # noqa: A002  (as above)
    """Return the order of a norm; TypeError if it is not a number, ValueError if less than 1."""
    wanted = "expected an order of at least 1 (math.inf for the maximum norm) as ord"
    if isinstance(ord, str):
        msg = f"{wanted}, got {ord!r}; the Frobenius norm of matrices is ord=2, axis=(-2, -1)"
        raise TypeError(msg)
    order = enter_number(wanted, ord)
    if not order >= 1:
        msg = f"{wanted}, got {ord}"
        raise ValueError(msg)
    return order


def enter_least(min_norm: Any) -> float:
    """Return the floor of a norm; TypeError if it is not a number, ValueError if less than 0."""
    wanted = "expected a finite number of at least 0 as min_norm"
    least = enter_number(wanted, min_norm)
    if not 0 <= least < math.inf:
        msg = f"{wanted}, got {min_norm}"
        raise ValueError(msg)
    return least


def _direction(
    xp: Namespace,
    x: Array,
    axis: Axis,
    ord: float,  # noqa: A002  (as above)
    fill_value: Any,
    *,
    peak: Array | None = None,
) -> Array:
    scaled, _ = _scaled(xp, x, axis, ord, to_one=True, peak=peak)
    length = xp.astype(_length_of_scaled(xp, scaled, axis, ord), scaled.dtype)  # complex ones too
    return safe_div(scaled, length, fill_value=fill_value)


@fast_path
def _length(x: Array, /, *, axis: Axis, ord: float) -> Array:  # noqa: A002  (as above)
    """Return the norm of each slice, axes kept."""
    xp = backend_of(x).xp
    if ord in {1, math.inf} and not is_complex(x):  # there is no power to leave the range
        return _length_of_scaled(xp, x, axis, ord)
    scaled, scale = _scaled(xp, x, axis, ord)
    return scale * _length_of_scaled(xp, scaled, axis, ord)


@fast_path
def _root_mean_square(
    x: Array, number: Array, peak: Array | None = None, /, *, axis: Axis
) -> Array:
    """Return the root of the sum of squares over a positive number, axes kept; see `_scaled`."""
    xp = backend_of(x).xp
    scaled, scale = _scaled(xp, x, axis, 2, peak=peak)
    total = xp.sum(_squares(xp, scaled), axis=axis, keepdims=True)
    return scale * (safe_sqrt(total) / xp.sqrt(number))


def _scaled(
    xp: Namespace,
    x: Array,
    axis: Axis,
    ord: float,  # noqa: A002  (as above)
    *,
    to_one: bool = False,
    peak: Array | None = None,
) -> tuple[Array, Array]:
    """Return ``x / scale`` and the scale; no power of an entry of ``x / scale`` is out of range."""
    # A caller may know the size of the largest entry, up to a factor of 2: the peak.
    #
    # ``scale * norm(x / scale)`` is the norm for each constant scale, so that no derivative of the
    # scale is needed, at any order.
    size = xp.abs(xp.real(x)) / 2 + xp.abs(xp.imag(x)) / 2 if is_complex(x) else xp.abs(x)
    if peak is None:
        squares = ord == 2  # noqa: PLR2004  (the order)
        rough = squares and not to_one and not is_complex(x)  # whose infinite peak is asked for
        peak = scale_of(xp, size, axis, of_none=0.0, of_sum=squares, rough=rough)
    scale = scale_of_powers(xp, peak, max(ord, 2) if is_complex(x) else ord, to_one=to_one)
    if not is_complex(x):
        # A quotient also has a derivative for the scale. That derivative is out of range, and
        # forward mode of TensorFlow (2.21) multiplies it with 0.
        return backend_of(x).unfused_product(x * reciprocal(scale)), scale
    infinite = peak == math.inf  # a complex inf divided by the scale would be NaN
    finite = xp.where(infinite, xp.zeros_like(x), x) / xp.astype(scale, x.dtype)
    return xp.where(infinite, x, finite), scale


def scale_of_powers(xp: Namespace, peak: Array, order: float, *, to_one: bool) -> Array:
    """
    Return the scale s for which the powers of ``peak / s`` are in range; for most peaks it is 1.

    A backward pass multiplies a cotangent with s first, then divides by ``peak / s``, and divides
    by s last. For squares ``peak / s`` is ``peak ** (2 / 3)``, so that neither factor is far from
    1. Roots of other orders lose a unit in the last place for each factor of 8 between ``peak / s``
    and 1. A direction is not multiplied with s, and its second derivative forms the fourth power
    of the length: there ``peak / s`` is 1, or 4 where ``1 / s`` would be subnormal. Its first one
    divides a cotangent by the square of the length, so that fewer lengths are near enough to 1.
    """
    bound, square = limits(xp, peak), order == 2  # noqa: PLR2004  (the order)
    # Powers of these ends have all digits, and 1 / eps of such powers sum to a finite number.
    least, most = (
        end ** (1 / order) for end in (bound.smallest_normal / bound.eps, bound.max * bound.eps)
    )
    near = min(bound.max ** (1 / 12 if to_one else 1 / 6) if square else 256.0, most, 1 / least)
    least, most = (least, most) if square else (1 / near, near)
    if square and to_one:
        inside = xp.where(peak > 1, 4.0, xp.ones_like(peak))
    elif square:
        # Not by `pow`: Inductor (2.13) computes a power again for each entry of the slice.
        inside = xp.exp(2 / 3 * xp.log(_between(xp, peak, least**1.5, most**1.5)))
    else:
        inside = _between(xp, peak, least, most)
    usual = xp.logical_and(peak <= near, peak >= 1 / near)
    for special in (peak < bound.smallest_normal, peak == math.inf):
        usual = xp.logical_or(usual, special)
    return xp.where(usual, 1.0, peak / inside)


def _between(xp: Namespace, x: Array, least: float, most: float) -> Array:
    return xp.where(x < least, least, xp.where(x > most, most, x))


def _length_of_scaled(xp: Namespace, x: Array, axis: Axis, ord: float) -> Array:  # noqa: A002  (as above)
    """Return the norm of slices whose powers are in range, axes kept."""
    if ord == 2:  # noqa: PLR2004  (the order)
        return safe_sqrt(xp.sum(_squares(xp, x), axis=axis, keepdims=True))
    size = safe_sqrt(_squares(xp, x)) if is_complex(x) else xp.abs(x)
    if ord == math.inf:
        empty = is_empty(x)  # frameworks raise for the maximum of nothing
        return (
            xp.sum(size, axis=axis, keepdims=True)
            if empty
            else backend_of(x).extreme(size, axis, 1)
        )
    if ord == 1:
        return xp.sum(size, axis=axis, keepdims=True)
    return safe_pow(xp.sum(safe_pow(size, ord), axis=axis, keepdims=True), 1 / ord)


def _squares(xp: Namespace, x: Array) -> Array:
    if not is_complex(x):
        return x * x
    real, imag = xp.real(x), xp.imag(x)
    return real * real + imag * imag


def _kept(xp: Namespace, keep: Array | None, x: Array) -> Array:
    return x if keep is None else xp.where(keep, x, 0.0)


def _finish(xp: Namespace, x: Array, dtype: DType, axis: Axis, keepdims: bool) -> Array:  # noqa: FBT001  (passed on)
    """Return to the precision and the shape that the caller expects."""
    x = drop_axes(xp, x, axis, keepdims=keepdims)
    return x if dtype_name(dtype) in COMPLEX else xp.astype(x, dtype)
