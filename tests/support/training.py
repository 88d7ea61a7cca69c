"""Training scripts in processes of their own, and the reports on their one bad batch."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import safeops

HOUSE = Path(safeops.__file__).parents[1]
MAIN = "import sys; from safeops.__main__ import main; sys.exit(main(sys.argv[1:]))"
NOT_FINITE = 3  # the exit code of the command


class Training(NamedTuple):
    """What whoever wrote a script knows of its bad batch, but for the line, marked ``# here``."""

    kind: str
    operation: str
    step: int
    parameter: str
    row: int | None  # None for a script without a guard, which alone knows the batch
    note: str = ""  # such as which batch of an accumulated step
    advice: str = ""  # of the command


def reported(script, folder, way, **environment):
    """Return the report on a script, under the command or by its guard."""
    env = os.environ | {"PYTHONPATH": str(HOUSE)} | environment
    command = ["-c", MAIN, "explain", "--format", "json"] if way == "command" else []
    done = subprocess.run(
        [sys.executable, *command, script],
        check=False,
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
    )
    if way == "command":
        assert done.returncode == NOT_FINITE, done.stderr
        (report,) = json.loads(done.stdout)
    else:
        assert "NonFiniteGradientError" in done.stderr, done.stderr
        (report,) = map(json.loads, (folder / "reports.jsonl").read_text("utf-8").splitlines())
    return report


def assert_explained(report, script, wanted, way):
    """A report has one finding, of the kind, at the marked line; step and parameter."""
    lines = script.read_text("utf-8").splitlines()
    (line,) = (i for i, text in enumerate(lines, 1) if text.endswith("# here"))
    (finding,) = report["findings"]

    assert (finding["kind"], finding["operation"]) == (wanted.kind, wanted.operation)
    assert (Path(finding["where"]["path"]).name, finding["where"]["line"]) == (script.name, line)
    assert report["step"] == wanted.step
    assert wanted.parameter in report["parameters"]
    assert wanted.note in " ".join(report["notes"])
    if way == "guard":
        assert finding["rows"] == [wanted.row]
    else:
        assert wanted.advice in finding["advice"]
