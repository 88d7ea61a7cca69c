"""Masks applied to the bits of floats, viewed as integers, without a branch for each entry."""

from typing import Any

import numpy as np

from safeops._core.dtypes import is_positive_zero
from safeops._core.types import Array

BITS: dict[Any, type] = {np.dtype(np.float32): np.int32, np.dtype(np.float64): np.int64}
ONE = np.int8(1)


def selected(x: Array, absent: Array, other: float, out: Array | None = None) -> Array:
    """Return ``where(absent, other, x)``, by masking bits; `out` may be `x` itself."""
    kind = BITS[x.dtype]
    kept = np.subtract(absent.view(np.int8), ONE)  # all bits set, or none
    bits = None if out is None else out.view(kind)
    if is_positive_zero(other):
        return np.bitwise_and(x.view(kind), kept, out=bits).view(x.dtype)
    other_bits: Array = np.asarray(other, x.dtype).view(kind)
    bits = np.bitwise_xor(x.view(kind), other_bits, out=bits)
    np.bitwise_and(bits, kept, out=bits)
    return np.bitwise_xor(bits, other_bits, out=bits).view(x.dtype)
