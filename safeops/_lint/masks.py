"""Masks that keep something in each row: triangles, the largest entries, lengths."""

import ast
from collections.abc import Iterator

from safeops._lint.guards import Guards
from safeops._lint.scopes import Scopes
from safeops._lint.terms import Term

NEVER_EMPTY = (
    "arange", "causal", "diag", "eye", "filter", "future", "kth", "len2", "length", "lens",
    "lookahead", "look_ahead", "pad_mask", "remove", "sequence_mask", "sort", "subsequent",
    "suppress", "threshold", "topk", "top_k", "top_p", "tril", "triu", "window",
)  # fmt: skip


def is_never_empty(scopes: Scopes, guards: Guards, mask: Term) -> bool:
    """Whether a mask keeps an entry in each row: a triangle, the largest entries, lengths."""
    words = {word.lower() for word in guards.words_of(mask) | set(mask_words(scopes, mask))}
    return any(known in word for word in words for known in NEVER_EMPTY)


def mask_words(scopes: Scopes, mask: Term) -> Iterator[str]:
    """Yield the names of all functions from which a mask is made."""
    nodes = [node for part in mask.every for node in ast.walk(part.node)]
    for name in [node for node in nodes if isinstance(node, ast.Name | ast.Attribute)]:
        nodes += [part for value in values_of(scopes, name) for part in ast.walk(value)]
    yield from (last_word(node) for node in nodes if isinstance(node, ast.Call))


def values_of(scopes: Scopes, name: ast.Name | ast.Attribute) -> Iterator[ast.AST]:
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


def last_word(node: ast.AST) -> str:
    """Return the last word of a function's name, or of the called function."""
    f = node.func if isinstance(node, ast.Call) else node
    return str(getattr(f, "attr", "") or getattr(f, "id", ""))
