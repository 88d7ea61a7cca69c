"""Elementwise operations over all exponents: value, slopes and second derivatives are right."""

import numpy as np
import pytest

import formulas
from derivatives import MODES, ORDERS
from exponents import EXHAUSTIVE, EXTENDED, FORMATS, assert_ulps, flushed, positive, rounded
from sweep import faults

ROWS = pytest.mark.parametrize("row", formulas.ROWS, ids=lambda row: row.name)
FIRST = ("value", "reverse", "forward")
TAPES = ("value", "reverse", "rev-rev")
# What the default run takes of each mode: the dtypes, and the derivatives. `nox -s exhaustive`
# takes all, of four times the points.
DEFAULT = {
    ("torch", "autograd"): (("bfloat16", "float32", "float64"), ORDERS[:-1]),
    ("torch", "func"): (tuple(FORMATS), ORDERS),
    ("jax", "jit"): (("float32",), ORDERS),
    ("tensorflow", "function"): (("float32",), TAPES),
}


def pytest_generate_tests(metafunc):
    """Run a test in each mode of each selected framework, in each dtype."""
    if "way" in metafunc.fixturenames:
        modes = ((name, m) for name in metafunc.config.frameworks for m in MODES.get(name, ()))
        ways = [(*mode, dtype) for mode in modes for dtype in dtypes_of(mode)]
        metafunc.parametrize("way", ways, ids="-".join)


def dtypes_of(mode):
    """Return the dtypes that are tested in a mode."""
    dtypes = FORMATS if EXHAUSTIVE else DEFAULT.get(mode, ((),))[0]
    return [dtype for dtype in dtypes if EXTENDED or dtype != "float64"]


def orders_of(framework, mode):
    """Return the derivatives that are tested in a mode."""
    possible = ORDERS[:-1] if mode == "autograd" else ORDERS
    if mode == "compiled-then-autograd":
        possible = ("reverse",)
    return ("value", *(possible if EXHAUSTIVE else DEFAULT[framework, mode][1]))


@ROWS
def test_all_exponents_are_right(row, way):
    """Where value and gradient are numbers of the dtype, each composition has these numbers."""
    framework, mode, dtype = way

    found = faults(row, framework, mode, dtype, dict.fromkeys(orders_of(framework, mode)))

    assert not found, "\n".join(found)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_formats_are_those_of_numpy(dtype):
    """Bits and exponents of a dtype give its limits."""
    info, form = np.finfo(dtype), FORMATS[dtype]

    assert (form.max, form.eps, form.normal) == (info.max, info.eps, info.smallest_normal)


def test_every_exponent_is_there():
    """The numbers of float16 have every exponent, subnormal ones too, and are numbers of it."""
    x = positive("float16")

    assert set(np.frexp(x[x > 0])[1]) == set(range(-23, 17))
    np.testing.assert_array_equal(x.astype(np.float16), x)


def test_numbers_are_rounded_as_numpy_rounds():
    """The nearest number of a dtype is the one that NumPy converts to."""
    x = np.random.default_rng(0).normal(size=1000) * 2.0 ** np.linspace(-30, 15, 1000)

    np.testing.assert_array_equal(rounded(x, "float16"), x.astype(np.float16))


def test_assert_ulps_can_fail():
    """It tells neighbours apart, NaN from a number and inf from a small one, and accepts 0."""
    assert_ulps(np.array([1.0, np.inf, 0.0]), [1 + 2.0**-23, 1e39, 1e-39], 1, "float32")
    assert_ulps(np.array([0.0]), [1.0], 1, "float32", also=[[0.0]])
    for got, exact in ((1.0, 1 + 2.0**-22), (np.nan, 1.0), (np.inf, 1e38), (1.0, 1e39), (-1.0, 1)):
        with pytest.raises(AssertionError):
            assert_ulps(np.array([got]), [exact], 1, "float32")
    with pytest.raises(AssertionError):
        assert_ulps(np.array([0.0]), [3e-38], 1, "float32")


def test_flushed_numbers_keep_their_sign():
    """A subnormal number becomes a zero of its sign; float16 has none that are flushed."""
    x = np.array([-1e-40, 1e-40, 1.0])

    assert np.signbit(flushed(x, "float32")).tolist() == [True, False, False]
    assert flushed(x, "float32").tolist() == [0, 0, 1]
    assert flushed(np.array([6e-8]), "float16") == 6e-8
