"""A page of source: its expressions, and its lines with some of them replaced."""

import ast
import linecache
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, TypeAlias, TypeGuard

from safeops._source.locations import Location, Span
from safeops._source.names import BY_WORD, NAMED

# Makes the new source of an expression, from a function that makes the source of its parts.
Rewriting: TypeAlias = Callable[[Callable[[ast.expr], str]], str]

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
Assignment = ast.Assign | ast.AnnAssign | ast.AugAssign
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
    def forms(self) -> dict[ast.expr, Any]:
        """The operations in their usual spelling, by `patterns.form_of`."""
        return {}

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

    @cached_property
    def assigned(self) -> dict[tuple[ast.AST, str], list[ast.expr]]:
        """What each name of a function is assigned."""
        found: dict[tuple[ast.AST, str], list[ast.expr]] = defaultdict(list)
        for node in self.parents:
            if isinstance(node, Assignment) and node.value is not None:
                for name in targets(node):
                    found[scope_of(self, node), name].append(node.value)
        return found

    def text(self, node: ast.expr) -> str:
        """Return the source of an expression."""
        line, end, column, end_column = span_of(node)
        *lines, last = (text.encode() for text in self.lines[line - 1 : end])
        source = b"".join(lines) + last[:end_column]
        return source[column:].decode()

    def statement(self, node: ast.AST) -> ast.AST:
        """Return the innermost statement that contains an expression."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

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


def scope_of(page: Page, node: ast.AST) -> ast.AST:
    """Return the function in which an expression is evaluated."""
    while not isinstance(node, Scope):
        node = page.parents[node]
    return node


def targets(statement: ast.AST) -> Iterator[str]:
    """Yield the names that a statement assigns to."""
    if isinstance(statement, Assignment):
        left = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (part.id for x in left for part in ast.walk(x) if isinstance(part, ast.Name))


def span_of(node: ast.expr) -> Span:
    """Return the span of an expression."""
    end, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return node.lineno, end, node.col_offset, end_column


def named(node: ast.AST) -> str:
    """Return the name of an operator or a called function; "" for other expressions."""
    if isinstance(node, ast.BinOp):
        return OPERATORS.get(type(node.op), "")
    return last_word(node) if isinstance(node, ast.Call) else ""


def last_word(node: ast.AST) -> str:
    """Return the last word of a name, an attribute or a called function; "" for all else."""
    f = node.func if isinstance(node, ast.Call) else node
    return f.attr if isinstance(f, ast.Attribute) else f.id if isinstance(f, ast.Name) else ""


def expression_at(page: Page, where: Location, operation: str) -> ast.expr | None:
    """Return the expression at a location; None if there is none, or one of several."""
    found = expressions_at(page, where, operation)
    return found[0] if len(found) == 1 else None


@lru_cache(maxsize=256)
def expressions_at(page: Page, where: Location, operation: str) -> list[ast.expr]:
    """Return what may be meant at a location: by its span, or by the names of an operation."""
    line = where.line
    candidates = [x for x in page.expressions if x.lineno <= line <= (x.end_lineno or x.lineno)]
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
        if is_where(outer) and part in outer.args[1:]:
            yield outer
        part = outer


def is_where(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether an expression is ``where(cond, x, y)``."""
    if not isinstance(node, ast.Call) or named(node) != "where":
        return False
    return len(node.args) == 3 and not node.keywords  # noqa: PLR2004  (cond, x, y)


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
    if receiver is None or (is_along_axis(node) and not all(map(is_option, node.args))):
        return None  # of a namespace, as in m.softmax(x): a method has an axis there
    return [receiver, *node.args], keywords


def is_along_axis(node: ast.expr) -> bool:
    """Whether an expression is an operation along an axis that has a twin, such as a softmax."""
    row = NAMED.get(named(node))
    return row is not None and row.kind == "axis" and row.has_twin


def is_option(node: ast.expr) -> bool:
    """Whether an argument of a method may be an axis, by its value or its name."""
    if isinstance(node, ast.Name):
        return node.id in {"axis", "dim", "ord", "p"}
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Constant | ast.Tuple | ast.List)


def is_module(page: Page, function: ast.expr) -> bool:
    """Whether a function is an attribute of a module, and not a method of an array."""
    return root(function) in page.modules


def root(node: ast.expr) -> str:
    """Return the name whose attribute of an attribute an expression is; "" if it has none."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


USUAL = {"F", "functional", "jax", "jnp", "math", "np", "tf", "torch", "xp"}


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


def _outermost(node: ast.AST, changes: Mapping[int, Rewriting]) -> list[ast.expr]:
    """Return the changed parts of an expression that are in no other one, as they are written."""
    found, stack = [], list(ast.iter_child_nodes(node))
    while stack:
        child = stack.pop()
        if isinstance(child, ast.expr) and id(child) in changes:
            found.append(child)
        else:
            stack += ast.iter_child_nodes(child)
    return sorted(found, key=lambda x: (x.lineno, x.col_offset))


def _length(page: Page, start: int, node: ast.expr) -> int:
    """Return the number of characters from the beginning of line `start` to an expression."""
    *lines, last = (line.encode() for line in page.lines[start - 1 : node.lineno])
    return len((b"".join(lines) + last[: node.col_offset]).decode())


class Edits:
    """The changes of a page, and its lines after them."""

    def __init__(self, page: Page, changes: Mapping[int, Rewriting]) -> None:
        """Find the changes that are in no other one."""
        self.page, self.changes = page, changes
        self.outermost = _outermost(page.tree, changes)
        self.starts = [node.lineno for node in self.outermost]
        self.tops = {id(part): node for node in self.outermost for part in ast.walk(node)}

    def of(self, node: ast.expr) -> tuple[int, str, str]:
        """Return the lines of an expression: the first line number, the old lines, the new."""
        top = self.tops[id(node)]
        first, last = top.lineno, span_of(top)[1]
        old = "".join(self.page.lines[first - 1 : last])
        return first, old.rstrip("\r\n"), "".join(self.lines(first, last)).rstrip("\r\n")

    def lines(self, first: int, last: int) -> list[str]:
        """Return lines of the page after the changes that lie in them as a whole."""
        lines = [line.encode() for line in self.page.lines[first - 1 : last]]
        inside = slice(bisect_left(self.starts, first), bisect_right(self.starts, last))
        for node in reversed(self.outermost[inside]):
            line, end, column, end_column = self.span(node)
            if end <= last:
                new = rendered(self.page, node, self.changes).encode()
                rest = lines[end - first][end_column:]
                lines[line - first : end - first + 1] = [lines[line - first][:column] + new + rest]
        return [line.decode() for line in lines]

    def span(self, node: ast.expr) -> Span:
        """Return the span of an expression, with the parentheses that a call does not need."""
        line, end, column, end_column = span_of(node)
        text = self.page.lines[line - 1].encode()
        around = text[column - 1 : column] + text[end_column : end_column + 1]
        is_method = isinstance(self.page.parents[node], ast.Attribute)
        if isinstance(node, ast.BinOp) and is_method and line == end and around == b"()":
            is_call = not rendered(self.page, node, self.changes).startswith("-")
            return line, end, column - is_call, end_column + is_call
        return line, end, column, end_column
