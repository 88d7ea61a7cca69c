"""What NumPy owns beside arrays of a framework, weak numbers, and what NumPy itself gets back."""

import inspect
import pickle

import numpy as np
import pytest

import safeops
from assertions import assert_close
from calls import (
    ALONG_SLICES,
    ELEMENTWISE,
    INDICES,
    KEEP_SHAPE,
    OPS,
    PAIRS,
    PAIRS_OF_SLICES,
    RTOL,
    arguments,
    call,
    gradients,
    public,
    sample,
    takes,
)
from frameworks import asarray, to_numpy
from safeops._core.dtypes import dtype_name
from safeops._dispatch import backend_of

HOSTS = pytest.mark.only("jax", "tensorflow")
SHAPE = (2, 3)


def as_numpy(name, dtype="float64"):
    """Return the arguments of an operation as arrays of NumPy."""
    return arguments(name, "numpy", SHAPE, dtype)


@HOSTS
@pytest.mark.parametrize("name", [*PAIRS, *PAIRS_OF_SLICES])
def test_arrays_of_numpy_are_constants(name, framework):
    """Beside an array of JAX or TensorFlow one of NumPy is a constant, on either side."""
    x, y = arguments(name, framework, SHAPE)
    a, b = as_numpy(name)
    exact, to_x, to_y = to_numpy(call(name, x, y)), *gradients(name, x, y)

    for one, two in ((x, b), (a, y)):
        result = call(name, one, two)
        assert backend_of(result).name == framework
        assert_close(to_numpy(result), exact, RTOL)
    xp, grad = backend_of(x).xp, backend_of(x).grad
    assert_close(to_numpy(grad(lambda x: xp.sum(call(name, x, b)))(x)[0]), to_x, RTOL)
    assert_close(to_numpy(grad(lambda y: xp.sum(call(name, a, y)))(y)[0]), to_y, RTOL)


@pytest.mark.only("jax")
@pytest.mark.parametrize("number", [np.iinfo(np.int64).min, 2**32])
@pytest.mark.parametrize(
    "call",
    [
        safeops.safe_cross_entropy,
        safeops.safe_nll,
        lambda x, ids: safeops.segments.segment_sum(x[0], ids, 1),
        safeops.safe_div,
    ],
)
@pytest.mark.usefixtures("users_defaults")
def test_a_whole_number_that_jax_does_not_have_is_refused(call, number):
    """JAX wraps it around to 0: the class of a label, the id of a segment."""
    import jax.numpy as jnp

    x, numbers = jnp.ones((1, 1)), np.array([number])

    assert jnp.asarray(numbers)[0] == 0
    with pytest.raises(ValueError, match=rf"^\w+: expected whole numbers .* got {number} to"):
        call(x, numbers)
    np.testing.assert_array_equal(call(x, np.array([0])), call(x, jnp.array([0])))


OPTIONS = {"where": [[True, False, True]] * 2, "fill_value": 7.0, "initial": 2.0, "b": [2.0] * 3}


@HOSTS
@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_numpy_are_constants(option, framework):
    """So is one in a keyword; and an option of the framework makes a constant of `x`."""
    for name in (name for name in OPS if takes(name, option)):
        args, op, guest = arguments(name, framework, SHAPE), public(name), np.array(OPTIONS[option])
        ours = asarray(framework, guest, "bool" if option == "where" else "float64")

        wanted = to_numpy(op(*args, **{option: ours}))

        # Rounding apart: a kernel of TensorFlow takes one of the two.
        assert_close(to_numpy(op(*args, **{option: guest})), wanted, 1e-15, name)
        as_host = op(*as_numpy(name), **{option: ours})
        assert backend_of(as_host).name == framework
        assert_close(to_numpy(as_host), wanted, RTOL, name)


@pytest.mark.only("jax")
def test_a_mask_of_numpy_in_a_compiled_function():
    """A mask of NumPy that a traced function closes over leaves out what it says."""
    import jax
    import jax.numpy as jnp

    keep = np.array([True, False])

    def loss(x):
        return safeops.nansum(safeops.safe_log(x), where=keep) + jnp.sum(
            safeops.safe_where(keep, x, jnp.log, fill_value=np.float64(0))
        )

    slope = jax.jit(jax.grad(loss))(jnp.asarray([4.0, 0.0]))

    np.testing.assert_array_equal(slope, [0.5, 0.0])


@HOSTS
def test_combinators_take_constants_of_numpy(framework):
    """A mask, an operand, a fill value and a placeholder of NumPy stand beside an array."""
    x, keep = asarray(framework, [4.0, 0.0]), np.array([True, False])
    root = backend_of(x).xp.sqrt
    other = np.array([1.0, 2.0])
    safe = safeops.make_safe(root, lambda x: x > 0, placeholder=np.ones(()), fill_value=other)

    results = (
        safeops.safe_where(keep, x, root, fill_value=other, placeholder=np.float64(1)),
        safeops.safe_where(keep, (x, other), lambda x, _: root(x), lambda _, y: y),
        safeops.vectorized_cond(keep, lambda x, _: root(x), lambda _, y: y, x, other),
        safe(x),
    )

    for result in results:
        assert backend_of(result).name == framework
        np.testing.assert_array_equal(to_numpy(result), [2.0, 2.0])


@pytest.mark.only("jax", "numpy", "tensorflow")
def test_classes_may_be_numpys(framework):
    """Integers of NumPy are the classes of logits of any framework that takes them."""
    logits = asarray(framework, np.log([[0.7, 0.2, 0.1]] * 2))

    loss = safeops.safe_cross_entropy(logits, np.array([0, 2]))

    assert_close(to_numpy(loss), [-np.log(0.7), -np.log(0.1)], RTOL)


@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.only("jax", "tensorflow", "torch")
@pytest.mark.parametrize("scalar", [np.float32(2), np.float64(2), np.int64(2)], ids=repr)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_scalars_of_numpy_promote_as_in_the_framework(dtype, scalar, framework):
    """Beside a scalar of NumPy the dtype is that of the framework's own product."""
    x = asarray(framework, [1.0, 4.0], dtype)

    results = (
        safeops.safe_div(x, scalar),
        safeops.safe_div(scalar, x),
        safeops.safe_sqrt(x, fill_value=scalar),
        safeops.nansum(x, fill_value=scalar),
    )

    for result in results[: 3 if framework == "jax" else 4]:  # nansum keeps the dtype of x
        assert dtype_name(result.dtype) == dtype_name((x * scalar).dtype)


@pytest.mark.only("torch")
@pytest.mark.parametrize("scalar", [np.float32(2), np.int64(2), np.float16(2)], ids=repr)
@pytest.mark.parametrize("name", PAIRS)
def test_pytorch_takes_scalars_of_numpy(name, scalar):
    """Beside a tensor a scalar of NumPy is a Python scalar, in either place."""
    x, y = arguments(name, "torch", SHAPE, "float32")

    for of_numpy, plain in (((x, scalar), (x, 2.0)), ((scalar, y), (2.0, y))):
        result = call(name, *of_numpy)
        assert dtype_name(result.dtype) == "float32"
        np.testing.assert_array_equal(to_numpy(result), to_numpy(call(name, *plain)))


@pytest.mark.together
@pytest.mark.parametrize("pair", [("torch", "jax"), ("jax", "tensorflow"), ("tensorflow", "torch")])
@pytest.mark.parametrize("name", ["safe_div", "safe_distance"])
def test_two_other_frameworks_are_refused(name, pair):
    """Arrays of two of PyTorch, JAX and TensorFlow raise TypeError, which names both."""
    (x, _), (_, y) = (arguments(name, framework) for framework in pair)

    with pytest.raises(TypeError, match=f"{name}: .*got {pair[0]} and {pair[1]} .*convert"):
        call(name, x, y)


# Weak numbers of JAX.

# As in JAX: these make a strong result of a weak number.
STRONG = {"safe_log2", "safe_log10"}


@pytest.mark.only("jax")
@pytest.mark.parametrize("dtype", [float, int])
@pytest.mark.parametrize("name", [name for name in ELEMENTWISE if name not in STRONG])
def test_weak_numbers_stay_weak(name, dtype):
    """A number that `jit` traces leaves bfloat16 as it is, and so does its result."""
    import jax
    import jax.numpy as jnp

    half, number = jnp.ones(2, jnp.bfloat16), dtype(2)
    numbers = [number for _ in sample(name)]

    assert jax.jit(lambda *x: call(name, *x) * half)(*numbers).dtype == jnp.bfloat16
    assert call(name, *map(jnp.asarray, numbers)).weak_type
    assert not call(name, *(half for _ in numbers)).weak_type
    if len(numbers) > 1:
        assert call(name, jnp.asarray(number), half).dtype == jnp.bfloat16
        assert not call(name, jnp.asarray(number), half).weak_type


# What NumPy gets back.


@pytest.mark.only("numpy")
@pytest.mark.parametrize("name", [*(n for n in ALONG_SLICES if n not in KEEP_SHAPE), *INDICES])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_a_reduction_of_all_axes_is_a_scalar(name, dtype):
    """Over all axes a result is a scalar of NumPy, as that of NumPy: hashable, and rounds."""
    if name == "safe_cross_entropy":
        pytest.skip("has one axis of classes")
    args = [np.ones(SHAPE, dtype) for _ in sample(name)] if name in OPS else [np.ones(SHAPE, dtype)]
    options = [{"axis": None}, {"axis": None, "where": np.ones(SHAPE, bool)}, {"axis": (0, 1)}]

    for option in options[: 2 if name in INDICES else 3]:
        result = public(name)(*args, **option)
        assert isinstance(result, np.generic)
        assert hash(result) == hash(result.item())
        assert round(result) == round(float(result))


@pytest.mark.only("numpy")
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_a_number_has_a_number(name):
    """Of a scalar or of an array without dimensions the result is a scalar, as in NumPy."""
    for make in (np.asarray, np.float64):
        args = [make(x) for x in sample(name)]

        assert isinstance(call(name, *args), np.generic)
        assert isinstance(call(name, *(np.float32(x) for x in sample(name))), np.float32)


# Functions that are made.


def positive(x):
    """Whether a number has a logarithm."""
    return x > 0


def logarithm(x, /):
    """Logarithm."""
    return np.log(x)


def test_a_function_made_safe_can_be_pickled():
    """It comes back as the same function, with the name, signature and words of what it wraps."""
    safe = safeops.make_safe(logarithm, positive, placeholder=1.0, fill_value=-1.0)

    copy = pickle.loads(pickle.dumps(safe))  # noqa: S301  (our own)

    np.testing.assert_array_equal(copy(np.array([1.0, 0.0])), [0.0, -1.0])
    assert (copy.__name__, copy.__doc__) == ("logarithm", "Logarithm.")
    assert inspect.signature(copy) == inspect.signature(logarithm)
    assert isinstance(copy(np.float64(1)), np.float64)


@pytest.mark.only("tensorflow")
def test_a_function_of_tensorflow_made_safe_can_be_pickled():
    """What TensorFlow attaches to its functions cannot be pickled, and is not copied."""
    import tensorflow as tf

    safe = safeops.make_safe(tf.math.log, positive, placeholder=1.0, fill_value=-1.0)

    copy = pickle.loads(pickle.dumps(safe))  # noqa: S301  (our own)

    assert to_numpy(copy(tf.constant([1.0, 0.0]))).tolist() == [0.0, -1.0]
