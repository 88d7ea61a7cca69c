"""Functions of a length, which are smooth at 0 where the length is not."""

import math
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

from safeops._backends.array_api import ArrayAPI
from safeops._core.dtypes import limits
from safeops._core.errors import errors_name_function, kind_of
from safeops._core.types import Array, Axis, Function, Namespace, T
from safeops._dispatch import as_result, backend_of, promote
from safeops._ops.norms import safe_norm, squared_norm
from safeops._ops.series import polynomial
from safeops._ops.slices import ends_of, require_axes, scale_of
from safeops._ops.where import require_function, stop_gradient


@errors_name_function
def radial(f: Function, x: T, /, *, axis: Axis = -1) -> T:
    """
    Even smooth function of the norm of each slice, with exact first and second derivatives at zero.

    Same as ``f(norm(x))`` over `axis`.

    Parameters
    ----------
    f : callable
        Elementwise function of one array, the norm, such as a kernel or a potential. What it closes
        over broadcasts against the norm, and has its own gradient.
    x : array, shape (...), real floating
        Any value. NaN stays NaN.
    axis : int or tuple of ints, default: -1
        Axes of a slice; None for all.

    Returns
    -------
    array
        What `f` returns. It gets the norm in the dtype of `x`, without the axes of a slice.

    Raises
    ------
    TypeError
        If `f` is not a function of one array that returns one.
    ValueError
        If `f` is not elementwise.

    Notes
    -----
    **Gradient.** ``f'(r) / r * x`` for ``r = norm(x)``; at a zero slice 0, with the Hessian
    ``f''(0) * I``, exact for every `f` with ``f'(0) = 0``. Derivatives of `f` itself lose their
    digits near 0, where terms cancel. Up to an eighth of the length over which ``f''`` varies
    there, a polynomial that interpolates ``f''`` stands in. If none fits, and for an `f` with
    another slope at 0, such as ``exp(-r)``, all derivatives are those of `f` over `safe_norm`.
    Derivatives at zero above the second are 0. Entries below 1e-154, in float32 below 1e-19, have a
    norm of 0.

    **Source.** ``f(r) = f(0) + sum(x * x) * h(r)``, where ``h(r)`` is the integral of
    ``(1 - t) * f''(t * r)`` for ``t`` from 0 to 1; ``f''`` is the framework's own derivative.

    Examples
    --------
    >>> import numpy as np
    >>> radial(lambda r: (1 + r) * np.exp(-r), np.asarray([[0.0, 0.0], [3.0, 4.0]]))
    array([1.        , 0.04042768])
    """
    require_function("f", f)
    xp, x = promote(x)
    require_axes(x, axis)
    backend = backend_of(x)
    if not backend.differentiates:
        length = safe_norm(x, axis=axis)
        value = _value(f, length)
        _require_elementwise(value, length, _value(f, backend.cast(1.0, x.dtype, x)))
        return as_result(value)
    near = _near(backend, f, backend.cast(0.0, x.dtype, x))
    largest = scale_of(xp, xp.abs(x), axis, of_none=0.0, of_sum=False)
    # No norm of a vector whose square is none, and no square that is too large.
    length = safe_norm(xp.where(largest < _tiny(xp, x), 0.0, x), axis=axis)
    square = squared_norm(xp.where(largest < _longest(xp, x), x, 0.0), axis=axis)
    small = length < near.reach
    curvature = near.curvature(xp.where(small, length, 0.0))
    value = near.value + xp.where(small, square, 0.0) * curvature
    far = f(xp.where(small, near.reach, length))
    _require_elementwise(far, length, near.value)
    return xp.where(small, value, far)


def _value(f: Function, r: Array) -> Array:
    """Return what a function makes of a norm; TypeError if that is no array."""
    value = f(r)
    if not hasattr(value, "shape"):
        msg = f"expected a function that returns one array as f, got {kind_of(value)[0]} from it"
        raise TypeError(msg)
    return value


def _require_elementwise(value: Array, r: Array, of_one: Array) -> None:
    """Raise ValueError if the value has not the shape of the norms and of the value at one."""
    shapes = [x.shape for x in (value, r, of_one)]
    if any(getattr(shape, "rank", 0) is None for shape in shapes):
        return
    got, *parts = map(tuple, shapes)
    same = len(got) == max(map(len, parts))
    for part in parts:
        for a, b in ends_of(got, part):
            same = same and (a is None or b is None or b == 1 or a == b)  # noqa: PLR1714  (symbols of PyTorch have no hash)
    if not same:
        msg = (
            f"expected an elementwise function as f, got one that makes {got} of the shape "
            f"{parts[0]}; give x an axis of length 1 for each further axis of the result"
        )
        raise ValueError(msg)


class _Near(NamedTuple):
    """What a function is below a length: ``value + r**2 * curvature(r)``."""

    value: Array
    reach: Array
    curvature: Function


def _fit(count: int) -> tuple[list[float], list[list[float]]]:
    """Return Chebyshev's points from 0 to 1, and what makes coefficients of numbers there."""
    angles = [math.pi * (i + 0.5) / count for i in range(count)]
    factors = [
        [(2 if j else 1) * math.cos(j * angle) / count for angle in angles] for j in range(count)
    ]
    return [(1 + math.cos(angle)) / 2 for angle in angles], factors


# Chebyshev's polynomials from 0 to 1, in powers of t.
_POLYNOMIALS = (
    *((1,), (-1, 2), (1, -8, 8), (-1, 18, -48, 32), (1, -32, 160, -256, 128)),
    *((-1, 50, -400, 1120, -1280, 512), (1, -72, 840, -3584, 6912, -6144, 2048)),
    (-1, 98, -1568, 9408, -26880, 39424, -28672, 8192),
    (1, -128, 2688, -21504, 84480, -180224, 212992, -131072, 32768),
)


def _near(backend: ArrayAPI, f: Function, zero: Array) -> _Near:
    """Return a function below an eighth of the length over which its second derivative varies."""
    # That is interpolated at six points, to 1e-11 if the function has a power series there, or at
    # nine for float64, to 1e-15; more would make numbers of the rounding of narrow dtypes. Beyond,
    # what cancels in the first derivative leaves no more than fifty units of rounding.
    xp, bound = backend.xp, limits(backend.xp, zero)
    value = _value(f, zero)
    # No derivative at 0 itself, where the third one of a power is 0 * inf (JAX, TensorFlow).
    least = bound.smallest_normal ** (1 / 3) + xp.zeros_like(value)
    second = _derivative(backend, _derivative(backend, f))
    length, even = _shape(backend, f, stop_gradient(value), least)
    reach = xp.where(length > 8 * least, length / 8, least)
    places, weights = _fit(6 if bound.eps > 2**-30 else 9)
    at = [least, *(place * reach for place in places)]
    points = second(xp.concat([xp.expand_dims(r, axis=0) for r in at], axis=0))
    numbers = [points[1 + i, ...] for i in range(len(places))]
    series = [_dot(factors, numbers) for factors in weights]
    size = abs(stop_gradient(points[0, ...]))
    fits = abs(stop_gradient(series[-1])) <= bound.eps**0.5 * size
    first = xp.where(fits, series[0], points[0, ...])
    series = [first, *(xp.where(fits, term, 0.0) for term in series[1:])]
    reach = xp.where(fits, reach, least)
    return _Near(value, xp.where(even, reach, 0.0), partial(_curvature, series, reach))


def _curvature(series: list[Array], reach: Array, r: Array) -> Array:
    """Return the second integral, from 0, of a series in ``r / reach``, over ``r**2``."""
    columns = zip_longest(*_POLYNOMIALS[: len(series)], fillvalue=0)
    powers = [_dot(column, series) for column in columns]
    return polynomial(r / reach, [a / ((k + 1) * (k + 2)) for k, a in enumerate(powers)])


def _shape(backend: ArrayAPI, f: Function, value: Array, at: Array) -> tuple[Array, Array]:
    """Return the length over which the second derivative varies near 0, and whether f is even."""
    xp, bound, sizes = backend.xp, limits(backend.xp, at), []
    for _ in range(4):
        f = _derivative(backend, f)
        sizes.append(abs(stop_gradient(f(at))))
    first, second, third, fourth = sizes
    curved = xp.logical_and(second > 0, second < math.inf)
    rate = xp.maximum(third, xp.sqrt(second) * xp.sqrt(fourth))
    known = xp.logical_and(rate > 0, rate < math.inf)
    length = xp.where(
        known,
        second / xp.where(known, rate, 1.0),
        xp.sqrt(abs(value)) / xp.sqrt(xp.where(curved, second, 1.0)),
    )
    length = xp.where(xp.logical_and(curved, length < math.inf), length, 0.0)
    longest = _longest(xp, at)
    length = xp.where(length < longest, length, longest)
    slack = 64 * bound.eps * length + 2 * at  # the slope there, and the rounding of its parts
    return length, xp.logical_and(first <= slack * second, second < math.inf)


def _derivative(backend: ArrayAPI, f: Function) -> Function:
    """Return the derivative of an elementwise function."""
    return lambda r: backend.grad(lambda r: backend.xp.sum(f(r)))(r)[0]


def _dot(factors: Any, terms: list[Array]) -> Array:
    """Return the sum of numbers times arrays."""
    return sum(
        (factor * term for factor, term in zip(factors, terms, strict=True) if factor),
        start=0.0 * terms[0],
    )


def _tiny(xp: Namespace, x: Array) -> float:
    """Return a number whose square is hardly one where norms are computed, float32 or wider."""
    bound = limits(xp, x)
    return bound.smallest_nonzero ** (1.0 if bound.eps == 2**-10 else 0.5)


def _longest(xp: Namespace, x: Array) -> float:
    """Return a length whose square has room in the dtype."""
    return limits(xp, x).max ** 0.25
