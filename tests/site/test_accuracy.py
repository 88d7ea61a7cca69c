"""What the page of accuracy is made of: the references are exact, and the file is whole."""

import json
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest

from exponents import EXTENDED

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import accuracy_slices  # noqa: E402  (after the path)

import formulas  # noqa: E402  (after the path)
import special_formulas  # noqa: E402  (after the path)

ROWS = json.loads((ROOT / "benchmarks/accuracy.json").read_text())["table"]


def kept(x):
    """Return the numbers that are no NaN."""
    return [t for t in x if not mpmath.isnan(t)]


def mean(x):
    """Return the mean."""
    return mpmath.fsum(kept(x)) / len(kept(x))


def var(x):
    """Return the variance."""
    return mean([(t - mean(x)) ** 2 for t in kept(x)])


def norm(x):
    """Return the norm."""
    return mpmath.sqrt(mpmath.fsum(t * t for t in x))


def dot(x, y):
    """Return the product."""
    return mpmath.fsum(s * t for s, t in zip(x, y, strict=True))


def lse(x):
    """Return the logarithm of the sum of exponentials."""
    return mpmath.log(mpmath.fsum(map(mpmath.exp, x)))


def running(f):
    """Return `f` of the first entries, of one more each."""
    return lambda x: [f(kept(x[: i + 1])) for i in range(len(x))]


REDUCED = {
    "sum": lambda x: mpmath.fsum(kept(x)),
    "prod": lambda x: mpmath.fprod(kept(x)),
    "mean": mean,
    "var": var,
    "std": lambda x: mpmath.sqrt(var(x)),
    "max": lambda x: max(kept(x)),
    "min": lambda x: min(kept(x)),
}
EXACT = {f"{kind}{name}": f for name, f in REDUCED.items() for kind in ("safe_", "nan")} | {
    "safe_norm": norm,
    "squared_norm": lambda x: dot(x, x),
    "safe_normalize": lambda x: [t / norm(x) for t in x],
    "safe_distance": lambda x, y: norm([s - t for s, t in zip(x, y, strict=True)]),
    "safe_cosine_similarity": lambda x, y: dot(x, y) / norm(x) / norm(y),
    "safe_rms": lambda x: norm(x) / mpmath.sqrt(len(x)),
    "safe_softmax": lambda x: [mpmath.exp(t - lse(x)) for t in x],
    "safe_log_softmax": lambda x: [t - lse(x) for t in x],
    "safe_logsumexp": lse,
    "safe_logmeanexp": lambda x: lse(x) - mpmath.log(len(x)),
    "safe_cross_entropy": lambda x, y: -dot(y, [t - lse(x) for t in x]),
    "nanmedian": lambda x: mean(sorted(kept(x))[(len(kept(x)) - 1) // 2 : len(kept(x)) // 2 + 1]),
    "nancumsum": running(mpmath.fsum),
    "nancumprod": running(mpmath.fprod),
}


@pytest.mark.only("numpy")
@pytest.mark.skipif(not EXTENDED, reason="long double is float64 here")
@pytest.mark.parametrize("name", accuracy_slices.SLICES)
def test_references_of_slices_are_exact(name):
    """Value and slopes of some slices are those of mpmath, to more digits than float64 has."""
    points, formula = accuracy_slices.SLICES[name]
    args = [x[:: len(x) // 3][:3] for x in points("float64")]
    shaped = name in accuracy_slices.SHAPED
    weights = np.arange(1.0, 9.0) if shaped else np.ones(1)
    cotangent = np.broadcast_to(weights, args[0].shape) if shaped else np.ones(len(args[0]))

    found = formula(*map(np.asarray, (a.astype(np.longdouble) for a in args)), cotangent)

    for i in range(len(args[0])):
        value, slopes = of_mpmath(EXACT[name], [a[i] for a in args], weights)
        assert_digits(np.atleast_1d(found.value[i]), value)
        for slope, exact in zip(found.slopes, slopes, strict=True):
            assert_digits(slope[i], exact)


def of_mpmath(f, args, weights):
    """Return the value, and the slopes of its sum with weights, by differences of 200 digits."""
    with mpmath.workdps(400):
        x = [[mpmath.mpf(float(t)) for t in a] for a in args]

        def total(x):
            return mpmath.fsum(w * v for w, v in zip(weights, np.atleast_1d(f(*x)), strict=True))

        slopes = [[slope_of(total, x, k, i) for i in range(len(a))] for k, a in enumerate(x)]
        return np.atleast_1d(f(*x)), slopes


def slope_of(total, x, k, i):
    """Return the slope for entry i of argument k, 0 of NaN."""
    here = x[k][i]
    if mpmath.isnan(here):
        return mpmath.mpf(0)
    step = mpmath.mpf(10) ** -60 * max(abs(t) for t in kept(x[k]))
    ends = (
        total([[*a[:i], here + s, *a[i + 1 :]] if j == k else a for j, a in enumerate(x)])
        for s in (step, -step)
    )
    return (next(ends) - next(ends)) / (2 * step)


def assert_digits(got, exact):
    """Each number has 17 digits of the largest one."""
    with mpmath.workdps(60):
        exact = [mpmath.mpf(t) for t in exact]
        size = max(abs(t) for t in exact)
        for g, e in zip(got, exact, strict=True):
            high = float(g)
            number = mpmath.mpf(high) + mpmath.mpf(float(g - np.longdouble(high)))
            assert abs(number - e) <= size * mpmath.mpf(10) ** -16.5


@pytest.mark.only("numpy")
def test_assert_digits_can_fail():
    """It tells neighbours of float64 apart."""
    with pytest.raises(AssertionError):
        assert_digits(np.ones(1), [mpmath.mpf(1 + 2.0**-52)])


@pytest.mark.only("numpy")
def test_the_file_has_every_function():
    """Each framework has each function of the tables, with slopes where it has derivatives."""
    names = {row.name for row in (*formulas.ROWS, *special_formulas.ROWS)}
    names |= accuracy_slices.SLICES.keys()

    for framework, dtypes in ROWS.items():
        for rows in dtypes.values():
            assert rows.keys() == names
            assert all(("slope" in row) is (framework != "numpy") for row in rows.values())


@pytest.mark.only("numpy")
def test_no_value_or_slope_of_ours_is_lost_where_the_plain_one_is_not():
    """Where the plain function keeps its digits, at every number, ours has at most 5 units more."""
    cells = [
        (framework, dtype, name, kind, row[kind]["ours"][3], row[kind]["plain"][3])
        for framework, dtypes in ROWS.items()
        for dtype, rows in dtypes.items()
        for name, row in rows.items()
        for kind in ("value", "slope")
        if "plain" in row.get(kind, {})
    ]

    worse = [cell for cell in cells if cell[5] is not None and not fits(*cell[4:])]

    assert len(cells) > 1000
    assert not worse


def fits(ours, plain):
    """Whether an error is no more than five units above another, or a half of it."""
    return ours is not None and ours <= max(plain + 5.1, 1.5 * plain)
