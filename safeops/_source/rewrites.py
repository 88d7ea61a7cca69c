"""Which safe operation takes the place of an expression, for `explain` and `lint`."""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from keyword import iskeyword

from safeops._source.edits import Page, Rewriting, is_module, named, operands, rendered
from safeops._source.names import BY_WORD, NAMED, OF_ENTRIES, SAFE

# The positional order of options of operations along an axis; all frameworks agree on it.
ALONG_AXIS = {
    "safe_log_softmax": ("axis",),
    "safe_logsumexp": ("axis",),
    "safe_norm": ("ord", "axis", "keepdims"),
    "safe_softmax": ("axis",),
}

KEYWORDS = {"dim": "axis", "axis": "axis", "keepdim": "keepdims", "keepdims": "keepdims"}

KEYWORDS |= {"ord": "ord", "p": "ord"}


def is_along_axis(node: ast.expr) -> bool:
    """Whether an expression is an operation along an axis, such as a softmax."""
    return SAFE.get(named(node)) in ALONG_AXIS


def safe_operation(page: Page, node: ast.expr, options: str = "") -> tuple[str, Rewriting] | None:
    """Return the name of the safe operation for an expression, and the rewriting to it."""
    safe = SAFE.get(named(node))
    parts = operands(page, node)
    if safe is None or parts is None:
        return None
    args, keywords = parts
    if safe not in ALONG_AXIS:
        if keywords or len(args) != NAMED[named(node)].operands:
            return None
        return safe, lambda render: f"{safe}({', '.join(map(render, args))}{options})"
    along = _options(ALONG_AXIS[safe], args[1:], keywords)
    if along is None or options:
        return None

    def along_axis(render: Callable[[ast.expr], str]) -> str:
        given = (f"{name}={render(x)}" for name, x in along.items())
        return f"{safe}({', '.join([render(args[0]), *given])})"

    return safe, along_axis


def product_with_log(page: Page, node: ast.expr) -> tuple[ast.expr, str, Rewriting] | None:
    """Return ``a * log(b)``, of which an expression is a part, as one operation with its name."""
    for outer in (node, *page.around(node)):
        if not isinstance(outer, ast.BinOp) or named(outer) != "mul":
            continue
        for a, log in ((outer.left, outer.right), (outer.right, outer.left)):
            parts = operands(page, log) if named(log) == "log" else None
            if parts is None or len(parts[0]) != 1 or isinstance(a, ast.Constant):
                continue
            if node not in (outer, log, parts[0][0]):
                continue
            name, b = "xlogy", parts[0][0]
            if isinstance(b, ast.BinOp) and named(b) == "div" and _same(page, a, b.left):
                name, b = "rel_entr", b.right
            return outer, name, partial(_call_of, name, a, b)
    return None


def _same(page: Page, a: ast.expr, b: ast.expr) -> bool:
    """Whether two expressions are written alike."""
    return page.text(a) == page.text(b)


def _call_of(name: str, a: ast.expr, b: ast.expr, render: Callable[[ast.expr], str]) -> str:
    """Return the source of a call with two arguments."""
    return f"{name}({render(a)}, {render(b)})"


def _options(
    order: Sequence[str], args: Sequence[ast.expr], keywords: Mapping[str, ast.expr]
) -> dict[str, ast.expr] | None:
    """Return options by their names in safeops; None if one of them has no such name."""
    if len(args) > len(order) or not set(keywords) <= set(KEYWORDS):
        return None
    found = dict(zip(order, args, strict=False)) | {KEYWORDS[k]: x for k, x in keywords.items()}
    words = [x for x in found.values() if isinstance(x, ast.Constant) and isinstance(x.value, str)]
    return None if words else found  # ord="fro"


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
    axis = [x for name, x in parts[1].items() if KEYWORDS.get(name) == "axis"]
    options = "".join(f", axis={page.text(x)}" for x in axis)
    return f"safe_softmax({page.text(node.left)}{options})"


def safe_where_of(page: Page, call: ast.Call) -> Rewriting | None:
    """Return the rewriting of a `where` to `safe_where`, if its branches are elementwise."""
    cond, *branches = call.args
    if not all(_is_of_entries(branch) for branch in branches):
        return None
    ask = _negated(cond) if _is_simple(branches[0]) and not _is_simple(branches[1]) else None
    if ask is not None:
        branches.reverse()
    functions = branches[:1] if _is_simple(branches[1]) else branches
    parts = list(dict.fromkeys(page.text(x) for f in functions for x in _operands_in(page, f)))
    names = _parameters(parts, page.modules)
    if not names:
        return None

    def function(branch: ast.expr) -> str:
        named_so = {id(x): called(names[page.text(x)]) for x in _operands_in(page, branch)}
        return f"lambda {', '.join(names.values())}: {rendered(page, branch, named_so)}"

    def rewriting(render: Callable[[ast.expr], str]) -> str:
        true, false = branches
        given = parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
        first = _plain_function(page, true, parts) or function(true)
        if _is_simple(false):
            other = f"fill_value={render(false)}"
        else:
            other = _plain_function(page, false, parts) or function(false)
        asked = ask(render) if ask is not None else render(cond)
        return f"safe_where({asked}, {given}, {first}, {other})"

    return rewriting


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
        words = [w for w in "".join(c if c.isidentifier() else " " for c in part).split() if w]
        name = words[-1] if words else "x"
        while name in taken | set(found.values()) or iskeyword(name):
            name += "_"
        found[part] = name
    return found
