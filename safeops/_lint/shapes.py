"""Patterns that several rules need: a length, a mask, an end of a domain."""

import math

from safeops._lint.bounds import bounds
from safeops._lint.heuristics import EVENTS, MASK
from safeops._lint.operations import TRUTH
from safeops._lint.terms import Term

# Frameworks whose norm has no finite slope at a zero vector; PyTorch's has slope 0.
STEEP = frozenset({"jax", "tensorflow", "keras", "xp"})
CLOSE = 3e-8  # float32 rounds 1 - CLOSE to 1


def number(term: Term) -> float:
    """Return the number of a constant; NaN for any other term."""
    return math.nan if term.value is None else term.value


def is_root(term: Term) -> bool:
    """Whether a term is a square root."""
    return term.operation == "sqrt" or (term.operation == "pow" and number(term.args[1]) == 0.5)  # noqa: PLR2004  (a root)


def is_square(term: Term) -> bool:
    """Whether a term is a square."""
    word, args = term.operation, term.args
    if word == "mul":
        return args[0].key == args[1].key or (number(args[0]) > 0 and is_square(args[1]))
    return word == "square" or (word == "pow" and number(args[1]) == 2)  # noqa: PLR2004  (a square)


def is_squares(term: Term) -> bool:
    """Whether a term is a sum of squares, which is 0 where all of them are."""
    if term.operation == "mse_loss":
        return True
    if term.operation in {"sum", "mean"}:
        return is_square(term.args[0]) or is_squares(term.args[0])
    if term.operation == "add":
        return all(is_square(x) or is_squares(x) for x in term.args)
    return False


def length_of(term: Term) -> Term | None:
    """Return the term inside a length without a finite slope at 0; None for any other term."""
    if is_root(term) and is_squares(term.args[0]) and not bounds(term.args[0]).is_positive:
        return term.args[0]
    return term.args[0] if is_steep_norm(term) else None


def is_steep_norm(term: Term) -> bool:
    """Whether a term is a norm without a finite slope at a zero vector."""
    return term.operation == "norm" and term.framework in STEEP and is_euclidean(term)


def is_euclidean(term: Term) -> bool:
    """Whether a norm is the square root of a sum of squares."""
    for name in ("ord", "p", "#0"):
        given = term.options.get(name)
        value = getattr(given, "value", None)
        if given is not None and value not in (None, 2, 2.0, "euclidean", "fro"):
            return False
    return True


def is_mask(term: Term) -> bool:
    """Whether a term is a boolean, or 0 and 1 by its name."""
    if term.operation in TRUTH:
        return True
    if term.operation == "sub":  # 1 - mask
        return number(term.args[0]) == 1 and is_mask(term.args[1])
    return is_named_mask(term)


def is_named_mask(term: Term) -> bool:
    """Whether the name of an atom says that it is a mask."""
    return term.operation == "atom" and bool(MASK.search(word_of(term)))


def is_indicator(term: Term) -> bool:
    """Whether a term is a mask, or what its name calls events."""
    return is_mask(term) or (term.operation == "atom" and bool(EVENTS.search(word_of(term))))


def word_of(term: Term) -> str:
    """Return the last word of the name of an atom: ``mask`` of ``batch.mask[0]``."""
    words = term.name.split("@")[0].split()
    return words[0].rpartition(".")[2].split("(")[0].split("[")[0] if words else ""
