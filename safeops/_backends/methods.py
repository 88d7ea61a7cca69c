"""NumPy's methods of quantiles: where a quantile lies among the ordered entries."""

from collections.abc import Callable
from typing import Any

from safeops._core.types import Array, Namespace

# From the number of entries and q to an index, and the part of the way to the next entry.
Rule = Callable[..., tuple[Any, Any]]


def _split(xp: Namespace, index: Array) -> tuple[Array, Array]:
    low = xp.floor(index)
    return low, index - low


def _exactly(xp: Namespace, index: Array) -> tuple[Array, Array]:
    return index, xp.zeros_like(index)


def _is_odd(xp: Namespace, x: Array) -> Array:
    return x - 2.0 * xp.floor(x / 2.0) == 1


def _inverted_cdf(xp: Namespace, n: Array, q: Any) -> tuple[Array, Array]:
    return _exactly(xp, -xp.floor(1.0 - n * q))


def _averaged_inverted_cdf(xp: Namespace, n: Array, q: Any) -> tuple[Array, Array]:
    low, part = _split(xp, n * q - 1.0)
    return low, xp.where(part == 0, 0.5, xp.ones_like(part))


def _rounded(xp: Namespace, product: Any) -> Any:
    """Return a product of at least 0, rounded as in NumPy: so that XLA fuses it with no sum."""
    return xp.abs(product)


def _closest_observation(xp: Namespace, n: Array, q: Any) -> tuple[Array, Array]:
    low, part = _split(xp, _rounded(xp, n * q) - 1.5)
    return _exactly(xp, xp.where(xp.logical_and(part == 0, _is_odd(xp, low)), low, low + 1.0))


def _nearest(xp: Namespace, n: Array, q: Any) -> tuple[Array, Array]:
    low, part = _split(xp, _rounded(xp, (n - 1.0) * q))
    up = xp.logical_or(part > 0.5, xp.logical_and(part == 0.5, _is_odd(xp, low)))  # noqa: PLR2004  (half)
    return _exactly(xp, xp.where(up, low + 1.0, low))


def _midpoint(xp: Namespace, n: Array, q: Any) -> tuple[Array, Array]:
    low, part = _split(xp, _rounded(xp, (n - 1.0) * q))
    return low, xp.where(part == 0, 0.0, xp.full_like(part, 0.5))


def _continuous(alpha: float, beta: float) -> Rule:
    def rule(xp: Namespace, n: Array, q: Any) -> tuple[Array, Array]:
        return _split(xp, n * q + (alpha + q * (1.0 - alpha - beta)) - 1.0)

    return rule


# Indices count from 0. The methods of Hyndman and Fan (1996); the last four are of NumPy alone.
METHODS: dict[str, Rule] = {
    "inverted_cdf": _inverted_cdf,
    "averaged_inverted_cdf": _averaged_inverted_cdf,
    "closest_observation": _closest_observation,
    "interpolated_inverted_cdf": _continuous(0.0, 1.0),
    "hazen": _continuous(0.5, 0.5),
    "weibull": _continuous(0.0, 0.0),
    "linear": lambda xp, n, q: _split(xp, (n - 1.0) * q),
    "median_unbiased": _continuous(1 / 3, 1 / 3),
    "normal_unbiased": _continuous(3 / 8, 3 / 8),
    "lower": lambda xp, n, q: _exactly(xp, xp.floor((n - 1.0) * q)),
    "higher": lambda xp, n, q: _exactly(xp, -xp.floor((1.0 - n) * q)),
    "midpoint": _midpoint,
    "nearest": _nearest,
}
