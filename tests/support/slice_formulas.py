"""
Reductions, directions and the softmax family of slices, with their derivatives, in long double.

Nothing here leaves the range of long double, with exponents up to 16383: a product of four entries
stays inside. A result with several numbers for a slice is summed with `WEIGHTS`, and slopes are
taken of the weighted sum.
"""

from dataclasses import dataclass, field

import numpy as np

from exponents import wide

WEIGHTS = (0.75, -0.5, 1.0, 0.25)
TARGETS = (0.125, 0.5, 0.25, 0.125)  # probabilities


@dataclass
class Parts:
    """Value, gradient and Hessian times a direction, and the sizes of the terms of each."""

    value: object
    slope: object
    turn: object
    value_size: object
    slope_size: object
    turn_size: object


def parts(value, slope, turn, value_size=None, slope_size=None, turn_size=None):
    """Return the parts; a size that is not given is the size of the number itself."""
    given = ((value, value_size), (slope, slope_size), (turn, turn_size))
    sizes = [np.broadcast_to(np.abs(x) if size is None else size, x.shape) for x, size in given]
    return Parts(value, slope, turn, *sizes)


def column(x):
    """Return one number a slice beside its entries."""
    return x[..., None]


def total(x, v):
    """Return the sum."""
    return parts(x.sum(-1), 1 + 0 * x, 0 * v, value_size=np.abs(x).sum(-1))


def cumulative(x, v):
    """Return the sums up to each entry."""
    slope = np.cumsum(wide(WEIGHTS)[::-1])[::-1] + 0 * x
    return parts(x.cumsum(-1), slope, 0 * v, value_size=np.abs(x).cumsum(-1), slope_size=2.5)


def product(x, v):
    """Return the product; a slope is the product of the others, as are second derivatives."""
    n = x.shape[-1]
    without = [[np.delete(x, sorted({i, j}), -1).prod(-1) for j in range(n)] for i in range(n)]
    slope = np.stack([without[i][i] for i in range(n)], -1)
    terms = [[v[..., j] * without[i][j] * (i != j) for j in range(n)] for i in range(n)]
    turn = np.stack([sum(line) for line in terms], -1)
    size = np.stack([sum(map(np.abs, line)) for line in terms], -1)
    return parts(x.prod(-1), slope, turn, turn_size=size)


def variance(x, v):
    """Return the variance, whose differences cancel."""
    n, size = x.shape[-1], column(np.abs(x).max(-1))
    away, along = (y - column(y.mean(-1)) for y in (x, v))
    return parts((away**2).mean(-1), 2 * away / n, 2 * along / n, None, size, np.abs(v).max())


def square(x, v):
    """Return the sum of squares."""
    return parts((x * x).sum(-1), 2 * x, 2 * v)


def direction(x, v, weights=WEIGHTS):
    """Return the unit vector, and the slopes of its product with weights."""
    w = wide(weights) + 0 * x
    norm = column(np.sqrt((x * x).sum(-1)))
    u = x / norm
    along = column((w * u).sum(-1))
    slope = (w - along * u) / norm
    du = (v - column((u * v).sum(-1)) * u) / norm
    turn = -(column((w * du).sum(-1)) * u + along * du + slope * column((u * v).sum(-1))) / norm
    sizes = (4 / norm, 16 / norm / norm)
    return parts(u, slope, turn, None, *sizes)


def clipped(x, v):
    """Return the vector, or the unit vector if it is longer, and the slopes."""
    w = wide(WEIGHTS) + 0 * x
    outside = direction(x, v)
    inside = parts(x, w, 0 * v)
    long = column((x * x).sum(-1)) > 1
    chosen = zip(vars(inside).values(), vars(outside).values(), strict=True)
    return Parts(*(np.where(long, b, a) for a, b in chosen))


def scores(x, v, weights=WEIGHTS):
    """Return standard scores: the direction of the deviations, times the root of the number."""
    root = np.sqrt(wide(x.shape[-1]))
    away, along = (y - column(y.mean(-1)) for y in (x, v))
    found = direction(away, along, root * wide(weights))
    sizes = (root, *(root * 4 * s for s in (found.slope_size, found.turn_size)))
    slope, turn = (y - column(y.mean(-1)) for y in (found.slope, found.turn))
    return parts(root * found.value, slope, turn, *sizes)


def correlation(x, v, weights=WEIGHTS):
    """Return the correlation with the weights: the cosine of the deviations."""
    away, along, w = (y - column(y.mean(-1)) for y in (x, v, wide(weights)))
    found = cosine(away, along, w)
    slope, turn = (y - column(y.mean(-1)) for y in (found.slope, found.turn))
    return parts(found.value, slope, turn, 1, 4 * found.slope_size, 4 * found.turn_size)


def cosine(x, v, weights=WEIGHTS):
    """Return the cosine of the angle with the weights."""
    w = wide(weights) / column(np.sqrt((wide(weights) ** 2).sum(-1)))
    found = direction(x, v, w)
    found.value = (found.value * w).sum(-1)
    found.value_size = np.ones_like(found.value)
    return found


def shares(x, v):
    """Return softmax, its tangent, the logarithm of the sum, and the loss of digits of each."""
    peak = column(x.max(-1))
    powers = np.exp(x - peak)
    p = powers / column(powers.sum(-1))
    tangent = p * (v - column((p * v).sum(-1)))
    lost = p * (1 + np.abs(x - peak)) * 8  # an exponent that is rounded; and the weights
    return p, tangent, column(np.log(powers.sum(-1))) + peak, lost


def softmax(x, v, weights=WEIGHTS):
    """Return softmax."""
    p, dp, _, lost = shares(x, v)
    w = wide(weights)
    away = w - column((w * p).sum(-1))
    turn = dp * away - p * column((w * dp).sum(-1))
    return parts(p, p * away, turn, lost, lost, 4 * lost)


def log_softmax(x, v, weights=WEIGHTS):
    """Return the logarithm of softmax."""
    p, dp, top, lost = shares(x, v)
    w, size = wide(weights), column(np.abs(x).max(-1)) + 1
    all_of_w = column(w.sum(-1))
    return parts(x - top, w - p * all_of_w, -dp * all_of_w, size, np.abs(w) + lost, lost)


def log_sum(x, v, *, mean=False):
    """Return the logarithm of the sum, or of the mean, of exponentials."""
    p, dp, top, lost = shares(x, v)
    value = top[..., 0] - (np.log(wide(x.shape[-1])) if mean else 0)
    return parts(value, p, dp, np.abs(x).max(-1) + 2, lost, lost)


def loss(targets):
    """Return a formula: the cross entropy of probabilities."""

    def formula(x, v):
        p, dp, top, lost = shares(x, v)
        q = wide(targets)
        value, slope = (q * (top - x)).sum(-1), p * column(q.sum(-1)) - q
        return parts(value, slope, dp, np.abs(x).max(-1) + 2, lost + q, lost)

    return formula


def constant(x, numbers):
    """Return numbers in the framework and the dtype of x, for each slice."""
    from safeops._dispatch import backend_of

    xp = backend_of(x).xp
    return xp.ones_like(x) * xp.asarray(np.asarray(numbers), dtype=x.dtype)


# Value, gradient and Hessian times a direction of slices near 1, in extended precision.


def norm_of(p):
    """Return the norm of slices, its gradient and its Hessian times a direction."""

    def exact(x, v):
        size = np.abs(x)
        norm = size.max(-1) if p == np.inf else (size**p).sum(-1) ** (1 / np.longdouble(p))
        part = size / norm[:, None]
        if p == np.inf:
            tie = size == norm[:, None]
            return norm, np.sign(x) * tie / tie.sum(-1, keepdims=True), 0 * x
        slope = np.sign(x) * part ** (p - 1)
        with np.errstate(divide="ignore"):
            curve = np.where((part == 0) & (p < 2), 0.0, part ** (p - 2))  # chosen
        turn = curve * v - slope * (slope * v).sum(-1, keepdims=True)
        return norm, slope, (p - 1) * turn / norm[:, None]

    return exact


def rms(x, v):
    """Return the root mean square of slices, with derivatives."""
    norm, slope, turn = norm_of(2)(x, v)
    root = np.sqrt(np.longdouble(x.shape[-1]))
    return norm / root, slope / root, turn / root


def std(x, v):
    """Return the standard deviation of slices, with derivatives."""
    value, slope, turn = rms(x - x.mean(-1, keepdims=True), v - v.mean(-1, keepdims=True))
    return value, slope, turn - turn.mean(-1, keepdims=True)


def mean(x, v):
    """Return the mean of slices, with derivatives."""
    return x.mean(-1), 0 * x + 1 / np.longdouble(x.shape[-1]), 0 * v


def largest(x, v):
    """Return the maximum of slices, with derivatives."""
    peak = x.max(-1, keepdims=True)
    return peak[:, 0], (x == peak) / (x == peak).sum(-1, keepdims=True), 0 * v


@dataclass(frozen=True)
class Sweep:
    """What an operation is over all exponents, whether it has a curve, and which sizes it takes."""

    exact: object
    call: object = None  # by default the operation along the last axis
    of: str = ""  # what is peculiar to this call
    curved: bool = True
    least: float = 2.0  # times the least normal number
    # The largest number on the way, for entries of size s, is factor * s**power.
    most: tuple = (1.0, 1)


@dataclass(frozen=True)
class Scaled:
    """What an operation that scales as its argument does is of slices near 1."""

    exact: object
    options: dict = field(default_factory=dict)
    call: object = None  # by default the operation along the last axis
    curved: bool = False
    cubes: bool = False  # powers of entries reach far
    # How far from the ends of the range sums and differences of entries are numbers of the dtype.
    room: tuple = (2.0, 1.0)
