"""Errors that name the public function, what was given, what the function takes, the way out."""

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from itertools import zip_longest
from operator import index
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
    "UPLO": "both triangles are read, so symmetrize the matrices before",
    "axis": "it works entry by entry",
    "base": "divide the result by the logarithm of the base",
    "dtype": "the result has the dtype of the arrays, so convert them before",
    "eps": "nothing has to be added: at the edge value and gradient are stated",
    "epsilon": "nothing has to be added: at the edge value and gradient are stated",
    "ignore_index": "a negative label is left out",
    "out": "the result is a new array",
    "pos_weight": "multiply the losses, one a sample, by weights of your own",
    "reduction": "there is a loss for each sample, for safe_mean(loss, where=...)",
    "temperature": "divide the array by it before",
    "skipna": "nan* functions leave NaN out, safe_* functions keep it",
    "upper": "the result is the lower factor, so take the conjugate transpose",
    "where": "leave entries out by safe_where(cond, x, {}, fill_value=...)",
}
# What to write for an argument that is missing.
MISSING = {
    "f1": "the third argument is the function itself: safe_where(cond, x, f, fill_value=0.0)",
    "num_segments": "num_segments is an int, the number of results",
    "placeholder": "placeholder is a number in the domain, such as 1.0 for a logarithm",
}
# The function that makes an array, by framework.
MAKERS = {
    "jax": "jnp.asarray",
    "torch": "torch.tensor",
    "tensorflow": "tf.constant",
    "numpy": "np.asarray",
}
FLAGS = ("keepdims", "proper")
# What frameworks say of shapes that do not broadcast.
DO_NOT_FIT = re.compile("broadcast|must match the size|ncompatible shapes")
# How to install an extra: from a copy of the repository, until a package index has safeops.
INSTALL = 'python -m pip install ".[{}]" in a copy of the repository of safeops'
CALLED = {"safeops", "array_api_compat", "numpy", "torch", "jax", "jaxlib", "tensorflow"}


def errors_name_function(public: F) -> F:
    """Let the errors of a public function name it."""

    def function(*args: Any, **options: Any) -> Any:
        try:
            normalize_options(options)
            return public(*args, **options)
        except Exception as error:
            if is_of_symbols(error):
                return recorded(error, function, args, options)
            name_function_in(error, public, args, options)
            raise

    return cast("F", wraps(public)(function))


def normalize_options(options: dict[str, Any]) -> None:
    """Let `axis` be an int, a tuple of ints or None, and flags truth values; or raise."""
    axis = options.get("axis")
    if not (axis is None or type(axis) is int):
        many = isinstance(axis, (tuple, list))
        axes = [_whole(a) for a in (axis if many else (axis,))]
        if None in axes:
            msg = f"expected an int, a tuple of ints or None as axis, got {axis!r}"
            raise TypeError(msg)
        options["axis"] = tuple(axes) if many else axes[0]
    for flag in FLAGS:
        value = options.get(flag, False)
        if type(value) is not bool:
            if value not in (False, True):
                msg = f"expected True or False as {flag}, got {value!r}"
                raise TypeError(msg)
            options[flag] = bool(value)


def _whole(axis: Any) -> Any:
    """Return an int of any library as one of Python; None for anything else."""
    try:
        return None if isinstance(axis, bool) else index(axis)
    except TypeError as error:
        return None if type(error) is TypeError else axis  # of a traced one JAX says why it is none


def is_of_symbols(error: Exception) -> bool:
    """Whether an error is about a value of torch.fx, which stands for a tensor."""
    return any(kind.__module__ == "torch.fx.proxy" for kind in type(_culprit(error)).__mro__)


def recorded(
    error: Exception, public: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """Return the call of a public function as torch.fx records those of PyTorch; or raise."""
    if "._" in public.__module__:  # the function that called it will do
        raise error
    symbol = type(_culprit(error))
    try:
        return symbol.__torch_function__(public, (symbol,), args, options)
    except NotImplementedError:  # a function among the arguments
        msg = (
            f"{public.__name__}: expected arrays, got a Proxy of torch.fx, which records no call "
            "with functions; use torch.export"
        )
        raise TypeError(msg) from None


def name_function_in(
    error: Exception, public: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """Let an error, which the caller raises again, name the outermost public function."""
    # The message then opens with the name of that function. An error stays as it is if code of the
    # user raised it, such as a branch, or if its class is not TypeError or ValueError itself. Of an
    # axis that the arrays do not have each framework says something else, and only some of them
    # with a ValueError: there the error is one of ours.
    name = getattr(public, "__name__", type(public).__name__)
    if name.startswith("_"):
        return
    try:
        signature = inspect.signature(public)
    except ValueError:  # a ufunc of NumPy before 2.4
        return
    if not isinstance(error, TypeError):
        _require_axis(name, signature, args, options)
    _require_shapes(error, name, signature, args, options)  # JAX may say it with a TypeError
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
        error.args = (f"{name}: {_told_of(error, given) or text}",)


def wrong(message: str, x: Any, way_out: str = "", names: Sequence[str] | None = None) -> TypeError:
    """Return an error about an argument, which is named once it is known whose it is."""
    # The name is that of `x`, which stands in the call; else the first of `names` that does.
    error = TypeError(message + way_out)
    vars(error).update(culprit=x, head=message, way_out=way_out, names=names)
    return error


def _culprit(error: Exception) -> Any:
    return vars(error).get("culprit")


def _told_of(error: Exception, given: Mapping[str, Any]) -> str:
    """Return what an error says once it names the argument, and how to make an array of it."""
    told = vars(error)
    if "culprit" not in told:
        return ""
    x = told["culprit"]
    same = [name for name, value in given.items() if value is x]
    if not same and hasattr(x, "dtype"):  # a compiled function has another array for it
        alike = [name for name, value in given.items() if _form(value) == _form(x)]
        same = alike if len(alike) == 1 else []
    named = same if told["names"] is None else [name for name in told["names"] if name in given]
    name = named[0] if named else ""
    way_out = told["way_out"].format(name or "x") or _made(x, name or "x", given)
    return f"{told['head']}{f' as {name}' if name else ''}{way_out}"


def _form(x: Any) -> tuple[Any, Any]:
    return getattr(x, "dtype", None), getattr(x, "shape", None)


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
    if len({a % rank for a in axes if isinstance(a, int)}) < sum(isinstance(a, int) for a in axes):
        msg = f"{name}: expected different axes, got axis={axis}"
        raise ValueError(msg) from None


def _require_shapes(
    error: Exception,
    name: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    """Raise ValueError with the arguments whose shapes a framework cannot broadcast."""
    said = str(error)
    if not (DO_NOT_FIT.search(said) and _is_ours(error)):
        return
    if said.startswith("expected where") and options.get("where") is not None:
        return
    given = signature.bind(*args, **options).arguments
    for key in [key for key, x in given.items() if isinstance(x, tuple)]:  # operands of a branch
        given |= {f"{key}[{i}]": x for i, x in enumerate(given[key])}
    shapes = {key: tuple(x.shape) for key, x in given.items() if hasattr(x, "shape")}
    if len(shapes) > 1 and not _broadcast(list(shapes.values())):
        listed = ", ".join(f"{key} {shape}" for key, shape in shapes.items())
        msg = f"{name}: expected arrays of shapes that broadcast, got {listed}"
        raise ValueError(msg) from None


def _broadcast(shapes: Sequence[tuple[Any, ...]]) -> bool:
    """Whether shapes broadcast, as far as is known."""
    columns = zip_longest(*map(reversed, shapes), fillvalue=1)
    return all(len({n for n in column if n not in (1, None)}) < 2 for column in columns)  # noqa: PLR2004  (one length)


def _plain(signature: inspect.Signature) -> inspect.Signature:
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
    known += [f"write {near[0]}=" for word in unknown if (near := _near(word, takes))]
    known += [f"give {x} by position" for x in _named_positional(signature, options)]
    known += [way for word, way in MISSING.items() if f"argument: '{word}'" in said]
    if said.startswith("missing") and unknown:
        known.append("give arrays and functions by position")
    named = [word for word in takes if takes[word].kind is inspect.Parameter.KEYWORD_ONLY]
    if said.startswith("too many") and named:
        known.append(f"options have names, such as {named[0]}=")
    return f"; {', '.join(known)}" if known else ""


def _near(word: str, takes: Mapping[str, inspect.Parameter]) -> list[str]:
    """Return the options with almost this name, of those that have no other name elsewhere."""
    named = [key for key, option in takes.items() if option.kind is option.KEYWORD_ONLY]
    return [] if word in WORDS or word in INSTEAD else get_close_matches(word, named, 1)


def _is_ours(error: Exception) -> bool:
    """Whether the traceback has modules of this package and of the libraries in CALLED alone."""
    trace, modules = error.__traceback__, set()
    while trace is not None:
        modules.add(trace.tb_frame.f_globals.get("__name__", "").partition(".")[0])
        trace = trace.tb_next
    return modules <= CALLED


def kind_of(x: Any) -> tuple[str, str]:
    """Return the type of something that is not an array, and how to make an array of it."""
    kind, owner = type(x).__name__, type(x).__module__.partition(".")[0]
    if owner == "xarray":
        return kind, "; pass it through xarray.apply_ufunc, or pass {}.to_numpy()"
    if hasattr(x, "to_numpy") and not hasattr(x, "what no array has"):
        return kind, "; pass {}.to_numpy()"
    return ("None" if x is None else kind), "; pass numbers" if isinstance(x, (str, bytes)) else ""


# One sentence for a framework that is too old for a layer of safeops, not an error from inside.


def require(layer: str, name: str, found: str, floor: str, *, also: str = "") -> None:
    """Raise ImportError in one sentence if the version `found` of a framework is below `floor`."""
    if numbers(found) < numbers(floor):
        msg = f"{layer} needs {name} {floor} or later and found {found}"
        raise ImportError(f"{msg}; {also}" if also else msg)


def gone(layer: str, name: str, found: str, tested: str, what: str) -> ImportError:
    """Return an error in one sentence: the inside of a framework is not what a layer reads."""
    return ImportError(
        f"{layer} has been tested up to {name} {tested} and found {found}, whose inside has other "
        f"names: {what}"
    )


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading integers of a version: (2, 13, 0) of "2.13.0a0+git"."""
    return tuple(map(int, re.findall(r"\d+", re.split(r"[^\d.]", version)[0])))
