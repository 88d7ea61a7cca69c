"""
The specifications of the functions of matrices in `linalg.py`.

What is a function of eigenvalues is given by that, others by what they make of a matrix, in mpmath.
Determinants, factors of Cholesky and vectors have tests by cases: of any rank, of matrices that are
not definite, with ties.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from mpmath import mp

import spectra
from points import OwnSpec
from safeops import linalg
from spectra import GRID, WAY


class OfEigenvalues(NamedTuple):
    """A call, and what it makes of eigenvalues."""

    name: str
    op: object  # function of a matrix and the namespace
    f: tuple  # value, slope and second derivative in mpmath


class OfMatrices(NamedTuple):
    """A call, and the matrices to which it is applied."""

    name: str
    op: object  # function of a matrix
    matrices: tuple  # each with a function in mpmath


@dataclass(frozen=True, eq=False)
class MatrixSpec(OwnSpec):
    """A function of matrices."""

    near: tuple = ()  # calls for eigenvalues near each other, if they are not those of `rows`


# Functions of eigenvalues.


def alone(op, *also):
    """Return a call that needs no namespace."""
    return lambda a, _: op(a, *also)


def by_hand(a, xp):
    """Return the logarithm as a spectral function."""
    slopes = (lambda x: 1.0 / x, lambda x: -1.0 / (x * x))
    return linalg.spectral_function(a, xp.log, derivatives=slopes)


def cosine(a, xp):
    """Return the cosine, which is near 0 and of both signs."""
    slopes = (lambda x: -xp.sin(x), lambda x: -xp.cos(x))
    return linalg.spectral_function(a, xp.cos, derivatives=slopes)


def wave(a, xp):
    """Return ``sin(20 x)``, whose slope has the rounding of ``20 x`` in it."""
    slopes = (lambda x: 20 * xp.cos(20 * x), lambda x: -400 * xp.sin(20 * x))
    return linalg.spectral_function(a, lambda x: xp.sin(20 * x), derivatives=slopes)


def power(p):
    """Return a power in mpmath, with its derivatives."""
    return tuple(
        lambda x, c=c, k=k: c * x ** mp.mpf(p - k) for k, c in enumerate((1, p, p * (p - 1)))
    )


def by_eigenvectors(f):
    """Return the function of matrices that people write."""

    def naive(xp, a):
        values, vectors = xp.linalg.eigh(a)
        return xp.matmul(vectors * f(xp, values)[..., None, :], xp.matrix_transpose(vectors))

    return naive


LOG = (mp.log, lambda x: 1 / x, lambda x: -1 / x**2)
COSINE = (mp.cos, lambda x: -mp.sin(x), lambda x: -mp.cos(x))
WAVE = (
    lambda x: mp.sin(20 * x),
    lambda x: 20 * mp.cos(20 * x),
    lambda x: -400 * mp.sin(20 * x),
)


def spectral(name, f, naive):
    """Return the specification of a function of eigenvalues without options."""
    row = OfEigenvalues(name, alone(getattr(linalg, name)), f)
    return MatrixSpec(name, (row,), by_eigenvectors(naive))


def powm(name, p):
    """Return a row of powers."""
    return OfEigenvalues(name, alone(linalg.powm_psd, p), power(p))


# Functions of a matrix.


def orthonormal(a):
    """Return a rotation that is made of a matrix."""
    basis, _ = np.linalg.qr(a)
    return basis * np.append(np.ones(len(a) - 1), np.linalg.det(basis))


ORTHOGONAL = orthonormal(GRID)


def with_values(values):
    """Return a matrix with these singular values."""
    return ORTHOGONAL @ np.diag(values) @ orthonormal(GRID + GRID.T)


GENERAL = WAY + 0.3 * np.eye(4)
MATRICES = (
    np.eye(4),
    ORTHOGONAL,
    with_values([5.0, 2.0, 2.0, 2.0]),
    with_values([3.0, 1 + 1e-9, 1.0, 0.5]),
    GENERAL,
    np.diag([1.0, -1.0, 1.0, 1.0]) @ with_values([4.0, 3.0, 2.0, 1.0]),  # reflected
)
SYMMETRIC = (
    (np.eye(4), ((0, 1, 2, 3),)),
    (spectra.rotated([1.0, 1.0, 2.0, 3.0]), ((0, 1), (2,), (3,))),
    (spectra.rotated([0.3, 1.0, 2.2, 4.0]), ((0,), (1,), (2,), (3,))),
)
SQUARE = (
    (with_values([3.0, 2.0, 2.0, 1.0]), ((0,), (1, 2), (3,))),
    (GENERAL, ((0,), (1,), (2,), (3,))),
)


def rotation(a):
    """Return the nearest rotation in mpmath."""
    left, values, right = mp.svd_r(a)
    sign = mp.sign(mp.det(left) * mp.det(right))
    last = values.rows - 1
    return left * mp.diag([sign if k == last else 1 for k in range(last + 1)]) * right


def orthogonal(a):
    """Return the nearest orthogonal matrix in mpmath."""
    left, _, right = mp.svd_r(a)
    return left * right


def means(numbers, clusters):
    """Return numbers as a column, those of a cluster by their mean."""
    found = [mp.fsum(numbers[k] for k in c) / len(c) for c in clusters for _ in c]
    return mp.matrix(found)


def eigenvalues(clusters, a):
    """Return eigenvalues in mpmath."""
    return means(sorted(mp.eigsy(a, eigvals_only=True)), clusters)


def singular_values(clusters, a):
    """Return singular values in mpmath."""
    return means(sorted(mp.svd_r(a, compute_uv=False), reverse=True), clusters)


def polar(name, function, **options):
    """Return a row of polar factors."""
    matrices = tuple((a, function) for a in MATRICES)
    return OfMatrices(name, partial(linalg.polar, **options), matrices)


def values(name, function, *matrices):
    """Return a row of eigenvalues or singular values, of matrices with their clusters."""
    op = getattr(linalg, name.partition(",")[0])
    return OfMatrices(name, op, tuple((a, partial(function, c)) for a, c in matrices))


SPECS = (
    MatrixSpec(
        "spectral_function",
        (
            OfEigenvalues("spectral_function", by_hand, LOG),
            OfEigenvalues("cosine", cosine, COSINE),
        ),
        near=(OfEigenvalues("spectral_function", wave, WAVE),),
    ),
    spectral("expm_symmetric", (mp.exp,) * 3, lambda xp, x: xp.exp(x)),
    spectral("sqrtm_psd", power(0.5), lambda xp, x: xp.sqrt(x)),
    spectral("inv_sqrtm_psd", power(-0.5), lambda xp, x: 1.0 / xp.sqrt(x)),
    spectral("logm_psd", LOG, lambda xp, x: xp.log(x)),
    MatrixSpec(
        "powm_psd",
        (powm("powm_psd", 0.25), powm("powm_psd below 0", -1.5)),
        near=(powm("powm_psd", 2.5), powm("powm_psd below 0", -1.5)),
    ),
    MatrixSpec(
        "polar", (polar("polar", orthogonal), polar("polar, proper", rotation, proper=True))
    ),
    MatrixSpec("safe_eigvalsh", (values("safe_eigvalsh", eigenvalues, *SYMMETRIC),)),
    MatrixSpec(
        "safe_svdvals",
        (
            values("safe_svdvals", singular_values, *SQUARE),
            values("safe_svdvals, wide", singular_values, (WAY[:3], ((0,), (1,), (2,)))),
            values("safe_svdvals, tall", singular_values, (WAY[:, :2], ((0,), (1,)))),
        ),
    ),
    MatrixSpec("safe_det"),
    MatrixSpec("safe_slogdet"),
    MatrixSpec("safe_cholesky"),
    MatrixSpec("safe_eigh", naive=lambda xp, a: xp.linalg.eigh(a)),
    MatrixSpec("safe_svd", naive=lambda xp, a: xp.linalg.svd(a, full_matrices=False)),
)
