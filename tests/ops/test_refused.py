"""What all operations refuse at entry: arrays of two frameworks, and what is no plain array."""

import numpy as np
import pytest

import safeops as so
from calls import (
    DTYPE,
    EVERY,
    OPS,
    PAIRS,
    PAIRS_OF_SLICES,
    arguments,
    call,
    public,
    sample,
    takes,
)
from frameworks import asarray
from safeops._dispatch import backend_of

# JAX and TensorFlow take what NumPy owns, as test_guests.py says.
FOREIGN = pytest.mark.only("array-api-strict", "torch")


@FOREIGN
@pytest.mark.parametrize("name", [*PAIRS, *PAIRS_OF_SLICES])
def test_arrays_of_two_frameworks_are_refused(name, framework):
    """A call with arrays of two frameworks raises TypeError, which names both."""
    x, y = arguments(name, framework)
    ours = backend_of(x).name

    with pytest.raises(TypeError, match=f"one framework, got {ours} and numpy .*convert"):
        call(name, x, np.ones((2, 3)))
    with pytest.raises(TypeError, match=f"one framework, got numpy and {ours} .*convert"):
        call(name, np.ones((2, 3)), y)


@FOREIGN
@pytest.mark.parametrize(
    ("option", "value"),
    [("where", np.array([True])), ("fill_value", np.ones(3)), ("b", np.ones(3))],
)
def test_options_of_another_framework_are_refused(option, value, framework):
    """The same holds for arrays in keywords, of each operation that has the keyword."""
    for name in (name for name in OPS if takes(name, option)):
        op, args = public(name), arguments(name, framework)

        with pytest.raises(TypeError, match=r"expected arrays of one framework, got .*numpy"):
            op(*args, **{option: value})


def sparse_tensor():
    """Return a sparse tensor of PyTorch."""
    import torch

    return torch.eye(2).to_sparse()


def nested_tensor():
    """Return a nested tensor of PyTorch."""
    import torch

    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def ragged_tensor():
    """Return a ragged tensor of TensorFlow."""
    import tensorflow as tf

    return tf.ragged.constant([[1.0], [1.0, 2.0]])


def sparse_of_tensorflow():
    """Return a sparse tensor of TensorFlow."""
    import tensorflow as tf

    return tf.sparse.eye(2)


def indexed_slices():
    """Return the gradient of a gather of TensorFlow."""
    import tensorflow as tf

    return tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([2, 2]))


def symbol_of_keras():
    """Return an input of a Keras model."""
    import keras

    return keras.Input((3,))


def strings_of_tensorflow():
    """Return a tensor of strings."""
    import tensorflow as tf

    return tf.constant(["a"])


def sparse_of_jax():
    """Return a sparse array of JAX."""
    from jax.experimental.sparse import BCOO

    return BCOO.fromdense(np.eye(2))


def random_key():
    """Return a key of random numbers, which is an array of JAX too."""
    import jax

    return jax.random.key(0)


ANY = "expected arrays of one framework out of .*, got "
REFUSED = {
    "list": (None, lambda: [1.0, 2.0], ANY + "list"),
    "tuple": (None, lambda: (1.0, 2.0), ANY + "tuple"),
    "None": (None, lambda: None, ANY + "None as"),
    "str": (None, lambda: "1.0", ANY + "str"),
    "range": (None, lambda: range(3), ANY + "range"),
    "objects": ("numpy", lambda: np.array([1.0, None]), DTYPE + "object.*; convert"),
    "strings": ("numpy", lambda: np.array(["1.0"]), DTYPE + "str.*; convert"),
    "dates": ("numpy", lambda: np.array(["2020-01-01"], "datetime64[D]"), DTYPE + "datetime64.*"),
    "long doubles": ("numpy", lambda: np.ones(2, np.longdouble), DTYPE + ".*; convert"),
    "masked": ("numpy", lambda: np.ma.ones(3), "plain ndarray, got a MaskedArray; pass x.data"),
    "matrix": ("numpy", lambda: np.matrix([[1.0]]), r"got a matrix; pass np.asarray\(x\)"),
    "sparse": ("torch", sparse_tensor, r"dense tensor, got layout torch.sparse_coo; .*to_dense"),
    "nested": ("torch", nested_tensor, r"dense tensor, got .*nested.*; pass .*to_padded_tensor"),
    "BCOO": ("jax", sparse_of_jax, ANY + "BCOO"),
    "random key": ("jax", random_key, DTYPE + "key<.*; convert"),
    "ragged": ("tensorflow", ragged_tensor, r"dense tensor, got RaggedTensor; pass x.to_tensor"),
    "sparse of tensorflow": ("tensorflow", sparse_of_tensorflow, "got SparseTensor; pass .*dense"),
    "symbol": ("tensorflow", symbol_of_keras, "expected a tensor, got KerasTensor; wrap the call"),
    "slices": ("tensorflow", indexed_slices, "got IndexedSlices; pass tf.convert_to_tensor"),
    "strings of tensorflow": (
        "tensorflow",
        strings_of_tensorflow,
        DTYPE + r"string as \w+; convert",
    ),
}


THINGS = [
    pytest.param(owner, make, words, id=name, marks=pytest.mark.only(owner) if owner else ())
    for name, (owner, make, words) in REFUSED.items()
]


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(("owner", "make", "words"), THINGS)
@EVERY
def test_what_is_no_plain_array_is_refused(name, owner, make, words):
    """TypeError says what was given, what is accepted, or the way out, for each argument."""
    for position in range(len(sample(name))):
        args = arguments(name, owner or "numpy")
        args[position] = make()

        with pytest.raises(TypeError, match=words):
            call(name, *args)


@pytest.mark.only("numpy")
@pytest.mark.parametrize("option", ["where", "fill_value", "b"])
def test_options_are_plain_arrays_too(option):
    """The same holds for arrays in keywords, of each operation that has the keyword."""
    value = np.ma.array([True, True, False], bool if option == "where" else float)

    for name in (name for name in OPS if takes(name, option)):
        with pytest.raises(TypeError, match=r"expected a plain ndarray, got a MaskedArray"):
            public(name)(*arguments(name, "numpy"), **{option: value})


@EVERY
def test_python_scalars_alone_are_refused(name):
    """Without an array there is no framework to compute in."""
    with pytest.raises(
        TypeError, match=r"expected at least one array of .*, got the Python number"
    ):
        call(name, *(1.0 for _ in sample(name)))


@pytest.mark.parametrize("name", [name for name in OPS if takes(name, "where")])
@pytest.mark.parametrize("mask", [[1.0, 0.0, 1.0], [1, 0, 1]], ids=["floats", "integers"])
def test_a_mask_is_boolean(name, mask, framework):
    """Numbers as `where` raise TypeError: weights are something else."""
    where = asarray(framework, mask, "float64" if isinstance(mask[0], float) else "int64")

    with pytest.raises(TypeError, match=r"boolean array \(True = keep\), got .*64"):
        call(name, *arguments(name, framework), where=where)


def test_a_dtype_error_lists_the_dtypes_of_the_function():
    """Complex dtypes are listed by functions that take them, and by no other."""
    wrong = np.zeros(2, np.longdouble)
    with pytest.raises(TypeError, match="expected a dtype out of") as real:
        so.safe_log(wrong)
    with pytest.raises(TypeError, match=r"expected a dtype out of.*complex64"):
        so.safe_norm(wrong)

    assert "complex" not in str(real.value)
