"""Products and quotients that are defined at zero."""

from safeops._core.dtypes import limits
from safeops._core.types import Array, IsArray, T
from safeops._dispatch import backend_of, fast_path, promote
from safeops._ops.precision import in_float32
from safeops._ops.where import double_where


@fast_path
def safe_div(x: T | complex, y: T | complex, /, *, fill_value: IsArray | complex = 0.0) -> T:
    """
    Quotient that is `fill_value`, with gradient 0, where the denominator is zero.

    Same as ``x / y if abs(y) >= finfo.smallest_normal else fill_value``, elementwise.

    Parameters
    ----------
    x, y : array, shape (...), real or complex floating
        Any value; integers divide to the framework's default. The denominator alone decides: where
        `y` is zero, `x` may hold anything. NaN in `y`, or in `x` where `y` is not zero, stays NaN.
    fill_value : scalar or array, default: 0.0
        Value where `y` is zero.

    Notes
    -----
    **Gradient.** ``1 / y`` for `x` and ``-x / y**2`` for `y`; 0 for both where `y` is zero, at
    every order. An array `fill_value` has gradient 1 where `y` is zero, 0 elsewhere.

    **Source.** The double where of `tf.math.divide_no_nan`, with a zero test that frameworks agree
    on: JAX and TensorFlow flush subnormal numbers to zero, PyTorch does not.

    Examples
    --------
    >>> import numpy as np
    >>> safe_div(np.asarray([1.0, 1.0]), np.asarray([4.0, 0.0]))
    array([0.25, 0.  ])
    """
    xp, x, y, fill = promote(x, y, also=(fill_value,), complex_too=True)
    filled = xp.abs(y) < limits(xp, y).smallest_normal
    divide = getattr(xp, "quotient", xp.divide)
    return double_where(xp, filled, (x, y), fill, in_float32(xp, divide))


@fast_path
def safe_reciprocal(x: T, /, *, fill_value: IsArray | complex = 0.0) -> T:
    """
    Reciprocal that is `fill_value`, with gradient 0, at zero.

    Same as ``1 / x if abs(x) >= finfo.smallest_normal else fill_value``, elementwise.

    Parameters
    ----------
    x : array, shape (...), real or complex floating
        Any value. NaN stays NaN.
    fill_value : scalar or array, default: 0.0
        Value where `x` is zero.

    Notes
    -----
    **Gradient.** ``-1 / x**2``; 0 where `x` is zero, at every order.

    **Source.** `safe_div` of 1.

    Examples
    --------
    >>> import numpy as np
    >>> safe_reciprocal(np.asarray([4.0, 0.0]))
    array([0.25, 0.  ])
    """
    backend_of(x, beside=(fill_value,))  # so that an error names x, and not the 1.0 of the quotient
    return safe_div(1.0, x, fill_value=fill_value)


@fast_path
def safe_mul(x: T | complex, y: T | complex, /) -> T:
    """
    Product that is 0 where `y` is 0, even if `x` is infinite or NaN.

    Same as ``x * y if isfinite(x) or y != 0 else 0``, elementwise.

    Parameters
    ----------
    x, y : array, shape (...), real or complex floating
        Any value. NaN in `y`, or in `x` where `y` is not zero, stays NaN. Beside an `x` that is not
        finite a subnormal `y` counts as 0, except in float16. JAX and TensorFlow flush subnormal
        numbers to 0: a subnormal `x` times an infinite `y` is NaN there.

    Notes
    -----
    **Gradient.** `y` for `x`; `x` for `y`, but 0 where `y` is 0 and `x` is not finite. The second
    derivative ``d2/dx dy`` is 1, but 0 where `y` is 0 and `x` is not finite.

    **Source.** The values of `tf.math.multiply_no_nan`. The gradient for `y` is `x` also at a zero
    `y`, if `x` is finite.

    Examples
    --------
    >>> import numpy as np
    >>> safe_mul(np.asarray([2.0, np.inf]), np.asarray([3.0, 0.0]))
    array([6., 0.])
    """
    xp, x, y = promote(x, y, complex_too=True)
    zero = xp.abs(y) < limits(xp, y).smallest_nonzero
    filled = xp.logical_and(zero, xp.logical_not(xp.isfinite(x)))
    return xp.multiply(xp.where(filled, 0.0, x), xp.where(filled, 1.0, y))


@fast_path
def xdivy(x: T | complex, y: T | complex, /) -> T:
    """
    Quotient that is 0, with gradient 0, where both `x` and `y` are zero.

    Same as ``0 if x == y == 0 else x / y``, elementwise. Where `y` is zero and `x` is not, the
    quotient is infinite, as in mathematics; `safe_div` has its fill there.

    Parameters
    ----------
    x, y : array, shape (...), real or complex floating
        Any value. NaN stays NaN.

    Notes
    -----
    **Gradient.** ``1 / y`` for `x` and ``-x / y**2`` for `y` where `y` is not zero, hence ``1 / y``
    and 0 at ``x == 0``; 0 and 0 where both are zero.

    **Source.** `tf.math.xdivy`, which is 0, with gradient 0, wherever `x` is 0.

    Examples
    --------
    >>> import numpy as np
    >>> xdivy(np.asarray([1.0, 0.0]), np.asarray([4.0, 0.0]))
    array([0.25, 0.  ])
    """
    xp, x, y = promote(x, y, complex_too=True)
    bound = limits(xp, x)
    x_zero = xp.abs(x) < bound.smallest_nonzero
    filled = xp.logical_and(x_zero, xp.abs(y) < bound.smallest_normal)
    inside = xp.where(filled, 0.0, x), xp.where(filled, 1.0, y)
    return in_float32(xp, backend_of(x).formulas.get("quotient", xp.divide))(*inside)


def reciprocal(x: Array) -> Array:
    """Return ``1 / x``, for numbers of which half is not subnormal."""
    # A graph of TensorFlow 2.21 makes a `Reciprocal` of ``1 / x``, which has 12 bits from 2**112
    # on.
    return 2.0 / x * 0.5
