"""Reductions that leave out NaN; `where` leaves out more. Those of `safe_*` keep NaN."""

import math
from functools import partial
from typing import Any

from safeops._dtypes import SCALARS
from safeops._entry import fast_path
from safeops._ops.engine import (
    cumulative,
    deviation,
    enter_entries,
    extreme,
    fill_empty,
    fill_of_extreme,
    mean_by,
    place_of_extreme,
    product,
    reduce,
    total,
    variance,
)
from safeops._ops.quantiles import enter_quantile, part_of, quantile, rule_of, shaped
from safeops._speech import speaking
from safeops._typing import Array, Axis

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


@fast_path
def nansum(
    x: Array,
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Array | None = None,
    initial: Any = None,
    fill_value: Any = None,
) -> Array:
    """
    Sum of the entries that are not NaN; 0, with gradient 0, for none.

    Same as ``sum(x)``.

    Parameters
    ----------
    x : array, shape (...), real or complex floating, integer or boolean
        Any value. NaN is absent.
    axis : int or tuple of ints, optional
        Axes of a slice. Default: all.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    initial : scalar or array of shape (), optional
        Added to each sum.
    fill_value : scalar or array, optional
        Value of a slice in which no entry is kept. Default: 0, or `initial`.

    Returns
    -------
    array
        Framework and device of `x`; its dtype, integers widened as in the standard.

    Raises
    ------
    TypeError
        If `x` is not such an array of a supported framework, or `where` not boolean.

    Notes
    -----
    **Gradient.** 1 to each entry kept; 0 to absent entries and for an empty slice, at every
    order.

    **Source.** `numpy.nansum` for the values.

    Examples
    --------
    >>> import numpy as np
    >>> nansum(np.asarray([[1.0, np.nan], [np.nan, np.nan]]), axis=-1)
    array([1., 0.])
    """
    kept = enter_entries(x, where, skip_nan=True)
    rule = partial(total, initial=initial, fills=fill_value is not None)
    return reduce(kept, rule, axis, keepdims=keepdims, fill_value=fill_value)


@fast_path
def nanprod(
    x: Array,
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Array | None = None,
    initial: Any = None,
    fill_value: Any = None,
) -> Array:
    """
    Product of the entries that are not NaN; 1, with gradient 0, for none.

    Same as ``prod(x)``.

    Parameters
    ----------
    x : array, shape (...), real or complex floating, integer or boolean
        Any value. NaN is absent.
    axis : int or tuple of ints, optional
        Axes of a slice. Default: all.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    initial : scalar or array of shape (), optional
        Multiplied with each product.
    fill_value : scalar or array, optional
        Value of a slice in which no entry is kept. Default: 1, or `initial`.

    Returns
    -------
    array
        Framework and device of `x`; its dtype, integers widened as in the standard.

    Raises
    ------
    TypeError
        If `x` is not such an array of a supported framework, or `where` not boolean.

    Notes
    -----
    **Gradient.** The product of the other entries kept, zeros included; 0 to absent entries and
    for an empty slice, at every order.

    **Source.** `numpy.nanprod` for the values.

    Examples
    --------
    >>> import numpy as np
    >>> nanprod(np.asarray([[1.0, np.nan], [np.nan, np.nan]]), axis=-1)
    array([1., 1.])
    """
    kept = enter_entries(x, where, skip_nan=True)
    rule = partial(product, initial=initial)
    return reduce(kept, rule, axis, keepdims=keepdims, fill_value=fill_value)


@fast_path
def nanmean(
    x: Array,
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Array | None = None,
    count: Any = None,
    fill_value: Any = math.nan,
) -> Array:
    """
    Mean of the entries that are not NaN; NaN, with gradient 0, for none.

    Same as ``sum(x) / n``.

    Parameters
    ----------
    x : array, shape (...), real or complex floating, integer or boolean
        Any value. NaN is absent.
    axis : int or tuple of ints, optional
        Axes of a slice. Default: all.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    count : number or array, optional
        What to divide the sum by, such as the number of entries on all devices; an array broadcasts
        against the result. Default: the number of entries kept.
    fill_value : scalar or array, default: NaN
        Value of a slice in which no entry is kept, or whose `count` is 0.

    Returns
    -------
    array
        Framework and device of `x`; its dtype, integers divided.

    Raises
    ------
    TypeError
        If `x` is not such an array of a supported framework, or `where` not boolean.

    Notes
    -----
    **Gradient.** ``1 / n`` to each entry kept, with n the number of entries kept or `count`; 0 to
    absent entries and for an empty slice, at every order.

    **Source.** `numpy.nanmean` for the values.

    Examples
    --------
    >>> import numpy as np
    >>> nanmean(np.asarray([[1.0, np.nan], [np.nan, np.nan]]), axis=-1)
    array([ 1., nan])
    """
    kept = enter_entries(x, where, skip_nan=True, divides=True)
    return mean_by(kept, axis, count, keepdims=keepdims, fill_value=fill_value)


@fast_path
def nanvar(
    x: Array,
    /,
    *,
    axis: Axis = None,
    correction: float = 0,
    keepdims: bool = False,
    where: Array | None = None,
    fill_value: Any = math.nan,
) -> Array:
    """
    Variance of the entries that are not NaN; NaN, with gradient 0, for too few.

    Same as ``sum(abs(x - mean(x)) ** 2) / (n - correction)``.

    Parameters
    ----------
    x : array, shape (...), real or complex floating, integer or boolean
        Any value. NaN is absent.
    axis : int or tuple of ints, optional
        Axes of a slice. Default: all.
    correction : float, default: 0
        Subtracted from the number of entries: 1 for the unbiased estimate (`ddof` in NumPy).
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    fill_value : scalar or array, default: NaN
        Value of a slice that keeps no more entries than `correction`.

    Returns
    -------
    array
        Framework and device of `x`; real, its precision, integers divided.

    Raises
    ------
    TypeError
        If `x` is not such an array of a supported framework, `where` not boolean, or `correction`
        no number.

    Notes
    -----
    **Gradient.** ``2 * (x - mean(x)) / (n - correction)``; 0 to absent entries and for an empty
    slice, at every order.

    **Source.** `numpy.nanvar` for the values. The largest entry is subtracted first, so that a
    constant slice has deviations of exactly 0, and an offset costs no digits.

    Examples
    --------
    >>> import numpy as np
    >>> nanvar(np.asarray([[1.0, np.nan], [np.nan, np.nan]]), axis=-1)
    array([ 0., nan])
    """
    kept = enter_entries(x, where, skip_nan=True, divides=True)
    rule = partial(variance, correction=correction)
    return reduce(kept, rule, axis, keepdims=keepdims, fill_value=fill_value)


@fast_path
def nanstd(
    x: Array,
    /,
    *,
    axis: Axis = None,
    correction: float = 0,
    keepdims: bool = False,
    where: Array | None = None,
    fill_value: Any = math.nan,
) -> Array:
    """
    Standard deviation of the entries that are not NaN; NaN, with gradient 0, for too few.

    Same as ``sqrt(sum(abs(x - mean(x)) ** 2) / (n - correction))``.

    Parameters
    ----------
    x : array, shape (...), real or complex floating, integer or boolean
        Any value. NaN is absent.
    axis : int or tuple of ints, optional
        Axes of a slice. Default: all.
    correction : float, default: 0
        Subtracted from the number of entries: 1 for the unbiased estimate (`ddof` in NumPy).
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    fill_value : scalar or array, default: NaN
        Value of a slice that keeps no more entries than `correction`.

    Returns
    -------
    array
        Framework and device of `x`; real, its precision, integers divided.

    Raises
    ------
    TypeError
        If `x` is not such an array of a supported framework, `where` not boolean, or `correction`
        no number.

    Notes
    -----
    **Gradient.** ``(x - mean(x)) / ((n - correction) * std)``; 0 for a constant slice, where
    the slope is infinite, to absent entries and for an empty slice, at every order.

    **Source.** `numpy.nanstd` for the values. The largest entry is subtracted first, so that a
    constant slice has deviations of exactly 0, and an offset costs no digits.

    Examples
    --------
    >>> import numpy as np
    >>> nanstd(np.asarray([[1.0, np.nan], [np.nan, np.nan]]), axis=-1)
    array([ 0., nan])
    """
    kept = enter_entries(x, where, skip_nan=True, divides=True)
    rule = partial(deviation, correction=correction)
    return reduce(kept, rule, axis, keepdims=keepdims, fill_value=fill_value)


@fast_path
def nanmax(
    x: Array,
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Array | None = None,
    initial: Any = None,
    fill_value: Any = None,
) -> Array:
    """
    Largest entry that is not NaN, of which ties share the gradient; NaN for none.

    Same as ``max(x)``.

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
    initial : scalar or array of shape (), optional
        Returned where no entry is above it, and for an empty slice.
    fill_value : scalar or array, optional
        Value of a slice in which no entry is kept. Default: `initial`, or NaN.

    Returns
    -------
    array
        Framework and device of `x`; its dtype.

    Raises
    ------
    TypeError
        If `x` is not such an array of a supported framework, or `where` not boolean.
    ValueError
        If integers have neither `initial` nor `fill_value`, and may have an empty slice.

    Notes
    -----
    **Gradient.** 1 to the largest entry, ``1 / k`` to each of k such; 0 where all that is kept
    is -inf, to absent entries and for an empty slice, at every order.

    **Source.** `numpy.nanmax` for the values.

    Examples
    --------
    >>> import numpy as np
    >>> nanmax(np.asarray([[1.0, np.nan], [np.nan, np.nan]]), axis=-1)
    array([ 1., nan])
    """
    kept = enter_entries(x, where, skip_nan=True, of=())
    fill_value = fill_of_extreme(kept, initial, fill_value)
    rule = partial(extreme, sign=1, initial=initial)
    return reduce(kept, rule, axis, keepdims=keepdims, fill_value=fill_value)


@fast_path
def nanmin(
    x: Array,
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Array | None = None,
    initial: Any = None,
    fill_value: Any = None,
) -> Array:
    """
    Smallest entry that is not NaN, of which ties share the gradient; NaN for none.

    Same as ``min(x)``.

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
    initial : scalar or array of shape (), optional
        Returned where no entry is below it, and for an empty slice.
    fill_value : scalar or array, optional
        Value of a slice in which no entry is kept. Default: `initial`, or NaN.

    Returns
    -------
    array
        Framework and device of `x`; its dtype.

    Raises
    ------
    TypeError
        If `x` is not such an array of a supported framework, or `where` not boolean.
    ValueError
        If integers have neither `initial` nor `fill_value`, and may have an empty slice.

    Notes
    -----
    **Gradient.** 1 to the smallest entry, ``1 / k`` to each of k such; 0 where all that is kept
    is inf, to absent entries and for an empty slice, at every order.

    **Source.** `numpy.nanmin` for the values.

    Examples
    --------
    >>> import numpy as np
    >>> nanmin(np.asarray([[1.0, np.nan], [np.nan, np.nan]]), axis=-1)
    array([ 1., nan])
    """
    kept = enter_entries(x, where, skip_nan=True, of=())
    fill_value = fill_of_extreme(kept, initial, fill_value)
    rule = partial(extreme, sign=-1, initial=initial)
    return reduce(kept, rule, axis, keepdims=keepdims, fill_value=fill_value)


@fast_path
def nanargmax(
    x: Array,
    /,
    *,
    axis: int | None = None,
    keepdims: bool = False,
    where: Array | None = None,
) -> Array:
    """
    Index of the first largest entry that is not NaN; -1 for none.

    Same as ``argmax(x)``.

    Parameters
    ----------
    x : array, shape (...), real floating, integer or boolean
        Any value. NaN is absent.
    axis : int, optional
        Axis of a slice. Default: all entries, of which the flat index is returned.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.

    Returns
    -------
    array, integer
        Framework and device of `x`.

    Raises
    ------
    TypeError
        If `x` is not such an array of a supported framework, or `where` not boolean.

    Notes
    -----
    **Gradient.** None: an index is an integer.

    **Source.** `numpy.nanargmax`, which raises for an empty slice; a traced function cannot.

    Examples
    --------
    >>> import numpy as np
    >>> nanargmax(np.asarray([[1.0, np.nan], [np.nan, np.nan]]), axis=-1)
    array([ 0, -1])
    """
    kept = enter_entries(x, where, skip_nan=True, of=())
    return place_of_extreme(kept, axis, 1, keepdims=keepdims)


@fast_path
def nanargmin(
    x: Array,
    /,
    *,
    axis: int | None = None,
    keepdims: bool = False,
    where: Array | None = None,
) -> Array:
    """
    Index of the first smallest entry that is not NaN; -1 for none.

    Same as ``argmin(x)``.

    Parameters
    ----------
    x : array, shape (...), real floating, integer or boolean
        Any value. NaN is absent.
    axis : int, optional
        Axis of a slice. Default: all entries, of which the flat index is returned.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.

    Returns
    -------
    array, integer
        Framework and device of `x`.

    Raises
    ------
    TypeError
        If `x` is not such an array of a supported framework, or `where` not boolean.

    Notes
    -----
    **Gradient.** None: an index is an integer.

    **Source.** `numpy.nanargmin`, which raises for an empty slice; a traced function cannot.

    Examples
    --------
    >>> import numpy as np
    >>> nanargmin(np.asarray([[1.0, np.nan], [np.nan, np.nan]]), axis=-1)
    array([ 0, -1])
    """
    kept = enter_entries(x, where, skip_nan=True, of=())
    return place_of_extreme(kept, axis, -1, keepdims=keepdims)


@fast_path
def nancumsum(
    x: Array,
    /,
    *,
    axis: int | None = None,
    where: Array | None = None,
) -> Array:
    """
    Sums of the entries up to each, where NaN counts for nothing.

    Same as ``cumsum(x)``.

    Parameters
    ----------
    x : array, shape (...), real or complex floating, integer or boolean
        Any value. NaN is absent.
    axis : int, optional
        Axis along which to go. Default: all entries, flattened.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.

    Returns
    -------
    array
        Framework and device of `x`; its dtype, integers widened as in the standard.

    Raises
    ------
    TypeError
        If `x` is not such an array of a supported framework, or `where` not boolean.

    Notes
    -----
    **Gradient.** 1 to each entry up to the place; 0 to absent entries, at every order.

    **Source.** `numpy.nancumsum`.

    Examples
    --------
    >>> import numpy as np
    >>> nancumsum(np.asarray([1.0, np.nan, 2.0]))
    array([1., 1., 3.])
    """
    kept = enter_entries(x, where, skip_nan=True)
    return cumulative(kept, axis, product=False)


@fast_path
def nancumprod(
    x: Array,
    /,
    *,
    axis: int | None = None,
    where: Array | None = None,
) -> Array:
    """
    Products of the entries up to each, where NaN counts for nothing.

    Same as ``cumprod(x)``.

    Parameters
    ----------
    x : array, shape (...), real or complex floating, integer or boolean
        Any value. NaN is absent.
    axis : int, optional
        Axis along which to go. Default: all entries, flattened.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.

    Returns
    -------
    array
        Framework and device of `x`; its dtype, integers widened as in the standard.

    Raises
    ------
    TypeError
        If `x` is not such an array of a supported framework, or `where` not boolean.

    Notes
    -----
    **Gradient.** The product of the other entries up to the place, zeros included; 0 to absent
    entries, at every order.

    **Source.** `numpy.nancumprod`.

    Examples
    --------
    >>> import numpy as np
    >>> nancumprod(np.asarray([1.0, np.nan, 2.0]))
    array([1., 1., 2.])
    """
    kept = enter_entries(x, where, skip_nan=True)
    return cumulative(kept, axis, product=True)


@speaking
def nanmedian(
    x: Array,
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Array | None = None,
    fill_value: Any = math.nan,
) -> Array:
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

    Returns
    -------
    array
        Framework and device of `x`; its dtype, integers divided.

    Raises
    ------
    TypeError
        If `x` is not such an array of a supported framework, or `where` not boolean.

    Notes
    -----
    **Gradient.** One half to each of the two entries in the middle, or 1 to one; 0 to absent
    entries and for an empty slice, at every order. Among equal entries a stable sort says which
    is which.

    **Source.** `numpy.nanmedian` for the values.

    Examples
    --------
    >>> import numpy as np
    >>> nanmedian(np.asarray([[1.0, np.nan, 5.0], [np.nan, np.nan, np.nan]]), axis=-1)
    array([ 3., nan])
    """
    return nanquantile(x, 0.5, axis=axis, keepdims=keepdims, where=where, fill_value=fill_value)


@speaking
def nanquantile(
    x: Array,
    q: Any,
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Array | None = None,
    method: str = "linear",
    fill_value: Any = math.nan,
) -> Array:
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
        What is between two entries: one of NumPy's methods.
    fill_value : scalar or array, default: NaN
        Value of a slice in which no entry is kept.

    Returns
    -------
    array, shape (...) or (m, ...)
        Framework and device of `x`; its dtype, integers divided.

    Raises
    ------
    TypeError
        If `x` is not such an array of a supported framework, or `where` not boolean.
    ValueError
        If `method` is unknown, or a number `q` outside [0, 1].

    Notes
    -----
    **Gradient.** The weights of the two entries next to the quantile, 0 to the others; 0 to
    absent entries and for an empty slice, at every order.

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


@speaking
def nanpercentile(
    x: Array,
    q: Any,
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Array | None = None,
    method: str = "linear",
    fill_value: Any = math.nan,
) -> Array:
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
        What is between two entries: one of NumPy's methods.
    fill_value : scalar or array, default: NaN
        Value of a slice in which no entry is kept.

    Returns
    -------
    array, shape (...) or (m, ...)
        Framework and device of `x`; its dtype, integers divided.

    Raises
    ------
    TypeError
        If `x` is not such an array of a supported framework, or `where` not boolean.
    ValueError
        If `method` is unknown, or a number `q` outside [0, 100].

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
    method: str,
    /,
    *,
    axis: Axis,
    keepdims: bool,
    where: Array | None,
    fill_value: Any,
) -> Array:
    kept = enter_entries(x, where, skip_nan=True, divides=True, of=())
    q, many = enter_quantile(kept, q)
    value, nothing = quantile(kept, q, axis, rule_of(method))
    if not isinstance(q, SCALARS):
        inside = kept.xp.logical_and(q >= 0, q <= 1)
        value = kept.xp.where(inside, value, math.nan)
        nothing = kept.xp.logical_and(inside, nothing)
    value, nothing = (shaped(kept, y, axis, many=many, keepdims=keepdims) for y in (value, nothing))
    return kept.xp.astype(fill_empty(kept, value, nothing, fill_value), kept.dtype)
