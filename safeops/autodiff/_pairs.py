"""Pairs of a value and what of it is active, as the evaluators of JAX and TensorFlow have them."""

from dataclasses import dataclass
from typing import Any

from safeops._typing import Array


@dataclass(frozen=True)
class Pair:
    """A linear value, which is 0 wherever it is not active: True everywhere, False nowhere."""

    value: Array
    active: Any = True


def union(*masks: Any) -> Any:
    """Return where one of several masks of the same shape is active."""
    if any(m is True for m in masks):
        return True
    arrays = [m for m in masks if m is not False]
    if not arrays:
        return False
    total = arrays[0]
    for mask in arrays[1:]:
        total = total | mask
    return total
