"""What specifications are made of: rows, points, and numbers of float64."""

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import safeops as so
from frameworks import Lazy
from safeops._dispatch import backend_of

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
    """A call of an elementwise operation: it runs in every mode, dtype and order of derivative."""

    name: str
    op: object
    naive: object  # function of the namespace, then of the arguments
    points: tuple
    naive_is_right: dict = field(default_factory=dict)
    # Derivatives that a framework cannot take: {(framework, mode): (derivatives, fact)}.
    unsupported: dict = field(default_factory=dict)
    # Points at which float32 or a narrower dtype has another value by definition.
    only_float64: bool = False


@dataclass(frozen=True, eq=False)
class Spec:
    """
    An elementwise operation: what tests, documentation and benchmarks know of it.

    Numbers come from mathematics, written as formulas of the `math` module or of mpmath.
    """

    name: str  # at the door
    # What people write, a function of the namespace, then of the arguments. A test shows that it
    # fails at one of the points; where it is right, `naive_is_right` says why, by framework.
    naive: object = None
    points: tuple = ()  # exact values and derivatives, at the singular points too
    options: dict = field(default_factory=dict)  # with which it is called there
    naive_is_right: dict = field(default_factory=dict)
    unsupported: dict = field(default_factory=dict)
    only_float64: bool = False
    variants: tuple = ()  # rows of other options, or whose points want a row of their own
    # Value and derivatives in extended precision, a function of the format of a dtype and of the
    # arguments that `domain` makes of the dtype's name; and the value alone, in mpmath.
    formula: object = None
    domain: object = None
    mpmath: object = None
    ulps: float = 8.0  # of the value, the slopes, and the second derivatives times 4
    lost: float = 2.0  # how many times the least normal number may be lost
    synonyms: str = ""  # words that people may search for

    @property
    def op(self):
        """The operation."""
        return getattr(so, self.name)

    @property
    def rows(self):
        """The rows of the case table."""
        op = partial(self.op, **self.options) if self.options else self.op
        facts = self.naive_is_right, self.unsupported, self.only_float64
        own = Row(self.name, op, self.naive, self.points, *facts)
        return (own, *self.variants) if self.points else self.variants


@dataclass(frozen=True, eq=False)
class OwnSpec:
    """An operation whose tests have a form of their own."""

    name: str  # at the door
    rows: tuple = ()  # what these tests run through
    naive: object = None  # what people write, a function of the namespace, then of the arguments
    synonyms: str = ""  # words that people may search for


def one(x, value, first, second):
    """Return a point of a function of one argument."""
    return Point((x,), value, (first,), ((second,),))


def two(args, value, gradient, hessian):
    """Return a point of a function of two arguments; `hessian` is (xx, xy, yy), or None."""
    xx, xy, yy = (None,) * 3 if hessian is None else hessian
    return Point(args, value, gradient, ((xx, xy), (xy, yy)))


FLAT = ((0, 0), (0, 0, 0))  # gradient and second derivatives of a constant


def of_framework(name, *args):
    """Return what people use: the framework's own function, by its name in SciPy."""
    module = {"torch": "torch.special", "jax": "jax.scipy.special", "tensorflow": "tensorflow.math"}
    framework = backend_of(*args).name
    name = "lgamma" if (framework, name) == ("tensorflow", "gammaln") else name
    return getattr(Lazy(module[framework]), name)(*args)
