"""The findings of all rules in a text, the text after their edits, and the settings."""

import ast
import re
import sys
import tokenize
import tomllib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from safeops._lint import domains, selections
from safeops._lint.fixes import edited_text, fix_of, taken_names
from safeops._lint.found import TITLES, File, Found
from safeops._lint.names import DIFFERENTIATED
from safeops._lint.sources import Source, is_apart, lines_of
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
    domains.padded,
    domains.clipped,
    domains.rooted,
    domains.normalised,
    selections.averaged,
    selections.emptied,
    selections.passed,
    domains.vanished,
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


KEYS = {"select": list, "ignore": list, "exclude": list, "numpy": bool, "everywhere": bool}


class SettingsError(Exception):
    """The configuration or the command line is wrong."""


@dataclass(frozen=True)
class Settings:
    """Which rules are on, which files are excluded, whether NumPy and metrics count."""

    select: frozenset[str] = frozenset(TITLES)
    exclude: tuple[str, ...] = ()
    numpy: bool = False
    everywhere: bool = False

    def report(self, source: Source) -> Report:
        """Return the findings in a file: none in a module without gradients."""
        is_left_out = is_apart(source.path) and not self.everywhere
        return lint(source.text, frozenset() if is_left_out else self.select, numpy=self.numpy)


def settings_of(
    start: Path, select: Iterable[str] | None, ignore: Iterable[str] | None, **flags: bool
) -> Settings:
    """Return the settings; options of the command line override pyproject.toml."""
    table = table_of(start)
    chosen = rules_of(table.get("select", ["SO"]) if select is None else select)
    left_out = rules_of(table.get("ignore", []) if ignore is None else ignore)
    given = {name: given or table.get(name, False) for name, given in flags.items()}
    return Settings(chosen - left_out, tuple(table.get("exclude", ())), **given)


def rules_of(words: Iterable[str]) -> frozenset[str]:
    """Return the rules that begin with these prefixes: SO, SO00, SO001."""
    found: set[str] = set()
    for word in words:
        these = {rule for rule in TITLES if word and rule.startswith(word.upper())}
        if not these:
            wrong(f"expected rules out of (SO001, ..., SO011), got {word or 'nothing'}")
        found |= these
    return frozenset(found)


def table_of(start: Path) -> dict[str, Any]:
    """Return the table of the nearest pyproject.toml that has one, from a folder upwards."""
    start = start.resolve()
    for file in (folder / "pyproject.toml" for folder in (start, *start.parents)):
        try:
            text = file.read_text("utf-8") if file.is_file() else ""
            table = tomllib.loads(text).get("tool", {}).get("safeops", {}).get("lint")
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            wrong(f"{file}: {error}")
        if table is not None:
            check_table(table, file)
            return dict(table)
    return {}


def check_table(table: dict[str, Any], file: Path) -> None:
    """Raise an error for a key that there is not, or a value of another kind."""
    for key, given in table.items():
        kind = KEYS.get(key)
        if kind is None:
            wrong(f"{file}: expected keys out of ({', '.join(KEYS)}), got {key}")
        is_listed = isinstance(given, list) and all(isinstance(x, str) for x in given)
        if not (is_listed if kind is list else isinstance(given, bool)):
            wrong(f"{file}: expected a {'list of strings' if kind is list else 'bool'} for {key}")


def wrong(said: str) -> NoReturn:
    """Say what is wrong with the configuration or the command line."""
    raise SettingsError(said)
