"""Control flow on concrete values: calls, loops and branches, run step by step in Python."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from safeops.autodiff._explain.evidence import Site
from safeops.autodiff.jax._pairs import CALL_BODIES

CALLS = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2")
if TYPE_CHECKING:
    from safeops.autodiff.jax._explain.whole import Looking

Run = Callable[[ClosedJaxpr, Sequence[Any]], list[Any]]


def body_of_call(params: Mapping[str, Any]) -> ClosedJaxpr:
    """Return the body of a call."""
    body = next(params[key] for key in CALL_BODIES if key in params)
    return body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ())


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
        fixed, carried = params["num_consts"], params["num_carry"]
        consts, carry, xs = (
            ins[:fixed],
            ins[fixed : fixed + carried],
            ins[fixed + carried :],
        )
        order = range(params["length"])
        rows: list[list[Any]] = []
        for done, i in enumerate(reversed(order) if params["reverse"] else order):
            self.looking.step(site, done, params["length"])
            outs = self.run(params["jaxpr"], [*consts, *carry, *(self.row(x, i) for x in xs)])
            carry = outs[:carried]
            rows.append(outs[carried:])
        rows = rows[::-1] if params["reverse"] else rows
        likes = params["jaxpr"].out_avals[carried:]
        return [*carry, *(self.stack([r[k] for r in rows], y) for k, y in enumerate(likes))]

    def while_loop(self, params: Mapping[str, Any], ins: Sequence[Any], site: Site) -> list[Any]:
        """Run a loop while its condition holds."""
        for_test, for_body = params["cond_nconsts"], params["body_nconsts"]
        tested, fixed = ins[:for_test], ins[for_test : for_test + for_body]
        carry, steps = list(ins[for_test + for_body :]), itertools.count()
        while self.value(self.run(params["cond_jaxpr"], [*tested, *carry])[0]):
            self.looking.step(site, next(steps))
            carry = self.run(params["body_jaxpr"], [*fixed, *carry])
        return carry

    def cond(self, params: Mapping[str, Any], ins: Sequence[Any]) -> list[Any]:
        """Run the branch that is taken; an index beyond the last takes the last."""
        branches = params["branches"]
        index = min(max(int(self.value(ins[0])), 0), len(branches) - 1)
        return self.run(branches[index], ins[1:])
