"""`jax.grad` and `jax.value_and_grad` that are masked for a while, for code that calls them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import jax

HOLOMORPHIC = "expected a real function, got holomorphic=True, which has no masked gradient"


def with_options_of_jax(ours: Callable[..., Any], on_unknown: str) -> Callable[..., Any]:
    """Return a masked transformation with the options of that of JAX."""

    def transform(
        fun: Callable[..., Any],
        argnums: Any = 0,
        has_aux: bool = False,  # noqa: FBT001, FBT002  (as in JAX)
        holomorphic: bool = False,  # noqa: FBT001, FBT002  (as in JAX)
        allow_int: bool = False,  # noqa: FBT001, FBT002  (as in JAX)
        **_: Any,
    ) -> Callable[..., Any]:
        if holomorphic:
            raise NotImplementedError(HOLOMORPHIC)
        masked = ours(fun, argnums, has_aux=has_aux, allow_int=allow_int, on_unknown=on_unknown)

        @wraps(fun)
        def gradient(*args: Any, **kwargs: Any) -> Any:
            return masked(*args, **kwargs)

        return gradient

    return transform


@contextmanager
def replaced(**ours: Callable[..., Any]) -> Iterator[None]:
    """Context in which names of `jax` are others."""
    plain = {name: getattr(jax, name) for name in ours}
    vars(jax).update(ours)
    try:
        yield
    finally:
        vars(jax).update(plain)
