"""Masks that keep something in each row: triangles, the largest entries, lengths."""

import ast
from collections.abc import Iterator

from safeops._lint.guards import Guards
from safeops._lint.heuristics import NEVER_EMPTY
from safeops._lint.scopes import Scopes
from safeops._lint.terms import SAME, Term


def is_never_empty(scopes: Scopes, guards: Guards, mask: Term) -> bool:
    """Whether a mask keeps an entry in each row: a triangle, the largest entries, lengths."""
    words = {word.lower() for word in guards.words_of(mask) | set(mask_words(scopes, mask))}
    return any(known in word for word in words for known in NEVER_EMPTY)


def mask_words(scopes: Scopes, mask: Term) -> Iterator[str]:
    """Yield the functions from which a mask is made; one name back, or more through views."""
    stack = [(part.node, True) for part in mask.every]
    seen: set[ast.AST] = set()
    called: set[str] = set()
    while stack:
        whole, is_followed = stack.pop()
        parts = [node for node in ast.walk(whole) if node not in seen]
        seen.update(parts)
        called |= {last_word(node) for node in parts if isinstance(node, ast.Call)}
        names = [node for node in parts if isinstance(node, ast.Name | ast.Attribute)]
        for value in (x for name in names if is_followed for x in values_of(scopes, name)):
            words = {last_word(x) for x in ast.walk(value) if isinstance(x, ast.Call)}
            stack.append((value, words <= SAME))
    yield from called
    makers = [x for x in scopes.functions if getattr(x, "name", "") in called]
    yield from (last_word(x) for f in makers for x in ast.walk(f) if isinstance(x, ast.Call))


def values_of(scopes: Scopes, name: ast.Name | ast.Attribute) -> Iterator[ast.expr]:
    """Yield the expressions that a name, or an attribute such as ``self.mask``, may stand for."""
    if isinstance(name, ast.Name):
        given = scopes.definition_of(name)
        value = given.value or getattr(given.statement, "value", None) if given else None
        if value is not None:
            yield value
        return
    text = ast.unparse(name)
    for node in ast.walk(scopes.scope_of(name)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == text:
            yield node.value
    for call in scopes.buffers:
        if isinstance(call.args[0], ast.Constant) and call.args[0].value == name.attr:
            yield call.args[1]


def last_word(node: ast.AST) -> str:
    """Return the last word of a function's name, or of the called function."""
    f = node.func if isinstance(node, ast.Call) else node
    return str(getattr(f, "attr", "") or getattr(f, "id", ""))
