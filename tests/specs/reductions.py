"""The specifications of the operations in `_ops/reductions.py`, and of their `nan*` twins."""

from math import inf, nan

import mpmath

import safeops as so
import slice_formulas as swept
from derivatives import SECOND
from points import OwnSpec
from slice_formulas import Scaled, Sweep
from slices import NONE, PART, WEIGHTS, Row, Slice, SliceSpec, V

GAP = (True, False, True)


def var(x, correction=0):
    """Return the variance of numbers."""
    mean = sum(x) / len(x)
    return sum((t - mean) ** 2 for t in x) / (len(x) - correction)


def mean(xp, x, where):
    """Return the mean of the entries kept, as people write it."""
    return xp.sum(xp.where(where, x, 0.0), axis=-1) / xp.sum(xp.where(where, 1.0, 0.0 * x), axis=-1)


def plain_var(xp, x, where):
    """Return the variance of the entries kept, as people write it."""
    away = xp.where(where, x - mean(xp, x, where)[..., None], 0.0)
    return mean(xp, away * away, where)


def rows(sum_, mean_, var_, std_, prod_, max_, min_):
    """Return the rows of a family: safe_* with a mask, or nan* with NaN where the mask is False."""
    planted = (
        Slice((V,)),
        Slice(((3.0, 4.0, nan),), PART),
        Slice(((3.0, nan, -1.0),), GAP),
        Slice(((nan, nan, nan),), NONE, nan),
    )
    masked = (*planted, Slice(((2.0, inf, -1.0),), GAP), Slice(((1e30, 1e38, -inf),), NONE, nan))
    pieces = masked if sum_ is so.safe_sum else planted
    empty = [p._replace(flat=0.0) if p.flat is not None else p for p in pieces]
    ones = [p._replace(flat=1.0) if p.flat is not None else p for p in pieces]

    def on_slices(op, **more):
        if sum_ is so.safe_sum:
            return lambda x, where: op(x, axis=-1, where=where, **more)
        return lambda x, _: op(x, axis=-1, **more)

    return (
        Row(
            sum_.__name__,
            on_slices(sum_),
            lambda xp, x, where: xp.sum(x * xp.where(where, 1.0, 0.0 * x), axis=-1),
            sum,
            tuple(empty),
        ),
        Row(
            prod_.__name__,
            on_slices(prod_),
            lambda xp, x, where: xp.prod(x * xp.where(where, 1.0, 0.0 * x), axis=-1),
            mpmath.fprod,
            (*ones, Slice(((0.0, 4.0, 0.0),)), Slice(((0.0, 4.0, nan),), PART)),
        ),
        Row(
            mean_.__name__,
            on_slices(mean_),
            mean,
            lambda x: sum(x) / len(x),
            pieces,
        ),
        Row(
            var_.__name__,
            on_slices(var_),
            plain_var,
            var,
            (*pieces, Slice(((0.1, 0.1, 0.1),))),
        ),
        Row(
            f"{var_.__name__}, correction=1",
            on_slices(var_, correction=1),
            plain_var,
            lambda x: var(x, 1),
            (*pieces, Slice(((0.1, nan, nan),), (True, False, False), nan)),
        ),
        Row(
            std_.__name__,
            on_slices(std_),
            lambda xp, x, where: xp.sqrt(plain_var(xp, x, where)),
            lambda x: mpmath.sqrt(var(x)),
            (*pieces, Slice(((0.1, 0.1, 0.1),), flat=0.0), Slice(((0.1, 0.1, nan),), PART, 0.0)),
        ),
        Row(
            max_.__name__,
            on_slices(max_),
            lambda xp, x, where: xp.max(xp.where(where, x, -inf), axis=-1),
            max,
            (*pieces, Slice(((-inf, -inf, nan),), PART, -inf)),
        ),
        Row(
            min_.__name__,
            on_slices(min_),
            lambda xp, x, where: xp.min(xp.where(where, x, inf), axis=-1),
            min,
            (*pieces, Slice(((inf, inf, nan),), PART, inf)),
        ),
    )


def quantile(x, q):
    """Return the quantile of numbers by linear interpolation, at the place q * (n - 1)."""
    x, place = sorted(x), q * (len(x) - 1)
    low = int(place)
    return x[low] if low == place else x[low] + (x[low + 1] - x[low]) * (place - low)


def plain_quantile(xp, x, _):
    """Return the middle one of three entries, absent or not, as people write it."""
    return xp.sort(x, axis=-1)[..., 1]


def weighted(x):
    """Return one number for three running sums: a weighted sum."""
    return sum(w * x[..., i] for i, w in enumerate(WEIGHTS))


def weighted_numbers(*values):
    """Return the weighted sum of the numbers at three places."""
    return sum(w * y for w, y in zip(WEIGHTS, values, strict=True))


def plain_running(xp, x, where):
    """Return the running sum of what a multiplied mask leaves, the last one for short."""
    return xp.sum(x * xp.where(where, 1.0, 0.0 * x), axis=-1)


NANS = (nan, nan, nan)
SPARSE = (
    Slice((V,)),
    Slice(((3.0, 4.0, nan),), PART),
    Slice(((nan, 5.0, -1.0),), (False, True, True)),
    Slice(((nan, 7.0, nan),), (False, True, False)),
    Slice((NANS,), NONE, nan),
)
QUANTILES = (
    Row(
        "nanmedian",
        lambda x, _: so.nanmedian(x, axis=-1),
        plain_quantile,
        lambda x: quantile(x, 0.5),
        SPARSE,
    ),
    Row(
        "nanquantile",
        lambda x, _: so.nanquantile(x, 0.25, axis=-1, method="hazen"),
        plain_quantile,
        # The first of n is at 1 / (2 n), below which there is no other.
        lambda x: quantile(x, max(len(x) * 0.25 - 0.5, 0.0) / max(len(x) - 1, 1)),
        SPARSE,
    ),
    Row(
        "nanpercentile",
        lambda x, _: so.nanpercentile(x, 75, axis=-1),
        plain_quantile,
        lambda x: quantile(x, 0.75),
        SPARSE,
    ),
)


SLOW = {
    ("tensorflow", "unknown-shape"): (
        SECOND,
        "31 doublings, each differentiated twice, trace for 20 s; `safe_prod` is made of the same",
    ),
}


def running(op, formula, empty):
    """Return the row of running sums or products, which do not change at an absent entry."""
    return Row(
        op.__name__,
        lambda x, _: weighted(op(x, axis=-1)),
        plain_running,
        lambda x: weighted_numbers(formula(x[:1]), formula(x[: len(x) - 1]), formula(x)),
        (
            Slice((V,)),
            Slice(((3.0, nan, -1.0),), GAP),
            Slice(((0.0, 4.0, 0.0),)),
            Slice((NANS,), NONE, empty * sum(WEIGHTS)),
        ),
        unsupported=SLOW,
    )


def options(name, formula, naive, slices, **more):
    """Return the row of an operation with options."""
    said = ", ".join(f"{key}={value}" for key, value in more.items())
    return Row(
        f"{name}, {said}",
        lambda x, where: getattr(so, name)(x, axis=-1, where=where, **more),
        naive,
        formula,
        slices,
    )


def kept_and(empty):
    """Return slices with entries left out; the last slice keeps none, and has the value `empty`."""
    return (
        Slice((V,)),
        Slice(((3.0, 4.0, nan),), PART),
        Slice(((2.0, inf, -1.0),), GAP),
        Slice(((1e30, nan, -inf),), NONE, empty),
    )


OPTIONS = (
    options(
        "safe_max",
        lambda x: max(*x, 3.5),
        lambda xp, x, where: xp.max(x * xp.where(where, 1.0, 0.0 * x), axis=-1),
        kept_and(3.5),
        initial=3.5,
    ),
    options("safe_mean", lambda x: sum(x) / len(x), mean, kept_and(-7.0), fill_value=-7.0),
)

ROWS = (
    *rows(
        so.safe_sum, so.safe_mean, so.safe_var, so.safe_std, so.safe_prod, so.safe_max, so.safe_min
    ),
    *rows(so.nansum, so.nanmean, so.nanvar, so.nanstd, so.nanprod, so.nanmax, so.nanmin),
    *QUANTILES,
    running(so.nancumsum, sum, empty=0.0),
    running(so.nancumprod, mpmath.fprod, empty=1.0),
    *OPTIONS,
)
SWEEPS = {
    "safe_sum": (Sweep(swept.total, curved=False, most=(4.0, 1)),),
    "nansum": (Sweep(swept.total, curved=False, most=(4.0, 1)),),
    "nancumsum": (Sweep(swept.cumulative, curved=False, most=(4.0, 1)),),
    "safe_prod": (Sweep(swept.product, most=(1.0, 4)),),
    "nanprod": (Sweep(swept.product, most=(1.0, 4)),),
    "safe_var": (Sweep(swept.variance, least=2.0**12, most=(8.0, 2)),),
    "nanvar": (Sweep(swept.variance, least=2.0**12, most=(8.0, 2)),),
}
MEAN, MAX = (Scaled(swept.mean, room=(16.0, 4.0)),), (Scaled(swept.largest),)
STD = (Scaled(swept.std, curved=True, room=(2.0**12, 8.0)),)
SCALED = {"safe_mean": MEAN, "nanmean": MEAN, "safe_std": STD, "nanstd": STD}
SCALED |= {"safe_max": MAX, "nanmax": MAX}
SYNONYMS = {"safe_std": "standard deviation", "safe_var": "variance"}


def spec(name):
    """Return the specification of an operation."""
    own = tuple(row for row in ROWS if row.name.split(",")[0] == name)
    over = SWEEPS.get(name, ()), SCALED.get(name, ())
    return SliceSpec(name, own, *over, reduction=True, synonyms=SYNONYMS.get(name, ""))


INDICES = ("safe_argmax", "safe_argmin", "nanargmax", "nanargmin")  # which have no derivatives
EVERY = (
    *map(spec, dict.fromkeys(row.name.split(",")[0] for row in ROWS)),
    *map(OwnSpec, INDICES),
)
SPECS = tuple(spec for spec in EVERY if spec.name.startswith("safe_"))
