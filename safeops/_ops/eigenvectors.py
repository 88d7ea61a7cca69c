"""
Eigenvectors, whose derivatives are exact, or NaN where there are none.

With R for ``1 / (l_j - l_i)``, 0 between eigenvalues that tie, and D for the part of E in blocks of
those, the vectors of ``diag(l) + E`` are the columns of ``1 + X + Y`` to second order, where
``X = R E`` and ``Y = R (E X - X D)``, entry by entry, less half the part of ``X^H X`` in blocks.
That turns nothing inside of a block. What does is ``1 + K``, where K is 0 and its derivative a
barrier: 0 where nothing comes, from before or from behind, and NaN where something does.

Source: perturbation theory. The condition: a cotangent that no rotation inside of a block changes.
"""

from safeops._core.dtypes import is_complex, limits
from safeops._core.types import Array, Namespace
from safeops._dispatch import backend_of
from safeops._ops.factors import apart, blocks_of, pairs, real_diagonal, shared, square
from safeops._ops.slices import is_empty
from safeops._ops.spectral import (
    adjoint,
    as_entries,
    on_diagonal,
    parts,
    rounding,
    scaled_by_real,
    size_of,
    spectrum,
)


def eigh(xp: Namespace, a: Array) -> tuple[Array, Array]:
    """Return eigenvalues, rising, and eigenvectors, in columns."""
    backend, size = backend_of(a), size_of(xp, a)
    of = spectrum(xp, scaled_by_real(1.0 / size, a))
    e = of.residual - backend.stop_gradient(of.residual)
    x, y = pairs(xp, of.values)
    block = blocks_of(xp, of.values)
    mixed, inside = scaled_by_real(apart(xp, block, y, x), e), in_blocks(xp, block, e)
    twice = scaled_by_real(apart(xp, block, y, x), xp.matmul(e, mixed) - xp.matmul(mixed, inside))
    turned = mixed + twice - in_blocks(xp, block, xp.matmul(adjoint(xp, mixed), mixed)) / 2.0
    ones = xp.where(block, 1.0, 0.0 * (x + y))
    first, second = backend.barrier(excess, (e, e), (ones,))
    within = scaled_by_real(generators(xp, of.values), second)
    turned = turned + within + xp.matmul(turned, within)
    vectors = of.vectors + xp.matmul(of.vectors, turned) + of.fault
    bent = xp.sum(apart(xp, block, x, y) * square(xp, e), axis=-1)
    series = shared(xp, block, real_diagonal(xp, e) + bent) + real_diagonal(xp, first)
    fault = xp.sum(parts(xp, of.fault), axis=(-2, -1))[..., None]
    return size[..., 0] * (of.values + series + fault), vectors


def in_blocks(xp: Namespace, block: Array, x: Array) -> Array:
    """Return a matrix with 0 outside of the blocks."""
    return xp.where(block, x, xp.zeros_like(x))


def generators(xp: Namespace, values: Array) -> Array:
    """Return 1 above and on the diagonal and -1 below it, by the scale of the matrix."""
    backend = backend_of(values)
    x, y = pairs(xp, values)
    below = backend.positions(x + y, -1) < backend.positions(x + y, -2)
    scale = rounding(xp, values) / (8.0 * limits(xp, values).eps)
    return xp.where(below, -1.0, xp.ones_like(x + y)) / xp.where(scale > 0, scale, 1.0)[..., None]


def excess(x: Array, y: Array, ones: Array) -> Array:
    """
    Whether something would turn vectors inside of a block, two axes kept.

    In forward mode x and y are what the matrix moves by, which is Hermitian, and has to be a
    multiple of 1 in each block. In reverse mode x has the cotangents of the eigenvalues on its
    diagonal, y the products of vectors and their cotangents, antisymmetric parts made symmetric by
    `generators`; a complex vector has a phase besides, of which the diagonal of y must be free.

    What is within ``8 * n * eps`` of the largest entry counts as rounding: two products of matrices
    have made it, each with an error of ``n * eps`` times the sizes.
    """
    xp = backend_of(x).xp
    if is_empty(x):
        return xp.isnan(xp.sum(xp.abs(x), axis=(-2, -1), keepdims=True))
    diagonal = on_diagonal(x)
    off = xp.where(diagonal, xp.zeros_like(y), y)
    both = (x + adjoint(xp, x)) / 2.0 + (off + adjoint(xp, off)) / 2.0
    own = real_diagonal(xp, both)
    mean = xp.where(diagonal, xp.expand_dims(shared(xp, ones > 0, own), axis=-1), 0.0 * ones)
    left = xp.abs(both - as_entries(mean, both))
    if is_complex(y):
        left = left + xp.where(diagonal, xp.abs(xp.imag(y)), 0.0)
    size = xp.max(xp.maximum(xp.abs(x), xp.abs(y)), axis=(-2, -1), keepdims=True)
    number = xp.sum(xp.ones_like(ones[..., :1, :]), axis=(-2, -1), keepdims=True)
    bound = 8.0 * limits(xp, ones).eps * number * size
    kept = xp.logical_or(ones == 0, left <= bound)  # which NaN is not
    return xp.logical_not(xp.all(kept, axis=(-2, -1), keepdims=True))
