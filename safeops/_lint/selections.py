"""SO001, SO004, SO005: a selection or a mask drops entries that have no finite slope."""

import ast
import math
from collections.abc import Iterator

from safeops._core.operations import TRUTH
from safeops._lint.found import File, Found, Selection, zeros
from safeops._lint.heuristics import DIAGONAL, NAN, PROBABILITIES
from safeops._lint.probes import Hit, asks_by_value, causes_of, first_bad, is_sure
from safeops._lint.shapes import is_indicator, is_mask, is_named_mask, number, word_of
from safeops._lint.terms import Term

SELECT = "choose by `where` or `masked_fill` in place of a product"
LOGS = frozenset({"log", "log10", "log2"})
STEEP_AT_0 = LOGS | {"sqrt"}
STEEP = STEEP_AT_0 | {"div", "reciprocal", "rsqrt"}


def selections(file: File) -> Iterator[Selection]:
    """Yield each selection."""
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
