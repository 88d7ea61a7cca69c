"""`jax.grad` and `jax.value_and_grad` that are others for a while, for code that calls them."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from threading import Lock
from typing import Any, TypeAlias

import jax

from safeops.autodiff._options import Reaction

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


# From the name of a transformation and what it is so far to what it is now.
Change: TypeAlias = Callable[[str, Callable[..., Any]], Callable[..., Any]]

# Of one thread or task.
LOCAL_CHANGES: ContextVar[tuple[Change, ...]] = ContextVar("here", default=())
EVERYWHERE: list[Change] = []


class Names:
    """Names of `jax` that ask for changes, as long as one context or more needs it."""

    def __init__(self, *names: str) -> None:
        self.names, self.lock, self.contexts = names, Lock(), 0
        self.put: dict[str, tuple[Any, Any]] = {}  # what was there, and what is there

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Context in which the names ask; contexts may end in any order."""
        with self.lock:
            self.contexts += 1
            if self.contexts == 1:
                plain = {name: getattr(jax, name) for name in self.names}
                self.put = {name: (f, changing(name, f)) for name, f in plain.items()}
                vars(jax).update({name: ours for name, (_, ours) in self.put.items()})
        try:
            yield
        finally:
            with self.lock:
                self.contexts -= 1
                if self.contexts == 0:
                    # If another has replaced a name since, that stays, and asks in vain.
                    here = {name: p for name, (p, q) in self.put.items() if vars(jax)[name] is q}
                    vars(jax).update(here)


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


NAMES = Names("grad", "value_and_grad")


def changing(name: str, ordinary: Callable[..., Any]) -> Callable[..., Any]:
    """Return a transformation of JAX, changed as the contexts around its call say."""

    @wraps(ordinary)
    def transform(*args: Any, **kwargs: Any) -> Any:
        chosen = ordinary
        for change in dict.fromkeys((*LOCAL_CHANGES.get(), *EVERYWHERE)):
            chosen = change(name, chosen)
        return chosen(*args, **kwargs)

    return transform


@contextmanager
def changed_here(change: Change) -> Iterator[None]:
    """Context in which a change applies to this thread, or this task of asyncio."""
    token = LOCAL_CHANGES.set((*LOCAL_CHANGES.get(), change))
    try:
        with NAMES.asking():
            yield
    finally:
        LOCAL_CHANGES.reset(token)


@contextmanager
def changed_everywhere(change: Change) -> Iterator[None]:
    """Context in which a change applies to all threads."""
    EVERYWHERE.append(change)
    try:
        with NAMES.asking():
            yield
    finally:
        EVERYWHERE.remove(change)
