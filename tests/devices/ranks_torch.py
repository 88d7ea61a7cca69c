"""
Masked gradients on two ranks of PyTorch: a script, of which two processes run together.

Its arguments are the rank and a file, at which the ranks meet.
"""

import logging

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from ranks import RANK, answer_all, equal, in_parts, meet, refused
from safeops.autodiff import torch as masked
from safeops.integrations import NonFiniteGradientError, guard

WORLD = distributed.group
NAN = float("nan")
CHECKS = []
QUIET = logging.getLogger("quiet")
QUIET.disabled = True


def check(function):
    """Add a check, which all ranks run."""
    CHECKS.append(function)
    return function


class Rows(nn.Module):
    """A row of a table, as an embedding gives one."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.ones(4))

    def forward(self, row):
        """Return one of four numbers."""
        return self.table[row]


def parallel(module, **options):
    """Return a module of which DDP reduces the gradients."""
    return DistributedDataParallel(module, **options)


def half(model):
    """Return a loss whose ordinary gradient is NaN on rank 1, that of a model with a weight."""
    batch = [[NAN], [2.0]] if RANK else [[0.0], [1.0]]
    return model(torch.tensor(batch))[1:].sum()


@check
def lazy_is_refused_under_ddp():
    """The ranks would keep what they have found alone: 1 on rank 0, 2 on rank 1."""
    model = parallel(nn.Linear(1, 1, bias=False))
    refused("one of 2 ranks", lambda: masked.backward(half(model), lazy=True))
    assert model.module.weight.grad is None


@check
def lazy_is_refused_for_gradients():
    """The program of a gradient may have collectives too."""
    x = torch.ones(2, requires_grad=True)
    refused("one of 2 ranks", lambda: masked.grad(x.sum(), x, lazy=True))
    refused("one of 2 ranks", lambda: masked.value_and_grad(torch.sum, lazy=True)(x))


@check
def masked_gradients_under_ddp():
    """The mean over ranks of what each of them uses, in each layout of the buckets, and no word."""
    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        model = parallel(nn.Linear(1, 1, bias=False), **options)
        masked.backward(half(model), on_unknown="error")
        equal(model.module.weight.grad, torch.tensor([[1.5]]))


@check
def masks_under_ddp():
    """A mask is that of this rank, and on request that of all."""
    here = torch.arange(4) == RANK
    for options in ({}, {"gradient_as_bucket_view": True}):
        model = parallel(Rows(), **options)
        mask = masked.backward(model(RANK), return_mask=True, on_unknown="error")
        table = model.module.table
        equal(table.grad, torch.tensor([0.5, 0.5, 0.0, 0.0]))
        assert torch.equal(mask[table], here)
        assert torch.equal(masked.gradient_mask(table), here)
        union = masked.gradient_mask(table, group=WORLD.WORLD)
        assert torch.equal(union, torch.tensor([True, True, False, False]))
        with model.no_sync():
            masked.backward(model(3 - RANK))
        assert torch.equal(masked.gradient_mask(table), here | (torch.arange(4) == 3 - RANK))
        assert masked.gradient_mask(table, group=WORLD.WORLD).all()


@check
def a_mask_that_one_rank_has_not():
    """The union takes part in that of the others; if no rank has a mask, all say so."""
    x = torch.ones(2, requires_grad=True)
    if RANK:
        x.sum().backward()
    else:
        masked.backward(x[0])
    assert torch.equal(masked.gradient_mask(x, group=WORLD.WORLD), torch.tensor([True, False]))
    y = torch.ones(2, requires_grad=True)
    y.sum().backward()
    refused("a masked backward", lambda: masked.gradient_mask(y, group=WORLD.WORLD), ValueError)


@check
def fsdp2():
    """Gradients are right; lazy and masks are refused, in words that name the reason."""
    torch.manual_seed(0)
    plain, model = nn.Linear(3, 5), nn.Linear(3, 5)
    model.load_state_dict(plain.state_dict())
    fully_shard(model, mesh=MESH)
    x = torch.tensor([[NAN, 1.0, 2.0], [1.0 + RANK, 2.0, 3.0]])
    loss = lambda m, x: m(x)[1:].square().sum()  # noqa: E731
    refused("of 2 ranks", lambda: masked.backward(loss(model, x), lazy=True))
    refused("FSDP2", lambda: masked.backward(loss(model, x), return_mask=True))
    model.zero_grad()
    masked.backward(loss(model, x), on_unknown="error")
    both = [loss(plain, torch.tensor([[1.0 + r, 2.0, 3.0]] * 2)) for r in (0, 1)]
    (sum(both) / 2).backward()
    for name, weight in model.named_parameters():
        equal(weight.grad.full_tensor(), dict(plain.named_parameters())[name].grad)
    refused("FSDP2", lambda: masked.gradient_mask(model.weight), ValueError)


PLACES = {
    "rows of weights": ([0], [None], [0]),
    "columns of weights": ([1], [1], [None]),
    "batch": ([None], [0], [None]),
    "all": ([0], [0], [1]),
}


def program(w, x, v):
    """Return a loss of two layers whose ordinary gradient is NaN for all three."""
    h = x @ w.T
    y = torch.where(h > 10, (h - 10).sqrt(), torch.zeros_like(h)) @ v
    return torch.where(y > 1, y.log(), torch.zeros_like(y)).sum()


def arguments():
    """Return two weights and a batch, of 5 and 3 rows."""
    batch = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0], [-1.0, 0.0, -9.0]])
    return torch.arange(15.0).reshape(5, 3), batch, torch.ones(5, 2)


def on_mesh(x, axes):
    """Return a leaf in parts."""
    return in_parts(x, MESH, axes).requires_grad_()


@check
def dtensor_programs():
    """Gradients and masks are those of one process, whatever is in parts, evenly or not."""
    whole = [x.requires_grad_() for x in arguments()]
    assert all(g.isnan().any() for g in torch.autograd.grad(program(*whole), whole))
    wanted, active = masked.grad(program(*whole), whole, return_mask=True)
    assert not all(m.all() for m in active)
    for name, places in PLACES.items():
        parts = [on_mesh(x, axes) for x, axes in zip(arguments(), places, strict=True)]
        found, masks = masked.grad(program(*parts), parts, return_mask=True, on_unknown="error")
        kept = masked.backward(program(*parts), return_mask=True, on_unknown="error")
        for g, m, x, g0, m0 in zip(found, masks, parts, wanted, active, strict=True):
            equal(g.full_tensor(), g0)
            equal(x.grad.full_tensor(), g0)
            assert torch.equal(m.full_tensor(), m0), name
            assert torch.equal(kept[x].full_tensor(), m0), name


class Layers(nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        """Return two numbers for each row."""
        return self.second(torch.relu(self.first(x)))


@check
def tensor_parallel_modules():
    """A row that is NaN and not used leaves the gradients of `parallelize_module` alone."""
    x = torch.tensor([[NAN, NAN, NAN], [1.0, 2.0, 3.0], [2.0, 1.0, 0.0]])
    plain, model = Layers(), Layers()
    parallelize_module(model, MESH, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    masked.backward(plain(x)[1:].sum())
    with masked.masked_backward(on_unknown="error"):
        model(x)[1:].sum().backward()
    for name, weight in model.named_parameters():
        equal(weight.grad.full_tensor(), dict(plain.named_parameters())[name].grad)


@check
def a_stage_of_a_pipeline():
    """Each rank hears that masks end with its stage; the last stage has the masked gradient."""
    torch.manual_seed(0)
    here = nn.Linear(2, 2)
    stage = PipelineStage(here, RANK, 2, torch.device("cpu"))
    loss = lambda y, _: torch.where(y > 0, y.abs().log(), 0.0).sum()  # noqa: E731
    schedule = ScheduleGPipe(stage, 1, loss_fn=loss)
    words = pytest.warns(masked.UnknownOperationWarning, match="stage of a pipeline")
    with words, masked.masked_backward(on_unknown="error"):
        schedule.step(*[torch.ones(1, 2)] * (RANK == 0), target=torch.zeros(1, 2))
    assert torch.isfinite(here.weight.grad).all()


@check
def a_guard_explains_on_the_rank():
    """All ranks stop; the rank with the NaN has the finding and its row, the other one says so."""
    model = parallel(nn.Linear(1, 1, bias=False))
    step = guard(model, logger=QUIET)(lambda x: model(x)[1:].sum().backward())
    step(torch.ones(2, 1))
    batch = [[NAN], [2.0]] if RANK else [[0.0], [1.0]]
    with pytest.raises(NonFiniteGradientError) as caught:
        step(torch.tensor(batch))
    report = caught.value.report
    assert (report.step, report.rank, report.parameters) == (1, RANK, ("weight",))
    found = ("BLOCKED", "", (0,)) if RANK else ("UNKNOWN", "rank", ())  # the other rank has it
    assert [(f.kind, f.reason, f.rows) for f in report.findings] == [found]
    assert any("another rank" in note for note in report.notes) is (RANK == 0)


@check
def a_guard_masks_and_skips_on_all_ranks():
    """The masked gradient is the mean over ranks; a rank alone in no_sync takes the other along."""
    batch = torch.tensor([[NAN], [2.0]] if RANK else [[0.0], [1.0]])
    model = parallel(nn.Linear(1, 1, bias=False))
    guard(model, on_nan="mask", logger=QUIET)(lambda: model(batch)[1:].sum().backward())()
    equal(model.module.weight.grad, torch.tensor([[1.5]]))

    def alone():
        with model.no_sync():
            model(batch)[1:].sum().backward()

    guard(model, on_nan="skip", logger=QUIET)(alone)()
    equal(model.module.weight.grad, torch.tensor([[1.5]]))


@check
def a_guard_of_shards():
    """A NaN in the shard of one rank stops all ranks of FSDP2, or leaves all as they were."""
    model = nn.Linear(2, 2, bias=False)
    fully_shard(model)
    batch = torch.tensor([[1.0, 2.0], [2.0, 1.0]])

    def step(scale):
        (model(batch) * torch.tensor([1.0, scale])).sum().backward()  # of the second row

    guard(model, logger=QUIET)(step)(1.0)
    before = model.weight.grad.full_tensor()
    guard(model, on_nan="skip", logger=QUIET)(step)(NAN)
    equal(model.weight.grad.full_tensor(), before)
    with pytest.raises(NonFiniteGradientError, match="of which each process has a part") as caught:
        guard(model, logger=QUIET)(step)(NAN)
    assert caught.value.report.parameters == ("weight",) * RANK  # rank 1 has the second row


@check
def explain_is_refused_for_dtensors():
    """It says so at entry."""
    x = on_mesh(torch.zeros(4), [0])
    refused("a DTensor", lambda: masked.explain(lambda x: (x.sqrt() ** 2).sum(), x), TypeError)


if __name__ == "__main__":
    MESH = meet()
    answer_all({function.__name__: function for function in CHECKS})
