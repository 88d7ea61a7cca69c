"""
The value of a term, and whether its derivative is finite there.

Computed as a framework does in float32, entry by entry: what exceeds the largest number is inf, and
0 times an infinite slope is NaN, which reaches the atoms unless a selection stops it.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from safeops._lint.terms import REDUCTIONS, Term

LARGEST, SMALLEST = 3.4028235e38, 1.1754944e-38
Numbers = Mapping[str, float]
Slopes = Callable[..., tuple[float, ...]]


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
                found[key] = Value(numbers.get(key), live=not term.is_plain)
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
    if len(given) < len(parts) or not _is_known(term):
        return Value(None, live, bad)
    f, slopes = OPERATIONS[term.operation]
    is_known = not any(map(math.isnan, given))
    if bad is None and live and is_known and slopes is not _flat and not _is_smooth(term, given):
        steep = _tried(slopes, given)
        if any(x.live and not _is_finite(s) for x, s in zip(parts, steep, strict=True)):
            bad = term
    return Value(_single(_tried(lambda *x: (f(*x),), given)[0]), live, bad)


def _is_known(term: Term) -> bool:
    is_power = term.operation == "pow"  # with a variable exponent too little is known
    return term.operation in OPERATIONS and (not is_power or term.args[1].value is not None)


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


def divided(x: float, y: float) -> float:
    """Return a quotient by IEEE 754."""
    if y:
        return x / y
    return math.nan if not x or math.isnan(x) else math.copysign(math.inf, x)


def logarithm(x: float) -> float:
    """Return a logarithm, -inf at 0."""
    return math.log(x) if x else -math.inf


def power(x: float, p: float) -> float:
    """Return a power, inf for a negative power of 0."""
    if not x and p < 0:
        return math.inf
    found = x**p
    return math.nan if isinstance(found, complex) else found


def _root(x: float) -> tuple[float, ...]:
    return (divided(0.5, math.sqrt(x)),)


def _inverse(x: float) -> tuple[float, ...]:
    return (divided(1.0, math.sqrt(1 - x * x)),)


def _log_slope(x: float) -> tuple[float, ...]:
    return (divided(1.0, x),)


def _angle(y: float, x: float) -> tuple[float, ...]:
    r = x * x + y * y
    return divided(x, r), divided(y, r)


def _length(x: float, y: float) -> tuple[float, ...]:
    r = math.hypot(x, y)
    return divided(x, r), divided(y, r)


def _gamma(x: float) -> tuple[float, ...]:
    return (math.nan if x <= 0 else 1.0,)  # at 0 and below: poles, or NaN


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0  # noqa: PLR2004  (below it overflows)


def _flat(*given: float) -> tuple[float, ...]:
    """Return slopes that are finite everywhere."""
    return (0.0,) * len(given)


def _power_slopes(x: float, p: float) -> tuple[float, ...]:
    return (p * power(x, p - 1) if p else 0.0), 0.0


Rule = tuple[Callable[..., float], Slopes]
OPERATIONS: dict[str, Rule] = {
    "abs": (abs, _flat),
    "acos": (math.acos, _inverse),
    "acosh": (math.acosh, lambda x: (divided(1.0, math.sqrt(x * x - 1)),)),
    "add": (lambda x, y: x + y, _flat),
    "asin": (math.asin, _inverse),
    "atan2": (math.atan2, _angle),
    "atanh": (
        lambda x: math.atanh(x) if abs(x) < 1 else math.inf,
        lambda x: (divided(1.0, 1 - x * x),),
    ),
    "cos": (math.cos, _flat),
    "cosh": (math.cosh, lambda x: (math.sinh(x),)),
    "digamma": (lambda x: 0.0 if x > 0 else math.nan, _gamma),
    "div": (divided, lambda x, y: (divided(1.0, y), divided(-x, y * y))),
    "eq": (lambda x, y: float(x == y), _flat),
    "exp": (math.exp, lambda x: (math.exp(x),)),
    "expm1": (math.expm1, lambda x: (math.exp(x),)),
    "ge": (lambda x, y: float(x >= y), _flat),
    "gt": (lambda x, y: float(x > y), _flat),
    "hypot": (math.hypot, _length),
    "isfinite": (lambda x: float(math.isfinite(x)), _flat),
    "isinf": (lambda x: float(math.isinf(x)), _flat),
    "isnan": (lambda x: float(math.isnan(x)), _flat),
    "le": (lambda x, y: float(x <= y), _flat),
    "lgamma": (lambda x: math.lgamma(x) if x > 0 else math.inf, _gamma),
    "log": (logarithm, _log_slope),
    "log10": (logarithm, _log_slope),
    "log1p": (lambda x: logarithm(1 + x), lambda x: (divided(1.0, 1 + x),)),
    "log2": (logarithm, _log_slope),
    "logical_and": (lambda x, y: float(bool(x) and bool(y)), _flat),
    "logical_not": (lambda x: float(not x), _flat),
    "logical_or": (lambda x, y: float(bool(x) or bool(y)), _flat),
    "logical_xor": (lambda x, y: float(bool(x) != bool(y)), _flat),
    "logit": (lambda x: logarithm(x) - logarithm(1 - x), lambda x: (divided(1.0, x * (1 - x)),)),
    "lt": (lambda x, y: float(x < y), _flat),
    "mul": (lambda x, y: x * y, lambda x, y: (y, x)),
    "ne": (lambda x, y: float(x != y), _flat),
    "neg": (lambda x: -x, _flat),
    "pow": (power, _power_slopes),
    "reciprocal": (lambda x: divided(1.0, x), lambda x: (divided(1.0, x * x),)),
    "rsqrt": (lambda x: divided(1.0, math.sqrt(x)), lambda x: (divided(1.0, math.sqrt(x) ** 3),)),
    "sigmoid": (_sigmoid, _flat),
    "sign": (lambda x: math.copysign(1.0, x) if x else 0.0, _flat),
    "sin": (math.sin, _flat),
    "sinh": (math.sinh, lambda x: (math.cosh(x),)),
    "softplus": (lambda x: math.log1p(math.exp(-abs(x))) + max(x, 0.0), _flat),
    "sqrt": (math.sqrt, _root),
    "square": (lambda x: x * x, lambda x: (2 * x,)),
    "sub": (lambda x, y: x - y, _flat),
    "tanh": (math.tanh, _flat),
}
# Operations whose derivative may not be finite; a product passes on the faults of its factors.
SINGULAR = frozenset(OPERATIONS) - {
    name for name, (_, slopes) in OPERATIONS.items() if slopes is _flat
}


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


def _larger(x: Value, y: Value) -> Value:
    return _extreme(x, y, max)


def _smaller(x: Value, y: Value) -> Value:
    return _extreme(x, y, min)


def _extreme(x: Value, y: Value, choose: Callable[..., float]) -> Value:
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
    "fmax": _larger,
    "fmin": _smaller,
    "if": _if,
    "index": _index,
    "maximum": _larger,
    "minimum": _smaller,
    "relu": _relu,
    "where": _where,
}
