"""Quantiles of the entries kept: where they are among the ordered ones, by NumPy's methods."""

import math
from collections.abc import Callable
from typing import Any

from safeops._backends import backend_of, limits, refuse_none
from safeops._backends.array_api import SCALARS
from safeops._reductions import Kept, filled
from safeops._slices import count, is_empty
from safeops._typing import Array, Axis, Function, Namespace
from safeops._where import stop_gradient


def enter_quantile(kept: Kept, q: Any) -> tuple[Any, bool]:
    """Return `q` as a number or an array, and whether it is one of many."""
    if not isinstance(q, SCALARS):
        refuse_none((q,))
        backend_of(kept.x, q)
        q = kept.backend.cast(q, kept.x.dtype, kept.x)
        if len(q.shape) > 1:
            msg = f"expected a number or at most one dimension as q, got {len(q.shape)}"
            raise ValueError(msg)
        return q, len(q.shape) == 1
    if isinstance(q, complex) or not 0 <= q <= 1:
        msg = f"expected a quantile from 0 to 1, got {q}"
        raise ValueError(msg)
    return float(q), False


def shaped(kept: Kept, value: Array, axis: Axis, *, many: bool, keepdims: bool) -> Array:
    """Return quantiles along a last axis in the shape of the result: many come first."""
    xp, rank = kept.xp, len(value.shape) - 1
    value = xp.permute_dims(value, (rank, *range(rank))) if many else xp.squeeze(value, axis=-1)
    if not keepdims:
        return value
    size = len(kept.x.shape)
    axes = range(size) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    for one in sorted(a % size for a in axes):
        value = xp.expand_dims(value, axis=one + many)
    return value


def quantile(kept: Kept, q: Any, axis: Axis, rule: Function) -> tuple[Array, Array]:
    """Quantiles of the slices, along a last axis, by the rule of a method; and where is none."""
    xp, keep = kept.xp, kept.keep
    x = filled(kept, limits(xp, kept.x).max)
    # +inf would stand behind what is absent: it is counted instead.
    above = x == math.inf if keep is None else xp.logical_and(keep, kept.x == math.inf)
    x, above = (kept.backend.merged(y, axis) for y in (x, above))
    keep = None if keep is None else kept.backend.merged(keep, axis)
    number = count(xp, x, keep, -1)
    nothing = number == 0
    if is_empty(x):  # TensorFlow does not differentiate the sort of nothing
        return number * q, nothing
    finite = xp.where(nothing, 1.0, number - count(xp, x, above, -1))
    ordered, last = xp.sort(x, axis=-1), number - 1.0
    low, part = rule(xp, number, q)

    def entry(index: Array) -> Array:
        index = xp.where(index < last, index, last)
        index = xp.where(index > 0, index, 0.0)
        found = xp.take_along_axis(ordered, kept.backend.indices(index), axis=-1)
        return xp.where(index < finite, found, math.inf)

    return _between(xp, entry(low), entry(low + 1.0), part), nothing


def _between(xp: Namespace, low: Array, high: Array, part: Any) -> Array:
    """Return ``(1 - part) * low + part * high``; `low`, infinite too, if there is no way to go."""
    still = xp.logical_or(low == high, part == 0)
    far = xp.logical_and(still, xp.logical_or(xp.isinf(low), xp.isinf(high)))
    start, end = xp.where(far, 0.0, low), xp.where(far, 0.0, high)
    # start + part * (end - start) would overflow, and end at NaN where start is -inf.
    value, level = (1.0 - part) * start + part * end, start == end
    rounding = xp.where(level, value, 0.0) - xp.where(level, start, 0.0)
    return xp.where(far, low, value - stop_gradient(rounding))


def _split(xp: Namespace, index: Array) -> tuple[Array, Array]:
    low = xp.floor(index)
    return low, index - low


def _exactly(xp: Namespace, index: Array) -> tuple[Array, Array]:
    return index, xp.zeros_like(index)


def _is_odd(xp: Namespace, x: Array) -> Array:
    return x - 2.0 * xp.floor(x / 2.0) == 1


def _inverted_cdf(xp: Namespace, n: Array, q: Any) -> tuple[Array, Array]:
    return _exactly(xp, -xp.floor(1.0 - n * q))


def _averaged_inverted_cdf(xp: Namespace, n: Array, q: Any) -> tuple[Array, Array]:
    low, part = _split(xp, n * q - 1.0)
    return low, xp.where(part == 0, 0.5, xp.ones_like(part))


def _closest_observation(xp: Namespace, n: Array, q: Any) -> tuple[Array, Array]:
    low, part = _split(xp, n * q - 1.5)
    return _exactly(xp, xp.where(xp.logical_and(part == 0, _is_odd(xp, low)), low, low + 1.0))


def _nearest(xp: Namespace, n: Array, q: Any) -> tuple[Array, Array]:
    low, part = _split(xp, (n - 1.0) * q)
    up = xp.logical_or(part > 0.5, xp.logical_and(part == 0.5, _is_odd(xp, low)))  # noqa: PLR2004  (half)
    return _exactly(xp, xp.where(up, low + 1.0, low))


def _midpoint(xp: Namespace, n: Array, q: Any) -> tuple[Array, Array]:
    low, part = _split(xp, (n - 1.0) * q)
    return low, xp.where(part == 0, 0.0, xp.full_like(part, 0.5))


def _continuous(alpha: float, beta: float) -> Callable[..., tuple[Array, Array]]:
    def rule(xp: Namespace, n: Array, q: Any) -> tuple[Array, Array]:
        return _split(xp, n * q + (alpha + q * (1.0 - alpha - beta)) - 1.0)

    return rule


# From the number of entries to an index, counted from 0, and the part of the way to the next one.
# Hyndman and Fan (1996), and the last four of NumPy's own.
METHODS: dict[str, Callable[..., tuple[Array, Array]]] = {
    "inverted_cdf": _inverted_cdf,
    "averaged_inverted_cdf": _averaged_inverted_cdf,
    "closest_observation": _closest_observation,
    "interpolated_inverted_cdf": _continuous(0.0, 1.0),
    "hazen": _continuous(0.5, 0.5),
    "weibull": _continuous(0.0, 0.0),
    "linear": lambda xp, n, q: _split(xp, (n - 1.0) * q),
    "median_unbiased": _continuous(1 / 3, 1 / 3),
    "normal_unbiased": _continuous(3 / 8, 3 / 8),
    "lower": lambda xp, n, q: _exactly(xp, xp.floor((n - 1.0) * q)),
    "higher": lambda xp, n, q: _exactly(xp, -xp.floor((1.0 - n) * q)),
    "midpoint": _midpoint,
    "nearest": _nearest,
}


def rule_of(method: str) -> Callable[..., tuple[Array, Array]]:
    """Return the rule of a method; ValueError for one unknown."""
    if method not in METHODS:
        msg = f"expected a method out of ({', '.join(METHODS)}), got {method!r}"
        raise ValueError(msg)
    return METHODS[method]
