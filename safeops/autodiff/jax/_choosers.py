"""
Choosers: operations that select, although JAX differentiates them by multiplying with 0 or 1.

Exactly four of JAX's rules multiply so: max, min, reduce_max, reduce_min; cummax and cummin are
made of them. A function runs under a trace that passes each operation on to the trace below, and
replaces these by operations with a rule that selects. Values stay the same, and so do shares of
ties and slopes at NaN. Nothing becomes abstract: Python control flow on concrete values works.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, jaxpr_as_fun

from safeops._backends.jax.private import (
    Call,
    Passing,
    Program,
    bodies_in,
    opened,
    traced,
    with_bodies,
)
from safeops._typing import Array
from safeops.autodiff.jax._pairs import is_inexact


def selecting(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return `f` with choosers in place of max and min."""
    return traced(f, Choosing)


class Choosing(Passing):
    """Pass each operation on to the trace below, choosers in place of max and min."""

    def operation(self, primitive: Any, args: Any, params: Any) -> Any:
        """Run one operation."""
        with self.below():
            chooser = CHOOSERS.get(primitive.name)
            if chooser and jnp.issubdtype(jnp.result_type(args[0]), jnp.floating):
                return chooser(*args, **params)
            params = {key: with_bodies(value, _chosen) for key, value in params.items()}
            return primitive.bind(*args, **params)

    def ruled(self, call: Call, args: Any) -> Any:
        """Run a function with a rule of its own; that of a backward pass has data as arguments."""
        if call.is_reverse:
            with self.below():
                args = list(map(_as_data, args))
        return super().ruled(call, args)


def _as_data(x: Any) -> Any:
    """Return a number as an array, which is not taken for a literal of the rule's program."""
    is_number = not isinstance(x, jax.Array) and np.ndim(x) == 0 and is_inexact(x)
    return jnp.asarray(x) if is_number else x


def _chosen(program: Program) -> Program:
    """Return a body with choosers in place of max and min."""
    return _rewritten(program) if _has_choosers(opened(program)) else program


@lru_cache(maxsize=1024)
def _rewritten(program: Program) -> Program:
    return jax.make_jaxpr(selecting(jaxpr_as_fun(program)))(*program.in_avals)


@lru_cache(maxsize=4096)
def _has_choosers(jaxpr: Jaxpr) -> bool:
    return any(
        eqn.primitive.name in CHOOSERS or any(map(_has_choosers, bodies_in(eqn.params)))
        for eqn in jaxpr.eqns
    )


def _of_two(function: Callable[..., Array], x: Array, y: Array, **params: Any) -> Array:
    """Return the extreme of two; the gradient goes to it, half to each in a tie."""
    del params

    @jax.custom_jvp
    def choose(x: Array, y: Array) -> Array:
        return function(x, y)

    @choose.defjvp
    def rule(args: Any, tangents: Any) -> tuple[Array, Array]:
        x, y = args
        (dx, dy), best = tangents, function(x, y)
        only = jnp.where(x == best, dx, jnp.where(y == best, dy, 0))
        return best, jnp.where((x == best) & (y == best), (dx + dy) * 0.5, only)

    return choose(x, y)


def _of_many(function: Callable[..., Array], x: Array, *, axes: Any, **params: Any) -> Array:
    """Return the extreme along axes; ties share the gradient evenly."""

    @jax.custom_jvp
    def choose(x: Array) -> Array:
        return function(x, axes=axes, **params)

    @choose.defjvp
    def rule(args: Any, tangents: Any) -> tuple[Array, Array]:
        (x,), (dx,) = args, tangents
        best = function(x, axes=axes, **params)
        spread = lax.expand_dims(best, axes)
        shares = jnp.sum(x == spread, axes).astype(x.dtype)
        shares = jnp.where(jnp.isnan(best), jnp.nan, shares)  # a NaN makes all slopes NaN
        is_best = (x == spread) | jnp.isnan(spread)
        return best, jnp.sum(jnp.where(is_best, dx, 0), axes) / shares

    return choose(x)


def _running(of_two: Callable[..., Array], x: Array, *, axis: int, reverse: bool) -> Array:
    return lax.associative_scan(of_two, x, axis=axis, reverse=reverse)


_max, _min = partial(_of_two, lax.max), partial(_of_two, lax.min)
CHOOSERS: dict[str, Callable[..., Array]] = {
    "max": _max,
    "min": _min,
    "reduce_max": partial(_of_many, lax.reduce_max_p.bind),
    "reduce_min": partial(_of_many, lax.reduce_min_p.bind),
    "cummax": partial(_running, _max),
    "cummin": partial(_running, _min),
}
