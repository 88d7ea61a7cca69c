"""Options of masked autodiff, its warning and its error."""

import warnings
from collections.abc import Sequence
from operator import index
from typing import Any, Literal, TypeAlias, get_args

Reaction: TypeAlias = Literal["warn", "error", "ignore"]
OnNan: TypeAlias = Literal["raise", "skip", "mask"]
ON_UNKNOWN = get_args(Reaction)


class UnknownOperationWarning(UserWarning):
    """An operation without a rule met absent entries, and ran as it is."""

    __module__ = "safeops.autodiff"


class NonFiniteGradientError(FloatingPointError):
    """
    A step of a guarded training has made a gradient that is not finite.

    Attributes
    ----------
    report : Report
        What `explain` found.
    """

    __module__ = "safeops.integrations"

    def __init__(self, report: Any) -> None:
        super().__init__(str(report))
        self.report = report


def places_of(argnums: int | Sequence[int], count: int, *, one: bool = False) -> tuple[int, ...]:
    """Return the places from 0 of the arguments with these numbers, in a call with so many."""
    numbers: Any = (argnums,) if is_one(argnums) else argnums
    if not (isinstance(numbers, Sequence) and all(map(is_one, numbers))) or (
        one and numbers is argnums
    ):
        msg = (
            f"expected an int{'' if one else ' or a sequence of ints'} as argnums, got {argnums!r}"
        )
        raise TypeError(msg)
    if not all(-count <= i < count for i in numbers):
        msg = f"expected argnums below {count}, the number of arguments by position, got {argnums}"
        raise TypeError(msg)
    return tuple(index(i) % count for i in numbers)


def is_one(argnums: Any) -> bool:
    """Whether the number of one argument is given, also of NumPy, and no sequence."""
    return hasattr(argnums, "__index__")


def report_unknown(message: str, on_unknown: str) -> None:
    """Warn of an operation without a rule, raise, or say nothing."""
    if on_unknown == "error":
        raise NotImplementedError(message)
    if on_unknown == "warn":
        warnings.warn(message, UnknownOperationWarning, stacklevel=3)


def check_options(on_unknown: str, *, lazy: bool | None = False, return_mask: bool = False) -> None:
    """Raise ValueError for an unknown option, or for two that exclude each other."""
    if on_unknown not in ON_UNKNOWN:
        msg = f"expected on_unknown out of ({', '.join(ON_UNKNOWN)}), got {on_unknown!r}"
        raise ValueError(msg)
    if lazy and return_mask:
        msg = "expected one of lazy and return_mask: a lazy gradient has no mask"
        raise ValueError(msg)
