"""
log(1 - exp(-x)), log(exp(x) - 1) and the like for JAX, by one exponential and one logarithm.

XLA would compute each branch of a select. A logarithm of ``1 + t`` is that of the rounded sum and
of what the sum has lost; a select keeps XLA from adding that up to 0. The arguments are inside of
the domain.
"""

import jax.numpy as jnp

from safeops._backends.jax.functions import over, with_rule
from safeops._core.dtypes import LN2, limits, near_log2
from safeops._core.types import Array, Function


def _rest(x: Array) -> tuple[Array, Array, Array]:
    """Return ``exp(-x)``, one less that, and what the difference has lost."""
    low, power = x < LN2, jnp.exp(-x)
    rest = jnp.where(low, -jnp.expm1(-x), 1 - power)
    return power, rest, jnp.where(low, 0, 1 - rest - power)


@with_rule(lambda f, x, dot: -(f(x) * dot) * (1 + f(x)))
def _odds(x: Array) -> Array:
    """Return ``1 / (exp(x) - 1)``."""
    power, rest, _ = _rest(x)
    return power / rest


@with_rule(lambda _, x, dot: _odds(x) * dot)
def log_of_rest(x: Array) -> Array:
    """Return ``log(1 - exp(-x))`` of a positive number."""
    _, rest, lost = _rest(x)
    return jnp.log(rest) + lost / rest


def _of_exponential(x: Array) -> tuple[Array, Array, Array, Array]:
    """Return numbers of which ``log(exp(x) - 1)`` is ``log(part) + lost + whole``."""
    # Its slope is the last one over `part`. Next to its zero, log(2), all are made of the distance
    # from that.
    middle, rest = near_log2(limits(jnp, x).eps)
    low, away = x < LN2 - 0.25, x - middle
    above = away > 0
    power = jnp.expm1(jnp.where(low, -x, -jnp.abs(away)))
    excess = jnp.where(above, -power, 2 * power) + rest
    part = jnp.where(low, -power, 1 + excess)
    whole = jnp.where(low, x, jnp.where(above, away, 0))
    lost = jnp.where(low, 0, (excess - (part - 1)) / part)  # safeops: ignore[SO001]  (own rule)
    return part, lost, whole, jnp.where(low, 1, jnp.where(above, 2 + rest, 1 + part))


@with_rule(lambda f, x, dot: -(_odds(x) * dot) * f(x))
def _slope(x: Array) -> Array:
    """Return ``1 / (1 - exp(-x))``."""
    part, _, _, numerator = _of_exponential(x)
    return numerator / part


@with_rule(lambda _, x, dot: _slope(x) * dot)
def log_expm1(x: Array) -> Array:
    """Return ``log(exp(x) - 1)`` of a positive number."""
    part, lost, whole, _ = _of_exponential(x)
    return jnp.log(part) + lost + whole


@with_rule(lambda _, x, dot: (1 - 2 * x) * dot)
def _spread(x: Array) -> Array:
    """Return ``x * (1 - x)``, whose two slopes cancel next to one half."""
    return x * (1 - x)


@with_rule(lambda _, x, dot: over(dot, _spread(x)))
def logit(x: Array) -> Array:
    """Return the logarithm of ``1 + (1 - 2 * m) / m`` for the lesser m of x and 1 - x, signed."""
    lesser = jnp.minimum(x, 1 - x)
    size = jnp.log1p((1 - 2 * lesser) / lesser)
    return jnp.where(x > 0.5, size, -size)  # noqa: PLR2004  (the middle)


FORMULAS: dict[str, Function] = {f.__name__: f for f in (log_expm1, log_of_rest, logit)}
