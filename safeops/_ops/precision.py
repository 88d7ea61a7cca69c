"""Formulas in float32 for dtypes of 16 bits, and values that have the slope of another formula."""

from safeops._core.dtypes import NARROW, dtype_name
from safeops._core.types import Array, Function, Namespace
from safeops._ops.where import stop_gradient


def in_float32(xp: Namespace, formula: Function) -> Function:
    """Return the formula, of one array or a tuple, computed in float32 for dtypes of 16 bits."""

    # In these dtypes each step rounds to 8 or 11 bits, and in float16 a square overflows above 255.
    def wide(*args: Array) -> Array:
        dtype = args[0].dtype
        if dtype_name(dtype) not in NARROW:
            return formula(*args)
        result = formula(*(xp.astype(x, xp.float32) for x in args))
        if isinstance(result, tuple):
            return tuple(xp.astype(x, dtype) for x in result)
        return xp.astype(result, dtype)

    return wide


def with_slope_of(formula: Array, value: Array) -> Array:
    """Return `value`, with the derivatives of `formula`; `formula` must be finite."""
    # For a function with two formulas, of which one keeps the digits of the value and the other the
    # digits of the slope.
    return stop_gradient(value) + (formula - stop_gradient(formula))
