"""Functions of slices: arguments for them, and exact results in extended precision."""

# ruff: noqa: ARG001  (every formula takes the cotangent)

from typing import NamedTuple

import numpy as np

from exponents import FORMATS, rounded, wide

ENTRIES = 8
COUNT = 3000
HOLES = 0.25  # the share of NaN in what nan* see


class Reference(NamedTuple):
    """
    Value, and slopes of the sum of the value times the cotangent.

    Where terms cancel, also the terms of the value, and the size of the largest term of each slope.
    """

    value: object
    slopes: tuple
    terms: object = None
    slope_sizes: tuple = ()


def total(x):
    """Return the sum of slices, axes kept."""
    return x.sum(-1, keepdims=True)


def euclid(x):
    """Return the norm of slices, axes kept."""
    return np.sqrt(total(x * x))


def norm(x, ct):
    """`safe_norm`."""
    return Reference(euclid(x)[:, 0], (x / euclid(x),))


def squares(x, ct):
    """`squared_norm`."""
    return Reference(total(x * x)[:, 0], (2 * x,))


def direction(x, ct):
    """`safe_normalize`."""
    unit = x / euclid(x)
    size = np.abs(ct).max(-1, keepdims=True) / euclid(x)
    return Reference(unit, ((ct - unit * total(unit * ct)) / euclid(x),), slope_sizes=(size,))


def distance(x, y, ct):
    """`safe_distance`."""
    unit = (x - y) / euclid(x - y)
    return Reference(euclid(x - y)[:, 0], (unit, -unit))


def cosine(x, y, ct):
    """`safe_cosine_similarity`."""
    u, v = x / euclid(x), y / euclid(y)
    both = total(u * v)
    slopes = ((v - both * u) / euclid(x), (u - both * v) / euclid(y))
    sizes = tuple(np.abs(a).max(-1, keepdims=True) / euclid(b) for a, b in ((v, x), (u, y)))
    return Reference(both[:, 0], slopes, np.abs(u * v), sizes)


def rms(x, ct):
    """`safe_rms`."""
    root = np.sqrt(wide(ENTRIES))
    return Reference((euclid(x) / root)[:, 0], (x / euclid(x) / root,))


def shares(x):
    """Return the softmax, and the logarithm of the sum of exponentials, axes kept."""
    peak = x.max(-1, keepdims=True)
    powers = np.exp(x - peak)
    return powers / total(powers), peak + np.log(total(powers))


def softmax(x, ct):
    """`safe_softmax`."""
    s, _ = shares(x)
    return Reference(s, (s * (ct - total(s * ct)),), slope_sizes=((s * ct).max(-1, keepdims=True),))


def log_softmax(x, ct):
    """`safe_log_softmax`."""
    s, log = shares(x)
    return Reference(x - log, (ct - s * total(ct),), np.abs(x), (ct.max(-1, keepdims=True),))


def logsumexp(x, ct):
    """`safe_logsumexp`."""
    s, log = shares(x)
    return Reference(log[:, 0], (s,), np.abs(x))


def logmeanexp(x, ct):
    """`safe_logmeanexp`."""
    s, log = shares(x)
    return Reference((log - np.log(wide(ENTRIES)))[:, 0], (s,), np.abs(x))


def cross_entropy(x, y, ct):
    """`safe_cross_entropy`."""
    s, log = shares(x)
    logs = x - log
    sizes = (y.max(-1, keepdims=True), np.abs(x).max(-1, keepdims=True))
    return Reference(-total(y * logs)[:, 0], (s * total(y) - y, -logs), np.abs(y * x), sizes)


def sums(x, ct):
    """`nansum`."""
    kept = ~np.isnan(x)
    inside = np.where(kept, x, 0)
    return Reference(total(inside)[:, 0], (wide(kept),), np.abs(inside))


def means(x, ct):
    """`nanmean`."""
    value, (kept,), terms, _ = sums(x, ct)
    count = total(kept)
    return Reference(value / count[:, 0], (kept / count,), terms / count)


def products(x, ct):
    """`nanprod`."""
    kept = ~np.isnan(x)
    inside = np.where(kept, x, 1)
    value = np.prod(inside, -1, keepdims=True)
    return Reference(value[:, 0], (np.where(kept, value / inside, 0),))


def variances(x, ct):
    """`nanvar`."""
    kept = ~np.isnan(x)
    count = total(wide(kept))
    centred = np.where(kept, x - total(np.where(kept, x, 0)) / count, 0)
    return Reference((total(centred**2) / count)[:, 0], (2 * centred / count,))


def deviations(x, ct):
    """`nanstd`."""
    value, (slope,), *_ = variances(x, ct)
    root = np.sqrt(value)
    return Reference(root, (slope / 2 / root[:, None],))


def largest(x, ct):
    """`nanmax`."""
    peak = np.nanmax(x, -1, keepdims=True)
    return Reference(peak[:, 0], (wide(x == peak) / total(wide(x == peak)),))


def smallest(x, ct):
    """`nanmin`."""
    value, slopes, *_ = largest(-x, ct)
    return Reference(-value, slopes)


def medians(x, ct):
    """`nanmedian`."""
    count = (~np.isnan(x)).sum(-1, keepdims=True)
    order = np.argsort(np.argsort(x, -1), -1)
    middle = wide(order == (count - 1) // 2) / 2 + wide(order == count // 2) / 2
    return Reference(total(middle * np.where(np.isnan(x), 0, x))[:, 0], (middle,))


def running_sums(x, ct):
    """`nancumsum`."""
    kept = ~np.isnan(x)
    inside = np.where(kept, x, 0)
    slope = np.cumsum(ct[:, ::-1], -1)[:, ::-1]
    return Reference(np.cumsum(inside, -1), (np.where(kept, slope, 0),), np.abs(inside))


def running_products(x, ct):
    """`nancumprod`."""
    kept = ~np.isnan(x)
    inside = np.where(kept, x, 1)
    value = np.cumprod(inside, -1)
    slope = np.cumsum((ct * value)[:, ::-1], -1)[:, ::-1] / inside
    return Reference(value, (np.where(kept, slope, 0),))


def random(seed=0):
    """Return the same numbers at each call."""
    return np.random.default_rng(seed)


def sizes(dtype):
    """Return sizes over the range, in which no entry that counts is flushed, and no slope is."""
    form = FORMATS[dtype]
    least = form.least + (4 if form.bits == 11 else form.bits + 4)  # noqa: PLR2004  (float16)
    return 2 ** random().uniform(least, min(form.most, -form.least) - 8, (COUNT, 1))


def of_every_size(dtype):
    """Return a slice for each of many sizes."""
    return (rounded(random(1).normal(size=(COUNT, ENTRIES)) * sizes(dtype), dtype),)


def of_middle_size(dtype):
    """Return slices between 1e-3 and 1e3, of which all reductions are numbers of the dtype."""
    sizes = 2 ** random(2).uniform(*((-1, 1) if dtype == "float16" else (-10, 10)), (COUNT, 1))
    return (rounded(random(3).normal(size=(COUNT, ENTRIES)) * sizes + sizes, dtype),)


def with_holes(dtype):
    """Return those with NaN in them, at least two numbers a slice."""
    (x,) = of_middle_size(dtype)
    holes = random(4).uniform(size=x.shape) < HOLES
    holes[:, :2] = False
    return (np.where(holes, np.nan, x),)


def two_slices(dtype):
    """Return two slices of one size."""
    x, y = random(5).normal(size=(2, COUNT, ENTRIES)) * sizes(dtype)
    return rounded(x, dtype), rounded(y, dtype)


def logits(dtype):
    """Return logits of spreads from 0.01 to 30, around 0 and far from it."""
    spread = 10 ** random(6).uniform(-2, 1.5, (COUNT, 1))
    centre = random(7).choice([0, 0, 100, -100], (COUNT, 1))
    return (rounded(random(8).normal(size=(COUNT, ENTRIES)) * spread + centre, dtype),)


def logits_and_labels(dtype):
    """Return logits, and probabilities that are labels."""
    (x,) = logits(dtype)
    labels = random(9).dirichlet(np.ones(ENTRIES), COUNT)
    return x, rounded(labels, dtype)


# Of each: points, the exact one, and how many arguments have slopes.
SLICES = {
    "safe_norm": (of_every_size, norm),
    "squared_norm": (of_middle_size, squares),
    "safe_normalize": (of_every_size, direction),
    "safe_distance": (two_slices, distance),
    "safe_cosine_similarity": (two_slices, cosine),
    "safe_rms": (of_every_size, rms),
    "safe_softmax": (logits, softmax),
    "safe_log_softmax": (logits, log_softmax),
    "safe_logsumexp": (logits, logsumexp),
    "safe_logmeanexp": (logits, logmeanexp),
    "safe_cross_entropy": (logits_and_labels, cross_entropy),
}
REDUCTIONS = {
    "sum": sums,
    "prod": products,
    "mean": means,
    "var": variances,
    "std": deviations,
    "max": largest,
    "min": smallest,
}
SLICES |= {f"safe_{name}": (of_middle_size, exact) for name, exact in REDUCTIONS.items()}
SLICES |= {f"nan{name}": (with_holes, exact) for name, exact in REDUCTIONS.items()}
SLICES |= {
    "nanmedian": (with_holes, medians),
    "nancumsum": (with_holes, running_sums),
    "nancumprod": (with_holes, running_products),
}
# What has the shape of a slice, and so a cotangent for each entry.
SHAPED = ("safe_normalize", "safe_softmax", "safe_log_softmax", "nancumsum", "nancumprod")
