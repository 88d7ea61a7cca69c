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
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from safeops._typing import Array
from safeops.autodiff._explain.evidence import Site
from safeops.autodiff.jax._callbacks import SILENT
from safeops.autodiff.jax._explain.sites import each, numbers_of
from safeops.autodiff.jax._explain.steps import CALLS, Stopped, body_of_call
from safeops.autodiff.jax._pairs import bodies_in, plain

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
        if name == "scan" and params["length"] * _cost(params["jaxpr"].jaxpr) <= FEW:
            return False
        if site in self.opened or any(_is_nonfinite(x) for x in values):
            return False
        if any(params[key].effects for key in ("jaxpr", "body_jaxpr") if key in params):
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


def _cost(jaxpr: Jaxpr) -> int:
    """Return how many operations a program runs, counting each step of its loops."""
    return sum(
        1
        + eqn.params.get("length", FEW if "body_jaxpr" in eqn.params else 1)
        * sum(map(_cost, bodies_in(eqn.params)))
        for eqn in jaxpr.eqns
    )


def _is_nonfinite(x: Any) -> bool:
    numbers = numbers_of(x)
    return numbers is not None and not np.isfinite(numbers).all()


# Bodies with a flag


def _flagged(name: str, params: Mapping[str, Any], ins: Sequence[Any]) -> tuple[list[Any], Array]:
    """Return the results of a loop, and whether anything in it was not finite."""
    return {"scan": _scan, "while": _while_loop}[name](params, ins)


def _scan(params: Mapping[str, Any], ins: Sequence[Any]) -> tuple[list[Any], Array]:
    fixed, carried = params["num_consts"], params["num_carry"]

    def step(carry: Any, xs: Any) -> Any:
        outs, nonfinite = _body(params["jaxpr"], [*ins[:fixed], *carry[0], *xs])
        return (outs[:carried], carry[1] | nonfinite), outs[carried:]

    start = (list(ins[fixed : fixed + carried]), jnp.zeros((), bool))
    how = {"length": params["length"], "reverse": params["reverse"]}
    (last, nonfinite), ys = lax.scan(step, start, list(ins[fixed + carried :]), **how)
    return [*last, *ys], nonfinite


def _while_loop(params: Mapping[str, Any], ins: Sequence[Any]) -> tuple[list[Any], Array]:
    for_test, for_body = params["cond_nconsts"], params["body_nconsts"]
    tested, fixed = ins[:for_test], ins[for_test : for_test + for_body]

    def goes_on(carry: Any) -> Array:
        return _body(params["cond_jaxpr"], [*tested, *carry[0]])[0][0]

    def step(carry: Any) -> Any:
        outs, nonfinite = _body(params["body_jaxpr"], [*fixed, *carry[0]])
        return outs, carry[1] | nonfinite

    start = (list(ins[for_test + for_body :]), jnp.zeros((), bool))
    return lax.while_loop(goes_on, step, start)


def _cond(params: Mapping[str, Any], ins: Sequence[Any]) -> tuple[list[Any], Array]:
    branches = [lambda *xs, b=b: _body(b, xs) for b in params["branches"]]
    return lax.switch(jnp.asarray(ins[0], jnp.int32), branches, *ins[1:])


def _body(closed: ClosedJaxpr, args: Sequence[Any]) -> tuple[list[Any], Array]:
    """Run a body; the flag is set by anything nonfinite in it."""
    flags = [jnp.zeros((), bool)]

    def one(eqn: JaxprEqn, ins: list[Any]) -> list[Any]:
        outs, nonfinite = _equation(eqn, ins)
        flags.append(nonfinite)
        return outs

    outs = each(closed, args, one)
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
