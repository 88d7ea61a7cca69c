"""
The watched run: each operation in the name scope of its site, and which make what is not finite.

It runs under `jax.vjp`, on values that are known, the bodies of loops, branches and calls step by
step. So the backward pass is one flat program, each equation of which names the operation whose
derivative it is; and a value that is not finite is recorded with the operations that made it so.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Literal

from safeops._backends.jax.bodies import Program, opened
from safeops._backends.jax.private import (
    Call,
    Scan,
    body_of_call,
    branches_of,
    scan_of,
    traced,
    while_of,
)
from safeops._core.types import Array
from safeops.autodiff._explain.evidence import Forward, Site
from safeops.autodiff.jax._choosers import Choosing, chosen_equation, using_nan
from safeops.autodiff.jax._evaluator import is_inexact
from safeops.autodiff.jax._explain.compiled_loops import LOOPS, LoopBudget, Stopped
from safeops.autodiff.jax._lines import (
    CALLS,
    Sites,
    current_site,
    eval_jaxpr_with,
    map_of,
    mapped,
    site_in_body,
    word_for,
)


@dataclass(frozen=True)
class Watch:
    """How operations run, and what they have made."""

    forward: Forward
    sites: Sites
    looking: LoopBudget

    def operation(
        self,
        primitive: Any,
        params: Mapping[str, Any],
        ins: Sequence[Any],
        site: Site,
        run: Callable[[], list[Any]],
    ) -> list[Any]:
        """Run one operation; a call, loop or branch step by step."""
        outs = self.controlled(primitive, params, ins, site)
        if outs is None:
            with self.sites.scope(site):
                outs = run()
            self.forward.record_operation(site, ins, outs)
        return outs

    def body(self, program: Program, args: Sequence[Any], outer: Site) -> list[Any]:
        """Run the body of the operation at a site."""

        def run(eqn: JaxprEqn, ins: list[Any]) -> list[Any]:
            if eqn.primitive.name == "shard_map":
                outs = map_of(eqn, ins, partial(Watching, watch=self))
                if outs is not None:
                    return outs
            site = site_in_body(eqn, opened(program), outer)
            plainly = partial(chosen_equation, eqn, ins)
            return self.operation(eqn.primitive, eqn.params, ins, site, plainly)

        return eval_jaxpr_with(program, args, run)

    def controlled(
        self, primitive: Any, params: Mapping[str, Any], ins: Sequence[Any], site: Site
    ) -> list[Any] | None:
        """Return the results of a call, loop or branch; None to run it as one operation."""
        name = primitive.name
        if name in CALLS:
            outs = self.body(body_of_call(params), ins, site)
            return self.ended(site, outs, lambda: using_nan(name, params, ins, outs))
        if name == "cond":
            return self.cond(params, ins, site)
        if name not in LOOPS or self.looking.is_whole(primitive, params, ins, site):
            return None
        try:
            return {"scan": self.scan, "while": self.while_loop}[name](params, ins, site)
        except Stopped:
            self.looking.stopped[site] = None
            return None

    def scan(self, params: Mapping[str, Any], ins: Sequence[Any], site: Site) -> list[Any]:
        """Run the steps of a scan."""
        loop = scan_of(params)
        fixed, carry, xs = loop.parts(ins)
        with self.sites.scope(site):
            rows = list(zip(*(rows_of(x, loop.length) for x in xs), strict=True))
        rows = rows or [()] * loop.length
        made: list[list[Any]] = []
        for done, row in enumerate(reversed(rows) if loop.reverse else rows):
            self.looking.step(site, done, loop.length)
            outs = self.body(loop.body, [*fixed, *carry, *row], site)
            carry = outs[: loop.carried]
            made.append(outs[loop.carried :])
        made = made[::-1] if loop.reverse else made
        with self.sites.scope(site):
            likes = loop.body.out_avals[loop.carried :]
            ys = [stacked([row[k] for row in made], like) for k, like in enumerate(likes)]
        for k, y in enumerate(ys):
            self.forward.record_operation(site, [row[k] for row in made], [y])
        outs, lost = [*carry, *ys], carries_read(loop)
        return self.ended(site, outs, lambda: depending(outs, carry, lost))

    def while_loop(self, params: Mapping[str, Any], ins: Sequence[Any], site: Site) -> list[Any]:
        """Run a loop while its condition holds."""
        loop, steps = while_of(params), itertools.count()
        tested, fixed, carry = loop.parts(ins)
        while self.body(loop.test, [*tested, *carry], site)[0]:
            self.looking.step(site, next(steps))
            carry = self.body(loop.body, [*fixed, *carry], site)
        return carry

    def cond(self, params: Mapping[str, Any], ins: Sequence[Any], site: Site) -> list[Any]:
        """Run the branch that is taken; an index beyond the last takes the last."""
        branches = branches_of(params)
        index = min(max(int(ins[0]), 0), len(branches) - 1)
        outs = self.body(branches[index], ins[1:], site)
        read = [
            set[int]().union(*sets) for sets in zip(*map(arguments_read, branches), strict=True)
        ]
        return self.ended(site, outs, lambda: depending(outs, ins[1:], read))

    def ended(
        self, site: Site, outs: Sequence[Any], change: Callable[[], Sequence[Any]]
    ) -> list[Any]:
        """Return results of a body, changed at its end, which are what they were."""
        with self.sites.scope(site):
            changed = list(change())
        for x, y in zip(outs, changed, strict=True):
            if x is not y:
                self.forward.record_operation(site, [x], [y])
        return changed


def rows_of(x: Array, count: int) -> list[Array]:
    """Return the entries along the first axis, whose cotangents are put together at once."""
    if not is_inexact(x) or not count:
        return [x[i] for i in range(count)]
    return [lax.squeeze(row, (0,)) for row in lax.split(x, [1] * count)]


def stacked(rows: Sequence[Any], like: Any) -> Array:
    """Return rows as one array; `like` is the type of a row."""
    return jnp.stack(rows) if rows else jnp.zeros((0, *like.shape), like.dtype)


def depending(
    outs: Sequence[Any], others: Sequence[Any], which: Sequence[Iterable[int]]
) -> list[Any]:
    """Return results, each of which depends on some of other values without reading them."""
    # A loop or branch has a cotangent of zeros for what it could have read: the last carry, or what
    # only another branch reads.
    sums: list[Any] = [
        jnp.sum(jnp.real(x)).astype(np.float32) if is_inexact(x) else None for x in others
    ]

    def beside(out: Any, read: Iterable[int]) -> Any:
        lost = [sums[i] for i in read if sums[i] is not None]
        if not lost or not is_inexact(out):
            return out
        other = jnp.broadcast_to(sum(lost), jnp.shape(out)).astype(jnp.result_type(out))
        return lax.select_n(jnp.zeros((), bool), out, other)

    return list(map(beside, outs, which))


def carries_read(loop: Scan) -> list[set[int]]:
    """Return for each result of a scan which carries a step of it can read."""
    read = [
        {i - loop.fixed for i in some if 0 <= i - loop.fixed < loop.carried}
        for some in arguments_read(loop.body)
    ]
    for _ in range(loop.carried):
        read = [some.union(*(read[i] for i in some)) for some in read]
    return read


def arguments_read(program: Program) -> list[set[int]]:
    """Return for each result of a body which arguments it is a differentiable function of."""
    jaxpr = opened(program)
    read = {x: {i} for i, x in enumerate(jaxpr.invars)}
    for eqn in jaxpr.eqns:
        given = [read.get(x, set()) for x in eqn.invars if not isinstance(x, Literal)]
        every = set[int]().union(*given)
        read |= {x: every if is_inexact(x.aval) else set() for x in eqn.outvars}
    return [set() if isinstance(x, Literal) else read.get(x, set()) for x in jaxpr.outvars]


class Watching(Choosing):
    """Watch each operation, with choosers in place of max and min."""

    def __init__(self, parent: Any, watch: Watch) -> None:
        super().__init__(parent)
        self.watch = watch

    def operation(self, primitive: Any, args: Any, params: Any) -> Any:
        """Run one operation."""
        many, below = primitive.multiple_results, super().operation

        def run() -> list[Any]:
            outs = below(primitive, args, params)
            return list(outs) if many else [outs]

        site = current_site(primitive.name, params)
        with self.below():
            outs = self.watch.operation(primitive, params, args, site, run)
        return outs if many else outs[0]

    def shards(self, call: Call, args: Any) -> Any:
        """Run a sharded function as a map, or else as one operation."""
        with self.watch.sites.scope(current_site("shard_map")):
            whole = super().shards(call, args)
        with self.below():
            return mapped(call, args, partial(Watching, watch=self.watch), whole)

    def ruled(self, call: Call, args: Any) -> Any:
        """Run a function with a derivative rule of its own, which counts as one operation."""
        site = current_site(word_for(call.functions[0]))
        with self.watch.sites.scope(site):
            outs = super().ruled(call, args)
        self.watch.forward.record_operation(site, args, outs)
        return outs


def watching(f: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    """Return `f` with each operation watched."""
    return traced(f, partial(Watching, watch=watch))
