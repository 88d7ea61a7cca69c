"""What `explain` says of programs of PyTorch: reported ones, and what autograd does."""

import inspect
import sys
from pathlib import Path

import pytest

import reported_torch as programs
import safeops
from assertions import assert_close, assert_examples_run
from frameworks import torch_from
from reported_torch import NAN, leaf, torch

pytestmark = pytest.mark.only("torch")
pytest.importorskip("torch", reason="PyTorch is not selected, and this file is about it alone")

from safeops._backends.torch import private  # noqa: E402

HOUSE = Path(safeops.__file__).parent
# How a line spells an operation that it does not name.
SPELLED = {
    "assignment": "= 0.0 index_put",
    "attention": "attend scaled_dot_product_attention layer(",
    "convolution": "conv Conv",
    "cosine_similarity": "cosine_similarity",
    "diagonal": "diagonal",
    "div": "/ cosine_similarity",
    "gather": "take_along_dim gather",
    "group_norm": "module(",
    "index": "[ unbind",
    "layer_norm": "module( layer(",
    "batch_norm": "layer(",
    "log_softmax": "cross_entropy log_softmax",
    "masked_fill": "masked_fill ] =",  # what PyTorch 2.15 makes of y[mask] = 0
    "matmul": "@ ( layers[ layer( einsum",
    "max": "amax max",
    "mul": "* einsum mse_loss module( layer( m( cosine_similarity",
    "nll_loss": "cross_entropy",
    "norm": "norm cosine_similarity",
    "pad": "pad",
    "pow": "** module(",
    "reciprocal": "/",
    "rsqrt": "module(",
    "sigmoid": "layer( GRU",
    "slice": "[ split chunk",
    "softmax": "softmax layer(",
    "tanh": "tanh layer( GRU getattr",
}
SPELLED |= dict.fromkeys(("elu", "gelu", "silu", "softplus"), "getattr")


def lines_of(program):
    """Return the numbers of the lines of a program, and of the functions that it closes over."""
    inner = [c.cell_contents for c in program.__closure__ or () if callable(c.cell_contents)]
    lines = set().union(*map(lines_of, inner)) if inner else set()
    source, start = inspect.getsourcelines(program)
    return lines | set(range(start, start + len(source)))


def spells(where, operation, program):
    """Whether a line is one of the program, and has the operation in it."""
    words = SPELLED.get(operation, operation).split()
    return where.line in lines_of(program) and any(word in where.source for word in words)


def rights(reports, kinds):
    """Return how many reports have the right kinds only, and how many of those right lines only."""
    right = [(r, p) for r, p in reports if r.findings and {f.kind for f in r.findings} <= kinds]
    in_line = [
        all(
            (f.where is None and f.operation == "input")
            or (
                spells(f.where, f.operation, p)
                and (f.kind != "BLOCKED" or spells(f.selected_at, f.selection, p))
            )
            for f in report.findings
        )
        for report, p in right
    ]
    return len(right), sum(in_line)


def test_reported_programs(masked):
    """All reported programs are BLOCKED, on the right line, dropped by the right operation."""
    reports = [
        (masked.explain(program, leaf(point)), program)
        for program, point, _ in programs.REPORTED.values()
    ]

    assert len(reports) >= 49  # as many as PyTorch 2.14 has
    assert rights(reports, {"BLOCKED"}) == (len(reports), len(reports))


def test_repairs_of_reported_programs(masked):
    """All programs with edits, four of five, have the right ordinary gradient after them."""
    source = Path(programs.__file__).read_text()
    right = 0
    for name, (program, point, wanted) in programs.REPORTED.items():
        repairs = [f.repair for f in masked.explain(program, leaf(point)).findings]
        if all(repair.edit for repair in repairs):
            mended, names, x = source, {"__name__": name}, leaf(point)
            for repair in {r.edit: r for r in repairs}.values():
                mended = repair.edit.applied(mended)
                exec(repair.imports, names)
            exec(compile(mended, "mended.py", "exec"), names)
            (gradient,) = torch.autograd.grad(names["REPORTED"][name][0](x), x)
            assert_close(gradient.numpy(), wanted, rtol=1e-12, message=name)
            right += 1

    assert right >= 41


def test_undefined_derivatives(masked):
    """All undefined derivatives are GENUINE, or their value is NaN already."""
    torch.manual_seed(0)  # of the dropout
    reports = [
        (masked.explain(program, leaf(point)), program)
        for program, point in programs.UNDEFINED.values()
    ]

    assert len(reports) >= 18
    assert rights(reports, {"GENUINE", "FORWARD"}) == (len(reports), len(reports))
    assert all(len({f.kind for f in report.findings}) == 1 for report, _ in reports)


def explained_rows(masked, name, rows):
    """Return the report on a program that reads some of its rows."""
    program = programs.LATE[name]
    with masked.record_lines():
        output, _ = program(leaf(rows))
    return masked.explain_backward(output), program


def test_rows_that_nothing_reads(masked):
    """All programs that do not read their bad rows are BLOCKED, on lines of the program."""
    reports = [explained_rows(masked, name, programs.DIRTY) for name in programs.LATE]

    assert len(reports) >= 50
    assert rights(reports, {"BLOCKED"}) == (len(reports), len(reports))


@pytest.mark.parametrize("rows", [3, 40])
def test_a_selection_in_each_step_of_a_loop(masked, rows):
    """The selections are named, however many, and not what hands out the rows."""

    def loss(x):
        every = torch.log(x).unbind()
        return sum(torch.where(y.isfinite(), y, 0.0).sum() for y in every)  # dropped

    (finding,) = masked.explain(loss, leaf([[1.0, 1.0]] + [[0.0, 1.0]] * rows)).findings

    assert (finding.operation, finding.entries, finding.selection) == ("log", rows, "where")


def test_clean_rows_have_clean_reports(masked):
    """At a clean point of those programs nothing is found."""
    reports = [explained_rows(masked, name, programs.CLEAN)[0] for name in programs.LATE]

    assert all(report.ok for report in reports)


def test_the_count_can_fail():
    """A wrong kind and a wrong line are not counted."""
    from safeops._source.locations import location
    from safeops.autodiff import Finding, Report

    program = programs.root_of_positive
    line = inspect.getsourcelines(program)[1] + 2
    where = location(programs.__file__, line)
    finding = Finding("BLOCKED", "sqrt", where, selection="where", selected_at=where)
    wrong = Finding("BLOCKED", "log", where, selection="where", selected_at=where)
    reports = [(Report((f,), "torch", ""), program) for f in (finding, wrong)]

    assert rights(reports, {"BLOCKED"}) == (2, 1)
    assert rights(reports, {"GENUINE"}) == (0, 0)


def kinds_expected(program, x, masked):
    """Return the kinds that the gradients of a program ask for, and its report."""
    with masked.record_lines():
        output = programs.tape.run(program, programs.Torch(), x)
    options = {"materialize_grads": True, "retain_graph": True}
    ordinary, ours = (
        int((~grad(output, x, **options)[0].isfinite()).sum())
        for grad in (torch.autograd.grad, masked.grad)
    )
    of_value = {"FORWARD"} if not output.isfinite() else {"GENUINE"} if ours else set()
    return of_value | ({"BLOCKED"} if ordinary > ours else set()), masked.explain_backward(output)


@pytest.mark.parametrize("part", range(4))
def test_random_programs(masked, part):
    """A report has the kinds that ordinary and masked gradient ask for, and a line for each."""
    found = []
    for _, program, point in programs.programs(50 * part, 50 * part + 50):
        x = leaf(point)
        if programs.tape.run(program, programs.Torch(), x).requires_grad:
            wanted, report = kinds_expected(program, x, masked)
            kinds = {finding.kind for finding in report.findings}
            found.append(kinds)

            assert wanted <= kinds
            assert wanted or report.ok
            assert wanted != {"BLOCKED"} or kinds == wanted
            assert all(f.where or f.operation == "input" for f in report.findings)
            assert all(f.selected_at for f in report.findings if f.kind == "BLOCKED")
    assert {"BLOCKED"} in found
    assert set() in found


# Nothing changes.


@pytest.mark.parametrize("name", programs.REPORTED)
def test_explaining_changes_no_gradient(masked, name):
    """After an explanation .grad is what it was, and the backward pass is bitwise the same."""
    program, point, _ = programs.REPORTED[name]
    x, other = leaf(point), leaf(point)
    program(other).backward()
    with masked.record_lines():
        loss = program(x)

    masked.explain_backward(loss)

    assert x.grad is None
    loss.backward()
    assert x.grad.view(torch.int64).tolist() == other.grad.view(torch.int64).tolist()


def test_explaining_touches_no_gradient_that_is_there(masked):
    """The .grad of a leaf, of a parameter too, stays the same tensor with the same entries."""
    x, weight = leaf([0.0, 4.0]), leaf([2.0])
    x.grad, weight.grad = torch.ones(2).double(), torch.ones(1).double()
    there = x.grad, weight.grad

    report = masked.explain(lambda x: torch.where(x > 0, weight * x.sqrt(), 0.0).sum(), x)

    assert not report.ok
    assert (x.grad, weight.grad) == there
    assert [g.tolist() for g in there] == [[1.0, 1.0], [1.0]]


def test_hooks_are_taken_off(masked):
    """A backward pass after an explanation runs no code of this package."""
    x = leaf([0.0, 4.0])
    with masked.record_lines():
        loss = torch.where(x > 0, x.sqrt(), 0.0).sum()
    masked.explain_backward(loss)
    files = set()

    sys.setprofile(lambda frame, *_: files.add(frame.f_code.co_filename))
    loss.backward()
    sys.setprofile(None)

    door = "" if torch_from(2, 11) else private.__file__  # that of the engine, for modes
    assert not [file for file in files if str(HOUSE) in file and file != door]
    assert any("torch" in file for file in files)


# What the report cannot see, it says.


def test_lines_that_nobody_recorded(masked):
    """Without `record_lines` kind and operation are known, and a note says what to do."""
    x = leaf([0.0, 4.0])

    report = masked.explain_backward(torch.where(x > 0, x.sqrt(), 0.0).sum())

    (finding,) = report.findings
    assert (finding.kind, finding.operation, finding.selection) == ("BLOCKED", "sqrt", "where")
    assert finding.where is finding.selected_at is None
    assert "an unknown line" in str(report)
    assert "record_lines()" in report.notes[0]


def test_a_value_that_is_nan_without_lines(masked):
    """Without `record_lines` a NaN in the value is found, and no operation is blamed for it."""
    x = leaf([-1.0, 4.0])

    report = masked.explain_backward(x.log().sum())

    assert (report.findings[0].kind, report.findings[0].operation) == ("FORWARD", "")
    assert "the value is nan" in str(report)


def test_a_part_of_the_program_is_recorded(masked):
    """What ran before `record_lines` has no line, and is not given that of another."""
    x = leaf([0.0, 4.0])
    root = x.sqrt()
    with masked.record_lines():
        loss = torch.where(x > 0, root, 0.0).sum()

    (finding,) = masked.explain_backward(loss).findings

    assert finding.where is None
    assert "torch.where(x > 0, root, 0.0)" in finding.selected_at.source


def test_an_operation_without_a_rule(masked):
    """What is below an operation without a rule is neither BLOCKED nor GENUINE."""
    report = masked.explain(programs.unknown_program, leaf([0.0, 4.0]))

    (finding,) = report.findings
    assert (finding.kind, finding.operation) == ("UNKNOWN", "generated")
    assert "made_twice()(x.sqrt())" in finding.where.source
    assert "has no rule" in str(report)


def test_an_operation_without_a_rule_that_does_no_harm(masked):
    """It is not mentioned if what is not finite lies elsewhere."""
    x = leaf([0.0, 4.0])

    def f(x):
        return programs.unknown_program(x + 1) + torch.where(x > 0, x.log(), 0.0).sum()

    assert [(f.kind, f.operation) for f in masked.explain(f, x).findings] == [("BLOCKED", "log")]


def test_a_custom_function_has_the_line_of_its_call(masked):
    """Its operation is its name, and the selection has its line."""

    class Root(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sqrt()

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * 0.5 / x.sqrt()

    report = masked.explain(lambda x: torch.where(x > 0, Root.apply(x), 0.0).sum(), leaf([0.0]))

    (finding,) = report.findings
    assert (finding.kind, finding.operation) == ("BLOCKED", "root")
    assert "Root.apply" in finding.where.source
    assert "Root.apply" in finding.selected_at.source


def test_checkpoints(masked):
    """What a checkpoint runs again has its line; a re-entrant one is refused."""
    from torch.utils.checkpoint import checkpoint

    def part(x):
        return torch.where(x > 0, x.sqrt(), 0.0) * 2

    def f(x, *, use_reentrant):
        return checkpoint(part, x * 1.0, use_reentrant=use_reentrant).sum()

    (finding,) = masked.explain(lambda x: f(x, use_reentrant=False), leaf([0.0, 4.0])).findings

    assert finding.where.line == inspect.getsourcelines(part)[1] + 1
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        masked.explain(lambda x: f(x, use_reentrant=True), leaf([0.0, 4.0]))


def test_a_compiled_function_runs_eagerly(masked):
    """The report on the result of torch.compile has the line in the function."""

    @torch.compile(backend="aot_eager")
    def program(x):
        roots = x.sqrt()
        return torch.where(x > 0, roots, 0.0).sum()

    program(leaf([1.0, 4.0])).backward()  # compiled, and for these shapes

    (finding,) = masked.explain(program, leaf([0.0, 4.0])).findings

    assert (finding.kind, finding.operation, finding.selection) == ("BLOCKED", "sqrt", "where")
    assert finding.where.source == "roots = x.sqrt()"


def test_compiled_programs_are_refused(masked):
    """The result of torch.compile raises the error of the other doors."""
    program = torch.compile(lambda x: x.sqrt()[1], backend="aot_eager")
    output = program(leaf([0.0, 4.0]))

    with pytest.raises(RuntimeError, match="force_eager"):
        masked.explain_backward(output)


def test_modules_have_the_line_of_the_user(masked):
    """What a layer of PyTorch runs is found at the line that calls it."""
    layer = torch.nn.Linear(2, 1).double()
    rows = torch.tensor([[1.0, 2.0], [NAN, NAN]], dtype=torch.float64)

    def f(weight):
        out = torch.nn.functional.linear(rows, weight)  # made
        return out[:1].sum()  # dropped

    (finding,) = masked.explain(f, layer.weight).findings

    assert (finding.kind, finding.operation, finding.what) == ("BLOCKED", "matmul", "nan")
    assert finding.where.source.endswith("# made")
    assert finding.selected_at.source.endswith("# dropped")
    assert finding.nan_operand
    assert finding.repair.text.startswith("leave the NaN out before this line, or")


def test_constants_are_traced_to_their_line(masked):
    """A NaN that a constant brings in was first made where the constant was."""

    def f(x):
        weights = torch.log(torch.tensor([-1.0, 1.0], dtype=x.dtype))  # made
        return (x * weights).sum()

    (finding,) = masked.explain(f, leaf([1.0, 1.0])).findings

    assert (finding.kind, finding.operation, finding.entries) == ("FORWARD", "log", 1)
    assert finding.where.source.endswith("# made")


def test_transforms_have_lines(masked):
    """What runs in `torch.func.vmap` has its line, although its tensors have no numbers."""

    def f(x):
        roots = torch.func.vmap(lambda a: a.sqrt())(x)  # made
        return roots[1]

    (finding,) = masked.explain(f, leaf([0.0, 4.0])).findings

    assert (finding.kind, finding.operation, finding.selection) == ("BLOCKED", "sqrt", "index")
    assert finding.where.source.endswith("# made")


def test_second_derivatives_have_lines(masked):
    """What a gradient with `create_graph` has made is found at the line that asks for it."""
    x = leaf([0.0, 4.0])
    with masked.record_lines():
        value = torch.where(x > 0, x**1.5, 0.0).sum()
        (slope,) = torch.autograd.grad(value, x, create_graph=True)  # made
        loss = slope[1] ** 2

    (finding,) = masked.explain_backward(loss).findings

    assert (finding.kind, finding.operation) == ("BLOCKED", "pow")
    assert finding.where.source.endswith("# made")


def test_a_constant_has_a_clean_report(masked):
    """A function that does not use its argument has nothing to explain, unless it is NaN."""
    x = leaf([0.0])

    assert masked.explain(lambda _: torch.ones(()), x).ok
    assert masked.explain(lambda _: torch.tensor(NAN), x).findings[0].kind == "FORWARD"


def test_sparse_gradients_are_looked_at(masked):
    """A NaN in a sparse gradient is found."""
    layer = torch.nn.Embedding(2, 1, sparse=True)
    reports = []

    with masked.watch_backward(reports.append) as passes:
        (layer(torch.tensor([0])) * 0).sqrt().sum().backward()
        layer.weight.grad = None
        layer(torch.tensor([0])).sum().backward()

    assert passes == [True, False]
    assert [(f.kind, f.operation) for f in reports[0].findings] == [("GENUINE", "sqrt")]


def test_tensors_of_other_classes_are_left_alone(masked):
    """A subclass has no numbers that anybody may look at, and its program runs."""

    class Unreadable(torch.Tensor):
        def isfinite(self):
            raise AssertionError

    with masked.record_lines():
        x = torch.ones(2).as_subclass(Unreadable)
        y = x / 0

    assert isinstance(y, Unreadable)


def test_structures_of_tensors(masked):
    """Arguments may be dicts, and `argnums` picks several."""

    def f(weights, x):
        return (weights["a"] * torch.where(x > 0, x.log(), 0.0)).sum()

    arguments = {"a": torch.tensor(2.0)}, torch.tensor([0.0, 1.0])

    assert masked.explain(f, *arguments).ok
    assert not masked.explain(f, *arguments, argnums=(0, 1)).ok


# The door of autograd.


def test_watching_keeps_the_gradients(masked):
    """What runs while it is watched has the same gradients, by each door of autograd."""
    x = leaf([0.0, 4.0])
    reports = []

    with masked.watch_backward(reports.append) as passes:
        x.sum().backward()
        torch.autograd.backward([x.sum()])
        (found,) = torch.autograd.grad((x * x).sum(), x)
        (bad,) = torch.autograd.grad(x.sqrt()[1], [x])
        torch.autograd.grad(x.sqrt(), x, torch.eye(2).double(), is_grads_batched=True)  # as it is

    assert passes == [False, False, False, True]
    assert x.grad.tolist() == [2.0, 2.0]
    assert found.tolist() == [0.0, 8.0]
    assert bad[0].isnan()
    assert [f.kind for report in reports for f in report.findings] == ["BLOCKED"]


def test_a_pass_is_blamed_for_itself(masked):
    """A NaN that an earlier pass has accumulated is not explained again."""
    x = leaf([0.0, 4.0])
    reports = []

    with masked.watch_backward(reports.append) as passes:
        x.sqrt()[1].backward()
        x.sum().backward()

    assert passes == [True, False]
    assert len(reports) == 1


def test_gradients_of_gradients_are_watched(masked):
    """A penalty on a gradient is explained, with the line that made the gradient."""
    x = leaf([0.0, 4.0])
    reports = []

    with masked.watch_backward(reports.append):
        (slope,) = torch.autograd.grad((x**1.5)[1], x, create_graph=True)  # made
        (slope[1] ** 2).backward()

    (finding,) = reports[0].findings
    assert (finding.kind, finding.operation) == ("BLOCKED", "pow")
    assert finding.where.source.endswith("# made")


DOORS = ("explain", "explain_backward", "record_lines", "watch_backward")


@pytest.mark.parametrize("name", DOORS)
def test_docstrings(masked, name):
    """Examples print what they say; gradient and source are stated."""
    doc = inspect.getdoc(getattr(masked, name))

    assert set(DOORS) < set(masked.__all__)
    assert_examples_run(getattr(masked, name), vars(masked))
    assert "**Gradient.**" in doc
    assert "**Source.**" in doc


def test_private_names_are_there():
    """PyTorch has the private names that the recording uses."""
    x = leaf([1.0])

    before = torch.autograd._get_sequence_nr()
    node = x.sqrt().grad_fn

    assert node._sequence_nr() == before
    assert node.next_functions[0][0]._sequence_nr() == 2**64 - 1
    assert x[:1]._base is not None
