"""Dataflow in the user's program: whether the value of a line decides what a later line drops."""

import ast
from collections.abc import Iterator

from safeops._source.edits import Page, named, scope_of, span_of, targets
from safeops._source.locations import Location
from safeops._source.names import BY_VALUE


def decides(page: Page, node: ast.expr, selection: str, at: Location | None) -> bool | None:
    """Whether an expression decides which of its entries a selection drops; None if unknown."""
    if selection in BY_VALUE:
        return True
    choices = [] if at is None else list(choices_at(page, at))
    if not choices:
        return None
    every = [part for choice in choices for part in ast.walk(choice)]
    if any(ast.dump(part) == ast.dump(node) for part in every):
        return True
    names = names_from(page, node, choices[0])
    if names is None:
        return None
    return any(isinstance(part, ast.Name) and part.id in names for part in every)


def names_from(page: Page, node: ast.expr, choice: ast.expr) -> set[str] | None:
    """Return the names that depend on an expression before a choice; None if unknown."""
    statement, scope = page.statement(node), scope_of(page, node)
    if statement is page.statement(choice):
        return set()
    is_named = isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign)
    if not is_named or scope is not scope_of(page, choice):
        return None
    return tainted(scope, set(targets(statement)))


def choices_at(page: Page, at: Location) -> Iterator[ast.expr]:
    """Yield the expressions that select on a line: conditions, indices, masks."""
    last = at.line if at.span is None else at.span[1]
    for node in page.expressions:
        if node.lineno > last or span_of(node)[1] < at.line:
            continue
        if isinstance(node, ast.Subscript):
            yield node.slice
        elif isinstance(node, ast.Call) and named(node) == "where":
            yield from node.args[: 1 if len(node.args) == 3 else None]  # noqa: PLR2004  (both branches are given)
        elif isinstance(node, ast.Call) and named(node) in MASKS:
            yield from node.args[-2:]


MASKS = ("gather", "index_fill", "index_select", "masked_fill", "masked_select", "take")


def tainted(scope: ast.AST, names: set[str]) -> set[str]:
    """Return the names that depend on given names, in whatever order the statements run."""
    before = 0
    while len(names) > before:
        before = len(names)
        for statement in ast.walk(scope):
            if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
                used = ast.walk(statement.value) if statement.value is not None else ()
                if any(isinstance(part, ast.Name) and part.id in names for part in used):
                    names |= set(targets(statement))
    return names
