"""
What a program that is traced computes from no argument, such as a causal mask made by `iota`.

A tracer hides its value, but knows the operation that made it. By these operations the value is
computed again in NumPy, exactly: what moves and compares numbers, and arithmetic of integers. A
value has length 1 along each axis along which it was broadcast, so that it stays small.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax.extend.core import Jaxpr, Literal

from safeops._backends.jax import private
from safeops._backends.jax.bodies import constants, opened
from safeops._backends.jax.private import Origin
from safeops.autodiff._small import DEEPEST, LARGEST, computed, is_worth_it
from safeops.autodiff.jax import _known

Rule: TypeAlias = Callable[[Origin, Sequence[np.ndarray]], np.ndarray | None]


def entries_of(x: Any, beside: Any) -> np.ndarray | None:
    """Return a value that depends on no argument, beside one that is traced; None if it does."""
    return Reader().read(x, DEEPEST) if private.is_staged(beside) else None


def selected_entries(which: Any, value: Any, masks: Sequence[Any]) -> np.ndarray | None:
    """Return the mask of a value that is selected, if the condition depends on no argument."""
    condition = entries_of(which, value) if all(map(_known.is_known, masks)) else None
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
        """The operation."""
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


def moved(origin: Origin, values: Sequence[np.ndarray]) -> np.ndarray | None:
    """Move entries."""
    x = origin.inputs[0]
    shape = x.atom.aval.shape if isinstance(x, Inner) else np.shape(x)
    found = _known.moved(origin.eqn, values[0], tuple(shape))
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
    **dict.fromkeys(("broadcast_in_dim", "reshape", "squeeze", "transpose", "slice"), moved),
    "convert_element_type": converted,
    "select_n": selected,
    "div": partial(divided, False),  # noqa: FBT003  (positional in a partial)
    "rem": partial(divided, True),  # noqa: FBT003  (as above)
    **{name: partial(elementwise, f) for name, f in _FUNCTIONS.items()},
}
