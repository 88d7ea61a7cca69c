"""
Functions of symmetric matrices in mpmath: their values, and their derivatives by differences.

Differences are central, of fourth order, with steps of 1e-15 in 60 digits: so 30 digits are right.
"""

from dataclasses import dataclass
from functools import cache

import mpmath
import numpy as np
from mpmath import mp

DIGITS, STEP, SIDE = 60, mpmath.mpf("1e-15"), 4
# A matrix and a direction without symmetry.
GRID = np.sin(1 + np.add.outer(2.3 * np.arange(4), np.arange(4) ** 2))
WAY = np.cos(np.add.outer(1.9 * np.arange(4), 0.4 * np.arange(4) ** 3)) / 2


def rotated(eigenvalues, *, of=float):
    """Return a matrix with these eigenvalues, in a basis without symmetry."""
    grid = np.add.outer(2.3 * np.arange(SIDE), 0.7 * np.arange(SIDE) ** 2)
    basis, _ = np.linalg.qr(np.sin(grid) + (1j * np.cos(1.7 * grid) if of is complex else 0))
    matrix = basis @ np.diag(eigenvalues) @ basis.conj().T
    return (matrix + matrix.conj().T) / 2


def matrices(of=float):
    """Return the matrices by their names: ties, near ties, and none."""
    return {
        "identity": np.eye(SIDE, dtype=of),
        "diagonal, a tie": np.diag([1.0, 1.0, 2.0, 3.0]).astype(of),
        "rotated, a triple": rotated([2.0, 2.0, 2.0, 5.0], of=of),
        "1e-9 apart": rotated([1.0, 1 + 1e-9, 2.0, 3.0], of=of),
        "1e-5 apart": rotated([1.0, 1 + 1e-5, 2.0, 3.0], of=of),
        "1e-3 apart": rotated([1.0, 1 + 1e-3, 1.05, 3.0], of=of),
        "general": rotated([0.3, 1.0, 2.2, 4.0], of=of),
        "wide": rotated([1e-2, 0.3, 3.0, 10.0], of=of),
    }


def direction(seed, *, of=float):
    """Return a symmetric matrix of size 1, without other symmetry."""
    grid = seed + np.add.outer(1.9 * np.arange(SIDE), 1.1 * np.arange(SIDE) ** 2)
    x = np.cos(grid) + (1j * np.sin(2.1 * grid) if of is complex else 0)
    return (x + x.conj().T) / 4


@dataclass(frozen=True)
class Exact:
    """A value, and the first and second derivatives along a direction."""

    value: np.ndarray
    first: np.ndarray
    second: np.ndarray


def by_eigenvalues(f):
    """Return the function of Hermitian matrices that applies f to their eigenvalues."""

    def function(a):
        parts = [a[i, j] for i in range(a.rows) for j in range(a.cols)]
        is_complex = any(isinstance(x, mpmath.mpc) for x in parts)
        values, vectors = (mp.eighe if is_complex else mp.eigsy)(a)
        return vectors * mp.diag([f(x) for x in values]) * vectors.transpose_conj()

    return function


def along(function, matrix, way):
    """Return value and derivatives of a function of matrices along a direction."""
    with mp.workdps(DIGITS):
        a, x = (mp.matrix(m.tolist()) for m in (matrix, way))
        far, near, at, ahead, beyond = (function(a + k * STEP * x) for k in (-2, -1, 0, 1, 2))
        first = (8 * (ahead - near) - (beyond - far)) / (12 * STEP)
        second = (16 * (ahead + near) - (beyond + far) - 30 * at) / (12 * STEP**2)
        return Exact(*(in_floats(m, matrix.dtype) for m in (at, first, second)))


def in_floats(matrix, dtype):
    """Return a matrix of mpmath as an array."""
    values = [[complex(matrix[i, j]) for j in range(matrix.cols)] for i in range(matrix.rows)]
    return np.array(values) if np.dtype(dtype).kind == "c" else np.array(values).real


@cache
def exact(f, of=float, seed=0):
    """Return what a function has at all matrices along a direction, one array for each order."""
    way = direction(seed, of=of)
    rows = [along(by_eigenvalues(f), matrix, way) for matrix in matrices(of).values()]
    return Exact(*(np.stack([getattr(row, k) for row in rows]) for k in Exact.__annotations__))
