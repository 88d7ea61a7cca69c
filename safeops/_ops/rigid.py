"""
Turns and rigid motions: the formulas, which are smooth wherever the functions are.

A turn is a unit quaternion: a vector v and a scalar s, each with the last axis kept. A formula that
is 0 / 0 at the identity is replaced near it by a power series, under a double where.
"""

from safeops._core.types import Array, Namespace
from safeops._ops.norms import safe_norm
from safeops._ops.series import ARC_TANGENT, COSINE, COTANGENT, CUBIC, SINE, polynomial
from safeops._ops.vectors import cross, entries, rows, scaled, total, unit
from safeops._ops.where import double_where

Turn = tuple[Array, Array]


# Turns.


def is_small(xp: Namespace, w: Array) -> Array:
    """Whether a rotation vector is short enough for the series: each entry is below 1."""
    return xp.all(xp.abs(w) < 1, axis=-1, keepdims=True)


def turn_of_vector(xp: Namespace, w: Array) -> Turn:
    """Return the turn of a rotation vector: ``sin(angle / 2) / angle * w``, ``cos(angle / 2)``."""
    small = is_small(xp, w)
    inside = xp.where(small, w, 0.0)
    quarter = total(xp, inside * inside) / 4.0
    half = safe_norm(xp.where(small, 1.0, w), axis=-1, keepdims=True) / 2.0
    factor = xp.where(small, polynomial(quarter, SINE), xp.sin(half) / half)
    return w * (factor / 2.0), xp.where(small, polynomial(quarter, COSINE), xp.cos(half))


def vector_of_turn(xp: Namespace, q: Array) -> Array:
    """Return the rotation vector of a quaternion of any length; 0 for the quaternion 0."""
    inside, zero = scaled(xp, q)
    v, s = inside[..., :3], inside[..., 3:]
    v, s = xp.where(s < 0, -v, v), xp.where(s < 0, -s, s)

    def series(v: Array, s: Array) -> Array:
        tangent = v / s
        return 2.0 * polynomial(total(xp, tangent * tangent), ARC_TANGENT) * tangent

    def formula(v: Array, s: Array) -> Array:
        sine = xp.sqrt(total(xp, v * v))
        return 2.0 * xp.atan2(sine, s) / sine * v

    near = total(xp, v * v) < s * s / 8.0
    return xp.where(zero, 0.0, double_where(xp, near, (v, s), series, formula, (1.0, 1.0)))


def matrix_of_turn(xp: Namespace, turn: Turn) -> Array:
    """Return the matrix of a turn."""
    v, s = turn
    x, y, z = entries(v, 3)
    xx, yy, zz, xy, yz, zx = x * x, y * y, z * z, x * y, y * z, z * x
    sx, sy, sz = s * x, s * y, s * z
    rest = (yy + zz, xy - sz, zx + sy), (xy + sz, xx + zz, yz - sx), (zx - sy, yz + sx, xx + yy)
    a, b, c = (2.0 * xp.concat(row, axis=-1) for row in rest)
    return rows(
        xp,
        xp.concat([1.0 - a[..., 0:1], a[..., 1:]], axis=-1),
        xp.concat([b[..., 0:1], 1.0 - b[..., 1:2], b[..., 2:]], axis=-1),
        xp.concat([c[..., :2], 1.0 - c[..., 2:]], axis=-1),
    )


def quaternion_of_matrix(xp: Namespace, matrix: Array) -> Array:
    """Return a multiple of the quaternion of a rotation matrix."""
    # There are four candidates: the quaternion times four times each of its entries. They are the
    # rows of a symmetric matrix. The row with the largest diagonal entry is returned. That entry is
    # at least 1 for every matrix, because the diagonal sums to 4.
    (a, b, c), (d, e, f), (g, h, i) = (entries(matrix[..., k, :], 3) for k in range(3))
    x, y, z = h - f, c - g, d - b
    xy, yz, zx = b + d, f + h, c + g
    largest = 1.0 + (a + e + i)
    best = xp.concat([x, y, z, largest], axis=-1)
    others = (
        (1.0 + (a - e - i), xy, zx, x),
        (xy, 1.0 + (e - a - i), yz, y),
        (zx, yz, 1.0 + (i - a - e), z),
    )
    for k, row in enumerate(others):
        better = row[k] > largest
        best = xp.where(better, xp.concat(row, axis=-1), best)
        largest = xp.where(better, row[k], largest)
    return best


def product(xp: Namespace, p: Turn, q: Turn) -> Turn:
    """Return the turn that turns by q first, then by p."""
    (a, r), (b, s) = p, q
    return r * b + s * a + cross(xp, a, b), r * s - total(xp, a * b)


def matrix_of_quaternion(xp: Namespace, q: Array) -> Array:
    """Return the matrix of a quaternion of any length; the identity for the quaternion 0."""
    direction, zero = unit(xp, q)
    turn = xp.where(zero, 0.0, direction[..., :3]), xp.where(zero, 1.0, direction[..., 3:])
    return matrix_of_turn(xp, turn)


def unit_of_matrix(xp: Namespace, matrix: Array) -> Array:
    """Return the unit quaternion of a matrix; its scalar is not negative."""
    q, _ = unit(xp, quaternion_of_matrix(xp, matrix))
    return xp.where(q[..., 3:] < 0, -q, q)


def slerp(xp: Namespace, p: Array, q: Array, t: Array) -> Array:
    """Interpolate between two quaternions of any length, at `t`; 0 where one of them is 0."""
    (start, no_start), (end, no_end) = unit(xp, p), unit(xp, q)
    v, s = start[..., :3], start[..., 3:]
    back = product(xp, (-v, s), (end[..., :3], end[..., 3:]))
    whole = vector_of_turn(xp, xp.concat(back, axis=-1))
    part = turn_of_vector(xp, xp.expand_dims(t, axis=-1) * whole)
    result = xp.concat(product(xp, (v, s), part), axis=-1)
    return xp.where(xp.logical_or(no_start, no_end), 0.0, result)


# Rigid motions.


def translated(xp: Namespace, w: Array, v: Array) -> Array:
    """Return the translation of a screw motion."""
    # It is the integral of ``rotation(t * w) @ v`` over t from 0 to 1: v + (1 - cos) / angle * n x
    # v + (1 - sin / angle) * n x (n x v), with the axis n. For short vectors w stands in place of
    # n, and the factors are series.
    small = is_small(xp, w)
    inside = xp.where(small, w, 0.0)
    square = total(xp, inside * inside)
    angle = safe_norm(xp.where(small, 1.0, w), axis=-1, keepdims=True)
    axis = w / xp.where(small, 1.0, angle)
    half = polynomial(square / 4.0, SINE)
    sine = xp.sin(angle / 2.0)
    first = xp.where(small, half * half / 2.0, 2.0 * sine * sine / angle)
    second = xp.where(small, polynomial(square, CUBIC), 1.0 - xp.sin(angle) / angle)
    once = cross(xp, axis, v)
    return v + first * once + second * cross(xp, axis, once)


def untranslated(xp: Namespace, w: Array, way: Array) -> Array:
    """Return the v with ``translated(w, v) == way``, for angles of at most pi."""

    def formula(square: Array) -> Array:
        half = xp.sqrt(square) / 2.0
        return (1.0 - half * xp.cos(half) / xp.sin(half)) / square

    square = total(xp, w * w)
    factor = double_where(
        xp, square < 1, (square,), lambda square: polynomial(square, COTANGENT), formula, 0.5
    )
    once = cross(xp, w, way)
    return way - once / 2.0 + factor * cross(xp, w, once)


def matrix_of_twist(xp: Namespace, twist: Array) -> Array:
    """Return the matrix of a rigid motion."""
    w, v = twist[..., :3], twist[..., 3:]
    turn = matrix_of_turn(xp, turn_of_vector(xp, w))
    way = xp.expand_dims(translated(xp, w, v), axis=-1)
    upper = xp.concat([turn, way], axis=-1)
    zeros = xp.zeros_like(upper[..., :1, :])
    last = xp.concat([zeros[..., :3], xp.ones_like(zeros[..., 3:])], axis=-1)
    return xp.concat([upper, last], axis=-2)


def twist_of_matrix(xp: Namespace, matrix: Array) -> Array:
    """Return the twist of a rigid motion: its rotation vector, then the v of `translated`."""
    turn = quaternion_of_matrix(xp, matrix[..., :3, :3])
    w = vector_of_turn(xp, turn)
    return xp.concat([w, untranslated(xp, w, matrix[..., :3, 3])], axis=-1)
