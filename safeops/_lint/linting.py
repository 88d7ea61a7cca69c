"""The findings of all rules in a text, and the text after their edits."""

import ast
import re
import sys
import tokenize
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from safeops._lint import domains, emptiness, lengths, precision, selections
from safeops._lint.fixes import edited_text, fix_of, taken_names
from safeops._lint.found import TITLES, File, Found
from safeops._lint.names import DIFFERENTIATED
from safeops._lint.sources import lines_of
from safeops._source.edits import Edits
from safeops._source.locations import column_in
from safeops._source.rewrites import Refused, Rewrite

IGNORE = re.compile(r"#\s*safeops:\s*ignore(?:\[([\w\s,]*)\])?", re.IGNORECASE)
DEPTH = 20_000  # of Python's calls: a sum of 2,000 summands is 2,000 deep
# The rules: each yields the places of a file that have its pattern.
RULES = (
    selections.dropped,
    selections.overwritten,
    selections.replaced,
    selections.infinite,
    selections.multiplied,
    selections.weighed,
    selections.undone,
    lengths.padded,
    domains.clipped,
    lengths.rooted,
    lengths.normalised,
    emptiness.averaged,
    emptiness.emptied,
    emptiness.passed,
    precision.vanished,
)
MODULES = re.compile(r"\b(autograd|jax|keras|numpy|scipy|tensorflow|tf_keras|torch|xp|xnp)\b")


@dataclass(eq=False)
class Report:
    """The findings in a text."""

    text: str
    file: File | None = None  # if something was found: of many files it is too much
    findings: list[Found] = field(default_factory=list)
    fixes: list[Rewrite] = field(default_factory=list)
    edits: Edits | None = None

    @cached_property
    def fixed(self) -> str:
        """The text with all edits."""
        return edited_text(self.edits, self.fixes) if self.edits and self.fixes else self.text


def lint(
    text: str,
    select: frozenset[str] = frozenset(TITLES),
    *,
    numpy: bool = False,
    tree: ast.Module | None = None,
) -> Report:
    """Return the findings of the selected rules in a text; SyntaxError if it is not Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # about the text
        tree = ast.parse(text) if tree is None else tree
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, DEPTH))
    try:
        if MODULES.search(text):
            return _linted(text, tree, select, DIFFERENTIATED | ({"numpy"} if numpy else set()))
        return Report(text)
    finally:
        sys.setrecursionlimit(limit)


def _linted(
    text: str, tree: ast.Module, select: frozenset[str], differentiated: frozenset[str]
) -> Report:
    report, lines = Report(text), lines_of(text)
    file = File(lines, tree, differentiated)
    if file.frameworks.isdisjoint(differentiated) and not re.search(r"\bxp\b", text):
        return report
    comments = comments_of(text)
    every = [one for one in check(file) if one.rule in select and not is_ignored(one, comments)]
    if not every:
        return report
    report.file, report.findings = file, every
    taken = taken_names(tree)
    fixes = [fix_or_reason(file, one, taken) for one in every]
    report.fixes = [fix for fix in fixes if isinstance(fix, Rewrite)]
    report.edits = edits = Edits(file, {id(fix.node): fix.change for fix in report.fixes})
    names = sorted({fix.name for fix in report.fixes} - {""})
    for one, fix in zip(every, fixes, strict=True):
        start, end = (lines[x - 1] for x in one.lines)
        offset, end_offset = one.node.col_offset, one.node.end_col_offset or 0
        one.columns = column_in(start, offset), column_in(end, end_offset)
        if isinstance(fix, str):
            one.reason = fix
        else:
            one.edit, one.edits, one.cure = edits.of(fix.node), edits, one.cure or fix.note
            one.names = tuple(name for name in names if f"{name}(" in one.edit[2])
    return report


def check(file: File) -> list[Found]:
    """Return the findings of the rules, one for each place, in the order of the text."""
    found: dict[tuple[int, int], Found] = {}
    for one in (one for rule in RULES for one in rule(file)):
        found.setdefault((one.node.lineno, one.node.col_offset), one)
    return [found[key] for key in sorted(found)]


def fix_or_reason(file: File, found: Found, taken: set[str]) -> Rewrite | str:
    """Return the edit that cures a finding, or the reason why there is none."""
    try:
        return fix_of(file, found, taken)
    except Refused as reason:
        return str(reason)


def comments_of(text: str) -> dict[int, str]:
    """Return the comments that ignore findings, by line."""
    if not IGNORE.search(text):
        return {}
    lines = (line.rstrip("\r\n") + "\n" for line in lines_of(text))
    tokens = tokenize.generate_tokens(lambda: next(lines, ""))
    return {x.start[0]: x.string for x in tokens if x.type == tokenize.COMMENT}


def is_ignored(one: Found, comments: Mapping[int, str]) -> bool:
    """Whether a comment on its lines ignores a finding."""
    first, last = one.lines
    whole = (one.whole.lineno, one.whole.end_lineno or one.whole.lineno)
    for row in {*range(first, last + 1), *whole}:
        said = IGNORE.search(comments.get(row, ""))
        if said and (said[1] is None or one.rule in re.split(r"[\s,]+", said[1].upper())):
            return True
    return False
