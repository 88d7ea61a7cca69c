"""A process that executes expressions: a line of JSON in, a line of words out."""

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

SHAPES = ((2,), (2, 2), (1, 2, 2), (2, 2, 2, 2), (1,), (1, 1))
BOTH = (False, True)


def main() -> None:
    """Answer each line of the standard input."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("JAX_ENABLE_X64", "1")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    warnings.simplefilter("ignore")
    (module,) = sys.argv[1:]
    for line in sys.stdin:
        print(answer(json.loads(line), module), flush=True)


def answer(job: dict[str, Any], module: str) -> str:
    """Return the outcome of an expression's gradient, in words."""
    said = "not executed: it does not run on arrays of any shape that was tried"
    for shape, is_bool, keep in trials(job):
        try:
            found = seen(job, module, shape, is_bool=is_bool, keep=keep)
        except Exception:  # noqa: BLE001, S112  (an expression of somebody else)
            continue
        if found:
            return f"{found}; {trial(job, module, shape, is_bool=is_bool, keep=keep)}"
        said = "not confirmed: the gradient is finite there"
    return said


def trial(
    job: dict[str, Any], module: str, shape: tuple[int, ...], *, is_bool: bool, keep: bool
) -> str:
    """Return what becomes of the gradient with the edits, in words."""
    if not job["edited"]:
        return ""
    again = job | {"expression": job["edited"]}
    try:
        found = seen(again, module, shape, is_bool=is_bool, keep=keep)
    except Exception as error:  # noqa: BLE001  (an expression of somebody else)
        return f"not executed with the edit: {type(error).__name__}"
    return "still not finite with the edit alone" if found else FINITE


FINITE = "confirmed: with the edit it is finite there"


def trials(job: dict[str, Any]) -> Iterator[tuple[tuple[int, ...], bool, bool]]:
    """Yield shapes of the arrays, and how masks are given: as numbers or booleans, 0 or 1."""
    masks = BOTH if job["masks"] else (False,)
    yield from product(SHAPES, masks, masks)


def seen(
    job: dict[str, Any], module: str, shape: tuple[int, ...], *, is_bool: bool, keep: bool
) -> str:
    """Return which gradient is not finite; "" if all are finite."""
    from safeops.testing import check_gradients  # noqa: PLC0415  (after the environment is set)

    names = {name: meant(full) for name, full in job["imports"].items()}
    make = maker(module)
    names |= {"xp": import_module("jax.numpy")} if "xp" not in names and module == "jax" else {}
    masks = {name: np.full(shape, keep, bool if is_bool else float) for name in job["masks"]}
    names |= {name: make(value) for name, value in masks.items()}
    arrays = {k: v for k, v in job["arrays"].items() if k not in masks}
    code = compile(job["expression"], "expression", "eval")

    def f(*given: Any) -> Any:
        return eval(code, names | dict(zip(arrays, given, strict=True)))  # noqa: S307  (known operations alone)

    at = ", ".join(f"{job['shown'][name]} = {value:g}" for name, value in arrays.items())
    points = tuple(make(np.full(shape, value)) for value in arrays.values())
    options: dict[str, Any] = {"order": 1, "forward": False, "neighbours": False}
    options |= {"finite_differences": False, "nan_detector": False, "raises": False}
    report = check_gradients(f, points, **options)
    for finding in report.findings:
        if finding.places and not np.isfinite(finding.got):
            place = finding.places[0]
            name = list(arrays)[place.argument]
            return f"confirmed: the gradient for {job['shown'][name]} is {finding.got} at {at}"
    value = np.asarray(f(*points))
    return f"confirmed: the value is nan at {at}" if np.isnan(value).any() else ""


def meant(full: str) -> Any:
    """Return a module, or an attribute of it, by its full name."""
    try:
        return import_module(full)
    except ImportError:
        module, _, name = full.rpartition(".")
        return getattr(import_module(module), name)


def maker(module: str) -> Callable[[Any], Any]:
    """Return the function that makes an array of a framework from a NumPy array."""
    if module == "torch":
        return import_module("torch").as_tensor
    if module == "tensorflow":
        return import_module("tensorflow").constant
    return import_module("jax.numpy").asarray
