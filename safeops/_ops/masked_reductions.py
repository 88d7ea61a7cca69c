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
from safeops._core.types import Array, Axis, Backend, DType, Namespace
from safeops._dispatch import backend_of, promote_mask
from safeops._ops.division import safe_div
from safeops._ops.norms import _root_mean_square, squared_norm
from safeops._ops.slices import (
    drop_axes,
    enter_number,
    is_empty,
    length,
    require_fit,
    same_shape,
)
from safeops._ops.where import stop_gradient


class Kept(NamedTuple):
    """Entries, and which of them are kept."""

    backend: Backend
    xp: Namespace
    x: Array  # float16 and bfloat16 as float32
    keep: Array | None  # None: all
    dtype: DType  # of the argument, or of its quotients if the reduction divides


# From slices to their values, and which slices keep too few entries for a value; axes kept.
Rule = Callable[[Kept, Axis], tuple[Array, Array | None]]


def enter_entries(
    x: Array, where: Any, *, skip_nan: bool, divides: bool = False, of: tuple[str, ...] = COMPLEX
) -> Kept:
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
    return Kept(backend, xp, wide, keep, dtype)


def reduce(kept: Kept, rule: Rule, axis: Axis, *, keepdims: bool, fill_value: Any = None) -> Array:
    """Return the value of a rule for each slice, and `fill_value` for empty slices."""
    value, empty = rule(kept, axis)
    value = drop_axes(kept.xp, value, axis, keepdims=keepdims)
    if empty is not None:
        empty = drop_axes(kept.xp, empty, axis, keepdims=keepdims)
    return fill_empty(kept, value, empty, fill_value)


def fill_empty(kept: Kept, value: Array, empty: Array | None, fill_value: Any) -> Array:
    """Return the values, with `fill_value` in empty slices, in the dtype of the result."""
    xp, fill_value = kept.xp, enter_option(kept.backend, fill_value, value)
    if fill_value is not None and empty is not None:
        value = xp.where(empty, fill_value, value)
    return xp.astype(value, kept.dtype) if dtype_name(kept.dtype) in NARROW else value


def enter_option(backend: Backend, option: Any, like: Array) -> Any:
    """Return `initial` or `fill_value`: a Python scalar as it is, an array in a floating dtype."""
    backend_of(like, option)
    if option is None or isinstance(option, SCALARS):
        return option
    backend.check(option)
    return option if dtype_name(like.dtype) in INTEGER else backend.cast(option, like.dtype, like)


def enter_initial(kept: Kept, initial: Any, like: Array) -> Any:
    """Return `initial`, which is one number for all slices."""
    initial = enter_option(kept.backend, initial, like)
    # Numbers are tested first: torch.compile cannot ask a symbolic number for its shape (2.13).
    if not isinstance(initial, SCALARS) and getattr(initial, "shape", ()) not in {(), (1,)}:
        msg = f"expected one number as initial, got an array of shape {tuple(initial.shape)}"
        raise ValueError(msg)
    return initial


def filled(kept: Kept, neutral: Any) -> Array:
    """Return the entries, with `neutral` in place of absent entries."""
    if kept.keep is None:
        return kept.x
    if dtype_name(kept.x.dtype) == "bool":
        neutral = bool(neutral)
    return kept.xp.where(kept.keep, kept.x, kept.backend.cast(neutral, kept.x.dtype, kept.x))


def empty_slices(kept: Kept, axis: Axis) -> Array | None:
    """Whether a slice keeps no entry; None if each slice keeps one."""
    if kept.keep is not None:
        return kept.xp.logical_not(kept.xp.any(kept.keep, axis=axis, keepdims=True))
    if is_empty(kept.x):
        some = kept.xp.any(kept.xp.astype(kept.x, kept.xp.bool), axis=axis, keepdims=True)
        return kept.xp.logical_not(some)
    return None


def total(
    kept: Kept, axis: Axis, *, initial: Any = None, fills: bool = True
) -> tuple[Array, Array | None]:
    """Sum, which starts at `initial`; the empty slices are returned only if there is a fill."""
    value = kept.xp.sum(filled(kept, 0), axis=axis, keepdims=True)
    initial = enter_initial(kept, initial, value)
    empty = empty_slices(kept, axis) if fills else None
    return value if initial is None else value + initial, empty


def product(kept: Kept, axis: Axis, *, initial: Any = None) -> tuple[Array, Array | None]:
    """Product, which starts at `initial`."""
    value = kept.backend.product(filled(kept, 1), axis)
    initial = enter_initial(kept, initial, value)
    return value if initial is None else value * initial, empty_slices(kept, axis)


def mean(kept: Kept, axis: Axis) -> tuple[Array, Array]:
    """Sum, divided by the number of entries kept."""
    xp = kept.xp
    value, number = _sum_and_number(kept, filled(kept, 0), axis)
    empty = number == 0
    return value / xp.astype(xp.where(empty, 1.0, number), value.dtype), empty


def weigh(kept: Kept, weights: Any) -> tuple[Kept, Array]:
    """Return the entries, and their weights, which are 0 for absent entries, in one shape."""
    backend, xp = kept.backend, kept.xp
    backend_of(kept.x, weights)
    if not hasattr(weights, "dtype"):
        msg = f"expected an array as weights, got {type(weights).__name__}"
        raise TypeError(msg)
    require(weights.dtype, INTEGER + REAL, weights)
    real = xp.real(kept.x) if is_complex(kept.x) else kept.x
    x, weights = xp.broadcast_arrays(kept.x, backend.cast(weights, real.dtype, real))
    keep = None if kept.keep is None else xp.broadcast_arrays(kept.keep, weights)[0]
    kept = kept._replace(x=x, keep=keep)
    return kept, filled(kept._replace(x=weights), 0)


def weighted_mean(kept: Kept, axis: Axis, *, weights: Array) -> tuple[Array, Array]:
    """Sum of entries times their shares of the weight."""
    xp = kept.xp
    shares, _, empty = _shares(xp, weights, axis)
    x = filled(_without_slices(kept, empty), 0)
    return xp.sum(xp.astype(shares, x.dtype) * x, axis=axis, keepdims=True), empty


def weighted_variance(
    kept: Kept, axis: Axis, *, correction: float, weights: Array
) -> tuple[Array, Array]:
    """Sum of squared deviations times weights, over the weight of all minus `correction`."""
    xp, correction = kept.xp, enter_correction(correction)
    shares, total, empty = _shares(xp, weights, axis)
    empty = xp.logical_or(empty, total <= correction)
    kept = _without_slices(kept, empty)
    # The origin is an entry that has a weight: the digits of the others are not lost in it.
    heavy = kept._replace(keep=xp.logical_and(kept.keep, weights != 0))
    away = _from_peak(kept, heavy, axis)
    mean = xp.sum(xp.astype(shares, away.dtype) * away, axis=axis, keepdims=True)
    away = filled(kept._replace(x=away - mean), 0)
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
    kept: Kept,
    axis: Axis,
    count: Any,
    *,
    keepdims: bool,
    weights: Any = None,
    fill_value: Any = None,
) -> Array:
    """Return the sum divided by `count`; None stands for the number, or weight, of entries kept."""
    kept, weights = (kept, None) if weights is None else weigh(kept, weights)
    if count is None:
        rule = mean if weights is None else partial(weighted_mean, weights=weights)
        return reduce(kept, rule, axis, keepdims=keepdims, fill_value=fill_value)
    xp, terms = kept.xp, filled(kept, 0)
    terms = terms if weights is None else terms * xp.astype(weights, terms.dtype)
    value = xp.sum(terms, axis=axis, keepdims=True)
    value = drop_axes(xp, value, axis, keepdims=keepdims)
    number = enter_option(kept.backend, count, value)
    number = kept.backend.cast(number, value.dtype, value)
    empty = number == 0
    return fill_empty(kept, value / xp.where(empty, 1.0, number), empty, fill_value)


def variance(kept: Kept, axis: Axis, *, correction: float) -> tuple[Array, Array]:
    """Sum of squared deviations, divided by the number of entries kept minus `correction`."""
    away, freedom, empty, _ = deviations(kept, axis, correction, measured=False)
    return squared_norm(away, axis=axis, keepdims=True) / freedom, empty


def deviation(kept: Kept, axis: Axis, *, correction: float) -> tuple[Array, Array]:
    """Root of the variance, with slope 0 at 0; no square on the way overflows."""
    away, freedom, empty, width = deviations(kept, axis, correction)
    given = (away, freedom) if width is None else (away, freedom, width)
    return _root_mean_square(*given, axis=axis), empty


class Deviations(NamedTuple):
    """What a slice has besides its mean."""

    away: Array  # deviations from the mean; 0 for absent entries, and in a slice without freedom
    freedom: Array  # 1 where there is none
    empty: Array  # where there is none
    width: Array | None  # one to two times the largest deviation, if it costs no collective


def deviations(kept: Kept, axis: Axis, correction: float, *, measured: bool = True) -> Deviations:
    """
    Return the deviations from the mean, the degrees of freedom, and if `measured` the width.

    The largest entry is subtracted first. Then the deviations in a constant slice are exactly 0,
    and deviations far from the origin keep their digits. A slice without degrees of freedom gets
    the fill, and so keeps no entry: an inf in it would have a deviation of NaN.

    The largest entry, the sums, the squares: each of them is one collective, if slices are in
    parts, and none of them waits for the number of entries, which is summed beside the sums.
    """
    xp, correction = kept.xp, enter_correction(correction)
    free = _is_free(kept, axis, correction)
    origin, width = _origin(kept, axis) if measured else (_peak_of_parts(kept, axis), None)
    origin = origin if free else xp.where(xp.isfinite(origin), origin, 0.0)
    away = _less(kept, origin)
    total, number = _sum_and_number(kept, away, axis)
    empty = number <= correction
    if not free:
        kept, total = _without_slices(kept, empty), xp.where(empty, 0.0, total)
        away = filled(kept._replace(x=away), 0)
    away = away - total / xp.astype(xp.where(number == 0, 1.0, number), away.dtype)
    freedom = xp.where(empty, 1.0, number - correction)
    if width is not None:
        width = xp.where(empty, 0.0, width)
    return Deviations(filled(kept._replace(x=away), 0), freedom, empty, width)


def _origin(kept: Kept, axis: Axis) -> tuple[Array, Array | None]:
    """Return the largest entry of each slice as a constant, and how far the smallest one is."""
    if is_complex(kept.x) or is_empty(kept.x):
        return _peak_of_parts(kept, axis), None
    kept = kept._replace(x=stop_gradient(kept.x))
    highs, lows = (filled(kept, _least(kept, sign)) for sign in (1, -1))
    most, least = kept.backend.ends(highs, lows, axis)
    return most, None if least is None else most - kept.xp.where(least > most, most, least)


def _from_peak(kept: Kept, heavy: Kept, axis: Axis) -> Array:
    """Return the entries less the largest of those in `heavy`; 0 for absent entries."""
    return _less(kept, _peak_of_parts(heavy, axis))


def _less(kept: Kept, origin: Array) -> Array:
    """Return the entries less a constant of their slice; 0 for absent entries."""
    return (kept.x if kept.keep is None else kept.xp.where(kept.keep, kept.x, origin)) - origin


def _peak_of_parts(kept: Kept, axis: Axis) -> Array:
    """Return the largest entry of each slice as a constant; of complex ones part by part."""
    xp, x = kept.xp, stop_gradient(kept.x)
    parts = [xp.real(x), xp.imag(x)] if is_complex(x) else [x]
    origin, *imaginary = (_peak(kept._replace(x=part), axis, 1) for part in parts)
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


def _is_free(kept: Kept, axis: Axis, correction: float) -> bool:
    """Whether each slice is known to keep more entries than `correction`."""
    return kept.keep is None and (length(kept.x, axis) or 0) > correction


def _without_slices(kept: Kept, slices: Array) -> Kept:
    """Return the entries, with the entries of these slices absent."""
    others = kept.xp.logical_not(slices)
    if kept.keep is None:
        return kept._replace(keep=kept.xp.broadcast_arrays(others, kept.x)[0])
    return kept._replace(keep=kept.xp.logical_and(kept.keep, others))


def extreme(
    kept: Kept, axis: Axis, sign: int, *, initial: Any = None
) -> tuple[Array, Array | None]:
    """Largest entry for sign 1, smallest for -1, or `initial` if `initial` is beyond the entry."""
    xp = kept.xp
    if kept.keep is not None and dtype_name(kept.x.dtype) in REAL:
        # If all entries kept are infinite, with the other sign, the peak is the filler.
        end = -sign * math.inf
        value, most = _peak_and_most(kept, kept.x != end, axis, sign)
        empty = most == 0
        value = xp.where(most == 1, end, value)
    else:
        value, empty = _peak(kept, axis, sign), empty_slices(kept, axis)
    initial = enter_initial(kept, initial, value)
    if initial is not None:
        beyond = value < initial if sign == 1 else value > initial  # False for NaN, which stays
        if empty is not None:
            beyond = xp.logical_or(beyond, empty)
        value = xp.where(beyond, initial, value)
    return value, empty


def _peak_and_most(kept: Kept, cond: Array, axis: Axis, sign: int) -> tuple[Array, Array]:
    """
    Return the extreme entry; and a level: 2 for a slice that keeps an entry with `cond`.

    It is 1 for a slice that keeps other entries, and 0 for a slice that keeps none.
    """
    xp = kept.xp
    # One reduction of floating numbers: reducing booleans takes four times as long in XLA (jax
    # 0.10.2), and small integers ten times as long if PyTorch compiles it (2.13).
    levels = xp.where(kept.keep, xp.astype(cond, kept.x.dtype) + 1, 0.0)
    if is_empty(cond):  # frameworks raise for the maximum of nothing
        return _peak(kept, axis, sign), xp.sum(levels, axis=axis, keepdims=True)
    x = filled(kept, _least(kept, sign))
    return kept.backend.extreme_and_level(x, levels, axis, sign)


def _peak(kept: Kept, axis: Axis, sign: int) -> Array:
    """Return the extreme entry; an absent entry enters as the finite number at the other end."""
    least = _least(kept, sign)
    x = filled(kept, least)
    if is_empty(x):  # frameworks raise for the maximum of nothing
        zero = kept.xp.sum(x, axis=axis, keepdims=True)
        return kept.xp.astype(zero, x.dtype)
    return kept.backend.extreme(x, axis, sign)


def _least(kept: Kept, sign: int) -> Any:
    """Return the finite number at the other end; NaN detectors would report an infinite one."""
    name = dtype_name(kept.x.dtype)
    if name == "bool":
        return sign < 0
    if name in INTEGER:
        info = kept.xp.iinfo(kept.x.dtype)
        return int(info.min if sign == 1 else info.max)
    return -sign * limits(kept.xp, kept.x).max


def fill_of_extreme(kept: Kept, initial: Any, fill_value: Any) -> Any:
    """Return the fill of an empty slice; ValueError for integers without one: they have no NaN."""
    if initial is not None or fill_value is not None:
        return fill_value
    if dtype_name(kept.x.dtype) in REAL:
        return math.nan
    if kept.keep is not None or is_empty(kept.x):
        name = dtype_name(kept.x.dtype)
        msg = f"expected initial or fill_value for slices without an entry, as {name} has no NaN"
        raise ValueError(msg)
    return None


def place_of_extreme(kept: Kept, axis: int | None, sign: int, *, keepdims: bool) -> Array:
    """Return the index of the first extreme entry, or of the first NaN; -1 in an empty slice."""
    xp = kept.xp
    if isinstance(axis, tuple):
        msg = f"expected an int or None as axis, got {axis}: an index is along one axis"
        raise TypeError(msg)
    value, empty = extreme(kept, axis, sign)
    if is_empty(kept.x):
        return drop_axes(xp, kept.backend.as_index(value) * 0 - 1, axis, keepdims=keepdims)
    there = kept.x == value
    if dtype_name(kept.x.dtype) in REAL:
        there = xp.logical_or(there, xp.isnan(kept.x))
    if kept.keep is not None:
        there = xp.logical_and(there, kept.keep)
    place = xp.argmax(xp.astype(there, xp.int8), axis=axis, keepdims=True)
    if empty is not None:
        place = xp.where(empty, -1, place)
    return drop_axes(xp, place, axis, keepdims=keepdims)


def _sum_and_number(kept: Kept, x: Array, axis: Axis) -> tuple[Array, Array]:
    """Return the sum of each slice of `x`, and how many entries are kept, real, axes kept."""
    real = kept.xp.real(kept.x) if is_complex(kept.x) else kept.x
    if kept.keep is None:
        total = kept.xp.sum(x, axis=axis, keepdims=True)
        return total, kept.backend.lengths(real, axis)
    ones = kept.xp.where(kept.keep, kept.xp.ones_like(real), 0.0)
    total, number = kept.backend.sums((x, ones), axis)
    return total, number


def cumulative(kept: Kept, axis: int | None, *, product: bool) -> Array:
    """Return running sums or products along an axis; with axis None, of all entries, flattened."""
    xp = kept.xp
    if isinstance(axis, tuple):
        msg = f"expected an int or None as axis, got {axis}: entries follow each other along one"
        raise TypeError(msg)
    x = filled(kept, 1 if product else 0)
    if axis is None:
        x, axis = xp.reshape(x, (-1,)), 0
    value = kept.backend.cumulative(x, axis, product=product)
    return xp.astype(value, kept.dtype) if dtype_name(kept.dtype) in NARROW else value
