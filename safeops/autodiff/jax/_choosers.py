"""
Choosers: operations that select, and that JAX differentiates by multiplying with 0 or 1.

Of JAX's rules exactly four do that: max, min, reduce_max, reduce_min; cummax and cummin go through
them. A function runs under a trace that passes everything on to the trace below, and puts an
operation with a rule that selects in the place of each of these. Values are the same, and so are
the shares of a tie and what happens at NaN. Nothing is abstract, so that Python control flow on
concrete values works.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from safeops._typing import Array
from safeops.autodiff.jax._pairs import bodies_in, is_inexact

try:
    from jax.core import Trace
    from jax.extend.core import find_top_trace, set_current_trace
except ImportError:  # before 0.10 they were private
    from jax._src.core import Trace, find_top_trace, set_current_trace


def selecting(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return `f` with choosers in place of max and min."""
    return traced(f, Choosing)


def traced(f: Callable[..., Any], over: Callable[[Any], "Choosing"]) -> Callable[..., Any]:
    """Return `f` under a trace over the one of its arguments."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with set_current_trace(over(find_top_trace(args))):
            return f(*args, **kwargs)

    return wrapped


class Choosing(Trace):
    """Pass each operation on to the trace below, choosers in place of max and min."""

    def __init__(self, parent: Any) -> None:
        super().__init__()
        self.parent_trace = parent
        self.requires_low = getattr(parent, "requires_low", True)

    def below(self) -> Any:
        """Return a context in which operations go to the trace below."""
        return set_current_trace(self.parent_trace)

    def process_primitive(self, primitive: Any, args: Any, params: Any, /) -> Any:
        """Run one operation."""
        with self.below():
            chooser = CHOOSERS.get(primitive.name)
            if chooser and jnp.issubdtype(jnp.result_type(args[0]), jnp.floating):
                return chooser(*args, **params)
            params = {key: _chosen(value) for key, value in params.items()}
            return primitive.bind(*args, **params)

    def stage_value(self, value: Any) -> Any:
        """Take in a constant."""
        with self.below():
            return self.parent_trace.stage_value(value)

    def process_call(self, primitive: Any, f: Any, args: Any, params: Any, /) -> Any:
        """Run a call."""
        with self.below():
            return self.parent_trace.process_call(primitive, f, args, params)

    def process_shard_map(self, *args: Any, **params: Any) -> Any:
        """Run a sharded function, whose own max and min stay JAX's."""
        with self.below():
            return self.parent_trace.process_shard_map(*args, **params)

    def process_custom_jvp_call(
        self, primitive: Any, f: Any, rule: Any, args: Any, /, **how: Any
    ) -> Any:
        """Run a function that has a rule of its own, which stays."""
        with self.below():
            return self.parent_trace.process_custom_jvp_call(primitive, f, rule, args, **how)

    def process_custom_vjp_call(
        self, primitive: Any, f: Any, forward: Any, backward: Any, args: Any, /, **how: Any
    ) -> Any:
        """Run a function that has a rule of its own, which stays; its arguments are data."""
        with self.below():
            return self.parent_trace.process_custom_vjp_call(
                primitive, f, forward, backward, list(map(_as_data, args)), **how
            )


def _as_data(x: Any) -> Any:
    """Return a number as an array: else it would look like a literal of the rule's own text."""
    is_number = not isinstance(x, jax.Array) and np.ndim(x) == 0 and is_inexact(x)
    return jnp.asarray(x) if is_number else x


def _chosen(param: Any) -> Any:
    """Return the bodies among the parameters of an operation with choosers in them."""
    if isinstance(param, (tuple, list)) and any(isinstance(x, ClosedJaxpr) for x in param):
        return getattr(type(param), "_make", type(param))(map(_chosen, param))
    if isinstance(param, ClosedJaxpr) and _has_choosers(param.jaxpr):
        return _rewritten(param)
    if isinstance(param, Jaxpr) and _has_choosers(param):
        return _rewritten(ClosedJaxpr(param, ())).jaxpr
    return param


@lru_cache(maxsize=1024)
def _rewritten(closed: ClosedJaxpr) -> ClosedJaxpr:
    return jax.make_jaxpr(selecting(jaxpr_as_fun(closed)))(*closed.in_avals)


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
