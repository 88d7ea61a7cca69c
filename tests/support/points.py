"""What the case tables are made of: a row, a point, and numbers of float64."""

from dataclasses import dataclass, field
from typing import NamedTuple

MAX = 1.7976931348623157e308  # float64
TINY = 2.2250738585072014e-308  # float64, the smallest normal number
EPS = 2.0**-52  # float64


class Point(NamedTuple):
    """Arguments, the value there, the gradient, and the second derivatives row by row."""

    args: tuple
    value: float
    gradient: tuple
    hessian: tuple


@dataclass(frozen=True)
class Row:
    """An elementwise operation."""

    name: str
    op: object
    naive: object  # function of the namespace, then of the arguments
    points: tuple
    naive_is_right: dict = field(default_factory=dict)
    # Derivatives that a framework cannot take: {(framework, mode): (derivatives, fact)}.
    unsupported: dict = field(default_factory=dict)
    # Points at which float32 or a narrower dtype has another value by definition.
    only_float64: bool = False


def one(x, value, first, second):
    """Return a point of a function of one argument."""
    return Point((x,), value, (first,), ((second,),))


def two(args, value, gradient, hessian):
    """Return a point of a function of two arguments; `hessian` is (xx, xy, yy), or None."""
    xx, xy, yy = (None,) * 3 if hessian is None else hessian
    return Point(args, value, gradient, ((xx, xy), (xy, yy)))


FLAT = ((0, 0), (0, 0, 0))  # gradient and second derivatives of a constant
