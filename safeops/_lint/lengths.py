"""SO002, SO008: a length that may be 0."""

import ast
from collections.abc import Iterator

from safeops._lint.found import File, Found, zeros
from safeops._lint.heuristics import CONSTANTS, WINDOW
from safeops._lint.probes import is_safe
from safeops._lint.scopes import last_word
from safeops._lint.shapes import length_of, number
from safeops._lint.terms import Term

UNITS = frozenset({"diag_embed", "diagflat", "eye", "identity", "ones", "ones_like", "new_ones"})


def padded(file: File) -> Iterator[Found]:
    """SO002: ``v / (norm(v) + eps)``."""
    for term in file.terms("div"):
        length = padded_length(term.args[1])
        framework = file.framework(term) if length else ""
        if length is None or not framework or not file.is_live(term.node, length):
            continue
        why = (
            f"the eps saves the value where `{file.text(length.node)}` is 0, and not the gradient: "
            "the slope of the length is not finite there"
        )
        yield Found("SO002", length.node, why, term.node, framework, length, zeros(length))


def padded_length(term: Term) -> Term | None:
    """Return the length in ``length + eps``, ``maximum(length, eps)``."""
    if term.operation not in {"add", "maximum", "clip"}:
        return None
    for x, y in (term.args[:2], term.args[1::-1]):
        if 0 < number(y) < 1 and (length_of(x) is not None or is_deviation(x)):
            return x
    return None


def is_deviation(term: Term) -> bool:
    """Whether a term is a deviation, which has no slope where all entries are equal."""
    return term.operation == "std" and term.framework in {"jax", "tensorflow", "keras", "xp"}


def rooted(file: File) -> Iterator[Found]:
    """SO008: ``sqrt(sum(x**2))``; the norm of the differences of points with themselves."""
    for term in file.terms("sqrt", "pow", "norm"):
        inside = length_of(term)
        framework = file.framework(term) if inside is not None else ""
        if inside is None or not framework or not file.is_live(term.node, term):
            continue
        if (term.operation == "norm" and not is_pairwise(inside)) or is_of_constants(inside):
            continue
        if any(is_written_unit(file, x.node) for x in inside.every):
            continue
        where = "the two points are one" if is_pairwise(inside) else "all that it sums up is 0"
        why = f"the slope of `{file.text(term.node)}` is not finite where {where}"
        yield Found("SO008", term.node, why, term.node, framework, term, zeros(term))


def normalised(file: File) -> Iterator[Found]:
    """SO008: ``n / norm(n)`` of a cross product, or of the differences of points."""
    for term in file.terms("div"):
        v, length = term.args
        inside = length_of(length) if length.operation != "norm" else length.args[0]
        while inside is not None and inside.operation in {"sum", "pow", "square", "mul"}:
            inside = inside.args[0]
        framework = file.framework(term)
        if inside is None or inside.key != v.key or not framework:
            continue
        if not (v.operation == "cross" or is_pairwise(v)) or not file.is_live(term.node, term):
            continue
        case = "two vectors are parallel" if v.operation == "cross" else "the two points are one"
        why = f"`{file.text(term.node)}` is 0 / 0 where {case}"
        yield Found("SO008", term.node, why, term.node, framework, term, zeros(length))


def is_of_constants(term: Term) -> bool:
    """Whether the names are those of constants that are squared: ``sigma**2 + noise_level**2``."""
    arrays = [x.name.split("@")[0] for x in term.every if x.operation == "atom"]
    if arrays and all(WINDOW.search(name) for name in arrays):
        return True
    return any(
        is_safe(name) or CONSTANTS.search(name.split("@")[0].split()[0]) for name in term.atoms
    )


def is_written_unit(file: File, node: ast.expr) -> bool:
    """Whether a name is an array that begins with ones, such as `eye`, and is written in part."""
    if not isinstance(node, ast.Name):
        return False
    every = file.scopes.definitions.get(file.scopes.scope_of(node), {}).get(node.id, [])
    made = [x.value for x in every if x.value is not None]
    is_written = any(
        isinstance(target, ast.Subscript)
        for x in every
        if isinstance(x.statement, ast.Assign)
        for target in x.statement.targets
    )
    return is_written and len(made) == 1 and last_word(made[0]) in UNITS


def is_pairwise(term: Term) -> bool:
    """Whether a term contains differences between the rows of an array: ``x[:, None] - x``."""
    return any(x.operation == "sub" and x.args[0].key == x.args[1].key for x in term.every)
