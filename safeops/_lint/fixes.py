"""Edits that cure findings, made by the rewriter behind the repairs of `explain`."""

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from safeops._lint.domains import is_sech2, unclipped
from safeops._lint.found import File, Found
from safeops._lint.scopes import parts_of
from safeops._lint.shapes import STEEP, is_root, number
from safeops._lint.sources import lines_of
from safeops._lint.terms import Term
from safeops._source.edits import Page, Rewriting, named, operands, rendered, span_of
from safeops._source.locations import Span
from safeops._source.rewrites import KEYWORDS, safe_operation, safe_where_of

MINUS_INF = ', fill_value=float("-inf")'
# Operations that undo a logarithm: what is finite behind them is no longer the truth.
UNDOING = frozenset({"exp", "expm1", "log_softmax", "logsumexp", "sigmoid", "softmax"})


@dataclass(frozen=True)
class Fix:
    """An edit: the expression to replace, its replacement, and the name to import."""

    node: ast.expr
    change: Rewriting
    name: str = ""  # of safeops
    note: str = ""  # what it chooses


class Refused(Exception):  # noqa: N818  (it is an answer)
    """There is no edit, for the reason that it gives."""


def refuse(reason: str) -> NoReturn:
    """Answer that there is no edit."""
    raise Refused(reason)


@dataclass(frozen=True)
class Maker:
    """Makes the edit for a finding in a file."""

    page: Page
    file: File
    found: Found

    def fix(self, taken: set[str]) -> Fix:
        """Return the edit that cures the finding; Refused if none is certainly right."""
        if "keops" in " ".join(self.file.names.meant.values()):
            refuse("safe operations do not take the arrays of KeOps")
        rule = self.found.rule
        makers = {"SO001": self.of_selection, "SO003": self.of_clip, "SO004": self.of_value}
        makers |= {"SO008": self.of_length, "SO002": self.of_length, "SO009": self.of_guard}
        fix = makers.get(rule, self.of_culprit)()
        fix = replace(fix, note=EMPTY) if rule == "SO006" else fix
        if fix.name in taken:
            refuse(f"this file has a `{fix.name}` of its own")
        return fix

    def of_culprit(self, options: str = "") -> Fix:
        """Return the edit that makes the faulty operation safe."""
        culprit = self.found.culprit
        if culprit is None:
            refuse(REASONS.get(self.found.rule, "a product has to become a selection"))
        node = culprit.node
        name = getattr(getattr(node, "func", None), "attr", "")
        if name.endswith("_"):
            refuse(f"`{name}` writes into its array")
        self.check_whole(culprit)
        if not options and (product := self.of_product(node)) is not None:
            return product
        safe = safe_operation(self.page, node, options)
        if safe is None:
            refuse(f"no safe operation has the arguments of this `{culprit.operation}`")
        return Fix(node, safe[1], safe[0])

    def check_whole(self, culprit: Term) -> None:
        """Refuse an edit of one operation inside of a whole that is smooth, or undoes it."""
        whole = self.file.reader.term(self.found.whole)
        around = path_to(whole, culprit)
        undone = [x.operation for x in around if x.operation in UNDOING]
        if undone and culprit.operation.startswith("log"):
            refuse(
                f"`{undone[-1]}` undoes this logarithm, and a finite number in its place would be "
                "wrong: safe_logsumexp(x, b=...) takes weights that are 0"
            )
        inner = unclipped(culprit.args[0]) if culprit.args else culprit
        if culprit.operation == "log" and is_sech2(inner):
            refuse(
                "the whole is smooth, and a safe logarithm would be wrong: log(1 - tanh(x)**2) is "
                "log_sech2(x)"
            )

    def of_product(self, node: ast.expr) -> Fix | None:
        """Return the edit of ``a * log(b)`` to ``xlogy(a, b)``, and to ``rel_entr``."""
        part, sign = node, ""
        outer = self.page.parents[node]
        if isinstance(outer, ast.UnaryOp) and isinstance(outer.op, ast.USub):
            part, sign, outer = outer, "-", self.page.parents[outer]
        parts = operands(self.page, node)
        is_log = named(node) == "log" and parts is not None and len(parts[0]) == 1 and not parts[1]
        if not (isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Mult) and is_log):
            return None
        weight = outer.right if outer.left is part else outer.left
        (inner,) = parts[0]  # type: ignore[index]  # it is a logarithm
        quotient = inner if isinstance(inner, ast.BinOp) and named(inner) == "div" else None
        text = self.page.text(weight)
        if quotient is not None and text == self.page.text(quotient.left):
            name, second = "rel_entr", quotient.right
        elif any(x.operation == "div" for x in self.file.reader.term(inner).every):
            refuse("the quotient inside may be 0 / 0; rel_entr(p, q) is p * log(p / q)")
        else:
            name, second = "xlogy", inner
        return Fix(outer, lambda render: f"{sign}{name}({render(weight)}, {render(second)})", name)

    def of_selection(self) -> Fix:
        """Return the edit to `safe_where`, or to a safe operation in an earlier line."""
        call, culprit = self.found.selection, self.found.node
        if self.found.is_given:
            refuse("it is not written here that the mask drops all singular entries")
        inside = call is not None and any(part is culprit for part in ast.walk(call))
        if call is not None and inside and named(call) == "where" and self.is_ternary(call):
            change = safe_where_of(self.page, call)
            if change is not None:
                return Fix(call, change, "safe_where")
        if not inside and (line := self.used_elsewhere()):
            refuse(f"line {line} uses the value at its singular points too")
        return self.of_culprit()

    def used_elsewhere(self) -> int:
        """Return a line that uses what the culprit makes, other than the selection; 0 if none."""
        scopes, whole = self.file.scopes, self.found.whole
        stack, seen = [scopes.statement_of(self.found.node)], set()
        end = scopes.statement_of(whole)
        while stack:
            statement = stack.pop()
            targets = getattr(statement, "targets", [getattr(statement, "target", None)])
            if statement is end or statement in seen:
                continue
            seen.add(statement)
            if len(targets) != 1 or not isinstance(targets[0], ast.Name):
                return int(getattr(statement, "lineno", 0))
            stack += [scopes.statement_of(x) for x in self.file.guards.uses(targets[0], statement)]
        return 0

    def is_ternary(self, call: ast.Call) -> bool:
        """Whether a `where` is ``where(cond, x, y)``, and not a method."""
        root = call.func
        while isinstance(root, ast.Attribute):
            root = root.value
        plain = isinstance(root, ast.Name) and (root.id in self.page.modules or root is call.func)
        return plain and len(call.args) == 3 and not call.keywords  # noqa: PLR2004  (cond, x, y)

    def of_value(self) -> Fix:
        """Return the edit to a safe operation that gives the value of a selection by value."""
        found = self.found
        if named(found.whole) == "nan_to_num":
            return self.of_nan_to_num()
        put, culprit = found.filled, found.culprit
        if put is None or culprit is None or math.isnan(number(put)):
            refuse("what it fills in is not one number")
        if line := self.used_elsewhere():
            refuse(f"line {line} uses the value at its singular points too")
        around = path_to(self.file.reader.term(found.whole), culprit)
        if [x for x in around if x.operation not in {"where", "index"}]:
            refuse("the operation is a part of what is tested: safe_where keeps both away")
        self.check_asked(culprit, number(put))
        if culprit.operation == "pow" and number(put) == 0:  # `safe_pow` fills in 0 alone
            return replace(self.of_culprit(), note=BELOW)
        note = "" if culprit.operation == "div" else BELOW
        return replace(self.of_culprit(f", fill_value={number(put)!r}"), note=note)

    def check_asked(self, culprit: Term, put: float) -> None:
        """Refuse an edit that fills in more than the condition asks for."""
        asked = {x.operation for x in self.file.reader.term(self.found.whole).every}
        asks_nan, asks_inf = "isnan" in asked, "isinf" in asked or "eq" in asked
        if culprit.operation == "div" and "isfinite" not in asked and asks_nan != asks_inf:
            above, below = culprit.args
            if asks_nan and above.key != below.key:
                refuse("it keeps x / 0, which safe_div fills in as well as 0 / 0")
            if asks_inf and not (above.value or 0):
                refuse("it keeps 0 / 0, which safe_div fills in as well as x / 0")
        if culprit.operation == "sqrt" and put != 0:
            refuse("safe_sqrt fills in at 0 too, where the root is 0")

    def of_nan_to_num(self) -> Fix:
        """Return the edit of an operation in `nan_to_num`, if that fills in what it would."""
        whole, culprit = self.found.whole, self.found.culprit
        term = self.file.reader.term(whole)
        given = [getattr(x, "value", None) for x in term.options.values()]
        is_sign = all(x.operation in {"nan_to_num", "neg"} for x in path_to(term, culprit or term))
        if not given or culprit is None:
            return replace(self.of_culprit(), note=LARGEST)
        if set(given) == {0} and is_sign and culprit.operation != "pow":
            return self.of_culprit(", fill_value=0.0")
        refuse("nan_to_num fills in other numbers than a safe operation would")

    def of_clip(self) -> Fix:
        """Return the edit to a safe operation with the value of the clipped one."""
        culprit = self.found.culprit
        if culprit is None:
            return self.of_culprit()
        inner = culprit.args[0] if culprit.operation == "sqrt" else culprit
        x = next((part for part in inner.args if number(part) != 0), inner)
        is_one_sided = inner.operation == "maximum" or (
            inner.operation == "clip" and math.isnan(number(inner.args[2]))
        )
        if is_one_sided and is_inside(inner.node, culprit.node) and is_inside(x.node, inner.node):
            self.check_whole(culprit)
            return Fix(culprit.node, lambda render: f"safe_sqrt({render(x.node)})", "safe_sqrt")
        is_log = culprit.operation in {"log", "log2", "log10", "log1p"}
        return self.of_culprit(MINUS_INF if is_log else "")

    def of_length(self) -> Fix:
        """Return the edit of ``sqrt(sum(v**2, axis))`` to ``safe_norm(v, axis=axis)``."""
        culprit = self.found.culprit
        if culprit is not None and culprit.operation == "div":
            return self.of_quotient(culprit)
        if culprit is None or not is_root(culprit):
            if culprit is not None and culprit.operation == "std":
                refuse("safe_std(x) has slope 0 where all entries are equal")
            return self.of_culprit()
        inner = self.operand_of(culprit.node)
        sums = self.file.names.called(inner) if isinstance(inner, ast.Call) else None
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add):
            name, squares, given = "safe_hypot", [inner.left, inner.right], {}
        elif sums is not None and sums.operation in SUMS and sums.args:
            name, squares, given = SUMS[sums.operation], [sums.args[0]], dict(sums.options)
            given |= zip(("axis", "keepdims"), sums.args[1:], strict=False)
        else:
            return self.of_culprit()
        bases = [base for x in squares if (base := self.base_of(x)) is not None]
        if len(bases) < len(squares) or not set(given) <= set(KEYWORDS) - {"ord", "p"}:
            return self.of_culprit()

        def change(render: Callable[[ast.expr], str]) -> str:
            options = sorted(f"{KEYWORDS[key]}={render(x)}" for key, x in given.items())
            return f"{name}({', '.join([*map(render, bases), *options])})"

        return Fix(culprit.node, change, name)

    def of_quotient(self, culprit: Term) -> Fix:
        """Return the edit of ``v / norm(v, axis=axis)`` to ``safe_normalize(v, axis=axis)``."""
        length = culprit.args[1]
        if length.operation != "norm" or length.framework not in STEEP:
            return self.of_culprit()
        parts = operands(self.page, culprit.node)
        norm = operands(self.page, parts[0][1]) if parts and len(parts[0]) > 1 else None
        if parts is not None and norm is not None and len(norm[0]) == 1:
            v, given = parts[0][0], {KEYWORDS.get(key, key): x for key, x in norm[1].items()}
            axis, keepdims = given.pop("axis", None), given.pop("keepdims", None)
            is_kept = axis is None or getattr(keepdims, "value", False) is True
            if not given and is_kept and self.page.text(v) == self.page.text(norm[0][0]):
                return Fix(
                    culprit.node,
                    lambda render: (
                        f"safe_normalize({render(v)}, axis={render(axis) if axis else None})"
                    ),
                    "safe_normalize",
                )
        refuse("the length has no slope there either: safe_normalize(v, axis=...) is both")

    def operand_of(self, node: ast.expr) -> ast.expr | None:
        """Return the first operand of an operation as it is written."""
        parts = operands(self.page, node)
        return parts[0][0] if parts and parts[0] else None

    def base_of(self, node: ast.expr) -> ast.expr | None:
        """Return x of ``x**2``, ``x * x`` and ``square(x)`` as it is written."""
        parts = operands(self.page, node)
        if parts is None or parts[1]:
            return None
        base, *rest = parts[0]
        word = named(node)
        is_power = word == "pow" and len(rest) == 1 and getattr(rest[0], "value", None) == 2  # noqa: PLR2004  (a square)
        is_product = word == "mul" and self.page.text(base) == self.page.text(rest[0])
        return base if is_power or is_product or (word == "square" and not rest) else None

    def of_guard(self) -> Fix:
        """Return the edit from ``x <= tol`` to ``not x > tol``."""
        node, parent = self.found.node, self.page.parents[self.found.node]
        is_test = isinstance(parent, ast.If | ast.BoolOp)
        word = parent.attr if isinstance(parent, ast.Attribute) else named(parent)
        is_array = word in {"any", "all"}
        if not isinstance(node, ast.Compare) or not (is_test or is_array):
            refuse("the comparison is a part of something else")
        sign = ">" if isinstance(node.ops[0], ast.LtE) else ">="

        def change(render: Callable[[ast.expr], str]) -> str:
            asked = f"{render(node.left)} {sign} {render(node.comparators[0])}"
            return f"not {asked}" if is_test else f"~({asked})"

        return Fix(node, change)


# The length that a root of a sum of squares is.
SUMS = {"sum": "safe_norm", "mean": "safe_rms"}
# What an edit chooses.
BELOW = "the edit fills in the same where the operand is negative, and NaN before"
LARGEST = "the edit chooses the value of the safe operation there, in place of the largest number"
EMPTY = "the edit chooses 0 for the mean of nothing"
# Rules without an edit.
REASONS = {"SO011": "which number is small enough is for you to say"}


def path_to(whole: Term, part: Term) -> list[Term]:
    """Return the operations between a term and a part of it, with the first and not the last."""
    if whole is part:
        return []
    parts = whole.args[1:] if whole.operation == "where" else whole.args
    inner = next((x for x in parts if any(y is part for y in x.every)), None)
    return [] if inner is None else [whole, *path_to(inner, part)]


def is_inside(part: ast.expr, node: ast.expr) -> bool:
    """Whether an expression is written inside of another one."""
    return any(x is part for x in ast.walk(node))


@dataclass
class Edits:
    """The edits of a file."""

    page: Page
    fixes: Sequence[Fix]

    def __post_init__(self) -> None:
        """Collect the change of each expression."""
        self.changes = {id(fix.node): fix.change for fix in self.fixes}
        self.outermost: list[ast.expr] = []
        self.tops: dict[int, ast.expr] = {}  # the outermost change around each change
        self._collect(self.page.tree)

    def _collect(self, tree: ast.AST) -> None:
        stack: list[tuple[ast.AST, ast.expr | None]] = [(tree, None)]
        while stack:
            node, top = stack.pop()
            if isinstance(node, ast.expr) and id(node) in self.changes:
                if top is None:
                    top = node
                    self.outermost.append(node)
                self.tops[id(node)] = top
            stack += [(child, top) for child in parts_of(node)]

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

    def applied(self) -> str:
        """Return the source of the file with the edits."""
        lines = [line.encode() for line in self.page.lines]
        for node in sorted(self.outermost, key=lambda x: (x.lineno, x.col_offset), reverse=True):
            line, end, column, end_column = self.span(node)
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
        top = self.tops.get(id(node), node)
        line, end, column, end_column = self.span(top)
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
    return Page(lines_of(text), tree)


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
