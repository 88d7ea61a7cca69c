"""One sentence for a framework that is too old for a layer of safeops, not an error from inside."""

import re


def require(layer: str, name: str, found: str, floor: str, *, also: str = "") -> None:
    """Raise ImportError in one sentence if the version `found` of a framework is below `floor`."""
    if numbers(found) < numbers(floor):
        msg = f"{layer} needs {name} {floor} or later and found {found}"
        raise ImportError(f"{msg}; {also}" if also else msg)


def gone(layer: str, name: str, found: str, tested: str, what: str) -> ImportError:
    """Return an error in one sentence: the inside of a framework is not what a layer reads."""
    return ImportError(
        f"{layer} has been tested up to {name} {tested} and found {found}, whose inside has other "
        f"names: {what}"
    )


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading integers of a version: (2, 13, 0) of "2.13.0a0+git"."""
    return tuple(map(int, re.findall(r"\d+", re.split(r"[^\d.]", version)[0])))
