"""Reductions of the entries kept, with a stated value and gradient for empty slices."""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, ParamSpec

from safeops._core.types import Array, Axis, Condition, Function, IsArray, Reduction, T
from safeops._dispatch import fast_path
from safeops._ops.masked_reductions import (
    deviation,
    enter_entries,
    extreme,
    fill_of_extreme,
    mean_by,
    place_of_extreme,
    product,
    reduce,
    total,
    variance,
    weigh,
    weighted_variance,
)

# Two public functions of one formula: `safe_*` propagates NaN, and its twin `nan*` skips it.


P = ParamSpec("P")
# Phrases of the docstring of `safe_*`, and what the docstring of `nan*` says in their place.
IN_SUMMARY = {"entries kept": "entries that are not NaN", "entry kept": "entry that is not NaN"}
IN_REST = {
    "NaN in a kept entry stays NaN.": "NaN is absent.",
    " 0 is no mask: a NaN with that weight stays NaN.": "",
    " A NaN counts as the largest entry.": "",
    " A NaN counts as the smallest entry.": "",
    "`numpy.{}` with `where`": "`numpy.nan{}` for the values",
    "`numpy.{}`, which has no `where`": (
        "`numpy.nan{}`, which raises for an empty slice; a traced function cannot"
    ),
}
EXAMPLE = """Examples
--------
>>> import numpy as np
>>> nan{}(np.asarray([[1.0, np.nan], [np.nan, np.nan]]), axis=-1)
{}"""


def propagates_nan(formula: Callable[Concatenate[bool, Any, P], Any]) -> Reduction[P]:
    """Make `safe_*` of a formula; the first argument of the formula says whether NaN is absent."""
    signature = inspect.signature(formula)
    public = signature.replace(parameters=list(signature.parameters.values())[1:])
    doc = inspect.cleandoc(formula.__doc__ or "")
    return _made(formula, public, (formula.__name__, formula.__module__, doc), skip_nan=False)


def skips_nan(keeping: Reduction[P], module: str, shows: str) -> Reduction[P]:
    """Make `nan*` of `safe_*`, as a function of `module`; the example in its docs shows `shows`."""
    word = keeping.__name__.removeprefix("safe_")
    head, _, _ = (keeping.__doc__ or "").partition("Examples\n")
    summary, _, rest = head.partition("\n")
    for wording, other in IN_SUMMARY.items():
        summary = summary.replace(wording, other)
    for wording, other in IN_REST.items():
        rest = rest.replace(wording.format(word), other.format(word))
    doc = f"{summary}\n{rest}{EXAMPLE.format(word, shows)}"
    formula, signature = vars(keeping)["formula"], inspect.signature(keeping)
    return _made(formula, signature, (f"nan{word}", module, doc), skip_nan=True)


def _made(
    formula: Function, signature: inspect.Signature, named: tuple[str, str, str], *, skip_nan: bool
) -> Function:
    def generic(x: Array, /, *args: object, **options: object) -> Array:
        return formula(skip_nan, x, *args, **options)

    name, generic.__module__, generic.__doc__ = named
    vars(generic)["__signature__"] = signature
    kinds = formula.__annotations__.items()
    generic.__annotations__ = {key: kind for key, kind in kinds if key != "skip_nan"}
    generic.__name__ = generic.__qualname__ = name
    generic.__code__ = generic.__code__.replace(co_name=name)
    public = fast_path(generic)
    vars(public)["formula"] = formula
    return public


@propagates_nan
def safe_sum(
    skip_nan: bool,  # noqa: FBT001  (not public: it stands before the public arguments)
    x: T,
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Condition | None = None,
    initial: IsArray | complex | None = None,
    fill_value: IsArray | complex | None = None,
) -> T:
    """
    Sum of the entries kept; 0, with gradient 0, for none.

    Same as ``sum(x)``.

    Parameters
    ----------
    x : array, shape (...), real or complex floating, integer or boolean
        Any value. NaN in a kept entry stays NaN.
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

    Notes
    -----
    **Gradient.** 1 to each entry kept; 0 to absent entries and for an empty slice, at every
    order.

    **Source.** `numpy.sum` with `where`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([[1.0, 3.0], [np.inf, np.nan]])
    >>> safe_sum(x, axis=-1, where=np.isfinite(x))
    array([4., 0.])
    """
    entries = enter_entries(x, where, skip_nan=skip_nan)
    rule = partial(total, initial=initial, fills=fill_value is not None)
    return reduce(entries, rule, axis, keepdims=keepdims, fill_value=fill_value)


@propagates_nan
def safe_prod(
    skip_nan: bool,  # noqa: FBT001  (not public: it stands before the public arguments)
    x: T,
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Condition | None = None,
    initial: IsArray | complex | None = None,
    fill_value: IsArray | complex | None = None,
) -> T:
    """
    Product of the entries kept; 1, with gradient 0, for none.

    Same as ``prod(x)``.

    Parameters
    ----------
    x : array, shape (...), real or complex floating, integer or boolean
        Any value. NaN in a kept entry stays NaN.
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

    Notes
    -----
    **Gradient.** The product of the other entries kept, zeros included; 0 to absent entries and
    for an empty slice, at every order.

    **Source.** `numpy.prod` with `where`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([[1.0, 3.0], [np.inf, np.nan]])
    >>> safe_prod(x, axis=-1, where=np.isfinite(x))
    array([3., 1.])
    """
    entries = enter_entries(x, where, skip_nan=skip_nan)
    rule = partial(product, initial=initial)
    return reduce(entries, rule, axis, keepdims=keepdims, fill_value=fill_value)


@propagates_nan
def safe_mean(
    skip_nan: bool,  # noqa: FBT001  (not public: it stands before the public arguments)
    x: T,
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Condition | None = None,
    count: IsArray | complex | None = None,
    weights: IsArray | complex | None = None,
    fill_value: IsArray | complex = math.nan,
) -> T:
    """
    Mean of the entries kept; NaN, with gradient 0, for none.

    Same as ``sum(x) / n``.

    Parameters
    ----------
    x : array, shape (...), real or complex floating, integer or boolean
        Any value. NaN in a kept entry stays NaN.
    axis : int or tuple of ints, optional
        Axes of a slice. Default: all.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    count : number or array, optional
        Divisor of the sum, such as the number of entries on all devices; an array broadcasts
        against the result. Default: the number of entries kept, or their weight.
    weights : array, shape (...), real, optional
        At least 0, and with a finite sum. 0 is no mask: a NaN with that weight stays NaN.
    fill_value : scalar or array, default: NaN
        Value of a slice in which no entry is kept, or whose `count` or weight is 0.

    Notes
    -----
    **Gradient.** ``1 / n`` to each entry kept, with n the number of entries kept or `count`; 0 to
    absent entries and for an empty slice, at every order. With weights ``w / sum(w)``, and
    ``(x - mean) / sum(w)`` to a weight.

    **Source.** `numpy.mean` with `where`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([[1.0, 3.0], [np.inf, np.nan]])
    >>> safe_mean(x, axis=-1, where=np.isfinite(x))
    array([ 2., nan])
    """
    entries = enter_entries(x, where, skip_nan=skip_nan, divides=True)
    return mean_by(entries, axis, count, keepdims=keepdims, weights=weights, fill_value=fill_value)


@propagates_nan
def safe_var(
    skip_nan: bool,  # noqa: FBT001  (not public: it stands before the public arguments)
    x: T,
    /,
    *,
    axis: Axis = None,
    correction: float = 0,
    keepdims: bool = False,
    where: Condition | None = None,
    weights: IsArray | complex | None = None,
    fill_value: IsArray | complex = math.nan,
) -> T:
    """
    Variance of the entries kept; NaN, with gradient 0, for too few.

    Same as ``sum(abs(x - mean(x)) ** 2) / (n - correction)``.

    Parameters
    ----------
    x : array, shape (...), real or complex floating, integer or boolean
        Any value. NaN in a kept entry stays NaN.
    axis : int or tuple of ints, optional
        Axes of a slice. Default: all.
    correction : float, default: 0
        Subtracted from the number of entries: 1 for the unbiased estimate (`ddof` in NumPy).
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    weights : array, shape (...), real, optional
        How often an entry counts; at least 0. 0 is no mask: a NaN with that weight stays NaN.
    fill_value : scalar or array, default: NaN
        Value of a slice that keeps no more entries, or no more weight, than `correction`.

    Notes
    -----
    **Gradient.** ``2 * (x - mean(x)) / (n - correction)``; 0 to absent entries and for an empty
    slice, at every order. With weights n is their sum, and an entry counts times its own.

    **Source.** `numpy.var` with `where`. The largest entry is subtracted first, so that a
    constant slice has deviations of exactly 0, and an offset costs no digits.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([[1.0, 3.0], [np.inf, np.nan]])
    >>> safe_var(x, axis=-1, where=np.isfinite(x))
    array([ 1., nan])
    """
    entries = enter_entries(x, where, skip_nan=skip_nan, divides=True)
    rule = partial(variance, correction=correction)
    if weights is not None:
        entries, weights = weigh(entries, weights)
        rule = partial(weighted_variance, correction=correction, weights=weights)
    return reduce(entries, rule, axis, keepdims=keepdims, fill_value=fill_value)


@propagates_nan
def safe_std(
    skip_nan: bool,  # noqa: FBT001  (not public: it stands before the public arguments)
    x: T,
    /,
    *,
    axis: Axis = None,
    correction: float = 0,
    keepdims: bool = False,
    where: Condition | None = None,
    fill_value: IsArray | complex = math.nan,
) -> T:
    """
    Standard deviation of the entries kept; NaN, with gradient 0, for too few.

    Same as ``sqrt(sum(abs(x - mean(x)) ** 2) / (n - correction))``.

    Parameters
    ----------
    x : array, shape (...), real or complex floating, integer or boolean
        Any value. NaN in a kept entry stays NaN.
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

    Notes
    -----
    **Gradient.** ``(x - mean(x)) / ((n - correction) * std)``; 0 for a constant slice, where
    the slope is infinite, to absent entries and for an empty slice, at every order.

    **Source.** `numpy.std` with `where`. The largest entry is subtracted first, so that a
    constant slice has deviations of exactly 0, and an offset costs no digits.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([[1.0, 3.0], [np.inf, np.nan]])
    >>> safe_std(x, axis=-1, where=np.isfinite(x))
    array([ 1., nan])
    """
    entries = enter_entries(x, where, skip_nan=skip_nan, divides=True)
    rule = partial(deviation, correction=correction)
    return reduce(entries, rule, axis, keepdims=keepdims, fill_value=fill_value)


@propagates_nan
def safe_max(
    skip_nan: bool,  # noqa: FBT001  (not public: it stands before the public arguments)
    x: T,
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Condition | None = None,
    initial: IsArray | complex | None = None,
    fill_value: IsArray | complex | None = None,
) -> T:
    """
    Largest entry kept; ties share the gradient; NaN for none.

    Same as ``max(x)``.

    Parameters
    ----------
    x : array, shape (...), real floating, integer or boolean
        Any value. NaN in a kept entry stays NaN.
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

    Raises
    ------
    ValueError
        If integers have neither `initial` nor `fill_value`, and may have an empty slice.

    Notes
    -----
    **Gradient.** 1 to the largest entry, or ``1 / k`` to each of k equal largest entries; 0 if
    all entries kept are -inf, to absent entries and for an empty slice, at every order.

    **Source.** `numpy.max` with `where`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([[1.0, 3.0], [np.inf, np.nan]])
    >>> safe_max(x, axis=-1, where=np.isfinite(x))
    array([ 3., nan])
    """
    entries = enter_entries(x, where, skip_nan=skip_nan, of=())
    fill_value = fill_of_extreme(entries, initial, fill_value)
    rule = partial(extreme, sign=1, initial=initial)
    return reduce(entries, rule, axis, keepdims=keepdims, fill_value=fill_value)


@propagates_nan
def safe_min(
    skip_nan: bool,  # noqa: FBT001  (not public: it stands before the public arguments)
    x: T,
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Condition | None = None,
    initial: IsArray | complex | None = None,
    fill_value: IsArray | complex | None = None,
) -> T:
    """
    Smallest entry kept; ties share the gradient; NaN for none.

    Same as ``min(x)``.

    Parameters
    ----------
    x : array, shape (...), real floating, integer or boolean
        Any value. NaN in a kept entry stays NaN.
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

    Raises
    ------
    ValueError
        If integers have neither `initial` nor `fill_value`, and may have an empty slice.

    Notes
    -----
    **Gradient.** 1 to the smallest entry, or ``1 / k`` to each of k equal smallest entries; 0 if
    all entries kept are inf, to absent entries and for an empty slice, at every order.

    **Source.** `numpy.min` with `where`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([[1.0, 3.0], [np.inf, np.nan]])
    >>> safe_min(x, axis=-1, where=np.isfinite(x))
    array([ 1., nan])
    """
    entries = enter_entries(x, where, skip_nan=skip_nan, of=())
    fill_value = fill_of_extreme(entries, initial, fill_value)
    rule = partial(extreme, sign=-1, initial=initial)
    return reduce(entries, rule, axis, keepdims=keepdims, fill_value=fill_value)


@propagates_nan
def safe_argmax(
    skip_nan: bool,  # noqa: FBT001  (not public: it stands before the public arguments)
    x: T,
    /,
    *,
    axis: int | None = None,
    keepdims: bool = False,
    where: Condition | None = None,
) -> T:
    """
    Index of the first largest entry kept; -1 for none.

    Same as ``argmax(x)``.

    Parameters
    ----------
    x : array, shape (...), real floating, integer or boolean
        Any value. NaN in a kept entry stays NaN. A NaN counts as the largest entry.
    axis : int, optional
        Axis of a slice. Default: the index is the one among all entries, flattened.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.

    Notes
    -----
    **Gradient.** None: an index is an integer.

    **Source.** `numpy.argmax`, which has no `where`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([[1.0, 3.0], [np.inf, np.nan]])
    >>> safe_argmax(x, axis=-1, where=np.isfinite(x))
    array([ 1, -1])
    """
    entries = enter_entries(x, where, skip_nan=skip_nan, of=())
    return place_of_extreme(entries, axis, 1, keepdims=keepdims)


@propagates_nan
def safe_argmin(
    skip_nan: bool,  # noqa: FBT001  (not public: it stands before the public arguments)
    x: T,
    /,
    *,
    axis: int | None = None,
    keepdims: bool = False,
    where: Condition | None = None,
) -> T:
    """
    Index of the first smallest entry kept; -1 for none.

    Same as ``argmin(x)``.

    Parameters
    ----------
    x : array, shape (...), real floating, integer or boolean
        Any value. NaN in a kept entry stays NaN. A NaN counts as the smallest entry.
    axis : int, optional
        Axis of a slice. Default: the index is the one among all entries, flattened.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.

    Notes
    -----
    **Gradient.** None: an index is an integer.

    **Source.** `numpy.argmin`, which has no `where`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([[1.0, 3.0], [np.inf, np.nan]])
    >>> safe_argmin(x, axis=-1, where=np.isfinite(x))
    array([ 0, -1])
    """
    entries = enter_entries(x, where, skip_nan=skip_nan, of=())
    return place_of_extreme(entries, axis, -1, keepdims=keepdims)
