"""Linear interpolation between knots, in which empty intervals are dropped."""

from safeops._core.dtypes import limits
from safeops._core.types import Array, Namespace, T
from safeops._dispatch import backend_of, fast_path
from safeops._ops.division import safe_div
from safeops._ops.slices import enter_slices
from safeops._ops.where import is_nan


@fast_path
def safe_interp(x: T, xp: T, fp: T, /) -> T:
    """
    Linear interpolation between knots; repeated knots are steps, and no slope is infinite.

    Same as ``numpy.interp(x, xp, fp)``.

    Parameters
    ----------
    x : array, shape (...), real floating
        Where to interpolate. NaN stays NaN, in its own entry.
    xp : array, shape (k,), real floating
        Knots in ascending order, at least one; some may be equal. Neighbours whose difference is
        below the smallest normal number count as equal: their slope would leave the range. The
        difference of `x` and the knot before it must be a normal number, or 0.
    fp : array, shape (k,), real floating
        Values at the knots. A NaN reaches what lies in the intervals beside it, and what lies at
        the knot before it; so does an inf, as inf or NaN.

    Returns
    -------
    array, shape (...)
        ``fp[0]`` left of all knots, ``fp[-1]`` right of them. At equal knots the value of the last
        of them.

    Notes
    -----
    **Gradient.** The derivative for all three arguments inside an interval. At a knot the slopes
    are those of the interval on its right, and at the last knot 0 for `x` and `xp`, as beyond the
    ends, where 1 goes to ``fp[0]`` or ``fp[-1]``. An interval between equal knots is empty: it has
    no entry, and no slope. A NaN in `x` has gradient NaN. Second derivatives are exact likewise.

    **Source.** `numpy.interp`. The quotient of an interval is `safe_div`, which drops a width below
    the smallest normal number.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([0.5, 1.0, 5.0])
    >>> safe_interp(x, np.asarray([0.0, 1.0, 1.0, 2.0]), np.asarray([0.0, 10.0, 20.0, 30.0]))
    array([ 5., 20., 30.])
    """
    space, dtype, _, (x, xp, fp) = enter_slices(x, xp, fp, where=None)
    _require_knots(xp, fp)
    backend, undefined = backend_of(x), is_nan(x)
    last = space.max(backend.as_index(backend.positions(xp, 0)))
    place = backend.as_index(backend.ranks(xp, x)) - 1  # of the last knot that is not above x
    outside = space.logical_or(place < 0, place >= last)
    outside = space.logical_and(outside, space.logical_not(undefined))
    low = space.where(place < 0, 0, space.where(place > last, last, place))
    high = space.where(low < last, low + 1, low)
    first, second = backend.gather(fp, low), backend.gather(fp, high)
    start, end = backend.gather(xp, low), backend.gather(xp, high)
    start = space.where(undefined, x, start)  # for a slope of NaN
    scale = space.where(_halved(space, start, end)[1], space.ones_like(start), 1 / 16)
    part = safe_div(
        space.where(outside, start, x) * scale - start * scale, end * scale - start * scale
    )
    first_, second = space.where(outside, 0.0, first), space.where(outside, 0.0, second)
    half, small = _halved(space, first_, second)  # a rise out of range, in two steps
    step = part * (second * half - first_ * half)
    value = first_ + step + space.where(small, 0.0, step)
    return space.astype(space.where(outside, first, value), dtype)


def _halved(space: Namespace, x: Array, y: Array) -> tuple[Array, Array]:
    """Return 1, or 1 / 2 where the difference of two numbers is out of range; and where it is 1."""
    small = space.abs(y * 0.5 - x * 0.5) <= limits(space, x).max / 2
    return space.where(small, space.ones_like(x), 0.5), small


def _require_knots(xp: Array, fp: Array) -> None:
    """Raise ValueError for shapes that are known not to be those of knots and their values."""
    if any(getattr(y.shape, "rank", 0) is None for y in (xp, fp)):
        return
    of_xp, of_fp = tuple(xp.shape), tuple(fp.shape)
    known = None not in {*of_xp, *of_fp}
    if len(of_xp) != 1 or len(of_fp) != 1 or (known and (of_xp != of_fp or 0 in of_xp)):
        msg = (
            f"expected xp and fp of one shape (k,), with k of at least 1, got shapes {of_xp} and "
            f"{of_fp}"
        )
        raise ValueError(msg)
