"""
The values of a term: their interval, and the value and slope for given numbers of its atoms.

Computed as a framework does in float32, entry by entry: what exceeds the largest number is inf, and
0 times an infinite slope is NaN, which reaches the atoms unless a selection stops it.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from safeops._core.operations import OPERATIONS, REDUCTIONS, TRUTH, UNKNOWN, Bounds
from safeops._lint.heuristics import EVENTS, MASK
from safeops._lint.terms import Term, spelling

LARGEST, SMALLEST = 3.4028235e38, 1.1754944e-38
# Frameworks whose norm has no finite slope at a zero vector; PyTorch's has slope 0.
STEEP = frozenset({"jax", "tensorflow", "keras", "xp"})
SPARED = {("atan2", "torch"), ("hypot", "jax")}  # slope 0 at 0: PyTorch 2.13, JAX 0.10


def is_steep_norm(term: Term) -> bool:
    """Whether a term is a Euclidean norm without a finite slope at a zero vector."""
    given = [getattr(term.options.get(x), "value", None) for x in ("ord", "p", "#0")]
    is_euclidean = all(x in (None, 2, 2.0, "euclidean", "fro") for x in given)
    return term.operation == "norm" and term.framework in STEEP and is_euclidean


# Intervals


def bounds(term: Term) -> Bounds:
    """Return the interval of a term's values, whatever the values of its atoms."""
    word, args = term.operation, term.args
    if term.value is not None:
        return Bounds(term.value, term.value)
    row = OPERATIONS.get(word, UNKNOWN)
    if word == "mul" and args[0].key == args[1].key:
        row, args = OPERATIONS["square"], args[:1]
    return row.bounds if row.interval is None else row.interval(*map(bounds, args))


# Numbers


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
        if term.key not in self.parts:
            for part in () if is_atom(term) else term.args:
                self._add(part)
            self.parts[term.key] = term

    def run(self, numbers: Mapping[str, float]) -> dict[str, Value]:
        """Return the value of each part, by its key, for these numbers of the atoms."""
        found: dict[str, Value] = {}
        for key, term in self.parts.items():
            if is_atom(term):
                x, live = numbers.get(key), not term.is_plain
                is_bad = live and x == 0 and is_steep_norm(term)
                found[key] = Value(x, live, term if is_bad else None)
            else:
                found[key] = _computed(term, [found[x.key] for x in term.args])
        return found


def is_atom(term: Term) -> bool:
    """Whether nothing but the name of a term is known."""
    return term.operation == "atom" or term.operation in REDUCTIONS


def _computed(term: Term, parts: list[Value]) -> Value:
    word = term.operation
    if term.value is not None:
        return Value(term.value)
    if word in CHOICES:
        return CHOICES[word](*parts)
    bad = next((x.bad for x in parts if x.bad is not None and not term.is_plain), None)
    live = any(x.live for x in parts) and not term.is_plain
    given = [x.number for x in parts if x.number is not None]
    row = OPERATIONS.get(word, UNKNOWN)
    is_open_power = word == "pow" and term.args[1].value is None  # of which too little is known
    if row.value is None or is_open_power or len(given) < len(parts):
        is_over_0 = live and word == "div" and parts[1].number == 0
        return Value(None, live, bad or (term if is_over_0 else None))
    is_spared = any(map(math.isnan, given)) or ((word, term.framework) in SPARED and not any(given))
    if bad is None and live and not is_spared:
        slopes = zip(parts, row.slopes_at(*given), strict=True)
        bad = term if any(x.live and not abs(slope) <= LARGEST for x, slope in slopes) else None
    return Value(_single(row.at(*given)), live, bad)


def _single(x: float) -> float:
    """Return a number rounded to the range of float32."""
    if abs(x) > LARGEST:
        return math.copysign(math.inf, x)
    return 0.0 if abs(x) < SMALLEST else x


# Choices: a case that is not taken has gradient 0, and keeps a NaN that is made in it.


def _if(cond: Value, x: Value, y: Value) -> Value:
    return Value(None, x.live or y.live) if cond.number is None else x if cond.number else y


def _clip(x: Value, low: Value, high: Value) -> Value:
    if x.number is None:
        return x
    least, most = _end(low, -math.inf), _end(high, math.inf)
    live = x.live and least <= x.number <= most
    return Value(min(max(x.number, least), most), live, x.bad)


def _end(value: Value, default: float) -> float:
    return default if value.number is None or math.isnan(value.number) else value.number


def _extreme(choose: Callable[..., float], x: Value, y: Value) -> Value:
    bad = x.bad or y.bad
    if x.number is None or y.number is None:
        return Value(None, x.live or y.live, bad)
    taken = choose(x.number, y.number)
    return Value(taken, any(one.live and one.number == taken for one in (x, y)), bad)


def _relu(x: Value) -> Value:
    return x if x.number is None else Value(max(x.number, 0.0), x.live and x.number > 0, x.bad)


CHOICES: dict[str, Callable[..., Value]] = {
    "clip": _clip,
    "if": _if,
    "index": lambda x, mask: x if mask.number else x._replace(number=None),
    "maximum": partial(_extreme, max),
    "minimum": partial(_extreme, min),
    "relu": _relu,
    "where": lambda cond, x, y: _if(cond, x, y)._replace(bad=x.bad or y.bad),
}


SMALL = 1e-2  # a number that is added as a protection


def number(term: Term) -> float:
    """Return the number of a constant; NaN for any other term."""
    return math.nan if term.value is None else term.value


def is_square(term: Term) -> bool:
    word, args = term.operation, term.args
    if word == "mul":
        return args[0].key == args[1].key or (number(args[0]) > 0 and is_square(args[1]))
    return word == "square" or (word == "pow" and number(args[1]) == 2)  # noqa: PLR2004  (a square)


def is_squares(term: Term) -> bool:
    """Whether a term is a sum of squares, which is 0 where all of them are."""
    if term.operation in {"sum", "mean", "add"}:
        # Not `(x - y + eps)**2`, which is not 0 where two things are equal.
        return all((is_square(x) and not is_padded(x.args[0])) or is_squares(x) for x in term.args)
    return term.operation == "mse_loss"


def is_padded(term: Term) -> bool:
    """Whether a small number is added to a term."""
    return term.operation == "add" and any(0 < number(x) <= SMALL for x in term.args)


def length_of(term: Term) -> Term | None:
    """Return the term inside a length without a finite slope at 0; None for any other term."""
    inner = term.args[0] if term.args else term
    is_root = term.operation == "sqrt" or (term.operation == "pow" and number(term.args[1]) == 0.5)  # noqa: PLR2004  (a root)
    is_length = is_root and is_squares(inner) and not bounds(inner).is_positive
    return inner if is_length or is_steep_norm(term) else None


def is_mask(term: Term) -> bool:
    """Whether a term is a boolean, or 0 and 1 by its name."""
    if term.operation == "sub":  # 1 - mask
        return number(term.args[0]) == 1 and is_mask(term.args[1])
    return term.operation in TRUTH or is_named_mask(term)


def is_named_mask(term: Term) -> bool:
    """Whether the name of an atom says that it is a mask."""
    return term.operation == "atom" and bool(MASK.search(word_of(term)))


def is_indicator(term: Term) -> bool:
    """Whether a term is a mask, or what its name calls events."""
    return is_mask(term) or (term.operation == "atom" and bool(EVENTS.search(word_of(term))))


def word_of(term: Term) -> str:
    """Return the last word of the name of an atom: ``mask`` of ``batch.mask[0]``."""
    return spelling(term.name).rpartition(".")[2].split("(")[0].split("[")[0]
