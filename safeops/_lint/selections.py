"""SO001, SO004, SO005: a selection or a mask drops entries that have no finite slope."""

import ast
import math
from collections.abc import Iterator

from safeops._lint.found import File, Found, Selection, at, zeros
from safeops._lint.heuristics import NAN, PROBABILITIES
from safeops._lint.operations import TRUTH
from safeops._lint.probes import Hit, asks_by_value, causes_of, first_bad, is_sure
from safeops._lint.shapes import is_indicator, is_mask, is_named_mask, number, word_of
from safeops._lint.terms import Term

SELECT = "choose by `where` or `masked_fill` in place of a product"
STEEP = frozenset({"div", "log", "log10", "log2", "reciprocal", "rsqrt", "sqrt"})


def selections(file: File) -> Iterator[Selection]:
    """Yield each selection."""
    for term in file.terms("where", "index"):
        if term.operation == "where":
            cond, taken, other = term.args
            yield Selection(term, cond, taken, other, term.node)
        else:
            x, mask = term.args
            yield Selection(term, mask, x, file.reader.zero(term.node), term.node)
    yield from assignments(file)


def assignments(file: File) -> Iterator[Selection]:
    """Yield each ``y[cond] = number``."""
    for node in file.scopes.order:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Subscript):
            continue
        target = node.targets[0]
        if not isinstance(target.value, ast.Name):
            continue
        term, cond = file.reader.term(target.value), file.reader.term(target.slice)
        if cond.operation not in TRUTH and not is_named_mask(cond):
            continue
        yield Selection(term, cond, file.reader.term(node.value), term, target)


def dropped(file: File) -> Iterator[Found]:
    """SO001, SO004: ``where(x > 0, log(x), 0)``; ``where(isnan(y), 0, y)``."""
    for selection in selections(file):
        whole, cond, taken, other, _ = selection
        framework = file.framework(whole, taken, other)
        if not framework:
            continue
        found = file.hit(cond, taken, other)
        if found is None or not file.is_live(whole.node, found.culprit):
            continue
        if file.framework(found.culprit) or not found.culprit.framework:
            yield from drop(file, framework, selection, found)


def overwritten(file: File) -> Iterator[Found]:
    """SO001: ``y = 1 / x``, and ``y[~keep] = 0``, where the mask is given."""
    for selection in assignments(file):
        whole, cond, put, other, _ = selection
        mask = cond.args[0] if cond.operation == "logical_not" else cond
        operand = causes_of(other)[0] if other.operation in STEEP else other
        if not is_indicator(mask) or mask.operation != "atom" or operand.operation != "atom":
            continue
        framework = file.framework(whole, other)
        if other is operand or operand.is_plain or is_sure(operand) or number(put) != 0:
            continue
        if framework and file.is_live(whole.node, other):
            for one in drop(file, framework, selection, Hit(other, zeros(operand))):
                one.is_given = True
                yield one


def drop(file: File, framework: str, selection: Selection, found: Hit) -> Iterator[Found]:
    """Yield a finding if a selection drops entries that have no finite slope."""
    whole, cond, taken, other, place = selection
    culprit, numbers = found
    if NAN.search(ast.unparse(whole.node)):  # it marks missing values
        return
    text = file.text(culprit.node)
    why = (
        f"line {place.lineno} drops `{text}` at {at(file, culprit, numbers)}, but not its "
        "slope, which is not finite there: 0 times that is NaN in the gradient"
    )
    rule = "SO004" if asks_by_value(cond) else "SO001"
    one = Found(rule, culprit.node, why, whole.node, framework, culprit, numbers)
    one.selection, one.filled = selection, taken if culprit in other.every else other
    yield one


def replaced(file: File) -> Iterator[Found]:
    """SO004: ``nan_to_num(x / y)``."""
    for term in file.terms("nan_to_num"):
        framework = file.framework(term)
        if not framework:
            continue
        found = first_bad(term.args[0])
        if found is None or not file.is_live(term.node, found.culprit):
            continue
        text = file.text(found.culprit.node)
        why = (
            f"nan_to_num mends the value of `{text}` at {at(file, *found)}, and not its slope: "
            "the gradient stays NaN"
        )
        yield Found("SO004", found.culprit.node, why, term.node, framework, *found)


def infinite(file: File) -> Iterator[Found]:
    """SO005: ``(1 - mask) * -inf``."""
    for term in file.terms("mul"):
        for mask, other in (term.args, term.args[::-1]):
            framework = file.framework(term)
            if not framework or not math.isinf(number(other)) or not is_mask(mask):
                continue
            if framework == "jax" and mask.operation in TRUTH:
                continue  # XLA makes a selection of it
            if file.guards.has_gradient(term.node):
                why = f"0 times infinity: `{file.text(term.node)}` is NaN where the mask is 0"
                yield Found("SO005", term.node, why, term.node, framework, cure=SELECT)


def multiplied(file: File) -> Iterator[Found]:
    """SO005: ``mask * log(x)``."""
    for term in file.terms("mul"):
        for mask, other in (term.args, term.args[::-1]):
            framework = file.framework(term)
            if not framework or not is_mask(mask) or is_mask(other):
                continue
            zero = file.reader.zero(term.node)
            found = log_of(other) if is_named_mask(mask) else file.hit(mask, other, zero)
            if found is None or not file.is_live(term.node, found.culprit):
                continue
            text = file.text(found.culprit.node)
            why = (
                f"the mask leaves `{text}` in at {at(file, *found)}: 0 times infinity is NaN, in "
                "the gradient if not in the value"
            )
            yield Found("SO005", found.culprit.node, why, term.node, framework, *found)


def weighed(file: File) -> Iterator[Found]:
    """SO005: ``p * log(p)``; ``p * log(p / q)``."""
    for term in file.terms("mul"):
        framework = file.framework(term)
        for weight, log in (term.args, term.args[::-1]):
            p = log.args[0] if log.operation == "log" else log
            quotient = p.operation == "div"
            p = p.args[0] if quotient else p
            if not framework or p is log or p.key != weight.key or not is_probability(p):
                continue
            if not file.is_live(term.node, log) or any(map(is_sure, p.every)):
                continue
            why = f"`{file.text(term.node)}` is 0 times infinity where a probability is 0: NaN"
            yield Found("SO005", log.node, why, term.node, framework, log, zeros(p))


def is_probability(term: Term) -> bool:
    """Whether a term is a softmax, which underflows to 0, or a probability by its name."""
    return term.operation == "softmax" or (
        term.operation == "atom" and not term.is_plain and bool(PROBABILITIES.search(word_of(term)))
    )


def log_of(term: Term) -> Hit | None:
    """Return where a logarithm is infinite, if the term is a logarithm of one array."""
    inner = term
    while inner.operation in {"neg", "mul"}:
        inner = next((x for x in inner.args if x.operation.startswith("log")), inner.args[-1])
    if inner.operation not in {"log", "log2", "log10"} or inner.args[0].operation != "atom":
        return None
    return first_bad(inner)
