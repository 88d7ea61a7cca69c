"""Patterns that several rules need: a number, a length, a mask."""

import math

from safeops._core.operations import TRUTH
from safeops._lint.heuristics import EVENTS, MASK
from safeops._lint.terms import Term, spelling
from safeops._lint.values import bounds, is_steep_norm

SMALL = 1e-2  # a number that is added as a protection


def number(term: Term) -> float:
    """Return the number of a constant; NaN for any other term."""
    return math.nan if term.value is None else term.value


def is_square(term: Term) -> bool:
    """Whether a term is a square."""
    word, args = term.operation, term.args
    if word == "mul":
        return args[0].key == args[1].key or (number(args[0]) > 0 and is_square(args[1]))
    return word == "square" or (word == "pow" and number(args[1]) == 2)  # noqa: PLR2004  (a square)


def is_squares(term: Term) -> bool:
    """Whether a term is a sum of squares, which is 0 where all of them are."""
    if term.operation in {"sum", "mean", "add"}:
        return all(is_square_of_any(x) or is_squares(x) for x in term.args)
    return term.operation == "mse_loss"


def is_square_of_any(term: Term) -> bool:
    """Whether a term is a square that is 0 where two things are equal: not ``(x - y + eps)**2``."""
    return is_square(term) and not is_padded(term.args[0])


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
