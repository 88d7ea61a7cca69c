"""
The frameworks by name, each of which is imported when it is first asked for.

The `import` statements in `load` stand written out because torch.compile traces them, and neither
`importlib.import_module` nor `__import__` (torch 2.13).
"""

from safeops._typing import Backend

FRAMEWORKS = ("numpy", "torch", "jax", "tensorflow")


def load(name: str) -> Backend:
    """Return the backend of a framework, which this imports."""
    if name == "numpy":
        from safeops._backends import numpy  # noqa: PLC0415  (lazy: see the module)

        return numpy.backend
    if name == "torch":
        from safeops._backends import torch  # noqa: PLC0415  (lazy: see the module)

        return torch.backend
    if name == "jax":
        from safeops._backends import jax  # noqa: PLC0415  (lazy: see the module)

        return jax.backend
    if name == "tensorflow":
        from safeops._backends import tensorflow  # noqa: PLC0415  (lazy: see the module)

        return tensorflow.backend
    if name == "dask":
        from safeops._backends import dask  # noqa: PLC0415  (lazy: see the module)

        return dask.backend
    if name == "dtensor":
        from safeops._backends.torch import dtensor  # noqa: PLC0415  (lazy: see the module)

        return dtensor.backend
    msg = f"no framework of safeops has the name {name!r}"
    raise ValueError(msg)
