"""Elementwise operations over all exponents: value, slopes and second derivatives are right."""

import numpy as np
import pytest

import safeops as so
import specs
from derivatives import MODES, ORDERS, tools
from exponents import EXHAUSTIVE, EXTENDED, FORMATS, assert_ulps, flushed, positive, rounded
from frameworks import asarray, to_numpy
from safeops._backends import load
from sweep import faults, is_filled, points_of, pulled, slopes_of

inf, nan = np.inf, np.nan
ROWS = pytest.mark.parametrize("row", specs.SWEPT, ids=lambda row: row.name)
FIRST = ("value", "reverse", "forward")
TAPES = ("value", "reverse", "rev-rev")
# What the default run takes of each mode: the dtypes, and the derivatives. `nox -s exhaustive`
# takes all, of four times the points. A second derivative takes a compiler up to a minute.
DEFAULT = {
    ("torch", "autograd"): (("bfloat16", "float32", "float64"), ORDERS[:-1]),
    ("torch", "func"): (tuple(FORMATS), ORDERS),
    ("torch", "compile"): (("float32",), ("reverse",)),
    ("jax", "eager"): (("float32",), ("reverse", "forward")),
    ("jax", "jit"): (("float32",), ORDERS),
    ("tensorflow", "function"): (("float32",), TAPES),
    ("tensorflow", "xla"): (("float32",), ("reverse",)),
}
# Of a second program for cotangents, where compilers take most of the time.
PULLED = {"torch": ("autograd", "func"), "jax": ("jit",), "tensorflow": ("function", "xla")}


def pytest_generate_tests(metafunc):
    """Run a test in each mode of each framework, in each dtype."""
    modes = [(name, mode) for name, modes in MODES.items() for mode in modes]
    if "way" in metafunc.fixturenames:
        ways = [(*mode, dtype) for mode in modes for dtype in dtypes_of(mode)]
        metafunc.parametrize("way", ways, ids="-".join)
    if "cotangent_way" in metafunc.fixturenames:
        chosen = [(name, m) for name, m in modes if EXHAUSTIVE or m in PULLED[name]]
        dtypes = [d for d in FORMATS if EXTENDED or d != "float64"] if EXHAUSTIVE else ["float32"]
        ways = [(*mode, dtype) for mode in chosen for dtype in dtypes]
        metafunc.parametrize("cotangent_way", ways, ids="-".join)


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


def cotangents_of(dtype):
    """Return what may come from above: not finite, very large and very small."""
    return (inf, -inf, nan, *((1e4, 1e-4) if dtype == "float16" else (1e30, 1e-30)))


@ROWS
def test_a_cotangent_keeps_to_its_entry(row, cotangent_way):
    """To every other entry: 0 to what is filled, NaN of a slope stays, no entry has another's."""
    framework, mode, dtype = cotangent_way
    special = cotangents_of(dtype)
    count = points_of(row, dtype)[0][0].size
    here = np.arange(count) % 2 == 0
    comes = [np.where(here, c, 1.0) for c in special] + [np.where(here, 1.0, c) for c in special]

    plain, *found = pulled(row, framework, mode, dtype, [np.ones(count), *comes])

    filled, slopes = is_filled(row, dtype), slopes_of(row, framework, dtype)
    sloped = np.abs(slopes) > FORMATS[dtype].normal * 8
    for cotangents, got in zip(comes, found, strict=True):
        usual = cotangents == 1
        np.testing.assert_array_equal(got[:, usual], plain[:, usual])
        assert not got[:, filled].any()
        assert np.isnan(got[sloped & np.isnan(cotangents)]).all()


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("mode", MODES["tensorflow"])
@pytest.mark.parametrize("name", ["safe_div", "xdivy"])
def test_no_square_of_a_divisor_is_formed(name, mode):
    """XLA writes ``(c / y) / y`` as ``c / (y * y)``, which is NaN or inf at 1e-25 in float32."""
    around, _, grad, jvp = tools("tensorflow", mode)
    x, y = (asarray("tensorflow", a, "float32") for a in ([0.0, 1e-20], [1e-25, 1e-25]))
    f = getattr(so, name)

    slopes = around(grad(lambda y: load("tensorflow").xp.sum(f(x, y))))(y)[0]
    tangent = around(lambda y: jvp(lambda y: f(x, y))((y,), (y,)))(y)

    np.testing.assert_allclose(to_numpy(slopes), [0.0, -1e30], 1e-6)
    np.testing.assert_allclose(to_numpy(tangent), [0.0, -1e5], 1e-6)


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("name", ["xlogy", "xlog1py", "entr"])
def test_no_reciprocal_of_a_divisor_is_formed(name, mode):
    """
    A tangent is ``x * (t / y)`` where ``1 / y`` is flushed to 0, and its derivatives are right.

    PyTorch and JAX have these derivatives in the test of all exponents.
    """
    row = next(row for row in specs.SWEPT if row.name == name)
    orders = dict.fromkeys(("forward", "rev-fwd", "fwd-fwd"))

    found = faults(row, "tensorflow", mode, "float32", orders)

    assert not found, "\n".join(found)


@pytest.mark.only("jax")
@pytest.mark.parametrize("name", ["safe_div", "safe_pow"])
def test_no_part_of_a_slope_is_subnormal(name):
    """In float16 ``x / y`` loses digits that ``x / y / y`` has, so the rules are in float32."""
    row = next(row for row in specs.SWEPT if row.name == name)

    found = faults(row, "jax", "jit", "float16", dict.fromkeys(("reverse", "rev-rev", "fwd-fwd")))

    assert not found, "\n".join(found)


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("mode", MODES["tensorflow"])
def test_no_square_of_a_probability_is_formed(mode):
    """The tangent of the entropy is ``-log(p) - 1`` where the square of p underflows."""
    around, _, _, jvp = tools("tensorflow", mode)
    p, one = (asarray("tensorflow", a, "float32") for a in ([1e-20, 0.5], [1.0, 1.0]))

    tangent = around(lambda p: jvp(so.entr)((p,), (one,)))(p)

    np.testing.assert_allclose(to_numpy(tangent), -np.log([1e-20, 0.5]) - 1, 1e-6)


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
