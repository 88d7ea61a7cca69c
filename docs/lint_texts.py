"""The text of each rule: the pattern, a public case, the cure, and when to ignore it."""

import difflib
from pathlib import Path
from typing import NamedTuple

from safeops._lint.found import TITLES
from safeops._recipes import Section, parts_of

FOLDER = Path(__file__).parent / "lint/texts"
SECTIONS = ("The pattern", "The public case", "The cure", "When to ignore it")


class Text(NamedTuple):
    """The text of a rule."""

    rule: str
    title: str
    summary: str
    sections: dict[str, Section]

    @property
    def diff(self) -> str:
        """The cure as a diff of the pattern."""
        old, new = (function_of(self.sections[name].code) for name in ("The pattern", "The cure"))
        new = new.replace("def cure(", "def pattern(")
        lines = difflib.ndiff(old.splitlines(), new.splitlines())
        return "\n".join(line.rstrip() for line in lines if not line.startswith("?"))


def function_of(code: str) -> str:
    """Return the name of the function with which a piece of code begins."""
    return code.split("\n\n\n", maxsplit=1)[0]


def read(rule: str) -> Text:
    """Return the text of a rule."""
    text = (FOLDER / f"{rule}.md").read_text("utf-8")
    return Text(rule, TITLES[rule], *parts_of(text))
