"""Functions of slices: arguments for them, and exact results in extended precision."""

# ruff: noqa: ARG001  (every formula takes the cotangent)

from functools import partial
from typing import NamedTuple

import numpy as np
from plain import QUANTILE

import slice_formulas as swept
from exponents import FORMATS, rounded, wide
from specs.logs import log_ratio

ENTRIES = 8
COUNT = 3000
HOLES = 0.25  # the share of NaN in what nan* see


class Reference(NamedTuple):
    """
    Value, and slopes of the sum of the value times the cotangent.

    Where terms cancel, also the terms of the value, or its size, and the size of the largest term
    of each slope.
    """

    value: object
    slopes: tuple
    terms: object = None
    slope_sizes: tuple = ()
    value_size: object = None


def total(x):
    """Return the sum of slices, axes kept."""
    return x.sum(-1, keepdims=True)


def euclid(x):
    """Return the norm of slices, axes kept."""
    return np.sqrt(total(x * x))


def by(formula, terms=None):
    """Return a reference of one number a slice, by a formula of the tests."""

    def reference(x, ct):
        found = formula(x, 0 * x)
        value, slope, *_ = found if isinstance(found, tuple) else (found.value, found.slope)
        return Reference(value, (slope,), terms and terms(x))

    return reference


def direction(x, ct):
    """`safe_normalize`."""
    found = swept.direction(x, 0 * x, ct)
    size = np.abs(ct).max(-1, keepdims=True) / euclid(x)
    return Reference(found.value, (found.slope,), slope_sizes=(size,))


def distance(x, y, ct):
    """`safe_distance`."""
    unit = (x - y) / euclid(x - y)
    return Reference(euclid(x - y)[:, 0], (unit, -unit))


def cosine(x, y, ct, formula=swept.cosine):
    """`safe_cosine_similarity`."""
    along_x, along_y = (formula(a, 0 * a, b) for a, b in ((x, y), (y, x)))
    u, v = x / euclid(x), y / euclid(y)
    sizes = tuple(np.abs(a).max(-1, keepdims=True) / euclid(b) for a, b in ((v, x), (u, y)))
    return Reference(along_x.value, (along_x.slope, along_y.slope), np.abs(u * v), sizes)


def correlation(x, y, ct):
    """`safe_correlation`."""
    away = (x - total(x) / ENTRIES, y - total(y) / ENTRIES)
    return cosine(*away, ct, swept.correlation)


def softmax(x, ct):
    """`safe_softmax`."""
    found = swept.softmax(x, 0 * x, ct)
    size = (found.value * ct).max(-1, keepdims=True)
    return Reference(found.value, (found.slope,), slope_sizes=(size,))


def log_softmax(x, ct):
    """`safe_log_softmax`."""
    found = swept.log_softmax(x, 0 * x, ct)
    return Reference(found.value, (found.slope,), np.abs(x), (ct.max(-1, keepdims=True),))


def cross_entropy(x, y, ct):
    """`safe_cross_entropy`."""
    found, (_, _, log, _) = swept.loss(y)(x, 0 * x), swept.shares(x, 0 * x)
    sizes = (y.max(-1, keepdims=True), np.abs(x).max(-1, keepdims=True))
    return Reference(found.value, (found.slope, log - x), np.abs(y * x), sizes)


def sums(x, ct):
    """`nansum`."""
    kept = ~np.isnan(x)
    inside = np.where(kept, x, 0)
    return Reference(total(inside)[:, 0], (wide(kept),), np.abs(inside))


def means(x, ct):
    """`nanmean`."""
    value, (kept,), terms, *_ = sums(x, ct)
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


def running_logs(x, ct):
    """`safe_logcumsumexp`."""
    logs = np.logaddexp.accumulate(x, -1)
    within = np.exp(np.where(np.tri(ENTRIES), x[:, None, :] - logs[:, :, None], -np.inf))
    slope = (ct[:, :, None] * within).sum(-2)
    return Reference(logs, (slope,), np.abs(x))


def quantiles(q):
    """Return a formula: `nanquantile`, by the two entries beside a place."""

    def formula(x, ct):
        place = q * ((~np.isnan(x)).sum(-1, keepdims=True) - 1)
        order = np.argsort(np.argsort(x, -1), -1)
        weight = wide(np.maximum(1 - np.abs(order - place), 0))
        terms = np.where(weight > 0, np.nan_to_num(x), 0)
        return Reference(total(weight * terms)[:, 0], (weight,), np.abs(terms))

    return formula


def divergence(p, q, ct):
    """`safe_kl_divergence`."""
    logs = log_ratio(p, q)
    sizes = tuple(x.max(-1, keepdims=True) for x in (1 + np.abs(logs), p / q))
    return Reference(total(p * logs)[:, 0], (logs + 1, -p / q), np.abs(p * logs), sizes)


def scores(x, ct):
    """`safe_standardize`."""
    found, (deviation, *_) = swept.scores(x, 0 * x, ct), swept.std(x, 0 * x)
    size = np.abs(ct).max(-1, keepdims=True) / deviation[:, None]
    return Reference(found.value, (found.slope,), slope_sizes=(size,))


def clipped(x, most, ct):
    """`safe_clip_by_norm`."""
    unit, (turned,), _, (size,), _ = direction(x, ct)
    out = euclid(x) > most
    slopes = (np.where(out, most * turned, ct), np.where(out, total(unit * ct), 0))
    sizes = (np.where(out, most * size, ct.max(-1, keepdims=True)), np.abs(ct).max(-1)[:, None])
    return Reference(np.where(out, most * unit, x), slopes, slope_sizes=sizes)


def bump(x, ct):
    """`radial` of 1 / (1 + r**2)."""
    value = 1 / (1 + total(x * x))
    return Reference(value[:, 0], (-2 * x * value**2,))


def between(x, y):
    """Return the differences of all points, their lengths, and the directions."""
    away = x[:, :, None] - y[:, None]
    lengths = np.sqrt((away**2).sum(-1))
    return lengths, away / lengths[..., None]


def distances(x, y, ct):
    """`safe_cdist`."""
    lengths, units = between(x, y)
    terms = ct[..., None] * units
    sizes = tuple(np.abs(terms).max((axis, 3))[..., None] for axis in (2, 1))
    return Reference(lengths, (terms.sum(2), -terms.sum(1)), None, sizes, lengths)


def pairs_of_points(x, ct):
    """`safe_pdist`, of three points: the pairs (0, 1), (0, 2) and (1, 2)."""
    lengths, units = between(x, x + 0 * x[:, :1])
    a, b, c = (ct[:, k, None] * units[:, i, j] for k, (i, j) in enumerate(FIRST_AND_SECOND))
    slope = np.stack([a + b, c - a, -b - c], 1)
    value = np.stack([lengths[:, i, j] for i, j in FIRST_AND_SECOND], 1)
    return Reference(value, (slope,), None, (np.ones((1, 1, 1)),), value)


FIRST_AND_SECOND = ((0, 1), (0, 2), (1, 2))


def attention(query, key, value, ct):
    """`safe_attention`: with one size for all numbers of an example."""
    scale = 1 / np.sqrt(wide(query.shape[-1]))
    logits = scale * query @ key.mT
    weights, *_ = swept.shares(logits, 0 * logits)
    down = ct @ value.mT
    back = weights * (down - total(weights * down))
    # What the logits and what comes back are sums of.
    logits = scale * np.abs(query) @ np.abs(key).mT
    along = weights * (np.abs(ct) @ np.abs(value).mT)
    blur = 1 + logits.max((1, 2), keepdims=True)
    terms = (along @ np.abs(key), along.mT @ np.abs(query), weights.mT @ np.abs(ct))
    pairs = zip((scale, scale, 1), terms, strict=True)
    sizes = tuple((blur * c * t).max((1, 2), keepdims=True) for c, t in pairs)
    size = (blur * (weights @ np.abs(value))).max((1, 2), keepdims=True)
    slopes = (scale * back @ key, scale * back.mT @ query, weights.mT @ ct)
    return Reference(weights @ value, slopes, None, sizes, size)


def interpolated(x, knots, values, ct):
    """`safe_interp`, of one x in each interval, and one beyond the last knot."""
    width, rise = np.diff(knots), np.diff(values)
    part = (x[:-1] - knots[:-1]) / width
    slope = np.append(rise / width, 0)
    left, right = np.append(ct[:-1] * (1 - part), ct[-1]), np.append(0, ct[:-1] * part)
    far = np.append(0, -slope[:-1] * right[1:]), np.append(-slope[:-1] * left[:-1], 0)
    value = np.append(values[:-1] + rise * part, values[-1])
    # One less the part of a width has the digits of 1.
    steep = np.maximum(np.abs(slope), np.append(0, np.abs(slope[:-1]))) * ct.max()
    sizes = (np.abs(ct * slope), steep, ct + np.append(0, ct[:-1]))
    pair = np.append(np.maximum(np.abs(values[:-1]), np.abs(values[1:])), np.abs(values[-1]))
    return Reference(value, (ct * slope, sum(far), left + right), None, sizes, pair)


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


def two_of_middle_size(dtype):
    """Return those, and beside each another one."""
    (x,) = of_middle_size(dtype)
    return x, np.roll(x, 1, axis=0)


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


def two_distributions(dtype):
    """Return probabilities, and others, some of which are nearly the same."""
    p, q = random(11).dirichlet(np.ones(ENTRIES), (2, COUNT))
    part = 2 ** random(12).uniform(-FORMATS[dtype].bits, 0, (COUNT, 1))
    return rounded(p, dtype), rounded(p + part * (q - p), dtype)


def with_bounds(dtype):
    """Return slices of every size, and the lengths that they are clipped to."""
    (x,) = of_every_size(dtype)
    ratio = 2 ** random(13).uniform(-2, 2, (COUNT, 1))
    return x, rounded((euclid(wide(x)) * ratio).astype(float), dtype)


def points_of(dtype, number, seed):
    """Return points in space, some of them close to each other, in groups of one size."""
    form = FORMATS[dtype]
    close = 2 ** random(seed).uniform(2 - form.bits, 0, (COUNT, 1, 1))
    middle = random(14).normal(size=(COUNT, 1, number))
    x = middle + close * random(seed + 1).normal(size=(COUNT, number, number))
    return rounded(x * sizes(dtype)[:, None], dtype)


def some_points(dtype):
    """Return three points of three coordinates."""
    return (points_of(dtype, 3, 15),)


def two_sets(dtype):
    """Return four points of four coordinates, and four others."""
    return points_of(dtype, 4, 17), points_of(dtype, 4, 19)


def heads(dtype):
    """Return four queries, keys and values, whose logits have spreads from 0.01 to 10."""
    spread = 10 ** random(21).uniform(-1, 0.5, (2, COUNT, 1, 1))
    query, key, value = random(22).normal(size=(3, COUNT, 4, 4))
    return tuple(rounded(x, dtype) for x in (query * spread[0], key * spread[1], value))


def knots(dtype):
    """Return knots of all sizes, values there, and a number in each interval."""
    form = FORMATS[dtype]
    least = form.least + form.bits + 4
    size = 2 ** random(23).uniform(least / 2, form.most / 2 - 2, 2 * COUNT)
    places = np.unique(rounded(size * random(24).choice([-1, 1], 2 * COUNT), dtype))
    places = places[::2]  # a number fits between two of them
    values = np.abs(places) * random(25).normal(size=len(places))
    x = places + np.append(np.diff(places), 1) * random(26).uniform(size=len(places))
    inside = np.clip(rounded(x, dtype), places, np.append(places[1:], np.inf))
    inside[:-1] = np.where(inside[:-1] == places[1:], places[:-1], inside[:-1])
    inside[-1] = 2 * np.abs(places).max()
    return inside, places, rounded(values, dtype)


# Of each: points, and the exact one.
SLICES = {
    "safe_norm": (of_every_size, by(swept.norm_of(2))),
    "squared_norm": (of_middle_size, by(swept.square)),
    "safe_normalize": (of_every_size, direction),
    "safe_distance": (two_slices, distance),
    "safe_cosine_similarity": (two_slices, cosine),
    "safe_correlation": (two_of_middle_size, correlation),
    "safe_rms": (of_every_size, by(swept.rms)),
    "safe_softmax": (logits, softmax),
    "safe_log_softmax": (logits, log_softmax),
    "safe_logsumexp": (logits, by(swept.log_sum, np.abs)),
    "safe_logmeanexp": (logits, by(partial(swept.log_sum, mean=True), np.abs)),
    "safe_cross_entropy": (logits_and_labels, cross_entropy),
    "safe_kl_divergence": (two_distributions, divergence),
    "safe_logcumsumexp": (logits, running_logs),
    "safe_standardize": (of_middle_size, scores),
    "safe_clip_by_norm": (with_bounds, clipped),
    "radial": (of_middle_size, bump),
    "safe_cdist": (two_sets, distances),
    "safe_pdist": (some_points, pairs_of_points),
    "safe_attention": (heads, attention),
    "safe_interp": (knots, interpolated),
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
    "nanquantile": (with_holes, quantiles(QUANTILE)),
    "nanpercentile": (with_holes, quantiles(QUANTILE)),
    "nancumsum": (with_holes, running_sums),
    "nancumprod": (with_holes, running_products),
}
# What has the shape of its first argument, and so a cotangent for each entry.
SHAPED = ("safe_normalize", "safe_softmax", "safe_log_softmax", "nancumsum", "nancumprod")
SHAPED += ("safe_logcumsumexp", "safe_standardize", "safe_clip_by_norm", "safe_cdist")
SHAPED += ("safe_attention", "safe_interp")


def along_last(f):
    """Return a function of slices along the last axis."""
    return lambda *args: f(*args, axis=-1)


# How those are called that take no axis, or another argument.
CALLED = {
    **dict.fromkeys(("safe_cdist", "safe_pdist", "safe_attention", "safe_interp"), lambda f: f),
    "nanquantile": lambda f: lambda x: f(x, QUANTILE, axis=-1),
    "nanpercentile": lambda f: lambda x: f(x, 100 * QUANTILE, axis=-1),
    "radial": lambda f: lambda x: f(lambda r: 1 / (1 + r * r), x),
}
