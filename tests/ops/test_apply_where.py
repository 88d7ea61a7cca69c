"""`safe_where` in place of `array_api_extra.apply_where`: shapes, dtypes, devices, values."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from branches import minus, plus
from frameworks import asarray, to_numpy
from safeops import safe_where, vectorized_cond
from safeops._core.dtypes import dtype_name
from safeops._dispatch import backend_of


@pytest.fixture
def numbers(framework):
    """Return 1 to 4, and which of them are even."""
    return asarray(framework, [1, 2, 3, 4], "int64"), asarray(framework, [False, True] * 2, "bool")


def test_one_argument_and_two_branches(numbers):
    """Each entry comes from one of two functions; integers stay integers."""
    x, even = numbers

    out = safe_where(even, x, plus, minus)

    assert dtype_name(out.dtype) == "int64"
    np.testing.assert_array_equal(to_numpy(out), [-9, 12, -7, 14])


def test_several_arguments(numbers, framework):
    """Arguments in a tuple go to both functions in their order."""
    x, even = numbers
    y = asarray(framework, [10, 20, 30, 40], "int64")

    out = safe_where(even, (x, y), plus, minus)

    np.testing.assert_array_equal(to_numpy(out), [-9, 22, -27, 44])


def test_a_fill_value_is_a_number_or_an_array(numbers, framework):
    """A number and an array of that number fill alike, and the array is not written to."""
    x, even = numbers
    array = asarray(framework, [0, -1, -2, -3], "int64")

    by_number = safe_where(even, x, plus, fill_value=0)
    by_scalar = safe_where(even, x, plus, fill_value=array[0])
    by_array = safe_where(even, x, plus, fill_value=array)

    np.testing.assert_array_equal(to_numpy(by_number), [0, 12, 0, 14])
    np.testing.assert_array_equal(to_numpy(by_scalar), [0, 12, 0, 14])
    np.testing.assert_array_equal(to_numpy(by_array), [0, 12, -2, 14])
    np.testing.assert_array_equal(to_numpy(array), [0, -1, -2, -3])


@pytest.mark.parametrize("function", [plus, lambda x, _: x, lambda _, y: y])
def test_condition_and_arguments_broadcast(framework, function):
    """The result has the shape of all together, also if a function drops an argument."""
    x, y = [1, 2], [[10], [20], [30]]
    mask = np.array([True, False, True, False]).reshape(4, 1, 1)
    cond, args = asarray(framework, mask, "bool"), (asarray(framework, x), asarray(framework, y))
    wanted = np.broadcast_to(np.where(mask, function(np.array(x), np.array(y)), 7.0), (4, 3, 2))

    np.testing.assert_array_equal(
        to_numpy(safe_where(cond, args, function, fill_value=7.0)), wanted, strict=True
    )
    np.testing.assert_array_equal(
        to_numpy(vectorized_cond(cond, function, lambda *_: 7.0, *args)), wanted, strict=True
    )


def test_an_array_as_fill_value_broadcasts_too(framework):
    """The shape of the fill value counts as those of the arguments."""
    x, fill_value = asarray(framework, [1, -2]), asarray(framework, [[10], [20]])

    out = safe_where(x > 0, x, plus, fill_value=fill_value)

    np.testing.assert_array_equal(to_numpy(out), [[11, 10], [11, 20]])


@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.parametrize(
    ("fill_value", "dtype"), [(5, "int16"), ("int8", "int16"), ("int32", "int32")]
)
def test_dtypes_promote(framework, fill_value, dtype):
    """Branches and fill values promote as the standard says; Python scalars are weak."""
    x, y = asarray(framework, [1, 2], "int8"), asarray(framework, [3, 4], "int16")
    if isinstance(fill_value, str):
        fill_value = asarray(framework, [5, 5], fill_value)

    cond, xp = asarray(framework, [True, False], "bool"), backend_of(x).xp

    out = safe_where(cond, (x, y), lambda x, y: xp.astype(x, xp.int16) + y, fill_value=fill_value)

    assert dtype_name(out.dtype) == dtype
    np.testing.assert_array_equal(to_numpy(out), [4, 5])


@pytest.mark.usefixtures("mixed_dtypes")
def test_a_function_may_change_the_dtype(framework):
    """Branches of two dtypes promote to the wider."""
    x = asarray(framework, [1.5, 2.5], "float32")
    xp = backend_of(x).xp

    out = safe_where(x > 2, x, lambda x: x, lambda x: xp.astype(x, xp.float64))

    assert dtype_name(out.dtype) == "float64"


@pytest.mark.only("array-api-strict", "jax", "tensorflow", "torch")
@pytest.mark.usefixtures("mixed_dtypes")
def test_a_float_of_numpy_is_weak(framework):
    """As an operand or a fill value np.float64 is a Python float, but on JAX, where it counts."""
    x = asarray(framework, [4.0, -1.0], "float32")

    out = safe_where(x > 0, (x, np.float64(2)), plus, fill_value=np.float64(0.5))

    assert dtype_name(out.dtype) == ("float64" if framework == "jax" else "float32")
    np.testing.assert_array_equal(to_numpy(out), [6.0, 0.5])


def test_no_dimensions(framework):
    """A single number goes in and comes out, also beside a Python bool."""
    x = asarray(framework, 4.0)

    assert to_numpy(safe_where(x > 0, x, lambda x: x / 2, fill_value=0)) == 2
    assert to_numpy(safe_where(False, x, lambda x: x / 2, fill_value=7)) == 7


def test_the_branch_not_taken_raises_no_warning(framework):
    """Divisions by zero that nobody asked for stay silent, without a placeholder."""
    x, y = asarray(framework, [1.0, 2.0, 0.0]), asarray(framework, [0.0, 3.0, 4.0])

    out = safe_where(x == 0, (x, y), lambda x, y: x / y, lambda x, y: y / x, placeholder=1.0)

    np.testing.assert_array_equal(to_numpy(out), [0.0, 1.5, 0.0])


@pytest.mark.parametrize("options", [(), (minus, 0)])
def test_exactly_one_of_f2_and_fill_value(numbers, options):
    """Neither or both of the two ways to fill raise TypeError."""
    x, even = numbers
    f2, fill_value = options or (None, None)

    with pytest.raises(TypeError, match="expected one of f2 and fill_value"):
        safe_where(even, x, plus, f2, fill_value=fill_value)


@pytest.mark.only("torch")
@pytest.mark.parametrize("options", [{"fill_value": 0}, {"fill_value": 0, "placeholder": 1.0}])
def test_the_device_is_kept(options):
    """No array is made on another device than that of the arguments."""
    import torch

    x = torch.ones(3, device="meta")

    assert safe_where(x > 0, x, torch.log, **options).device == x.device


@pytest.mark.only("array-api-strict")
def test_dask_stays_lazy():
    """Nothing is computed before it is asked for."""
    import dask
    import dask.array as da

    def refuse(*_args, **_options):
        pytest.fail("computed too early")

    with dask.config.set(scheduler=refuse):
        x = da.from_array(np.array([4.0, 0.0]), chunks=1)
        out = safe_where(x > 0, x, lambda x: 1 / x, fill_value=0.0, placeholder=1.0)
        pair = vectorized_cond(x > 0, lambda x: 1 / x, lambda x: x - 1, x, placeholder=1.0)

    np.testing.assert_array_equal(out.compute(), [0.25, 0.0])
    np.testing.assert_array_equal(pair.compute(), [0.25, -1.0])


# Few shapes, so that eager JAX compiles each operation a few times only.
SHAPES = [((2, 3), (3,), (2, 1)), ((3,), (3,), ()), ((), (2, 3), (3,)), ((0, 3), (1, 3), (3,))]


@hypothesis.settings(
    max_examples=25, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(
    seed=st.integers(0, 2**32 - 1),
    shapes=st.sampled_from(SHAPES),
    with_f2=st.booleans(),
    placeholder=st.sampled_from([None, 0.5]),
)
def test_equal_to_where_of_both_branches(framework, seed, shapes, with_f2, placeholder):
    """Whatever the shapes and entries, NaN and inf among them, the value is that of `np.where`."""
    numbers = np.random.default_rng(seed)
    cond = numbers.random(shapes[0]) > 0.5
    x, y = (numbers.choice([-1.5, 0.0, 2.0, np.inf, np.nan], shape) for shape in shapes[1:])
    other = {"fill_value": 7.0} if not with_f2 else {}

    with np.errstate(invalid="ignore"):  # inf - inf, where it is taken
        out = safe_where(
            asarray(framework, cond, "bool"),
            (asarray(framework, x), asarray(framework, y)),
            plus,
            *([minus] if with_f2 else []),
            placeholder=placeholder,
            **other,
        )
        wanted = np.where(cond, x + y, x - y if with_f2 else 7)

    np.testing.assert_array_equal(to_numpy(out), wanted)


@pytest.mark.only("jax")
def test_apply_where_itself_does_not_protect_gradients():
    """Under `jax.jit` apply_where evaluates both branches, and its gradient at the edge is NaN."""
    import jax
    import jax.numpy as jnp
    from array_api_extra import apply_where

    x = jnp.asarray([2.0, 0.0])

    def gradient_of(where):
        return jax.jit(jax.grad(lambda x: where(x > 0, x, jnp.log, fill_value=0.0).sum()))(x)

    np.testing.assert_array_equal(gradient_of(apply_where), [0.5, np.nan])
    np.testing.assert_array_equal(gradient_of(safe_where), [0.5, 0.0])
