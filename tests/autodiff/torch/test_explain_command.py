"""The command `explain`: what it prints, where, and with which exit code."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import safeops

pytestmark = pytest.mark.only("torch")

HOUSE = Path(safeops.__file__).parent
NOT_FINITE = 3  # the exit code

SCRIPT = """
import sys
import torch

x = torch.tensor([float(word) for word in sys.argv[1:]], requires_grad=True)
try:
    for step in range(2):
        (2 * x.sqrt())[-1].backward()
        print("step", step)
except Exception:
    print("caught")
sys.exit(5)
"""


def run_command(folder, *args):
    """Run the command on a script."""
    (folder / "script.py").write_text(SCRIPT)
    code = (
        f"import sys; sys.path.insert(0, {str(HOUSE.parent)!r}); from safeops.__main__ import main"
    )
    command = [sys.executable, "-c", f"{code}; sys.exit(main(sys.argv[1:]))", "explain", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("program", [["script.py"], ["-m", "script"]])
def test_a_script_that_makes_nan(tmp_path, program):
    """It ends at the first gradient that is not finite; the report is printed."""
    done = run_command(tmp_path, *program, "0", "4")

    assert done.returncode == NOT_FINITE, done.stderr
    assert done.stdout.startswith("BLOCKED  the derivative of sqrt is inf at 1 of 2 entries")
    assert "script.py:8" in done.stdout
    assert "step" not in done.stdout
    assert "caught" not in done.stdout


REPLACED = {
    "replaced": "sys.stdout = io.StringIO()",
    "wrapped": "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='ascii')",
    "closed": "sys.stdout.close()",
    "redirected": "contextlib.redirect_stdout(io.StringIO()).__enter__()",
    "to a file": "os.dup2(os.open('log', os.O_WRONLY | os.O_CREAT), 1)",
}


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("way", REPLACED)
def test_the_report_goes_where_output_went_before(tmp_path, way, form):
    """Whatever a script makes of `sys.stdout`, the report is on standard output."""
    start = f"import contextlib, io, os, sys\n{REPLACED[way]}\n"
    (tmp_path / "other.py").write_text(start + SCRIPT)

    done = run_command(tmp_path, "--format", form, "other.py", "0", "4")

    assert done.returncode == NOT_FINITE, done.stderr
    assert done.stdout.startswith("BLOCKED" if form == "text" else "[")


def test_a_script_that_makes_none(tmp_path):
    """It runs to its end, and its exit code is that of the command."""
    done = run_command(tmp_path, "script.py", "1", "4")

    assert done.returncode == 5, done.stderr
    assert done.stdout.splitlines() == ["step 0", "step 1"]


@pytest.mark.parametrize("ending", ["", "import sys\nsys.exit(5)\n"])
def test_a_script_that_stops_every_exception(tmp_path, ending):
    """A bare ``except`` hides neither the report nor the exit code."""
    script = SCRIPT.replace("except Exception:", "except:").replace("sys.exit(5)\n", ending)
    (tmp_path / "other.py").write_text(script)

    done = run_command(tmp_path, "other.py", "0", "4")

    assert done.returncode == NOT_FINITE, done.stderr
    assert "BLOCKED  the derivative of sqrt is inf" in done.stdout


def test_a_report_for_machines(tmp_path):
    """JSON and SARIF are all of standard output, with the lines; no finding is an empty list."""
    done = run_command(tmp_path, "--format", "json", "script.py", "0", "4")
    (report,) = json.loads(done.stdout)
    finding = report["findings"][0]
    where = {key: finding["where"][key] for key in ("path", "line", "column", "end_column")}

    assert done.returncode == NOT_FINITE
    assert (finding["kind"], finding["operation"], finding["selection"]) == (
        "BLOCKED",
        "sqrt",
        "index",
    )
    assert where == {"path": "script.py", "line": 8, "column": 14, "end_column": 22}

    done = run_command(tmp_path, "--format", "sarif", "script.py", "0", "4")
    log = json.loads(done.stdout)
    (result,) = log["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]

    assert log["version"] == "2.1.0"
    assert (result["ruleId"], result["level"]) == ("BLOCKED", "warning")
    assert place["artifactLocation"] == {"uri": "script.py"}
    assert (place["region"]["startLine"], place["region"]["startColumn"]) == (8, 14)
    assert result["properties"]["selection"] == "index"
    own = {key: result["properties"][key] for key in ("parameters", "rank", "rows")}
    assert own == {"parameters": [], "rank": None, "rows": []}

    done = run_command(tmp_path, "--format", "json", "script.py", "1", "4")

    assert json.loads(done.stdout) == []
    assert done.stderr.splitlines()[:2] == ["step 0", "step 1"]


LOUD = """
import os, pathlib, subprocess, sys, torch

sys.stdout.write("first\\n")
os.chdir(sys.argv[1])
os.write(1, b"raw\\n")
subprocess.run([sys.executable, "-c", "print('child')"])
sys.__stdout__.write(f"own file is there: {pathlib.Path(__file__).exists()}\\n")
torch.zeros(1, requires_grad=True).sqrt().sum().backward()
"""


def test_a_script_that_prints_by_other_means(tmp_path):
    """Output of child processes is kept from the report too; a script may go to another folder."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a b%é.py").write_text(LOUD)

    done = run_command(tmp_path, "--format", "sarif", "a b%é.py", "elsewhere")

    (result,) = json.loads(done.stdout)["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    said = ["first", "raw", "child", "own file is there: True"]
    assert sorted(done.stderr.splitlines()) == sorted(said)
    assert place["artifactLocation"] == {"uri": "a%20b%25%C3%A9.py"}
    assert place["region"]["startLine"] == 9


FORK = """
import multiprocessing, torch

def work(x):
    w = torch.tensor(x, requires_grad=True)
    w.sqrt().backward()
    return float(w.grad)

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.map(work, [4.0, 0.0, 0.0]))
"""


def test_a_process_that_the_script_forks(tmp_path):
    """It prints its first report, and goes on, so that the script does not wait for it for ever."""
    (tmp_path / "other.py").write_text(FORK)

    done = run_command(tmp_path, "other.py")

    assert (done.returncode, done.stdout) == (0, "[0.25, inf, inf]\n")
    assert done.stderr.count("GENUINE  the derivative of sqrt is inf") == 1


WRONG = {
    ("nothing.py",): "expected a script, got nothing.py: there is no such file",
    (".",): "expected a script, got .: it is a folder",
    ("-m",): "expected a module after -m, got nothing",
    ("-m", "nowhere"): "expected a module after -m, got nowhere",
}


@pytest.mark.parametrize("program", WRONG)
def test_a_script_that_is_not_there(tmp_path, program):
    """It is a wrong command line, in words, and no gradient that is not finite."""
    done = run_command(tmp_path, *program)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(WRONG[program])


CRASH = """
import torch

x = torch.ones(2, requires_grad=True)
x.sum().backward()
try:
    torch.ones(3) @ x
except RuntimeError as error:
    raise ValueError("of the script") from error
"""


@pytest.mark.parametrize(("source", "first"), [(CRASH, "other.py"), ("x = (\n", "other.py")])
def test_a_script_that_raises(tmp_path, source, first):
    """Its traceback has no frame but its own, and its exit code is that of Python."""
    (tmp_path / "other.py").write_text(source)

    done = run_command(tmp_path, "other.py")

    files = re.findall(r'File "(.*?)"', done.stderr)
    assert done.returncode == 1
    assert files
    assert all(Path(file).name == first for file in files)


def test_finite_gradients_are_counted(tmp_path):
    """A script without NaN is told how many passes were looked at, whatever its exit code."""
    done = run_command(tmp_path, "script.py", "1", "4")

    assert done.stderr == "all gradients were finite: 2 backward passes looked at\n"
    assert run_command(tmp_path, "-m", "script", "1").returncode == 5


def test_long_lines_are_not_cut(tmp_path):
    """A line of 300 characters is printed whole into a pipe."""
    line = f"loss = torch.where(x > 0, x.sqrt(), 0.0).sum(){' + 0 * x[1]' * 25}"
    setup = "import torch\nx = torch.tensor([0.0, 4.0], requires_grad=True)\n"
    (tmp_path / "other.py").write_text(f"{setup}{line}\nloss.backward()\n")

    done = run_command(tmp_path, "other.py")

    assert len(line) > 300
    assert f"    | {line}\n" in done.stdout


ONCE = """
import torch
from torch.utils.checkpoint import checkpoint

x = torch.tensor([0.0, 4.0], requires_grad=True)
checkpoint(torch.sqrt, x, use_reentrant=True).sum().backward()
"""


def test_a_pass_that_does_not_run_again(tmp_path):
    """What cannot be explained is a report that says so, and no crash."""
    (tmp_path / "other.py").write_text(ONCE)

    done = run_command(tmp_path, "other.py")

    assert done.returncode == NOT_FINITE, done.stderr
    assert done.stdout.startswith("UNKNOWN  the backward pass made a gradient that is not finite")
    assert "use_reentrant=False" in done.stdout


def test_a_script_without_pytorch(tmp_path):
    """A script that never calls `backward` is told that nothing was watched."""
    (tmp_path / "other.py").write_text("print('done')")

    done = run_command(tmp_path, "other.py")

    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "no backward pass of PyTorch was seen" in done.stderr


def test_the_readme_shows_what_comes_out(tmp_path):
    """The script of the README has the report that the README shows."""
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    script, shown = re.search(
        r"^```python\n(# train\.py\n.*?)^```.*?^```text\n(.*?)^```",
        readme,
        re.MULTILINE | re.DOTALL,
    ).groups()
    (tmp_path / "train.py").write_text(script)

    done = run_command(tmp_path, "train.py")

    assert (done.stdout, done.returncode) == (shown, NOT_FINITE)
