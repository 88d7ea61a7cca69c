"""Contexts that look at the gradients of a program of JAX or TensorFlow, in all threads."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from safeops.autodiff._explain.report import Report


class NotFiniteError(Exception):
    """A gradient inside of compiled code is not finite: this ends the program there."""


@dataclass(eq=False)
class Watch:
    """What a context has seen of the gradients of a program."""

    on_report: Callable[[Report], None]
    passes: list[bool] = field(default_factory=list)
    first: Callable[[], Report] | None = None  # of the gradients that are not reported yet
    batch: int = 0  # rows of the batch; 0 if they are unknown


@dataclass
class Watches:
    """The contexts of a framework that are open."""

    every: list[Watch] = field(default_factory=list)
    resting: int = 0  # how many programs are explained, at whose gradients nobody looks

    @contextmanager
    def watching(self, watch: Watch) -> Iterator[list[bool]]:
        """Context in which a watch looks at gradients; the report comes at its end."""
        self.every.append(watch)
        try:
            yield watch.passes
        finally:
            self.every.remove(watch)
            self.report([watch])

    def looking(self) -> list[Watch]:
        """Return the contexts that look at gradients now."""
        return [] if self.resting else list(self.every)

    def note(self, *, is_bad: bool) -> bool:
        """Write a gradient down; return whether it is not finite, and a context looks."""
        watches = self.looking()
        for watch in watches:
            watch.passes.append(is_bad)
        return is_bad and bool(watches)

    def add(self, explain: Callable[[Watch], Report], parameters: tuple[str, ...]) -> None:
        """Keep how to explain the gradient that was written down last, with its parameters."""
        for watch in self.looking():
            step = len(watch.passes) - 1

            def explained(watch: Watch = watch, step: int = step) -> Report:
                return replace(explain(watch), parameters=parameters, step=step)

            watch.first = watch.first or explained

    def report(self, watches: Sequence[Watch]) -> None:
        """Explain to each context the first gradient that is not reported yet."""
        for watch in watches:
            explain, watch.first = watch.first, None
            if explain is not None:
                self.resting += 1
                try:
                    report = explain()
                finally:
                    self.resting -= 1
                watch.on_report(report)
