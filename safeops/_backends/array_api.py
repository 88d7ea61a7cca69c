"""Any namespace of the array API standard, without a list of names; the base class of backends."""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.exceptions import AxisError
from numpy.linalg import LinAlgError

from safeops._core.dtypes import COMPLEX, INTEGER, REAL, SCALARS, require
from safeops._core.types import Array, Axis, DType, Function, Namespace

# Functions of matrices, the last two axes: others may be in chunks, or in parts on ranks.
MATRICES = """
    expm_symmetric inv_sqrtm_psd logm_psd polar powm_psd safe_cholesky safe_det safe_eigh
    safe_eigvalsh safe_slogdet safe_svd safe_svdvals spectral_function sqrtm_psd
"""


def of_scipy(name: str) -> Function | None:
    """Return a function of SciPy for arrays of NumPy, or of dask; None where SciPy is missing."""
    try:
        from scipy import special  # noqa: PLC0415  (an extra)
    except ModuleNotFoundError:
        return None
    return getattr(special, name)


class ArrayAPI:
    """A framework known by its namespace alone."""

    kernels: Mapping[str, Function] = {}
    formulas: Mapping[str, Function] = {}
    keeps_exponent = True
    differentiates = False
    precedence = 0

    def __init__(self, xp: Namespace) -> None:
        self.xp = xp
        self.name = getattr(type(self), "name", xp.__name__)

    def kernel(self, name: str, generic: Function) -> Function | None:
        """Return the kernel of that name; for calls that it leaves to `generic` it returns None."""
        del generic
        return self.kernels.get(name)

    def owns(self, x: object) -> bool:
        """Whether `x` is an array of this namespace."""
        return getattr(x, "__array_namespace__", lambda: None)() is self.xp

    def kin(self, x: Array) -> str | None:
        """Return the name of the backend for a type of arrays that needs its own."""
        del x
        return "dask" if self.name == "array_api_compat.dask.array" else None

    def refuse(self, x: Array) -> None:
        """Accept every type of array."""
        del x  # AutoGraph of TensorFlow cannot transform a docstring alone, and says so (2.21)

    def is_compiling(self) -> bool:
        """Return False: no other framework compiles Python."""
        return False

    def accepts_numpy(self, x: Any) -> bool:
        """Take np.float64, which is a Python float too."""
        return isinstance(x, SCALARS)

    def constant(self, x: Any, like: Array) -> Any:
        """Return a scalar of NumPy as a Python scalar, which is weak."""
        del like
        return x.item()

    def check(self, x: Array) -> None:
        """Accept every array."""
        del x

    def result_type(self, args: Sequence[Any]) -> DType:
        """Return the standard's promotion; integers stay, as the standard does not divide them."""
        dtype = self.xp.result_type(*(x for x in args if not isinstance(x, SCALARS)))
        if not self.xp.isdtype(dtype, ("real floating", "complex floating")):
            return dtype
        return self.xp.result_type(dtype, *(x for x in args if isinstance(x, SCALARS)))

    def cast(self, x: Any, dtype: DType, like: Array) -> Array:
        """Array or Python scalar as an array of `dtype`, scalars on the device of `like`."""
        if isinstance(x, SCALARS):
            # dask arrays have no attribute `device`
            from array_api_compat import device  # noqa: PLC0415  (as in `_dispatch`)

            return self.xp.asarray(x, dtype=dtype, device=device(like))
        return x if x.dtype == dtype else self.xp.astype(x, dtype)

    def promoted(
        self, args: Sequence[Any], also: Sequence[Any] = (), *, complex_too: bool = False
    ) -> Sequence[Any]:
        """
        Return `args`, then `also`, as arrays of one floating dtype.

        A Python scalar or None in `also` (fill values) stays: `where` takes a scalar as weak.
        """
        of = COMPLEX if complex_too else ()
        values = [x for x in (*args, *also) if x is not None]
        # np.float64 is a Python float too; it counts as an array only if there is no other array.
        arrays = [x for x in values if not isinstance(x, SCALARS)]
        arrays = arrays or [x for x in values if self.owns(x)]
        for x in arrays:
            self.check(x)
            require(x.dtype, INTEGER + REAL + of, x)
        dtype = self.result_type(values)
        require(dtype, REAL + of)
        weak = (type(None), *SCALARS)
        kept = (x if isinstance(x, weak) else self.cast(x, dtype, x) for x in also)
        return *(self.cast(x, dtype, arrays[0]) for x in args), *kept

    def cholesky(self, x: Array) -> Array:
        """Return the lower factors; NaN for a matrix for which the framework raises."""
        try:
            return self.xp.linalg.cholesky(x)
        except LinAlgError:
            if len(x.shape) == 2:  # noqa: PLR2004  (one matrix)
                return self.xp.full_like(x, math.nan)
            return self.xp.stack([self.cholesky(x[k, ...]) for k in range(x.shape[0])])

    def slogdet(self, x: Array) -> tuple[Array, Array]:
        """Return the sign of a determinant, for complex x its phase, and the log of its size."""
        sign, size = self.xp.linalg.slogdet(x)
        return sign, size

    def flatten_axes(self, x: Array, axis: Axis) -> Array:
        """Return `x` with these axes as one, the last."""
        if axis is None:
            return self.xp.reshape(x, (-1,))
        rank = len(x.shape)
        given = axis if isinstance(axis, tuple) else (axis,)
        if not all(-rank <= a < rank for a in given):
            msg = f"expected axes of {rank} dimensions, got {axis}"
            raise AxisError(msg)
        axes = [a % rank for a in given]
        if len(set(axes)) < len(axes):
            msg = f"expected different axes, got {axis}"
            raise ValueError(msg)
        rest = [a for a in range(rank) if a not in axes]
        moved = self.xp.permute_dims(x, (*rest, *axes))
        return moved if len(axes) == 1 else self.flattened(moved, len(rest))

    def flattened(self, x: Array, start: int) -> Array:
        """Return `x` with its axes from `start` on as one."""
        return self.xp.reshape(x, (*x.shape[:start], math.prod(x.shape[start:])))

    def with_trailing_shape(self, x: Array, tail: tuple[int, ...]) -> Array:
        """Return `x`: only a trace of TensorFlow does not know lengths."""
        del tail
        return x

    def as_index(self, x: Array) -> Array:
        """Return whole numbers as integers that index."""
        return self.xp.astype(x, self.xp.int64)

    def rough_max(self, x: Array, axis: Axis) -> Array:
        """Return the largest entry of each slice, axes kept."""
        return self.xp.max(x, axis=axis, keepdims=True)

    def rough_size(self, x: Array, axis: Axis) -> Array:
        """Return the largest entry of each slice, axes kept."""
        return self.rough_max(x, axis)

    def unfused_product(self, x: Array) -> Array:
        """Return a product that no compiler takes apart."""
        return x

    def rough_max_and_min(self, low: Array, high: Array, axis: Axis) -> tuple[Array, Array | None]:
        """Return both by the same reduction: XLA merges two equal collectives."""
        return self.rough_max(low, axis), -self.rough_max(-high, axis)

    def sums(self, arrays: Sequence[Array], axis: Axis) -> Sequence[Array]:
        """Return the sums of slices, one by one."""
        return [self.xp.sum(x, axis=axis, keepdims=True) for x in arrays]

    def lengths(self, x: Array, axis: Axis) -> Array:
        """Return how many entries a slice has, without asking for the shape."""
        return self.xp.sum(self.xp.ones_like(x), axis=axis, keepdims=True)

    def max_of(self, x: Array, axis: Axis, sign: int) -> Array:
        """Return the largest entry of each slice, axes kept; `sign` is not needed here."""
        del sign
        return self.rough_max(x, axis)

    def extreme_and_max(
        self, x: Array, levels: Array, axis: Axis, sign: int
    ) -> tuple[Array, Array]:
        """Return the extreme entry of each slice, and the largest of its levels, axes kept."""
        return self.extreme(x, axis, sign), self.max_of(levels, axis, sign)

    def extreme(self, x: Array, axis: Axis, sign: int) -> Array:
        """Return the largest entry of each slice for sign 1, the smallest for -1, axes kept."""
        return (self.xp.max if sign == 1 else self.xp.min)(x, axis=axis, keepdims=True)

    def product(self, x: Array, axis: Axis) -> Array:
        """Return the product of each slice, axes kept."""
        return self.xp.prod(x, axis=axis, keepdims=True)

    def cumulative(self, x: Array, axis: int, *, product: bool) -> Array:
        """Return running sums, or running products."""
        return (self.xp.cumulative_prod if product else self.xp.cumulative_sum)(x, axis=axis)

    def positions(self, x: Array, axis: int) -> Array:
        """Return the place of each entry along an axis, without asking for the shape."""
        ones = self.xp.astype(self.xp.ones_like(x), self.xp.int32)
        return self.cumulative(ones, axis, product=False) - 1

    def gather(self, x: Array, ids: Array) -> Array:
        """Return the entries of `x` with these indices along the first axis."""
        found = self.xp.take(x, self.xp.reshape(ids, (-1,)), axis=0)
        return self.xp.reshape(found, (*ids.shape, *x.shape[1:]))

    def ranks(self, knots: Array, x: Array) -> Array:
        """Return for each number how many knots are not above it."""
        return self.xp.searchsorted(knots, x, side="right")

    def pairs(self, x: Array) -> tuple[Array, Array]:
        """Return the indices i and j of all pairs ``i < j`` along the last axis but one."""
        from array_api_compat import device  # noqa: PLC0415  (as in `_dispatch`)

        i, j = np.triu_indices(x.shape[-2], 1)
        return self.xp.asarray(i, device=device(x)), self.xp.asarray(j, device=device(x))

    def segment_sum(self, x: Array, ids: Array, number: int) -> Array:
        """Return the sums of the entries of each id: the standard has no way but one by one."""
        parts = [
            self.xp.sum(self._only(x, ids, k, 0), axis=0, dtype=x.dtype) for k in range(number)
        ]
        return self.xp.stack(parts)

    def segment_max(self, x: Array, ids: Array, number: int, least: float) -> Array:
        """Return the largest entry of each id."""
        if not x.shape[0]:  # of which there is no maximum
            return self.segment_sum(x, ids, number) + least
        parts = [self.xp.max(self._only(x, ids, k, least), axis=0) for k in range(number)]
        return self.xp.stack(parts)

    def _only(self, x: Array, ids: Array, k: int, other: float) -> Array:
        here = self.xp.reshape(ids == k, (-1,) + (1,) * (len(x.shape) - 1))
        return self.xp.where(here, x, self.xp.full_like(x, other))

    def stop_gradient(self, x: Array) -> Array:
        """Return `x`: the standard has no derivatives."""
        return x

    def is_constant(self, x: Array) -> bool:
        """Whether nothing can differentiate by x, as far as is known."""
        del x
        return not self.differentiates

    def special(self, name: str) -> Function | None:
        """Return None: the standard has no special functions."""
        del name
        return None

    def with_slope(self, f: Function, slope: Function, is_filled: Function) -> Function:
        """Return `f`, of which the framework takes the derivatives step by step, or none."""
        del slope, is_filled
        return f

    def barrier(
        self, excess: Function, arrays: tuple[Array, ...], constants: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        """Return 0, and NaN where there is an excess."""
        bad = excess(*arrays, *constants)
        return tuple(self.xp.where(bad, math.nan, self.xp.zeros_like(x)) for x in arrays)

    def quiet(self) -> AbstractContextManager[Any]:
        """Do nothing: the standard has no warnings."""
        return nullcontext()

    def grad(self, f: Function) -> Function:
        """Raise TypeError: there is no derivative to take."""
        raise TypeError(self._no_autodiff(f))

    def jvp(self, f: Function) -> Function:
        """Raise TypeError: there is no derivative to take."""
        raise TypeError(self._no_autodiff(f))

    def nan_detector(self) -> AbstractContextManager[Any]:
        """Do nothing: the standard has no detector."""
        return nullcontext()

    def _no_autodiff(self, f: Function) -> str:
        return (
            f"{self.name} has no automatic differentiation, so {f} has no gradient there; "
            "pass torch, jax or tensorflow arrays"
        )
