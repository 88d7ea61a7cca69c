"""`safeops lint`: what it finds and what it leaves alone, its edits, its command."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import lint_cases
import safeops
from lint_cases import CELLS, EDITED, notebook, rules_in, write
from lint_cases import PROGRAM as RISKY
from safeops.__main__ import main
from safeops._lint.flake8 import Plugin
from safeops._lint.found import TITLES
from safeops._lint.linting import lint

pytestmark = pytest.mark.only("numpy")  # nothing is executed: one session is enough

HOUSE = Path(safeops.__file__).parent
FIXED = [x for x in lint_cases.RISKY if lint(x.source).fixes]
# What is found.


@pytest.mark.parametrize("snippet", [*lint_cases.RISKY, *lint_cases.READ], ids=str)
def test_a_risky_snippet_is_found(snippet):
    """Its rule finds it, once, and no other does."""
    assert rules_in(snippet.source) == [snippet.rule]


@pytest.mark.parametrize("snippet", lint_cases.SOUND, ids=str)
def test_a_sound_snippet_is_left_alone(snippet):
    """Nothing is found where nothing is wrong."""
    assert rules_in(snippet.source) == []


@pytest.mark.parametrize("name", lint_cases.HELPERS)
def test_published_helpers(name):
    """Of ten published patterns the seven with the bug are found."""
    framework, body, rule = lint_cases.HELPERS[name]

    assert rules_in(lint_cases.Snippet(framework, body).source) == ([rule] if rule else [])


def test_the_table_is_large_enough():
    """There are 60 risky snippets and 120 sound ones, of each rule and framework."""
    risky = lint_cases.RISKY

    assert len(risky) >= 60
    assert len(lint_cases.SOUND) >= 120
    assert {x.rule for x in risky} == set(TITLES)
    assert {x.framework for x in risky} >= {"torch", "jax", "tensorflow", "keras", "xp"}
    assert len({str(x) for x in (*risky, *lint_cases.SOUND)}) == len(risky) + len(lint_cases.SOUND)


ROOT = "return x.clamp(min=0).sqrt()"


@pytest.mark.parametrize(
    ("program", "count"),
    [
        (f"class A(torch.nn.Module):\n    def forward(self, x):\n        {ROOT}", 1),
        (f"class A(torch.nn.Module):\n    def __init__(self, x):\n        {ROOT}", 0),
        (f"class Normal:\n    def __init__(self, x):\n        {ROOT}", 1),
        (f"def _f(x):\n    {ROOT}\n\ndef g(x):\n    return _f(x)", 1),
        (f"def _f(x):\n    {ROOT}\n\n@torch.no_grad()\ndef g(x):\n    return _f(x)", 0),
        (f"def _f(x):\n    {ROOT}\n\ndef g(x):\n    return _f(x).detach()", 0),
        (f"def _f(x):\n    {ROOT}\n\ndef g(x):\n    return _f(x), _f(x).detach()", 1),
        (f"def f(x):\n    {ROOT}", 1),
        (f"def init_state(x):\n    {ROOT}", 1),
        (f"def sample_depth(x):\n    {ROOT}", 1),
        (f"def _init_weights(x):\n    {ROOT}", 0),
        (
            "def f():\n    w = torch.ones(3, requires_grad=True)\n    return w.clamp(min=0).sqrt()",
            1,
        ),
        ("def f():\n    w = torch.ones(3)\n    return w.clamp(min=0).sqrt()", 0),
        (
            "def f():\n    w = torch.nn.Parameter(torch.ones(3))\n    return w.clamp(0).sqrt()",
            1,
        ),
        ("def f(x):\n    m, _ = torch.max(x.clamp(min=0).sqrt(), 0)\n    return m", 1),
        ("def f(x):\n    _, m = torch.max(x.clamp(min=0).sqrt(), 0)\n    return m", 0),
    ],
)
def test_what_is_differentiated(program, count):
    """A root is found where a gradient may come to it, and nowhere else."""
    assert len(rules_in(f"import torch\n\n\n{program}\n")) == count


LIKE_THE_PUBLIC_CASES = [
    ("SO005", "def loss(pred, mask):\n    nll = -torch.log(pred)\n    return (nll * mask).sum()"),
    ("SO005", "def f(d):\n    inside = d != 0\n    return inside * (1 / d)"),
    ("SO007", (
        "def attend(q, k, key_padding_mask):\n    s = q @ k.transpose(-1, -2)\n"
        "    s = s.masked_fill(key_padding_mask[:, None], float('-inf'))\n"
        "    return torch.softmax(s, dim=-1)"
    )),
    ("SO007", (
        "def attend(s, causal, padding):\n    least = torch.finfo(s.dtype).min\n"
        "    m = torch.where(padding, 0.0, least) + torch.where(causal, 0.0, least)\n"
        "    return torch.softmax(s + m, -1)"
    )),
    ("SO009", "def unit(v):\n    n = torch.norm(v)\n    if n < 1e-9:\n        raise ValueError"),
    ("SO009", "def f(a):\n    e = a.max()\n    if e.item() <= 1e-8:\n        raise ValueError"),
    ("SO010", (
        "def angle(a, b):\n    c = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))\n"
        "    return torch.acos(c.clamp(-1.0, 1.0))"
    )),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "program"), LIKE_THE_PUBLIC_CASES)
def test_rules_that_the_packages_do_not_show(rule, program):
    """What is written in the manner of the public cases is found, by its rule alone."""
    assert rules_in(f"import torch\n\n\n{program}\n") == [rule]


@pytest.mark.parametrize(
    "name",
    [
        "metrics",
        "seq_metrics",
        "optim",
        "schedulers",
        "evaluation",
        "augmentation",
        "preprocessing",
    ],
)
def test_a_module_apart_is_left_out(tmp_path, name):
    """What measures, steps or draws is not differentiated; `--everywhere` reports there too."""
    folder = tmp_path / "package" / name
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    for file in (folder / "a.py", tmp_path / f"{name}.py"):
        file.write_text(RISKY)

        assert main(["lint", str(file)]) == 0
        assert main(["lint", str(file), "--everywhere"]) == 1
    (tmp_path / "geometrics.py").write_text(RISKY)
    assert main(["lint", str(tmp_path / "geometrics.py")]) == 1


def test_numpy_is_found_if_asked_for():
    """NumPy has no gradients, and counts only if a user says so."""
    source = RISKY.replace("jax.numpy as jnp", "numpy as np").replace("jnp", "np")

    assert rules_in(source) == []
    assert rules_in(source, numpy=True) == ["SO001"]


@pytest.mark.parametrize(
    ("imports", "where", "log"),
    [
        ("import jax.numpy as np", "np.where", "np.log"),
        ("import jax", "jax.numpy.where", "jax.numpy.log"),
        ("from jax import numpy as J", "J.where", "J.log"),
        ("from torch import where, log", "where", "log"),
        ("import torch as t", "t.where", "t.log"),
        ("import tensorflow.compat.v2 as tf", "tf.where", "tf.math.log"),
        ("from tensorflow.math import log\nimport tensorflow as T", "T.where", "log"),
        ("import keras", "keras.ops.where", "keras.ops.log"),
        ("import autograd.numpy as anp", "anp.where", "anp.log"),
    ],
)
def test_names_are_those_that_the_file_gives(imports, where, log):
    """A function is known by what the file imports, whatever it is called there."""
    source = f"{imports}\n\ndef f(x):\n    return {where}(x > 0, {log}(x), 0.0)\n"

    assert rules_in(source) == ["SO001"]
    assert rules_in(source.replace(imports, "from somewhere import where, log, t, tf, T, J")) == []


def test_it_imports_nothing_of_what_it_reads():
    """Neither a framework nor the file itself is imported."""
    code = "import sys; from safeops.__main__ import main; main(['lint', sys.argv[1]]); "
    code += "sys.exit(str(sorted({'jax', 'torch', 'tensorflow', 'flake8'} & set(sys.modules))))"

    done = run_python("-c", code, str(Path(__file__).with_name("lint_cases.py")))

    assert done.stderr.splitlines()[-1] == "[]"


def run_python(*args):
    """Run Python where it imports the package under test."""
    command = [sys.executable, *args]
    return subprocess.run(command, cwd=HOUSE.parent, capture_output=True, text=True, check=False)


# The edits.


@pytest.mark.parametrize("snippet", FIXED, ids=str)
def test_an_edit_is_made_once(snippet):
    """What is edited is Python, and nothing is found in it; a second edit changes nothing."""
    fixed = lint(snippet.source).fixed

    assert fixed != snippet.source
    assert rules_in(fixed) == []
    assert lint(fixed).fixed == fixed


def test_most_snippets_have_an_edit():
    """All risky snippets but a few can be repaired by an edit; of the others the reason is said."""
    without = [x for x in lint_cases.RISKY if x not in FIXED]
    mine = [x for x in lint_cases.RISKY if x.rule != "SO011"]  # which eps is for its author to say

    assert len(FIXED) >= 0.9 * len(mine), [str(x) for x in without]
    assert all(found.reason for x in without for found in lint(x.source).findings)


def test_an_edit_keeps_the_rest(tmp_path):
    """Comments, blank lines, quotes, tabs, the ends of lines and the encoding stay."""
    old = '# -*- coding: latin-1 -*-\r\n"""Doc é."""\r\nimport  jax.numpy as jnp\r\n\r\n'
    old += "def f(x):  # why\r\n\tz = ( jnp.where(x>0, # é\r\n\t\tjnp.log( x ), 0.0) ) # tail\r\n"
    old += "\treturn 'é' , z\r\n"
    file = tmp_path / "a.py"
    file.write_bytes(old.encode("latin-1"))

    assert main(["lint", "--fix", str(file)]) == 0

    new = file.read_bytes().decode("latin-1")
    expected = old.replace("jnp\r\n\r\n", "jnp\r\nfrom safeops import safe_log\r\n\r\n")
    assert new == expected.replace("jnp.log( x )", "safe_log(x)")


@pytest.mark.parametrize(
    "head",
    [
        '"""Doc."""\n',
        "# a comment\n\n",
        "from __future__ import annotations\n",
        "from safeops import safe_where\n",
        "#!/usr/bin/env python\n# two\n",
    ],
)
def test_the_import_goes_after_the_others(head):
    """It stands where an import may stand, and once."""
    fixed = lint(head + RISKY).fixed

    compile(fixed, "fixed", "exec")
    assert fixed.startswith(head.split("\n\n")[0].rstrip("\n"))
    assert fixed.count("from safeops import safe_where") == 1


def test_a_name_that_is_taken_is_not_imported():
    """A file with a function `safe_where` of its own is found, and not edited."""
    source = RISKY + "\n\ndef safe_where(*args):\n    return args\n"

    report = lint(source)

    assert len(report.findings) == 1
    assert report.fixed == source


# The command.


def test_text_shows_line_caret_reason_and_edit(tmp_path, capsys, monkeypatch):
    """The text has the place, the line, a caret below the operation, why, and the edit."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, a=RISKY)

    assert main(["lint", "a.py"]) == 1

    place, line, caret, why, minus, plus, imports, *_ = capsys.readouterr().out.splitlines()
    assert place == "a.py:5:29: SO001 where-drops-singular-branch"
    assert line == "        return jnp.where(x > 0, jnp.log(x), 0.0)"
    assert caret == " " * line.index("jnp.log") + "^" * len("jnp.log(x)")
    assert "x = 0" in why
    assert minus == "  - return jnp.where(x > 0, jnp.log(x), 0.0)"
    assert plus == "  + return safe_where(x > 0, x, jnp.log, fill_value=0.0)"
    assert imports == "    from safeops import safe_where"


def test_json_is_a_list_of_objects(tmp_path, capsys):
    """Each has path, line, column, rule, message and fix."""
    folder = write(tmp_path, a=RISKY, b="x = 1\n")

    assert main(["lint", folder, "--format", "json"]) == 1

    (found,) = json.loads(capsys.readouterr().out)
    assert {"path", "line", "column", "rule", "message", "fix"} <= set(found)
    assert (found["line"], found["column"], found["rule"]) == (5, 29, "SO001")
    assert found["fix"]["new"] == "    return safe_where(x > 0, x, jnp.log, fill_value=0.0)"


def test_json_of_nothing_is_a_list(tmp_path, capsys):
    """Nothing found is an empty list, and exit code 0."""
    assert main(["lint", write(tmp_path, b="x = 1\n"), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_sarif_names_rule_and_place(tmp_path, capsys):
    """The log has a run with the rule, and a result with its region."""
    assert main(["lint", write(tmp_path, a=RISKY), "--format", "sarif"]) == 1

    log = json.loads(capsys.readouterr().out)
    (run,) = log["runs"]
    (result,) = run["results"]
    assert log["version"] == "2.1.0"
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "SO001"
    region = result["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 5, "startColumn": 29, "endLine": 5, "endColumn": 39}


def test_github_has_a_command_for_each(tmp_path, capsys, monkeypatch):
    """Each finding is one line that GitHub reads."""
    monkeypatch.chdir(tmp_path)

    assert main(["lint", write(tmp_path, a=RISKY), "--format", "github"]) == 1

    line = capsys.readouterr().out.strip()
    assert line.startswith("::warning file=a.py,line=5,col=29,title=SO001 where-drops")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--select", "SO001"], 1),
        (["--select", "SO"], 1),
        (["--select", "SO002,SO003"], 0),
        (["--ignore", "SO001"], 0),
        (["--ignore", "SO002"], 1),
        (["--select", "SO9"], 2),
        (["--select", ""], 2),
    ],
)
def test_rules_are_chosen(tmp_path, options, code):
    """`--select` and `--ignore` choose rules by their beginnings; a word of none is an error."""
    assert main(["lint", write(tmp_path, a=RISKY), *options]) == code


@pytest.mark.parametrize("path", ["nothing.py", "table.csv"])
def test_a_path_that_is_no_python(tmp_path, path, capsys):
    """A path that is not there, or no Python, is a wrong command line."""
    (tmp_path / "table.csv").write_text("1")

    assert main(["lint", str(tmp_path / path)]) == 2
    assert "expected a file" in capsys.readouterr().err


def test_what_does_not_parse_is_named_and_skipped(tmp_path, capsys):
    """Others are read all the same."""
    folder = write(tmp_path, a=RISKY, b="def f(:\n", c="x = 1\0")
    (tmp_path / "d.py").write_bytes(b"# \xff\xfe\n")
    (tmp_path / "e.ipynb").write_text("{}")

    assert main(["lint", folder]) == 1

    captured = capsys.readouterr()
    assert captured.out.count("SO001 ") == 1
    assert [f"{name}: skipped" in captured.err for name in ("c.py", "d.py", "e.ipynb")] == [
        True
    ] * 3
    assert "b.py:1: skipped" in captured.err


@pytest.mark.parametrize(
    ("comment", "found"),
    [
        ("# safeops: ignore[SO001]", 0),
        ("# safeops: ignore[SO002, SO001]", 0),
        ("# safeops: ignore", 0),
        ("# safeops: ignore[SO002]", 1),
        ("# noqa", 1),
    ],
)
def test_a_comment_leaves_a_line_out(comment, found):
    """`# safeops: ignore[SO001]` on its line leaves a finding out."""
    source = RISKY.replace("0.0)\n", f"0.0)  {comment}\n")

    assert len(rules_in(source)) == found


@pytest.mark.parametrize(
    ("table", "code"),
    [
        ('ignore = ["SO001"]', 0),
        ('select = ["SO002"]', 0),
        ('exclude = ["inner"]', 0),
        ('exclude = ["a.py"]', 0),
        ('exclude = ["b.py"]', 1),
        ("", 1),
        ('rules = ["SO001"]', 2),
        ('select = "SO001"', 2),
        ("select = [", 2),
    ],
)
def test_configuration_is_that_of_the_user(tmp_path, table, code):
    """`[tool.safeops.lint]` of the pyproject.toml above is read; a key of none is an error."""
    (tmp_path / "pyproject.toml").write_text(f"[tool.safeops.lint]\n{table}\n")
    inner = tmp_path / "inner"
    inner.mkdir()
    write(inner, a=RISKY)

    assert main(["lint", str(tmp_path)]) == code


def test_the_command_line_comes_before_the_configuration(tmp_path):
    """`--select` takes the place of that in the file."""
    (tmp_path / "pyproject.toml").write_text('[tool.safeops.lint]\nselect = ["SO002"]\n')

    assert main(["lint", write(tmp_path, a=RISKY), "--select", "SO001"]) == 1


def test_what_nobody_wrote_is_not_read(tmp_path):
    """Folders of environments, builds and caches are left out; a file that is named is read."""
    for name in (".venv", "build", "__pycache__", "site-packages"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, a=RISKY)

    assert main(["lint", str(tmp_path)]) == 0
    assert main(["lint", str(tmp_path / "build" / "a.py")]) == 1


def test_a_notebook_is_read_as_one_program(tmp_path, capsys):
    """A finding has its cell and the line in it; what is IPython's is passed over."""
    (tmp_path / "a.ipynb").write_text(notebook(*CELLS))

    assert main(["lint", str(tmp_path)]) == 1
    assert "a.ipynb:cell 3:2:22: SO001" in capsys.readouterr().out


def test_a_notebook_is_edited(tmp_path):
    """The cell is repaired, and nothing else changes but the import."""
    file = tmp_path / "a.ipynb"
    file.write_text(notebook(*CELLS))

    assert main(["lint", "--fix", str(file)]) == 0

    kinds, (text, imports, cell, bash) = zip(*CELLS, strict=True)
    imports += "\nfrom safeops import safe_where"
    cell = cell.replace("jnp.where(x > 0, jnp.log(x), 0.0)", EDITED)
    changed = notebook(*zip(kinds, (text, imports, cell, bash), strict=True))
    assert json.loads(file.read_text()) == json.loads(changed)
    assert file.read_text() == changed


def test_flake8_finds_the_same():
    """The plugin of flake8 gives line, column, rule and reason."""
    (error,) = Plugin(ast.parse(RISKY), RISKY.splitlines(keepends=True)).run()

    assert error[:2] == (5, 28)
    assert error[2].startswith("SO001 line 5 drops")


def test_this_library_is_clean(monkeypatch, capsys):
    """Nothing is found but in the files that pyproject.toml leaves out, each with its reason."""
    monkeypatch.chdir(HOUSE.parent)
    folder = str(HOUSE)

    code = main(["lint", folder, "--format", "json"])

    found = json.loads(capsys.readouterr().out)
    assert (found, code) == ([], 0)
