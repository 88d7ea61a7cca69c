"""SO002, SO008: a length that may be 0."""

import ast
from collections.abc import Iterator

from safeops._lint.found import File, Found, zeros
from safeops._lint.heuristics import CONSTANTS, SAFE, WINDOW
from safeops._lint.shapes import length_of, number
from safeops._lint.terms import Term, spelling
from safeops._lint.values import STEEP
from safeops._source.edits import last_word

UNITS = frozenset({"diag_embed", "diagflat", "eye", "identity", "ones", "ones_like", "new_ones"})


def padded(file: File) -> Iterator[Found]:
    """SO002: ``v / (norm(v) + eps)``."""
    for term in file.terms("div"):
        length = padded_length(term.args[1])
        if length is not None and file.is_live(term.node, length):
            why = (
                f"the eps saves the value where `{file.brief(length.node)}` is 0, and not the "
                "gradient: the slope of the length is not finite there"
            )
            yield Found("SO002", length.node, why, term.node, length, zeros(length))


def padded_length(term: Term) -> Term | None:
    """Return the length, or the deviation, in ``length + eps``, ``maximum(length, eps)``."""
    pairs = (
        (term.args[:2], term.args[1::-1]) if term.operation in {"add", "maximum", "clip"} else ()
    )
    small = (x for x, y in pairs if 0 < number(y) < 1)
    # A deviation has no slope where all entries are equal.
    lengths = (x for x in small if length_of(x) or (x.operation == "std" and x.framework in STEEP))
    return next(lengths, None)


def rooted(file: File) -> Iterator[Found]:
    """SO008: ``sqrt(sum(x**2))``; the norm of the differences of points with themselves."""
    for term in file.terms("sqrt", "pow", "norm"):
        inside = length_of(term)
        if inside is None or not file.is_live(term.node, term) or is_of_constants(inside):
            continue
        is_between = is_pairwise(inside)
        if term.operation == "norm" and not is_between:
            continue
        if not any(is_written_unit(file, x.node) for x in inside.every):
            where = "the two points are one" if is_between else "all that it sums up is 0"
            why = f"the slope of `{file.brief(term.node)}` is not finite where {where}"
            yield Found("SO008", term.node, why, term.node, term, zeros(term))


def normalised(file: File) -> Iterator[Found]:
    """SO008: ``n / norm(n)`` of a cross product, or of the differences of points."""
    for term in file.terms("div"):
        v, length = term.args
        inside = length.args[0] if length.operation == "norm" else length_of(length)
        while inside is not None and inside.operation in {"sum", "pow", "square", "mul"}:
            inside = inside.args[0]
        is_cross = v.operation == "cross"
        if inside is None or inside.key != v.key or not (is_cross or is_pairwise(v)):
            continue
        if file.is_live(term.node, term):
            case = "two vectors are parallel" if is_cross else "the two points are one"
            why = f"`{file.brief(term.node)}` is 0 / 0 where {case}"
            yield Found("SO008", term.node, why, term.node, term, zeros(length))


def is_of_constants(term: Term) -> bool:
    """Whether the names are those of constants that are squared: ``sigma**2 + noise_level**2``."""
    arrays = [spelling(x.name) for x in term.every if x.operation == "atom"]
    is_window = bool(arrays) and all(map(WINDOW.search, arrays))
    names = list(map(spelling, term.atoms))
    return is_window or any(SAFE.search(x) or CONSTANTS.search(x) for x in names)


def is_written_unit(file: File, node: ast.expr) -> bool:
    """Whether a name is an array that begins with ones, such as `eye`, and is written in part."""
    scope = file.definitions.get(file.scope_of(node), {})
    every = scope.get(node.id, []) if isinstance(node, ast.Name) else []
    made = [x.value for x in every if x.value is not None]
    targets = (y for x in every for y in getattr(x.statement, "targets", ()))
    is_written = any(isinstance(x, ast.Subscript) for x in targets)
    return is_written and len(made) == 1 and last_word(made[0]) in UNITS


def is_pairwise(term: Term) -> bool:
    """Whether a term contains differences between the rows of an array: ``x[:, None] - x``."""
    return any(x.operation == "sub" and x.args[0].key == x.args[1].key for x in term.every)
