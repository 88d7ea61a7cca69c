"""
Masks known while a program is traced: arrays with length 1 along axes where they do not vary.

A mask in this form stays a small constant of the program, whatever the length of the values.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Shape = tuple[int, ...]

SMALL = 2**14  # bytes of a constant that costs nothing
LARGEST = 2**25  # entries; more would take longer here than they save
DEEPEST = 64  # operations in a row; a causal mask has a dozen


def is_worth_it(*values: Any) -> bool:
    """Whether values that broadcast together are small enough to compute with."""
    return math.prod(np.broadcast_shapes(*map(np.shape, values))) <= LARGEST


def computed(f: Callable[..., Any], values: Sequence[np.ndarray], dtype: Any) -> np.ndarray | None:
    """Return what a function makes of entries one by one, in a dtype; None of too many."""
    if not is_worth_it(*values):
        return None
    with np.errstate(all="ignore"):  # integers wrap around
        return np.asarray(f(*values)).astype(dtype, copy=False)


def folded(mask: Any) -> Any:
    """Return a known mask with length 1 along each axis along which it does not vary."""
    # With one value throughout it is True or False. What stays is a constant of the program, and in
    # the shape of the values XLA would take minutes to fold it (97 s in a layer of length 512).
    if not isinstance(mask, (np.bool_, np.ndarray)):
        return mask
    if mask.all() or not mask.any():
        return bool(mask.all())
    return narrowed(np.asarray(mask))


def narrowed(x: np.ndarray) -> np.ndarray:
    """Return an array with length 1 along each axis along which it does not vary."""
    for axis in range(x.ndim):
        first = x.take([0], axis)
        x = first if (x == first).all() else x
    return x


def reshaped(mask: np.ndarray, shape: Shape, out: Shape) -> np.ndarray:
    """Return the mask of a reshaped value; axes that become others are whole only if it varies."""
    whole: list[int] = []
    new: list[int] = []
    for old, others in groups(shape, out):
        varies = mask.shape[old] != (1,) * len(mask.shape[old])
        whole += shape[old] if varies else mask.shape[old]
        new += out[others] if varies else (1,) * len(out[others])
    return np.broadcast_to(mask, whole).reshape(new)


def groups(shape: Shape, out: Shape) -> Iterator[tuple[slice, slice]]:
    """Yield axes of two shapes that hold the same entries, the fewest at a time."""
    i = j = 0
    while i < len(shape) or j < len(out):
        start, size, filled = (i, j), 1, 1
        while i == start[0] or size != filled:
            if size <= filled and i < len(shape):
                size, i = size * shape[i], i + 1
            elif j < len(out):
                filled, j = filled * out[j], j + 1
            else:  # nothing but lengths of 1 is left
                break
        yield slice(start[0], i), slice(start[1], j)
