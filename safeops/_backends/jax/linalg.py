"""
Determinants by triangular factors, on a CPU, where no matrix is nearly singular.

The steps of `safe_det` take a singular value decomposition, which takes five times as long.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from safeops._backends.jax.rules import Context, branched
from safeops._core.dtypes import limits
from safeops._core.types import Array, Function

# Of the norms of a matrix and its inverse, as a product. Up to here the adjugate has as many digits
# as by singular values.
_MOST = 1e3


def _factors(a: Array) -> tuple[Array, Array, Array, Array]:
    """Return the determinant, whether it is right, triangular factors, and the rows' order."""
    factors, pivots, order = jax.lax.linalg.lu(a)
    moved = pivots != jnp.arange(a.shape[-1], dtype=pivots.dtype)
    turn = jnp.where(moved, -1, jnp.ones(moved.shape, a.dtype))
    pivot = jnp.diagonal(factors, axis1=-2, axis2=-1)
    value = jnp.prod(turn * pivot, -1)
    size, bound = jnp.abs(value), limits(jnp, value)
    inside = (size >= bound.smallest_normal / bound.eps) & (size <= bound.max)
    # A multiplier of rows that is flushed to 0 takes with it what is not small beside a pivot.
    least = bound.smallest_normal / bound.eps * jnp.sum(jnp.abs(factors), (-2, -1))
    kept = jnp.min(jnp.abs(pivot), -1) >= least
    return value, inside & kept, factors, order


def _value(steps: Function, a: Array) -> Array:
    value, inside, _, _ = _factors(a)
    return jax.lax.cond(jnp.all(inside), lambda _: value, steps, a)


def _with_slope(steps: Function, a: Array) -> tuple[Array, Array]:
    """Return the determinant and the transpose of the adjugate, by the inverse or by steps."""
    value, inside, factors, order = _factors(a)
    ones = jnp.eye(a.shape[-1], dtype=a.dtype)
    factors = jnp.where(inside[..., None, None], factors, ones)  # nothing is divided by 0
    solve = partial(jax.lax.linalg.triangular_solve, factors, left_side=True)
    inverse = solve(solve(ones[order], lower=True, unit_diagonal=True), lower=False)
    slope = value[..., None, None] * jnp.matrix_transpose(inverse)
    near = [jnp.sum(x * x, (-2, -1)) for x in (a, inverse)]
    usual = jnp.all(inside & (near[0] * near[1] <= _MOST * _MOST)) & jnp.all(jnp.isfinite(slope))
    return jax.lax.cond(usual, lambda _: (value, slope), steps, a)


def _determinant(context: Context, a: Array) -> Array | None:
    is_square = a.ndim > 1 and a.shape[-1] == a.shape[-2]
    if a.dtype not in (jnp.float32, jnp.float64) or not is_square or not a.size:
        return None
    return _with_rules(context.generic)(a)


def _with_rules(generic: Function) -> Function:
    """Return the determinant; its derivatives of the second order are those of the steps."""

    def steps(a: Array) -> tuple[Array, Array]:
        value, pull = jax.vjp(generic, a)
        return value, pull(jnp.ones_like(value))[0]

    with_slope: Any = jax.custom_jvp(branched(_with_slope, steps))
    det: Any = jax.custom_jvp(branched(_value, generic))

    @with_slope.defjvp
    def bent(given: Any, dots: Any) -> tuple[Any, Any]:
        value, slope = with_slope(*given)
        _, bend = jax.jvp(lambda a: steps(a)[1], given, dots)
        return (value, slope), (jnp.sum(slope * dots[0], (-2, -1)), bend)

    @det.defjvp
    def moved(given: Any, dots: Any) -> tuple[Array, Array]:
        value, slope = with_slope(*given)
        return value, jnp.sum(slope * dots[0], (-2, -1))

    return det


KERNELS: dict[str, Function] = {"safe_det": _determinant}
