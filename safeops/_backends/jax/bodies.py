"""Programs of JAX (jaxprs), with constants or without, and those that an operation runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from jax.extend import core
from jax.extend.core import Jaxpr

Program: TypeAlias = Any  # a Jaxpr, or one with its constants

# Before 0.11 a class of its own has a program with its constants; then one class is both.
_Closed: Any = Jaxpr if hasattr(Jaxpr, "consts") else core.ClosedJaxpr


PROGRAMS = (Jaxpr, _Closed)  # with its constants or without


def opened(program: Program) -> Jaxpr:
    """Return a program without its constants."""
    return program if isinstance(program, Jaxpr) else program.jaxpr


def closed(program: Program) -> Any:
    """Return a program with its constants, of which a body has none."""
    return program if isinstance(program, _Closed) else _Closed(program, ())


def with_bodies(params: Mapping[str, Any], change: Callable[[Any], Any]) -> Mapping[str, Any]:
    """Return parameters with other bodies, which `change` makes of closed ones."""
    changed = {}
    for name, param in params.items():  # no function for each: asked for each operation
        for x in param if isinstance(param, (tuple, list)) else (param,):
            if isinstance(x, PROGRAMS):
                changed[name] = _with_bodies(param, change)
                break
    return {**params, **changed} if changed else params


def _with_bodies(param: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(param, (tuple, list)):
        make = getattr(type(param), "_make", type(param))
        return make([_with_bodies(x, change) if isinstance(x, PROGRAMS) else x for x in param])
    changed = change(closed(param))
    return changed if isinstance(param, _Closed) else opened(changed)


def constants(program: Program) -> Sequence[Any]:
    """Return the constants of a program, which a body has none of."""
    return closed(program).consts


def bodies_in(params: Mapping[str, Any]) -> list[Jaxpr]:
    """Return the bodies among the parameters of an operation."""
    found = []
    for param in params.values():
        for x in param if isinstance(param, (tuple, list)) else (param,):
            if isinstance(x, PROGRAMS):
                found.append(opened(x))  # noqa: PERF401  (asked for each operation)
    return found
