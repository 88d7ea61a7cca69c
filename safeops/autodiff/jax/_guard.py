"""Gradients of JAX that are explained when they are not finite."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from safeops.autodiff._explain.report import Report
from safeops.autodiff._options import NonFiniteGradientError
from safeops.autodiff.jax import explain, value_and_grad

NOT_CURED = "the masked gradient is not finite either"


@jax.jit
def all_finite(gradients: Any) -> Any:
    """Whether each entry of each gradient is finite."""
    return jnp.all(jnp.asarray([jnp.isfinite(g).all() for g in jax.tree.leaves(gradients)]))


def bad_names(gradients: Any) -> tuple[str, ...]:
    """Return the paths of the gradients that are not finite."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(gradients)
    return tuple(jax.tree_util.keystr(path) for path, g in pairs if not jnp.isfinite(g).all())


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

    def value(*args: Any) -> Any:
        return f(*args)[0] if has_aux else f(*args)

    def both(*args: Any) -> Any:
        nonlocal steps
        step, steps = steps, steps + 1
        found = ordinary(*args)
        if all_finite(found[1]):
            return found
        report = explain(value, *args, argnums=argnums)
        report = replace(report, parameters=bad_names(found[1]), step=step)
        tell(report)
        error = NonFiniteGradientError(report)
        if on_nan == "mask":
            found = masked(*args)
            if all_finite(found[1]):
                return found
            error.add_note(NOT_CURED)
        raise error

    return both
