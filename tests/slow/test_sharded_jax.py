"""Masked autodiff in JAX on two devices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import safeops

SHARDED = Path(__file__).parents[1] / "autodiff/support/sharded_jax.py"
ROOT = Path(safeops.__file__).parents[1]


@pytest.mark.only("jax")
def test_collectives_and_loops_on_two_devices():
    """In shard_map, with and without check_vma, gradients are those of jax.grad."""
    done = subprocess.run(
        [sys.executable, SHARDED],
        env=os.environ | {"PYTHONPATH": str(ROOT)},  # so that it tests what this process tests
        capture_output=True,
        text=True,
        check=False,
        timeout=300,  # devices that wait for each other do so for ever
    )

    assert (done.returncode, done.stdout.split()[-1:]) == (0, ["right"]), done.stderr[-2000:]
