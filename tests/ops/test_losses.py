"""Losses beyond the tables: classes, weights, batches without a label, means by a count."""

from math import inf, log, nan

import numpy as np
import pytest

import safeops as so
from assertions import assert_close
from frameworks import asarray, to_numpy
from safeops._backends import load
from safeops._dispatch import backend_of

LOG_PROBS = [[-0.25, nan, -inf], [nan, nan, nan], [-inf, -1.5, -2.0], [-1.0, -2.0, -3.0]]
CLASSES = [0, -1, 2, 0]


def gradient(f, *args):
    """Return the gradients of the sum of a function."""
    backend = backend_of(*args)
    return [to_numpy(g) for g in backend.grad(lambda *a: backend.xp.sum(f(*a)))(*args)]


def test_nll_reads_the_entry_of_the_class(framework):
    """The value is that of the class alone, whatever others hold; a negative class is left out."""
    x = asarray(framework, LOG_PROBS)
    keep = asarray(framework, [[True] * 3] * 3 + [[False, True, True]], "bool")

    loss = so.safe_nll(x, asarray(framework, CLASSES, "int32"), where=keep)
    unknown = so.safe_nll(x, asarray(framework, [0, 3, 2, 0], "int64"))

    assert_close(to_numpy(loss), [0.25, 0, 2.0, 0], 1e-15)
    assert_close(to_numpy(unknown), [0.25, nan, 2.0, 1.0], 1e-15)
    assert_close(to_numpy(so.safe_nll(x[3, :], 1)), 2.0, 1e-15)


def test_nll_has_the_slope_of_its_entry(autodiff_framework):
    """-1 for the entry of the class, 0 for others; NaN for all of a slice of an unknown class."""
    x = asarray(autodiff_framework, LOG_PROBS)
    classes = asarray(autodiff_framework, [0, -1, 2, 7], "int32")

    (slope,) = gradient(lambda x: so.safe_nll(x, classes), x)

    assert_close(slope[:3], [[-1, 0, 0], [0, 0, 0], [0, 0, -1]], 0)
    assert np.isnan(slope[3]).all()


def test_the_axis_of_the_classes_may_be_any(framework):
    """Classes, weights and smoothing follow the axis."""
    rng = np.random.default_rng(0)
    x, classes = rng.normal(size=(2, 3, 4)), rng.integers(0, 3, (2, 4))
    weights = np.array([0.5, 2.0, 1.0])
    one_hot = np.moveaxis(np.eye(3)[classes], -1, 1)
    log_p = x - np.log(np.exp(x).sum(1, keepdims=True))
    labels = 0.9 * one_hot + 0.1 / 3
    wanted = -(weights[None, :, None] * labels * log_p).sum(1)
    options = {"label_smoothing": 0.1, "weights": asarray(framework, weights)}
    logits = asarray(framework, x)

    for axis in (1, -2):
        got = so.safe_cross_entropy(
            logits, asarray(framework, classes, "int32"), axis=axis, **options
        )
        soft = so.safe_cross_entropy(logits, asarray(framework, one_hot), axis=axis, **options)
        nll = so.safe_nll(
            asarray(framework, log_p), asarray(framework, classes, "int32"), axis=axis
        )
        assert_close(to_numpy(got), wanted, 1e-13)
        assert_close(to_numpy(soft), wanted, 1e-13)
        assert_close(to_numpy(nll), -(one_hot * log_p).sum(1), 1e-13)


def test_smoothing_gives_nothing_to_classes_that_are_absent(framework):
    """A logit of -inf, or one left out, has no share; a weight of 0 makes -inf harmless."""
    x = asarray(framework, [[0.0, 0.0, -inf], [0.0, 0.0, -inf]])
    keep = asarray(framework, [[True] * 3, [True, False, True]], "bool")
    classes = asarray(framework, [0, 0], "int32")

    loss = so.safe_cross_entropy(x, classes, where=keep, label_smoothing=0.5)
    weights = asarray(framework, [1.0, 1.0, 0.0])
    other = so.safe_cross_entropy(x, asarray(framework, [2, 2], "int32"), weights=weights)

    assert_close(to_numpy(loss), [log(2), 0], 1e-14)
    assert_close(to_numpy(other), [0, 0], 0)


LOSSES = {
    "safe_binary_cross_entropy": so.safe_binary_cross_entropy,
    "safe_focal_loss": lambda x, y, where: so.safe_focal_loss(x, y, gamma=0.5, where=where),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("filler", [nan, inf, -inf, 1e300])
def test_what_is_left_out_has_no_slope(name, filler, autodiff_framework):
    """Loss and both slopes are 0 where nothing is kept, whatever stands there."""
    x = asarray(autodiff_framework, [filler, 1.0, 1.0])
    y = asarray(autodiff_framework, [filler, filler, 1.0])
    keep = asarray(autodiff_framework, [False, False, True], "bool")

    value = to_numpy(LOSSES[name](x, y, where=keep))
    slopes = gradient(lambda *a: LOSSES[name](*a, where=keep), x, y)

    assert (value[:2] == 0).all()
    assert value[2] > 0
    for slope in slopes:
        assert (slope[:2] == 0).all()
        assert np.isfinite(slope[2])


def test_a_batch_without_a_label_moves_nothing(autodiff_framework):
    """The mean over no label is the fill with gradient 0; the plain quotient is NaN."""
    backend = load(autodiff_framework)
    xp = backend.xp
    logits = asarray(autodiff_framework, [[1.0, 2.0], [3.0, 4.0]])
    labels = asarray(autodiff_framework, [-1, -1], "int32")
    keep = asarray(autodiff_framework, [False, False], "bool")

    def loss(x):
        return so.safe_mean(so.safe_cross_entropy(x, labels), where=keep, fill_value=0.0)

    def by_all_ranks(x):
        return so.safe_mean(so.safe_cross_entropy(x, labels), where=keep, count=0, fill_value=0.0)

    def naive(x):
        kept = xp.astype(keep, xp.float64)
        losses = xp.log(xp.sum(xp.exp(x), axis=-1)) - x[:, 0]
        return xp.sum(losses * kept) / xp.sum(kept)

    for f in (loss, by_all_ranks):
        assert to_numpy(f(logits)) == 0
        assert (gradient(f, logits)[0] == 0).all()
    assert np.isnan(gradient(naive, logits)[0]).all()


def test_gamma_0_is_binary_cross_entropy(autodiff_framework):
    """Value and slopes agree; with alpha they are those of weighted classes."""
    x = asarray(autodiff_framework, [-900.0, -1.0, 0.0, 3.0, 900.0])
    y = asarray(autodiff_framework, [1.0, 0.25, 0.0, 1.0, 0.0])
    one = asarray(autodiff_framework, np.ones(5))

    plain, focal = so.safe_binary_cross_entropy, lambda *a: so.safe_focal_loss(*a, gamma=0)
    assert_close(to_numpy(focal(x, y)), to_numpy(plain(x, y)), 0)
    for got, wanted in zip(gradient(focal, x, y), gradient(plain, x, y), strict=True):
        assert_close(got, wanted, 0)
    weighted = so.safe_focal_loss(x, one, gamma=0, alpha=0.25)
    assert_close(to_numpy(weighted), 0.25 * to_numpy(plain(x, one)), 1e-14)
    weighted = so.safe_focal_loss(x, one * 0.0, gamma=0, alpha=0.25)
    assert_close(to_numpy(weighted), 0.75 * to_numpy(plain(x, one * 0.0)), 1e-14)


def test_what_is_kept_stays_at_a_logit_of_minus_inf(autodiff_framework):
    """A NaN in a label or a weight is NaN in value and slopes; the sign of a weight counts."""
    x = asarray(autodiff_framework, [[0.0, 1.0, -inf], [0.0, 1.0, 2.0]])
    soft = asarray(autodiff_framework, [[1.0, 0.0, nan], [1.0, 0.0, 0.0]])
    classes = asarray(autodiff_framework, [2, 0], "int32")
    weights = [asarray(autodiff_framework, [1.0, 1.0, w]) for w in (nan, -1.0)]

    undefined = so.safe_cross_entropy(x, classes, weights=weights[0])
    endless = so.safe_cross_entropy(x, classes, weights=weights[1])
    slopes = [
        gradient(lambda x: so.safe_cross_entropy(x, soft), x)[0],
        gradient(lambda x: so.safe_cross_entropy(x, classes, weights=weights[0]), x)[0],
    ]

    assert np.isnan(to_numpy(so.safe_cross_entropy(x, soft))).tolist() == [True, False]
    assert np.isnan(to_numpy(undefined)).tolist() == [True, False]
    assert np.isneginf(to_numpy(endless)).tolist() == [True, False]
    for slope in slopes:
        assert np.isnan(slope[0, :2]).all()
        assert np.isfinite(slope[1]).all()


@pytest.mark.parametrize("odd", [nan, inf])
def test_the_weight_of_another_class_is_not_read(odd, autodiff_framework):
    """A class that no slice has as its label has a weight of any value, and slope 0 for it."""
    x = asarray(autodiff_framework, [[0.0, 1.0, 2.0], [3.0, 1.0, nan]])
    weights = asarray(autodiff_framework, [2.0, odd, odd])
    labels = asarray(autodiff_framework, [0, -1], "int32")

    def loss(x, weights):
        return so.safe_cross_entropy(x, labels, weights=weights)

    value, slopes = to_numpy(loss(x, weights)), gradient(loss, x, weights)

    share = np.exp([0.0, 1.0, 2.0]) / np.exp([0.0, 1.0, 2.0]).sum()
    assert_close(value, [-2 * np.log(share[0]), 0], 1e-14)
    assert_close(slopes[0], [2 * (share - [1, 0, 0]), [0] * 3], 1e-14)
    assert_close(slopes[1], [-np.log(share[0]), 0, 0], 1e-14)


@pytest.mark.parametrize("gamma", [0, 0.001, 0.5, 2, 50])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_largest_logits_have_a_line(gamma, dtype, autodiff_framework):
    """The slope is 1 or 0 up to the largest logit; ``gamma * logit`` is beyond the dtype there."""
    most = float(np.finfo(dtype).max)
    x = asarray(autodiff_framework, [most, -most, 1e30, -1e30], dtype)

    for label, slope in ((0.0, [1, 0, 1, 0]), (1.0, [0, -1, 0, -1])):
        y = asarray(autodiff_framework, [label] * 4, dtype)

        def loss(x, y):
            return so.safe_focal_loss(x, y, gamma=gamma)

        assert_close(to_numpy(loss(x, y)), slope * to_numpy(x), 1e-6)
        found = gradient(loss, x, y)
        assert_close(found[0], slope, 1e-6)
        assert_close(found[1], -to_numpy(x), 1e-6)


SATURATED = {"float16": (60.0, 2e-3), "bfloat16": (900.0, 1e-2), "float32": (900.0, 1e-6)}


@pytest.mark.parametrize("dtype", SATURATED)
def test_saturated_logits_of_narrow_dtypes(dtype, autodiff_framework):
    """In each dtype a saturated logit has the loss of a line, with slope 1, or none."""
    size, rtol = SATURATED[dtype]
    x = asarray(autodiff_framework, [size, -size, size, -size], dtype)
    y = asarray(autodiff_framework, [1.0, 1.0, 0.0, 0.0], dtype)

    for f in (so.safe_binary_cross_entropy, so.safe_focal_loss):
        assert_close(to_numpy(f(x, y)), [0, size, size, 0], rtol, atol=1e-7)
        assert_close(gradient(f, x, y)[0], [0, -1, 1, 0], rtol, atol=1e-7)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: so.safe_focal_loss(x, x, gamma=-1.0), "safe_focal_loss: .* as gamma, got -1.0"),
        (lambda x: so.safe_focal_loss(x, x, alpha=2.0), "safe_focal_loss: .* as alpha, got 2.0"),
        (lambda x: so.safe_nll(x, x), "safe_nll: expected integers as labels, got float64"),
        (lambda x: so.safe_nll(x, 0, axis=(0,)), "safe_nll: expected an int as axis"),
        (
            lambda x: so.safe_cross_entropy(x, x, label_smoothing=2),
            "safe_cross_entropy: .* as label_smoothing, got 2",
        ),
        (
            lambda x: so.safe_cross_entropy(x, x, weights=x),
            "safe_cross_entropy: expected a vector, one number a class, as weights",
        ),
        (
            lambda x: so.safe_cross_entropy(x, x, weights=x[0, :1]),
            r"safe_cross_entropy: expected a vector, .* as weights, got shape \(1,\)",
        ),
    ],
)
def test_options_out_of_range_are_named(call, words, framework):
    """What is wrong, and what is taken, is said."""
    with pytest.raises((TypeError, ValueError), match=f"^{words}"):
        call(asarray(framework, [[1.0, 2.0]]))


@pytest.mark.only("tensorflow")
def test_weights_of_an_unknown_rank_are_taken():
    """A trace for arrays of any rank has the loss of the arrays that it gets."""
    import tensorflow as tf

    anything = [tf.TensorSpec(None, kind) for kind in (tf.float64, tf.int32, tf.float64)]
    traced = tf.function(
        lambda x, labels, w: so.safe_cross_entropy(x, labels, weights=w), input_signature=anything
    )

    loss = traced(
        tf.zeros((2, 2), tf.float64), tf.constant([0, -1]), tf.constant([3.0, 1], "double")
    )

    assert_close(to_numpy(loss), [3 * log(2), 0], 1e-14)
