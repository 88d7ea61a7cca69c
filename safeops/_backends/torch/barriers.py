"""A linear function of which all that is known is whether it is 0: see `barrier` of a backend."""

import math
from typing import Any

import torch

from safeops._typing import Array, Function


class Barrier(torch.autograd.Function):
    """0 where nothing comes and NaN where something does, in both modes and at every order."""

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

    @staticmethod
    def backward(ctx: Any, *cotangents: Array) -> tuple[Any, ...]:
        """Return what is left of the cotangents."""
        constants = ctx.saved_tensors
        left = Barrier.apply(ctx.excess, ctx.number, *cotangents, *constants)
        return None, None, *left, *(None for _ in constants)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Array, ...]:
        """Return what is left of the tangents."""
        moved = tangents[2 : 2 + ctx.number]
        left: tuple[Array, ...] = Barrier.apply(ctx.excess, ctx.number, *moved, *ctx.saved_tensors)
        return left


def barrier(
    excess: Function, arrays: tuple[Array, ...], constants: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Return 0, and NaN where there is an excess, as derivative too."""
    passed: tuple[Array, ...] = Barrier.apply(excess, len(arrays), *arrays, *constants)
    return passed
