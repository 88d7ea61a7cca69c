"""
The frameworks by name; each is imported when it is first asked for.

The `import` statements in `load` are written out because torch.compile traces them; it traces
neither `importlib.import_module` nor `__import__` (torch 2.13).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from safeops._backends.array_api import ArrayAPI


FRAMEWORKS = ("numpy", "torch", "jax", "tensorflow")


def load(name: str) -> "ArrayAPI":
    """Import the backend of a framework, and return it."""
    found: Any
    if name == "numpy":
        from safeops._backends import numpy as found  # noqa: PLC0415  (lazy: see the module)
    elif name == "torch":
        from safeops._backends import torch as found  # noqa: PLC0415  (lazy: see the module)
    elif name == "jax":
        from safeops._backends import jax as found  # noqa: PLC0415  (lazy: see the module)
    elif name == "tensorflow":
        from safeops._backends import tensorflow as found  # noqa: PLC0415  (lazy: see the module)
    elif name == "dask":
        from safeops._backends import dask as found  # noqa: PLC0415  (lazy: see the module)
    elif name == "dtensor":
        from safeops._backends.torch import dtensor as found  # noqa: PLC0415  (lazy: see the module)
    else:
        msg = f"no framework of safeops has the name {name!r}"
        raise ValueError(msg)
    backend: ArrayAPI = found.backend
    return backend
