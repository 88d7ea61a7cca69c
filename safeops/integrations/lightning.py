"""Guarded training with the Trainer of Lightning, `lightning` or `pytorch_lightning`."""

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from logging import Logger
from os import PathLike
from typing import Any

from safeops.autodiff._options import OnNan
from safeops.integrations._options import Outlet, check, engine_for
from safeops.integrations._policy import replaced

__all__ = ["GuardCallback"]

OLDER = find_spec("lightning") is None and find_spec("pytorch_lightning") is not None
NAME = "pytorch_lightning" if OLDER else "lightning.pytorch"
Callback: Any = import_module(NAME).Callback


class GuardCallback(Callback):  # type: ignore[misc]  # whichever of the two packages is there
    """
    Callback of Lightning that explains the first gradient that is not finite.

    Parameters
    ----------
    on_nan, group, logger, file
        As for `safeops.integrations.guard`. The GradScaler is that of the precision plugin.

    Raises
    ------
    ValueError
        If `on_nan` is none of the three.
    TypeError
        When training begins, if the module optimizes by hand.

    Notes
    -----
    **Gradient.** As for `safeops.integrations.guard`, after each backward pass. `training_step`
    runs again with the same batch; what it logs in that run is left out. The step in a report is
    `trainer.global_step`.

    **Source.** ``Trainer(detect_anomaly=True)``, too slow to leave on.

    Examples
    --------
    ``Trainer(callbacks=[GuardCallback(on_nan="skip")]).fit(module, data)``
    """

    def __init__(
        self,
        *,
        on_nan: OnNan = "raise",
        group: Any = None,
        logger: Logger | None = None,
        file: str | PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        check(on_nan)
        self.group, self.options = group, (on_nan, logger, file)
        self.engine: Any = None
        self.memory: Any = None
        self.batch: Any = None
        self.again = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Look at the model as it is trained, wrapped by DDP for example."""
        if not pl_module.automatic_optimization:
            msg = (
                "expected a module with automatic optimization, got one that optimizes by hand; "
                "decorate the function that makes the gradients with safeops.integrations.guard"
            )
            raise TypeError(msg)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.engine = engine_for(trainer.model, scaler, self.group, Outlet(*self.options))

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Remember the batch, the random state and the buffers."""
        del trainer, pl_module
        self.batch = batch, batch_idx
        self.memory = self.engine.remember(((batch,), {}))

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Remember the gradients, which are zero by now, or those of batches before."""
        del trainer, pl_module, loss
        if not self.again:
            self.memory.gradients = self.engine.saved_gradients(self.memory.given)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Check the gradients."""
        if self.again:
            return
        self.engine.steps = trainer.global_step
        self.again = True
        try:
            with replaced(pl_module, "log", lambda *_, **__: None):
                step = partial(self.step, trainer, pl_module)
                self.engine.check_step(self.memory, step, None)
        finally:
            self.again = False

    def step(self, trainer: Any, pl_module: Any) -> None:
        """Run the step again, as Lightning does."""
        output = trainer.strategy.training_step(*self.batch)
        loss = output["loss"] if isinstance(output, dict) else output
        loss = loss / trainer.accumulate_grad_batches
        scaler = self.engine.scaler
        pl_module.backward(loss if scaler is None else scaler.scale(loss))
