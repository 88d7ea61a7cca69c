"""Names of a framework's module that are ours for a while, for code that uses them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any


class Names:
    """Names of a module that are ours as long as one context or more needs it."""

    # `ours` makes of what stands for a name what is to stand there. That asks for the changes that
    # apply to whoever calls it.

    def __init__(self, module: Any, ours: Mapping[str, Callable[[Any], Any]]) -> None:
        self.module, self.ours = module, ours
        self.lock, self.contexts = Lock(), 0
        self.put: dict[str, tuple[Any, Any]] = {}  # what was there, and what is there
        self.local: ContextVar[tuple[Any, ...]] = ContextVar("changes", default=())
        self.of_all: list[Any] = []

    def changes(self) -> tuple[Any, ...]:
        """Return what applies here: the changes of this thread or task, and those of all."""
        return *self.local.get(), *self.of_all

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Context in which the names are ours; contexts may end in any order."""
        with self.lock:
            self.contexts += 1
            if self.contexts == 1:
                for name, make in self.ours.items():
                    plain = getattr(self.module, name)
                    self.put[name] = plain, make(plain)
                    setattr(self.module, name, self.put[name][1])
        try:
            yield
        finally:
            with self.lock:
                self.contexts -= 1
                if self.contexts == 0:
                    self.put_back()

    def put_back(self) -> None:
        for name, (plain, ours) in self.put.items():
            # If another has replaced a name since, that stays, and asks in vain.
            if getattr(self.module, name) is ours:
                setattr(self.module, name, plain)

    @contextmanager
    def here(self, change: Any) -> Iterator[None]:
        """Context in which a change applies to this thread, or this task of asyncio."""
        token = self.local.set((*self.local.get(), change))
        try:
            with self.replaced():
                yield
        finally:
            self.local.reset(token)

    @contextmanager
    def everywhere(self, change: Any) -> Iterator[None]:
        """Context in which a change applies to all threads."""
        self.of_all.append(change)
        try:
            with self.replaced():
                yield
        finally:
            self.of_all.remove(change)
