"""
Linear algebra of TensorFlow under names of the array API standard.

In TensorFlow 2.21 `tf.linalg.eigh` returns eigenvalues in the dtype of the matrix. For a complex
matrix under XLA their bits are wrong; the eigenvectors are right, and here the eigenvalues are
computed from them.
"""

from typing import NamedTuple

import tensorflow as tf

from safeops._backends.tensorflow.dtypes import inexact, tensor, together
from safeops._core.types import Array


class Eigh(NamedTuple):
    """Eigenvalues in ascending order, and eigenvectors as columns."""

    eigenvalues: Array
    eigenvectors: Array


class Svd(NamedTuple):
    """Factors of a singular value decomposition."""

    U: Array
    S: Array
    Vh: Array


class Slogdet(NamedTuple):
    """Sign of a determinant, and the logarithm of its size."""

    sign: Array
    logabsdet: Array


def matmul(x: Array, y: Array, /) -> Array:
    """Product of matrices."""
    return tf.linalg.matmul(*together(x, y))


def matrix_transpose(x: Array, /) -> Array:
    """Exchange the last two axes."""
    return tf.linalg.matrix_transpose(tensor(x))


def conj(x: Array, /) -> Array:
    """Complex conjugate."""
    return tf.math.conj(inexact(x))


def eigh(x: Array, /) -> Eigh:
    """Eigenvalues of Hermitian matrices, which are real, and eigenvectors."""
    x = inexact(x)
    values, vectors = tf.linalg.eigh(x)
    if x.dtype.is_complex:
        values = tf.reduce_sum(tf.math.conj(vectors) * tf.linalg.matmul(x, vectors), -2)
    return Eigh(tf.math.real(values), vectors)


def svd(x: Array, /, *, full_matrices: bool = True) -> Svd:
    """Singular values in descending order, and singular vectors."""
    s, u, v = tf.linalg.svd(inexact(x), full_matrices=full_matrices)
    return Svd(u, tf.math.real(s), tf.linalg.adjoint(v))


def cholesky(x: Array, /) -> Array:
    """Lower triangular factor; NaN, without an error, for a matrix that has no factor."""
    return tf.linalg.cholesky(inexact(x))


def det(x: Array, /) -> Array:
    """Determinant."""
    return tf.linalg.det(inexact(x))


def slogdet(x: Array, /) -> Slogdet:
    """Sign and logarithm of the determinant, which is real for complex matrices too."""
    sign, size = tf.linalg.slogdet(inexact(x))
    return Slogdet(sign, tf.math.real(size))
