"""
How large slices are, roughly, where a compiler sums in one loop with what it does next.

A norm asks for a size first, by which it scales its slice. Inductor (2.13) takes 2.0 of the plain
norm to find the largest entry of rows of 100 on a CPU, and 0.6 for two sums of squares; one sum
of sizes, in their place, makes the same norm as fast.
"""

import array_api_compat.torch as xp
import torch

from safeops._backends.devices import measures_by_sums
from safeops._backends.torch.fast_paths import _LIMITS
from safeops._core.types import Array, Axis


def rough_size(x: Array, axis: Axis) -> Array | None:
    """Return a size of each slice of sizes; None if that takes longer than the largest entry."""
    # A sum of squares would lose slices at both ends: three such sums are needed, and in the one
    # for the large ones squares of entries near 1 are subnormal, and take eight times as long.
    if x.dtype not in _LIMITS or not measures_by_sums(x):
        return None
    x, bound = x.detach(), _LIMITS[x.dtype]
    total = xp.sum(x, axis=axis, keepdims=True).clamp(max=bound.max)
    # A slice of one smallest normal number has that size, and is not taken for a subnormal one.
    least = total.clamp(max=bound.smallest_normal)
    return torch.maximum(total * (x.numel() // total.numel()) ** -0.5, least)
