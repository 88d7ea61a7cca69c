"""Points beside given points: a check at the given points alone may miss a fault there."""

import numpy as np
from numpy.typing import NDArray

from safeops._core.dtypes import Limits

Numbers = NDArray[np.float64]


def neighbours(points: Numbers, limits: Limits) -> dict[str, Numbers]:
    """
    Return the moved points, by the name of the move.

    Each point moves to the next number of the dtype on either side; for 0 these are subnormal. A
    zero also moves to -0.0, to the smallest normal numbers, and to a subnormal number.
    """
    moves = {f"next {side}": _next(points, limits, to) for side, to in SIDES.items()}
    zero, normal = points == 0, limits.smallest_normal
    if zero.any():
        near = {"-0.0": -0.0, "smallest normal": normal, "subnormal": normal / 2}
        near |= {"minus smallest normal": -normal}
        moves |= {name: np.where(zero, number, points) for name, number in near.items()}
    return moves


SIDES = {"above": np.inf, "below": -np.inf}


def _next(points: Numbers, limits: Limits, to: float) -> Numbers:
    """Return the next numbers of a dtype, held in float64."""
    if limits.eps == np.finfo(np.float64).eps:
        return np.nextafter(points, to)
    # One step of float64 towards the side, then up to the grid of the dtype.
    with np.errstate(all="ignore"):
        moved = np.nextafter(points, to)
        exponent = np.floor(np.log2(np.maximum(np.abs(moved), limits.smallest_normal)))
        step = limits.eps * 2.0**exponent
        grid = (np.ceil if to > 0 else np.floor)(moved / step) * step
    grid = np.where(np.abs(grid) > limits.max, np.copysign(np.inf, grid), grid)
    return np.where(np.isfinite(points), grid, points)
