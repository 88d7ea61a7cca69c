"""
Functions of the eigenvalues of a Hermitian matrix, by their jet: right where eigenvalues tie.

The eigenvectors V and the eigenvalues l are constants here, and what has the derivative of the
matrix is the residual ``E = V^H A V - diag(l)``, which is 0. The function is its Taylor polynomial
about diag(l): with the divided differences ``f[i, j]`` and ``f[i, k, j]`` of f at the eigenvalues,
``F_ij = f(l_i) [i = j] + f[i, j] E_ij + sum_k f[i, k, j] E_ik E_kj``, and ``V F V^H`` the result.
So value, gradient and Hessian are exact; `nothing_beyond` makes the third derivative NaN.

Source: Daleckii and Krein; Higham, Functions of Matrices, theorem 3.11 and section 3.2.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from safeops._core.dtypes import is_complex, limits
from safeops._core.types import Array, Function, Namespace
from safeops._dispatch import backend_of
from safeops._ops.slices import is_empty
from safeops._ops.smooth import exprel

# Of numbers x and y, as arrays that broadcast: what a table has for the pair.
Table = Callable[[Array, Array], Array]


class Spectrum(NamedTuple):
    """Eigenvalues, eigenvectors and residual of matrices; all constants but for the residual."""

    values: Array  # (..., n), real, rising
    vectors: Array
    residual: Array
    diagonal: Array  # whether an entry is on the diagonal
    fault: Array  # 0, with a NaN for matrices that are not finite, and for a third derivative
    constant: bool  # whether nothing can differentiate


class Family(NamedTuple):
    """A function of positive numbers: its formula, what it does with factors, what it is at 0."""

    formula: Callable[[Namespace], "Formula"]
    power: float | None  # f(c x) = c**power f(x); None: f(c x) = log(c) + f(x)
    at_zero: tuple[float | None, float, float] = (None, 0.0, 0.0)  # with its slopes; None: the fill
    apart: bool = True


class Formula(NamedTuple):
    """A function of eigenvalues: itself, its divided difference, and its second derivative."""

    value: Function
    difference: Table
    second: Function
    # Whether 0 is a point apart, of which the difference knows, and which no other one is near to.
    apart: bool = False
    # The term of second order, of eigenvalues, first differences and linear term, if it is simple.
    bent: Callable[[Namespace, Array, Array, Array], Array] | None = None


def adjoint(xp: Namespace, x: Array) -> Array:
    """Return the conjugate transpose."""
    turned = xp.matrix_transpose(x)
    return xp.conj(turned) if is_complex(x) else turned


def scaled_by_real(table: Array, x: Array) -> Array:
    """Return the product, entry by entry, with real constants."""
    return as_entries(table, x) * x


def on_diagonal(x: Array) -> Array:
    """Whether an entry of a matrix is on its diagonal; no shape need be known."""
    backend = backend_of(x)
    x = backend.xp.real(x) if is_complex(x) else x
    return backend.positions(x, -1) == backend.positions(x, -2)


def is_finite(xp: Namespace, a: Array) -> Array:
    """Whether all entries of a matrix are finite, two axes kept."""
    return xp.all(xp.isfinite(a), axis=(-2, -1), keepdims=True)


def parts(xp: Namespace, x: Array) -> Array:
    """Return the sum of the real and the imaginary parts."""
    return xp.real(x) + xp.imag(x) if is_complex(x) else x


def replaced(xp: Namespace, a: Array, good: Array) -> Array:
    """Return the identity where a matrix is not good."""
    return xp.where(good, a, xp.where(on_diagonal(a), xp.ones_like(a), 0.0))


def nan_of(xp: Namespace, a: Array, good: Array) -> Array:
    """Return 0, and NaN with all derivatives to second order NaN where a matrix is not good."""
    bad = xp.where(good, 0.0, a)
    return bad * xp.where(good, xp.ones_like(a), math.nan) * bad


def nothing_beyond(xp: Namespace, a: Array) -> Array:
    """Return 0, with no first or second derivative, and a third one that is inf or NaN."""
    # It is made of the change of a matrix, which is 0 and has its derivative. All entries take
    # part, so that each entry of a third derivative is NaN. The one of ``t ** 2.5`` at 0 is
    # infinite.
    change = a - backend_of(a).stop_gradient(a)
    return xp.pow(xp.sum(parts(xp, change), axis=(-2, -1), keepdims=True), 2.5)


def spectrum(xp: Namespace, a: Array) -> Spectrum:
    """Return the spectrum of the Hermitian part of a matrix."""
    stop, constant = backend_of(a).stop_gradient, backend_of(a).is_constant(a)
    finite, diagonal = is_finite(xp, stop(a)), on_diagonal(a)
    fault = nan_of(xp, a, finite)
    a = replaced(xp, a, finite)
    fault = fault + as_entries(nothing_beyond(xp, a), a)
    a = a / 2.0 + adjoint(xp, a) / 2.0
    values, vectors = map(stop, xp.linalg.eigh(stop(a)))
    if constant:
        return Spectrum(values, vectors, xp.zeros_like(a), diagonal, fault, constant)
    residual = xp.matmul(adjoint(xp, vectors), xp.matmul(a, vectors))
    residual = residual / 2.0 + adjoint(xp, residual) / 2.0  # of which products rely
    residual = residual - as_entries(
        xp.where(diagonal, xp.expand_dims(values, axis=-1), 0.0), residual
    )
    return Spectrum(values, vectors, residual, diagonal, fault, constant)


def rounding(xp: Namespace, values: Array) -> Array:
    """
    Return ``8 * n * eps`` times the largest size: what rounding may part a tie by, or leave of 0.

    By Weyl's theorem an eigenvalue errs by the error of the matrix, which in a decomposition that
    is backward stable is a small multiple of ``n * eps``. Measured at ties of 2 to 20 values: the
    errors of NumPy, PyTorch, JAX and TensorFlow (2.21) reach 3.5, and the gaps 3.3 of it.
    """
    if is_empty(values):
        return xp.sum(values, axis=-1, keepdims=True)
    number = xp.sum(xp.ones_like(values), axis=-1, keepdims=True)
    return 8.0 * limits(xp, values).eps * number * xp.max(xp.abs(values), axis=-1, keepdims=True)


def without_rounding(xp: Namespace, values: Array) -> Array:
    """
    Return eigenvalues of a positive semidefinite matrix: 0 for those that rounding may have made.

    What is further below 0 than rounding may have moved it is NaN: the matrix is not positive
    semidefinite.
    """
    bound = rounding(xp, values)
    values = xp.where(values < -bound, math.nan, values)
    return xp.where(xp.abs(values) <= bound, 0.0, values)


def function_of(xp: Namespace, of: Spectrum, formula: Formula) -> Array:
    """Return the function of the matrix."""
    values, residual, vectors = of.values, of.residual, of.vectors
    x, y = xp.expand_dims(values, axis=-1), xp.expand_dims(values, axis=-2)
    if of.constant:
        with backend_of(values).quiet():
            scaled = scaled_by_real(formula.value(y), vectors)
        return xp.matmul(scaled, adjoint(xp, vectors)) + of.fault
    with backend_of(values).quiet():
        first, value = formula.difference(x, y), formula.value(x)
    linear = scaled_by_real(first, residual)
    if formula.bent is None:
        bent = second_term(xp, residual, linear, tables_of(xp, formula, values, first))
    else:
        bent = formula.bent(xp, values, first, linear)
    whole = linear + bent + as_entries(xp.where(of.diagonal, value, 0.0), residual)
    result = xp.matmul(vectors, xp.matmul(whole, adjoint(xp, vectors)))
    return result + of.fault


def tables_of(
    xp: Namespace, formula: Formula, values: Array, first: Array
) -> tuple[Array, Array, Array, Array]:
    """Return what `second_term` needs of each pair of eigenvalues."""
    x, y = xp.expand_dims(values, axis=-1), xp.expand_dims(values, axis=-2)
    with backend_of(values).quiet():
        near = near_pairs(xp, formula, x, y)
        middle = xp.where(near, formula.second((x + y) / 2.0), 0.0)
        across = xp.where(near, 0.0, 1.0 / xp.where(near, 1.0, x - y))
    return first, near, middle, across


def as_entries(numbers: Array, like: Array) -> Array:
    """Return real numbers in the dtype of a matrix."""
    if not is_complex(like):
        return numbers
    return backend_of(like).xp.astype(numbers, like.dtype)


def second_term(
    xp: Namespace, e: Array, linear: Array, tables: tuple[Array, Array, Array, Array]
) -> Array:
    """
    Return ``sum_k f[i, k, j] E_ik E_kj``, by products of matrices: no table has three indices.

    Of i and j far apart it is ``(f[i, k] - f[k, j]) / (l_i - l_j)``, of i far from k alike, and the
    mean of two such quotients if k is far from both. Of three near to each other, which is not
    transitive, it is half the mean of f'' at the middles of the edges.
    """
    first, near, middle, across = tables
    far, close = scaled_by_real(across, e), xp.where(near, e, 0.0)
    commutator = xp.matmul(linear, e)
    apart = scaled_by_real(across, commutator - adjoint(xp, commutator))
    half = (e + close) / 2.0
    beside = scaled_by_real(first, xp.matmul(far, half)) - xp.matmul(
        far, scaled_by_real(first, half)
    )
    curved = xp.matmul(scaled_by_real(middle, close), close)
    together = beside + adjoint(xp, beside) + (curved + adjoint(xp, curved)) / 6.0
    together = together + scaled_by_real(middle / 6.0, xp.matmul(close, close))
    return apart + xp.where(near, together, 0.0)


def near_pairs(xp: Namespace, formula: Formula, x: Array, y: Array) -> Array:
    """Whether eigenvalues are so near that three of them are served by f'' at the middles."""
    # With d for the distance the error of that is at most ``d**3 / 720`` times the fifth derivative
    # of f, 1 / 24 of the third difference here; that of the quotient ``eps * f' / d``. Whichever is
    # smaller is taken, so that no scale of f need be known.
    middle, half = (x + y) / 2.0, (x - y) / (2.0 * _INNER)
    at_x, at_y = formula.second(x), formula.second(y)
    inner = formula.second(middle + half) - formula.second(middle - half)
    third = at_x - at_y - _INNER * inner
    one, other = formula.difference(x, x), formula.difference(y, y)
    eps = limits(xp, x).eps
    bound = eps * (xp.abs(one) + xp.abs(other))
    near = xp.abs(third * (x - y)) / 24.0 <= bound
    # A kink between them, which f'' does not show, shows in f', of which it is the derivative. That
    # has the rounding of the argument too, which is far more than its own for ``sin(20 x)``.
    mean = (at_x + 4.0 * formula.second(middle) + at_y) / 6.0
    bound = 8.0 * (bound + eps * (xp.abs(x * at_x) + xp.abs(y * at_y)))
    near = xp.logical_and(near, xp.abs(one - other - mean * (x - y)) <= bound)
    return xp.logical_and(near, (x == 0) == (y == 0)) if formula.apart else near


# Divided differences.

_INNER = math.sqrt(5.0)  # the inner points of Lobatto's rule stand at 1 / sqrt(5)
_OUTER = math.sqrt(2.0 / 3.0)  # those which Kronrod's adds


def smooth(xp: Namespace, f: Function, first: Function, second: Function) -> Formula:
    """Return the formula of a function with two derivatives."""

    # Its divided difference is the quotient, or the mean of f' between x and y, by the rule of
    # Lobatto with four points and its extension to seven (Gander and Gautschi 2000), of degree 9.
    # The mean is taken where the two rules differ by less than the quotient is rounded. The error
    # of the mean is of a higher order than that difference.
    def difference(x: Array, y: Array) -> Array:
        middle, half = (x + y) / 2.0, (x - y) / 2.0
        ends = first(x) + first(y)
        inner = first(middle + half / _INNER) + first(middle - half / _INNER)
        outer = first(middle + half * _OUTER) + first(middle - half * _OUTER)
        four = (ends + 5.0 * inner) / 12.0
        seven = (77.0 * ends + 432.0 * outer + 625.0 * inner + 672.0 * first(middle)) / 2940.0
        fx, fy, step = f(x), f(y), x - y
        rounding = limits(xp, x).eps * (xp.abs(fx) + xp.abs(fy))
        near = xp.logical_or(step == 0, xp.abs((seven - four) * step) <= rounding)
        return xp.where(near, seven, (fx - fy) / xp.where(step == 0, 1.0, step))

    return Formula(f, difference, second)


def on_range(
    xp: Namespace, formula: Formula, at_zero: tuple[Array, float, float], *, apart: bool
) -> Formula:
    """Return the formula with this value at 0, this slope and this second derivative."""
    # Between 0 and y the difference is ``(f(y) - f(0)) / y``: what it is for changes that keep the
    # rank, of which the slope at 0 has no part.
    fill, slope, curvature = at_zero

    def with_zero(f: Function, number: float) -> Function:
        return lambda x: xp.where(x == 0, number, f(xp.where(x == 0, 1.0, x)))

    value = with_zero(formula.value, fill)

    def difference(x: Array, y: Array) -> Array:
        at_x, at_y = x == 0, y == 0
        inside = formula.difference(xp.where(at_x, 1.0, x), xp.where(at_y, 1.0, y))
        edge = (value(x) - value(y)) / xp.where(x == y, 1.0, x - y)
        found = xp.where(xp.logical_or(at_x, at_y), edge, inside)
        return xp.where(xp.logical_and(at_x, at_y), slope, found)

    second = with_zero(formula.second, curvature)
    return Formula(value, difference, second, apart=apart, bent=formula.bent)


def exponential(xp: Namespace) -> Formula:
    """Return the formula of exp; its difference is ``exp(larger) * exprel(-distance)``."""

    def difference(x: Array, y: Array) -> Array:
        return xp.exp(xp.maximum(x, y)) * exprel(-xp.abs(x - y))

    return Formula(xp.exp, difference, xp.exp)


def log_of_ratio(xp: Namespace, small: Array, large: Array) -> Array:
    """Return ``log(small / large)`` with all its digits, for positive numbers."""
    near = small > large / 2.0
    distance = xp.where(near, (small - large) / large, 0.0)
    return xp.where(near, xp.log1p(distance), xp.log(small) - xp.log(large))


def logarithm(xp: Namespace) -> Formula:
    """Return the formula of log; its difference is ``1 / (larger * exprel(log(ratio)))``."""

    def difference(x: Array, y: Array) -> Array:
        large = xp.maximum(x, y)
        return 1.0 / (large * exprel(log_of_ratio(xp, xp.minimum(x, y), large)))

    return Formula(xp.log, difference, lambda x: -1.0 / (x * x))


def root(xp: Namespace) -> Formula:
    """Return the formula of sqrt; its difference is ``1 / (sqrt(x) + sqrt(y))``."""

    def difference(x: Array, y: Array) -> Array:
        return 1.0 / (xp.sqrt(x) + xp.sqrt(y))

    return Formula(xp.sqrt, difference, lambda x: -0.25 / (x * xp.sqrt(x)), bent=bent_root)


def bent_root(xp: Namespace, values: Array, first: Array, linear: Array) -> Array:
    """
    Return the term Y of second order of a root S, by ``S Y + Y S = -X X`` with the linear term X.

    Between two zero eigenvalues that says nothing; there ``f[0, x, 0]`` is ``x ** -1.5``.
    """
    none = values == 0
    inverse = xp.where(none, 0.0, 1.0 / xp.sqrt(xp.where(none, 1.0, values)))
    both = xp.logical_and(xp.expand_dims(none, axis=-1), xp.expand_dims(none, axis=-2))
    between = xp.matmul(scaled_by_real(xp.expand_dims(inverse, axis=-2), linear), linear)
    return xp.where(both, between, scaled_by_real(-first, xp.matmul(linear, linear)))


def reciprocal_root(xp: Namespace) -> Formula:
    """Return the formula of ``1 / sqrt(x)``."""

    def difference(x: Array, y: Array) -> Array:
        a, b = xp.sqrt(x), xp.sqrt(y)
        return -1.0 / (a * b * (a + b))

    return Formula(lambda x: 1.0 / xp.sqrt(x), difference, lambda x: 0.75 / (x * x * xp.sqrt(x)))


def power(xp: Namespace, p: float) -> Formula:
    """Return the formula of a power."""

    # With the logarithm L of the ratio of the numbers, at most 0, the difference is ``p *
    # larger**(p - 1) * exprel(p * L) / exprel(L)``; for p below 0 with the smaller one first.
    def difference(x: Array, y: Array) -> Array:
        small, large = xp.minimum(x, y), xp.maximum(x, y)
        ratio = log_of_ratio(xp, small, large)
        base, ratio = (large, ratio) if p > 0 else (small, -ratio)
        return p * xp.pow(base, p - 1.0) * exprel(p * ratio) / exprel(ratio)

    def second(x: Array) -> Array:
        return p * (p - 1.0) * xp.pow(x, p - 2.0)

    return Formula(lambda x: xp.pow(x, p), difference, second)


ROOT = Family(root, 0.5, (0.0, 0.0, 0.0))
RECIPROCAL_ROOT = Family(reciprocal_root, -0.5)
LOGARITHM = Family(logarithm, None)


def power_family(p: float) -> Family:
    """Return the family of a power, with its value and its slopes at 0 where they are finite."""
    at_zero = {0.0: (1.0, 0.0, 0.0), 1.0: (0.0, 1.0, 0.0), 2.0: (0.0, 0.0, 2.0)}
    smooth_there = p in at_zero or p > 2  # noqa: PLR2004  (then both slopes are 0)
    numbers = at_zero.get(p, (0.0 if p > 0 else None, 0.0, 0.0))
    return Family(lambda xp: power(xp, p), p, numbers, apart=not smooth_there)


# What the public functions begin with.

_USUAL = 2.0**-16


def require_functions(f: Function, derivatives: Sequence[Function]) -> None:
    """Raise TypeError for what is no function, and for no pair of derivatives."""
    if not (isinstance(derivatives, tuple | list) and len(derivatives) == 2):  # noqa: PLR2004  (f' and f'')
        msg = f"expected two functions as derivatives, f' and f'', got {derivatives!r}"
        raise TypeError(msg)
    for function in (f, *derivatives):
        if not callable(function):
            msg = f"expected functions of eigenvalues, got {function!r}"
            raise TypeError(msg)


def require_square(a: Array) -> None:
    """Raise ValueError if the last two axes are known and differ, or are missing."""
    shape = a.shape
    if getattr(shape, "rank", 0) is None:
        return
    sizes = tuple(shape)[-2:]
    if len(sizes) < 2 or (None not in sizes and sizes[0] != sizes[1]):  # noqa: PLR2004  (axes)
        msg = f"expected square matrices of shape (..., n, n), got {tuple(shape)}"
        raise ValueError(msg)


def require_matrices(a: Array) -> None:
    """Raise ValueError if there are known to be less than two axes."""
    shape = a.shape
    if getattr(shape, "rank", 0) is not None and len(tuple(shape)) < 2:  # noqa: PLR2004  (axes)
        msg = f"expected matrices of shape (..., m, n), got {tuple(shape)}"
        raise ValueError(msg)


def of_symmetric(xp: Namespace, a: Array, formula: Formula) -> Array:
    """Return a function of Hermitian matrices."""
    return function_of(xp, spectrum(xp, a), formula)


def of_semidefinite(xp: Namespace, a: Array, family: Family, fill: float) -> Array:
    """Return a function of positive semidefinite matrices."""
    # Those of unusual size are divided by it, a constant: derivatives of small numbers are large.
    size = size_of(xp, a)
    found = spectrum(xp, scaled_by_real(1.0 / size, a))
    found = found._replace(values=without_rounding(xp, found.values))
    factor = xp.log(size) if family.power is None else xp.pow(size, family.power)
    value, slope, curvature = family.at_zero
    if value is None:
        value = fill - factor if family.power is None else fill / factor
    formula = on_range(xp, family.formula(xp), (value, slope, curvature), apart=family.apart)
    result = function_of(xp, found, formula)
    if family.power is None:
        return result + as_entries(xp.where(found.diagonal, factor, 0.0), result)
    return scaled_by_real(factor, result)


def size_of(xp: Namespace, a: Array) -> Array:
    """Return the largest size of an entry if that is unusual, else 1; two axes kept."""
    a = backend_of(a).stop_gradient(a)
    if is_empty(a):
        return 1.0 + xp.sum(xp.real(a) if is_complex(a) else a, axis=(-2, -1), keepdims=True)
    size = xp.max(xp.abs(a), axis=(-2, -1), keepdims=True)
    least, most = limits(xp, size).smallest_normal, limits(xp, size).max / 8.0  # of normal inverse
    near_one = xp.logical_and(size > _USUAL, size < 1.0 / _USUAL)
    usable = xp.logical_and(size >= least, size <= most)
    return xp.where(xp.logical_and(usable, xp.logical_not(near_one)), size, 1.0)
