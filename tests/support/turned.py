"""How far the functions of rotations are from the formulas of `turning`, in a mode."""

import math
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

import turning
from derivatives import derivatives_in
from frameworks import asarray, to_numpy
from safeops._backends import load
from safeops._core.dtypes import dtype_name
from specs.rotations import POINTS

# A result out of the range of the dtype, or next to 0 without digits, has no error.
RANGE = {"float64": (1e-290, 1e290), "float32": (1e-30, 1e30)}
# What stands in the first entry of rows before the points, or in all of them: no point may notice.
BESIDE = [(bad, end) for bad in (np.nan, np.inf, -np.inf, 0.0) for end in (1, None)]
BY_ARGUMENT = ("reverse", "rev-rev", "fwd-rev", "rev-fwd")


def found(row, framework, mode, dtype, skipped):
    """
    Return value and derivatives of a row by their names, a row of numbers a point.

    In the same batch there are points with NaN, inf and 0.
    """
    points = row.points_in(dtype)
    shapes = [x.shape for x in points[0]]
    x = np.stack([turning.flat(points[i % len(points)]) for i in range(-len(BESIDE), POINTS)])
    for i, (bad, end) in enumerate(BESIDE):
        x[i, :end] = bad
    shape = turning.shape_of(row)
    weights = asarray(framework, turning.ramp(shape, 5)[None], dtype)
    xp = load(framework).xp

    def reduce(out):
        axes = tuple(range(1, len(shape) + 1))
        return xp.sum(weights * out, axis=axes) if shape else weights * out

    arrays = [
        [asarray(framework, np.broadcast_to(a, x.shape), dtype)]
        for a in (x, directions(shapes, 0), directions(shapes, 9))
    ]
    f = of_one_array(row.op, shapes, xp)
    return {
        order: rows_of(y, dtype)
        for order, y in derivatives_in(mode, framework, f, reduce, *arrays, skipped).items()
    }


def of_one_array(op, shapes, xp):
    """Return a function of all arguments in one array: in TensorFlow a tangent is one array."""
    ends = [0, *accumulate(math.prod(shape) for shape in shapes)]

    def f(x):
        lead = (-1,) if len(x.shape) == 2 else ()
        parts = (x[..., a:b] for a, b in pairwise(ends))
        return op(*(xp.reshape(y, (*lead, *s)) for y, s in zip(parts, shapes, strict=True)))

    return f


def directions(shapes, seed):
    """Return a direction in the space of all arguments."""
    return turning.flat([turning.ramp(shape, k + seed) for k, shape in enumerate(shapes)])


def rows_of(x, dtype):
    """Return an array, or the only one of a tuple, as rows of numbers for the points."""
    x = x[0] if isinstance(x, (tuple, list)) or len(x) == 1 else x
    assert dtype_name(x.dtype) == dtype
    return to_numpy(x).astype(float).reshape(len(BESIDE) + POINTS, -1)[len(BESIDE) :]


def errors(row, got, dtype, exact=None):
    """Return by order the error of each point, divided by the largest entry of an argument."""
    shapes = [x.shape for x in row.points_in(dtype)[0]]
    measure = Measure(shapes, directions(shapes, 0), directions(shapes, 9), RANGE[dtype])
    exact = turning.exact(row, dtype) if exact is None else exact
    return {
        order: np.array([measure.error(order, x[i], e) for i, e in enumerate(exact)])
        for order, x in got.items()
    }


class Measure(NamedTuple):
    """How errors are measured: for each argument, in its own size."""

    shapes: list
    v: np.ndarray
    u: np.ndarray
    within: tuple

    @np.errstate(over="ignore", invalid="ignore")  # of numbers that are out of the range
    def error(self, order, got, exact):
        """Return the error of an order at a point."""
        if order == "value":
            return self.relative(got, exact.value, np.abs(exact.value).max())
        if order in BY_ARGUMENT:
            wanted = exact.gradient if order == "reverse" else exact.product
            cuts = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]
            parts = zip(*(np.split(a, cuts) for a in (got, wanted, exact.point)), strict=True)
            return max(
                self.relative(g, w, np.abs(w).max(), 1 / (np.abs(x).max() or 1))
                for g, w, x in parts
            )
        terms = exact.gradient * self.v if order == "forward" else exact.product * self.u
        return self.relative(got, terms.sum(), np.abs(terms).max())

    def relative(self, got, wanted, size, usual=1.0):
        """
        Return the error divided by a size within the range; for NaN it is infinite.

        A number that is 0, up to rounding in 220 digits, has the usual size of a derivative: 1
        divided by the size of the argument.
        """
        if size < 1e-40 * usual:
            wanted, size = 0.0 * wanted, usual
        if not self.within[0] < size < self.within[1]:
            return 0.0
        error = np.max(np.abs(got - wanted))
        return 0.0 if error == 0 else error / size if error < np.inf and size else np.inf
