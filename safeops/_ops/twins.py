"""Two public functions of one formula: `safe_*` propagates NaN, and its twin `nan*` skips it."""

import inspect
import re
from collections.abc import Callable
from typing import Concatenate, ParamSpec

from safeops._entry import fast_path
from safeops._typing import Array, Function

P = ParamSpec("P")
# What the docstring of `safe_*` says, and what that of `nan*` says there.
WORDING = (
    (r"entries kept(?=[;,])", "entries that are not NaN"),
    (r"entry kept(?=[;,])", "entry that is not NaN"),
    (r"NaN in a kept entry stays NaN\.", "NaN is absent."),
    (r" A NaN counts as the \w+ entry\.", ""),
    (r"`numpy\.(\w+)` with `where`", r"`numpy.nan\1` for the values"),
    (
        r"`numpy\.(\w+)`, which has no `where`",
        r"`numpy.nan\1`, which raises for an empty slice; a traced function cannot",
    ),
)
EXAMPLE = """    >>> import numpy as np
    >>> {name}(np.asarray([[1.0, np.nan], [np.nan, np.nan]]), axis=-1)
    {shows}
    """


def keeping_nan(formula: Callable[Concatenate[bool, P], Array]) -> Callable[P, Array]:
    """Make `safe_*` of a formula, whose first argument is whether NaN is absent."""
    doc = inspect.cleandoc(formula.__doc__ or "")
    return _made(formula, formula.__name__, formula.__module__, doc, skip_nan=False)


def skipping_nan(keeping: Callable[P, Array], module: str, shows: str) -> Callable[P, Array]:
    """Make `nan*` of `safe_*`, for a module; `shows` is what the example of its docs prints."""
    name = keeping.__name__.replace("safe_", "nan")
    head, title, _ = (keeping.__doc__ or "").partition("Examples\n--------\n")
    summary, *parts = head.split("\n\n")
    for wording, other in WORDING:
        summary = re.sub(wording, other, summary)
        parts = [part if "Gradient" in part else re.sub(wording, other, part) for part in parts]
    example = inspect.cleandoc(EXAMPLE.format(name=name, shows=shows))
    doc = "\n\n".join((summary, *parts)) + title + example
    formula: Function = vars(keeping)["formula"]
    return _made(formula, name, module, doc, skip_nan=True)


def _made(formula: Function, name: str, module: str, doc: str, *, skip_nan: bool) -> Function:
    def generic(x: Array, /, *args: object, **options: object) -> Array:
        return formula(skip_nan, x, *args, **options)

    signature = inspect.signature(formula)
    parameters = list(signature.parameters.values())[1:]
    vars(generic)["__signature__"] = signature.replace(parameters=parameters)
    generic.__annotations__ = {
        key: kind for key, kind in formula.__annotations__.items() if key != "skip_nan"
    }
    generic.__name__ = generic.__qualname__ = name
    generic.__module__, generic.__doc__ = module, doc
    generic.__code__ = generic.__code__.replace(co_name=name)
    public = fast_path(generic)
    vars(public)["formula"] = formula
    return public
