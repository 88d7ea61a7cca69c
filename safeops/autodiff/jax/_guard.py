"""Gradients of JAX that are explained when they are not finite."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp

from safeops.autodiff._explain.report import Report
from safeops.autodiff._options import NonFiniteGradientError
from safeops.autodiff.jax import explain, value_and_grad

TRACED = (
    "expected arrays, got traced ones, which have no values; call the guarded function outside of "
    "jit, vmap, grad and shard_map, which may stand inside of it"
)
NOT_CURED = "the masked gradient is not finite either"


@jax.jit
def all_finite(gradients: Any) -> Any:
    """Whether each entry of each gradient is finite."""
    return jnp.all(jnp.asarray([jnp.isfinite(g).all() for g in jax.tree.leaves(gradients)]))


def bad_names(gradients: Any, argnums: int | Sequence[int]) -> tuple[str, ...]:
    """Return the paths of the gradients that are not finite, behind the argument if not the one."""
    found = []
    for path, g in jax.tree_util.tree_flatten_with_path(gradients)[0]:
        if not jnp.isfinite(g).all():
            number = argnums if isinstance(argnums, int) else argnums[path[0].idx]
            inner = path if isinstance(argnums, int) else path[1:]
            is_one = inner and isinstance(argnums, int)
            found.append(("" if is_one else f"argument {number}") + jax.tree_util.keystr(inner))
    return tuple(found)


def guarded(
    f: Callable[..., Any],
    argnums: int | Sequence[int],
    *,
    has_aux: bool,
    on_nan: str,
    tell: Callable[[Report], None],
) -> Callable[..., Any]:
    """Return the compiled value and gradient of a function, explained if it is not finite."""
    ordinary = jax.jit(jax.value_and_grad(f, argnums, has_aux=has_aux))
    masked = jax.jit(value_and_grad(f, argnums, has_aux=has_aux))
    steps = 0

    def value(*args: Any, **kwargs: Any) -> Any:
        return f(*args, **kwargs)[0] if has_aux else f(*args, **kwargs)

    @wraps(f)
    def both(*args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        found = ordinary(*args, **kwargs)
        if any(isinstance(g, jax.core.Tracer) for g in jax.tree.leaves(found)):
            raise TypeError(TRACED)
        step, steps = steps, steps + 1
        if all_finite(found[1]):
            return found
        report = explain(partial(value, **kwargs), *args, argnums=argnums)
        report = replace(report, parameters=bad_names(found[1], argnums), step=step)
        tell(report)
        error = NonFiniteGradientError(report)
        if on_nan == "mask":
            found = masked(*args, **kwargs)
            if all_finite(found[1]):
                return found
            error.add_note(NOT_CURED)
        raise error

    return both
