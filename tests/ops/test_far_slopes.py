"""Slopes at NaN and at infinity, and digits next to zeros, are the same in every framework."""

import numpy as np
import pytest

import safeops as so
from derivatives import MODES, tools
from frameworks import asarray, to_numpy
from safeops._backends import load

nan, inf = np.nan, np.inf
POWERS = [  # base, exponent, value, slopes
    ((nan, 0.0), 1.0, (0.0, 0.0)),  # 1, whatever the base
    ((nan, 1.0), nan, (1.0, nan)),
    ((nan, 2.0), nan, (nan, nan)),
    ((nan, 0.5), nan, (nan, nan)),
    ((nan, -1.0), nan, (nan, nan)),
    ((2.0, nan), nan, (nan, nan)),
    ((-2.0, nan), nan, (nan, 0.0)),
]


def pytest_generate_tests(metafunc):
    """Run a test in two modes of each selected framework."""
    if "way" in metafunc.fixturenames:
        names = metafunc.config.frameworks
        metafunc.parametrize(
            "way", [(n, mode) for n in names for mode in MODES.get(n, ())[:2]], ids="-".join
        )


def slopes(op, way, *args):
    """Return the slopes of an elementwise operation."""
    framework, mode = way
    around, within, grad, _ = tools(framework, mode)
    xp, f = load(framework).xp, within(op)
    both = around(grad(lambda *args: xp.sum(f(*args))))
    return [to_numpy(x) for x in both(*(asarray(framework, a, "float32") for a in args))]


def test_powers_of_nan_have_one_slope(way):
    """The slopes of a power of NaN, or to NaN, are those that the docstring states."""
    x, p = zip(*(args for args, _, _ in POWERS), strict=True)

    found = slopes(so.safe_pow, way, x, p)

    expected = zip(*(exact for _, _, exact in POWERS), strict=True)
    np.testing.assert_array_equal(found, list(expected))


def test_powers_of_nan_have_their_values(framework):
    """NaN to the power 0 is 1, and to another power NaN."""
    x, p = zip(*(args for args, _, _ in POWERS), strict=True)

    value = so.safe_pow(*(asarray(framework, a, "float32") for a in (x, p)))

    np.testing.assert_array_equal(to_numpy(value), [exact for _, exact, _ in POWERS])


def test_entropy_falls_at_infinity(way):
    """The slope of the entropy at inf is -inf, the limit of ``-log(p) - 1``."""
    (slope,) = slopes(so.entr, way, [1.0, inf])

    assert slope.tolist() == [-1, -inf]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sinc_keeps_its_digits_at_its_zeros(framework, dtype):
    """Next to a whole number it is the sine of the distance over pi * x, and 0 at the number."""
    n = np.array([1.0, -2.0, 7.0, 1e6 + 1])
    near = np.nextafter(n.astype(dtype), np.array(inf, dtype))
    distance = near.astype(np.float64) - n

    at_zeros, beside = (to_numpy(so.sinc(asarray(framework, x, dtype))) for x in (n, near))

    assert not at_zeros.any()
    exact = np.where(n % 2 == 1, -1, 1) * np.sin(np.pi * distance) / (np.pi * near)
    np.testing.assert_allclose(beside, exact, rtol=8 * np.finfo(dtype).eps)
