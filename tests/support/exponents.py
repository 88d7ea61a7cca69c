"""
Numbers of every exponent of a dtype, and how far a result is from the exact one.

The exact numbers are computed in extended precision, which has 64 bits and exponents up to 16383: a
number of float64 is in its range, and so are its square and its cube.
"""

import os
from typing import NamedTuple

import numpy as np

EXHAUSTIVE = os.environ.get("SAFEOPS_EXHAUSTIVE") == "1"
DENSITY = 4 if EXHAUSTIVE else 1  # how many times the points of the default run
Wide = np.longdouble
# Where long double is float64, a gradient of float64 has no reference.
EXTENDED = np.finfo(Wide).nmant > 60


class Format(NamedTuple):
    """The numbers of a dtype: bits of the significand, and the exponents of normal numbers."""

    bits: int
    least: int
    most: int

    @property
    def eps(self):
        """The distance from 1 to the next number."""
        return 2.0 ** (1 - self.bits)

    @property
    def normal(self):
        """The smallest normal number."""
        return 2.0**self.least

    @property
    def max(self):
        """The largest number."""
        return (2.0 - self.eps) * 2.0**self.most

    @property
    def flushed(self):
        """
        The size below which a number may count as 0.

        JAX and TensorFlow flush the subnormal numbers of all dtypes but float16.
        """
        return self.normal * self.eps if self.bits == 11 else self.normal


FORMATS = {
    "float16": Format(11, -14, 15),
    "bfloat16": Format(8, -126, 127),
    "float32": Format(24, -126, 127),
    "float64": Format(53, -1022, 1023),
}


def dense(mantissas):
    """Return mantissas, with more between them in the exhaustive run."""
    more = np.concatenate([np.asarray(mantissas) + k / 64 for k in range(DENSITY)])
    return np.where(more < 2, more, more - 1)


MANTISSAS, FEW = dense((1.0, 1.3, 1.9)), dense((1.0, 1.5))


def positive(dtype, mantissas=MANTISSAS, step=1):
    """Return numbers of every `step`-th exponent, the subnormal ones and the ends among them."""
    form = FORMATS[dtype]
    exponents = np.arange(form.least - form.bits + 1, form.most + 1, step)
    numbers = np.ldexp(np.array(mantissas)[:, None], exponents).ravel()
    ends = [0.0, form.normal * form.eps, form.normal * (1 - form.eps), form.normal]
    ends += [form.normal * (1 + form.eps), form.max / 2, form.max * (1 - form.eps), form.max]
    return np.unique(rounded(np.concatenate([numbers, ends]), dtype))


def signed(dtype, **options):
    """Return those numbers and their negatives, both zeros among them."""
    numbers = positive(dtype, **options)
    return np.concatenate([-numbers[::-1], numbers])


def around(centre, dtype, mantissas=FEW):
    """Return the numbers at every distance from a centre that the dtype can tell."""
    form = FORMATS[dtype]
    away = np.ldexp(np.array(mantissas)[:, None], -np.arange(1, form.bits + 1)).ravel()
    return np.unique(rounded(np.concatenate([centre - away, centre + away]), dtype))


def rounded(numbers, dtype):
    """Return the nearest numbers of a dtype, finite ones, as float64."""
    form = FORMATS[dtype]
    numbers = np.asarray(numbers, dtype=np.float64)
    if form.bits == 53:
        return np.clip(numbers, -form.max, form.max)
    _, exponent = np.frexp(numbers)
    places = form.bits - np.maximum(exponent, form.least + 1)
    nearest = np.ldexp(np.rint(np.ldexp(numbers, places)), -places)
    return np.clip(nearest, -form.max, form.max)


def pairs(dtype, mantissas=(1.0, 1.7)):
    """Return two arguments: a grid of exponents with every sign, and pairs that nearly agree."""
    form, points = FORMATS[dtype], 40 * round(DENSITY**0.5)  # along each of the two
    span = form.most - form.least + form.bits
    few = signed(dtype, mantissas=mantissas[:1], step=max(1, span // points))
    x, y = (a.ravel() for a in np.meshgrid(few, few * mantissas[1], indexing="ij"))
    along = signed(dtype, mantissas=mantissas[:1], step=max(1, span // (4 * points)))
    near = [(along, along * (1 + k * form.eps)) for k in (-1, 0, 1, 2, 1 / form.eps / 8)]
    near = [(along, -along), *near, *((b, a) for a, b in near)]
    x = np.concatenate([x, *(a for a, _ in near)])
    y = np.concatenate([y, *(b for _, b in near)])
    return rounded(x, dtype), rounded(y, dtype)


def wide(x):
    """Return an array in extended precision."""
    return np.asarray(x, dtype=Wide)


def ulps(got, exact, size, dtype, lost=2):
    """
    Return the errors in units in the last place of `size`, the terms that the result is made of.

    Beyond the largest number inf is right, and so is a number next to it. `lost` terms of the
    result may be flushed to 0.
    """
    form = FORMATS[dtype]
    got, exact, size = np.broadcast_arrays(wide(got), wide(exact), wide(size))
    with np.errstate(all="ignore"):
        # An infinite result counts as the number after the largest one.
        infinite = Wide(form.max) * (1 + Wide(form.eps))
        seen = np.clip(got, -infinite, infinite)
        aim = np.clip(exact, -infinite, infinite)
        error = np.maximum(np.abs(seen - aim) - lost * form.flushed, 0)
        _, exponent = np.frexp(np.maximum(np.minimum(size, infinite), form.normal))
        error = np.ldexp(error, form.bits - exponent)
    return np.where(np.isnan(got), np.inf, error).astype(float)


def flushed(x, dtype):
    """
    Return x, with a 0 of the same sign where JAX and TensorFlow may take x for 0.

    This includes the smallest normal number: times a 1 that is rounded down, it is subnormal.
    """
    form = FORMATS[dtype]
    bound = form.flushed * (1 if form.bits == 11 else 1 + 4 * form.eps)
    return np.where(np.abs(x) < bound, np.copysign(0.0, x), x)


@np.errstate(all="ignore")  # of infinities, and of numbers for which no claim is made
def assert_ulps(got, exact, most, dtype, *, size=None, also=(), lost=2, args=(), message=""):
    """
    Each result is within `most` units in the last place of the exact result, unless that is NaN.

    `also` are the exact results of flushed arguments: a result between them and the exact one is
    right.
    """
    exact = wide(exact)
    size = np.abs(exact) if size is None else size
    known = np.broadcast_to(~np.isnan(exact), np.shape(got))
    error = ulps(got, exact, size, dtype, lost)
    if also:
        # A subnormal number has few digits, and a function of it may lose some.
        low, high = np.fmin.reduce([exact, *also]), np.fmax.reduce([exact, *also])
        between = np.abs(got - low) + np.abs(got - high) <= 1.125 * (high - low)
        nearest = np.fmin.reduce([error, *(ulps(got, x, size, dtype, lost) for x in also)])
        error = np.where(between & (low < high), 0, nearest)
    wrong = known & ~(error <= most)
    if wrong.any():
        columns = (np.broadcast_to(a, wrong.shape)[wrong] for a in (*args, got, exact))
        rows = [[f"{float(x):.17g}" for x in row] for row in zip(*columns, strict=True)]
        worst = [rows[i] for i in np.argsort(-error[wrong], kind="stable")[:3]]
        shown = "; ".join(f"({', '.join(row[:-2])}): {row[-2]}, not {row[-1]}" for row in worst)
        off = f"{error[wrong].max():.3g} units off, where {most:g} are allowed"
        msg = f"{message} {dtype}: {wrong.sum()} of {known.sum()}, {off}: {shown}"
        raise AssertionError(msg)
    return known.sum(), error[known].max(initial=0.0)


TALLY = {}  # for each mode, dtype and order: how many numbers, the largest error, and of what


def count(kind, name, checked, worst):
    """Add to what a run has checked, which it prints when it ends."""
    total, most, where = TALLY.get(kind, (0, -1.0, ""))
    TALLY[kind] = (total + checked, *max((most, where), (worst, name)))


def counted():
    """Give the lines of a table of what was checked."""
    for kind, (total, worst, name) in TALLY.items():
        yield f"{' '.join(kind):45} {total:9,} numbers, at most {worst:6.1f} units: {name}"
    yield f"{sum(total for total, *_ in TALLY.values()):,} numbers in all"
