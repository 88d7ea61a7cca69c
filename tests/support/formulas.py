"""
What formulas of specifications are made of: derivatives in extended precision, and their points.

Each formula is written to keep its digits over the whole range. `test_formulas.py` compares each
with mpmath.
"""

import math
from dataclasses import dataclass

import numpy as np

from exponents import FORMATS, around, positive, rounded, signed, wide

LN2, LN10, PI = np.log(wide(2)), np.log(wide(10)), 4 * np.arctan(wide(1))


@dataclass
class Exact:
    """Value, slopes (i), second derivatives (i, j), and the terms that these are sums of."""

    value: object
    gradient: tuple
    hessian: tuple
    # Where terms cancel, what the value, the slopes and the second derivatives are sums of.
    size: object = None
    gradient_size: tuple = ()
    hessian_size: object = None
    # Terms that PyTorch and TensorFlow form on the way to a second derivative in forward mode.
    steps: tuple = ()
    # Terms that TensorFlow alone forms there.
    squares: tuple = ()
    # Terms that TensorFlow forms on the way to a second derivative in reverse mode.
    transposed: tuple = ()
    # Terms that TensorFlow forms on the way to a tangent.
    tangents: tuple = ()
    bad: object = False  # where it is filled

    @property
    def constant(self):
        """Where the value is the fill, so that every derivative is 0."""
        parts = (*self.gradient, *(h for row in self.hessian for h in row))
        return np.all(
            [np.broadcast_to(self.bad, np.shape(self.value)), *(x == 0 for x in parts)], 0
        )

    def filled(self, bad, fill_value):
        """Return this with a constant where `bad`."""
        return Exact(
            np.where(bad, fill_value, self.value),
            tuple(np.where(bad, 0, g) for g in self.gradient),
            tuple(tuple(np.where(bad, 0, h) for h in row) for row in self.hessian),
            self.size,
            self.gradient_size,
            self.hessian_size,
            tuple(np.where(bad, 0, step) for step in self.steps),
            tuple(np.where(bad, 0, step) for step in self.squares),
            tuple(np.where(bad, 0, step) for step in self.transposed),
            tuple(np.where(bad, 0, step) for step in self.tangents),
            self.bad | bad,
        )

    def sizes(self):
        """Return the sizes of value, slopes and second derivatives."""
        size = np.abs(self.value) if self.size is None else self.size
        slopes = self.gradient_size or tuple(np.abs(g) for g in self.gradient)
        # Of the largest: a second derivative is made in a step or two from each of the others.
        second = sum(np.abs(h) for row in self.hessian for h in row)
        return size, slopes, second if self.hessian_size is None else self.hessian_size


def of_one(value, slope, second, **sizes):
    """Return the derivatives of a function of one argument."""
    return Exact(value, (slope,), ((second,),), **sizes)


def of_two(value, gradient, xx, xy, yy, **sizes):
    """Return the derivatives of a function of two arguments."""
    return Exact(value, gradient, ((xx, xy), (xy, yy)), **sizes)


def nonzero(form):
    """Return the least number that safeops tells from 0 in every framework."""
    return form.normal * form.eps if form.bits == 11 else form.normal


def largest_exponent(form):
    """Return the largest number of the dtype whose exponential is finite."""
    exact = math.log(form.max)
    spacing = form.eps * 2.0 ** math.floor(math.log2(exact))
    return math.floor(exact / spacing) * spacing


def whole_line(dtype):
    """Return points for one argument: every exponent, and the neighbourhoods of 1 and -1."""
    return (np.unique(np.concatenate([signed(dtype), around(1, dtype), around(-1, dtype)])),)


def half_line(dtype):
    """Return points for a probability: every exponent, and the neighbourhoods of 1 and 1/2."""
    x = [positive(dtype), around(1, dtype), around(0.5, dtype), np.array([-1.0])]
    return (np.unique(np.concatenate(x)),)


def exponents_of_e(dtype):
    """Return points for exponentials: also steps over the range in which they are finite."""
    bound = largest_exponent(FORMATS[dtype])
    return (rounded(np.concatenate([*whole_line(dtype), np.linspace(-bound, bound, 999)]), dtype),)
