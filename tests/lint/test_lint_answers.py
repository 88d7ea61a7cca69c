"""What `safeops lint` does and says: diffs, counts, exit codes, edits that it refuses, and time."""

import os
import re
import sys
from io import BytesIO, TextIOWrapper

import pytest

from lint_cases import CELLS, EDITED, PROGRAM, notebook, rules_in, write
from safeops.__main__ import main
from safeops._lint.linting import lint

pytestmark = pytest.mark.only("numpy")  # nothing is executed: one session is enough

TORCH = "import torch\nimport torch.nn.functional as F\n\n\ndef f(x, y, mask):\n    "
LOG = "x, jnp.log, fill_value=0.0"
JAX = "import jax\nimport jax.numpy as jnp\n\n\ndef f(x, y, mask):\n    "


def edits_of(program):
    """Return the new last lines of the edits of a program, and the reasons where there is none."""
    found = lint(program).findings
    return [x.edit[2].strip() if x.edit else f"no: {x.reason}" for x in found]


# Edits.


@pytest.mark.parametrize(
    ("head", "old", "new"),
    [
        (JAX, "jnp.where(x == 0, 0.0, jnp.log(x))", f"safe_where(x != 0, {LOG})"),
        (
            JAX,
            "jnp.where(x <= 0, 0.0, jnp.log(x))",  # NaN is neither, and `~` of a bool is no bool
            "safe_where(x <= 0, x, lambda x: 0.0, jnp.log)",
        ),
        (JAX, "jnp.where(~(x > 0), 0.0, jnp.log(x))", f"safe_where(x > 0, {LOG})"),
        (TORCH, "torch.sqrt((x**2).sum(-1, keepdim=True))", "safe_norm(x, axis=-1, keepdims=True)"),
        (TORCH, "x.pow(2).sum(dim=1).sqrt()", "safe_norm(x, axis=1)"),
        (
            JAX,
            "y - jnp.cross(x, y) / jnp.linalg.norm(jnp.cross(x, y), axis=-1, keepdims=True)",
            "y - safe_normalize(jnp.cross(x, y), axis=-1)",
        ),
        (
            JAX,
            "jnp.where(x2_d == 0, 0.0, y / x2_d)",
            "safe_where(x2_d != 0, (y, x2_d), lambda y, x2_d: y / x2_d, fill_value=0.0)",
        ),
        (JAX, "jnp.sqrt(jnp.mean(x * x, axis=0))", "safe_rms(x, axis=0)"),
        (JAX, "jnp.sqrt(x**2 + y**2)", "safe_hypot(x, y)"),
        (JAX, "jnp.sqrt(jnp.maximum(x, 0))", "safe_sqrt(x)"),
        (TORCH, "x.clamp(min=0).sqrt()", "safe_sqrt(x)"),
        (TORCH, "x.clamp(0, 1).sqrt()", "safe_sqrt(x.clamp(0, 1))"),
        (TORCH, "mask * torch.log(x)", "xlogy(mask, x)"),
        (TORCH, "torch.nan_to_num(y * x.log())", "torch.nan_to_num(y * safe_log(x))"),
        (TORCH, "-torch.log(x) * mask", "-xlogy(mask, x)"),
        (TORCH, "(torch.log(x) * mask).sum()", "xlogy(mask, x).sum()"),
        (TORCH, "(-torch.log(x) * mask).sum()", "(-xlogy(mask, x)).sum()"),
    ],
)  # fmt: skip
def test_an_edit_is_what_a_person_writes(head, old, new):
    """The condition is turned round, and a root of squares is a norm with the same options."""
    assert edits_of(f"{head}return {old}\n") == [f"return {new}"]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("z = torch.tanh(x)\n    return torch.log(1 - z**2)", "smooth"),
        (
            "z = torch.log(x)\n    w = torch.where(x > 0, z, 0.0)\n    return w + z",
            "line 8 uses the value",
        ),
        ("out = 1 / x\n    out[~mask] = 0\n    return out", "drops all singular entries"),
        ("z = torch.log(x)\n    return torch.nan_to_num(torch.exp(y * z))", "undoes"),
        ("return torch.nan_to_num(torch.log(x), neginf=-5.0)", "fills in other numbers"),
        ("return torch.nan_to_num(torch.exp(torch.log(x)) * torch.log(x), neginf=3.0)", "fills in"),
        ("z = x / y\n    return torch.where(torch.isnan(z), 0.0, z)", "it keeps x / 0"),
        ("z = x / y\n    return torch.where(torch.isinf(z), 0.0, z)", "it keeps 0 / 0"),
        ("z = x.sqrt()\n    return torch.where(torch.isnan(z), 9.0, z)", "the root is 0"),
        ("return torch.log(x.half() + 1e-12)", "for you to say"),
        ("return x + (1 - mask) * float('-inf')", "has to become a selection"),
        ("return torch.where(x > 0, x.log_(), 0.0)", "writes into"),
    ],
)
def test_an_edit_that_would_be_wrong_is_refused(program, reason):
    """A finite number in the place of another one, or of an infinity that is used, is no cure."""
    (said,) = edits_of(f"{TORCH}{program}\n")

    assert said.startswith("no: ")
    assert reason in said


@pytest.mark.parametrize(
    ("program", "choice"),
    [
        ("return torch.nan_to_num(x / y)", "in place of the largest number"),
        ("return (x * mask).sum() / mask.sum()", "the mean of nothing"),
        ("z = x.log()\n    return torch.where(torch.isinf(z), 0.0, z)", "is negative"),
    ],
)
def test_an_edit_says_what_it_chooses(program, choice):
    """Where the edit has another value at a singular point, that is said to be a choice."""
    (found,) = lint(f"{TORCH}{program}\n").findings

    assert found.edit
    assert choice in found.cure


def test_the_branch_is_edited_and_not_the_condition():
    """Where both are written with the operation, the slope of the branch is what is not finite."""
    edits = edits_of(f"{TORCH}return torch.where(torch.isfinite(x.log()), x.log(), 0.0)\n")

    assert edits == [
        "return safe_where(torch.isfinite(x.log()), x, lambda x: x.log(), fill_value=0.0)"
    ]


def test_a_divergence_becomes_rel_entr():
    """``p * log(p / q)`` has rel_entr as its edit, and no safe logarithm."""
    program = "import torch\n\n\ndef f(p, q):\n    return p * torch.log(p / q)\n"

    assert edits_of(program) == ["return rel_entr(p, q)"]


@pytest.mark.parametrize(
    ("test", "new"),
    [
        ("x.norm() < 1e-9", "not x.norm() >= 1e-9"),
        ("torch.any(x.abs() <= 1e-9)", "torch.any(~(x.abs() > 1e-9))"),
        ("(x.abs() < 1e-9).any()", "(~(x.abs() >= 1e-9)).any()"),
    ],
)
def test_a_guard_is_turned_round(test, new):
    """The comparison that NaN passes becomes one that NaN fails."""
    program = f"{TORCH}if {test}:\n        raise ValueError\n"

    assert edits_of(program) == [f"if {new}:"]


def test_arrays_of_keops_are_not_edited():
    """Where KeOps is imported, an array may be one that is not computed yet."""
    program = (
        "from pykeops.torch import LazyTensor\n" + TORCH + "return ((x - y)**2).sum(-1).sqrt()\n"
    )

    assert "KeOps" in edits_of(program)[0]


def test_reason_and_diff_are_in_the_text(tmp_path, capsys):
    """A finding without an edit says why; a diff of several lines keeps its indentation."""
    many = "return jnp.where(\n        x > 0,\n        jnp.log(x),\n        0.0,\n    )\n"
    write(tmp_path, a=JAX + many, b=f"{TORCH}return torch.log(x.half() + 1e-12)\n")

    main(["lint", str(tmp_path)])

    text = capsys.readouterr().out
    assert "  no edit: which number" in text
    assert "  - return jnp.where(\n  -     x > 0,\n  -     jnp.log(x),\n" in text


# The command.


def test_fix_says_what_it_did(tmp_path, capsys):
    """Each repaired finding is a line, and the summary has their number."""
    file = tmp_path / "a.py"
    file.write_text(PROGRAM)

    assert main(["lint", "--fix", str(file)]) == 0

    out, err = capsys.readouterr()
    assert re.search(r"a\.py:5:29: SO001 repaired\n$", out)
    assert err == "1 repaired, nothing left, 1 file read\n"


def test_fix_goes_on_behind_an_edit(tmp_path, capsys):
    """Two quotients of one branch are both repaired, as the first alone would leave the NaN."""
    file = tmp_path / "a.py"
    file.write_text(f"{TORCH}r = (1 - x) / y + x / y**3\n    return torch.where(y > 0, r, 0.0)\n")

    assert main(["lint", "--fix", str(file)]) == 0

    assert "r = safe_div(1 - x, y) + safe_div(x, y**3)" in file.read_text()
    assert capsys.readouterr().out.count("repaired") == 2


@pytest.mark.parametrize("name", ["a.py", "a.ipynb"])
def test_diff_edits_nothing(tmp_path, capsys, name):
    """`--diff` prints what --fix would do, and leaves the file as it is."""
    file = tmp_path / name
    file.write_text(PROGRAM if name == "a.py" else notebook(*CELLS))
    before = file.read_bytes()

    assert main(["lint", "--fix", "--diff", str(file)]) == 1

    lines = capsys.readouterr().out.splitlines()
    assert any(x.startswith("+") and EDITED in x for x in lines)
    assert any(x.startswith("-") and "jnp.where(" in x for x in lines)
    assert file.read_bytes() == before


def test_statistics_count_by_rule(tmp_path, capsys):
    """`--statistics` has a line for each rule."""
    write(
        tmp_path, a=PROGRAM, b=f"{TORCH}return torch.log(x.half() + 1e-12), x.clamp(min=0).sqrt()\n"
    )

    assert main(["lint", "--statistics", str(tmp_path)]) == 1

    lines = capsys.readouterr().out.splitlines()
    assert [x.split()[:2] for x in lines] == [["1", "SO001"], ["1", "SO011"], ["1", "SO003"]]
    assert lines[1].endswith("eps-lost-in-half-precision, 0 with an edit")


def test_exit_zero_is_for_findings(tmp_path):
    """`--exit-zero` ends with 0 for findings; a skipped file is 3, but beside findings 1."""
    write(tmp_path, a=PROGRAM)
    broken = tmp_path / "b.py"
    broken.write_text("def f(:\n")

    assert main(["lint", "--exit-zero", str(tmp_path / "a.py")]) == 0
    assert main(["lint", "--exit-zero", str(broken)]) == 3
    assert main(["lint", str(tmp_path)]) == 1


def test_copies_are_one_finding(tmp_path, capsys):
    """What is the same in several files is printed once, with the places of the copies."""
    write(tmp_path, a=PROGRAM, b=PROGRAM, c=f"\n{PROGRAM}")

    main(["lint", str(tmp_path)])

    out, err = capsys.readouterr()
    assert out.count("SO001") == 1
    assert re.search(r"  also at \S*b\.py:5:29, \S*c\.py:6:29\n", out)
    assert err.startswith("3 findings, 3 files read")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_named_pipe_is_passed_over(tmp_path, capsys):
    """Nobody waits for a pipe that is given as a path."""
    pipe = tmp_path / "a.py"
    os.mkfifo(pipe)

    assert main(["lint", str(pipe)]) == 3
    assert "a.py: skipped, it is neither a file nor a folder" in capsys.readouterr().err


def given(monkeypatch, text):
    """Give a text to the standard input."""
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(text.encode())))


def test_a_dash_is_the_standard_input(monkeypatch, capsys):
    """`lint -` reads the source from the standard input, and names it so."""
    given(monkeypatch, PROGRAM)

    assert main(["lint", "-"]) == 1
    assert capsys.readouterr().out.startswith("-:5:29: SO001")


@pytest.mark.parametrize(("text", "left"), [(PROGRAM, EDITED), ("x = 1\r\n", "x = 1\r\n")])
def test_fix_of_the_standard_input_is_a_filter(monkeypatch, capsysbinary, text, left):
    """The source goes to the standard output, edited or as it was, and what was done beside it."""
    given(monkeypatch, text)

    assert main(["lint", "--fix", "-"]) == 0

    out, err = capsysbinary.readouterr()
    assert left in out.decode()
    assert b"repaired" not in out
    assert (b"-:5:29: SO001 repaired" in err) == (text == PROGRAM)


def test_a_file_without_findings_is_not_kept():
    """What lint knows of a file is dropped with it: thousands of them fill no memory."""
    assert lint(f"{TORCH}return torch.log(x)\n").file is None


# Robust.


@pytest.mark.parametrize(
    "program",
    [
        "a = b = 1.0\n\n\ndef g():\n    global a, b\n    a, b = b, a\n    return torch.log(a)\n",
        "global a, b\na, b = b, a\nz = torch.log(a)\n",
        "y = " + " + ".join(["torch.log(x)"] * 2000) + "\n",
        "y = x" + ".log()" * 300 + "\n",
        "def g(x0):\n" + "".join(f"    x{i + 1} = x{i}.log()\n" for i in range(999)),
    ],
    ids=["global in a function", "global", "sum", "chain", "names"],
)  # fmt: skip
def test_no_name_and_no_sum_is_too_deep(program):
    """Beside names that stand for each other, long sums and long chains the rest is found."""
    assert rules_in(f"import torch\n\n{program}\nw = torch.where(v > 0, torch.log(v), 0.0)\n") == [
        "SO001"
    ]


ONE = "    y{0} = jnp.where(x > 0, jnp.log(x), 0.0)\n"
APART = "def g{0}(x):\n    y = jnp.log(x)\n    return jnp.where(x > 0, y, 0.0)\n"
SAME = "    z = torch.softmax(x.masked_fill(x > {0}, -torch.inf), -1)\n"
OWNED = "    z = torch.softmax(x.masked_fill(x.mask, -torch.inf), -1)\n"


@pytest.mark.parametrize(
    ("head", "line"),
    [(JAX, ONE), (JAX, APART), (TORCH, SAME), (TORCH, OWNED)],
    ids=["one function", "functions", "one name", "one attribute"],
)
def test_work_is_linear(head, line):
    """Four times the findings take less than five times the lines: they are not compared."""

    def lines(count):
        text = head.rstrip(" ") + "    pass\n" + "".join(line.format(i) for i in range(count))
        run = 0

        def trace(*_):
            nonlocal run
            run += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            report = lint(text)
        finally:
            sys.settrace(before)
        assert report.fixed
        assert len(report.findings) == count
        return run

    lines(5)  # fills what is made once
    assert lines(200) < 5 * lines(50)
