"""Edits that cure findings: those of `explain`, where they certainly mean the same."""

import ast
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NoReturn

from safeops._lint.domains import is_sech2, unclipped
from safeops._lint.found import File, Found
from safeops._lint.probes import trials
from safeops._lint.shapes import STEEP, number
from safeops._lint.sources import lines_of
from safeops._lint.terms import Term
from safeops._lint.values import Program
from safeops._source.edits import Edits, Page, enclosing_wheres, named
from safeops._source.rewrites import (
    LOGARITHMS,
    SMOOTH,
    UNDOES,
    UNDOING,
    Refused,
    Rewrite,
    composite_of,
    rewrite_of,
    safe_where_of,
)

MINUS_INF = ', fill_value=float("-inf")'
# What an edit chooses.
BELOW = "the edit fills in the same where the operand is negative, and NaN before"
LARGEST = "the edit chooses the value of the safe operation there, in place of the largest number"
POLE = "the edit chooses the value of the safe operation there, in place of infinity"
POLES = frozenset({"atanh", "logit", "rsqrt"})
SAME_AT_0 = frozenset({"safe_hypot", "safe_norm", "safe_rms"})  # as is what they replace
# Which infinities `nan_to_num` meets at the singular points of an operation.
BOTH = frozenset({"posinf", "neginf"})
INFINITE = dict.fromkeys(LOGARITHMS, frozenset({"neginf"}))
INFINITE |= dict.fromkeys(["acos", "acosh", "asin", "sqrt"], frozenset())
EMPTY = "the edit chooses 0 for the mean of nothing"
# Rules without an edit.
REASONS = {"SO011": "which number is small enough is for you to say"}


def refuse(reason: str) -> NoReturn:
    """Answer that there is no edit."""
    raise Refused(reason)


@dataclass(frozen=True)
class Maker:
    """Makes the edit for a finding in a file."""

    page: Page
    file: File
    found: Found

    def fix(self, taken: set[str]) -> Rewrite:
        """Return the edit that cures the finding; Refused if none is certainly right."""
        if "keops" in " ".join(self.file.names.meant.values()):
            refuse("safe operations do not take the arrays of KeOps")
        makers = {"SO001": self.of_selection, "SO003": self.of_clip, "SO004": self.of_value}
        makers |= {"SO008": self.of_length, "SO002": self.of_length, "SO009": self.of_guard}
        fix = makers.get(self.found.rule, self.of_culprit)()
        fix = replace(fix, note=EMPTY) if self.found.rule == "SO006" else fix
        if fix.name in taken:
            refuse(f"this file has a `{fix.name}` of its own")
        return fix

    def of_culprit(self, options: str = "") -> Rewrite:
        """Return the edit that makes the faulty operation safe."""
        culprit = self.found.culprit
        if culprit is None:
            refuse(REASONS.get(self.found.rule, "a product has to become a selection"))
        self.check_whole(culprit)
        is_dropped = self.found.filled is not None or self.found.rule == "SO004"
        return rewrite_of(self.page, culprit.node, options, is_dropped=is_dropped)

    def check_whole(self, culprit: Term) -> None:
        """Refuse an edit of a logarithm that a later line undoes, or whose whole is smooth."""
        if culprit.operation not in {*LOGARITHMS, "logit"}:
            return
        around = path_to(self.file.reader.term(self.found.whole), culprit)
        undone = [x.operation for x in around if x.operation in UNDOING]
        if undone and self.found.filled is None:
            refuse(UNDOES.format(undone[-1]))
        is_composite = composite_of(self.page, culprit.node, is_dropped=False) is not None
        if not is_composite and is_sech2(unclipped(culprit.args[0])):
            refuse(SMOOTH)

    def of_selection(self) -> Rewrite:
        """Return the edit to `safe_where`, or to a safe operation in an earlier line."""
        if self.found.is_given:
            refuse("it is not written here that the mask drops all singular entries")
        return self.of_where() or self.of_line()

    def of_where(self) -> Rewrite | None:
        """Return the edit of a ``where(cond, x, y)`` around the operation to `safe_where`."""
        selection = self.found.selection
        call = None if selection is None else selection.whole.node
        if not isinstance(call, ast.Call):
            return None
        is_around = call in enclosing_wheres(self.page, self.found.node)
        return safe_where_of(self.page, call) if is_around else None

    def of_line(self, options: str = "") -> Rewrite:
        """Return the edit of an operation whose result nothing else than the selection uses."""
        fix = self.of_culprit(options)
        if fix.name not in SAME_AT_0 and (line := self.used_elsewhere()):
            refuse(f"line {line} uses the value at its singular points too")
        return replace(fix, note=BELOW) if self.keeps_nan() else fix

    def keeps_nan(self) -> bool:
        """Whether a selection by the operand keeps NaN, as ``where(x != 0, log(x), 0)`` does."""
        selection, culprit = self.found.selection, self.found.culprit
        if selection is None or culprit is None:
            return False
        cond, is_other = selection.cond, culprit in selection.other.every
        program = Program(cond, culprit)
        runs = (program.run(numbers) for numbers in trials(cond, culprit))
        values = ((run[cond.key].number, run[culprit.key].number) for run in runs)
        return any(
            x is not None and y is not None and bool(x) != is_other and math.isnan(y)
            for x, y in values
        )

    def used_elsewhere(self) -> int:
        """Return a line that uses what the culprit makes, other than the selection; 0 if none."""
        scopes, selection = self.file.scopes, self.found.selection
        stack, seen = [scopes.statement_of(self.found.node)], set()
        end = scopes.statement_of(self.found.whole if selection is None else selection.place)
        while stack:
            statement = stack.pop()
            targets = getattr(statement, "targets", [getattr(statement, "target", None)])
            if statement is end or statement in seen:
                continue
            seen.add(statement)
            if len(targets) != 1 or not isinstance(targets[0], ast.Name):
                return int(getattr(statement, "lineno", 0))
            uses = self.file.guards.uses(targets[0], statement)
            stack += [scopes.statement_of(x) for x in uses if not self.is_later(x, statement)]
        return 0

    def is_later(self, use: ast.Name, statement: ast.AST) -> bool:
        """Whether a name that a statement assigns has surely got another value where it is used."""
        scopes = self.file.scopes
        one = scopes.definition_of(use)
        is_after = one is not None and scopes.order[one.statement] > scopes.order[statement]
        return one is not None and is_after and scopes.has_run(one.statement, use)

    def of_value(self) -> Rewrite:
        """Return the edit to a safe operation that gives the value of a selection by value."""
        found = self.found
        if named(found.whole) == "nan_to_num":
            return self.of_nan_to_num()
        if (whole := self.of_where()) is not None:
            return whole
        put, culprit = found.filled, found.culprit
        if put is None or culprit is None or math.isnan(number(put)):
            refuse("what it fills in is not one number")
        around = path_to(self.file.reader.term(found.whole), culprit)
        if [x for x in around if x.operation not in {"where", "index"}]:
            refuse("the operation is a part of what is tested: safe_where keeps both away")
        self.check_asked(culprit, number(put))
        is_power = culprit.operation == "pow" and number(put) == 0  # `safe_pow` fills in 0 alone
        note = "" if culprit.operation == "div" else BELOW
        options = "" if is_power else f", fill_value={number(put)!r}"
        return replace(self.of_line(options), note=note)

    def check_asked(self, culprit: Term, put: float) -> None:
        """Refuse an edit that fills in more than the condition asks for."""
        selection = self.found.selection
        cond = [] if selection is None else selection.cond.every
        asked = {x.operation for x in cond}
        asks_nan, asks_inf = "isnan" in asked, "isinf" in asked or "eq" in asked
        if culprit.operation == "div" and "isfinite" not in asked and asks_nan != asks_inf:
            above, below = culprit.args
            if asks_nan and above.key != below.key:
                refuse("it keeps x / 0, which safe_div fills in as well as 0 / 0")
            if asks_inf and not (above.value or 0):
                refuse("it keeps 0 / 0, which safe_div fills in as well as x / 0")
        if culprit.operation == "sqrt" and put != 0:
            refuse("safe_sqrt fills in at 0 too, where the root is 0")

    def of_nan_to_num(self) -> Rewrite:
        """Return the edit of an operation in `nan_to_num`, if that fills in what it would."""
        whole, culprit = self.found.whole, self.found.culprit
        term = self.file.reader.term(whole)
        options = {name: x for name, x in term.options.items() if name != "copy"}
        given = [getattr(x, "value", None) for x in options.values()]
        is_sign = all(x.operation in {"nan_to_num", "neg"} for x in path_to(term, culprit or term))
        if not given or culprit is None:
            return replace(self.of_culprit(), note=LARGEST)
        if set(given) == {0} and is_sign and culprit.operation != "pow":
            note = "" if INFINITE.get(culprit.operation, BOTH) <= set(options) else LARGEST
            return replace(self.of_culprit(", fill_value=0.0"), note=note)
        refuse("nan_to_num fills in other numbers than a safe operation would")

    def of_clip(self) -> Rewrite:
        """Return the edit to a safe operation with the value of the clipped one."""
        word = "" if self.found.culprit is None else self.found.culprit.operation
        fix = self.of_culprit(MINUS_INF if word in LOGARITHMS else "")
        return replace(fix, note=POLE) if word in POLES else fix

    def of_length(self) -> Rewrite:
        """Return the edit of ``sqrt(sum(v**2, axis))`` to ``safe_norm(v, axis=axis)``."""
        culprit = self.found.culprit
        if culprit is not None and culprit.operation == "std":
            refuse("safe_std(x) has slope 0 where all entries are equal")
        fix = self.of_culprit()
        length = culprit.args[-1] if culprit is not None and fix.name == "safe_div" else None
        if length is not None and length.operation == "norm" and length.framework in STEEP:
            refuse("the length has no slope there either: safe_normalize(v, axis=...) is both")
        return fix

    def of_guard(self) -> Rewrite:
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

        return Rewrite(node, "", change)


def path_to(whole: Term, part: Term) -> list[Term]:
    """Return the operations between a term and a part of it, with the first and not the last."""
    if whole is part:
        return []
    parts = whole.args[1:] if whole.operation == "where" else whole.args
    inner = next((x for x in parts if any(y is part for y in x.every)), None)
    return [] if inner is None else [whole, *path_to(inner, part)]


def edited_text(edits: Edits, fixes: Iterable[Rewrite]) -> str:
    """Return the source of a file with edits and their import."""
    page = edits.page
    names = {fix.name for fix in fixes} - {""} - imported(page.tree)
    text = "".join(edits.lines(1, len(page.lines)))
    if not names:
        return text
    at = place_of_import(page)
    newline = "\r\n" if page.lines and page.lines[0].endswith("\r\n") else "\n"
    lines = list(lines_of(text))  # those of imports come before all edits
    for node in page.tree.body:
        line = lines[node.lineno - 1].rstrip()
        if node.lineno <= at and PLAIN_IMPORT.fullmatch(line):  # of an earlier pass, or the user's
            names |= set(line.removeprefix("from safeops import ").split(", "))
            at = node.lineno - 1
            del lines[at]
            break
    lines.insert(at, f"from safeops import {', '.join(sorted(names))}{newline}")
    return "".join(lines)


PLAIN_IMPORT = re.compile(r"from safeops import \w+(, \w+)*")


def imported(tree: ast.Module) -> set[str]:
    """Return the names that a file imports from safeops."""
    nodes = (x for x in tree.body if isinstance(x, ast.ImportFrom) and x.module == "safeops")
    return {
        alias.name for node in nodes for alias in node.names if alias.asname in (None, alias.name)
    }


def place_of_import(page: Page) -> int:
    """Return the line after which an import goes: behind the others, or the first comment."""
    last = 0
    for i, node in enumerate(page.tree.body):
        is_doc = i == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Pass):  # a line of IPython in a notebook
            continue
        if not (is_doc or isinstance(node, ast.Import | ast.ImportFrom)):
            break
        last = node.end_lineno or node.lineno
    comments = (i for i, line in enumerate(page.lines) if not line.startswith("#"))
    start = page.tree.body[0].lineno - 1 if page.tree.body else 0
    return last or min(next(comments, start), start)


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
