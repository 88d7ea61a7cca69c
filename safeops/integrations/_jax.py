"""Gradients of JAX that are explained when they are not finite."""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from safeops._core.types import Array
from safeops.autodiff._explain.report import Report
from safeops.autodiff._options import is_one, places_of
from safeops.autodiff.jax import value_and_grad
from safeops.autodiff.jax._explain.explanation import explained_call
from safeops.autodiff.jax._watch import named
from safeops.integrations._policy import NAN_IS_USED, NOT_CURED, BadStep, handle_bad_step

TRACED = (
    "expected arrays, got traced ones, which have no values; call the guarded function outside of "
    "jit, vmap, grad and shard_map, which may stand inside of it"
)


LIMIT = 20.0  # of `explain`


@jax.jit
def finite_sums(arrays: Sequence[Array]) -> Array:
    """Return which arrays have a finite sum."""
    return jnp.stack([jnp.isfinite(x.sum()) for x in arrays])


@jax.jit
def finite_entries(arrays: Sequence[Array]) -> Array:
    """Return which arrays are finite in each entry."""
    return jnp.stack([jnp.isfinite(x).all() for x in arrays])


def which_are_finite(arrays: Sequence[Array]) -> Any:
    """Return which arrays are finite: by a sum of each, and by their entries if a sum is not."""
    if not arrays:
        return np.ones(0, bool)
    found = np.asarray(finite_sums(arrays))
    return found if found.all() else np.asarray(finite_entries(arrays))


def batch_of(data: Any) -> int:
    """Return the number of rows of a batch, as its first array has it; 0 if there is none."""
    shapes = (np.shape(x) for x in jax.tree.leaves(data) if not is_key(x))
    return next((shape[0] for shape in shapes if shape), 0)


def is_key(x: Any) -> bool:
    """Whether an array is a key of random numbers, or has the form of one."""
    dtype = jnp.result_type(x)
    is_plain = dtype == jnp.uint32 and np.shape(x) == (2,)
    return is_plain or bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def without(args: Sequence[Any], argnums: int | Sequence[int]) -> list[Any]:
    """Return the arguments that are not differentiated with respect to."""
    numbers = places_of(argnums, len(args))
    return [x for i, x in enumerate(args) if i not in numbers]


def all_finite(gradients: Any) -> bool:
    """Whether each entry of each gradient is finite."""
    return bool(which_are_finite(jax.tree.leaves(gradients)).all())


def bad_names(gradients: Any, argnums: int | Sequence[int], count: int) -> tuple[str, ...]:
    """Return the paths of the gradients that are not finite, behind the argument if not the one."""
    found, places = [], places_of(argnums, count)
    for path, g in jax.tree_util.tree_flatten_with_path(gradients)[0]:
        if not jnp.isfinite(g).all():
            one = is_one(argnums)
            number = places[0 if one else path[0].idx]
            inner = path if one else path[1:]
            found.append(
                ("" if inner and one else f"argument {number}") + jax.tree_util.keystr(inner)
            )
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

        def explain() -> Report:
            batch = batch_of((without(args, argnums), kwargs))
            given = partial(value, **kwargs), args, argnums, LIMIT, None, batch
            names = bad_names(found[1], argnums, len(args))
            return named(partial(explained_call, *given, trial=True), names, step)

        def run_masked() -> tuple[Any, str]:
            found = masked(*args, **kwargs)
            return found, fault_of(found[1], found[0][0] if has_aux else found[0])

        return handle_bad_step(BadStep(explain, run_masked), on_nan, tell)

    return both


def fault_of(gradients: Any, loss: Any) -> str:
    """Return why a masked step is no cure: its gradient is not finite, or its loss is NaN."""
    if not all_finite(gradients):
        return NOT_CURED
    return NAN_IS_USED if jnp.isnan(loss) else ""
