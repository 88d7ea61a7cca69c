"""
One engine for reductions: an entry is kept or absent, and an absent entry counts for nothing.

An absent entry is replaced by the neutral element of the reduction, in a `where` whose other branch
is the entry itself. The entry itself has slope 1 everywhere, so that no second `where` is needed:
reverse mode multiplies the 0 of an absent entry with 1, and forward mode selects the tangent of a
constant.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from safeops._backends.array_api import ArrayAPI
from safeops._core.dtypes import (
    COMPLEX,
    INTEGER,
    NARROW,
    REAL,
    SCALARS,
    dtype_name,
    is_complex,
    limits,
    require,
)
from safeops._core.types import Array, Axis, DType, Namespace
from safeops._dispatch import backend_of, promote_mask
from safeops._ops.division import safe_div
from safeops._ops.norms import _root_mean_square, squared_norm
from safeops._ops.slices import drop_axes, enter_number, is_empty, length, require_fit, same_shape
from safeops._ops.where import stop_gradient


class Masked(NamedTuple):
    """Entries, and which of them are kept."""

    backend: ArrayAPI
    xp: Namespace
    x: Array  # float16 and bfloat16 as float32
    keep: Array | None  # None: all
    dtype: DType  # of the argument, or of its quotients if the reduction divides


# From slices to their values, and which slices keep too few entries for a value; axes kept.
Rule = Callable[[Masked, Axis], tuple[Array, Array | None]]


def enter_entries(
    x: Array, where: Any, *, skip_nan: bool, divides: bool = False, of: tuple[str, ...] = COMPLEX
) -> Masked:
    """Return the entries of `x`; absent where `where` is False, and at NaN if `skip_nan`."""
    backend = backend_of(x, where)
    backend.check(x)
    require(x.dtype, INTEGER + REAL + of, x)
    dtype = x.dtype
    if divides:
        dtype = backend.result_type((x,))
        require(dtype, REAL + of)  # integers where a namespace does not divide them
    xp, x = backend.xp, backend.cast(x, dtype, x)
    keep = promote_mask(where, x)
    require_fit(keep, x)
    if keep is not None and not same_shape(keep, x):
        keep, x = xp.broadcast_arrays(keep, x)
    if skip_nan and dtype_name(dtype) not in INTEGER:
        # Not NaN. Inductor of PyTorch 2.13 has no vector loop for isnan.
        there = x == x  # noqa: PLR0124  (False at NaN)
        keep = there if keep is None else xp.logical_and(keep, there)
    wide = xp.astype(x, xp.float32) if dtype_name(dtype) in NARROW else x
    return Masked(backend, xp, wide, keep, dtype)


def reduce(
    entries: Masked, rule: Rule, axis: Axis, *, keepdims: bool, fill_value: Any = None
) -> Array:
    """Return the value of a rule for each slice, and `fill_value` for empty slices."""
    value, empty = rule(entries, axis)
    value = drop_axes(entries.xp, value, axis, keepdims=keepdims)
    if empty is not None:
        empty = drop_axes(entries.xp, empty, axis, keepdims=keepdims)
    return fill_empty(entries, value, empty, fill_value)


def fill_empty(entries: Masked, value: Array, empty: Array | None, fill_value: Any) -> Array:
    """Return the values, with `fill_value` in empty slices, in the dtype of the result."""
    xp, fill_value = entries.xp, enter_option(entries.backend, fill_value, value)
    if fill_value is not None and empty is not None:
        value = xp.where(empty, fill_value, value)
    return xp.astype(value, entries.dtype) if dtype_name(entries.dtype) in NARROW else value


def enter_option(backend: ArrayAPI, option: Any, like: Array) -> Any:
    """Return `initial` or `fill_value`: a Python scalar as it is, an array in a floating dtype."""
    backend_of(like, option)
    if option is None or isinstance(option, SCALARS):
        return option
    backend.check(option)
    return option if dtype_name(like.dtype) in INTEGER else backend.cast(option, like.dtype, like)


def enter_initial(entries: Masked, initial: Any, like: Array) -> Any:
    """Return `initial`, which is one number for all slices."""
    initial = enter_option(entries.backend, initial, like)
    # Numbers are tested first: torch.compile cannot ask a symbolic number for its shape (2.13).
    if not isinstance(initial, SCALARS) and getattr(initial, "shape", ()) not in {(), (1,)}:
        msg = f"expected one number as initial, got an array of shape {tuple(initial.shape)}"
        raise ValueError(msg)
    return initial


def filled(entries: Masked, neutral: Any) -> Array:
    """Return the entries, with `neutral` in place of absent entries."""
    if entries.keep is None:
        return entries.x
    if dtype_name(entries.x.dtype) == "bool":
        neutral = bool(neutral)
    return entries.xp.where(
        entries.keep, entries.x, entries.backend.cast(neutral, entries.x.dtype, entries.x)
    )


def empty_slices(entries: Masked, axis: Axis) -> Array | None:
    """Whether a slice keeps no entry; None if each slice keeps one."""
    if entries.keep is not None:
        return entries.xp.logical_not(entries.xp.any(entries.keep, axis=axis, keepdims=True))
    if is_empty(entries.x):
        some = entries.xp.any(
            entries.xp.astype(entries.x, entries.xp.bool), axis=axis, keepdims=True
        )
        return entries.xp.logical_not(some)
    return None


def total(
    entries: Masked, axis: Axis, *, initial: Any = None, fills: bool = True
) -> tuple[Array, Array | None]:
    """Sum, which starts at `initial`; the empty slices are returned only if there is a fill."""
    value = entries.xp.sum(filled(entries, 0), axis=axis, keepdims=True)
    initial = enter_initial(entries, initial, value)
    empty = empty_slices(entries, axis) if fills else None
    return value if initial is None else value + initial, empty


def product(entries: Masked, axis: Axis, *, initial: Any = None) -> tuple[Array, Array | None]:
    """Product, which starts at `initial`."""
    value = entries.backend.product(filled(entries, 1), axis)
    initial = enter_initial(entries, initial, value)
    return value if initial is None else value * initial, empty_slices(entries, axis)


def mean(entries: Masked, axis: Axis) -> tuple[Array, Array]:
    """Sum, divided by the number of entries kept."""
    xp = entries.xp
    value, number = _sum_and_number(entries, filled(entries, 0), axis)
    empty = number == 0
    return value / xp.astype(xp.where(empty, 1.0, number), value.dtype), empty


def weigh(entries: Masked, weights: Any) -> tuple[Masked, Array]:
    """Return the entries, and their weights, which are 0 for absent entries, in one shape."""
    backend, xp = entries.backend, entries.xp
    backend_of(entries.x, weights)
    if not hasattr(weights, "dtype"):
        msg = f"expected an array as weights, got {type(weights).__name__}"
        raise TypeError(msg)
    require(weights.dtype, INTEGER + REAL, weights)
    real = xp.real(entries.x) if is_complex(entries.x) else entries.x
    x, weights = xp.broadcast_arrays(entries.x, backend.cast(weights, real.dtype, real))
    keep = None if entries.keep is None else xp.broadcast_arrays(entries.keep, weights)[0]
    entries = entries._replace(x=x, keep=keep)
    return entries, filled(entries._replace(x=weights), 0)


def weighted_mean(entries: Masked, axis: Axis, *, weights: Array) -> tuple[Array, Array]:
    """Sum of entries times their shares of the weight."""
    xp = entries.xp
    shares, _, empty = _shares(xp, weights, axis)
    x = filled(_without_slices(entries, empty), 0)
    return xp.sum(xp.astype(shares, x.dtype) * x, axis=axis, keepdims=True), empty


def weighted_variance(
    entries: Masked, axis: Axis, *, correction: float, weights: Array
) -> tuple[Array, Array]:
    """Sum of squared deviations times weights, over the weight of all minus `correction`."""
    xp, correction = entries.xp, enter_correction(correction)
    shares, total, empty = _shares(xp, weights, axis)
    empty = xp.logical_or(empty, total <= correction)
    entries = _without_slices(entries, empty)
    # The origin is an entry that has a weight: the digits of the others are not lost in it.
    heavy = entries._replace(keep=xp.logical_and(entries.keep, weights != 0))
    away = _from_peak(entries, heavy, axis)
    mean = xp.sum(xp.astype(shares, away.dtype) * away, axis=axis, keepdims=True)
    away = filled(entries._replace(x=away - mean), 0)
    parts = [xp.real(away), xp.imag(away)] if is_complex(away) else [away]
    value = xp.sum(sum(shares * part * part for part in parts), axis=axis, keepdims=True)
    ratio = xp.logical_not(xp.logical_or(empty, xp.isinf(total)))  # of others it is 1
    total = xp.where(ratio, total, 1.0)
    return value * safe_div(total, xp.where(ratio, total - correction, 1.0)), empty


def _shares(xp: Namespace, weights: Array, axis: Axis) -> tuple[Array, Array, Array]:
    """Return weights over their sum, the sum, and where it is 0, axes kept."""
    backend = backend_of(weights)
    with backend.quiet():  # the sum may be out of range, of weights that are not
        total, less = backend.sums((weights, weights * 2.0**-64), axis)
    # Less of a large sum: it may be infinite, and JAX and TensorFlow flush its reciprocal to 0.
    large = total > 2.0**64
    weights = weights * xp.where(large, 2.0**-64, xp.ones_like(total))
    scaled = xp.where(large, less, total)
    empty = xp.abs(scaled) < limits(xp, scaled).smallest_normal
    # XLA squares the denominator in the slope of a plain quotient: out of range from 1e19 on.
    return safe_div(weights, xp.where(empty, 1.0, scaled)), total, empty


def mean_by(
    entries: Masked,
    axis: Axis,
    count: Any,
    *,
    keepdims: bool,
    weights: Any = None,
    fill_value: Any = None,
) -> Array:
    """Return the sum divided by `count`; None stands for the number, or weight, of entries kept."""
    entries, weights = (entries, None) if weights is None else weigh(entries, weights)
    if count is None:
        rule = mean if weights is None else partial(weighted_mean, weights=weights)
        return reduce(entries, rule, axis, keepdims=keepdims, fill_value=fill_value)
    xp, terms = entries.xp, filled(entries, 0)
    terms = terms if weights is None else terms * xp.astype(weights, terms.dtype)
    value = xp.sum(terms, axis=axis, keepdims=True)
    value = drop_axes(xp, value, axis, keepdims=keepdims)
    number = enter_option(entries.backend, count, value)
    number = entries.backend.cast(number, value.dtype, value)
    empty = number == 0
    return fill_empty(entries, value / xp.where(empty, 1.0, number), empty, fill_value)


def variance(entries: Masked, axis: Axis, *, correction: float) -> tuple[Array, Array]:
    """Sum of squared deviations, divided by the number of entries kept minus `correction`."""
    away, freedom, empty, _ = deviations(entries, axis, correction, measured=False)
    return squared_norm(away, axis=axis, keepdims=True) / freedom, empty


def deviation(entries: Masked, axis: Axis, *, correction: float) -> tuple[Array, Array]:
    """Root of the variance, with slope 0 at 0; no square on the way overflows."""
    away, freedom, empty, width = deviations(entries, axis, correction)
    given = (away, freedom) if width is None else (away, freedom, width)
    return _root_mean_square(*given, axis=axis), empty


class Deviations(NamedTuple):
    """What a slice has besides its mean."""

    away: Array  # deviations from the mean; 0 for absent entries, and in a slice without freedom
    freedom: Array  # 1 where there is none
    empty: Array  # where there is none
    width: Array | None  # one to two times the largest deviation, if it costs no collective


def deviations(
    entries: Masked, axis: Axis, correction: float, *, measured: bool = True
) -> Deviations:
    """Return the deviations from the mean, the degrees of freedom, and if `measured` the width."""
    # The largest entry is subtracted first. Then the deviations in a constant slice are exactly 0,
    # and deviations far from the origin keep their digits. A slice without degrees of freedom gets
    # the fill, and so keeps no entry: an inf in it would have a deviation of NaN.
    #
    # The largest entry, the sums, the squares: each of them is one collective, if slices are in
    # parts, and none of them waits for the number of entries, which is summed beside the sums.
    xp, correction = entries.xp, enter_correction(correction)
    free = _is_free(entries, axis, correction)
    origin, width = _origin(entries, axis) if measured else (_peak_of_parts(entries, axis), None)
    origin = origin if free else xp.where(xp.isfinite(origin), origin, 0.0)
    away = _less(entries, origin)
    total, number = _sum_and_number(entries, away, axis)
    empty = number <= correction
    if not free:
        entries, total = _without_slices(entries, empty), xp.where(empty, 0.0, total)
        away = filled(entries._replace(x=away), 0)
    away = away - total / xp.astype(xp.where(number == 0, 1.0, number), away.dtype)
    freedom = xp.where(empty, 1.0, number - correction)
    if width is not None:
        width = xp.where(empty, 0.0, width)
    return Deviations(filled(entries._replace(x=away), 0), freedom, empty, width)


def _origin(entries: Masked, axis: Axis) -> tuple[Array, Array | None]:
    """Return the largest entry of each slice as a constant, and how far the smallest one is."""
    if is_complex(entries.x) or is_empty(entries.x):
        return _peak_of_parts(entries, axis), None
    entries = entries._replace(x=stop_gradient(entries.x))
    highs, lows = (filled(entries, _least(entries, sign)) for sign in (1, -1))
    most, least = entries.backend.rough_max_and_min(highs, lows, axis)
    return most, None if least is None else most - entries.xp.where(least > most, most, least)


def _from_peak(entries: Masked, heavy: Masked, axis: Axis) -> Array:
    """Return the entries less the largest of those in `heavy`; 0 for absent entries."""
    return _less(entries, _peak_of_parts(heavy, axis))


def _less(entries: Masked, origin: Array) -> Array:
    """Return the entries less a constant of their slice; 0 for absent entries."""
    return (
        entries.x if entries.keep is None else entries.xp.where(entries.keep, entries.x, origin)
    ) - origin


def _peak_of_parts(entries: Masked, axis: Axis) -> Array:
    """Return the largest entry of each slice as a constant; of complex ones part by part."""
    xp, x = entries.xp, stop_gradient(entries.x)
    parts = [xp.real(x), xp.imag(x)] if is_complex(x) else [x]
    origin, *imaginary = (_peak(entries._replace(x=part), axis, 1) for part in parts)
    if imaginary:
        origin, imaginary = (xp.astype(y, x.dtype) for y in (origin, imaginary[0]))
        origin = origin + 1j * imaginary
    return origin


def enter_correction(correction: Any) -> float:
    """Return `correction` as a number; a bool is 0 or 1."""
    wanted = "expected a number as correction (0, or 1 for the unbiased estimate)"
    number = enter_number(wanted, int(correction) if isinstance(correction, bool) else correction)
    if not number >= -math.inf:  # NaN; torch.compile cannot trace math.isnan of a symbolic number
        msg = f"{wanted}, got {correction}"
        raise ValueError(msg)
    return number


def _is_free(entries: Masked, axis: Axis, correction: float) -> bool:
    """Whether each slice is known to keep more entries than `correction`."""
    return entries.keep is None and (length(entries.x, axis) or 0) > correction


def _without_slices(entries: Masked, slices: Array) -> Masked:
    """Return the entries, with the entries of these slices absent."""
    others = entries.xp.logical_not(slices)
    if entries.keep is None:
        return entries._replace(keep=entries.xp.broadcast_arrays(others, entries.x)[0])
    return entries._replace(keep=entries.xp.logical_and(entries.keep, others))


def extreme(
    entries: Masked, axis: Axis, sign: int, *, initial: Any = None
) -> tuple[Array, Array | None]:
    """Largest entry for sign 1, smallest for -1, or `initial` if `initial` is beyond the entry."""
    xp = entries.xp
    if entries.keep is not None and dtype_name(entries.x.dtype) in REAL:
        # If all entries kept are infinite, with the other sign, the peak is the filler.
        end = -sign * math.inf
        value, most = _peak_and_most(entries, entries.x != end, axis, sign)
        empty = most == 0
        value = xp.where(most == 1, end, value)
    else:
        value, empty = _peak(entries, axis, sign), empty_slices(entries, axis)
    initial = enter_initial(entries, initial, value)
    if initial is not None:
        beyond = value < initial if sign == 1 else value > initial  # False for NaN, which stays
        if empty is not None:
            beyond = xp.logical_or(beyond, empty)
        value = xp.where(beyond, initial, value)
    return value, empty


def _peak_and_most(entries: Masked, cond: Array, axis: Axis, sign: int) -> tuple[Array, Array]:
    """Return the extreme entry; and a level: 2 for a slice that keeps an entry with `cond`."""
    # It is 1 for a slice that keeps other entries, and 0 for a slice that keeps none.
    xp = entries.xp
    # One reduction of floating numbers: reducing booleans takes four times as long in XLA (jax
    # 0.10.2), and small integers ten times as long if PyTorch compiles it (2.13).
    levels = xp.where(entries.keep, xp.astype(cond, entries.x.dtype) + 1, 0.0)
    if is_empty(cond):  # frameworks raise for the maximum of nothing
        return _peak(entries, axis, sign), xp.sum(levels, axis=axis, keepdims=True)
    x = filled(entries, _least(entries, sign))
    return entries.backend.extreme_and_max(x, levels, axis, sign)


def _peak(entries: Masked, axis: Axis, sign: int) -> Array:
    """Return the extreme entry; an absent entry enters as the finite number at the other end."""
    least = _least(entries, sign)
    x = filled(entries, least)
    if is_empty(x):  # frameworks raise for the maximum of nothing
        zero = entries.xp.sum(x, axis=axis, keepdims=True)
        return entries.xp.astype(zero, x.dtype)
    return entries.backend.extreme(x, axis, sign)


def _least(entries: Masked, sign: int) -> Any:
    """Return the finite number at the other end; NaN detectors would report an infinite one."""
    name = dtype_name(entries.x.dtype)
    if name == "bool":
        return sign < 0
    if name in INTEGER:
        info = entries.xp.iinfo(entries.x.dtype)
        return int(info.min if sign == 1 else info.max)
    return -sign * limits(entries.xp, entries.x).max


def fill_of_extreme(entries: Masked, initial: Any, fill_value: Any) -> Any:
    """Return the fill of an empty slice; ValueError for integers without one: they have no NaN."""
    if initial is not None or fill_value is not None:
        return fill_value
    if dtype_name(entries.x.dtype) in REAL:
        return math.nan
    if entries.keep is not None or is_empty(entries.x):
        name = dtype_name(entries.x.dtype)
        msg = f"expected initial or fill_value for slices without an entry, as {name} has no NaN"
        raise ValueError(msg)
    return None


def place_of_extreme(entries: Masked, axis: int | None, sign: int, *, keepdims: bool) -> Array:
    """Return the index of the first extreme entry, or of the first NaN; -1 in an empty slice."""
    xp = entries.xp
    if isinstance(axis, tuple):
        msg = f"expected an int or None as axis, got {axis}: an index is along one axis"
        raise TypeError(msg)
    value, empty = extreme(entries, axis, sign)
    if is_empty(entries.x):
        return drop_axes(xp, entries.backend.as_index(value) * 0 - 1, axis, keepdims=keepdims)
    there = entries.x == value
    if dtype_name(entries.x.dtype) in REAL:
        there = xp.logical_or(there, xp.isnan(entries.x))
    if entries.keep is not None:
        there = xp.logical_and(there, entries.keep)
    place = xp.argmax(xp.astype(there, xp.int8), axis=axis, keepdims=True)
    if empty is not None:
        place = xp.where(empty, -1, place)
    return drop_axes(xp, place, axis, keepdims=keepdims)


def _sum_and_number(entries: Masked, x: Array, axis: Axis) -> tuple[Array, Array]:
    """Return the sum of each slice of `x`, and how many entries are kept, real, axes kept."""
    real = entries.xp.real(entries.x) if is_complex(entries.x) else entries.x
    if entries.keep is None:
        total = entries.xp.sum(x, axis=axis, keepdims=True)
        return total, entries.backend.lengths(real, axis)
    ones = entries.xp.where(entries.keep, entries.xp.ones_like(real), 0.0)
    total, number = entries.backend.sums((x, ones), axis)
    return total, number


def cumulative(entries: Masked, axis: int | None, *, product: bool) -> Array:
    """Return running sums or products along an axis; with axis None, of all entries, flattened."""
    xp = entries.xp
    if isinstance(axis, tuple):
        msg = f"expected an int or None as axis, got {axis}: entries follow each other along one"
        raise TypeError(msg)
    x = filled(entries, 1 if product else 0)
    if axis is None:
        x, axis = xp.reshape(x, (-1,)), 0
    value = entries.backend.cumulative(x, axis, product=product)
    return xp.astype(value, entries.dtype) if dtype_name(entries.dtype) in NARROW else value
