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
from jax.extend.core import Jaxpr, JaxprEqn

from safeops._backends.jax.bodies import bodies_in
from safeops._backends.jax.private import plain, primal_of, scan_of
from safeops.autodiff._explain.evidence import Site
from safeops.autodiff._pairs import Pair
from safeops.autodiff.jax._evaluator import (
    Options,
    Rule,
    array_of,
    as_pairs,
    evaluate,
    is_inexact,
    value_of,
)
from safeops.autodiff.jax._lines import CALLS, numbers_of
from safeops.autodiff.jax._rules import RULES

LOOPS = ("scan", "while")
FEW = 200  # operations: running so many one by one takes less time than compiling them
SECOND = 1.0  # between two calls of `progress`


class Stopped(Exception):  # noqa: N818  (it is no error)
    """Raised in a loop that has no time left."""


class LoopBudget:
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

    def is_whole(self, primitive: Any, params: Mapping[str, Any], values: Any, site: Site) -> bool:
        """Whether to run a loop whole: all in it is finite, or there is no time."""
        name = primitive.name
        if name == "scan" and _steps(name, params) * sum(map(cost_of, bodies_in(params))) <= FEW:
            return False
        if site in self.opened or any(_is_nonfinite(x) for x in values):
            return False
        if any(body.effects for body in bodies_in(params)):
            return False  # its side effects must not happen twice
        nonfinite = makes_nonfinite(primitive, params, list(map(primal_of, values)))
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


# Loops with a flag


def makes_nonfinite(primitive: Any, params: Mapping[str, Any], values: Sequence[Any]) -> bool:
    """Whether any operation in any step of a loop makes something that is not finite."""
    program = jax.make_jaxpr(lambda *xs: primitive.bind(*xs, **params))(*values)

    def flags(*xs: Any) -> list[Any]:
        ins = [Pair(x, active=False) if is_inexact(x) else x for x in xs]
        return [array_of(x).any() for x in evaluate(program, ins, FLAGS) if isinstance(x, Pair)]

    return bool(any(jax.jit(flags)(*values)))


def flagged(eqn: JaxprEqn, ins: list[Any], _: Options) -> list[Any]:
    """Run one operation; its results are active if it, or one before it, made a NaN or infinity."""
    values = plain(eqn, [value_of(x) for x in ins])
    before = [array_of(x).any() for x in ins if isinstance(x, Pair)]
    now = [~jnp.isfinite(x).all() for x in values if is_inexact(x)]
    flag = jnp.any(jnp.stack([*before, *now]))
    return as_pairs(values, mask=flag)


class Flagging(dict[str, Rule]):
    """The rules of calls, loops and branches, and for all other operations one that flags them."""

    def get(self, name: str, _: Any = None) -> Rule:
        """Return the rule of an operation."""
        return super().get(name, flagged)


INTO = (*CALLS, *LOOPS, "cond")
FLAGS = Options(Flagging({name: RULES[name] for name in INTO}))
