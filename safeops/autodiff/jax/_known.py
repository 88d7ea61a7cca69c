"""
Masks that are known while a program is traced, moved without their full shape.

Such a mask has length 1 along each axis along which it does not vary, so that it stays a small
constant of the program, whatever the length of the values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from safeops._backends.jax.private import axes_of_broadcast, permutation
from safeops.autodiff._small import SMALL, Shape, folded, reshaped


@dataclass(frozen=True, eq=False)
class Made:
    """
    A mask that is known, and too large for a constant: the program makes it where it needs it.

    What most rules do to it makes it small again, so that most are never made.
    """

    entries: np.ndarray
    make: Callable[[], Any]


def entries_of(mask: Any) -> Any:
    """Return a known mask as it is while the program is traced, and another as it is."""
    return mask.entries if isinstance(mask, Made) else mask


def in_program(mask: Any) -> Any:
    """Return a mask as the program has it."""
    return mask.make() if isinstance(mask, Made) else mask


def kept(mask: Any, make: Callable[[], Any]) -> Any:
    """Return a known mask that is to be made if it is large."""
    return Made(mask, make) if isinstance(mask, np.ndarray) and mask.nbytes > SMALL else mask


def following(mask: Any, entries: Any, make: Callable[[], Any]) -> Any:
    """Return a known mask that comes from another; the program makes it if it makes the other."""
    entries = folded(entries)
    return kept(entries, make) if isinstance(mask, Made) else entries


def is_known(mask: Any) -> bool:
    """Whether a mask is known while the program is traced; NumPy reduces one to `np.bool_`."""
    return isinstance(mask, (bool, np.bool_, np.ndarray))


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
