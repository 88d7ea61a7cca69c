"""The table of collectives: what a run measured, beside what the file says of an engine."""

import json
import sys
from pathlib import Path

FILE = Path(__file__).with_name("collectives.json")
WRITES = "--write" in sys.argv  # a script then measures the plain operations too, and writes


def known(engine):
    """Return the rows of an engine: from operations and layouts to what they cost."""
    return json.loads(FILE.read_text("utf-8")).get(engine, {}) if FILE.exists() else {}


def write(engine, rows):
    """Put the rows of an engine in the file, in place of those it has."""
    every = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    every[engine] = {name: rows[name] for name in rows}
    lines = []
    for key, table in sorted(every.items()):
        inner = ",\n".join(
            f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in table.items()
        )
        lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def hold(engine, name, layout, got):
    """Check what an operation moves, and where its result is, against the file."""
    wanted = known(engine)[name][layout]
    wanted = {key: wanted[key] for key in got}
    assert got == wanted, f"{layout}: got {got}, the table has {wanted}"
