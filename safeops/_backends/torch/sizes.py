"""
How long slices are, roughly, where a compiler adds two sums of squares in one loop.

A norm asks for a size first, by which it scales its slice. Inductor (2.13) takes 2.0 of the plain
norm to find the largest entry of rows of 100 on a CPU, and 0.6 for these two sums.
"""

import array_api_compat.torch as xp
import torch

from safeops._backends.devices import measures_by_squares
from safeops._backends.torch.filling import _LIMITS
from safeops._typing import Array, Axis


def rough_length(x: Array, axis: Axis) -> Array | None:
    """
    Return the norm of each slice, axes kept; None if that takes longer than the largest entry.

    The largest number stands for norms whose squares overflow. Others whose squares are lost are
    found by a second sum. That one has no third sum beside it for the large ones, because squares
    of entries near 1 would be subnormal there, and take eight times as long.
    """
    if x.dtype not in _LIMITS or not measures_by_squares(x):
        return None
    x, bound = x.detach(), _LIMITS[x.dtype]
    raised = 2.0 ** (80 if x.dtype is torch.float32 else 640)
    total = xp.sum(x * x, axis=axis, keepdims=True)
    larger = x * raised
    total_of_larger = xp.sum(larger * larger, axis=axis, keepdims=True)
    # Entries of a sum below this root have no overflow in the other sum.
    lost = total < bound.smallest_normal**0.5
    length = torch.where(lost, total_of_larger.sqrt() / raised, total.sqrt())
    return torch.where(total > bound.max, bound.max, length)
