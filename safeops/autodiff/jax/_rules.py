"""
The class of each primitive of JAX, and the rules of those that no other file has.

If one of the entries that a solve or a transform mixes is active, all are. An absent right-hand
side has an absent solution, whatever the matrix.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from safeops._backends.jax import private
from safeops._core.types import Array
from safeops.autodiff._pairs import Pair
from safeops.autodiff.jax import _contractions as contractions
from safeops.autodiff.jax import _control as control
from safeops.autodiff.jax import _evaluator as evaluator
from safeops.autodiff.jax._evaluator import Mask, Options


def triangular_solve(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Any]:
    """Solve with triangular matrices: right-hand sides are independent."""
    return _solve(eqn, ins, how, -2 if private.is_left(eqn) else -1)


def tridiagonal_solve(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Any]:
    """Solve with tridiagonal matrices: right-hand sides are independent."""
    return _solve(eqn, ins, how, -2)


def _solve(eqn: JaxprEqn, ins: list[Any], how: Options, axis: int) -> list[Any]:
    """Solve with matrices, which are coefficients and the first arguments."""
    *matrices, right = ins
    if any(isinstance(x, Pair) for x in matrices):
        return evaluator.unknown(eqn, ins, how)
    return _mixed(eqn, ins, _any_of(right, (axis,)))


def transform(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Fourier-transform along the last axes."""
    return _mixed(eqn, ins, _any_of(ins[0], private.transformed_axes(eqn)))


def nothing_or_nan(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Let through NaN, where a loss depends on a choice of vectors, or nothing: no number."""
    values = evaluator.run(eqn, ins)
    if all(evaluator.active_of(x) is True for x in ins[: len(values)]):
        return evaluator.as_pairs(values, mask=True)
    return [evaluator.cleared(x, jnp.isnan(x)) for x in values]


def _any_of(x: Any, axes: Any) -> Mask:
    """Return where any entry along axes is active; the axes are kept."""
    mask = evaluator.active_of(x)
    return mask if isinstance(mask, bool) else mask.any(tuple(axes), keepdims=True)


def _mixed(eqn: JaxprEqn, ins: list[Any], some: Mask) -> list[Any]:
    """Return results with a mask, which may have length 1 along mixed axes."""
    values = evaluator.run(eqn, ins)
    if isinstance(some, bool):
        return (
            evaluator.as_pairs(values, mask=True)
            if some
            else [_kept(x, jnp.zeros((), bool)) for x in values]
        )
    return [evaluator.cleared(x, jnp.broadcast_to(some, x.shape)) for x in values]


def linear_solve(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Any]:
    """Solve a linear system, with a solver of JAX or of the user."""
    # The solution is computed as ever. The inverse of a matrix is a polynomial in it, so the mask
    # of the solution is the mask of the right-hand side, spread by the matrix until it grows no
    # more.
    values = evaluator.run(eqn, ins)
    system = private.system_of(eqn)
    right = ins[system.constants :]
    if all(evaluator.active_of(x) is True for x in right):
        return evaluator.as_pairs(values, mask=True)
    consts = [lax.stop_gradient(evaluator.value_of(x)) for x in ins[: system.fixed]]
    entries = [lax.stop_gradient(evaluator.value_of(x)) for x in right]

    def spread_once(masks: Any) -> list[Array]:
        pairs = [Pair(x, m) for x, m in zip(entries, masks, strict=True)]
        outs = evaluator.evaluate(system.product, [*consts, *pairs], how)
        return [m | evaluator.array_of(x) for m, x in zip(masks, outs, strict=True)]

    def grows(masks: Any) -> Array:
        before, after = masks
        return jnp.stack([(a != b).any() for a, b in zip(before, after, strict=True)]).any()

    start = [evaluator.array_of(x) for x in right]
    _, masks = lax.while_loop(
        grows, lambda m: (m[1], spread_once(m[1])), (start, spread_once(start))
    )
    return [evaluator.cleared(v, m) for v, m in zip(values, masks, strict=True)]


def solve_all(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Solve one system of equations, as lineax does: all entries are mixed."""
    some = jnp.stack([evaluator.array_of(x).any() for x in ins if isinstance(x, Pair)]).any()
    return [_kept(x, some) for x in evaluator.run(eqn, ins)]


def mapped(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Run an operation that equinox maps over an axis (`vprim`); results have it as axis 0."""
    some = jnp.zeros((), bool)
    for x, axis in zip(ins, private.mapped_axes(eqn), strict=True):
        if isinstance(x, Pair):
            mask = evaluator.array_of(x)
            some |= mask.any() if axis is None else mask.any(_but(axis, mask.ndim))
    values = evaluator.run(eqn, ins)
    return [_kept(x, some.reshape(some.shape + (1,) * (x.ndim - some.ndim))) for x in values]


def _but(axis: int, ndim: int) -> tuple[int, ...]:
    return tuple(i for i in range(ndim) if i != axis % ndim)


def _kept(value: Array, some: Array) -> Any:
    """Return a result with a mask; a finite number other than 0 is active in any case."""
    if not evaluator.is_inexact(value):
        return value
    number = jnp.isfinite(value) & (value != 0)
    return evaluator.cleared(value, jnp.broadcast_to(some, value.shape) | number)


# Nonlinear functions of a cotangent, which the backward pass of a custom_vjp may contain.
#
# Such a pass may ask whether a cotangent is finite, clip it, take its norm, or solve by iteration.
# An absent entry enters as 0, its value in JAX. A result that depends on absent entries alone is
# absent if the function maps 0 to 0, as sine and clipping do; else it is an active number.


def predicate(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Compute booleans or indices, which are coefficients."""
    return evaluator.run(eqn, ins)


def number(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Compute a function that is not 0 at 0: all its results are active."""
    return evaluator.as_pairs(evaluator.run(eqn, ins), mask=True)


def power(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Raise to an integer power, which is 0 at 0 if the exponent is positive."""
    mask = evaluator.active_of(ins[0]) if private.exponent(eqn) > 0 else True
    return evaluator.as_pairs(evaluator.run(eqn, ins[:1]), mask)


def polynomial(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Any]:
    """Sum coefficients times powers, each product and each sum by its own rule."""
    del eqn

    def horner(x: Array, *coefficients: Array) -> Array:
        total = coefficients[-1]
        for c in reversed(coefficients[:-1]):
            total = total * x + c
        return total

    return evaluator.evaluate(jax.make_jaxpr(horner)(*map(evaluator.value_of, ins)), ins, how)


def choose(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Choose an operand, as max, min and clamp do: active where an active one may be chosen."""
    (value,) = evaluator.run(eqn, ins)
    if all(evaluator.active_of(x) is True for x in ins):
        return [Pair(value)]
    return [Pair(value, jnp.stack([_chosen(x, value) for x in ins]).any(0))]


def _chosen(x: Any, value: Array) -> Array:
    """Return where an operand is active and may have been chosen."""
    own = jnp.asarray(evaluator.value_of(x))
    mask = jnp.broadcast_to(evaluator.array_of(x), value.shape)
    return mask & ((own == value) | jnp.isnan(own))


def extreme(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Reduce axes by a function that is 0 for zeros: active where any entry is."""
    (value,) = evaluator.run(eqn, ins[:1])
    mask = evaluator.active_of(ins[0])
    return [Pair(value, mask if isinstance(mask, bool) else mask.any(private.reduced_axes(eqn)))]


def running(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Reduce cumulatively along an axis: active from the first active entry on."""
    (value,) = evaluator.run(eqn, ins[:1])
    mask = evaluator.active_of(ins[0])
    if isinstance(mask, bool):
        return [Pair(value, mask)]
    axis, reverse = private.running_axis(eqn)
    met = lax.cummax(evaluator.array_of(ins[0]).astype(jnp.int8), axis, reverse=reverse)
    return [Pair(value, met > 0)]


def order(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Sort along an axis: where any entry along it is active, all are."""
    outs = evaluator.run(eqn, ins)
    axis, found = private.sorted_axis(eqn), []
    for x, out in zip(ins, outs, strict=True):
        mask = evaluator.active_of(x)
        if not isinstance(mask, bool):
            mask = jnp.broadcast_to(mask.any(axis, keepdims=True), out.shape)
        found += evaluator.as_pairs([out], mask)
    return found


# An operation that is not listed is unknown.
CLASSES = {
    evaluator.transport: """
        reshape transpose broadcast_in_dim squeeze slice dynamic_slice dynamic_update_slice rev copy
        stack unstack tile
        copy_p gather concatenate pad split scatter all_gather all_gather_invariant
        all_gather_reduced all_to_all ppermute pbroadcast pbroadcast_dynamic
    """,
    evaluator.same: """
        neg real imag conj convert_element_type reduce_precision sharding_constraint
        layout_constraint mesh_cast reshard pvary name stop_gradient nondifferentiable_backward
        relayout stage
        abs sign sqrt cbrt square sin tan asin atan sinh tanh asinh atanh expm1 log1p erf erf_inv
        round floor ceil
    """,
    evaluator.barrier: "optimization_barrier device_put",
    evaluator.add: "add add_any sub complex",
    evaluator.total: """
        reduce_sum cumsum reduce_window_sum psum psum_invariant unreduced_psum reduce_scatter
        unreduced_reduce_scatter
    """,
    evaluator.scatter_add: "scatter-add scatter-sub",
    evaluator.scatter_mul: "scatter-mul",
    evaluator.unpool: "select_and_scatter_add select_and_gather_add",
    evaluator.select: "select_n",
    evaluator.select_if: "select_if_vmap",  # of equinox
    evaluator.scale: "mul div",
    contractions.contract: "dot_general",
    contractions.convolve: "conv_general_dilated",
    evaluator.call: """
        jit pjit closed_call core_call checkpoint remat2 composite eval_jaxpr
    """,
    evaluator.call_with_rule: "custom_jvp_call custom_vjp_call",
    control.scan: "scan",
    control.while_loop: "while",
    control.cond: "cond",
    control.shard_map: "shard_map",
    triangular_solve: "triangular_solve",
    tridiagonal_solve: "tridiagonal_solve",
    transform: "fft",
    linear_solve: "custom_linear_solve",
    nothing_or_nan: "safeops_barrier",
    solve_all: "linear_solve",  # of lineax
    mapped: "vprim",  # of equinox
    predicate: """
        is_finite eq ne lt le gt ge eq_to lt_to le_to and or xor not argmax argmin reduce_and
        reduce_or reduce_xor debug_callback debug_print dce_sink
    """,
    number: """
        exp exp2 log log2 logistic cos cosh acos acosh rsqrt pow atan2 rem nextafter erfc lgamma
        digamma polygamma igamma igammac bessel_i0e bessel_i1e regularized_incomplete_beta
        bitcast_convert_type one_minus_square
    """,
    polynomial: "polynomial",
    power: "integer_pow",
    choose: "max min clamp",
    extreme: "reduce_max reduce_min reduce_prod",
    running: "cummax cummin cumprod",
    order: "sort",
}
RULES = {name: rule for rule, names in CLASSES.items() for name in names.split()}
