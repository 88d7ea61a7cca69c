"""Points at which a selection drops a branch whose derivative is not finite."""

import ast
import math
import re
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from safeops._lint.bounds import bounds
from safeops._lint.heuristics import ENDS, SAFE
from safeops._lint.operations import REDUCTIONS, SINGULAR
from safeops._lint.shapes import is_steep_norm
from safeops._lint.terms import COMPARISONS, Term
from safeops._lint.values import Program, Value

# In the order in which they are tried; the first that shows the fault is reported.
POINTS = (0.0, 1.0, -1.0, 0.5, 2.0, -2.0, 200.0, -200.0)
FEW = 7  # points for each of three atoms
VARIED = 3  # atoms that are varied at once
MOST = 8  # atoms; terms with more are not tried
LARGEST = 150  # operations; terms with more are not tried
BIG = 1e6


class Hit(NamedTuple):
    """A fault: the operation without a finite slope, and the point at which it is dropped."""

    culprit: Term
    numbers: dict[str, float]


def hit(cond: Term, taken: Term, other: Term) -> Hit | None:
    """
    Return where ``where(cond, taken, other)`` drops a branch that has no finite slope.

    Only if the condition keeps that operation from the points at which it fails: if it fails among
    the kept entries too, the condition is about something else.
    """
    asked = set(cond.atoms)
    if not asked or not any(is_suspect(x, asked) for x in (*taken.every, *other.every)):
        return None
    program = Program(cond, taken, other)
    if len(program.parts) > LARGEST:
        return None
    hits: dict[str, list[Hit]] = {}
    failed: set[str] = set()
    for numbers in trials(cond, taken, other):
        found = program.run(numbers)
        chosen = found[cond.key].number
        if chosen is None:
            continue
        here, dead = (taken, other) if chosen else (other, taken)
        bad = found[dead.key].bad
        if (genuine := found[here.key].bad) is not None:
            failed.add(genuine.key)
        elif bad is not None and is_suspect(bad, asked) and is_healthy(found[here.key]):
            hits.setdefault(bad.key, []).append(Hit(bad, numbers))
    if asks_by_value(cond):  # it tests the result, not the operand
        failed -= {x.key for x in cond.every}
    kept = (one for key, some in hits.items() if key not in failed for one in some[:TRIED])
    return next((one for one in kept if is_meant(program, cond, one)), None)


def is_meant(program: Program, cond: Term, found: Hit) -> bool:
    """
    Whether a condition is there because of the point at which an operation fails.

    It is if the branch is taken close to that point, or if the operation overflows. Else the
    condition divides the numbers elsewhere, and the point may be impossible, such as a shape of -1.
    """
    numbers = found.numbers
    if any(abs(numbers[name]) > HUGE for name in found.culprit.atoms):
        is_free = not any(isinstance(x.node, ast.Call) for x in found.culprit.atoms.values())
        return found.culprit.operation in OVERFLOWING and is_free
    if asks_by_value(cond) and any(x.key == found.culprit.key for x in cond.every):
        return True
    here = program.run(numbers)[cond.key].number
    for name in cond.atoms:
        for step in (x for size in CLOSE for x in (size, -size)):
            beside = program.run(numbers | {name: numbers[name] + step})[cond.key].number
            if beside is not None and bool(beside) != bool(here):
                return True
    return False


def asks_by_value(cond: Term) -> bool:
    """Whether a condition tests if a value is NaN or infinite."""
    return any(
        x.operation in {"isnan", "isinf", "isfinite"}
        or (x.operation in COMPARISONS.values() and any(math.isinf(y.value or 0) for y in x.args))
        for x in cond.every
    )


TRIED = 8  # faults of one operation to examine
OVERFLOWING = frozenset({"cosh", "exp", "expm1", "sinh"})
CLOSE = (1e-4, 1e-2, 0.1, 0.5)


def is_suspect(term: Term, asked: set[str]) -> bool:
    """Whether an operation may lack a finite slope due to an operand that the condition tests."""
    if term.operation not in SINGULAR and not is_steep_norm(term):
        return False
    causes = causes_of(term)
    return any(not asked.isdisjoint(x.atoms) and not is_sure(x) for x in causes)


def causes_of(term: Term) -> tuple[Term, ...]:
    """Return the operands at whose values an operation fails."""
    if term.operation == "norm":  # at its own value, as that of its vector is not known
        return (term,)
    if term.operation == "div":
        return term.args[1:]
    if term.operation == "pow":
        return term.args[:1]
    if term.operation in {"mul", "square"}:  # fails where a factor is infinite
        return tuple(x for x in term.args if x.is_plain and x.operation in SINGULAR)
    return term.args


def is_sure(term: Term) -> bool:
    """Whether a term cannot reach its singular point: by its name, or by a number added to it."""
    if term.operation == "sub" and all(ENDS.search(name) for name in term.atoms):
        return True  # high - low
    return is_padded(term) or any(is_safe(name) for name in term.atoms)


def is_safe(name: str) -> bool:
    """Whether a name claims to be safe: ``safe_x``."""
    return bool(SAFE.search(re.split("[@ ]", name, maxsplit=1)[0]))


def is_padded(term: Term) -> bool:
    """Whether a term adds a small number: ``x + eps``."""
    return term.operation == "add" and any(0 < (x.value or 0) <= SMALL for x in term.args)


SMALL = 1e-2


def is_healthy(found: Value) -> bool:
    """Whether the value of a branch is finite, as far as is known."""
    return found.number is None or math.isfinite(found.number)


def first_bad(term: Term) -> Hit | None:
    """Return a point at which a term has no finite slope, except by overflow; None if none."""
    program = Program(term)
    for numbers in trials(term):
        bad = program.run(numbers)[term.key].bad
        if bad is None or any(map(is_sure, causes_of(bad))):
            continue
        if not any(abs(x) > HUGE for x in numbers.values()):
            return Hit(bad, numbers)
    return None


HUGE = 100.0


def trials(*terms: Term) -> Iterator[dict[str, float]]:
    """Yield points for the atoms: those of the first term vary, and a few more."""
    atoms = {name: atom for term in terms for name, atom in term.atoms.items()}
    if len(atoms) > MOST:
        return
    mentioned = {x.value for term in terms for x in term.every if x.value is not None}
    more = sorted(x for x in mentioned - set(POINTS) if abs(x) < BIG)
    rest = set().union(*(term.atoms for term in terms[1:]))
    first = sorted(terms[0].atoms, key=lambda name: name not in rest)
    varied = [*first, *(name for name in atoms if name not in first)][:VARIED]
    points = [*more[:FEW], *POINTS] if len(varied) < VARIED else [*more[:2], *POINTS[: FEW - 1]]
    points.sort(key=lambda x: POINTS.index(x) if x in POINTS else len(POINTS))
    grids = [[p for p in points if is_possible(atoms[name], p)] for name in varied]
    fixed = {name: 0.37 + 0.171 * i for i, name in enumerate(atoms)}  # no two are equal
    for numbers in product(*grids):
        yield fixed | dict(zip(varied, numbers, strict=True))


def is_possible(atom: Term, number: float) -> bool:
    """Whether an atom can have this value."""
    if atom.operation not in REDUCTIONS:
        return True
    found = bounds(atom)
    return found.low <= number <= found.high and not (found.above and number == found.low)
