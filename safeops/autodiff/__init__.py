"""
Masked autodiff: derivatives in which an entry that nothing selected is absent, and not zero.

Unroll an array program into scalars, and let a scalar tape visit only the scalars that the output
reaches. The masked gradient is the gradient of that tape. Ordinary autodiff on arrays differs in
one way: it sends 0.0 down the paths that nothing selected, and ``0.0 * inf`` is NaN. Masked
autodiff sends *absent* there. Absent times anything is absent; absent plus a number is the number.
A numeric zero is not absent: ``0.0 * log(x)`` at 0 stays NaN, and so does ``sqrt(x) ** 2``.

The framework builds its backward pass as before. The backward pass is linear in the cotangent and
made of few operations. It is evaluated over pairs: a value, and the mask of its active entries.

==============  ==============================================  ===============================
class           operations                                      active in the result
==============  ==============================================  ===============================
transport       reshape, slice, gather, concatenate, pad        the same move of the mask
same            negation, conversion                            as before
add             addition                                        where either operand is
total           sums, cumulative sums, scatter-add              where any summand is
select          where                                           the mask of the chosen operand
scale           product with a coefficient, which counts as 1   as before
                beside an absent entry
contract        matrix products, convolutions                   where any factor is
control flow    calls, loops, branches                          masks are carried along
unknown         the rest, run as it is, with a warning          everywhere: nothing is hidden
==============  ==============================================  ===============================

Choosers (max, min, sort, median) select as well, although frameworks differentiate some of them by
multiplying with 0 or 1: the loser is absent, and ties share the cotangent. Multiplication by a 0/1
mask is a product, not a selection.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from safeops import _doors
from safeops._core.types import Array
from safeops.autodiff._explain.finding import Finding
from safeops.autodiff._explain.report import Report
from safeops.autodiff._options import UnknownOperationWarning

if TYPE_CHECKING:
    from safeops.autodiff import jax as jax
    from safeops.autodiff import tensorflow as tensorflow
    from safeops.autodiff import torch as torch

__all__ = ["Finding", "Report", "UnknownOperationWarning", "explain", "grad"]

WITH_AUTODIFF = ("jax", "tensorflow", "torch")


def grad(
    f: Callable[..., Array], argnums: int | Sequence[int] = 0, *, return_mask: bool = False
) -> Callable[..., Any]:
    """
    Masked gradient of a scalar function, in the framework of its arguments.

    Parameters
    ----------
    f : callable
        Function of arrays to a real scalar.
    argnums : int or sequence of ints, default: 0
        Arguments to differentiate with respect to.
    return_mask : bool, default: False
        Whether to return where the gradient is active as well.

    Returns
    -------
    callable
        Function of the arguments of `f` to the gradient, or to a pair of gradient and mask.

    Raises
    ------
    TypeError
        From the result: if the arguments are of a framework without masked autodiff.

    Notes
    -----
    **Gradient.** The gradient of a scalar tape, which visits only what the output reaches.

    **Source.** JAX issue 1052, PyTorch issue 4132.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> grad(lambda x: jnp.where(x > 0, jnp.log(x), 0.0).sum())(jnp.asarray([0.0, 2.0]))
    Array([0. , 0.5], dtype=float32)
    """
    require_function(f, "grad(f)(x)")

    @cache  # in TensorFlow it holds what it has traced
    def gradient_in(name: str) -> Callable[..., Any]:
        masked: Any = _doors.module(__name__, name)  # the framework is imported when met
        if name == "torch":  # whose `grad` takes tensors, and no function
            both = masked.value_and_grad(f, argnums, return_mask=return_mask)
            return lambda *args, **kwargs: both(*args, **kwargs)[1]
        gradient: Callable[..., Any] = masked.grad(f, argnums, return_mask=return_mask)
        return gradient

    return lambda *args, **kwargs: gradient_in(framework_of(args))(*args, **kwargs)


def explain(
    f: Callable[..., Array], *args: Any, argnums: int | Sequence[int] = 0, interim: bool = False
) -> Report:
    """
    Which line of a function makes its gradient NaN, and whether the entries concerned are used.

    Parameters
    ----------
    f : callable
        Function of arrays to a real scalar.
    *args : any
        Its arguments: arrays, or tuples, lists and dicts of them, and Python numbers beside them.
    argnums : int or sequence of ints, default: 0
        Arguments to differentiate with respect to.
    interim : bool, default: False
        Whether each operation that makes inf or NaN out of finite numbers is a finding too, of the
        kind INTERIM, also if nothing uses them and value and gradient are finite. A number that is
        given as -inf, as in a mask, may be one or not.

    Returns
    -------
    Report
        A list of findings; ``str`` of it is the text. A finding is BLOCKED if entries that nothing
        uses meet an infinite or NaN derivative, GENUINE if used entries do, FORWARD if the value
        itself is not finite, UNKNOWN if an operation has no rule.

    Raises
    ------
    TypeError
        If there is no array in the arguments, or their framework has no masked autodiff.

    Notes
    -----
    **Gradient.** None is changed, and none is returned.

    **Source.** `jax_debug_nans` and `torch.autograd.detect_anomaly`, which name the first operation
    that made a NaN, used or not.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> report = explain(lambda x: jnp.where(x > 0, jnp.log(x), 0.0).sum(), jnp.asarray([0.0, 2.0]))
    >>> [(finding.kind, finding.operation, finding.selection) for finding in report.findings]
    [('BLOCKED', 'log', 'where')]
    """
    require_function(f, "explain(f, x)")
    explain_in = _doors.module(__name__, framework_of(args)).explain
    report: Report = explain_in(f, *args, argnums=argnums, interim=interim)
    return report


def require_function(f: Any, call: str) -> None:
    """Raise TypeError for what is no function, such as a loss that is computed already."""
    if not callable(f):
        kind = type(f).__name__
        msg = f"expected a function, got {kind}; pass the function that computes the loss: {call}"
        raise TypeError(msg)


def framework_of(args: Sequence[Any]) -> str:
    """Return the framework of the arrays in arguments; NumPy arrays count as constants."""
    names = {name for x in leaves_of(args) if (name := name_of(x))}
    found = sorted(names - {"numpy"} or names)
    if not found:
        kinds = ", ".join(type(x).__name__ for x in args) or "no argument"
        msg = (
            "expected an array of jax, torch or tensorflow in the arguments, also in a dict, list "
            f"or tuple, got {kinds}; to differentiate Python floats, use safeops.autodiff.jax"
        )
        raise TypeError(msg)
    if len(found) > 1:
        msg = f"expected arrays of one framework, got arrays of {' and '.join(found)}"
        raise TypeError(msg)
    if found[0] not in WITH_AUTODIFF:
        msg = f"expected arrays of jax, torch or tensorflow, got {found[0]}, which has no autodiff"
        raise TypeError(msg)
    return found[0]


def leaves_of(x: Any) -> Iterator[Any]:
    """Yield the leaves of a nested dict, list, tuple or dataclass."""
    if isinstance(x, Mapping):
        x = x.values()
    elif is_dataclass(x) and not isinstance(x, type):
        x = [getattr(x, field.name, None) for field in fields(x)]
    elif not isinstance(x, list | tuple):
        yield x
        return
    for part in x:
        yield from leaves_of(part)


def name_of(x: Any) -> str:
    """Return the name of an array's framework; "" for anything else."""
    from safeops._dispatch import backend_of  # noqa: PLC0415  (lint, which needs no arrays, is quick)

    try:
        return str(backend_of(x).name)
    except TypeError:
        return ""


_doors.show("safeops.autodiff", __all__, globals())


if not TYPE_CHECKING:  # else every name would be one of this module
    __getattr__ = _doors.below(__name__, WITH_AUTODIFF)


def __dir__() -> list[str]:
    """List what is public, for completion, and the modules of frameworks that are installed."""
    return [*__all__, *filter(find_spec, WITH_AUTODIFF)]
