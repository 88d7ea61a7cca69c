"""The elementwise rows of the tables in each mode of a framework."""

import warnings
from functools import partial

import numpy as np

from derivatives import MODES, derivatives_in, directions
from frameworks import asarray, stacked, to_numpy
from safeops._backends import load
from safeops._dispatch import backend_of

# Points are repeated to one length for all rows, so that eager JAX compiles an operation once.
POINTS = 16


def pytest_generate_tests(metafunc):
    """Run a test in each mode of each framework."""
    if "way" in metafunc.fixturenames:
        ways = [(name, mode) for name, modes in MODES.items() for mode in modes]
        metafunc.parametrize("way", ways, ids="-".join)


def repeated(items, n):
    """Return the items, over and over, up to a number."""
    return [items[i % len(items)] for i in range(n)]


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


# One mode of each framework in which the naive version has its plain gradient.
PLAIN = {"torch": "autograd", "jax": "jit", "tensorflow": "xla"}


def first_order(naive, framework):
    """Return a naive version for the namespace of a framework."""
    return partial(naive, load(framework).xp)


def under_detector(framework, op, args):
    """Return value and gradients, taken while the framework looks for NaN."""
    backend = backend_of(*args)
    with warnings.catch_warnings():
        # detect_anomaly warns that it slows things down
        warnings.filterwarnings("ignore", "Anomaly Detection has been enabled")
        with backend.nan_detector():
            value = op(*args)
            if framework in MODES:
                gradient = backend.grad(lambda *a: backend.xp.sum(op(*a)))(*args)
            else:
                gradient = ()
    return to_numpy(value), np.array([to_numpy(g) for g in gradient])
