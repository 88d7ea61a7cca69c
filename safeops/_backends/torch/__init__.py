"""PyTorch: tensors on any device, `torch.func` wrappers, fake and meta tensors."""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, reduce
from typing import Any

import numpy as np
import torch

from safeops._backends.array_api import ArrayAPI
from safeops._backends.shapes import axes_of, of_one_axis
from safeops._backends.torch import (
    barriers,
    elementwise,
    exact_slopes,
    fast_paths,
    fused,
    linalg,
    namespace,
    pairs,
    reductions,
    remade_masks,
    segments,
    slices,
    smooth,
    special,
)
from safeops._backends.torch.reductions import cumulative_product, loses, product
from safeops._core.dtypes import SCALARS
from safeops._core.types import Array, Axis, DType, Function


class Torch(ArrayAPI):
    """PyTorch tensors."""

    name = "torch"
    kernels: Mapping[str, Function] = (
        elementwise.KERNELS
        | slices.KERNELS
        | reductions.KERNELS
        | exact_slopes.KERNELS
        | fused.KERNELS
        | linalg.KERNELS
        | segments.KERNELS
        | special.KERNELS
    )
    kernels_of_steps: Mapping[str, Function] = (
        fused.OF_STEPS | linalg.OF_STEPS | pairs.OF_STEPS | smooth.OF_STEPS | special.OF_STEPS
    )
    formulas: Mapping[str, Function] = exact_slopes.FORMULAS
    keeps_exponent = False  # at p == 0 the slope is a constant 0 (2.13)
    differentiates = True

    def kernel(self, name: str, generic: Function) -> Function | None:
        """Return the kernel of that name; what Dynamo traces has others."""
        if self.is_compiling() and name in remade_masks.NAMES:
            return partial(remade_masks.recomputed, generic)
        if name in self.kernels_of_steps:
            return partial(self.kernels_of_steps[name], generic)
        return self.kernels.get(name)

    def owns(self, x: object) -> bool:
        """Whether `x` is a tensor."""
        return isinstance(x, torch.Tensor)

    def kin(self, x: Array) -> str | None:
        """Return the name of the backend of DTensors, if `x` is a DTensor."""
        return "dtensor" if type(x).__name__ == "DTensor" and hasattr(x, "placements") else None

    def refuse(self, x: Array) -> None:
        """Refuse masked tensors, which have no `where`."""
        if type(x).__name__ == "MaskedTensor":
            way_out = "pass x.get_data(), and where=x.get_mask()"
            msg = f"expected a dense tensor, got a MaskedTensor; {way_out}"
            raise TypeError(msg)

    def is_compiling(self) -> bool:
        """Whether Dynamo reads: in a checkpoint it refuses what is written to a module (2.13)."""
        return bool(torch.compiler.is_dynamo_compiling())

    def accepts_numpy(self, x: Any) -> bool:
        """Take scalars of NumPy, as PyTorch does, and no arrays."""
        return isinstance(x, np.generic)

    def check(self, x: Array) -> None:
        """Refuse sparse and nested tensors, whose empty entries have no place in a `where`."""
        if x.is_nested:
            msg = "expected a dense tensor, got a nested one; pass x.to_padded_tensor(0.0)"
            raise TypeError(msg)
        if x.layout is not torch.strided:
            msg = f"expected a dense tensor, got layout {x.layout}; pass x.to_dense()"
            raise TypeError(msg)

    def result_type(self, args: Sequence[Any]) -> DType:
        """
        Return the standard's promotion (0-d tensors count); integers divide to the default dtype.

        `torch.result_type` would do, but torch.compile cannot trace it with a scalar (2.13).
        """
        dtypes = [x.dtype for x in args if isinstance(x, torch.Tensor)]
        dtype = reduce(torch.promote_types, dtypes)
        if not (dtype.is_floating_point or dtype.is_complex):
            dtype = torch.get_default_dtype()
        complex_scalar = any(isinstance(x, complex) for x in args)
        return dtype.to_complex() if complex_scalar and not dtype.is_complex else dtype

    def cast(self, x: Any, dtype: DType, like: Array) -> Array:
        """Array or Python scalar as a tensor of `dtype`, scalars on the device of `like`."""
        if isinstance(x, SCALARS):
            return torch.full((), x, dtype=dtype, device=like.device)
        return x.to(dtype)

    def cholesky(self, x: Array) -> Array:
        """Return the lower factor, with NaN in it where there is none."""
        factor, info = torch.linalg.cholesky_ex(x)
        return torch.where((info == 0)[..., None, None], factor, math.nan)

    def slogdet(self, x: Array) -> tuple[Array, Array]:
        """Return the sign of a determinant, for complex x its phase, and the log of its size."""
        # Those of PyTorch have the second derivative 0 in forward mode inside of another, as `det`
        # and `solve` have a wrong one (2.13); triangular factors have the right one.
        factors, pivots, _ = torch.linalg.lu_factor_ex(x)
        diagonal = factors.diagonal(dim1=-2, dim2=-1)
        size = diagonal.abs()
        moved = pivots != torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=pivots.dtype)
        turn = torch.where(moved, -1, 1).to(x.dtype)
        phase = torch.where(size == 0, 0, diagonal / torch.where(size == 0, 1, size))
        return (turn * phase).prod(-1), torch.log(size).sum(-1)

    def rough_size(self, x: Array, axis: Axis) -> Array:
        """Return a sum of each slice to a compiler, else the largest entry, axes kept."""
        size = slices.rough_size(x, axis) if self.is_compiling() else None
        return self.rough_max(x, axis) if size is None else size

    def rough_max_and_min(self, low: Array, high: Array, axis: Axis) -> tuple[Array, Array | None]:
        """Return the largest entry alone: the root of a mean square has a kernel of its own."""
        del high
        return self.rough_max(low, axis), None

    def extreme(self, x: Array, axis: Axis, sign: int) -> Array:
        """Return the largest or smallest entry of each slice, axes kept; others have slope 0."""
        return super().extreme(x if axis == () else loses(x, axis, sign), axis, sign)

    def product(self, x: Array, axis: Axis) -> Array:
        """Return the product of each slice, axes kept."""
        axes = axes_of(axis, x.ndim)
        kept = [1 if a in axes else n for a, n in enumerate(x.shape)]
        return product(self.flatten_axes(x, axis)).reshape(kept)

    def cumulative(self, x: Array, axis: int, *, product: bool) -> Array:
        """Return running sums, or running products."""
        if not product:
            return torch.cumsum(x, axis)  # torch.compile warns of the cache in array_api_compat
        if not (x.is_floating_point() or x.is_complex()):
            return torch.cumprod(x, axis)
        return cumulative_product(x.movedim(axis, -1)).movedim(-1, axis)

    def positions(self, x: Array, axis: int) -> Array:
        """Return the place of each entry along an axis; other axes have length 1."""
        return torch.arange(x.shape[axis], device=x.device).reshape(of_one_axis(x.shape, axis))

    def is_constant(self, x: Array) -> bool:
        """Whether no tape, transform or compiler sees x."""
        return fast_paths.is_unseen(x)

    def special(self, name: str) -> Function | None:
        """Return a function of `torch.special`."""
        return getattr(torch.special, name)

    def barrier(
        self, excess: Function, arrays: tuple[Array, ...], constants: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        """Return 0, and NaN where there is an excess, as derivative too."""
        return barriers.barrier(excess, arrays, constants)

    def gather(self, x: Array, ids: Array) -> Array:
        """Return the entries of `x` with these indices along the first axis."""
        if ids.ndim == 1:
            return torch.index_select(x, 0, ids)
        return torch.index_select(x, 0, ids.reshape(-1)).reshape((*ids.shape, *x.shape[1:]))

    def ranks(self, knots: Array, x: Array) -> Array:
        """Return for each number how many knots are not above it."""
        knots, x = knots.detach().contiguous(), x.detach().contiguous()
        return torch.searchsorted(knots, x, right=True)

    def pairs(self, x: Array) -> tuple[Array, Array]:
        """Return the indices i and j of all pairs ``i < j``."""
        i, j = torch.triu_indices(x.shape[-2], x.shape[-2], 1, device=x.device)
        return i, j

    def segment_sum(self, x: Array, ids: Array, number: int) -> Array:
        """Return the sums of the entries of each id."""
        return x.new_zeros((number, *x.shape[1:])).index_add(0, ids, x)

    def segment_max(self, x: Array, ids: Array, number: int, least: float) -> Array:
        """Return the largest entry of each id."""
        places = ids.reshape((-1,) + (1,) * (x.ndim - 1)).expand(x.shape)
        return x.new_full((number, *x.shape[1:]), least).scatter_reduce(0, places, x, "amax")

    def stop_gradient(self, x: Array) -> Array:
        """Return `x` detached."""
        return x.detach()

    def grad(self, f: Function) -> Function:
        """Reverse mode, by `torch.func.grad`."""
        return lambda *args: torch.func.grad(f, argnums=tuple(range(len(args))))(*args)

    def jvp(self, f: Function) -> Function:
        """Forward mode, by `torch.func.jvp`."""
        return lambda args, tangents: torch.func.jvp(f, tuple(args), tuple(tangents))[1]

    def nan_detector(self) -> AbstractContextManager[Any]:
        """Raise RuntimeError where a backward function returns NaN."""
        return torch.autograd.detect_anomaly()


backend = Torch(namespace)
