"""SO006, SO007, SO009: a mask that keeps nothing, and a comparison that NaN passes."""

import ast
import math
from collections.abc import Iterable, Iterator

from safeops._core.operations import SAME, TRUTH
from safeops._lint.found import File, Found, zeros
from safeops._lint.heuristics import NEVER_EMPTY
from safeops._lint.scopes import Function
from safeops._lint.shapes import SMALL, is_indicator, is_mask, is_named_mask, number
from safeops._lint.terms import Term
from safeops._source.edits import last_word

LEAST = -1e38
MOST_USES = 20  # uses of a name that are looked at
MENDS = frozenset({"nan_to_num", "masked_fill", "where", "nan_to_num_", "masked_fill_"})
LENGTHS = frozenset({"norm", "abs", "sqrt", "max", "min", "sum", "mean", "div", "sub"})


def averaged(file: File) -> Iterator[Found]:
    """SO006: ``sum(loss * mask) / mask.sum()``."""
    for term in file.terms("div"):
        above, total = term.args
        mask = total.args[0] if total.operation in {"sum", "mean"} else None
        if mask is None or not (is_mask(mask) or is_count_of(mask, above)):
            continue
        # Weights that are normalised, and what is equal and kept: `((p == y) * mask).sum()`.
        is_accuracy = is_count(above) and any(x.operation == "eq" for x in above.every)
        if above.key == mask.key or above.is_plain or is_accuracy or is_never_empty(file, mask):
            continue
        functions = [x for x in file.above(term.node) if isinstance(x, ast.FunctionDef)]
        if any(x.name.startswith("nan") for x in functions):  # `nanmean` is NaN, as in NumPy
            continue
        words = file.words_of(total)
        is_asked = any(file.is_asked(x, words) for x in (term.node, total.node))
        if file.has_gradient(term.node) and not is_asked:
            why = f"`{file.brief(total.node)}` is 0 where the mask keeps nothing: 0 / 0 is NaN"
            yield Found("SO006", term.node, why, term.node, term, zeros(total))


def is_count_of(indicator: Term, total: Term) -> bool:
    """Whether a denominator sums up what its name calls events, and weighs the numerator."""
    weights = (y for x in total.every if x.operation == "mul" for y in x.args)
    is_event = indicator.operation == "atom" and is_indicator(indicator)
    return is_event and any(x.key == indicator.key for x in weights)


def is_count(term: Term) -> bool:
    """Whether a term is made of constants and masks."""
    if term.operation in TRUTH or not term.args:
        return term.is_plain or is_named_mask(term)
    return all(map(is_count, term.args))


def emptied(file: File) -> Iterator[Found]:
    """SO007: ``softmax(masked_fill(x, mask, -inf))``; the sum of two masks of ``finfo.min``."""
    for term in file.terms("softmax", "log_softmax"):
        inner = term.args[0]
        mask = mask_of_infinity(inner)
        # A selection behind the softmax mends the value; the slope only if one before it cuts it.
        is_cut = mask is None or mask_of_infinity(inner, added=False) is not None
        if is_cut and is_mended(file, term.node):
            continue
        if mask is not None and not is_never_empty(file, mask):
            text = file.brief(mask.node)
            why = f"a row that `{text}` leaves out as a whole is all -inf, and its softmax is NaN"
        elif minimum_masks(inner) > 1:
            why = "the sum of two masks of finfo.min is -inf: a row of these has the softmax NaN"
        else:
            continue
        if not file.is_asked(term.node, file.words_of(inner)):
            yield Found("SO007", term.node, why, term.node, term)


def mask_of_infinity(term: Term, *, added: bool = True) -> Term | None:
    """Return the mask that puts -inf into the argument of a softmax, perhaps in a summand."""
    word, args = term.operation, term.args
    if word == "where":
        return args[0] if -math.inf in map(number, args[1:]) else None
    if word == "log" and added and is_indicator(args[0]):
        return args[0]
    is_sum = word in {"add", "sub"}
    parts = args if word in {"mul", "div", "if"} or (is_sum and added) else ()
    found = (mask_of_infinity(x, added=added) for x in parts)
    return next((mask for mask in found if mask is not None), None)


def minimum_masks(term: Term) -> int:
    """Return how many masks filled with the least number a term adds up."""
    if term.operation == "add":
        return sum(map(minimum_masks, term.args))
    return term.operation in {"where", "mul"} and any(number(x) <= LEAST for x in term.every)


def is_mended(file: File, node: ast.expr) -> bool:
    """Whether the result of a softmax goes directly through a selection."""
    parent = file.parents[node]
    while isinstance(parent, ast.Attribute | ast.Call):
        if last_word(parent) in MENDS:
            return True
        parent = file.parents[parent]
    target = parent.targets[0] if isinstance(parent, ast.Assign) else None
    uses = file.uses(target, parent)[:MOST_USES] if isinstance(target, ast.Name) else []
    around = (x for use in uses for x in file.around(use))
    return any(isinstance(x, ast.Call) and last_word(x) in MENDS for x in around)


def passed(file: File) -> Iterator[Found]:
    """SO009: ``if norm <= tol: raise``."""
    guards = (x for x in file.order if isinstance(x, ast.If) and isinstance(x.body[0], ast.Raise))
    for test in (x for guard in guards for x in ast.walk(guard.test)):
        if isinstance(test, ast.Compare) and is_small_guard(file, test):
            why = f"NaN passes `{file.brief(test)}`: every comparison with NaN is False"
            cure = "ask for what is right: `if not norm > tol`"
            yield Found("SO009", test, why, test, cure=cure)


def is_small_guard(file: File, test: ast.Compare) -> bool:
    """Whether a comparison, which nothing negates, tests if an entry of an array is small."""
    above = [x.op for x in file.above(test) if isinstance(x, ast.UnaryOp)]
    is_negated = any(isinstance(x, ast.Not | ast.Invert) for x in above)
    left, right = file.term(test.left), file.term(test.comparators[0])
    is_less = len(test.ops) == 1 and isinstance(test.ops[0], ast.Lt | ast.LtE)
    if is_negated or not is_less or not 0 < number(right) <= SMALL or left.value is not None:
        return False
    used = {part.framework for part in left.every if part.framework}
    return bool(used & {*file.differentiated, "numpy"}) and left.operation in LENGTHS


def is_never_empty(file: File, mask: Term) -> bool:
    """Whether a mask keeps an entry in each row: a triangle, the largest entries, lengths."""
    words = {word.lower() for word in file.words_of(mask) | set(mask_words(file, mask))}
    return any(known in word for word in words for known in NEVER_EMPTY)


def mask_words(file: File, mask: Term) -> Iterator[str]:
    """Yield the functions from which a mask is made; one name back, or more through views."""
    stack = [(part.node, True) for part in mask.every]
    seen: set[ast.AST] = set()
    called: set[str] = set()
    while stack:
        whole, is_followed = stack.pop()
        parts = [node for node in ast.walk(whole) if node not in seen]
        seen.update(parts)
        called |= calls_in(parts)
        names = [x for x in parts if isinstance(x, ast.Name | ast.Attribute) and is_followed]
        values = (value for name in names for value in values_of(file, name))
        stack += [(value, calls_in(ast.walk(value)) <= SAME) for value in values]
    yield from called
    for function in file.order:
        if isinstance(function, Function) and getattr(function, "name", "") in called:
            yield from calls_in(ast.walk(function))


def calls_in(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the last words of the functions that are called."""
    return {last_word(x) for x in nodes if isinstance(x, ast.Call)}


def values_of(file: File, name: ast.Name | ast.Attribute) -> Iterator[ast.expr]:
    """Yield the expressions that a name, or an attribute such as ``self.mask``, may stand for."""
    if isinstance(name, ast.Name):
        given = file.definition_of(name)
        value = given.value or getattr(given.statement, "value", None) if given else None
        yield from [value] if value is not None else []
        return
    text = ast.unparse(name)
    for node in ast.walk(file.scope_of(name)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == text:
            yield node.value
    for call in file.buffers:
        if getattr(call.args[0], "value", "") == name.attr:
            yield call.args[1]
