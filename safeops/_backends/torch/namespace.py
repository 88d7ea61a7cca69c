"""The namespace of the array API standard for PyTorch: that of array-api-compat, but for a few."""

import math

import array_api_compat.torch
import torch

from safeops._backends.devices import loses_small_values
from safeops._core.types import Array

# Of ``expm1(x) / x``, the higher ones first.
_SERIES = tuple(1.0 / math.factorial(k) for k in range(15, 0, -1))

globals().update(
    {name: x for name, x in vars(array_api_compat.torch).items() if not name.startswith("_")}
)
# That of array-api-compat (1.16) asks for a shape by a function of PyTorch that imports symbolic
# shapes, which takes 0.3 s; this one is written in C++.
broadcast_arrays = torch.broadcast_tensors


# Inductor (2.6 to 2.13) vectorises expm1 as ``exp(x) - 1``, and atanh as ``log((1 + x) / (1 - x))``
# over 2. Below the rounding of 1, 6e-8 in float32, they are 0, and up to 1e-2 they lose digits.


def expm1(x: Array, /) -> Array:
    """Return ``exp(x) - 1``, to a compiler as a series near 0: tanh would take twice as long."""
    if not (torch.compiler.is_compiling() and loses_small_values(x)):
        return torch.expm1(x)
    y, power = x.detach(), torch.exp(x)
    series = torch.zeros_like(y)
    for coefficient in _SERIES if x.dtype == torch.float64 else _SERIES[-8:]:
        series = y * series + coefficient
    near = y.abs() < 0.5  # noqa: PLR2004  (there the difference loses digits)
    value = torch.where(near, y * series, power.detach() - 1.0)
    return _with_slope_of(power.clamp(max=torch.finfo(x.dtype).max), value)


def atanh(x: Array, /) -> Array:
    """Return the inverse hyperbolic tangent, to a compiler as the logarithm of a sum."""
    if not (torch.compiler.is_compiling() and loses_small_values(x)):
        return torch.atanh(x)
    size = x.detach().abs()
    value = torch.copysign(0.5 * torch.log1p(2.0 * size / (1.0 - size)), x.detach())
    return _with_slope_of(torch.atanh(x), value)


def _with_slope_of(formula: Array, value: Array) -> Array:
    """Return a value, with the derivatives of a formula, which is finite."""
    return value.detach() + (formula - formula.detach())
