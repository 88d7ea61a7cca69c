"""
Which framework owns an array: recognition by cached type, then promotion, once, at entry.

No framework is imported here before its first array arrives: recognition asks only frameworks that
are in `sys.modules` already.
"""

import sys
from collections.abc import Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from safeops._backends import FRAMEWORKS, load
from safeops._backends.array_api import ArrayAPI
from safeops._core.dtypes import NUMPY_TYPES, SCALARS, dtype_name
from safeops._core.errors import (
    is_of_symbols,
    kind_of,
    name_function_in,
    normalize_options,
    recorded,
    wrong,
)
from safeops._core.types import ARRAY_OPTIONS, Array, Function, Namespace

F = TypeVar("F", bound=Function)

OTHERS = tuple(name for name in FRAMEWORKS if name != "numpy")

MASKS = ("where", "cond", "pred")

# The value None means any framework: for Python scalars, and for None, a keyword not given.
_known: dict[type, ArrayAPI | None] = dict.fromkeys((*SCALARS, type(None)))
_generic: dict[Namespace, ArrayAPI] = {}


def backend_of(*args: Any, beside: Sequence[Any] = ()) -> ArrayAPI:
    """Return the one backend of all arrays among `args` and `beside`."""
    # Python scalars and None belong to any backend. Errors do not mention what stands `beside`.
    found = None
    for x in (*args, *beside):
        kind = type(x)
        backend = _known[kind] if kind in _known else _recognise(x)
        if backend is None or backend is found:
            continue
        if found is not None:
            return _of_mixed((*args, *beside))
        found = backend
    if found is None:
        given = [x for x in args if x is not None] or args
        if all(x is None for x in given):
            raise _no_array(None)
        numbers = " and ".join(map(repr, given))
        said = f"the Python number{'s' if len(given) > 1 else ''} {numbers}"
        msg = f"expected at least one array of {_accepted()}, got {said}"
        raise wrong(msg, given[0], names=None if len(given) == 1 else ())
    return found


def fast_path(generic: F) -> F:
    """Ask the framework's own kernel of the same name first; if it returns None, run `generic`."""
    # Errors name this function. Arrays and scalars of NumPy become constants of the framework
    # beside them. A result of NumPy without dimensions becomes a scalar.
    name = generic.__name__

    def function(*args: Any, **options: Any) -> Array:
        try:
            if options:
                normalize_options(options)
            kind = type(args[0])
            backend = _known[kind] if kind in _known else _recognise(args[0])
            kernel = None if backend is None else backend.kernel(name, generic)
            value = None if kernel is None else kernel(*args, **options)
            if value is None:
                arrays, settings = with_numpy_constants(args, options)
                value = generic(*arrays, **settings)
            return as_result(value, *args, *options.values())
        except Exception as error:
            if is_of_symbols(error):
                return recorded(error, public, args, options)
            # Without an argument, an IndexError, there is what `generic` says of that.
            name_function_in(error if args else TypeError(), generic, args, options)
            raise

    # Each function has its own code object: torch.compile counts programs by code object, and stops
    # at 8 (2.13).
    function.__code__ = function.__code__.replace(co_name=name)
    public = wraps(generic)(function)
    cast("Any", generic).public = public  # what dask calls for each block, by name in a pickle
    return cast("F", public)


def as_result(value: Array, *given: Any) -> Array:
    """Return a value as NumPy does: an ndarray without dimensions becomes a scalar."""
    if type(value) is not np.ndarray:
        return value
    if given and value.dtype.kind == "f" and value.dtype is not getattr(given[0], "dtype", None):
        value = _narrowed(value, [x for x in given if isinstance(x, NUMPY_TYPES)])
    return value if value.ndim else value[()]


def _narrowed(value: Array, given: Sequence[Array]) -> Array:
    """Return a value in the dtype of arrays in bfloat16, which NumPy widens beside a number."""
    if not any(x.dtype.kind == "V" for x in given):
        return value
    return value.astype(backend_of(*given).result_type(given))


def with_numpy_constants(
    args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments and options; those of NumPy as constants of the framework beside them."""
    arrays = {name: options[name] for name in ARRAY_OPTIONS if name in options}
    values = (*args, *arrays.values())
    guests = [x for x in values if isinstance(x, NUMPY_TYPES)]
    if not guests:
        return args, options
    hosts = [x for x in values if hasattr(x, "dtype") and not isinstance(x, NUMPY_TYPES)]
    if not hosts or any(backend_of(x) is not backend_of(hosts[0]) for x in hosts):
        return args, options
    backend = backend_of(hosts[0])
    if not all(backend.accepts_numpy(x) for x in guests):
        return args, options

    like = ([x for x in hosts if dtype_name(x.dtype) != "bool"] or hosts)[0]  # not a condition

    def settled(x: Any) -> Any:
        return backend.constant(x, like) if isinstance(x, NUMPY_TYPES) else x

    return tuple(map(settled, args)), options | {name: settled(x) for name, x in arrays.items()}


def promote(*args: Any, also: tuple[Any, ...] = (), complex_too: bool = False) -> tuple[Any, ...]:
    """Return the namespace, then `args` as arrays of one floating dtype, promoted together."""
    # Arrays in `also` (fill values) take part and come back promoted too. A Python scalar or None
    # in `also` comes back as it is: `where` takes a scalar as weak.
    refuse_none(args)
    backend = backend_of(*args, beside=also)
    return backend.xp, *backend.promoted(args, also, complex_too=complex_too)


def refuse_none(args: Sequence[Any]) -> None:
    """Raise TypeError for None among positional arguments: only a keyword may be None."""
    if any(x is None for x in args):
        raise _no_array(None)


def promote_mask(where: Any, like: Array) -> Array | None:
    """Return `where` as a boolean array of the framework of `like`; None stays None."""
    if where is None:
        return None
    backend = backend_of(where, like)
    if isinstance(where, bool):
        return backend.cast(where, backend.xp.bool, like)
    name = dtype_name(where.dtype) if hasattr(where, "dtype") else type(where).__name__
    if name != "bool":
        msg = f"expected a boolean array (True = keep), got {name}"
        raise wrong(msg, where, "; compare first", MASKS)
    backend.check(where)
    return backend.cast(where, where.dtype, like)


def _recognise(x: Any) -> ArrayAPI | None:
    """Find the backend of a type that was not met before, and remember it."""
    # A Proxy of torch.fx, as a mock, has every attribute: TensorFlow calls it a tensor (2.21), and
    # it returns itself as its namespace.
    if hasattr(x, "what no array has"):
        raise _no_array(x)
    # NumPy's backend takes 0.1 s to import, which another framework need not wait for.
    for name in ("numpy",) if isinstance(x, NUMPY_TYPES) else OTHERS:
        if name in sys.modules and load(name).owns(x):
            return _remember(x, load(name))
    from array_api_compat import array_namespace  # noqa: PLC0415  (slow)

    try:
        xp = array_namespace(x)
    except TypeError:
        raise _no_array(x) from None
    return _remember(x, _generic.setdefault(xp, ArrayAPI(xp)))


def _no_array(x: Any) -> TypeError:
    kind, way_out = kind_of(x)
    return wrong(f"expected arrays of {_accepted()}, got {kind}", x, way_out)


def _remember(x: Any, backend: ArrayAPI) -> ArrayAPI:
    backend.refuse(x)
    kin = backend.kin(x)
    backend = load(kin) if kin else backend
    if not backend.is_compiling():
        _known[type(x)] = backend
    return backend


def _of_mixed(args: tuple[Any, ...]) -> ArrayAPI:
    """Return the one framework beside NumPy, if it takes the arrays of NumPy here; else raise."""
    arrays = [x for x in args if x is not None and type(x) not in SCALARS]
    found = sorted(map(backend_of, arrays), key=lambda backend: backend.precedence)
    owners = {backend.name: backend for backend in found}
    hosts = [backend for name, backend in owners.items() if name != "numpy"]
    if len(hosts) == 1 and all(
        hosts[0].accepts_numpy(x) for x in arrays if isinstance(x, NUMPY_TYPES)
    ):
        return hosts[0]
    msg = (
        f"expected arrays of one framework, got {' and '.join(owners)} ({_kinds(arrays)}); "
        f"convert them to one first"
    )
    raise TypeError(msg)


def _accepted() -> str:
    return f"one framework out of ({', '.join(FRAMEWORKS)}, or any of the array API standard)"


def _kinds(args: Any) -> str:
    return ", ".join(type(x).__name__ for x in args)
