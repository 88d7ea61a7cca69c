"""A linear function of which all that is known is whether it is 0: see `barrier` of a backend."""

import math
from typing import Any

import torch

from safeops._typing import Array, Function


class Barrier(torch.autograd.Function):
    """What has no forward mode, as torch.compile wants it (2.13)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(excess: Function, number: int, *arrays: Array) -> tuple[Array, ...]:
        """Return 0, or NaN where the first arrays are in excess of it; the others are constants."""
        bad = excess(*arrays)
        return tuple(torch.where(bad, math.nan, torch.zeros_like(x)) for x in arrays[:number])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the constants."""
        del output
        ctx.excess, ctx.number, *arrays = inputs
        ctx.save_for_backward(*arrays[ctx.number :])
        ctx.save_for_forward(*arrays[ctx.number :])

    @classmethod
    def passed(cls, ctx: Any, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return what is left of a tangent, or of a cotangent."""
        return cls.apply(ctx.excess, ctx.number, *arrays, *ctx.saved_tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Array) -> tuple[Any, ...]:
        """Return that of the cotangents."""
        return None, None, *Barrier.passed(ctx, cotangents), *(None for _ in ctx.saved_tensors)


class BothWays(Barrier):
    """What has forward mode too."""

    @staticmethod
    def backward(ctx: Any, *cotangents: Array) -> tuple[Any, ...]:
        """Return that of the cotangents."""
        return None, None, *BothWays.passed(ctx, cotangents), *(None for _ in ctx.saved_tensors)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Array, ...]:
        """Return that of the tangents."""
        return BothWays.passed(ctx, tangents[2 : 2 + ctx.number])


def barrier(
    excess: Function, arrays: tuple[Array, ...], constants: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Return 0, and NaN where there is an excess, as derivative too."""
    function = Barrier if torch.compiler.is_compiling() else BothWays
    return function.apply(excess, len(arrays), *arrays, *constants)
