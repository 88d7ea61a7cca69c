"""Functions of matrices whose derivatives are right where eigenvalues or singular values tie."""

from safeops._core.dtypes import REAL, require
from safeops._core.types import Array, Function, T
from safeops._decompositions import safe_cholesky, safe_eigh, safe_svd
from safeops._dispatch import fast_path, promote
from safeops._doors import show
from safeops._ops import determinants, factors, spectral
from safeops._ops.precision import in_float32
from safeops._ops.slices import enter_number

__all__ = [
    "expm_symmetric", "inv_sqrtm_psd", "logm_psd", "polar", "powm_psd", "safe_cholesky", "safe_det",
    "safe_eigh", "safe_eigvalsh", "safe_slogdet", "safe_svd", "safe_svdvals", "spectral_function",
    "sqrtm_psd",
]  # fmt: skip


def _of_semidefinite(a: Array, formula: spectral.Family, fill_value: float) -> Array:
    fill = enter_number("expected a number as fill_value", fill_value)
    xp, a = promote(a, complex_too=True)
    spectral.require_square(a)
    return in_float32(xp, lambda a: spectral.of_semidefinite(xp, a, formula, fill))(a)


@fast_path
def spectral_function(a: T, f: Function, /, *, derivatives: tuple[Function, Function]) -> T:
    """
    A function of a symmetric matrix, with exact derivatives where eigenvalues tie.

    Same as ``v @ diag(f(w)) @ adjoint(v)`` with ``w, v = eigh(a)``.

    Parameters
    ----------
    a : array, shape (..., n, n), real or complex floating
        Symmetric or Hermitian matrices. Of others the Hermitian part is taken,
        ``(a + adjoint(a)) / 2``. A matrix with NaN or inf is NaN as a whole.
    f : callable
        The function of eigenvalues: from a real array to one of the same shape, entry by entry.
    derivatives : tuple of two callables
        The first and the second derivative of `f`. Both are asked between eigenvalues, too.

    Notes
    -----
    **Gradient.** Exact to second order, whatever the eigenvalues are: the derivative has the
    divided differences ``(f(x) - f(y)) / (x - y)``, with ``f'(x)`` for ties, and no choice is
    made. Near a tie they are means of `f'` and `f''`, wherever that has the smaller error. A third
    derivative is inf or NaN. `f` is a constant: what it closes over has gradient 0.

    Measured on eigenvalues in clusters, chains and at gaps of 1e-20 to 1: the Hessians of all
    functions of this module that have this derivative are right to 1e-5 of the largest entry in
    float32 and to 1e-11 in float64. Beyond that they lose what the ratio of the eigenvalues costs,
    as the function itself does, and where `f''` passes 0 in a cluster the digits that it lacks
    beside `f'`.

    **Source.** Daleckii and Krein; a Taylor polynomial in ``adjoint(v) @ a @ v - diag(w)``, with
    ``w`` and ``v`` constant.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.asarray([[1.0, 1.0], [1.0, 1.0]])
    >>> spectral_function(a, np.cosh, derivatives=(np.sinh, np.cosh)).round(6)
    array([[2.381098, 1.381098],
           [1.381098, 2.381098]])
    """
    spectral.require_functions(f, derivatives)
    xp, a = promote(a, complex_too=True)
    spectral.require_square(a)
    formula = spectral.smooth(xp, f, *derivatives)
    return in_float32(xp, lambda a: spectral.of_symmetric(xp, a, formula))(a)


@fast_path
def expm_symmetric(a: T, /) -> T:
    """
    Exponential of a symmetric matrix, with exact derivatives where eigenvalues tie.

    Same as ``v @ diag(exp(w)) @ adjoint(v)`` with ``w, v = eigh(a)``.

    Parameters
    ----------
    a : array, shape (..., n, n), real or complex floating
        Symmetric or Hermitian matrices. Of others the Hermitian part is taken. A matrix with NaN
        or inf is NaN as a whole.

    Notes
    -----
    **Gradient.** Exact to second order, at every matrix; a third derivative is inf or NaN.

    **Source.** `scipy.linalg.expm` for the value; the derivative as in `spectral_function`, with
    the divided difference ``exp(x) * exprel(y - x)``.

    Examples
    --------
    >>> import numpy as np
    >>> expm_symmetric(np.zeros((2, 2)))
    array([[1., 0.],
           [0., 1.]])
    """
    xp, a = promote(a, complex_too=True)
    spectral.require_square(a)
    return in_float32(xp, lambda a: spectral.of_symmetric(xp, a, spectral.exponential(xp)))(a)


@fast_path
def sqrtm_psd(a: T, /) -> T:
    """
    Square root of a positive semidefinite matrix, with exact derivatives where eigenvalues tie.

    Same as ``v @ diag(sqrt(w)) @ adjoint(v)`` with ``w, v = eigh(a)``.

    Parameters
    ----------
    a : array, shape (..., n, n), real or complex floating
        Symmetric or Hermitian matrices without negative eigenvalues. Of others the Hermitian part
        is taken. An eigenvalue counts as 0 if it is within ``8 * n * eps`` times the largest,
        the size of rounding errors. The result is NaN as a whole for a matrix with an eigenvalue
        further below 0, with NaN or with inf.

    Notes
    -----
    **Gradient.** Exact to second order for definite matrices; the divided difference is
    ``1 / (sqrt(x) + sqrt(y))``. At a singular matrix it is exact for changes that keep the rank;
    between two zero eigenvalues, where the slope is infinite, 0 is chosen. A third derivative is
    inf or NaN.

    **Source.** `scipy.linalg.sqrtm` for the value; the derivative as in `spectral_function`.

    Examples
    --------
    >>> import numpy as np
    >>> sqrtm_psd(np.asarray([[2.0, 2.0], [2.0, 2.0]])).round(6)
    array([[1., 1.],
           [1., 1.]])
    """
    return _of_semidefinite(a, spectral.ROOT, 0.0)


@fast_path
def inv_sqrtm_psd(a: T, /, *, fill_value: float = 0.0) -> T:
    """
    Inverse square root of a positive matrix, with exact derivatives where eigenvalues tie.

    Same as ``v @ diag(where(w > 0, w**-0.5, fill_value)) @ adjoint(v)`` with ``w, v = eigh(a)``.

    Parameters
    ----------
    a : array, shape (..., n, n), real or complex floating
        Symmetric or Hermitian matrices without negative eigenvalues. Of others the Hermitian part
        is taken. An eigenvalue counts as 0 if it is within ``8 * n * eps`` times the largest,
        the size of rounding errors. The result is NaN as a whole for a matrix with an eigenvalue
        further below 0, with NaN or with inf.
    fill_value : float, default: 0.0
        The value of the function at a zero eigenvalue.

    Notes
    -----
    **Gradient.** Exact to second order for definite matrices. At a singular matrix it is
    exact for changes that keep the rank; between two zero eigenvalues 0 is chosen. A third
    derivative is inf or NaN.

    **Source.** The whitening transform; with the fill 0 the root of the pseudoinverse. The
    derivative as in `spectral_function`.

    Examples
    --------
    >>> import numpy as np
    >>> inv_sqrtm_psd(np.diag([4.0, 0.0]))
    array([[0.5, 0. ],
           [0. , 0. ]])
    """
    return _of_semidefinite(a, spectral.RECIPROCAL_ROOT, fill_value)


@fast_path
def logm_psd(a: T, /, *, fill_value: float = 0.0) -> T:
    """
    Logarithm of a positive matrix, with exact derivatives where eigenvalues tie.

    Same as ``v @ diag(where(w > 0, log(w), fill_value)) @ adjoint(v)`` with ``w, v = eigh(a)``.

    Parameters
    ----------
    a : array, shape (..., n, n), real or complex floating
        Symmetric or Hermitian matrices without negative eigenvalues. Of others the Hermitian part
        is taken. An eigenvalue counts as 0 if it is within ``8 * n * eps`` times the largest,
        the size of rounding errors. The result is NaN as a whole for a matrix with an eigenvalue
        further below 0, with NaN or with inf.
    fill_value : float, default: 0.0
        The value of the logarithm at a zero eigenvalue.

    Notes
    -----
    **Gradient.** Exact to second order for definite matrices. At a singular matrix it is
    exact for changes that keep the rank; between two zero eigenvalues 0 is chosen. A third
    derivative is inf or NaN.

    **Source.** `scipy.linalg.logm` for the value; the derivative as in `spectral_function`, with
    the divided difference ``1 / (x * exprel(log(y / x)))``.

    Examples
    --------
    >>> import numpy as np
    >>> logm_psd(np.diag([np.e, 1.0]))
    array([[1., 0.],
           [0., 0.]])
    """
    return _of_semidefinite(a, spectral.LOGARITHM, fill_value)


@fast_path
def powm_psd(a: T, p: float, /, *, fill_value: float = 0.0) -> T:
    """
    Power of a positive semidefinite matrix, with exact derivatives where eigenvalues tie.

    Same as ``v @ diag(w**p) @ adjoint(v)`` with ``w, v = eigh(a)``.

    Parameters
    ----------
    a : array, shape (..., n, n), real or complex floating
        Symmetric or Hermitian matrices without negative eigenvalues. Of others the Hermitian part
        is taken. An eigenvalue counts as 0 if it is within ``8 * n * eps`` times the largest,
        the size of rounding errors. The result is NaN as a whole for a matrix with an eigenvalue
        further below 0, with NaN or with inf.
    p : float
        The exponent, a number of Python. The power 0 is the identity.
    fill_value : float, default: 0.0
        The value of a negative power at a zero eigenvalue.

    Notes
    -----
    **Gradient.** Exact to second order for definite matrices, and for all if p is 0, 1 or at least
    2. For other p at a singular matrix it is exact for changes that keep the rank; between two zero
    eigenvalues 0 is chosen. A third derivative is inf or NaN.

    **Source.** `scipy.linalg.fractional_matrix_power` for the value; the derivative as in
    `spectral_function`, with ``p * x**(p - 1) * exprel(p * log(y / x)) / exprel(log(y / x))`` for
    the divided difference.

    Examples
    --------
    >>> import numpy as np
    >>> powm_psd(np.diag([4.0, 0.0]), 1.5)
    array([[8., 0.],
           [0., 0.]])
    """
    exponent = enter_number("expected a number as exponent", p)
    return _of_semidefinite(a, spectral.power_family(exponent), fill_value)


@fast_path
def polar(a: T, /, *, proper: bool = False) -> T:
    """
    The nearest orthogonal matrix, with exact derivatives where singular values tie.

    Same as ``u @ vh`` with ``u, s, vh = svd(a)``; if `proper`, the nearest rotation.

    Parameters
    ----------
    a : array, shape (..., n, n), real or complex floating
        Any matrices; real ones if `proper`. A matrix with NaN or inf is NaN as a whole.
    proper : bool, default: False
        Whether the determinant has to be 1: the last column of ``u`` then changes its sign if need
        be, as in the algorithm of Kabsch.

    Returns
    -------
    array, shape (..., n, n)
        Orthogonal or unitary.

    Raises
    ------
    TypeError
        If `a` is complex, and `proper`.

    Notes
    -----
    **Gradient.** Exact to second order wherever the result is unique: at orthogonal matrices, at
    repeated and at small singular values, and if `proper`, for points in a plane too. A third
    derivative is inf or NaN. The result is not unique at a singular matrix, and if `proper`, where
    the two least singular values add up to 0, with their signs: one of the nearest is returned, and
    its gradient is inf or NaN. A sum counts as 0 if it is at most ``16 * n * eps`` times the
    largest singular value. A complex factor turns its phase by ``1 / s`` at the least singular
    value s, and its derivatives are right to about ``eps / s`` of themselves.

    **Source.** `scipy.linalg.polar` and the algorithm of Kabsch for the value; the derivative has
    ``1 / (s_i + s_j)``, and no difference of singular values.

    Examples
    --------
    >>> import numpy as np
    >>> polar(np.asarray([[0.0, -2.0], [3.0, 0.0]]))
    array([[ 0., -1.],
           [ 1.,  0.]])
    """
    xp, a = promote(a, complex_too=True)
    spectral.require_square(a)
    if proper:
        require(a.dtype, REAL)
    return in_float32(xp, lambda a: factors.polar(xp, a, proper=proper))(a)


@fast_path
def safe_eigvalsh(a: T, /) -> T:
    """
    Eigenvalues of a symmetric matrix; eigenvalues that tie share the gradient.

    Same as ``eigvalsh(a)``.

    Parameters
    ----------
    a : array, shape (..., n, n), real or complex floating
        Symmetric or Hermitian matrices. Of others the Hermitian part is taken. A matrix with NaN
        or inf is NaN as a whole.

    Returns
    -------
    array, shape (..., n), real floating
        In ascending order.

    Notes
    -----
    **Gradient.** ``v v^H`` for a simple eigenvalue with the vector ``v``. Of m eigenvalues that tie
    each has the m-th part of the projector on their vectors: chosen, as ties of `max` share theirs,
    and exact for their sum, as is its second derivative. Eigenvalues tie if the gaps between them
    are at most ``8 * n * eps`` times the largest, which rounding parts them by at most. A third
    derivative is inf or NaN, but exact in eager PyTorch on a CPU where nothing ties. A smooth
    function of all eigenvalues, such as the sum of their squares, has a second derivative that this
    choice does not know: use `spectral_function` and the trace.

    **Source.** Subgradient of minimum norm of the largest eigenvalue; perturbation theory to
    second order.

    Examples
    --------
    >>> import numpy as np
    >>> safe_eigvalsh(np.diag([3.0, 1.0, 1.0]))
    array([1., 1., 3.])
    """
    xp, a = promote(a, complex_too=True)
    spectral.require_square(a)
    return in_float32(xp, lambda a: factors.eigvalsh(xp, a))(a)


@fast_path
def safe_svdvals(a: T, /) -> T:
    """
    Singular values of a matrix; values that tie share the gradient; zero values have gradient 0.

    Same as ``svd(a, compute_uv=False)``.

    Parameters
    ----------
    a : array, shape (..., m, n), real or complex floating
        Any matrices. A matrix with NaN or inf is NaN as a whole.

    Returns
    -------
    array, shape (..., min(m, n)), real floating
        In descending order.

    Notes
    -----
    **Gradient.** ``u v^H`` for a simple singular value. Those that tie share the gradient, as in
    `safe_eigvalsh`. At a zero singular value, where the function has a cone, 0 is chosen, the
    subgradient of minimum norm. Both are told by ``8 * n * eps`` times the largest. The second
    derivative is exact for simple values and for sums of those that tie; a third one is inf or NaN.
    Of matrices that are not square, the derivatives of a small value s have an error of ``eps / s``
    of themselves.

    **Source.** Subgradients of the nuclear norm; perturbation theory to second order.

    Examples
    --------
    >>> import numpy as np
    >>> safe_svdvals(np.asarray([[0.0, 2.0], [0.0, 0.0]]))
    array([2., 0.])
    """
    xp, a = promote(a, complex_too=True)
    spectral.require_matrices(a)
    return in_float32(xp, lambda a: factors.svdvals(xp, a))(a)


@fast_path
def safe_det(a: T, /) -> T:
    """
    Determinant, with exact derivatives at singular matrices too.

    Same as ``det(a)``.

    Parameters
    ----------
    a : array, shape (..., n, n), real or complex floating
        Any matrices. The result for a matrix with NaN or inf is NaN.

    Returns
    -------
    array, shape (...)

    Notes
    -----
    **Gradient.** Exact to second order at every matrix: the adjugate, which is not 0 if the rank is
    n - 1, and the minors of two rows less. A third derivative is inf or NaN.

    **Source.** Jacobi's formula, in a singular value decomposition: nothing is divided by 0.

    Examples
    --------
    >>> import numpy as np
    >>> abs(safe_det(np.asarray([[1.0, 2.0], [2.0, 4.0]]))) < 1e-14
    np.True_
    """
    xp, a = promote(a, complex_too=True)
    spectral.require_square(a)
    return in_float32(xp, lambda a: determinants.det(xp, a))(a)


@fast_path
def safe_slogdet(a: T, /) -> tuple[T, T]:
    """
    Sign and logarithm of a determinant; 0 and -inf at singular matrices, with gradient 0.

    Same as ``slogdet(a)``.

    Parameters
    ----------
    a : array, shape (..., n, n), real or complex floating
        Any matrices. The result for a matrix with NaN or inf is NaN.

    Returns
    -------
    sign : array, shape (...)
        Of complex matrices the phase.
    logarithm : array, shape (...), real floating
        That of the size.

    Notes
    -----
    **Gradient.** The inverse, at every order. Where the determinant is computed as 0 the slope is
    infinite: 0 is chosen, as for `safe_log`.

    **Source.** Double where: TensorFlow Probability's `where` note.

    Examples
    --------
    >>> import numpy as np
    >>> sign, size = safe_slogdet(np.zeros((2, 2)))
    >>> float(sign), float(size)
    (0.0, -inf)
    """
    xp, a = promote(a, complex_too=True)
    spectral.require_square(a)
    return in_float32(xp, lambda a: determinants.slogdet(xp, a))(a)


__dir__ = show("safeops.linalg", __all__, globals())
