"""Functions of matrices whose derivatives are right where eigenvalues or singular values tie."""

from safeops._entry import fast_path, promote
from safeops._ops import spectral
from safeops._ops.ranges import in_float32
from safeops._ops.slices import enter_number
from safeops._typing import Array, Function

__all__ = [
    "expm_symmetric",
    "inv_sqrtm_psd",
    "logm_psd",
    "powm_psd",
    "spectral_function",
    "sqrtm_psd",
]


def _of_semidefinite(a: Array, formula: spectral.Family, fill_value: float) -> Array:
    fill = enter_number("expected a number as fill_value", fill_value)
    xp, a = promote(a, complex_too=True)
    spectral.require_square(a)
    return in_float32(xp, lambda a: spectral.of_semidefinite(xp, a, formula, fill))(a)


@fast_path
def spectral_function(a: Array, f: Function, /, *, derivatives: tuple[Function, Function]) -> Array:
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

    Returns
    -------
    array, shape (..., n, n)
        Framework, dtype and device of `a`.

    Raises
    ------
    TypeError
        If `a` is not a floating array of a supported framework, or `derivatives` is no pair of
        functions.
    ValueError
        If the last two axes of `a` differ.

    Notes
    -----
    **Gradient.** Exact to second order, whatever the eigenvalues are: the derivative has the
    divided differences ``(f(x) - f(y)) / (x - y)``, with ``f'(x)`` for ties, and no choice is
    made. Near a tie they are means of `f'` and `f''`, wherever that has the smaller error. A third
    derivative is inf or NaN. `f` is a constant: what it closes over has gradient 0.

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
    if not (isinstance(derivatives, tuple | list) and len(derivatives) == 2):  # noqa: PLR2004  (f' and f'')
        msg = f"expected two functions as derivatives, f' and f'', got {derivatives!r}"
        raise TypeError(msg)
    for function in (f, *derivatives):
        if not callable(function):
            msg = f"expected functions of eigenvalues, got {function!r}"
            raise TypeError(msg)
    xp, a = promote(a, complex_too=True)
    spectral.require_square(a)
    formula = spectral.smooth(xp, f, *derivatives)
    return in_float32(xp, lambda a: spectral.of_symmetric(xp, a, formula))(a)


@fast_path
def expm_symmetric(a: Array, /) -> Array:
    """
    Exponential of a symmetric matrix, with exact derivatives where eigenvalues tie.

    Same as ``v @ diag(exp(w)) @ adjoint(v)`` with ``w, v = eigh(a)``.

    Parameters
    ----------
    a : array, shape (..., n, n), real or complex floating
        Symmetric or Hermitian matrices. Of others the Hermitian part is taken. A matrix with NaN
        or inf is NaN as a whole.

    Returns
    -------
    array, shape (..., n, n)
        Framework, dtype and device of `a`.

    Raises
    ------
    TypeError
        If `a` is not a floating array of a supported framework.
    ValueError
        If the last two axes of `a` differ.

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
def sqrtm_psd(a: Array, /) -> Array:
    """
    Square root of a positive semidefinite matrix, with exact derivatives where eigenvalues tie.

    Same as ``v @ diag(sqrt(w)) @ adjoint(v)`` with ``w, v = eigh(a)``.

    Parameters
    ----------
    a : array, shape (..., n, n), real or complex floating
        Symmetric or Hermitian matrices without negative eigenvalues. Of others the Hermitian part
        is taken. An eigenvalue counts as 0 if its size is at most ``n * eps`` times the largest,
        which is the error that rounding leaves; with one further below 0, with NaN or with inf a
        matrix is NaN as a whole.

    Returns
    -------
    array, shape (..., n, n)
        Framework, dtype and device of `a`.

    Raises
    ------
    TypeError
        If `a` is not a floating array of a supported framework.
    ValueError
        If the last two axes of `a` differ.

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
def inv_sqrtm_psd(a: Array, /, *, fill_value: float = 0.0) -> Array:
    """
    Inverse square root of a positive matrix, with exact derivatives where eigenvalues tie.

    Same as ``v @ diag(where(w > 0, w**-0.5, fill_value)) @ adjoint(v)`` with ``w, v = eigh(a)``.

    Parameters
    ----------
    a : array, shape (..., n, n), real or complex floating
        Symmetric or Hermitian matrices without negative eigenvalues. Of others the Hermitian part
        is taken. An eigenvalue counts as 0 if its size is at most ``n * eps`` times the largest,
        which is the error that rounding leaves; with one further below 0, with NaN or with inf a
        matrix is NaN as a whole.
    fill_value : float, default: 0.0
        What the function is at a zero eigenvalue.


    Returns
    -------
    array, shape (..., n, n)
        Framework, dtype and device of `a`.

    Raises
    ------
    TypeError
        If `a` is not a floating array of a supported framework.
    ValueError
        If the last two axes of `a` differ.

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
def logm_psd(a: Array, /, *, fill_value: float = 0.0) -> Array:
    """
    Logarithm of a positive matrix, with exact derivatives where eigenvalues tie.

    Same as ``v @ diag(where(w > 0, log(w), fill_value)) @ adjoint(v)`` with ``w, v = eigh(a)``.

    Parameters
    ----------
    a : array, shape (..., n, n), real or complex floating
        Symmetric or Hermitian matrices without negative eigenvalues. Of others the Hermitian part
        is taken. An eigenvalue counts as 0 if its size is at most ``n * eps`` times the largest,
        which is the error that rounding leaves; with one further below 0, with NaN or with inf a
        matrix is NaN as a whole.
    fill_value : float, default: 0.0
        What the logarithm is at a zero eigenvalue.


    Returns
    -------
    array, shape (..., n, n)
        Framework, dtype and device of `a`.

    Raises
    ------
    TypeError
        If `a` is not a floating array of a supported framework.
    ValueError
        If the last two axes of `a` differ.

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
def powm_psd(a: Array, p: float, /, *, fill_value: float = 0.0) -> Array:
    """
    Power of a positive semidefinite matrix, with exact derivatives where eigenvalues tie.

    Same as ``v @ diag(w**p) @ adjoint(v)`` with ``w, v = eigh(a)``.

    Parameters
    ----------
    a : array, shape (..., n, n), real or complex floating
        Symmetric or Hermitian matrices without negative eigenvalues. Of others the Hermitian part
        is taken. An eigenvalue counts as 0 if its size is at most ``n * eps`` times the largest,
        which is the error that rounding leaves; with one further below 0, with NaN or with inf a
        matrix is NaN as a whole.
    p : float
        The exponent, a number of Python. The power 0 is the identity.
    fill_value : float, default: 0.0
        What a negative power is at a zero eigenvalue.


    Returns
    -------
    array, shape (..., n, n)
        Framework, dtype and device of `a`.

    Raises
    ------
    TypeError
        If `a` is not a floating array of a supported framework.
    ValueError
        If the last two axes of `a` differ.

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
