"""
Pairs that remember: a cotangent carries two kinds of marks.

One says where each selection dropped it, the other where it would not be finite in ordinary
autodiff, because of which operation. Both move as masks do, and by the same rules.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from safeops.autodiff._explain.evidence import Marks, Site, Slope
from safeops.autodiff._pairs import Pair


@dataclass(frozen=True)
class Marked(Pair):
    """A pair, with where a selection dropped it and where a cause taints it."""

    dropped: Marks = field(default_factory=dict)  # by Site
    tainted: Marks = field(default_factory=dict)  # by Cause
    slope: Slope | None = None


def marks_of(x: Any, name: str) -> Marks:
    """Return the marks of one kind that a pair has."""
    return getattr(x, name, {})


def slope_so_far(ins: Iterable[Any], site: Site) -> Slope | None:
    """Return the derivative of an operation as far as earlier parts of its formula have come."""
    slopes = (x.slope for x in ins if isinstance(x, Marked) and x.slope is not None)
    first = next(slopes, None)
    return first if first is not None and first.site == site else None
