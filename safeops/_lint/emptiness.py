"""SO006, SO007, SO009: a mask that keeps nothing, and a comparison that NaN passes."""

import ast
import math
from collections.abc import Iterator

from safeops._lint.found import File, Found, zeros
from safeops._lint.guards import Guards
from safeops._lint.heuristics import NEVER_EMPTY
from safeops._lint.operations import TRUTH
from safeops._lint.scopes import Scopes, last_word
from safeops._lint.shapes import is_indicator, is_mask, is_named_mask, number
from safeops._lint.terms import SAME, Term

LEAST = -1e38
MOST_USES = 20  # uses of a name that are looked at
MENDS = frozenset({"nan_to_num", "masked_fill", "where", "nan_to_num_", "masked_fill_"})
SMALL = 1e-2
LENGTHS = frozenset({"norm", "abs", "sqrt", "max", "min", "sum", "mean", "div", "sub"})


def averaged(file: File) -> Iterator[Found]:
    """SO006: ``sum(loss * mask) / mask.sum()``."""
    for term in file.terms("div"):
        total = term.args[1]
        if total.operation not in {"sum", "mean"}:
            continue
        if not is_mask(total.args[0]) and not is_count_of(total.args[0], term.args[0]):
            continue
        if term.args[0].key == total.args[0].key:  # it normalises weights
            continue
        if is_never_empty(file.scopes, file.guards, total.args[0]) or is_of_nan(file, term.node):
            continue
        framework = file.framework(term)
        if not framework or not file.guards.has_gradient(term.node):
            continue
        if term.args[0].is_plain or is_accuracy(term.args[0]):
            continue
        words = file.guards.words_of(total)
        if file.guards.is_asked(term.node, words) or file.guards.is_asked(total.node, words):
            continue
        text = file.text(total.node)
        why = f"`{text}` is 0 where the mask keeps nothing: 0 / 0 is NaN"
        yield Found("SO006", term.node, why, term.node, framework, term, zeros(total))


def is_count_of(indicator: Term, total: Term) -> bool:
    """Whether a denominator sums up what its name calls events, and weighs the numerator."""
    if indicator.operation != "atom" or not is_indicator(indicator):
        return False
    products = (x for x in total.every if x.operation == "mul")
    return any(x.key == indicator.key for product in products for x in product.args)


def is_accuracy(term: Term) -> bool:
    """Whether a term counts what is equal and kept: ``((p == y) * mask).sum()``."""
    return is_count(term) and any(x.operation == "eq" for x in term.every)


def is_count(term: Term) -> bool:
    """Whether a term is made of constants and masks."""
    if term.operation in TRUTH or not term.args:
        return term.is_plain or is_named_mask(term)
    return all(map(is_count, term.args))


def is_of_nan(file: File, node: ast.AST) -> bool:
    """Whether a function such as `nanmean` is NaN for an empty slice, as in NumPy."""
    functions = (x for x in file.scopes.around(node) if isinstance(x, ast.FunctionDef))
    return any(x.name.startswith("nan") for x in functions)


def emptied(file: File) -> Iterator[Found]:
    """SO007: ``softmax(masked_fill(x, mask, -inf))``; the sum of two masks of ``finfo.min``."""
    for term in file.terms("softmax", "log_softmax"):
        framework = file.framework(term)
        inner = term.args[0]
        mask = mask_of_infinity(inner)
        # A selection behind the softmax mends the value; the slope only if one before it cuts it.
        is_cut = mask is None or mask_of_infinity(inner, added=False) is not None
        if not framework or (is_cut and is_mended(file, term.node)):
            continue
        if mask is not None and not is_never_empty(file.scopes, file.guards, mask):
            text = file.text(mask.node)
            why = f"a row that `{text}` leaves out as a whole is all -inf, and its softmax is NaN"
        elif len(minimum_masks(inner)) > 1:
            why = "the sum of two masks of finfo.min is -inf: a row of these has the softmax NaN"
        else:
            continue
        if not file.guards.is_asked(term.node, file.guards.words_of(inner) - {"float"}):
            yield Found("SO007", term.node, why, term.node, framework, term)


def mask_of_infinity(term: Term, *, added: bool = True) -> Term | None:
    """Return the mask that puts -inf into the argument of a softmax, perhaps in a summand."""
    if term.operation == "where":
        cond, x, y = term.args
        return cond if -math.inf in {number(x), number(y)} else None
    if term.operation in {"add", "sub"} and added:
        logs = [x for x in term.args if x.operation == "log" and is_indicator(x.args[0])]
        if logs:
            return logs[0].args[0]
    parts = term.args if added or term.operation not in {"add", "sub"} else ()
    if term.operation in {"add", "sub", "mul", "div", "if"}:
        found = (mask_of_infinity(x, added=added) for x in parts)
        return next((mask for mask in found if mask is not None), None)
    return None


def minimum_masks(term: Term) -> list[Term]:
    """Return the masks filled with the least number that a term adds up."""
    if term.operation == "add":
        return [mask for x in term.args for mask in minimum_masks(x)]
    least = any(number(x) <= LEAST for x in term.every)
    return [term] if least and term.operation in {"where", "mul"} else []


def is_mended(file: File, node: ast.expr) -> bool:
    """Whether the result of a softmax goes directly through a selection."""
    parent = file.scopes.parents[node]
    while isinstance(parent, ast.Attribute | ast.Call):
        if last_word(parent) in MENDS:
            return True
        parent = file.scopes.parents[parent]
    if not isinstance(parent, ast.Assign) or not isinstance(parent.targets[0], ast.Name):
        return False
    uses = file.guards.uses(parent.targets[0], parent)[:MOST_USES]
    return any(
        isinstance(x, ast.Call) and last_word(x) in MENDS
        for use in uses
        for x in file.scopes.up_to_statement(use)
    )


def passed(file: File) -> Iterator[Found]:
    """SO009: ``if norm <= tol: raise``."""
    for node in file.scopes.order:
        if not isinstance(node, ast.If) or not isinstance(node.body[0], ast.Raise):
            continue
        for test in ast.walk(node.test):
            if is_refused(file, test):
                continue
            if isinstance(test, ast.Compare) and is_small_guard(file, test):
                why = f"NaN passes `{file.text(test)}`: every comparison with NaN is False"
                found = Found("SO009", test, why, test, file.names.home)
                found.cure = "ask for what is right: `if not norm > tol`"
                yield found


def is_refused(file: File, test: ast.AST) -> bool:
    """Whether a comparison is negated: ``not (error < tol).all()`` is true for NaN too."""
    around = (x for x in file.scopes.around(test) if isinstance(x, ast.UnaryOp))
    return any(isinstance(x.op, ast.Not | ast.Invert) for x in around)


def is_small_guard(file: File, test: ast.Compare) -> bool:
    """Whether a comparison tests if an entry of an array is small."""
    if len(test.ops) != 1 or not isinstance(test.ops[0], ast.Lt | ast.LtE):
        return False
    left, right = file.reader.term(test.left), file.reader.term(test.comparators[0])
    if not 0 < number(right) <= SMALL or left.value is not None:
        return False
    used = {part.framework for part in left.every if part.framework}
    return bool(used & {*file.differentiated, "numpy"}) and left.operation in LENGTHS


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
