"""Points at which a selection drops a branch whose derivative is not finite."""

import ast
import math
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from safeops._core.operations import REDUCTIONS, SINGULAR
from safeops._lint.heuristics import ENDS, SAFE
from safeops._lint.terms import COMPARISONS, Term, spelling
from safeops._lint.values import Program, bounds, is_padded, is_steep_norm

# In the order in which they are tried; the first that shows the fault is reported.
POINTS = (0.0, 1.0, -1.0, 0.5, 2.0, -2.0, 200.0, -200.0)
FEW = 7  # points for each of three atoms
VARIED = 3  # atoms that are varied at once
MOST = 8  # atoms; terms with more are not tried
LARGEST = 150  # operations; terms with more are not tried
BIG = 1e6  # a constant of the program from which on it is no point
HUGE = 100.0  # a number at which operations overflow
TRIED = 8  # faults of one operation to examine
OVERFLOWING = frozenset({"cosh", "exp", "expm1", "sinh"})
CLOSE = (1e-4, 1e-2, 0.1, 0.5)


class Hit(NamedTuple):
    """A fault: the operation without a finite slope, and the point at which it is dropped."""

    culprit: Term
    numbers: dict[str, float]


def singular_point_of(cond: Term, taken: Term, other: Term) -> Hit | None:
    """Return where ``where(cond, taken, other)`` drops a branch that has no finite slope."""
    # Only if the condition keeps that operation from the points at which it fails: if it fails
    # among the kept entries too, the condition is about something else.
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
        kept, bad = found[here.key], found[dead.key].bad
        if kept.bad is not None:
            failed.add(kept.bad.key)
        elif bad is not None and is_suspect(bad, asked) and math.isfinite(kept.number or 0):
            hits.setdefault(bad.key, []).append(Hit(bad, numbers))
    if asks_by_value(cond):  # it tests the result, not the operand
        failed -= {x.key for x in cond.every}
    tried = (one for key, some in hits.items() if key not in failed for one in some[:TRIED])
    return next((one for one in tried if is_meant(program, cond, one)), None)


def is_meant(program: Program, cond: Term, found: Hit) -> bool:
    """Whether a condition is there because of the point at which an operation fails."""
    # It is if the branch is taken close to that point, or if the operation overflows. Else the
    # condition divides the numbers elsewhere, and the point may be impossible, such as a shape of
    # -1.
    culprit, numbers = found
    if any(abs(numbers[name]) > HUGE for name in culprit.atoms):
        is_free = not any(isinstance(x.node, ast.Call) for x in culprit.atoms.values())
        return culprit.operation in OVERFLOWING and is_free
    if asks_by_value(cond) and any(x.key == culprit.key for x in cond.every):
        return True
    here = program.run(numbers)[cond.key].number
    near = (numbers | {x: numbers[x] + d} for x in cond.atoms for s in CLOSE for d in (s, -s))
    beside = (program.run(x)[cond.key].number for x in near)
    return any(x is not None and bool(x) != bool(here) for x in beside)


def asks_by_value(cond: Term) -> bool:
    """Whether a condition tests if a value is NaN or infinite."""
    return any(
        x.operation in {"isnan", "isinf", "isfinite"}
        or (x.operation in COMPARISONS.values() and any(math.isinf(y.value or 0) for y in x.args))
        for x in cond.every
    )


def is_suspect(term: Term, asked: set[str]) -> bool:
    """Whether an operation may lack a finite slope due to an operand that the condition tests."""
    if term.operation not in SINGULAR and not is_steep_norm(term):
        return False
    return any(not asked.isdisjoint(x.atoms) and not is_sure(x) for x in causes_of(term))


def causes_of(term: Term) -> tuple[Term, ...]:
    """Return the operands at whose values an operation fails."""
    if term.operation == "norm":  # at its own value, as that of its vector is not known
        return (term,)
    if term.operation in {"mul", "square"}:  # fails where a factor is infinite
        return tuple(x for x in term.args if x.is_plain and x.operation in SINGULAR)
    return {"div": term.args[1:], "pow": term.args[:1]}.get(term.operation, term.args)


def is_sure(term: Term) -> bool:
    """Whether a term cannot reach its singular point: by its name, or by a number added to it."""
    is_length = term.operation == "sub" and all(map(ENDS.search, term.atoms))  # high - low
    return is_length or is_padded(term) or any(SAFE.search(spelling(name)) for name in term.atoms)


def first_bad(term: Term) -> Hit | None:
    """Return a point at which a term has no finite slope, except by overflow; None if none."""
    program = Program(term)
    for numbers in trials(term):
        bad = program.run(numbers)[term.key].bad
        is_huge = any(abs(x) > HUGE for x in numbers.values())
        if bad is not None and not is_huge and not any(map(is_sure, causes_of(bad))):
            return Hit(bad, numbers)
    return None


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
    points = [*POINTS, *more[:FEW]] if len(varied) < VARIED else [*POINTS[: FEW - 1], *more[:2]]
    grids = [[x for x in points if is_possible(atoms[name], x)] for name in varied]
    fixed = {name: 0.37 + 0.171 * i for i, name in enumerate(atoms)}  # no two are equal
    for numbers in product(*grids):
        yield fixed | dict(zip(varied, numbers, strict=True))


def is_possible(atom: Term, number: float) -> bool:
    low, high, above = bounds(atom)
    is_end = above and number == low
    return atom.operation not in REDUCTIONS or (low <= number <= high and not is_end)
