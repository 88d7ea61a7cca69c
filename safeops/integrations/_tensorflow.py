"""Gradients of TensorFlow that are explained when they are not finite."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any

import tensorflow as tf

from safeops._core.types import Array
from safeops.autodiff._explain.report import Report, never_clean
from safeops.autodiff.tensorflow import GradientTape
from safeops.autodiff.tensorflow._explain.explanation import explained_call
from safeops.autodiff.tensorflow._passes import check_output
from safeops.autodiff.tensorflow._variables import (
    is_finite,
    name_of,
    put_back,
    put_back_bad,
    tensorflow_variable,
)
from safeops.integrations._policy import NAN_IS_USED, NOT_CURED, BadStep, handle_bad_step

IN_GRAPH = (
    "expected a call outside of tf.function, which has no values to look at; the loss may be one"
)
ONE_LIST = "expected a sequence of variables of TensorFlow, got {}; write [variable] for one"
REPLICAS = "expected one replica, got a strategy of several, each with a gradient of its own"


def listed(variables: Any) -> list[Any]:
    """Return variables as a list; TypeError for a tensor, of which the gradient would be None."""
    several = isinstance(variables, Iterable) and not isinstance(variables, tf.Variable)
    found = list(variables) if several else []
    wrong = [x for x in found if not isinstance(tensorflow_variable(x), tf.Variable)]
    if wrong or not several:
        msg = ONE_LIST.format(type(wrong[0] if wrong else variables).__name__)
        raise TypeError(msg)
    return found


def all_finite(gradients: Iterable[Any]) -> Array:
    """Whether each entry of each gradient is finite; of sparse rows, their values."""
    found = [is_finite(g) for g in gradients if g is not None]
    return tf.reduce_all(tf.stack(found)) if found else tf.constant(True)  # noqa: FBT003  (a value)


def batch_of(data: Any) -> int:
    """Return the number of rows of a batch, as its first tensor has it; 0 if there is none."""
    shapes = (tuple(getattr(x, "shape", ())) for x in tf.nest.flatten(data))
    return next((shape[0] for shape in shapes if shape and shape[0]), 0)


def bad_names(variables: Sequence[Any], gradients: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of the variables whose gradient is not finite."""
    pairs = zip(variables, gradients, strict=True)
    return tuple(name_of(v) for v, g in pairs if g is not None and not is_finite(g))


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
        """Make the compiled functions."""
        self.variables = listed(self.variables)
        self.sources = [tensorflow_variable(v) for v in self.variables]
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
        """Return the loss."""
        return found[0] if self.has_aux else found

    def others(self, args: Any, kwargs: Any) -> list[Any]:
        """Return the variables that the loss reads, those of the gradient left out."""
        loss = tf.function(lambda: self.f(*args, **kwargs), autograph=False)
        own = {v.ref() for v in self.sources}
        return [v for v in loss.get_concrete_function().variables if v.ref() not in own]

    def explained(self, before: Any, args: Any, kwargs: Any, gradients: Any) -> Report:
        """Return the report on the step, which begins again where it did."""
        put_back(before)

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
            restore=partial(put_back, before),
        )
        return handle_bad_step(step, self.on_nan, self.tell)

    def run_masked(self, before: Any, args: Any, kwargs: Any) -> tuple[Any, str]:
        """Return value and masked gradients, and why they are no cure."""
        found, gradients, finite, _ = self.masked(*args, **kwargs)
        if not finite:
            return None, NOT_CURED
        if tf.math.is_nan(self.loss_in(found)):
            return None, NAN_IS_USED
        put_back_bad(before)
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
