"""`tf.GradientTape` that is another class for a while, for code that makes its own tapes."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from safeops.autodiff._replaced import Names

PLAIN: Any = tf.GradientTape


class Chosen(tf.GradientTape):
    """The tape of the thread that asks for one: other threads take other gradients meanwhile."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a tape of the class that is chosen here."""
        # What this thread has chosen last goes before what is chosen for all.
        chosen = TAPES.local.get() or TAPES.of_all or (PLAIN,)
        return chosen[-1](*args, **kwargs)


def uncompiled(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `tf.function` that XLA does not compile: compiled code calls no Python."""

    def function(*args: Any, jit_compile: Any = None, **options: Any) -> Any:
        del jit_compile
        return plain(*args, **options)

    return function


TAPES = Names(tf, {"GradientTape": lambda _: Chosen})
FUNCTION = Names(tf, {"function": uncompiled})
taped_by, taped_everywhere = TAPES.here, TAPES.everywhere
