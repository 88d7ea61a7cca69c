"""Output formats: text for people, JSON and SARIF for machines, commands for GitHub."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from safeops._lint.found import TITLES, File, Found
from safeops._lint.sarif import sarif_log, sarif_place
from safeops._lint.sources import Source, lines_of
from safeops._source.locations import path_of


class Row(NamedTuple):
    """A finding and its file."""

    source: Source
    finding: Found
    file: File | None = None

    @property
    def path(self) -> str:
        """The path of the file, relative to the working directory if it lies below."""
        return path_of(self.source.path)

    @property
    def message(self) -> str:
        """The reason; a line number in it is that of the cell in a notebook."""
        return re.sub(r"^line (\d+)", self._line, self.finding.message)

    def _line(self, said: re.Match[str]) -> str:
        cell, line = self.source.place(int(said[1]))
        return f"line {line} of {cell}" if cell else said[0]

    @property
    def line(self) -> str:
        """The line of the file."""
        return lines_of(self.source.text)[self.finding.lines[0] - 1].rstrip("\r\n")

    @property
    def place(self) -> str:
        """File, line and column of the finding."""
        cell, line = self.source.place(self.finding.lines[0])
        return f"{self.path}:{cell + ':' if cell else ''}{line}:{self.finding.columns[0]}"


def as_text(rows: Sequence[Row]) -> str:
    """Return for each finding its line, a caret, the reason, and the edit; copies as one."""
    copies: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        copies[copy_key(row)].append(row)
    return "\n".join(line for same in copies.values() for line in (*block_of(*same), ""))


def copy_key(row: Row) -> tuple[object, ...]:
    """Return what the copies of a finding in several files, or in one, have in common."""
    found = row.finding
    said = re.sub(r"^line \d+", "", found.message)
    edit = found.edit[1:] if found.edit else ()
    return found.rule, row.line.strip(), said, edit, found.proof, found.trial


def block_of(row: Row, *copies: Row) -> list[str]:
    """Return the lines of text about one finding and its copies."""
    found, text = row.finding, row.line
    (first, last), (start, end) = found.lines, found.columns
    end = end if first == last else len(text) + 1
    blank = "".join(c if c == "\t" else " " for c in text[: start - 1])
    block = [
        f"{row.place}: {found.rule} {TITLES[found.rule]}",
        f"    {text}",
        f"    {blank}{'^' * max(1, end - start)}",
        f"  {row.message}",
    ]
    if found.edit is not None:
        old, new = (text.splitlines() for text in found.edit[1:])
        margin = min(len(x) - len(x.lstrip()) for x in (*old, *new) if x.strip())
        block += [f"  - {x[margin:]}" for x in old] + [f"  + {x[margin:]}" for x in new]
    reason = f"no edit: {found.reason}" if found.reason else ""
    imports = f"  from safeops import {', '.join(found.names)}" if found.names else ""
    said = [reason, imports, found.cure, found.proof, found.trial]
    if found.trial.startswith("confirmed"):
        said += [f"no dependency wanted? python -m safeops recipe {x}" for x in found.names]
    if copies:
        more = f", and {len(copies) - SHOWN} more" if len(copies) > SHOWN else ""
        said.append(f"also at {', '.join(x.place for x in copies[:SHOWN])}{more}")
    return block + [f"  {text}" for text in said if text]


SHOWN = 20  # places of copies


def record(row: Row) -> dict[str, Any]:
    """Return a finding as a JSON object."""
    found, place = row.finding, row.source.place
    cell, line = place(found.lines[0])
    fix = None
    if found.edit is not None:
        imports = f"from safeops import {', '.join(found.names)}" if found.names else ""
        first, old, new = found.edit
        fix = {"line": place(first)[1], "old": old, "new": new, "imports": imports}
    more = {"cell": cell, "proof": found.proof, "trial": found.trial}
    return {
        "path": row.path,
        "line": line,
        "column": found.columns[0],
        "end_line": place(found.lines[1])[1],
        "end_column": found.columns[1],
        "rule": found.rule,
        "name": TITLES[found.rule],
        "message": row.message,
        "fix": fix,
    } | {name: said for name, said in more.items() if said}


def as_github(rows: Sequence[Row]) -> str:
    """Return a GitHub command for each finding, which is shown beside the line."""
    lines = []
    for row in rows:
        one = record(row)
        path, title = (
            text.translate(ESCAPES) for text in (row.path, f"{one['rule']} {one['name']}")
        )
        text = row.message.replace("%", "%25").replace("\n", "%0A")
        where = f"file={path},line={one['line']},col={one['column']},title={title}"
        lines.append(f"::warning {where}::{text}")
    return "\n".join(lines)


# In a property of a GitHub command.
ESCAPES = str.maketrans({"%": "%25", "\n": "%0A", ":": "%3A", ",": "%2C"})


def as_sarif(rows: Sequence[Row]) -> str:
    used = sorted({row.finding.rule for row in rows})
    return sarif_log([(rule, TITLES[rule]) for rule in used], [result(row, used) for row in rows])


def result(row: Row, used: Sequence[str]) -> dict[str, Any]:
    one = record(row)
    return {
        "ruleId": one["rule"],
        "ruleIndex": used.index(one["rule"]),
        "level": "warning",
        "message": {"text": row.message},
        "locations": [sarif_place(row.path, one)],
    }


FORMATS: Mapping[str, Callable[[Sequence[Row]], str]] = {
    "text": as_text,
    "json": lambda rows: json.dumps(list(map(record, rows)), indent=2),
    "sarif": as_sarif,
    "github": as_github,
}
