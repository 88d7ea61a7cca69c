"""What follows a step whose gradients are not finite: raise, skip or mask, in every framework."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from safeops.autodiff._explain.report import Report, advised
from safeops.autodiff._options import NonFiniteGradientError

NOT_CURED = "the masked gradient is not finite either"
NAN_IS_USED = "the masked gradient is finite, but the loss is NaN by an entry that is used"
# In a guarded step, in place of calls that the training may not make itself, as in `fit`.
GUARDS = 'on_nan="mask" of this guard, which takes the masked gradient'
TAKEN = "the masked gradient, which this guard takes if it is finite"


class BadStep(NamedTuple):
    """A step whose gradients are not finite, and what a framework can do about it."""

    explain: Callable[[], Report]  # which runs the step again
    run_masked: Callable[[], tuple[Any, str]]  # its result; why it is no cure, or no words
    # What the step has changed; a step of JAX changes no state.
    restore: Callable[[], object] = lambda: None
    skip: Callable[[], Any] = lambda: None  # what a step that has not been returns
    release: Callable[[], object] = lambda: None  # the model, before an error ends the training


def handle_bad_step(step: BadStep, on_nan: str, tell: Callable[[Report], None]) -> Any:
    """Report a step; then skip it, return its masked result, or raise."""
    report = advised(step.explain(), TAKEN if on_nan == "mask" else GUARDS)
    step.restore()
    tell(report)
    if on_nan == "skip":
        return step.skip()
    error = NonFiniteGradientError(report)
    if on_nan == "mask":
        result, fault = step.run_masked()
        if not fault:
            return result
        step.restore()
        error.add_note(fault)
    step.release()
    raise error


@contextmanager
def replaced(owner: Any, name: str, method: Any) -> Iterator[None]:
    """Context in which an object has another method."""
    setattr(owner, name, method)
    try:
        yield
    finally:
        vars(owner).pop(name)
