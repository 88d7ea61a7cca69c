"""Functions with a removable singularity, held to mpmath from small to large numbers."""

from dataclasses import replace
from itertools import product
from unittest.mock import patch

import mpmath
import numpy as np
import pytest
from mpmath import mp

import removable
import safeops as so
import turned
from frameworks import asarray, in_one_program, to_numpy
from safeops._backends import load
from specs.smooth import SPECS

RTOL = {"float64": 1e-12, "float32": 2e-5}
LINE = [0.0, 1e-30, -1e-9, 1e-4, 0.99, -0.99, 1.01, -1.01, 5.0, -5.0, 50.0, -50.0, -1e30]


def exact(f, *args):
    """Return value and gradient of a function, by differences in 200 digits."""
    with mp.workdps(200):
        args = [mpmath.mpf(float(x)) for x in args]
        step = mpmath.mpf("1e-50")
        slopes = []
        for k, x in enumerate(args):
            size = step * (abs(x) or 1)
            sides = [f(*args[:k], x + s * size, *args[k + 1 :]) for s in (1, -1)]
            slopes.append(float((sides[0] - sides[1]) / (2 * size)))
        return float(f(*args)), slopes


FORMULAS = {spec.name: spec.mpmath for spec in SPECS}
POWERS = [0.0, 1e-30, -1e-9, 1e-4, 0.5, -0.5, 1.0, 2.0, -3.0]
CASES = {
    "exprel": [(x,) for x in [*LINE, 80.0]],
    "sinhc": [(x,) for x in [*LINE[:-1], 80.0, -80.0]],
    "boxcox": [(x, p) for x in (1e-9, 0.3, 1.0, 1.7, 1e8) for p in POWERS],
    "inv_boxcox": [(y, p) for y in (0.0, 0.3, -0.25, 3.0) for p in POWERS if p * y > -0.9],
    "logarithmic_mean": [
        (x, x * k) for x in (1e-20, 1.0, 1e20) for k in (1.0, 1 + 1e-6, 1.6, 1.7, 1e-9, 1e9)
    ],
}
# Where the parts of the formula leave the range and the function does not.
FAR = {
    "exprel": [(712.0,), (716.0,)],
    "sinhc": [(712.0,), (-716.0,)],
    "boxcox": [(2.0, 1030.0), (1e300, 1.02)],
    "logarithmic_mean": [(1e300, 1e-300), (1e-300, 1e-290), (1e307, 1.7e307)],
}


def assert_exact(name, f, points, framework, dtype):
    """Value and gradient are those of the formula."""
    op, backend = getattr(so, name), load(framework)
    columns = [np.array(c, dtype=dtype) for c in zip(*points, strict=True)]
    args = [asarray(framework, c, dtype) for c in columns]
    wanted = [exact(f, *point) for point in zip(*columns, strict=True)]

    value = to_numpy(op(*args))
    found = backend.grad(lambda *args: backend.xp.sum(op(*args)))(*args)

    rtol = RTOL[dtype]
    np.testing.assert_allclose(value, [v for v, _ in wanted], rtol=rtol)
    slopes = np.array([s for _, s in wanted]).T
    for got, slope in zip(found, slopes, strict=True):
        fits = np.abs(slope) < np.finfo(dtype).max / 4
        np.testing.assert_allclose(to_numpy(got)[fits], slope[fits], rtol=rtol, atol=1e-37)


@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, dtype, autodiff_framework):
    """Value and gradient are exact at the singularity, beside it, and far from it."""
    assert_exact(name, FORMULAS[name], CASES[name], autodiff_framework, dtype)


@pytest.mark.parametrize("name", FAR)
def test_far_out(name, autodiff_framework):
    """Value and gradient are right where a part of the formula is too large or too small."""
    assert_exact(name, FORMULAS[name], FAR[name], autodiff_framework, "float64")


@pytest.mark.parametrize("name", ["exprel", "sinhc"])
def test_second_derivatives_near_the_largest_exponential(name, autodiff_framework):
    """Where the exponential itself is too large, no product of two halves of it is formed."""
    f, backend = FORMULAS[name], load(autodiff_framework)
    op, x = getattr(so, name), np.array([-5.0, 5.0, 88.0, 89.0, 91.0, 92.0])
    with mp.workdps(50):
        wanted = [float(mp.diff(f, t, 2)) for t in x]
    at = asarray(autodiff_framework, x, "float32")

    def slope(x):
        return backend.grad(lambda x: backend.xp.sum(op(x)))(x)[0]

    reverse = backend.grad(lambda x: backend.xp.sum(slope(x)))(at)[0]
    forward = backend.jvp(slope)((at,), (backend.xp.ones_like(at),))

    for found in (reverse, forward):
        np.testing.assert_allclose(to_numpy(found), wanted, 1e-4)


SERIES = {
    "exprel": (lambda x: (x,), LINE[:9]),
    "sinhc": (lambda x: (x,), LINE[:9]),
    "boxcox": (lambda p: (1.75 + 0.0 * p, p), [0.0, 1e-30, -1e-9, 1e-4, 0.5, -0.5, 2.0]),
    "inv_boxcox": (
        lambda p: (0.75 + 0.0 * p, p),
        [0.0, 1e-30, -1e-9, 1e-4, 0.1, -0.1, 0.5],
    ),
    "logarithmic_mean": (
        lambda d: (1.75 + 0.0 * d, 1.75 + d),
        [0.0, 2e-9, -1e-4, 0.5, -0.7, 2.0],
    ),
}


@pytest.mark.parametrize("name", SERIES)
def test_third_derivatives(name, autodiff_framework):
    """The third derivative is exact at the singular point, beside it and where the series ends."""
    f, (args_of, points) = FORMULAS[name], SERIES[name]
    backend, op = load(autodiff_framework), getattr(so, name)
    with mp.workdps(250):
        at = [mpmath.mpf(x) for x in points]
        wanted = [float(third(lambda t: f(*args_of(t)), t)) for t in at]

    def total(x):
        return backend.xp.sum(op(*args_of(x)))

    for _ in range(2):
        total = slope_of(backend, total)
    x = asarray(autodiff_framework, points)
    found = in_one_program(autodiff_framework, lambda x: backend.grad(total)(x)[0])(x)

    np.testing.assert_allclose(to_numpy(found), wanted, rtol=1e-9, atol=1e-12)


def slope_of(backend, total):
    """Return the sum of the derivatives of a sum."""
    return lambda x: backend.xp.sum(backend.grad(total)(x)[0])


def third(f, x):
    """Return the third derivative, by differences."""
    h = mpmath.mpf("1e-40")
    return (f(x + 2 * h) - 2 * f(x + h) + 2 * f(x - h) - f(x - 2 * h)) / (2 * h**3)


MODE = {"torch": "func", "jax": "jit", "tensorflow": "eager"}
LEFT_OUT = (("forward", "rev-rev", "rev-fwd", "fwd-fwd"), "cases.py and test_radial.py have them")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("row", removable.ROWS, ids=lambda row: row.name)
def test_gradient_and_hessian_are_exact_and_naively_not(row, dtype, autodiff_framework):
    """At the singular point and beside it; what people write is wrong there."""
    mode = MODE[autodiff_framework]
    way, skipped = (autodiff_framework, mode, dtype), {(autodiff_framework, mode): LEFT_OUT}

    ours, theirs = (
        turned.errors(row, turned.found(one, *way, skipped), dtype)
        for one in (row, replace(row, op=row.naive))
    )

    rtol = {"float64": 1e-9, "float32": 1e-5}[dtype]
    assert {order: error.max() for order, error in ours.items() if error.max() > rtol} == {}
    assert max(error.max() for error in theirs.values()) > rtol


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_formula_is_found(name, autodiff_framework):
    """The comparison fails for a formula that is not that of the function."""
    f, points = FORMULAS[name], CASES[name]

    with pytest.raises(AssertionError):
        assert_exact(
            name, lambda *args: 1.001 * f(*args) + 1e-3, points, autodiff_framework, "float64"
        )


# In float32 a slope in range, of which one step more or another order is not.
AT_THE_ENDS = {
    "exprel": [(92.75,), (93.125,)],
    "sinhc": [(93.5,), (-93.625,)],
    "boxcox": [(27.25, 27.25), (27.25, 27.3125)],
    "logarithmic_mean": [(2.0**-35, 2.0**90), (2.0**115, 2.0**20), (3, 3 + 2.0**-19)],
}


@pytest.mark.parametrize("name", AT_THE_ENDS)
def test_slopes_are_finite_wherever_they_are_in_range(name, autodiff_framework):
    """Next to the largest number, and of numbers of very different size; a square is not."""
    f, points = FORMULAS[name], AT_THE_ENDS[name]
    wanted = np.array([exact(f, *point)[1] for point in points]).T
    args = [asarray(autodiff_framework, x, "float32") for x in zip(*points, strict=True)]
    backend = load(autodiff_framework)

    def slopes(op):
        grad = backend.grad(lambda *args: backend.xp.sum(op(*args)))
        found = in_one_program(autodiff_framework, grad)(*args)
        return np.stack([to_numpy(g) for g in found])

    naive = {row.name: row.naive for row in removable.ROWS}[name]
    np.testing.assert_allclose(slopes(getattr(so, name)), wanted, rtol=2e-5)
    assert not np.allclose(slopes(naive), wanted, rtol=2e-5)


def bend_of_the_mean(t):
    """Return the derivative of ``(t - 1 + exp(-t)) / t**2``: x times the curvature, t a log."""
    if t == 0:
        return -mpmath.mpf(1) / 6
    return (1 - mp.exp(-t)) / t**2 - 2 * (t - 1 + mp.exp(-t)) / t**3


def curvatures_of_the_mean(x, y):
    """Return its second derivatives: for x twice, for both, for y twice."""
    x, y = mpmath.mpf(float(x)), mpmath.mpf(float(y))
    t = mp.log(x / y)
    bend = bend_of_the_mean(t)
    return [float(bend / x), float(-bend / y), float(bend_of_the_mean(-t) / y)]


@pytest.mark.only("jax")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_second_derivatives_of_the_mean_over_the_range(dtype):
    """Of numbers of every size and ratio, in each order of modes; the steps alone lose them."""
    import jax

    info, rng, n = np.finfo(dtype), np.random.default_rng(0), 300
    low, high = np.log2(info.smallest_normal) + 4, np.log2(info.max) - 4
    first = rng.uniform(low, high, n)
    apart = np.where(rng.random(n) < 0.5, rng.uniform(-2, 2, n), rng.uniform(-200, 200, n))
    second = np.clip(first + apart * rng.choice([1, 2.0**-18], n), low, high)
    x, y = (2.0 ** z.astype(dtype) for z in (first, second))
    with mp.workdps(60):
        wanted = np.array([curvatures_of_the_mean(*point) for point in zip(x, y, strict=True)]).T
    size = np.abs(wanted)
    # A part of a sum may be smaller than the sum by the square of a logarithm.
    in_range = (size > info.smallest_normal * 2.0**24) & (size < info.max / 16)

    def wrong(outer, inner):
        # One argument at a time: an infinite slope for the other would be NaN times its 0.
        pairs = [(0, 0), (0, 1), (1, 1)]
        found = [jax.jit(jax.vmap(outer(inner(so.logarithmic_mean, i), j)))(x, y) for i, j in pairs]
        with np.errstate(invalid="ignore"):  # two infinities, out of range
            error = np.abs(found - wanted) / size
        return int((~(error < 300 * info.eps) & in_range).sum())

    modes = list(product((jax.jacfwd, jax.jacrev), repeat=2))
    assert [wrong(*mode) for mode in modes] == [0] * 4
    with patch.object(load("jax"), "kernel", lambda *_: None):
        assert wrong(jax.jacrev, jax.jacrev) > 0


def test_a_small_exponent_keeps_the_digits_of_inv_boxcox(framework):
    """The value is right to the units of its logarithm, which the rounding of 1 + z is not."""
    z, p = np.linspace(0.13, 0.25, 40), 2.0**-11
    wanted = np.array([float(mp.exp(mp.log1p(mpmath.mpf(x)) / p)) for x in z])

    found = to_numpy(so.inv_boxcox(*(asarray(framework, x) for x in (z / p, p + 0 * z))))

    np.testing.assert_allclose(found, wanted, rtol=1.5e-13)
    assert not np.allclose((1 + z) ** (1 / p), wanted, rtol=1.5e-13, atol=0)


def test_slopes_of_inv_boxcox_for_a_tiny_exponent(autodiff_framework):
    """Those of exp(y): up to the largest one, and 0 far below, where a square of 1e-22 is 0."""
    y, p = np.array([80.0, 85.0, 88.5, 88.5, -5e21, -5e21]), [0.0, 0.0, 0.0, -1e-9, 1e-22, -1e-22]
    args = [asarray(autodiff_framework, x, "float32") for x in (y, p)]
    backend = load(autodiff_framework)
    grad = backend.grad(lambda *args: backend.xp.sum(so.inv_boxcox(*args)))

    along_y, along_p = map(to_numpy, in_one_program(autodiff_framework, grad)(*args))

    np.testing.assert_allclose(along_y, np.exp(y), rtol=1e-5)
    np.testing.assert_allclose(along_p[[0, 4, 5]], [-3200 * np.exp(80.0), 0.0, 0.0], rtol=1e-5)
    assert (along_p[1:4] == -np.inf).all()  # out of range


def test_infinite_arguments():
    """`exprel` and `sinhc` have their limits at infinity; a NaN stays NaN."""
    with np.errstate(over="ignore"):
        assert so.exprel(np.array([-np.inf, np.inf])).tolist() == [0.0, np.inf]
        assert so.sinhc(np.array([-np.inf, np.inf])).tolist() == [np.inf, np.inf]
    with np.errstate(invalid="ignore"):
        found = so.boxcox(np.full(4, np.inf), np.array([0.0, 1e-300, 1.0, -2.0]))
        assert found.tolist() == [np.inf, np.inf, np.inf, 0.5]
        assert np.isnan(so.boxcox(np.array([0.0, np.nan]), np.array([np.nan, 0.0]))).all()
    assert np.isnan(so.logarithmic_mean(np.array([0.0, 1.0]), np.array([np.nan, np.nan]))).all()


def test_numbers_outside_of_the_domain():
    """A logarithm of a negative number is NaN, and so is what is made of it."""
    with np.errstate(invalid="ignore", divide="ignore"):
        assert np.isnan(so.boxcox(np.array([-1.0, -1.0]), np.array([0.0, 2.0]))).all()
        assert np.isnan(so.inv_boxcox(np.array([-3.0]), np.array([1.0]))).all()
        assert np.isnan(so.logarithmic_mean(np.array([-1.0, -1.0]), np.array([-1.0, 1.0]))).all()
