"""A process that executes expressions: what comes through a pipe is answered in words."""

import os
import warnings
from importlib import import_module
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

SHAPES = ((2,), (2, 2), (1, 2, 2), (2, 2, 2, 2), (1,), (1, 1))
QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "JAX_ENABLE_X64": "1",
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
}
FINITE = "confirmed: with the edit it is finite there"


class Job(NamedTuple):
    """An expression, the same with edits or "", and its modules, arrays and masks by name."""

    expression: str
    edited: str
    imports: dict[str, str]
    arrays: dict[str, float]
    masks: list[str]
    shown: dict[str, str]  # how the program calls the arrays


class Given(NamedTuple):
    """The shape of all arrays, and how masks are given: as booleans or numbers, 0 or 1."""

    shape: tuple[int, ...]
    is_bool: bool
    keep: bool


def serve(pipe: Connection, module: str) -> None:
    os.environ.update(QUIET | os.environ)
    with Path(os.devnull).open("w") as nowhere:  # what frameworks and expressions print
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    warnings.simplefilter("ignore")
    while True:
        pipe.send(answer(pipe.recv(), module))


def answer(job: Job, module: str) -> tuple[str, str]:
    """Return what was seen of an expression's gradient, and of that with the edits, in words."""
    said = "not executed: it does not run on arrays of any shape that was tried"
    masks = (False, True) if job.masks else (False,)
    for given in map(Given._make, product(SHAPES, masks, masks)):
        try:
            found = nonfinite_gradient(job, module, given)
        except Exception:  # noqa: BLE001, S112  (an expression of somebody else)
            continue
        if found:
            return found, trial(job, module, given)
        said = "not confirmed: the gradient is finite there"
    return said, ""


def trial(job: Job, module: str, given: Given) -> str:
    """Return what becomes of the gradient with the edits, in words."""
    if not job.edited:
        return ""
    try:
        found = nonfinite_gradient(job._replace(expression=job.edited), module, given)
    except Exception as error:  # noqa: BLE001  (an expression of somebody else)
        return f"not executed with the edit: {type(error).__name__}"
    return "still not finite with the edit alone" if found else FINITE


def nonfinite_gradient(job: Job, module: str, given: Given) -> str:
    """Return which gradient is not finite; "" if all are finite."""
    import numpy as np  # noqa: PLC0415  (after the environment is set; lint itself needs none)

    from safeops.testing import check_gradients  # noqa: PLC0415  (as above)

    makers = {"torch": "torch.as_tensor", "tensorflow": "tensorflow.constant"}
    make = resolve(makers.get(module, "jax.numpy.asarray"))  # an array of one of NumPy
    names = {"xp": import_module("jax.numpy")} if module == "jax" else {}
    names |= {name: resolve(full) for name, full in job.imports.items()}
    kind = bool if given.is_bool else float
    names |= {name: make(np.full(given.shape, given.keep, kind)) for name in job.masks}
    arrays = {k: v for k, v in job.arrays.items() if k not in job.masks}
    code = compile(job.expression, "expression", "eval")

    def f(*values: Any) -> Any:
        return eval(code, names | dict(zip(arrays, values, strict=True)))  # noqa: S307  (known operations alone)

    at = ", ".join(f"{job.shown[name]} = {value:g}" for name, value in arrays.items())
    points = tuple(make(np.full(given.shape, value)) for value in arrays.values())
    options: dict[str, Any] = {"order": 1, "forward": False, "neighbours": False}
    options |= {"finite_differences": False, "nan_detector": False, "raises": False}
    for finding in check_gradients(f, points, **options).findings:
        if finding.places and not np.isfinite(finding.got):
            name = job.shown[list(arrays)[finding.places[0].argument]]
            return f"confirmed: the gradient for {name} is {finding.got} at {at}"
    is_nan = np.isnan(np.asarray(f(*points))).any()
    return f"confirmed: the value is nan at {at}" if is_nan else ""


def resolve(full: str) -> Any:
    """Return a module, or an attribute of it, by its full name."""
    try:
        return import_module(full)
    except ImportError:
        module, _, name = full.rpartition(".")
        return getattr(import_module(module), name)
