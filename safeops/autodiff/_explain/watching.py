"""Contexts that look at the gradients of a program of JAX or TensorFlow, in all threads."""

from collections.abc import Callable
from dataclasses import dataclass, field

from safeops.autodiff._explain.report import Report


class NotFiniteError(Exception):
    """A gradient inside of compiled code is not finite: this ends the program there."""


@dataclass(eq=False)
class Watch:
    """What a context has seen of the gradients of a program."""

    on_report: Callable[[Report], None]
    passes: list[bool] = field(default_factory=list)
    found: list[Callable[[], Report]] = field(default_factory=list)
    batch: int = 0  # rows of the batch; 0 if they are unknown


@dataclass
class Watches:
    """The contexts of a framework that are open."""

    every: list[Watch] = field(default_factory=list)
    resting: int = 0  # how many programs are explained, at whose gradients nobody looks

    def looking(self) -> list[Watch]:
        """Return the contexts that look at gradients now."""
        return [] if self.resting else list(self.every)

    def report_first(self, watch: Watch) -> None:
        """Explain the first gradient that was not finite, of those that are not reported yet."""
        if not watch.found:
            return
        explain, *_ = watch.found
        watch.found.clear()
        self.resting += 1
        try:
            report = explain()
        finally:
            self.resting -= 1
        watch.on_report(report)
