"""
Eigenvectors and singular vectors, whose derivatives are exact, or NaN where there are none.

With R for ``1 / (l_j - l_i)``, 0 between eigenvalues that tie, and D for the part of E in blocks of
those, the vectors of ``diag(l) + E`` are the columns of ``1 + X + Y`` to second order, where
``X = R E`` and ``Y = R (E X - X D)``, entry by entry, less half the part of ``X^H X`` in blocks.
That turns nothing inside of a block. What does is ``1 + K``, where K is 0 and its derivative a
barrier: 0 where nothing comes, from before or from behind, and NaN where something does.

Source: perturbation theory. The condition: a cotangent that no rotation inside of a block changes.
"""

from typing import NamedTuple

from safeops._core.dtypes import is_complex, limits
from safeops._core.types import Array, Namespace
from safeops._dispatch import backend_of
from safeops._ops.factors import (
    Singular,
    apart,
    beside,
    blocks_of,
    decomposed,
    pairs,
    real_diagonal,
    shared,
    square,
)
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
    """Whether something would turn vectors inside of a block, two axes kept."""
    # In forward mode x and y are what the matrix moves by, which is Hermitian, and has to be a
    # multiple of 1 in each block. In reverse mode x has the cotangents of the eigenvalues on its
    # diagonal, y the products of vectors and their cotangents, antisymmetric parts made symmetric
    # by `generators`; a complex vector has a phase besides, of which the diagonal of y must be
    # free.
    #
    # What is within ``8 * n * eps`` of the largest entry counts as rounding: two products of
    # matrices have made it, each with an error of ``n * eps`` times the sizes.
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


# Singular vectors.
#
# They are eigenvectors of the Hermitian matrix ``[[0, a], [a^H, 0]]``, whose eigenvalues are the
# singular values, their negatives and zeros. Of ``E = U^H da V`` the Hermitian part H stands
# between two singular values, the skew part G between one and a negative one, and what leaves the
# columns of U and V between one and 0.


class Turned(NamedTuple):
    """What vectors gain: of singular values, of their negatives, outside of U and of V."""

    even: Array
    odd: Array
    left: Array
    right: Array


class Moved(NamedTuple):
    """What a matrix has moved by, and what stands between its singular values."""

    change: Array
    back: Array  # its adjoint
    middle: Array  # U^H da V
    block: Array
    zero: Array  # whether a singular value is 0, (..., 1, k)
    inverse: Array  # of the others, (..., 1, k)
    differences: Array
    sums: Array


def svd(xp: Namespace, a: Array) -> tuple[Array, Array, Array]:
    """Return the left vectors, the singular values, falling, and the adjoint of the right ones."""
    size = size_of(xp, a)
    of = decomposed(xp, scaled_by_real(1.0 / size, a))
    by = moved(xp, of)
    first = first_order(xp, of, by)
    second = second_order(xp, of, by, first)
    even, odd = first.even + second.even, first.odd + second.odd
    ways = generators(xp, of.values)
    ones = xp.where(by.block, xp.ones_like(ways), 0.0)
    zeros = ones * xp.where(by.zero, xp.ones_like(by.inverse), 0.0)
    # A change of the phase between a left and a right vector is skew, and exact in `first`.
    even_part, skew = halves(xp, by.middle)
    given = (even_part, even_part, even_part, skew, skew)
    found = backend_of(a).barrier(excess_inside, given, (ones, zeros))
    number, *within = (scaled_by_real(ways, x) if k else x for k, x in enumerate(found[:3]))
    left, right = even + odd, even - odd
    left, right = (
        x + y + z + xp.matmul(x, y)
        for x, y, z in zip((left, right), within, found[3:], strict=True)
    )
    # What is outside of the bases turns with the vectors too.
    turned = [x + xp.matmul(x, y) for x, y in zip((first.left, first.right), within, strict=True)]
    left = of.left + xp.matmul(of.left, left) + turned[0] + second.left
    right = of.right + xp.matmul(of.right, right) + turned[1] + second.right
    left = left + outside(xp, of.left, by.zero, xp.matmul(by.change, of.right))
    right = right + outside(xp, of.right, by.zero, xp.matmul(by.back, of.left))
    values = of.values + shared(xp, by.block, series(xp, of, by, first))
    values = values + real_diagonal(xp, number) + of.fault[..., 0]
    fault = as_entries(of.fault, left)
    return left + fault, size[..., 0] * values, adjoint(xp, right) + fault


def moved(xp: Namespace, of: Singular) -> Moved:
    """Return ``a - stop_gradient(a)``, also turned: value 0, derivative that of `a`."""
    change = of.matrix - backend_of(of.matrix).stop_gradient(of.matrix)
    x, y = pairs(xp, of.values)
    zero = y <= xp.expand_dims(rounding(xp, of.values), axis=-1)
    block = blocks_of(xp, of.values)
    none = xp.logical_and(block, zero)
    if not is_complex(change):  # what is skew has no diagonal
        none = xp.logical_or(none, on_diagonal(x + y))
    return Moved(
        change,
        adjoint(xp, change),
        xp.matmul(adjoint(xp, of.left), xp.matmul(change, of.right)),
        block,
        zero,
        xp.where(zero, 0.0, 1.0 / xp.where(zero, 1.0, y)),
        apart(xp, block, y, x),
        xp.where(none, 0.0, 1.0 / xp.where(none, 1.0, x + y)),
    )


def halves(xp: Namespace, e: Array) -> tuple[Array, Array]:
    """Return the Hermitian and the skew part."""
    return (e + adjoint(xp, e)) / 2.0, (e - adjoint(xp, e)) / 2.0


def first_order(xp: Namespace, of: Singular, by: Moved) -> Turned:
    """Return what the vectors gain to first order."""
    even, odd = halves(xp, by.middle)
    left = beside(xp, of.left, xp.matmul(by.change, of.right))
    right = beside(xp, of.right, xp.matmul(by.back, of.left))
    return Turned(
        scaled_by_real(by.differences, even),
        scaled_by_real(by.sums, odd),
        scaled_by_real(by.inverse, left),
        scaled_by_real(by.inverse, right),
    )


def second_order(xp: Namespace, of: Singular, by: Moved, first: Turned) -> Turned:
    """Return what they gain beyond that to second order."""
    h, g = halves(xp, by.middle)
    inside = in_blocks(xp, by.block, h)
    up = xp.matmul(adjoint(xp, of.left), xp.matmul(by.change, first.right)) / 2.0
    down = xp.matmul(adjoint(xp, of.right), xp.matmul(by.back, first.left)) / 2.0
    even = xp.matmul(h, first.even) - xp.matmul(g, first.odd) + up + down
    odd = xp.matmul(g, first.even) - xp.matmul(h, first.odd) + up - down
    even = scaled_by_real(by.differences, even - xp.matmul(first.even, inside))
    odd = scaled_by_real(by.sums, odd - xp.matmul(first.odd, inside))
    lengths = [
        xp.matmul(adjoint(xp, x), x) + xp.matmul(adjoint(xp, y), y)
        for x, y in ((first.even + first.odd, first.left), (first.even - first.odd, first.right))
    ]
    even = even - in_blocks(xp, by.block, lengths[0] + lengths[1]) / 4.0
    # Vectors stay of length 1: so the Hermitian part needs no quotient by 2 s, which may be small.
    skew = (odd - adjoint(xp, odd)) / 2.0 - (lengths[0] - lengths[1]) / 4.0
    odd = xp.where(by.block, skew, odd)
    right = xp.matmul(of.right, first.even - first.odd) + first.right
    left = xp.matmul(of.left, first.even + first.odd) + first.left
    left, right = (
        beside(xp, of.left, xp.matmul(by.change, right)) - xp.matmul(first.left, inside),
        beside(xp, of.right, xp.matmul(by.back, left)) - xp.matmul(first.right, inside),
    )
    return Turned(even, odd, scaled_by_real(by.inverse, left), scaled_by_real(by.inverse, right))


def series(xp: Namespace, of: Singular, by: Moved, first: Turned) -> Array:
    """Return what the singular values gain to second order."""
    h, g = halves(xp, by.middle)
    across = xp.sum(by.sums * square(xp, g) - by.differences * square(xp, h), axis=-1)
    out = xp.sum(square(xp, first.left), axis=-2) + xp.sum(square(xp, first.right), axis=-2)
    return real_diagonal(xp, by.middle) + across + of.values * out / 2.0


def outside(xp: Namespace, basis: Array, zero: Array, image: Array) -> Array:
    """Return 0; vectors of the value 0 may turn out of the basis, and have a barrier there."""

    def free(x: Array) -> Array:
        return xp.where(zero, beside(xp, basis, x), xp.zeros_like(x))

    found, reference = backend_of(image).barrier(excess_outside, (free(image), image), ())
    return free(found) + reference


def excess_outside(x: Array, reference: Array) -> Array:
    """Whether columns are not 0 but for rounding, of which the reference has the size."""
    xp = backend_of(x).xp
    if is_empty(x):
        return xp.isnan(xp.sum(xp.abs(x), axis=(-2, -1), keepdims=True))
    sizes = xp.abs(x), xp.abs(reference)
    left, size = (xp.max(y, axis=(-2, -1), keepdims=True) for y in sizes)
    number = xp.sum(xp.ones_like(sizes[0][..., :1]), axis=(-2, -1), keepdims=True)
    return xp.logical_not(left <= 8.0 * limits(xp, size).eps * number * xp.maximum(size, left))


def excess_inside(
    number: Array, left: Array, right: Array, odd: Array, also: Array, ones: Array, zeros: Array
) -> Array:
    """Whether something would turn vectors inside of a block; as for eigenvectors."""
    # The vectors of a block turn together, and those of the value 0 each for itself. There the
    # value itself has no derivative.
    xp = backend_of(left).xp
    if is_empty(left):
        return xp.isnan(xp.sum(xp.abs(left), axis=(-2, -1), keepdims=True))
    diagonal = on_diagonal(left)
    both = xp.where(diagonal, number, left + right + number)
    both = (both + adjoint(xp, both)) / 2.0
    mean = xp.expand_dims(shared(xp, ones > 0, real_diagonal(xp, both)), axis=-1)
    mean = xp.where(xp.logical_and(diagonal, zeros == 0), mean, 0.0 * ones)
    rest = xp.abs(both - as_entries(mean, both))
    if is_complex(left):
        rest = rest + xp.where(diagonal, xp.abs(xp.imag(left + right)), 0.0)
    alone = [xp.abs(x - adjoint(xp, x)) for x in (odd, also)]
    rest = rest + xp.where(zeros > 0, alone[0] + alone[1], 0.0)
    every = (left, right, number, odd, also)
    size = xp.max(sum(xp.abs(x) for x in every), axis=(-2, -1), keepdims=True)
    count = xp.sum(xp.ones_like(ones[..., :1, :]), axis=(-2, -1), keepdims=True)
    bound = 8.0 * limits(xp, ones).eps * count * size
    kept = xp.logical_or(ones == 0, rest <= bound)  # which NaN is not
    return xp.logical_not(xp.all(kept, axis=(-2, -1), keepdims=True))
