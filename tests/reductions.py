"""The case table of reductions, of which `slices` explains the columns."""

from math import inf, nan

import mpmath

import safeops as so
from slices import CONSTANT, NONE, PART, Row, Slice, V

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
            unsupported=CONSTANT,
        ),
        Row(
            var_.__name__,
            on_slices(var_),
            plain_var,
            var,
            (*pieces, Slice(((0.1, 0.1, 0.1),))),
            unsupported=CONSTANT,
        ),
        Row(
            f"{var_.__name__}, correction=1",
            on_slices(var_, correction=1),
            plain_var,
            lambda x: var(x, 1),
            (*pieces, Slice(((0.1, nan, nan),), (True, False, False), nan)),
            unsupported=CONSTANT,
        ),
        Row(
            std_.__name__,
            on_slices(std_),
            lambda xp, x, where: xp.sqrt(plain_var(xp, x, where)),
            lambda x: mpmath.sqrt(var(x)),
            (*pieces, Slice(((0.1, 0.1, 0.1),), flat=0.0), Slice(((0.1, 0.1, nan),), PART, 0.0)),
            unsupported=CONSTANT,
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


ROWS = (
    *rows(
        so.safe_sum, so.safe_mean, so.safe_var, so.safe_std, so.safe_prod, so.safe_max, so.safe_min
    ),
    *rows(so.nansum, so.nanmean, so.nanvar, so.nanstd, so.nanprod, so.nanmax, so.nanmin),
)
