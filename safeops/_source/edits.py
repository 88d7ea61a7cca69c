"""The source of the user's program, and its expressions rewritten with safe operations."""

import ast
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from keyword import iskeyword
from typing import TypeAlias

from safeops._source.locations import Location, Span
from safeops._source.names import BY_WORD, NAMED, OF_ENTRIES, SAFE

# Makes the new source of an expression, from a function that makes the source of its parts.
Rewriting: TypeAlias = Callable[[Callable[[ast.expr], str]], str]

# The positional order of options of operations along an axis; all frameworks agree on it.
ALONG_AXIS = {
    "safe_log_softmax": ("axis",),
    "safe_logsumexp": ("axis",),
    "safe_norm": ("ord", "axis", "keepdims"),
    "safe_softmax": ("axis",),
}
KEYWORDS = {"dim": "axis", "axis": "axis", "keepdim": "keepdims", "keepdims": "keepdims"}
KEYWORDS |= {"ord": "ord", "p": "ord"}
OPERATORS = {ast.Div: "div", ast.Mult: "mul", ast.Pow: "pow", ast.Sub: "sub"}


@dataclass(eq=False)
class Page:
    """A source file of the user: its lines and its expressions."""

    lines: tuple[str, ...]
    tree: ast.Module

    @cached_property
    def expressions(self) -> list[ast.expr]:
        """All expressions, outer ones first."""
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.expr)]

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The parent of each node of the tree."""
        every = ast.walk(self.tree)
        return {child: node for node in every for child in ast.iter_child_nodes(node)}

    @cached_property
    def modules(self) -> set[str]:
        """The imported names, the usual names of namespaces, and ``ops`` of ``ops = keras.ops``."""
        imports = (x for x in ast.walk(self.tree) if isinstance(x, (ast.Import, ast.ImportFrom)))
        aliases = (alias for node in imports for alias in node.names)
        names = {(a.asname or a.name).split(".")[0] for a in aliases} | USUAL
        return names | {name for name in self.parts_of(names) if name not in self.bare}

    def parts_of(self, names: set[str]) -> set[str]:
        """Return the names that a file gives to attributes of any of these names."""
        given = [x for x in self.tree.body if isinstance(x, ast.Assign)]
        parts = [x for x in given if isinstance(x.value, ast.Attribute) and root(x.value) in names]
        return {x.id for part in parts for x in part.targets if isinstance(x, ast.Name)}

    @cached_property
    def bare(self) -> set[str]:
        """The names that are read for themselves, as arrays are, and not for an attribute."""
        read = [x for x in self.expressions if isinstance(x, ast.Name)]
        alone = (x for x in read if not isinstance(self.parents[x], ast.Attribute))
        return {x.id for x in alone if isinstance(x.ctx, ast.Load)}

    def text(self, node: ast.expr) -> str:
        """Return the source of an expression."""
        line, end, column, end_column = span_of(node)
        *lines, last = (text.encode() for text in self.lines[line - 1 : end])
        source = b"".join(lines) + last[:end_column]
        return source[column:].decode()

    def statement(self, node: ast.AST) -> ast.AST:
        """Return the innermost statement that contains an expression."""
        *_, statement = self.around(node)
        return statement

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the parents of an expression, up to its statement."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
            yield node


def page_of(file: str) -> Page | None:
    """Return the page of a file; None if there is no source, or it does not parse."""
    return _parsed(tuple(linecache.getlines(file)))


@cache
def _parsed(lines: tuple[str, ...]) -> Page | None:
    try:
        return Page(lines, ast.parse("".join(lines))) if lines else None
    except SyntaxError:  # such as a README that is tested
        return None


def span_of(node: ast.expr) -> Span:
    """Return the span of an expression."""
    end, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return node.lineno, end, node.col_offset, end_column


def named(node: ast.AST) -> str:
    """Return the name of an operator or a called function; "" for other expressions."""
    if isinstance(node, ast.BinOp):
        return OPERATORS.get(type(node.op), "")
    if not isinstance(node, ast.Call):
        return ""
    f = node.func
    return f.attr if isinstance(f, ast.Attribute) else f.id if isinstance(f, ast.Name) else ""


def expression_at(page: Page, where: Location, operation: str) -> ast.expr | None:
    """Return the expression at a location; None if there is none, or one of several."""
    found = expressions_at(page, where, operation)
    return found[0] if len(found) == 1 else None


def expressions_at(page: Page, where: Location, operation: str) -> list[ast.expr]:
    """Return what may be meant at a location: by its span, or by the names of an operation."""
    line = where.line
    candidates = [x for x in page.expressions if x.lineno <= line <= span_of(x)[1]]
    if where.span is not None:
        return [node for node in candidates if span_of(node) == where.span][:1]
    names = names_for(operation)
    found = [node for node in candidates if named(node) in names]

    def rank(node: ast.expr) -> tuple[int, bool]:
        # An expression that also stands in the condition of a `where` is meant in the branch.
        return names.index(named(node)), not any(enclosing_wheres(page, node))

    return [node for node in found if rank(node) == min(map(rank, found))]


def names_for(operation: str) -> list[str]:
    """Return the names in programs for an operation of a report, the likeliest first."""
    names, row = [operation], NAMED.get(operation)
    if row is not None and row.safe and row.kind == "entry":
        names += row.names
    exact = BY_WORD.get(operation)
    return names if exact is None else names + exact.part_of.split()


def enclosing_wheres(page: Page, node: ast.expr) -> Iterator[ast.Call]:
    """Yield each ``where(cond, x, y)`` whose x or y holds an expression, inner ones first."""
    part: ast.AST = node
    for outer in page.around(node):
        if isinstance(outer, ast.Call) and _is_where(outer) and part in outer.args[1:]:
            yield outer
        part = outer


def _is_where(call: ast.Call) -> bool:
    is_ternary = len(call.args) == 3 and not call.keywords  # noqa: PLR2004  (cond, x, y)
    return is_ternary and named(call) == "where"


def is_along_axis(node: ast.expr) -> bool:
    """Whether an expression is an operation along an axis, such as a softmax."""
    return SAFE.get(named(node)) in ALONG_AXIS


# Rewriting


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


def operands(page: Page, node: ast.expr) -> tuple[list[ast.expr], dict[str, ast.expr]] | None:
    """Return the arguments and keywords of an operator, a function or a method."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right], {}
    if not isinstance(node, ast.Call):
        return None
    if any(isinstance(x, ast.Starred) for x in node.args) or any(not k.arg for k in node.keywords):
        return None
    keywords = {k.arg: k.value for k in node.keywords if k.arg}
    if isinstance(node.func, ast.Name) or is_module(page, node.func):
        return (list(node.args), keywords) if node.args else None
    receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
    return None if receiver is None else ([receiver, *node.args], keywords)


def is_module(page: Page, function: ast.expr) -> bool:
    """Whether a function is an attribute of a module, and not a method of an array."""
    return root(function) in page.modules


def root(node: ast.expr) -> str:
    """Return the name whose attribute of an attribute an expression is; "" if it has none."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


USUAL = {"F", "functional", "jax", "jnp", "math", "np", "tf", "torch", "xp"}


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


def rendered(
    page: Page, node: ast.expr, changes: Mapping[int, Rewriting], done: ast.expr | None = None
) -> str:
    """Return the source of an expression after changes of its parts, without that of `done`."""
    if id(node) in changes and node is not done:
        return changes[id(node)](lambda part: rendered(page, part, changes, node))
    text, end, new = page.text(node), 0, ""
    begin = _length(page, node.lineno, node)
    for part in _outermost(node, changes):
        at = _length(page, node.lineno, part) - begin
        new += text[end:at] + rendered(page, part, changes)
        end = at + len(page.text(part))
    return new + text[end:]


def _outermost(node: ast.AST, changes: Mapping[int, Rewriting]) -> Iterator[ast.expr]:
    found = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr) and id(child) in changes:
            found.append(child)
        else:
            found += list(_outermost(child, changes))
    yield from sorted(found, key=lambda x: (x.lineno, x.col_offset))


def _length(page: Page, start: int, node: ast.expr) -> int:
    """Return the number of characters from the beginning of line `start` to an expression."""
    *lines, last = (line.encode() for line in page.lines[start - 1 : node.lineno])
    return len((b"".join(lines) + last[: node.col_offset]).decode())


def rewritten(page: Page, changes: Mapping[int, Rewriting], node: ast.expr) -> tuple[int, str, str]:
    """Return the lines of an expression: the first line number, the old lines, the new lines."""
    every = list(_outermost(page.statement(node), changes))
    top = next(x for x in every if any(part is node for part in ast.walk(x)))
    start, end = top.lineno, span_of(top)[1]
    old = "".join(page.lines[start - 1 : end]).rstrip("\n")
    new, done = "", 0
    for part in every:
        if start <= part.lineno and span_of(part)[1] <= end:
            at = _length(page, start, part)
            new += old[done:at] + rendered(page, part, changes)
            done = at + len(page.text(part))
    return start, old, new + old[done:]
