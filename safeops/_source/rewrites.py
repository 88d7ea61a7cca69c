"""Which safe operation takes the place of an expression, for `explain` and `lint`."""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from keyword import iskeyword

from safeops._source.edits import (
    Page,
    Rewriting,
    is_along_axis,
    is_module,
    is_where,
    named,
    operands,
    rendered,
    scope_of,
)
from safeops._source.names import BY_WORD, NAMED, OF_ENTRIES, SAFE
from safeops._source.patterns import OPTIONS, form_of, options_of, whole_of

LOGARITHMS = frozenset({"log", "log10", "log1p", "log2"})
# Operations that undo a logarithm: what is finite behind them is no longer the truth.
PRODUCTS = frozenset({"exp", "expm1", "sigmoid"})
UNDOING = PRODUCTS | {"log_softmax", "logsumexp", "softmax"}
UNDOES = "`{}` undoes this {}, and a finite number in its place would be wrong: {}"
WEIGHTS = "safe_logsumexp(x, b=...) takes weights that are 0"
PRODUCT = "exp(sum(log(x))) is safe_prod(x), of segments safeops.segments.segment_prod"
SUM = "logsumexp, logaddexp, softplus and log_cosh have the whole without overflow"
SMOOTH = (
    "the whole is smooth, and a safe logarithm would be wrong: log(1 - tanh(x)**2) is log_sech2(x)"
)
QUOTIENT = "the quotient inside may be 0 / 0; rel_entr(p, q) is p * log(p / q)"


class Refused(Exception):  # noqa: N818  (it is an answer)
    """There is no edit, for the reason that it gives."""


@dataclass(frozen=True)
class Rewrite:
    """An expression to replace, the function of safeops, the new source, and what it chooses."""

    node: ast.expr
    name: str
    change: Rewriting
    note: str = ""


def loses_comment(page: Page, fix: Rewrite) -> bool:
    """Whether an edit leaves out a comment that stands in what it replaces."""
    if fix.node.lineno == fix.node.end_lineno:
        return False
    texts = page.text(fix.node), rendered(page, fix.node, {id(fix.node): fix.change})
    old, new = (comments_in(f"({text}\n)") for text in texts)
    return old != new


def comments_in(text: str) -> list[str]:
    """Return the comments in a text."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [x.string for x in tokens if x.type == tokenize.COMMENT]


def rewrite_of(
    page: Page, node: ast.expr, options: str = "", *, is_dropped: bool = False, reason: str = ""
) -> Rewrite:
    """Return the safe operation for an expression, or for a whole that it is a part of."""
    # Refused if none is certainly right. If a selection drops the entries (`is_dropped`), the
    # product with a logarithm stays, as ``xlogy(w, 0)`` is infinite unless w is 0, and any number
    # will do. A `reason` against an edit of this operation alone is said where there is no whole.
    name = getattr(getattr(node, "func", None), "attr", "")
    if name.endswith("_"):
        msg = f"`{name}` writes into its array"
        raise Refused(msg)
    whole = whole_of(page, node, is_dropped=is_dropped)
    if whole is not None and (not options or whole.name.startswith("log")):
        fix = Rewrite(*whole)
    else:
        if reason:
            raise Refused(reason)
        check_undone(page, node, is_dropped=is_dropped)
        fix = _rewrite_of(page, node, options, is_dropped=is_dropped)
    if loses_comment(page, fix):
        msg = "the edit would lose a comment"
        raise Refused(msg)
    return fix


def _rewrite_of(page: Page, node: ast.expr, options: str, *, is_dropped: bool) -> Rewrite:
    """Return the safe operation for an expression, or for a whole; Refused if there is none."""
    if not options and not is_dropped and (product := product_with_log(page, node)) is not None:
        return product
    safe = safe_operation(page, node, options)
    if safe is None:
        known = f"has the arguments of this `{named(node)}`" if named(node) else "takes its place"
        msg = f"no safe operation {known}"
        raise Refused(msg)
    return Rewrite(node, *safe)


def check_undone(page: Page, node: ast.expr, *, is_dropped: bool) -> None:
    """Refuse to edit a logarithm or an exponential whose inverse the program keeps behind it."""
    is_log = named(node) in {*LOGARITHMS, "logit"}
    if not is_log and named(node) != "exp":
        return
    part: ast.AST = node
    for outer in page.around(node):
        if is_dropped or is_where(outer):
            break  # a selection fills in a number itself
        if named(outer) in (UNDOING if is_log else LOGARITHMS) and part is not func_of(outer):
            raise Refused(undone_by(named(outer)))
        part = outer
    if is_log and is_sech2(page, operand_of(page, node)):
        raise Refused(SMOOTH)


def func_of(node: ast.AST) -> ast.AST | None:
    """Return what is called."""
    return node.func if isinstance(node, ast.Call) else None


def undone_by(word: str) -> str:
    """Return why there is no edit of what an operation undoes."""
    if word in LOGARITHMS:
        return UNDOES.format(word, "exponential", SUM)
    return UNDOES.format(word, "logarithm", PRODUCT if word in PRODUCTS else WEIGHTS)


def is_sech2(page: Page, node: ast.expr | None) -> bool:
    """Whether an expression is ``1 - tanh(x)**2``, also by a name, whose logarithm is smooth."""
    less = None if node is None else form_of(page, node)
    if less is None or less.word != "sub" or getattr(less.args[0], "value", None) != 1:
        return False
    square = form_of(page, less.args[1])
    return square is not None and square.word == "square" and is_tanh(page, square.args[0])


def is_tanh(page: Page, node: ast.expr) -> bool:
    """Whether an expression is a hyperbolic tangent, or a name for one."""
    values = [node]
    if isinstance(node, ast.Name):
        values = page.assigned.get((scope_of(page, node), node.id), [])
    return bool(values) and all(named(x) == "tanh" for x in values)


def safe_operation(page: Page, node: ast.expr, options: str = "") -> tuple[str, Rewriting] | None:
    """Return the name of the safe operation for an expression, and the rewriting to it."""
    safe = SAFE.get(named(node))
    parts = operands(page, node)
    if safe is None or parts is None:
        return None
    args, keywords = parts
    if not is_along_axis(node):
        if keywords or len(args) != NAMED[named(node)].operands:
            return None
        return safe, lambda render: f"{safe}({', '.join(map(render, args))}{options})"
    along = options_of(NAMED[named(node)].word, args[1:], keywords)
    if along is None or options:
        return None

    def along_axis(render: Callable[[ast.expr], str]) -> str:
        given = (f"{name}={render(x)}" for name, x in along.items())
        return f"{safe}({', '.join([render(args[0]), *given])})"

    return safe, along_axis


def product_with_log(page: Page, node: ast.expr) -> Rewrite | None:
    """Return the rewriting of ``a * log(b)``, of which an expression is a part."""
    for outer in (node, *page.around(node)):
        if not isinstance(outer, ast.BinOp) or named(outer) != "mul":
            continue
        for weight, part in ((outer.left, outer.right), (outer.right, outer.left)):
            is_negative = isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub)
            log = part.operand if isinstance(part, ast.UnaryOp) and is_negative else part
            b = operand_of(page, log) if named(log) == "log" else None
            if b is not None and not isinstance(weight, ast.Constant) and node in (outer, log, b):
                if (whole := whole_of(page, log, is_dropped=False)) is not None:
                    return Rewrite(*whole)  # of a logarithm that is finite where this one is not
                name, b = _entropy_of(page, weight, b)
                sign = "-" if is_negative else ""
                return Rewrite(outer, name, partial(_call_of, f"{sign}{name}", weight, b))
    return None


def _entropy_of(page: Page, weight: ast.expr, b: ast.expr) -> tuple[str, ast.expr]:
    """Return the function for ``weight * log(b)`` and its second argument."""
    if isinstance(b, ast.BinOp) and named(b) == "div" and _same(page, weight, b.left):
        return "rel_entr", b.right
    names = (x.id for x in ast.walk(b) if isinstance(x, ast.Name))
    known = (page.assigned.get((scope_of(page, b), name), []) for name in names)
    parts = (x for value in (b, *chain.from_iterable(known)) for x in ast.walk(value))
    if any(named(x) in BY_WORD["div"].names for x in parts):
        raise Refused(QUOTIENT)
    return "xlogy", b


def operand_of(page: Page, node: ast.expr) -> ast.expr | None:
    """Return the operand of an operation with only one."""
    parts = operands(page, node)
    return parts[0][0] if parts is not None and len(parts[0]) == 1 and not parts[1] else None


def _same(page: Page, a: ast.expr, b: ast.expr) -> bool:
    """Whether two expressions are written alike."""
    return page.text(a) == page.text(b)


def _call_of(name: str, a: ast.expr, b: ast.expr, render: Callable[[ast.expr], str]) -> str:
    """Return the source of a call with two arguments."""
    return f"{name}({render(a)}, {render(b)})"


def softmax_of(page: Page, node: ast.expr | None) -> str:
    """Return the safe softmax for ``x - max(x, axis)``."""
    if not isinstance(node, ast.BinOp) or named(node) != "sub":
        return ""
    largest = [
        x
        for x in ast.walk(node.right)
        if named(x) in BY_WORD["max"].names and isinstance(x, ast.Call)
    ]
    parts = operands(page, largest[0]) if largest else None
    if parts is None or page.text(parts[0][0]) != page.text(node.left):
        return ""
    axis = [x for name, x in parts[1].items() if OPTIONS.get(name) == "axis"]
    options = "".join(f", axis={page.text(x)}" for x in axis)
    return f"safe_softmax({page.text(node.left)}{options})"


def fill_of(page: Page, node: ast.expr, selection: ast.expr | None) -> str | None:
    """Return the option by which a safe operation fills in what a selection by its value does."""
    parts = operands(page, selection) if isinstance(selection, ast.Call) else None
    if selection is None or parts is None or parts[1]:
        return None
    word, (asked, *others) = named(selection), parts[0]
    if word == "nan_to_num":
        # It makes 0 of NaN, and so does a factor.
        is_zero = any(is_value(page, x, node) for x in factors_of(asked))
        return "" if not others and is_zero else None
    if word != "where" or named(asked) != "isfinite" or len(others) != 2:  # noqa: PLR2004  (kept, filled in)
        return None
    inner, (kept, put) = operand_of(page, asked), others
    number = getattr(put, "value", None)
    is_same = inner is not None and _same(page, inner, kept) and is_value(page, kept, node)
    if not is_same or not isinstance(number, int | float):
        return None
    has_none = named(node) == "pow" or is_along_axis(node)  # which are 0 there
    if number != 0 and (has_none or named(node) == "sqrt"):  # 0 is the root of 0
        return None
    return "" if has_none else f", fill_value={number!r}"


def factors_of(node: ast.expr) -> Iterator[ast.expr]:
    """Yield an expression, and the factors of a product."""
    yield node
    if isinstance(node, ast.UnaryOp):
        yield from factors_of(node.operand)
    elif isinstance(node, ast.BinOp) and named(node) == "mul":
        yield from chain(factors_of(node.left), factors_of(node.right))


def is_value(page: Page, node: ast.expr, whole: ast.expr) -> bool:
    """Whether an expression is another one, or the only name of it."""
    if isinstance(node, ast.Name):
        return page.assigned.get((scope_of(page, node), node.id)) == [whole]
    return node is whole or _same(page, node, whole)


def safe_where_of(page: Page, call: ast.Call) -> Rewrite | None:
    """Return the rewriting of a `where` to `safe_where`, if its branches are elementwise."""
    cond, *branches = call.args
    if not all(_is_of_entries(branch) for branch in branches):
        return None
    ask = _negated(cond) if _is_simple(branches[0]) and not _is_simple(branches[1]) else None
    if ask is not None:
        branches.reverse()
    functions = branches[:1] if _is_simple(branches[1]) else branches
    nodes = {page.text(x): x for f in functions for x in _operands_in(page, f)}
    parts = list(nodes)
    if not (names := _parameters(parts, page.modules)):
        return None

    def function(branch: ast.expr) -> str:
        named_so = {id(x): called(names[page.text(x)]) for x in _operands_in(page, branch)}
        return f"lambda {', '.join(names.values())}: {rendered(page, branch, named_so)}"

    def rewriting(render: Callable[[ast.expr], str]) -> str:
        true, false = branches
        given = ", ".join(render(nodes[x]) for x in parts)
        given = given if len(parts) == 1 else f"({given})"
        first = _plain_function(page, true, parts) or function(true)
        if _is_simple(false):
            other = f"fill_value={render(false)}"
        else:
            other = _plain_function(page, false, parts) or function(false)
        asked = ask(render) if ask is not None else render(cond)
        return f"safe_where({asked}, {given}, {first}, {other})"

    fix = Rewrite(call, "safe_where", rewriting)
    return None if loses_comment(page, fix) else fix


def _negated(cond: ast.expr) -> Rewriting | None:
    """
    Return the rewriting of a condition to its opposite; None if it has none that is always right.

    NaN > 0 and NaN <= 0 are both False, and ``~`` of a Python bool is a number that is not 0.
    """
    if isinstance(cond, ast.UnaryOp) and isinstance(cond.op, ast.Invert):
        return lambda render: render(cond.operand)
    if not isinstance(cond, ast.Compare) or len(cond.ops) != 1:
        return None
    sign = {ast.Eq: "!=", ast.NotEq: "=="}.get(type(cond.ops[0]))
    if sign is None:
        return None
    return lambda render: f"{render(cond.left)} {sign} {render(cond.comparators[0])}"


def called(name: str) -> Rewriting:
    """Return the rewriting of a variable to another name."""
    return lambda _: name


def _plain_function(page: Page, node: ast.expr, parts: list[str]) -> str:
    """Return the function of a branch that is one call with exactly these arguments, or ""."""
    if not isinstance(node, ast.Call) or node.keywords:
        return ""
    is_function = isinstance(node.func, ast.Name) or is_module(page, node.func)
    plain = is_function and [page.text(x) for x in node.args] == parts
    return page.text(node.func) if plain else ""


def _is_simple(node: ast.expr) -> bool:
    """Whether an expression computes nothing."""
    return not any(isinstance(x, (ast.Call, ast.BinOp)) for x in ast.walk(node))


def _is_of_entries(branch: ast.expr) -> bool:
    for node in ast.walk(branch):
        if isinstance(node, ast.Call) and (named(node) not in OF_ENTRIES or node.keywords):
            return False
        if isinstance(node, (ast.Lambda, ast.MatMult, ast.GeneratorExp, ast.IfExp, ast.Await)):
            return False
    return True


def _operands_in(page: Page, node: ast.AST) -> Iterator[ast.expr]:
    """Yield the variables of an expression as they are written: x, self.x, batch["x"]."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and not is_module(page, node.func):
            yield from _operands_in(page, node.func.value)
        children: Sequence[ast.AST] = node.args
    elif isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and _is_simple(node):
        if not is_module(page, node):  # such as math.pi
            yield node
        return
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _operands_in(page, child)


def _parameters(parts: Sequence[str], taken: set[str]) -> dict[str, str]:
    """Return a parameter name for each operand: its last word."""
    found: dict[str, str] = {}
    for part in parts:
        words = re.findall(r"\b[^\W\d]\w*", part)
        name = words[-1] if words else "x"
        while name in taken | set(found.values()) or iskeyword(name):
            name += "_"
        found[part] = name
    return found
