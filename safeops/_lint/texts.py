"""The text of each rule: its pattern, the public case, the cure, and when to ignore it."""

import difflib
import re
from importlib.resources import files
from typing import NamedTuple

from safeops._lint.rules import TITLES

SECTIONS = ("The pattern", "The public case", "The cure", "When to ignore it")


class Section(NamedTuple):
    """A part of a text: sentences, and code in the neutral spelling of the recipes."""

    text: str
    code: str


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
    """Return the function with which a piece of code begins."""
    return code.split("\n\n\n", maxsplit=1)[0]


def read(rule: str) -> Text:
    """Return the text of a rule."""
    text = (files("safeops._lint") / "rules_text" / f"{rule}.md").read_text("utf-8")
    summary, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    sections = {}
    for part in parts:
        title, _, body = part.partition("\n")
        code = "\n\n\n".join(re.findall(r"^```python\n(.*?)^```", body, re.MULTILINE | re.DOTALL))
        prose = re.sub(r"^```python\n.*?^```\n", "", body, flags=re.MULTILINE | re.DOTALL)
        sections[title] = Section(prose.strip(), code.rstrip())
    return Text(rule, TITLES[rule], summary.strip(), sections)
