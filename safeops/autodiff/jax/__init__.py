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
  is 0 too: write ``g * mask`` for a number;
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

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from safeops._typing import Array
from safeops.autodiff._explain.evidence import Evidence, Forward, missing, reaching
from safeops.autodiff._explain.report import Finding, Report, counted, make_report, operations
from safeops.autodiff._options import UnknownOperationWarning, check_options
from safeops.autodiff.jax import _contractions as contractions
from safeops.autodiff.jax import _control as control
from safeops.autodiff.jax import _functions as functions
from safeops.autodiff.jax import _linalg as linalg
from safeops.autodiff.jax import _pairs as pairs
from safeops.autodiff.jax._callbacks import Callbacks
from safeops.autodiff.jax._choosers import selecting
from safeops.autodiff.jax._explain.backward import Backward, Marked
from safeops.autodiff.jax._explain.sites import Sites, count_of, named, numbers_of, tagging
from safeops.autodiff.jax._explain.watch import watching
from safeops.autodiff.jax._explain.whole import Looking
from safeops.autodiff.jax._pairs import Mask, Options, Pair

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

# The classes of primitives, in the words of `safeops.autodiff`. What is not here is unknown.
CLASSES = {
    pairs.transport: """
        reshape transpose broadcast_in_dim squeeze slice dynamic_slice dynamic_update_slice rev copy
        stack unstack tile
        copy_p gather concatenate pad split scatter all_gather all_gather_invariant
        all_gather_reduced all_to_all ppermute
    """,
    pairs.same: """
        neg real imag conj convert_element_type reduce_precision sharding_constraint
        layout_constraint mesh_cast reshard pvary pbroadcast name stop_gradient
        nondifferentiable_backward
        abs sign sqrt cbrt square sin tan asin atan sinh tanh asinh atanh expm1 log1p erf erf_inv
        round floor ceil
    """,
    pairs.barrier: "optimization_barrier device_put",
    pairs.add: "add add_any sub complex",
    pairs.total: """
        reduce_sum cumsum reduce_window_sum psum psum_invariant unreduced_psum reduce_scatter
        unreduced_reduce_scatter
    """,
    pairs.scatter_add: "scatter-add scatter-sub",
    pairs.scatter_mul: "scatter-mul",
    pairs.unpool: "select_and_scatter_add select_and_gather_add",
    pairs.select: "select_n",
    pairs.select_if: "select_if_vmap",  # of equinox
    pairs.scale: "mul div",
    contractions.contract: "dot_general",
    contractions.convolve: "conv_general_dilated",
    pairs.call: """
        jit pjit closed_call core_call custom_jvp_call custom_vjp_call checkpoint remat2 composite
    """,
    control.scan: "scan",
    control.while_loop: "while",
    control.cond: "cond",
    control.shard_map: "shard_map",
    linalg.triangular_solve: "triangular_solve",
    linalg.tridiagonal_solve: "tridiagonal_solve",
    linalg.transform: "fft",
    linalg.linear_solve: "custom_linear_solve",
    linalg.solve_all: "linear_solve",  # of lineax
    linalg.mapped: "vprim",  # of equinox
    functions.predicate: """
        is_finite eq ne lt le gt ge eq_to lt_to le_to and or xor not argmax argmin reduce_and
        reduce_or reduce_xor debug_callback debug_print dce_sink
    """,
    functions.number: """
        exp exp2 log logistic cos cosh acos acosh rsqrt pow atan2 rem nextafter erfc lgamma digamma
        polygamma igamma igammac bessel_i0e bessel_i1e regularized_incomplete_beta
        bitcast_convert_type
    """,
    functions.power: "integer_pow",
    functions.choose: "max min clamp",
    functions.extreme: "reduce_max reduce_min reduce_prod",
    functions.running: "cummax cummin cumprod",
    functions.order: "sort",
}
RULES = {name: rule for rule, names in CLASSES.items() for name in names.split()}


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
    primals = jax.tree.map(_as_array, primals)
    value, pullback, *aux = jax.vjp(selecting(fun), *primals, has_aux=has_aux)

    def masked(cotangent: Any) -> Any:
        if lazy:
            again = partial(vjp, fun, *primals, has_aux=has_aux, exact=exact, on_unknown=on_unknown)
            return _lazily(pullback(cotangent), lambda: again()[1](cotangent))
        gradients, masks = run_linear(pullback, (cotangent,), how)
        return (gradients, masks) if return_mask else gradients

    return value, masked, *aux


def _as_array(x: Any) -> Any:
    return jnp.asarray(x) if isinstance(x, (bool, int, float, complex, np.generic)) else x


def run_linear(
    f: Any, args: Any, how: Options, masks: Any = None, *, forward: bool = False
) -> tuple[Any, Any]:
    """Return what a linear function makes of pairs, all active without `masks`, and its masks."""
    leaves, tree = jax.tree.flatten(args)
    actives = [True] * len(leaves) if masks is None else jax.tree.leaves(masks)
    out_tree: list[Any] = []
    fixed: dict[int, Any] = {}  # float0, for integers, which no program carries

    def flat(*leaves: Any) -> list[Array]:
        outs, structure = jax.tree.flatten(f(*jax.tree.unflatten(tree, leaves)))
        out_tree.append(structure)
        fixed.update({i: x for i, x in enumerate(outs) if _is_float0(x)})
        return [x for i, x in enumerate(outs) if i not in fixed]

    closed = jax.make_jaxpr(flat)(*leaves)
    ins = [x if _is_float0(x) else Pair(x, m) for x, m in zip(leaves, actives, strict=True)]
    outs = iter(pairs.evaluate(closed.jaxpr, _given(closed.consts, forward=forward), ins, how))
    found = [
        fixed[i] if i in fixed else next(outs) for i in range(len(closed.out_avals) + len(fixed))
    ]
    values = [x if i in fixed else pairs.value_of(x) for i, x in enumerate(found)]
    active = [
        np.zeros(np.shape(v), bool) if i in fixed else jnp.asarray(_full(x))
        for i, (x, v) in enumerate(zip(found, values, strict=True))
    ]
    return jax.tree.unflatten(out_tree[0], values), jax.tree.unflatten(out_tree[0], active)


def _given(consts: Any, *, forward: bool) -> list[Any]:
    """Return what a program is given: data, or in forward mode, which is linear, zeros too."""
    arrays = [jnp.asarray(x) if isinstance(x, (np.ndarray, np.generic)) else x for x in consts]
    return [pairs.Zero(x) if forward and pairs.is_inexact(x) else x for x in arrays]


def _is_float0(x: Any) -> bool:
    """Whether this is the cotangent of an integer, which has no entries."""
    return getattr(x, "dtype", None) == jax.dtypes.float0


def _full(x: Any) -> Mask:
    return pairs.spread(pairs.active_of(x), pairs.shape_of(x))


def _lazily(ordinary: Any, masked: Callable[[], Any]) -> Any:
    """
    Return the ordinary gradient if it is finite, else the masked one.

    That starts anew, with the function: to hand it what the ordinary pass has computed would keep
    all of that in memory (a chain of elementwise operations took 2.7 times as long).
    """
    numbers = [x for x in jax.tree.leaves(ordinary) if not _is_float0(x)]
    finite = jnp.asarray(True)  # noqa: FBT003  (a value)
    for x in numbers:
        finite = finite & jnp.isfinite(x).all()
    if not isinstance(finite, jax.core.Tracer):
        return ordinary if finite else masked()
    finite = _on_all_devices(finite)

    def again() -> list[Array]:
        return [x for x in jax.tree.leaves(masked()) if not _is_float0(x)]

    chosen = iter(lax.cond(finite, lambda: numbers, again))
    return jax.tree.map(lambda x: x if _is_float0(x) else next(chosen), ordinary)


def _on_all_devices(finite: Array) -> Array:
    """
    Return one decision for the devices of a `shard_map` or `pmap`.

    With one each they would take different branches, and wait for each other in the collectives.
    """
    axes = jax.sharding.get_abstract_mesh().manual_axes
    return lax.pmin(finite.astype(jnp.int32), axes) == 1 if axes else finite


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
        _check_inputs(chosen, allow_int=allow_int)

        def of_chosen(*chosen: Any) -> Any:
            every = list(args)
            for i, x in zip(places, chosen, strict=True):
                every[i] = x
            return fun(*every, **kwargs)

        value, pullback, *aux = pull(of_chosen, *chosen)
        _check_output(value)
        found = pullback(jnp.ones_like(value))
        if return_mask:
            found = tuple(x[0] for x in found) if one else found
        else:
            found = found[0] if one else found
        return ((value, aux[0]) if has_aux else value), found

    return wrapped


def _check_inputs(args: Any, *, allow_int: bool) -> None:
    for x in jax.tree.leaves(args):
        if not jnp.issubdtype(jnp.result_type(x), jnp.inexact) and not allow_int:
            msg = (
                f"expected real or complex arguments, got {jnp.result_type(x)}; "
                "convert them, or pass allow_int=True"
            )
            raise TypeError(msg)


def _check_output(value: Any) -> None:
    if jax.tree.structure(value) != jax.tree.structure(0.0) or np.shape(value):
        shapes = jax.tree.map(np.shape, value)
        msg = f"expected a function with a scalar value, got {shapes}; sum it, or use jacrev or vjp"
        raise TypeError(msg)
    if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        msg = f"expected a function with a real value, got {jnp.result_type(value)}; use vjp"
        raise TypeError(msg)


def grad(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False, **how: Any
) -> Callable[..., Any]:
    """
    `jax.grad`, in which an entry that nothing selected is absent, and not 0.

    Parameters
    ----------
    fun, argnums, has_aux
        As for `value_and_grad`.
    **how
        `allow_int`, `return_mask`, `exact`, `lazy` and `on_unknown`, as for `value_and_grad`.

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
    both = value_and_grad(fun, argnums, has_aux=has_aux, **how)

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


def jacrev(fun: Callable[..., Any], argnums: int = 0, **how: Any) -> Callable[..., Any]:
    """
    `jax.jacrev`, in which an entry that an output does not depend on is absent, and not 0.

    Parameters
    ----------
    fun : callable
        Function of arrays or pytrees to an array or a pytree.
    argnums : int, default: 0
        Argument to differentiate with respect to.
    **how
        `exact` and `on_unknown`, as for `vjp`.

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
    options = _options(exact=how.pop("exact", False), on_unknown=how.pop("on_unknown", "warn"))
    _refuse(how)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        chosen = partial(_with_argument, fun, args, kwargs, argnums)
        value, pullback = jax.vjp(selecting(chosen), args[argnums])
        leaves, tree = jax.tree.flatten(value)
        basis, masks = _basis(leaves)

        def row(cotangent: Any, mask: Any) -> Any:
            return run_linear(pullback, (jax.tree.unflatten(tree, cotangent),), options, mask)[0][0]

        rows = jax.vmap(row)(basis, masks)
        return jax.tree.unflatten(tree, _cut(rows, leaves, first=True))

    return wrapped


def jacfwd(fun: Callable[..., Any], argnums: int = 0, **how: Any) -> Callable[..., Any]:
    """
    `jax.jacfwd`, in which what does not depend on an input is absent, and not 0.

    Parameters
    ----------
    fun, argnums
        As for `jacrev`.
    **how
        `exact` and `on_unknown`, as for `vjp`.

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
    options = _options(exact=how.pop("exact", False), on_unknown=how.pop("on_unknown", "warn"))
    _refuse(how)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        chosen = partial(_with_argument, fun, args, kwargs, argnums)
        _, linear = jax.linearize(selecting(chosen), args[argnums])
        leaves, tree = jax.tree.flatten(args[argnums])
        basis, masks = _basis(leaves)

        def column(tangent: Any, mask: Any) -> Any:
            tangents = (jax.tree.unflatten(tree, tangent),)
            return run_linear(linear, tangents, options, mask, forward=True)[0]

        columns = jax.vmap(column, out_axes=-1)(basis, masks)
        return jax.tree.map(
            lambda x: jax.tree.unflatten(tree, _cut(x, leaves, first=False)), columns
        )

    return wrapped


def hessian(fun: Callable[..., Any], argnums: int = 0, **how: Any) -> Callable[..., Any]:
    """
    `jax.hessian`, masked: `jacfwd` of `jacrev`.

    Parameters
    ----------
    fun, argnums, **how
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
    return jacfwd(jacrev(fun, argnums, **how), argnums, **how)


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
        For how many times as long as the gradient itself took, tracing and compiling included,
        loops are run step by step. A loop that is cut off counts as one operation: the report says
        so, and that it is UNKNOWN what is in it. Loops in which all is finite are not run so.
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
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    places = [i % len(args) for i in numbers]
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(args)):
        msg = "expected arrays, got traced ones, which have no values; call explain outside of jit"
        raise TypeError(msg)
    chosen = [jax.tree.map(jnp.asarray, args[i]) for i in places]
    _check_inputs(chosen, allow_int=False)

    def of_chosen(*chosen: Any) -> Any:
        every = list(args)
        for i, x in zip(places, chosen, strict=True):
            every[i] = x
        return f(*every)

    callbacks, start = Callbacks(), time.monotonic()
    value, pullback = jax.vjp(callbacks.noting(of_chosen), *chosen)
    _check_output(value)
    checked = _checked(pullback, value, chosen)
    ordinary = _bad(jax.tree.leaves(pullback(jnp.ones_like(value))))
    if not ordinary and jnp.isfinite(value):
        return make_report("jax", (), checked)
    looking = Looking(limit * (time.monotonic() - start), progress)
    findings, masked = _found(of_chosen, chosen, looking, callbacks)
    bad = not jnp.isfinite(value)
    found = [*findings, *missing(findings, value=bad, ordinary=ordinary, masked=masked)]
    return make_report("jax", found, checked, looking.notes())


def _bad(arrays: Sequence[Array]) -> int:
    """Return how many entries are not finite."""
    return sum(int((~jnp.isfinite(x)).sum()) for x in arrays)


def _checked(pullback: Any, value: Array, chosen: Any) -> str:
    """Say what an explanation looks at."""
    entries = sum(np.size(x) for x in jax.tree.leaves(chosen))
    count = count_of(jax.make_jaxpr(pullback)(jnp.ones_like(value)).jaxpr)
    return f"the gradient at {counted(entries)}, through {operations(count)}"


def _found(
    f: Callable[..., Any], chosen: Sequence[Any], looking: Looking, callbacks: Callbacks
) -> tuple[list[Finding], int]:
    """Return what makes a value or gradient not finite, and how much of the masked one is so."""
    forward, sites = Forward(numbers_of, jax.tree.leaves(chosen)), Sites()
    result = callbacks.answering(watching(f, forward, looking))(*chosen)
    value, pullback = jax.vjp(callbacks.answering(tagging(f, sites)), *chosen)
    closed = jax.make_jaxpr(pullback)(jnp.ones_like(value))
    how = Options(RULES, exact=True, on_unknown="ignore")
    start = Marked(jnp.ones_like(value), np.ones((), bool))
    while True:
        evidence = Evidence(forward)
        outs = Backward(how, sites, evidence, looking).body(closed, [start])
        results = ((x.spoilt, np.asarray(x.value)) for x in outs if isinstance(x, Marked))
        causes = list(reaching(results))
        # A healthy loop that left out what a finding is about: the line in it is asked for.
        asked = evidence.selections(causes) & looking.whole - looking.opened
        if not asked:
            break
        looking.opened |= asked
    cut = {(named(site), site.where) for site in looking.stopped}
    findings = [
        replace(x, reason="loop") if x.kind == "UNKNOWN" and (x.operation, x.where) in cut else x
        for x in evidence.findings(causes, result, named)
    ]
    return findings, _bad([pairs.value_of(x) for x in outs])


def _refuse(how: dict[str, Any]) -> None:
    if how:
        msg = f"expected exact and on_unknown as options, got {', '.join(how)}"
        raise TypeError(msg)


def _with_argument(fun: Any, args: Any, kwargs: Any, argnums: int, x: Any) -> Any:
    every = list(args)
    every[argnums] = x
    return fun(*every, **kwargs)


def _basis(leaves: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Return unit vectors over all leaves, along a first axis, and their masks."""
    sizes = [int(np.prod(np.shape(x), dtype=int)) for x in leaves]
    one = np.eye(sum(sizes), dtype=bool)
    starts = np.cumsum([0, *sizes])
    masks = [
        one[:, a : a + n].reshape(-1, *np.shape(x))
        for a, n, x in zip(starts, sizes, leaves, strict=False)
    ]
    return [jnp.asarray(m, jnp.result_type(x)) for m, x in zip(masks, leaves, strict=True)], [
        jnp.asarray(m) for m in masks
    ]


def _cut(stacked: Any, leaves: Sequence[Array], *, first: bool) -> list[Any]:
    """Return the parts of a stack of rows (or columns) that belong to each leaf, in its shape."""
    sizes = [int(np.prod(np.shape(x), dtype=int)) for x in leaves]
    starts = np.cumsum([0, *sizes])

    def part(x: Array, a: int, n: int, shape: tuple[int, ...]) -> Array:
        if first:
            return x[a : a + n].reshape(*shape, *x.shape[1:])
        return x[..., a : a + n].reshape(*x.shape[:-1], *shape)

    return [
        jax.tree.map(partial(part, a=a, n=n, shape=np.shape(x)), stacked)
        for a, n, x in zip(starts, sizes, leaves, strict=False)
    ]
