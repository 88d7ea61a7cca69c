"""
Masks that are known while a program is traced, moved without their full shape.

Such a mask has length 1 along each axis along which it does not vary, so that it stays a small
constant of the program, whatever the length of the values.
"""

from collections.abc import Iterator

import numpy as np
from jax.extend.core import JaxprEqn

from safeops._backends.jax.private import axes_of_broadcast, permutation

Shape = tuple[int, ...]


def moved(eqn: JaxprEqn, mask: np.ndarray, shape: Shape) -> np.ndarray | None:
    """Return what an operation makes of the mask of a value of a shape; None if it is another."""
    name, out = eqn.primitive.name, eqn.outvars[0].aval.shape
    if name == "transpose":
        return mask.transpose(permutation(eqn))
    if name in ("reshape", "squeeze"):
        return reshaped(mask, shape, out)
    if name == "broadcast_in_dim":
        axes = axes_of_broadcast(eqn)
        return np.expand_dims(mask, tuple(i for i in range(len(out)) if i not in axes))
    return None


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
