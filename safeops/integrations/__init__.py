"""
`explain` where training happens: a step whose gradients are not finite runs again, explained.

While gradients are finite, a step costs one sum of each gradient and copies of random states and
buffers, and its results are those that it has by itself, bit for bit. The first step whose
gradients are not finite runs once more from the same batch and the same random state under
`safeops.autodiff.explain`. The report goes to the logger `safeops` and to a file. Then the training
stops, or the step is skipped, or it takes the masked gradient.
"""

from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from logging import Logger
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar, cast

from safeops import _doors
from safeops.autodiff._options import NonFiniteGradientError, OnNan
from safeops.integrations._options import Outlet, check, engine_for, is_a

if TYPE_CHECKING:
    from safeops.integrations import jax as jax
    from safeops.integrations import keras as keras
    from safeops.integrations import lightning as lightning
    from safeops.integrations import tensorflow as tensorflow
    from safeops.integrations import transformers as transformers

__all__ = ["NonFiniteGradientError", "guard"]

MODULES = ("jax", "keras", "lightning", "tensorflow", "transformers")
F = TypeVar("F", bound=Callable[..., Any])


def guard(
    model: Any,
    /,
    *,
    on_nan: OnNan = "raise",
    scaler: Any = None,
    group: Any = None,
    logger: Logger | None = None,
    file: str | PathLike[str] | None = None,
) -> Callable[[F], F]:
    """
    Decorator of a training step of PyTorch that explains the first gradient that is not finite.

    Parameters
    ----------
    model : torch.nn.Module
        The model, also wrapped by DistributedDataParallel or torch.compile. Its parameters are
        those that it has now; guard it again after adding some.
    on_nan : {"raise", "skip", "mask"}, default: "raise"
        What follows the report. "raise": an error. "skip": buffers are what they were before the
        step, and so are gradients to which the step adds. A gradient that the step replaces becomes
        None, and if all gradients were 0 before the step, all become None: the optimizer then has
        nothing to do (a GradScaler skips the step itself). "mask": the step runs again with masked
        gradients; an error if these are not finite either, or if the step writes into its arguments
        or parameters. If a NaN came into the buffers of a module, that module has the buffers that
        it had before the step.
    scaler : torch.amp.GradScaler, optional
        The scaler of the training, whose own overflows are neither reported nor handled here: a
        step counts if its gradients are not finite without the scale.
    group : process group, optional
        The processes that decide together. Default: those of DistributedDataParallel or FSDP; else
        each process decides for itself.
    logger : logging.Logger, optional
        Where reports go, as errors. Default: the logger "safeops".
    file : path, optional
        A file to which each report is appended, one JSON object in a line.

    Returns
    -------
    callable
        Decorator of a function that makes gradients: from its arguments to whatever it returns,
        after a skipped step too, whose loss may be NaN.

    Raises
    ------
    TypeError
        If `model` is no module of PyTorch.
    ValueError
        If `on_nan` is none of the three.
    NonFiniteGradientError
        From the step, with the report as its attribute `report`.
    RuntimeError
        From the step, if it calls an optimizer, or unscales gradients with ``on_nan="mask"``.

    Notes
    -----
    **Gradient.** While gradients are finite, that of the step. The step is run again from its
    arguments and from the random states of PyTorch and of the module `random`, without its
    GradScaler and without torch.compile; afterwards arguments, parameters, buffers, gradients and
    random states are put back. What else the step does, such as counting, it does again. Where it
    writes into arguments or parameters, and something else the second time, a note says so.

    **Source.** `torch.autograd.detect_anomaly`, too slow to leave on.

    Examples
    --------
    >>> import logging
    >>> import torch
    >>> logging.getLogger("quiet").disabled = True
    >>> model = torch.nn.Linear(1, 1)
    >>> @guard(model, on_nan="mask", logger=logging.getLogger("quiet"))
    ... def step(batch):
    ...     loss = model(batch)[1:].sum()
    ...     loss.backward()
    >>> step(torch.tensor([[torch.nan], [2.0]]))
    >>> model.weight.grad
    tensor([[2.]])
    """
    check(on_nan)
    if not is_a(model, "torch.nn.modules.module.Module"):
        msg = (
            f"guard: expected a torch.nn.Module as model, got {type(model).__name__}; JAX and "
            "TensorFlow have value_and_grad in safeops.integrations.jax and .tensorflow"
        )
        raise TypeError(msg)
    guarding = engine_for(model, scaler, group, Outlet(on_nan, logger, file))

    def decorate(step: F) -> F:
        @wraps(step)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            return guarding.run(step, args, kwargs)

        return cast("F", guarded)

    return decorate


if not TYPE_CHECKING:  # else every name would be one of this module
    __getattr__ = _doors.below(__name__, MODULES)


def __dir__() -> list[str]:
    """List what is public, for completion, and the modules of what is installed."""
    return [*__all__, *filter(find_spec, MODULES)]
