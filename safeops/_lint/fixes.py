"""Edits that cure findings, made by the rewriter behind the repairs of `explain`."""

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from safeops._lint.rules import Found
from safeops._lint.shapes import number
from safeops._lint.sources import lines_of
from safeops.autodiff._explain.rewrites import (
    Page,
    Rewriting,
    named,
    rendered,
    safe_operation,
    safe_where_of,
    span_of,
)

LOGARITHMS = ("safe_log", "safe_log2", "safe_log10", "safe_log1p")
FILLED_BY_0 = ("safe_pow",)  # they take no other fill value
MINUS_INF = ', fill_value=float("-inf")'


@dataclass(frozen=True)
class Fix:
    """An edit: the expression to replace, its replacement, and the name to import."""

    node: ast.expr
    change: Rewriting
    name: str = ""  # of safeops


def fix_of(page: Page, found: Found, taken: set[str]) -> Fix | None:
    """Return the edit that cures a finding; None if there is no safe edit."""
    make = MAKERS.get(found.rule, of_culprit)
    fix = make(page, found)
    return None if fix is None or fix.name in taken else fix


def of_culprit(page: Page, found: Found, options: str = "") -> Fix | None:
    """Return the edit that makes the faulty operation safe."""
    if found.culprit is None:
        return None
    node = found.culprit.node
    safe = safe_operation(page, node, options) if is_simple(node) else None
    return None if safe is None else Fix(node, safe[1], safe[0])


def is_simple(node: ast.expr) -> bool:
    """Whether a call writes into no array."""
    f = node.func if isinstance(node, ast.Call) else None
    return not (isinstance(f, ast.Attribute) and f.attr.endswith("_"))


def of_selection(page: Page, found: Found) -> Fix | None:
    """Return the edit to `safe_where`, or to a safe operation in an earlier line."""
    call, culprit = found.selection, found.node
    inside = call is not None and any(part is culprit for part in ast.walk(call))
    if call is not None and inside and named(call) == "where" and is_ternary(page, call):
        change = safe_where_of(page, call)
        if change is not None:
            return Fix(call, change, "safe_where")
    return of_culprit(page, found)


def is_ternary(page: Page, call: ast.Call) -> bool:
    """Whether a `where` is ``where(cond, x, y)``, and not a method."""
    root = call.func
    while isinstance(root, ast.Attribute):
        root = root.value
    plain = isinstance(root, ast.Name) and (root.id in page.modules or root is call.func)
    return plain and len(call.args) == 3 and not call.keywords  # noqa: PLR2004  (cond, x, y)


def of_value(page: Page, found: Found) -> Fix | None:
    """Return the edit to a safe operation that gives the value of a selection by value."""
    whole = found.whole
    if named(whole) == "nan_to_num":
        return of_culprit(page, found)
    put = found.filled
    if put is None or found.culprit is None or math.isnan(number(put)):
        return None
    safe = of_culprit(page, found)
    if safe is not None and safe.name in FILLED_BY_0:
        return safe if number(put) == 0 else None
    return of_culprit(page, found, f", fill_value={number(put)!r}")


def of_clip(page: Page, found: Found) -> Fix | None:
    """Return the edit to a safe operation with the value of the clipped one."""
    safe = of_culprit(page, found)
    is_log = safe is not None and safe.name in LOGARITHMS
    return of_culprit(page, found, MINUS_INF) if is_log else safe


def of_guard(page: Page, found: Found) -> Fix | None:
    """Return the edit from ``x <= tol`` to ``not x > tol``."""
    node, parent = found.node, page.parents[found.node]
    if not isinstance(node, ast.Compare):
        return None
    sign = ">" if isinstance(node.ops[0], ast.LtE) else ">="

    def change(render: Callable[[ast.expr], str]) -> str:
        asked = f"{render(node.left)} {sign} {render(node.comparators[0])}"
        return f"not {asked}" if is_test else f"~({asked})"

    is_test = isinstance(parent, ast.If | ast.BoolOp)
    is_array = isinstance(parent, ast.Call) and named(parent) in {"any", "all"}
    return Fix(node, change) if is_test or is_array else None


MAKERS: Mapping[str, Callable[[Page, Found], Fix | None]] = {
    "SO001": of_selection,
    "SO003": of_clip,
    "SO004": of_value,
    "SO009": of_guard,
}


@dataclass
class Edits:
    """The edits of a file."""

    page: Page
    fixes: Sequence[Fix]

    def __post_init__(self) -> None:
        """Collect the change of each expression."""
        self.changes = {id(fix.node): fix.change for fix in self.fixes}
        self.outermost = list(self._outermost(self.page.tree))

    def _outermost(self, node: ast.AST) -> Iterator[ast.expr]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr) and id(child) in self.changes:
                yield child
            else:
                yield from self._outermost(child)

    def applied(self) -> str:
        """Return the source of the file with the edits."""
        lines = [line.encode() for line in self.page.lines]
        for node in sorted(self.outermost, key=lambda x: (x.lineno, x.col_offset), reverse=True):
            line, end, column, end_column = span_of(node)
            new = rendered(self.page, node, self.changes).encode()
            lines[line - 1 : end] = [lines[line - 1][:column] + new + lines[end - 1][end_column:]]
        names = {fix.name for fix in self.fixes} - {""} - imported(self.page.tree)
        if names:
            at, indent = place_of_import(self.page)
            newline = b"\r\n" if lines and lines[0].endswith(b"\r\n") else b"\n"
            text = f"{indent}from safeops import {', '.join(sorted(names))}".encode()
            lines.insert(at, text + newline)
        return b"".join(lines).decode()

    def of(self, node: ast.expr) -> tuple[int, str, str]:
        """Return the lines of an expression: first line number, old lines, new lines."""
        tops = (x for x in self.outermost if any(part is node for part in ast.walk(x)))
        top = next(tops, node)
        line, end, column, end_column = span_of(top)
        first, last = self.page.lines[line - 1], self.page.lines[end - 1]
        new = rendered(self.page, top, self.changes)
        old = "".join(self.page.lines[line - 1 : end]).rstrip("\r\n")
        head = first.encode()[:column].decode()
        return line, old, head + new + last.encode()[end_column:].decode().rstrip("\r\n")


def imported(tree: ast.Module) -> set[str]:
    """Return the names that a file imports from safeops."""
    nodes = (x for x in tree.body if isinstance(x, ast.ImportFrom) and x.module == "safeops")
    return {
        alias.name for node in nodes for alias in node.names if alias.asname in (None, alias.name)
    }


def place_of_import(page: Page) -> tuple[int, str]:
    """Return the line after which an import goes, and its indentation."""
    last = 0
    for i, node in enumerate(page.tree.body):
        is_doc = i == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Pass):  # a line of IPython in a notebook
            continue
        if not (is_doc or isinstance(node, ast.Import | ast.ImportFrom)):
            break
        last = node.end_lineno or node.lineno
    return last or first_line(page), ""


def first_line(page: Page) -> int:
    """Return the number of comment lines before the first statement."""
    start = page.tree.body[0].lineno if page.tree.body else 1
    count = 0
    for line in page.lines[: start - 1]:
        if not line.startswith("#"):
            break
        count += 1
    return count


def page_of(text: str, tree: ast.Module) -> Page:
    """Return a file as the rewriter takes it."""
    return Page(tuple(lines_of(text)), tree)


def taken_names(tree: ast.Module) -> set[str]:
    """Return the names that a file itself defines; an import must not hide them."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.ImportFrom) and node.module != "safeops":
            found |= {alias.asname or alias.name for alias in node.names}
    return found
