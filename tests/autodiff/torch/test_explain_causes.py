"""One cause is one finding: where a NaN came in, how far it went, and what dropped it."""

import pytest

import reported_torch as programs
from reported_torch import NAN, functional, leaf, root_of_its_own, torch

pytestmark = pytest.mark.only("torch")


def images():
    """Return four images, one of which is NaN."""
    torch.manual_seed(0)
    x = torch.randn(4, 1, 8, 8)
    x[2] = NAN  # came in
    return x


def behind_a_convolution(x, weight):
    """Convolve twice, with a relu between, which keeps NaN and drops half of the rest."""
    h = functional.relu(functional.conv2d(x, weight))  # met
    y = functional.conv2d(h, torch.ones(2, 3, 3, 3))
    return y.sum((1, 2, 3))


def behind_a_pooling(x, weight):
    """Pool the largest of four."""
    h = functional.conv2d(x, weight)  # met
    return functional.max_pool2d(h, 2).sum((1, 2, 3))


def behind_a_network(x, weight):
    """Have what a residual network has."""
    h = functional.conv2d(x, weight, padding=1)  # met
    h = functional.batch_norm(h, torch.zeros(3), torch.ones(3), torch.ones(3), torch.zeros(3))
    h = functional.max_pool2d(functional.relu(h), 2)
    h = h + functional.relu(functional.conv2d(h, weight.expand(3, 3, 3, 3), padding=1, stride=1))
    h = functional.conv_transpose2d(h, torch.ones(3, 2, 2, 2), stride=2)
    h = functional.group_norm(functional.gelu(h), 1)
    rows = functional.adaptive_avg_pool2d(h, 2).flatten(1)
    return (rows @ torch.ones(8, 5)).square().sum(1)


def behind_attention(x, weight):
    """Attend within each image."""
    rows = (x.flatten(2) @ weight.view(3, 9).expand(3, 9).mT.repeat(8, 1)[:64]).mT  # met
    weights = torch.softmax(rows @ rows.mT, -1)
    out = functional.layer_norm(weights @ rows, rows.shape[-1:])
    return functional.gelu(out).square().sum((1, 2))


MODELS = (behind_a_convolution, behind_a_pooling, behind_a_network, behind_attention)


@pytest.mark.parametrize("model", MODELS, ids=lambda f: f.__name__)
def test_a_nan_that_is_dropped_is_one_finding(masked, model):
    """It has the line where the NaN came in, the first that met it, and the one that dropped it."""

    def loss(weight):
        rows = model(images(), weight)
        return torch.where(rows.isfinite(), rows, 0.0).sum()  # dropped

    (finding,) = masked.explain(loss, torch.rand(3, 1, 3, 3)).findings

    assert (finding.kind, finding.selection, finding.what) == ("BLOCKED", "where", "nan")
    assert finding.where.source.endswith("# met")
    assert finding.entered_at.source.endswith("# came in")
    assert finding.selected_at.source.endswith("# dropped")
    assert finding.passed or model in MODELS[:2]


def test_the_report_is_short(masked):
    """The report on a NaN image has ten lines, and its repair is where the NaN came in."""

    def loss(weight):
        rows = behind_a_network(images(), weight)
        return torch.where(rows.isfinite(), rows, 0.0).sum()

    report = masked.explain(loss, torch.rand(3, 1, 3, 3))

    assert len(str(report).splitlines()) <= 12
    assert "  the NaN came in at test_explain_causes.py:" in str(report)
    assert "  the NaN went on, through " in str(report)
    assert "leave the NaN out at test_explain_causes.py:" in str(report)


def test_an_index_in_a_network(masked):
    """What reads three of four images is the index, and not the pooling before it."""

    def loss(weight):
        return behind_a_pooling(images(), weight)[[0, 1, 3]].sum()  # dropped

    (finding,) = masked.explain(loss, torch.rand(3, 1, 3, 3)).findings

    assert finding.selection == "index"
    assert finding.selected_at.source.endswith("# dropped")


def test_two_causes_are_two_findings(masked):
    """A slope that is infinite by itself is found beside a NaN that was given."""
    rows = torch.tensor([[1.0, 2.0], [NAN, NAN]], dtype=torch.float64)

    def loss(x):
        roots = (rows * x).sum(1).sqrt() + x.sqrt()
        return torch.where(torch.tensor([True, False]), roots, 0.0)[0]

    found = masked.explain(loss, leaf([4.0, 0.0])).findings

    assert sorted((f.operation, f.what) for f in found) == [("mul", "nan"), ("sqrt", "inf")]


def test_one_operation_with_two_causes(masked):
    """Of entries that are NaN and of entries with an infinite slope the second stay a finding."""

    def loss(x):
        return (x * torch.tensor([NAN, 1.0, 1.0], dtype=x.dtype)).sqrt()[2]

    found = masked.explain(loss, leaf([1.0, 0.0, 4.0])).findings

    assert ("sqrt", "inf") in [(f.operation, f.what) for f in found]


def test_what_is_used_is_not_called_unused(masked):
    """Where an ordinary gradient has NaN for two reasons, the used entry is not BLOCKED."""
    ((_, program, point),) = programs.programs(140, 141)

    with masked.record_lines():
        output = programs.tape.run(program, programs.Torch(), leaf(point))
    report = masked.explain_backward(output)

    assert [f.operation for f in report.findings if f.kind == "BLOCKED"] == ["matmul"]


ATTENTION = """
import torch


def loss(weights, rows, keep):
    scores = (rows @ weights @ rows.mT).masked_fill(~keep[:, None], float("-inf"))
    shares = torch.softmax(scores, -1)
    out = shares @ (rows @ weights)
    return torch.where(keep, out.square().sum(-1), 0.0).sum()
"""

MEAN = """
import torch


def loss(weights, rows, keep):
    number = keep.sum(-1, keepdim=True)
    mean = torch.where(keep[..., None], rows, 0.0).sum(1) / number
    out = (mean @ weights).square().sum(-1)
    return torch.where(number[:, 0] > 0, out, 0.0).sum()
"""


@pytest.mark.parametrize(("source", "made"), [(ATTENTION, "softmax"), (MEAN, "div")])
def test_the_repair_is_where_the_nan_came_in(masked, tmp_path, source, made):
    """An edit of that line makes the ordinary gradient that of the rows that are not empty."""
    torch.manual_seed(0)
    file = tmp_path / "program.py"
    file.write_text(source)
    rows = torch.randn(3, 4, 2, dtype=torch.float64)
    keep = torch.ones(3, 4, dtype=torch.bool)
    keep[1] = False  # an empty row
    weights = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)

    def names_of(text):
        names = {}
        exec(compile(text, str(file), "exec"), names)
        return names

    def gradient(loss, some=slice(None)):
        return torch.autograd.grad(loss(weights, rows[some], keep[some]), weights)[0]

    loss = names_of(source)["loss"]
    report = masked.explain(lambda w: loss(w, rows, keep), weights)
    found = next(f for f in report.findings if f.entered_at is not None)
    repair = found.repair
    mended = names_of(f"{repair.imports}\n{repair.edit.applied(source)}")["loss"]

    assert gradient(loss).isnan().any()
    assert (found.operation, found.entered_by) == ("matmul", made)
    assert repair.edit.where.line == found.entered_at.line
    torch.testing.assert_close(gradient(mended), gradient(loss, [0, 2]))


def an_empty_row(x):
    """Mask a row as a whole, and use it."""
    scores = x.masked_fill(torch.tensor([[False], [True]]), -torch.inf)  # infinity
    return torch.softmax(scores, -1).square().sum()  # made


def a_difference_of_infinities(x):
    """Take an infinity that is given from itself."""
    far = torch.tensor([1.0, torch.inf])  # infinity
    gap = far - far  # made
    return (x * gap).sum()


@pytest.mark.parametrize(
    ("f", "operation"), [(an_empty_row, "softmax"), (a_difference_of_infinities, "sub")]
)
def test_what_makes_nan_of_an_infinity_is_the_culprit(masked, f, operation):
    """An infinity that is given is no culprit: the operation that makes NaN of it is."""
    (finding,) = masked.explain(f, torch.ones(2, 2)).findings

    assert (finding.kind, finding.operation, finding.what) == ("FORWARD", operation, "nan")
    assert finding.where.source.endswith("# made")
    assert finding.entered_at.source.endswith("# infinity")


def test_two_equal_operations_on_a_line(masked):
    """Each expression has a finding of its own, and the edit has both."""

    def loss(x, y):
        return (torch.sqrt(x) + torch.sqrt(y)).sum()

    report = masked.explain(loss, torch.zeros(2), torch.zeros(2), argnums=(0, 1))

    assert [(x.entries, x.times) for x in report.findings] == [(2, 1)] * 2
    assert "(safe_sqrt(x) + safe_sqrt(y)).sum()" in report.findings[0].repair.edit.new


@pytest.mark.parametrize(("used", "kind"), [(slice(0, 2), "GENUINE"), (slice(1, 2), "BLOCKED")])
def test_a_backward_pass_of_ones_own(masked, used, kind):
    """A custom function has the line of its call, and that of its backward pass."""

    def loss(x):
        return root_of_its_own(x)[used].sum()

    (finding,) = masked.explain(loss, torch.tensor([0.0, 1.0])).findings

    assert (finding.kind, finding.reason) == (kind, "backward")
    assert finding.where.source == "return Root.apply(x)"
    assert finding.entered_at.source == "def backward(ctx, gradient):"
    assert "mend its backward pass" in finding.repair.text


def test_a_custom_result_is_the_loss(masked):
    """The line is known where nothing takes the result of the function."""
    (finding,) = masked.explain(root_of_its_own, torch.tensor(0.0)).findings

    assert finding.where.source == "return Root.apply(x)"


def test_a_nan_made_in_a_custom_forward(masked):
    """It has the line inside of the function, and no consequence is a finding."""

    class Unit(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.shape = x.shape
            return x / x.norm()  # made

        @staticmethod
        def backward(ctx, gradient):
            return gradient.reshape(ctx.shape)

    (finding,) = masked.explain(
        lambda x: (torch.sin(Unit.apply(x)) * 2).sum(), torch.zeros(2)
    ).findings

    assert (finding.kind, finding.operation) == ("FORWARD", "div")
    assert finding.where.source.endswith("# made")


def test_a_slope_of_zeros_before_a_root(masked):
    """The zeros of sign are numbers: 0 times infinity is GENUINE, and not unknown."""
    (finding,) = masked.explain(lambda x: torch.sign(torch.sqrt(x)).sum(), torch.zeros(2)).findings

    assert (finding.kind, finding.operation) == ("GENUINE", "sqrt")
