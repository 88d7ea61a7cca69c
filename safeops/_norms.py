"""Norms, distances and directions, with gradient 0 at zero and no over- or underflow on the way."""

import math
from typing import Any

from safeops._backends import COMPLEX, dtype_name, is_complex, kernel_first, limits
from safeops._division import safe_div
from safeops._powers import safe_pow, safe_sqrt
from safeops._slices import count, drop_axes, enter_slices, is_empty, scale_of
from safeops._typing import Array, Axis, DType, Namespace
from safeops._where import stop_gradient


@kernel_first
def safe_norm(
    x: Array,
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    ord: float = 2,  # noqa: A002  (the name in NumPy and the standard)
    where: Array | None = None,
    min_norm: float = 0.0,
) -> Array:
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
        Floor of the result, with gradient 0 at and below it.

    Returns
    -------
    array, real floating
        Framework, precision and device of `x`; 0 for an empty slice.

    Raises
    ------
    TypeError
        If `x` is not a floating or integer array of a supported framework, or `where` not boolean.
    ValueError
        If `ord` is less than 1.

    Notes
    -----
    **Gradient.** ``x / norm`` for ``ord=2``; at a zero slice 0, the subgradient of minimum norm, at
    every order, so that the Hessian of ``safe_norm(x)**2`` there is 0 and not ``2 * I``: use
    `squared_norm`. ``ord=inf``: ties split evenly.

    **Source.** `optax.safe_norm` for `min_norm`; scaling by the largest entry as in LAPACK, without
    which 1e30 and 1e-30 over- and underflow in float32.

    Examples
    --------
    >>> import numpy as np
    >>> safe_norm(np.asarray([[3.0, 4.0], [0.0, 0.0]]), axis=-1)
    array([5., 0.])
    """
    xp, dtype, keep, (x,) = enter_slices(x, where=where, complex_too=True)
    return _norm(xp, _kept(xp, keep, x), dtype, axis, keepdims, ord, min_norm)


@kernel_first
def squared_norm(
    x: Array, /, *, axis: Axis = None, keepdims: bool = False, where: Array | None = None
) -> Array:
    """
    Sum of squares of each slice, whose derivatives at zero are 0, then ``2 * I``.

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
        Framework, precision and device of `x`; 0 for an empty slice.

    Raises
    ------
    TypeError
        If `x` is not a floating or integer array of a supported framework, or `where` not boolean.

    Notes
    -----
    **Gradient.** ``2 * x``; Hessian ``2 * I``. Nothing is singular: the function is here for those
    who would square `safe_norm`.

    **Source.** The polynomial itself.

    Examples
    --------
    >>> import numpy as np
    >>> squared_norm(np.asarray([3.0, 4.0]))
    array(25.)
    """
    xp, dtype, keep, (x,) = enter_slices(x, where=where, complex_too=True)
    total = xp.sum(_squares(xp, _kept(xp, keep, x)), axis=axis, keepdims=True)
    return _finish(xp, total, dtype, axis, keepdims)


@kernel_first
def safe_normalize(
    x: Array,
    /,
    *,
    axis: Axis = -1,
    ord: float = 2,  # noqa: A002  (the name in NumPy and the standard)
    fill_value: Any = 0.0,
) -> Array:
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

    Returns
    -------
    array, shape (...)
        Framework, dtype and device of `x`.

    Raises
    ------
    TypeError
        If `x` is not a floating or integer array of a supported framework.
    ValueError
        If `ord` is less than 1.

    Notes
    -----
    **Gradient.** The projection ``(I - n n^T) / norm`` with ``n = x / norm``; 0 at a zero slice, at
    every order. `torch.nn.functional.normalize` has 1e12 there, `tf.math.l2_normalize` 1e6.

    **Source.** `safe_div` by `safe_norm`, after scaling.

    Examples
    --------
    >>> import numpy as np
    >>> safe_normalize(np.asarray([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    xp, dtype, _, (x,) = enter_slices(x, where=None, complex_too=True)
    return xp.astype(_direction(xp, x, axis, ord, fill_value), dtype)


@kernel_first
def safe_distance(
    x: Array,
    y: Array,
    /,
    *,
    axis: Axis = -1,
    keepdims: bool = False,
    ord: float = 2,  # noqa: A002  (the name in NumPy and the standard)
    where: Array | None = None,
    min_norm: float = 0.0,
) -> Array:
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
        Floor of the result, with gradient 0 at and below it.

    Returns
    -------
    array, real floating
        Framework, precision and device of the arguments.

    Raises
    ------
    TypeError
        If the arguments are not floating or integer arrays of one supported framework.
    ValueError
        If `ord` is less than 1.

    Notes
    -----
    **Gradient.** ``(x - y) / distance`` for `x`, its negative for `y`; 0 and 0 where the points
    coincide, at every order.

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


@kernel_first
def safe_cosine_similarity(
    x: Array,
    y: Array,
    /,
    *,
    axis: Axis = -1,
    keepdims: bool = False,
    where: Array | None = None,
) -> Array:
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
        In [-1, 1] up to rounding; framework and device of the arguments, their dtypes promoted.

    Raises
    ------
    TypeError
        If the arguments are not real arrays of one supported framework.

    Notes
    -----
    **Gradient.** ``(y / norm(y) - cosine * x / norm(x)) / norm(x)`` for `x`; 0 and 0 where one of
    the slices is zero, at every order.

    **Source.** The product of two `safe_normalize`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([[1.0, 0.0], [0.0, 0.0]])
    >>> safe_cosine_similarity(x, np.asarray([1.0, 0.0]))
    array([1., 0.])
    """
    xp, dtype, keep, vectors = enter_slices(x, y, where=where)
    x, y = (_direction(xp, _kept(xp, keep, v), axis, 2, 0.0) for v in vectors)
    return _finish(xp, xp.sum(x * y, axis=axis, keepdims=True), dtype, axis, keepdims)


@kernel_first
def safe_rms(
    x: Array, /, *, axis: Axis = None, keepdims: bool = False, where: Array | None = None
) -> Array:
    """
    Root of the mean square of each slice, with gradient 0 where it is zero.

    Same as ``sqrt(mean(abs(x) ** 2))`` over `axis`, without over- or underflow; 0 over nothing.

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
        Framework, precision and device of `x`; 0 for an empty slice.

    Raises
    ------
    TypeError
        If `x` is not a floating or integer array of a supported framework, or `where` not boolean.

    Notes
    -----
    **Gradient.** ``x / (n * rms)`` with n entries kept; 0 at a zero slice, at every order.

    **Source.** `safe_norm` divided by the root of n.

    Examples
    --------
    >>> import numpy as np
    >>> safe_rms(np.asarray([[1.0, 7.0], [0.0, 0.0]]), axis=-1)
    array([5., 0.])
    """
    xp, dtype, keep, (x,) = enter_slices(x, where=where, complex_too=True)
    scaled, scale = _scaled(xp, _kept(xp, keep, x), axis)
    squares = _squares(xp, scaled)
    total = xp.sum(squares, axis=axis, keepdims=True)
    mean = safe_div(total, count(xp, squares, keep, axis))
    return _finish(xp, scale * safe_sqrt(mean), dtype, axis, keepdims)


def _norm(
    xp: Namespace,
    x: Array,
    dtype: DType,
    axis: Axis,
    keepdims: bool,  # noqa: FBT001  (the public options, passed on)
    ord: float,  # noqa: A002  (the name in NumPy and the standard)
    min_norm: float,
) -> Array:
    scaled, scale = _scaled(xp, x, axis, ord)
    norm = scale * _length(xp, scaled, axis, ord)
    if min_norm:
        norm = xp.where(norm <= min_norm, min_norm, norm)  # NaN is no floor
    return _finish(xp, norm, dtype, axis, keepdims)


def _direction(xp: Namespace, x: Array, axis: Axis, ord: float, fill_value: Any) -> Array:  # noqa: A002  (as above)
    scaled, _ = _scaled(xp, x, axis, ord)
    length = xp.astype(_length(xp, scaled, axis, ord), scaled.dtype)  # of complex vectors too
    return safe_div(scaled, length, fill_value=fill_value)


def _scaled(xp: Namespace, x: Array, axis: Axis, ord: float = 2) -> tuple[Array, Array]:  # noqa: A002  (as above)
    """
    Return `x` over a scale that brings its largest entry near 1, and the scale.

    ``scale * norm(x / scale)`` is the norm for each constant scale, so that no derivative of the
    scale is needed, at any order.
    """
    size = xp.abs(xp.real(x)) / 2 + xp.abs(xp.imag(x)) / 2 if is_complex(x) else xp.abs(x)
    peak = scale_of(xp, size, axis, of_none=0.0, of_sum=ord == 2)  # noqa: PLR2004  (the order)
    special = xp.logical_or(peak < limits(xp, size).smallest_normal, peak == math.inf)
    divisor = xp.where(special, 1.0, peak)
    return x / xp.astype(divisor, x.dtype), divisor


def _length(xp: Namespace, x: Array, axis: Axis, ord: float) -> Array:  # noqa: A002  (as above)
    """Return the norm of scaled slices, axes kept."""
    if ord == 2:  # noqa: PLR2004  (the order)
        return safe_sqrt(xp.sum(_squares(xp, x), axis=axis, keepdims=True))
    size = safe_sqrt(_squares(xp, x)) if is_complex(x) else xp.abs(x)
    if ord == math.inf:
        return _evenly_largest(xp, size, axis)
    if ord == 1:
        return xp.sum(size, axis=axis, keepdims=True)
    if not ord > 1:
        msg = f"expected an order of at least 1 (math.inf for the maximum norm), got {ord}"
        raise ValueError(msg)
    return safe_pow(xp.sum(safe_pow(size, ord), axis=axis, keepdims=True), 1 / ord)


def _evenly_largest(xp: Namespace, x: Array, axis: Axis) -> Array:
    """Return the maximum, whose gradient ties share evenly."""
    if is_empty(x):  # frameworks raise
        return xp.sum(x, axis=axis, keepdims=True)
    peak = stop_gradient(xp.max(x, axis=axis, keepdims=True))
    tie = x == peak
    shares = xp.sum(xp.where(tie, xp.ones_like(x), 0.0), axis=axis, keepdims=True)
    # x - peak is exactly 0 at a tie: the value is peak, the slopes are 1 / shares.
    slopes = xp.sum(xp.where(tie, x - peak, 0.0), axis=axis, keepdims=True)
    return peak + safe_div(slopes, shares)


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
