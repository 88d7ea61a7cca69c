"""
The polar factor, eigenvalues and singular values of matrices, by their jets; see `spectral`.

A singular value decomposition is that of the Hermitian matrix ``[[0, a], [a^H, 0]]``, whose
eigenvalues are the singular values and their negatives: the polar factor is its sign. With
``E = U^H a V - diag(s)``, the skew part K and the Hermitian part S of E, ``T = K / (s_i + s_j)``,
it is ``U (1 + 2 T + 2 T T - 2 (S T + T S) / (s_i + s_j)) V^H`` to second order. Of real matrices
the diagonals of K and ``S T + T S`` are 0, and are not divided by ``2 s_i``, whatever s_i is.
"""

from typing import NamedTuple

from safeops._core.dtypes import is_complex
from safeops._core.types import Array, Namespace, T
from safeops._dispatch import backend_of
from safeops._ops.spectral import (
    adjoint,
    as_entries,
    is_finite,
    nan_of,
    nothing_beyond,
    on_diagonal,
    parts,
    replaced,
    rounding,
    scaled_by_real,
    size_of,
    spectrum,
)


class Singular(NamedTuple):
    """A singular value decomposition, of constants, of a matrix that is not; see `Spectrum`."""

    matrix: Array
    left: Array
    values: Array
    right: Array
    fault: Array  # (..., 1, 1)


def decomposed(xp: Namespace, a: Array) -> Singular:
    """Return the decomposition; a matrix with NaN or inf has ones in its place."""
    stop = backend_of(a).stop_gradient
    finite = is_finite(xp, stop(a))
    bad = parts(xp, nan_of(xp, a, finite))
    a = replaced(xp, a, finite)
    left, values, adjoint_of_right = xp.linalg.svd(stop(a), full_matrices=False)
    fault = nothing_beyond(xp, a) + xp.sum(bad, axis=(-2, -1), keepdims=True)
    return Singular(a, stop(left), stop(values), adjoint(xp, stop(adjoint_of_right)), fault)


def pairs(xp: Namespace, values: Array) -> tuple[Array, Array]:
    """Return numbers as a column and as a row."""
    return xp.expand_dims(values, axis=-1), xp.expand_dims(values, axis=-2)


def square(xp: Namespace, x: Array) -> Array:
    """Return the squared size of entries."""
    return xp.real(x) * xp.real(x) + xp.imag(x) * xp.imag(x) if is_complex(x) else x * x


def real_diagonal(xp: Namespace, x: Array) -> Array:
    """Return the real part of the diagonal."""
    x = xp.real(x) if is_complex(x) else x
    return xp.sum(xp.where(on_diagonal(x), x, 0.0), axis=-1)


# The polar factor.


def polar(xp: Namespace, a: T, *, proper: bool) -> T:
    """Return the unitary factor; if proper, the nearest rotation."""
    of = decomposed(xp, scaled_by_real(1.0 / size_of(xp, a), a))
    sign = xp.expand_dims(signs(xp, of) if proper else xp.ones_like(of.values), axis=-2)
    left = of.left * as_entries(sign, of.left)
    values = of.values * sign[..., 0, :]
    x, y = pairs(xp, values)
    together, diagonal = x + y, on_diagonal(x + y)
    small = xp.abs(together) <= xp.expand_dims(2.0 * rounding(xp, values), axis=-1)
    none = small if is_complex(of.matrix) else xp.logical_or(small, diagonal)
    if proper:
        small = xp.logical_and(small, xp.logical_not(diagonal))
    inverse = xp.where(none, 0.0, 1.0 / xp.where(none, 1.0, together))
    e = xp.matmul(adjoint(xp, left), xp.matmul(of.matrix, of.right))
    e = e - as_entries(xp.where(diagonal, x, 0.0), e)
    series = polar_series(xp, e, inverse) + as_entries(xp.where(diagonal, xp.ones_like(x), 0.0), e)
    unique = xp.logical_not(xp.any(small, axis=(-2, -1), keepdims=True))
    fault = of.fault + undefined(xp, of.matrix, unique)
    factor = xp.matmul(left, xp.matmul(series, adjoint(xp, of.right)))
    return factor + as_entries(fault, factor)


def polar_series(xp: Namespace, e: Array, inverse: Array) -> Array:
    """Return what the polar factor has beside the identity, in the bases of singular vectors."""
    turned = adjoint(xp, e)
    skew, even = scaled_by_real(inverse, e - turned) / 2.0, (e + turned) / 2.0
    mixed = xp.matmul(even, skew)
    mixed = mixed - adjoint(xp, mixed)
    return 2.0 * (skew + xp.matmul(skew, skew) - scaled_by_real(inverse, mixed))


def signs(xp: Namespace, of: Singular) -> Array:
    """Return 1, and for the least singular value the sign of the determinant of the factor."""
    turn = xp.linalg.det(of.left) * xp.linalg.det(of.right)
    turn = xp.expand_dims(turn, axis=-1)
    ones = xp.ones_like(of.values)
    place = xp.astype(backend_of(ones).positions(ones, -1), ones.dtype)
    last = place == xp.sum(ones, axis=-1, keepdims=True) - 1.0
    return xp.where(xp.logical_and(last, turn < 0), -1.0, ones)


def undefined(xp: Namespace, a: Array, defined: Array, power: float = 0.5) -> Array:
    """Return 0, whose derivatives are 0 where `defined`, and inf or NaN elsewhere."""
    # With the power 1.5 it is the second one that is no number.
    change = a - backend_of(a).stop_gradient(a)
    change = xp.sum(parts(xp, change), axis=(-2, -1), keepdims=True)
    ones = xp.ones_like(change)
    return xp.pow(xp.where(defined, 1.0, change), power) - xp.where(defined, ones, 0.0)


# Eigenvalues and singular values.


def blocks_of(xp: Namespace, values: Array) -> Array:
    """Whether two eigenvalues, which are in order, tie."""
    # They do if no gap between them is above what rounding makes of a tie.
    backend = backend_of(values)
    x, y = pairs(xp, values)
    before = backend.positions(x + y, -1) < backend.positions(x + y, -2)
    bound = xp.expand_dims(rounding(xp, values), axis=-1)
    opens = xp.all(xp.logical_or(xp.logical_not(before), xp.abs(x - y) > bound), axis=-1)
    count = backend.cumulative(xp.where(opens, xp.ones_like(values), 0.0), -1, product=False)
    x, y = pairs(xp, count)
    return x == y


def shared(xp: Namespace, tie: Array, x: Array) -> Array:
    """Return the mean of numbers over those that tie."""
    share = xp.where(tie, xp.ones_like(x[..., None, :] + x[..., None]), 0.0)
    total = xp.sum(share, axis=-1)
    return xp.sum(share * xp.expand_dims(x, axis=-2), axis=-1) / total


def apart(xp: Namespace, tie: Array, x: Array, y: Array) -> Array:
    """Return ``1 / (x - y)``, and 0 where they tie."""
    return xp.where(tie, 0.0, 1.0 / xp.where(tie, 1.0, x - y))


def eigvalsh(xp: Namespace, a: Array) -> Array:
    """Return the eigenvalues, rising: of those that tie, the mean of the derivatives."""
    size = size_of(xp, a)
    of = spectrum(xp, scaled_by_real(1.0 / size, a))
    x, y = pairs(xp, of.values)
    tie = blocks_of(xp, of.values)
    second = xp.sum(apart(xp, tie, x, y) * square(xp, of.residual), axis=-1)
    series = shared(xp, tie, real_diagonal(xp, of.residual) + second)
    fault = xp.sum(parts(xp, of.fault), axis=(-2, -1))[..., None]
    return size[..., 0] * (of.values + series + fault)


def svdvals(xp: Namespace, a: Array) -> Array:
    """Return the singular values, falling: of those that tie, the mean of the derivatives."""
    size = size_of(xp, a)
    of = decomposed(xp, scaled_by_real(1.0 / size, a))
    x, y = pairs(xp, of.values)
    tie, zero = blocks_of(xp, of.values), x <= xp.expand_dims(rounding(xp, of.values), axis=-1)
    inverse = xp.where(zero, 0.0, 1.0 / xp.where(zero, 1.0, x + y))
    e, outside = residuals(xp, of)
    turned = adjoint(xp, e)
    second = apart(xp, tie, x, y) * square(xp, (e + turned) / 2.0)
    second = second + inverse * square(xp, (e - turned) / 2.0)
    half = real_diagonal(xp, inverse) * outside
    series = shared(xp, tie, real_diagonal(xp, e) + xp.sum(second, axis=-1) + half)
    series = xp.where(zero[..., 0], 0.0, series)
    return size[..., 0] * (of.values + series + of.fault[..., 0])


def residuals(xp: Namespace, of: Singular) -> tuple[Array, Array]:
    """Return ``U^H a V - diag(s)``, and what has left the columns of U and V, squared."""
    image = xp.matmul(of.matrix, of.right)
    e = xp.matmul(adjoint(xp, of.left), image)
    back = adjoint(xp, xp.matmul(adjoint(xp, of.left), of.matrix))
    row = as_entries(xp.expand_dims(of.values, axis=-2), e)
    e = e - xp.where(on_diagonal(e), row, 0.0)
    left, right = beside(xp, of.left, image), beside(xp, of.right, back)
    return e, xp.sum(square(xp, left), axis=-2) + xp.sum(square(xp, right), axis=-2)


def beside(xp: Namespace, basis: Array, x: Array) -> Array:
    """
    Return the part of columns that is orthogonal to a basis: 0 if the basis is known to be whole.

    There it would be rounding, which is divided by singular values.
    """
    shape = basis.shape
    rows, columns = (None, 0) if getattr(shape, "rank", 0) is None else tuple(shape)[-2:]
    if rows is not None and rows == columns:
        return xp.zeros_like(x)
    return x - xp.matmul(basis, xp.matmul(adjoint(xp, basis), x))
