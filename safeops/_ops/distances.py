"""Distances of all pairs of points, with gradient 0 where two points coincide."""

from typing import Any

from safeops._core.types import Array, Condition, Namespace, T
from safeops._dispatch import backend_of, fast_path, promote, promote_mask
from safeops._ops.norms import safe_distance
from safeops._ops.slices import ends_of, equal, require_rank


@fast_path
def safe_cdist(
    x: T,
    y: T,
    /,
    *,
    ord: float = 2,  # noqa: A002  (the name in NumPy and the standard)
    where: Condition | None = None,
) -> T:
    """
    Distance of each point of `x` to each of `y`, with gradient 0 where the two coincide.

    Same as ``norm(x[..., i, :] - y[..., j, :])`` for all i and j.

    Parameters
    ----------
    x : array, shape (..., n, d), real or complex floating
        Points. A point with NaN has distance NaN to all, and no other point has.
    y : array, shape (..., m, d), real or complex floating
        Other points, likewise. The axes before the last two broadcast.
    ord : float, default: 2
        At least 1; `math.inf` for the maximum norm.
    where : array, boolean, optional
        True = keep: which pairs count, broadcasting against (..., n, m). A pair left out has
        distance 0, whatever its points hold.

    Returns
    -------
    array, shape (..., n, m), real floating

    Notes
    -----
    **Gradient.** ``(x[i] - y[j]) / distance`` for ``x[i]``, its negative for ``y[j]``; 0 and 0
    where they coincide, and for pairs left out, at every order.

    **Source.** `safe_distance` of all pairs, by differences: the formula with a product of matrices
    loses the digits of points that are close to each other and far from 0. In eager PyTorch on a
    CPU the kernel of `torch.cdist` (2.13) takes them without storing them, if none is out of range;
    it has no second derivative, for which, as elsewhere, n * m * d numbers are stored.

    Examples
    --------
    >>> import numpy as np
    >>> x, y = np.asarray([[0.0, 0.0], [3.0, 4.0]]), np.asarray([[0.0, 0.0]])
    >>> safe_cdist(x, y)
    array([[0.],
           [5.]])
    """
    xp, x, y = promote(x, y, complex_too=True)
    _require_points("x", x)
    _require_points("y", y)
    _require_dimension(x, y)
    keep = promote_mask(where, x)
    _require_pairs(keep, x.shape[-2:-1], y.shape[-2:-1])
    x, y = xp.expand_dims(x, axis=-2), xp.expand_dims(y, axis=-3)
    return safe_distance(x, y, ord=ord, where=_beside(xp, keep))


@fast_path
def safe_pdist(
    x: T,
    /,
    *,
    ord: float = 2,  # noqa: A002  (the name in NumPy and the standard)
    where: Condition | None = None,
) -> T:
    """
    Distances of the pairs of points of `x`, each pair once; 0, with gradient 0, if they coincide.

    Same as ``norm(x[..., i, :] - x[..., j, :])`` for all ``i < j``, in the order (0, 1), (0, 2).

    Parameters
    ----------
    x : array, shape (..., n, d), real or complex floating
        Points. A point with NaN has distance NaN to all, and no other point has.
    ord : float, default: 2
        At least 1; `math.inf` for the maximum norm.
    where : array, boolean, optional
        True = keep: which pairs count, broadcasting against the result. A pair left out has
        distance 0, whatever its points hold.

    Returns
    -------
    array, shape (..., n * (n - 1) / 2), real floating

    Notes
    -----
    **Gradient.** ``(x[i] - x[j]) / distance`` for ``x[i]``, its negative for ``x[j]``; 0 and 0
    where they coincide, and for pairs left out, at every order.

    **Source.** `safe_distance` of the pairs, in the order of `scipy.spatial.distance.pdist`.
    `safe_cdist` of `x` with itself has each pair twice, and the zeros on the diagonal.

    Examples
    --------
    >>> import numpy as np
    >>> safe_pdist(np.asarray([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]))
    array([5., 0., 5.])
    """
    xp, x = promote(x, complex_too=True)
    require_rank("x", x)
    _require_points("x", x)
    backend, rank = backend_of(x), len(x.shape)
    here = xp.permute_dims(x, (rank - 2, *range(rank - 2), rank - 1))  # gathers take the first axis
    ends = (backend.gather(here, ids) for ids in backend.pairs(x))
    one, other = (xp.permute_dims(y, (*range(1, rank - 1), 0, rank - 1)) for y in ends)
    keep = promote_mask(where, x)
    _require_pairs(keep, one.shape[-2:-1])
    return safe_distance(one, other, ord=ord, where=_beside(xp, keep))


def _beside(xp: Namespace, keep: Array | None) -> Array | None:
    """Return a mask of pairs with an axis for the coordinates."""
    return None if keep is None else xp.expand_dims(keep, axis=-1)


def _require_pairs(keep: Array | None, *shapes: Any) -> None:
    """Raise ValueError for a mask that is known to have another shape than the pairs."""
    if keep is None or any(getattr(s, "rank", 0) is None for s in (keep.shape, *shapes)):
        return
    wanted, given = tuple(n for s in shapes for n in s), tuple(keep.shape)
    if not all(equal(a, b) or a == 1 for a, b in ends_of(given, wanted)):
        msg = (
            f"expected where of a shape that broadcasts against that of the pairs, "
            f"(..., {', '.join(map(str, wanted))}), got {given}"
        )
        raise ValueError(msg)


def _require_points(name: str, x: Array) -> None:
    """Raise ValueError for an array that is known to hold no points."""
    rank = getattr(x.shape, "rank", len(x.shape) if isinstance(x.shape, tuple) else 0)
    if rank is not None and rank < 2:  # noqa: PLR2004  (points and coordinates)
        msg = f"expected points of shape (..., n, d) as {name}, got shape {tuple(x.shape)}"
        raise ValueError(msg)


def _require_dimension(x: Array, y: Array) -> None:
    """Raise ValueError for points that are known to have other numbers of coordinates."""
    if any(getattr(z.shape, "rank", 0) is None for z in (x, y)):
        return
    of_x, of_y = x.shape[-1], y.shape[-1]
    if not equal(of_x, of_y):
        msg = f"expected points of one dimension, got {of_x} coordinates and {of_y}"
        raise ValueError(msg)
