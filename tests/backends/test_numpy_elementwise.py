"""NumPy's kernels of elementwise operations, norms and softmax: what the double where gives."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import safeops as so
from assertions import assert_close
from safeops._backends.numpy import backend
from safeops._backends.numpy import elementwise as kernels

pytestmark = pytest.mark.only("numpy")

TWO = {"safe_div", "safe_pow", "xlogy", "xlog1py"}
FILLED = {"safe_div", "safe_reciprocal", "safe_sqrt", "safe_rsqrt"}
FILLED |= {name for name in kernels.KERNELS if "log" in name and name.startswith("safe_")}
SLICES = {"safe_norm", "safe_softmax"}
# Units in the last place: NumPy's vector code has other roundings for other lengths and strides,
# and a norm is not scaled.
LOOSE = {"safe_pow": 4, "safe_exp": 4, "safe_expm1": 4, "safe_norm": 8, "safe_softmax": 8}
LOOSE |= {name: 2 for name in kernels.KERNELS if "log" in name}
# As users have it, and small arrays treated as large ones.
SIZES = pytest.mark.parametrize("few", [kernels._FEW, 0], ids=["plain", "large"])
NAMES = pytest.mark.parametrize("name", kernels.KERNELS)


def generic(f, *args, **options):
    """Return what the double where makes of the arguments."""
    with patch.object(backend, "kernels", {}):
        return f(*args, **options)


def outcome(f, *args, **options):
    """Return the value, or None where a warning is raised."""
    try:
        with np.errstate(all="raise", under="ignore"):
            return f(*args, **options)
    except FloatingPointError:
        return None


def laid_out(x, layout):
    """Return `x` with another layout in memory, read-only."""
    if layout == "F":
        x = np.asfortranarray(x)
    elif layout == "strided":
        x = np.repeat(x, 2, axis=-1)[..., ::2]
    elif layout == "backwards":
        x = x[..., ::-1]
    x.flags.writeable = False
    return x


def numbers(dtype):
    """Return numbers, many of them special: zeros, subnormal numbers, both NaN, the ends."""
    info = np.finfo(dtype)
    least, largest = float(info.smallest_normal), float(info.max)
    special = [0.0, -0.0, 1.0, 2.0, -1.0, -2.0, 3.0, 0.5, -1.5, np.inf, -np.inf, np.nan, -np.nan]
    special += [least, -least, least / 2, -least / 2, largest, -largest, 88.73, 709.79, 1e4]
    special += [float(np.nextafter(dtype(least), dtype(0))), float(dtype(-1) + info.eps / 2)]
    width = 8 * np.dtype(dtype).itemsize
    return st.sampled_from(special) | st.floats(width=width)


@st.composite
def calls(draw, name):
    """Return arguments and options of an operation."""
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    shape = draw(hnp.array_shapes(max_dims=2, max_side=20))
    shapes = [shape]
    if name in TWO:
        other = draw(st.sampled_from([shape, shape[-1:], (*shape[:-1], 1)]))
        shapes = draw(st.permutations([shape, other]))
    args = [
        laid_out(
            draw(hnp.arrays(dtype, s, elements=numbers(dtype), fill=st.nothing())),
            draw(st.sampled_from(["C", "F", "strided", "backwards"])),
        )
        for s in shapes
    ]
    options = {}
    if name in FILLED and draw(st.booleans()):
        options["fill_value"] = draw(st.sampled_from([0.0, -0.0, 0, 1, -2.5, np.nan, np.inf]))
    if name in SLICES:
        axes = [None, 0, -1, tuple(range(len(shape)))]
        options["axis"] = draw(st.sampled_from(axes))
    if name == "safe_softmax" and draw(st.booleans()):
        options["where"] = draw(hnp.arrays(bool, shape))
    return args, options


@SIZES
@NAMES
@given(data=st.data())
def test_values_are_those_of_the_double_where(name, few, data):
    """A kernel has value, dtype and shape of the double where, and raises where that raises."""
    f = getattr(so, name)
    args, options = data.draw(calls(name))
    with np.errstate(all="ignore"):
        wanted = generic(f, *args, **options)

    with patch.object(kernels, "_FEW", few):
        got = outcome(f, *args, **options)

    if got is None:
        assert outcome(generic, f, *args, **options) is None
        return
    # A norm that is not scaled does not divide by inf.
    assert name == "safe_norm" or outcome(generic, f, *args, **options) is not None
    assert type(got) is (np.ndarray if np.ndim(got) else got.dtype.type)
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    assert_close(got, wanted, LOOSE.get(name, 0) * np.finfo(got.dtype).eps, name)


@NAMES
def test_large_arrays_have_the_same_values(name):
    """A million entries, of which one in a hundred is bad, have the values of the double where."""
    f = getattr(so, name)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, 1000, 1000)).astype(np.float32) * 30
    x[random.random(x.shape) < 0.01] = 0
    y[random.random(x.shape) < 0.01] = 0
    args = (y, x) if name in TWO else (x,)
    options = {"axis": -1} if name in SLICES else {}

    with np.errstate(all="ignore"):
        got, wanted = f(*args, **options), generic(f, *args, **options)

    # A sum of 1000 squares or exponentials rounds in another order.
    rtol = (LOOSE.get(name, 0) + 16 * (name in SLICES)) * np.finfo(np.float32).eps
    assert_close(got, wanted, rtol, name)


@NAMES
def test_kernels_are_asked(name):
    """A kernel has the name of a function that asks it, and answers for floats."""
    asked = []
    args = [np.ones(3)] * (1 + (name in TWO))
    with patch.dict(backend.kernels, {name: lambda *args, **_: asked.append(args)}):
        getattr(so, name)(*args)

    assert len(asked) == 1
    assert kernels.KERNELS[name](*args) is not None


UNASKED = {
    "another dtype": np.ones(3, np.float16),
    "integers": np.ones(3, int),
    "no axis": np.ones(()),
    "nothing": np.ones(0),
    "a list": [1.0],
    "a subclass": np.ones(3).view(type("Mine", (np.ndarray,), {})),
}


@pytest.mark.parametrize("what", UNASKED)
@NAMES
def test_the_rest_is_left_to_the_double_where(name, what):
    """A kernel returns None for what it was not made for."""
    args = [UNASKED[what]] * (1 + (name in TWO))

    assert kernels.KERNELS[name](*args) is None


@pytest.mark.parametrize("name", sorted(FILLED))
def test_a_fill_value_that_is_an_array_is_left_to_the_double_where(name):
    """Arrays have gradients and shapes of their own."""
    args = [np.ones(3)] * (1 + (name in TWO))

    assert kernels.KERNELS[name](*args, fill_value=np.ones(3)) is None


def test_only_entries_that_are_kept_warn():
    """0 / 0 is filled and silent; inf / inf beside it and an overflow are not."""
    x = np.array([0.0, 1.0, 1.0])

    with np.errstate(all="raise"), patch.object(kernels, "_FEW", 0):
        assert (so.safe_div(x, np.array([0.0, 5e-324, 4.0])) == [0, 0, 0.25]).all()
        with pytest.raises(FloatingPointError, match="invalid"):
            so.safe_div(np.array([0.0, np.inf]), np.array([0.0, np.inf]))
        with pytest.raises(FloatingPointError, match="overflow"):
            so.safe_div(np.array([0.0, 1e300]), np.array([0.0, 1e-300]))
