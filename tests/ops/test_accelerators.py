"""The operations of PyTorch on a GPU, which JAX and TensorFlow use by themselves."""

import numpy as np
import pytest

import slices
import specs
from assertions import assert_close
from frameworks import asarray, to_numpy

pytestmark = pytest.mark.only("torch")

# The processor too: so the test is known to be right where there is no accelerator.
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
SOME = specs.SLICE_ROWS[::6]  # of which mpmath takes a second for some


def on(device, args):
    """Return leaves on a device."""
    return [asarray("torch", x).to(device).requires_grad_() for x in args]


def results(device, f, leaves):
    """Return the value of a function and the gradient of its sum; on a GPU compiled too."""
    import torch

    for run in (f, torch.compile(f, fullgraph=True)) if device != "cpu" else (f,):
        got = run(*leaves)
        slopes = torch.autograd.grad(got.sum(), leaves, materialize_grads=True)
        yield got, *slopes


@DEVICES
@pytest.mark.parametrize("row", specs.ROWS, ids=lambda row: row.name)
def test_elementwise_operations_on_devices(row, device):
    """Value and gradient are those of the table, at its singular points too."""
    args = np.array([point.args for point in row.points], float).T
    gradient = np.array([point.gradient for point in row.points], float).T
    value = [point.value for point in row.points]

    for got in results(device, row.op, on(device, args)):
        assert {x.device.type for x in got} == {device}
        for found, exact in zip(got, (value, *gradient), strict=True):
            assert_close(to_numpy(found), exact, 1e-11, row.name, 1e-12)


@DEVICES
@pytest.mark.parametrize("row", SOME, ids=lambda row: row.name)
def test_operations_on_slices_on_devices(row, device):
    """Value and gradient of slices are those of their formula."""
    import torch

    for piece in row.slices:
        value, gradient, _ = slices.exact(row, piece)
        keep = torch.tensor(piece.where, device=device)

        def f(*args, keep=keep):
            out = row.op(*args, keep)
            weights = torch.tensor(slices.WEIGHTS, device=device, dtype=torch.float64)
            return torch.where(out.isinf(), 0, out) * weights if slices.is_slice(row) else out

        weights = slices.WEIGHTS if slices.is_slice(row) else 1.0
        value = np.where(np.isinf(value) & slices.is_slice(row), 0, value) * weights
        wanted = value, *np.split(gradient, len(piece.args))
        for got in results(device, f, on(device, piece.args)):
            assert {x.device.type for x in got} == {device}
            for found, exact in zip(got, wanted, strict=True):
                assert_close(to_numpy(found), exact, 1e-11, row.name, 1e-12)
