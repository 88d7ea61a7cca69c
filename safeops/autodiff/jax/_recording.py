"""
The operations of a loss, recorded while it runs, which run again without it.

A loss may do what must not happen twice: draw a random number, take the next batch, branch on a
number. So it runs once, under a trace that passes each operation on and keeps it with its lines.
Later runs read the results of its callbacks in the same order; callbacks without results, such as
`jax.debug.print`, are left out of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.extend.core import Jaxpr, JaxprEqn, jaxpr_as_fun

from safeops._backends.jax.bodies import Program, bodies_in, opened, with_bodies
from safeops._backends.jax.private import Call, Passing, body_of_call, traced, with_callback
from safeops.autodiff.jax._choosers import Choosing
from safeops.autodiff.jax._lines import CALLS, Code, codes_here, eval_jaxpr_with, replaying_at


class Constant(NamedTuple):
    """A value that an operation takes, and that no operation made."""

    value: Any


class Step(NamedTuple):
    """An operation, where its arguments and results are kept, and its lines."""

    run: Callable[..., Any]
    ins: list[int | Constant]
    outs: range
    codes: list[Code]


class Record:
    """The operations of a loss, from the arrays that it is differentiated for to its value."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.slots: list[Any] = []  # values, in the order in which they came
        self.slot_of: dict[int, int] = {}
        self.count = 0
        self.outer: dict[int, Any] = {}  # traced values from around the loss, by their slots
        self.keys: dict[int, Any] = {}  # of random keys among them, the kind
        self.value: int | Constant = Constant(None)

    def recorded(self, f: Callable[..., Any], chosen: Any) -> Callable[..., Any]:
        """Return `f`, whose operations are kept from the leaves of some arguments on."""
        for x in jax.tree.leaves(chosen):
            self.slot(x)
        return traced(f, partial(Recording, record=self))

    def recording(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """Return `f`, a function of the arrays that it is differentiated for, recorded whole."""

        def recorded(*args: Any) -> Any:
            value = self.recorded(f, args)(*args)
            self.close(value)
            return value

        return recorded

    def slot(self, x: Any) -> int:
        """Return the slot of a new value."""
        self.slot_of[id(x)] = self.count
        self.slots.append(x)  # the id of a value is that of another one when it is gone
        self.count += 1
        return self.count - 1

    def source(self, x: Any) -> int | Constant:
        """Return where a value comes from."""
        if id(x) in self.slot_of:
            return self.slot_of[id(x)]
        if not isinstance(x, jax.core.Tracer):
            return Constant(x)
        slot = self.slot(x)
        self.outer[slot] = x
        return slot

    def add(self, run: Callable[..., Any], args: Sequence[Any], outs: Sequence[Any]) -> None:
        """Keep an operation."""
        ins = [self.source(x) for x in args]
        start = self.count
        for x in outs:
            self.slot(x)
        self.steps.append(Step(run, ins, range(start, self.count), codes_here()))

    def close(self, value: Any) -> None:
        """Keep the value of the loss; let go of what was traced."""
        self.value = self.source(value)
        self.slots.clear()
        self.slot_of.clear()

    def sent(self) -> dict[int, Any]:
        """Return what `run` has to be given, and let go of it; a callback takes no random key."""
        sent, self.outer = self.outer, {}
        for slot, x in sent.items():
            if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
                self.keys[slot] = jax.random.key_impl(x)
                sent[slot] = jax.random.key_data(x)
        return sent

    def run(self, leaves: Sequence[Any], sent: Mapping[int, Any]) -> Any:
        """Run the operations; return the value of the loss."""
        known = dict(enumerate(leaves)) | dict(sent)
        for slot, impl in self.keys.items():
            known[slot] = jax.random.wrap_key_data(known[slot], impl=impl)

        def read(source: int | Constant) -> Any:
            return source.value if isinstance(source, Constant) else known[source]

        for step in self.steps:
            with replaying_at(step.codes):
                found = step.run(*map(read, step.ins))
            known.update(zip(step.outs, found, strict=True))
        return read(self.value)


class Recording(Passing):
    """Pass each operation on to the trace below, and keep it."""

    def __init__(self, parent: Any, record: Record) -> None:
        super().__init__(parent)
        self.record = record

    def operation(self, primitive: Any, args: Any, params: Any) -> Any:
        """Run one operation."""
        found = super().operation(primitive, args, params)
        is_many = primitive.multiple_results
        self.record.add(partial(bound, primitive, params), args, found if is_many else [found])
        return found

    def call(self, call: Call, args: Any) -> Any:
        """Run what calls functions."""
        found = super().call(call, args)
        self.record.add(call.again, args, found)
        return found


def bound(primitive: Any, params: Any, *args: Any) -> Any:
    """Run an operation again."""
    found = primitive.bind(*args, **params)
    return found if primitive.multiple_results else [found]


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
