"""Rotations over the range of exponents: value, gradient and second derivative are exact."""

from dataclasses import replace

import numpy as np
import pytest

import turning
from specs.rotations import POINTS, SPECS, TORSIONS
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
    sizes = np.geomspace(10.0 ** RANGE[dtype][0], 1e2, POINTS)
    return [(w,) for w in sizes[:, None] * directions(POINTS)]


def quaternions(dtype):
    """Return quaternions of all angles and all lengths, each with both signs."""
    least, most = RANGE[dtype]
    lengths = np.roll(np.geomspace(10.0 ** (least / 2), 10.0**most, POINTS), 7)
    # No entry is subnormal, which JAX and TensorFlow take for 0.
    angles = np.maximum(np.geomspace(10.0**least, 3.0, POINTS), 10.0 ** (least + 3) / lengths)
    units = [
        turning.in_floats(turning.quaternion_of, w) for w in angles[:, None] * directions(POINTS)
    ]
    return [
        (sign * k * q,)
        for k, q, sign in zip(lengths, units, np.resize([1.0, -1.0], POINTS), strict=True)
    ]


def turns(dtype):
    """Return rotation vectors of all lengths up to half a turn, and at all distances from it."""
    away = np.geomspace(max(10.0 ** RANGE[dtype][0], 1e-300), 3.0, POINTS)
    angles = np.where(np.arange(POINTS) % 4 == 3, np.pi - away, away)
    return angles[:, None] * directions(POINTS)


def matrices(dtype):
    """Return their matrices."""
    return [(turning.in_floats(turning.matrix_of, w),) for w in turns(dtype)]


def motions(dtype):
    """Return rigid motions, with translations of all lengths."""
    ways = np.array([v[3:] for (v,) in twists(dtype)])
    last = [[0.0, 0.0, 0.0, 1.0]]
    return [
        (np.concatenate([np.concatenate([m, way[:, None]], axis=1), last]),)
        for (m,), way in zip(matrices(dtype), ways, strict=True)
    ]


def ways(dtype):
    """Return quaternions of many lengths, turns of all sizes between them, parts of the way."""
    # Of lengths or turns that differ by more, differences in 220 digits have no digits.
    most = 10.0 ** (-RANGE[dtype][0] / 6)
    lengths = np.geomspace(1 / most, most, POINTS)
    angles = np.roll(np.geomspace(most**-2, 3.0, POINTS), 9)
    turns = (
        turning.in_floats(turning.quaternion_of, w) for w in angles[:, None] * directions(POINTS)
    )
    parts = np.resize([0.3, 1.5, -0.5, 1e-9], POINTS)
    north = np.array([0.0, 0.0, 0.0, 1.0])
    return [
        (k * north, m * q, t)
        for k, m, q, t in zip(lengths, lengths[::-1], turns, parts, strict=True)
    ]


def twists(dtype):
    """Return rotation vectors of all lengths, and translations of all lengths."""
    least, most = RANGE[dtype]
    lengths = np.roll(np.geomspace(10.0 ** (least / 2), 10.0 ** (most / 2), POINTS), 9)
    ways = lengths[:, None] * directions(POINTS)[::-1]
    return [(np.concatenate([w, v]),) for (w,), v in zip(vectors(dtype), ways, strict=True)]


def pairs(dtype):
    """Return vectors of all lengths, at angles that rounding leaves alone."""
    least, most = RANGE[dtype]
    lengths = np.geomspace(10.0 ** (least / 2), 10.0**most, POINTS)
    return [
        (k * np.array([1.0, 0.0, 0.0]), m * np.array([s, t, 0.0]))
        for k, m, s, t in zip(
            lengths,
            np.roll(lengths, 5),
            np.resize([1.0, -1.0], POINTS),
            np.geomspace(1e-8 if dtype == "float64" else 1e-3, 1e3, POINTS),
            strict=True,
        )
    ]


def torsions(dtype):
    """Return chains of four points of all sizes."""
    least, most = RANGE[dtype]
    sizes = np.geomspace(10.0 ** (least / 2), 10.0**most, POINTS)
    points = (TORSIONS[i % 10] for i in range(POINTS))  # none nearly on a line
    return [tuple(k * np.asarray(x) for x in p) for k, p in zip(sizes, points, strict=True)]


SWEPT = {
    "rotvec_to_matrix": vectors,
    "rotvec_to_quaternion": vectors,
    "quaternion_to_rotvec": quaternions,
    "quaternion_to_matrix": quaternions,
    "matrix_to_rotvec": matrices,
    "matrix_to_quaternion": matrices,
    "matrix_to_twist": motions,
    "quaternion_slerp": ways,
    "twist_to_matrix": twists,
    "safe_angle": pairs,
    "squared_angle": pairs,
    "safe_dihedral": torsions,
}


@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("name", SWEPT)
def test_all_exponents_are_right(name, dtype, autodiff_framework):
    """Angles and lengths of every size have the exact derivatives, as far as they are in range."""
    row = next(row for row in SPECS if row.name == name)
    scaled = row.scaled or name == "quaternion_slerp"
    row = replace(row, points=SWEPT[name](dtype), narrow=None, scaled=scaled)
    mode = MODE[autodiff_framework]
    skipped = {(autodiff_framework, mode): (LEFT_OUT, "the table of points has them")}
    exact = [turning.at_point(row, point) for point in row.points_in(dtype)]

    got = found(row, autodiff_framework, mode, dtype, skipped)

    for order, error in errors(row, got, dtype, exact).items():
        assert error.max() <= RTOL[dtype], (order, error.max(), row.points[error.argmax()])


def askew(dtype):
    """Return vectors in general position, at angles that grow, from 0 and from pi by turns."""
    angles = np.geomspace(1e-9 if dtype == "float64" else 1e-4, 1.0, 8)[:, None]
    a = directions(8) * np.geomspace(1e-3, 1e3, 8)[:, None]
    away = np.cross(a, directions(16)[8:])
    away *= np.linalg.norm(a, axis=-1, keepdims=True) / np.linalg.norm(away, axis=-1, keepdims=True)
    sign = np.resize([1.0, -1.0], 8)[:, None]
    return list(zip(a, 0.7 * (sign * a + angles * away), strict=True))


ASKEW = {
    name: replace(row, points=askew("float64"), narrow=askew("float32"))
    for name in ("safe_angle", "squared_angle")
    for row in SPECS
    if row.name == name
}


def units_askew(row, framework, dtype, op):
    """Return by order the errors of vectors in general position, in roundings over the angle."""
    skipped = {(framework, MODE[framework]): (LEFT_OUT, "the table of points has them")}
    angles = np.array([turning.value_of_angle(*point) for point in row.points_in(dtype)])
    rounding = np.finfo(dtype).eps / np.minimum(angles, np.pi - angles)
    got = found(replace(row, op=op), framework, MODE[framework], dtype, skipped)
    by_order = errors(row, got, dtype, turning.exact(row, dtype))
    return {order: (error / rounding).max() for order, error in by_order.items()}


@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("name", ASKEW)
def test_vectors_in_general_position(name, dtype, autodiff_framework):
    """Angles are right to rounding in radians, derivatives to a part: rounding over the angle."""
    row = ASKEW[name]

    units = units_askew(row, autodiff_framework, dtype, row.op)
    naive = units_askew(row, autodiff_framework, dtype, row.naive)

    assert units["value"] <= 4
    assert units["reverse"] <= 4
    assert units["fwd-rev"] <= 32
    assert min(naive.values()) > 100
