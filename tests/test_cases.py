"""The case table, run through value and derivatives in every mode of every framework."""

import numpy as np
import pytest

from assertions import assert_close, assert_differs
from cases import ROWS
from derivatives import MODES, ORDERS, UNSUPPORTED, derivatives_in, directions
from frameworks import asarray, to_numpy
from safeops._backends import load

# float64 arithmetic of a few operations; the derivatives add some more.
RTOL = 1e-13


def columns(row):
    """Return the arguments of all points of a row, one array an argument."""
    return [np.array(column, dtype=float) for column in zip(*(p.args for p in row.points), strict=True)]


def wanted(row, v, u):
    """Return the exact values and derivatives of a row, NaN where a point has none to offer."""
    gradient = np.array([p.gradient for p in row.points], dtype=float).T
    hessian = np.array([p.hessian for p in row.points], dtype=float).transpose(1, 2, 0)
    product = np.einsum("ijp,jp->ip", hessian, np.array(v))
    return {
        "value": np.array([p.value for p in row.points], dtype=float),
        "reverse": gradient,
        "forward": np.einsum("ip,ip->p", gradient, np.array(v)),
        "rev-rev": product,
        "fwd-rev": product,
        "rev-fwd": product,
        "fwd-fwd": np.einsum("ip,ip->p", product, np.array(u)),
    }


def run(row, f, framework, mode):
    """Return the derivatives of a function at the points of a row, and the exact ones."""
    args = columns(row)
    v, u = directions([a.shape for a in args])
    arrays = [[asarray(framework, a) for a in group] for group in (args, v, u)]
    got = derivatives_in(mode, framework, f, lambda out: out, *arrays)
    return {order: stacked(x) for order, x in got.items()}, wanted(row, v, u)


def stacked(x):
    """Return an array, or the tuple of arrays as one."""
    return np.stack([to_numpy(a) for a in x]) if isinstance(x, (tuple, list)) else to_numpy(x)


def pytest_generate_tests(metafunc):
    """Run a test in each mode of each selected framework."""
    if "way" in metafunc.fixturenames:
        ways = [(name, mode) for name in metafunc.config.frameworks for mode in MODES.get(name, ())]
        metafunc.parametrize("way", ways, ids="-".join)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_values_and_derivatives_are_exact(row, way):
    """Value, gradient and second derivatives are those of the table, in all compositions."""
    got, exact = run(row, row.op, *way)

    for order in got:
        tested = ~np.isnan(exact[order]) | (order == "value")
        assert_close(got[order][tested], exact[order][tested], RTOL, order)
