"""
Masked autodiff for JAX: JAX's own transformations, in which what was never used is absent.

`jax.vjp` builds the backward pass, a linear program, and that is run over pairs of a value and what
of it is active. The result is plain JAX: it can be compiled, mapped, sharded, rematerialised and
differentiated again, by itself.

Beside the classes of `safeops.autodiff` there are, in the backward pass of a custom_vjp, which is
any program, and in solvers:

- a constant that is added to a cotangent, or selected in its place: active, unless the text of the
  program makes it 0 (``jnp.where(cond, g, 0.0)`` selects, and so do ``g.at[0].set(0.0)`` and zeros
  that a cotangent is written into; ``g + 0.0 * x`` is a number). JAX's own transposes write the
  same. So where a backward pass says by a literal 0 that an entry does not count, a NaN behind that
  is 0 too: write ``g * mask`` for a number. A 0 of Python or NumPy that a backward pass takes from
  around it is a literal too; one that is an argument of the function, or an array of JAX, is not;
- functions that are not linear: absent entries enter as 0, and a result is absent if the function
  is 0 at 0 (abs, tanh, clipping that leaves 0 as it is), else a number; truths are coefficients;
- products and quotients of two cotangents: absent times anything is absent;
- solutions, triangular, tridiagonal or by any solver of `lax.custom_linear_solve`, and Fourier
  transforms: all entries that are mixed are active if one is, and one system of a batch, or one
  right-hand side, does not spoil another. Inverses, determinants, factorisations (LU, QR, Cholesky)
  and matrix exponentials are differentiated through these;
- three operations of equinox (`select_if_vmap`, `vprim`, `nondifferentiable_backward`) and one of
  lineax (`linear_solve`), by name.

What has no rule (sparse products, callbacks, kernels of one's own, top_k of a cotangent) runs as it
is, with a warning even if all that comes in is active: it may drop entries by itself.
Forward mode takes the rules of custom_jvp to be linear, as JAX demands.

In `shard_map`, a branch of `lax.cond` that devices take differently must hold no collective, nor a
use of a replicated value, whose derivative is a sum over devices. JAX itself hangs there, or has a
wrong gradient (0.10.2), and this module hangs; where all devices take the same branch both work.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from safeops.autodiff._explain.report import Report
from safeops.autodiff._options import UnknownOperationWarning, check_options
from safeops.autodiff.jax._choosers import selecting
from safeops.autodiff.jax._explain.passes import explained_call
from safeops.autodiff.jax._pairs import Options
from safeops.autodiff.jax._passes import (
    as_array,
    basis_of,
    check_inputs,
    check_output,
    cut,
    lazily,
    run_linear,
    with_argument,
)
from safeops.autodiff.jax._tables import RULES

__all__ = [
    "UnknownOperationWarning",
    "explain",
    "grad",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "value_and_grad",
    "vjp",
]


def vjp(
    fun: Callable[..., Any],
    *primals: Any,
    has_aux: bool = False,
    return_mask: bool = False,
    exact: bool = False,
    lazy: bool = False,
    on_unknown: str = "warn",
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
        was never used.
    exact : bool, default: False
        Whether a matrix product keeps a coefficient that is not finite from the absent entries of
        a contraction that also has active ones. Default: such a product stays NaN.
    lazy : bool, default: False
        Whether to take the ordinary gradient, and the masked one only if that is not finite: on
        all devices of a `shard_map` or `pmap` if it is not on one of them.
    on_unknown : {"warn", "error", "ignore"}, default: "warn"
        What to do about an operation without a rule, which may meet absent entries or leave some
        out. It runs as it is, which hides nothing.

    Returns
    -------
    value : pytree
        ``fun(*primals)``.
    pullback : callable
        From a cotangent in the shape of `value`, of which all entries count as active, to a tuple
        of gradients, or to a pair of gradients and masks.
    aux : pytree
        Only with `has_aux`.

    Raises
    ------
    ValueError
        If `on_unknown` is none of the three, or `lazy` and `return_mask` are both given.

    Notes
    -----
    **Gradient.** That of a scalar tape, which visits only what the output reaches. Where that of
    `jax.vjp` is finite, the two are equal.

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
    # A number of Python would be a literal of the backward pass, and look like one of its text.
    primals = jax.tree.map(as_array, primals)
    value, pullback, *aux = jax.vjp(selecting(fun), *primals, has_aux=has_aux)

    def masked(cotangent: Any) -> Any:
        if lazy:
            again = partial(vjp, fun, *primals, has_aux=has_aux, exact=exact, on_unknown=on_unknown)
            return lazily(pullback(cotangent), lambda: again()[1](cotangent))
        gradients, masks = run_linear(pullback, (cotangent,), how)
        return (gradients, masks) if return_mask else gradients

    return value, masked, *aux


def _options(*, exact: bool, on_unknown: str) -> Options:
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
    on_unknown: str = "warn",
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
        Whether integers may be differentiated with respect to; their gradient has dtype float0.
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
        If the value is no real scalar, or an argument has integers without `allow_int`.

    Notes
    -----
    **Gradient.** As for `vjp`.

    **Source.** `jax.value_and_grad`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> value_and_grad(lambda x: jnp.stack([x, 1 / x])[0])(0.0)
    (Array(0., dtype=float32, weak_type=True), Array(1., dtype=float32, weak_type=True))
    """
    one = isinstance(argnums, int)
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    pull = partial(
        vjp, return_mask=return_mask, exact=exact, lazy=lazy, on_unknown=on_unknown, has_aux=has_aux
    )

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        places = [i % len(args) for i in numbers]
        chosen = [args[i] for i in places]
        check_inputs(chosen, allow_int=allow_int)

        def of_chosen(*chosen: Any) -> Any:
            every = list(args)
            for i, x in zip(places, chosen, strict=True):
                every[i] = x
            return fun(*every, **kwargs)

        value, pullback, *aux = pull(of_chosen, *chosen)
        check_output(value)
        found = pullback(jnp.ones_like(value))
        if return_mask:
            found = tuple(x[0] for x in found) if one else found
        else:
            found = found[0] if one else found
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
    on_unknown: str = "warn",
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
    **Gradient.** As for `vjp`. Take it twice for second derivatives: `jax.grad` of it has absent
    entries as zeros again, in its own pass.

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


def jvp(
    fun: Callable[..., Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    return_mask: bool = False,
    exact: bool = False,
    on_unknown: str = "warn",
) -> tuple[Any, Any]:
    """
    `jax.jvp`, in which what does not depend on the input is absent, and not 0.

    Parameters
    ----------
    fun : callable
        Function of arrays or pytrees.
    primals, tangents : sequence of pytrees
        Where to take the derivative, and the direction, of which all entries count as active.
    return_mask, exact, on_unknown
        As for `vjp`.

    Returns
    -------
    tuple
        ``fun(*primals)`` and its derivative in the direction, the latter ``(tangent, mask)`` with
        `return_mask`.

    Notes
    -----
    **Gradient.** Equal to that of `vjp`, entry by entry.

    **Source.** `jax.jvp`, by `jax.linearize`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> jvp(lambda x: jnp.where(x > 0, jnp.log(x), 0.0), (2.0,), (1.0,))[1]
    Array(0.5, dtype=float32, weak_type=True)
    """
    how = _options(exact=exact, on_unknown=on_unknown)
    value, linear = jax.linearize(selecting(fun), *primals)
    tangent, mask = run_linear(linear, tuple(tangents), how, forward=True)
    return value, (tangent, mask) if return_mask else tangent


def jacrev(
    fun: Callable[..., Any], argnums: int = 0, *, exact: bool = False, on_unknown: str = "warn"
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
    **Gradient.** As for `vjp`; each row is taken with the other outputs absent.

    **Source.** `jax.jacrev`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> jacrev(lambda x: jnp.stack([x, jnp.where(x > 0, jnp.sqrt(x), 0.0)]))(0.0)
    Array([1., 0.], dtype=float32, weak_type=True)
    """
    options = _options(exact=exact, on_unknown=on_unknown)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        chosen = partial(with_argument, fun, args, kwargs, argnums)
        value, pullback = jax.vjp(selecting(chosen), args[argnums])
        leaves, tree = jax.tree.flatten(value)
        basis, masks = basis_of(leaves)

        def row(cotangent: Any, mask: Any) -> Any:
            return run_linear(pullback, (jax.tree.unflatten(tree, cotangent),), options, mask)[0][0]

        rows = jax.vmap(row)(basis, masks)
        return jax.tree.unflatten(tree, cut(rows, leaves, first=True))

    return wrapped


def jacfwd(
    fun: Callable[..., Any], argnums: int = 0, *, exact: bool = False, on_unknown: str = "warn"
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
    **Gradient.** As for `jvp`; each column is taken with the other inputs absent.

    **Source.** `jax.jacfwd`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> jacfwd(lambda x: jnp.stack([x, jnp.where(x > 0, jnp.sqrt(x), 0.0)]))(0.0)
    Array([1., 0.], dtype=float32, weak_type=True)
    """
    options = _options(exact=exact, on_unknown=on_unknown)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        chosen = partial(with_argument, fun, args, kwargs, argnums)
        _, linear = jax.linearize(selecting(chosen), args[argnums])
        leaves, tree = jax.tree.flatten(args[argnums])
        basis, masks = basis_of(leaves)

        def column(tangent: Any, mask: Any) -> Any:
            tangents = (jax.tree.unflatten(tree, tangent),)
            return run_linear(linear, tangents, options, mask, forward=True)[0]

        columns = jax.vmap(column, out_axes=-1)(basis, masks)
        return jax.tree.map(
            lambda x: jax.tree.unflatten(tree, cut(x, leaves, first=False)), columns
        )

    return wrapped


def hessian(
    fun: Callable[..., Any], argnums: int = 0, *, exact: bool = False, on_unknown: str = "warn"
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
    Array(0., dtype=float32, weak_type=True)
    """
    first = jacrev(fun, argnums, exact=exact, on_unknown=on_unknown)
    return jacfwd(first, argnums, exact=exact, on_unknown=on_unknown)


def explain(
    f: Callable[..., Any],
    *args: Any,
    argnums: int | Sequence[int] = 0,
    limit: float = 20.0,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """
    Say which line makes a gradient not finite, and whether the program or the mathematics does.

    Parameters
    ----------
    f : callable
        Function of arrays or pytrees to a real scalar.
    *args : pytree of arrays
        Where to take the gradient.
    argnums : int or sequence of ints, default: 0
        Arguments to differentiate with respect to.
    limit : float, default: 20.0
        For how many times as long as the gradient itself took, tracing and compiling included, and
        a second at least, loops are run step by step. A loop that is cut off counts as one
        operation: the report says so, and that it is UNKNOWN what is in it. Loops in which all is
        finite are not run so.
    progress : callable, optional
        Called with a text each second in such a loop, as `print` may be.

    Returns
    -------
    Report
        Findings, each with a kind, an operation, its line, and what to do. It is clean if value
        and gradient are finite.

    Raises
    ------
    TypeError
        If the value is no real scalar, an argument has integers, or this is called in a function
        that JAX traces.

    Notes
    -----
    **Gradient.** Nothing changes in it: the ordinary one is taken, and if that is not finite the
    masked one, which says what was never used. Then `f` runs three times; callbacks are called
    once, and the later runs get what they returned.

    **Source.** JAX issue 1052.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> report = explain(lambda x: jnp.where(x > 0, jnp.log(x), 0.0).sum(), jnp.asarray([0.0, 2.0]))
    >>> [(finding.kind, finding.operation, finding.selection) for finding in report.findings]
    [('BLOCKED', 'log', 'where')]
    """
    return explained_call(f, args, argnums, limit, progress)
