"""The case tables, run through value and derivatives in every mode of every framework."""

from functools import cache

import numpy as np
import pytest

import cases
import slices
from assertions import assert_close, assert_differs
from derivatives import MODES, derivatives_in, directions
from frameworks import asarray, to_numpy

# float64 arithmetic of a few operations; where terms cancel, relative to their size of about 1.
RTOL = 1e-13
ATOL = 1e-13
# Points are repeated to one length for all rows, so that eager JAX compiles an operation once.
POINTS = 16
SLICES = 8

ELEMENTWISE = pytest.mark.parametrize("row", cases.ROWS, ids=lambda row: row.name)
ALONG_SLICES = pytest.mark.parametrize("row", slices.ROWS, ids=lambda row: row.name)


def pytest_generate_tests(metafunc):
    """Run a test in each mode of each selected framework."""
    if "way" in metafunc.fixturenames:
        ways = [(name, mode) for name in metafunc.config.frameworks for mode in MODES.get(name, ())]
        metafunc.parametrize("way", ways, ids="-".join)


def repeated(items, n):
    """Return the items, over and over, up to a number."""
    return [items[i % len(items)] for i in range(n)]


def stacked(x):
    """Return an array, or a tuple of arrays as one."""
    return np.stack([to_numpy(a) for a in x]) if isinstance(x, (tuple, list)) else to_numpy(x)


def products(gradient, hessian, v, u):
    """Return derivatives by their names from entries (i, p) and (i, j, p): argument, point."""
    product = np.einsum("ijp,jp->ip", hessian, v)
    return {
        "reverse": gradient,
        "forward": np.einsum("ip,ip->p", gradient, v),
        **dict.fromkeys(("rev-rev", "fwd-rev", "rev-fwd"), product),
        "fwd-fwd": np.einsum("ip,ip->p", product, u),
    }


def run_elementwise(row, f, framework, mode):
    """Return value and derivatives of a function at the points of a row, and the exact ones."""
    points = repeated(row.points, POINTS)
    args = [np.array(x, dtype=float) for x in zip(*(p.args for p in points), strict=True)]
    v, u = directions([a.shape for a in args])
    arrays = [[asarray(framework, a) for a in group] for group in (args, v, u)]
    got = derivatives_in(mode, framework, f, lambda out: out, *arrays, row.unsupported)
    gradient = np.array([p.gradient for p in points], dtype=float).T
    hessian = np.array([p.hessian for p in points], dtype=float).transpose(1, 2, 0)
    exact = products(gradient, hessian, np.array(v), np.array(u))
    exact["value"] = np.array([p.value for p in points], dtype=float)
    return {order: stacked(x) for order, x in got.items()}, exact


@cache
def exact_slices(name):
    """Return values, gradients (slice, entry) and Hessians (slice, entry, entry) of a row."""
    row = next(row for row in slices.ROWS if row.name == name)
    pieces = repeated(row.slices, SLICES)
    found = {piece: slices.exact(row, piece) for piece in row.slices}
    return tuple(np.array(x) for x in zip(*(found[piece] for piece in pieces), strict=True))


def run_slices(row, op, framework, mode):
    """Return value and derivatives of an operation on slices, and the exact ones."""
    pieces = repeated(row.slices, SLICES)
    args = [np.array(x, dtype=float) for x in zip(*(piece.args for piece in pieces), strict=True)]
    v, u = directions([a.shape for a in args])
    keep = asarray(framework, [piece.where for piece in pieces])
    none = asarray(framework, np.zeros_like(args[0]))

    def f(*args):
        # The mask goes along as numbers, so that vmap cuts it up like the arguments.
        return op(*args[:-1], args[-1] > 0)

    def reduce(out):
        # Weights as constants: those in an array have zero tangents in XLA, which meet -inf.
        parts = (w * out[..., i] for i, w in enumerate(slices.WEIGHTS))
        return sum(parts) if slices.is_slice(row) else out

    groups = zip((args, v, u), (keep, none, none), strict=True)
    arrays = [[*(asarray(framework, a) for a in group), last] for group, last in groups]
    got = derivatives_in(mode, framework, f, reduce, *arrays, row.unsupported)
    got = {order: stacked(x) for order, x in got.items()}
    by_argument = ("reverse", "rev-rev", "fwd-rev", "rev-fwd")
    got |= {order: got[order][:-1] for order in by_argument if order in got}
    return got, wanted_slices(row, np.array(v), np.array(u))


def wanted_slices(row, v, u):
    """Return the exact value and derivatives of a row, in the shapes that `run_slices` gets."""
    value, gradient, hessian = exact_slices(row.name)
    entries = v.transpose(0, 2, 1).reshape(-1, SLICES), u.transpose(0, 2, 1).reshape(-1, SLICES)
    exact = products(gradient.T, hessian.transpose(1, 2, 0), *entries)
    folded = {
        order: x.reshape(len(v), 3, SLICES).transpose(0, 2, 1) if x.ndim > 1 else x
        for order, x in exact.items()
    }
    return {"value": value, **folded}


@ELEMENTWISE
def test_values_and_derivatives_are_exact(row, way):
    """Value, gradient and second derivatives are those of the table, in all compositions."""
    got, exact = run_elementwise(row, row.op, *way)

    for order, x in got.items():
        tested = ~np.isnan(exact[order]) | (order == "value")
        assert_close(x[tested], exact[order][tested], RTOL, order)


@ALONG_SLICES
def test_slices_are_exact(row, way):
    """Value, gradient and second derivatives of slices are those of the formula."""
    got, exact = run_slices(row, row.op, *way)

    for order, x in got.items():
        # What is absent or chosen is exactly 0.
        atol = np.where(exact[order] == 0, 0.0, ATOL) if order == "reverse" else ATOL
        assert_close(x, exact[order], RTOL, order, atol)
