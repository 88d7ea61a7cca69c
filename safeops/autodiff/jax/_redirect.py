"""`jax.grad` and `jax.value_and_grad` that are others for a while, for code that calls them."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import jax

from safeops.autodiff._options import Reaction
from safeops.autodiff._replaced import Names

HOLOMORPHIC = "expected a real function, got holomorphic=True, which has no masked gradient"


def with_options_of_jax(ours: Callable[..., Any], on_unknown: Reaction) -> Callable[..., Any]:
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


MET: set[str] = set()  # names that were called in a masked context, in the whole program
UNMET = (
    "no call of jax.grad or jax.value_and_grad in masked_grad(): a function of jax.jit keeps what "
    "it was traced with, so call jax.clear_caches() before, or trace it in the context"
)


@contextmanager
def masked_here(ours: dict[str, Callable[..., Any]], on_unknown: Reaction) -> Iterator[None]:
    """Context in which names are masked in this thread; a warning if no program has called them."""

    def change(name: str, _: Callable[..., Any]) -> Callable[..., Any]:
        MET.add(name)
        return with_options_of_jax(ours[name], on_unknown)

    with changed_here(change):
        yield
    if not MET:
        warnings.warn(UNMET, stacklevel=5)  # above: two generators, and two `with` of the library


def changing(name: str, ordinary: Callable[..., Any]) -> Callable[..., Any]:
    """Return a transformation of JAX, changed as the contexts around its call say."""

    # A change gets the name of a transformation and what it is so far, and returns what it is now.
    @wraps(ordinary)
    def transform(*args: Any, **kwargs: Any) -> Any:
        chosen = ordinary
        for change in dict.fromkeys(NAMES.changes()):
            chosen = change(name, chosen)
        return chosen(*args, **kwargs)

    return transform


NAMES = Names(jax, {name: partial(changing, name) for name in ("grad", "value_and_grad")})
changed_here, changed_everywhere = NAMES.here, NAMES.everywhere
