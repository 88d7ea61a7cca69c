"""What public modules share: imports on demand, where an object is public, errors for no name."""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

# What frameworks are called, and their names here.
CALLED = {"pytorch": "torch", "tf": "tensorflow"}


def named(framework: str) -> str:
    """Return the name of a framework here; people say PyTorch and tf too."""
    name = framework.lower()
    return CALLED.get(name, name)


def show(door: str, names: Iterable[str], found: Mapping[str, Any]) -> Callable[[], list[str]]:
    """Let functions and classes name the module that has them, for pickle too; return `__dir__`."""
    for name in names:
        x = found[name]
        stands = getattr(x, "__module__", None) or ""
        if "._" in stands or stands.startswith(f"{door}."):
            x.__module__ = door
    return lambda: list(names)


def below(door: str, names: Iterable[str]) -> Callable[[str], ModuleType]:
    """Return the `__getattr__` of a module, which imports the modules below it when asked."""

    def fetch(name: str) -> ModuleType:
        if name in names:
            return module(door, name)
        raise missing(door, name, *{CALLED.get(name, "")} & {*names})

    return fetch


def module(door: str, name: str) -> ModuleType:
    return import_module(f"{door}.{name}")


def missing(door: str, name: str, near: str = "") -> AttributeError:
    """Return the error of a name that a module does not have; Python adds the nearest one."""
    way_out = f"; it has {near}" if near else ""
    msg = f"module {door!r} has no attribute {name!r}{way_out}"
    return AttributeError(msg, name=name, obj=sys.modules[door])
