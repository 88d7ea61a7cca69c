"""
Pairs that carry marks: where selections dropped a cotangent, and where causes taint it.

`dropped` says by which selection an entry became absent, `tainted` by which cause it would not be
finite in ordinary autodiff. Both move by the rules for masks.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from safeops.autodiff._explain.evidence import Marks, Site, Slope
from safeops.autodiff._pairs import Pair


@dataclass(frozen=True)
class Marked(Pair):
    """A pair with marks: where a selection dropped its entries, and where a cause taints them."""

    dropped: Marks = field(default_factory=dict)  # by Site
    tainted: Marks = field(default_factory=dict)  # by Cause
    slope: Slope | None = None


def marks_of(x: Any, name: str) -> Marks:
    """Return the marks of one kind of a pair."""
    return getattr(x, name, {})


def slope_so_far(ins: Iterable[Any], site: Site) -> Slope | None:
    """Return the derivative of an operation as far as earlier steps of its formula have made it."""
    slopes = (x.slope for x in ins if isinstance(x, Marked) and x.slope is not None)
    first = next(slopes, None)
    return first if first is not None and first.site == site else None
