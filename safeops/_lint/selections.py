"""SO001, SO004 to SO007, SO009: what selections, masks and comparisons let through."""

import ast
import math
from collections.abc import Iterator

from safeops._core.operations import SAME, TRUTH
from safeops._lint.found import File, Found, Selection, zeros
from safeops._lint.heuristics import DIAGONAL, NAN, NEVER_EMPTY, PROBABILITIES
from safeops._lint.names import calls_in
from safeops._lint.probes import Hit, asks_by_value, causes_of, first_bad, is_sure
from safeops._lint.terms import Term
from safeops._lint.values import SMALL, is_indicator, is_mask, is_named_mask, number, word_of
from safeops._source.edits import last_word

SELECT = "choose by `where` or `masked_fill` in place of a product"
LOGS = frozenset({"log", "log10", "log2"})
STEEP_AT_0 = LOGS | {"sqrt"}
STEEP = STEEP_AT_0 | {"div", "reciprocal", "rsqrt"}


def selections(file: File) -> Iterator[Selection]:
    for term in file.terms("where", "index"):
        cond, taken, *rest = term.args if term.operation == "where" else term.args[::-1]
        other = rest[0] if rest else file.number(term.node, 0.0)
        yield Selection(term, cond, taken, other, term.node)
    yield from assignments(file)


def assignments(file: File) -> Iterator[Selection]:
    """Yield each ``y[cond] = number``."""
    for node in file.order:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Subscript):
            continue
        target = node.targets[0]
        term, cond, put = map(file.term, (target.value, target.slice, node.value))
        is_asked = isinstance(target.value, ast.Name) and (
            cond.operation in TRUTH or is_named_mask(cond)
        )
        if is_asked and file.framework(term, put):
            yield Selection(term, cond, put, term, target)


def dropped(file: File) -> Iterator[Found]:
    """SO001, SO004: ``where(x > 0, log(x), 0)``; ``where(isnan(y), 0, y)``."""
    for selection in selections(file):
        found = file.singular_point_of(selection.cond, selection.taken, selection.other)
        if found is None or not file.is_live(selection.whole.node, found.culprit):
            continue
        if file.framework(found.culprit) or not found.culprit.framework:
            yield from finding_of_selection(file, selection, found)


def overwritten(file: File) -> Iterator[Found]:
    """SO001: ``y = 1 / x``, and ``y[~keep] = 0``, where the mask is given."""
    for selection in assignments(file):
        whole, cond, put, other, _ = selection
        mask = cond.args[0] if cond.operation == "logical_not" else cond
        if not is_indicator(mask) or {mask.operation} != {"atom"} or other.operation not in STEEP:
            continue
        operand = causes_of(other)[0]
        is_fixed = operand.operation != "atom" or operand.is_plain or is_sure(operand)
        if not is_fixed and number(put) == 0 and file.is_live(whole.node, other):
            for one in finding_of_selection(file, selection, Hit(other, zeros(operand))):
                one.is_given = True
                yield one


def finding_of_selection(file: File, selection: Selection, found: Hit) -> Iterator[Found]:
    """Yield a finding if a selection drops entries that have no finite slope."""
    whole, cond, taken, other, place = selection
    if NAN.search(ast.unparse(whole.node)):  # it marks missing values
        return
    node = found.culprit.node
    why = (
        f"line {place.lineno} drops `{file.brief(node)}` at {file.at(*found)}, but not its "
        "slope, which is not finite there: 0 times that is NaN in the gradient"
    )
    rule = "SO004" if asks_by_value(cond) else "SO001"
    filled = taken if found.culprit in other.every else other
    yield Found(rule, node, why, whole.node, *found, selection=selection, filled=filled)


def replaced(file: File) -> Iterator[Found]:
    """SO004: ``nan_to_num(x / y)``; ``clamp(log(x), min=-100)``."""
    for term in file.terms("nan_to_num", "clip", "maximum"):
        word, args = term.operation, term.args
        pairs = (args[:2], args[1::-1]) if word != "nan_to_num" else ()
        floored = [x for x, y in pairs if x.operation in LOGS and math.isfinite(number(y))]
        found = next(map(first_bad, floored if pairs else args), None)
        if found is None or (pairs and found.culprit.operation not in LOGS):
            continue
        if file.is_live(term.node, found.culprit):
            node = found.culprit.node
            why = (
                f"{word} mends the value of `{file.brief(node)}` at {file.at(*found)}, and not "
                "its slope: the gradient stays NaN"
            )
            yield Found("SO004", node, why, term.node, *found)


def factors(file: File) -> Iterator[tuple[Term, Term, Term]]:
    """Yield each product, with its factors in both orders."""
    for term in file.terms("mul"):
        x, y = term.args
        yield from ((term, x, y), (term, y, x))


def infinite(file: File) -> Iterator[Found]:
    """SO005: ``(1 - mask) * -inf``."""
    for term, mask, other in factors(file):
        if not math.isinf(number(other)) or not is_mask(mask) or not file.has_gradient(term.node):
            continue
        # XLA makes a selection of a product with a boolean.
        if file.framework(term) != "jax" or mask.operation not in TRUTH:
            why = f"0 times infinity: `{file.brief(term.node)}` is NaN where the mask is 0"
            yield Found("SO005", term.node, why, term.node, cure=SELECT)


def multiplied(file: File) -> Iterator[Found]:
    """SO005: ``mask * log(x)``."""
    for term, mask, other in factors(file):
        if not is_mask(mask) or is_mask(other):
            continue
        is_named = is_named_mask(mask)
        found = (
            log_of(other)
            if is_named
            else file.singular_point_of(mask, other, file.number(term.node, 0.0))
        )
        if found is not None and file.is_live(term.node, found.culprit):
            node, word = found.culprit.node, "sign" if mask.operation == "sign" else "mask"
            why = (
                f"the {word} leaves `{file.brief(node)}` in at {file.at(*found)}: 0 times infinity "
                "is NaN, in the gradient if not in the value"
            )
            yield Found("SO005", node, why, term.node, *found)


def weighed(file: File) -> Iterator[Found]:
    """SO005: ``p * log(p)``; ``p * log(p / q)``."""
    for term, weight, log in factors(file):
        # A softmax underflows to 0; another array may be a probability by its name.
        is_named = weight.operation == "atom" and PROBABILITIES.search(word_of(weight))
        is_probability = weight.operation == "softmax" or (is_named and not weight.is_plain)
        if log.operation != "log" or not is_probability:
            continue
        inner = log.args[0]
        p = inner.args[0] if inner.operation == "div" else inner
        if p.key == weight.key and file.is_live(term.node, log) and not any(map(is_sure, p.every)):
            why = f"`{file.brief(term.node)}` is 0 times infinity where a probability is 0: NaN"
            yield Found("SO005", log.node, why, term.node, log, zeros(p))


def undone(file: File) -> Iterator[Found]:
    """SO005: ``logsumexp(x + log(w))``, ``log_softmax(log(w))``, ``exp(sum(log(x)))``."""
    for term in file.terms("logsumexp", "log_softmax", "exp"):
        inner, outer = term.args[0], "sum" if term.operation == "exp" else "add"
        parts = inner.args if inner.operation == outer else (inner,) if outer == "add" else ()
        for log in (x for x in parts if x.operation in {"log", "log1p"}):
            found = first_bad(log)
            if found is None or found.culprit is not log or any(map(DIAGONAL.search, log.atoms)):
                continue
            if file.is_live(term.node, log):
                why = (
                    f"`{file.brief(term.node)}` undoes a logarithm that is -inf at "
                    f"{file.at(*found)}, but not its slope: 0 times infinity is NaN in the gradient"
                )
                yield Found("SO005", log.node, why, term.node, *found)


def log_of(term: Term) -> Hit | None:
    """Return where a logarithm or a root of one array has no finite slope, if the term is one."""
    while term.operation in {"neg", "mul"}:
        term = next((x for x in term.args if x.operation in STEEP_AT_0), term.args[-1])
    is_log = term.operation in STEEP_AT_0 and term.args[0].operation == "atom"
    return first_bad(term) if is_log else None


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
    yield from called.union(*(file.called_by[name] for name in called & file.called_by.keys()))


def values_of(file: File, name: ast.Name | ast.Attribute) -> Iterator[ast.expr]:
    """Yield the expressions that a name, or an attribute such as ``self.mask``, may stand for."""
    if isinstance(name, ast.Name):
        given = file.definition_of(name)
        value = given.value or getattr(given.statement, "value", None) if given else None
        yield from [value] if value is not None else []
        return
    yield from file.attributes.get((file.scope_of(name), ast.unparse(name)), ())
    for call in file.buffers:
        if getattr(call.args[0], "value", "") == name.attr:
            yield call.args[1]
