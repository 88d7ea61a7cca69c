"""The findings of all rules in a text, and the text after their edits."""

import ast
import re
import sys
import tokenize
import warnings
from collections.abc import Mapping, Sequence
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
# A file without any of these words has no finding, and is not parsed.
WORDS = re.compile(
    r"\b(where|where_v2|select|masked_fill_?|nan_to_num_?|a?r?c?cosh?|a?r?c?sinh?|atan2|arctan2|"
    r"a?r?c?tanh|r?sqrt_?|pow_?|log\w*|norm|vector_norm|\w*softmax|hypot|raise)\b|/|\*\*|\*|\]\s*="
)


DEPTH = 20_000  # of Python's calls: a sum of 2,000 summands is 2,000 deep
# The rules: each yields the places of a file that have its pattern.
RULES = (
    selections.dropped,
    selections.overwritten,
    selections.replaced,
    selections.infinite,
    selections.multiplied,
    selections.weighed,
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
class Finding:
    """A fault at a place of a file, and its edit."""

    rule: str
    line: int
    column: int  # from 1, in characters
    end_line: int
    end_column: int
    message: str
    found: Found
    edit: tuple[int, str, str] | None = None  # first line, old lines, new lines
    reason: str = ""  # why there is no edit
    cure: str = ""
    edits: Edits | None = None  # of the file
    proof: str = ""  # the result of --confirm
    trial: str = ""  # and what it gave with the edits
    names: tuple[str, ...] = ()


@dataclass(eq=False)
class Report:
    """The findings in a text."""

    text: str
    file: File | None = None  # if something was found: of many files it is too much
    findings: list[Finding] = field(default_factory=list)
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
        if MODULES.search(text) and WORDS.search(text):
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
    report.file = file
    taken = taken_names(tree)
    fixes = [fix_or_reason(file, one, taken) for one in every]
    report.fixes = [fix for fix in fixes if isinstance(fix, Rewrite)]
    report.edits = edits = Edits(file, {id(fix.node): fix.change for fix in report.fixes})
    names = sorted({fix.name for fix in report.fixes} - {""})
    for one, fix in zip(every, fixes, strict=True):
        report.findings.append(finding_of(one, fix, edits, lines, names))
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
    rows = range(one.node.lineno, (one.node.end_lineno or one.node.lineno) + 1)
    for row in {*rows, one.whole.lineno, one.whole.end_lineno or one.whole.lineno}:
        said = IGNORE.search(comments.get(row, ""))
        if said and (said[1] is None or one.rule in re.split(r"[\s,]+", said[1].upper())):
            return True
    return False


def finding_of(
    one: Found, fix: Rewrite | str, edits: Edits, lines: Sequence[str], names: Sequence[str]
) -> Finding:
    """Return a finding from what a rule found."""
    node = one.node
    end_line, end = node.end_lineno or node.lineno, node.end_col_offset or 0
    found = Finding(
        one.rule,
        node.lineno,
        column_in(lines[node.lineno - 1], node.col_offset),
        end_line,
        column_in(lines[end_line - 1], end),
        one.why,
        one,
        cure=one.cure,
    )
    if isinstance(fix, str):
        found.reason = fix
    else:
        found.edit, found.edits = edits.of(fix.node), edits
        found.names = tuple(name for name in names if f"{name}(" in found.edit[2])
        found.cure = found.cure or fix.note
    return found
