"""
The specification of the function in `_ops/interpolation.py`.

Every number moves every other one, so that `test_interpolation.py` derives all of them at once.
"""

from points import OwnSpec


def plain_interp(xp, x, knots, values):
    """Return the sum over masks of all intervals."""
    at = xp.expand_dims(x, axis=-1)
    slopes = (values[1:] - values[:-1]) / (knots[1:] - knots[:-1])
    here = xp.logical_and(knots[:-1] <= at, at < knots[1:])
    line = values[:-1] + (at - knots[:-1]) * slopes
    return xp.sum(xp.where(here, line, 0.0), axis=-1)


SPECS = (
    OwnSpec(
        "safe_interp",
        naive=plain_interp,
        synonyms="linear interpolation, piecewise linear function, look-up table",
    ),
)
