"""What a graph of TensorFlow computes from no argument is known, and its masks stay small."""

from collections import Counter

import numpy as np
import pytest

pytestmark = pytest.mark.only("tensorflow")
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not selected")

from safeops._backends.tensorflow.private import in_xla  # noqa: E402
from safeops.autodiff import tensorflow as masked  # noqa: E402
from safeops.autodiff.tensorflow import _constants as constants  # noqa: E402
from safeops.autodiff.tensorflow._evaluator import is_finite  # noqa: E402

N, WIDTH, ROWS, HEADS = 8, 4, 3, 2
KEEP = np.tri(N) > 0


def rows():
    """Return indices of rows."""
    return tf.range(N)[:, None]


def columns():
    """Return indices of columns."""
    return tf.range(N)[None]


VALUES = {
    "band": lambda: tf.linalg.band_part(tf.ones((N, N), tf.bool), -1, 0),
    "of numbers": lambda: tf.linalg.band_part(tf.ones((N, N)), 0, 2) > 0,
    "compared": lambda: rows() >= columns(),
    "window": lambda: (rows() - columns() < 3) & tf.logical_not(columns() > rows()),
    "blocks": lambda: rows() // 3 == columns() // 3,
    "strides": lambda: (rows() + 2 * columns()) % 3 > 0,
    "of NumPy": lambda: tf.constant(KEEP) | (rows() > 6),
    "broadcast": lambda: tf.broadcast_to(columns() > 3, (5, N, N)),
    "moved": lambda: tf.transpose(tf.reshape(tf.constant(KEEP), (2, N // 2, N)), (1, 2, 0)),
    "cut": lambda: tf.pad(tf.constant(KEEP)[1:, ::2], [[0, 1], [2, 2]]),
    "joined": lambda: tf.concat([rows() > 3, tf.zeros((N, 2), tf.bool), rows() < 6], 1),
    "tiled": lambda: tf.tile(tf.constant(KEEP)[:, 2:4] & (rows() > 1), (1, 3)),
    "stacked": lambda: tf.stack([columns() > 1, columns() > 2]),
    "any": lambda: tf.reduce_any(tf.constant(KEEP)[:, 2:], 1, keepdims=True),
    "all": lambda: tf.reduce_all(tf.broadcast_to(rows() > 2, (N, 3)), 1),
    "counted": lambda: tf.reduce_sum(tf.cast(rows() >= columns(), tf.float32), 1) > 3,
    "selected": lambda: tf.where(rows() > 2, columns() > 3, columns() > 4),
    "gathered": lambda: tf.gather(tf.constant(KEEP), [3, 1, 1]),
    "of a shape": lambda: tf.fill(tf.shape(tf.zeros((N, 2))), True),
}


def read(f, *args):
    """Return what is known of the value of a function while it is traced."""
    found = []

    @tf.function
    def traced(*args):
        found.append(constants.Reader().entries_of(f(*args)))
        return args

    traced.get_concrete_function(*args)
    return found[0]


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_depends_on_no_argument_is_known(name):
    """The value that is read is the one that TensorFlow computes."""
    wanted = VALUES[name]().numpy()

    found = read(VALUES[name])

    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(np.broadcast_to(found, wanted.shape), wanted)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x > 0,
        lambda x: tf.constant(KEEP) & (x > 0),
        lambda x: tf.range(tf.shape(x)[0]) > 1,  # whose length is not known
        lambda _: tf.random.uniform((N,)) > 0.5,
        lambda _: tf.cumsum(tf.fill((N,), 0.1)) > 0.3,  # whose rounding is the compiler's
        lambda _: tf.reduce_sum(tf.ones((3000,), tf.float16)) > 9,  # more than it can count
        lambda _: tf.zeros((0, N), tf.bool),
    ],
)
def test_another_value_is_not_known(f):
    """What depends on an argument, on rounding or on chance is computed by the graph alone."""
    assert read(f, tf.TensorSpec([None], tf.float32)) is None


PRODUCTS = {
    "rows": lambda x, w: x @ w,
    "turned": lambda x, w: tf.matmul(x, w[0], transpose_b=True),
    "both turned": lambda x, w: tf.matmul(w, x, transpose_a=True, transpose_b=True),
    "one for all": lambda x, w: x @ w[:1],
    "with themselves": lambda x, _: tf.matmul(x, x, transpose_b=True),
    "einsum": lambda x, w: tf.einsum("bik,bkj->bji", x, w),
    "einsum with one for all": lambda x, w: tf.einsum("bik,kj->ijb", x, w[0]),
    "einsum that sums rows": lambda x, w: tf.einsum("bik,bkj->kj", x, w),
}
PATTERNS = {
    "first axis": lambda shape: np.arange(shape[0])[:, None, None] > 0,
    "middle axis": lambda shape: np.arange(shape[1])[None, :, None] > 1,
    "last axis": lambda shape: np.arange(shape[2])[None, None] > 1,
    "two axes": lambda shape: np.add.outer(np.arange(shape[1]), np.arange(shape[2]))[None] % 3 > 0,
    "all axes": lambda shape: np.arange(np.prod(shape)).reshape(shape) % 5 > 1,
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_known_mask_gives_the_gradient_of_one_that_is_an_argument(name, pattern):
    """Gradients and their masks are the same, with NaN and inf in rows and coefficients."""
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(ROWS, WIDTH, WIDTH)).astype(np.float32)
    w = numbers.normal(size=(ROWS, WIDTH, WIDTH)).astype(np.float32)
    x[0], x[1, 1, 2], w[2, :, 1], w[0, 1] = np.nan, np.inf, np.nan, np.inf
    x, w = tf.constant(x), tf.constant(w)
    product = PRODUCTS[name]
    shape = (1,) * (3 - len(product(x, w).shape)) + tuple(product(x, w).shape)
    keep = np.broadcast_to(PATTERNS[pattern](shape), shape)

    def pull(x, w, keep):
        with masked.GradientTape() as tape:
            tape.watch((x, w))
            out = tf.reshape(product(x, w), shape)
            loss = tf.reduce_sum(tf.where(keep, out * out, 0.0))
        return tape.gradient(loss, (x, w), unconnected_gradients="zero", return_mask=True)

    wanted = tf.function(pull)(x, w, tf.constant(keep))

    got = tf.function(lambda x, w: pull(x, w, tf.constant(keep)))(x, w)

    for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(wanted), strict=True):
        # The IEEE sum of an argument's mask counts absent entries too, so that inf becomes NaN.
        known, computed = (np.where(np.isfinite(x), x, np.nan) for x in (a, b))
        np.testing.assert_allclose(known, computed, 1e-5, 1e-5)


def attention(weights, x, *, causal):
    """Return a layer of attention, and a residual."""
    length = x.shape[1]
    query, key, value = (
        tf.transpose(tf.reshape(x @ w, (ROWS, length, HEADS, -1)), (0, 2, 1, 3))
        for w in tf.unstack(weights)
    )
    scores = tf.matmul(query, key, transpose_b=True)
    if causal:
        places = tf.range(length)
        scores = tf.where(places[:, None] >= places, scores, -1e9)
    out = tf.transpose(tf.nn.softmax(scores) @ value, (0, 2, 1, 3))
    return x + tf.reshape(out, x.shape)


def gradient(tape, length, *, causal, layers=1, xla=True):
    """Return a function, for XLA or not, that leaves out the last row, and its arguments."""

    @tf.function(jit_compile=xla)
    def pull(weights, x):
        with tape() as watched:
            watched.watch(weights)
            out = x
            for _ in range(layers):
                out = attention(weights, out, causal=causal)
            loss = tf.reduce_sum(out[:-1] ** 2)
        return watched.gradient(loss, weights)

    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(ROWS, length, WIDTH)).astype(np.float32)
    x[-1] = np.nan
    return pull, (tf.constant(numbers.normal(size=(3, WIDTH, WIDTH)), tf.float32), tf.constant(x))


def text(tape, length, *, causal):
    """Return the program that XLA gets."""
    pull, args = gradient(tape, length, causal=causal)
    return pull.experimental_get_compiler_ir(*args)(stage="hlo")


@pytest.mark.parametrize("causal", [False, True])
def test_a_program_is_of_the_size_of_the_plain_one_at_any_length(causal):
    """Operations are at most 3.5 times those of the plain gradient, and as many at any length."""
    plain = text(tf.GradientTape, 512, causal=causal)
    short, long = (text(masked.GradientTape, n, causal=causal) for n in (128, 512))

    assert short.count("\n") == long.count("\n") < 3.5 * plain.count("\n")
    assert len(long) < 1.1 * len(short)


def known_sizes(tape, length):
    """Return the entries of what the graph of a gradient computes from no argument."""
    pull, args = gradient(tape, length, causal=True)
    dependent, found = set(), []
    for op in pull.get_concrete_function(*args).graph.get_operations():
        if op.type == "Placeholder" or any(x.op.name in dependent for x in op.inputs):
            dependent.add(op.name)
        else:
            found += [x.shape.num_elements() or 0 for x in op.outputs]
    return found


def test_what_xla_computes_while_it_compiles_is_small():
    """Beside what the plain gradient has, what depends on no argument stays small."""
    sizes = sum(known_sizes(masked.GradientTape, 512)) - sum(known_sizes(tf.GradientTape, 512))

    assert sizes < 512


@pytest.mark.parametrize("causal", [False, True])
def test_a_layer_makes_no_mask_that_another_has_made(causal):
    """A second layer adds at most 2.2 times as many operations as to the plain gradient."""
    added = []
    for tape in (tf.GradientTape, masked.GradientTape):
        sizes = []
        for layers in (1, 2):
            pull, args = gradient(tape, N, causal=causal, layers=layers)
            graph = pull.get_concrete_function(*args).graph
            sizes.append(len(graph.get_operations()))
        added.append(sizes[1] - sizes[0])

    assert added[1] < 2.2 * added[0], added


def kinds(tape, *, xla):
    """Return how many operations of each type the graph of a causal gradient has."""
    pull, args = gradient(tape, N, causal=True, xla=xla)
    operations = pull.get_concrete_function(*args).graph.get_operations()
    return Counter(op.type for op in operations)


@pytest.mark.parametrize("kind", ["Select", "IsFinite"])
def test_xla_gets_no_operation_that_it_is_slow_to_translate(kind):
    """Each takes XLA 7 to 12 ms, where another does the same; outside of XLA it is the faster."""
    assert kind not in kinds(masked.GradientTape, xla=True)
    assert kind in kinds(masked.GradientTape, xla=False)


def test_what_is_finite_is_so_for_xla():
    """Comparisons know NaN and infinities, in complex numbers too."""
    numbers = [np.nan, np.inf, -np.inf, np.finfo(np.float32).max, -1.0, 0.0]
    for x in (tf.constant(numbers), tf.complex(1.0, numbers), tf.cast(numbers, tf.bfloat16)):
        found = tf.function(is_finite, jit_compile=True)(x)

        np.testing.assert_array_equal(found, is_finite(x))


def test_zeros_and_masks_are_constants_outside_of_xla():
    """Nothing there depends on a value by name, which would be computed in each step."""
    plain, ours = (kinds(tape, xla=False) for tape in (tf.GradientTape, masked.GradientTape))

    assert ours["ZerosLike"] == plain["ZerosLike"]
    assert kinds(masked.GradientTape, xla=True)["ZerosLike"] > plain["ZerosLike"]


def test_a_function_within_one_for_xla_is_for_xla():
    """Whether XLA compiles a graph is known from the graph around it, too."""
    found = []
    branch = lambda x: tf.cond(x > 0, lambda: inner(x), lambda: x)  # noqa: E731

    for xla in (True, False):
        inner = tf.function(lambda x: found.append(in_xla()) or x)
        tf.function(branch, jit_compile=xla).get_concrete_function(tf.ones(()))

    assert found == [True, False]
    assert not in_xla()


@pytest.mark.parametrize("causal", [False, True])
def test_a_row_that_is_left_out_is_absent(causal):
    """With small masks the gradient is that of the batch without the row."""
    pull, (weights, x) = gradient(masked.GradientTape, N, causal=causal)
    plain, _ = gradient(tf.GradientTape, N, causal=causal)
    whole = tf.concat([x[:-1], x[:1]], 0)

    np.testing.assert_allclose(pull(weights, x), plain(weights, whole), 1e-3, 1e-3)
