"""Programs of JAX, with their constants or without, and the bodies among parameters."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from jax.extend import core
from jax.extend.core import Jaxpr

Program: TypeAlias = Any  # a Jaxpr, or one with its constants

# Before 0.11 a class of its own has a program with its constants; then one class is both.
_Closed: Any = Jaxpr if hasattr(Jaxpr, "consts") else core.ClosedJaxpr


def is_program(x: Any) -> bool:
    """Whether a parameter is a program, with its constants or without."""
    return isinstance(x, (Jaxpr, _Closed))


def opened(program: Program) -> Jaxpr:
    """Return a program without its constants."""
    return program if isinstance(program, Jaxpr) else program.jaxpr


def closed(program: Program) -> Any:
    """Return a program with its constants, of which a body has none."""
    return program if isinstance(program, _Closed) else _Closed(program, ())


def with_bodies(param: Any, change: Callable[[Any], Any]) -> Any:
    """Return a parameter with other bodies, which `change` makes of closed ones."""
    if isinstance(param, (tuple, list)) and any(map(is_program, param)):
        make = getattr(type(param), "_make", type(param))
        return make([with_bodies(x, change) for x in param])
    if not is_program(param):
        return param
    changed = change(closed(param))
    return changed if isinstance(param, _Closed) else opened(changed)


def constants(program: Program) -> Sequence[Any]:
    """Return the constants of a program, which a body has none of."""
    return closed(program).consts


def bodies_in(params: Mapping[str, Any]) -> list[Jaxpr]:
    """Return the bodies among the parameters of an operation."""
    every = [x for p in params.values() for x in (p if isinstance(p, (tuple, list)) else (p,))]
    return [opened(x) for x in every if is_program(x)]
