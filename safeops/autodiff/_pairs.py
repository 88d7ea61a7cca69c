"""Pairs of a value and the mask of its active entries, for the evaluators of JAX and TensorFlow."""

from dataclasses import dataclass
from typing import Any

from safeops._core.types import Array


@dataclass(frozen=True)
class Pair:
    """A linear value, 0 where it is not active; `active` True means everywhere, False nowhere."""

    value: Array
    active: Any = True


def union(*masks: Any) -> Any:
    """Return where any of several masks of one shape is active."""
    if any(m is True for m in masks):
        return True
    arrays = [m for m in masks if m is not False]
    if not arrays:
        return False
    total = arrays[0]
    for mask in arrays[1:]:
        total = total | mask
    return total
