"""Control flow on concrete values: calls, loops and branches, run step by step in Python."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from safeops._backends.jax.bodies import Program
from safeops._backends.jax.private import body_of_call, branches_of, scan_of, while_of
from safeops.autodiff._explain.evidence import Site

CALLS = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2", "eval_jaxpr")
if TYPE_CHECKING:
    from safeops.autodiff.jax._explain.whole import Looking

Run = Callable[[Program, Sequence[Any]], list[Any]]


class Stopped(Exception):  # noqa: N818  (it is no error)
    """Raised in a loop that has no time left."""


class Steps:
    """How to run bodies, and how to take values apart along their first axis."""

    def __init__(self, run: Run, looking: "Looking") -> None:
        self.run, self.looking = run, looking

    def value(self, x: Any) -> Any:
        """Return a value as an array."""
        return x

    def row(self, x: Any, i: int) -> Any:
        """Return one entry along the first axis."""
        return x[i]

    def stack(self, rows: Sequence[Any], like: Any) -> Any:
        """Return rows as one value; `like` is the type of a row."""
        return jnp.stack(rows) if rows else jnp.zeros((0, *like.shape), like.dtype)

    def controlled(
        self, name: str, params: Mapping[str, Any], ins: Sequence[Any], site: Site
    ) -> Any:
        """Return the results of a call, loop or branch; None to run it as one operation."""
        if name in CALLS:
            return self.call(params, ins)
        if name == "cond":
            return self.cond(params, ins)
        if name not in ("scan", "while"):
            return None
        if self.looking.is_whole(name, params, [self.value(x) for x in ins], site):
            return None
        try:
            return {"scan": self.scan, "while": self.while_loop}[name](params, ins, site)
        except Stopped:
            self.looking.stopped[site] = None
            return None

    def call(self, params: Mapping[str, Any], ins: Sequence[Any]) -> list[Any]:
        """Run the body of a call."""
        return self.run(body_of_call(params), ins)

    def scan(self, params: Mapping[str, Any], ins: Sequence[Any], site: Site) -> list[Any]:
        """Run the steps of a scan."""
        loop = scan_of(params)
        fixed, carry, xs = loop.parts(ins)
        order = range(loop.length)
        rows: list[list[Any]] = []
        for done, i in enumerate(reversed(order) if loop.reverse else order):
            self.looking.step(site, done, loop.length)
            outs = self.run(loop.body, [*fixed, *carry, *(self.row(x, i) for x in xs)])
            carry = outs[: loop.carried]
            rows.append(outs[loop.carried :])
        rows = rows[::-1] if loop.reverse else rows
        likes = loop.body.out_avals[loop.carried :]
        return [*carry, *(self.stack([r[k] for r in rows], y) for k, y in enumerate(likes))]

    def while_loop(self, params: Mapping[str, Any], ins: Sequence[Any], site: Site) -> list[Any]:
        """Run a loop while its condition holds."""
        loop, steps = while_of(params), itertools.count()
        tested, fixed, carry = loop.parts(ins)
        while self.value(self.run(loop.test, [*tested, *carry])[0]):
            self.looking.step(site, next(steps))
            carry = self.run(loop.body, [*fixed, *carry])
        return carry

    def cond(self, params: Mapping[str, Any], ins: Sequence[Any]) -> list[Any]:
        """Run the branch that is taken; an index beyond the last takes the last."""
        branches = branches_of(params)
        index = min(max(int(self.value(ins[0])), 0), len(branches) - 1)
        return self.run(branches[index], ins[1:])
