"""
Callbacks of the user: `explain` runs a program several times, and calls them once.

The first run records the results of callbacks; later runs read them in the same order. Callbacks
without results, such as `jax.debug.print`, are left out of later runs.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn, jaxpr_as_fun

from safeops._backends.jax.bodies import Program, bodies_in, opened, with_bodies
from safeops._backends.jax.private import body_of_call, traced, with_callback
from safeops.autodiff.jax._choosers import Choosing
from safeops.autodiff.jax._lines import CALLS, eval_jaxpr_with

SILENT = ("debug_callback", "debug_print")
ANSWERING = ("pure_callback", "io_callback")


class Callbacks:
    """What the callbacks of a program returned, in the order of their calls."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.names: set[str] = set()  # the operations that call them

    def noting(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """Return `f`, with the results of its callbacks recorded."""

        def noted(call: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                found = call(*args, **kwargs)
                self.results.append(found)
                return found

            return run

        return traced(f, lambda parent: Calling(parent, self.names, noted, silent=False))

    def answering(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """Return `f`, with recorded results in place of its callbacks."""
        if not self.names:
            return f
        left: Iterator[Any] = iter(self.results)

        def answered(call: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                for found in left:
                    return found
                return call(*args, **kwargs)  # a loop that runs once more

            return run

        return traced(f, lambda parent: Calling(parent, self.names, answered, silent=True))


Change = Callable[[Callable[..., Any]], Callable[..., Any]]


class Calling(Choosing):
    """Pass each operation on to the trace below, callbacks with a changed function."""

    def __init__(self, parent: Any, names: set[str], change: Change, *, silent: bool) -> None:
        super().__init__(parent)
        self.names, self.change, self.silent = names, change, silent

    def operation(self, primitive: Any, args: Any, params: Any) -> Any:
        name = primitive.name
        if name in CALLS and _is_one(body := body_of_call(params)):
            return eval_jaxpr_with(body, args, self.equation)
        with self.below():
            if name in (*SILENT, *ANSWERING):
                self.names.add(name)
            if name in SILENT and self.silent:
                return []
            if name in ANSWERING:
                params = with_callback(params, self.change)
            return primitive.bind(*args, **with_bodies(params, self.changed))

    def equation(self, eqn: JaxprEqn, ins: list[Any]) -> list[Any]:
        found = self.operation(eqn.primitive, ins, eqn.params)
        return list(found) if eqn.primitive.multiple_results else [found]

    def changed(self, program: Program) -> Program:
        """Return a body with other callbacks."""
        if not _calls(opened(program)):
            return program
        return jax.make_jaxpr(lambda *args: self.body(program, args))(*program.in_avals)

    def body(self, program: Program, args: Sequence[Any]) -> list[Any]:
        """Run a body, with each operation treated as at the top."""
        again = partial(Calling, names=self.names, change=self.change, silent=self.silent)
        return traced(jaxpr_as_fun(program), again)(*args)


def _is_one(program: Program) -> bool:
    """Whether a call is of one operation: later runs have it by itself, compiled once for all."""
    eqns = opened(program).eqns
    return len(eqns) == 1 and not bodies_in(eqns[0].params)


def _calls(jaxpr: Jaxpr) -> bool:
    return any(
        eqn.primitive.name in (*SILENT, *ANSWERING) or any(map(_calls, bodies_in(eqn.params)))
        for eqn in jaxpr.eqns
    )
