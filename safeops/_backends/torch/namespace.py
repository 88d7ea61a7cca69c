"""The namespace of the array API standard for PyTorch: that of array-api-compat, but for a few."""

import array_api_compat.torch
import torch

from safeops._backends.devices import loses_small_values
from safeops._core.types import Array

globals().update(
    {name: x for name, x in vars(array_api_compat.torch).items() if not name.startswith("_")}
)
# That of array-api-compat (1.16) asks for a shape by a function of PyTorch that imports symbolic
# shapes, which takes 0.3 s; this one is written in C++.
broadcast_arrays = torch.broadcast_tensors


# Inductor (2.6 to 2.13) vectorises expm1 as ``exp(x) - 1``, and atanh as ``log((1 + x) / (1 - x))``
# over 2. Below the rounding of 1, 6e-8 in float32, they are 0, and up to 1e-2 they lose digits.


def expm1(x: Array, /) -> Array:
    """Return ``exp(x) - 1``; what a compiler reads has no difference in it."""
    if not (torch.compiler.is_compiling() and loses_small_values(x)):
        return torch.expm1(x)
    power = torch.exp(x)
    value = torch.tanh(0.5 * x) * (power + 1.0)
    return _with_slope_of(power.clamp(max=torch.finfo(x.dtype).max), value)


def atanh(x: Array, /) -> Array:
    """Return the inverse hyperbolic tangent, by two logarithms to a compiler."""
    if not (torch.compiler.is_compiling() and loses_small_values(x)):
        return torch.atanh(x)
    value = 0.5 * (torch.log1p(x) - torch.log1p(-x))
    # The slopes of the logarithms cancel in the second derivative.
    return _with_slope_of(torch.atanh(x), value)


def _with_slope_of(formula: Array, value: Array) -> Array:
    """Return a value, with the derivatives of a formula, which is finite."""
    return value.detach() + (formula - formula.detach())
