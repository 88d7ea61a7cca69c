"""What the scripts of two ranks of PyTorch share: how the ranks meet, and what they compare."""

import sys
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import launched
from safeops.autodiff import torch as masked

RANK = int(sys.argv[1])


def meet():
    """Let the two ranks of this script meet at the file that it was given; return their mesh."""
    warnings.simplefilter("error", masked.UnknownOperationWarning)
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=Path(sys.argv[2]).as_uri(),
        rank=RANK,
        world_size=2,
        timeout=timedelta(seconds=30),
    )
    return init_device_mesh("cpu", (2,))


def answer_all(checks):
    """Run the checks, each on both ranks, and part."""
    for name, function in checks.items():
        launched.answer(name, function)
    distributed.destroy_process_group()


def refused(match, call, kind=RuntimeError):
    """Check that a call is refused on this rank, in these words."""
    with pytest.raises(kind, match=match):
        call()


def equal(got, wanted):
    """Check that two tensors are equal, which are finite."""
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=0)
    assert torch.isfinite(got).all()


def in_parts(x, mesh, axes):
    """Return a tensor in parts along an axis for each axis of the mesh; None: whole."""
    places = [Replicate() if a is None else Shard(a) for a in axes]
    return distribute_tensor(x, mesh, places)
