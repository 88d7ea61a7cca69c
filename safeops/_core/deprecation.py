"""Public names that will go: they work as before, and warn for two minor releases."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
RELEASES = 2  # in which a name warns before it goes


def deprecated(since: str, instead: str) -> Callable[[F], F]:
    """Decorator of a public function that will go, which warns at each call."""
    # `since` is the release that warns first, such as "0.2"; `instead` is the call that takes its
    # place, as a user writes it. The function returns what it returned before.
    major, minor = (int(part) for part in since.split("."))

    def decorate(f: F) -> F:
        said = (
            f"{f.__name__} is deprecated since safeops {since} and goes in "
            f"{major}.{minor + RELEASES}; use {instead}"
        )

        @wraps(f)
        def warned(*args: Any, **options: Any) -> Any:
            warnings.warn(said, DeprecationWarning, stacklevel=2)
            return f(*args, **options)

        return cast("F", warned)

    return decorate
