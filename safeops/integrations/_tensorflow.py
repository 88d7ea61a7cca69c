"""Gradients of TensorFlow that are explained when they are not finite."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any

import tensorflow as tf

from safeops._core.types import Array
from safeops.autodiff._explain.report import Report, never_clean, report_or_unknown
from safeops.autodiff.tensorflow import GradientTape, _variables
from safeops.autodiff.tensorflow._explain.explanation import explained_call
from safeops.autodiff.tensorflow._passes import check_output
from safeops.autodiff.tensorflow._redirect import taped_by
from safeops.integrations._policy import NAN_IS_USED, NOT_CURED, BadStep, handle_bad_step, replaced

IN_GRAPH = (
    "expected a call outside of tf.function, which has no values to look at; the loss may be one"
)
ONE_LIST = "expected a sequence of variables of TensorFlow, got {}; write [variable] for one"
REPLICAS = "expected one replica, got a strategy of several, each with a gradient of its own"


def listed(variables: Any) -> list[Any]:
    """Return variables as a list; TypeError for a tensor, of which the gradient would be None."""
    several = isinstance(variables, Iterable) and not isinstance(variables, tf.Variable)
    found = list(variables) if several else []
    wrong = [x for x in found if not isinstance(_variables.tensorflow_variable(x), tf.Variable)]
    if wrong or not several:
        msg = ONE_LIST.format(type(wrong[0] if wrong else variables).__name__)
        raise TypeError(msg)
    return found


def all_finite(gradients: Iterable[Any]) -> Array:
    """Whether each entry of each gradient is finite; of sparse rows, their values."""
    found = [_variables.is_finite(g) for g in gradients if g is not None]
    return tf.reduce_all(tf.stack(found)) if found else tf.constant(True)  # noqa: FBT003  (a value)


def batch_of(data: Any) -> int:
    """Return the number of rows of a batch, as its first tensor has it; 0 if there is none."""
    shapes = (tuple(getattr(x, "shape", ())) for x in tf.nest.flatten(data))
    return next((shape[0] for shape in shapes if shape and shape[0]), 0)


def bad_names(variables: Sequence[Any], gradients: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of the variables whose gradient is not finite."""
    pairs = zip(variables, gradients, strict=True)
    return tuple(
        _variables.name_of(v) for v, g in pairs if g is not None and not _variables.is_finite(g)
    )


@dataclass
class Guard:
    """The value and gradient of a loss, compiled, and what is done if it is not finite."""

    f: Callable[..., Any]
    variables: Sequence[Any]
    has_aux: bool
    on_nan: str
    tell: Callable[[Report], None]
    steps: int = 0

    def __post_init__(self) -> None:
        self.variables = listed(self.variables)
        self.sources = [_variables.tensorflow_variable(v) for v in self.variables]
        self.ordinary = tf.function(partial(self.both, tf.GradientTape), autograph=False)
        self.masked = tf.function(partial(self.both, GradientTape), autograph=False)

    def both(self, make_tape: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the loss and more, its gradients, if these are finite, and what it writes into."""
        before = [(v.handle, v.read_value()) for v in self.others(args, kwargs)]
        with make_tape() as tape:
            found = self.f(*args, **kwargs)
        check_output(self.loss_in(found))
        gradients = tape.gradient(self.loss_in(found), self.sources)
        return found, gradients, all_finite(gradients), before

    def loss_in(self, found: Any) -> Any:
        return found[0] if self.has_aux else found

    def others(self, args: Any, kwargs: Any) -> list[Any]:
        """Return the variables that the loss reads, those of the gradient left out."""
        loss = tf.function(lambda: self.f(*args, **kwargs), autograph=False)
        own = {v.ref() for v in self.sources}
        return [v for v in loss.get_concrete_function().variables if v.ref() not in own]

    def explained(self, before: Any, args: Any, kwargs: Any, gradients: Any) -> Report:
        """Return the report on the step, which begins again where it did."""
        _variables.put_back(before)

        def value(_: Any) -> Any:
            return self.loss_in(self.f(*args, **kwargs))

        report = never_clean(explained_call(value, (self.sources,), 0, batch_of((args, kwargs))))
        names = bad_names(self.variables, gradients)
        return replace(report, parameters=names, step=self.steps - 1)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Return value and gradients; raise if these are not finite."""
        check_place()
        self.steps += 1
        found, gradients, finite, before = self.ordinary(*args, **kwargs)
        if finite:
            return found, gradients
        step = BadStep(
            explain=partial(self.explained, before, args, kwargs, gradients),
            run_masked=partial(self.run_masked, before, args, kwargs),
            restore=partial(_variables.put_back, before),
        )
        return handle_bad_step(step, self.on_nan, self.tell)

    def run_masked(self, before: Any, args: Any, kwargs: Any) -> tuple[Any, str]:
        """Return value and masked gradients, and why they are no cure."""
        found, gradients, finite, _ = self.masked(*args, **kwargs)
        if not finite:
            return None, NOT_CURED
        if tf.math.is_nan(self.loss_in(found)):
            return None, NAN_IS_USED
        _variables.put_back_bad(before)
        return (found, gradients), ""


def guarded(f: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """Return the compiled value and gradient of a loss, explained if it is not finite."""
    guard = Guard(f, *args)

    @wraps(f)
    def guarding(*args: Any, **kwargs: Any) -> Any:
        return guard.run(*args, **kwargs)

    return guarding


def check_place() -> None:
    """Raise RuntimeError in a graph, and among several replicas."""
    if not tf.executing_eagerly():
        raise RuntimeError(IN_GRAPH)
    if tf.distribute.get_strategy().num_replicas_in_sync > 1:
        raise RuntimeError(REPLICAS)


# Steps of Keras's `fit` on TensorFlow that are explained when their gradients are not finite.
#
# The step stays that of the model, compiled by Keras; it also hands out its batch. A gradient that
# is not finite shows in the new weights, or in the new state of the optimizer; only then what the
# step has written is put back, and it runs again with an optimizer that notes which gradients are
# finite.


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
        self.names = [_variables.name_of(v) for v in self.model.trainable_variables]
        self.bad = tf.Variable([False] * len(self.names), trainable=False)
        weights, optimizer = self.model.trainable_variables, self.model.optimizer.variables
        watched = map(_variables.tensorflow_variable, (*weights, *optimizer))
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
        self.every = list({id(v): v for v in map(_variables.tensorflow_variable, every)}.values())
        self.values = tf.function(lambda: [v.read_value() for v in self.every], autograph=False)

    def read(self) -> list[tuple[Any, Array]]:
        """Return all variables, and what they are."""
        return [(v.handle, x) for v, x in zip(self.every, self.values(), strict=True)]

    def restore(self, before: Sequence[tuple[Any, Array]]) -> None:
        """Write into all variables what they were."""
        if len(before) < len(self.every):  # of the first step
            self.model.reset_metrics()
        _variables.put_back(before)

    def look_at_sums(self) -> Array:
        """Return which weights, and which numbers of the optimizer, have a finite sum."""
        sums = [tf.reduce_sum(v) for v in self.watched]
        if len({x.dtype for x in sums}) == 1:  # one operation for all
            return tf.math.is_finite(tf.math.abs(tf.stack(sums)))
        return tf.stack([_variables.is_finite(x) for x in sums])

    def look_at_entries(self) -> Array:
        """Return which weights, and which numbers of the optimizer, are finite."""
        return tf.stack([_variables.is_finite(v.read_value()) for v in self.watched])

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
        named = zip(map(_variables.name_of, variables), given, strict=True)
        flags = {name: ~_variables.is_finite(g) for name, g in named if g is not None}
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
        _variables.put_back_bad(before)
        return logs, ""

    def is_alarm(self, finite: Any) -> bool:
        """Whether to look at the gradients: in a weight that is NaN already no NaN shows."""
        weights = finite[: len(self.names)]
        return not weights.all() or bool((self.usual & ~finite).any())

    def is_of_optimizer(self, before: Any, data: Any) -> bool:
        """Whether all gradients are finite, and an optimizer has made of them what is not."""
        # Otherwise the variables are then what they were before the step.
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
        variables = [_variables.tensorflow_variable(v) for v in self.model.trainable_variables]
        explain = partial(explained_call, partial(self.loss, data), (variables,), 0, batch_of(data))
        with taped_by(LossCatchingTape):
            report = report_or_unknown("tensorflow", explain, "the step")
        return replace(report, parameters=tuple(names), step=self.steps - 1)

    def loss(self, data: Any, _: Any) -> Any:
        """Return the loss of a step."""
        try:
            self.step(data)
        except LossReached as reached:
            return reached.loss
        raise RuntimeError(ELSEWHERE)
