"""Masked autodiff for TensorFlow: the programs that people reported, and random ones."""

from functools import partial

import numpy as np
import pytest

import tape
from assertions import assert_close
from frameworks import to_numpy
from parts import IN_PARTS, seeds_of

pytestmark = [pytest.mark.only("tensorflow"), pytest.mark.usefixtures("quiet")]

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not selected; this is about it alone")

from reported_tensorflow import (  # noqa: E402
    INF,
    NAN,
    PROGRAMS,
    PROGRAMS_RUN,
    UNDEFINED,
    at,
    compiled,
    log_where,
    loop,
    on_tensorflow,
    slope,
    total,
)
from safeops._backends.tensorflow import private  # noqa: E402
from safeops.autodiff import tensorflow as masked  # noqa: E402
from safeops.autodiff.tensorflow import _choosers as choosers  # noqa: E402
from safeops.autodiff.tensorflow import _evaluator as evaluator  # noqa: E402
from safeops.autodiff.tensorflow import _rules as tables  # noqa: E402

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


class Zero:
    """A slope of 0 that is written in place of a cotangent: 0 for one of NaN, too."""

    __array_ufunc__ = None  # numbers of NumPy leave the product to this class

    def __rmul__(self, cotangent):
        """Return 0, whatever the cotangent."""
        return np.float64(0.0)


def larger(a, b):
    """
    Return the larger of two scalars as TensorFlow chooses: the first if it is not less.

    Beside a NaN the second argument has the slope; a first one that is NaN is used, with slope 0.
    """
    chosen = a if a.value >= b.value else b
    used = ((a, Zero()),) if np.isnan(a.value) else ()
    return tape.Scalar(np.maximum(a.value, b.value), ((chosen, 1.0), *used))


def smaller(a, b):
    """Return the smaller of two scalars, as TensorFlow chooses."""
    return larger(a * -1.0, b * -1.0) * -1.0


class Conventions(tape.Tape):
    """
    The tape with TensorFlow's conventions.

    Its maximum does not share a tie, and beside a NaN the second argument has the slope.
    """

    maximum = staticmethod(np.vectorize(larger, otypes=[object]))
    minimum = staticmethod(np.vectorize(smaller, otypes=[object]))

    @classmethod
    def clip(cls, x):
        """Clip between two numbers."""
        return cls.maximum(cls.minimum(x, tape.scalar(2.0)), tape.scalar(0.25))


@IN_PARTS
def test_random_programs_agree_with_the_tape(part):
    """Gradients are those of the tape, NaN where it has NaN, and masks are its masks."""
    assert_agrees_with_the_tape(seeds_of(part, PROGRAMS_RUN), on_unknown="error")


def assert_agrees_with_the_tape(seeds, on_unknown):
    """Compare programs on TensorFlow with what they are on the tape."""
    for seed in seeds:
        program, x = tape.clipped(seed) if seed % 2 else tape.drawn(seed)
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
        ("SelectV2", evaluator.unknown),
        ("Mul", evaluator.scale),  # so that a largest entry is a product with 0 or 1
        ("SqrtGrad", evaluator.scale),  # so that the kernel hides 0 times infinity
        ("MatMul", evaluator.unknown),
        ("StridedSliceGrad", evaluator.unknown),
    ],
)
def test_a_wrong_rule_is_found(kind, rule, monkeypatch):
    """With another class for an operation, the tape finds a program that differs."""
    monkeypatch.setitem(tables.RULES, kind, rule)

    with pytest.raises(AssertionError):
        assert_agrees_with_the_tape(range(PROGRAMS_RUN), on_unknown="ignore")


@IN_PARTS
def test_nothing_is_hidden(part):
    """
    An entry of the plain tape is that entry of ours, or not finite.

    But for sqrt and 1/x, whose kernels turn 0 times infinity into 0: of these programs ours may be
    the one that is not finite.
    """
    for seed in seeds_of(part, PROGRAMS_RUN // 5):
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
        assert [private.FORMULA in name for name in names].count(True) >= 1
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
