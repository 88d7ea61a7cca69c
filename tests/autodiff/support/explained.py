"""
Programs whose gradients are explained: written once for all frameworks, with what is to be found.

In each the line that ends in ``# made`` computes what is not finite, and the one in ``# dropped``
selects; both marks may stand on one line. The text of this file, repaired, is run again.
"""

import math
from typing import Any, NamedTuple


def where_in_one_line(xp, x):
    """Take the root in a where."""
    return xp.sum(xp.where(x > 0, xp.sqrt(x), 0.0))  # made, dropped


def root_before_where(xp, x):
    """Take the root above the where."""
    root = xp.sqrt(x)  # made
    return xp.sum(xp.where(x > 0, root, 0.0))  # dropped


def quotient_in_where(xp, x):
    """Divide in the second branch."""
    return xp.sum(xp.where(x == 0, 1.0, xp.sin(x) / x))  # made, dropped


def quotient_before_index(xp, x):
    """Divide, and read another entry."""
    ratio = xp.cos(x) / x  # made
    half = ratio / 2
    return half[1]  # dropped


def log_before_slice(xp, x):
    """Take the logarithm, and read the rest."""
    rest = xp.log(x)[1:]  # made, dropped
    return xp.sum(rest * 2)


def log_of_three_lines(xp, x):
    """Spread a call over lines."""
    return xp.sum(
        xp.where(  # dropped
            x > 0,  # a comment stays where it was
            3 * xp.log(x),  # made
            x,
        )
    )


def power_before_where(xp, x):
    """Take a root as a power."""
    half = x**0.5  # made
    return xp.sum(xp.where(x > 0, half, x))  # dropped


def overflow(xp, x):
    """Have an exponential overflow where it is not used."""
    return xp.sum(xp.where(x < 10.0, xp.exp(x), x))  # made, dropped


def angle(xp, x):
    """Leave out the end of the domain of acos."""
    return xp.sum(xp.where(x < 1, xp.acos(x), 0.0))  # made, dropped


def root_of_a_sum(xp, x):
    """Take the norm of rows by hand."""
    norms = xp.sqrt(xp.sum(x * x, axis=-1))  # made
    return norms[1]  # dropped


def two_operations(xp, x):
    """Have two slopes in one chain."""
    late = xp.sqrt(xp.exp(xp.log(x)))  # made
    return late[1]  # dropped


def nearest_selection(xp, x):
    """Drop one entry twice, first by where."""
    root = xp.sqrt(x)  # made
    kept = xp.where(x > 0, root, x)  # dropped
    return xp.sum(kept[:2])


def loop(xp, x):
    """Run one line three times."""
    total = x[1] * 0
    for _ in range(3):
        root = xp.sqrt(x)  # made
        total = total + root[1]  # dropped
    return total


def squared_root(xp, x):
    """Square a root: the whole has slope 1 at 0, where a safe root would make 0."""
    return xp.sum(xp.sqrt(x) ** 2)  # made


def root_at_the_edge(xp, x):
    """Select the entry at which the slope is infinite."""
    return xp.sum(xp.where(x >= 0, xp.sqrt(x), 0.0))  # made


def log_of_negative(xp, x):
    """Make a NaN, and use it."""
    y = x - 3
    return xp.sum(xp.log(y) * 2)  # made


def difference_of_infinities(xp, x):
    """Make a NaN of infinities that are given."""
    weights = xp.exp(x - xp.max(x, axis=-1, keepdims=True))  # made
    return xp.sum(weights)


def input_of_nan(xp, x):
    """Use a NaN that is given."""
    return xp.sum(x * 2)


class Case(NamedTuple):
    """A program, where it is run, and what is found."""

    f: Any
    point: Any
    kind: str
    operations: tuple[str, ...]
    gradient: Any = None  # after the repair, from mathematics; None if there is no edit
    entries: int = 1


NAN, INF = math.nan, math.inf
COSC = -(math.sin(2) / 2 + math.cos(2) / 4) / 2  # of cos(x) / x / 2 at 2
SINC = math.cos(2) / 2 - math.sin(2) / 4  # of sin(x) / x at 2
CASES = (
    Case(where_in_one_line, [0.0, 4.0], "BLOCKED", ("sqrt",), [0.0, 0.25]),
    Case(root_before_where, [0.0, 4.0], "BLOCKED", ("sqrt",), [0.0, 0.25]),
    Case(quotient_in_where, [0.0, 2.0], "BLOCKED", ("div",), [0.0, SINC]),
    Case(quotient_before_index, [0.0, 2.0], "BLOCKED", ("div",), [0.0, COSC]),
    Case(log_before_slice, [0.0, 2.0], "BLOCKED", ("log",), [0.0, 1.0]),
    Case(log_of_three_lines, [0.0, 2.0], "BLOCKED", ("log",), [1.0, 1.5]),
    Case(power_before_where, [0.0, 4.0], "BLOCKED", ("pow", "sqrt"), [1.0, 0.25]),
    Case(overflow, [0.0, 1000.0], "BLOCKED", ("exp",), [1.0, 1.0]),
    Case(angle, [0.0, 1.0], "BLOCKED", ("acos",), [-1.0, 0.0]),
    Case(root_of_a_sum, [[0.0, 0.0], [3.0, 4.0]], "BLOCKED", ("sqrt",), [[0.0, 0.0], [0.6, 0.8]]),
    Case(two_operations, [0.0, 4.0], "BLOCKED", ("sqrt", "log"), [0.0, 0.25], 2),
    Case(nearest_selection, [0.0, 4.0, 0.0], "BLOCKED", ("sqrt",), [1.0, 0.25, 0.0], 2),
    Case(loop, [0.0, 4.0], "BLOCKED", ("sqrt",), [0.0, 0.75], 3),
    Case(squared_root, [0.0, 4.0], "GENUINE", ("sqrt",)),
    Case(root_at_the_edge, [0.0, 4.0], "GENUINE", ("sqrt",), [0.0, 0.25]),
    Case(log_of_negative, [1.0, 5.0], "FORWARD", ("log",), [0.0, 1.0]),
    Case(difference_of_infinities, [[-INF, -INF], [0.0, 0.0]], "FORWARD", ("sub",), None, 2),
    Case(input_of_nan, [NAN, 1.0], "FORWARD", ("input",)),
)


# Programs in which nothing is to be found.


def unused_nan(xp, x):
    """Make a NaN that nothing reads."""
    xp.log(-x - 1)
    return xp.sum(x * 2)


def slope_that_is_stopped(xp, x):
    """Have an infinite slope meet a where, whose gradient drops it."""
    inside = xp.where(x > 0, x, 1.0)
    return xp.sum(xp.where(x > 0, xp.sqrt(inside), 0.0))


CLEAN = (unused_nan, slope_that_is_stopped)
