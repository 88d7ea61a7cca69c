"""*How it is built*: the page names the files that a trace of its calls passes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import safeops

HOUSE = Path(safeops.__file__).parent
PAGE = Path(__file__).parents[2] / "docs/explain/how-it-is-built.md"
# What each section calls, in a process where nothing else has been called.
TRACE = """
import json
import sys

import torch

import safeops
import safeops.autodiff.torch


def f(x):
    return torch.where(x > 0, torch.log(x), 0.0).sum()


def files_of(call):
    found = set()
    call()  # imports, and what is remembered of a type

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(HOUSE):
            found.add(frame.f_code.co_filename.removeprefix(HOUSE))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return sorted(found)


HOUSE = sys.argv[1] + "/"
x = torch.tensor([1.0, 0.0], requires_grad=True)
backward = safeops.autodiff.torch.backward
calls = {
    "`safe_log(x)`": lambda: safeops.safe_log(x),
    "`safe_log(x)` in float16": lambda: safeops.safe_log(half),
    "`backward(loss)`": lambda: backward(losses.pop()),
    "`explain(f, x)`": lambda: safeops.autodiff.explain(f, x),
}
half, losses = x.detach().half(), [f(x), f(x)]
print(json.dumps({title: files_of(call) for title, call in calls.items()}))
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """Return the files that the calls of the page pass."""
    script = tmp_path_factory.mktemp("trace") / "trace.py"  # a line has a text that can be read
    script.write_text(TRACE)
    command = [sys.executable, str(script), str(HOUSE)]
    environment = {"PYTHONPATH": str(HOUSE.parent), "PATH": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.only("torch")
@pytest.mark.parametrize(
    "title",
    ["`safe_log(x)`", "`safe_log(x)` in float16", "`backward(loss)`", "`explain(f, x)`"],
)
def test_a_walk_names_its_files(title, traced):
    """A section names each file that its call passes, and no other."""
    section = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]

    assert sorted(set(re.findall(r"`([\w/]+\.py)`", section))) == traced[title]


def test_every_folder_has_a_row():
    """The table of rooms has each folder of the package, those of a framework as NAME."""
    table = PAGE.read_text().partition("## The rooms")[2].partition("\n## ")[0]
    rooms = {
        name for name in re.findall(r"`([\w/]+)`", table) if (HOUSE / name.split("/")[0]).is_dir()
    }
    folders = {path.parent.relative_to(HOUSE).parts[:1] for path in HOUSE.glob("*/*.py")}

    assert {(name.split("/")[0],) for name in rooms} == folders
