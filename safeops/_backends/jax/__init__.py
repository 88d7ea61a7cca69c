"""JAX: concrete arrays and tracers."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from safeops._core.errors import require

require("safeops", "JAX", jax.__version__, "0.6")

from safeops._backends.array_api import ArrayAPI
from safeops._backends.jax import barriers, logs
from safeops._backends.jax.functions import FUNCTIONS, PRODUCTS, with_rule
from safeops._backends.jax.programs import Jitted, require_range
from safeops._backends.jax.rules import Context
from safeops._backends.shapes import of_one_axis
from safeops._core.dtypes import SCALARS
from safeops._core.types import Array, Axis, DType, Function, Namespace


class JaxNumpy:
    """`jax.numpy`, with corrected derivative rules for some functions."""

    def __init__(self) -> None:
        vars(self).update(FUNCTIONS)

    @staticmethod
    def matmul(x: Array, y: Array) -> Array:
        """Product of matrices with all digits; a GPU gives them on request only."""
        return jnp.matmul(x, y, precision="highest")

    @staticmethod
    def abs(x: Array) -> Array:
        """Absolute value, with slope 0 at 0, as in other frameworks; in JAX 0.10.2 it is 1."""
        return jnp.where(x == 0, 0, jnp.abs(x))

    @staticmethod
    def max(x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
        """Return the largest entry, with slope NaN if the largest entry is NaN."""
        # The rule of JAX 0.10.2 multiplies with 0 and 1. XLA turns this product into a select, so
        # that under jit the slope of a NaN is 0.
        return _extreme(jnp.max, x, axis, keepdims)

    @staticmethod
    def min(x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
        """Return the smallest entry, with slope NaN if the smallest entry is NaN."""
        return _extreme(jnp.min, x, axis, keepdims)

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)


# A function with a custom rule takes no keywords.
@partial(jax.custom_jvp, nondiff_argnums=(0, 2, 3))
def _extreme(choose: Function, x: Array, axis: Axis, keepdims: bool) -> Array:  # noqa: FBT001  (see above)
    return choose(x, axis=axis, keepdims=keepdims)


@_extreme.defjvp
def _extreme_jvp(*given: Any) -> tuple[Array, Array]:
    choose, axis, keepdims, (x,), (x_dot,) = given
    value, peak = (_extreme(choose, x, axis, kept) for kept in (keepdims, True))
    has_nan = jnp.isnan(peak)
    chosen = jnp.logical_or(x == peak, has_nan)
    share = jnp.where(
        has_nan, jnp.nan, 1 / jnp.sum(chosen, axis=axis, keepdims=True, dtype=x.dtype)
    )
    slope = share * jnp.sum(jnp.where(chosen, x_dot, 0), axis=axis, keepdims=True)
    return value, jnp.reshape(slope, value.shape)


class Jax(ArrayAPI):
    """JAX arrays, under any transformation."""

    name = "jax"
    formulas: Mapping[str, Function] = PRODUCTS | logs.FORMULAS
    keeps_exponent = False  # at p == 0 the slope is a constant 0 (0.10.2)
    differentiates = True

    def __init__(self, xp: Namespace) -> None:
        super().__init__(xp)
        self.programs: dict[str, Jitted] = {}

    def kernel(self, name: str, generic: Function) -> Function:
        """Return `generic`, or its rule, as one compiled program, made at the first call."""
        if name not in self.programs:
            self.programs[name] = Jitted(name, Context(self, generic))
        return self.programs[name]

    def owns(self, x: object) -> bool:
        """Whether `x` is a JAX array or tracer."""
        return isinstance(x, jax.Array)

    def result_type(self, args: Sequence[Any]) -> DType:
        """Return JAX's promotion; integers divide to float32, integers of 64 bits to float64."""
        # Integers are converted before they meet a scalar: strict promotion refuses an integer
        # beside 0.0.
        dtype = jnp.result_type(*(x for x in args if not isinstance(x, SCALARS)))
        if not jnp.issubdtype(dtype, jnp.inexact):
            dtype = jnp.float64 if dtype.itemsize == jnp.int64.dtype.itemsize else jnp.float32
        return jnp.result_type(dtype, *(x for x in args if isinstance(x, SCALARS)))

    def accepts_numpy(self, x: Any) -> bool:
        """Take all of NumPy's, as JAX does."""
        del x
        return True

    def constant(self, x: Any, like: Array) -> Array:
        """Return an array of the same dtype, which takes part in promotion, as in JAX."""
        del like
        require_range(x)
        return jnp.asarray(x)

    def cast(self, x: Any, dtype: DType, like: Array) -> Array:
        """Array or Python scalar as an array of `dtype`; a scalar follows the other arguments."""
        # A weak value stays weak, as in JAX: bfloat16 stays bfloat16 beside a number that jit
        # traces.
        if isinstance(x, jax.Array):
            if x.weak_type and jnp.issubdtype(dtype, jnp.inexact) and x.dtype.kind in "iu":
                with jax.numpy_dtype_promotion("standard"):
                    x = x * 1.0
            return x if x.dtype == dtype else jnp.asarray(x, dtype=dtype)
        if isinstance(x, SCALARS) and getattr(like, "weak_type", False):
            same = like.dtype == dtype
            weak = jnp.full_like(like, x, shape=()) if same else jnp.asarray(x * 1.0)
            if weak.dtype == dtype:
                return weak
        return jnp.asarray(x, dtype=dtype)  # JAX moves a scalar to the device of its operand

    def as_index(self, x: Array) -> Array:
        """Return whole numbers as integers, of 32 bits unless JAX has been told otherwise."""
        return jnp.asarray(x, dtype=int)

    def max_of(self, x: Array, axis: Axis, sign: int) -> Array:
        """Return the largest entry by the reduction of `sign`: XLA merges two equal collectives."""
        return self.rough_max(x, axis) if sign == 1 else -jnp.min(-x, axis=axis, keepdims=True)

    def cumulative(self, x: Array, axis: int, *, product: bool) -> Array:
        """Return running sums, or running products; of integers both in the same dtype."""
        if product and not jnp.issubdtype(x.dtype, jnp.inexact):
            # Against the standard, running products of int8 stay in int8; sums do not (jax 0.10.2).
            x = x.astype(jax.eval_shape(jnp.sum, x).dtype)
        return super().cumulative(x, axis, product=product)

    def positions(self, x: Array, axis: int) -> Array:
        """Return the place of each entry along an axis; a running sum would gather sharded axes."""
        return jnp.arange(x.shape[axis], dtype=jnp.int32).reshape(of_one_axis(x.shape, axis))

    def special(self, name: str) -> Function | None:
        """Return a function of `jax.scipy.special`."""
        from jax.scipy import special  # noqa: PLC0415  (a tenth of a second)

        return getattr(special, name)

    def with_slope(self, f: Function, slope: Function, is_filled: Function) -> Function:
        """Return a function with a rule; see `rules` for its select."""
        return with_rule(lambda _, x, dot: jnp.where(is_filled(x), 0, dot) * slope(x))(f)

    def barrier(
        self, excess: Function, arrays: tuple[Array, ...], constants: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        """Return 0, and NaN where there is an excess, as derivative too."""
        return barriers.barrier(excess, arrays, constants)

    def gather(self, x: Array, ids: Array) -> Array:
        """Return the entries of `x` with these indices along the first axis."""
        return x[ids]

    def ranks(self, knots: Array, x: Array) -> Array:
        """Return for each number how many knots are not above it."""
        return jnp.searchsorted(knots, x, side="right")

    def pairs(self, x: Array) -> tuple[Array, Array]:
        """Return the indices i and j of all pairs ``i < j``, as constants of a program."""
        i, j = np.triu_indices(x.shape[-2], 1)
        return i, j

    def segment_sum(self, x: Array, ids: Array, number: int) -> Array:
        """Return the sums of the entries of each id."""
        return jnp.zeros((number, *x.shape[1:]), x.dtype).at[ids].add(x)

    def segment_max(self, x: Array, ids: Array, number: int, least: float) -> Array:
        """Return the largest entry of each id."""
        return jnp.full((number, *x.shape[1:]), least, x.dtype).at[ids].max(x)

    def stop_gradient(self, x: Array) -> Array:
        """Return `x` without its derivative."""
        return jax.lax.stop_gradient(x)

    def grad(self, f: Function) -> Function:
        """Reverse mode, by `jax.grad`."""
        return lambda *args: jax.grad(f, argnums=tuple(range(len(args))))(*args)

    def jvp(self, f: Function) -> Function:
        """Forward mode, by `jax.jvp`."""
        return lambda args, tangents: jax.jvp(f, tuple(args), tuple(tangents))[1]

    def nan_detector(self) -> AbstractContextManager[Any]:
        """Raise FloatingPointError where a NaN is made."""
        return jax.debug_nans(True)  # noqa: FBT003  (its only parameter is positional)


backend = Jax(JaxNumpy())
