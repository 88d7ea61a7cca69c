"""
Steps of Keras's `fit` on TensorFlow that are explained when their gradients are not finite.

The step stays that of the model, compiled by Keras. While it is guarded, the optimizer is applied
only to gradients that are finite, and notes which are not.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from safeops._typing import Array
from safeops.autodiff._explain.report import Report
from safeops.autodiff._options import NonFiniteGradientError
from safeops.autodiff.tensorflow import GradientTape, explain
from safeops.autodiff.tensorflow._guard import (
    NOT_CURED,
    REPLICAS,
    inner,
    is_finite,
    name_of,
    put_back,
)

ONE_STEP = "expected steps_per_execution=1, got {}, of which one step cannot run again"
SCALED = (
    "expected an optimizer without loss scaling, got a LossScaleOptimizer, which meets infinite "
    "gradients as a rule; train in bfloat16, or without the guard"
)
NO_OPTIMIZER = "expected a model that is compiled with an optimizer, got one without"
OTHER_GRADIENTS = "expected one gradient for each trainable variable, got {} for {}"


class Asked(Exception):  # noqa: N818  (no error: it ends a forward pass)
    """The loss of a step, once its gradient is asked for."""

    def __init__(self, loss: Array) -> None:
        self.loss = loss


class AskedTape(tf.GradientTape):
    """A tape that hands out the loss instead of a gradient."""

    @tf.autograph.experimental.do_not_convert
    def gradient(self, target: Any, *_: Any, **__: Any) -> Any:
        """Raise what is differentiated."""
        raise Asked(target)


@contextmanager
def taped_by(tape: Any) -> Iterator[None]:
    """Context in which `tf.GradientTape` is another class, for the step of a model to find."""
    plain = tf.GradientTape
    tf.GradientTape = tape
    try:
        yield
    finally:
        tf.GradientTape = plain


@dataclass
class Fit:
    """The guard of a model while `fit` runs."""

    model: Any
    on_nan: str
    tell: Callable[[Report], None]
    steps: int = 0

    def __post_init__(self) -> None:
        """Let the optimizer and the training function of the model be guarded ones."""
        self.check()
        self.names = [name_of(v) for v in self.model.trainable_variables]
        self.bad = tf.Variable([False] * len(self.names), trainable=False)
        self.read = tf.function(self.values, autograph=False)
        self.masked = tf.function(self.model.train_step, autograph=False)
        vars(self.model.optimizer).pop("apply", None)  # of an earlier fit that was interrupted
        self.apply = self.model.optimizer.apply
        self.model.optimizer.apply = self.apply_finite
        self.model.make_train_function(force=True)
        self.plain = self.model.train_function
        self.model.train_function = self.run

    def release(self) -> None:
        """Let the model be as it was."""
        vars(self.model.optimizer).pop("apply", None)
        self.model.make_train_function(force=True)

    def check(self) -> None:
        """Raise for what cannot be guarded."""
        optimizer = self.model.optimizer
        if optimizer is None:
            raise TypeError(NO_OPTIMIZER)
        if hasattr(optimizer, "inner_optimizer"):
            raise TypeError(SCALED)
        if self.model.steps_per_execution != 1:
            raise ValueError(ONE_STEP.format(self.model.steps_per_execution))
        if self.model.distribute_strategy.num_replicas_in_sync > 1:
            raise RuntimeError(REPLICAS)

    def values(self) -> list[tuple[Array, Array]]:
        """Return the variables beside weights: averages, seeds, metrics, and what they are."""
        every = (*self.model.non_trainable_variables, *self.model.metrics_variables)
        return [(v.handle, v.read_value()) for v in map(inner, every)]

    @tf.autograph.experimental.do_not_convert
    def apply_finite(self, grads: Any, trainable_variables: Any = None) -> None:
        """Apply the optimizer if all gradients are finite, and note which are not."""
        found = list(grads)
        if len(found) != len(self.names):
            raise TypeError(OTHER_GRADIENTS.format(len(found), len(self.names)))
        bad = tf.stack([tf.constant(g is not None) if g is None else ~is_finite(g) for g in found])
        self.bad.assign(bad)

        def apply() -> Array:
            self.apply(found, trainable_variables)
            return tf.constant(0)

        tf.cond(tf.reduce_any(bad), lambda: tf.constant(0), apply)

    def run(self, iterator: Any) -> Any:
        """Run the next step, and once more if its gradients are not finite."""
        data = next(iterator)
        before = self.read()
        logs = self.plain([data])
        self.steps += 1
        if not self.bad.numpy().any():
            return logs
        put_back(before)
        report = self.explained(data)
        put_back(before)
        self.tell(report)
        if self.on_nan == "skip":
            return self.model.get_metrics_result()
        error = NonFiniteGradientError(report)
        if self.on_nan == "mask":
            with taped_by(GradientTape):
                logs = self.masked(data)
            if not self.bad.numpy().any():
                return logs
            put_back(before)
            error.add_note(NOT_CURED)
        self.release()
        raise error

    def explained(self, data: Any) -> Report:
        """Return the report on a step."""
        names = [name for name, bad in zip(self.names, self.bad.numpy(), strict=True) if bad]

        def loss(_: Any) -> Any:
            try:
                self.model.train_step(data)
            except Asked as asked:
                return asked.loss

        with taped_by(AskedTape):
            report = explain(loss, [inner(v) for v in self.model.trainable_variables])
        return replace(report, parameters=tuple(names), step=self.steps - 1)
