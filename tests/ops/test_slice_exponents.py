"""
Norms, softmax and reductions over all exponents of a dtype, against float64 or more digits.

A slice has entries of four sizes, from one that leads to one that is 1e-5 of it, and there is one
slice for each exponent. The reference is computed on the slice over its largest entry, where all
is near 1: value and derivatives are homogeneous, so that a power of the scale brings them back.
"""

import numpy as np
import pytest

import safeops as so
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

inf = np.inf


def slices(name, dtype):
    """Return the entries, slices by four, and their scales; 0 for what JAX and TensorFlow flush."""
    form, (lower, upper) = FORMATS[dtype], ROOM.get(name, (2.0, 1.0))
    near = scales(dtype)
    near = near[(near >= lower * form.normal) & (near <= form.max / 2 / upper)]
    sizes = np.repeat(near, len(PATTERNS))
    entries = rounded(np.tile(PATTERNS, (len(near), 1)) * sizes[:, None], dtype)
    return np.where(np.abs(entries) < form.normal, 0.0, entries), sizes


# Exact value, gradient and Hessian times a direction of slices near 1, in extended precision.


def norm_of(p):
    """Return the norm of slices, its gradient and its Hessian times a direction."""

    def exact(x, v):
        size = np.abs(x)
        norm = size.max(-1) if p == inf else (size**p).sum(-1) ** (1 / np.longdouble(p))
        part = size / norm[:, None]
        if p == inf:
            tie = size == norm[:, None]
            return norm, np.sign(x) * tie / tie.sum(-1, keepdims=True), 0 * x
        slope = np.sign(x) * part ** (p - 1)
        with np.errstate(divide="ignore"):
            curve = np.where((part == 0) & (p < 2), 0.0, part ** (p - 2))  # chosen
        turn = curve * v - slope * (slope * v).sum(-1, keepdims=True)
        return norm, slope, (p - 1) * turn / norm[:, None]

    return exact


def rms(x, v):
    """Return the root mean square of slices, with derivatives."""
    norm, slope, turn = norm_of(2)(x, v)
    root = np.sqrt(np.longdouble(x.shape[-1]))
    return norm / root, slope / root, turn / root


def std(x, v):
    """Return the standard deviation of slices, with derivatives."""
    value, slope, turn = rms(x - x.mean(-1, keepdims=True), v - v.mean(-1, keepdims=True))
    return value, slope, turn - turn.mean(-1, keepdims=True)


def mean(x, v):
    """Return the mean of slices, with derivatives."""
    return x.mean(-1), 0 * x + 1 / np.longdouble(x.shape[-1]), 0 * v


def largest(x, v):
    """Return the maximum of slices, with derivatives."""
    peak = x.max(-1, keepdims=True)
    return peak[:, 0], (x == peak) / (x == peak).sum(-1, keepdims=True), 0 * v


def along(name, **options):
    """Return a call of an operation along the last axis."""
    return lambda x: getattr(so, name)(x, axis=-1, **options)


# Operations that scale as their argument does: calls, references, and units in the last place.
HOMOGENEOUS = {f"safe_norm, ord={p}": (along("safe_norm", ord=p), norm_of(p)) for p in (1, 2, inf)}
HOMOGENEOUS |= {f"safe_norm, ord={p}": (along("safe_norm", ord=p), norm_of(p)) for p in (1.5, 3)}
HOMOGENEOUS |= {
    "safe_distance": (lambda x: so.safe_distance(x, 0 * x), norm_of(2)),
    "safe_rms": (along("safe_rms"), rms),
    "safe_std": (along("safe_std"), std),
    "nanstd": (along("nanstd"), std),
    "safe_mean": (along("safe_mean"), mean),
    "nanmean": (along("nanmean"), mean),
    "safe_max": (along("safe_max"), largest),
    "nanmax": (along("nanmax"), largest),
}
# How far from the ends of the range their sums and differences of entries are numbers of the dtype.
ROOM = dict.fromkeys(("safe_mean", "nanmean"), (16.0, 4.0))
ROOM |= dict.fromkeys(("safe_std", "nanstd"), (2.0**12, 8.0))
CUBES = ("safe_norm, ord=1.5", "safe_norm, ord=3")  # whose powers reach far
SMOOTH = ("safe_norm, ord=2", "safe_norm, ord=3", "safe_distance", "safe_rms", "safe_std", "nanstd")
UNITS = 24  # of the largest of its terms: a cube root loses 8, of powers within 256 of 1


def scaled_reference(name, dtype):
    """Return the slices, and value, gradient and Hessian times `ALONG`, over all exponents."""
    _, exact = HOMOGENEOUS[name]
    x, sizes = slices(name, dtype)
    near = np.asarray(x, np.longdouble) / sizes[:, None]
    value, slope, turn = exact(near, np.broadcast_to(np.asarray(ALONG, np.longdouble), x.shape))
    return x, sizes, value * sizes, slope, turn / sizes[:, None]


def assert_within(got, exact, dtype, message):
    """Each result is right to some units in the last place of the largest of its slice."""
    exact = np.asarray(exact, np.longdouble)
    largest_size = np.abs(exact).max(-1, keepdims=True) if exact.ndim > 1 else np.abs(exact)
    assert_ulps(got, exact, UNITS, dtype, size=largest_size, message=message)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_values_of_all_exponents(name, dtype, framework):
    """The value is right wherever it is a number of the dtype."""
    if dtype in ("float16", "bfloat16") and framework in ("numpy", "array-api-strict"):
        pytest.skip("the standard has no narrow dtypes, and NumPy no bfloat16")
    x, _, value, *_ = scaled_reference(name, dtype)

    got = to_numpy(HOMOGENEOUS[name][0](asarray(framework, x, dtype))).astype(float)

    assert_within(got, value, dtype, name)


@pytest.mark.parametrize("dtype", SWEPT)
@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_derivatives_of_all_exponents(name, dtype, way):
    """Gradient, tangent and second derivatives are right wherever they are numbers of the dtype."""
    x, sizes, _, slope, turn = scaled_reference(name, dtype)
    if way[0] == "tensorflow" and name in CUBES:  # 0 at the ends of the range
        here = (sizes >= 16 * FORMATS[dtype].normal) & (sizes <= FORMATS[dtype].max / 2**10)
        x, sizes, slope, turn = x[here], sizes[here], slope[here], turn[here]

    got = derivatives_of(HOMOGENEOUS[name][0], x, dtype, way, second=name in SMOOTH)

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
