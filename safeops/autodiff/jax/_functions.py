"""
Nonlinear functions of a cotangent, which the backward pass of a custom_vjp may contain.

Such a pass may ask whether a cotangent is finite, clip it, take its norm, or solve by iteration. An
absent entry enters as 0, its value in JAX. A result that depends on absent entries alone is absent
if the function maps 0 to 0, as sine and clipping do; else it is an active number.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from safeops._backends.jax.private import (
    exponent,
    plain,
    reduced_axes,
    running_axis,
    sorted_axis,
)
from safeops._core.types import Array
from safeops.autodiff._pairs import Pair
from safeops.autodiff.jax._evaluator import (
    Options,
    active_of,
    array_of,
    as_pairs,
    evaluate,
    value_of,
)


def predicate(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Compute booleans or indices, which are coefficients."""
    return plain(eqn, [value_of(x) for x in ins])


def number(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Compute a function that is not 0 at 0: all its results are active."""
    return as_pairs(plain(eqn, [value_of(x) for x in ins]), mask=True)


def power(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Raise to an integer power, which is 0 at 0 if the exponent is positive."""
    keeps = exponent(eqn) > 0
    return as_pairs(plain(eqn, [value_of(ins[0])]), active_of(ins[0]) if keeps else True)


def polynomial(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Any]:
    """Sum coefficients times powers, each product and each sum by its own rule."""
    del eqn

    def horner(x: Array, *coefficients: Array) -> Array:
        total = coefficients[-1]
        for c in reversed(coefficients[:-1]):
            total = total * x + c
        return total

    return evaluate(jax.make_jaxpr(horner)(*map(value_of, ins)), ins, how)


def choose(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Choose an operand, as max, min and clamp do: active where an active one may be chosen."""
    (value,) = plain(eqn, [value_of(x) for x in ins])
    if all(active_of(x) is True for x in ins):
        return [Pair(value)]
    return [Pair(value, jnp.stack([_chosen(x, value) for x in ins]).any(0))]


def _chosen(x: Any, value: Array) -> Array:
    """Return where an operand is active and may have been chosen."""
    own = jnp.asarray(value_of(x))
    mask = jnp.broadcast_to(array_of(x), value.shape)
    return mask & ((own == value) | jnp.isnan(own))


def extreme(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Reduce axes by a function that is 0 for zeros: active where any entry is."""
    (value,) = plain(eqn, [value_of(ins[0])])
    mask = active_of(ins[0])
    if isinstance(mask, bool):
        return [Pair(value, mask)]
    return [Pair(value, mask.any(reduced_axes(eqn)))]


def running(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Reduce cumulatively along an axis: active from the first active entry on."""
    (value,) = plain(eqn, [value_of(ins[0])])
    mask = active_of(ins[0])
    if isinstance(mask, bool):
        return [Pair(value, mask)]
    axis, reverse = running_axis(eqn)
    met = lax.cummax(array_of(ins[0]).astype(jnp.int8), axis, reverse=reverse)
    return [Pair(value, met > 0)]


def order(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Sort along an axis: where any entry along it is active, all are."""
    outs = plain(eqn, [value_of(x) for x in ins])
    axis, found = sorted_axis(eqn), []
    for x, out in zip(ins, outs, strict=True):
        mask = active_of(x)
        if not isinstance(mask, bool):
            mask = jnp.broadcast_to(mask.any(axis, keepdims=True), out.shape)
        found += as_pairs([out], mask)
    return found
