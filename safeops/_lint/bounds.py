"""The interval of a term's values, whatever the values of its atoms."""

import math
from collections.abc import Callable
from functools import partial

from safeops._lint.operations import ABOVE_0, ALL, AT_LEAST_0, OPERATIONS, UNKNOWN, Bounds
from safeops._lint.terms import Term

ENTRIES = frozenset({"max", "mean", "min", "segment", "sum", "prod", "cumsum"})


def bounds(term: Term) -> Bounds:
    """Return the interval of a term."""
    word, args = term.operation, term.args
    if term.value is not None:
        return Bounds(term.value, term.value)
    known = OPERATIONS.get(word, UNKNOWN).bounds
    if known is not None:
        return known
    if word in ENTRIES:
        inside = bounds(args[0])
        return (
            inside if word in {"max", "mean", "min"} or inside.low < 0 else Bounds(*_zero(inside))
        )
    return RULES[word](*args) if word in RULES else ALL


def _zero(inside: Bounds) -> Bounds:
    return ABOVE_0 if inside.is_positive else AT_LEAST_0


def _add(x: Term, y: Term) -> Bounds:
    a, b = bounds(x), bounds(y)
    return Bounds(a.low + b.low, a.high + b.high, above=a.above or b.above)


def _mul(x: Term, y: Term) -> Bounds:
    if x.key == y.key:
        return _square(x)
    a, b = bounds(x), bounds(y)
    if a.is_positive and b.is_positive:
        return ABOVE_0
    return AT_LEAST_0 if a.low >= 0 and b.low >= 0 else ALL


def _square(x: Term) -> Bounds:
    a = bounds(x)
    return ABOVE_0 if a.is_positive or a.high < 0 else AT_LEAST_0


def _div(x: Term, y: Term) -> Bounds:
    a, b = bounds(x), bounds(y)
    if b.low < 0:
        return ALL
    return ABOVE_0 if a.is_positive else AT_LEAST_0 if a.low >= 0 else ALL


def _pow(x: Term, y: Term) -> Bounds:
    a = bounds(x)
    if y.value is not None and y.value % 2 == 0:
        return _square(x)
    if y.value is not None and a.low >= 0:
        return ABOVE_0 if a.is_positive else AT_LEAST_0
    return ABOVE_0 if a.is_positive else ALL


def _clip(x: Term, low: Term, high: Term) -> Bounds:
    a = bounds(x)
    l, h = (bounds(low), bounds(high))  # noqa: E741  (low and high)
    least = a.low if math.isnan(l.low) else max(a.low, l.low)
    most = a.high if math.isnan(h.high) else min(a.high, h.high)
    return Bounds(least, most, above=a.above and least == a.low)


def _either(lower: Callable[..., Bounds], upper: Callable[..., float], x: Term, y: Term) -> Bounds:
    """Return the interval of a maximum, a minimum or a choice, from the ends that it takes."""
    a, b = bounds(x), bounds(y)
    end = lower(a, b, key=lambda one: (one.low, one.above))
    return Bounds(end.low, upper(a.high, b.high), above=end.above)


RULES: dict[str, Callable[..., Bounds]] = {
    "add": _add,
    "clip": _clip,
    "div": _div,
    "if": lambda _, x, y: _either(min, max, x, y),
    "index": lambda x, _: bounds(x),
    "maximum": partial(_either, max, max),
    "minimum": partial(_either, min, min),
    "mul": _mul,
    "neg": lambda x: Bounds(-bounds(x).high, -bounds(x).low),
    "pow": _pow,
    "square": _square,
    "sub": lambda x, y: Bounds(bounds(x).low - bounds(y).high, bounds(x).high - bounds(y).low),
    "where": lambda _, x, y: _either(min, max, x, y),
}
