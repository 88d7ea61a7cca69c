"""Rotations over the range of exponents: value, gradient and second derivative are exact."""

from dataclasses import replace

import numpy as np
import pytest

import turning
from turned import errors, found

RTOL = {"float64": 1e-9, "float32": 1e-5}
MODE = {"torch": "func", "jax": "jit", "tensorflow": "eager"}
LEFT_OUT = ("forward", "rev-rev", "rev-fwd", "fwd-fwd")
RANGE = {"float64": (-300, 150), "float32": (-36, 18)}


def directions(count, size=3):
    """Return unit vectors, the same ones in each run."""
    x = np.random.default_rng(11).normal(size=(count, size))
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def vectors(dtype):
    """Return rotation vectors from the smallest length to 100."""
    sizes = np.geomspace(10.0 ** RANGE[dtype][0], 1e2, turning.POINTS)
    return [(w,) for w in sizes[:, None] * directions(turning.POINTS)]


def quaternions(dtype):
    """Return quaternions of all angles and all lengths, each with both signs."""
    least, most = RANGE[dtype]
    lengths = np.roll(np.geomspace(10.0 ** (least / 2), 10.0**most, turning.POINTS), 7)
    # No entry is subnormal, which JAX and TensorFlow take for 0.
    angles = np.maximum(
        np.geomspace(10.0**least, 3.0, turning.POINTS), 10.0 ** (least + 3) / lengths
    )
    units = [
        turning.in_floats(turning.quaternion_of, w)
        for w in angles[:, None] * directions(turning.POINTS)
    ]
    return [
        (sign * k * q,)
        for k, q, sign in zip(lengths, units, np.resize([1.0, -1.0], turning.POINTS), strict=True)
    ]


def twists(dtype):
    """Return rotation vectors of all lengths, and translations of all lengths."""
    least, most = RANGE[dtype]
    lengths = np.roll(np.geomspace(10.0 ** (least / 2), 10.0 ** (most / 2), turning.POINTS), 9)
    ways = lengths[:, None] * directions(turning.POINTS)[::-1]
    return [(np.concatenate([w, v]),) for (w,), v in zip(vectors(dtype), ways, strict=True)]


def pairs(dtype):
    """Return vectors of all lengths, at angles that rounding leaves alone."""
    least, most = RANGE[dtype]
    lengths = np.geomspace(10.0 ** (least / 2), 10.0**most, turning.POINTS)
    return [
        (k * np.array([1.0, 0.0, 0.0]), m * np.array([s, t, 0.0]))
        for k, m, s, t in zip(
            lengths,
            np.roll(lengths, 5),
            np.resize([1.0, -1.0], turning.POINTS),
            np.geomspace(1e-8 if dtype == "float64" else 1e-3, 1e3, turning.POINTS),
            strict=True,
        )
    ]


def torsions(dtype):
    """Return chains of four points of all sizes."""
    least, most = RANGE[dtype]
    sizes = np.geomspace(10.0 ** (least / 2), 10.0**most, turning.POINTS)
    points = (turning.TORSIONS[i % 10] for i in range(turning.POINTS))  # none nearly on a line
    return [tuple(k * np.asarray(x) for x in p) for k, p in zip(sizes, points, strict=True)]


SWEPT = {
    "rotvec_to_matrix": vectors,
    "rotvec_to_quaternion": vectors,
    "quaternion_to_rotvec": quaternions,
    "quaternion_to_matrix": quaternions,
    "twist_to_matrix": twists,
    "safe_angle": pairs,
    "squared_angle": pairs,
    "safe_dihedral": torsions,
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("name", SWEPT)
def test_all_exponents_are_right(name, dtype, autodiff_framework):
    """Angles and lengths of every size have the exact derivatives, as far as they are in range."""
    row = next(row for row in turning.ROWS if row.name == name)
    row = replace(row, points=SWEPT[name](dtype), narrow=None)
    mode = MODE[autodiff_framework]
    skipped = {(autodiff_framework, mode): (LEFT_OUT, "the table of points has them")}
    exact = [turning.at_point(row, point) for point in row.points_in(dtype)]

    got = found(row, autodiff_framework, mode, dtype, skipped)

    for order, error in errors(row, got, dtype, exact).items():
        assert error.max() <= RTOL[dtype], (order, error.max(), row.points[error.argmax()])
