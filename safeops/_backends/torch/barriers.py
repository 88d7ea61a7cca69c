"""
The barrier of PyTorch: a linear map to 0, or to NaN where its input exceeds a bound.

In eager mode it is a `torch.autograd.Function`. Dynamo refuses one that has `jvp` (2.13); what it
traces has an operator in its place, which has no forward mode.
"""

import math
from collections.abc import Sequence
from sys import modules
from typing import Any

import torch

from safeops._backends.torch import private
from safeops._backends.torch.fast_paths import FillingFunction
from safeops._core.types import Array, Function


class Barrier(FillingFunction):
    """A linear map to 0 that turns to NaN where its input exceeds a bound, at every order."""

    # Its 0 is no number but nothing, as masked autodiff knows by the class.

    generate_vmap_rule = True

    @staticmethod
    def forward(excess: Function, number: int, *arrays: Array) -> tuple[Array, ...]:
        """Return 0, or NaN where the first arrays are in excess of it; the others are constants."""
        return blocked(excess, number, *arrays)

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


def blocked(excess: Function, number: int, *arrays: Array) -> tuple[Array, ...]:
    """Return 0, or NaN where the first arrays are in excess of it; the others are constants."""
    bad = excess(*arrays)
    # A product, in which masked autodiff sees the cotangent.
    return tuple(torch.where(bad, math.nan * x, torch.zeros_like(x)) for x in arrays[:number])


# A schema, as torch 2.6 makes none of `Sequence` of `collections.abc`.
SCHEMA = "(str module, str name, Tensor[] arrays, Tensor[] constants) -> Tensor[]"


@torch.library.custom_op("safeops::barrier", mutates_args=(), schema=SCHEMA)
def operator(
    module: str, name: str, arrays: Sequence[torch.Tensor], constants: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return 0, or NaN where arrays are in excess of it; no operator takes a function."""
    return list(blocked(getattr(modules[module], name), len(arrays), *arrays, *constants))


@operator.register_fake
def _(module: str, name: str, arrays: Any, constants: Any) -> list[Array]:
    del module, name, constants
    return [torch.empty_like(x) for x in arrays]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    del output
    *ctx.function, _, constants = inputs
    ctx.save_for_backward(*constants)


def _pull_back(ctx: Any, cotangents: Any) -> tuple[Any, ...]:
    constants = list(ctx.saved_tensors)
    left = operator(*ctx.function, [x.contiguous() for x in cotangents], constants)
    return None, None, left, [None] * len(constants)


operator.register_autograd(_pull_back, setup_context=_keep)


@operator.register_vmap
def _(
    info: Any, in_dims: Any, module: str, name: str, arrays: Any, constants: Any
) -> tuple[list[Array], list[int]]:
    *_, axes, other_axes = in_dims

    def first(x: Array, axis: int | None) -> Array:
        return x.expand(info.batch_size, *x.shape) if axis is None else x.movedim(axis, 0)

    given, fixed = (
        [first(x, axis) for x, axis in zip(xs, dims, strict=True)]
        for xs, dims in ((arrays, axes), (constants, other_axes))
    )
    found = operator(module, name, given, fixed)
    return found, [0] * len(found)


def barrier(
    excess: Function, arrays: tuple[Array, ...], constants: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Return 0, and NaN where there is an excess, as derivative too."""
    if torch.compiler.is_dynamo_compiling() and not in_forward_mode():
        return tuple(operator(excess.__module__, excess.__name__, list(arrays), list(constants)))
    passed: tuple[Array, ...] = Barrier.apply(excess, len(arrays), *arrays, *constants)
    return passed


def in_forward_mode() -> bool:
    """Whether there may be tangents, which the operator would drop: Dynamo refuses the Function."""
    return private.in_transform() or private.forward_level() >= 0
