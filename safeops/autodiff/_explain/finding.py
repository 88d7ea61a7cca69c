"""A finding, its repair, and the sentence that says it: data, which all of `explain` makes."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from safeops._source.locations import Location


@dataclass(frozen=True)
class Edit:
    """A change of some lines of a program."""

    where: Location
    old: str
    new: str

    def applied(self, source: str) -> str:
        """Return the source of the file after the change."""
        lines = source.splitlines(keepends=True)
        start = self.where.line - 1
        end = start + len(self.old.splitlines())
        if "".join(lines[start:end]).rstrip("\n") != self.old:
            msg = f"expected a source with these lines at {self.where}, got another: {self.old}"
            raise ValueError(msg)
        return "".join([*lines[:start], f"{self.new}\n", *lines[end:]])


@dataclass(frozen=True)
class Repair:
    """What to do: an edit, the import that it needs, and a sentence."""

    edit: Edit | None = None
    imports: str = ""
    text: str = ""


NOTHING = Repair()
CAVEAT = "; the edit is for "  # what follows is about the edit of a repair


Kind: TypeAlias = Literal["FORWARD", "GENUINE", "BLOCKED", "UNKNOWN", "INTERIM"]


KINDS: tuple[Kind, ...] = get_args(Kind)  # in the order in which a report has them


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
        if self.kind == "UNKNOWN":
            why = REASONS[self.reason].format(self.operation)
            rest = "; from here on the gradient is the ordinary one"
            return why if self.reason in WHOLE else why + rest
        of = f" of {self.operation}" if self.operation else ""
        subject = "the derivative" if self.kind in ("BLOCKED", "GENUINE") else "the value"
        verb = "is" if self.entries == 1 else "are"
        use = {"BLOCKED": f", which {verb} never used", "INTERIM": " on the way"}
        end = use.get(self.kind, f", which {verb} used")
        return f"{'an input' if self.operation == 'input' else subject + of} {_what(self)}{end}"


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


def _what(finding: Finding) -> str:
    """Return what the numbers are, and at how many entries of how many."""
    size = math.prod(finding.shape)
    of = f" of {size}" if finding.times == 1 and size > finding.entries else ""
    passes = f" in {finding.times} passes" if finding.times > 1 else ""
    count = f"{entries_in_words(finding.entries, of)}{passes}" if finding.entries else "entries"
    return f"is {finding.what or 'not finite'} at {count}"


def entries_in_words(entries: int, of: str = "") -> str:
    """Return a number of entries in words."""
    return f"{entries}{of} {'entry' if entries == 1 and not of else 'entries'}"
