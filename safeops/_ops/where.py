"""
The double where: a branch never sees the entries that it will not supply.

``where(x > 0, log(x), 0)`` has gradient NaN at 0. The backward pass sends 0 into the branch not
taken, whose slope is ``1 / 0 = inf``, and ``0 * inf`` is NaN. The outer `where` cannot help: it
runs after the branch has computed its value. An inner `where`, which hands the branch a harmless
number instead of x, makes the slope finite. Both are needed. With the outer `where` alone, reverse
mode gives NaN; with the inner `where` alone, forward mode carries the tangent of the branch at the
harmless number.

Source: the `where` note of TensorFlow Probability (2019); the JAX FAQ, "Gradients contain NaN
where using where".
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import update_wrapper
from typing import Any, TypeVar, cast

from safeops._backends.array_api import ArrayAPI
from safeops._core.dtypes import COMPLEX, INTEGER, SCALARS, dtype_name
from safeops._core.errors import errors_name_function, name_function_in
from safeops._core.types import Array, Condition, Function, IsArray, Namespace, T
from safeops._dispatch import (
    as_result,
    backend_of,
    promote,
    promote_mask,
    refuse_none,
    with_numpy_constants,
)

F = TypeVar("F", bound=Function)
R = TypeVar("R")


def double_where(
    xp: Namespace,
    cond: Array,
    args: Sequence[Array],
    on_true: Any,
    on_false: Any,
    placeholder: Any = 1.0,
) -> Array:
    """Same as ``on_true(*args) if cond else on_false(*args)``, elementwise, gradients included."""
    # A branch that is not a function is the value itself. Neither branch sees the entries of the
    # other branch: it gets `placeholder` there, one number for all arguments or a tuple with one
    # number for each argument.
    if on_true is None or on_false is None:
        msg = "expected a number or an array as fill_value, got None"
        raise TypeError(msg)
    each = placeholder if isinstance(placeholder, tuple) else (placeholder,) * len(args)
    taken = _on_true(xp, cond, args, on_true, each)
    return xp.where(cond, taken, _on_false(xp, cond, args, on_false, each))


def _on_true(xp: Namespace, cond: Array, args: Sequence[Any], branch: Any, each: Any) -> Any:
    if not callable(branch):
        return branch
    return branch(*(_guard(xp, cond, x, x, p) for x, p in zip(args, each, strict=True)))


def _on_false(xp: Namespace, cond: Array, args: Sequence[Any], branch: Any, each: Any) -> Any:
    # Not _on_true with logical_not(cond): TensorFlow's Grappler rewrites not (x <= 0) as x > 0,
    # and the two differ for NaN (2.21).
    if not callable(branch):
        return branch
    return branch(*(_guard(xp, cond, x, p, x) for x, p in zip(args, each, strict=True)))


def _guard(xp: Namespace, cond: Array, x: Any, if_true: Any, if_false: Any) -> Any:
    """Leave Python scalars as they are: they have no gradient to protect, and no placeholder."""
    alone = isinstance(x, SCALARS) and if_true is if_false  # an np.float64 is a Python float too
    return x if alone else xp.where(cond, if_true, if_false)


def is_nan(x: Array) -> Array:
    """Whether each entry is NaN. Inductor of PyTorch 2.13 calls `isnan` and `isinf` one by one."""
    return x != x  # noqa: PLR0124  (True at NaN alone)


def is_inf(xp: Namespace, x: Array) -> Array:
    """Whether each real entry is infinite."""
    return xp.abs(x) == math.inf


@errors_name_function
def stop_gradient(x: T, /) -> T:
    """
    The value of `x`, as a constant: every derivative through it is 0.

    Same as ``x``.

    Parameters
    ----------
    x : array, shape (...), any dtype
        Any value.

    Returns
    -------
    array, shape (...)
        `x` itself where the framework has no derivatives, else a detached view.

    Notes
    -----
    **Gradient.** 0 in every mode and order.

    **Source.** `torch.Tensor.detach`, `jax.lax.stop_gradient`, `tf.stop_gradient`.

    Examples
    --------
    >>> import numpy as np
    >>> stop_gradient(np.asarray([1.0, 2.0]))
    array([1., 2.])
    """
    backend = backend_of(x)
    if _is_array(x):
        backend.check(x)
    return backend.stop_gradient(x)


@errors_name_function
def safe_where(
    cond: Condition,
    args: IsArray | complex | tuple[IsArray | complex, ...],
    f1: Callable[..., T | complex],
    f2: Callable[..., T | complex] | None = None,
    /,
    *,
    fill_value: IsArray | complex | None = None,
    placeholder: Any = None,
) -> T:
    """
    `f1` where `cond`, elsewhere `f2` or `fill_value`; the branch not taken has gradient 0.

    Same as ``f1(*args) if cond else (f2(*args) or fill_value)``, elementwise. A call of
    `array_api_extra.apply_where` means the same here.

    Parameters
    ----------
    cond : array, shape (...), boolean
        True where `f1` supplies the value. Must broadcast against `args`.
    args : array or tuple of arrays, shape (...), any dtype
        Arguments of `f1` and `f2`. Python scalars are passed on unchanged.
    f1, f2 : callable
        Elementwise functions of the arguments. Give exactly one of `f2` and `fill_value`.
    fill_value : scalar or array, optional
        Value where `cond` is False. An array has its own gradient there.
    placeholder : scalar, array or tuple, optional
        What a branch sees in entries that it does not supply: a point of its domain, one number
        for all arguments or a tuple with one number for each argument. Default: the argument
        itself, as a constant. With the default, gradients with respect to `args` are right
        whatever the branch does there. To protect also what the branch closes over (parameters),
        or to keep NaN detectors silent, give a number at which the branch is finite.

    Raises
    ------
    TypeError
        If not exactly one of `f2` and `fill_value` is given.

    Notes
    -----
    **Gradient.** The gradient of the branch taken; 0 to `args` from the other branch, at every
    order. NumPy has no gradients. Without a placeholder, floating-point warnings are silenced on
    NumPy, because entries not taken would raise them.

    **Source.** Double where: TensorFlow Probability's `where` note; the signature is the one of
    `array_api_extra.apply_where`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([4.0, 0.0])
    >>> safe_where(x > 0, x, lambda x: 1 / x, fill_value=0)
    array([0.25, 0.  ])
    """
    require_function("f1", f1)
    require_function("f2", f2)
    if (f2 is None) == (fill_value is None):
        given = "none" if f2 is None else "both"
        msg = f"expected one of f2 and fill_value, the value where cond is False, got {given}"
        raise TypeError(msg)
    operands = args if isinstance(args, tuple) else (args,)
    backend, cond, operands, (fill,) = _enter_branches(cond, operands, (fill_value,))
    each = _placeholders(backend, operands, placeholder)
    other = _materialise(backend, fill, cond) if f2 is None else f2
    with _quiet(backend, placeholder):
        return double_where(backend.xp, cond, operands, _one_array(f1), _one_array(other), each)


@errors_name_function
def vectorized_cond(
    pred: Condition,
    true_fun: Callable[..., R],
    false_fun: Callable[..., R],
    /,
    *operands: IsArray | complex,
    placeholder: Any = None,
) -> R:
    """
    `true_fun` where `pred`, elsewhere `false_fun`; the branch not taken has gradient 0.

    Same as ``true_fun(*operands) if pred else false_fun(*operands)``, elementwise: the argument
    order of `jax.lax.cond`.

    Parameters
    ----------
    pred : array, shape (...), boolean
        True where `true_fun` supplies the value.
    true_fun, false_fun : callable
        Elementwise functions of all operands. Each may return a tuple, list or dict of arrays, if
        both return the same structure.
    *operands : array, shape (...), any dtype
        Broadcast against each other and `pred` before a branch sees them. Python scalars are
        passed on unchanged.
    placeholder : scalar, array or pair, optional
        What a branch sees in entries that it does not supply, as in `safe_where`. A pair has one
        placeholder for `true_fun` and one for `false_fun`.

    Returns
    -------
    array, or tuple, list or dict of arrays
        The structure that the branches return.

    Raises
    ------
    TypeError
        If the branches return different structures.

    Notes
    -----
    **Gradient.** The gradient of the branch taken; 0 to `operands` from the other branch, at every
    order.

    **Source.** `jax.lax.cond`, made elementwise by a double where.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([4.0, 0.0])
    >>> vectorized_cond(x > 0, lambda x: 1 / x, lambda x: x - 1, x)
    array([ 0.25, -1.  ])
    """
    require_function("true_fun", true_fun)
    require_function("false_fun", false_fun)
    backend, cond, operands, _ = _enter_branches(pred, operands, ())
    xp = backend.xp
    in_true, in_false = _pair(placeholder)
    with _quiet(backend, in_true, in_false):
        each = _placeholders(backend, operands, in_true)
        taken = _on_true(xp, cond, operands, true_fun, each)
        each = _placeholders(backend, operands, in_false)
        other = _on_false(xp, cond, operands, false_fun, each)
        return _map_leaves(lambda a, b: xp.where(cond, a, b), taken, other)


@errors_name_function
def make_safe(f: F, domain: Function, /, *, placeholder: Any, fill_value: IsArray | complex) -> F:
    """
    Turn an elementwise function into a safe one: `fill_value`, gradient 0, outside `domain`.

    Same as ``f(*args) if domain(*args) else fill_value``, elementwise; NaN stays NaN.

    Parameters
    ----------
    f : callable
        Elementwise function of one or more arrays.
    domain : callable
        Boolean function of the same arrays, True where `f` and its derivatives are finite.
    placeholder : scalar or tuple
        A point of the domain: one number for all arguments, or a tuple with one number for each.
    fill_value : scalar or array
        Value outside the domain.

    Returns
    -------
    callable
        Function of arrays, shape (...), real or complex floating, promoted to one dtype. A NaN in
        any argument reaches `f`, whether `domain` is True there or not.

    Notes
    -----
    **Gradient.** The gradient of `f` inside the domain, 0 outside, at every order.

    **Source.** Double where, with the placeholder in the domain: the operations of this library
    are made in the same way.

    Examples
    --------
    >>> import numpy as np
    >>> log = make_safe(np.log, lambda x: x > 0, placeholder=1.0, fill_value=0.0)
    >>> log(np.asarray([1.0, 0.0, np.nan]))
    array([ 0.,  0., nan])
    """
    require_function("f", f)
    require_function("domain", domain)
    return cast("F", _Safe(f, domain, placeholder, fill_value))  # with the signature of f


# Not its annotations: Dynamo asks for those of functions of C too, which have none (torch 2.9).
NAMED = ("__module__", "__name__", "__qualname__", "__doc__")


class _Safe:
    """A function made safe: an object, so that it can be pickled if its parts can."""

    def __init__(self, f: Function, domain: Function, placeholder: Any, fill_value: Any) -> None:
        self.f, self.domain = f, domain
        self.placeholder, self.fill_value = placeholder, fill_value
        update_wrapper(self, f, assigned=NAMED, updated=())

    def __call__(self, *args: Array, **named: Array) -> Array:
        """Return `f` inside the domain and where an argument is NaN, else the fill."""
        try:
            return as_result(self._value(args, named))
        except (TypeError, ValueError) as error:
            name_function_in(error, self, args, named)
            raise

    def _value(self, args: tuple[Array, ...], named: dict[str, Array]) -> Array:
        if named:
            msg = f"expected arrays by position, got {', '.join(named)} by name; drop the name"
            raise TypeError(msg)
        args, also = with_numpy_constants(args, {"fill_value": self.fill_value})
        xp, *rest = promote(*args, also=tuple(also.values()), complex_too=True)
        *arrays, fill = rest
        kept = promote_mask(self.domain(*arrays), arrays[0])
        for x in arrays:
            kept = xp.logical_or(kept, is_nan(x))
        backend = backend_of(*arrays)
        each = _placeholders(backend, arrays, self.placeholder)
        with _quiet(backend, self.placeholder):
            return double_where(xp, kept, arrays, self.f, fill, each)

    def __repr__(self) -> str:
        return f"make_safe({getattr(self, '__name__', self.f)})"


def _enter_branches(
    cond: Any, operands: tuple[Any, ...], also: tuple[Any, ...]
) -> tuple[ArrayAPI, Array, tuple[Any, ...], tuple[Any, ...]]:
    """Return the backend, and `cond`, `operands` and `also` as arrays of that backend."""
    # Each array keeps its own dtype. The condition is broadcast to the common shape of all
    # operands: so the arguments of a branch and the result have that shape, even if the branch
    # drops an operand.
    backend = backend_of(cond, *operands, *also)
    refuse_none(operands)
    (cond, *rest), _ = with_numpy_constants((cond, *operands, *also), {})
    operands, also = tuple(rest[: len(operands)]), tuple(rest[len(operands) :])
    # Without an array there is an np.float64, which is a Python float too; any argument will do.
    like = ([x for x in (cond, *operands, *also) if _is_array(x)] or [cond])[0]
    cond = promote_mask(cond, like)
    if cond is None:
        msg = "expected a boolean array (True = keep), got None as cond"
        raise TypeError(msg)
    for x in operands:
        if _is_array(x):
            backend.check(x)
    owned = ((x, _is_array(x) or backend.owns(x)) for x in operands)  # NumPy owns np.float64
    operands = tuple(backend.cast(x, x.dtype, x) if own else x for x, own in owned)
    arrays = (x for x in operands if _is_array(x))
    return backend, backend.xp.broadcast_arrays(cond, *arrays)[0], operands, also


def _placeholders(backend: ArrayAPI, operands: Sequence[Any], placeholder: Any) -> tuple[Any, ...]:
    """Return for each operand what a branch sees in the entries that it does not supply."""
    each = placeholder if isinstance(placeholder, tuple) else (placeholder,) * len(operands)
    if len(each) != len(operands):
        msg = f"expected a placeholder for each of {len(operands)} arguments, got {len(each)}"
        raise ValueError(msg)
    return tuple(_fitting(backend, p, x) for p, x in zip(each, operands, strict=True))


def _fitting(backend: ArrayAPI, placeholder: Any, x: Any) -> Any:
    """Return a placeholder in the dtype of its operand; None means the operand as a constant."""
    if not _is_array(x):
        return x
    if placeholder is None:
        return backend.stop_gradient(x)
    backend_of(placeholder, x)
    placeholder = with_numpy_constants((placeholder, x), {})[0][0]
    if _is_array(placeholder):
        backend.check(placeholder)
    if _width(placeholder) > _width(x):
        given = dtype_name(placeholder.dtype) if _is_array(placeholder) else placeholder
        msg = f"expected a placeholder that fits the dtype {dtype_name(x.dtype)}, got {given}"
        raise TypeError(msg)
    if isinstance(placeholder, SCALARS) and _width(x) == 0:  # TensorFlow casts no 1.0 to an integer
        placeholder = bool(placeholder) if dtype_name(x.dtype) == "bool" else int(placeholder.real)
    return backend.cast(placeholder, x.dtype, x)


def _width(x: Any) -> int:
    """Return 0 for an integer, 1 for a real number, 2 for a complex number."""
    if isinstance(x, SCALARS):
        whole = isinstance(x, int) or (isinstance(x, float) and x.is_integer())
        return 2 if isinstance(x, complex) else 0 if whole else 1
    name = dtype_name(x.dtype)
    return 2 if name in COMPLEX else 0 if name in INTEGER else 1


def _materialise(backend: ArrayAPI, fill_value: Any, like: Array) -> Any:
    """Return a fill value for `where`: Python scalars stay weak."""
    if isinstance(fill_value, SCALARS):
        return fill_value
    backend.check(fill_value)
    return backend.cast(fill_value, fill_value.dtype, like)


def require_function(name: str, f: Any) -> None:
    """Raise TypeError for an array in place of a function, and say why it will not do."""
    if f is None and name == "f2":
        return
    if callable(f):
        return
    msg = f"expected a function as {name}, got {type(f).__name__}; "
    if name == "f2" and isinstance(f, SCALARS):
        msg += f"a number goes to fill_value={f!r}"
    else:
        msg += (
            "an array computed beforehand cannot be protected: its NaN slopes are on the tape "
            "already, so pass the function that makes it"
        )
    if name == "f1":
        msg += ", the f of safe_where(cond, x, f, fill_value=0.0)"
    raise TypeError(msg)


def _one_array(branch: Any) -> Any:
    """Return a branch that may return one array only; a value, which is no function, as it is."""
    if not callable(branch):
        return branch

    def checked(*args: Array) -> Array:
        value = branch(*args)
        if isinstance(value, (tuple, list, dict, type(None))):
            kind = type(value).__name__
            msg = f"expected a branch that returns one array, got {kind}; use vectorized_cond"
            raise TypeError(msg)
        return value

    return checked


def _pair(placeholder: Any) -> tuple[Any, Any]:
    if not isinstance(placeholder, tuple):
        return placeholder, placeholder
    if len(placeholder) != 2:  # noqa: PLR2004  (a pair)
        msg = f"expected a pair of placeholders, one for each branch, got {len(placeholder)}"
        raise ValueError(msg)
    return placeholder


def _quiet(backend: ArrayAPI, *placeholders: Any) -> AbstractContextManager[Any]:
    """Silence warnings if there is no placeholder: then a branch sees entries not taken."""
    every = [q for p in placeholders for q in (p if isinstance(p, tuple) else (p,))]
    return backend.quiet() if any(p is None for p in every) else nullcontext()


def _is_array(x: Any) -> bool:
    return x is not None and not isinstance(x, SCALARS)


def _map_leaves(select: Function, a: Any, b: Any) -> Any:
    """Apply `select` to the arrays of two equal structures."""
    if not isinstance(a, (tuple, list, dict)) and not isinstance(b, (tuple, list, dict)):
        return select(a, b)
    if type(a) is not type(b) or len(a) != len(b) or (isinstance(a, dict) and a.keys() != b.keys()):
        msg = f"expected branches that return one structure, got {_shape(a)} and {_shape(b)}"
        raise TypeError(msg)
    if isinstance(a, dict):
        return {key: _map_leaves(select, a[key], b[key]) for key in a}
    leaves = [_map_leaves(select, x, y) for x, y in zip(a, b, strict=True)]
    return type(a)(*leaves) if hasattr(a, "_fields") else type(a)(leaves)


def _shape(tree: Any) -> str:
    if isinstance(tree, dict):
        return f"dict with keys {sorted(map(str, tree))}"
    size = f" of {len(tree)}" if isinstance(tree, (tuple, list)) else ""
    return f"{type(tree).__name__}{size}"
