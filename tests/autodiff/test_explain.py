"""What `explain` says: the kind, the line, the selection, and the repair, which is run."""

import doctest
import inspect
import linecache
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import explained
import safeops
from assertions import assert_close
from frameworks import asarray, to_numpy
from safeops._backends import load
from safeops._cli import demo
from safeops._source.locations import PROGRAMS_OF_OURS, is_library, location
from safeops._source.names import OPERATIONS
from safeops.autodiff import Finding, explain, grad
from safeops.autodiff._explain.report import make_report

pytestmark = pytest.mark.whole  # facts of each framework

PROGRAMS = pytest.mark.parametrize("case", explained.CASES, ids=lambda case: case.f.__name__)


def report_on(case, framework):
    """Return the report on a program at its point."""
    xp = load(framework).xp
    return explain(lambda x: case.f(xp, x), asarray(framework, case.point))


def lines_marked(f, mark):
    """Return the numbers of the lines of a function that end in a mark."""
    lines, start = inspect.getsourcelines(f)
    marked = [line.partition("#")[2].strip().split(", ") for line in lines]
    return {start + i for i, words in enumerate(marked) if mark in words}


def gradient_of(f, framework, point, *, compiled=False):
    """Return the ordinary gradient of a program, as an array of NumPy; compiled if that matters."""
    backend = load(framework)
    if (
        compiled and framework == "tensorflow"
    ):  # its eager kernel of the root hides NaN, XLA does not
        import tensorflow as tf

        xla = tf.function(backend.grad(lambda x: f(backend.xp, x)), jit_compile=True)
        return to_numpy(xla(asarray(framework, point))[0])
    (gradient,) = backend.grad(lambda x: f(backend.xp, x))(asarray(framework, point))
    return to_numpy(gradient)


def repaired(report, file):
    """Return what a file defines after the edits of a report."""
    source = "".join(linecache.getlines(file))
    names = {}
    for finding in report.findings:
        if (edit := finding.repair.edit) is not None and edit.old in source:
            source = edit.applied(source)
            exec(finding.repair.imports, names)
    exec(compile(source, "repaired.py", "exec"), names)
    return names


def assert_found(report, case):
    """A report has the findings of one kind, on the right line, dropped at the right line."""
    assert {finding.kind for finding in report.findings} == {case.kind}
    assert {finding.operation for finding in report.findings} <= set(case.operations)
    assert sum(finding.entries for finding in report.findings) == case.entries
    for finding in report.findings:
        made = {finding.where.line} if finding.where else set()
        dropped = {finding.selected_at.line} if finding.selected_at else set()
        assert made == lines_marked(case.f, "made")
        assert dropped == lines_marked(case.f, "dropped")


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "GENUINE"}, {"operations": ("log",)}, {"entries": 2}, {"f": explained.loop}],
)
def test_the_comparison_can_fail(autodiff_framework, wrong):
    """Another kind, another operation, another count and other lines are each found."""
    case = explained.CASES[0]
    report = report_on(case, autodiff_framework)

    with pytest.raises(AssertionError):
        assert_found(report, case._replace(**wrong))


@PROGRAMS
def test_kind_and_line(autodiff_framework, case):
    """Each program is found to be what it is, at its line."""
    assert_found(report_on(case, autodiff_framework), case)


@PROGRAMS
def test_the_gradient_is_not_finite(autodiff_framework, case):
    """What is explained is there: the ordinary gradient, or the value, is not finite."""
    xp = load(autodiff_framework).xp
    value = to_numpy(case.f(xp, asarray(autodiff_framework, case.point)))
    gradient = gradient_of(case.f, autodiff_framework, case.point, compiled=True)

    assert not (np.isfinite(value) and np.isfinite(gradient).all())


@pytest.mark.parametrize(
    "case", [c for c in explained.CASES if c.gradient], ids=lambda case: case.f.__name__
)
def test_the_repair_is_right(autodiff_framework, case):
    """The file with the edits of the report has the right ordinary gradient."""
    report = report_on(case, autodiff_framework)

    names = repaired(report, explained.__file__)

    gradient = gradient_of(names[case.f.__name__], autodiff_framework, case.point)
    assert_close(gradient, case.gradient, rtol=1e-12)
    mended = case._replace(f=names[case.f.__name__])
    assert report_on(mended, autodiff_framework).ok


# The demonstration: the line of each function, and the repair.

DEMO = pytest.mark.parametrize("case", demo.CASES, ids=lambda case: case.name)


def report_on_naive(case, framework):
    """Return the report on the naive function of a case of the demonstration."""
    xp = load(framework).xp
    args = [asarray(framework, x, "float32") for x in case.inputs.values()]
    return explain(lambda *args: xp.sum(case.naive(xp, *args)), *args)


@DEMO
def test_the_demonstration_is_explained(autodiff_framework, case):
    """Each naive function is found to drop what it made; the softmax makes a NaN that is used."""
    if autodiff_framework in case.spared:
        assert report_on_naive(case, autodiff_framework).ok
        return
    _, start = inspect.getsourcelines(case.naive)

    first, *others = report_on_naive(case, autodiff_framework).findings

    assert first.kind == ("FORWARD" if case.name == "softmax" else "BLOCKED")
    assert first.where.line == start + 1
    assert {finding.kind for finding in others} <= {"BLOCKED"}
    if first.kind == "BLOCKED":
        assert first.selected_at.line == start + 1
    else:
        assert first.repair.text.startswith("safe_softmax(x, axis=-1) in place of")


@DEMO
def test_the_repair_of_the_demonstration_is_right(autodiff_framework, case):
    """The naive function with the edits has the gradient of mathematics."""
    if autodiff_framework in case.spared or case.name == "softmax":
        pytest.skip("there is no edit")
    xp = load(autodiff_framework).xp
    report = report_on_naive(case, autodiff_framework)

    mended = repaired(report, demo.__file__)[case.naive.__name__]

    assert report.findings[0].repair.edit is not None
    assert report_on_naive(case._replace(naive=mended), autodiff_framework).ok
    first, *others = (asarray(autodiff_framework, x, "float32") for x in case.inputs.values())
    gradient = load(autodiff_framework).grad(lambda x: xp.sum(mended(xp, x, *others)))(first)[0]
    assert_close(to_numpy(gradient), case.gradient, rtol=demo.RTOL, atol=demo.ATOL)


# Repairs as text, for what frameworks call their functions: a line, the operation that the
# framework reports, and the line repaired.
TEXTS = [
    (
        "y = jnp.linalg.norm(x, axis=-1, keepdims=True)",
        "sqrt",
        "y = safe_norm(x, axis=-1, keepdims=True)",
    ),
    ("y = jnp.linalg.norm(x, 3, 1)", "pow", None),
    ("y = tf.norm(x, axis=1)", "sqrt", "y = safe_norm(x, axis=1)"),
    ("y = np.linalg.norm(x, 'fro')", "norm", None),
    ("y = jax.nn.softmax(x, axis=0) * x", "div", "y = safe_softmax(x, axis=0) * x"),
    ("y = jax.nn.softmax(x, where=keep)", "div", None),
    ("y = tf.nn.softmax(x)", "softmax", "y = safe_softmax(x)"),
    ("y = x.log_softmax(-1)", "log_softmax", "y = safe_log_softmax(x, axis=-1)"),
    ("y = tf.math.log(x) + 1", "log", "y = safe_log(x) + 1"),
    ("y = tf.math.divide(a, b)", "div", "y = safe_div(a, b)"),
    ("y = 1 / (1 + x)", "reciprocal", "y = safe_div(1, 1 + x)"),
    ("y = x ** -1.5", "pow", "y = safe_pow(x, -1.5)"),
    ("y = jnp.arccos(x)", "acos", "y = safe_acos(x)"),
    ("y = jnp.arctan2(a, b)", "atan2", "y = safe_atan2(a, b)"),
    ("y = x.exp().log()", "log", "y = safe_log(x.exp())"),
    ("y = 'é' if x else a / b", "div", "y = 'é' if x else safe_div(a, b)"),
    ("y = torch.log(x, out=z)", "log", None),
    ("y = torch.sqrt(*x)", "sqrt", None),
    ("y = f(x)", "sqrt", None),
    (
        "y = jnp.where(x > 0, jnp.sqrt(x), z)",
        "sqrt",
        "y = safe_where(x > 0, x, jnp.sqrt, fill_value=z)",
    ),
    (
        "y = jnp.where(self.on, self.c * jnp.log(x['a']), 0)",
        "log",
        "y = safe_where(self.on, (self.c, x['a']), lambda c, a: c * jnp.log(a), fill_value=0)",
    ),
    (
        "y = jnp.where(c, x / jnp.sum(x), 0.0)",
        "div",
        "y = jnp.where(c, safe_div(x, jnp.sum(x)), 0.0)",
    ),
    ("y = jnp.where(x.sqrt() > 1, x, 0.0)", "sqrt", "y = jnp.where(safe_sqrt(x) > 1, x, 0.0)"),
    ("y = jnp.where(jnp.log(x))", "log", "y = jnp.where(safe_log(x))"),
]


@pytest.mark.parametrize(("line", "operation", "wanted"), TEXTS)
def test_the_text_of_a_repair(line, operation, wanted, tmp_path):
    """The repair of a line is the one that is wanted, and None where it would not be right."""
    file = tmp_path / "program.py"
    file.write_text(f"import math\n{line}\n")
    finding = Finding("BLOCKED", operation, location(str(file), 2))

    (repaired_finding,) = make_report("jax", [finding], "").findings

    edit = repaired_finding.repair.edit
    assert (edit and edit.new) == wanted
    assert "safeops.autodiff.jax.grad(f)" in repaired_finding.repair.text


# Programs in which an edit might change what is selected: the lines between the operation and the
# end, what the selection is, and the edit of ``y = xp.log(x)``, if one is right.
SELECTED = [
    ("z = xp.where(x > 0, y, 0.0)", "where", "y = safe_log(x)"),
    ("z = y[1:]", "slice", "y = safe_log(x)"),
    ("z = xp.where(xp.isinf(y), 0.0, y)", "where", 'y = safe_log(x, fill_value=float("-inf"))'),
    ("z = y[y > -3]", "index", 'y = safe_log(x, fill_value=float("-inf"))'),
    ("z = y[where]", "index", 'y = safe_log(x, fill_value=float("-inf"))'),
    ("z = xp.max(y)", "max", 'y = safe_log(x, fill_value=float("-inf"))'),
]


@pytest.mark.parametrize(("line", "selection", "wanted"), SELECTED)
def test_an_edit_selects_as_before(line, selection, wanted, tmp_path):
    """Where a selection looks at the value, the edit keeps that value."""
    file = tmp_path / "program.py"
    file.write_text(
        f"def f(x):\n    y = xp.log(x)\n    where = y + 1 > 0\n    {line}\n    return z\n"
    )
    at = location(str(file), 2), location(str(file), 4)
    finding = Finding("BLOCKED", "log", at[0], 1, (), "inf", selection, at[1], value="-inf")

    (found,) = make_report("jax", [finding], "").findings

    assert found.repair.edit.new.strip() == wanted


def test_an_edit_that_might_select_otherwise(tmp_path):
    """Where no edit keeps the value there is none; where nobody knows, the report says so."""
    file = tmp_path / "program.py"
    file.write_text("def f(x):\n    return xp.log(x)\n\n\ndef g(x):\n    return f(x)[1:]\n")
    first, last = location(str(file), 2), location(str(file), 6)
    finding = Finding("BLOCKED", "log", first, 1, (), "nan", "slice", last, value="nan")

    (unsure,), (of_max,) = (
        make_report("jax", [f], "").findings for f in (finding, replace(finding, selection="max"))
    )

    assert unsure.repair.edit.new == "    return safe_log(x)"
    assert "does not look at this value" in unsure.repair.text
    assert of_max.repair.edit is None


def test_a_softmax_of_several_operations_has_an_edit(tmp_path):
    """Where a framework sees a softmax as parts, which meet NaN, the edit says what it is for."""
    file = tmp_path / "program.py"
    file.write_text("y = jax.nn.softmax(x)[0]\n")
    at = location(str(file), 1)
    finding = Finding("BLOCKED", "div", at, selection="index", selected_at=at, nan_operand=True)

    (in_jax,), (in_torch,) = (
        make_report(name, [finding], "").findings for name in ("jax", "torch")
    )

    assert in_jax.repair.edit.new == "y = safe_softmax(x)[0]"
    assert "without NaN in the input" in in_jax.repair.text
    assert in_torch.repair.edit is None


def test_findings_are_merged_by_line(tmp_path):
    """One line that runs several times is one finding, with the sum of the entries."""
    file = tmp_path / "program.py"
    file.write_text("y = jnp.sqrt(x)\nz = jnp.sqrt(y)\n")
    lines = [location(str(file), line) for line in (2, 1, 2)]

    report = make_report("jax", [Finding("BLOCKED", "sqrt", x, 2, (3,)) for x in lines], "")

    assert [(f.where.line, f.entries, f.times) for f in report.findings] == [(1, 2, 1), (2, 4, 2)]
    assert "at 4 entries in 2 passes, which are never used" in str(report)


def test_kinds_have_their_order():
    """What is wrong for certain comes first."""
    kinds = ["UNKNOWN", "BLOCKED", "GENUINE", "FORWARD"]

    report = make_report("jax", [Finding(kind, "sqrt") for kind in kinds], "")

    assert [f.kind for f in report.findings] == kinds[::-1]


# The report.


@pytest.mark.parametrize("f", explained.CLEAN)
def test_a_clean_program_has_a_clean_report(autodiff_framework, f):
    """Nothing is found where nothing harms, and the report says what was checked."""
    case = explained.Case(f, [0.0, 4.0], "", ())

    report = report_on(case, autodiff_framework)

    report.assert_clean()
    assert report.ok
    assert str(report).startswith("clean: value and gradient are finite; checked the gradient at 2")


def test_infinities_on_the_way(autodiff_framework):
    """They are findings if asked for, with their line, though value and gradient are finite."""
    xp = load(autodiff_framework).xp

    def f(x):
        size = xp.exp(1000 * x)  # overflows
        return xp.sum(xp.where(size > 2, x, 2 * x))

    def finite(x):
        return xp.sum(x * x)

    x = asarray(autodiff_framework, [0.0, 4.0])
    report = explain(f, x, interim=True)
    (found,) = report.findings

    assert explain(f, x).ok
    assert explain(finite, x, interim=True).ok
    assert (found.kind, found.operation, found.entries) == ("INTERIM", "exp", 1)
    assert found.where.line in lines_marked(f, "overflows")
    assert str(report).startswith("INTERIM  the value of exp is inf at 1 of 2 entries on the way")


def test_a_value_that_is_reported_is_not_on_the_way(autodiff_framework):
    """What makes the value itself infinite is one finding, FORWARD."""
    xp = load(autodiff_framework).xp

    found = explain(lambda x: xp.sum(xp.log(x)), asarray(autodiff_framework, [0.0]), interim=True)

    assert [finding.kind for finding in found.findings] == ["FORWARD"]


def test_a_report_fails_a_test(autodiff_framework):
    """`assert_clean` raises with the text of the report."""
    report = report_on(explained.CASES[0], autodiff_framework)

    with pytest.raises(AssertionError, match="BLOCKED  the derivative of sqrt is inf"):
        report.assert_clean()


@pytest.mark.only("jax")
def test_docstring():
    """The example of the neutral `explain` prints what it says."""
    doc = inspect.getdoc(explain)
    example = doctest.DocTestParser().get_doctest(doc, {"explain": explain}, "explain", "", 0)

    assert doctest.DocTestRunner().run(example) == (0, 3)  # failed, attempted


def test_numpy_has_no_gradient_to_explain():
    """For arrays of NumPy a TypeError says what has one."""
    with pytest.raises(TypeError, match="arrays of jax, torch or tensorflow, got numpy"):
        explain(np.sum, np.ones(2))


@dataclass
class Box:
    """A structure of the user."""

    x: object


@pytest.mark.parametrize("wrap", [lambda x: {"weights": [x]}, lambda x: (1.0, x), Box])
def test_arrays_in_structures(autodiff_framework, wrap):
    """A dict, a list, a tuple or a dataclass of arrays belongs to the framework of its arrays."""
    x = asarray(autodiff_framework, [0.0, 4.0])

    def f(x, _, power):
        return load(autodiff_framework).xp.sum(x**power * 0.5)

    report = explain(f, x, wrap(x), 0.5)

    assert [finding.kind for finding in report.findings] == ["GENUINE"]


@pytest.mark.parametrize("neutral", [explain, lambda f, *args: grad(f)(*args)])
def test_a_dict_of_parameters(autodiff_framework, neutral):
    """What is differentiated may be a dict."""
    parameters = {"a": asarray(autodiff_framework, [1.0, 4.0])}

    def f(p):
        return load(autodiff_framework).xp.sum(p["a"] ** 2)

    found = neutral(f, parameters)

    assert found.ok if neutral is explain else to_numpy(found["a"]).tolist() == [2.0, 8.0]


@pytest.mark.parametrize("args", [(0.5,), ({},), (None, "x"), ()])
def test_arguments_without_an_array(args):
    """Without an array nobody knows the framework, and a TypeError says what to do."""
    for neutral in (explain, lambda f, *args: grad(f)(*args)):
        with pytest.raises(TypeError, match="an array of jax, torch or tensorflow in the arg"):
            neutral(lambda *_: 0.0, *args)


def test_a_cell_of_a_notebook_has_no_name():
    """The line of a notebook is that of a cell, whose file has a number for a name."""
    assert str(location("/run/ipykernel_12/345.py", 6)) == "cell:6"
    assert str(location("/models/net.py", 6)) == "net.py:6"


def test_the_house_is_no_user():
    """Files of this package are skipped in a search for the user's line, tests are not."""
    assert is_library(safeops._ops.where.__file__)
    assert is_library(np.__file__)
    assert is_library(inspect.__file__)
    assert not is_library(__file__)


def test_an_operation_has_one_row():
    """No name stands in two rows, and each row that promises a safe function has it."""
    names = [name for row in OPERATIONS for name in row.names]

    assert len(names) == len(set(names))
    assert [row.safe for row in OPERATIONS if row.safe and not hasattr(safeops, row.safe)] == []


def test_files_of_ours_that_are_named_are_there():
    """A file that is told from a library by its name has that name."""
    house = Path(safeops.__file__).parent

    assert PROGRAMS_OF_OURS
    assert [name for name in PROGRAMS_OF_OURS if not (house / name).is_file()] == []
