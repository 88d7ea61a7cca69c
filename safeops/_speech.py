"""Errors that name the public function, what was given, what the function takes, the way out."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

# Names of options in other libraries, and their names here.
WORDS = {
    "axes": "axis",
    "ddof": "correction",
    "default": "fill_value",
    "dim": "axis",
    "interpolation": "method",
    "keep_dims": "keepdims",
    "keepdim": "keepdims",
    "mask": "where",
    "p": "ord",
    "unbiased": "correction",
    "weights": "b",
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
    if not isinstance(error, TypeError):
        _require_axis(name, signature, args, options)
    if type(error) not in {TypeError, ValueError}:
        return
    try:
        signature.bind(*args, **options)
    except TypeError as unfit:
        msg = f"{name}{_plain(signature)}: {unfit}{_way_out(signature, options)}"
        raise TypeError(msg) from None
    if _is_ours(error):
        text = vars(error).setdefault("text", str(error))  # without the name of an inner function
        error.args = (f"{name}: {text}",)


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


def _way_out(signature: inspect.Signature, options: dict[str, Any]) -> str:
    takes = signature.parameters
    words = {word: WORDS[word] for word in options if word not in takes and word in WORDS}
    known = [f"{word} is {ours} here" for word, ours in words.items() if ours in takes]
    positional = [x for x in options if x in takes and takes[x].kind is takes[x].POSITIONAL_ONLY]
    known += [f"give {x} by position" for x in positional]
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
    if isinstance(x, (list, tuple, range)):
        return f"{kind}; pass numpy.asarray(x)"
    return kind
