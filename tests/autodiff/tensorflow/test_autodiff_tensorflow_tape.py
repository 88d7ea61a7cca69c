"""The tape of masked autodiff for TensorFlow: masks, structures, arguments, dtypes, errors."""

import inspect
from functools import partial

import numpy as np
import pytest

from assertions import assert_examples_run
from frameworks import to_numpy

pytestmark = [pytest.mark.only("tensorflow"), pytest.mark.usefixtures("quiet")]

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not selected; this is about it alone")

from reported_tensorflow import (  # noqa: E402
    NAN,
    at,
    compiled,
    log_where,
    slope,
    total,
)
from safeops.autodiff import tensorflow as masked  # noqa: E402


def test_masks_tell_zero_from_absent():
    """A gradient of 0 that is active is a slope; one that is not was never used."""
    gradient, mask = masked.grad(lambda x: (0.0 * x)[0] + x[1] ** 2, return_mask=True)(np.zeros(3))

    np.testing.assert_array_equal(gradient, [0, 0, 0])
    np.testing.assert_array_equal(mask, [True, True, False])


@pytest.mark.parametrize("f", [tf.nn.relu, tf.nn.relu6])
def test_rectifiers_are_active_at_nan(f):
    """A rectifier lets through what is above 0, and NaN; what is not is absent."""
    mask = masked.grad(lambda x: total(f(x)), return_mask=True)(at([NAN, -1.0, 0.0, 1.0]))[1]

    np.testing.assert_array_equal(mask, [True, False, False, True])


def test_structures_variables_and_rows():
    """Sources in a dictionary, a Variable, rows of an embedding, and one that is not used."""
    table = tf.Variable([[0.0], [4.0], [1.0]])
    scale = tf.Variable(3.0)
    unused = tf.Variable(1.0)

    @tf.function
    def step():
        with masked.GradientTape(persistent=True) as running:
            rows = tf.gather(table, [1, 0])
            loss = total(tf.sqrt(rows)[:1]) * scale
        sources = {"table": table, "rest": (scale, unused)}
        plain = running.gradient(loss, sources)
        assert isinstance(plain["table"], tf.IndexedSlices)
        dense = tf.convert_to_tensor(plain["table"]), plain["rest"][0]
        assert plain["rest"][1] is None
        return dense, running.gradient(loss, sources, return_mask=True)[1]["table"]

    (rows, slope_of_scale), mask = step()
    np.testing.assert_array_equal(rows, [[0.0], [0.75], [0.0]])
    assert slope_of_scale == 2
    np.testing.assert_array_equal(mask, [[False], [True], [False]])


def test_output_gradients_and_unconnected_gradients():
    """Cotangents may be given, several targets too, and zeros asked for."""

    @tf.function
    def step(x):
        with masked.GradientTape() as running:
            running.watch(x)
            targets = [log_where(x), tf.sqrt(x)[1:]]
        given = [tf.constant([1.0, 2.0]), tf.constant([8.0])]
        zero = tf.UnconnectedGradients.ZERO
        return running.gradient(targets, [x, tf.constant(1.0)], given, zero)

    found, other = step(tf.constant([0.0, 4.0]))
    np.testing.assert_array_equal(found, [0.0, 2.5])
    assert other == 0


def test_arguments():
    """Several arguments, from the end too, structures, keywords, and the value."""

    def f(a, tree, *, scale):
        return scale * total(a * tree["x"])

    x = np.array([1.0, 2.0])
    value, (tree, a) = masked.value_and_grad(f, (-1, 0))(3.0 * x, {"x": x}, scale=2.0)

    assert value == 30
    np.testing.assert_array_equal(tree["x"], 6 * x)
    np.testing.assert_array_equal(a, 2 * x)
    (one, _), (active, partly) = masked.grad(lambda a, b: a * b[0], (0, 1), return_mask=True)(
        x[1], 3 * x
    )
    assert (one, active) == (3, True)
    np.testing.assert_array_equal(partly, [True, False])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes(dtype):
    """The gradient has the dtype of its argument."""
    f = lambda x: total(tf.where(x > 0, tf.sqrt(x), tf.cast(0, x.dtype)) @ x)  # noqa: E731
    x = tf.cast([[0.0, 4.0], [0.0, 1.0]], dtype)

    got = masked.grad(f, on_unknown="error")(x)

    assert got.dtype == x.dtype
    # Of sqrt(x) @ x: a half of 1 / sqrt times the row sums of x, and the column sums of sqrt.
    np.testing.assert_allclose(to_numpy(got), [[0.0, 0.25], [3.0, 3.5]])


def test_an_eager_call_is_traced_once():
    """A function is traced again for another signature only."""
    traced = []
    gradient = masked.grad(lambda x: traced.append(x) or x**2)

    for x in (1.0, 2.0, tf.constant(3.0)):
        gradient(tf.convert_to_tensor(x))
    assert len(traced) == 1


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: masked.grad(lambda x: x)(np.ones(2)), TypeError, "scalar value"),
        (lambda: masked.grad(lambda x: (x, x))(1.0), TypeError, "scalar value"),
        (lambda: masked.grad(lambda x: tf.complex(x, x))(1.0), TypeError, "real value"),
        (lambda: masked.grad(lambda x: x)(1), TypeError, "int32; convert them"),
        (lambda: masked.grad(tf.sin, on_unknown="raise"), ValueError, "warn, error, ignore"),
        (lambda: masked.grad(tf.sin, lazy=True, return_mask=True), ValueError, "one of lazy"),
        (lambda: slope(tf.sin, tf.constant(1.0)), RuntimeError, "inside tf.function"),
        (lambda: masked.GradientTape().jacobian(1, 2), NotImplementedError, "no masked form"),
        (lambda: masked.GradientTape().batch_jacobian(1, 2), NotImplementedError, "no masked"),
    ],
)
def test_words_of_errors(call, error, words):
    """Bad input is told what was given and what is accepted."""
    with pytest.raises(error, match=words):
        call()


@tf.custom_gradient
def with_products(x):
    """Return the argument; its gradient is one of running products, which have no rule."""
    return tf.identity(x), tf.math.cumprod


def test_unknown_operations_are_named():
    """One without a rule runs as it is, with a warning, and hides nothing."""
    f = lambda x: with_products(tf.sqrt(x))[1]  # noqa: E731
    x = tf.constant([1.0, 4.0])
    plain = compiled(partial(slope, f, tape_class=tf.GradientTape))(x)

    with pytest.warns(masked.UnknownOperationWarning, match="has no rule for absent entries"):
        got = masked.grad(f)(x)

    np.testing.assert_allclose(got, plain)
    with pytest.raises(NotImplementedError, match="Cumprod has no rule"):
        masked.grad(f, on_unknown="error")(x)
    np.testing.assert_allclose(masked.grad(f, on_unknown="ignore")(x), plain)


def test_what_an_unknown_operation_leaves_out_is_told():
    """One that nothing absent comes into may leave entries out: it is named all the same."""
    f = lambda x: total(with_products(x))  # noqa: E731

    with pytest.warns(masked.UnknownOperationWarning, match="Cumprod has no rule: what it leaves"):
        masked.grad(f)(tf.constant([1.0, 4.0]))


def test_lazy_is_ordinary_where_that_is_finite():
    """A lazy gradient is the ordinary one, or the masked one, as the point asks."""
    gradient = masked.grad(lambda x: total(log_where(x)), lazy=True)

    np.testing.assert_array_equal(gradient(at([1.0, 2.0])), [1.0, 0.5])
    np.testing.assert_array_equal(gradient(at([0.0, 2.0])), [0.0, 0.5])


def test_lazy_compiled():
    """A lazy gradient can be compiled by XLA."""
    f = partial(slope, log_where, lazy=True)

    np.testing.assert_array_equal(compiled(f, jit_compile=True)(at([0.0, 2.0])), [0.0, 0.5])


def test_variables_as_arguments():
    """A variable is an argument like any other, also one that is not trained."""
    for trainable in (True, False):
        x = tf.Variable([0.0, 2.0], trainable=trainable)

        got = masked.grad(lambda x: total(log_where(tf.convert_to_tensor(x))))(x)

        np.testing.assert_array_equal(got, [0.0, 0.5])


def test_recomputed_selections_in_a_body_are_numbers():
    """`tf.recompute_grad` in the body of a function: NaN as with the plain tape, and no zero."""
    f = tf.function(lambda x: total(tf.recompute_grad(log_where)(x)), autograph=False)

    np.testing.assert_array_equal(masked.grad(f)(at([0.0, 2.0])), [NAN, 0.5])


@pytest.mark.parametrize("name", ["GradientTape", "grad", "value_and_grad"])
def test_docstring_examples_run(name):
    """There are examples, and they print what they say."""
    doc = inspect.getdoc(getattr(masked, name))

    assert_examples_run(getattr(masked, name), vars(masked))
    assert {"**Gradient.**", "**Source.**"} <= set(doc.split())
