"""What a dtype is: its name, its limits, and whether it is real, complex or integer."""

import math
from typing import Any, NamedTuple

import numpy as np

from safeops._core.errors import wrong
from safeops._core.types import Array, DType, Namespace

SCALARS = (bool, int, float, complex)
# Arrays and scalars of NumPy: constants beside arrays of a framework that takes them.
NUMPY_TYPES = (np.ndarray, np.generic)
REAL = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
INTEGER = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
NARROW = ("float16", "bfloat16")


class Limits(NamedTuple):
    """What a dtype can hold, as Python floats."""

    max: float
    eps: float
    # The least number that no framework flushes to zero and whose reciprocal is finite.
    smallest_normal: float
    # The least number that every framework tells from zero. No framework flushes subnormals of
    # float16; JAX and TensorFlow flush those of wider dtypes (measured: torch 2.13, jax 0.10.2,
    # tensorflow 2.21, CPU).
    smallest_nonzero: float

    @classmethod
    def of(cls, digits: int, exponent: int, *, flushed: bool = True) -> "Limits":
        """Return the limits of a dtype by its binary digits and largest binary exponent."""
        eps, normal = 2.0**-digits, 2.0 ** (1 - exponent)
        return cls((2 - eps) * 2.0**exponent, eps, normal, normal if flushed else normal * eps)

    def largest_exponent(self) -> float:
        """Return the largest number whose exponential is finite: log(max) rounded down."""
        exact = math.log(self.max)
        spacing = self.eps * 2.0 ** math.floor(math.log2(exact))
        return math.floor(exact / spacing) * spacing


# The key has the type too: a dtype of array-api-strict has the hash of NumPy's dtype, and comparing
# the two warns.
_names: dict[tuple[type, DType], str] = {}
# Whole from the start: torch.compile refuses a checkpoint that adds to it (2.13).
_LIMITS = {
    "float16": Limits.of(10, 15, flushed=False),
    "bfloat16": Limits.of(7, 127),
    "float32": Limits.of(23, 127),
    "complex64": Limits.of(23, 127),
    "float64": Limits.of(52, 1023),
    "complex128": Limits.of(52, 1023),
}


def require(dtype: DType, names: tuple[str, ...], x: Any = None, argument: str = "") -> None:
    """Raise TypeError, which names the argument or that of `x`, if `dtype` is not in `names`."""
    name = dtype_name(dtype)
    if name not in names:
        way_out = "; convert the array first"
        if name in COMPLEX:
            way_out = "; the function has no meaning for complex numbers: pass the real part"
        msg = f"expected a dtype out of ({', '.join(names)}), got {name}"
        raise wrong(msg, x, way_out, names=(argument,) if x is None else None)


def dtype_name(dtype: DType) -> str:
    """Return the standard's name of a dtype, such as ``"float32"``."""
    if not hasattr(dtype, "name"):
        # No look-up: torch.compile cannot look into a dict with dtypes of TensorFlow (2.13).
        return str(dtype).rpartition(".")[2]
    name = _names.get((type(dtype), dtype))
    if name is None:
        name = _names[type(dtype), dtype] = dtype.name
    return name


def is_positive_zero(x: Any) -> bool:
    """Whether `x` is a Python number whose bits are all zero: 0 or 0.0, but not -0.0."""
    # Not by repr, which torch.compile does not trace for a dynamic number (2.13).
    return type(x) in (int, float) and x == 0 and math.copysign(1, x) > 0


def is_complex(x: Array) -> bool:
    return dtype_name(x.dtype) in COMPLEX


def limits(xp: Namespace, x: Array) -> Limits:
    """Return the limits of the real part of the dtype of `x`."""
    found = _LIMITS.get(dtype_name(x.dtype))
    if found is None:
        info = xp.finfo(x.dtype)
        normal = float(info.smallest_normal)
        found = Limits(float(info.max), float(info.eps), normal, normal)
    return found


LN2 = math.log(2.0)
_LN2_REST = 2.3190468138462996e-17  # the digits of log(2) that float64 has not


def near_log2(eps: float) -> tuple[float, float]:
    """Return the number of a dtype next to log(2), and its exponential less 2."""
    spacing = eps / 2
    middle = round(LN2 / spacing) * spacing
    return middle, 2.0 * (middle - LN2 - _LN2_REST)
