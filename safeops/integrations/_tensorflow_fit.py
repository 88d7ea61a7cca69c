"""
Steps of Keras's `fit` on TensorFlow that are explained when their gradients are not finite.

The step stays that of the model, compiled by Keras; it also hands out its batch. A gradient that is
not finite shows in the new weights, or in the new state of the optimizer; only then what the step
has written is put back, and it runs again with an optimizer that notes which gradients are finite.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorflow as tf

from safeops._core.types import Array
from safeops.autodiff._explain.finding import Finding
from safeops.autodiff._explain.report import Report, make_report, never_clean
from safeops.autodiff.tensorflow import GradientTape
from safeops.autodiff.tensorflow._explain.explanation import explained_call
from safeops.autodiff.tensorflow._redirect import taped_by
from safeops.autodiff.tensorflow._variables import (
    is_finite,
    name_of,
    put_back,
    put_back_bad,
    tensorflow_variable,
)
from safeops.integrations._policy import NOT_CURED, BadStep, handle_bad_step
from safeops.integrations._tensorflow import REPLICAS, batch_of

ELSEWHERE = (
    "expected a train_step that takes its gradients itself, got one that takes them in a compiled "
    "function of its own, which is traced already"
)


class LossReached(Exception):  # noqa: N818  (no error: it ends a forward pass)
    """The loss of a step, once its gradient is asked for."""

    def __init__(self, loss: Array) -> None:
        self.loss = loss


class LossCatchingTape(tf.GradientTape):
    """A tape that hands out the loss instead of a gradient."""

    @tf.autograph.experimental.do_not_convert
    def gradient(self, target: Any, *_: Any, **__: Any) -> Any:
        """Raise what is differentiated."""
        raise LossReached(target)


@contextmanager
def replaced(owner: Any, name: str, method: Any) -> Iterator[None]:
    """Context in which an object has another method."""
    setattr(owner, name, method)
    try:
        yield
    finally:
        vars(owner).pop(name)


@dataclass(eq=False)  # tf.function compares
class KerasGuard:
    """The guard of a model while `fit` runs."""

    model: Any
    on_nan: str
    tell: Callable[[Report], None]
    steps: int = 0
    usual: Any = True  # which variables were finite after the last step
    notes: bool = False  # whether the step hands its gradients to the optimizer

    def __post_init__(self) -> None:
        """Let the training function of the model be a guarded one."""
        if self.model.distribute_strategy.num_replicas_in_sync > 1:
            raise RuntimeError(REPLICAS)
        self.names = [name_of(v) for v in self.model.trainable_variables]
        self.bad = tf.Variable([False] * len(self.names), trainable=False)
        weights, optimizer = self.model.trainable_variables, self.model.optimizer.variables
        watched = map(tensorflow_variable, (*weights, *optimizer))
        self.watched = [v for v in watched if v.dtype.is_floating or v.dtype.is_complex]
        self.collect()
        self.sums = tf.function(self.look_at_sums, autograph=False)
        self.entries = tf.function(self.look_at_entries, autograph=False)
        self.again = tf.function(self.noted, autograph=False)
        self.masked = tf.function(self.noted, autograph=False)
        self.unguarded, self.step = self.model.train_function, self.model.train_step
        with replaced(self.model, "train_step", self.with_batch):
            self.model.make_train_function(force=True)
        self.plain = self.model.train_function
        self.model.train_function = self.run

    def release(self) -> None:
        """Let the model be as it was."""
        self.model.train_function = self.unguarded

    @tf.autograph.experimental.do_not_convert
    def with_batch(self, data: Any) -> Any:
        """Return what a step returns, and its batch."""
        return {"logs": self.step(data), "data": data}

    def collect(self) -> None:
        """List the variables that a step may change: metrics make theirs in the first step."""
        model = self.model
        every = (*model.variables, *model.optimizer.variables, *model.metrics_variables)
        self.every = list({id(v): v for v in map(tensorflow_variable, every)}.values())
        self.values = tf.function(lambda: [v.read_value() for v in self.every], autograph=False)

    def read(self) -> list[tuple[Any, Array]]:
        """Return all variables, and what they are."""
        return [(v.handle, x) for v, x in zip(self.every, self.values(), strict=True)]

    def restore(self, before: Sequence[tuple[Any, Array]]) -> None:
        """Write into all variables what they were."""
        if len(before) < len(self.every):  # of the first step
            self.model.reset_metrics()
        put_back(before)

    def look_at_sums(self) -> Array:
        """Return which weights, and which numbers of the optimizer, have a finite sum."""
        sums = [tf.reduce_sum(v) for v in self.watched]
        if len({x.dtype for x in sums}) == 1:  # one operation for all
            return tf.math.is_finite(tf.math.abs(tf.stack(sums)))
        return tf.stack([is_finite(x) for x in sums])

    def look_at_entries(self) -> Array:
        """Return which weights, and which numbers of the optimizer, are finite."""
        return tf.stack([is_finite(v.read_value()) for v in self.watched])

    def which_are_finite(self) -> Any:
        """Return which variables are finite: by a sum of each, and by entries if a sum is not."""
        found = self.sums().numpy()
        return found if found.all() else self.entries().numpy()

    @tf.autograph.experimental.do_not_convert
    def noted(self, data: Any) -> Any:
        """Run a step that applies the optimizer if all gradients are finite."""
        self.apply = self.model.optimizer.apply
        with replaced(self.model.optimizer, "apply", self.apply_finite):
            return self.step(data)

    @tf.autograph.experimental.do_not_convert
    def apply_finite(self, grads: Any, trainable_variables: Any = None) -> None:
        """Apply the optimizer if all gradients are finite, and note which are not."""
        self.notes, given = True, list(grads)
        variables = list(trainable_variables or self.model.trainable_variables)
        named = zip(map(name_of, variables), given, strict=True)
        flags = {name: ~is_finite(g) for name, g in named if g is not None}
        bad = tf.stack([flags.get(name, tf.constant(False)) for name in self.names])  # noqa: FBT003  (a value)
        self.bad.assign(bad)

        def apply() -> Array:
            self.apply(given, trainable_variables)
            return tf.constant(0)

        tf.cond(tf.reduce_any(bad), lambda: tf.constant(0), apply)

    def run(self, iterator: Any) -> Any:
        """Run the next step, and once more if its gradients are not finite."""
        before = self.read()
        found = self.plain(iterator)
        self.steps += 1
        if self.steps == 1:
            self.collect()
        finite = self.which_are_finite()
        if not self.is_alarm(finite) or self.is_of_optimizer(before, found["data"]):
            self.usual = finite
            return found["logs"]
        step = BadStep(
            explain=partial(self.explained, found["data"]),
            run_masked=partial(self.run_masked, before, found["data"]),
            restore=partial(self.restore, before),
            skip=self.model.get_metrics_result,
            release=self.release,
        )
        return handle_bad_step(step, self.on_nan, self.tell)

    def run_masked(self, before: Any, data: Any) -> tuple[Any, str]:
        """Run a step with masked gradients; return also why it is no cure."""
        with taped_by(GradientTape):
            logs = self.masked(data)
        if self.bad.numpy().any():
            return None, NOT_CURED
        put_back_bad(before)
        return logs, ""

    def is_alarm(self, finite: Any) -> bool:
        """Whether to look at the gradients: in a weight that is NaN already no NaN shows."""
        weights = finite[: len(self.names)]
        return not weights.all() or bool((self.usual & ~finite).any())

    def is_of_optimizer(self, before: Any, data: Any) -> bool:
        """
        Whether all gradients are finite, and an optimizer has made of them what is not.

        Otherwise the variables are then what they were before the step.
        """
        after, weights = self.read(), self.entries().numpy()[: len(self.names)]
        self.restore(before)
        self.again(data)
        if not self.notes:  # a step of one's own with another optimizer
            self.bad.assign(~weights)
        found = bool(self.bad.numpy().any())
        self.restore(before if found else after)
        return not found

    def explained(self, data: Any) -> Report:
        """Return the report on a step."""
        names = [name for name, bad in zip(self.names, self.bad.numpy(), strict=True) if bad]
        variables = [tensorflow_variable(v) for v in self.model.trainable_variables]
        try:
            with taped_by(LossCatchingTape):
                report = explained_call(partial(self.loss, data), (variables,), 0, batch_of(data))
                report = never_clean(report)
        except Exception as error:  # noqa: BLE001  (whatever a program raises that is traced apart)
            finding = Finding("UNKNOWN", "the step", reason="apart")
            note = f"{type(error).__name__}: {error}"
            report = make_report("tensorflow", [finding], "the gradients of one step", [note])
        return replace(report, parameters=tuple(names), step=self.steps - 1)

    def loss(self, data: Any, _: Any) -> Any:
        """Return the loss of a step."""
        try:
            self.step(data)
        except LossReached as reached:
            return reached.loss
        raise RuntimeError(ELSEWHERE)
