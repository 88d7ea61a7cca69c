"""What the page of accuracy is made of: the references are exact, and the file is whole."""

import json
import sys
from functools import partial
from itertools import combinations
from pathlib import Path

import mpmath
import numpy as np
import pytest

from exponents import EXTENDED, FORMATS

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / folder) for folder in ("benchmarks", "docs")]

import accuracy  # noqa: E402  (after the path)
import accuracy_removable  # noqa: E402  (after the path)
import accuracy_slices  # noqa: E402  (after the path)
from accuracy_rows import ABSENT  # noqa: E402  (after the path)
from plain import QUANTILE  # noqa: E402  (after the path)

import safeops  # noqa: E402  (after the path)
from specs import smooth  # noqa: E402  (after the path)

ROWS = json.loads((ROOT / "docs/accuracy.json").read_text())["table"]


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


def rel_entr(p, q):
    """Return a term of a divergence."""
    return p * mpmath.log(p / q)


def between(x, q):
    """Return the number at a part of the way through sorted ones."""
    place = q * (len(x) - 1)
    i = min(int(place), len(x) - 2)
    return x[i] + (place - i) * (x[i + 1] - x[i])


def rows(x, n):
    """Return the rows of a matrix of n columns."""
    return [x[i : i + n] for i in range(0, len(x), n)]


def away(x, y):
    """Return the difference."""
    return [s - t for s, t in zip(x, y, strict=True)]


def attention(queries, keys, values):
    """Return the sums of values, for each query the shares that softmax gives them."""
    found = []
    for query in queries:
        logits = [dot(query, key) / mpmath.sqrt(len(query)) for key in keys]
        shares = [mpmath.exp(t - lse(logits)) for t in logits]
        found += [dot(shares, column) for column in zip(*values, strict=True)]
    return found


def less_mean(x):
    """Return numbers less their mean."""
    return [t - mean(x) for t in x]


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
    "safe_distance": lambda x, y: norm(away(x, y)),
    "safe_cosine_similarity": lambda x, y: dot(x, y) / norm(x) / norm(y),
    "safe_correlation": lambda x, y: (
        dot(less_mean(x), less_mean(y)) / norm(less_mean(x)) / norm(less_mean(y))
    ),
    "safe_rms": lambda x: norm(x) / mpmath.sqrt(len(x)),
    "safe_softmax": lambda x: [mpmath.exp(t - lse(x)) for t in x],
    "safe_log_softmax": lambda x: [t - lse(x) for t in x],
    "safe_logsumexp": lse,
    "safe_logmeanexp": lambda x: lse(x) - mpmath.log(len(x)),
    "safe_cross_entropy": lambda x, y: -dot(y, [t - lse(x) for t in x]),
    "nanmedian": lambda x: mean(sorted(kept(x))[(len(kept(x)) - 1) // 2 : len(kept(x)) // 2 + 1]),
    "nancumsum": running(mpmath.fsum),
    "nancumprod": running(mpmath.fprod),
    "nanquantile": lambda x: between(sorted(kept(x)), QUANTILE),
    "nanpercentile": lambda x: between(sorted(kept(x)), QUANTILE),
    "safe_logcumsumexp": running(lse),
    "safe_kl_divergence": lambda p, q: dot(
        p, [mpmath.log(s / t) for s, t in zip(p, q, strict=True)]
    ),
    "safe_standardize": lambda x: [(t - mean(x)) / mpmath.sqrt(var(x)) for t in x],
    "safe_clip_by_norm": lambda x, most: [t * min(1, most[0] / norm(x)) for t in x],
    "radial": lambda x: 1 / (1 + dot(x, x)),
    "safe_cdist": lambda x, y: [norm(away(s, t)) for s in rows(x, 4) for t in rows(y, 4)],
    "safe_pdist": lambda x: [norm(away(s, t)) for s, t in combinations(rows(x, 3), 2)],
    "safe_attention": lambda *args: attention(*(rows(x, 4) for x in args)),
}


@pytest.mark.only("numpy")
@pytest.mark.skipif(not EXTENDED, reason="long double is float64 here")
@pytest.mark.parametrize("name", EXACT)
def test_references_of_slices_are_exact(name):
    """Value and slopes of some slices are those of mpmath, to more digits than float64 has."""
    points, formula = accuracy_slices.SLICES[name]
    args = [x[:: len(x) // 3][:3] for x in points("float64")]
    shaped = name in accuracy_slices.SHAPED
    shape = args[0].shape[1:] if shaped else args[0].shape[1:-1]
    weights = np.arange(1.0, 1 + np.prod(shape, dtype=int)).reshape(shape)
    cotangent = np.broadcast_to(weights, (len(args[0]), *shape))

    with np.errstate(all="ignore"):  # of what is not used
        found = formula(*map(np.asarray, (a.astype(np.longdouble) for a in args)), cotangent)

    for i in range(len(args[0])):
        value, slopes = of_mpmath(EXACT[name], [a[i].ravel() for a in args], weights.ravel())
        assert_digits(found.value[i].ravel(), value, 0 if found.terms is None else found.terms[i])
        for slope, exact in zip(found.slopes, slopes, strict=True):
            assert_digits(slope[i].ravel(), exact)


@pytest.mark.only("numpy")
@pytest.mark.skipif(not EXTENDED, reason="long double is float64 here")
def test_reference_of_interpolation_is_exact():
    """Value and slopes of all arguments are those of mpmath's closed form."""
    args = [np.asarray(x[-9:], np.longdouble) for x in accuracy_slices.knots("float64")]
    weights = np.arange(1.0, 10.0)

    found = accuracy_slices.interpolated(*args, weights.astype(np.longdouble))

    def lines(x, knots, values):
        ends = zip(x, knots, knots[1:], values, values[1:], strict=False)
        return [f + (t - k) / (m - k) * (g - f) for t, k, m, f, g in ends] + values[-1:]

    value, slopes = of_mpmath(lines, args, weights)
    assert_digits(found.value, value)
    for slope, exact in zip(found.slopes, slopes, strict=True):
        assert_digits(slope, exact)


@pytest.mark.only("numpy")
@pytest.mark.skipif(not EXTENDED, reason="long double is float64 here")
@pytest.mark.parametrize("name", accuracy_removable.ROWS)
def test_references_of_removable_singularities_are_exact(name):
    """Value and slopes at many numbers are those of mpmath, each to the digits of float64."""
    points, formula = accuracy_removable.ROWS[name]
    args = [x[::4001] for x in points("float64")]
    gamma = name.startswith("safe_gamma")
    if gamma:
        args = [x[::100] for x in points("float64")]

    with np.errstate(all="ignore"):  # of the branch that is not taken
        found = formula(FORMATS["float64"], *(x.astype(np.longdouble) for x in args))

    for i, point in enumerate(zip(*args, strict=True)):
        # Of other numbers the differences have no digits, nor has the number of two halves.
        if np.isfinite(found.value[i]) and all(
            1e-90 < abs(x) < 1e90 for x in (*point, found.value[i])
        ):
            value, slopes = of_mpmath(OF_POINT[name], [[x] for x in point], [1])
            assert_digits(found.value[i : i + 1], value)
            for slope, exact in zip(found.gradient[::-1], slopes[::-1], strict=not gamma):
                if 1e-290 < abs(exact[0]) < 1e290:
                    assert_digits(slope[i : i + 1], exact)


def at_point(f, *args):
    """Return what a formula of numbers gives for lists of one number."""
    return [f(*(x[0] for x in args))]


OF_POINT = {spec.name: partial(at_point, spec.mpmath) for spec in smooth.SPECS}
OF_POINT |= {
    "safe_gammainc": lambda a, x: [mpmath.gammainc(a[0], 0, x[0], regularized=True)],
    "safe_gammaincc": lambda a, x: [mpmath.gammainc(a[0], x[0], regularized=True)],
}


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


def assert_digits(got, exact, terms=0):
    """Each number has 17 digits of the largest one, or of the largest term."""
    with mpmath.workdps(60):
        exact = [mpmath.mpf(t) for t in exact]
        size = max(mpmath.mpf(float(np.max(terms))), *(abs(t) for t in exact))
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
    """Each public operation has a row, with slopes where there are derivatives, or a reason."""
    absent = {name for names in ABSENT for name in names}
    names = {name for name in safeops.__all__ if callable(getattr(safeops, name))} - absent

    for framework, dtypes in ROWS.items():
        for rows in dtypes.values():
            assert rows.keys() == names, f"nox -s accuracy: {rows.keys() ^ names}"
            assert all(("slope" in row) is (framework != "numpy") for row in rows.values())


@pytest.mark.only("numpy")
def test_a_selection_takes_the_place_of_its_rows(tmp_path):
    """What is measured of one function replaces its rows, and leaves those of others."""
    file, new = tmp_path / "rows.json", {"numpy": {"float32": {"safe_norm": 2}}}
    rows = {"safe_softmax": 1, "safe_norm": 1, "no longer there": 1}
    file.write_text(json.dumps({"versions": {"numpy": "2"}, "table": {"numpy": {"float32": rows}}}))

    found = accuracy.beside_others(file, {"numpy": "2"}, new)

    assert found["numpy"]["float32"] == {"safe_softmax": 1, "safe_norm": 2}
    with pytest.raises(SystemExit, match="measure all functions again"):
        accuracy.beside_others(file, {"numpy": "3"}, new)


# Units more: the product of two directions, each of deviations that are scaled.
ROUNDED = {"safe_correlation": 1}


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

    worse = [
        cell
        for cell in cells
        if cell[5] is not None
        and not fits(cell[4] - ROUNDED.get(cell[2], 0), cell[5])
        # SciPy computes float32 in float64.
        and not (cell[:2] == ("numpy", "float32") and cell[5] <= 0.5)
    ]

    assert len(cells) > 1000
    assert not worse


def fits(ours, plain):
    """Whether an error is no more than five units above another, or a half of it."""
    return ours is not None and ours <= max(plain + 5.1, 1.5 * plain)
