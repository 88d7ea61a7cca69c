"""
The watched forward pass: which operations make values that are not finite.

It runs on concrete values, the bodies of loops and calls step by step. A nonfinite array is
recorded with the operations that made it nonfinite.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import JaxprEqn

from safeops._backends.jax.bodies import Program, opened
from safeops._backends.jax.private import Call, plain, traced
from safeops.autodiff._explain.evidence import Forward, Site
from safeops.autodiff.jax._choosers import Choosing
from safeops.autodiff.jax._explain.sites import each, here, inside, map_of, mapped, word_for
from safeops.autodiff.jax._explain.steps import Steps
from safeops.autodiff.jax._explain.whole import Looking


class Watching(Choosing):
    """Run each operation, and record it if its results are not finite."""

    def __init__(self, parent: Any, forward: Forward, looking: Looking) -> None:
        super().__init__(parent)
        self.forward, self.looking = forward, looking

    def operation(self, primitive: Any, args: Any, params: Any) -> Any:
        """Run one operation."""
        site = here(primitive.name, params)
        with self.below():
            steps = Steps(_bodies_at(site, self.forward, self.looking), self.looking)
            outs = steps.controlled(primitive.name, params, args, site)
            if outs is not None:
                return outs
            outs = primitive.bind(*args, **params)
            several = list(outs) if primitive.multiple_results else [outs]
            self.forward.made(site, args, several)
            return outs

    def shards(self, call: Call, args: Any) -> Any:
        """Run a sharded function as a map, or else as one operation."""
        whole = super().shards(call, args)
        with self.below():
            return mapped(call, args, self.again, whole)

    def again(self, parent: Any) -> "Watching":
        """Return such a trace over another."""
        return Watching(parent, self.forward, self.looking)

    def ruled(self, call: Call, args: Any) -> Any:
        """Run a function with a derivative rule of its own, which counts as one operation."""
        outs = super().ruled(call, args)
        self.forward.made(here(word_for(call.functions[0])), args, outs)
        return outs


def watching(f: Callable[..., Any], forward: Forward, looking: Looking) -> Callable[..., Any]:
    """Return `f` with each operation watched."""
    return traced(f, lambda parent: Watching(parent, forward, looking))


def _bodies_at(
    outer: Site, forward: Forward, looking: Looking
) -> Callable[[Program, Sequence[Any]], list[Any]]:
    """Return a function that runs the body of the operation at a site."""

    def run(program: Program, args: Sequence[Any]) -> list[Any]:
        def watched(eqn: JaxprEqn, ins: list[Any]) -> list[Any]:
            site = inside(eqn, opened(program), outer)
            steps = Steps(_bodies_at(site, forward, looking), looking)
            outs = steps.controlled(eqn.primitive.name, eqn.params, ins, site)
            if outs is None and eqn.primitive.name == "shard_map":
                outs = map_of(eqn, ins, lambda parent: Watching(parent, forward, looking))
            if outs is None:
                outs = plain(eqn, ins)
                forward.made(site, ins, outs)
            return outs

        return each(program, args, watched)

    return run
