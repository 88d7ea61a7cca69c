"""
What is chosen by device: every such choice, in one place.

Each was measured on one core of a CPU, by `benchmarks/ops.py`, which says what it gains. On GPUs
and TPUs nothing was measured: there the formulas of the operations run as they are, which ask no
number of the host, since a GPU would wait for that.
To change that, measure with `benchmarks/ops.py --device cuda` first.
"""

from typing import Any

# JAX takes the short way to a norm or a determinant where a branch finds that nothing is lost by
# it; the device is known when it compiles.
BRANCHES_ON = "cpu"


def has_kernels(x: Any) -> bool:
    """Whether eager PyTorch has kernels for x: they ask for numbers, and use selects of a CPU."""
    return bool(x.is_cpu)


def makes_masks_again(x: Any) -> bool:
    """Whether a compiled backward pass of PyTorch makes masks again: a CPU stores them slowly."""
    return bool(x.is_cpu)


def loses_small_values(x: Any) -> bool:
    """Whether PyTorch, compiled, makes 0 of expm1 of a small number; not a matter of time."""
    return bool(x.is_cpu)


def measures_by_sums(x: Any) -> bool:
    """Whether PyTorch, compiled, finds the size of a slice by a sum, and not by a maximum."""
    return bool(x.is_cpu)


def runs_as_program(x: Any) -> bool:
    """Whether eager TensorFlow runs the many operations of a few numbers as one program."""
    return "CPU" in x.device


def keeps_nan(x: Any) -> bool:
    """Whether eager TensorFlow keeps a NaN in a maximum: on a CPU it does; not a matter of time."""
    return "CPU" in x.device
