"""Functions of the house as compiled programs: eager JAX takes 5 to 20 us for each operation."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from safeops._backends.jax import linalg, losses, rules, segments
from safeops._backends.jax.rules import Context
from safeops._core.dtypes import NUMPY_TYPES, SCALARS
from safeops._core.types import ARRAY_OPTIONS, Array, Function

if TYPE_CHECKING:
    from collections.abc import Iterator

KERNELS = rules.KERNELS | linalg.KERNELS | losses.KERNELS | segments.KERNELS
_MOST = 64  # programs of one function: one called with ever new numbers is then not compiled
_CONSTANTS = (*SCALARS, str, type(None))
_HOLE = object()
_ARRAYS = frozenset(ARRAY_OPTIONS)  # options that may be traced
_TRACED = (jax.Array, *NUMPY_TYPES)
# From JAX 0.11 on, True keeps the inner program until an outer one is compiled.
_INLINE: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True


class Jitted:
    """A function of the house as one compiled program."""

    # An argument that is not an array is part of the program. With ``inline`` the program leaves no
    # trace in an outer program.

    def __init__(self, name: str, context: Context) -> None:
        self.name, self.context = name, context
        self.programs: dict[Any, Function] = {}

    def __call__(self, *args: Any, **options: Any) -> Array | None:
        """Return the value; None if it is neither an array of JAX nor a constant."""
        if any(isinstance(x, _TRACED) for name, x in options.items() if name not in _ARRAYS):
            return None  # the function asks such an option for its value
        values = (*args, *options.values())
        for x in values:
            if isinstance(x, NUMPY_TYPES):
                require_range(x)
        holes = [isinstance(x, _TRACED) for x in values]
        constants = [_HOLE if hole else x for hole, x in zip(holes, values, strict=True)]
        if not all(hole or _is_constant(x) for hole, x in zip(holes, values, strict=True)):
            return None
        # By type and spelling: 1, 1.0 and True are equal, and so are 0.0 and -0.0.
        key = *map(type, constants), *map(repr, constants), *options
        program = self.programs.get(key)
        if program is None:
            if len(self.programs) == _MOST:
                return None
            program = self.programs[key] = self.program(constants, tuple(options))
        return program(*(x for hole, x in zip(holes, values, strict=True) if hole))

    def program(self, constants: list[Any], names: tuple[str, ...]) -> Function:
        """Return a compiled function of the arrays among the arguments."""

        def call(*arrays: Array) -> Array:
            rest: Iterator[Array] = iter(arrays)
            values = [next(rest) if x is _HOLE else x for x in constants]
            first = len(values) - len(names)
            options = dict(zip(names, values[first:], strict=True))
            value = self.value(values[:first], options)
            return self.context.generic(*values[:first], **options) if value is None else value

        call.__name__ = self.name
        return jax.jit(call, inline=_INLINE)

    def value(self, args: list[Any], options: dict[str, Any]) -> Array | None:
        """Return the value by the kernel of that name; None if no kernel takes the arguments."""
        kernel = KERNELS.get(self.name)
        if kernel is None or any(isinstance(x, (str, type(None))) for x in args):
            return None  # the generic function says what is wrong with it
        return kernel(self.context, *args, **options)


def require_range(x: Any) -> None:
    """Raise ValueError for whole numbers of NumPy that JAX has not."""
    # JAX has 32 bits of them unless it has been told otherwise, and wraps longer ones around: to
    # another class, another id.
    if x.dtype.kind not in "iu" or not x.size:
        return
    bounds = jnp.iinfo(jax.dtypes.canonicalize_dtype(x.dtype))
    least, largest = x.min(), x.max()
    if least < bounds.min or largest > bounds.max:
        msg = (
            f"expected whole numbers from {bounds.min} to {bounds.max}, as JAX has no others, got "
            f"{least} to {largest}; clip them, pass floats, or set jax_enable_x64"
        )
        raise ValueError(msg)


def _is_constant(x: Any) -> bool:
    return type(x) in _CONSTANTS or (type(x) is tuple and all(map(_is_constant, x)))
