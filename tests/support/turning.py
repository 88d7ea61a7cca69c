"""
The functions of rotations in mpmath: textbook formulas with 50 digits more than needed.

A row has the function, its formula and its points. Values, gradients and products of the Hessian
come from the formula by central differences, which in 220 digits are exact to 40. A formula also
takes the point at which the differences are taken, and chooses its branch there.
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import mpmath
import numpy as np
from mpmath import mp

DIGITS, STEP = 220, mpmath.mpf("1e-60")


@dataclass(frozen=True, eq=False)  # a row is itself, so that its numbers are computed once
class Row:
    """A function, its formula, what people write, and points as tuples of arguments."""

    name: str
    op: object
    formula: object
    points: tuple
    # Points for float32, if they differ: its range is smaller.
    narrow: tuple = None
    # Whether only the directions of the arguments count: steps then scale with the arguments.
    scaled: bool = False
    # What people write in its place.
    naive: object = None
    synonyms: str = ""  # words that people may search for

    def points_in(self, dtype):
        """Return the points of a dtype, rounded to it."""
        points = self.narrow if dtype == "float32" and self.narrow else self.points
        return [tuple(np.asarray(x, dtype=dtype).astype(float) for x in p) for p in points]


# Formulas. Vectors are lists of mpf.


def dot(a, b):
    """Return the inner product."""
    return mp.fsum(x * y for x, y in zip(a, b, strict=True))


def norm(a):
    """Return the length."""
    return mp.sqrt(dot(a, a))


def cross(a, b):
    """Return the cross product."""
    return [a[i - 2] * b[i - 1] - a[i - 1] * b[i - 2] for i in range(3)]


def times(factor, a):
    """Return a multiple."""
    return [factor * x for x in a]


def plus(*vectors):
    """Return the sum."""
    return [mp.fsum(x) for x in zip(*vectors, strict=True)]


def rotated(w, x):
    """Return a vector, turned by Rodrigues' formula."""
    t = norm(w)
    if t == 0:
        return plus(x, cross(w, x))
    n = times(1 / t, w)
    return plus(
        times(mp.cos(t), x), times(mp.sin(t), cross(n, x)), times((1 - mp.cos(t)) * dot(n, x), n)
    )


def matrix_of(w):
    """Return the entries of a matrix, row by row."""
    columns = [rotated(w, [mp.mpf(i == k) for i in range(3)]) for k in range(3)]
    return [columns[k][i] for i in range(3) for k in range(3)]


def quaternion_of(w):
    """Return the quaternion of a rotation vector."""
    t = norm(w)
    return [*times(mp.sin(t / 2) / t if t else mp.mpf("0.5"), w), mp.cos(t / 2)]


def vector_of(q, at):
    """Return the rotation vector of a quaternion; the sign is chosen at a point."""
    sign = -1 if at[3] < 0 else 1
    v, s = times(sign, q[:3]), sign * q[3]
    sine = norm(v)
    return times(2 * mp.atan2(sine, s) / sine if sine else 2 / s, v)


def quaternion_of_matrix(m, at):
    """Return a unit quaternion; the formula and the sign are chosen at a point."""
    rows = (_four(m), _four(at))
    k = max(range(4), key=lambda k: (rows[1][k][k], -((k + 1) % 4)))
    sign = -1 if rows[1][k][3] < 0 else 1
    return times(sign / norm(rows[0][k]), rows[0][k])


def _four(m):
    """Return four times the products of the entries of the quaternion of a matrix."""
    (a, b, c), (d, e, f), (g, h, i) = m[:3], m[3:6], m[6:]
    return (
        (1 + a - e - i, b + d, c + g, h - f),
        (b + d, 1 - a + e - i, f + h, c - g),
        (c + g, f + h, 1 - a - e + i, d - b),
        (h - f, c - g, d - b, 1 + a + e + i),
    )


def vector_of_matrix(m, at):
    """Return the rotation vector of a matrix."""
    return vector_of(quaternion_of_matrix(m, at), quaternion_of_matrix(at, at))


def matrix_of_quaternion(q):
    """Return the entries of the matrix of a quaternion of any length."""
    *v, s = times(1 / norm(q), q)
    columns = []
    for k in range(3):
        x = [mp.mpf(i == k) for i in range(3)]
        columns.append(plus(x, times(2 * s, cross(v, x)), times(2, cross(v, cross(v, x)))))
    return [columns[k][i] for i in range(3) for k in range(3)]


def product(p, q):
    """Return the product of quaternions."""
    (*a, r), (*b, s) = p, q
    return [*plus(times(r, b), times(s, a), cross(a, b)), r * s - dot(a, b)]


def slerp(p, q, t, at):
    """Return the interpolated quaternion, by the angle between the two; half turns by their way."""

    def back(p, q):
        p = times(1 / norm(p), p)
        return product([*times(-1, p[:3]), p[3]], times(1 / norm(q), q))

    whole = vector_of(back(p, q), back(*at[:2]))
    return product(times(1 / norm(p), p), quaternion_of(times(t[0], whole)))


def angle(a, b):
    """Return the angle between vectors."""
    cosine = dot(a, b) / norm(a) / norm(b)
    return mp.atan2(mp.sqrt(1 - cosine**2), cosine)


def squared_angle(a, b):
    """Return its square, by a formula that is smooth at parallel vectors."""
    c = 1 - dot(a, b) / norm(a) / norm(b)
    # acos(1 - c)**2 = 2 c + c**2 / 3 + 4 c**3 / 45 + ...
    return mp.acos(1 - c) ** 2 if abs(c) > mp.mpf("1e-55") else 2 * c + c * c / 3 + 4 * c**3 / 45


def dihedral(a, b, c, d, at):
    """Return the torsion angle, with the turn that it has at a point."""
    first, axis, last = (plus(y, times(-1, x)) for x, y in ((a, b), (b, c), (c, d)))
    n, m = cross(first, axis), cross(axis, last)
    found = mp.atan2(dot(cross(n, m), axis) / norm(axis), dot(n, m))
    centre = found if at is None else dihedral(*at, None)
    return found + 2 * mp.pi * mp.nint((centre - found) / (2 * mp.pi))


def matrix_of_twist(twist):
    """Return the entries of the matrix of a rigid motion."""
    w, v = twist[:3], twist[3:]
    t = norm(w)
    first, second = (
        ((1 - mp.cos(t)) / t**2, (t - mp.sin(t)) / t**3) if t else (mp.mpf(1) / 2, mp.mpf(1) / 6)
    )
    way = plus(v, times(first, cross(w, v)), times(second, cross(w, cross(w, v))))
    turn = matrix_of(w)
    upper = [x for i in range(3) for x in (*turn[3 * i : 3 * i + 3], way[i])]
    return [*upper, mp.mpf(0), mp.mpf(0), mp.mpf(0), mp.mpf(1)]


def twist_of_matrix(m, at):
    """Return the twist of a rigid motion."""
    turn, at = ([x for i in range(3) for x in m[4 * i : 4 * i + 3]] for m in (m, at))
    w, way = vector_of_matrix(turn, at), m[3:12:4]
    t = norm(w)
    factor = (1 - t / 2 * mp.cot(t / 2)) / t**2 if t else mp.mpf(1) / 12
    once = cross(w, way)
    return [*w, *plus(way, times(mp.mpf(-1) / 2, once), times(factor, cross(w, once)))]


def numbers(values):
    """Return a flat list of mpf."""
    return [mp.mpf(float(x)) for x in np.ravel(values)]


def in_floats(formula, *args):
    """Return what a formula has at floats, as floats of the shape of a square if there is one."""
    with mp.workdps(60):
        found = np.array([float(x) for x in formula(*map(numbers, args))])
    side = round(len(found) ** 0.5)
    return found.reshape(side, side) if side**2 == len(found) and side != 2 else found


AXIS = np.array([2.0, -1.0, 2.0]) / 3


def ramp(shape, seed):
    """Return numbers about 1 with no symmetry, so that no error cancels."""
    return 1 + 0.5 * np.cos(seed + 1.7 * np.arange(np.prod(shape, dtype=int))).reshape(shape)


@dataclass(frozen=True)
class Exact:
    """A point, the value, and of a weighted sum of it the gradient and the Hessian times v."""

    point: np.ndarray
    value: np.ndarray
    gradient: np.ndarray
    product: np.ndarray


@cache
def exact(row, dtype):
    """Return value, gradient and product of the Hessian at each point of a row."""
    return [at_point(row, point) for point in row.points_in(dtype)]


def at_point(row, point):
    """Return the exact numbers at a point."""
    shapes = [x.shape for x in point]
    along = numbers(flat([ramp(s, k) for k, s in enumerate(shapes)]))
    splits = np.cumsum([int(np.prod(s)) for s in shapes])[:-1]
    with mp.workdps(DIGITS):
        x = [y for a in point for y in numbers(a)]
        at = cut(x, splits)
        steps = lengths(at) if row.scaled else [STEP] * len(x)
        value = row.formula(*at, at)
        weights = numbers(ramp((len(value),), 5))

        def g(x):
            return dot(weights, row.formula(*cut(x, splits), at))

        first = slopes(g, x, steps)
        step = min(steps)
        ahead, behind = (slopes(g, plus(x, times(s * step, along)), steps) for s in (1, -1))
        second = [(a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True)]
        return Exact(*(np.array([float(x) for x in xs]) for xs in (x, value, first, second)))


def lengths(at):
    """Return the steps for each entry: a part of the largest one of its argument."""
    largest = [max(map(abs, a)) for a in at]
    sizes = [size or max(largest) for size in largest]
    return [STEP * size for size, a in zip(sizes, at, strict=True) for _ in a]


def slopes(g, x, steps):
    """Return the gradient by central differences."""
    found = []
    for k, step in enumerate(steps):
        sides = [g([y + s * step * (i == k) for i, y in enumerate(x)]) for s in (1, -1)]
        found.append((sides[0] - sides[1]) / (2 * step))
    return found


def cut(x, splits):
    """Return a flat list as lists, one an argument."""
    ends = [0, *splits, len(x)]
    return [x[a:b] for a, b in pairwise(ends)]


def flat(arrays):
    """Return arrays as one, of one axis."""
    return np.concatenate([np.ravel(a) for a in arrays])


@cache
def shape_of(row):
    """Return the shape of a result at one point."""
    return np.shape(row.op(*row.points_in("float64")[-1]))


def value_at(row, point):
    """Return the exact value at a point, as floats."""
    with mp.workdps(60):
        at = [numbers(x) for x in point]
        return [float(x) for x in row.formula(*at, at)]


def value_of_angle(a, b):
    """Return the exact angle between two vectors."""
    with mp.workdps(60):
        return float(angle(numbers(a), numbers(b)))
