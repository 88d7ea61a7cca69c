"""The plugin for flake8: the same rules among those of flake8, which is not imported."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from safeops import __version__
from safeops._lint.linting import lint
from safeops._lint.sources import is_apart

Error = tuple[int, int, str, type]


class Plugin:
    """The checker that flake8 makes for each file."""

    name = "safeops"
    version = __version__

    def __init__(self, tree: ast.Module, lines: Sequence[str], filename: str = "") -> None:
        """Take a file as flake8 has parsed it."""
        self.tree, self.text, self.path = tree, "".join(lines), Path(filename)

    def run(self) -> Iterator[Error]:
        if is_apart(self.path):
            return
        try:
            findings = lint(self.text, tree=self.tree).findings
        except (RecursionError, MemoryError):  # the command reports it; flake8 would stop
            return
        for found in findings:
            yield found.lines[0], found.columns[0] - 1, f"{found.rule} {found.message}", type(self)
