"""
The specifications of the combinators in `_ops/where.py`.

As in the case table, but the safe version too is a function of the namespace.
"""

from math import log

from points import FLAT, OwnSpec, Row, one, two
from safeops import make_safe, safe_where, vectorized_cond

HALVES = (one(2.0, log(2), 0.5, -0.25), one(0.0, log(2), -0.5, -0.25))
LOG = (one(2.0, log(2), 0.5, -0.25), one(0.0, 0, 0, 0), one(-1.0, 0, 0, 0))
QUOTIENT = (two((3.0, 2.0), 1.5, (0.5, -0.75), (0, -0.25, 0.75)), two((3.0, 0.0), 0, *FLAT))
SCALED_LOG = (
    two((2.0, 3.0), 3 * log(2), (1.5, log(2)), (-0.75, 0.5, 0)),
    two((0.0, 3.0), 0, *FLAT),
)
LOG_OR_OTHER = (
    two((2.0, 3.0), log(2), (0.5, 0), (-0.25, 0, 0)),
    two((0.0, 3.0), 3, (0, 1), (0, 0, 0)),
)

SPECS = (
    OwnSpec(
        "safe_where",
        (
            Row(
                "safe_where",
                lambda xp, x: safe_where(x > 0, x, xp.log, fill_value=0.0),
                lambda xp, x: xp.where(x > 0, xp.log(x), 0.0),
                LOG,
            ),
            Row(
                "safe_where, f2",
                lambda xp, x: safe_where(x > 1, x, xp.log, lambda x: xp.log(2 - x)),
                lambda xp, x: xp.where(x > 1, xp.log(x), xp.log(2 - x)),
                HALVES,
            ),
            Row(
                "safe_where, a placeholder for each argument",
                lambda xp, x, y: safe_where(
                    y > 0, (x, y), xp.divide, fill_value=0.0, placeholder=(0.0, 1.0)
                ),
                lambda xp, x, y: xp.where(y > 0, xp.divide(x, y), 0.0),
                QUOTIENT,
            ),
            Row(
                "safe_where, a parameter in the branch",
                lambda xp, x, a: safe_where(
                    x > 0, x, lambda x: a * xp.log(x), fill_value=0.0, placeholder=1.0
                ),
                lambda xp, x, a: xp.where(x > 0, a * xp.log(x), 0.0),
                SCALED_LOG,
            ),
            Row(
                "safe_where, an array as fill_value",
                lambda xp, x, c: safe_where(x > 0, x, xp.log, fill_value=c),
                lambda xp, x, c: xp.where(x > 0, xp.log(x), c),
                LOG_OR_OTHER,
            ),
        ),
        synonyms="apply_where, double where, select",
    ),
    OwnSpec(
        "vectorized_cond",
        (
            Row(
                "vectorized_cond",
                lambda xp, x, c: vectorized_cond(
                    x > 0, lambda x, _: xp.log(x), lambda _, c: c, x, c
                ),
                lambda xp, x, c: xp.where(x > 0, xp.log(x), c),
                LOG_OR_OTHER,
            ),
            Row(
                "vectorized_cond, a pair of placeholders",
                lambda xp, x: vectorized_cond(
                    x > 1, xp.log, lambda x: xp.log(2 - x), x, placeholder=(2.0, 0.0)
                ),
                lambda xp, x: xp.where(x > 1, xp.log(x), xp.log(2 - x)),
                HALVES,
            ),
        ),
        synonyms="cond, if",
    ),
    OwnSpec(
        "make_safe",
        (
            Row(
                "make_safe",
                lambda xp, x, c: make_safe(xp.log, lambda x: x > 0, placeholder=1.0, fill_value=c)(
                    x
                ),
                lambda xp, x, c: xp.where(x > 0, xp.log(x), c),
                LOG_OR_OTHER,
            ),
        ),
    ),
    OwnSpec("stop_gradient"),
)
