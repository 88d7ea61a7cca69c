"""
Loops that `explain` runs whole: all of their values are finite, or their time is up.

A loop is first compiled with a flag that tells whether any operation in any step makes something
nonfinite. If not, the loop counts as one operation. Else it runs step by step in Python, while
there is time.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn

from safeops._backends.jax.bodies import Program, bodies_in
from safeops._backends.jax.private import body_of_call, branches_of, plain, scan_of, while_of
from safeops._typing import Array
from safeops.autodiff._explain.evidence import Site
from safeops.autodiff.jax._callbacks import SILENT
from safeops.autodiff.jax._explain.sites import each, numbers_of
from safeops.autodiff.jax._explain.steps import CALLS, Stopped

LOOPS = ("scan", "while")
FEW = 200  # operations: running so many one by one takes less time than compiling them
SECOND = 1.0  # between two calls of `progress`


class Looking:
    """Which loops have been run step by step, and how much time is left."""

    def __init__(self, seconds: float, progress: Callable[[str], None] | None = None) -> None:
        self.seconds, self.progress = seconds, progress
        self.start = self.said = time.monotonic()
        self.opened: set[Site] = set()  # loops to run step by step even if all in them is finite
        self.whole: set[Site] = set()  # loops that ran whole, as all in them is finite
        self.stopped: dict[Site, None] = {}  # loops that ran out of time

    def step(self, site: Site, i: int, length: int | None = None) -> None:
        """Begin a step of a loop; raise Stopped if the time is up."""
        now = time.monotonic()
        if now - self.start > self.seconds:
            self.stopped[site] = None
            raise Stopped
        if self.progress is not None and now - self.said > SECOND:
            self.said = now
            of = "" if length is None else f" of {length}"
            self.progress(f"step {i + 1}{of} of the loop at {site.where or 'an unknown line'}")

    def is_whole(self, name: str, params: Mapping[str, Any], values: Any, site: Site) -> bool:
        """Whether to run a loop whole: all in it is finite, or there is no time."""
        if name == "scan" and _steps(name, params) * sum(map(cost_of, bodies_in(params))) <= FEW:
            return False
        if site in self.opened or any(_is_nonfinite(x) for x in values):
            return False
        if any(body.effects for body in bodies_in(params)):
            return False  # its side effects must not happen twice
        _, nonfinite = jax.jit(lambda *xs: _flagged(name, params, xs))(*values)
        if not nonfinite:
            self.whole.add(site)
        return not nonfinite

    def notes(self) -> list[str]:
        """Return notes about loops that were not run step by step."""
        return [
            f"stopped after {self.seconds:.0f} seconds in the loop at {site.where}, which counts "
            "as one operation; make it shorter, or pass a larger limit"
            for site in self.stopped
        ]


def cost_of(jaxpr: Jaxpr) -> int:
    """Return how many operations a program runs, counting each step of its loops."""
    return sum(
        1 + _steps(eqn.primitive.name, eqn.params) * sum(map(cost_of, bodies_in(eqn.params)))
        for eqn in jaxpr.eqns
    )


def _steps(name: str, params: Mapping[str, Any]) -> int:
    """Return how often an operation runs its bodies; of a loop with a condition it is unknown."""
    return scan_of(params).length if name == "scan" else FEW if name == "while" else 1


def _is_nonfinite(x: Any) -> bool:
    numbers = numbers_of(x)
    return numbers is not None and not np.isfinite(numbers).all()


# Bodies with a flag


def _flagged(name: str, params: Mapping[str, Any], ins: Sequence[Any]) -> tuple[list[Any], Array]:
    """Return the results of a loop, and whether anything in it was not finite."""
    return {"scan": _scan, "while": _while_loop}[name](params, ins)


def _scan(params: Mapping[str, Any], ins: Sequence[Any]) -> tuple[list[Any], Array]:
    loop = scan_of(params)
    fixed, first, every = loop.parts(ins)

    def step(carry: Any, xs: Any) -> Any:
        outs, nonfinite = _body(loop.body, [*fixed, *carry[0], *xs])
        return (outs[: loop.carried], carry[1] | nonfinite), outs[loop.carried :]

    start = (first, jnp.zeros((), bool))
    how = {"length": loop.length, "reverse": loop.reverse}
    (last, nonfinite), ys = lax.scan(step, start, every, **how)
    return [*last, *ys], nonfinite


def _while_loop(params: Mapping[str, Any], ins: Sequence[Any]) -> tuple[list[Any], Array]:
    loop = while_of(params)
    tested, fixed, first = loop.parts(ins)

    def goes_on(carry: Any) -> Array:
        return _body(loop.test, [*tested, *carry[0]])[0][0]

    def step(carry: Any) -> Any:
        outs, nonfinite = _body(loop.body, [*fixed, *carry[0]])
        return outs, carry[1] | nonfinite

    return lax.while_loop(goes_on, step, (first, jnp.zeros((), bool)))


def _cond(params: Mapping[str, Any], ins: Sequence[Any]) -> tuple[list[Any], Array]:
    branches = [lambda *xs, b=b: _body(b, xs) for b in branches_of(params)]
    return lax.switch(jnp.asarray(ins[0], jnp.int32), branches, *ins[1:])


def _body(program: Program, args: Sequence[Any]) -> tuple[list[Any], Array]:
    """Run a body; the flag is set by anything nonfinite in it."""
    flags = [jnp.zeros((), bool)]

    def one(eqn: JaxprEqn, ins: list[Any]) -> list[Any]:
        outs, nonfinite = _equation(eqn, ins)
        flags.append(nonfinite)
        return outs

    outs = each(program, args, one)
    return outs, jnp.any(jnp.stack(flags))


def _equation(eqn: JaxprEqn, ins: list[Any]) -> tuple[list[Any], Array]:
    name = eqn.primitive.name
    if name in SILENT:
        return [], jnp.zeros((), bool)
    if name in CALLS:
        return _body(body_of_call(eqn.params), ins)
    ways = {"scan": _scan, "while": _while_loop, "cond": _cond}
    if name in ways:
        return ways[name](eqn.params, ins)
    outs = plain(eqn, ins)
    nonfinite = [~jnp.isfinite(x).all() for x in outs if jnp.issubdtype(x.dtype, jnp.inexact)]
    return outs, jnp.any(jnp.stack([jnp.zeros((), bool), *nonfinite]))
