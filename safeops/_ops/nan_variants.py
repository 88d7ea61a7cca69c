"""Two public functions of one formula: `safe_*` propagates NaN, and its twin `nan*` skips it."""

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from safeops._core.types import Array, Function, Reduction
from safeops._dispatch import fast_path

P = ParamSpec("P")
# Phrases of the docstring of `safe_*`, and what the docstring of `nan*` says in their place.
IN_SUMMARY = {
    "entries kept": "entries that are not NaN",
    "entry kept": "entry that is not NaN",
}
IN_REST = {
    "NaN in a kept entry stays NaN.": "NaN is absent.",
    " 0 is no mask: a NaN with that weight stays NaN.": "",
    " A NaN counts as the largest entry.": "",
    " A NaN counts as the smallest entry.": "",
    "`numpy.{}` with `where`": "`numpy.nan{}` for the values",
    "`numpy.{}`, which has no `where`": (
        "`numpy.nan{}`, which raises for an empty slice; a traced function cannot"
    ),
}
EXAMPLE = """Examples
--------
>>> import numpy as np
>>> nan{}(np.asarray([[1.0, np.nan], [np.nan, np.nan]]), axis=-1)
{}"""


def propagates_nan(formula: Callable[Concatenate[bool, Any, P], Any]) -> Reduction[P]:
    """Make `safe_*` of a formula; the first argument of the formula says whether NaN is absent."""
    signature = inspect.signature(formula)
    public = signature.replace(parameters=list(signature.parameters.values())[1:])
    doc = inspect.cleandoc(formula.__doc__ or "")
    return _made(formula, public, (formula.__name__, formula.__module__, doc), skip_nan=False)


def skips_nan(keeping: Reduction[P], module: str, shows: str) -> Reduction[P]:
    """Make `nan*` of `safe_*`, as a function of `module`; the example in its docs shows `shows`."""
    word = keeping.__name__.removeprefix("safe_")
    head, _, _ = (keeping.__doc__ or "").partition("Examples\n")
    summary, _, rest = head.partition("\n")
    for wording, other in IN_SUMMARY.items():
        summary = summary.replace(wording, other)
    for wording, other in IN_REST.items():
        rest = rest.replace(wording.format(word), other.format(word))
    doc = f"{summary}\n{rest}{EXAMPLE.format(word, shows)}"
    formula, signature = vars(keeping)["formula"], inspect.signature(keeping)
    return _made(formula, signature, (f"nan{word}", module, doc), skip_nan=True)


def _made(
    formula: Function, signature: inspect.Signature, named: tuple[str, str, str], *, skip_nan: bool
) -> Function:
    def generic(x: Array, /, *args: object, **options: object) -> Array:
        return formula(skip_nan, x, *args, **options)

    name, generic.__module__, generic.__doc__ = named
    vars(generic)["__signature__"] = signature
    kinds = formula.__annotations__.items()
    generic.__annotations__ = {key: kind for key, kind in kinds if key != "skip_nan"}
    generic.__name__ = generic.__qualname__ = name
    generic.__code__ = generic.__code__.replace(co_name=name)
    public = fast_path(generic)
    vars(public)["formula"] = formula
    return public
