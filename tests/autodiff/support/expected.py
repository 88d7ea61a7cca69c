"""What a report is expected to say: kinds, from value and gradients, and lines, from the source."""

import inspect

import numpy as np


def kinds_expected(value, *gradients):
    """Return the kinds that a value, its ordinary gradient and its masked gradient ask for."""
    bad, ours = (np.count_nonzero(~np.isfinite(g)) for g in gradients)
    used = {"FORWARD"} if not np.isfinite(value) else {"GENUINE"} if ours else set()
    return used | ({"BLOCKED"} if bad > ours else set())


def line_of(f, text=""):
    """Return the number of the line of a function that has a text; the first by default."""
    lines, start = inspect.getsourcelines(f)
    return max(start, 1) + next(i for i, line in enumerate(lines) if text in line)
