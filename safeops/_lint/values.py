"""
The value of a term, and whether its derivative is finite there.

Computed as a framework does in float32, entry by entry: what exceeds the largest number is inf, and
0 times an infinite slope is NaN, which reaches the atoms unless a selection stops it.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from safeops._lint.operations import OPERATIONS, REDUCTIONS, UNKNOWN, Slopes
from safeops._lint.shapes import is_steep_norm
from safeops._lint.terms import Term

LARGEST, SMALLEST = 3.4028235e38, 1.1754944e-38
Numbers = Mapping[str, float]


class Value(NamedTuple):
    """A number (None: unknown), whether a gradient reaches it, the term without a finite slope."""

    number: float | None
    live: bool = False
    bad: Term | None = None


class Program:
    """Terms in an order in which each part is computed once."""

    def __init__(self, *terms: Term) -> None:
        """Order all parts, each after those that it consists of."""
        self.parts: dict[str, Term] = {}
        for term in terms:
            self._add(term)

    def _add(self, term: Term) -> None:
        if term.key in self.parts:
            return
        if not is_atom(term):
            for part in term.args:
                self._add(part)
        self.parts[term.key] = term

    def run(self, numbers: Numbers) -> dict[str, Value]:
        """Return the value of each part, by its key, for these numbers of the atoms."""
        found: dict[str, Value] = {}
        for key, term in self.parts.items():
            if is_atom(term):
                x, live = numbers.get(key), not term.is_plain
                found[key] = Value(
                    x, live, term if live and x == 0 and is_steep_norm(term) else None
                )
            else:
                found[key] = _computed(term, [found[x.key] for x in term.args])
        return found


def is_atom(term: Term) -> bool:
    """Whether nothing but the name of a term is known."""
    return term.operation == "atom" or term.operation in REDUCTIONS


def _computed(term: Term, parts: list[Value]) -> Value:
    """Return the value of an operation from the values of its operands."""
    if term.value is not None:
        return Value(term.value)
    if term.operation in CHOICES:
        return CHOICES[term.operation](*parts)
    bad = next((x.bad for x in parts if x.bad is not None), None)
    live = any(x.live for x in parts) and not term.is_plain
    given = [x.number for x in parts if x.number is not None]
    row = OPERATIONS.get(term.operation, UNKNOWN)
    f = None if _is_open_power(term) else row.value
    if f is None or len(given) < len(parts):
        is_over_0 = term.operation == "div" and parts[1].number == 0
        return Value(None, live, bad or (term if live and is_over_0 else None))
    is_known = not any(map(math.isnan, given))
    if bad is None and live and is_known and row.slopes is not None and not _is_smooth(term, given):
        steep = _tried(row.slopes, given)
        if any(x.live and not _is_finite(s) for x, s in zip(parts, steep, strict=True)):
            bad = term
    return Value(_single(_tried(lambda *x: (f(*x),), given)[0]), live, bad)


def _is_open_power(term: Term) -> bool:
    """Whether a term is a power with a variable exponent, of which too little is known."""
    return term.operation == "pow" and term.args[1].value is None


def _is_smooth(term: Term, given: list[float]) -> bool:
    """Whether a framework has a finite slope although mathematics has none."""
    return (term.operation, term.framework) in SPARED and not any(given)


SPARED = {("atan2", "torch"), ("hypot", "jax")}  # measured: PyTorch 2.13, JAX 0.10


def _tried(f: Slopes, given: list[float]) -> tuple[float, ...]:
    """Return the value of a function; NaN outside its domain."""
    try:
        return f(*given)
    except (ValueError, ZeroDivisionError):
        return (math.nan,) * len(given)
    except OverflowError:
        return (math.inf,) * len(given)


def _is_finite(slope: float) -> bool:
    return math.isfinite(slope) and abs(slope) <= LARGEST


def _single(x: float) -> float:
    """Return a number rounded to the range of float32."""
    if abs(x) > LARGEST:
        return math.copysign(math.inf, x)
    return 0.0 if abs(x) < SMALLEST else x


# Choices: a case that is not taken has gradient 0, and keeps a NaN that is made in it.


def _where(cond: Value, x: Value, y: Value) -> Value:
    bad = x.bad or y.bad
    if cond.number is None:
        return Value(None, x.live or y.live, bad)
    taken = x if cond.number else y
    return Value(taken.number, taken.live, bad)


def _if(cond: Value, x: Value, y: Value) -> Value:
    if cond.number is None:
        return Value(None, x.live or y.live)
    return x if cond.number else y


def _index(x: Value, mask: Value) -> Value:
    return Value(x.number if mask.number else None, x.live, x.bad)


def _clip(x: Value, low: Value, high: Value) -> Value:
    if x.number is None:
        return x
    least = -math.inf if _is_open(low) else low.number or 0.0
    most = math.inf if _is_open(high) else high.number or 0.0
    inside = least <= x.number <= most
    return Value(min(max(x.number, least), most), x.live and inside, x.bad)


def _is_open(end: Value) -> bool:
    """Whether a clip has no such limit."""
    return end.number is None or math.isnan(end.number)


def _extreme(choose: Callable[..., float], x: Value, y: Value) -> Value:
    bad = x.bad or y.bad
    if x.number is None or y.number is None:
        return Value(None, x.live or y.live, bad)
    taken = choose(x.number, y.number)
    live = (x.live and x.number == taken) or (y.live and y.number == taken)
    return Value(taken, live, bad)


def _relu(x: Value) -> Value:
    if x.number is None:
        return x
    return Value(max(x.number, 0.0), x.live and x.number > 0, x.bad)


CHOICES: dict[str, Callable[..., Value]] = {
    "clip": _clip,
    "fmax": partial(_extreme, max),
    "fmin": partial(_extreme, min),
    "if": _if,
    "index": _index,
    "maximum": partial(_extreme, max),
    "minimum": partial(_extreme, min),
    "relu": _relu,
    "where": _where,
}
