"""What holds for reductions beyond their case table: what is absent, empty, tied, huge or whole."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import safeops as so
from assertions import assert_close
from frameworks import asarray, in_one_program, to_numpy
from reducing import (
    DIVIDED,
    EXTREMES,
    FAMILIES,
    HARMLESS,
    HOLES,
    INDICES,
    LESS_THAN_FLOAT64,
    NAN,
    REDUCED,
    RTOL,
    RUNNING,
    SLOPED,
    call,
    derivatives,
    inf,
    named,
    nan,
)
from safeops._core.dtypes import dtype_name
from safeops._dispatch import backend_of

# What is absent.

POISON = (nan, inf, -inf, 1e308)


@named(FAMILIES)
@pytest.mark.parametrize("poison", POISON)
def test_nothing_leaks_into_the_value(name, poison, framework):
    """What an absent entry holds is not in the value, to the last bit."""
    keep = asarray(framework, HOLES, "bool")
    poisoned = asarray(framework, np.where(HOLES, HARMLESS, poison))

    value = to_numpy(call(name, poisoned, where=keep))

    clean = call(name, asarray(framework, HARMLESS), where=keep)
    np.testing.assert_array_equal(value, to_numpy(clean))


@named(SLOPED)
@pytest.mark.parametrize("poison", POISON)
def test_nothing_leaks_into_the_derivatives(name, poison, autodiff_framework):
    """What an absent entry holds is in no derivative, and its own gradient is exactly 0."""
    keep = asarray(autodiff_framework, HOLES, "bool")
    poisoned, clean, direction = (
        asarray(autodiff_framework, a)
        for a in (np.where(HOLES, HARMLESS, poison), HARMLESS, np.ones((2, 4)))
    )

    gradient, slope = derivatives(lambda x: call(name, x, where=keep), poisoned, direction)

    wanted = derivatives(lambda x: call(name, x, where=keep), clean, direction)
    assert not gradient[~HOLES].any()
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient, wanted[0])
    np.testing.assert_array_equal(slope, wanted[1])


@named([name for name in SLOPED if name not in NAN])
def test_nan_of_a_kept_entry_stays(name, framework):
    """A NaN that is kept is in the value of its slice, and of no other."""
    x = np.where([[True], [False]], HARMLESS, [[1.0, nan, 2.0, 3.0]])

    with np.errstate(invalid="ignore"):  # NumPy warns of casts and comparisons with NaN
        good, bad = to_numpy(call(name, asarray(framework, x)))

    assert np.isfinite(good)
    assert np.isnan(bad)


# What is empty.

OF_NONE = {"sum": 0.0, "prod": 1.0, "argmax": -1, "argmin": -1}


def of_none(name):
    """Return the value of a slice without entries."""
    return OF_NONE.get(name.removeprefix("nan").removeprefix("safe_"), nan)


@named([name for name in FAMILIES if name not in RUNNING])
def test_an_empty_slice_has_the_value_of_numpy(name, framework):
    """No entries, all of them NaN, and none kept: NumPy's value, or -1, and no warning."""
    none = asarray(framework, np.zeros((2, 3)), "bool")
    empty, whole = asarray(framework, np.ones((2, 0))), asarray(framework, np.ones((2, 3)))
    full = asarray(framework, np.full((2, 3), nan))

    values = [call(name, empty), call(name, whole, where=none)]
    values += [call(name, full)] if name in NAN else []
    of_all = call(name, empty, axis=None)

    assert {to_numpy(v).shape for v in values} == {(2,)}
    np.testing.assert_array_equal(
        [to_numpy(v) for v in values], np.full((len(values), 2), of_none(name))
    )
    np.testing.assert_array_equal(to_numpy(of_all), of_none(name))


@named(SLOPED)
def test_an_empty_slice_has_no_slope(name, autodiff_framework):
    """Where no entry is kept, gradient and tangent are exactly 0, and do not spoil the others."""
    x = asarray(autodiff_framework, [[nan, nan, nan], [1.0, 2.0, 4.0]])
    direction = asarray(autodiff_framework, [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    keep = asarray(autodiff_framework, [[False] * 3, [True] * 3], "bool")

    gradient, slope = derivatives(lambda x: call(name, x, where=keep), x, direction)

    assert not gradient[0].any()
    assert gradient[1].any()
    assert slope == 0


@named(["nansum", "nanmean", "nanmax", "nanmedian"])
@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0,)], ids=str)
def test_gradients_of_no_entries(name, shape, autodiff_framework):
    """The gradient of an array without entries has none."""
    x = asarray(autodiff_framework, np.ones(shape))

    gradient, slope = derivatives(lambda x: call(name, x, fill_value=0.0), x, x)

    assert gradient.shape == shape
    assert slope == 0


# Options.


@named(REDUCED)
def test_a_fill_value_may_be_an_array(name, autodiff_framework):
    """An array as `fill_value` has the shape of the result, and a gradient where it is taken."""
    x = asarray(autodiff_framework, [[1.0, 2.0, 4.0], [5.0, 6.0, 8.0]])
    keep = asarray(autodiff_framework, [[True] * 3, [False] * 3], "bool")
    fill = asarray(autodiff_framework, [7.0, 9.0])

    value = to_numpy(call(name, x, where=keep, fill_value=fill))
    to_fill, _ = derivatives(lambda f: call(name, x, where=keep, fill_value=f), fill, fill)

    assert_close(value[0], to_numpy(call(name, x))[0], 1e-15)  # another program of XLA
    assert value[1] == 9.0
    np.testing.assert_array_equal(to_fill, [0.0, 1.0])


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("family", ["safe_", "nan"])
def test_the_initial_value_has_a_gradient(family, kind, autodiff_framework):
    """`initial` takes part like one more entry in each slice, with its own gradient."""
    name = family + kind
    x = asarray(autodiff_framework, [[2.0, 3.0], [0.5, 7.0]])
    initial = asarray(autodiff_framework, 2.5)
    with_it = {"sum": [7.5, 10.0], "prod": [15.0, 8.75], "max": [3, 7], "min": [2.0, 0.5]}
    slopes = {"sum": 2.0, "prod": 9.5, "max": 0.0, "min": 0.0}
    beyond = {"max": 9.0, "min": 0.25}.get(kind, 2.5)

    value = to_numpy(call(name, x, initial=initial))
    to_initial, _ = derivatives(lambda i: call(name, x, initial=i), initial, initial)
    far = asarray(autodiff_framework, beyond)
    to_far, _ = derivatives(lambda i: call(name, x, initial=i), far, far)

    np.testing.assert_array_equal(value, with_it[kind])
    assert to_initial == slopes[kind]
    assert to_far == {"max": 2.0, "min": 2.0}.get(kind, slopes[kind])


@pytest.mark.parametrize("name", ["safe_sum", "nanprod", "safe_max", "nanmin"])
def test_the_initial_value_is_one_number(name, framework):
    """An array as `initial` would have to say along which axes."""
    x = asarray(framework, np.ones((2, 3)))

    with pytest.raises(ValueError, match=r"expected one number as initial, got .* \(3,\)"):
        call(name, x, initial=asarray(framework, np.ones(3)))


@named(FAMILIES)
@pytest.mark.parametrize("axis", [-1, 0], ids=str)
def test_masks_broadcast(name, axis, framework):
    """A mask with fewer axes, or with more, counts as one of the shape of both."""
    x = asarray(framework, HARMLESS[:, :3])
    for mask in ([True, False, True], [[True], [False]], [[[False, True, True]], [[True] * 3]]):
        both = np.broadcast_arrays(HARMLESS[:, :3], mask)

        value = to_numpy(call(name, x, where=asarray(framework, mask, "bool"), axis=axis))

        full = [asarray(framework, a, d) for a, d in zip(both, ("float64", "bool"), strict=True)]
        assert_close(value, to_numpy(call(name, full[0], where=full[1], axis=axis)), RTOL)


@named(["safe_sum", "safe_mean", "safe_max", "nanmedian"])
def test_gradients_of_a_broadcast_argument_add_up(name, autodiff_framework):
    """An entry that a larger mask repeats has the sum of the gradients of its copies."""
    x = asarray(autodiff_framework, [1.0, 2.0, 4.0])
    keep = asarray(autodiff_framework, [[True, True, False], [True, False, False]], "bool")
    wanted = {"safe_sum": [2, 1, 0], "safe_max": [1, 1, 0]}

    gradient, _ = derivatives(lambda x: call(name, x, where=keep), x, x)

    np.testing.assert_array_equal(gradient, wanted.get(name, [1.5, 0.5, 0]))


@named([name for name in FAMILIES if name not in INDICES + RUNNING])
def test_over_no_axes(name, framework):
    """With an empty tuple as axis each entry is a slice, as in NumPy, and no axis is dropped."""
    x = np.array([[1.0], [4.0]])

    value = to_numpy(call(name, asarray(framework, x), axis=()))

    spread = name.removeprefix("nan").removeprefix("safe_") in ("var", "std")
    np.testing.assert_array_equal(value, 0 * x if spread else x)


@named([name for name in FAMILIES if name not in INDICES + RUNNING])
@pytest.mark.parametrize("axis", [2, -3, (0, 2), (1, 1), (1, -1)], ids=str)
def test_axes_that_are_not_there(name, axis, framework):
    """An axis out of range, or twice the same, is an error of the framework, or of ours."""
    x = asarray(framework, np.ones((2, 3)))

    with pytest.raises((ValueError, IndexError, RuntimeError, errors_of(framework))):
        call(name, x, axis=axis)


def errors_of(framework):
    """Return the error that a framework has of its own."""
    if framework == "tensorflow":
        import tensorflow as tf

        return tf.errors.InvalidArgumentError
    return ValueError


@named(INDICES + RUNNING)
def test_one_axis_only(name, framework):
    """An index, or a running sum, is along one axis, which TypeError says."""
    with pytest.raises(TypeError, match=r"expected an int or None as axis, got \(0, 1\): "):
        call(name, asarray(framework, np.ones((2, 3))), axis=(0, 1))


@pytest.mark.only("tensorflow")
@named(FAMILIES)
def test_axes_of_unknown_lengths(name):
    """Several axes of lengths that a graph does not know have the same value."""
    import tensorflow as tf

    x = tf.constant(np.where(HOLES, HARMLESS, nan)[:, None, :] + np.zeros((2, 3, 1)))
    axis = 1 if name in INDICES + RUNNING else (0, -1)
    spec = tf.TensorSpec([None, None, None], x.dtype)

    value = tf.function(lambda x: call(name, x, axis=axis), input_signature=[spec])(x)

    assert_close(value, call(name, x, axis=axis), RTOL)


@named(["nanvar", "nanstd", "safe_var", "safe_std"])
def test_a_correction(name, framework):
    """The divisor is n - correction, and NaN is what nothing divides."""
    x = asarray(framework, [1.0, 2.0, 6.0])
    values = [to_numpy(call(name, x, correction=c)) for c in (0, 1, 0.5, 3, 4)]

    wanted = [14 / 3, 7.0, 14 / 2.5, nan, nan]
    assert_close(values, np.sqrt(wanted) if name.endswith("std") else wanted, RTOL)


# Dtypes.


@pytest.mark.only("jax", "numpy", "tensorflow", "torch")
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64"])
@named(FAMILIES)
def test_integers(name, dtype, framework):
    """Sums and products of integers have 64 bits, extremes keep them, the rest divides."""
    numbers = [[1, 0, 1], [1, 1, 1]] if dtype == "bool" else [[100, 100, 3], [0, 100, 2]]

    got = call(name, asarray(framework, numbers, dtype))

    whole = np.array(numbers, dtype=dtype)
    wanted = call(name, whole.astype(float))
    assert_close(to_numpy(got), wanted, 1e-6)
    assert dtype_name(got.dtype) in integer_dtypes(name, dtype)


def integer_dtypes(name, dtype):
    """Return the dtypes that the result of integers may have."""
    if name in INDICES:
        return {"int64"}
    if name in EXTREMES:
        return {dtype}
    if name.endswith(DIVIDED):
        return {"float32", "float64"}
    return {"uint64", "int64"} if dtype == "uint8" else {"int64"}  # torch sums all in int64


@named(EXTREMES)
def test_integers_have_no_nan(name, framework):
    """Where a slice of integers may be empty, `initial` or `fill_value` must say what it is."""
    x = asarray(framework, [[5, 9, 7], [5, 5, 5]], "int64")
    keep = asarray(framework, [[True, False, True], [False] * 3], "bool")
    wanted = 7 if name.endswith("max") else 5  # 6 is beyond neither

    with pytest.raises(ValueError, match=r"expected initial or fill_value .* int64 has no NaN"):
        call(name, x, where=keep)

    assert to_numpy(call(name, x, where=keep, fill_value=-1)).tolist() == [wanted, -1]
    assert to_numpy(call(name, x, where=keep, initial=6)).tolist() == [wanted, 6]


@pytest.mark.only("jax", "numpy", "tensorflow", "torch")
@named([*EXTREMES, "safe_sum", "safe_prod"])
def test_booleans_with_a_mask(name, framework):
    """Booleans have neutral elements too."""
    x = asarray(framework, [[True, False], [True, True], [False, False]], "bool")
    keep = asarray(framework, [[True, False], [False, True], [False, False]], "bool")
    fill = {} if name[-3:] not in ("max", "min") else {"fill_value": True}

    value = to_numpy(call(name, x, where=keep, **fill))

    assert value.tolist() == [1, 1, {"safe_sum": 0}.get(name, 1)]


@named(REDUCED)
@pytest.mark.parametrize("dtype", LESS_THAN_FLOAT64)
def test_dtypes_are_kept(name, dtype, autodiff_framework):
    """Value and gradient have the dtype of the argument, also where an option is of float64."""
    x = asarray(autodiff_framework, [[1.0, nan, 2.0], [nan, nan, nan]], dtype)
    fill = asarray(autodiff_framework, [3.0, 4.0])
    backend = backend_of(x)

    value = call(name, x, fill_value=fill)
    slope = backend.grad(lambda x: backend.xp.sum(call(name, x)))
    (gradient,) = in_one_program(backend.name, slope)(x)

    assert dtype_name(value.dtype) == dtype_name(gradient.dtype) == dtype


MANY = 100_000  # more than float16 counts, and than bfloat16 can


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@named(["nanmean", "nanvar", "nanstd", "safe_mean"])
def test_narrow_dtypes_accumulate_in_a_wider_one(name, dtype, autodiff_framework):
    """A mean over more entries than a narrow dtype can count is right to its own precision."""
    x = np.tile([1.0, 3.0], MANY // 2)
    wanted = 2.0 if name.endswith("mean") else 1.0
    x = asarray(autodiff_framework, x, dtype)

    backend = backend_of(x)

    value = to_numpy(call(name, x, keepdims=True))
    (gradient,) = backend.grad(lambda x: backend.xp.sum(call(name, x)))(x)

    assert value == wanted
    assert np.isfinite(to_numpy(gradient)).all()


@pytest.mark.only("numpy")
def test_half_precision_in_numpy():
    """Sum and mean of float16 are those of float32, rounded once."""
    x = np.full(MANY, 0.1, np.float16)

    assert so.nanmean(x) == so.safe_mean(x) == np.float16(0.1)
    assert so.nansum(x[:10_000]) == np.float16(np.sum(x[:10_000], dtype=np.float64))


COMPLEX = np.array([[1 + 2j, -1j, 3.0], [nan + 1j, 2 + 2j, 1 - 1j], [nan * 1j, nan, nan]])


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("nansum", [4 + 1j, 3 + 1j, 0]),
        ("nanprod", [6 - 3j, 4, 1]),
        ("nanmean", [(4 + 1j) / 3, 1.5 + 0.5j, nan]),
        ("nanvar", [28 / 9, 2.5, nan]),
        ("nanstd", [28**0.5 / 3, 2.5**0.5, nan]),
    ],
)
def test_complex_numbers(name, wanted, framework):
    """A complex number is absent if one of its parts is NaN; a variance is real."""
    x = asarray(framework, COMPLEX, "complex128")

    with np.errstate(invalid="ignore"):  # array-api-strict is NumPy inside, which warns of NaN
        value = to_numpy(call(name, x))

    assert np.iscomplexobj(value) == (name[-3:] not in ("var", "std"))
    assert_close([value.real, value.imag], [np.real(wanted), np.imag(wanted)], RTOL, atol=RTOL)


@named([name for name in FAMILIES if name in INDICES or name.endswith(("max", "min", "median"))])
def test_complex_numbers_have_no_order(name, framework):
    """What needs an order refuses complex numbers, and says what to do."""
    with pytest.raises(TypeError, match=r"got complex128 as x; .* pass the real part"):
        call(name, asarray(framework, COMPLEX, "complex128"))


# Accuracy.


def one_pass(x):
    """Return the mean of the squares less the square of the mean, as people write it."""
    return (x * x).mean() - x.mean() ** 2


@pytest.mark.parametrize(("dtype", "offset"), [("float64", 1e8), ("float32", 1e4)])
@named(["nanvar", "nanstd", "safe_var", "safe_std"])
def test_an_offset_costs_no_digits(name, dtype, offset, framework):
    """Far from the origin a variance is right to the last digits; that of one pass is not."""
    x = (offset + np.tile([1.0, 2.0, 3.0], 1000)).astype(dtype)
    wanted = 2 / 3 if name.endswith("var") else (2 / 3) ** 0.5
    rtol = 8 * np.finfo(dtype).eps

    value = to_numpy(call(name, asarray(framework, x, dtype)))

    assert_close(value, wanted, rtol)
    with pytest.raises(AssertionError, match="got"):
        assert_close(one_pass(x), 2 / 3, 0.01)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("number", [0.1, 1 / 3, 1e8 + 0.1, -7.7e-5])
@named(["nanstd", "safe_std", "nanvar", "safe_var"])
def test_a_constant_slice_does_not_spread(name, number, dtype, autodiff_framework):
    """Deviation and gradient are exactly 0 for equal entries, also if their mean rounds."""
    x = asarray(autodiff_framework, np.full((2, 7), number), dtype)

    value = to_numpy(call(name, x))
    gradient, slope = derivatives(lambda x: call(name, x), x, x + 1)

    assert not value.any()
    assert not gradient.any()
    assert slope == 0


@named(["nanstd", "safe_std"])
def test_huge_entries_do_not_overflow(name, autodiff_framework):
    """A deviation of 1e30 is one in float32 too, and its gradient that of mathematics."""
    x = asarray(autodiff_framework, [1e30, -1e30, 1e30, -1e30], "float32")

    value = to_numpy(call(name, x))
    gradient, _ = derivatives(lambda x: call(name, x), x, x)

    assert_close(value, 1e30, 1e-6)
    assert_close(gradient, [0.25, -0.25, 0.25, -0.25], 1e-6)


@named(["nanmedian", "nanpercentile", "nanquantile"])
def test_entries_of_either_end_do_not_overflow(name, framework):
    """Between the largest number and its negative there is a finite one."""
    top = np.finfo(float).max

    value = to_numpy(call(name, asarray(framework, [-top, top])))

    assert_close(value, 0 if name == "nanmedian" else -top / 4, RTOL)


# Against NumPy, at arrays that Hypothesis picks.

NUMBERS = st.one_of(st.just(nan), st.floats(-100, 100, width=32))
HOLED = arrays(float, array_shapes(min_dims=1, max_dims=3, max_side=4), elements=NUMBERS)


@pytest.mark.only("array-api-strict", "numpy", "torch")  # the others compile each shape anew
@named(NAN)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, for slices without entries
@given(x=HOLED, data=st.data())
def test_values_are_those_of_numpy(name, framework, x, data):
    """The nan family has NumPy's values, along any axis of any array."""
    several = st.tuples(*(st.booleans() for _ in x.shape)).map(
        lambda chosen: tuple(i for i, c in enumerate(chosen) if c)
    )
    one = st.one_of(st.none(), st.integers(-x.ndim, x.ndim - 1))
    axis = data.draw(one if name in INDICES + RUNNING else st.one_of(one, several))

    value = to_numpy(call(name, asarray(framework, x), axis=axis))

    assert_close(value, of_numpy(name, x, axis), 1e-11, atol=1e-11 * 100**2)


def of_numpy(name, x, axis):
    """Return NumPy's value, and -1 where it would raise."""
    if name == "nanquantile":
        return np.nanquantile(x, 0.375, axis=axis)
    if name == "nanpercentile":
        return np.nanpercentile(x, 37.5, axis=axis)
    if name in INDICES:
        none = np.isnan(x).all(axis=axis)
        filled = np.where(np.isnan(x), inf if name.endswith("min") else -inf, x)
        return np.where(none, -1, getattr(np, name[3:])(filled, axis=axis))
    return getattr(np, name)(x, axis=axis)
