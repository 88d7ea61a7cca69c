"""
Elementwise operations, norms and softmax in the way that is fast in NumPy: formula, then fill.

The formula runs on all entries, and wrong entries are replaced afterwards, without `np.where`. As
in `reductions`, a kernel returns None for arguments that it leaves to the generic double where. It
warns as the double where does: of entries that are not filled, and of no others.
"""

import math
from functools import partial
from typing import Any

import numpy as np

from safeops._backends.shapes import dropped
from safeops._core.dtypes import is_positive_zero, limits
from safeops._core.types import Array, Axis, Function

# Masks applied to the bits of floats, viewed as integers, without a branch for each entry.


BITS: dict[Any, type] = {np.dtype(np.float32): np.int32, np.dtype(np.float64): np.int64}
ONE = np.int8(1)


def selected(x: Array, absent: Array, other: float, out: Array | None = None) -> Array:
    """Return ``where(absent, other, x)``, by masking bits; `out` may be `x` itself."""
    kind = BITS[x.dtype]
    kept = np.subtract(absent.view(np.int8), ONE)  # all bits set, or none
    bits = None if out is None else out.view(kind)
    if is_positive_zero(other):
        return np.bitwise_and(x.view(kind), kept, out=bits).view(x.dtype)
    other_bits: Array = np.asarray(other, x.dtype).view(kind)
    bits = np.bitwise_xor(x.view(kind), other_bits, out=bits)
    np.bitwise_and(bits, kept, out=bits)
    return np.bitwise_xor(bits, other_bits, out=bits).view(x.dtype)


_NUMBERS = (int, float)
_quotient: Function = np.divide
# float32 and float64: NumPy computes in other dtypes by converting.
_LIMITS = {np.dtype(kind): limits(np, np.zeros(0, kind)) for kind in (np.float32, np.float64)}
# As arrays: with a Python float a comparison of few entries takes twice as long. In these dtypes
# the least normal number is also the least number that every framework tells from zero.
_LEAST = {kind: np.asarray(bound.smallest_normal, kind) for kind, bound in _LIMITS.items()}
_EXPONENT = {kind: bound.largest_exponent() for kind, bound in _LIMITS.items()}
# The least number whose logarithm is finite; for log1p it is the first number above -1.
_ABOVE_0 = {kind: bound.smallest_normal for kind, bound in _LIMITS.items()}
_ABOVE_MINUS_1 = {kind: bound.eps / 2 - 1 for kind, bound in _LIMITS.items()}
_TINY = {kind: bound.smallest_normal / bound.eps for kind, bound in _LIMITS.items()}
_FEW = 2**12  # entries; below, ``where=`` of a ufunc is faster than any mask of bits


def _is_plain(x: Any) -> bool:
    return type(x) is np.ndarray and x.dtype in _LIMITS and x.ndim > 0 and x.size > 0


def _are_plain(x: Any, y: Any) -> bool:
    return (
        _is_plain(x) and type(y) is np.ndarray and x.dtype == y.dtype and y.ndim > 0 and y.size > 0
    )


def _full(x: Array, y: Array, fill_value: float) -> Array:
    """Return an array of `fill_value` in the shape to which x and y broadcast."""
    shape = x.shape if x.shape == y.shape else np.broadcast(x, y).shape
    out = np.zeros(shape, x.dtype)
    if not is_positive_zero(fill_value):
        out.fill(fill_value)
    return out


def _unary(ufunc: Function, x: Array, filled: Array, fill_value: float, **modes: Any) -> Array:
    """Apply a function whose warnings in these modes concern filled entries only."""
    if x.size <= _FEW:
        return ufunc(x, out=_full(x, x, fill_value), where=~filled)
    with np.errstate(**modes):
        out = ufunc(x)
    return selected(out, filled, fill_value, out)


def _warn_of(formula: Function, args: tuple[Array, ...], out: Array, filled: Array) -> None:
    """Warn as `formula` does of entries that are not filled; it warns of no finite result."""
    infinite = ~(np.isfinite(out) | filled)
    if infinite.any():
        formula(*(np.broadcast_to(x, out.shape)[infinite] for x in args))


def _recorded(flags: list[Any], **modes: Any) -> Any:
    """Return a context that notes warnings in `flags`, for the modes that say "call"."""
    return np.errstate(call=lambda *flag: flags.append(flag), **modes)


def _divide(x: Array, y: Array, *, fill_value: Any = 0.0) -> Array | None:
    if not _are_plain(x, y) or type(fill_value) not in _NUMBERS:
        return None
    least = _LEAST[y.dtype]
    if x.size <= _FEW and y.size <= _FEW:
        return _quotient(x, y, out=_full(x, y, fill_value), where=~(np.abs(y) < least))
    flags: list[Any] = []
    with _recorded(flags, divide="ignore", over="call", invalid="call"):
        out = _quotient(x, y)
    if flags:
        _warn_of(_quotient, (x, y), out, np.abs(y) < least)
    if is_positive_zero(fill_value):
        return _zeroed(out, y)
    return selected(out, np.abs(y) < least, fill_value, out)


def _zeroed(out: Array, y: Array) -> Array:
    """Write 0 into `out` where y counts as zero; the bits of `least` and abs(y) are compared."""
    kind, last = BITS[y.dtype], 8 * y.itemsize - 1
    bits = np.abs(y).view(kind)
    greatest: Array = _LEAST[y.dtype].view(kind) - 1
    np.subtract(greatest, bits, out=bits)
    np.right_shift(bits, kind(last), out=bits)
    np.bitwise_and(out.view(kind), bits, out=out.view(kind))
    return out


def _at_least(x: Array, low: Array) -> Array:
    """Return ``maximum(x, low)``; for many entries by `clip`, in a quarter of the time."""
    return np.maximum(x, low) if x.size <= _FEW else np.clip(x, low, math.inf)


def _reciprocal(x: Array, *, fill_value: Any = 0.0) -> Array | None:
    if not _is_plain(x) or type(fill_value) not in _NUMBERS:
        return None
    filled = np.abs(x) < _LEAST[x.dtype]
    return _unary(partial(np.divide, 1.0), x, filled, fill_value, divide="ignore", over="ignore")


def _root(x: Array, *, fill_value: Any = 0.0) -> Array | None:
    if not _is_plain(x) or type(fill_value) not in _NUMBERS:
        return None
    return _unary(np.sqrt, x, x < _LEAST[x.dtype], fill_value, invalid="ignore")


def _reciprocal_root(x: Array, *, fill_value: Any = 0.0) -> Array | None:
    out = _root(x, fill_value=1.0)
    if out is None or type(fill_value) not in _NUMBERS:
        return None
    np.divide(1.0, out, out=out)
    return selected(out, x < _LEAST[x.dtype], fill_value, out)


def _logarithm(name: str, x: Array, *, fill_value: Any = None) -> Array | None:
    """Logarithm by its name in `numpy` and `math`."""
    if not _is_plain(x) or type(fill_value) not in (*_NUMBERS, type(None)):
        return None
    least = _LEAST[x.dtype]
    ufunc = getattr(np, name)
    if fill_value is None:
        out = _at_least(x, least)
        return ufunc(out, out=out)
    return _unary(ufunc, x, x < least, fill_value, divide="ignore", invalid="ignore")


def _log1p(x: Array, *, fill_value: Any = None) -> Array | None:
    if not _is_plain(x) or type(fill_value) not in (*_NUMBERS, type(None)):
        return None
    fill_value = math.log(_LIMITS[x.dtype].eps / 2) if fill_value is None else fill_value
    return _unary(np.log1p, x, x <= -1, fill_value, divide="ignore", invalid="ignore")


def _exponential(ufunc: np.ufunc, x: Array) -> Array | None:
    if not _is_plain(x):
        return None
    largest = _LIMITS[x.dtype].max
    if x.size <= _FEW:
        return _unary(ufunc, x, x > _EXPONENT[x.dtype], largest)
    with np.errstate(over="ignore"):
        out = ufunc(x)
    return np.asarray(np.clip(out, -math.inf, largest, out=out))  # NaN stays


def _power(x: Array, p: Array) -> Array | None:
    """Power; None if a base is subnormal or -0.0: powers of -0.0 have a sign in NumPy."""
    if not _are_plain(x, p):
        return None
    least = _LEAST[x.dtype]
    zero, below = np.abs(x) < least, x <= -least
    zeros = np.count_nonzero(zero)
    if zeros + np.count_nonzero(x.view(BITS[x.dtype])) != x.size:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        out = np.power(x, p)
    filled = zero & (p < 0) if zeros else None
    if below.any():
        unreal = below & (np.floor(p) < p)
        filled = unreal if filled is None else filled | unreal
    return out if filled is None else selected(out, filled, 0.0, out)


def _times_log(log: Function, least: dict[Any, float], x: Array, y: Array) -> Array | None:
    """Product with a logarithm; 0 where the logarithm is not finite and x is 0."""
    if not _are_plain(x, y):
        return None
    filled = np.abs(x) < _LEAST[x.dtype]
    filled = filled & ((y < least[y.dtype]) | (y == math.inf))
    if filled.size <= _FEW:
        ok, out = ~filled, _full(x, y, 0.0)
        log(y, out=out, where=ok)
        return np.asarray(np.multiply(x, out, out=out, where=ok))
    flags: list[Any] = []
    with _recorded(flags, divide="call", over="call", invalid="call"):
        out = log(y)
        out = np.multiply(x, out, out=out if out.shape == x.shape else None)
    if flags:
        _warn_of(lambda x, y: x * log(y), (x, y), out, filled)
    return selected(out, filled, 0.0, out)


def _norm(
    x: Array,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    ord: float = 2,  # noqa: A002  (the name in NumPy and the standard)
    where: Any = None,
    min_norm: float = 0.0,
) -> Array | None:
    """Root of the sum of squares, if no square underflows or overflows."""
    if not _is_plain(x) or ord != 2 or where is not None or min_norm != 0:  # noqa: PLR2004  (the Euclidean norm)
        return None
    with np.errstate(over="ignore", under="ignore"):
        total = np.add.reduce(x * x, axis=axis, keepdims=True)
    small = total < _TINY[x.dtype]
    if np.isinf(total).any() or (small.any() and _has_entries(x, small, axis)):
        return None
    out = np.sqrt(total)
    return dropped(out, axis, keepdims=keepdims)


def _has_entries(x: Array, small: Array, axis: Axis) -> bool:
    """Whether one of the slices marked `small` has an entry other than 0."""
    if isinstance(axis, int):
        return bool(np.moveaxis(x, axis, -1)[small.squeeze(axis)].any())
    return bool(((x != 0) & small).any())


def _softmax(x: Array, *, axis: Axis = -1, where: Any = None) -> Array | None:
    """Softmax, computed in one array, in which an absent entry is -inf at first, then 0."""
    if not _is_plain(x):
        return None
    if where is not None:
        if type(where) is not np.ndarray or where.dtype != np.bool_ or where.shape != x.shape:
            return None
        x = selected(x, ~where, -math.inf)
    peak = np.maximum.reduce(x, axis=axis, keepdims=True)
    empty = peak == -math.inf
    np.copyto(peak, 0.0, where=empty)
    parts = np.subtract(x, peak)
    np.exp(parts, out=parts)
    total = np.add.reduce(parts, axis=axis, keepdims=True)
    np.copyto(total, 1.0, where=empty)
    np.divide(parts, total, out=parts)
    if np.isnan(total).any():  # 0 / NaN
        np.copyto(parts, 0.0, where=x == -math.inf)
    return parts


KERNELS: dict[str, Function] = {
    "safe_div": _divide,
    "safe_reciprocal": _reciprocal,
    "safe_sqrt": _root,
    "safe_rsqrt": _reciprocal_root,
    "safe_log": partial(_logarithm, "log"),
    "safe_log2": partial(_logarithm, "log2"),
    "safe_log10": partial(_logarithm, "log10"),
    "safe_log1p": _log1p,
    "safe_exp": partial(_exponential, np.exp),
    "safe_expm1": partial(_exponential, np.expm1),
    "safe_pow": _power,
    "xlogy": partial(_times_log, np.log, _ABOVE_0),
    "xlog1py": partial(_times_log, np.log1p, _ABOVE_MINUS_1),
    "safe_norm": _norm,
    "safe_softmax": _softmax,
}
