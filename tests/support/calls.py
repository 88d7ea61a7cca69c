"""A call of each public operation, made of the tables of cases, slices and reductions."""

import inspect

import numpy as np
import pytest

import points
import safeops
import slices
import specs
from frameworks import asarray, in_one_program, to_numpy
from safeops._dispatch import backend_of
from specs.reductions import INDICES

RTOL = 1e-14  # of the same arithmetic in another order


def named(row):
    """Return the name of the public operation that a row calls."""
    op = getattr(row.op, "func", row.op)  # with options
    names = (getattr(op, "__name__", ""), *op.__code__.co_names)
    return next(name for name in names if name in safeops.__all__)


# What is given a function, or has no formula of its own; or arguments of several kinds.
OWN = {spec.name for spec in specs.EVERY if isinstance(spec, points.OwnSpec)}
COMBINATORS = OWN & set(safeops.__all__) - set(INDICES)
# The first row of each operation.
REDUCTIONS = {row.name.split(",")[0]: row for row in reversed(specs.REDUCTION_ROWS)}
OPS = {named(row): row for row in reversed((*specs.ROWS, *specs.SLICE_ROWS))} | REDUCTIONS
ELEMENTWISE = [name for name, row in OPS.items() if isinstance(row, points.Row)]
ALONG_SLICES = [name for name in OPS if name not in ELEMENTWISE]


def takes(name, option):
    """Whether a public operation has a keyword."""
    return option in inspect.signature(getattr(safeops, name)).parameters


def sample(name):
    """Return a point of the case table, or three for a slice, for each argument."""
    row = OPS[name]
    return row.points[0].args if name in ELEMENTWISE else row.slices[0].args


PAIRS = [name for name in ELEMENTWISE if len(sample(name)) == 2]
PAIRS_OF_SLICES = [name for name in ALONG_SLICES if len(sample(name)) == 2]
EVERY = pytest.mark.parametrize("name", OPS)


def public(name):
    """Return the public operation, as a function of arrays and options."""
    op = getattr(safeops, name)
    q = {"nanquantile": 0.25, "nanpercentile": 25.0, "safe_clip_by_norm": 2.0}.get(name)
    return op if q is None else lambda x, **options: op(x, q, **options)


def call(name, *args, where=None):
    """Call an operation as its row does: elementwise, or along the last axis."""
    if name in REDUCTIONS:
        return public(name)(*args, axis=-1, where=where)
    if name not in ELEMENTWISE:
        return OPS[name].op(*args, where)
    masked = where is not None and "where" in inspect.signature(public(name)).parameters
    return public(name)(*args, where=where) if masked else OPS[name].op(*args)


def arguments(name, framework, shape=(2, 3), dtype="float64"):
    """Return arguments of an operation in a shape."""
    values = (np.broadcast_to(x, shape) for x in sample(name))
    return [asarray(framework, x, dtype) for x in values]


def gradients(name, *args):
    """Return the gradients of the sum of a result, as NumPy arrays."""
    backend = backend_of(*args)
    slopes = backend.grad(lambda *a: backend.xp.sum(call(name, *a)))
    return [to_numpy(g) for g in in_one_program(backend.name, slopes)(*args)]


RUNNING = {"nancumprod", "nancumsum", "safe_logcumsumexp"}
KEEP_SHAPE = {n for n in ALONG_SLICES if n in RUNNING or slices.is_slice(OPS[n])}

# How an error about a dtype begins.
DTYPE = r"expected a dtype out of \(.*\), got "
