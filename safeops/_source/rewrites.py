"""Which safe operation takes the place of an expression, for `explain` and `lint`."""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from keyword import iskeyword

from safeops._source.edits import (
    Page,
    Rewriting,
    is_module,
    is_where,
    named,
    operands,
    rendered,
    scope_of,
)
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
LOGARITHMS = frozenset({"log", "log10", "log1p", "log2"})
# Operations that undo a logarithm: what is finite behind them is no longer the truth.
UNDOING = frozenset({"exp", "expm1", "log_softmax", "logsumexp", "sigmoid", "softmax"})
# The length that a root of a sum of squares is.
LENGTHS = {"sum": "safe_norm", "reduce_sum": "safe_norm"}
LENGTHS |= {"mean": "safe_rms", "reduce_mean": "safe_rms"}
UNDOES = (
    "`{}` undoes this logarithm, and a finite number in its place would be wrong: "
    "safe_logsumexp(x, b=...) takes weights that are 0"
)
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


def is_along_axis(node: ast.expr) -> bool:
    """Whether an expression is an operation along an axis, such as a softmax."""
    return SAFE.get(named(node)) in ALONG_AXIS


def rewrite_of(
    page: Page, node: ast.expr, options: str = "", *, is_dropped: bool = False
) -> Rewrite:
    """
    Return the safe operation for an expression, or for a whole that it is a part of.

    Refused if none is certainly right. If a selection drops the entries (`is_dropped`), the product
    with a logarithm stays, as ``xlogy(w, 0)`` is infinite unless w is 0, and any number will do.
    """
    name = getattr(getattr(node, "func", None), "attr", "")
    if name.endswith("_"):
        msg = f"`{name}` writes into its array"
        raise Refused(msg)
    check_logarithm(page, node, is_dropped=is_dropped)
    fix = composite_of(page, node, is_dropped=is_dropped)
    fix = fix or _rewrite_of(page, node, options, is_dropped=is_dropped)
    if loses_comment(page, fix):
        msg = "the edit would lose a comment"
        raise Refused(msg)
    return fix


def _rewrite_of(page: Page, node: ast.expr, options: str, *, is_dropped: bool) -> Rewrite:
    """Return the safe operation for an expression, or for a whole; Refused if there is none."""
    if not options:
        wholes = (length_of, root_of_clip, direction_of)
        for whole in wholes if is_dropped else (product_with_log, *wholes):
            if (found := whole(page, node)) is not None:
                return found
    safe = safe_operation(page, node, options)
    if safe is None:
        msg = f"no safe operation has the arguments of this `{named(node)}`"
        raise Refused(msg)
    return Rewrite(node, *safe)


def check_logarithm(page: Page, node: ast.expr, *, is_dropped: bool) -> None:
    """Refuse to edit a logarithm whose whole is smooth, or that an exponential undoes and keeps."""
    if named(node) not in {*LOGARITHMS, "logit"}:
        return
    part: ast.AST = node
    for outer in page.around(node):
        if is_dropped or is_where(outer):
            break  # a selection fills in a number itself
        if named(outer) in UNDOING and part is not getattr(outer, "func", None):
            raise Refused(UNDOES.format(named(outer)))
        part = outer
    one, less = _difference(operand_of(page, node)) if named(node) != "log" else (None, None)
    base = square_root_of(page, less) if less is not None and is_number(one, 1) else None
    if base is not None and named(base) == "tanh":
        raise Refused(SMOOTH)


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
        return f"{safe}({', '.join([render(args[0]), *_given(along, render)])})"

    return safe, along_axis


def composite_of(page: Page, node: ast.expr, *, is_dropped: bool) -> Rewrite | None:
    """Return the rewriting of a logarithm that has a function of its own, as ``log(cosh(x))``."""
    for log in (node, *page.around(node)):
        if not isinstance(log, ast.Call):
            continue
        name, x = _composite_in(page, log) or ("", log)
        # Where a selection drops entries, the function has to be finite at all of them.
        if not name or (is_dropped and name not in {"log_cosh", "log_sech2", "log_sinhc"}):
            continue
        if all(part is not node for part in ast.walk(x)):
            return Rewrite(log, name, lambda render: f"{name}({render(x)})")  # noqa: B023  (returned)
    return None


def _composite_in(page: Page, log: ast.Call) -> tuple[str, ast.expr] | None:
    """Return the function that a logarithm is by an identity, and its argument."""
    inner = operand_of(page, log) if named(log) in {"log", "log1p"} else None
    if inner is None:
        return None
    left, right = _difference(inner)
    is_log = named(log) == "log"
    less = (right if is_number(left, 1) else None) if is_log else _minus(inner)  # log(1 - less)
    forms = [
        ("log_sech2", "tanh", less and square_root_of(page, less)),
        ("log1mexp", "exp", less),
        ("log1mexp", "expm1", _minus(inner) if is_log else None),
        ("log_cosh", "cosh", inner if is_log else None),
        ("log_sinhc", "sinh", _over_operand(page, inner) if is_log else None),
        ("log_expm1", "expm1", inner if is_log else None),
        ("log_expm1", "exp", left if is_log and is_number(right, 1) else None),
    ]
    for name, word, part in forms:
        x = operand_of(page, part) if part is not None and named(part) == word else None
        x = _minus(x) if name == "log1mexp" else x
        if x is not None:
            return name, x
    return None


def _difference(node: ast.expr | None) -> tuple[ast.expr, ast.expr] | tuple[None, None]:
    """Return x and y of ``x - y``."""
    is_one = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)
    return (node.left, node.right) if isinstance(node, ast.BinOp) and is_one else (None, None)


def _over_operand(page: Page, node: ast.expr) -> ast.expr | None:
    """Return f(x) of ``f(x) / x``."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return None
    x = operand_of(page, node.left)
    return node.left if x is not None and _same(page, x, node.right) else None


def _minus(node: ast.expr | None) -> ast.expr | None:
    """Return y of ``-y``."""
    is_minus = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    return node.operand if isinstance(node, ast.UnaryOp) and is_minus else None


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


def length_of(page: Page, node: ast.expr) -> Rewrite | None:
    """Return the rewriting of ``sqrt(sum(v**2, axis))`` or a mean, and of ``sqrt(x**2 + y**2)``."""
    inner = root_in(page, node)
    if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add):
        name, squares, given = "safe_hypot", [inner.left, inner.right], {}
    else:
        parts = operands(page, inner) if inner is not None and named(inner) in LENGTHS else None
        options = None if parts is None else _options(("axis", "keepdims"), parts[0][1:], parts[1])
        if inner is None or parts is None or options is None or "ord" in options:
            return None
        name, squares, given = LENGTHS[named(inner)], parts[0][:1], options
    bases = [base for x in squares if (base := square_root_of(page, x)) is not None]
    if len(bases) < len(squares):
        return None

    def change(render: Callable[[ast.expr], str]) -> str:
        return f"{name}({', '.join([*map(render, bases), *_given(given, render)])})"

    return Rewrite(node, name, change)


def root_of_clip(page: Page, node: ast.expr) -> Rewrite | None:
    """Return the rewriting of ``sqrt(maximum(x, 0))`` and ``sqrt(clip(x, 0))``."""
    inner = root_in(page, node)
    parts = None if inner is None else operands(page, inner)
    if inner is None or parts is None or named(node) == "pow":
        return None
    args, keywords = parts
    x, *ends = args
    if named(inner) == "maximum" and len(args) == 2 and not keywords:  # noqa: PLR2004  (x and 0)
        x = args[1] if is_number(args[0], 0) else x
        is_clip = any(is_number(end, 0) for end in args)
    else:
        ends += keywords.values()
        is_low = set(keywords) <= {"min", "a_min"} and len(ends) == 1
        is_clip = (
            named(inner) in {"clip", "clamp", "clamp_min"} and is_low and is_number(ends[0], 0)
        )
    if not is_clip:
        return None
    return Rewrite(node, "safe_sqrt", lambda render: f"safe_sqrt({render(x)})")


def direction_of(page: Page, node: ast.expr) -> Rewrite | None:
    """Return the rewriting of ``v / norm(v, axis, keepdims=True)``."""
    if not isinstance(node, ast.BinOp) or named(node) != "div":
        return None
    norm = operands(page, node.right) if named(node.right) in BY_WORD["norm"].names else None
    if norm is None or len(norm[0]) != 1 or not _same(page, node.left, norm[0][0]):
        return None
    given = _options((), (), norm[1])
    axis = None if given is None else given.get("axis")
    is_kept = axis is None or getattr((given or {}).get("keepdims"), "value", False) is True
    if given is None or "ord" in given or not is_kept:
        return None
    return Rewrite(
        node,
        "safe_normalize",
        lambda render: (
            f"safe_normalize({render(node.left)}, axis={render(axis) if axis else None})"
        ),
    )


def root_in(page: Page, node: ast.expr) -> ast.expr | None:
    """Return x of ``sqrt(x)`` and ``x**0.5``."""
    return _base_of(page, node, 0.5, "sqrt")


def square_root_of(page: Page, node: ast.expr) -> ast.expr | None:
    """Return x of ``x**2``, ``x * x`` and ``square(x)``."""
    return _base_of(page, node, 2, "square")


def _base_of(page: Page, node: ast.expr, exponent: float, word: str) -> ast.expr | None:
    """Return x of a power with this exponent, or of the function that is one."""
    parts = operands(page, node)
    if parts is None or parts[1] or not 0 < len(parts[0]) <= 2:  # noqa: PLR2004  (x and p)
        return None
    base, *rest = parts[0]
    if not rest:
        return base if named(node) == word else None
    is_power = named(node) in POWERS and is_number(rest[0], exponent)
    is_product = word == "square" and named(node) == "mul" and _same(page, base, rest[0])
    return base if is_power or is_product else None


POWERS = BY_WORD["pow"].names


def operand_of(page: Page, node: ast.expr) -> ast.expr | None:
    """Return the operand of an operation with only one."""
    parts = operands(page, node)
    return parts[0][0] if parts is not None and len(parts[0]) == 1 and not parts[1] else None


def is_number(node: ast.expr | None, value: float) -> bool:
    """Whether an expression is this number."""
    return (
        isinstance(node, ast.Constant) and type(node.value) in {int, float} and node.value == value
    )


def _same(page: Page, a: ast.expr, b: ast.expr) -> bool:
    """Whether two expressions are written alike."""
    return page.text(a) == page.text(b)


def _call_of(name: str, a: ast.expr, b: ast.expr, render: Callable[[ast.expr], str]) -> str:
    """Return the source of a call with two arguments."""
    return f"{name}({render(a)}, {render(b)})"


def _given(options: Mapping[str, ast.expr], render: Callable[[ast.expr], str]) -> list[str]:
    """Return the source of options."""
    return [f"{name}={render(x)}" for name, x in options.items()]


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


def safe_where_of(page: Page, call: ast.Call) -> Rewrite | None:
    """Return the rewriting of a `where` to `safe_where`, if its branches are elementwise."""
    cond, *branches = call.args
    if not all(_is_of_entries(branch) for branch in branches):
        return None
    ask = _negated(cond) if _is_simple(branches[0]) and not _is_simple(branches[1]) else None
    if ask is not None:
        branches.reverse()
    functions = branches[:1] if _is_simple(branches[1]) else branches
    parts = list(dict.fromkeys(page.text(x) for f in functions for x in _operands_in(page, f)))
    if not (names := _parameters(parts, page.modules)):
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
