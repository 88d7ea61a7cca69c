"""Guarded training with `fit` of Keras, on the backends TensorFlow, JAX and PyTorch."""

from importlib import import_module
from logging import Logger
from os import PathLike
from typing import Any

from safeops.autodiff._options import OnNan
from safeops.integrations._options import Outlet, check

__all__ = ["GuardCallback"]

keras: Any = import_module("keras")
BACKENDS = ("jax", "tensorflow", "torch")
OTHER_BACKEND = "expected a backend of Keras out of ({}), got {}, which has no gradients"
NO_OPTIMIZER = "expected a model that is compiled with an optimizer, got one without"
SCALED = (
    "expected an optimizer without loss scaling, got a LossScaleOptimizer, which meets infinite "
    "gradients as a rule; train in bfloat16, or without the guard"
)
END_OF_DATA = ("StopIteration", "OutOfRangeError")  # the latter is of TensorFlow
ONE_STEP = "expected steps_per_execution=1, got {}, of which one step cannot run again"


class GuardCallback(keras.callbacks.Callback):  # type: ignore[misc]  # it is known at run time
    """
    Callback of Keras that explains the first gradient that is not finite, in `fit`.

    Parameters
    ----------
    on_nan : {"raise", "skip", "mask"}, default: "raise"
        What follows the report. "raise": an error. "skip": as if the step had not run. "mask": the
        step runs again with masked gradients; an error if these are not finite either, and averages
        to which a NaN came are what they were before. After an error and after a skipped step,
        weights, averages, seeds, metrics and the optimizer are what they were before the step.
    logger, file
        As for `safeops.integrations.guard`.

    Raises
    ------
    ValueError
        If `on_nan` is none of the three; when training begins, if ``steps_per_execution`` is not 1,
        and on PyTorch with ``jit_compile=True``.
    RuntimeError
        If the backend has no gradients; when training begins, in a strategy of several replicas of
        TensorFlow.
    TypeError
        When training begins, if the optimizer scales the loss, as with the policy mixed_float16.

    Notes
    -----
    **Gradient.** That of `train_step` of the model, which may be one of your own that hands its
    gradients to ``self.optimizer`` once: to `apply` or `apply_gradients`, on JAX to
    `stateless_apply`. It takes them by ``tf.GradientTape`` or by ``jax.grad`` and
    ``jax.value_and_grad``, under these names. While gradients are finite, a training is the same
    bit for bit. On JAX and TensorFlow the guard does not see an infinite gradient that
    ``clipvalue`` makes finite. The step in a report is counted from the beginning of `fit`.

    **Source.** `keras.callbacks.TerminateOnNaN`, which looks at the loss alone.

    Examples
    --------
    ``model.fit(x, y, callbacks=[GuardCallback(on_nan="skip")])``
    """

    def __init__(
        self,
        *,
        on_nan: OnNan = "raise",
        logger: Logger | None = None,
        file: str | PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        check(on_nan)
        if (name := keras.config.backend()) not in BACKENDS:
            raise RuntimeError(OTHER_BACKEND.format(", ".join(BACKENDS), name))
        self.on_nan = on_nan
        self.tell = Outlet(on_nan, logger, file)
        self.engine: Any = None
        self.step: Any = None
        self.plain: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Guard the model."""
        del logs
        check_model(self.model)
        earlier = getattr(self.model.train_function, "__self__", None)
        if isinstance(earlier, GuardCallback):  # of a fit that was interrupted
            earlier.release()
        self.engine, self.plain = None, self.model.train_function
        if is_built(self.model):
            self.begin()
        self.model.train_function = self.guarded

    def begin(self) -> None:
        """Guard the steps of a model that has its variables."""
        if not self.model.optimizer.built:  # it has its variables from the first step on otherwise
            self.model.optimizer.build(self.model.trainable_variables)
        self.model.train_function = self.plain
        self.engine = fit_of(keras.config.backend())(self.model, self.on_nan, self.tell)
        self.step, self.model.train_function = self.model.train_function, self.guarded

    def guarded(self, *given: Any) -> Any:
        """Run a step; an error or an interrupt ends the training without `on_train_end`."""
        try:
            if self.engine is None:  # on TensorFlow, which builds a model in its first step
                build(self.model, given[0].element_spec)
                self.begin()
            return self.step(*given)
        except BaseException as error:
            if type(error).__name__ not in END_OF_DATA:
                self.release()
            raise

    def on_train_end(self, logs: Any = None) -> None:
        """Let the model be as it was."""
        del logs
        self.release()

    def release(self) -> None:
        """Let the model be as it was."""
        if self.engine is not None:
            self.engine.release()
        self.model.train_function = self.plain


def fit_of(backend: str) -> Any:
    """Return what guards `fit` on a backend of Keras, of which alone the framework is imported."""
    if backend == "jax":
        from safeops.integrations import _jax  # noqa: PLC0415  (it imports JAX)

        return _jax.KerasGuard
    if backend == "tensorflow":
        from safeops.integrations import _tensorflow  # noqa: PLC0415  (it imports TensorFlow)

        return _tensorflow.KerasGuard
    from safeops.integrations import _torch_fit  # noqa: PLC0415  (it imports PyTorch)

    return _torch_fit.KerasGuard


def is_built(model: Any) -> bool:
    """Whether a model and its layers have their variables."""
    return all(layer.built for layer in (model, *model.layers))


def build(model: Any, batch: Any) -> None:
    """Let a model have its variables: call it with the shapes of a batch."""
    x, *_ = keras.utils.unpack_x_y_sample_weight(batch)
    model(keras.tree.map_structure(lambda a: keras.KerasTensor(a.shape, a.dtype.name), x))


def check_model(model: Any) -> None:
    """Raise for a model whose steps cannot be guarded."""
    if model.optimizer is None:
        raise TypeError(NO_OPTIMIZER)
    if hasattr(model.optimizer, "inner_optimizer"):
        raise TypeError(SCALED)
    if model.steps_per_execution != 1:
        raise ValueError(ONE_STEP.format(model.steps_per_execution))
