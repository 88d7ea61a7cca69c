"""
The evaluator: a linear JAX program, run over pairs of a value and its mask of active entries.

JAX has transposed (or linearised) the program already. The evaluator runs it forwards, with an
arithmetic in which an entry may be absent; no derivative is written in this file. The table in
`_rules` gives each primitive its class, and one function serves a class: here the classes that
move, add and scale; in `_contractions` products of tensors, in `_control` control flow.

The program need not be linear: the backward pass of a custom_vjp is any program. It may add a
constant to a cotangent, or select one. So a coefficient beside a pair is active, unless it is a
literal 0, as those are that JAX's own transposition writes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Literal

from safeops._backends.jax import private
from safeops._backends.jax.bodies import Program, constants, opened
from safeops._core.types import Array
from safeops.autodiff._options import report_unknown
from safeops.autodiff._pairs import Pair
from safeops.autodiff._small import folded
from safeops.autodiff.jax import _known
from safeops.autodiff.jax._known import Made, Within

# True: all entries are active; False: none is. A NumPy array is known while the program is traced,
# and has length 1 along each axis along which it does not vary (`folded`); a JAX array is not. What
# is known and large is made in the program where it is needed.
InProgram: TypeAlias = bool | np.ndarray | Array
Mask: TypeAlias = InProgram | Made | Within


@dataclass(frozen=True)
class Zero:
    """A coefficient that is absent beside a pair, because it is a literal 0 of the program."""

    # In forward mode every input of the linear program counts as such: JAX's own rules put nothing
    # but zeros beside a tangent, and a custom_jvp rule has to be linear.

    value: Array


@dataclass(frozen=True)
class Options:
    """The options of the user."""

    rules: Mapping[str, "Rule"]
    exact: bool = False
    on_unknown: str = "warn"


Rule: TypeAlias = Callable[[JaxprEqn, list[Any], Options], list[Any]]


def evaluate(
    program: Program, args: Sequence[Any], how: Options, consts: Sequence[Any] | None = None
) -> list[Any]:
    """Return the outputs of a linear program, whose arguments are pairs and coefficients."""
    # A value that depends on no Pair is a coefficient, and computed as ever. Constants may be given
    # as others than those of the program.
    jaxpr, consts = opened(program), constants(program) if consts is None else consts
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    known |= dict(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    for eqn in jaxpr.eqns:
        ins = [read(atom) for atom in eqn.invars]
        if any(isinstance(x, Pair) for x in ins):
            # An integer beside a pair is an index, and no part of a sum.
            ins = [x if not isinstance(x, Zero) or is_inexact(x.value) else x.value for x in ins]
            outs = how.rules.get(eqn.primitive.name, unknown)(eqn, ins, how)
        else:
            outs = computed(eqn, ins, how)
        known |= dict(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def computed(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Any]:
    """Run one equation on coefficients; zeros that are moved or added stay zeros."""
    if how.rules.get(eqn.primitive.name) is call and any(isinstance(x, Zero) for x in ins):
        return call(eqn, ins, how)  # `where` is a call: that of two zeros is a zero
    outs: list[Any] = run(eqn, ins)
    linear = ins[1:] if eqn.primitive.name == "select_n" else ins
    if eqn.primitive.name in KEEPS_ZERO and linear and all(map(is_zero, linear)):
        return [Zero(x) if _is_of(x, np.number) else x for x in outs]
    return outs


# Masks


def value_of(x: Any) -> Array:
    """Return the value of a pair, or the coefficient itself."""
    return x.value if isinstance(x, (Pair, Zero)) else x


def run(eqn: JaxprEqn, ins: Sequence[Any]) -> list[Any]:
    """Run one equation on values."""
    return private.plain(eqn, [value_of(x) for x in ins])


def active_of(x: Any) -> InProgram:
    """Return which entries are active: all of a coefficient, unless it is a literal 0."""
    return _known.in_program(mask_of(x))


def mask_of(x: Any) -> Mask:
    """Return which entries are active, as `active_of`; what is known and large is not made yet."""
    return x.active if isinstance(x, Pair) else not is_zero(x)


def is_zero(x: Any) -> bool:
    """Whether a coefficient is a literal 0 of the program; data that happen to be 0 are not."""
    if isinstance(x, (Pair, Zero)):
        return isinstance(x, Zero)
    written = not isinstance(x, jax.Array) and np.ndim(x) == 0  # a literal
    # An integer too: `where(x > 0, g, 0)` converts one.
    return written and _is_of(x, np.number) and bool(x == 0)


def is_inexact(x: Any) -> bool:
    """Whether a value has a dtype of cotangents."""
    return _is_of(x, np.inexact)


def _is_of(x: Any, kind: type) -> bool:
    dtype = getattr(x, "dtype", None)
    return jnp.issubdtype(np.result_type(x) if dtype is None else dtype, kind)


def as_pairs(values: Sequence[Any], mask: Mask) -> list[Any]:
    """Return results as pairs with one mask; integer results are coefficients."""
    return [Pair(x, mask) if is_inexact(x) else x for x in values]


def on_entries(f: Callable[[Any], Any], x: Pair) -> Mask:
    """Apply a function, which NumPy has too, to the mask of a pair that has some active entries."""
    bound = _known.bound_of(x.active)
    if bound is True:
        return f(array_of(x))
    return _known.following(x.active, f(bound), lambda: f(array_of(x)))


def spread(mask: Mask, shape: tuple[int, ...]) -> Any:
    """Return a mask as an array of a shape; it may have length 1 along some axes."""
    mask = _known.in_program(mask)
    if isinstance(mask, bool):
        return np.full(shape, mask)
    if mask.shape == shape:
        return mask
    return (np if isinstance(mask, np.ndarray) else jnp).broadcast_to(mask, shape)


def widened(mask: Mask, shape: tuple[int, ...]) -> Mask:
    """Return a mask that broadcasts to a shape; one that is not known has it."""
    known = _known.is_known(mask) and np.ndim(_known.entries_of(mask)) in (0, len(shape))
    return mask if known or isinstance(mask, (Made, Within)) else spread(mask, shape)


def shape_of(x: Any) -> tuple[int, ...]:
    return tuple(np.shape(value_of(x)))


def array_of(x: Any) -> Array:
    """Return the mask of a value as a JAX array that lies on a mesh as the value does."""
    value = value_of(x)
    mask = varying_as(jnp.broadcast_to(active_of(x), np.shape(value)), value)
    spec = jax.typeof(value).sharding.spec  # on an explicit mesh a type has a layout
    return mask if jax.typeof(mask).sharding.spec == spec else jax.sharding.reshard(mask, spec)


def varying_as(x: Array, like: Any) -> Array:
    """Return an array that varies over the mesh axes of a shard_map as another does."""
    missing = tuple(sorted(axes_of(like) - axes_of(x)))
    if not missing:
        return x
    if not hasattr(lax, "pcast"):  # JAX 0.8.0 has another name for it, which later ones drop
        return lax.pvary(x, missing)
    return lax.pcast(x, missing, to="varying")


def axes_of(x: Any) -> frozenset[Any]:
    """Return the mesh axes of a shard_map over which a value, or a value of this type, varies."""
    return private.varying_axes(x if isinstance(x, jax.core.ShapedArray) else jax.typeof(x))


@jax.custom_batching.custom_vmap
def _all(good: Array) -> Array:
    """Whether all are, in every example of a batch: a branch of each example would be a select."""
    return good.all()


@_all.def_vmap
def _all_of_batch(size: int, in_batched: Any, good: Array) -> tuple[Array, bool]:
    del size, in_batched
    return _all(good), False


def all_finite(x: Array) -> Any:
    return np.isfinite(np.asarray(x)).all() if _known.is_here(x) else _all(jnp.isfinite(x))


def if_finite(once: list[Array], again: Callable[[], list[Array]]) -> list[Array]:
    """Return arrays if all their numbers are finite, else those that `again` computes."""
    flags = [all_finite(x) for x in once if is_inexact(x)]
    if not any(isinstance(x, jax.core.Tracer) for x in flags):  # else each branch would be compiled
        return once if all(flags) else again()

    def other() -> list[Array]:
        return [varying_as(x, like) for x, like in zip(again(), once, strict=True)]

    return list(lax.cond(reduce(jnp.logical_and, flags), lambda: once, other))


def on_masks(f: Callable[..., Any], *masks: Any) -> Mask:
    """Apply a function to masks; the result is known if the masks are."""
    if all(_known.is_known(m) for m in masks):
        with jax.ensure_compile_time_eval():
            found = f(*(jnp.asarray(m) for m in masks))
        # In an eager shard_map nothing is known before it runs.
        return found if isinstance(found, jax.core.Tracer) else folded(np.asarray(found))
    return f(*masks)


# Classes


def transport(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Move entries: the same operation on the mask; a 0 that is filled in is absent."""
    operands = _moved(eqn)
    run = _known.moved_here if isinstance(value_of(ins[0]), np.ndarray) else private.plain
    values = run(eqn, [value_of(x) for x in ins])
    params, filled = _with_mask_as_fill(eqn)
    masks = [mask_of(ins[i]) for i in operands]
    if all(m is False for m in masks) and not filled:
        return [Pair(v, active=False) for v in values]
    if eqn.primitive.name in FILLS_NOTHING and all(m is True for m in masks):
        return [Pair(v) for v in values]

    def move(*masks: Any) -> Any:
        moved = iter(masks)
        every = [next(moved) if i in operands else value_of(x) for i, x in enumerate(ins)]
        return eqn.primitive.bind(*every, **params)

    def whole() -> Any:
        return move(*(varying_as(array_of(ins[i]), values[0]) for i in operands))

    fixed = len(operands) == len(ins) and eqn.primitive.name not in COLLECTIVE
    small = _moved_small(eqn, ins, masks, whole) if fixed else None
    if small is not None:
        return [Pair(v, m) for v, m in zip(values, small, strict=True)]
    if eqn.primitive.multiple_results:
        return [Pair(v, m) for v, m in zip(values, whole(), strict=True)]
    if fixed and all(map(_known.is_known, masks)):  # and the indices are known
        known = [spread(active_of(ins[i]), shape_of(ins[i])) for i in operands]
        return [Pair(values[0], on_masks(move, *known))]
    return [Pair(values[0], whole())]


def _moved_small(
    eqn: JaxprEqn, ins: list[Any], masks: Sequence[Mask], whole: Callable[[], Any]
) -> list[Mask] | None:
    """Return the masks of results by what an operation makes of a small bound; None of another."""
    (mask, *rest), shape = masks, shape_of(ins[0])
    bound = _known.bound_of(mask)
    if any(m is not False for m in rest) or (bound is True and mask is not True):
        return None
    entries = np.broadcast_to(bound, (1,) * len(shape)) if isinstance(bound, bool) else bound
    small = _known.moved(eqn, entries, shape)
    if small is None:
        return None
    every = cache(lambda: whole() if eqn.primitive.multiple_results else [whole()])

    def part(i: int) -> Mask:
        return every()[i]

    return [_known.following(mask, x, partial(part, i)) for i, x in enumerate(small)]


# Operations that only move entries of their arguments.
FILLS_NOTHING = """
    reshape transpose broadcast_in_dim squeeze slice rev copy copy_p dynamic_slice concatenate split
    dynamic_update_slice stack unstack tile
""".split()  # noqa: SIM905  (a list of words)
# Operations that make zeros from zeros. Products are not among them: 0 may meet infinity.
KEEPS_ZERO = """
    reshape transpose broadcast_in_dim squeeze slice rev copy copy_p concatenate split stack unstack
    tile pad select_n neg real imag conj convert_element_type reduce_precision add add_any sub
    complex reduce_sum cumsum pvary sharding_constraint mesh_cast reshard
""".split()  # noqa: SIM905  (a list of words)
# Collectives: they run on devices, and not while the program is traced.
COLLECTIVE = """
    all_gather all_gather_invariant all_gather_reduced all_to_all ppermute pbroadcast
    pbroadcast_dynamic psum psum_invariant unreduced_psum reduce_scatter unreduced_reduce_scatter
""".split()  # noqa: SIM905  (a list of words)
_MOVED = {"dynamic_update_slice": (0, 1), "pad": (0, 1), "scatter": (0, 2)}


def _moved(eqn: JaxprEqn) -> tuple[int, ...]:
    """Return which arguments hold entries; the others are indices."""
    name = eqn.primitive.name
    return (
        tuple(range(len(eqn.invars)))
        if name in ("concatenate", "stack")
        else _MOVED.get(name, (0,))
    )


def _with_mask_as_fill(eqn: JaxprEqn) -> tuple[dict[str, Any], bool]:
    """Return parameters for the mask, and whether the fill value is active: NaN, or a number."""
    fill = private.fill_of(eqn.params)
    if fill is None:
        return eqn.params, False
    filled = fill.is_used and (fill.value is None or bool(fill.value != 0))
    return private.with_fill(eqn.params, filled), filled


def same(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Map each entry to itself, and 0 to 0: the mask is unchanged."""
    return as_pairs(run(eqn, ins), mask_of(ins[0]))


def barrier(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Pass several values on."""
    values = run(eqn, ins)
    pairs = zip(ins, values, strict=True)
    return [Pair(v, x.active) if isinstance(x, Pair) else v for x, v in pairs]


def add(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Add: absent plus a number is the number."""
    (value,) = run(eqn, ins)
    return [Pair(value, _known.union(*(widened(mask_of(x), value.shape) for x in ins)))]


def total(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Sum entries: active where one of them is."""
    values = run(eqn, ins)
    full = all(active_of(x) is True and np.size(value_of(x)) for x in ins)
    if full and eqn.primitive.name != "reduce_window_sum":
        return [Pair(v) for v in values]

    def is_met(*masks: Array) -> Any:
        met = [x > 0 for x in private.plain(eqn, [m.astype(np.float32) for m in masks])]
        return met if len(met) > 1 else met[0]

    if eqn.primitive.name in COLLECTIVE or len(ins) > 1:
        met = is_met(*map(array_of, ins))
        return [Pair(v, m) for v, m in zip(values, met if len(ins) > 1 else [met], strict=True)]
    mask = mask_of(ins[0])
    bound = _known.bound_of(mask)
    if eqn.primitive.name == "reduce_sum" and isinstance(bound, np.ndarray):
        some = bound.any(private.reduced_axes(eqn))
        return [Pair(values[0], _known.following(mask, some, lambda: is_met(array_of(ins[0]))))]
    return [Pair(values[0], on_masks(is_met, spread(mask, shape_of(ins[0]))))]


def scatter_add(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Add entries at indices to an array, or subtract them."""
    base, indices, update = ins
    (value,) = run(eqn, ins)
    if active_of(base) is True:
        return [Pair(value)]
    # The operation is made for the dtype of the values.
    none, some = jnp.zeros_like(value), varying_as(array_of(update), value).astype(value.dtype)
    return [
        Pair(
            value, _known.union(active_of(base), private.plain(eqn, [none, indices, some])[0] != 0)
        )
    ]


def scatter_mul(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Pair]:
    """Multiply the entries at indices by coefficients."""
    base, indices, update = ins
    if isinstance(update, Pair):
        return unknown(eqn, ins, how)
    (value,) = private.plain(eqn, [value_of(base), indices, value_of(update)])
    return [cleared(value, active_of(base))]


def cleared(value: Array, active: Mask) -> Pair:
    """Return a pair whose value is set to 0 where it is not active."""
    if active is True:
        return Pair(value)
    return Pair(jnp.where(_known.in_program(active), value, jnp.zeros((), value.dtype)), active)


def unpool(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Pair]:
    """Send each entry to the place of the largest in its window, as in max pooling, or back."""
    # A NaN compares with nothing, and JAX may choose another entry of its window: it is used, too.
    source, operand = ins
    if isinstance(operand, Pair):
        return unknown(eqn, ins, how)
    largest = value_of(operand)
    (value,) = private.plain(eqn, [source.value, largest])
    chosen = private.plain(eqn, [array_of(source).astype(value.dtype), largest])[0] != 0
    is_nan, sums = jnp.isnan(largest), _sums_of_windows(eqn)
    if eqn.primitive.name == "select_and_gather_add":  # forward mode
        beside = sums((is_nan & array_of(source)).astype(np.float32)) > 0
        zeros = sums(jnp.where(is_nan, 0 * source.value, 0))  # NaN if a tangent there is
        return [Pair(value + zeros, _known.union(chosen, beside))]
    back = jax.linear_transpose(sums, jax.ShapeDtypeStruct(largest.shape, np.float32))
    used = on_masks(
        lambda mask: back(mask.astype(np.float32))[0] > 0, spread(source.active, shape_of(source))
    )
    return [Pair(value, _known.union(chosen, is_nan if used is True else used & is_nan))]


def _sums_of_windows(eqn: JaxprEqn) -> Callable[[Array], Array]:
    """Return the function that sums the entries of the windows in which an operation chooses."""
    windows = private.windows_of(eqn)
    return lambda x: lax.reduce_window(x, np.zeros((), x.dtype), lax.add, **windows)


def select(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Select entries by a coefficient, and their masks in the same way."""
    which, *cases = ins
    (value,) = private.plain(eqn, [which, *map(value_of, cases)])
    masks = [mask_of(x) for x in cases]
    if isinstance(masks[0], bool) and all(m is masks[0] for m in masks):
        return [Pair(value, masks[0])]

    def make() -> Array:
        return _selected_mask(which, value, [_known.in_program(m) for m in masks])

    entries = _known.selected_entries(which, value, [_known.entries_of(m) for m in masks])
    if entries is None:
        return [Pair(value, _known.within(make(), _known.either(*masks)))]
    return [Pair(value, _known.as_constant(folded(entries), make))]


def _selected_mask(which: Any, value: Array, masks: Sequence[Mask]) -> Array:
    """Return the mask of what is selected as the program computes it."""
    if len(masks) == 2 and all(isinstance(m, bool) for m in masks):  # noqa: PLR2004  (a condition)
        active = jnp.broadcast_to(which, value.shape)
        # Without a barrier XLA folds the masks of constant predicates, which takes a minute.
        return lax.optimization_barrier(active if masks[1] else ~active)
    arrays = [varying_as(jnp.broadcast_to(m, value.shape), value) for m in masks]
    return lax.select_n(varying_as(which, value), *arrays)


def select_if(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Select by a condition that is the first argument, before the case for True."""
    which, kept, other = ins
    (value,) = private.plain(eqn, [which, value_of(kept), value_of(other)])
    return [Pair(value, private.plain(eqn, [which, array_of(kept), array_of(other)])[0])]


def absent(eqn: JaxprEqn) -> list[Pair]:
    """Return a result without active entries."""
    out = eqn.outvars[0].aval
    return [Pair(varying_as(jnp.zeros(out.shape, out.dtype), out), active=False)]


class Factors(NamedTuple):
    """A pair and its coefficient, in either order."""

    eqn: JaxprEqn
    at: int  # the position of the pair
    pair: Pair
    other: Array

    def product(self, x: Array, y: Array) -> Array:
        """Return the product with another value of the pair, and another coefficient."""
        return private.plain(self.eqn, [x, y] if self.at == 0 else [y, x])[0]


def factors_of(eqn: JaxprEqn, ins: list[Any]) -> Factors | None:
    """Return the factors; None if both are pairs, or the pair is the divisor."""
    at = 0 if isinstance(ins[0], Pair) else 1
    if isinstance(ins[1 - at], Pair) or (eqn.primitive.name == "div" and at == 1):
        return None
    return Factors(eqn, at, ins[at], value_of(ins[1 - at]))


def scale(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Pair]:
    """Multiply or divide by a coefficient, which is 1 beside an absent entry."""
    factors = factors_of(eqn, ins)
    if factors is None:
        return _scale_pairs(eqn, ins)
    pair, factor = factors.pair, factors.other
    if pair.active is False:
        return absent(eqn)
    if pair.active is not True and not _is_harmless(factor, eqn.primitive.name):
        ones = jnp.ones((), jnp.result_type(factor))
        factor = jnp.where(_known.in_program(pair.active), factor, ones)
    value = factors.product(pair.value, factor)
    return [Pair(value, widened(pair.active, value.shape))]


def _scale_pairs(eqn: JaxprEqn, ins: list[Any]) -> list[Pair]:
    """Multiply two pairs, or divide by one: absent times anything is absent."""
    (value,) = run(eqn, ins)
    masks = [_known.in_program(widened(mask_of(x), value.shape)) for x in ins]
    if eqn.primitive.name == "div":  # division by an absent entry is division by 0
        return [cleared(value, masks[0])]
    return [cleared(value, masks[1] if masks[0] is True else masks[0] & masks[1])]


def _is_harmless(factor: Any, name: str) -> bool:
    """Whether a literal coefficient, such as 2.0, maps 0 to 0."""
    if isinstance(factor, jax.Array):
        return False
    return bool(np.isfinite(factor).all() and (name == "mul" or np.all(factor)))


def call(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Any]:
    """Run the body of a call."""
    if eqn.primitive.name in ("checkpoint", "remat2"):
        # Without a barrier XLA shares the values that are to be computed again.
        ins = [_behind_barrier(x) for x in ins]
    return evaluate(private.body_of_call(eqn.params), ins, how)


def call_with_rule(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Any]:
    """Run the body of a function with a derivative rule of its own, which is kept."""
    outs = call(eqn, ins, how)
    ruled = run(eqn, ins)
    return [_ruled_by(x, y) for x, y in zip(outs, ruled, strict=True)]


def _ruled_by(x: Any, ruled: Array) -> Any:
    """Return a result of a body, with the function's own derivative where it is active."""
    if isinstance(x, Zero):
        return Zero(ruled)
    if not isinstance(x, Pair):
        return ruled
    return x if x.active is False else cleared(_with_derivative(x.value, ruled), x.active)


@jax.custom_jvp
def _with_derivative(value: Array, ruled: Array) -> Array:
    """Return `value` with the derivative of `ruled`, another expression for it."""
    del ruled
    return value


@_with_derivative.defjvp
def _derivative(primals: Any, tangents: Any) -> tuple[Array, Array]:
    return primals[0], tangents[1]


def _behind_barrier(x: Any) -> Any:
    """Return a value of the same kind behind an optimization barrier."""
    value = lax.optimization_barrier(value_of(x))
    if isinstance(x, Pair):
        return Pair(value, x.active)
    return Zero(value) if is_zero(x) else value


def unknown(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Any]:
    """Run an operation as it is: all its results are active, and nothing is hidden."""
    msg = (
        f"{eqn.primitive.name} has no rule for absent entries: those that it meets, or makes by "
        "itself, are zeros from here on, as in jax.grad"
    )
    report_unknown(msg, how.on_unknown)
    return as_pairs(run(eqn, ins), mask=True)
