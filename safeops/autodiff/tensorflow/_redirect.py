"""`tf.GradientTape` that is another class for a while, for code that makes its own tapes."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

import tensorflow as tf

PLAIN: Any = tf.GradientTape
TAPE: ContextVar[Any] = ContextVar("tape", default=PLAIN)  # of one thread or task
EVERYWHERE: list[Any] = []  # of all threads, where a thread has chosen nothing


class Chosen(tf.GradientTape):
    """The tape of the thread that asks for one: other threads take other gradients meanwhile."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a tape of the class that is chosen here."""
        here = TAPE.get()
        chosen = EVERYWHERE[-1] if EVERYWHERE and here is PLAIN else here
        return chosen(*args, **kwargs)


class Name:
    """A name of `tensorflow` that is ours as long as one context or more needs it."""

    def __init__(self, name: str, ours: Any) -> None:
        self.name, self.ours, self.plain = name, ours, getattr(tf, name)
        self.lock, self.contexts = Lock(), 0

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Context in which the name is ours; contexts may end in any order."""
        with self.lock:
            self.contexts += 1
            setattr(tf, self.name, self.ours)
        try:
            yield
        finally:
            with self.lock:
                self.contexts -= 1
                if self.contexts == 0:
                    setattr(tf, self.name, self.plain)


def uncompiled(*args: Any, jit_compile: Any = None, **options: Any) -> Any:
    """Return a `tf.function` that XLA does not compile: compiled code calls no Python."""
    del jit_compile
    return FUNCTION.plain(*args, **options)


TAPES, FUNCTION = Name("GradientTape", Chosen), Name("function", uncompiled)


@contextmanager
def taped_by(tape: Any) -> Iterator[None]:
    """Context in which `tf.GradientTape` is another class for this thread."""
    token = TAPE.set(tape)
    try:
        with TAPES.replaced():
            yield
    finally:
        TAPE.reset(token)


@contextmanager
def taped_everywhere(tape: Any) -> Iterator[None]:
    """Context in which `tf.GradientTape` is another class for all threads."""
    EVERYWHERE.append(tape)
    try:
        with TAPES.replaced():
            yield
    finally:
        EVERYWHERE.remove(tape)
