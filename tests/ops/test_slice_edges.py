"""What norms, softmax and reductions hold at edges that no table of formulas has."""

from unittest.mock import patch

import numpy as np
import pytest

import safeops as so
from assertions import assert_close
from frameworks import asarray, to_numpy
from safeops import rotations
from safeops._backends import load
from whole import gradient_in, pytest_generate_tests

__all__ = ["pytest_generate_tests"]  # runs the tests below in each `way`

nan, inf = np.nan, np.inf
LOGITS = np.log([[0.7, 0.2, 0.1]])
LOSSES = -LOGITS[0]


# Classes.


@pytest.mark.parametrize(
    ("label", "dtype", "wanted"),
    [
        (1, "int8", LOSSES[1]),
        (2, "uint64", LOSSES[2]),
        (-1, "int8", 0.0),
        (np.iinfo(np.int64).min, "int64", 0.0),
        (-(2**32), "int64", 0.0),
        (3, "int32", nan),
        (2**32, "int64", nan),
        (255, "uint8", nan),
        (2**32 - 1, "uint32", nan),
        (2**64 - 1, "uint64", nan),
        (2**64 - 2**32, "uint64", nan),
    ],
)
def test_a_class_is_the_number_that_it_is(label, dtype, wanted, framework):
    """No class wraps around: a negative one is left out, one that is not there gives NaN."""
    labels = asarray(framework, np.array([label], dtype), dtype)

    loss = to_numpy(so.safe_cross_entropy(asarray(framework, LOGITS), labels))

    assert_close(loss, [wanted], 1e-14)


@pytest.mark.whole
@pytest.mark.parametrize("bad", [nan, inf])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, for infinity
@pytest.mark.parametrize("name", ["safe_cosine_similarity", "safe_correlation"])
def test_nan_beside_a_constant_slice_stays(name, bad, framework):
    """A slice that has no direction makes 0 of numbers, and hides no NaN of the other one."""
    rows = [asarray(framework, np.array(x)) for x in ([[bad, 1.0], [1.0, 2.0]], np.zeros((2, 2)))]

    for pair in (rows, rows[::-1]):
        assert_close(to_numpy(getattr(so, name)(*pair, axis=-1)), [nan, 0.0], 0.0)


@pytest.mark.whole
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("row", [(nan, 0.0, 1.0), (0.0, nan, 1.0), (0.0, 1.0, nan)])
def test_a_nan_is_passed_on_to_each_share(row, dtype, framework):
    """No share of a slice with a NaN is a number, as none is known; an absent entry stays 0."""
    x = asarray(framework, np.array([[*row, -inf], [0.0, 0.0, 0.0, -inf]], dtype), dtype)

    shares = to_numpy(so.safe_softmax(x, axis=-1))

    assert_close(shares, [[nan, nan, nan, 0.0], [1 / 3, 1 / 3, 1 / 3, 0.0]], 1e-6)


@pytest.mark.parametrize(
    ("label", "wanted"), [(0, LOSSES[0]), (2, LOSSES[2]), (-9, 0), (2**70, nan)]
)
def test_a_python_int_is_a_class(label, wanted, framework):
    """A Python int is the class of all slices, as an array of no dimensions is."""
    logits = asarray(framework, np.repeat(LOGITS, 2, axis=0).T)

    loss = to_numpy(so.safe_cross_entropy(logits, label, axis=0))

    assert_close(loss, [wanted, wanted], 1e-14)


@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_one_hot_integers_are_refused(rows, dtype, framework):
    """One-hot vectors of integers are no classes, in a square array neither."""
    logits = asarray(framework, np.zeros((rows, 3)))
    labels = asarray(framework, np.eye(3)[:rows], dtype)

    with pytest.raises(ValueError, match="one-hot vectors are probabilities"):
        so.safe_cross_entropy(logits, labels)


def test_a_slice_left_out_has_no_slope(way):
    """A negative class leaves out what its slice holds; a class that is not there has slope NaN."""
    framework, _ = way
    logits = np.array([[nan, inf, 0.0], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    classes = asarray(framework, [-1, 0, 3], "int32")

    gradient = gradient_in(way, lambda x: so.safe_cross_entropy(x, classes), logits)

    assert_close(gradient, [[0, 0, 0], [-2 / 3, 1 / 3, 1 / 3], [nan] * 3], 1e-14)


def test_a_slice_without_a_factor_has_no_slope(way):
    """Where all factors of exponentials are 0 nothing is looked at: inf and NaN have slope 0."""
    x = np.array([[nan, inf, 1.0], [0.0, 0.0, 0.0]])
    b = asarray(way[0], [[0.0, 0.0, 0.0], [1.0, 1.0, 2.0]])

    gradient = gradient_in(way, lambda x: so.safe_logsumexp(x, axis=-1, b=b), x)

    assert_close(gradient, [[0, 0, 0], [0.25, 0.25, 0.5]], 1e-14)


# Two arrays whose slices have other entries.


def cosine(x, y, axis):
    """Return the cosine of the angle between slices."""
    products = (np.sum(a * b, axis) for a, b in ((x, y), (x, x), (y, y)))
    xy, xx, yy = products
    return xy / np.sqrt(xx * yy)


def cross_entropy(x, labels, axis):
    """Return the cross entropy of the softmax."""
    return np.sum(labels * (np.log(np.sum(np.exp(x), axis, keepdims=True)) - x), axis)


OF_TWO = {
    "safe_cosine_similarity": (so.safe_cosine_similarity, cosine),
    "safe_angle": (rotations.safe_angle, lambda *args: np.arccos(cosine(*args))),
    "squared_angle": (rotations.squared_angle, lambda *args: np.arccos(cosine(*args)) ** 2),
    "safe_correlation": (
        so.safe_correlation,
        lambda x, y, axis: cosine(*(z - z.mean(axis, keepdims=True) for z in (x, y)), axis),
    ),
    "safe_distance": (so.safe_distance, lambda x, y, axis: np.sum((x - y) ** 2, axis) ** 0.5),
    "safe_kl_divergence": (
        so.safe_kl_divergence,
        lambda p, q, axis: np.sum(p * np.log(p / q), axis),
    ),
    "safe_cross_entropy": (so.safe_cross_entropy, cross_entropy),
}
# An entry of one array along the axis is beside all entries of the other.
PAIRS = [((4, 1), (4, 5), -1), ((1, 5), (4, 1), 1), ((1,), (4, 5), -1), ((5,), (4, 5), 0)]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", OF_TWO)
def test_slices_are_those_of_the_broadcast_arrays(name, pair, turned, framework):
    """A slice of one entry is as many entries as it stands beside, in value and slope."""
    op, formula = OF_TWO[name]
    *shapes, axis = pair
    rng = np.random.default_rng(0)
    x, y = (rng.uniform(0.1, 0.9, shape) for shape in (shapes[::-1] if turned else shapes))
    beside = np.broadcast_arrays(x, y)
    if name == "safe_correlation" and any(np.ptp(z, axis).min() == 0 for z in beside):
        pytest.skip("a constant slice has no correlation")

    found = op(asarray(framework, x), asarray(framework, y), axis=axis)

    assert_close(to_numpy(found), formula(*beside, axis), 1e-12)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", OF_TWO)
def test_slopes_are_those_of_the_broadcast_arrays(name, turned, way):
    """Slopes of either array are those behind a broadcast by the caller."""
    op, xp = OF_TWO[name][0], load(way[0]).xp
    rng = np.random.default_rng(0)
    # Lengths and shifts of a slice of one entry have slope 0: the other slice tells ways apart.
    x, y = (rng.uniform(0.1, 0.9, shape) for shape in ((4, 1), (4, 5)))
    one, other = (y, x) if turned else (x, y)
    fixed = asarray(way[0], other)

    def of_pair(x, y):
        return op(y, x, axis=-1) if turned else op(x, y, axis=-1)

    found = gradient_in(way, lambda x: of_pair(x, fixed), one)
    wide = gradient_in(way, lambda x: of_pair(*xp.broadcast_arrays(x, fixed)), one)

    assert_close(found, wide, 1e-12, atol=1e-13)


# Products.


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        ((0.0, 0.0, nan), (nan, nan, 0.0)),
        ((0.0, 0.0, inf), (nan, nan, 0.0)),
        ((1e-30, 1e-30, 1.0), (1e-30, 1e-30, 0.0)),
        ((1e30, 1e30, 1.0), (1e30, 1e30, inf)),
        ((0.0, 2.0, 3.0), (6.0, 0.0, 0.0)),
    ],
)
# The axis is written out: with dynamic=True torch.compile makes a symbol of a captured one (2.13).
@pytest.mark.parametrize(
    "product", [so.safe_prod, lambda x: so.safe_prod(x, axis=-1)], ids=["all", "axis"]
)
def test_the_slope_of_a_product_is_that_of_the_others(entries, wanted, product, way):
    """The product of the others, where the whole one is out of range or two zeros hide a NaN."""
    gradient = gradient_in(way, product, entries, "float32")

    assert_close(gradient, wanted, 1e-6)


# Norms, and options.


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_maximum_norm_of_an_infinite_entry(dtype, framework):
    """The maximum norm of an infinite entry is inf, complex numbers included."""
    x = asarray(framework, [1.0, inf], dtype)

    norm = to_numpy(so.safe_norm(x, ord=inf))

    assert norm == inf


@pytest.mark.parametrize(
    ("name", "options", "error", "words"),
    [
        ("safe_norm", {"ord": "fro"}, TypeError, r"axis=\(-2, -1\)"),
        ("safe_norm", {"ord": None}, TypeError, "at least 1"),
        ("safe_norm", {"ord": nan}, ValueError, "at least 1"),
        ("safe_norm", {"min_norm": None}, TypeError, "finite number"),
        ("safe_norm", {"min_norm": nan}, ValueError, "finite number"),
        ("safe_norm", {"min_norm": -1}, ValueError, "finite number"),
        ("safe_normalize", {"ord": "fro"}, TypeError, "at least 1"),
        ("nanvar", {"correction": None}, TypeError, "a number as correction"),
        ("safe_std", {"correction": nan}, ValueError, "a number as correction"),
    ],
)
def test_options_that_are_none_are_refused(name, options, error, words, framework):
    """What is no order, floor or correction is an error that says what is."""
    with pytest.raises(error, match=words):
        getattr(so, name)(asarray(framework, [1.0, 2.0]), **options)


@pytest.mark.parametrize("name", ["nansum", "safe_max", "safe_softmax", "safe_norm"])
def test_masks_of_another_shape_are_refused(name, framework):
    """A mask that does not broadcast is an error that names both shapes."""
    x, keep = asarray(framework, np.zeros((2, 3))), asarray(framework, [True] * 4, "bool")

    with pytest.raises(ValueError, match=r"broadcasts against \(2, 3\), got \(4,\)"):
        getattr(so, name)(x, where=keep)


@pytest.mark.parametrize("name", ["nanvar", "safe_std"])
def test_a_boolean_correction_is_a_number(name, framework):
    """A correction of True is 1."""
    x = asarray(framework, [1.0, 2.0, 4.0])

    spread = [to_numpy(getattr(so, name)(x, correction=one)) for one in (True, 1)]

    np.testing.assert_array_equal(*spread)


@pytest.mark.only("torch")
def test_the_median_of_nothing_keeps_its_graph():
    """The gradient of a median of nothing is that of nothing."""
    import torch

    x = torch.zeros(2, 0, requires_grad=True)

    so.nanmedian(x, axis=1).sum().backward()

    assert x.grad.shape == x.shape


@pytest.mark.only("jax")
@pytest.mark.parametrize("q", [0.3, [0.25, 0.5], "array"])
@pytest.mark.parametrize("name", ["nanquantile", "nanpercentile"])
def test_quantiles_transfer_nothing(name, q):
    """Eager quantiles of JAX move no constant to the device, once they are compiled."""
    import jax

    x, op = asarray("jax", [1.0, 2.0, nan]), getattr(so, name)
    q = asarray("jax", [0.25, 0.5]) if q == "array" else q
    # A table of its own: other tests may have filled that of the process, of 64 programs each.
    with patch.object(load("jax"), "programs", type(load("jax").programs)()):
        wanted = op(x, q)
        with jax.transfer_guard("disallow"):
            got = op(x, q)

    np.testing.assert_array_equal(to_numpy(got), to_numpy(wanted))


# Slices with too few entries.


@pytest.mark.parametrize("held", [inf, -inf, nan])
@pytest.mark.parametrize("name", ["safe_var", "safe_std", "nanvar", "nanstd"])
def test_a_slice_of_too_few_entries_has_no_slope(name, held, way):
    """What keeps no more entries than the correction is filled, and has gradient 0."""
    x = np.array([[held, inf], [0.0, 2.0]])
    keep = asarray(way[0], [[True, False], [True, True]], "bool")

    def spread(x):
        return getattr(so, name)(x, axis=-1, correction=1, where=keep, fill_value=0.0)

    gradient = gradient_in(way, spread, x)

    slope = 2.0 if name.endswith("var") else 0.5**0.5
    assert_close(gradient, [[0, 0], [-slope, slope]], 1e-14)


@pytest.mark.only("torch")
@pytest.mark.parametrize("held", [nan, inf])
def test_two_zeros_of_a_product_hide_nothing(held):
    """The first backward pass of eager PyTorch has NaN at zeros beside a NaN or inf, too."""
    import torch

    x = torch.tensor([0.0, 0.0, held], requires_grad=True)

    so.safe_prod(x).backward()

    assert_close(x.grad, [nan, nan, 0.0], 0.0)


@pytest.mark.only("torch")
@pytest.mark.parametrize("count", [2, 2000])
def test_a_norm_has_batched_gradients(count):
    """A vectorised Jacobian of PyTorch has cotangents at whose numbers nothing can look."""
    import torch

    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]]).repeat(count, 1)

    slopes = torch.autograd.functional.jacobian(
        lambda x: so.safe_norm(x, axis=-1)[:2], x, vectorize=True
    )

    wanted = np.zeros((2, 2 * count, 2))
    wanted[0, 0] = [0.6, 0.8]
    assert_close(slopes, wanted, 1e-6)


def test_what_is_absent_has_no_share_beside_nan(autodiff_framework):
    """The softmax of -inf, or of what is masked, is 0 with slope 0 where the rest is NaN."""
    x = asarray(autodiff_framework, [[nan, 1.0, -inf, 2.0], [0.0, 1.0, -inf, 2.0]])
    keep = asarray(autodiff_framework, [[True, True, True, False]] * 2, "bool")
    backend = load(autodiff_framework)

    value = to_numpy(so.safe_softmax(x, where=keep))
    square = lambda x: backend.xp.sum(so.safe_softmax(x, where=keep) ** 2)  # noqa: E731
    slope = to_numpy(backend.grad(square)(x)[0])

    assert (value[:, 2:] == 0).all()
    assert (slope[:, 2:] == 0).all()
    assert np.isnan(value[0, :2]).all()
    assert np.isnan(slope[0, :2]).all()
    assert np.isfinite(value[1]).all()
    assert np.isfinite(slope[1]).all()


def test_numpy_gives_no_share_beside_nan(framework):
    """The values are the same without derivatives, and without a mask."""
    x = asarray(framework, [[nan, 1.0, -inf], [0.0, 1.0, -inf]])

    assert np.isnan(to_numpy(so.safe_softmax(x)[0, :2])).all()
    assert (to_numpy(so.safe_softmax(x)[:, 2]) == 0).all()
