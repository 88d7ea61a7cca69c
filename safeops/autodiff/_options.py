"""Options of masked autodiff, and its warning about operations without a rule."""

import warnings

ON_UNKNOWN = ("warn", "error", "ignore")


class UnknownOperationWarning(UserWarning):
    """An operation without a rule met absent entries, and ran as it is."""


def tell(message: str, on_unknown: str) -> None:
    """Warn of an operation without a rule, raise, or say nothing."""
    if on_unknown == "error":
        raise NotImplementedError(message)
    if on_unknown == "warn":
        warnings.warn(message, UnknownOperationWarning, stacklevel=3)


def check_options(on_unknown: str, *, lazy: bool = False, return_mask: bool = False) -> None:
    """Raise ValueError for an unknown option, or for two that exclude each other."""
    if on_unknown not in ON_UNKNOWN:
        msg = f"expected on_unknown out of ({', '.join(ON_UNKNOWN)}), got {on_unknown!r}"
        raise ValueError(msg)
    if lazy and return_mask:
        msg = "expected one of lazy and return_mask: a lazy gradient has no mask"
        raise ValueError(msg)
