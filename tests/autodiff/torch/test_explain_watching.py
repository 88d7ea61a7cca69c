"""What watches a program of PyTorch changes nothing: no result, no warning, no error."""

from contextlib import nullcontext
from importlib import import_module

import pytest

import watched
from reported_torch import torch

pytestmark = pytest.mark.only("torch")

for kind in ("autograd", "modules", "tensors"):
    import_module(f"watched_{kind}")  # it fills the table


def run(name, watching):
    """Return what a program returns, while it is watched or not."""
    with watched.seeded(), watching:
        return watched.PROGRAMS[name]()


def assert_same(found, wanted, rtol=0):
    """Two lists of tensors are the same, to the bit if nothing else is said."""
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted, strict=True):
        assert (x.dtype, x.shape, x.layout) == (y.dtype, y.shape, y.layout)
        torch.testing.assert_close(x, y, rtol=rtol, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", watched.PROGRAMS)
def test_recording_changes_nothing(masked, name):
    """A program has the results that it has by itself, and no warning more."""
    wanted = run(name, nullcontext())

    found = run(name, masked.record_lines())

    assert_same(found, wanted)


# PyTorch 2.12 alone warns of fullgraph=True in `torch.compiler.set_stance("force_eager")`.
@pytest.mark.filterwarnings("ignore:torch.compile with fullgraph=True found no compiled frames")
@pytest.mark.parametrize("name", watched.PROGRAMS)
def test_watching_changes_nothing(masked, name):
    """A program whose backward passes are watched has the same results, and no report."""
    wanted, reports = run(name, nullcontext()), []

    found = run(name, masked.watch_backward(reports.append))

    assert_same(found, wanted)
    assert reports == []


# What masked autodiff refuses, in words: it is no graph of eager operations, or many at once.
REFUSED = {
    "compiled_parts": "force_eager",
    "higher_orders": "is_grads_batched",
    "transforms": "torch.func",
}


@pytest.mark.parametrize("name", sorted(set(watched.PROGRAMS) - set(REFUSED)))
def test_masking_changes_nothing(masked, name):
    """A program in which nothing is singular has the gradients that it has by itself."""
    wanted = run(name, nullcontext())

    found = run(name, masked.masked_backward())

    # A relu drops entries, after which a convolution sums what is left in another order.
    assert_same(found, wanted, rtol=1e-5 if name == "batch_norm" else 0)


@pytest.mark.parametrize("name", REFUSED)
def test_masking_is_refused_in_words(masked, name):
    """What has an engine of its own is an error that names it."""
    with pytest.raises((RuntimeError, NotImplementedError), match=REFUSED[name]):
        run(name, masked.masked_backward())


def test_the_comparison_can_fail():
    """Another number, another dtype and another length are each found."""
    one = [torch.ones(2)]

    for other in ([torch.zeros(2)], [torch.ones(2).double()], []):
        with pytest.raises(AssertionError):
            assert_same(one, other)


def test_there_are_programs():
    """The table is not empty."""
    assert len(watched.PROGRAMS) >= 50


def scaled_step(value):
    """Run a step whose loss a GradScaler multiplies by so much that its gradient overflows."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    x = torch.tensor([value, 1e4], requires_grad=True)
    scaler.scale((x**2 + x.sqrt()).sum() * 1e4).backward()
    return x.grad


def test_the_overflow_of_a_scaler_is_no_finding(masked):
    """Where the gradient is finite without the factor of a GradScaler there is no report."""
    reports = []

    with masked.watch_backward(reports.append) as passes:
        gradient = scaled_step(1.0)

    assert not gradient.isfinite().all()
    assert (reports, passes) == ([], [False])


def test_a_nan_under_a_scaler_is_a_finding(masked):
    """A gradient that is not finite without the factor is explained."""
    reports = []

    with masked.watch_backward(reports.append):
        scaled_step(0.0)

    assert [(x.kind, x.operation) for x in reports[0].findings] == [("GENUINE", "sqrt")]


def test_a_report_has_step_and_parameters(masked):
    """A step begins where nothing is added to; parameters have their names in the model."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    reports = []

    with masked.watch_backward(reports.append):
        for batches in ((1.0, 2.0), (3.0, torch.nan)):
            model.zero_grad()
            for value in batches:
                model(torch.tensor([[value]])).sum().backward()

    assert [(x.step, x.parameters) for x in reports] == [(1, ("0.weight", "1.weight"))]
    assert "0.weight, 1.weight (step 1)" in str(reports[0])
    assert "note: this is backward pass 2 of the step" in str(reports[0])


def test_parameters_behind_a_wrapper(masked):
    """Their names are those in the model of the user, also where another module holds it."""
    model = torch.nn.DataParallel(torch.nn.Linear(1, 1))
    reports = []

    with masked.watch_backward(reports.append):
        model(torch.tensor([[torch.nan]])).sum().backward()

    assert [x.parameters for x in reports] == [("weight",)]
