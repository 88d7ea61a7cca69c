"""Decompositions of matrices whose derivatives are exact, or NaN where there are none."""

from safeops._core.types import T
from safeops._dispatch import fast_path, promote
from safeops._ops import determinants, eigenvectors, spectral
from safeops._ops.precision import in_float32


@fast_path
def safe_eigh(a: T, /) -> tuple[T, T]:
    """
    Eigenvalues and eigenvectors, whose derivatives are exact, or NaN where a tie leaves none.

    Same as ``eigh(a)``.

    Parameters
    ----------
    a : array, shape (..., n, n), real or complex floating
        Symmetric or Hermitian matrices. Of others the Hermitian part is taken. A matrix with NaN
        or inf is NaN as a whole.

    Returns
    -------
    values : array, shape (..., n), real floating
        Rising.
    vectors : array, shape (..., n, n)
        In columns, of length 1.

    Notes
    -----
    **Gradient.** Exact to second order where eigenvalues differ; a third derivative is inf or NaN,
    but exact in eager PyTorch on a CPU where all eigenvalues differ.
    The vectors of eigenvalues that tie may be turned among themselves. If the loss does not change
    by that, and has one slope for all these eigenvalues, its gradient is exact: nothing comes from
    inside of the block, and nothing is divided by 0. Projectors are such a loss, and the trace. If
    it does change, the gradient is NaN. In forward mode the tangent has to be a multiple of the
    identity in each block, else the result is NaN; and so it is for second derivatives.

    Eigenvalues tie if the gaps between them are at most ``8 * n * eps`` times the largest, which
    rounding parts them by at most. What comes from a block counts as 0 up to ``8 * n * eps`` of
    the largest cotangent, which is the rounding of two products of matrices. Vectors of complex
    matrices have a phase each: a loss that depends on it has gradient NaN too.

    Between a tie and a gap of 1 such a loss loses digits, as all is divided by the gap: measured
    on a projector, with a gap g to another of its values, the gradient has an error of about
    ``eps / g`` and the second derivative of ``eps / g**2``, which in float64 is 1e-4 at g = 1e-6.

    For functions of matrices such as the square root use those of `safeops.linalg`, which are exact
    at ties and near them; for eigenvalues alone `safe_eigvalsh`.

    **Source.** Perturbation theory to second order. The test: a cotangent that no rotation inside
    of a block changes.

    Examples
    --------
    >>> import numpy as np
    >>> values, vectors = safe_eigh(np.diag([2.0, 1.0]))
    >>> values
    array([1., 2.])
    >>> abs(vectors)
    array([[0., 1.],
           [1., 0.]])
    """
    xp, a = promote(a, complex_too=True)
    spectral.require_square(a)
    return in_float32(xp, lambda a: eigenvectors.eigh(xp, a))(a)


@fast_path
def safe_svd(a: T, /) -> tuple[T, T, T]:
    """
    Singular values and vectors, whose derivatives are exact, or NaN where a tie leaves none.

    Same as ``svd(a, full_matrices=False)``.

    Parameters
    ----------
    a : array, shape (..., m, n), real or complex floating
        Any matrices. A matrix with NaN or inf is NaN as a whole.

    Returns
    -------
    left : array, shape (..., m, k), with k = min(m, n)
        Left vectors, in columns.
    values : array, shape (..., k), real floating
        Falling.
    right : array, shape (..., k, n)
        Right vectors, conjugate, in rows.

    Notes
    -----
    **Gradient.** Exact to second order where singular values differ and are not 0; a third
    derivative is inf or NaN. The left and right vectors of values that tie may be turned together,
    those of the value 0 each for itself. If the loss does not change by that, and has one slope
    for all values that tie and none for the value 0, its gradient is exact; if it does change, NaN.
    Projectors are such a loss, and the polar factor. Forward mode, the tolerances, and the digits
    that are lost next to a tie are those of `safe_eigh`. A small value s of a square real matrix
    costs none; of others, derivatives have an error of ``eps / s`` of themselves.

    For the polar factor use `polar`, for singular values alone `safe_svdvals`.

    **Source.** The eigenvectors of ``[[0, a], [adjoint(a), 0]]``, as in `safe_eigh`.

    Examples
    --------
    >>> import numpy as np
    >>> left, values, right = safe_svd(np.diag([1.0, 2.0]))
    >>> values
    array([2., 1.])
    >>> ((left * values) @ right).round(6)
    array([[1., 0.],
           [0., 2.]])
    """
    xp, a = promote(a, complex_too=True)
    spectral.require_matrices(a)
    return in_float32(xp, lambda a: eigenvectors.svd(xp, a))(a)


@fast_path
def safe_cholesky(a: T, /) -> T:
    """
    Cholesky factor, which is NaN, with gradient NaN, where a matrix is not positive definite.

    Same as ``cholesky(a)``.

    Parameters
    ----------
    a : array, shape (..., n, n), real or complex floating
        Symmetric or Hermitian matrices. Of others the Hermitian part is taken.

    Returns
    -------
    array, shape (..., n, n)
        Lower triangular.

    Notes
    -----
    **Gradient.** Exact for positive definite matrices, at every order. A matrix without a factor is
    NaN as a whole, and so is its gradient: nothing is raised, and its neighbours are right.

    **Source.** `jax.numpy.linalg.cholesky`, whose failure is NaN; NumPy and PyTorch raise for all.

    Examples
    --------
    >>> import numpy as np
    >>> safe_cholesky(np.asarray([[[4.0]], [[-1.0]]]))
    array([[[ 2.]],
    <BLANKLINE>
           [[nan]]])
    """
    xp, a = promote(a, complex_too=True)
    spectral.require_square(a)
    return in_float32(xp, lambda a: determinants.cholesky(xp, a))(a)
