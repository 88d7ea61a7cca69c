"""Errors that name the public function, what was given, what the function takes, the way out."""

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

# Names of options in other libraries, and their names here.
WORDS = {
    "axes": "axis",
    "ddof": "correction",
    "default": "fill_value",
    "dim": "axis",
    "fill": "fill_value",
    "interpolation": "method",
    "keep_dims": "keepdims",
    "keepdim": "keepdims",
    "mask": "where",
    "nan": "fill_value",
    "p": "ord",
    "unbiased": "correction",
    "weight": "weights",
    "weights": "b",
}
# What to do in place of an option that no function here has, or that this one does not have.
INSTEAD = {
    "axis": "it works entry by entry",
    "dtype": "the result has the dtype of the arrays, so convert them before",
    "eps": "nothing has to be added: at the edge value and gradient are stated",
    "epsilon": "nothing has to be added: at the edge value and gradient are stated",
    "ignore_index": "a negative label is left out",
    "out": "the result is a new array",
    "reduction": "there is a loss for each sample, for safe_mean(loss, where=...)",
    "skipna": "nan* functions leave NaN out, safe_* functions keep it",
    "where": "leave entries out by safe_where(cond, x, {}, fill_value=...)",
}
# What to write for an argument that is missing.
MISSING = {
    "f1": "the third argument is the function itself: safe_where(cond, x, f, fill_value=0.0)",
    "placeholder": "placeholder is a number in the domain, such as 1.0 for a logarithm",
}
# The function that makes an array, by framework.
MAKERS = {
    "jax": "jnp.asarray",
    "torch": "torch.tensor",
    "tensorflow": "tf.constant",
    "numpy": "np.asarray",
}
# How to install an extra: from a copy of the repository, until a package index has safeops.
INSTALL = 'python -m pip install ".[{}]" in a copy of the repository of safeops'
CALLED = {"safeops", "array_api_compat", "numpy", "torch", "jax", "jaxlib", "tensorflow"}


def speaking(public: F) -> F:
    """Let the errors of a public function name it."""

    def function(*args: Any, **options: Any) -> Any:
        try:
            return public(*args, **options)
        except Exception as error:
            speak(error, public, args, options)
            raise

    return cast("F", wraps(public)(function))


def speak(
    error: Exception, public: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """
    Let an error, which the caller raises again, name the outermost public function.

    The message then opens with the name of that function. An error stays as it is if code of the
    user raised it, such as a branch, or if its class is not TypeError or ValueError itself. Of an
    axis that the arrays do not have each framework says something else, and only some of them with
    a ValueError: there the error is one of ours.
    """
    name = getattr(public, "__name__", type(public).__name__)
    if name.startswith("_"):
        return
    try:
        signature = inspect.signature(public)
    except ValueError:  # a ufunc of NumPy before 2.4
        return
    if _is_ours(error):
        _require_whole_axis(name, signature, options)
    if not isinstance(error, TypeError):
        _require_axis(name, signature, args, options)
    if type(error) not in {TypeError, ValueError}:
        return
    try:
        given = signature.bind(*args, **options).arguments
    except TypeError as unfit:
        said = _said(signature, options, unfit)
        msg = f"{name}{_plain(signature)}: {said}{_way_out(signature, options, name, said)}"
        raise TypeError(msg) from None
    if _is_ours(error):
        text = vars(error).setdefault("text", str(error))  # without the name of an inner function
        error.args = (f"{name}: {text}{_told_of(error, given)}",)


def no_array(message: str, x: Any, *, alone: bool = True) -> TypeError:
    """Return an error about an argument, which is named, if alone, once it is known whose it is."""
    error = TypeError(message)
    vars(error).update(culprit=x, alone=alone)
    return error


def _told_of(error: Exception, given: Mapping[str, Any]) -> str:
    """Return which argument an error is about, and how to make an array of it."""
    if "culprit" not in vars(error):
        return ""
    x = vars(error)["culprit"]
    named = [name for name, value in given.items() if value is x]
    name = named[0] if named and vars(error)["alone"] else ""
    return f" as {name}{_made(x, name, given)}" if name else _made(x, "x", given)


def _made(x: Any, name: str, given: Mapping[str, Any]) -> str:
    """Return how to make an array of something that is none, in the framework of the others."""
    if not isinstance(x, (list, tuple, range, bool, int, float, complex)):
        return ""
    what = name if isinstance(x, (list, tuple, range)) else repr(x)
    return f"; pass {MAKERS[_framework_beside(given)]}({what})"


def _framework_beside(given: Mapping[str, Any]) -> str:
    """Return the framework of the arrays given, or else the first that is imported."""
    owners = {type(x).__module__.partition(".")[0].removesuffix("lib") for x in given.values()}
    named = [name for name in MAKERS if name in owners]
    return (named or [name for name in MAKERS if name in sys.modules] or ["numpy"])[0]


def _require_whole_axis(
    name: str, signature: inspect.Signature, options: Mapping[str, Any]
) -> None:
    """Raise TypeError for an axis that is none, such as a name."""
    if "axis" not in signature.parameters or "axis" not in options:
        return
    axis = options["axis"]
    axes = axis if isinstance(axis, tuple) else (axis,)
    whole = all(hasattr(a, "__index__") and not isinstance(a, bool) for a in axes)
    if not (whole or axis is None):
        msg = f"{name}: expected an int, a tuple of ints or None as axis, got {axis!r}"
        raise TypeError(msg) from None


def _require_axis(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """Raise AxisError if the arrays are known not to have the axis of a call."""
    default = signature.parameters["axis"].default if "axis" in signature.parameters else None
    axis = options.get("axis", default)
    axes = axis if isinstance(axis, tuple) else (axis,)
    shapes = [x.shape for x in args if hasattr(x, "shape")]
    if not shapes or any(getattr(shape, "rank", 0) is None for shape in shapes):
        return
    rank = max(map(len, shapes))
    if not all(-rank <= a < rank for a in axes if isinstance(a, int)):
        from numpy.exceptions import AxisError  # noqa: PLC0415  (lint needs this module, not NumPy)

        msg = f"{name}: expected axes of an array with {rank} axes, got axis={axis}"
        raise AxisError(msg) from None


def _plain(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature without types."""
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)


def _said(signature: inspect.Signature, options: Mapping[str, Any], unfit: TypeError) -> str:
    """Return what is wrong with the arguments of a call, in one wording for each Python."""
    if named := _named_positional(signature, options):
        return f"got {', '.join(map(repr, named))} by name"
    return str(unfit).replace("keyword-only argument", "argument")  # Python 3.12 tells the kind


def _named_positional(signature: inspect.Signature, options: Mapping[str, Any]) -> list[str]:
    """Return which options are arguments that have no name in a call."""
    takes = signature.parameters
    return [x for x in options if x in takes and takes[x].kind is takes[x].POSITIONAL_ONLY]


def _way_out(signature: inspect.Signature, options: Mapping[str, Any], name: str, said: str) -> str:
    """Return what to write in place of options and of missing arguments that do not fit."""
    takes = signature.parameters
    unknown = [word for word in options if word not in takes]
    known = [f"{word} is {WORDS[word]} here" for word in unknown if WORDS.get(word) in takes]
    known += [INSTEAD[word].format(name) for word in unknown if word in INSTEAD]
    known += [f"give {x} by position" for x in _named_positional(signature, options)]
    known += [way for word, way in MISSING.items() if f"argument: '{word}'" in said]
    named = [word for word in takes if takes[word].kind is inspect.Parameter.KEYWORD_ONLY]
    if said.startswith("too many") and named:
        known.append(f"options have names, such as {named[0]}=")
    return f"; {', '.join(known)}" if known else ""


def _is_ours(error: Exception) -> bool:
    """Whether the traceback has modules of this package and of the libraries in CALLED alone."""
    trace, modules = error.__traceback__, set()
    while trace is not None:
        modules.add(trace.tb_frame.f_globals.get("__name__", "").partition(".")[0])
        trace = trace.tb_next
    return modules <= CALLED


def kind_of(x: Any) -> str:
    """Return the type of something that is not an array, and how to make an array of it."""
    kind, owner = type(x).__name__, type(x).__module__.partition(".")[0]
    if owner == "xarray":
        return f"{kind}; pass it through xarray.apply_ufunc, or pass x.to_numpy()"
    if owner == "torch" and kind == "Proxy":
        return (
            f"{kind} of torch.fx, which cannot look into safeops; leave its functions whole by "
            "torch.fx.Tracer(autowrap_modules=(safeops,)).trace(module), or use torch.export"
        )
    if hasattr(x, "to_numpy"):
        return f"{kind}; pass x.to_numpy()"
    return "None" if x is None else kind
