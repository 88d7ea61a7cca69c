"""Sums, products, directions and softmax of slices over all exponents, against long double."""

import numpy as np
import pytest

import safeops as so
import specs
from exponents import EXTENDED, FORMATS, assert_ulps, count, rounded, wide
from frameworks import asarray, to_numpy
from safeops._dispatch import backend_of
from slice_formulas import WEIGHTS, constant
from slice_sweep import (
    ALONG,
    PATTERNS,
    SWEPT,
    derivatives_of,
    pytest_generate_tests,
    scales,
)

__all__ = ["pytest_generate_tests"]  # runs the tests below in each `way`

UNITS = 16
DTYPES = tuple(dtype for dtype in FORMATS if EXTENDED or dtype != "float64")
SWEEPS = {
    ", ".join(filter(None, (spec.name, sweep.of))): sweep
    for spec in specs.ON_SLICES
    for sweep in spec.sweeps
}
NAMES = pytest.mark.parametrize("name", SWEEPS)


def slices(name, dtype):
    """Return the slices of all exponents, 0 for what JAX and TensorFlow flush; and their sizes."""
    form, (factor, power) = FORMATS[dtype], SWEEPS[name].most
    near = scales(dtype)
    most = (form.max / 2 / factor) ** (1 / power)
    near = near[(near >= SWEEPS[name].least * form.normal) & (near <= most)]
    sizes = np.repeat(near, len(PATTERNS))
    entries = rounded(np.tile(PATTERNS, (len(near), 1)) * sizes[:, None], dtype)
    return np.where(np.abs(entries) < form.normal, 0.0, entries), sizes


def call(name, x):
    """Call an operation along the last axis."""
    if SWEEPS[name].call:
        return SWEEPS[name].call(x)
    return getattr(so, name)(x, axis=-1)


def exact_of(name, x):
    """Return what is exact at slices."""
    with np.errstate(all="ignore"):
        return SWEEPS[name].exact(wide(x), np.broadcast_to(wide(ALONG), x.shape))


def weighted(name):
    """Return the operation with one number a slice, a weighted sum of several."""

    def f(x):
        y = call(name, x)
        return backend_of(x).xp.sum(y * constant(y, WEIGHTS), axis=-1) if len(y.shape) > 1 else y

    return f


@pytest.mark.parametrize("dtype", DTYPES)
@NAMES
def test_values_of_all_exponents(name, dtype, framework):
    """The value is right wherever it is a number of the dtype."""
    if dtype in ("float16", "bfloat16") and framework in ("numpy", "array-api-strict"):
        pytest.skip("the standard has no narrow dtypes, and NumPy no bfloat16")
    x, _ = slices(name, dtype)
    exact = exact_of(name, x)

    got = to_numpy(call(name, asarray(framework, x, dtype))).astype(float)

    checked = assert_ulps(got, exact.value, UNITS, dtype, size=exact.value_size, message=name)
    count((framework, "values", dtype, "slices"), name, *checked)


@pytest.mark.parametrize("dtype", SWEPT)
@NAMES
def test_derivatives_of_all_exponents(name, dtype, way):
    """Gradient, tangent and second derivatives are right wherever they are numbers of the dtype."""
    x, _ = slices(name, dtype)
    exact = exact_of(name, x)

    # There it is torch.prod, whose second derivatives are 0 where the product underflows (2.13).
    plain = way == ("torch", "compile") and name.endswith("prod")
    got = derivatives_of(weighted(name), x, dtype, way, second=SWEEPS[name].curved and not plain)

    for order, (wanted, size, units) in wanted_of(exact, got, dtype).items():
        message = f"{name}, {order}"
        checked = assert_ulps(got[order], wanted, units, dtype, size=size, message=message)
        count((*way, dtype, order), name, *checked)


def wanted_of(exact, orders, dtype):
    """Return exact numbers, their sizes and units for these orders."""
    direction, most = np.asarray(ALONG), FORMATS[dtype].max
    with np.errstate(all="ignore"):
        # Parts of a second derivative are larger than it is, as are the slopes that it is made of.
        inside = np.maximum(exact.turn_size, exact.slope_size).max(-1, keepdims=True) < most / 2**12
        tangent = (exact.slope * direction).sum(-1)
        size = (exact.slope_size * np.abs(direction)).sum(-1)
        turn = np.where(inside, exact.turn, np.nan)
    second = dict.fromkeys(orders, (turn, exact.turn_size, 4 * UNITS))
    first = (exact.slope, exact.slope_size, UNITS)
    return second | {"reverse": first, "forward": (tangent, size, UNITS)}
