"""A guarded step of PyTorch: nothing changes while all is finite, and what is not is explained."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

import safeops
from safeops.integrations import NonFiniteGradientError, guard

pytestmark = pytest.mark.only("torch")
torch = pytest.importorskip("torch")

import trained  # noqa: E402  (it imports PyTorch)

NAN = float("nan")
QUIET = logging.getLogger("quiet")
QUIET.disabled = True


def seeded(model):
    """Return a new model, with the same weights each time."""
    torch.manual_seed(0)
    return model()


def gradients(model):
    """Return the gradients of a model."""
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def backward_of(model, **options):
    """Return a guarded step that takes the gradient of a loss."""

    @guard(model, logger=QUIET, **options)
    def step(*batch):
        loss = model.loss(*batch)
        loss.backward()
        return loss

    return step


def state_of(*parts):
    """Return the numbers of a training, and its random state."""
    found = [x for part in parts for x in torch.utils._pytree.tree_leaves(part.state_dict())]
    return [*(x.clone() if isinstance(x, torch.Tensor) else x for x in found), torch.rand(1)]


def assert_same(found, wanted):
    """Two states are the same, to the bit."""
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted, strict=True):
        assert torch.equal(x, y) if isinstance(y, torch.Tensor) else x == y


def test_the_comparison_can_fail():
    """Another number and another length are found."""
    for other in ([torch.zeros(1)], []):
        with pytest.raises(AssertionError):
            assert_same(other, [torch.ones(1)])


# The report.


@pytest.mark.parametrize("name", trained.CASES)
def test_the_report(name):
    """It has kind, line, module and rows of the first finding, and names parameters."""
    case = trained.CASES[name]
    model = seeded(case.model)

    with pytest.raises(NonFiniteGradientError) as caught:
        backward_of(model)(*case.batch)

    report = caught.value.report
    first = report.findings[0]
    assert first.kind == "BLOCKED"
    assert first.where.source == case.line
    assert ("" if first.entered_at is None else first.entered_at.source) == case.entered
    assert first.rows == (case.row,)
    assert (case.module in first.modules) is bool(case.module)
    assert case.parameter in report.parameters
    assert case.parameter in str(report)
    assert {f.kind for f in report.findings} == {"BLOCKED"}
    assert report.step == 0


@pytest.mark.parametrize("name", trained.CASES)
def test_the_masked_gradient(name):
    """It is that of the batch without the rows that nothing reads."""
    case = trained.CASES[name]
    model, other = seeded(case.model), seeded(case.model)
    for module in [*model.modules(), *other.modules()]:
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    other.loss(*case.part).backward()

    backward_of(model, on_nan="mask")(*case.batch)

    for x, y in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(x.grad, y.grad)


def test_one_image_is_one_finding():
    """What one NaN does in all layers is one entry, with its image."""
    case = trained.CASES["images"]

    with pytest.raises(NonFiniteGradientError) as caught:
        backward_of(seeded(case.model))(*case.batch)

    report = caught.value.report
    assert len(report.findings) == 1
    assert report.findings[0].selected_at.source.startswith("return torch.where(kept, found")
    assert report.notes == ("argument 0 of the step is nan in row 2",)
    assert len(str(report).splitlines()) < 15


def test_reports_are_logged_and_kept(caplog, tmp_path):
    """A report goes to the logger as an error, and to a file as a line of JSON."""
    model, file = seeded(trained.Steps), tmp_path / "reports.jsonl"
    step = guard(model, on_nan="skip", file=file)(lambda x: model.loss(x).backward())

    step(trained.SERIES[:1])
    step(trained.SERIES)
    step(trained.SERIES)

    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[0]["parameters"] == ["cell.weight"]
    found = lines[0]["findings"][0]
    assert (found["kind"], found["operation"], found["rows"]) == ("BLOCKED", "sqrt", [1])
    assert found["where"]["path"].endswith("trained.py")
    assert found["fix"]["new"].strip().startswith("size = safe_norm(")
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    title = "a gradient is not finite at step {}, which is skipped\n"
    assert title.format(1) + "BLOCKED  the derivative of sqrt" in caplog.text
    assert title.format(2) + "as at step 1, 2 times so far" in caplog.text


# Nothing changes while all is finite.

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
}
BATCHES = torch.arange(48).reshape(6, 8) % 7


def train(optimizer, *, guarded, scale=None, compiled=False, accumulate=1):
    """Train a model with dropout, running means and weights that are written; return its state."""
    model = seeded(trained.Ordinary)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    loss_of = torch.compile(model.loss, backend="eager") if compiled else model.loss

    def step(batch):
        with torch.autocast("cpu", enabled=scale is not None):
            loss = loss_of(batch)
        scaler.scale(loss).backward()
        if scale is None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    run = guard(model, scaler=scaler)(step) if guarded else step
    for i, batch in enumerate(BATCHES):
        run(batch)
        if (i + 1) % accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return state_of(model, optimizer, scaler)


TRAININGS = {
    "plain": {},
    "accumulated": {"accumulate": 3},
    "scaled": {"scale": 2.0**10},
    "overflowing": {"scale": 2.0**127},  # whose first steps are inf, as they often are
    "compiled": {"compiled": True},
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", TRAININGS)
def test_a_finite_training_is_the_same(name, optimizer):
    """Weights, buffers, optimizer and random state are the same bits, and nothing is reported."""
    wanted = train(optimizer, guarded=False, **TRAININGS[name])

    found = train(optimizer, guarded=True, **TRAININGS[name])

    assert_same(found, wanted)


def test_the_scale_overflows():
    """The training above with a large scale has steps that its scaler skips."""
    found = train("sgd", guarded=True, **TRAININGS["overflowing"])

    assert 1 < found[-6] < 2.0**127


# What follows a report.


def test_a_skipped_step_leaves_nothing():
    """Weights, running means and the optimizer are as if there had been no such step."""
    model = seeded(trained.Ordinary)
    optimizer = OPTIMIZERS["adam"](model.parameters())
    step = backward_of(model, on_nan="skip")
    step(BATCHES[0])
    optimizer.step()
    optimizer.zero_grad()
    model.words(BATCHES[0])  # it writes into its weights, which is no part of a gradient
    before = state_of(model, optimizer)[:-1]

    step(BATCHES[0], NAN)
    optimizer.step()

    assert_same(state_of(model, optimizer)[:-1], before)
    assert gradients(model) == [None] * len(list(model.parameters()))


def test_a_skipped_part_of_a_step():
    """Where gradients are accumulated, those of the other parts stay."""
    model = seeded(trained.Ordinary)
    step = backward_of(model, on_nan="skip")
    step(BATCHES[0])
    before = gradients(model)

    step(BATCHES[1], NAN)

    assert_same(gradients(model), before)


def test_a_masked_part_of_a_step():
    """Where gradients are accumulated, masked ones are added to the others."""
    case = trained.CASES["steps"]
    model = seeded(case.model)
    model.loss(*case.part).backward()
    before = gradients(model)

    backward_of(model, on_nan="mask")(*case.batch)

    for x, y in zip(gradients(model), before, strict=True):
        torch.testing.assert_close(x, 2 * y)


def test_a_raised_step_can_be_looked_at():
    """After the error, weights, buffers and random state are those after the step that failed."""
    wanted, found = [], []
    for states, run in ((wanted, None), (found, "raise")):
        model = seeded(trained.Ordinary)
        try:
            if run:
                backward_of(model, on_nan=run)(BATCHES[0], NAN)
            else:
                model.loss(BATCHES[0], NAN).backward()
        except NonFiniteGradientError:
            pass
        model.zero_grad()
        states.extend(state_of(model))

    assert_same([x.nan_to_num() for x in found], [x.nan_to_num() for x in wanted])


def test_what_masking_cannot_cure():
    """A NaN that is used is an error, and gradients are as they were."""
    model = seeded(trained.Ordinary)

    with pytest.raises(NonFiniteGradientError) as caught:
        backward_of(model, on_nan="mask")(BATCHES[0], NAN)

    assert caught.value.__notes__ == ["the masked gradient is not finite either"]
    assert gradients(model) == [None] * len(list(model.parameters()))


def test_a_nan_under_a_scale():
    """It is no overflow: it is reported, and the scaler skips the step."""
    model = seeded(trained.Steps)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = state_of(model)[:-1]
    reports = []

    @guard(model, on_nan="skip", scaler=scaler, logger=QUIET)
    def step(batch):
        scaler.scale(model.loss(batch)).backward()
        scaler.unscale_(optimizer)
        reports.append(batch)

    step(trained.SERIES)
    scaler.step(optimizer)
    scaler.update()

    assert len(reports) == 3  # as it is, without the scale, and under explain
    assert scaler.get_scale() == 2.0
    assert_same(state_of(model)[:-1], before)


def test_a_compiled_model_is_explained():
    """The step that failed runs again without torch.compile, and has its line."""
    case = trained.CASES["steps"]
    model = seeded(case.model)
    loss_of = torch.compile(model.loss, backend="aot_eager")
    step = guard(model, logger=QUIET)(lambda *batch: loss_of(*batch).backward())

    with pytest.raises(NonFiniteGradientError) as caught:
        step(*case.batch)

    assert caught.value.report.findings[0].where.source == case.line


# What cannot be explained, and what is wrong.


def test_a_step_that_depends_on_more():
    """A step that is finite the second time is UNKNOWN, and the report says why that may be."""
    model, scales = seeded(trained.Ordinary), [NAN, 1.0]
    step = guard(model, logger=QUIET)(lambda x: model.loss(x, scales.pop(0)).backward())

    with pytest.raises(NonFiniteGradientError, match="a finite one when it ran again"):
        step(BATCHES[0])


def test_a_step_that_runs_once():
    """A step that raises when it runs again is UNKNOWN, and training goes on."""
    model, scales = seeded(trained.Ordinary), [NAN]
    step = guard(model, logger=QUIET, on_nan="skip")(
        lambda x: model.loss(x, scales.pop(0)).backward()
    )

    step(BATCHES[0])

    assert gradients(model) == [None] * len(list(model.parameters()))


def test_an_optimizer_in_a_step():
    """It is refused before it writes anything, also while all is finite."""
    model = seeded(trained.Ordinary)
    optimizer = OPTIMIZERS["sgd"](model.parameters())

    @guard(model)
    def step(batch):
        model.loss(batch).backward()
        optimizer.step()

    with pytest.raises(RuntimeError, match="makes gradients alone"):
        step(BATCHES[0])
    optimizer.step()  # outside, it is free again


def test_wrong_options():
    """What is no model, and an unknown choice, are named."""
    with pytest.raises(
        TypeError, match=r"^guard: expected a torch\.nn\.Module as model, got function; "
    ):
        guard(lambda x: x)
    with pytest.raises(ValueError, match=r"expected on_nan out of .*, got 'ignore'"):
        guard(trained.Steps(), on_nan="ignore")


def test_importing_imports_no_framework():
    """``import safeops.integrations`` takes no framework with it."""
    code = (
        "import safeops.integrations, sys; print({'torch', 'jax', 'tensorflow'} & set(sys.modules))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(safeops.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "set()\n"
