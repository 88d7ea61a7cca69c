"""Edits that cure findings: those of `explain`, where they certainly mean the same."""

import ast
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NoReturn

from safeops._lint.domains import is_sech2, unclipped
from safeops._lint.found import File, Found
from safeops._lint.probes import trials
from safeops._lint.terms import Term
from safeops._lint.values import STEEP, Program, number
from safeops._source import rewrites
from safeops._source.edits import Edits, Page, enclosing_wheres, named
from safeops._source.rewrites import Refused, Rewrite

MINUS_INF = ', fill_value=float("-inf")'
# What an edit chooses.
BELOW = "the edit fills in the same where the operand is negative, and NaN before"
LARGEST = "the edit chooses the value of the safe operation there, in place of the largest number"
POLE = "the edit chooses the value of the safe operation there, in place of infinity"
POLES = frozenset({"atanh", "logit", "rsqrt"})
SAME_AT_0 = frozenset({"safe_hypot", "safe_norm", "safe_rms"})  # as is what they replace
# Which infinities `nan_to_num` meets at the singular points of an operation.
BOTH = frozenset({"posinf", "neginf"})
INFINITE = dict.fromkeys(rewrites.LOGARITHMS, frozenset({"neginf"}))
INFINITE |= dict.fromkeys(["acos", "acosh", "asin", "sqrt"], frozenset())
EMPTY = "the edit chooses 0 for the mean of nothing"


def refuse(reason: str) -> NoReturn:
    """Answer that there is no edit."""
    raise Refused(reason)


@dataclass(frozen=True)
class Maker:
    """Makes the edit for a finding in a file."""

    file: File
    found: Found
    culprit: Term

    def of_culprit(self, options: str = "") -> Rewrite:
        """Return the edit that makes the faulty operation safe."""
        file, node, reason = self.file, self.culprit.node, self.reason_to_keep()
        is_dropped = self.found.filled is not None or self.found.rule == "SO004"
        return rewrites.rewrite_of(file, node, options, is_dropped=is_dropped, reason=reason)

    def reason_to_keep(self) -> str:
        """Return why a logarithm alone is not to be edited, by what names stand for too."""
        culprit = self.culprit
        if culprit.operation not in {*rewrites.LOGARITHMS, "logit"}:
            return ""
        around = path_to(self.file.term(self.found.whole), culprit)
        undoing = [x.operation for x in around if x.operation in rewrites.UNDOING]
        if undoing and self.found.filled is None:
            return rewrites.undone_by(undoing[-1])
        return rewrites.SMOOTH if is_sech2(unclipped(culprit.args[0])) else ""

    def of_selection(self) -> Rewrite:
        """Return the edit to `safe_where`, or to a safe operation in an earlier line."""
        if self.found.is_given:
            refuse("it is not written here that the mask drops all singular entries")
        if (whole := self.of_where()) is not None:
            return whole
        fix, selection = self.of_line(), self.found.selection
        if fix.name not in SAME_AT_0 and selection and self.culprit in selection.cond.every:
            refuse("its value decides what is dropped: safe_where(cond, x, f) keeps both away")
        return fix

    def of_where(self) -> Rewrite | None:
        """Return the edit of a ``where(cond, x, y)`` around the operation to `safe_where`."""
        whole = self.found.selection and self.found.selection.whole.node
        around = (x for x in enclosing_wheres(self.file, self.found.node) if x is whole)
        return next((rewrites.safe_where_of(self.file, call) for call in around), None)

    def of_line(self, options: str = "") -> Rewrite:
        """Return the edit of an operation whose result nothing else than the selection uses."""
        fix = self.of_culprit(options)
        if fix.name not in SAME_AT_0 and (line := self.used_elsewhere()):
            refuse(f"line {line} uses the value at its singular points too")
        return replace(fix, note=BELOW) if self.keeps_nan() else fix

    def keeps_nan(self) -> bool:
        """Whether a selection by the operand keeps NaN, as ``where(x != 0, log(x), 0)`` does."""
        selection, culprit = self.found.selection, self.culprit
        if selection is None:
            return False
        cond, is_other = selection.cond, culprit in selection.other.every
        program = Program(cond, culprit)
        for run in map(program.run, trials(cond, culprit)):
            x, y = run[cond.key].number, run[culprit.key].number
            if x is not None and y is not None and bool(x) != is_other and math.isnan(y):
                return True
        return False

    def used_elsewhere(self) -> int:
        """Return a line that uses what the culprit makes, other than the selection; 0 if none."""
        file, selection = self.file, self.found.selection
        stack, seen = [file.statement(self.found.node)], set()
        place = self.found.whole if selection is None else selection.place
        end = file.statement(place)
        while stack:
            statement = stack.pop()
            targets = getattr(statement, "targets", [getattr(statement, "target", None)])
            if statement is end or statement in seen:
                continue
            seen.add(statement)
            if len(targets) != 1 or not isinstance(targets[0], ast.Name):
                return int(getattr(statement, "lineno", 0))
            uses = file.uses(targets[0], statement)
            used = [x for x in uses if not self.is_later(x, statement)]
            stack += [file.statement(x) for x in used]
            if any(file.statement(x) is end and place not in file.above(x) for x in used):
                return place.lineno
        return 0

    def is_later(self, use: ast.Name, statement: ast.AST) -> bool:
        """Whether a name that a statement assigns has surely got another value where it is used."""
        file, one = self.file, self.file.definition_of(use)
        is_after = one is not None and file.order[one.statement] > file.order[statement]
        return one is not None and is_after and file.has_run(one.statement, use)

    def of_value(self) -> Rewrite:
        """Return the edit to a safe operation that gives the value of a selection by value."""
        if self.found.selection is None:
            is_clip = self.file.term(self.found.whole).operation != "nan_to_num"
            return self.of_clip() if is_clip else self.of_nan_to_num()
        if (whole := self.of_where()) is not None:
            return whole
        culprit, put = self.culprit, number(self.found.filled or self.culprit)
        if math.isnan(put):
            refuse("what it fills in is not one number")
        around = path_to(self.file.term(self.found.whole), culprit)
        if any(x.operation not in {"where", "index"} for x in around):
            refuse("the operation is a part of what is tested: safe_where keeps both away")
        self.check_asked(culprit, put)
        is_power = culprit.operation == "pow" and put == 0  # `safe_pow` fills in 0 alone
        fix = self.of_line("" if is_power else f", fill_value={put!r}")
        return replace(fix, note="" if culprit.operation == "div" else BELOW)

    def check_asked(self, culprit: Term, put: float) -> None:
        """Refuse an edit that fills in more than the condition asks for."""
        selection = self.found.selection
        asked = {x.operation for x in selection.cond.every} if selection else set()
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
        term, word = self.file.term(self.found.whole), self.culprit.operation
        options = {name: x for name, x in term.options.items() if name != "copy"}
        given = {getattr(x, "value", None) for x in options.values()}
        between = {x.operation for x in path_to(term, self.culprit)}
        if word == "div" and not between <= {"nan_to_num", "neg", "mul"}:
            refuse("nan_to_num makes 0 of the whole, of which the operation is a part")
        if not given:
            return replace(self.of_culprit(), note=LARGEST)
        if given != {0} or not between <= {"nan_to_num", "neg"} or word == "pow":
            refuse("nan_to_num fills in other numbers than a safe operation would")
        note = "" if INFINITE.get(word, BOTH) <= set(options) else LARGEST
        return replace(self.of_culprit(", fill_value=0.0"), note=note)

    def of_clip(self) -> Rewrite:
        """Return the edit to a safe operation with the value of the clipped one."""
        word = self.culprit.operation
        fix = self.of_culprit(MINUS_INF if word in rewrites.LOGARITHMS else "")
        return replace(fix, note=POLE) if word in POLES else fix

    def of_length(self) -> Rewrite:
        """Return the edit of ``sqrt(sum(v**2, axis))`` to ``safe_norm(v, axis=axis)``."""
        if self.culprit.operation == "std":
            refuse("safe_std(x) has slope 0 where all entries are equal")
        fix, length = self.of_culprit(), self.culprit.args[-1]
        if fix.name == "safe_div" and length.operation == "norm" and length.framework in STEEP:
            refuse("the length has no slope there either: safe_normalize(v, axis=...) is both")
        return fix


def fix_of(file: File, found: Found, taken: set[str]) -> Rewrite:
    """Return the edit that cures a finding; Refused if none is certainly right."""
    if "keops" in " ".join(file.meant.values()):
        refuse("safe operations do not take the arrays of KeOps")
    if found.culprit is None:
        return of_guard(file, found)
    maker = Maker(file, found, found.culprit)
    makers = {"SO001": maker.of_selection, "SO003": maker.of_clip, "SO004": maker.of_value}
    makers |= {"SO008": maker.of_length, "SO002": maker.of_length}
    fix = makers.get(found.rule, maker.of_culprit)()
    if fix.name in taken:
        refuse(f"this file has a `{fix.name}` of its own")
    return replace(fix, note=EMPTY) if found.rule == "SO006" else fix


def of_guard(file: File, found: Found) -> Rewrite:
    """Return the edit from ``x <= tol`` to ``not x > tol``; no other finding has no culprit."""
    node, parent = found.node, file.parents[found.node]
    if found.rule != "SO009":
        is_eps = found.rule == "SO011"
        reason = "which number is small enough is for you to say"
        refuse(reason if is_eps else "a product has to become a selection")
    is_test = isinstance(parent, ast.If | ast.BoolOp)
    word = parent.attr if isinstance(parent, ast.Attribute) else named(parent)
    if not isinstance(node, ast.Compare) or not (is_test or word in {"any", "all"}):
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
    ours = [x for x in page.tree.body if isinstance(x, ast.ImportFrom) and x.module == "safeops"]
    known = {x.name for one in ours for x in one.names if x.asname in (None, x.name)}
    names, lines = {fix.name for fix in fixes} - {""} - known, edits.lines(1, len(page.lines))
    if not names:
        return "".join(lines)
    at = end = place_of_import(page)
    for node in ours:  # of an earlier pass, or the user's
        line, plain = page.lines[node.lineno - 1].rstrip(), ast.unparse(node)
        if node.lineno <= at and line == plain and "*" not in plain and " as " not in plain:
            names |= {x.name for x in node.names}
            at, end = node.lineno - 1, node.lineno
            break
    newline = "\r\n" if page.lines and page.lines[0].endswith("\r\n") else "\n"
    lines[at:end] = [f"from safeops import {', '.join(sorted(names))}{newline}"]
    return "".join(lines)  # imports come before all edits: their lines have kept their places


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
    nodes = list(ast.walk(tree))
    named = ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef
    others = (x for x in nodes if isinstance(x, ast.ImportFrom) and x.module != "safeops")
    found = {alias.asname or alias.name for x in others for alias in x.names}
    found |= {x.id for x in nodes if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
    found |= {x.arg for x in nodes if isinstance(x, ast.arg)}
    return found | {x.name for x in nodes if isinstance(x, named)}
