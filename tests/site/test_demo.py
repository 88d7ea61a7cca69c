"""The command line, and what the README shows of it."""

import contextlib
import functools
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import safeops
from safeops.__main__ import main
from safeops._cli import demo

pytestmark = pytest.mark.whole  # facts of each framework

ROOT = Path(__file__).parents[2]
HOUSE = Path(safeops.__file__).parent
README = (ROOT / "README.md").read_text()
FUNCTIONS = (ROOT / "docs/functions.md").read_text()
CASES = [case.name for case in demo.CASES]
SHOWN = pytest.mark.only("numpy", "torch", "jax", "tensorflow")


@functools.cache
def rows_of(framework):
    """Return the rows that `--json` prints for one framework, by the name of the case."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert main(["--framework", framework, "--json"]) == 0
    rows = json.loads(out.getvalue(), parse_constant=pytest.fail)  # NaN is no JSON
    return {row["case"]: row for row in rows}


def run_python(*args):
    """Run Python where it imports the package under test."""
    command = [sys.executable, *args]
    return subprocess.run(command, cwd=HOUSE.parent, capture_output=True, text=True, check=False)


def plant(monkeypatch, **wrong):
    """Let the first case expect something else."""
    first, *others = demo.CASES
    monkeypatch.setattr(demo, "CASES", (first._replace(**wrong), *others))


# What comes out.


@SHOWN
def test_json_has_every_case(framework):
    """`--json` prints a row for each case, every safe result right, and the exit code is 0."""
    rows = rows_of(framework)

    assert list(rows) == CASES
    assert all(row["ok"] and row["framework"] == framework for row in rows.values())


@pytest.mark.parametrize("case", demo.CASES, ids=lambda case: case.name)
def test_naive_gradients_are_wrong(autodiff_framework, case):
    """The naive gradient is NaN, except where the case says why it is right."""
    gradient = json.dumps(rows_of(autodiff_framework)[case.name]["naive_gradient"])

    assert ("nan" in gradient) is not (autodiff_framework in case.spared)


@pytest.mark.only("numpy")
def test_numpy_has_no_gradient(framework):
    """On NumPy the gradient is null, not a number."""
    rows = rows_of(framework).values()

    assert all(row["naive_gradient"] is row["safe_gradient"] is None for row in rows)


def test_the_entropy_has_the_gradient_of_the_note(autodiff_framework):
    """The gradient is the one that the note on where of TensorFlow Probability prints."""
    gradient = rows_of(autodiff_framework)["entropy"]["safe_gradient"]

    assert gradient == pytest.approx([1.30258512, 0.60943794, 0, -0.64332503], rel=1e-6, abs=0)


@SHOWN
def test_tables_show_every_case(framework, capsys, monkeypatch):
    """The tables name the framework, the bugs and their sources, within 80 characters."""
    monkeypatch.setenv("COLUMNS", "80")

    status = main(["--framework", framework])

    out = capsys.readouterr().out
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    assert all(case.title in out and case.source in out for case in demo.CASES)
    assert len(re.findall(rf"^{framework} ", out, flags=re.MULTILINE)) >= len(CASES)


# What must not pass.


@SHOWN
@pytest.mark.parametrize("plant_of", ["value", "gradient"])
def test_a_wrong_result_is_an_exit_code(framework, plant_of, monkeypatch, capsys):
    """A safe value or gradient that is not what it must be gives 1, and the tables name it."""
    if (framework, plant_of) == ("numpy", "gradient"):
        pytest.skip("NumPy has no gradient")
    plant(monkeypatch, **{plant_of: [0.0, 0.25]})

    status = main(["--framework", framework])

    assert status == 1
    assert f"WRONG: reciprocal on {framework}" in capsys.readouterr().out


def test_a_wrong_shape_is_an_exit_code(monkeypatch, capsys):
    """The right numbers in another shape are wrong."""
    plant(monkeypatch, value=[[0.0, 0.5]])

    status = main(["--framework", "numpy", "--json"])

    assert status == 1
    assert [row["ok"] for row in json.loads(capsys.readouterr().out)].count(False) == 1


def test_a_broken_framework_is_an_exit_code(monkeypatch, capsys):
    """A framework that does not import is named, the others are shown, the exit code is 1."""

    def load(name):
        if name == "jax":
            msg = "no such symbol"
            raise OSError(msg)
        return real(name)

    real = demo.load
    monkeypatch.setattr(demo, "load", load)
    monkeypatch.setattr(demo, "find_spec", lambda name: name in {"numpy", "jax"})

    status = main(["--json"])

    out, err = capsys.readouterr()
    assert status == 1
    assert {row["framework"] for row in json.loads(out)} == {"numpy"}
    assert err.startswith("jax is installed and does not import: OSError: no such symbol")


# What the command line says.


def test_an_unknown_framework_is_an_error(capsys):
    """The message lists the frameworks there are."""
    with pytest.raises(SystemExit, match="2"):
        main(["--framework", "theano"])

    said = "expected a framework out of (numpy, torch, jax, tensorflow), got theano"
    assert said in capsys.readouterr().err


def test_a_framework_not_installed_is_an_error(monkeypatch, capsys):
    """The message says what to install."""
    monkeypatch.setattr("safeops.__main__.find_spec", lambda _: None)

    with pytest.raises(SystemExit, match="2"):
        main(["--framework", "torch"])

    assert 'torch is not installed; python -m pip install ".[torch]"' in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_numpy_alone_names_the_installs(options, monkeypatch, capsys):
    """With NumPy alone values are shown, and the three installs that have gradients."""
    monkeypatch.setattr(demo, "find_spec", lambda name: name == "numpy")

    status = main(options)

    said = capsys.readouterr()[bool(options)]  # beside the JSON, not in it
    assert status == 0
    assert all(f'pip install ".[{name}]"' in said for name in ("torch", "jax", "tensorflow"))


@pytest.mark.parametrize(("options", "status"), [([], 2), (["--json"], 0)])
def test_rich_is_optional(options, status):
    """Without rich the tables are an error that says what to install; `--json` does without."""
    code = "import sys; sys.modules['rich'] = None; from safeops.__main__ import main"
    code += f"; sys.exit(main(['--framework', 'numpy', *{options}]))"

    done = run_python("-W", "error", "-c", code)

    assert done.returncode == status
    assert ('pip install ".[demo]"' in done.stderr) is (status == 2)


@pytest.mark.only("tensorflow")
def test_the_frameworks_say_nothing():
    """Run as a program, TensorFlow's greetings do not reach the terminal."""
    done = run_python("-m", "safeops", "--framework", "tensorflow", "--json")

    assert (done.returncode, done.stderr) == (0, "")
    assert [row["case"] for row in json.loads(done.stdout)] == CASES


# The README, and the page of functions.


def test_the_page_of_functions_lists_every_one():
    """The tables of functions name those of the package and of `linalg`, and no other."""
    cells = re.findall(r"^\| (`[^|]*) \|", FUNCTIONS, flags=re.MULTILINE)
    names = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}

    assert names == {*safeops.__all__, *safeops.linalg.__all__}


def test_the_readme_lists_every_family():
    """The table of families names those of the package and of `linalg`, each once, and no other."""
    cells = re.findall(r"^\| [A-Z][^|]* \| (`[^|]*) \|$", README, flags=re.MULTILINE)
    names = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]

    assert sorted(names) == sorted([*safeops.__all__, *safeops.linalg.__all__])


def test_the_readme_is_short():
    """A reader is at the cure in a minute; the rest has pages."""
    assert len(README.splitlines()) <= 200


@SHOWN
@pytest.mark.parametrize("words", [["recipe", "--list"], ["--help"]])
def test_a_reader_that_has_enough(words):
    """A pipe that is closed, as `head` does, ends each command without a traceback."""
    command = [sys.executable, "-m", "safeops", *words]
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}  # short outputs are written at the end
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=HOUSE.parent, env=buffered, **pipes) as done:
        done.stdout.close()
        said = done.stderr.read()

    assert said == b""
