"""The settings: from the command line, and from ``[tool.safeops.lint]`` of pyproject.toml."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from safeops._lint.found import TITLES
from safeops._lint.linting import Report, lint
from safeops._lint.sources import Source, is_apart

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
            check(table, file)
            return dict(table)
    return {}


def check(table: dict[str, Any], file: Path) -> None:
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
