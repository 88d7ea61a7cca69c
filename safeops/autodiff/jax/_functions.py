"""
Functions of a cotangent that are not linear, as a backward pass of the user's own may have them.

It may ask whether a cotangent is finite, clip it, take its norm, or solve by iteration. An absent
entry enters as the 0 that it has in JAX. What comes of it is absent if it is 0 whatever else is
given, as the sine is, or a clipped entry; any other number is a number, and active.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from safeops._typing import Array
from safeops.autodiff._pairs import Pair
from safeops.autodiff.jax._pairs import Options, active_of, array_of, made, plain, value_of


def predicate(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Ask for a truth or an index, which is a coefficient; or return nothing at all."""
    return plain(eqn, [value_of(x) for x in ins])


def number(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Return a function that is not 0 at 0: its results are numbers throughout."""
    return made(plain(eqn, [value_of(x) for x in ins]), mask=True)


def power(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Raise to a whole power: 0 at 0 if that is positive."""
    keeps = eqn.params["y"] > 0
    return made(plain(eqn, [value_of(ins[0])]), active_of(ins[0]) if keeps else True)


def choose(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Choose one of several, as max, min and clamp: active where one that is active may be it."""
    (value,) = plain(eqn, [value_of(x) for x in ins])
    if all(active_of(x) is True for x in ins):
        return [Pair(value)]
    return [Pair(value, jnp.stack([_chosen(x, value) for x in ins]).any(0))]


def _chosen(x: Any, value: Array) -> Array:
    """Return where an argument is active, and is what was chosen."""
    own = jnp.asarray(value_of(x))
    mask = jnp.broadcast_to(array_of(x), value.shape)
    return mask & ((own == value) | jnp.isnan(own))


def extreme(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Reduce axes by what is 0 if all are 0: active where one of the entries is."""
    (value,) = plain(eqn, [value_of(ins[0])])
    mask = active_of(ins[0])
    if isinstance(mask, bool):
        return [Pair(value, mask)]
    return [Pair(value, mask.any(tuple(eqn.params["axes"])))]


def running(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Do so along an axis, up to each entry."""
    (value,) = plain(eqn, [value_of(ins[0])])
    mask = active_of(ins[0])
    if isinstance(mask, bool):
        return [Pair(value, mask)]
    met = lax.cummax(
        array_of(ins[0]).astype(jnp.int8), eqn.params["axis"], reverse=eqn.params["reverse"]
    )
    return [Pair(value, met > 0)]


def order(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Sort along an axis, which may bring any entry to any place of it."""
    outs = plain(eqn, [value_of(x) for x in ins])
    axis, found = eqn.params["dimension"], []
    for x, out in zip(ins, outs, strict=True):
        mask = active_of(x)
        if not isinstance(mask, bool):
            mask = jnp.broadcast_to(mask.any(axis, keepdims=True), out.shape)
        found += made([out], mask)
    return found
