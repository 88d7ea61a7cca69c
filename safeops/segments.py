"""
Reductions of entries that belong to segments, such as the messages at the nodes of a graph.

``segment_ids[i]`` is the segment of ``data[i]``; they need not be sorted. An id below 0, or of
`num_segments` or more, drops its entry: it counts for nothing, and has gradient 0. Entries are
gathered and scattered, never multiplied by a mask, so that what one segment holds reaches no other.
"""

from math import inf, nan

from safeops._core.types import Like, T, Where
from safeops._dispatch import fast_path
from safeops._doors import show
from safeops._ops import segments
from safeops._ops.segments import enter_segments, spread_of

__all__ = [
    "segment_logsumexp", "segment_max", "segment_mean", "segment_min", "segment_prod",
    "segment_softmax", "segment_std", "segment_sum", "segment_var",
]  # fmt: skip


@fast_path
def segment_sum(
    data: T, segment_ids: Like, num_segments: int, /, *, where: Where = None, fill_value: Like = 0.0
) -> T:
    """
    Sum of each segment; 0, with gradient 0, for an empty one.

    Same as ``sum(x)``, segment by segment.

    Parameters
    ----------
    data : array, shape (n, ...), real floating
        Any value. NaN in a kept entry stays NaN.
    segment_ids : array, shape (n,), integer
        The segment of each entry, in any order. Others than 0 to ``num_segments - 1`` drop it.
    num_segments : int
        How many segments there are, empty ones included.
    where : array, boolean, shape (n,) or that of `data`, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    fill_value : scalar or array, default: 0.0
        Value of a segment in which no entry is kept.

    Notes
    -----
    **Gradient.** 1 to each entry kept; 0 to entries left out, at every order.

    **Source.** `jax.ops.segment_sum`, `tf.math.unsorted_segment_sum`.

    Examples
    --------
    >>> import numpy as np
    >>> segment_sum(np.asarray([1.0, 3.0, 2.0]), np.asarray([0, 0, 2]), 3)
    array([4., 0., 2.])
    """
    s = enter_segments(data, segment_ids, num_segments, where)
    return s.finish(s.total(s.kept(s.x)), s.entries() == 0, fill_value)


@fast_path
def segment_mean(
    data: T, segment_ids: Like, num_segments: int, /, *, where: Where = None, fill_value: Like = nan
) -> T:
    """
    Mean of each segment; NaN, with gradient 0, for an empty one.

    Same as ``sum(x) / n``, segment by segment.

    Parameters
    ----------
    data : array, shape (n, ...), real floating
        Any value. NaN in a kept entry stays NaN.
    segment_ids : array, shape (n,), integer
        The segment of each entry, in any order. Others than 0 to ``num_segments - 1`` drop it.
    num_segments : int
        How many segments there are, empty ones included.
    where : array, boolean, shape (n,) or that of `data`, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    fill_value : scalar or array, default: NaN
        Value of a segment in which no entry is kept.

    Notes
    -----
    **Gradient.** ``1 / n`` to each of n entries kept; 0 to entries left out, at every order.

    **Source.** `safeops.safe_mean`; `torch_geometric` divides by ``max(n, 1)``: 0 for none.

    Examples
    --------
    >>> import numpy as np
    >>> segment_mean(np.asarray([1.0, 3.0, 2.0]), np.asarray([0, 0, 2]), 3)
    array([ 2., nan,  2.])
    """
    s = enter_segments(data, segment_ids, num_segments, where)
    return segments.mean(s, fill_value)


@fast_path
def segment_max(
    data: T, segment_ids: Like, num_segments: int, /, *, where: Where = None, fill_value: Like = nan
) -> T:
    """
    Largest entry of each segment, whose gradient ties share; NaN for an empty one.

    Same as ``max(x)``, segment by segment.

    Parameters
    ----------
    data : array, shape (n, ...), real floating
        Any value. NaN in a kept entry stays NaN.
    segment_ids : array, shape (n,), integer
        The segment of each entry, in any order. Others than 0 to ``num_segments - 1`` drop it.
    num_segments : int
        How many segments there are, empty ones included.
    where : array, boolean, shape (n,) or that of `data`, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    fill_value : scalar or array, default: NaN
        Value of a segment in which no entry is kept.

    Notes
    -----
    **Gradient.** ``1 / k`` to each of k entries that tie; 0 to entries left out, at every order.
    NaN to the entries of a segment with a NaN.

    **Source.** `safeops.safe_max`; `jax.ops.segment_max` has -inf for an empty segment.

    Examples
    --------
    >>> import numpy as np
    >>> segment_max(np.asarray([1.0, 3.0, 2.0]), np.asarray([0, 0, 2]), 3)
    array([ 3., nan,  2.])
    """
    s = enter_segments(data, segment_ids, num_segments, where)
    return segments.extreme(s, 1, fill_value)


@fast_path
def segment_min(
    data: T, segment_ids: Like, num_segments: int, /, *, where: Where = None, fill_value: Like = nan
) -> T:
    """
    Smallest entry of each segment, whose gradient ties share; NaN for an empty one.

    Same as ``min(x)``, segment by segment.

    Parameters
    ----------
    data : array, shape (n, ...), real floating
        Any value. NaN in a kept entry stays NaN.
    segment_ids : array, shape (n,), integer
        The segment of each entry, in any order. Others than 0 to ``num_segments - 1`` drop it.
    num_segments : int
        How many segments there are, empty ones included.
    where : array, boolean, shape (n,) or that of `data`, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    fill_value : scalar or array, default: NaN
        Value of a segment in which no entry is kept.

    Notes
    -----
    **Gradient.** ``1 / k`` to each of k entries that tie; 0 to entries left out, at every order.
    NaN to the entries of a segment with a NaN.

    **Source.** `safeops.safe_min`; `jax.ops.segment_min` has inf for an empty segment.

    Examples
    --------
    >>> import numpy as np
    >>> segment_min(np.asarray([1.0, 3.0, 2.0]), np.asarray([0, 0, 2]), 3)
    array([ 1., nan,  2.])
    """
    s = enter_segments(data, segment_ids, num_segments, where)
    return segments.extreme(s, -1, fill_value)


@fast_path
def segment_prod(
    data: T, segment_ids: Like, num_segments: int, /, *, where: Where = None, fill_value: Like = 1.0
) -> T:
    """
    Product of each segment, with its derivatives at zeros; 1 for an empty one.

    Same as ``prod(x)``, segment by segment.

    Parameters
    ----------
    data : array, shape (n, ...), real floating
        Any value. NaN in a kept entry stays NaN.
    segment_ids : array, shape (n,), integer
        The segment of each entry, in any order. Others than 0 to ``num_segments - 1`` drop it.
    num_segments : int
        How many segments there are, empty ones included.
    where : array, boolean, shape (n,) or that of `data`, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    fill_value : scalar or array, default: 1.0
        Value of a segment in which no entry is kept.

    Notes
    -----
    **Gradient.** The product of the other entries, zeros included; 0 to entries left out, at every
    order.

    **Source.** `safeops.safe_prod`. Sorted, then products of neighbours, of pairs of these, and so
    on: nothing is divided. `tf.math.unsorted_segment_prod` divides by the entry.

    Examples
    --------
    >>> import numpy as np
    >>> segment_prod(np.asarray([1.0, 3.0, 2.0]), np.asarray([0, 0, 2]), 3)
    array([3., 1., 2.])
    """
    s = enter_segments(data, segment_ids, num_segments, where)
    return segments.product(s, fill_value)


@fast_path
def segment_softmax(
    data: T, segment_ids: Like, num_segments: int, /, *, where: Where = None, fill_value: Like = 0.0
) -> T:
    """
    Softmax of the entries of each segment; 0, with gradient 0, for those left out.

    Same as ``exp(x) / sum(exp(x))`` over the entries present, segment by segment.

    Parameters
    ----------
    data : array, shape (n, ...), real floating
        Any value. NaN stays NaN. Entries at -inf are absent; inf gives NaN.
    segment_ids : array, shape (n,), integer
        The segment of each entry, in any order. Others than 0 to ``num_segments - 1`` drop it.
    num_segments : int
        How many segments there are, empty ones included.
    where : array, boolean, shape (n,) or that of `data`, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    fill_value : scalar or array, default: 0.0
        Value of entries that are left out or in no segment.

    Notes
    -----
    **Gradient.** ``diag(s) - s s^T`` in each segment; 0 to entries left out and at -inf, at every
    order.

    **Source.** `safeops.safe_softmax`; `torch_geometric.utils.softmax` adds 1e-16 to the sum.

    Examples
    --------
    >>> import numpy as np
    >>> segment_softmax(np.asarray([1.0, 3.0, 2.0]), np.asarray([0, 0, 2]), 3)
    array([0.11920292, 0.88079708, 1.        ])
    """
    s = enter_segments(data, segment_ids, num_segments, where)
    return segments.softmax(s, fill_value)


@fast_path
def segment_logsumexp(
    data: T,
    segment_ids: Like,
    num_segments: int,
    /,
    *,
    where: Where = None,
    fill_value: Like = -inf,
) -> T:
    """
    Logarithm of the sum of exponentials of each segment; -inf for an empty one.

    Same as ``log(sum(exp(x)))`` over the entries present, segment by segment.

    Parameters
    ----------
    data : array, shape (n, ...), real floating
        Any value. NaN stays NaN. Entries at -inf are absent; beside inf all others are.
    segment_ids : array, shape (n,), integer
        The segment of each entry, in any order. Others than 0 to ``num_segments - 1`` drop it.
    num_segments : int
        How many segments there are, empty ones included.
    where : array, boolean, shape (n,) or that of `data`, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    fill_value : scalar or array, default: -inf
        Value of a segment without an entry present.

    Notes
    -----
    **Gradient.** The softmax in each segment; 0 to entries left out and at -inf, at every order.
    Entries at inf share it evenly, and their second derivatives are 0.

    **Source.** `safeops.safe_logsumexp`.

    Examples
    --------
    >>> import numpy as np
    >>> segment_logsumexp(np.asarray([1.0, 3.0, 2.0]), np.asarray([0, 0, 2]), 3)
    array([3.12692801,       -inf, 2.        ])
    """
    s = enter_segments(data, segment_ids, num_segments, where)
    return segments.log_sum(s, fill_value)


@fast_path
def segment_var(
    data: T,
    segment_ids: Like,
    num_segments: int,
    /,
    *,
    correction: float = 0,
    where: Where = None,
    fill_value: Like = nan,
) -> T:
    """
    Variance of each segment; NaN, with gradient 0, for one of too few entries.

    Same as ``sum((x - mean(x)) ** 2) / (n - correction)``, segment by segment.

    Parameters
    ----------
    data : array, shape (n, ...), real floating
        Any value. NaN in a kept entry stays NaN.
    segment_ids : array, shape (n,), integer
        The segment of each entry, in any order. Others than 0 to ``num_segments - 1`` drop it.
    num_segments : int
        How many segments there are, empty ones included.
    correction : float, default: 0
        Subtracted from the number of entries: 1 for the unbiased estimate.
    where : array, boolean, shape (n,) or that of `data`, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    fill_value : scalar or array, default: NaN
        Value of a segment that keeps no more entries than `correction`.

    Notes
    -----
    **Gradient.** ``2 * (x - mean(x)) / (n - correction)``; 0 to entries left out, at every order.

    **Source.** `safeops.safe_var`. The largest entry is subtracted first.

    Examples
    --------
    >>> import numpy as np
    >>> segment_var(np.asarray([1.0, 3.0, 2.0]), np.asarray([0, 0, 2]), 3)
    array([ 1., nan,  0.])
    """
    s = enter_segments(data, segment_ids, num_segments, where)
    return spread_of(s, correction, fill_value, segments.variance)


@fast_path
def segment_std(
    data: T,
    segment_ids: Like,
    num_segments: int,
    /,
    *,
    correction: float = 0,
    where: Where = None,
    fill_value: Like = nan,
) -> T:
    """
    Standard deviation of each segment, with gradient 0 at 0; NaN for too few entries.

    Same as ``sqrt(sum((x - mean(x)) ** 2) / (n - correction))``, segment by segment.

    Parameters
    ----------
    data : array, shape (n, ...), real floating
        Any value. NaN in a kept entry stays NaN.
    segment_ids : array, shape (n,), integer
        The segment of each entry, in any order. Others than 0 to ``num_segments - 1`` drop it.
    num_segments : int
        How many segments there are, empty ones included.
    correction : float, default: 0
        Subtracted from the number of entries: 1 for the unbiased estimate.
    where : array, boolean, shape (n,) or that of `data`, optional
        True = keep. Entries left out count for nothing, whatever they hold.
    fill_value : scalar or array, default: NaN
        Value of a segment that keeps no more entries than `correction`.

    Notes
    -----
    **Gradient.** ``(x - mean(x)) / ((n - correction) * std)``; 0 for a constant segment, where the
    slope is infinite, and to entries left out, at every order.

    **Source.** `safeops.safe_std`; `torch_geometric` adds 1e-5 under the root.

    Examples
    --------
    >>> import numpy as np
    >>> segment_std(np.asarray([1.0, 3.0, 2.0]), np.asarray([0, 0, 2]), 3)
    array([ 1., nan,  0.])
    """
    s = enter_segments(data, segment_ids, num_segments, where)
    return spread_of(s, correction, fill_value, segments.deviation)


__dir__ = show("safeops.segments", __all__, globals())
