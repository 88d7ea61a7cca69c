"""
Masked autodiff for JAX: JAX's own transformations, in which an entry that nothing used is absent.

`jax.vjp` builds the backward pass, a linear program. This module runs it over pairs of a value and
the mask of its active entries. The result is plain JAX: it can be compiled, mapped, sharded,
rematerialised, and differentiated again by this module.

The backward pass of a custom_vjp is any program, and so are solvers. For these there are rules
beside the classes of `safeops.autodiff`:

- a constant that is added to a cotangent, or selected in its place, is active, unless it is a
  literal 0 of the program: ``jnp.where(cond, g, 0.0)`` selects, and so do ``g.at[0].set(0.0)`` and
  a write of a cotangent into zeros; ``g + 0.0 * x`` is a number. JAX's own transposes write the
  same. So where a backward pass says by a literal 0 that an entry does not count, a NaN behind that
  entry becomes 0: write ``g * mask`` for a number. A 0 of Python or NumPy from outside the backward
  pass is a literal too; an argument of the function or an array of JAX is not;
- nonlinear functions: absent entries enter as 0, and a result is absent if the function is 0 at 0
  (abs, tanh, clipping that leaves 0 as it is), else a number; booleans are coefficients;
- products and quotients of two cotangents: absent times anything is absent;
- solutions of equations (triangular, tridiagonal, or by any solver of `lax.custom_linear_solve`)
  and Fourier transforms: all entries that are mixed are active if one of them is; the systems of a
  batch are independent, and so are right-hand sides. Inverses, determinants, factorisations (LU,
  QR, Cholesky) and matrix exponentials are differentiated through these;
- three operations of equinox (`select_if_vmap`, `vprim`, `nondifferentiable_backward`) and one of
  lineax (`linear_solve`), by name.

An operation without a rule (sparse products, callbacks, custom kernels, top_k of a cotangent) runs
as it is, with a warning even if all its input is active, as it may drop entries by itself. In
forward mode the rules of custom_jvp are taken to be linear, as JAX demands.

In `shard_map`, a branch of `lax.cond` that devices take differently must contain no collective, and
use no replicated value, whose derivative is a sum over devices. JAX itself hangs there, or returns
a wrong gradient (0.10.2), and this module hangs. Where all devices take the same branch both work.
The derivative of ``lax.pcast(x, axes, to="unreduced")`` or ``to="reduced"`` has no rule, as a mask,
which is no sum, cannot have its type: it runs with that warning, and what is absent there is 0.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from safeops._core.errors import require
from safeops._doors import show

OPERATIONS = "the operations need 0.6 or later"
require("safeops.autodiff.jax", "JAX", jax.__version__, "0.8", also=OPERATIONS)

from safeops.autodiff._explain.report import Report
from safeops.autodiff._options import (
    Reaction,
    UnknownOperationWarning,
    check_options,
    is_one,
    places_of,
)
from safeops.autodiff.jax import _passes as passes
from safeops.autodiff.jax._choosers import selecting
from safeops.autodiff.jax._evaluator import Options
from safeops.autodiff.jax._explain.explanation import explained_call
from safeops.autodiff.jax._redirect import masked_here
from safeops.autodiff.jax._rules import RULES
from safeops.autodiff.jax._watch import watch_grad

__all__ = [
    "UnknownOperationWarning", "explain", "grad", "hessian", "jacfwd", "jacrev", "jvp",
    "masked_grad", "value_and_grad", "vjp", "watch_grad",
]  # fmt: skip


def vjp(
    fun: Callable[..., Any],
    *primals: Any,
    has_aux: bool = False,
    return_mask: bool = False,
    exact: bool = False,
    lazy: bool = False,
    on_unknown: Reaction = "warn",
) -> Any:
    """
    `jax.vjp`, in which an entry that nothing selected is absent, and not 0.

    Parameters
    ----------
    fun : callable
        Function of arrays or pytrees.
    *primals : pytree of arrays
        Where to take the derivative.
    has_aux : bool, default: False
        Whether `fun` returns a pair of the value and something else, which is returned last.
    return_mask : bool, default: False
        Whether the pullback also returns where each gradient is active: a 0 that is not active
        belongs to an unused entry.
    exact : bool, default: False
        Whether a matrix product keeps a coefficient that is not finite from absent entries of a sum
        that also has active entries. Default: such a sum stays NaN.
    lazy : bool, default: False
        Whether to take the ordinary gradient, and the masked one only if the ordinary one is not
        finite, on any of the devices of a `shard_map` or `pmap`.
    on_unknown : {"warn", "error", "ignore"}, default: "warn"
        What to do about an operation without a rule, which may meet absent entries or leave some
        out. It runs as it is, and hides nothing.

    Returns
    -------
    value : pytree
        ``fun(*primals)``.
    pullback : callable
        From a cotangent in the shape of `value`, all of whose entries count as active, to a tuple
        of gradients, or to a pair of gradients and masks.
    aux : pytree
        Only with `has_aux`.

    Raises
    ------
    ValueError
        If `on_unknown` is none of the three, or `lazy` and `return_mask` are both given.

    Notes
    -----
    **Gradient.** The gradient of a scalar tape, which visits only what the output reaches. It
    equals the gradient of `jax.vjp` where that is finite.

    **Source.** JAX issue 1052, "only tracking a symbolic-zero mask through the entire backward
    pass".

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> value, pullback = vjp(lambda x: jnp.where(x > 0, jnp.log(x), 0.0), jnp.asarray([0.0, 2.0]))
    >>> pullback(jnp.ones(2))
    (Array([0. , 0.5], dtype=float32),)
    """
    check_options(on_unknown, lazy=lazy, return_mask=return_mask)
    how = Options(RULES, exact=exact, on_unknown=on_unknown)
    # A Python number would be a literal of the backward pass, as if its program contained it.
    primals = jax.tree.map(passes.as_array, primals)
    value, pullback, *aux = jax.vjp(selecting(fun), *primals, has_aux=has_aux)

    def masked(cotangent: Any) -> Any:
        if lazy:
            again = partial(vjp, fun, *primals, has_aux=has_aux, exact=exact, on_unknown=on_unknown)
            return passes.lazily(pullback(cotangent), lambda: again()[1](cotangent))
        gradients, masks = passes.run_linear(pullback, (cotangent,), how)
        return (gradients, masks) if return_mask else gradients

    return value, masked, *aux


def _options(*, exact: bool, on_unknown: Reaction) -> Options:
    check_options(on_unknown)
    return Options(RULES, exact=exact, on_unknown=on_unknown)


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    allow_int: bool = False,
    return_mask: bool = False,
    exact: bool = False,
    lazy: bool = False,
    on_unknown: Reaction = "warn",
) -> Callable[..., Any]:
    """
    `jax.value_and_grad`, in which an entry that nothing selected is absent, and not 0.

    Parameters
    ----------
    fun : callable
        Function of arrays or pytrees to a real scalar.
    argnums : int or sequence of ints, default: 0
        Arguments to differentiate with respect to.
    has_aux : bool, default: False
        Whether `fun` returns a pair of the value and something else.
    allow_int : bool, default: False
        Whether to accept integer arguments; their gradient has dtype float0.
    return_mask, exact, lazy, on_unknown
        As for `vjp`.

    Returns
    -------
    callable
        Function of the arguments of `fun` to ``(value, gradient)``, ``((value, aux), gradient)``
        with `has_aux`; the gradient is ``(gradient, mask)`` with `return_mask`.

    Raises
    ------
    TypeError
        If the value is not a real scalar, or an argument has integers without `allow_int`.

    Notes
    -----
    **Gradient.** As for `vjp`.

    **Source.** `jax.value_and_grad`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> value_and_grad(lambda x: jnp.stack([x, 1 / x])[0])(0.0)
    (Array(0., dtype=float32, weak_type=True), Array(1., dtype=float32))
    """
    one = is_one(argnums)
    pull = partial(
        vjp, return_mask=return_mask, exact=exact, lazy=lazy, on_unknown=on_unknown, has_aux=has_aux
    )

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        places = places_of(argnums, len(args))
        chosen = [args[i] for i in places]
        passes.check_inputs(chosen, allow_int=allow_int)

        def of_chosen(*chosen: Any) -> Any:
            every = list(args)
            for i, x in zip(places, chosen, strict=True):
                every[i] = x
            return fun(*every, **kwargs)

        value, pullback, *aux = pull(of_chosen, *chosen)
        passes.check_output(value)
        found = pullback(jnp.ones_like(value))
        if one:
            found = tuple(x[0] for x in found) if return_mask else found[0]
        return ((value, aux[0]) if has_aux else value), found

    return wrapped


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    allow_int: bool = False,
    return_mask: bool = False,
    exact: bool = False,
    lazy: bool = False,
    on_unknown: Reaction = "warn",
) -> Callable[..., Any]:
    """
    `jax.grad`, in which an entry that nothing selected is absent, and not 0.

    Parameters
    ----------
    fun, argnums, has_aux, allow_int
        As for `value_and_grad`.
    return_mask, exact, lazy, on_unknown
        As for `vjp`.

    Returns
    -------
    callable
        Function of the arguments of `fun` to the gradient, ``(gradient, aux)`` with `has_aux`.

    Notes
    -----
    **Gradient.** As for `vjp`. Apply it twice for second derivatives: in the pass of `jax.grad`
    over it, absent entries are zeros again.

    **Source.** `jax.grad`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> x = jnp.asarray([0.0, 4.0])
    >>> grad(lambda x: jnp.sqrt(x)[1])(x)
    Array([0.  , 0.25], dtype=float32)
    >>> grad(lambda x: jnp.sqrt(x)[1], return_mask=True)(x)[1]
    Array([False,  True], dtype=bool)
    """
    both = value_and_grad(
        fun,
        argnums,
        has_aux=has_aux,
        allow_int=allow_int,
        return_mask=return_mask,
        exact=exact,
        lazy=lazy,
        on_unknown=on_unknown,
    )

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return wrapped


@contextmanager
def masked_grad(*, on_unknown: Reaction = "warn") -> Iterator[None]:
    """
    Context in which `jax.grad` and `jax.value_and_grad` are masked, for code that calls them.

    Parameters
    ----------
    on_unknown : {"warn", "error", "ignore"}, default: "warn"
        As for `vjp`.

    Yields
    ------
    None

    Raises
    ------
    NotImplementedError
        From ``jax.grad(f, holomorphic=True)``.

    Notes
    -----
    **Gradient.** As for `vjp`. A gradient is masked if the program calls ``jax.grad(f)`` in the
    context, by these names of the module `jax`: ``from jax import grad`` before the context has the
    plain one. A function of `jax.jit` keeps what it was traced with, so trace it in the context; if
    the program has called neither name in any such context so far, a warning says so at its end.
    Gradients that other threads take are plain, and so are those of other tasks of `asyncio`.

    **Source.** `safeops.autodiff.torch.masked_backward`.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> with masked_grad():
    ...     slope = jax.grad(lambda x: jnp.where(x > 0, jnp.log(x), 0.0))(0.0)
    >>> float(slope)
    0.0
    """
    check_options(on_unknown)
    with masked_here({"grad": grad, "value_and_grad": value_and_grad}, on_unknown):
        yield


def jvp(
    fun: Callable[..., Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    return_mask: bool = False,
    exact: bool = False,
    on_unknown: Reaction = "warn",
) -> tuple[Any, Any]:
    """
    `jax.jvp`, in which what does not depend on the input is absent, and not 0.

    Parameters
    ----------
    fun : callable
        Function of arrays or pytrees.
    primals, tangents : sequence of pytrees
        The point, and the direction, all of whose entries count as active.
    return_mask, exact, on_unknown
        As for `vjp`.

    Returns
    -------
    tuple
        ``fun(*primals)`` and its derivative in the direction, the latter ``(tangent, mask)`` with
        `return_mask`.

    Notes
    -----
    **Gradient.** Equal to the derivative by `vjp`, entry by entry.

    **Source.** `jax.jvp`, by `jax.linearize`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> jvp(lambda x: jnp.where(x > 0, jnp.log(x), 0.0), (2.0,), (1.0,))[1]
    Array(0.5, dtype=float32, weak_type=True)
    """
    how = _options(exact=exact, on_unknown=on_unknown)
    value, linear = jax.linearize(selecting(fun), *primals)
    tangent, mask = passes.run_linear(linear, tuple(tangents), how, forward=True)
    return value, (tangent, mask) if return_mask else tangent


def jacrev(
    fun: Callable[..., Any], argnums: int = 0, *, exact: bool = False, on_unknown: Reaction = "warn"
) -> Callable[..., Any]:
    """
    `jax.jacrev`, in which an entry that an output does not depend on is absent, and not 0.

    Parameters
    ----------
    fun : callable
        Function of arrays or pytrees to an array or a pytree.
    argnums : int, default: 0
        Argument to differentiate with respect to.
    exact, on_unknown
        As for `vjp`.

    Returns
    -------
    callable
        Function of the arguments of `fun` to the Jacobian: for each output leaf the structure of
        the argument, in the shape of the output followed by that of the input.

    Notes
    -----
    **Gradient.** As for `vjp`; for each row the other outputs are absent.

    **Source.** `jax.jacrev`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> jacrev(lambda x: jnp.stack([x, jnp.where(x > 0, jnp.sqrt(x), 0.0)]))(0.0)
    Array([1., 0.], dtype=float32)
    """
    options = _options(exact=exact, on_unknown=on_unknown)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        chosen, x = passes.of_one(fun, args, kwargs, argnums)
        value, pullback = jax.vjp(selecting(chosen), x)
        leaves, tree = jax.tree.flatten(value)
        basis, masks = passes.basis_of(leaves)

        def row(cotangent: Any, mask: Any) -> Any:
            return passes.run_linear(
                pullback, (jax.tree.unflatten(tree, cotangent),), options, mask
            )[0][0]

        rows = jax.vmap(row)(basis, masks)
        return jax.tree.unflatten(tree, passes.cut(rows, leaves, first=True))

    return wrapped


def jacfwd(
    fun: Callable[..., Any], argnums: int = 0, *, exact: bool = False, on_unknown: Reaction = "warn"
) -> Callable[..., Any]:
    """
    `jax.jacfwd`, in which what does not depend on an input is absent, and not 0.

    Parameters
    ----------
    fun, argnums
        As for `jacrev`.
    exact, on_unknown
        As for `vjp`.

    Returns
    -------
    callable
        As for `jacrev`.

    Notes
    -----
    **Gradient.** As for `jvp`; for each column the other inputs are absent.

    **Source.** `jax.jacfwd`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> jacfwd(lambda x: jnp.stack([x, jnp.where(x > 0, jnp.sqrt(x), 0.0)]))(0.0)
    Array([1., 0.], dtype=float32)
    """
    options = _options(exact=exact, on_unknown=on_unknown)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        chosen, x = passes.of_one(fun, args, kwargs, argnums)
        _, linear = jax.linearize(selecting(chosen), x)
        leaves, tree = jax.tree.flatten(x)
        basis, masks = passes.basis_of(leaves)

        def column(tangent: Any, mask: Any) -> Any:
            tangents = (jax.tree.unflatten(tree, tangent),)
            return passes.run_linear(linear, tangents, options, mask, forward=True)[0]

        columns = jax.vmap(column, out_axes=-1)(basis, masks)
        return jax.tree.map(
            lambda x: jax.tree.unflatten(tree, passes.cut(x, leaves, first=False)), columns
        )

    return wrapped


def hessian(
    fun: Callable[..., Any], argnums: int = 0, *, exact: bool = False, on_unknown: Reaction = "warn"
) -> Callable[..., Any]:
    """
    `jax.hessian`, masked: `jacfwd` of `jacrev`.

    Parameters
    ----------
    fun, argnums, exact, on_unknown
        As for `jacrev`.

    Returns
    -------
    callable
        Function of the arguments of `fun` to the Hessian.

    Notes
    -----
    **Gradient.** As for `vjp`, in both passes.

    **Source.** `jax.hessian`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> hessian(lambda x: jnp.where(x > 0, x**1.5, 0.0))(0.0)
    Array(0., dtype=float32)
    """
    first = jacrev(fun, argnums, exact=exact, on_unknown=on_unknown)
    return jacfwd(first, argnums, exact=exact, on_unknown=on_unknown)


def explain(
    f: Callable[..., Any],
    *args: Any,
    argnums: int | Sequence[int] = 0,
    limit: float = 20.0,
    progress: Callable[[str], None] | None = None,
    interim: bool = False,
) -> Report:
    """
    Which line of a function makes its gradient not finite, and whether the entries are used.

    Parameters
    ----------
    f : callable
        Function of arrays or pytrees to a real scalar.
    *args : pytree of arrays
        Where to take the gradient.
    argnums : int or sequence of ints, default: 0
        Arguments to differentiate with respect to.
    limit : float, default: 20.0
        How long to run loops step by step: `limit` times the time of the gradient itself, tracing
        and compiling included, and one second at least. A loop that runs out of time counts as one
        operation, reported as UNKNOWN. Loops in which all is finite are not run step by step.
    progress : callable, optional
        Called with a text, each second of such a loop; `print` will do.
    interim : bool, default: False
        As for `safeops.autodiff.explain`.

    Returns
    -------
    Report
        The findings, each with its kind, operation, line and repair. Clean if value and gradient
        are finite.

    Raises
    ------
    TypeError
        If the value is not a real scalar, an argument has integers, or JAX traces the call.

    Notes
    -----
    **Gradient.** None is changed, and none is returned. The ordinary gradient is taken, and, if it
    is not finite, the masked one, which tells the unused entries. Then the operations of
    `f` run again, from a record, and callbacks are not called again: `f` itself runs once, and once
    more for each edit on trial.

    **Source.** JAX issue 1052.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> report = explain(lambda x: jnp.where(x > 0, jnp.log(x), 0.0).sum(), jnp.asarray([0.0, 2.0]))
    >>> [(finding.kind, finding.operation, finding.selection) for finding in report.findings]
    [('BLOCKED', 'log', 'where')]
    """
    return explained_call(f, args, argnums, limit, progress, interim=interim, trial=True)


__dir__ = show("safeops.autodiff.jax", __all__, globals())
