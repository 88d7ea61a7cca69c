"""
Exact numbers by mpmath, for the sweeps over exponents: NumPy has no special functions.

The numbers have 40 digits before they become extended precision. Points are fewer than for other
operations, because each takes a millisecond.
"""

from functools import cache

import mpmath
import numpy as np

from exponents import rounded

DIGITS = 40


def exactly(function, *args):
    """Return the numbers that a function gives for each point, as arrays of extended precision."""
    with mpmath.workdps(DIGITS):
        rows = [found(function, *map(float, point)) for point in zip(*args, strict=True)]
    return [np.array(column, dtype=np.longdouble) for column in zip(*rows, strict=True)]


@cache
def found(function, *point):
    """Return the numbers of a function at a point."""
    return [np.longdouble(mpmath.nstr(x, 25)) for x in function(*map(mpmath.mpf, point))]


def thinned(numbers, dtype, most=150):
    """Return some of many numbers, the ends among them."""
    numbers = np.unique(rounded(numbers, dtype))
    return numbers[np.unique(np.linspace(0, len(numbers) - 1, most).astype(int))]
