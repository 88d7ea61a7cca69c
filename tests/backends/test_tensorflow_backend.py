"""TensorFlow as a backend: gradients, variables, what is refused, and the state of the process."""

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import safeops
from frameworks import asarray
from namespace import backend_slope
from safeops._backends import load

pytestmark = pytest.mark.only("tensorflow")


def test_a_cast_to_complex_warns_of_its_gradient_and_ours_does_not(tensorflow_log):
    """The gradient of tf.cast from real to complex logs that it discards a part."""
    import tensorflow as tf

    backend = load("tensorflow")
    x = tf.constant([1.0])

    theirs = backend.grad(lambda x: tf.math.real(tf.cast(x, tf.complex64)))(x)
    said = list(tensorflow_log)
    tensorflow_log.clear()
    ours = backend.grad(lambda x: tf.math.real(backend.xp.astype(x, tf.complex64)))(x)

    assert "You are casting an input of type complex64" in said[0]
    assert tensorflow_log == []
    assert theirs[0].numpy() == ours[0].numpy() == [1.0]


@pytest.fixture
def tensorflow_log():
    """Yield the list of what TensorFlow logs."""
    import tensorflow as tf

    said = []

    class Listener(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())

    listener = Listener()
    tf.get_logger().addHandler(listener)
    yield said
    tf.get_logger().removeHandler(listener)


def test_unconnected_arguments_have_gradient_zero():
    """What does not depend on an argument has derivative 0, in both modes, also nested."""
    backend = load("tensorflow")
    x, y = asarray("tensorflow", [1.0, 2.0]), asarray("tensorflow", [[3.0]])

    def constant(_):
        return x

    gradients = backend.grad(lambda x, _: x * x)(x, y)
    forward = backend.jvp(constant)((y,), (y,))
    nested = backend.jvp(backend_slope(backend, constant))((y,), (y,))

    np.testing.assert_array_equal(gradients[0], [2.0, 4.0])
    np.testing.assert_array_equal(gradients[1], [[0.0]])
    np.testing.assert_array_equal(forward, [0.0, 0.0])
    np.testing.assert_array_equal(nested, [0.0, 0.0])


def test_integers_have_no_slope_and_are_not_warned_of(tensorflow_log):
    """An integer argument has gradient 0 and its tangent no effect; TensorFlow says nothing."""
    import tensorflow as tf

    backend = load("tensorflow")
    x, n = tf.constant([1.0, 2.0]), tf.constant([3, 4])

    def f(x, n):
        return x * x * tf.cast(n, x.dtype)

    gradients = backend.grad(f)(x, n)
    slopes = backend_slope(backend, f)
    second = backend_slope(backend, slopes)(x, n)

    np.testing.assert_array_equal(gradients[0], [6.0, 16.0])
    np.testing.assert_array_equal(gradients[1], [0, 0])
    np.testing.assert_array_equal(slopes(x, n), [6.0, 16.0])
    np.testing.assert_array_equal(second, [6.0, 8.0])
    assert tensorflow_log == []


def test_variables_are_arguments_like_any_other():
    """Functions take variables, and the backend differentiates with respect to them."""
    import tensorflow as tf

    backend = load("tensorflow")
    x = tf.Variable([1.0, 2.0])

    np.testing.assert_array_equal(backend.xp.max(x), 2.0)
    np.testing.assert_array_equal(backend.grad(lambda x: x * x)(x)[0], [2.0, 4.0])
    np.testing.assert_array_equal(backend_slope(backend, lambda x: x * x)(x), [2.0, 4.0])


def test_what_a_function_closes_over_is_constant():
    """An array that is argument and closed over is differentiated as argument alone."""
    import tensorflow as tf

    backend = load("tensorflow")
    x = tf.constant([3.0])

    np.testing.assert_array_equal(backend.grad(lambda y: x * y)(x)[0], [3.0])
    np.testing.assert_array_equal(backend_slope(backend, lambda y: x * y)(x), [3.0])


def test_a_detector_that_was_on_stays_on():
    """The NaN detector raises inside, and leaves the user's own setting as it was."""
    import tensorflow as tf

    detector = load("tensorflow").nan_detector
    bad = tf.constant([-1.0])

    with detector():
        with detector():
            pass
        with pytest.raises(tf.errors.InvalidArgumentError, match="NaN"):
            tf.math.log(bad)

    assert np.isnan(tf.math.log(bad)).all()


def make_refused():
    """Return what safe operations refuse, by the words of the error."""
    import keras
    import tensorflow as tf

    return {
        "got RaggedTensor; pass x.to_tensor()": tf.ragged.constant([[1.0], [2.0, 3.0]]),
        "got SparseTensor; pass tf.sparse.to_dense(x)": tf.sparse.from_dense([[1.0, 0.0]]),
        "got IndexedSlices; pass tf.convert_to_tensor(x)": tf.IndexedSlices([1.0], [0]),
        "got string as x; convert the array first": tf.constant(["1.0"]),
        "got KerasTensor; wrap the call in keras.layers.Lambda": keras.Input((3,)),
    }


@pytest.mark.parametrize(
    "kind", ["RaggedTensor", "SparseTensor", "IndexedSlices", "string", "KerasTensor"]
)
def test_what_is_no_dense_number_is_refused(kind):
    """The TypeError names the kind and the way out."""
    ((words, x),) = (pair for pair in make_refused().items() if f"got {kind}" in pair[0])

    with pytest.raises(TypeError, match=re.escape(words)):
        safeops.safe_log(x)


def test_a_keras_model_takes_the_way_out():
    """Inside keras.layers.Lambda a safe operation works in a functional model."""
    import keras

    symbol = keras.Input((2,))
    layer = keras.layers.Lambda(lambda x: safeops.safe_log(x, fill_value=-1.0), output_shape=(2,))
    model = keras.Model(symbol, layer(symbol))

    value = model(np.array([[1.0, 0.0]], dtype="float32"))

    np.testing.assert_array_equal(value, [[0.0, -1.0]])


STATE = """
import tensorflow as tf

def state():
    answers = [tf.executing_eagerly(), tf.config.functions_run_eagerly()]
    answers += [tf.config.optimizer.get_jit(), tf.config.optimizer.get_experimental_options()]
    answers += [tf.config.get_soft_device_placement(), tf.keras.backend.floatx()]
    answers += [tf.config.experimental.tensor_float_32_execution_enabled()]
    answers += [set(dir(tf.Tensor)), set(dir(type(tf.constant(1.0)))), tf.constant([1.0]).shape]
    answers += [tf.debugging.get_log_device_placement(), tf.keras.config.backend()]
    try:
        answers.append(tf.constant(1) + tf.constant(1.0))
    except tf.errors.InvalidArgumentError:
        answers.append("mixed dtypes raise")
    return answers

before = state()
PLANT
from safeops._backends import tensorflow
assert state() == before, [pair for pair in zip(before, state()) if pair[0] != pair[1]]
"""


def run_state(plant):
    """Return the exit status of a process that compares flags before and after the import."""
    done = subprocess.run(
        [sys.executable, "-c", STATE.replace("PLANT", plant)],
        cwd=Path(safeops.__file__).parents[1],
        capture_output=True,
        check=False,
    )
    return done.returncode


def test_import_changes_no_flag():
    """TensorFlow behaves after the import of the backend as it did before."""
    assert run_state("") == 0


def test_a_changed_flag_is_seen():
    """NumPy behaviour switched on makes the comparison fail."""
    assert run_state("tf.experimental.numpy.experimental_enable_numpy_behavior()") == 1


TRACED = """
import logging
import tensorflow as tf
import safeops

said = []
listener = logging.Handler()
listener.emit = lambda record: said.append(record.getMessage())
tf.get_logger().addHandler(listener)


@tf.function
def f(x):
    labels = safeops.safe_softmax(safeops.nanmean(x, axis=-1, keepdims=True) * x)
    safe = safeops.safe_where(x > 0, (x,), lambda x: tf.math.log(x), fill_value=0.0)
    return safeops.safe_cross_entropy(x, labels), safeops.segments.segment_max(safe, tf.range(2), 2)


f(tf.ones((2, 3)))
assert not any("AutoGraph" in line for line in said), said
"""


def test_autograph_transforms_ours_without_a_word(tmp_path):
    """A user's ``tf.function`` says nothing of our code, which AutoGraph transforms as well."""
    script = tmp_path / "traced.py"  # AutoGraph transforms what it finds in a file
    script.write_text(TRACED)
    done = subprocess.run(
        [sys.executable, script],
        env=os.environ | {"PYTHONPATH": str(Path(safeops.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("options", [{}, {"ord": 1}, {"ord": 3}, {"ord": np.inf}, {"b": [1, 0, 2]}])
@pytest.mark.parametrize("values", [[0, 1, np.nan], [0, np.inf, np.nan], [np.nan, -np.inf, 1]])
def test_a_nan_reaches_the_same_slopes_in_xla(options, values):
    """XLA passes over NaN in a maximum, and loses none by that."""
    import tensorflow as tf

    if "b" in options:
        options = {"b": tf.constant(options["b"], tf.float32)}
    f = safeops.safe_logsumexp if "b" in options else safeops.safe_norm

    def slopes(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x, **options)
        return y, tape.gradient(y, x)

    x = tf.constant(values, tf.float32)
    got = tf.function(slopes, jit_compile=True, autograph=False)(x)

    for a, b in zip(got, slopes(x), strict=True):
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
