"""Masked autodiff for TensorFlow: the programs that people reported, and random ones."""

import inspect
from functools import partial

import numpy as np
import pytest

import tape
from assertions import assert_close, assert_examples_run
from frameworks import to_numpy

pytestmark = [pytest.mark.only("tensorflow"), pytest.mark.usefixtures("quiet")]

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not selected; this is about it alone")

from reported_tensorflow import (  # noqa: E402
    INF,
    NAN,
    PROGRAMS,
    PROGRAMS_RUN,
    UNDEFINED,
    at,
    log_where,
    loop,
    on_tensorflow,
    total,
)
from safeops.autodiff import tensorflow as masked  # noqa: E402
from safeops.autodiff.tensorflow import _choosers as choosers  # noqa: E402
from safeops.autodiff.tensorflow import _pairs as pairs  # noqa: E402
from safeops.autodiff.tensorflow import _tables as tables  # noqa: E402


def slope(f, x, tape_class=masked.GradientTape, **how):
    """Return the gradient of the sum of a function, as a tensor, by a tape."""
    with tape_class() as running:
        running.watch(x)
        value = f(x)
    found = running.gradient(value, x, **how)
    return tf.convert_to_tensor(found)


def compiled(f, *, unknown=False, **how):
    """Return a function without AutoGraph; the source of a lambda in a table is ambiguous."""

    def call(x):
        x = tf.convert_to_tensor(x)
        spec = [tf.TensorSpec([None] * x.shape.rank, x.dtype)] if unknown else None
        return tf.function(f, autograph=False, input_signature=spec, **how)(x)

    return call


# How a gradient is taken.
MODES = {
    "eager": lambda f: masked.grad(f, on_unknown="error"),
    "lazy": lambda f: masked.grad(f, lazy=True, on_unknown="error"),
    "unknown dimensions": lambda f: compiled(partial(slope, f, on_unknown="error"), unknown=True),
    "XLA": lambda f: compiled(partial(slope, f, on_unknown="error"), jit_compile=True),
}


# Outside XLA these are right: where and slices send 0 to a kernel that returns 0 for 0 times inf.
BY_KERNEL = """
    gather scatter_nd tensor_scatter_nd_update dynamic_partition segment_sum sort top_k pad tile
    cumsum max_pool1d einsum switch_case while_loop map_fn custom_gradient relu6
""".split()  # noqa: SIM905  (a list of words)
# Shapes of results that depend on values are not for XLA, nor are sorted segments.
NOT_FOR_XLA = ("dynamic_partition", "boolean_mask", "segment_sum", "segment_max")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_unmodified_programs(name, mode):
    """A program that people wrote has its gradient; that of the plain tape is not finite."""
    if mode == "XLA" and name in NOT_FOR_XLA:
        pytest.skip("XLA has no kernel for results whose shape depends on values")
    f, x, wanted = PROGRAMS[name]

    assert_close(to_numpy(MODES[mode](f)(at(x))), wanted, 1e-6, name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_plain_tape_fails(name):
    """The plain tape has NaN for each program, some of them only where XLA compiles."""
    f, x, _ = PROGRAMS[name]
    plain = partial(slope, f, tape_class=tf.GradientTape)
    by_xla = name in BY_KERNEL and name not in NOT_FOR_XLA

    got = compiled(plain, jit_compile=by_xla)(at(x))

    assert np.isfinite(got).all() == (name in BY_KERNEL and name in NOT_FOR_XLA)


# XLA drops NaN in a largest entry (TensorFlow issue 116992).
UNDEFINED_BUT_XLA = ("largest of NaN",)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", UNDEFINED)
def test_undefined_derivatives_stay_undefined(name, mode):
    """What no selection explains stays NaN or inf, also where a kernel returns 0."""
    if mode == "XLA" and name in UNDEFINED_BUT_XLA:
        pytest.skip("XLA drops NaN in a largest entry (TensorFlow issue 116992)")
    f, x, wanted = UNDEFINED[name]

    np.testing.assert_array_equal(to_numpy(MODES[mode](f)(at(x))), wanted)


def test_kernels_hide_zero_times_infinity():
    """TensorFlow's kernel for the root returns 0; the day it does not, `pairs.root` can go."""
    plain = partial(slope, lambda x: tf.sqrt(x) ** 2, tape_class=tf.GradientTape)

    assert compiled(plain)(0.0) == 0
    assert np.isnan(compiled(plain, jit_compile=True)(0.0))


# Rows of NaN that nothing uses.

ROWS = np.array([[1.0, -2.0, 0.5], [0.25, 3.0, 1.0]], "float32")
BAD_ROWS = np.concatenate([ROWS, np.full((2, 3), NAN, "float32")])
WEIGHTS = np.array([[1.0, 2.0, -1.0], [0.5, 0.0, 1.0], [2.0, 1.0, 1.0]], "float32")


def layer_norm(x, weights):
    """Normalise rows."""
    centred = x - tf.reduce_mean(x, -1, keepdims=True)
    return centred / tf.sqrt(tf.reduce_mean(centred**2, -1, keepdims=True) + 1e-5) * weights[0]


def attention(x, weights):
    """Attend to the rows that are not NaN; a NaN row attends to none, and is NaN."""
    keep = tf.logical_not(tf.reduce_any(tf.math.is_nan(x), -1))
    scores = x @ weights @ tf.transpose(x)
    scores = tf.where(keep[None, :] & keep[:, None], scores, -INF)
    return tf.nn.softmax(scores) @ tf.where(keep[:, None], x @ weights, 0.0)


NAN_ROWS = {
    "matmul": lambda x, w: x @ w,
    "batched": lambda x, w: (x[:, None] @ w)[:, 0],
    "mlp": lambda x, w: tf.nn.relu(tf.nn.relu(x @ w) @ w) @ w,
    "layer norm": layer_norm,
    "attention": attention,
    "scan": lambda x, w: tf.scan(lambda s, row: tf.tanh((s[None] @ w)[0] + row), x, w[0]),
    "cumulative sum": lambda x, w: tf.cumsum(x @ w),
    "unsorted segment sum": lambda x, w: tf.math.unsorted_segment_sum(
        x @ w, [0, 1, 2, 2][: len(x)], 3
    ),
    "maximum of rows": lambda x, w: tf.reduce_max((x @ w)[:, :, None] * w, axis=1),
    "normalised": lambda x, w: tf.math.l2_normalize(x @ w, -1),
}


@pytest.mark.parametrize("name", NAN_ROWS)
def test_rows_that_nothing_uses_change_nothing(name):
    """With NaN rows the gradient is that without them; that of the plain tape is NaN."""

    def of_weights(x):
        return lambda w: total(NAN_ROWS[name](x, w)[:2] * tf.constant([[1.0], [2.0]]))

    plain = lambda x: compiled(partial(slope, of_weights(x), tape_class=tf.GradientTape))  # noqa: E731
    clean = plain(ROWS)(WEIGHTS)
    assert np.isfinite(clean).all()

    got = masked.grad(of_weights(BAD_ROWS), on_unknown="error")(WEIGHTS)

    assert_close(got, clean, 1e-5, name, 1e-6)
    assert np.isnan(plain(BAD_ROWS)(WEIGHTS)).any()


# Random programs.


def larger(a, b):
    """Return the larger of two scalars as TensorFlow chooses: the first if it is not less."""
    chosen = a if a.value >= b.value else b
    return tape.Scalar(np.maximum(a.value, b.value), ((chosen, 1.0),))


class Conventions(tape.Tape):
    """
    The tape with TensorFlow's conventions.

    Its maximum does not share a tie, and beside a NaN the second argument has the slope.
    """

    maximum = staticmethod(np.vectorize(larger, otypes=[object]))


def test_random_programs_agree_with_the_tape():
    """Gradients are those of the tape, NaN where it has NaN, and masks are its masks."""
    assert_agrees_with_the_tape(range(PROGRAMS_RUN), on_unknown="error")


def assert_agrees_with_the_tape(seeds, on_unknown):
    """Compare programs on TensorFlow with what they are on the tape."""
    for seed in seeds:
        program, x = tape.drawn(seed)
        on_tape = lambda _, x, program=program: tape.run(program, Conventions, x)  # noqa: E731
        _, wanted, wanted_mask = tape.masked_gradient(on_tape, x)

        gradient = masked.grad(on_tensorflow(program), return_mask=True, on_unknown=on_unknown)
        got, mask = map(to_numpy, gradient(x))

        assert_same(got, wanted, f"seed {seed}: {program}")
        np.testing.assert_array_equal(mask, wanted_mask, f"seed {seed}: {program}")


def assert_same(got, wanted, message):
    """Equal where finite, and finite in the same places."""
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(np.isfinite(got), finite, message)
    assert_close(got[finite], wanted[finite], 1e-9, message, 1e-12)


def test_another_gradient_is_found():
    """The comparison with the tape fails for a hidden NaN and for another number."""
    with pytest.raises(AssertionError):
        assert_same(np.array([0.0]), np.array([NAN]), "")
    with pytest.raises(AssertionError):
        assert_same(np.array([1.0]), np.array([2.0]), "")


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("SelectV2", pairs.unknown),
        ("Mul", pairs.scale),  # so that a largest entry is a product with 0 or 1
        ("SqrtGrad", pairs.scale),  # so that the kernel hides 0 times infinity
        ("MatMul", pairs.unknown),
        ("StridedSliceGrad", pairs.unknown),
    ],
)
def test_a_wrong_rule_is_found(kind, rule, monkeypatch):
    """With another class for an operation, the tape finds a program that differs."""
    monkeypatch.setitem(tables.RULES, kind, rule)

    with pytest.raises(AssertionError):
        assert_agrees_with_the_tape(range(PROGRAMS_RUN), on_unknown="ignore")


def test_nothing_is_hidden():
    """
    An entry of the plain tape is that entry of ours, or not finite.

    But for sqrt and 1/x, whose kernels turn 0 times infinity into 0: of these programs ours may be
    the one that is not finite.
    """
    for seed in range(PROGRAMS_RUN // 5):
        program, x = tape.drawn(seed)
        f = on_tensorflow(program)
        ordinary = to_numpy(compiled(partial(slope, f, tape_class=tf.GradientTape))(x))
        ours = to_numpy(compiled(partial(slope, f))(x))

        finite = np.isfinite(ordinary)
        if any(step[0] in ("sqrt", "inverse") for step in program[0]):
            finite &= np.isfinite(ours)
        assert_close(ours[finite], ordinary[finite], 1e-12, f"seed {seed}")


# Layers.


@pytest.fixture(scope="module")
def keras():
    """Return Keras, with weights that are the same each time."""
    module = pytest.importorskip("keras", reason="Keras is not installed")
    module.utils.set_random_seed(0)
    return module


def attend(layers):
    """Return attention of rows to each other."""
    layer = layers.MultiHeadAttention(2, 4)
    return lambda x: layer(x, x)


LAYERS = {
    "Dense": lambda layers: layers.Dense(2, activation="relu"),
    "LayerNormalization": lambda layers: layers.LayerNormalization(),
    "MultiHeadAttention": attend,
    "LSTM": lambda layers: layers.LSTM(4),
    "Conv2D": lambda layers: layers.Conv2D(2, 2, padding="same", activation="relu"),
}


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_keras(keras, name, jit_compile):
    """Sequences or images of NaN that nothing uses change no gradient of the weights."""
    shape = (4, 4, 2) if name == "Conv2D" else (4, 3)
    x = np.random.default_rng(0).normal(size=(4, *shape)).astype("float32")
    bad = np.where(np.arange(4).reshape(-1, *(1 for _ in shape)) < 2, x, np.float32(NAN))
    inputs = keras.Input(shape)
    model = keras.Model(inputs, LAYERS[name](keras.layers)(inputs))

    def gradients(x, tape_class):
        with tape_class() as running:
            loss = total(model(x)[:2] ** 2)
        return running.gradient(loss, model.trainable_variables)

    take = tf.function(gradients, autograph=False, jit_compile=jit_compile)
    got = take(bad, masked.GradientTape)

    for ours, clean in zip(got, take(x, tf.GradientTape), strict=True):
        assert_close(ours, clean, 1e-4, name, 1e-5)
    assert any(np.isnan(g).any() for g in take(bad, tf.GradientTape))


def test_train_step(keras):
    """A model trains with the masked tape: an override of `train_step` in five lines."""

    class Masked(keras.Model):
        def train_step(self, data):
            with masked.GradientTape() as running:
                loss = self.compute_loss(data[0], data[1], self(data[0], training=True))
            self.optimizer.apply(
                running.gradient(loss, self.trainable_variables), self.trainable_variables
            )
            return {"loss": loss}

    inputs = keras.Input((1,))
    logs = keras.layers.Lambda(log_where)(keras.layers.Dense(1, kernel_initializer="ones")(inputs))
    model = Masked(inputs, logs)
    model.compile("sgd", "mse")

    model.fit(np.float32([[0.0], [1.0]]), np.float32([[0.0], [1.0]]), batch_size=2, verbose=0)

    kernel, bias = (to_numpy(x) for x in model.get_weights())
    np.testing.assert_allclose(kernel, [[1.01]], rtol=1e-6)  # the slope is 2 (0 - 1) 1 / 2 rows
    np.testing.assert_allclose(bias, [0.01], rtol=1e-6)


# Second derivatives.


def curvature(f, x, outer=masked.GradientTape):
    """Return the gradient of the sum of the masked gradient."""
    return compiled(lambda x: slope(lambda x: total(slope(f, x)), x, tape_class=outer))(x)


SECOND = {
    "power": (lambda x: total(tf.where(x > 0, x**1.5, 0.0)), [0.0, 4.0], [0.0, 0.375]),
    "logarithm": (lambda x: total(log_where(x) * x[::-1]), [0.0, 2.0], [0.5, 0.5]),
    "root": (lambda x: total(tf.where(x > 0, tf.sqrt(x), 0.0)), [0.0, 4.0], [0.0, -1 / 32]),
    "loop": (loop, [1.0, 4.0, 0.0], [-0.25, -1 / 32, 0.0]),
    "branch": (
        lambda x: tf.cond(x[0] < 1, lambda: total(log_where(x)), lambda: total(x)),
        [0.0, 2.0],
        [0.0, -0.25],
    ),
    "function": (
        lambda x: total(tf.function(log_where, autograph=False)(x)),
        [0.0, 2.0],
        [0.0, -0.25],
    ),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(name):
    """Ours of ours is right; the plain tape of ours has zeros for absent entries again."""
    f, x, wanted = SECOND[name]

    assert_close(curvature(f, at(x)), wanted, 1e-6, name)
    if name != "logarithm":
        assert np.isnan(curvature(f, at(x), tf.GradientTape)).any()


def test_outer_tapes_see_what_is_run_again():
    """The plain tape of ours is right where nothing is absent for it: no silent zeros."""
    f = lambda x: total(tf.where(x > 1, x**3, x**2) @ tf.constant([[1.0], [2.0]]))  # noqa: E731

    got = curvature(f, at([[2.0, 0.5]]), tf.GradientTape)

    np.testing.assert_allclose(got, [[12.0, 4.0]])


# The interface of a tape.


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


# What the code relies on beside the public API.


def test_the_classes_name_operations_that_exist():
    """Each operation of the table is one of `tf.raw_ops`, and in one class only."""
    names = [name for names in tables.CLASSES.values() for name in names.split()]

    assert len(set(names)) == len(names)
    assert [name for name in (*names, *tables.READERS) if not hasattr(tf.raw_ops, name)] == []


def test_the_body_of_a_call_is_where_it_was():
    """`Graph._get_function` and the `graph` of what it returns lead from a call to its body."""

    @tf.function
    def outer(x):
        y = tf.function(lambda x: x + 1)(x)
        (body,) = choosers.bodies(y.op)
        assert [op.type for op in body.get_operations()][-1] == "Identity"
        return y

    outer.get_concrete_function(tf.TensorSpec([]))


def test_formulas_have_the_scope_that_they_had():
    """TensorFlow's formulas are made in a name scope, which tells them from custom gradients."""

    @tf.function
    def step(x):
        slope(lambda x: total(log_where(x)), x, tape_class=tf.GradientTape)
        names = [op.name for op in x.graph.get_operations() if op.type == "SelectV2"]
        assert [choosers.FORMULA in name for name in names].count(True) >= 1
        return x

    step.get_concrete_function(tf.TensorSpec([2]))


def test_the_framework_of_the_arguments_is_picked():
    """`safeops.autodiff.grad` is this one for tensors of TensorFlow."""
    from safeops import autodiff

    gradient = autodiff.grad(lambda x: tf.reduce_sum(tf.where(x > 0, tf.math.log(x), 0.0)))

    assert gradient(tf.constant([0.0, 2.0])).numpy().tolist() == [0.0, 0.5]


def test_the_picked_gradient_is_traced_once():
    """A second call of `safeops.autodiff.grad` runs what the first one has traced."""
    from safeops import autodiff

    traces = []
    gradient = autodiff.grad(lambda x: traces.append(x) or x * x)

    assert [float(gradient(tf.constant(t))) for t in (1.0, 2.0)] == [2.0, 4.0]
    assert len(traces) == 1
