"""Masked autodiff for PyTorch on accelerators."""

import pytest

from assertions import assert_close
from reported_torch import CLEAN, DIRTY, LATE, function, gradients, root_of_positive, torch

pytestmark = pytest.mark.only("torch")


@pytest.mark.gpu
def test_an_accelerator(masked):
    """On a GPU the engine runs in a thread of its own, and the mode goes with it."""
    x = torch.tensor([0.0, 4.0], device="cuda", requires_grad=True)

    masked.backward(root_of_positive(x), on_unknown="error")

    assert x.grad.tolist() == [0.0, 0.25]
    assert masked.gradient_mask(x).tolist() == [False, True]


def two_layers(x):
    """Run a network whose weights are on the device of the input, and read some rows."""
    weights = [x.new_full((4, 4), slope).requires_grad_() for slope in (0.5, -0.25)]
    return ((x @ weights[0]).relu() @ weights[1])[:4].square().sum(), weights


def indexed(x):
    """Take rows, columns and entries of a logarithm."""
    rows = x.log()[torch.tensor([0, 3, 3], device=x.device)]
    return rows.index_select(1, torch.tensor([2, 0], device=x.device))[x[:3, :2] > 0.5].sum(), []


ON_DEVICES = {
    "two layers": two_layers,
    "contraction": function(lambda x: (x @ x.mT)[:4, :4].square().sum()),
    "batched contraction": LATE["batched product"],
    "indexing": indexed,
    "where": function(lambda x: torch.where(x > 0.5, x.sqrt(), 0.0)[:4].nansum()),
    "softmax": LATE["softmax"],
    "causal attention": LATE["causal attention"],
    "sort": LATE["sort"],
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ON_DEVICES)
def test_devices_have_the_gradient_of_a_clean_point(masked, name, device):
    """On each device NaN rows that nothing reads do no harm, and the mask lives there too."""
    wanted = gradients(ON_DEVICES[name], CLEAN, torch.autograd.grad)
    x = torch.tensor(DIRTY, dtype=torch.float64, device=device, requires_grad=True)
    output, weights = ON_DEVICES[name](x)

    found, active = masked.grad(output, [x, *weights], return_mask=True, on_unknown="error")

    assert {a.device.type for a in active} == {device}
    for ours, clean in zip(found, wanted, strict=True):
        assert_close(ours.cpu().numpy(), clean, rtol=1e-6, atol=1e-9)  # another device's kernels


@pytest.mark.gpu
def test_an_accelerator_in_half_precision(masked):
    """Under autocast on a GPU, with `backward`, the weights have finite gradients."""
    layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    layer, rows = layer.to("cuda"), torch.tensor(DIRTY, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = layer(rows)[:4].float().square().sum()

    masked.backward(loss, on_unknown="error")

    assert all(p.grad.isfinite().all() for p in layer.parameters())
