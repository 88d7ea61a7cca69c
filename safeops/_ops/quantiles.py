"""Quantiles of the entries kept, by NumPy's methods."""

import math
from typing import Any

from safeops._backends.methods import METHODS, Rule
from safeops._backends.shapes import axes_of
from safeops._core.dtypes import SCALARS, limits
from safeops._core.types import Array, Axis, Function, Namespace
from safeops._dispatch import backend_of, fast_path, refuse_none
from safeops._ops.masked_reductions import Masked, filled
from safeops._ops.slices import count, is_empty, require_rank
from safeops._ops.where import stop_gradient


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
