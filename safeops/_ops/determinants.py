"""Determinants and Cholesky factors, right where matrices are singular or not definite."""

import math

from safeops._core.dtypes import is_complex
from safeops._core.types import Array, Namespace
from safeops._dispatch import backend_of
from safeops._ops.factors import decomposed, pairs, undefined
from safeops._ops.precision import with_slope_of
from safeops._ops.spectral import (
    adjoint,
    as_entries,
    is_finite,
    nan_of,
    on_diagonal,
    replaced,
    scaled_by_real,
)


def det(xp: Namespace, a: Array) -> Array:
    """Return the determinant, with that of ``S + E`` to second order for its derivatives."""
    # Of a decomposition ``a = U S V^H`` and ``E = U^H a V - S`` it is the product of the singular
    # values, plus ``p_i E_ii``, the products without one, plus ``p_ij (E_ii E_jj - E_ij E_ji)`` for
    # each pair. No product is a quotient by what may be 0. Where products leave the range the
    # value, the first or the second derivative is no number, and those before it are what they are.
    stop = backend_of(a).stop_gradient
    of = decomposed(xp, a)
    diagonal = on_diagonal(as_square(xp, of.values))
    column, _ = pairs(xp, of.values)
    e = xp.matmul(adjoint(xp, of.left), xp.matmul(of.matrix, of.right))
    e = e - as_entries(xp.where(diagonal, column, 0.0), e)
    with backend_of(a).quiet():
        whole, one, two = products(xp, of.values)
    fault = of.fault
    for found, power in ((one[..., None], 0.5), (two, 1.5)):
        within = xp.logical_not(xp.any(xp.isinf(found), axis=(-2, -1), keepdims=True))
        fault = fault + undefined(xp, of.matrix, within, power)
    one = xp.where(xp.isinf(one), 0.0, one)
    two = xp.where(xp.logical_or(diagonal, xp.isinf(two)), 0.0, two)
    # With ``E = R + D``, where D is 0, it is less what R gives: the square of R, which is rounding,
    # may leave the range where no derivative does.
    change = e - stop(e)
    own, twice = (xp.sum(xp.where(diagonal, x, 0.0), axis=-1) for x in (change, e + stop(e)))
    first = xp.sum(scaled_by_real(one, own), axis=-1)
    (x, _), (_, y) = pairs(xp, own), pairs(xp, twice)
    minors = scaled_by_real(two, x * y - change * xp.matrix_transpose(e + stop(e)))
    series = first + xp.sum(minors, axis=(-2, -1)) / 2.0
    turn = xp.linalg.det(of.left) * xp.linalg.det(adjoint(xp, of.right))
    with backend_of(a).quiet():
        value = xp.linalg.det(stop(of.matrix))
    outside = xp.logical_or(xp.logical_not(xp.isfinite(value)), value == 0)
    value = xp.where(outside, scaled_by_real(whole, turn), value)
    return with_slope_of(turn * series, value) + as_entries(fault[..., 0, 0], series)


def as_square(xp: Namespace, values: Array) -> Array:
    """Return an array with a row and a column for each number."""
    column, row = pairs(xp, values)
    return column + row


def products(xp: Namespace, values: Array) -> tuple[Array, Array, Array]:
    """Return the products of all numbers, of all but one, and of all but two; none is negative."""
    zero = xp.where(values > 0, 0.0, xp.ones_like(values))
    log = xp.log(xp.where(values > 0, values, 1.0))
    logs, zeros = (xp.sum(x, axis=-1, keepdims=True) for x in (log, zero))
    diagonal = on_diagonal(as_square(xp, values))
    _, row = pairs(xp, values)
    one = xp.prod(xp.where(diagonal, 1.0, row), axis=-1)
    (x, y), (no, none) = pairs(xp, log), pairs(xp, zero)
    two = within_range(
        xp, without_two(xp, values), logs[..., None] - x - y, zeros[..., None] - no - none
    )
    one = within_range(xp, one, logs - log, zeros - zero)
    whole = within_range(xp, xp.prod(values, axis=-1), logs[..., 0], zeros[..., 0])
    return whole, one, two


def within_range(xp: Namespace, product: Array, log: Array, zeros: Array) -> Array:
    """Return a product, of its logarithm if a product on the way has left the range."""
    usable = xp.logical_and(xp.isfinite(product), xp.logical_or(product != 0, zeros > 0))
    return xp.where(usable, product, xp.where(zeros > 0, 0.0, xp.exp(log)))


def without_two(xp: Namespace, values: Array) -> Array:
    """Return the products of all numbers but two; they fall, so that 0 is among the last."""
    # Where a number before the last two is 0, so are those, and each product.
    ones = xp.ones_like(values)
    place = xp.astype(backend_of(ones).positions(ones, -1), ones.dtype)
    from_end = xp.sum(ones, axis=-1, keepdims=True) - 1.0 - place
    first = from_end >= 2  # noqa: PLR2004  (the last two)
    inverse = xp.where(first, 1.0 / xp.where(xp.logical_and(first, values > 0), values, 1.0), 1.0)
    rest = xp.prod(xp.where(first, values, 1.0), axis=-1, keepdims=True)
    x, y = pairs(xp, inverse)
    found = xp.expand_dims(rest, axis=-1) * x * y
    for k in (0.0, 1.0):
        own = from_end == k
        number = xp.sum(xp.where(own, values, 0.0), axis=-1, keepdims=True)
        taken = xp.logical_or(*pairs(xp, own))
        found = found * xp.where(taken, 1.0, xp.expand_dims(number, axis=-1))
    return found


def slogdet(xp: Namespace, a: Array) -> tuple[Array, Array]:
    """Return sign and logarithm; of a singular matrix 0 and -inf, as constants."""
    finite = is_finite(xp, backend_of(a).stop_gradient(a))
    bad = xp.sum(nan_of(xp, a, finite), axis=(-2, -1))
    a = replaced(xp, a, finite)
    backend = backend_of(a)
    sign, _ = backend.slogdet(backend.stop_gradient(a))
    singular = sign == 0
    sign, size = backend.slogdet(replaced(xp, a, xp.logical_not(singular)[..., None, None]))
    size = xp.where(singular, -math.inf, size)
    return xp.where(singular, 0.0, sign) + bad, size + (xp.real(bad) if is_complex(bad) else bad)


def cholesky(xp: Namespace, a: Array) -> Array:
    """Return the lower factor of the Hermitian part; NaN where there is none."""
    backend = backend_of(a)
    a = a / 2.0 + adjoint(xp, a) / 2.0
    finite = is_finite(xp, backend.stop_gradient(a))
    tried = backend.cholesky(backend.stop_gradient(replaced(xp, a, finite)))
    numbers = xp.real(tried) if is_complex(tried) else tried
    row, column = backend.positions(numbers, -2), backend.positions(numbers, -1)
    lower = row >= column
    good = xp.logical_and(finite, is_finite(xp, xp.where(lower, tried, 0.0)))
    # A derivative goes through a factor of good matrices alone; a value needs no second one.
    factor = tried if backend.is_constant(a) else backend.cholesky(replaced(xp, a, good))
    return xp.where(xp.logical_and(lower, good), factor, 0.0) + nan_of(xp, a, good)
