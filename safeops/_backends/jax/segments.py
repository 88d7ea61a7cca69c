"""The largest entry of each segment, with the rule that counts ties by one scatter."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from safeops._backends.jax.rules import Context, _wide
from safeops._core.types import Array, Function


def _added(x: Array, ids: Array, number: int) -> Array:
    return jnp.zeros((number, *x.shape[1:]), x.dtype).at[ids].add(x, mode="drop")


@partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _extreme_of(x: Array, ids: Array, number: int, sign: int) -> Array:
    """Return the largest entry of each segment for sign 1; NaN counts, and is passed on."""
    first = jnp.full((number, *x.shape[1:]), -sign * math.inf, x.dtype).at[ids]
    return first.max(x, mode="drop") if sign == 1 else first.min(x, mode="drop")


@_extreme_of.defjvp
def _extreme_jvp(number: int, sign: int, given: Any, dots: Any) -> tuple[Array, Array]:
    """Share evenly among the entries that tie; beside a NaN all do, and their slope is NaN."""
    (x, ids), (dot, _) = given, dots
    out = _extreme_of(x, ids, number, sign)
    here = out.at[ids].get(mode="fill", fill_value=0)
    inside = (ids < number).reshape(-1, *[1] * (x.ndim - 1))
    ties = inside & ((x == here) | jnp.isnan(here))
    many = _added(ties.astype(x.dtype), ids, number)
    share = jnp.where(jnp.isnan(out), math.nan, 1 / jnp.where(many == 0, 1, many))
    return out, _added(jnp.where(ties, dot, 0), ids, number) * share


def _extreme(
    sign: int,
    context: Context,
    data: Array,
    segment_ids: Any,
    num_segments: Any,
    /,
    *,
    where: Any = None,
    fill_value: Any = math.nan,
) -> Array | None:
    if where is not None or type(num_segments) is not int or num_segments < 1:
        return None  # the generic function knows the way, or says what is wrong
    if not isinstance(segment_ids, jax.Array) or segment_ids.ndim != 1:
        return None
    if not jnp.issubdtype(segment_ids.dtype, jnp.signedinteger):
        return None
    if type(fill_value) not in (int, float):  # an array would take part in promotion
        return None
    (x,) = context.backend.promoted((data,))
    if not x.size or x.shape[:1] != segment_ids.shape:
        return None
    backend: Any = context.backend
    ids = backend.as_index(segment_ids)
    ids = jnp.where((ids >= 0) & (ids < num_segments), ids, num_segments)  # dropped
    often = jnp.zeros(num_segments, ids.dtype).at[ids].add(1, mode="drop")
    empty = (often == 0).reshape(-1, *[1] * (x.ndim - 1))
    out = jnp.where(empty, 0, _extreme_of(_wide(x), ids, num_segments, sign))
    return jnp.where(empty, fill_value, out.astype(x.dtype))


KERNELS: dict[str, Function] = {
    "segment_max": partial(_extreme, 1),
    "segment_min": partial(_extreme, -1),
}
