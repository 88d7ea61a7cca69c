"""Modules that are imported when they are asked for, objects that say where they are public."""

import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def show(door: str, names: Iterable[str], found: Mapping[str, Any]) -> None:
    """Let functions and classes name the public module that has them, where pickle looks too."""
    for name in names:
        x = found[name]
        stands = getattr(x, "__module__", None) or ""
        if "._" in stands or stands.startswith(f"{door}."):
            x.__module__ = door


def module(door: str, name: str) -> ModuleType:
    """Return a module below a public one."""
    return import_module(f"{door}.{name}")


def missing(door: str, name: str) -> AttributeError:
    """Return the error of a name that a module does not have; Python adds the nearest one."""
    msg = f"module {door!r} has no attribute {name!r}"
    return AttributeError(msg, name=name, obj=sys.modules[door])
