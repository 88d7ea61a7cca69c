"""The formulas that the sweeps hold operations to are those of mpmath, with 300 digits."""

from importlib import import_module

import mpmath
import numpy as np
import pytest

from exponents import EXTENDED, FORMATS, wide
from safeops import linalg, segments
from safeops._cli.recipe import FUNCTIONS, family_of
from specs import FAMILIES, SPECS, SWEPT
from sweep import points_of

SLOW = {"safe_erfinv", "safe_ndtri"}  # of 300 digits, a fifth of a second for a number
SAMPLE = 16  # points of a row, from one end of the range to the other
# The inputs have 24 bits and long double 64: a formula of some steps loses a few of these.
ROUNDING = 2.0**-58
LEAST = "1e-400"  # below what any dtype has a number for


def sample_of(row):
    """Return arguments of float32, none where the operation is filled, and what is exact there."""
    args, _ = points_of(row, "float32")
    with np.errstate(all="ignore"):
        exact = row.formula(FORMATS["float32"], *map(wide, args))
    inside = (
        np.isfinite(exact.value) & np.logical_not(exact.bad) & np.all([a != 0 for a in args], 0)
    )
    if row.name == "safe_pow":
        inside &= args[0] > 0  # a negative base has no slope for its exponent
    at = np.flatnonzero(inside)
    at = at[np.linspace(0, len(at) - 1, SAMPLE).astype(int)]
    with np.errstate(all="ignore"):
        few = [a[at] for a in args]
        return few, row.formula(FORMATS["float32"], *map(wide, few))


def derivative(f, point, orders):
    """Return the derivative of these orders; mpmath's step is absolute, here relative."""

    def scaled(*factors):
        return f(*(x * t for x, t in zip(point, factors, strict=True)))

    size = mpmath.mpf(1)
    for x, n in zip(point, orders, strict=True):
        size *= x**n
    return mpmath.diff(scaled, (mpmath.mpf(1),) * len(point), orders) / size


def parts_of(exact, n):
    """Give the order, the numbers and the sizes of value, slopes and second derivatives."""
    size, slopes, second = exact.sizes()
    one = np.eye(n, dtype=int)
    yield (0,) * n, exact.value, size
    for i in range(n):
        yield tuple(one[i].tolist()), exact.gradient[i], slopes[i]
        for j in range(n):
            yield tuple((one[i] + one[j]).tolist()), exact.hessian[i][j], second


@pytest.mark.skipif(not EXTENDED, reason="long double has 53 bits here")
@pytest.mark.parametrize("row", SWEPT, ids=lambda row: row.name)
def test_formulas_are_those_of_mpmath(row):
    """Value, slopes and second derivatives, from one end of the range of float32 to the other."""
    args, exact = sample_of(row)

    with mpmath.workdps(300):
        points = [[mpmath.mpf(float(x)) for x in point] for point in zip(*args, strict=True)]
        few = slice(None, None, 4 if row.name in SLOW else 1)
        for order, numbers, sizes in parts_of(exact, len(args)):
            sizes_of_all = np.broadcast_to(sizes, np.shape(numbers))
            f, found = row.mpmath, (numbers[few], sizes_of_all[few])
            assert_derivatives(f, points[few], order, *found)


def assert_derivatives(f, points, order, numbers, sizes):
    """Numbers are the derivatives of a function at points, to the rounding of their sizes."""
    sizes = np.broadcast_to(sizes, np.shape(numbers))
    for point, got, size in zip(points, numbers, sizes, strict=True):
        if np.isfinite(got):
            wanted = derivative(f, point, order)
            room = ROUNDING * mpmath.mpf(str(size)) + mpmath.mpf(LEAST)
            assert abs(mpmath.mpf(str(got)) - wanted) <= room, (order, point, got, wanted)


def test_assert_derivatives_can_fail():
    """It tells apart what differs in the 17th digit."""
    one, more = [[mpmath.mpf(1)]], [1 + wide(2.0) ** -56]

    with pytest.raises(AssertionError), mpmath.workdps(50):
        assert_derivatives(mpmath.sqrt, one, (0,), more, more)


def test_every_formula_is_held_to_mpmath():
    """A specification with a formula has its points too, and a function of mpmath."""
    assert SWEPT
    assert not [spec.name for spec in SPECS if bool(spec.formula) != bool(spec.domain)]
    assert not [spec.name for spec in SWEPT if not spec.mpmath]


def test_a_specification_stands_beside_its_operation():
    """`tests/specs/logs.py` has those of `_ops/logs.py`, each once, and no public name has none."""
    stand = [
        (name, spec.name) for name in FAMILIES for spec in import_module(f"specs.{name}").SPECS
    ]
    public = [(family_of(name), name) for name in FUNCTIONS]
    public += [("linalg", name) for name in linalg.__all__]
    public += [("segments", name) for name in segments.__all__]

    assert sorted(stand) == sorted(public)
