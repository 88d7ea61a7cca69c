"""Reductions that skip NaN, where `safe_*` propagate it; `where=` skips more entries in both."""

import math
from collections.abc import Sequence
from typing import Any

from safeops._core.dtypes import SCALARS
from safeops._core.errors import errors_name_function
from safeops._core.types import Array, Axis, Condition, IsArray, Method, T, reduces
from safeops._dispatch import fast_path
from safeops._ops.masked_reductions import cumulative, enter_entries, fill_empty
from safeops._ops.nan_variants import skips_nan
from safeops._ops.quantiles import enter_quantile, part_of, quantile, rule_of, shaped
from safeops._ops.reductions import (
    safe_argmax,
    safe_argmin,
    safe_max,
    safe_mean,
    safe_min,
    safe_prod,
    safe_std,
    safe_sum,
    safe_var,
)

__all__ = [
    "nanargmax",
    "nanargmin",
    "nancumprod",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmedian",
    "nanmin",
    "nanpercentile",
    "nanprod",
    "nanquantile",
    "nanstd",
    "nansum",
    "nanvar",
]


nansum = skips_nan(safe_sum, __name__, "array([1., 0.])")
nanprod = skips_nan(safe_prod, __name__, "array([1., 1.])")
nanmean = skips_nan(safe_mean, __name__, "array([ 1., nan])")
nanvar = skips_nan(safe_var, __name__, "array([ 0., nan])")
nanstd = skips_nan(safe_std, __name__, "array([ 0., nan])")
nanmax = skips_nan(safe_max, __name__, "array([ 1., nan])")
nanmin = skips_nan(safe_min, __name__, "array([ 1., nan])")
nanargmax = skips_nan(safe_argmax, __name__, "array([ 0, -1])")
nanargmin = skips_nan(safe_argmin, __name__, "array([ 0, -1])")


@fast_path
def nancumsum(
    x: T,
    /,
    *,
    axis: int | None = None,
    where: Condition | None = None,
) -> T:
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
def nancumprod(
    x: T,
    /,
    *,
    axis: int | None = None,
    where: Condition | None = None,
) -> T:
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
    where: Condition | None = None,
    fill_value: IsArray | complex = math.nan,
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
    q: IsArray | complex | Sequence[float],
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Condition | None = None,
    method: Method = "linear",
    fill_value: IsArray | complex = math.nan,
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
    q: IsArray | complex | Sequence[float],
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Condition | None = None,
    method: Method = "linear",
    fill_value: IsArray | complex = math.nan,
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


def __dir__() -> list[str]:
    """List what is public, for completion."""
    return list(__all__)
