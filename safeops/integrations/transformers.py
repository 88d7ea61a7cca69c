"""Guarded training with the Trainer of transformers."""

from functools import wraps
from logging import Logger
from os import PathLike
from typing import Any

from safeops.autodiff._options import OnNan
from safeops.integrations._options import Outlet, check, engine_for, is_a

__all__ = ["guard"]


def guard(
    trainer: Any,
    /,
    *,
    on_nan: OnNan = "raise",
    group: Any = None,
    logger: Logger | None = None,
    file: str | PathLike[str] | None = None,
) -> Any:
    """
    Trainer of transformers whose first gradient that is not finite is explained.

    Parameters
    ----------
    trainer : transformers.Trainer
        A trainer, or one of a derived class. Its `training_step` is guarded; a callback of it is
        given neither the batch nor the loss, which are wanted to run a step again.
    on_nan, group, logger, file
        As for `safeops.integrations.guard`. The GradScaler is that of the trainer.

    Returns
    -------
    transformers.Trainer
        The same trainer.

    Raises
    ------
    TypeError
        If `trainer` is no Trainer of transformers.
    ValueError
        If `on_nan` is none of the three.

    Notes
    -----
    **Gradient.** As for `safeops.integrations.guard`, after each call of `training_step`: with
    ``gradient_accumulation_steps`` a batch at a time. The step in a report is ``global_step``.

    **Source.** `transformers.debug_utils.DebugUnderflowOverflow`, which names the module in which a
    value overflows.

    Examples
    --------
    ``guard(Trainer(model, args, train_dataset=data), on_nan="skip").train()``
    """
    check(on_nan)
    if not is_a(trainer, "transformers.trainer.Trainer"):
        msg = f"expected a Trainer of transformers, got {type(trainer).__name__}"
        raise TypeError(msg)
    step, engines = trainer.training_step, {}

    @wraps(step)
    def guarded(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if id(model) not in engines:  # DDP wraps the model when training begins
            scaler, tell = trainer.accelerator.scaler, Outlet(on_nan, logger, file)
            engines[id(model)] = engine_for(model, scaler, group, tell)
        engine = engines[id(model)]
        engine.steps = trainer.state.global_step
        return engine.run(step, (model, inputs, *args), kwargs)

    trainer.training_step = guarded
    return trainer
