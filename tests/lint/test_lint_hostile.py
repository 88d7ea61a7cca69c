"""`safeops lint` on files, notebooks, paths and comments of all kinds."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import safeops
from lint_cases import CELLS, EDITED, PROGRAM, notebook, rules_in, write
from safeops.__main__ import main
from safeops._lint.flake8 import Plugin
from safeops._lint.linting import lint
from safeops._lint.sources import read

pytestmark = pytest.mark.only("numpy")  # nothing is executed: one session is enough


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ("%%time\nimport jax.numpy as jnp\nLINE", 1),
        ("%%timeit -n 3\nimport jax.numpy as jnp\nLINE", 1),
        ("%%writefile a.py\nimport jax.numpy as jnp\nLINE", 0),
        ("import jax.numpy as jnp\nfor i in range(2):\n    %time y = 1\nLINE", 1),
        ("import jax.numpy as jnp\nfiles = !ls\njnp.log?\nLINE", 1),
        ("import jax.numpy as jnp\ns = (7\n%3)\nLINE", 1),
        ("import jax.numpy as jnp\ndef f(:\nLINE", 0),
        ("# safeops: cell 7\nimport jax.numpy as jnp\nLINE", 0),
    ],
)
def test_cells_of_all_kinds(tmp_path, cell, found):
    """Cells of Python are read, with IPython in them too; others do not hide the next cell."""
    cell = cell.replace("LINE", "y = jnp.where(x > 0, jnp.log(x), 0.0)")
    good = "import jax.numpy as jnp\nz = jnp.where(x > 0, jnp.log(x), 0.0)"
    file = tmp_path / "a.ipynb"
    file.write_text(notebook(("code", cell), ("code", good)))

    assert len(lint(read(file).text).findings) == found + 1
    assert main(["lint", "--fix", str(file)]) == 0

    first, second = ("".join(x["source"]) for x in json.loads(file.read_text())["cells"])
    kept = [x for x in first.splitlines() if "safe_where" not in x]
    assert kept == [x for x in cell.splitlines() if "where" not in x or not found]
    assert EDITED in second


def test_a_line_of_a_notebook_is_that_of_its_cell(tmp_path, capsys):
    """The reason names the line of the cell too."""
    file = tmp_path / "a.ipynb"
    file.write_text(notebook(*CELLS))

    main(["lint", str(file), "--format", "github"])

    said = capsys.readouterr().out
    assert "line=2," in said
    assert "::line 2 of cell 3 drops" in said


KINDS = {
    "bom": (b"\xef\xbb\xbf" + PROGRAM.encode(), 1),
    "crlf": (PROGRAM.replace("\n", "\r\n").encode(), 1),
    "cr": (PROGRAM.replace("\n", "\r").encode(), 1),
    "tabs": (PROGRAM.replace("    ", "\t").encode(), 1),
    "latin-1": ("# -*- coding: latin-1 -*-\n# é\n".encode("latin-1") + PROGRAM.encode(), 1),
    "form feed": (PROGRAM.replace("\n\n\n", "\n\x0c\n\n").encode(), 1),
    "no newline": (PROGRAM.rstrip("\n").encode(), 1),
    "nested": (PROGRAM.encode() + b"y = " + b"(" * 150 + b"x" + b")" * 150, 1),
    "empty": (b"", 0),
    "utf-16": (PROGRAM.encode("utf-16"), 0),
    "no utf-8": (b"# \xff\n" + PROGRAM.encode(), 0),
    "no encoding": (b"# -*- coding: nonsense -*-\n" + PROGRAM.encode(), 0),
    "too deep": (PROGRAM.encode() + b"y = " + b"-" * 100_000 + b"x", 0),
}


@pytest.mark.parametrize("name", KINDS)
def test_files_of_all_kinds(tmp_path, name, capsys):
    """What Python reads is read, and repaired in its encoding; the rest is named and skipped."""
    file, (raw, found) = tmp_path / "a.py", KINDS[name]
    file.write_bytes(raw)

    is_skipped = not found and bool(raw)
    assert main(["lint", str(file)]) == (3 if is_skipped else found)
    assert ("skipped" in capsys.readouterr().err) == is_skipped
    assert main(["lint", str(file), "--fix"]) == (3 if is_skipped else 0)
    assert (file.read_bytes() == raw) == (not found)
    if found:
        compile(file.read_bytes(), "a.py", "exec")
        assert file.read_bytes()[:3] == raw[:3]


def test_links_are_read_once(tmp_path, capsys):
    """A file that is named twice, or linked, is read once; a loop of links ends."""
    folder = Path(write(tmp_path, a=PROGRAM))
    (folder / "b.py").symlink_to(folder / "a.py")
    (folder / "up").symlink_to(folder)
    (folder / "gone.py").symlink_to(folder / "nothing.py")

    main(["lint", str(folder), str(folder / "a.py"), "--format", "json"])

    assert len(json.loads(capsys.readouterr().out)) == 1


def test_signs_that_the_terminal_has_not(tmp_path):
    """A sign that the output cannot show is written as an escape."""
    write(tmp_path, a=PROGRAM.replace("0.0)", "0.0)  # é"))
    command = [sys.executable, "-m", "safeops", "lint", str(tmp_path)]
    options = {"env": os.environ | {"PYTHONIOENCODING": "ascii"}, "text": True}
    house = Path(safeops.__file__).parents[1]

    done = subprocess.run(command, check=False, cwd=house, capture_output=True, **options)

    assert (done.returncode, "\\xe9" in done.stdout) == (1, True), done.stderr


def test_a_file_that_cannot_be_written(tmp_path, capsys, monkeypatch):
    """It is named, and its findings stay."""

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(Path, "write_bytes", refuse)

    assert main(["lint", write(tmp_path, a=PROGRAM), "--fix"]) == 1
    assert "a.py: not edited" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pattern", "code"),
    [("inner", 0), ("inner/", 0), ("*/inner/a.py", 0), ("top/inner", 0), ("ABS", 0), ("in", 1)],
)
def test_exclude_takes_names_and_paths(tmp_path, monkeypatch, pattern, code):
    """A pattern is a name, a path from here or from the root; a file that is named counts too."""
    monkeypatch.chdir(tmp_path)
    inner = tmp_path / "top/inner"
    inner.mkdir(parents=True)
    write(inner, a=PROGRAM)
    pattern = pattern.replace("ABS", inner.as_posix())
    (tmp_path / "pyproject.toml").write_text(f'[tool.safeops.lint]\nexclude = ["{pattern}"]\n')

    assert main(["lint", "."]) == code
    assert main(["lint", "top/inner/a.py"]) == code


def test_paths_are_escaped(tmp_path, capsys, monkeypatch):
    """A comma, a colon, a space and a percent sign in a name do not break the format."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b,c:d%.py").write_text(PROGRAM)

    main(["lint", ".", "--format", "github"])
    main(["lint", ".", "--format", "sarif"])

    command, log = capsys.readouterr().out.split("\n", 1)
    assert "file=a b%2Cc%3Ad%25.py,line=5" in command
    assert "a%20b%2Cc%3Ad%25.py" in log


def test_sarif_has_what_its_schema_asks_for(tmp_path, capsys):
    """
    Fields, types and bounds are those of SARIF 2.1.0, also for a notebook and for nothing found.

    By hand, as the schema is in no package; the OASIS schema itself took the output on 2026-11-22.
    """
    write(tmp_path, a=PROGRAM)
    (tmp_path / "b.ipynb").write_text(notebook(*CELLS))
    (tmp_path / "empty").mkdir()

    for path, count in ((tmp_path, 2), (tmp_path / "empty", 0)):
        main(["lint", str(path), "--format", "sarif"])
        log = json.loads(capsys.readouterr().out)
        (run,) = log["runs"]
        rules = run["tool"]["driver"]["rules"]
        assert (log["version"], run["tool"]["driver"]["name"]) == ("2.1.0", "safeops")
        assert run["columnKind"] in {"utf16CodeUnits", "unicodeCodePoints"}
        assert len({rule["id"] for rule in rules}) == len(rules)
        assert len(run["results"]) == count
        for result in run["results"]:
            (place,) = (x["physicalLocation"] for x in result["locations"])
            region = place["region"]
            assert result["level"] in {"none", "note", "warning", "error"}
            assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
            assert result["message"]["text"]
            assert re.match(r"file:///\S+$", place["artifactLocation"]["uri"])
            assert rules[result["ruleIndex"]]["shortDescription"]["text"]
            assert all(type(x) is int and x >= 1 for x in region.values())
            assert (region["startLine"], region["startColumn"]) < (
                region["endLine"],
                region["endColumn"],
            )


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("return jnp.where(  # safeops: ignore[SO001]\n        x > 0, jnp.log(x), 0.0)", 0),
        ("return jnp.where(x > 0,\n        jnp.log(x),  # safeops: ignore[so001]\n        0.0)", 0),
        ("y = jnp.log(x)\n    return jnp.where(x > 0, y, 0.0)  # safeops: ignore", 0),
        ("s = '# safeops: ignore'; return jnp.where(x > 0, jnp.log(x), 0.0)", 1),
    ],
)
def test_a_comment_in_an_expression_of_several_lines(body, found):
    """A comment on the first, the last or the line at fault counts; a string is no comment."""
    assert len(rules_in(f"import jax.numpy as jnp\n\n\ndef f(x):\n    {body}\n")) == found


def test_flake8_survives_what_is_too_deep(monkeypatch):
    """A file that is nested too deep ends neither flake8 nor the plugin."""

    def fail(*_, **__):
        raise RecursionError

    monkeypatch.setattr("safeops._lint.flake8.lint", fail)

    assert list(Plugin(ast.parse(PROGRAM), PROGRAM.splitlines(keepends=True)).run()) == []
