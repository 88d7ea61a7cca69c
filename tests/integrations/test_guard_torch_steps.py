"""A guarded step of PyTorch that does more than a backward pass, or in another way."""

import copy
import logging

import pytest

from safeops.integrations import NonFiniteGradientError, guard

pytestmark = pytest.mark.only("torch")
torch = pytest.importorskip("torch")

QUIET = logging.getLogger("quiet")
QUIET.disabled = True
GOOD = torch.tensor([[1.0, 2.0], [3.0, 1.0]])
BAD = torch.tensor([[1.0, 2.0], [0.0, 1.0], [3.0, 1.0]])  # the second row is left out of the loss


def loss_of(model, x):
    """Return a loss whose gradient is NaN if there is a 0 in the first column."""
    size = (model(x).squeeze(-1) * x[:, 0]).abs()
    return torch.where(x[:, 0] > 0, size.sqrt(), 0.0).sum()


def new_model():
    """Return a model, with the same weights each time."""
    torch.manual_seed(0)
    return torch.nn.Linear(2, 1)


def gradients(model):
    """Return the gradients of a model."""
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def assert_close(found, wanted):
    """Gradients are those of another step."""
    torch.testing.assert_close(found, wanted)


def add(model, optimizer, x):
    """Add to the gradients that are there."""
    del optimizer
    loss_of(model, x).backward()


def renew(model, optimizer, x):
    """Take other gradients."""
    optimizer.zero_grad()
    loss_of(model, x).backward()


def renew_zeros(model, optimizer, x):
    """Add to gradients that are 0."""
    optimizer.zero_grad(set_to_none=False)
    loss_of(model, x).backward()


def assign(model, optimizer, x):
    """Set gradients that autograd returns."""
    del optimizer
    found = torch.autograd.grad(loss_of(model, x), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), found, strict=True):
        parameter.grad = gradient


@pytest.mark.parametrize(
    ("makes", "zeros"), [(renew, None), (renew_zeros, None), (assign, None), (add, False)]
)
def test_an_optimizer_has_nothing_to_do_after_a_skipped_step(makes, zeros):
    """However the step takes its gradients, no momentum moves a weight."""
    model = new_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    step = guard(model, on_nan="skip", logger=QUIET)(makes)
    step(model, optimizer, GOOD)
    optimizer.step()
    if zeros is not None:
        optimizer.zero_grad(set_to_none=zeros)
    before = copy.deepcopy([model.state_dict(), optimizer.state_dict()["state"]])

    step(model, optimizer, BAD)
    optimizer.step()

    assert str([model.state_dict(), optimizer.state_dict()["state"]]) == str(before)


def written(x):
    """Write another number each time."""
    x -= 1.0
    return x


@pytest.mark.parametrize("cure", [True, False])
def test_a_step_that_writes_into_its_batch(cure):
    """It is not masked, as it would be the step of another batch; a write that lasts is masked."""
    model, x = new_model(), torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    writes = (lambda x: x.sub_(1.0).clamp_(min=0.0).copy_(GOOD * 0)) if cure else written

    @guard(model, on_nan="mask", logger=QUIET)
    def step(x):
        loss_of(model, writes(x)).backward()

    if cure:
        step(x)
        assert_close(gradients(model), [torch.zeros(1, 2), torch.zeros(1)])
        return
    with pytest.raises(NonFiniteGradientError) as caught:
        step(x)
    assert "written into argument 0" in str(caught.value)
    assert "another step" in caught.value.__notes__[0]
    assert torch.equal(x, torch.tensor([[1.0, 0.0], [0.0, 2.0]]))


def test_the_gradient_of_an_argument():
    """It is that of one step, and not of each time that the step ran."""
    model, x = new_model(), BAD.clone().requires_grad_()

    guard(model, on_nan="mask", logger=QUIET)(add)(model, None, x)

    wanted = BAD[[0, 2]].requires_grad_()
    loss_of(new_model(), wanted).backward()
    assert_close(x.grad[[0, 2]], wanted.grad)
    assert not x.grad[1].any()


def test_an_overflow_of_the_masked_gradient():
    """Its scaler skips the step, as without a guard."""
    model, scaler = new_model(), torch.amp.GradScaler("cpu", init_scale=2.0**127)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = copy.deepcopy(model.state_dict())
    reports = []
    logger = logging.getLogger("scaled")
    logger.propagate = False
    logger.addFilter(lambda record: reports.append(record.args[1]))

    @guard(model, on_nan="mask", scaler=scaler, logger=logger)
    def step(x):
        scaler.scale(loss_of(model, x) * 1e3).backward()

    step(BAD)
    scaler.step(optimizer)
    scaler.update()

    assert [f.kind for f in reports[0].findings] == ["BLOCKED"]
    assert str(model.state_dict()) == str(before)
    assert scaler.get_scale() == 2.0**126


def test_lazy_modules():
    """A module that has no weights before its first step trains."""
    model = torch.nn.Sequential(torch.nn.LazyLinear(2), torch.nn.LazyBatchNorm1d())

    guard(model, logger=QUIET)(lambda x: model(x).square().sum().backward())(GOOD)

    assert all(g is not None for g in gradients(model))


def test_a_buffer_that_the_step_makes():
    """After a skipped step it is as it was: there is none."""
    model = new_model()
    model.register_buffer("cache", None)

    def run(x):
        model.cache = x.mean() / 0 * 0
        loss_of(model, x).backward()

    guard(model, on_nan="skip", logger=QUIET)(run)(BAD)

    assert model.cache is None


def test_gradients_that_were_not_finite():
    """The report says that they were there before the step."""
    model = new_model()
    model.weight.grad = torch.full((1, 2), torch.nan)

    with pytest.raises(NonFiniteGradientError, match="not finite before the step") as caught:
        guard(model, logger=QUIET)(add)(model, None, GOOD)

    assert "random" not in str(caught.value.report.notes)


def test_a_parameter_that_is_not_finite():
    """The report names it."""
    model = new_model()
    with torch.no_grad():
        model.weight[0, 1] = torch.nan

    with pytest.raises(NonFiniteGradientError, match="the parameter weight is nan at 1 entry"):
        guard(model, logger=QUIET)(add)(model, None, GOOD)


def test_a_masked_step_keeps_running_means_finite():
    """Means to which a NaN came are what they were before the step; those of another layer move."""
    torch.manual_seed(0)
    norms = [torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)]
    model = torch.nn.ModuleList(norms)
    before = copy.deepcopy(model[0].state_dict())

    @guard(model, on_nan="mask", logger=QUIET)
    def step(x):
        rows = model[0](x).sum(-1) + model[1](x.nan_to_num()).sum(-1)
        torch.where(rows.isfinite(), rows, 0.0).sum().backward()

    step(torch.tensor([[1.0, 2.0], [torch.nan, 1.0], [3.0, 1.0]]))

    assert all(x.isfinite().all() for x in model.state_dict().values())
    torch.testing.assert_close(model[0].state_dict(), before, rtol=0, atol=0)
    assert model[1].num_batches_tracked == 1


def test_rows_behind_a_reshape():
    """Where words of all sequences are one axis, the row is that in which the NaN came in."""
    model = new_model()
    keep = torch.ones(3, 4, dtype=torch.bool)
    keep[1] = False

    @guard(model, logger=QUIET)
    def step(x):
        shares = torch.softmax(torch.where(keep, 0.0, -torch.inf), -1)
        words = (x * shares[..., None]).reshape(12, 2)
        out = model(words).view(3, 4)
        torch.where(keep, out, 0.0).sum().backward()

    with pytest.raises(NonFiniteGradientError) as caught:
        step(torch.ones(3, 4, 2))

    (found,) = caught.value.report.findings
    assert (found.kind, found.operation, found.rows) == ("BLOCKED", "matmul", (1,))
