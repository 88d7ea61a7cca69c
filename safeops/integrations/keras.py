"""Guarded training with `fit` of Keras, on the backend TensorFlow."""

from functools import partial
from importlib import import_module
from logging import Logger
from os import PathLike
from typing import Any

from safeops.integrations import check
from safeops.integrations._outlets import publish

__all__ = ["GuardCallback"]

keras: Any = import_module("keras")
OTHER_BACKEND = (
    "expected the backend tensorflow of Keras, got {}; write the step with "
    "safeops.integrations.guard (torch) or safeops.integrations.jax.value_and_grad (jax)"
)


class GuardCallback(keras.callbacks.Callback):  # type: ignore[misc]  # it is known at run time
    """
    Callback of Keras that explains the first gradient that is not finite, in `fit`.

    Parameters
    ----------
    on_nan : {"raise", "skip", "mask"}, default: "raise"
        What follows the report. "raise": an error. "skip": the step has not been. "mask": the step
        runs again with masked gradients; an error if these are not finite either. After an error
        and after a skipped step, weights, averages, seeds, metrics and the optimizer are what they
        were before the step.
    logger, file
        As for `safeops.integrations.guard`.

    Raises
    ------
    ValueError
        If `on_nan` is none of the three; when training begins, if ``steps_per_execution`` is not 1.
    RuntimeError
        If the backend is not TensorFlow; when training begins, in a strategy of several replicas.
    TypeError
        When training begins, if the optimizer scales the loss, as with the policy mixed_float16.

    Notes
    -----
    **Gradient.** That of `train_step` of the model, which may be one of your own that takes its
    gradients by ``tf.GradientTape`` and hands them to ``self.optimizer.apply_gradients`` once. A
    finite training is the same bit for bit, unless XLA compiles it. The step in a report is counted
    from the beginning of `fit`.

    **Source.** `keras.callbacks.TerminateOnNaN`, which looks at the loss alone.

    Examples
    --------
    ``model.fit(x, y, callbacks=[GuardCallback(on_nan="skip")])``
    """

    def __init__(
        self,
        *,
        on_nan: str = "raise",
        logger: Logger | None = None,
        file: str | PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        check(on_nan)
        if (name := keras.config.backend()) != "tensorflow":
            raise RuntimeError(OTHER_BACKEND.format(name))
        self.on_nan = on_nan
        self.tell = partial(publish, logger=logger, file=file)
        self.engine: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Guard the model."""
        del logs
        engine = import_module("safeops.autodiff.tensorflow._fit")
        self.engine = engine.Fit(self.model, self.on_nan, self.tell)

    def on_train_end(self, logs: Any = None) -> None:
        """Let the model be as it was."""
        del logs
        self.engine.release()
