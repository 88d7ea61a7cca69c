"""Slices brought to a stated size, and left alone where the size is right or there is none."""

from typing import Any

from safeops._core.dtypes import SCALARS, limits
from safeops._core.types import Array, Axis, Condition, IsArray, T
from safeops._dispatch import fast_path, promote
from safeops._ops.masked_reductions import Masked, deviations, enter_entries, fill_empty, filled
from safeops._ops.norms import _direction, _finish, safe_norm, safe_normalize
from safeops._ops.slices import ends_of, enter_slices
from safeops._ops.where import is_nan, stop_gradient


@fast_path
def safe_clip_by_norm(x: T, max_norm: IsArray | complex, /, *, axis: Axis = None) -> T:
    """
    Each slice, shortened to `max_norm` if it is longer; a zero slice keeps the gradient 1.

    Same as ``x if norm(x) <= max_norm else x / norm(x) * max_norm``, slice by slice.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN, in its own slice.
    max_norm : float or array
        The largest length, at least 0, or inf for none. An array has length 1 in the axes of a
        slice; its negative entries count as 0, and NaN makes its slice NaN.
    axis : int or tuple of ints, optional
        Axes of a slice. Default: all.

    Returns
    -------
    array, shape (...)
        Slices that are not too long come back bit for bit.

    Notes
    -----
    **Gradient.** Inside the ball, at zero and on the sphere the identity for `x`, and 0 for
    `max_norm`; on the sphere that is chosen. Outside ``max_norm * (I - n n^T) / norm(x)`` for `x`
    with ``n = x / norm(x)``, and `n` for `max_norm`. A ball of radius 0 is one point, so that its
    gradient for `x` is 0 everywhere. Second derivatives are exact inside and outside.

    **Source.** Double where over `safe_norm` and `safe_normalize`. At a zero slice
    ``x * minimum(1, max_norm / norm(x))`` has gradient NaN.

    Examples
    --------
    >>> import numpy as np
    >>> safe_clip_by_norm(np.asarray([[3.0, 4.0], [0.0, 0.0], [0.3, 0.4]]), 1.0, axis=-1)
    array([[0.6, 0.8],
           [0. , 0. ],
           [0.3, 0.4]])
    """
    _require_radius(max_norm)
    xp, dtype, _, (x, radius) = enter_slices(x, max_norm, where=None)
    norm = safe_norm(stop_gradient(x), axis=axis, keepdims=True)
    _require_fit(radius, norm)
    # DTensor of TensorFlow (2.21) crashes where a condition without axes selects from parts.
    radius = radius + xp.zeros_like(norm)
    inside = xp.logical_and(norm <= radius, radius > 0)
    radius = xp.where(radius < 0, 0.0, radius)
    undefined = is_nan(radius)  # of which the slopes are NaN too, at a zero slice as well
    unused, most = xp.logical_or(inside, undefined), limits(xp, norm).max
    # The norm is a scale too, if it is in range: it is at least the largest entry.
    peak = xp.where(unused, 1.0, xp.where(norm > most, most, norm))
    direction = _direction(xp, xp.where(unused, 1.0, x), axis, 2, 0.0, peak=peak)
    clipped = xp.where(undefined, x * xp.where(undefined, radius, 1.0), direction)
    return xp.astype(xp.where(inside, x, clipped * xp.where(inside, 1.0, radius)), dtype)


@fast_path
def safe_standardize(
    x: T, /, *, axis: Axis = None, correction: float = 0, where: Condition | None = None
) -> T:
    """
    Each slice with mean 0 and deviation 1; a constant slice gives 0, with gradient 0.

    Same as ``(x - mean(x)) / std(x)``, slice by slice.

    Parameters
    ----------
    x : array, shape (...), real or complex floating, integer or boolean
        Any value. NaN stays NaN, in its own slice.
    axis : int or tuple of ints, optional
        Axes of a slice. Default: all.
    correction : float, default: 0
        Subtracted from the number of entries in the deviation, as in `safe_std`.
    where : array, boolean, optional
        True = keep. Entries left out are 0 and count for nothing, whatever they hold.

    Returns
    -------
    array, shape (...)
        0 for a slice that keeps no more entries than `correction`.

    Notes
    -----
    **Gradient.** The derivative, which is large where a slice is nearly constant: there is no
    `eps`. In a constant slice there is no limit, and 0 is chosen, at every order; so it is for
    entries left out.

    **Source.** The largest entry is subtracted first, so that a constant slice has deviations of
    exactly 0; then `safe_normalize`, times the root of the number of entries. Layer normalisation
    adds an `eps` to the variance, which moves every value.

    Examples
    --------
    >>> import numpy as np
    >>> safe_standardize(np.asarray([[1.0, 3.0], [0.1, 0.1]]), axis=-1)
    array([[-1.,  1.],
           [ 0.,  0.]])
    """
    entries = enter_entries(x, where, skip_nan=False, divides=True)
    direction, freedom = _of_deviations(entries, axis, correction)
    root = entries.xp.astype(entries.xp.sqrt(freedom), direction.dtype)
    value = filled(entries._replace(x=direction * root), 0)
    return fill_empty(entries, value, None, None)


@fast_path
def safe_correlation(
    x: T | complex,
    y: T | complex,
    /,
    *,
    axis: Axis = -1,
    keepdims: bool = False,
    where: Condition | None = None,
) -> T:
    """
    Pearson's correlation of slices; 0, with gradient 0, if one of them is constant.

    Same as ``mean((x - mean(x)) * (y - mean(y))) / (std(x) * std(y))`` over `axis`, without over-
    or underflow.

    Parameters
    ----------
    x, y : array, shape (...), real floating
        Observations in pairs. NaN stays NaN.
    axis : int or tuple of ints, default: -1
        Axes of a slice; None for all.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Pairs left out count for nothing, whatever they hold.

    Returns
    -------
    array
        In [-1, 1] up to rounding; 0 for a slice that keeps one pair or none.

    Notes
    -----
    **Gradient.** ``(v - r * u) / norm(x - mean(x))`` for `x`, with directions `u` and `v` of the
    deviations of `x` and `y`, and `r` the correlation: it is large where a slice is nearly
    constant, and there is no `eps`. In a constant slice there is no limit: 0 is chosen, for both
    arguments and at every order.

    **Source.** `scipy.stats.pearsonr`, which is NaN for a constant; the cosine similarity of the
    deviations from the mean. The largest entry is subtracted first, as in `safe_standardize`, so
    that a constant slice has deviations of exactly 0.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([[1.0, 2.0, 3.0], [0.1, 0.1, 0.1]])
    >>> safe_correlation(x, np.asarray([6.0, 4.0, 2.0]))
    array([-1.,  0.])
    """
    xp, x, y = promote(x, y)
    ours, other = (enter_entries(z, where, skip_nan=False) for z in xp.broadcast_arrays(x, y))
    u, v = (filled(k._replace(x=_of_deviations(k, axis, 0)[0]), 0) for k in (ours, other))
    return _finish(xp, xp.sum(u * v, axis=axis, keepdims=True), ours.dtype, axis, keepdims)


def _of_deviations(entries: Masked, axis: Axis, correction: float) -> tuple[Array, Array]:
    """Return the directions of the deviations from the mean, and the degrees of freedom."""
    away, freedom, _, width = deviations(entries, axis, correction)
    if width is None:
        return safe_normalize(away, axis=axis), freedom
    return _direction(entries.xp, away, axis, 2, 0.0, peak=width), freedom


def _require_radius(max_norm: Any) -> None:
    """Raise ValueError for a negative number."""
    if isinstance(max_norm, SCALARS) and not isinstance(max_norm, complex) and max_norm < 0:
        msg = f"expected a number of at least 0 as max_norm, got {max_norm}"
        raise ValueError(msg)


def _require_fit(radius: Array, norm: Array) -> None:
    """Raise ValueError if the radii are known not to be one for each slice."""
    if any(getattr(y.shape, "rank", 0) is None for y in (radius, norm)):
        return
    given, wanted = tuple(radius.shape), tuple(norm.shape)
    pairs = ends_of(given, wanted)
    if len(given) > len(wanted) or not all(a in {1, None, b} or b is None for a, b in pairs):
        msg = (
            f"expected a max_norm that broadcasts against the norms with their axes kept, of "
            f"shape {wanted}, got shape {given}"
        )
        raise ValueError(msg)
