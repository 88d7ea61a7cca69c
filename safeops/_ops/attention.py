"""Attention, in which a masked key or value contributes nothing, whatever it holds."""

import math
from itertools import combinations, zip_longest
from typing import Any

from safeops._core.types import Array, Condition, Namespace, T
from safeops._dispatch import fast_path, promote_mask
from safeops._ops.slices import count, enter_number, enter_slices, equal, length, require_fit
from safeops._ops.softmax import safe_softmax


@fast_path
def safe_attention(
    query: T, key: T, value: T, /, *, where: Condition | None = None, scale: float | None = None
) -> T:
    """
    Attention in which masked keys and values are absent; a query without a key gives 0.

    Same as ``softmax(scale * query @ key.T) @ value`` over the keys kept for each query.

    Parameters
    ----------
    query : array, shape (..., n, d), real floating
        Queries. The axes before the last two broadcast, such as those of grouped heads.
    key : array, shape (..., m, d), real floating
        Keys.
    value : array, shape (..., m, e), real floating
        Values. A query that keeps a key or a value with NaN or an infinity in it is NaN, and so is
        one that holds them itself and keeps a key.
    where : array, boolean, optional
        True = keep: which query sees which key, broadcasting against (..., n, m).
    scale : float, optional
        Factor of the products. Default: ``1 / sqrt(d)``.

    Returns
    -------
    array, shape (..., n, e)
        0 for a query without a key.

    Notes
    -----
    **Gradient.** The derivative. A key or value gets 0, at every order, from each query that masks
    it, whatever either of them holds; and so does a query without a key. A key or value that every
    query masks gets 0 whatever comes back, and a query without a key gives 0. A query that is NaN
    has gradient NaN, and gives NaN to what it keeps, and to nothing else. Where a query is finite,
    what comes back to it has to be finite too: a NaN there reaches all values that some query
    keeps, as in every product of matrices.

    **Source.** Vaswani et al., *Attention Is All You Need* (2017). ``softmax(where=) @ v`` is NaN
    for a NaN in a masked value, as ``0 * NaN`` is: PyTorch issue 101967. So queries that keep no
    number take another way than through products of matrices, which mix all of them. The fused
    kernel of PyTorch for a CPU is used for finite heads, each query of which keeps a key; it has no
    second derivative and no forward mode (2.13), which are those of the products here.

    Examples
    --------
    >>> import numpy as np
    >>> query = key = np.asarray([[1.0], [1.0]])
    >>> value = np.asarray([[2.0], [np.nan]])
    >>> safe_attention(query, key, value, where=np.asarray([[True, False], [False, False]]))
    array([[2.],
           [0.]])
    """
    xp, dtype, _, (query, key, value) = enter_slices(query, key, value, where=None)
    _require_fit(query, key, value)
    q, query_lost = _finite(xp, query)
    k, key_lost = _finite(xp, key)
    v, value_lost = _finite(xp, value)
    scores = xp.matmul(q * _factor(xp, q, scale), xp.matrix_transpose(k))
    lost = xp.logical_or(query_lost, xp.matrix_transpose(xp.logical_or(key_lost, value_lost)))
    keep = promote_mask(where, query)
    if keep is not None:
        require_fit(keep, scores)
        keep, scores = xp.broadcast_arrays(keep, scores)
        lost = xp.logical_and(keep, lost)
        v = xp.where(_some(xp, keep), v, 0.0)
    lost = xp.any(lost, axis=-1, keepdims=True)
    out = xp.matmul(safe_softmax(scores, where=keep), v)
    if keep is not None:
        out = xp.where(xp.any(keep, axis=-1, keepdims=True), out, 0.0)
    undefined = _undefined(xp, (query, key, value), keep, lost)
    return xp.astype(xp.where(lost, undefined, out), dtype)


def _finite(xp: Namespace, x: Array) -> tuple[Array, Array]:
    """Return rows, 0 in place of those that are not finite; and which they are."""
    lost = xp.any(xp.logical_not(xp.isfinite(x)), axis=-1, keepdims=True)
    return xp.where(lost, 0.0, x), lost


def _some(xp: Namespace, pairs: Array) -> Array:
    """Return for each key whether a query of it is in the pairs, as a column."""
    return xp.expand_dims(xp.any(pairs, axis=-2), axis=-1)


def _undefined(
    xp: Namespace, given: tuple[Array, Array, Array], keep: Array | None, lost: Array
) -> Array:
    """Return NaN for the queries that are lost, and a slope of NaN for what they keep."""
    # An entry that they mask is not in the sum: its slope is 0 whatever comes back, which no
    # product of matrices with a weight of 0 gives.
    query, key, value = given
    if keep is None:
        here = lost
        seen = (key, value)
    else:
        here = xp.logical_and(keep, lost)
        used = _some(xp, here)
        seen = tuple(xp.where(used, x, 0.0) for x in (key, value))
    held = sum(xp.sum(x, axis=-1, keepdims=True) for x in seen)
    own = xp.sum(xp.where(lost, query, 0.0), axis=-1, keepdims=True)
    terms = xp.where(here, xp.matrix_transpose(held), 0.0)
    total = xp.where(lost, xp.sum(terms, axis=-1, keepdims=True) + own, 0.0)
    return total * xp.where(lost, math.nan, xp.ones_like(total))


def _factor(xp: Namespace, query: Array, scale: Any) -> Any:
    """Return the scale, a Python number where the length of a query is known."""
    if scale is not None:
        return enter_number("expected a number as scale; multiply the query by an array", scale)
    width = length(query, -1)
    if width is None:
        return 1.0 / xp.sqrt(count(xp, query, None, -1))
    return 1.0 / math.sqrt(width) if width else 1.0


def _require_fit(query: Array, key: Array, value: Array) -> None:
    """Raise ValueError for shapes that are known not to fit."""
    shapes = [x.shape for x in (query, key, value)]
    if any(getattr(shape, "rank", 0) is None for shape in shapes):
        return
    q, k, v = map(tuple, shapes)
    fits = min(map(len, (q, k, v))) >= 2  # noqa: PLR2004  (rows and columns)
    fits = fits and equal(q[-1], k[-1]) and equal(k[-2], v[-2])
    heads = zip_longest(*(x[-3::-1] for x in (q, k, v)), fillvalue=1)
    for axes in heads:
        fits = fits and all(equal(a, b) or a == 1 or b == 1 for a, b in combinations(axes, 2))
    if not fits:
        msg = (
            f"expected query (..., n, d), key (..., m, d) and value (..., m, e), got shapes "
            f"{q}, {k} and {v}"
        )
        raise ValueError(msg)
