"""Reductions by name: their families, a call along the last axis, and derivatives of a sum."""

import numpy as np
import pytest

import safeops as so
from frameworks import in_one_program, to_numpy
from safeops._dispatch import backend_of

nan, inf = np.nan, np.inf
KINDS = ("sum", "prod", "mean", "var", "std", "max", "min", "argmax", "argmin")
FAMILIES = [name for name in so.__all__ if name.startswith("nan")]
FAMILIES += [f"safe_{kind}" for kind in KINDS]
NAN = [name for name in FAMILIES if name.startswith("nan")]
INDICES = [name for name in FAMILIES if "arg" in name]
RUNNING = ["nancumprod", "nancumsum"]
SLOPED = [name for name in FAMILIES if name not in INDICES]
REDUCED = [name for name in SLOPED if name not in RUNNING]
EXTREMES = ["nanmax", "nanmin", "safe_max", "safe_min"]
DIVIDED = ("mean", "var", "std", "median", "quantile", "percentile")
LESS_THAN_FLOAT64 = ("float32", "float16", "bfloat16")
RTOL = 1e-14
# Absent entries, and entries that harm nothing.
HOLES = np.array([[False, True, False, True], [True, False, True, True]])
HARMLESS = np.array([[2.0, -1.0, 2.0, 0.5], [3.0, 2.0, 0.25, -4.0]])


def named(names):
    """Run a test for each of these functions."""
    return pytest.mark.parametrize("name", names)


def call(name, x, **options):
    """Return a reduction along the last axis; the quantile is the third of seven eighths."""
    op, options = getattr(so, name), {"axis": -1} | options
    q = {"nanquantile": (0.375,), "nanpercentile": (37.5,)}.get(name, ())
    return op(x, *q, **options)


def derivatives(f, x, direction):
    """Return the gradient of the sum of a function, and its product with a direction."""
    backend = backend_of(x)

    def total(x):
        return backend.xp.sum(f(x))

    def both(x, direction):
        return backend.grad(total)(x)[0], backend.jvp(total)((x,), (direction,))

    return tuple(map(to_numpy, in_one_program(backend.name, both)(x, direction)))
