"""
The case table of norms and softmax: slices with absent entries, against formulas in mpmath.

A formula sees only the entries that are present; mpmath takes its derivatives with 50 digits. A
slice at which the derivative does not exist is listed as flat: gradient 0 is chosen.
"""

from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import mpmath
import numpy as np

WEIGHTS = (1.0, -0.5, 2.0)  # of the entries of a result, where it has a slice's shape


class Slice(NamedTuple):
    """One slice of each argument, which entries are kept, and its value if it is flat."""

    args: tuple
    where: tuple = (True, True, True)
    flat: object = None  # value of a slice with gradient 0


@dataclass(frozen=True, eq=False)
class SliceSpec:
    """An operation on slices: what tests, documentation and benchmarks know of it."""

    name: str  # at the door
    rows: tuple
    sweeps: tuple = ()  # over all exponents: `slice_formulas.Sweep`
    scaled: tuple = ()  # the same, if it scales as its argument does: `slice_formulas.Scaled`
    reduction: bool = False  # of any axes, with `where` or without what is NaN
    synonyms: str = ""  # words that people may search for


@dataclass(frozen=True)
class Row:
    """An operation on slices."""

    name: str
    op: object  # function of the arguments, then of where
    naive: object  # function of the namespace, the arguments and where
    formula: object  # function of the entries present; returns a number, or one for each of them
    slices: tuple
    absent: float | None = None  # value at absent entries of a result that has the slice's shape
    minus_inf_is_absent: bool = False
    naive_is_right: dict = field(default_factory=dict)
    unsupported: dict = field(default_factory=dict)


def present(row, piece):
    """Return the indices of the entries that are not absent."""
    gone = {-inf} if row.minus_inf_is_absent else set()
    return [i for i, kept in enumerate(piece.where) if kept and piece.args[0][i] not in gone]


def exact(row, piece):
    """Return the value of a slice, and gradient and Hessian of its weighted sum."""
    size = len(piece.args) * 3
    if piece.flat is not None:
        shape = 3 if is_slice(row) else ()
        return np.full(shape, float(piece.flat)), np.zeros(size), np.zeros((size, size))
    here = present(row, piece)
    where = [3 * a + i for a in range(len(piece.args)) for i in here]
    entries = [piece.args[a][i] for a in range(len(piece.args)) for i in here]

    def weighted(*entries):
        out = row.formula(*np.split(np.array(entries, dtype=object), len(piece.args)))
        return sum(WEIGHTS[i] * y for i, y in zip(here, out, strict=True)) if is_slice(row) else out

    with mpmath.workdps(50):
        value = row.formula(*np.split(np.array([mpmath.mpf(x) for x in entries]), len(piece.args)))
        gradient, hessian = np.zeros(size), np.zeros((size, size))
        for i, row_index in enumerate(where):
            gradient[row_index] = mpmath.diff(weighted, entries, unit(i, len(entries)))
            for j, column in enumerate(where):
                order = tuple(np.add(unit(i, len(entries)), unit(j, len(entries))))
                hessian[row_index, column] = mpmath.diff(weighted, entries, order)
    return placed(row, here, value), gradient, hessian


def is_slice(row):
    """Whether the result has the shape of the slice."""
    return row.absent is not None


def placed(row, here, value):
    """Return the value with absent entries filled in."""
    if not is_slice(row):
        return np.array(float(value))
    out = np.full(3, row.absent)
    out[here] = [float(y) for y in value]
    return out


def unit(i, n):
    """Return the order of differentiation once by entry i."""
    return tuple(int(i == k) for k in range(n))


def norm(x, p=2):
    """Return the norm of numbers."""
    return sum(abs(t) ** p for t in x) ** (mpmath.mpf(1) / p)


def plain_norm(xp, x, where):
    """Return the root of the sum of squares."""
    return xp.sqrt(xp.sum(xp.where(where, x * x, 0.0), axis=-1))


V = (3.0, 4.0, 12.0)
PART = (True, True, False)
NONE = (False, False, False)
ABSENT = (-inf, -inf, -inf)
