"""The settings: from the command line, and from ``[tool.safeops.lint]`` of pyproject.toml."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safeops._lint.found import TITLES
from safeops._lint.sources import is_apart

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

    def select_in(self, file: Path) -> frozenset[str]:
        """Return the rules for a file: none for a module without gradients."""
        return frozenset() if is_apart(file) and not self.everywhere else self.select


def settings_of(
    start: Path,
    select: Iterable[str] | None,
    ignore: Iterable[str] | None,
    *,
    numpy: bool = False,
    everywhere: bool = False,
) -> Settings:
    """Return the settings; options of the command line override pyproject.toml."""
    table = table_of(start)
    chosen = rules_of(table.get("select", ["SO"]) if select is None else select)
    left_out = rules_of(table.get("ignore", []) if ignore is None else ignore)
    return Settings(
        chosen - left_out,
        tuple(table.get("exclude", ())),
        numpy or table.get("numpy", False),
        everywhere or table.get("everywhere", False),
    )


def rules_of(words: Iterable[str]) -> frozenset[str]:
    """Return the rules that begin with these prefixes: SO, SO00, SO001."""
    found: set[str] = set()
    for word in words:
        these = {rule for rule in TITLES if word and rule.startswith(word.upper())}
        if not these:
            msg = f"expected rules out of (SO001, ..., SO011), got {word or 'nothing'}"
            raise SettingsError(msg)
        found |= these
    return frozenset(found)


def table_of(start: Path) -> dict[str, Any]:
    """Return the table of the nearest pyproject.toml that has one, from a folder upwards."""
    start = start.resolve()
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            table = tomllib.loads(file.read_text("utf-8")).get("tool", {}).get("safeops", {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            msg = f"{file}: {error}"
            raise SettingsError(msg) from error
        if "lint" in table:
            return checked(table["lint"], file)
    return {}


def listed(given: Any) -> list[Any]:
    """Return a list as it is; an empty list for anything else."""
    return given if isinstance(given, list) else []


def checked(table: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return a table after a check of its keys and values."""
    for key, given in table.items():
        kind = KEYS.get(key)
        if kind is None:
            msg = f"{file}: expected keys out of ({', '.join(KEYS)}), got {key}"
            raise SettingsError(msg)
        if not isinstance(given, kind) or not all(type(x) is str for x in listed(given)):
            msg = f"{file}: expected a {'list of strings' if kind is list else 'bool'} for {key}"
            raise SettingsError(msg)
    return table
