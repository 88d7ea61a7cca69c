"""Reductions that skip NaN, where `safe_*` propagate it; `where=` skips more entries in both."""

import math
from collections.abc import Sequence
from typing import Any

from safeops._backends.methods import METHODS, Rule
from safeops._backends.shapes import axes_of
from safeops._core.dtypes import SCALARS, limits
from safeops._core.errors import errors_name_function
from safeops._core.types import Array, Axis, Function, Like, Method, Namespace, T, Where, reduces
from safeops._dispatch import backend_of, fast_path, refuse_none
from safeops._doors import show
from safeops._ops import reductions
from safeops._ops.masked_reductions import Masked, cumulative, enter_entries, fill_empty, filled
from safeops._ops.reductions import skips_nan
from safeops._ops.slices import count, is_empty, require_rank
from safeops._ops.where import stop_gradient

__all__ = [
    "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmedian", "nanmin",
    "nanpercentile", "nanprod", "nanquantile", "nanstd", "nansum", "nanvar",
]  # fmt: skip


nansum = skips_nan(reductions.safe_sum, __name__, "array([1., 0.])")
nanprod = skips_nan(reductions.safe_prod, __name__, "array([1., 1.])")
nanmean = skips_nan(reductions.safe_mean, __name__, "array([ 1., nan])")
nanvar = skips_nan(reductions.safe_var, __name__, "array([ 0., nan])")
nanstd = skips_nan(reductions.safe_std, __name__, "array([ 0., nan])")
nanmax = skips_nan(reductions.safe_max, __name__, "array([ 1., nan])")
nanmin = skips_nan(reductions.safe_min, __name__, "array([ 1., nan])")
nanargmax = skips_nan(reductions.safe_argmax, __name__, "array([ 0, -1])")
nanargmin = skips_nan(reductions.safe_argmin, __name__, "array([ 0, -1])")


@fast_path
def nancumsum(x: T, /, *, axis: int | None = None, where: Where = None) -> T:
    """
    Running sums, in which NaN counts for nothing.

    Same as ``cumsum(x)``.

    Parameters
    ----------
    x : array, shape (...), real or complex floating, integer or boolean
        Any value. NaN is absent.
    axis : int, optional
        Axis along which to sum or multiply. Default: all entries, flattened.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.

    Notes
    -----
    **Gradient.** 1 to each entry up to the place of the sum; 0 to absent entries, at every order.

    **Source.** `numpy.nancumsum`.

    Examples
    --------
    >>> import numpy as np
    >>> nancumsum(np.asarray([1.0, np.nan, 2.0]))
    array([1., 1., 3.])
    """
    entries = enter_entries(x, where, skip_nan=True)
    return cumulative(entries, axis, product=False)


@fast_path
def nancumprod(x: T, /, *, axis: int | None = None, where: Where = None) -> T:
    """
    Running products, in which NaN counts for nothing.

    Same as ``cumprod(x)``.

    Parameters
    ----------
    x : array, shape (...), real or complex floating, integer or boolean
        Any value. NaN is absent.
    axis : int, optional
        Axis along which to sum or multiply. Default: all entries, flattened.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.

    Notes
    -----
    **Gradient.** To each entry up to the place of the product, the product of the other entries up
    to there, zeros included; 0 to absent entries, at every order.

    **Source.** `numpy.nancumprod`.

    Examples
    --------
    >>> import numpy as np
    >>> nancumprod(np.asarray([1.0, np.nan, 2.0]))
    array([1., 1., 2.])
    """
    entries = enter_entries(x, where, skip_nan=True)
    return cumulative(entries, axis, product=True)


@reduces
@errors_name_function
def nanmedian(
    x: T,
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Where = None,
    fill_value: Like = math.nan,
) -> T:
    """
    Median of the entries that are not NaN; NaN, with gradient 0, for none.

    Same as ``nanquantile(x, 0.5)``.

    Parameters
    ----------
    x : array, shape (...), real floating, integer or boolean
        Any value. NaN is absent.
    axis : int or tuple of ints, optional
        Axes of a slice. Default: all.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    fill_value : scalar or array, default: NaN
        Value of a slice in which no entry is kept.

    Notes
    -----
    **Gradient.** 1 to the entry in the middle, or one half to each of two such entries; 0 to absent
    entries and for an empty slice, at every order. Among equal entries a stable sort decides which
    entry is in the middle.

    **Source.** `numpy.nanmedian` for the values.

    Examples
    --------
    >>> import numpy as np
    >>> nanmedian(np.asarray([[1.0, np.nan, 5.0], [np.nan, np.nan, np.nan]]), axis=-1)
    array([ 3., nan])
    """
    return nanquantile(x, 0.5, axis=axis, keepdims=keepdims, where=where, fill_value=fill_value)


@reduces
@errors_name_function
def nanquantile(
    x: T,
    q: Like | Sequence[float],
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Where = None,
    method: Method = "linear",
    fill_value: Like = math.nan,
) -> T:
    """
    Quantile of the entries that are not NaN; NaN, with gradient 0, for none.

    Same as ``sort(x)[q * (n - 1)]``.

    Parameters
    ----------
    x : array, shape (...), real floating, integer or boolean
        Any value. NaN is absent.
    q : float, list or array, shape () or (m,), real floating
        Which quantiles, from 0 to 1. Outside: ValueError for numbers, NaN for an array.
    axis : int or tuple of ints, optional
        Axes of a slice. Default: all.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    method : str, default: "linear"
        How to interpolate between two entries: one of NumPy's methods.
    fill_value : scalar or array, default: NaN
        Value of a slice in which no entry is kept.

    Returns
    -------
    array
        The axis of an array `q` comes first.

    Notes
    -----
    **Gradient.** To the two entries next to the quantile their weights, to other entries 0; 0 to
    absent entries and for an empty slice, at every order. Equal entries count in the order in which
    they stand, at 0 and 1 too, where `nanmin` and `nanmax` split evenly: a quantile has no
    subgradient, and its slope would jump there.

    **Source.** `numpy.nanquantile` for the values; R. J. Hyndman and Y. Fan, *Sample Quantiles
    in Statistical Packages* (1996), for the methods.

    Examples
    --------
    >>> import numpy as np
    >>> nanquantile(np.asarray([1.0, np.nan, 2.0, 3.0]), 0.25)
    np.float64(1.5)
    """
    part = part_of(q, 1)
    return _quantile(
        x, part, method, axis=axis, keepdims=keepdims, where=where, fill_value=fill_value
    )


@reduces
@errors_name_function
def nanpercentile(
    x: T,
    q: Like | Sequence[float],
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Where = None,
    method: Method = "linear",
    fill_value: Like = math.nan,
) -> T:
    """
    Percentile of the entries that are not NaN; NaN, with gradient 0, for none.

    Same as ``nanquantile(x, q / 100)``.

    Parameters
    ----------
    x : array, shape (...), real floating, integer or boolean
        Any value. NaN is absent.
    q : float, list or array, shape () or (m,), real floating
        Which percentiles, from 0 to 100. Outside: ValueError for numbers, NaN for an array.
    axis : int or tuple of ints, optional
        Axes of a slice. Default: all.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    method : str, default: "linear"
        How to interpolate between two entries: one of NumPy's methods.
    fill_value : scalar or array, default: NaN
        Value of a slice in which no entry is kept.

    Returns
    -------
    array
        The axis of an array `q` comes first.

    Notes
    -----
    **Gradient.** As for `nanquantile`.

    **Source.** `numpy.nanpercentile` for the values.

    Examples
    --------
    >>> import numpy as np
    >>> nanpercentile(np.asarray([1.0, np.nan, 2.0, 3.0]), [25, 50])
    array([1.5, 2. ])
    """
    part = part_of(q, 100)
    return _quantile(
        x, part, method, axis=axis, keepdims=keepdims, where=where, fill_value=fill_value
    )


@fast_path
def _quantile(
    x: Array,
    q: Any,
    method: Method,
    /,
    *,
    axis: Axis,
    keepdims: bool,
    where: Array | None,
    fill_value: Any,
) -> Array:
    entries = enter_entries(x, where, skip_nan=True, divides=True, of=())
    q, many = enter_quantile(entries, q)
    value, empty = quantile(entries, q, axis, rule_of(method))
    if not isinstance(q, SCALARS):
        inside = entries.xp.logical_and(q >= 0, q <= 1)
        value = entries.xp.where(inside, value, math.nan)
        empty = entries.xp.logical_and(inside, empty)
    value, empty = (shaped(entries, y, axis, many=many, keepdims=keepdims) for y in (value, empty))
    return entries.xp.astype(fill_empty(entries, value, empty, fill_value), entries.dtype)


# Quantiles of the entries kept, by NumPy's methods.


def part_of(q: Any, whole: int) -> Any:
    """Return ``q / whole``; a list becomes a tuple, which can be hashed, as JAX needs."""
    refuse_none((q,))
    if isinstance(q, (list, tuple)):
        return tuple(part_of(one, whole) for one in q)
    if isinstance(q, SCALARS) and (isinstance(q, complex) or not 0 <= q <= whole):
        kind = "quantile" if whole == 1 else "percentile"
        msg = f"expected a {kind} from 0 to {whole}, got {q}"
        raise ValueError(msg)
    if isinstance(q, SCALARS):
        return q / whole
    return q if whole == 1 else _hundredth(q)


@fast_path
def _hundredth(q: Array, /) -> Array:
    return q / 100  # one program in JAX, which moves no constant to the device


def enter_quantile(kept: Masked, q: Any) -> tuple[Any, bool]:
    """Return `q` as a number or an array, and whether it holds a list of quantiles."""
    if isinstance(q, (int, float)):
        return float(q), False
    if isinstance(q, tuple):
        return _array_of(kept, q), True
    backend_of(kept.x, q)
    q = kept.backend.cast(q, kept.x.dtype, kept.x)
    require_rank("q", q)
    if len(q.shape) > 1:
        msg = f"expected a number or at most one dimension as q, got {len(q.shape)} dimensions"
        raise ValueError(msg)
    return q, len(q.shape) == 1


def _array_of(kept: Masked, numbers: tuple[Any, ...]) -> Array:
    if not numbers or not all(isinstance(one, SCALARS) for one in numbers):
        msg = f"expected a list of numbers as q, got {list(numbers)}"
        raise ValueError(msg)
    entries = (kept.backend.cast(float(q), kept.x.dtype, kept.x) for q in numbers)
    return kept.xp.concat([kept.xp.reshape(q, (1,)) for q in entries])


def shaped(kept: Masked, value: Array, axis: Axis, *, many: bool, keepdims: bool) -> Array:
    """Return the result from quantiles along the last axis: with `many`, that axis comes first."""
    xp, rank = kept.xp, len(value.shape) - 1
    value = xp.permute_dims(value, (rank, *range(rank))) if many else xp.squeeze(value, axis=-1)
    if not keepdims:
        return value
    size = len(kept.x.shape)
    for one in sorted(axes_of(axis, size)):
        value = xp.expand_dims(value, axis=one + many)
    return value


def quantile(kept: Masked, q: Any, axis: Axis, rule: Function) -> tuple[Array, Array]:
    """Quantiles of the slices, along a last axis, by the rule of a method, and empty slices."""
    xp, keep = kept.xp, kept.keep
    x = filled(kept, limits(xp, kept.x).max)
    # Sorted, inf would stand behind the filler of absent entries: inf is counted instead.
    above = x == math.inf if keep is None else xp.logical_and(keep, kept.x == math.inf)
    x, above = (kept.backend.flatten_axes(y, axis) for y in (x, above))
    keep = None if keep is None else kept.backend.flatten_axes(keep, axis)
    number = count(xp, x, keep, -1)
    empty = number == 0
    if is_empty(x):  # TensorFlow does not differentiate the sort of nothing
        # With the sum, x stays in the graph of PyTorch.
        return number * q + xp.sum(x, axis=-1, keepdims=True), empty
    finite = xp.where(empty, 1.0, number - count(xp, x, above, -1))
    ordered, last = xp.sort(x, axis=-1), number - 1.0
    low, part = rule(xp, number, q)

    def entry(index: Array) -> Array:
        index = xp.where(index < last, index, last)
        index = xp.where(index > 0, index, 0.0)
        found = xp.take_along_axis(ordered, kept.backend.as_index(index), axis=-1)
        return xp.where(index < finite, found, math.inf)

    sloped = not isinstance(q, SCALARS)
    return _between(xp, entry(low), entry(low + 1.0), part, sloped=sloped), empty


def _between(xp: Namespace, low: Array, high: Array, part: Any, *, sloped: bool) -> Array:
    """Return ``(1 - part) * low + part * high``; `low` if `part` is 0 or both are one infinity."""
    level = low == high
    still = xp.logical_or(part == 0, xp.logical_and(level, xp.isinf(low)))
    start, end = xp.where(still, 0.0, low), xp.where(still, 0.0, high)
    # start + part * (end - start) would overflow, and would be NaN where start is -inf.
    value = (1.0 - part) * start + part * end
    rounding = xp.where(level, value, 0.0) - xp.where(level, start, 0.0)
    value = xp.where(still, low, value - stop_gradient(rounding))
    return value + _along_part(xp, still, low, high, part) if sloped else value


def _along_part(xp: Namespace, still: Array, low: Array, high: Array, part: Array) -> Array:
    """Return 0, with slope ``high - low`` for `part` where the value itself lacks that slope."""
    ends = (stop_gradient(xp.where(xp.isfinite(x), x, 0.0)) for x in (high, low))
    steps = (part * xp.where(still, x, 0.0) for x in ends)
    return next(steps) - next(steps)


def rule_of(method: str) -> Rule:
    """Return the rule of a method; ValueError for an unknown method."""
    if method not in METHODS:
        msg = f"expected a method out of ({', '.join(METHODS)}), got {method!r}"
        raise ValueError(msg)
    return METHODS[method]


__dir__ = show("safeops.nan_reductions", __all__, globals())
