"""
The evaluator: a linear JAX program, run over pairs of a value and what of it is active.

JAX has transposed (or linearised) the program already; what is left to do is to run it forwards
with an arithmetic in which an entry may be absent. No derivative is written in this file. The table
in `safeops.autodiff.jax` gives each primitive its class; one function here serves a class.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from safeops._typing import Array
from safeops.autodiff._unknown import tell

# True: all entries are active, and there is nothing to do; False: none is. An array of NumPy is
# known when the program is traced, and is folded; one of JAX is not.
Mask: TypeAlias = bool | np.ndarray | Array


@dataclass(frozen=True)
class Pair:
    """A linear value, which is 0 wherever it is not active."""

    value: Array
    active: Mask = True


@dataclass(frozen=True)
class Options:
    """What the user chose."""

    rules: Mapping[str, "Rule"]
    exact: bool = False
    on_unknown: str = "warn"


Rule: TypeAlias = Callable[[JaxprEqn, list[Any], Options], list[Any]]


def evaluate(jaxpr: Jaxpr, consts: Sequence[Array], args: Sequence[Any], how: Options) -> list[Any]:
    """
    Return the outputs of a linear program, whose arguments are pairs, and coefficients.

    What depends on no Pair is a coefficient, and computed as ever.
    """
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    known |= dict(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    for eqn in jaxpr.eqns:
        ins = [read(atom) for atom in eqn.invars]
        if any(isinstance(x, Pair) for x in ins):
            outs = how.rules.get(eqn.primitive.name, unknown)(eqn, ins, how)
        else:
            outs = plain(eqn, ins)
        known |= dict(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def plain(eqn: JaxprEqn, ins: Sequence[Any]) -> list[Array]:
    """Run one equation as it is."""
    params = eqn.primitive.get_bind_params(eqn.params)
    # Before 0.10 the functions of a call stood beside the parameters.
    functions, params = params if isinstance(params, tuple) else ((), params)
    out = eqn.primitive.bind(*functions, *ins, **params)
    return list(out) if eqn.primitive.multiple_results else [out]


def bodies_in(params: Mapping[str, Any]) -> list[Jaxpr]:
    """Return the programs among the parameters of an operation."""
    every = [x for p in params.values() for x in (p if isinstance(p, (tuple, list)) else (p,))]
    closed = [x.jaxpr if isinstance(x, ClosedJaxpr) else x for x in every]
    return [x for x in closed if isinstance(x, Jaxpr)]


# Masks


def value_of(x: Any) -> Array:
    """Return the value of a pair, or the coefficient itself."""
    return x.value if isinstance(x, Pair) else x


def active_of(x: Any) -> Mask:
    """Return what is active. A coefficient where a linear value belongs can only be 0: absent."""
    return x.active if isinstance(x, Pair) else False


def is_known(mask: Mask) -> bool:
    """Whether a mask is known when the program is traced."""
    return isinstance(mask, (bool, np.ndarray))


def folded(mask: Mask) -> Mask:
    """Return True or False for a known mask that is so throughout."""
    if isinstance(mask, np.ndarray):
        return True if mask.all() else bool(mask.any()) and mask
    return mask


def spread(mask: Mask, shape: tuple[int, ...]) -> Any:
    """Return a mask as an array of a shape; arithmetic in a jaxpr repeats axes of length 1."""
    if isinstance(mask, bool):
        return np.full(shape, mask)
    if mask.shape == shape:
        return mask
    return (np if isinstance(mask, np.ndarray) else jnp).broadcast_to(mask, shape)


def widened(mask: Mask, shape: tuple[int, ...]) -> Mask:
    """Return a mask in a shape, True and False as they are."""
    return mask if isinstance(mask, bool) else spread(mask, shape)


def shape_of(x: Any) -> tuple[int, ...]:
    """Return the shape of a value."""
    return tuple(np.shape(value_of(x)))


def union(*masks: Mask) -> Mask:
    """Return where one of several masks of the same shape is active."""
    if any(m is True for m in masks):
        return True
    arrays = [m for m in masks if m is not False]
    if not arrays:
        return False
    total = arrays[0]
    for mask in arrays[1:]:
        total = total | mask
    return folded(total)


def on_masks(f: Callable[..., Any], *masks: Any) -> Mask:
    """Return a function of masks; that of known ones is known."""
    if all(is_known(m) for m in masks):
        with jax.ensure_compile_time_eval():
            return folded(np.asarray(f(*(jnp.asarray(m) for m in masks))))
    return f(*masks)


# Classes


def transport(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Move entries: the same operation on the mask, where what is filled in is absent."""
    operands = _moved(eqn)
    values = plain(eqn, [value_of(x) for x in ins])
    if all(active_of(ins[i]) is False for i in operands):
        return [Pair(v, active=False) for v in values]
    if eqn.primitive.name in _FILLS_NOTHING and all(active_of(ins[i]) is True for i in operands):
        return [Pair(v) for v in values]
    params = _without_fill(eqn)

    def move(*masks: Any) -> Any:
        moved = iter(masks)
        every = [next(moved) if i in operands else value_of(x) for i, x in enumerate(ins)]
        return eqn.primitive.bind(*every, **params)

    masks = [spread(active_of(ins[i]), shape_of(ins[i])) for i in operands]
    if eqn.primitive.multiple_results:
        return [Pair(v, m) for v, m in zip(values, move(*map(jnp.asarray, masks)), strict=True)]
    fixed = len(operands) == len(ins)  # where to is known too
    active = on_masks(move, *masks) if fixed else move(*map(jnp.asarray, masks))
    return [Pair(values[0], active)]


# Operations whose result has no entry but those of the argument.
_FILLS_NOTHING = """
    reshape transpose broadcast_in_dim squeeze slice rev copy copy_p dynamic_slice concatenate split
    dynamic_update_slice stack unstack
""".split()  # noqa: SIM905  (a list of words)
_MOVED = {"dynamic_update_slice": (0, 1), "pad": (0, 1), "scatter": (0, 2)}


def _moved(eqn: JaxprEqn) -> tuple[int, ...]:
    """Return which arguments are entries, the others being indices."""
    name = eqn.primitive.name
    return (
        tuple(range(len(eqn.invars)))
        if name in ("concatenate", "stack")
        else _MOVED.get(name, (0,))
    )


def _without_fill(eqn: JaxprEqn) -> dict[str, Any]:
    return eqn.params | {"fill_value": False} if "fill_value" in eqn.params else eqn.params


def same(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Map each entry to itself, linearly: the mask is unchanged."""
    (value,) = plain(eqn, [value_of(x) for x in ins])
    return [Pair(value, active_of(ins[0]))]


def barrier(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Pass several values on."""
    values = plain(eqn, [value_of(x) for x in ins])
    pairs = zip(ins, values, strict=True)
    return [Pair(v, x.active) if isinstance(x, Pair) else v for x, v in pairs]


def add(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Add: absent plus a number is the number."""
    (value,) = plain(eqn, [value_of(x) for x in ins])
    return [Pair(value, union(*(widened(active_of(x), value.shape) for x in ins)))]


def total(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Sum entries: active where one of them is."""
    (value,) = plain(eqn, [value_of(x) for x in ins])
    if eqn.primitive.name != "reduce_window_sum" and ins[0].active is True and value.size:
        return [Pair(value)]

    def is_met(mask: Array) -> Array:
        return plain(eqn, [mask.astype(np.float32)])[0] > 0

    return [Pair(value, on_masks(is_met, spread(ins[0].active, shape_of(ins[0]))))]


def scatter_add(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Add entries at indices to others."""
    base, indices, update = ins
    (value,) = plain(eqn, [value_of(x) for x in ins])
    if active_of(base) is True:
        return [Pair(value)]
    # In the dtype of the values, for which the operation is made.
    ones = [jnp.asarray(spread(active_of(x), shape_of(x)), value.dtype) for x in (base, update)]
    return [Pair(value, plain(eqn, [ones[0], indices, ones[1]])[0] != 0)]


def unpool(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Send each entry to where the largest of its window was, as in max pooling."""
    source, operand = ins
    (value,) = plain(eqn, [source.value, operand])
    mask = jnp.asarray(spread(source.active, shape_of(source)), value.dtype)
    return [Pair(value, plain(eqn, [mask, operand])[0] != 0)]


def select(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Select entries by a coefficient, and their masks by the same."""
    which, *cases = ins
    (value,) = plain(eqn, [which, *map(value_of, cases)])
    masks = [active_of(x) for x in cases]
    known = all(isinstance(m, bool) for m in masks)
    if known and len(set(masks)) == 1:
        return [Pair(value, masks[0])]
    if known and len(masks) == 2:  # noqa: PLR2004  (a condition)
        active = jnp.broadcast_to(which, value.shape)
        # Else XLA folds the masks of constant predicates, which takes it a minute.
        active = lax.optimization_barrier(active if masks[1] else ~active)
        return [Pair(value, active)]
    arrays = [jnp.asarray(spread(m, value.shape)) for m in masks]
    return [Pair(value, lax.select_n(which, *arrays))]


def nothing(eqn: JaxprEqn) -> list[Pair]:
    """Return a result of which nothing is active."""
    out = eqn.outvars[0].aval
    return [Pair(jnp.zeros(out.shape, out.dtype), active=False)]


class Factors(NamedTuple):
    """A pair and the coefficient that it is multiplied with, in either order."""

    eqn: JaxprEqn
    at: int  # which of the two is the pair
    pair: Pair
    other: Array

    def product(self, x: Array, y: Array) -> Array:
        """Return the product with other values in the place of the pair's and the coefficient."""
        return plain(self.eqn, [x, y] if self.at == 0 else [y, x])[0]


def factors_of(eqn: JaxprEqn, ins: list[Any]) -> Factors | None:
    """Return the factors; None if both are pairs, or the pair is a divisor: no linear product."""
    at = 0 if isinstance(ins[0], Pair) else 1
    if isinstance(ins[1 - at], Pair) or (eqn.primitive.name == "div" and at == 1):
        return None
    return Factors(eqn, at, ins[at], ins[1 - at])


def scale(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Pair]:
    """Multiply or divide by a coefficient, which is 1 beside an absent entry."""
    factors = factors_of(eqn, ins)
    if factors is None:
        return unknown(eqn, ins, how)
    pair, factor = factors.pair, factors.other
    if pair.active is False:
        return nothing(eqn)
    if pair.active is not True and not _is_harmless(factor, eqn.primitive.name):
        factor = jnp.where(pair.active, factor, jnp.ones((), jnp.result_type(factor)))
    value = factors.product(pair.value, factor)
    return [Pair(value, widened(pair.active, value.shape))]


def _is_harmless(factor: Any, name: str) -> bool:
    """Whether a number of the program text, such as 2.0, needs no guard."""
    if isinstance(factor, jax.Array):
        return False
    return bool(np.isfinite(factor).all() and (name == "mul" or np.all(factor)))


def contract(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Pair]:
    """Multiply and sum: a coefficient that meets absent entries only is 0."""
    factors = factors_of(eqn, ins)
    if factors is None:
        return unknown(eqn, ins, how)
    _, at, pair, other = factors
    if pair.active is False:
        return nothing(eqn)
    if pair.active is True:
        return [Pair(factors.product(pair.value, other))]
    ((left, right), (left_batch, right_batch)) = eqn.params["dimension_numbers"]
    ours, theirs = ((left_batch, left), (right_batch, right))[:: 1 if at == 0 else -1]
    active = jnp.asarray(pair.active)
    met = _spread_over(_any_but(active, (*ours[0], *ours[1])), (*theirs[0], *theirs[1]), other)
    others = len(shape_of(other)) - len(theirs[0]) - len(theirs[1])
    reached = _reached(active, ours, others, at, eqn.outvars[0].aval)
    used = jnp.where(met, other, jnp.zeros((), other.dtype))
    return [Pair(_product(factors.product, pair.value, used, active, how), reached)]


def _any_but(mask: Array, axes: Sequence[int]) -> Array:
    """Return where any entry is active along the other axes, the given ones in their order."""
    rest = tuple(i for i in range(mask.ndim) if i not in axes)
    left = [i for i in range(mask.ndim) if i in axes]
    return jnp.transpose(mask.any(rest), [left.index(i) for i in axes])


def _spread_over(mask: Array, axes: Sequence[int], like: Array) -> Array:
    """Return a mask, whose axes are these of an array, in the shape of the array."""
    order = sorted(range(len(axes)), key=lambda i: axes[i])
    return lax.broadcast_in_dim(jnp.transpose(mask, order), like.shape, sorted(axes))


def _reached(mask: Array, ours: Any, others: int, at: int, out: Any) -> Array:
    """Return where a product of tensors is active: any over what is contracted."""
    batch, contracted = ours
    free = [i for i in range(mask.ndim) if i not in (*batch, *contracted)]
    kept = _any_but(mask, (*batch, *free))
    start = len(batch) + (0 if at == 0 else others)
    axes = (*range(len(batch)), *range(start, start + len(free)))
    return lax.broadcast_in_dim(kept, out.shape, axes)


def _product(product: Any, x: Array, y: Array, active: Array, how: Options) -> Array:
    """Return the product; if `exact`, an absent entry meets no coefficient that is not finite."""
    if not how.exact:
        return product(x, y)
    finite = jnp.isfinite(y)

    def rest() -> Array:
        # Where an active entry meets what is not finite, IEEE says what comes of it.
        hit = product(active.astype(x.dtype), (~finite).astype(y.dtype)) != 0
        return jnp.where(hit, product(x, y), jnp.zeros((), out.dtype))

    # The large product stays outside: XLA runs a branch on one thread (CPU).
    safe = product(x, jnp.where(finite, y, jnp.zeros((), y.dtype)))
    out, whole = jax.typeof(safe), finite.all()
    if not isinstance(whole, jax.core.Tracer):  # a branch would be compiled anew each time
        return safe if whole else safe + rest()
    return safe + lax.cond(whole, lambda: jnp.zeros(out.shape, out.dtype), rest)


def convolve(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Pair]:
    """Contract over windows: a coefficient that meets absent entries only is 0."""
    factors = factors_of(eqn, ins)
    if factors is None:
        return unknown(eqn, ins, how)
    pair = factors.pair
    if pair.active is False:
        return nothing(eqn)
    mask = jnp.asarray(spread(pair.active, shape_of(pair)))
    reached, used = _in_windows(factors, mask)
    if pair.active is True:
        return [Pair(factors.product(pair.value, factors.other), reached)]
    return [Pair(_product(factors.product, pair.value, used, mask, how), reached)]


def _in_windows(factors: Factors, mask: Array) -> tuple[Array, Array]:
    """Return where a convolution is active, and the coefficients, 0 if they meet absent entries."""
    eqn, at, _, other = factors
    params, out = eqn.params, eqn.outvars[0].aval
    ones, used = jnp.ones_like(other), other
    if params["feature_group_count"] == params["batch_group_count"] == 1:
        # What is summed over is one axis of features and the windows. One feature will do for the
        # mask, and all entries of a feature count as met if one of them is.
        spec = params["dimension_numbers"]
        ours, theirs = (spec.lhs_spec, spec.rhs_spec)[:: 1 if at == 0 else -1]
        met = lax.broadcast_in_dim(_any_but(mask, ours[1:2]), other.shape, theirs[1:2])
        used = jnp.where(met, other, jnp.zeros((), other.dtype))
        mask = mask.any(ours[1], keepdims=True)
        for axis in theirs[:2]:
            ones = lax.slice_in_dim(ones, 0, 1, axis=axis)
    mask = mask.astype(other.dtype)  # strides and padding make zeros of their own
    return jnp.broadcast_to(factors.product(mask, ones) > 0, out.shape), used


def call(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Any]:
    """Run the body of a call."""
    body = next(eqn.params[key] for key in CALL_BODIES if key in eqn.params)
    if eqn.primitive.name in ("checkpoint", "remat2"):
        # Else XLA shares the values that are meant to be computed again.
        ins = [
            Pair(lax.optimization_barrier(x.value), x.active)
            if isinstance(x, Pair)
            else lax.optimization_barrier(x)
            for x in ins
        ]
    if isinstance(body, ClosedJaxpr):
        return evaluate(body.jaxpr, body.consts, ins, how)
    return evaluate(body, (), ins, how)


CALL_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def unknown(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Pair]:
    """Run an operation as it is: all that it returns is active, and nothing is hidden."""
    # What is in a body may select.
    partial = any(isinstance(x, Pair) and x.active is not True for x in ins)
    partial = partial or bool(bodies_in(eqn.params))
    if partial:
        msg = (
            f"{eqn.primitive.name} has no rule for absent entries: from here on they are zeros, as "
            "in jax.grad"
        )
        tell(msg, how.on_unknown)
    return [Pair(v) for v in plain(eqn, [value_of(x) for x in ins])]
