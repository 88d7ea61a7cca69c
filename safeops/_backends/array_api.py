"""
What the folder of a framework offers: the class that its backend derives from.

By itself it serves any namespace of the array API standard, without a list of names.
"""

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
    """
    A framework, known by its namespace alone.

    Nothing else in the house asks which framework an array belongs to. A docstring says what a
    backend has to do; behind a semicolon or in a second sentence, what is done here.
    """

    xp: Namespace  # functions by their names in the array API standard
    kernels: Mapping[str, Function] = {}  # its implementations of functions of the house, by name
    formulas: Mapping[str, Function] = {}  # with logarithms, whose slopes stay in range
    keeps_exponent = True  # whether the slope of x**p for x rightly depends on p at p == 0
    differentiates = False  # whether `grad` and `jvp` have derivatives
    precedence = 0  # if two backends share a name (NumPy and dask), the larger number wins

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
        """Return the name of the backend for the type of `x`, if it is another backend."""
        del x
        return "dask" if self.name == "array_api_compat.dask.array" else None

    def refuse(self, x: Array) -> None:
        """Raise TypeError for types that safeops cannot serve, once for a type; there are none."""
        del x  # AutoGraph of TensorFlow cannot transform a docstring alone, and says so (2.21)

    def is_compiling(self) -> bool:
        """Whether Python is being compiled, so that nothing may be written to a module; never."""
        return False

    def accepts_numpy(self, x: Any) -> bool:
        """Whether something of NumPy may stand beside arrays; np.float64, a Python float, may."""
        return isinstance(x, SCALARS)

    def constant(self, x: Any, like: Array) -> Any:
        """Return something of NumPy as a constant beside `like`; as a Python scalar, it is weak."""
        del like
        return x.item()

    def check(self, x: Array) -> None:
        """Raise TypeError for arrays that safeops cannot serve; there are none."""
        del x

    def result_type(self, args: Sequence[Any]) -> DType:
        """
        Return the dtype of the framework's own division; Python scalars are weak.

        The standard does not divide integers: these stay.
        """
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
        """Return the lower factors, with NaN in those that there are not; it does not raise."""
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
        """Return `x` where a trace does not know that these are its last lengths; or an error."""
        del tail
        return x

    def as_index(self, x: Array) -> Array:
        """Return whole numbers as integers that index."""
        return self.xp.astype(x, self.xp.int64)

    def rough_max(self, x: Array, axis: Axis) -> Array:
        """Return the largest entry of each slice, axes kept; it may pass over NaN."""
        return self.xp.max(x, axis=axis, keepdims=True)

    def rough_size(self, x: Array, axis: Axis) -> Array:
        """
        Return for each slice a number up to its norm, axes kept, for finite sizes x.

        The number is at least the norm over the root of the number of entries; it is the largest.
        """
        return self.rough_max(x, axis)

    def unfused_product(self, x: Array) -> Array:
        """Return a product, so that no compiler sums its squares by other products."""
        return x

    def rough_max_and_min(self, low: Array, high: Array, axis: Axis) -> tuple[Array, Array | None]:
        """
        Return `rough_max` of one array and the smallest of another, None if that costs much.

        Both by the same reduction: XLA merges two equal collectives.
        """
        return self.rough_max(low, axis), -self.rough_max(-high, axis)

    def sums(self, arrays: Sequence[Array], axis: Axis) -> Sequence[Array]:
        """Return the sums of the slices of arrays of one shape, axes kept; one by one."""
        return [self.xp.sum(x, axis=axis, keepdims=True) for x in arrays]

    def lengths(self, x: Array, axis: Axis) -> Array:
        """Return how many entries a slice has, in the dtype of `x`, axes kept."""
        return self.xp.sum(self.xp.ones_like(x), axis=axis, keepdims=True)

    def max_of(self, x: Array, axis: Axis, sign: int) -> Array:
        """Return the largest entry of each slice, axes kept; `sign` is not needed here."""
        del sign
        return self.rough_max(x, axis)

    def extreme_and_max(
        self, x: Array, levels: Array, axis: Axis, sign: int
    ) -> tuple[Array, Array]:
        """Return `extreme` of one array, and `rough_max` of another, which has no NaN."""
        return self.extreme(x, axis, sign), self.max_of(levels, axis, sign)

    def extreme(self, x: Array, axis: Axis, sign: int) -> Array:
        """
        Return the largest entry of each slice for sign 1, the smallest for -1, axes kept.

        Equal extremes share the slope; other entries have slope 0, even if the cotangent is inf.
        """
        return (self.xp.max if sign == 1 else self.xp.min)(x, axis=axis, keepdims=True)

    def product(self, x: Array, axis: Axis) -> Array:
        """Return the product of each slice, axes kept, with all its derivatives at zeros."""
        return self.xp.prod(x, axis=axis, keepdims=True)

    def cumulative(self, x: Array, axis: int, *, product: bool) -> Array:
        """Return running sums, or running products."""
        return (self.xp.cumulative_prod if product else self.xp.cumulative_sum)(x, axis=axis)

    def positions(self, x: Array, axis: int) -> Array:
        """Return the place of each entry along an axis, in a shape that broadcasts against `x`."""
        ones = self.xp.astype(self.xp.ones_like(x), self.xp.int32)
        return self.cumulative(ones, axis, product=False) - 1

    def gather(self, x: Array, ids: Array) -> Array:
        """Return the entries of `x` with these indices, of any shape, along the first axis."""
        found = self.xp.take(x, self.xp.reshape(ids, (-1,)), axis=0)
        return self.xp.reshape(found, (*ids.shape, *x.shape[1:]))

    def ranks(self, knots: Array, x: Array) -> Array:
        """Return for each number how many knots are not above it; some number for NaN."""
        return self.xp.searchsorted(knots, x, side="right")

    def pairs(self, x: Array) -> tuple[Array, Array]:
        """Return the indices i and j of all pairs ``i < j`` along the last axis but one."""
        from array_api_compat import device  # noqa: PLC0415  (as in `_dispatch`)

        i, j = np.triu_indices(x.shape[-2], 1)
        return self.xp.asarray(i, device=device(x)), self.xp.asarray(j, device=device(x))

    def segment_sum(self, x: Array, ids: Array, number: int) -> Array:
        """Return the sums along the first axis of entries with one id; here one by one."""
        parts = [
            self.xp.sum(self._only(x, ids, k, 0), axis=0, dtype=x.dtype) for k in range(number)
        ]
        return self.xp.stack(parts)

    def segment_max(self, x: Array, ids: Array, number: int, least: float) -> Array:
        """Return the largest of such entries, `least` at least, as a constant; none is NaN."""
        if not x.shape[0]:  # of which there is no maximum
            return self.segment_sum(x, ids, number) + least
        parts = [self.xp.max(self._only(x, ids, k, least), axis=0) for k in range(number)]
        return self.xp.stack(parts)

    def _only(self, x: Array, ids: Array, k: int, other: float) -> Array:
        here = self.xp.reshape(ids == k, (-1,) + (1,) * (len(x.shape) - 1))
        return self.xp.where(here, x, self.xp.full_like(x, other))

    def stop_gradient(self, x: Array) -> Array:
        """Return `x` as a constant: derivatives through it are 0; the standard has none."""
        return x

    def is_constant(self, x: Array) -> bool:
        """Whether it is known that nothing differentiates by x."""
        del x
        return not self.differentiates

    def special(self, name: str) -> Function | None:
        """Return the function of this name in `scipy.special`; None if there is none, as here."""
        del name
        return None

    def with_slope(self, f: Function, slope: Function, is_filled: Function) -> Function:
        """
        Return a function of one array whose derivative is `slope`, and 0 where it is filled.

        Here it is `f`, of which the framework takes the derivatives step by step, or none.
        """
        del slope, is_filled
        return f

    def shortened(
        self, steps: Function, value: Function, slopes: Function, inside: Function | None
    ) -> Function:
        """
        Return a function of arrays with a short value, and slopes of this and the arguments.

        These are right if `inside`, if there is one, holds for all entries; all else is by steps,
        and here everything is.
        """
        del value, slopes, inside
        return steps

    def barrier(
        self, excess: Function, arrays: tuple[Array, ...], constants: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        """
        Return zeros like the arrays, and NaN where these have an excess.

        It counts as linear and as its own transpose: what it does to the arrays it does to their
        tangents and to the cotangents of the result. The excess of a matrix is a truth value with
        two axes kept, of the arrays and of the constants.
        """
        bad = excess(*arrays, *constants)
        return tuple(self.xp.where(bad, math.nan, self.xp.zeros_like(x)) for x in arrays)

    def quiet(self) -> AbstractContextManager[Any]:
        """Silence floating-point warnings that entries not taken would raise; there are none."""
        return nullcontext()

    def grad(self, f: Function) -> Function:
        """
        Reverse mode: turn a scalar function into the function of its gradients.

        ``grad(f)(*args)`` is a tuple with an entry for each argument. `grad` can be nested. Here it
        raises TypeError: there is no derivative to take.
        """
        raise TypeError(self._no_autodiff(f))

    def jvp(self, f: Function) -> Function:
        """Forward mode: ``jvp(f)(args, tangents)`` is the tangent of ``f(*args)``; as `grad`."""
        raise TypeError(self._no_autodiff(f))

    def nan_detector(self) -> AbstractContextManager[Any]:
        """Turn on the own search for NaN, which raises when a NaN is made; there is none here."""
        return nullcontext()

    def _no_autodiff(self, f: Function) -> str:
        return (
            f"{self.name} has no automatic differentiation, so {f} has no gradient there; "
            "pass torch, jax or tensorflow arrays"
        )
