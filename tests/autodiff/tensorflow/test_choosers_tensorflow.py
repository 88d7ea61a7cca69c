"""
Operations of TensorFlow that choose, at NaN: used, it stays NaN; dropped afterwards, it is absent.

An operation is a function of four entries. Its results, one or several, are multiplied by nothing
and summed where they are kept; the gradient is taken by a factor of all entries, so that an entry
which is NaN and active makes it NaN.
"""

import inspect
from typing import NamedTuple

import numpy as np
import pytest

pytestmark = [pytest.mark.only("tensorflow"), pytest.mark.usefixtures("quiet")]
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not selected; this is about it alone")

import keras  # noqa: E402

from reported_tensorflow import kinds_run  # noqa: E402
from safeops.autodiff import tensorflow as masked  # noqa: E402
from safeops.autodiff.tensorflow import _choosers as choosers  # noqa: E402
from safeops.integrations import NonFiniteGradientError  # noqa: E402
from safeops.integrations.tensorflow import value_and_grad  # noqa: E402

X = np.array([0.75, 0.25, 0.5, 1.25], np.float32)
NAN = np.float32(np.nan)
ROWS = np.array([[1, 2], [3, 1], [NAN, 1]], np.float32)
LABELS = [[1.0], [-1.0], [1.0], [1.0]]
SEGMENTS = [0, 0, 1, 1]

# Operations that choose.


def pairs_of(x):
    """Return entries two by two."""
    return tf.reshape(x, [2, 2])


def pooled(pool, rank):
    """Return a pool over two neighbours along the first of so many axes."""
    shape, window = [2, 2] + [1] * rank, [2] + [1] * (rank - 1)
    return lambda x: tf.reshape(pool(tf.reshape(x, shape), window, 1, "VALID"), [2])


def scattered(name):
    """Return the extremes of the first two entries, and of the others put in the same places."""
    return lambda x: getattr(tf, f"tensor_scatter_nd_{name}")(x[:2], [[0], [1]], x[2:])


def looped(x):
    """Take maxima in a loop."""
    step = lambda i, s: (i + 1, tf.maximum(1.5 * s, 0.5))  # noqa: E731
    return tf.while_loop(lambda i, _: i < 2, step, (0, x), maximum_iterations=2)[1]


def branched(x):
    """Take maxima in a branch."""
    return tf.cond(tf.shape(x)[0] > 1, lambda: tf.maximum(x, 0.5), lambda: x)


def by_argmax(x):
    """Gather the largest of pairs."""
    return tf.gather(pairs_of(x), tf.argmax(pairs_of(x), 1), batch_dims=1)


OPERATIONS = {
    "maximum": lambda x: tf.maximum(x, 0.5),
    "maximum, second operand": lambda x: tf.maximum(0.5, x),
    "maximum, both operands": lambda x: tf.maximum(2 * x, tf.sin(x)),
    "maximum of others": lambda x: tf.maximum(x, x[::-1]),
    "minimum": lambda x: tf.minimum(x, 0.6),
    "minimum, second operand": lambda x: tf.minimum(0.6, x),
    "minimum of others": lambda x: tf.minimum(x[::-1], x),
    "clip_by_value": lambda x: tf.clip_by_value(x, 0.4, 0.9),
    "clip_by_value, lower bound": lambda x: tf.clip_by_value([0.5] * 4, x, 9.0),
    "clip_by_value, upper bound": lambda x: tf.clip_by_value([0.5] * 4, 0.0, x),
    "ClipByValue": lambda x: tf.raw_ops.ClipByValue(t=x, clip_value_min=0.4, clip_value_max=0.9),
    "relu": lambda x: tf.nn.relu(x - 0.4),
    "relu6": lambda x: tf.nn.relu6(10 * x),
    "leaky_relu": lambda x: tf.nn.leaky_relu(x - 0.4),
    "elu": lambda x: tf.nn.elu(x - 0.4),
    "selu": lambda x: tf.nn.selu(x - 0.4),
    "crelu": lambda x: tf.nn.crelu(x - 0.4),
    "hinge": lambda x: tf.maximum(1 - x, 0.0),
    "keras hinge": lambda x: keras.losses.hinge(LABELS, x[:, None]),
    "keras categorical hinge": lambda x: keras.losses.categorical_hinge(
        [[1.0, 0.0]] * 4, tf.stack([x, 1 - x], 1)
    ),
    "keras binary crossentropy": lambda x: keras.losses.binary_crossentropy(
        [[1.0]] * 4, x[:, None] / 2
    ),
    "keras ReLU": keras.layers.ReLU(max_value=1.0, negative_slope=0.5, threshold=0.3),
    "keras ReLU, max_value": keras.layers.ReLU(max_value=1.0),
    "keras MaxPooling1D": lambda x: tf.reshape(keras.layers.MaxPooling1D()(x[None, :, None]), [2]),
    "keras median": lambda x: keras.ops.median(pairs_of(x), 1),
    "keras quantile": lambda x: keras.ops.quantile(pairs_of(x), [0.3, 1.0], 1)[0],
    "keras celu": lambda x: keras.activations.celu(x - 0.4),
    "reduce_max": lambda x: tf.reduce_max(pairs_of(x), 1),
    "reduce_min": lambda x: tf.reduce_min(pairs_of(x), 1),
    "segment_max": lambda x: tf.math.segment_max(x, SEGMENTS),
    "segment_min": lambda x: tf.math.segment_min(x, SEGMENTS),
    "unsorted_segment_max": lambda x: tf.math.unsorted_segment_max(x, SEGMENTS, 2),
    "unsorted_segment_min": lambda x: tf.math.unsorted_segment_min(x, SEGMENTS, 2),
    "tensor_scatter_nd_max": scattered("max"),
    "tensor_scatter_nd_min": scattered("min"),
    "max_pool1d": pooled(tf.nn.max_pool1d, 1),
    "max_pool2d": pooled(tf.nn.max_pool2d, 2),
    "max_pool3d": pooled(tf.nn.max_pool3d, 3),
    "argmax and gather": by_argmax,
    "sort": lambda x: tf.sort(pairs_of(x)),
    "top_k": lambda x: tf.math.top_k(pairs_of(x), 1)[0],
    "reduce_euclidean_norm": lambda x: tf.math.reduce_euclidean_norm(pairs_of(x), 1),
    "norm of order inf": lambda x: tf.norm(pairs_of(x), np.inf, 1),
    "where with a literal NaN": lambda x: tf.where(tf.math.is_nan(x), NAN, tf.sin(x)),
    "where with NaN for a pair": lambda x: tf.where(
        tf.reduce_any(tf.math.is_nan(pairs_of(x)), 1), NAN, pairs_of(x)[:, 0]
    ),
    "cumulative_logsumexp": lambda x: tf.math.cumulative_logsumexp(pairs_of(x), 1),
    "maximum in a loop": looped,
    "maximum in a branch": branched,
    "maximum in a function": lambda x: tf.function(tf.maximum, autograph=False)(x, 0.5),
    "maximum in map_fn": lambda x: tf.map_fn(lambda v: tf.maximum(v, 0.5), x),
    "maximum in scan": lambda x: tf.scan(tf.maximum, tf.transpose(pairs_of(x))),
    "maximum in recompute_grad": tf.recompute_grad(lambda x: tf.maximum(x, 0.5)),
}
# TensorFlow 2.21 passes over NaN in the value: it is a number, and there is nothing to hide.
PASSES_OVER = {
    "graph": "scatter pool segment Pooling argmax cumulative top_k",
    "XLA": "scatter pool segment Pooling argmax cumulative reduce_m inf scan",
}
PASSES_OVER["lazy"] = PASSES_OVER["graph"]
NO_KERNEL = ("segment_max", "segment_min", "reduce_euclidean_norm")  # sorted segments, in XLA
# A cotangent goes through logarithms there, in which an absent one is a number: it stays NaN.
NOT_CURED = ("cumulative_logsumexp",)


class Runs(NamedTuple):
    """An operation: its results, and the ordinary and the masked gradient of those kept."""

    results: object
    plain: object
    ours: object


def runs_of(f, mode):
    """Return an operation in a mode, each traced once."""

    def gradient(tape_class, x, keep, **how):
        one = tf.ones([])
        with tape_class() as tape:
            tape.watch(one)
            value = tf.reduce_sum(tf.where(keep, f(x * one), 0.0))
        return value, tape.gradient(value, one, **how)

    def ours(x, keep):
        return gradient(masked.GradientTape, x, keep, lazy=mode == "lazy", on_unknown="ignore")

    def plain(x, keep):
        return gradient(tf.GradientTape, x, keep)

    compiled = {"autograph": False, "jit_compile": mode == "XLA"}
    return Runs(*(tf.function(g, **compiled) for g in (f, plain, ours)))


def at_nan(i):
    """Return the point with NaN at an entry."""
    return np.where(np.arange(4) == i, NAN, X)


def reads(runs, i):
    """Return which results an entry changes."""
    far = (np.where(np.arange(4) == i, np.float32(v), X) for v in (50, -50))
    return np.any([runs.results(x) != runs.results(X) for x in far], 0)


def assert_nan_is_chosen(name, mode):
    """Whatever reads the NaN has no finite gradient; without that, the gradient is as without."""
    runs, passed_over = runs_of(OPERATIONS[name], mode), False
    for i in range(4):
        read = reads(runs, i)
        value, slope = runs.ours(at_nan(i), np.ones_like(read))
        passed_over |= not np.isnan(value)
        assert np.isnan(slope) or not np.isnan(value), f"hidden: entry {i}, {slope}"
        if name in NOT_CURED:
            continue
        kept = ~read & np.isfinite(runs.results(at_nan(i)))
        value, slope = runs.ours(at_nan(i), kept)
        wanted = runs.plain(X, kept)
        np.testing.assert_allclose([value, slope], wanted, 1e-5, err_msg=f"dropped: entry {i}")
    assert passed_over == any(word in name for word in PASSES_OVER[mode].split())


CASES = [
    (name, mode)
    for mode in ("graph", "XLA", "lazy")
    for name in OPERATIONS
    if mode != "XLA" or name not in NO_KERNEL
]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_a_comparison_with_nan_chooses_the_nan(name, mode):
    """A NaN that the value has is in the gradient; one that is dropped afterwards is not."""
    assert_nan_is_chosen(name, mode)


@pytest.mark.parametrize(("by", "name"), [("larger", "maximum"), ("equal", "segment_max")])
def test_a_comparison_that_forgets_nan_is_found(by, name, monkeypatch):
    """Without the NaN among what a comparison chooses, a NaN of the value is hidden."""
    monkeypatch.setitem(choosers.COMPARED, by, lambda op, frame: False)  # noqa: ARG005

    with pytest.raises(AssertionError, match="hidden"):
        assert_nan_is_chosen(name, "graph")


def test_a_selection_by_hand_drops_nan():
    """A `tf.where` by the comparison of a maximum beside it takes the other branch at NaN."""
    x = tf.constant([NAN, 1.0, -1.0])

    def f(w):
        y = w * x
        return tf.reduce_sum(tf.where(y >= 0.0, y, 0.0)) + tf.reduce_sum(tf.maximum(y, 0.0)[1:])

    assert masked.grad(f)(tf.constant(2.0)) == 2.0


@pytest.mark.parametrize(
    "name", ["maximum", "maximum in a loop", "maximum in a branch", "maximum in a function"]
)
def test_second_derivatives_keep_nan(name):
    """Masked twice, a NaN that is used stays NaN, and one that is dropped is absent."""

    def twice(kept):
        def squares(w):
            return tf.reduce_sum((OPERATIONS[name](tf.linalg.matvec(ROWS, w)) ** 2)[:kept])

        slope = masked.grad(squares)
        return masked.grad(lambda w: tf.reduce_sum(slope(w)))(tf.constant([1.0, 1.5]))

    assert np.isfinite(twice(2)).all()
    assert np.isnan(twice(3)).any()


def roots(x, number):
    """Return the sum of square roots, with a number in place of those of negative numbers."""
    return tf.reduce_sum(tf.where(x < 0, np.float32(number), x**0.5))


def test_a_literal_nan_leaves_nothing_out():
    """A root that is NaN by a literal has the ordinary slope, where a literal 0 drops it."""
    for number, wanted in ((np.nan, NAN), (0.0, 0.0)):
        found = masked.grad(lambda x, number=number: roots(x, number))(tf.constant([-1.0, 4.0]))

        np.testing.assert_array_equal(found, [wanted, 0.25])


def test_a_condition_for_nan_and_for_more_drops_what_the_more_does():
    """If one condition puts NaN here and 0 there, there is no telling, and both leave out."""

    def f(w):
        y = w * tf.constant([1.0, NAN])
        bad = tf.math.is_nan(y)
        return tf.reduce_sum(tf.where(bad, 0.0, y)) + tf.where(bad, NAN, 2 * y)[0]

    assert masked.grad(f)(tf.constant(1.0)) == 3.0


def test_the_mask_says_that_nan_is_used():
    """The mask is that of the comparison, and of NaN; the gradient there is that of the tape."""
    found, mask = masked.grad(lambda x: tf.reduce_sum(tf.maximum(x, 0.5)), return_mask=True)(
        at_nan(2)
    )

    np.testing.assert_array_equal(mask, [True, False, True, True])
    np.testing.assert_array_equal(found, [1, 0, 0, 1])


def test_beside_a_nan_in_its_segment_an_entry_is_not_chosen():
    """A segment that is NaN has chosen its NaN; one that nothing reads has chosen none."""
    f = lambda x: tf.math.unsorted_segment_max(x, SEGMENTS, 2)  # noqa: E731
    x = at_nan(1)

    for first, wanted in ((0, [False, True, False, True]), (1, [False, False, False, True])):
        mask = masked.grad(lambda x, i=first: tf.reduce_sum(f(x)[i:]), return_mask=True)(x)[1]
        np.testing.assert_array_equal(mask, wanted)


# What is told of it.


def loss(w, rows, kept=None):
    """Return the mean of rectified rows."""
    return tf.reduce_mean(tf.maximum(tf.linalg.matvec(rows, w), 0.0)[:kept])


def test_a_guard_that_masks_raises():
    """A guard does not go on with a loss of NaN: no mask cures what is used."""
    weights = tf.Variable([1.0, 1.0])
    guarded = value_and_grad(lambda kept: loss(weights, ROWS, kept), [weights], on_nan="mask")

    value, (slope,) = guarded(2)
    np.testing.assert_array_equal([value, *slope], [3.5, 2, 1.5])
    with pytest.raises(NonFiniteGradientError) as caught:
        guarded(3)
    assert caught.value.__notes__ == ["the masked gradient is not finite either"]


def test_a_guard_that_masks_raises_for_a_loss_of_nan():
    """Nor does it where the gradient is finite, as that of a NaN which is added."""
    weights = tf.Variable([0.0, 1.0])

    def added():
        return tf.reduce_sum(tf.where(weights > 0, tf.sqrt(weights), 0.0)) + NAN

    with pytest.raises(NonFiniteGradientError) as caught:
        value_and_grad(tf.function(added, jit_compile=True), [weights], on_nan="mask")()
    (note,) = caught.value.__notes__
    assert note == "the masked gradient is finite, but the loss is NaN by an entry that is used"


def test_one_nan_is_told_of_once():
    """Of a NaN that is used there is one finding, that it is; of one that is dropped, no such."""
    used, dropped = (masked.explain(lambda w, k=k: loss(w, ROWS, k), tf.ones(2)) for k in (3, 2))

    assert [finding.kind for finding in used.findings] == ["FORWARD"]
    assert [finding.kind for finding in dropped.findings] == ["BLOCKED"]


# What it costs.


def count(f, kind=None):
    """Return how many operations of a kind the results of a masked gradient depend on."""
    graph = tf.function(masked.grad(f), autograph=False).get_concrete_function(tf.ones([4])).graph
    return sum(kind in (None, found) for found in kinds_run(graph))


def test_both_operands_are_everything():
    """The mask of a maximum whose operands meet again is True: nothing is asked for NaN."""

    def chain(x):
        for _ in range(3):
            x = tf.maximum(2 * x, tf.sin(x))
        return tf.reduce_sum(x)

    assert count(chain, "IsNan") == count(chain, "LogicalOr") == 0


def test_only_what_compares_asks_for_nan():
    """A rectifier and a `tf.where` ask nothing, and a maximum with a number asks once."""
    for f, wanted in (
        (lambda x: tf.reduce_sum(tf.nn.relu(tf.tanh(x))), 0),
        (lambda x: tf.reduce_sum(tf.where(x > 0, tf.tanh(x), 0.0)), 0),
        (lambda x: tf.reduce_sum(tf.maximum(tf.tanh(x), 0.0)), 1),
    ):
        assert count(f, "IsNan") == wanted, inspect.getsource(f)
