"""Gradients of JAX for a training loop, explained when they are not finite."""

from collections.abc import Callable, Sequence
from logging import Logger
from os import PathLike
from typing import Any, Literal

from safeops.integrations._options import Outlet, check

__all__ = ["value_and_grad"]


def value_and_grad(
    f: Callable[..., Any],
    /,
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    on_nan: Literal["raise", "mask"] = "raise",
    logger: Logger | None = None,
    file: str | PathLike[str] | None = None,
) -> Callable[..., Any]:
    """
    Compiled value and gradient of a loss, which explains the first gradient that is not finite.

    Parameters
    ----------
    f : callable
        Function of arrays, or of trees of them, to a real scalar.
    argnums : int or sequence of ints, default: 0
        Arguments to differentiate with respect to.
    has_aux : bool, default: False
        Whether `f` returns a pair of the scalar and something else.
    on_nan : {"raise", "mask"}, default: "raise"
        What follows the report: an error, or the masked gradient, and an error if that is not
        finite either. To skip a step, catch the error and keep the state.
    logger, file
        As for `safeops.integrations.guard`.

    Returns
    -------
    callable
        Function of the arguments of `f`, as ``jax.jit(jax.value_and_grad(f))``. It asks for the
        gradient at each step, so call it outside of `jax.jit`.

    Raises
    ------
    ValueError
        If `on_nan` is none of the two.
    TypeError
        From the result, if a transformation of JAX such as `jax.jit` calls it.
    NonFiniteGradientError
        From the result, with the report as its attribute `report`.

    Notes
    -----
    **Gradient.** That of ``jax.jit(jax.value_and_grad(f))``, bit for bit, while it is finite. The
    explanation runs `f` operation by operation on the same arguments, with the lines inside `jit`,
    `scan` and `while_loop`; random keys are arguments in JAX, so nothing else has to be stored.

    **Source.** `jax_debug_nans`, which stops at the first NaN, used or not.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> gradient = value_and_grad(lambda x: jnp.where(x > 0, jnp.log(x), 0.0).sum())
    >>> gradient(jnp.asarray([1.0, 2.0]))[1]
    Array([1. , 0.5], dtype=float32)
    """
    check(on_nan, ("raise", "mask"))
    tell = Outlet(on_nan, logger, file)
    from safeops.integrations import _jax  # noqa: PLC0415  (it imports JAX)

    return _jax.guarded(f, argnums, has_aux=has_aux, on_nan=on_nan, tell=tell)
