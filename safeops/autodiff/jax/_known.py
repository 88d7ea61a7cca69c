"""
Masks that are known while a program is traced, moved without their full shape.

Such a mask has length 1 along each axis along which it does not vary, so that it stays a small
constant of the program, whatever the length of the values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from safeops._backends.jax import private
from safeops._backends.jax.bodies import constants, opened
from safeops._backends.jax.private import Origin
from safeops._core.types import Array
from safeops.autodiff import _pairs
from safeops.autodiff._small import (
    DEEPEST,
    LARGEST,
    SMALL,
    Shape,
    computed,
    folded,
    is_worth_it,
    reshaped,
)


@dataclass(frozen=True, eq=False)
class Made:
    """
    A mask that is known, and too large for a constant: the program makes it where it needs it.

    What most rules do to it makes it small again, so that most are never made.
    """

    entries: np.ndarray
    make: Callable[[], Any]


@dataclass(frozen=True, eq=False)
class Within:
    """A mask that depends on data, and a known one that contains it."""

    # A union of both is the known one: behind a residual connection masks are known again.

    mask: Any
    bound: np.ndarray


def entries_of(mask: Any) -> Any:
    """Return a known mask as it is while the program is traced, and another as it is."""
    if isinstance(mask, Within):
        return mask.mask
    return mask.entries if isinstance(mask, Made) else mask


def in_program(mask: Any) -> Any:
    if isinstance(mask, Within):
        return mask.mask
    return mask.make() if isinstance(mask, Made) else mask


def bound_of(mask: Any) -> Any:
    """Return a known mask that contains another: a known one itself, of any other True."""
    if isinstance(mask, Within):
        return mask.bound
    entries = entries_of(mask)
    return entries if is_known(entries) else True


def within(mask: Any, bound: Any) -> Any:
    """Return a mask that depends on data with a known one that contains it."""
    bound = folded(bound)
    if bound is True or is_known(entries_of(mask)):
        return mask
    return Within(in_program(mask), bound) if isinstance(bound, np.ndarray) else bound


def as_constant(mask: Any, make: Callable[[], Any]) -> Any:
    """Return a known mask that is to be made if it is large."""
    return Made(mask, make) if isinstance(mask, np.ndarray) and mask.nbytes > SMALL else mask


def following(mask: Any, entries: Any, make: Callable[[], Any]) -> Any:
    """Return a mask that comes from another, by what its bound becomes."""
    # A known mask is its own bound; the program makes it if it makes the other.
    entries = folded(entries)
    if isinstance(mask, Within):
        return within(make(), entries)
    return as_constant(entries, make) if isinstance(mask, Made) else entries


def is_known(mask: Any) -> bool:
    """Whether a mask is known while the program is traced; NumPy reduces one to `np.bool_`."""
    return isinstance(mask, (bool, np.bool_, np.ndarray))


def union(*masks: Any) -> Any:
    """Return where any of several masks of one shape is active."""
    whole = _union_of_known([m for m in masks if is_known(entries_of(m))])
    others = [m for m in masks if not is_known(entries_of(m))]
    rest = [m for m in others if not _contains(entries_of(whole), bound_of(m))]
    if whole is True or not rest:
        return whole
    return within(_pairs.union(*map(in_program, (whole, *rest))), either(whole, *rest))


def _union_of_known(masks: Sequence[Any]) -> Any:
    """Return the union of known masks, which is known unless it is too large."""

    def make() -> Any:
        return folded(_pairs.union(*map(in_program, masks)))

    entries = [entries_of(m) for m in masks]
    if any(m is True for m in masks) or not any(isinstance(m, Made) for m in masks):
        return folded(_pairs.union(*masks))
    return as_constant(folded(_pairs.union(*entries)), make) if is_worth_it(*entries) else make()


def either(*masks: Any) -> Any:
    """Return a known mask that contains several."""
    bounds = [bound_of(m) for m in masks]
    return _pairs.union(*bounds) if is_worth_it(*bounds) else True


def _contains(whole: Any, bound: Any) -> bool:
    """Whether a known mask contains another."""
    fits = is_known(whole) and bound is not True and is_worth_it(whole, bound)
    return fits and bool(np.all(whole | np.logical_not(bound)))


def moved(eqn: JaxprEqn, mask: np.ndarray, shape: Shape) -> list[np.ndarray] | None:
    """Return what an operation makes of the mask of a value of a shape; None if it is another."""
    name, outs = eqn.primitive.name, [x.aval.shape for x in eqn.outvars]
    if name == "transpose":
        return [mask.transpose(private.permutation(eqn))]
    if name in ("reshape", "squeeze"):
        return [reshaped(mask, shape, outs[0])]
    if name == "broadcast_in_dim":
        axes = private.axes_of_broadcast(eqn)
        return [np.expand_dims(mask, tuple(i for i in range(len(outs[0])) if i not in axes))]
    if name == "slice":
        return [cut(mask, private.slices_of(eqn))]
    if name == "pad":
        return padded(mask, shape, private.padding_of(eqn))
    return split(mask, shape, outs) if name == "split" else None


def is_here(x: Any) -> bool:
    """Whether an array is known, and in the memory of the processor: NumPy compiles nothing."""
    if isinstance(x, jax.core.Tracer) or not isinstance(x, jax.Array):
        return isinstance(x, np.ndarray)
    return all(device.platform == "cpu" for device in x.devices())


def moved_here(eqn: JaxprEqn, ins: Sequence[Any]) -> list[Array]:
    """Run one operation; what only moves numbers that are here compiles nothing."""
    x: Any = ins[0] if len(ins) == 1 else None
    if is_here(x) and x.size and jax.dtypes.issubdtype(x.dtype, np.inexact):
        parts = moved(eqn, np.asarray(x), x.shape)
        if parts is not None:
            outs = zip(parts, eqn.outvars, strict=True)
            return [np.broadcast_to(part, out.aval.shape) for part, out in outs]
    return private.plain(eqn, ins)


def cut(mask: np.ndarray, parts: Sequence[slice]) -> np.ndarray:
    """Return a part of a mask; along an axis of length 1 it does not vary."""
    each = zip(parts, mask.shape, strict=True)
    return mask[tuple(slice(None) if n == 1 else part for part, n in each)]


def split(mask: np.ndarray, shape: Shape, outs: Sequence[Shape]) -> list[np.ndarray]:
    """Return the parts of a mask along the axis along which results are shorter."""
    axis = next((i for i, n in enumerate(shape) if n != outs[0][i]), 0)
    ends = np.cumsum([out[axis] for out in outs])
    parts = (slice(end - out[axis], end) for end, out in zip(ends, outs, strict=True))
    before = [slice(None)] * axis
    return [cut(mask, [*before, part, *[slice(None)] * (len(shape) - axis - 1)]) for part in parts]


def padded(
    mask: np.ndarray, shape: Shape, widths: Sequence[Sequence[int]]
) -> list[np.ndarray] | None:
    """Return a mask with inactive entries around it; None if these are between, or cut off."""
    if any(low < 0 or high < 0 or between for low, high, between in widths):
        return None
    sizes = zip(mask.shape, shape, widths, strict=True)
    whole = [n if low or high else m for m, n, (low, high, _) in sizes]
    return [np.pad(np.broadcast_to(mask, whole), [(low, high) for low, high, _ in widths])]


# What a program that is traced computes from no argument, such as a causal mask made by `iota`.
#
# A tracer hides its value, but knows the operation that made it. By these operations the value is
# computed again in NumPy, exactly: what moves and compares numbers, and arithmetic of integers.
Rule: TypeAlias = Callable[[Origin, Sequence[np.ndarray]], np.ndarray | None]


def entries_by_program(x: Any, beside: Any) -> np.ndarray | None:
    """Return a value that depends on no argument, beside one that is traced; None if it does."""
    return Reader().read(x, DEEPEST) if private.is_staged(beside) else None


def selected_entries(which: Any, value: Any, masks: Sequence[Any]) -> np.ndarray | None:
    """Return the mask of a value that is selected, if the condition depends on no argument."""
    condition = entries_by_program(which, value) if all(map(is_known, masks)) else None
    if condition is None or condition.dtype != bool or not is_worth_it(condition, *masks):
        return None
    return np.where(condition, *masks[::-1])


class Body:
    """The body of a call, and what its constants and arguments are outside of it."""

    def __init__(self, program: Any, args: Sequence[Any]) -> None:
        jaxpr = opened(program)
        names = [*jaxpr.constvars, *jaxpr.invars]
        self.outside = dict(zip(names, [*constants(program), *args], strict=True))
        self.makers = makers_of(jaxpr)

    def at(self, atom: Any) -> Any:
        """Return what stands for a variable or a literal."""
        if isinstance(atom, Literal):
            return typed(atom.val, atom.aval)
        return self.outside[atom] if atom in self.outside else Inner(self, atom)


@lru_cache(maxsize=1024)
def makers_of(jaxpr: Jaxpr) -> dict[Any, Any]:
    """Return the operation that makes each variable, and which of its results it is."""
    return {x: (eqn, i) for eqn in jaxpr.eqns for i, x in enumerate(eqn.outvars)}


class Inner(NamedTuple):
    """A variable that an operation of a body makes."""

    body: Body
    atom: Any

    @property
    def origin(self) -> Origin:
        eqn, result = self.body.makers[self.atom]
        return Origin(eqn, [self.body.at(x) for x in eqn.invars], result)


class Reader:
    """Computes values again, each once."""

    def __init__(self) -> None:
        self.found: dict[Any, np.ndarray | None] = {}

    def read(self, x: Any, depth: int) -> np.ndarray | None:
        """Return a value; None if it depends on an argument, or on what is not computed here."""
        if not isinstance(x, (Inner, jax.core.Tracer)):
            return constant_on_host(x)
        inside = isinstance(x, Inner)
        origin = x.origin if inside else private.origin_of(x)
        if origin is None:
            return constant_on_host(typed(private.constant_of(x), jax.typeof(x)))
        key = x if inside else id(x)
        if key not in self.found:
            self.found[key] = self.made(origin, depth - 1) if depth else None
        return self.found[key]

    def made(self, origin: Origin, depth: int) -> np.ndarray | None:
        """Return a result of an operation."""
        eqn, inputs, result = origin
        name = eqn.primitive.name
        if name in CALLS:
            program = private.body_of_call(eqn.params)
            out = opened(program).outvars[result]
            return self.read(Body(program, inputs).at(out), depth)
        if name in SAME:
            return self.read(inputs[result], depth)
        rule, out = RULES.get(name), eqn.outvars[0].aval
        if rule is None or 0 in out.shape or (name in OF_INTEGERS and not is_integer(out.dtype)):
            return None
        values: list[np.ndarray] = []
        for x in inputs:
            value = self.read(x, depth)
            if value is None:
                return None
            values.append(value)
        return rule(origin, values)


def typed(x: Any, aval: Any) -> Any:
    """Return a number of Python in its dtype in the program."""
    return np.asarray(x, aval.dtype) if isinstance(x, (bool, int, float)) else x


def constant_on_host(x: Any) -> np.ndarray | None:
    """Return a constant; None for what is none, or lies on another machine."""
    dtype = getattr(x, "dtype", np.dtype(bool))
    if isinstance(x, jax.core.Tracer) or not isinstance(dtype, np.dtype) or np.size(x) > LARGEST:
        return None
    whole = not isinstance(x, jax.Array) or (x.is_fully_addressable and not x.is_deleted())
    return np.asarray(x) if whole else None


def is_integer(dtype: Any) -> bool:
    """Whether a dtype is of integers or booleans, whose arithmetic NumPy has, too."""
    return isinstance(dtype, np.dtype) and dtype.kind in "biu"


def iota(origin: Origin, _: Sequence[np.ndarray]) -> np.ndarray:
    """Count along an axis."""
    out, axis = origin.eqn.outvars[0].aval, private.axis_of_iota(origin.eqn)
    shape = [-1 if i == axis else 1 for i in range(len(out.shape))]
    return np.arange(out.shape[axis]).astype(out.dtype).reshape(shape)


def moved_again(origin: Origin, values: Sequence[np.ndarray]) -> np.ndarray | None:
    """Move entries."""
    x = origin.inputs[0]
    shape = x.atom.aval.shape if isinstance(x, Inner) else np.shape(x)
    found = moved(origin.eqn, values[0], tuple(shape))
    return None if found is None else found[0]


def converted(origin: Origin, values: Sequence[np.ndarray]) -> np.ndarray | None:
    """Convert, but no real number to an integer, which may be too large for it."""
    (x,), dtype = values, origin.eqn.outvars[0].aval.dtype
    known = isinstance(dtype, np.dtype) and (is_integer(x.dtype) or dtype.kind not in "iu")
    return x.astype(dtype) if known and x.dtype.kind != "c" else None


def selected(origin: Origin, values: Sequence[np.ndarray]) -> np.ndarray | None:
    """Select by a condition."""
    condition, *cases = values
    if condition.dtype != bool:
        return None
    return elementwise(np.where, origin, [condition, *cases[::-1]])


def elementwise(
    f: Callable[..., Any], origin: Origin, values: Sequence[np.ndarray]
) -> np.ndarray | None:
    """Compute entries one by one."""
    return computed(f, values, origin.eqn.outvars[0].aval.dtype)


def divided(rest: bool, origin: Origin, values: Sequence[np.ndarray]) -> np.ndarray | None:  # noqa: FBT001  (partial)
    """Divide integers towards 0; by 0 there is no telling."""
    if not values[1].all():
        return None
    f = np.fmod if rest else lambda x, y: (x - np.fmod(x, y)) // y
    return elementwise(f, origin, values)


CALLS = """
    jit pjit closed_call core_call checkpoint remat2 custom_jvp_call custom_vjp_call
""".split()  # noqa: SIM905  (a list of words)
SAME = """
    copy copy_p stop_gradient optimization_barrier pvary sharding_constraint reshard
""".split()  # noqa: SIM905  (a list of words)
OF_INTEGERS = """
    add sub mul neg sign abs max min div rem and or xor not
""".split()  # noqa: SIM905  (a list of words)
_FUNCTIONS = {
    **{name: getattr(np, name) for name in ("sign", "abs")},
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.bitwise_not,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
RULES: dict[str, Rule] = {
    "iota": iota,
    **dict.fromkeys(("broadcast_in_dim", "reshape", "squeeze", "transpose", "slice"), moved_again),
    "convert_element_type": converted,
    "select_n": selected,
    "div": partial(divided, False),  # noqa: FBT003  (positional in a partial)
    "rem": partial(divided, True),  # noqa: FBT003  (as above)
    **{name: partial(elementwise, f) for name, f in _FUNCTIONS.items()},
}
