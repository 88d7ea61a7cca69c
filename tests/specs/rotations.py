"""The specifications of the functions in `rotations.py`: formulas of `turning`, and points."""

import numpy as np

from safeops import rotations
from safeops._dispatch import backend_of
from turning import (
    AXIS,
    Row,
    angle,
    dihedral,
    in_floats,
    matrix_of,
    matrix_of_quaternion,
    matrix_of_twist,
    quaternion_of,
    quaternion_of_matrix,
    slerp,
    squared_angle,
    twist_of_matrix,
    vector_of,
    vector_of_matrix,
)

PI = float(np.pi)
ANGLES = (0.0, 1e-30, 1e-9, 1e-4, 1.0, 1.8, 3.0, PI - 1e-9, PI)
VECTORS = [(k * AXIS,) for k in (*ANGLES, 4.0, 2 * PI, 50.0)]
VECTORS += [([PI, 0, 0],), ([0, 1e-9, 0],), ([1e-200, -1e-200, 0],)]
# The last place of an angle of 50 is 4e-6 in float32.
VECTORS_IN_FLOAT32 = [p for p in VECTORS if np.max(p) < 30]
MATRICES = [(in_floats(matrix_of, k * AXIS),) for k in ANGLES]
MATRICES += [(np.diag(d),) for d in ([1.0, -1, -1], [-1.0, 1, -1], [-1.0, -1, 1])]
MATRICES += [(in_floats(matrix_of, w),) for w in ([-3.0, 0.5, 0.1], [0.3, -3.0, 0.2])]
UNITS = [in_floats(quaternion_of, k * AXIS) for k in ANGLES]
HALF = np.array([0.48, -0.6, 0.64, 0.0])
QUATERNIONS = [(sign * q,) for q in UNITS for sign in (1, -1)]
QUATERNIONS += [(HALF,), (-HALF,), (3.7 * UNITS[3],), (-0.2 * UNITS[5],), ([0.0, 0.0, 1e-3, 7.0],)]
FAR = [(1e200 * UNITS[5],), (-1e-200 * UNITS[4],), ([1e-290, 0.0, 0.0, 1e-260],)]
FAR_IN_FLOAT32 = [(1e20 * UNITS[5],), (-1e-20 * UNITS[4],), ([1e-30, 0.0, 0.0, 1e-26],)]
PAIRS = [
    (UNITS[4], UNITS[4], 0.3),
    (UNITS[4], -UNITS[4], 0.3),
    (2.5 * UNITS[5], 0.5 * UNITS[0], 0.8),
]
PAIRS += [([0.0, 0, 0, 1], [0.6, 0.8, 0, 0], t) for t in (0.0, 0.25, 1.0, -0.5)]
PAIRS += [
    ([0.0, 0, 0, 1], [1e-9, -2e-9, 0, 1], 0.4),
    (UNITS[6], -UNITS[2], 0.6),
    (UNITS[0], UNITS[1], 1.5),
]
X, Y = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]
BETWEEN = [(X, [1.0, s, 0.0]) for s in (1e-30, -1e-9, 1e-4, 1.0, 50.0)]
BETWEEN += [(X, [-1.0, s, s]) for s in (1e-30, 1e-9, 1e-4)]
BETWEEN += [([1.0, 2.0, -2.0], [0.5, 3.0, 1.0]), (X, Y)]
SCALED = [([1e200, 2e200, 0.0], [0.0, 1e-200, 3e-200]), ([1e-290, 1e-290, 0.0], [1e-290, 0.0, 0.0])]
SCALED_IN_FLOAT32 = [([1e20, 2e20, 0.0], [0.0, 1e-20, 3e-20]), ([1e-25, 1e-25, 0], [1e-25, 0, 0])]
PARALLEL = [
    (X, X),
    ([1.0, 2.0, -2.0],) * 2,
    ([1.0, 2.0, -2.0], [2.0, 4.0, -4.0]),
    (Y, [0.0, 3.0, 0]),
]
B, C = [0.0, 0.0, 0.0], [0.0, 0.0, 1.5]
TORSIONS = [([1.0, 0, 0.2], B, C, [np.cos(t), np.sin(t), 1.0]) for t in (1.0, -2.0, 1e-4, 3.0)]
TORSIONS += [([1.0, 0, 0], B, C, [2.0, y, 1.5]) for y in (0.0, 1e-9, -1e-30)]  # cis
TORSIONS += [([1.0, 0, 0], B, C, [-2.0, y, 1.5]) for y in (0.0, 1e-9, -1e-6)]  # trans
TORSIONS += [([s, 0, 1.0], B, C, [0.0, s, 1.0]) for s in (1e-9, 1e-30)]  # nearly on a line
TORSIONS += [([1.0, 0, 0], B, C, [0, 1.0, 1.0])]
LONG = [tuple(np.multiply(s, p) for p in TORSIONS[0]) for s in (1e150, 1e-150)]
LONG_IN_FLOAT32 = [tuple(np.multiply(s, p) for p in TORSIONS[0]) for s in (1e18, 1e-18)]
WAY = [0.3, -2.0, 0.7]
TWISTS = [(np.concatenate([w, WAY]),) for (w,) in VECTORS]
TWISTS += [(np.zeros(6),), (np.array([0.0, 1e-9, 0, 0, 1e-9, 1e-9]),)]
MOTIONS = [
    (np.block([[m, np.array([WAY]).T], [np.zeros((1, 3)), np.ones((1, 1))]]),) for (m,) in MATRICES
]

# What people write.


def naive_quaternion(w):
    """The vector over a norm: NaN at 0."""
    xp = backend_of(w).xp
    t = xp.sum(w * w, axis=-1, keepdims=True) ** 0.5
    return xp.concat([xp.sin(t / 2) / t * w, xp.cos(t / 2)], axis=-1)


def naive_vector(q):
    """The logarithm by the arc cosine, which has an infinite slope at the identity."""
    xp, s = backend_of(q).xp, q[..., 3:]
    return 2 * xp.acos(s) / xp.sqrt(1 - s * s) * q[..., :3]


def naive_angle(a, b):
    """The arc cosine of the cosine."""
    xp = backend_of(a).xp
    square = xp.sum(a * a, axis=-1) * xp.sum(b * b, axis=-1)
    return xp.acos(xp.sum(a * b, axis=-1) / square**0.5)


def naive_torsion(a, b, c, d):
    """The arc cosine of the cosine between two normals."""
    return naive_angle(naive_cross(b - a, c - b), naive_cross(c - b, d - c))


def naive_cross(a, b):
    """The cross product."""
    parts = [a[..., i - 2] * b[..., i - 1] - a[..., i - 1] * b[..., i - 2] for i in range(3)]
    return backend_of(a).xp.concat([part[..., None] for part in parts], axis=-1)


SPECS = (
    Row(
        "rotvec_to_matrix",
        rotations.rotvec_to_matrix,
        lambda w, _: matrix_of(w),
        VECTORS,
        VECTORS_IN_FLOAT32,
        naive=lambda w: rotations.quaternion_to_matrix(naive_quaternion(w)),
    ),
    Row(
        "matrix_to_rotvec",
        rotations.matrix_to_rotvec,
        lambda m, at: vector_of_matrix(m, at[0]),
        MATRICES,
    ),
    Row(
        "rotvec_to_quaternion",
        rotations.rotvec_to_quaternion,
        lambda w, _: quaternion_of(w),
        VECTORS,
        VECTORS_IN_FLOAT32,
        naive=naive_quaternion,
    ),
    Row(
        "quaternion_to_rotvec",
        rotations.quaternion_to_rotvec,
        lambda q, at: vector_of(q, at[0]),
        QUATERNIONS + FAR,
        QUATERNIONS + FAR_IN_FLOAT32,
        scaled=True,
        naive=naive_vector,
    ),
    Row(
        "quaternion_to_matrix",
        rotations.quaternion_to_matrix,
        lambda q, _: matrix_of_quaternion(q),
        QUATERNIONS + FAR,
        QUATERNIONS + FAR_IN_FLOAT32,
        scaled=True,
    ),
    Row(
        "matrix_to_quaternion",
        rotations.matrix_to_quaternion,
        lambda m, at: quaternion_of_matrix(m, at[0]),
        MATRICES,
    ),
    Row("quaternion_slerp", rotations.quaternion_slerp, slerp, PAIRS),
    Row(
        "safe_angle",
        rotations.safe_angle,
        lambda a, b, _: [angle(a, b)],
        BETWEEN + SCALED,
        BETWEEN + SCALED_IN_FLOAT32,
        scaled=True,
        naive=naive_angle,
    ),
    Row(
        "squared_angle",
        rotations.squared_angle,
        lambda a, b, _: [squared_angle(a, b)],
        BETWEEN + SCALED + PARALLEL,
        BETWEEN + SCALED_IN_FLOAT32 + PARALLEL,
        scaled=True,
        naive=lambda a, b: naive_angle(a, b) ** 2,
    ),
    Row(
        "safe_dihedral",
        rotations.safe_dihedral,
        lambda a, b, c, d, at: [dihedral(a, b, c, d, at)],
        TORSIONS + LONG,
        TORSIONS + LONG_IN_FLOAT32,
        scaled=True,
        naive=naive_torsion,
    ),
    Row("twist_to_matrix", rotations.twist_to_matrix, lambda x, _: matrix_of_twist(x), TWISTS),
    Row(
        "matrix_to_twist",
        rotations.matrix_to_twist,
        lambda m, at: twist_of_matrix(m, at[0]),
        MOTIONS,
    ),
)
POINTS = max(len(row.points) for row in SPECS)
