"""What `explain` finds, as data and as text: where a gradient stops being finite, and why."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import dedent
from typing import Any, Literal, TypeAlias, get_args

from safeops._source.locations import Location
from safeops.autodiff._explain.records import finding_record
from safeops.autodiff._explain.repairs import NOTHING, Repair, repairs_of

Kind: TypeAlias = Literal["FORWARD", "GENUINE", "BLOCKED", "UNKNOWN", "INTERIM"]
KINDS: tuple[Kind, ...] = get_args(Kind)  # in the order in which a report has them
STYLES = {"FORWARD": "bold red", "GENUINE": "bold red", "BLOCKED": "bold yellow"}
DIM, GOOD = "dim", "green"
Part: TypeAlias = tuple[str, str]  # a text and its style


@dataclass(frozen=True)
class Finding:
    """
    One line of a program at which a gradient stops being finite.

    Attributes
    ----------
    kind : {"FORWARD", "GENUINE", "BLOCKED", "UNKNOWN", "INTERIM"}
        FORWARD: the value is not finite. GENUINE, BLOCKED: the derivative is not finite at entries
        that are used, that are not used. UNKNOWN: an operation has no rule. INTERIM, if asked for:
        a value on the way is not finite, used or not.
    operation : str
        Its name in the array API standard: sqrt, log, div, norm, softmax. "input" for an argument
        that is not finite itself; "" if unknown.
    where : Location or None
        File, line and source; None if unknown.
    entries : int
        How many entries are concerned, over all passes.
    shape : tuple of int
        The shape of the array with these entries.
    what : str
        The derivative there, or the value if FORWARD: "inf", "-inf", "nan", or "" if unknown.
    selection : str
        The operation that dropped BLOCKED entries: where, index, slice, max; "" if unknown.
    selected_at : Location or None
        The line of that operation.
    nan_operand : bool
        Whether an operand was NaN, which a safe operation propagates.
    value : str
        The result at BLOCKED entries: "finite", "inf", "-inf", "nan", or "" if unknown.
    times : int
        How often the line ran with this finding.
    repair : Repair
        What to do: an edit of the program, the import that the edit needs, and a sentence.
    reason : str
        "backward" if a function has a backward pass of its own, which is at fault; else why the
        finding is UNKNOWN: "again", "apart", "kernel", "loop", "lost", "mkldnn", "once",
        "rank", "scale", "script", "shards", "sparse" or "tape"; "" for an operation without a rule.
    entered_at : Location or None
        The line that made the NaN operand, or the infinity that became NaN, if it is another line;
        that of the backward pass of a function that has its own.
    entered_by : str
        The operation that made the NaN operand there, of operands without NaN; "" if unknown.
    passed : int
        How many later operations met the same NaN; these have no finding of their own.
    modules : tuple of str
        The modules of a guarded model in which the line ran, such as "encoder.layers.3.norm".
    rows : tuple of int
        The rows of a guarded batch with these entries, or with the NaN where it came in; empty if
        these are all rows, or if the first axis of the array has another length than the batch.
    """

    kind: Kind
    operation: str
    where: Location | None = None
    entries: int = 0
    shape: tuple[int, ...] = ()
    what: str = ""
    selection: str = ""
    selected_at: Location | None = None
    nan_operand: bool = False
    value: str = ""
    times: int = 1
    repair: Repair = NOTHING
    reason: str = ""
    entered_at: Location | None = None
    entered_by: str = ""
    passed: int = 0
    modules: tuple[str, ...] = ()
    rows: tuple[int, ...] = ()

    @property
    def message(self) -> str:
        """The finding in a sentence."""
        return MESSAGES[self.kind](self)


def _blocked(finding: Finding) -> str:
    return f"the derivative{_of(finding)} {_what(finding)} never used"


def _genuine(finding: Finding) -> str:
    return f"the derivative{_of(finding)} {_what(finding)} used"


def _forward(finding: Finding) -> str:
    subject = "an input" if finding.operation == "input" else f"the value{_of(finding)}"
    return f"{subject} {_what(finding)} used"


def _interim(finding: Finding) -> str:
    subject = "an input" if finding.operation == "input" else f"the value{_of(finding)}"
    return f"{subject} {_what(finding)}".rpartition(", which ")[0] + " on the way"


def _unknown(finding: Finding) -> str:
    why = REASONS[finding.reason].format(finding.operation)
    rest = "; from here on the gradient is the ordinary one"
    return why if finding.reason in WHOLE else why + rest


# Of a backward pass, and not of an operation.
WHOLE = frozenset(("again", "apart", "lost", "once", "rank", "scale", "shards", "tape"))
REASONS = {
    "": "{} has no rule",
    "again": "{} made a gradient that is not finite, and a finite one when it ran again",
    "apart": "{} made a gradient that is not finite, and does not run by itself",
    "kernel": "the derivative of {} is made by code that PyTorch does not see",
    "loop": "the steps of a {} were not looked at, for want of time",
    "lost": "{} made a gradient that is not finite, and none of its operations was seen to do so",
    "once": "{} made a gradient that is not finite, and does not run again",
    "mkldnn": "{} is a kernel of mkldnn, and has no rule",
    "rank": "{} made the gradient that is not finite",
    "scale": "{} made a gradient that is finite, and overflows by the factor of a GradScaler",
    "shards": "{} made a gradient that is not finite, and of which each process has a part",
    "script": "TorchScript has compiled a graph, in which a selection is a product",
    "tape": "{} made a gradient that is not finite, and keeps no program to look at",
    "sparse": "the derivative of {} is one of sparse tensors, and has no rule",
}


MESSAGES = {
    "FORWARD": _forward,
    "GENUINE": _genuine,
    "BLOCKED": _blocked,
    "UNKNOWN": _unknown,
    "INTERIM": _interim,
}


def _of(finding: Finding) -> str:
    return f" of {finding.operation}" if finding.operation else ""


def _what(finding: Finding) -> str:
    """Return what the numbers are, and at how many entries of how many."""
    size = math.prod(finding.shape)
    of = f" of {size}" if finding.times == 1 and size > finding.entries else ""
    passes = f" in {finding.times} passes" if finding.times > 1 else ""
    count = f"{counted(finding.entries, of)}{passes}" if finding.entries else "entries"
    verb = "is" if finding.entries == 1 else "are"
    return f"is {finding.what or 'not finite'} at {count}, which {verb}"


def counted(entries: int, of: str = "") -> str:
    """Return a number of entries in words."""
    return f"{entries}{of} {'entry' if entries == 1 and not of else 'entries'}"


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
        The step of a guarded training, counted from 0, and the process in a group of several.
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
        """
        Return the report as plain data: dicts, lists, strings, numbers and None.

        A line has the keys path, line, column, end_line, end_column and source, of which the
        columns are left out where they are unknown; columns count characters from 1.
        """
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
        at = "" if self.step is None else f" (step {self.step})"
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


def never_clean(report: Report) -> Report:
    """Return a report on a gradient that was not finite, UNKNOWN if it was so only once."""
    if not report.ok:
        return report
    finding = Finding("UNKNOWN", "the step", reason="again")
    (found,) = make_report(report.framework, [finding], "").findings
    return replace(report, findings=(found,))
