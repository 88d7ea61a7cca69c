"""The repair of a line: which piece of the source to replace, by what."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from safeops.autodiff._locations import Location

if TYPE_CHECKING:
    from safeops.autodiff._report import Finding


@dataclass(frozen=True)
class Edit:
    """A change of a program: one piece of text for another, on one line."""

    where: Location
    old: str
    new: str


@dataclass(frozen=True)
class Repair:
    """What to do: edits, the line that imports what they use, or else a sentence."""

    edits: tuple[Edit, ...] = ()
    imports: str = ""
    text: str = ""


NOTHING = Repair()


def repair_of(finding: "Finding", framework: str) -> Repair:
    """Return what to do about a finding."""
    del finding, framework
    return NOTHING
