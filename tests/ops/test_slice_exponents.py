"""
Norms, softmax and reductions over all exponents of a dtype, against float64 or more digits.

A slice has entries of four sizes, from one that leads to one that is 1e-5 of it, and there is one
slice for each exponent. The reference is computed on the slice over its largest entry, where all
is near 1: value and derivatives are homogeneous, so that a power of the scale brings them back.
"""

from functools import partial

import numpy as np
import pytest

import safeops as so
import specs
from exponents import FORMATS, assert_ulps, rounded
from frameworks import asarray, to_numpy
from slice_sweep import (
    ALONG,
    DTYPES,
    PATTERNS,
    SWEPT,
    derivatives_of,
    pytest_generate_tests,
    scales,
)

__all__ = ["pytest_generate_tests"]  # runs the tests below in each `way`

UNITS = 24  # of the largest of its terms: a cube root loses 8, of powers within 256 of 1
SCALED = {
    ", ".join([spec.name, *(f"{key}={value}" for key, value in scaled.options.items())]): scaled
    for spec in specs.ON_SLICES
    for scaled in spec.scaled
}


def slices(name, dtype):
    """Return the entries, slices by four, and their scales; 0 for what JAX and TensorFlow flush."""
    form, (lower, upper) = FORMATS[dtype], SCALED[name].room
    near = scales(dtype)
    near = near[(near >= lower * form.normal) & (near <= form.max / 2 / upper)]
    sizes = np.repeat(near, len(PATTERNS))
    entries = rounded(np.tile(PATTERNS, (len(near), 1)) * sizes[:, None], dtype)
    return np.where(np.abs(entries) < form.normal, 0.0, entries), sizes


def call(name, x):
    """Call an operation along the last axis."""
    scaled = SCALED[name]
    if scaled.call:
        return scaled.call(x)
    return getattr(so, name.partition(",")[0])(x, axis=-1, **scaled.options)


def scaled_reference(name, dtype):
    """Return the slices, and value, gradient and Hessian times `ALONG`, over all exponents."""
    x, sizes = slices(name, dtype)
    near = np.asarray(x, np.longdouble) / sizes[:, None]
    along = np.broadcast_to(np.asarray(ALONG, np.longdouble), x.shape)
    value, slope, turn = SCALED[name].exact(near, along)
    return x, sizes, value * sizes, slope, turn / sizes[:, None]


def assert_within(got, exact, dtype, message):
    """Each result is right to some units in the last place of the largest of its slice."""
    exact = np.asarray(exact, np.longdouble)
    largest_size = np.abs(exact).max(-1, keepdims=True) if exact.ndim > 1 else np.abs(exact)
    assert_ulps(got, exact, UNITS, dtype, size=largest_size, message=message)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SCALED)
def test_values_of_all_exponents(name, dtype, framework):
    """The value is right wherever it is a number of the dtype."""
    if dtype in ("float16", "bfloat16") and framework in ("numpy", "array-api-strict"):
        pytest.skip("the standard has no narrow dtypes, and NumPy no bfloat16")
    x, _, value, *_ = scaled_reference(name, dtype)

    got = to_numpy(call(name, asarray(framework, x, dtype))).astype(float)

    assert_within(got, value, dtype, name)


@pytest.mark.parametrize("dtype", SWEPT)
@pytest.mark.parametrize("name", SCALED)
def test_derivatives_of_all_exponents(name, dtype, way):
    """Gradient, tangent and second derivatives are right wherever they are numbers of the dtype."""
    x, sizes, _, slope, turn = scaled_reference(name, dtype)
    if way[0] == "tensorflow" and SCALED[name].cubes:  # 0 at the ends of the range
        here = (sizes >= 16 * FORMATS[dtype].normal) & (sizes <= FORMATS[dtype].max / 2**10)
        x, sizes, slope, turn = x[here], sizes[here], slope[here], turn[here]

    got = derivatives_of(partial(call, name), x, dtype, way, second=SCALED[name].curved)

    assert_within(got["reverse"], slope, dtype, f"{name}, reverse")
    parts = slope * np.asarray(ALONG)
    size = np.abs(parts).max(-1)
    assert_ulps(got["forward"], parts.sum(-1), UNITS, dtype, size=size, message=f"{name}, forward")
    least, most = 64 / FORMATS[dtype].max, 1 / (64 * FORMATS[dtype].normal)
    inside = (sizes > least) & (sizes < most)  # the slope of a slope is a number of the dtype
    size = np.broadcast_to(4 / sizes[:, None], turn.shape)[inside]  # of its terms
    for order in got.keys() - {"reverse", "forward"}:
        message = f"{name}, {order}"
        assert_ulps(got[order][inside], turn[inside], UNITS, dtype, size=size, message=message)


def test_assert_within_can_fail():
    """It tells numbers apart, next to the largest of a slice."""
    with pytest.raises(AssertionError, match="units"):
        assert_within(np.array([[1.0, 2.0]]), np.array([[1.0, 2.1]]), "float32", "two")
