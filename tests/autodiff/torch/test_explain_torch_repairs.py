"""The repairs that `explain` offers for programs of PyTorch, and how a report reads."""

import runpy

import pytest

import reported_torch as programs
from assertions import assert_close
from reported_torch import leaf, torch
from safeops._lint.linting import lint

pytestmark = pytest.mark.only("torch")

# A line, its point, the line repaired, and the gradient by mathematics.
REPAIRS = {
    "softmax": (
        "torch.nn.functional.softmax(x, dim=-1)[1, 0]",
        [[-programs.INF, -programs.INF], [0.0, 0.0]],
        "safe_softmax(x, axis=-1)[1, 0]",
        [[0.0, 0.0], [0.25, -0.25]],
    ),
    "log_softmax": (
        "x.log_softmax(1)[1, 0]",
        [[-programs.INF, -programs.INF], [0.0, 0.0]],
        "safe_log_softmax(x, axis=1)[1, 0]",
        [[0.0, 0.0], [0.5, -0.5]],
    ),
    "norm": (
        "torch.linalg.vector_norm(x * 1e200, dim=0) / 1e200",
        [3.0, 4.0],
        "safe_norm(x * 1e200, axis=0) / 1e200",
        [0.6, 0.8],
    ),
    "root": ("x.sqrt()[1]", [0.0, 4.0], "safe_sqrt(x)[1]", [0.0, 0.25]),
    "power": ("x.pow(0.5)[1]", [0.0, 4.0], "safe_pow(x, 0.5)[1]", [0.0, 0.25]),
    "log": ("torch.log(x)[1]", [0.0, 4.0], "safe_log(x)[1]", [0.0, 0.25]),
    "division": ("(x[1] / x)[1] + x[1]", [0.0, 4.0], "(safe_div(x[1], x))[1] + x[1]", [0.0, 1.0]),
    "where": (
        "torch.where(x > 0, 2 * x.log(), 0.0).sum()",
        [0.0, 4.0],
        "safe_where(x > 0, x, lambda x: 2 * x.log(), fill_value=0.0).sum()",
        [0.0, 0.5],
    ),
    "parameters": (
        "torch.where(x[0] > 0, x[1] * x[0].log(), x[1]).sum()",
        [[0.0, 1.0], [2.0, 3.0]],
        "safe_where(x[0] > 0, (x[1], x[0]), lambda x, x_: x * x_.log(), fill_value=x[1]).sum()",
        [[0.0, 3.0], [1.0, 0.0]],
    ),
}


REPAIRS |= {
    "a where that takes the entry": (
        "torch.where(x >= 0, x.sqrt(), 0.0)[1]",
        [0.0, 4.0],
        "torch.where(x >= 0, safe_sqrt(x), 0.0)[1]",
        [0.0, 0.25],
    ),
    "the outer one of two": (
        "torch.where(x > 0, torch.where(x >= 0, x.sqrt(), x), 0.0).sum()",
        [0.0, 4.0],
        "safe_where(x > 0, x, lambda x: torch.where(x >= 0, x.sqrt(), x), fill_value=0.0).sum()",
        [0.0, 0.25],
    ),
}


# What drops the quotient of a row and its length, by its value or not.
DROPPED = {
    "where": "torch.where(size > 0, unit, 0.0)",
    "isfinite": "torch.where(torch.isfinite(unit), unit, 0.5)",
    "isnan": "torch.where(torch.isnan(unit), 0.0, unit)",
    "nan_to_num": "torch.nan_to_num(unit)",
    "nan_to_num of a multiple": "torch.nan_to_num(2 * unit)",
    "nan_to_num of a sum": "torch.nan_to_num(unit + 1)",
}


@pytest.mark.parametrize("name", DROPPED)
def test_lint_and_explain_agree(masked, name, tmp_path):
    """The edits of a run are those that are made without one."""
    source = f"""
import torch


def loss(rows):
    size = rows.norm(dim=-1, keepdim=True)
    unit = rows / size
    return {DROPPED[name]}.sum()


loss(torch.ones(2, 3, requires_grad=True)).backward()
"""
    (tmp_path / "program.py").write_text(source)
    f = runpy.run_path(str(tmp_path / "program.py"))["loss"]
    by_lint = lint(source).fixed.splitlines()

    report = masked.explain(f, torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]]))
    for finding in report.findings:
        source = finding.repair.edit.applied(source) if finding.repair.edit else source

    assert [x for x in by_lint if "from safeops" not in x] == source.splitlines()


BY_VALUE = {
    "torch.softmax(x, -1)": "safe_softmax(x, axis=-1)",
    "x[1] ** -0.5": "safe_pow(x[1], -0.5)",
}


@pytest.mark.parametrize("fill", [0.0, 1.0])
@pytest.mark.parametrize("made", BY_VALUE)
def test_what_is_dropped_by_its_value(masked, made, fill, tmp_path):
    """The safe operation takes the place of one whose value is tested, if it fills in the same."""
    file = tmp_path / "program.py"
    last = f"return torch.where(torch.isfinite(y), y, {fill}).sum()"
    file.write_text(f"import torch\n\n\ndef f(x):\n    y = {made}\n    {last}\n")
    f = runpy.run_path(str(file))["f"]

    (finding,) = masked.explain(f, torch.tensor([[-programs.INF] * 2, [0.0, 1.0]])).findings

    edit = finding.repair.edit
    assert (edit and edit.new) == (None if fill else f"    y = {BY_VALUE[made]}")


@pytest.mark.parametrize("name", REPAIRS)
def test_repairs(masked, name, tmp_path):
    """The repair is the line that it should be, and its gradient is right."""
    line, point, wanted, gradient = REPAIRS[name]
    source = f"import torch\n\n\ndef f(x):\n    return {line}\n"
    file = tmp_path / "program.py"
    file.write_text(source)
    names = {}
    exec(compile(source, file, "exec"), names)

    edit = masked.explain(names["f"], leaf(point)).findings[0].repair.edit
    mended = f"from safeops import *\n{edit.applied(source)}"
    exec(mended, names)
    x = leaf(point)

    assert edit.new == f"    return {wanted}"
    assert_close(torch.autograd.grad(names["f"](x), x)[0].numpy(), gradient, rtol=1e-12)


def test_a_part_of_a_module_is_no_operand(masked, tmp_path):
    """The edit takes no ``special = torch.special`` for an array."""
    file = tmp_path / "program.py"
    call = "torch.where(x > 0, x.log() + special.expm1(x), 0.0)"
    file.write_text(f"import torch\nspecial = torch.special\ndef f(x):\n    return {call}.sum()\n")
    names = {}
    exec(compile(file.read_text(), str(file), "exec"), names)

    (finding,) = masked.explain(names["f"], leaf([0.0, 4.0])).findings[:1]

    assert "safe_where(x > 0, x, lambda x: x.log() + special.expm1(x)" in finding.repair.edit.new


def test_an_edit_of_another_source_is_refused(masked):
    """An edit that does not fit raises, and says where it belongs."""
    report = masked.explain(programs.root_of_positive, leaf([0.0]))

    with pytest.raises(ValueError, match=r"reported_torch\.py"):
        report.findings[0].repair.edit.applied("x = 1\n")


# How a report reads.


def test_the_text_of_a_report(masked, tmp_path, monkeypatch):
    """The text has the kind, the lines with their source, the repair and what was checked."""
    source = (
        "import torch\n\n\n"
        "def model(x):\n"
        "    root = torch.sqrt(x)\n"
        "    return torch.where(x > 0, root, 0.0).sum()\n"
    )
    (tmp_path / "model.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    import model

    text = str(masked.explain(model.model, torch.tensor([0.0, 4.0])))

    assert text.splitlines() == [
        "BLOCKED  the derivative of sqrt is inf at 1 of 2 entries, which is never used",
        "  computed at model.py:5",
        "    | root = torch.sqrt(x)",
        "  dropped by where at model.py:6",
        "    | return torch.where(x > 0, root, 0.0).sum()",
        "  repair model.py:5",
        "    - root = torch.sqrt(x)",
        "    + root = safe_sqrt(x)",
        "      from safeops import safe_sqrt",
        "  or: safeops.autodiff.torch.backward(loss) in place of loss.backward()",
        "",
        "checked the gradient at 2 entries, through 4 operations",
        "note: with the edits the gradient is that of masked autodiff",
    ]


def test_a_report_in_a_notebook(masked):
    """As Markdown a report has the kind in bold and the rest as code."""
    text = masked.explain(programs.root_of_positive, leaf([0.0]))._repr_markdown_()

    assert text.startswith("**BLOCKED** the derivative of sqrt")
    assert text.count("```") == 2
    assert masked.explain(torch.sum, leaf([0.0]))._repr_markdown_().startswith("clean")


def test_a_report_in_a_terminal(masked):
    """Rich shows the same text, with colours."""
    console = pytest.importorskip("rich.console", reason="rich is an extra").Console
    report = masked.explain(programs.root_of_positive, leaf([0.0]))
    terminal = console(force_terminal=True, color_system="standard", soft_wrap=True)
    with terminal.capture() as coloured:
        terminal.print(report)

    assert "\x1b[1;33mBLOCKED" in coloured.get()
    assert report.__rich__().plain == str(report)


def test_a_slope_that_overflows_has_no_edit(masked):
    """A safe quotient has the same slope beside 0, so that none is offered there."""
    x = leaf([1e-200, 4.0])

    (finding,) = masked.explain(lambda x: (1 / x)[1:].sum(), x).findings

    assert finding.repair.edit is None
    assert "safeops.autodiff.torch.backward" in finding.repair.text


def test_edits_of_a_loss_have_not_run(masked, tmp_path):
    """A loss that is there does not run again: the report says that its edits have not run."""
    file = tmp_path / "program.py"
    file.write_text("import torch\ndef f(x):\n    return torch.where(x > 0, x.sqrt(), 0.0).sum()\n")
    names = {}
    exec(compile(file.read_text(), str(file), "exec"), names)

    with masked.record_lines():
        loss = names["f"](leaf([0.0, 4.0]))
    of_loss = masked.explain_backward(loss)
    of_function = masked.explain(names["f"], leaf([0.0, 4.0]))

    assert of_loss.findings[0].repair.edit == of_function.findings[0].repair.edit is not None
    assert of_loss.notes == ("the edits have not been run: apply them, and explain again",)
    assert of_function.notes == ("with the edits the gradient is that of masked autodiff",)
