"""
The specifications of the functions in `_ops/distances.py`.

A result has a pair for each two points, so that `test_distances.py` derives all of them at once.
"""

from points import OwnSpec


def plain_distances(xp, x, y):
    """Return the distances as people write them."""
    difference = xp.expand_dims(x, axis=-2) - xp.expand_dims(y, axis=-3)
    return xp.sqrt(xp.sum(difference * difference, axis=-1))


SPECS = (
    OwnSpec("safe_cdist", naive=plain_distances, synonyms="pairwise distance, distance matrix"),
    OwnSpec("safe_pdist"),
)
