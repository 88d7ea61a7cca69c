"""
Vectors on the last axis: directions, angles between vectors, and the torsion angle of four points.

Where only the direction counts, a vector is first divided by its largest entry, taken as a
constant. That constant cancels, so that none of its derivatives is needed, and no square leaves the
range.
"""

import math

from safeops._core.dtypes import limits
from safeops._core.types import Array, Axis, Namespace, T
from safeops._dispatch import backend_of
from safeops._ops.norms import safe_norm, safe_normalize
from safeops._ops.series import ARC_SINE, polynomial
from safeops._ops.where import stop_gradient


def require_shape(x: Array, *tail: int, of: str) -> Array:
    """Return `x`; ValueError if its last axes are known and have other lengths."""
    shape = x.shape
    if getattr(shape, "rank", 0) is None:
        return backend_of(x).with_trailing_shape(x, tail)
    given = tuple(shape)[-len(tail) :]
    fits = len(given) == len(tail)
    if not (fits and all(a in {None, b} for a, b in zip(given, tail, strict=True))):
        wanted = ", ".join(map(str, tail))
        msg = f"expected {of} of shape (..., {wanted}), got {tuple(shape)}"
        raise ValueError(msg)
    return backend_of(x).with_trailing_shape(x, tail) if None in given else x


# Parts of arrays: an entry keeps the last axis, with length 1.


def entries(x: Array, number: int) -> list[Array]:
    """Return the entries along the last axis."""
    return [x[..., i : i + 1] for i in range(number)]


def rows(xp: Namespace, *given: Array) -> Array:
    """Return the matrix of these rows."""
    return xp.concat([xp.expand_dims(row, axis=-2) for row in given], axis=-2)


def total(xp: Namespace, x: Array) -> Array:
    """Return the sum along the last axis."""
    return xp.sum(x, axis=-1, keepdims=True)


def cross_terms(xp: Namespace, a: Array, b: Array) -> tuple[Array, Array]:
    """Return two arrays of products whose difference is the cross product."""
    (x, y, z), (u, v, w) = entries(a, 3), entries(b, 3)
    return xp.concat([y * w, z * u, x * v], axis=-1), xp.concat([z * v, x * w, y * u], axis=-1)


def cross(xp: Namespace, a: Array, b: Array) -> Array:
    """Return the cross product."""
    more, less = cross_terms(xp, a, b)
    return more - less


def scaled(xp: Namespace, x: Array) -> tuple[Array, Array]:
    """Return `x` over its largest entry, a constant, and where x is 0; there it returns ones."""
    bound = limits(xp, x)
    peak = stop_gradient(xp.max(xp.abs(x), axis=-1, keepdims=True))
    zero = peak < bound.smallest_normal
    # No quotient by the peak: its slope for the peak is out of range, and forward mode of
    # TensorFlow (2.21) multiplies that slope with 0. And the reciprocal must not be flushed to 0,
    # but for that of inf: inf * 0 is NaN, and an infinite vector has no direction.
    most = 0.5 / bound.smallest_normal
    large = xp.logical_and(peak > most, peak < math.inf)
    scale = xp.where(zero, 1.0, xp.where(large, most, peak))
    return xp.where(zero, 1.0, x) * stop_gradient(1.0 / scale), zero


def unit(xp: Namespace, x: Array) -> tuple[Array, Array]:
    """Return `x` over its length, and where x is 0; there it returns some unit vector."""
    inside, zero = scaled(xp, x)
    return inside / xp.sqrt(total(xp, inside * inside)), zero


# Angles.


def _chords(xp: Namespace, a: Array, b: Array, axis: Axis) -> tuple[Array, Array, Array, Array]:
    """
    Return the difference and the sum of the directions, and where the angle is 0, and where pi.

    There the angle is a constant: where no entry of the difference, or of the sum, exceeds its
    rounding errors, two an entry of each direction. The error of a length is shared by all entries,
    so that it lies along the other chord, whose length is 2 there: that part is taken off.
    """
    a, b = safe_normalize(a, axis=axis), safe_normalize(b, axis=axis)
    difference, together = a - b, a + b
    rounding = 2 * limits(xp, a).eps * (xp.abs(a) + xp.abs(b))
    shared = xp.sum(difference * together, axis=axis, keepdims=True) / 4.0

    def throughout(x: Array) -> Array:
        return xp.all(x, axis=axis, keepdims=True)

    parallel, opposite = (
        throughout(xp.abs(x - shared * other) <= rounding)
        for x, other in ((difference, together), (together, difference))
    )
    zero = xp.logical_or(throughout(a == 0), throughout(b == 0))
    return difference, together, xp.logical_or(parallel, zero), opposite


def _between(xp: Namespace, difference: Array, together: Array, axis: Axis, other: Array) -> Array:
    """Return the angle between directions by Kahan's formula; some number where `other`."""
    far, near = (
        safe_norm(xp.where(other, 1.0, x), axis=axis, keepdims=True) for x in (difference, together)
    )
    return 2.0 * xp.atan2(far, near)


def angle(xp: Namespace, a: Array, b: Array, *, axis: Axis) -> Array:
    """Return the angle of two vectors."""
    difference, together, none, half = _chords(xp, a, b, axis)
    found = _between(xp, difference, together, axis, xp.logical_or(none, half))
    return xp.where(none, 0.0, xp.where(half, math.pi, found))


def squared_angle(xp: Namespace, a: T, b: T, *, axis: Axis) -> T:
    """Return the squared angle; for a short chord by the series in the square of the chord."""
    difference, together, none, half = _chords(xp, a, b, axis)
    constant = xp.logical_or(none, half)
    square = xp.sum(difference * difference, axis=axis, keepdims=True)
    short = square < 0.5  # noqa: PLR2004  (the bound of the series)
    square = xp.where(short, square, 0.0)
    series = square * polynomial(square, ARC_SINE)
    far = _between(xp, difference, together, axis, xp.logical_or(short, constant))
    far = xp.where(none, 0.0, xp.where(half, math.pi**2, far * far))
    return xp.where(short, series, far)


def dihedral(xp: Namespace, a: Array, b: Array, c: Array, d: Array) -> Array:
    """Return the torsion angle; lengths do not count, so that all vectors are scaled."""
    steps = [scaled(xp, x) for x in (b - a, c - b, d - c)]
    (first, axis, last), stays = zip(*steps, strict=True)
    one, other = cross_terms(xp, first, axis), cross_terms(xp, axis, last)
    line = xp.logical_or(_is_line(xp, *one), _is_line(xp, *other))
    for still in stays:
        line = xp.logical_or(line, still)
    n, m = (scaled(xp, xp.where(line, 1.0, more - less))[0] for more, less in (one, other))
    along, _ = unit(xp, xp.where(line, 1.0, axis))
    y, x = total(xp, cross(xp, n, m) * along), total(xp, n * m)
    found = xp.atan2(xp.where(line, 0.0, y), xp.where(line, 1.0, x))
    # The sign of a zero y does not count: opposite directions are at pi, never at -pi.
    return found + xp.where(found <= -math.pi, 2 * math.pi, xp.zeros_like(found))


def _is_line(xp: Namespace, more: Array, less: Array) -> Array:
    """Whether a cross product is rounding error alone: up to three units for each of its terms."""
    rounding = 4 * limits(xp, more).eps * (xp.abs(more) + xp.abs(less))
    return xp.all(xp.abs(more - less) <= rounding, axis=-1, keepdims=True)
