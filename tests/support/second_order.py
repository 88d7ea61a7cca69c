"""
Functions of matrices in mpmath to second order, by their formulas: nothing is differentiated.

Those of eigenvalues have divided differences (Daleckii and Krein), of which the one of second order
is summed over both orders of the directions. A polar factor has two equations of Sylvester.
"""

from itertools import combinations_with_replacement

import mpmath
from mpmath import mp

import spectra

DIGITS = 110  # of a difference of second order at eigenvalues 1e-20 apart 40 are lost
TIE = mpmath.mpf("1e-50")  # what the decomposition leaves of a tie


def differences(f, values):
    """Return tables of the divided differences of a function, given with its derivatives."""
    of, slope, second = f
    value, size = [of(x) for x in values], range(len(values))
    one, two = {}, {}
    for i, j in combinations_with_replacement(size, 2):
        away = values[i] - values[j]
        tie = abs(away) < TIE
        one[i, j] = slope(values[i]) if tie else (value[i] - value[j]) / away
    for i, k, j in combinations_with_replacement(size, 3):  # in order: i and j are the ends
        away = values[i] - values[j]
        tie = abs(away) < TIE
        two[i, k, j] = second(values[k]) / 2 if tie else (one[i, k] - one[k, j]) / away
    return value, one, two


def of_symmetric(f, matrix, v, u):
    """Return value, derivative along v, and second derivative along v and u."""
    with mp.workdps(DIGITS):
        a, v, u = (mp.matrix(x.tolist()) for x in (matrix, v, u))
        values, vectors = (mp.eighe if is_complex(matrix) else mp.eigsy)(a)
        size, values = a.rows, [mp.re(x) for x in values]
        order = sorted(range(size), key=lambda k: values[k])
        vectors = table(size, lambda i, k, given=vectors: given[i, order[k]])
        value, one, two = differences(f, [values[k] for k in order])
        back = vectors.transpose_conj()
        v, u = (back * x * vectors for x in (v, u))

        def entry(i, j):
            return mp.fsum(
                two[tuple(sorted((i, k, j)))] * (v[i, k] * u[k, j] + u[i, k] * v[k, j])
                for k in range(size)
            )

        first = table(size, lambda i, j: one[min(i, j), max(i, j)] * v[i, j])
        return found(matrix, (mp.diag(value), first, table(size, entry)), vectors, back)


def is_complex(matrix):
    """Whether an array is complex."""
    return matrix.dtype.kind == "c"


def table(size, entry):
    """Return the matrix with these entries."""
    return mp.matrix([[entry(i, j) for j in range(size)] for i in range(size)])


def of_polar(matrix, v, u, *, proper=False):
    """Return the same of the polar factor, or of the nearest rotation."""
    with mp.workdps(DIGITS):
        a, v, u = (mp.matrix(x.tolist()) for x in (matrix, v, u))
        left, values, right = (mp.svd_c if is_complex(matrix) else mp.svd_r)(a)
        size, values = a.rows, list(values)
        if proper and mp.det(left) * mp.det(right) < 0:
            left *= mp.diag([1] * (size - 1) + [-1])
            values[-1] = -values[-1]
        v, u = (left.transpose_conj() * x * right.transpose_conj() for x in (v, u))

        def sylvester(x):  # the skew W of W P + P W = x - x^H, with P = diag(values)
            skew = x - x.transpose_conj()
            return table(size, lambda i, j: skew[i, j] and skew[i, j] / (values[i] + values[j]))

        along_v, along_u = sylvester(v), sylvester(u)  # Q^H dQ
        stretched = u - along_u * mp.diag(values)  # dP along u
        bent = along_u * along_v + sylvester(-along_u * v - along_v * stretched)
        return found(matrix, (mp.eye(size), along_v, bent), left, right)


def found(matrix, parts, left, right):
    """Return matrices in bases as arrays."""
    return spectra.Exact(*(spectra.in_floats(left * x * right, matrix.dtype) for x in parts))
