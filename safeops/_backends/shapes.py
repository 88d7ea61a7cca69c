"""Axes as numbers from 0, and arrays without the axes that a reduction kept."""

from collections.abc import Sequence

from safeops._core.types import Array, Axis


def axes_of(axis: Axis, rank: int) -> tuple[int, ...]:
    """Return axes as numbers from 0; all of them for None."""
    given = range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return tuple(a % rank for a in given)


def of_one_axis(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    """Return a shape in which other axes have length 1."""
    return tuple(n if a == axis % len(shape) else 1 for a, n in enumerate(shape))


def dropped(x: Array, axis: Axis, *, keepdims: bool) -> Array:
    """Return `x`, an array with a method `reshape`, without the axes that a kernel kept."""
    return x if keepdims else x.reshape(()) if axis is None else x.squeeze(axis)
