"""
Steps of Keras's `fit` on PyTorch that are explained when their gradients are not finite.

The step stays that of the model. While it is guarded, it ends before the optimizer where a gradient
is not finite.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from safeops.autodiff._explain.report import Report
from safeops.autodiff.torch import masked_backward
from safeops.autodiff.torch._lines import not_finite
from safeops.autodiff.torch._sharded import local_of
from safeops.integrations._policy import NOT_CURED, BadStep, handle_bad_step
from safeops.integrations._torch import NO_RERUN, Guard, Memory, Place, all_finite

COMPILED = (
    "expected jit_compile=False, got True, with which the optimizer is compiled together with the "
    "step, and no gradient can be looked at before the weights change"
)


class StepEnded(Exception):  # noqa: N818  (no error: it ends a step)
    """The end of a step before its optimizer."""


class Held(Place):
    """A variable of Keras."""

    def __init__(self, variable: Any) -> None:
        super().__init__(variable, "value", variable.path)

    def put(self, tensor: Any) -> None:
        self.module.assign(tensor)


class KerasGuard(Guard):
    """The guard of a model while `fit` runs."""

    def __init__(self, model: Any, on_nan: str, tell: Callable[[Report], None]) -> None:
        if model.jit_compile:
            raise ValueError(COMPILED)
        super().__init__(model, on_nan, None, None, tell)
        self.parameters = [Held(v) for v in model.trainable_variables]
        self.buffers += map(Held, (*model.non_trainable_variables, *model.metrics_variables))
        self.bad: tuple[str, ...] = ()
        self.applies = True
        vars(model.optimizer).pop("apply", None)  # of an earlier fit that was interrupted
        self.apply, self.plain = model.optimizer.apply, model.train_function
        model.optimizer.apply, model.train_function = self.apply_finite, self.step

    def release(self) -> None:
        """Let the model be as it was."""
        vars(self.model.optimizer).pop("apply", None)
        self.model.train_function = self.plain

    def apply_finite(self, grads: Iterable[Any], trainable_variables: Any = None) -> None:
        """Apply the optimizer if all gradients are finite, and end the step otherwise."""
        found = list(grads)
        if trainable_variables is None:
            trainable_variables = self.model.trainable_variables
        if not all_finite([local_of(g) for g in found if g is not None]):
            pairs = zip(trainable_variables, found, strict=True)
            self.bad = tuple(
                v.path for v, g in pairs if g is not None and not_finite(g) is not None
            )
            raise StepEnded
        if not self.applies:
            raise StepEnded
        self.apply(found, trainable_variables)

    def saved_gradients(self, given: Any) -> list[Any]:
        """Return no gradients: a step of Keras makes its own."""
        del given
        return []

    def bad_names(self) -> tuple[str, ...]:
        """Return the names of the variables whose gradient was not finite."""
        return self.bad

    def named_modules(self) -> Iterator[tuple[str, Any]]:
        for module in self.model.modules():
            if module is not self.model and hasattr(module, "path"):
                yield module.path, module

    def step(self, data: Sequence[Any]) -> Any:
        """Run a step, and once more if its gradients are not finite."""
        (batch,) = data
        memory = self.remember(((), named(batch)))
        self.steps += 1
        with suppress(StepEnded):
            return self.model.train_step(batch)
        look = partial(self.run_backward_only, batch)
        bad = BadStep(
            explain=lambda: replace(self.explain(memory, look), step=self.steps - 1),
            run_masked=partial(self.train_masked, memory, batch),
            restore=partial(self.restore, memory),
            skip=self.model.get_metrics_result,
            release=self.release,
        )
        return handle_bad_step(bad, self.on_nan, self.tell)

    def restore(self, memory: Memory) -> None:
        """Put back what a step has changed."""
        memory.restore_buffers()
        memory.restore_random()
        for place in self.parameters:
            place.get().grad = None  # which a step of one's own may add to

    def train_masked(self, memory: Memory, batch: Any) -> tuple[Any, str]:
        """Run a step with masked gradients; return also why it is no cure."""
        if memory.written:
            return None, NO_RERUN
        with suppress(StepEnded), masked_backward(lazy=False):
            logs = self.model.train_step(batch)
            memory.mend_buffers()
            return logs, ""
        return None, NOT_CURED

    def run_backward_only(self, batch: Any) -> None:
        """Run a step as far as to its gradients."""
        self.applies = False
        try:
            with suppress(StepEnded):
                self.model.train_step(batch)
        finally:
            self.applies = True


def named(batch: Any) -> Mapping[str, Any]:
    """Return the parts of a batch, by their names in Keras."""
    parts = batch if isinstance(batch, tuple | list) else (batch,)
    return dict(zip(("x", "y", "sample_weight"), parts, strict=False))
