"""
Choosers: operations that select by comparing, with rules that say what was selected.

Exactly four of JAX's rules multiply with 0 or 1 where they select: max, min, reduce_max,
reduce_min; cummax and cummin are made of them. A function runs under a trace that passes each
operation on to the trace below, and replaces these by operations with a rule that selects. Values
stay the same, and so do shares of ties and slopes at NaN. Nothing becomes abstract: Python control
flow on concrete values works.

NaN compares with nothing, so these rules choose no operand where one is NaN, and neither do those
of clamp and of functions with rules of their own, such as relu. Nothing was selected there: the
result is NaN because an operand is, and the slope 0 is a number (`with_used_nan`).
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Jaxpr, JaxprEqn, Literal, jaxpr_as_fun

from safeops._backends.jax.bodies import Program, bodies_in, opened, with_bodies
from safeops._backends.jax.private import Call, Passing, is_where, plain, traced
from safeops._core.types import Array
from safeops.autodiff.jax._evaluator import axes_of, is_inexact


def selecting(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return `f` with choosers in place of max and min."""
    return traced(f, Choosing)


class Choosing(Passing):
    """Pass each operation on to the trace below, choosers in place of max and min."""

    def operation(self, primitive: Any, args: Any, params: Any) -> Any:
        with self.below():
            chooser = chooser_of(primitive.name, args)
            if chooser:
                return chooser(*args, **params)
            chosen = with_bodies(params, _chosen)
            return using_nan(primitive.name, params, args, primitive.bind(*args, **chosen))

    def shards(self, call: Call, args: Any) -> Any:
        """Run a sharded function, in which an operation is passed on likewise."""
        return super().shards(call.of_changed(selecting), args)

    def ruled(self, call: Call, args: Any) -> Any:
        """Run a function with a rule of its own; that of a backward pass has data as arguments."""
        with self.below():
            if call.is_reverse:
                args = list(map(_as_data, args))
            return all_using_nan(super().ruled(call, args), args)


def chosen_equation(eqn: JaxprEqn, ins: Sequence[Any]) -> list[Array]:
    """Run one equation, a chooser in place of a max or min, also in the steps of a loop."""
    name, params = eqn.primitive.name, eqn.params
    if (chooser := chooser_of(name, ins)) is not None:
        return [chooser(*ins, **params)]
    if name in ("scan", "while"):
        eqn = eqn.replace(params=with_bodies(params, _chosen))
    return list(using_nan(name, params, ins, plain(eqn, ins)))


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
        eqn.primitive.name in (*CHOOSERS, *WITH_RULES)
        or _has_nan(eqn.params, [x.val for x in eqn.invars if isinstance(x, Literal)])
        or any(map(_has_choosers, bodies_in(eqn.params)))
        for eqn in jaxpr.eqns
    )


WITH_RULES = ("custom_jvp_call", "custom_vjp_call")  # functions with derivative rules of their own


def chooser_of(name: str, args: Sequence[Any]) -> Callable[..., Array] | None:
    """Return the chooser in place of an operation; None if there is none for it."""
    is_real = name in CHOOSERS and jnp.issubdtype(jnp.result_type(args[0]), jnp.floating)
    return CHOOSERS[name] if is_real else None


def _has_nan(params: Mapping[str, Any], args: Sequence[Any]) -> bool:
    """Whether an operation is a `where` with a literal NaN in it, as a median has."""
    return is_where(params) and any(map(_is_literal_nan, args))


def _is_literal_nan(x: Any) -> bool:
    is_number = not isinstance(x, jax.core.Tracer) and np.ndim(x) == 0
    return is_number and is_inexact(x) and bool(np.isnan(x))


def using_nan(name: str, params: Mapping[str, Any], args: Sequence[Any], outs: Any) -> Any:
    """Return results of an operation; with a rule of its own, or a literal NaN, they use NaN."""
    if _has_nan(params, args):  # which does not tell the entry that it is because of
        return all_using_nan(outs, args, entries=False)
    return all_using_nan(outs, args) if name in WITH_RULES else outs


def all_using_nan(outs: Any, args: Sequence[Any], *, entries: bool = True) -> Any:
    """Return results, each of which depends, where it is NaN, on the arguments."""
    if not isinstance(outs, (tuple, list)):
        return all_using_nan([outs], args, entries=entries)[0]
    operands = list(filter(is_inexact, args))
    return type(outs)(
        with_used_nan(entries, out, *operands) if operands and is_inexact(out) else out
        for out in outs
    )


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def with_used_nan(entries: bool, out: Array, *operands: Array) -> Array:  # noqa: FBT001  (custom_jvp takes no keywords)
    """Return a result, of which an entry that is NaN depends on its operands."""
    # A rule that selects by comparing lets no cotangent through to an operand that is NaN. If the
    # entry is used, such an operand is used too: its slope is the number 0, and 0 * NaN is NaN. It
    # is the same entry of an operand of the same shape, with `entries`. Else there is no telling,
    # and all entries are used.
    del entries, operands
    return out


def _used_nan_rule(entries: bool, primals: Any, tangents: Any) -> tuple[Array, Any]:  # noqa: FBT001  (as above)
    (out, *_), (own, *others) = primals, tangents
    parts = [_slope_at_nan(t, out, entries=entries) for t in others if not _is_none(t)]
    return out, _sum([*([] if _is_none(own) else [own]), *parts], out)


def _slope_at_nan(tangent: Array, out: Array, *, entries: bool) -> Array:
    """Return 0 times a tangent, or the sum of its entries, where a result is NaN."""
    zero = 0 * tangent
    zero = zero if entries and zero.shape == out.shape else zero.sum()
    if axes := tuple(sorted(axes_of(zero) - axes_of(out))):  # of a mesh, of which it is a sum
        zero = lax.psum(zero, axes)
    is_part = jnp.iscomplexobj(zero) and not jnp.iscomplexobj(out)
    return jnp.where(jnp.isnan(out), (zero.real if is_part else zero).astype(out.dtype), 0)


def _is_none(tangent: Any) -> bool:
    """Whether there is no tangent: the argument is not differentiated with respect to."""
    return isinstance(tangent, SymbolicZero)


def _sum(parts: Sequence[Array], like: Array) -> Array:
    return reduce(operator.add, parts) if parts else jnp.zeros_like(like)


with_used_nan.defjvp(_used_nan_rule, symbolic_zeros=True)


def _of_two(function: Callable[..., Array], x: Array, y: Array, **params: Any) -> Array:
    """Return the extreme of two; the gradient goes to it, half to each in a tie."""
    del params

    @jax.custom_jvp
    def choose(x: Array, y: Array) -> Array:
        return function(x, y)

    def rule(args: Any, tangents: Any) -> tuple[Array, Any]:
        (x, y), best = args, function(*args)
        share = jnp.where(x == y, 0.5, _slope_of(best)).astype(best.dtype)
        x_loses, y_loses = (x > y, y > x) if function is lax.min else (x < y, y < x)
        return best, _sum_of_chosen(share, (x_loses, y_loses), tangents)

    choose.defjvp(rule, symbolic_zeros=True)
    return choose(x, y)


def _clamped(low: Array, x: Array, high: Array, **params: Any) -> Array:
    """Return the middle of three; as in JAX, the gradient at the ends is 0."""

    @jax.custom_jvp
    def clamp(low: Array, x: Array, high: Array) -> Array:
        return lax.clamp_p.bind(low, x, high, **params)

    def rule(args: Any, tangents: Any) -> tuple[Array, Any]:
        (low, x, high), out = args, clamp(*args)
        absent = ((low <= x) | (low >= high), (x <= low) | (x >= high), high >= x)
        return out, _sum_of_chosen(_slope_of(out), absent, tangents)

    clamp.defjvp(rule, symbolic_zeros=True)
    return clamp(low, x, high)


def _slope_of(out: Array) -> Array:
    """Return the slope to what was chosen: 1, but the number 0 where that is NaN, as in JAX."""
    return jnp.where(jnp.isnan(out), 0, jnp.ones((), out.dtype))


def _sum_of_chosen(slope: Array, absent: Sequence[Array], tangents: Sequence[Any]) -> Any:
    """Return the sum of the tangents that are chosen; NaN compares with nothing, and is chosen."""
    pairs = zip(absent, tangents, strict=True)
    parts = [
        jnp.where(lost, jnp.zeros_like(slope), slope * t) for lost, t in pairs if not _is_none(t)
    ]
    return _sum(parts, slope)


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
    "clamp": _clamped,
    "reduce_max": partial(_of_many, lax.reduce_max_p.bind),
    "reduce_min": partial(_of_many, lax.reduce_min_p.bind),
    "cummax": partial(_running, _max),
    "cummin": partial(_running, _min),
}
