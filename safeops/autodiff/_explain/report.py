"""What `explain` finds, as data and as text: where a gradient stops being finite, and why."""

import json
import linecache
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from textwrap import dedent
from typing import Any, TypeAlias

from safeops._source.locations import Location, column_in, path_of
from safeops.autodiff._explain.finding import KINDS, NOTHING, Finding, Repair
from safeops.autodiff._explain.repairs import MASKED, OF_OTHERS, repairs_of

# Findings as plain data, for JSON: the keys are those of `python -m safeops lint`.


def place_record(where: Location | None) -> dict[str, Any] | None:
    """Return a line as an object; columns count characters from 1, and the last one is behind."""
    if where is None:
        return None
    record: dict[str, Any] = {"path": path_of(where.file), "line": where.line}
    if where.span is not None:
        _, last, start, end = where.span
        record["column"] = column_in(linecache.getline(where.file, where.line), start)
        end_column = column_in(linecache.getline(where.file, last), end)
        record |= {"end_line": last, "end_column": end_column}
    return record | {"source": where.source}


def fix_record(repair: Repair) -> dict[str, Any] | None:
    """Return an edit as an object."""
    edit = repair.edit
    if edit is None:
        return None
    change = {"old": edit.old, "new": edit.new, "imports": repair.imports}
    return {"path": path_of(edit.where.file), "line": edit.where.line, **change}


def finding_record(finding: Finding) -> dict[str, Any]:
    """Return a finding as an object; lines that are not known are null."""
    plain = {x.name: getattr(finding, x.name) for x in fields(finding) if x.name != "repair"}
    places = {name: place_record(plain[name]) for name in ("where", "selected_at", "entered_at")}
    lists = {name: list(plain[name]) for name in ("shape", "modules", "rows")}
    more = {"message": finding.message, "size": math.prod(finding.shape)}
    fix = {"fix": fix_record(finding.repair), "advice": finding.repair.text}
    return plain | places | lists | more | fix


STYLES = {"FORWARD": "bold red", "GENUINE": "bold red", "BLOCKED": "bold yellow"}
DIM, GOOD = "dim", "green"
Part: TypeAlias = tuple[str, str]  # a text and its style


def listed(items: Sequence[Any], most: int = 8) -> str:
    """Return the first items, with commas, and the number of the others."""
    rest = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + rest


def operations(count: int) -> str:
    """Return a number of operations in words."""
    return f"{count} operation{'' if count == 1 else 's'}"


@dataclass(frozen=True, repr=False)
class Report:
    """
    The findings of `explain`, in the order of their kinds.

    Attributes
    ----------
    findings : tuple of Finding
        Empty if value and gradient are finite.
    framework : str
        The framework of the backward pass.
    checked : str
        What was examined, in words.
    notes : tuple of str
        What the report cannot tell, and why.
    parameters : tuple of str
        The parameters whose gradient was not finite, by their names in the model, where one is
        guarded.
    step, rank : int or None
        The step of a guarded or watched training, counted from 0, and the process in a group of
        several. On PyTorch a watched step begins with a pass that adds to no gradient.
    """

    findings: tuple[Finding, ...]
    framework: str
    checked: str
    notes: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    step: int | None = None
    rank: int | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def assert_clean(self) -> None:
        """Raise AssertionError, with the report as its text, if anything was found."""
        if not self.ok:
            raise AssertionError(str(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data: dicts, lists, strings, numbers and None."""
        # A line has the keys path, line, column, end_line, end_column and source, of which the
        # columns are left out where they are unknown; columns count characters from 1.
        return {
            "framework": self.framework,
            "ok": self.ok,
            "step": self.step,
            "rank": self.rank,
            "parameters": list(self.parameters),
            "findings": [finding_record(finding) for finding in self.findings],
            "checked": self.checked,
            "notes": list(self.notes),
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return `to_dict` as JSON, by default with indented lines."""
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        """Return the report as plain text."""
        return "".join(text for text, _ in self._parts())

    __repr__ = __str__

    def __rich__(self) -> Any:
        """Return the report for rich, which colours it in a terminal."""
        from rich.text import Text  # noqa: PLC0415  (it is there if it calls this)

        return Text.assemble(*self._parts())

    def _repr_markdown_(self) -> str:
        """Return the report for a notebook."""
        if self.ok:
            return self._verdict()
        rows = [f"**{f.kind}** {f.message}\n```text\n{_body(f)}\n```" for f in self.findings]
        return "\n\n".join([*rows, *self._closing()])

    def _verdict(self) -> str:
        return f"clean: value and gradient are finite; checked {self.checked}"

    def _closing(self) -> list[str]:
        rank = "" if self.rank is None else f" of rank {self.rank}"
        at = "" if self.step is None else f" (step {self.step}{rank})"
        found = [f"gradients that were not finite: {listed(self.parameters)}{at}"]
        notes = [f"note: {note}" for note in self.notes]
        return [*(found if self.parameters else []), f"checked {self.checked}", *notes]

    def _parts(self) -> Iterator[Part]:
        """Yield the text piece by piece, with styles."""
        if self.ok:
            yield self._verdict(), GOOD
            for note in self.notes:
                yield f"\nnote: {note}", DIM
            return
        said: set[Repair] = set()
        for finding in self.findings:
            yield finding.kind, STYLES.get(finding.kind, "bold")
            yield f"  {finding.message}\n", "bold"
            rows = [*_rows(finding), *_advice(finding.repair, known=finding.repair in said)]
            said |= {finding.repair} - {NOTHING}
            yield from ((f"{text}\n", style) for text, style in rows)
            yield "\n", ""
        yield "\n".join(self._closing()), DIM


def _rows(finding: Finding) -> Iterator[Part]:
    """Yield the lines under the message: where it was computed, and what dropped it."""
    where, selected_at = finding.where, finding.selected_at
    verb = "made" if finding.kind in ("FORWARD", "INTERIM") else "computed"
    dropped = f"dropped by {finding.selection or 'a selection'}"
    at_once = finding.kind == "BLOCKED" and where is not None and _line(where) == _line(selected_at)
    if at_once:
        yield from _quoted(f"{verb}, and {dropped}, at", where)
    elif finding.operation != "input":
        yield from _quoted(f"{verb} at", where)
    if finding.entered_at is not None and _line(finding.entered_at) != _line(where):
        came = "the infinity came in at" if finding.kind == "FORWARD" else "the NaN came in at"
        own = finding.reason == "backward"
        yield from _quoted("by its own backward pass, at" if own else came, finding.entered_at)
    if finding.passed:
        yield f"  the NaN went on, through {operations(finding.passed)}", ""
    if finding.kind == "BLOCKED" and not at_once:
        yield from _quoted(f"{dropped} at", selected_at)
    for word, items in (("module", finding.modules), ("row", finding.rows)):
        if items:
            yield f"  in {word}{'' if len(items) == 1 else 's'} {listed(items)}", ""


def _advice(repair: Repair, *, known: bool = False) -> Iterator[Part]:
    """Yield the lines about the repair."""
    if known:
        yield "  repair: as above", GOOD
        return
    if (edit := repair.edit) is not None:
        yield f"  repair {edit.where}", GOOD
        yield from ((f"    - {line}", DIM) for line in dedent(edit.old).splitlines())
        yield from ((f"    + {line}", GOOD) for line in dedent(edit.new).splitlines())
        yield f"      {repair.imports}", DIM
    if repair.text:
        yield f"  {'or' if edit is not None else 'repair'}: {repair.text}", GOOD


def _quoted(verb: str, where: Location | None) -> Iterator[Part]:
    if where is None:
        yield f"  {verb} an unknown line", DIM
        return
    yield f"  {verb} {where}", ""
    if where.source:
        yield f"    | {where.source}", ""


def _body(finding: Finding) -> str:
    return "\n".join(text for text, _ in (*_rows(finding), *_advice(finding.repair)))


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return one finding for each kind, operation and expression, or line where that is all."""
    found: dict[Any, Finding] = {}
    for finding in findings:
        span = None if finding.where is None else finding.where.span
        key = (finding.kind, finding.operation, _line(finding.where), span)
        if (earlier := found.get(key)) is None:
            found[key] = finding
        else:
            found[key] = replace(
                earlier,
                entries=earlier.entries + finding.entries,
                times=earlier.times + finding.times,
                selection=earlier.selection or finding.selection,
                selected_at=earlier.selected_at or finding.selected_at,
                entered_at=earlier.entered_at or finding.entered_at,
                entered_by=earlier.entered_by or finding.entered_by,
                passed=earlier.passed + finding.passed,
                modules=tuple(dict.fromkeys((*earlier.modules, *finding.modules))),
                rows=tuple(sorted({*earlier.rows, *finding.rows})),
            )
    return tuple(found.values())


def _line(where: Location | None) -> tuple[str, int]:
    return ("", 0) if where is None else (where.file, where.line)


def make_report(
    framework: str, findings: Iterable[Finding], checked: str, notes: Sequence[str] = ()
) -> Report:
    """Return a report of findings that have no repairs yet, merged by expression."""
    found = merged(findings)
    repairs = repairs_of(found, framework)
    every = [replace(f, repair=r) for f, r in zip(found, repairs, strict=True)]
    # On one line, findings with an edit come first.
    every.sort(key=lambda f: (KINDS.index(f.kind), _line(f.where), f.repair.edit is None))
    return Report(tuple(every), framework, checked, tuple(notes))


def unknown_report(
    framework: str, subject: str, reason: str, *notes: str, where: Location | None = None
) -> Report:
    """Return a report on a gradient that was not finite, and that cannot be explained."""
    finding = Finding("UNKNOWN", subject, where, reason=reason)
    return make_report(framework, [finding], "the gradient", notes)


def words_of(error: Exception) -> str:
    """Return the kind of an error, and the first line of what it says."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def report_or_unknown(
    framework: str,
    explain: Callable[[], Report],
    subject: str = "the backward pass",
    where: Location | None = None,
) -> Report:
    """Explain a gradient that was not finite, or report why its program does not run by itself."""
    try:
        return never_clean(explain())
    except Exception as error:  # noqa: BLE001  (whatever a program raises outside of its place)
        return unknown_report(framework, subject, "apart", words_of(error), where=where)


def never_clean(report: Report) -> Report:
    """Return a report on a gradient that was not finite, UNKNOWN if it was so only once."""
    unknown = unknown_report(report.framework, "the step", "again")
    return replace(report, findings=report.findings or unknown.findings)


def advised(report: Report, masked: str) -> Report:
    """Return a report that has other words for how to take a masked gradient."""
    usual = MASKED[report.framework]
    by_watch = usual.replace(".grad(", ".value_and_grad(")
    findings = []
    for finding in report.findings:
        text = finding.repair.text
        for words in (usual, by_watch, *OF_OTHERS.values()):
            text = text.replace(words, masked)
        findings.append(replace(finding, repair=replace(finding.repair, text=text)))
    return replace(report, findings=tuple(findings))
