"""Segments: each is what the reduction of that name makes of its entries, derivatives included."""

import math

import mpmath
import numpy as np
import pytest

import slices
import specs
from assertions import assert_close
from derivatives import SECOND, derivatives_in, directions
from elementwise import pytest_generate_tests
from frameworks import asarray, to_numpy
from safeops import segments
from safeops._backends import load
from safeops._core.dtypes import dtype_name
from safeops._dispatch import backend_of
from specs.segments import SPECS

__all__ = ["pytest_generate_tests"]  # runs the tests below in each `way`

nan, inf = np.nan, np.inf
# Not sorted; -2, 7 and 9 are no segment of five, 1 is empty, and of 4 nothing is kept.
IDS = np.array([3, 0, 2, 0, 4, 7, 3, -2, 0, 2, 3, 9])
KEEP = np.array([1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1], dtype=bool)
DATA = np.array([3.0, 0.5, 2.0, 0.5, nan, inf, 0.0, nan, -1.5, 2.0, -inf, nan])
FINITE = np.where(np.isfinite(DATA), DATA, 1e30)
COUNT = 5
WEIGHTS = (1.0, -0.5, 2.0, 0.25, 1.5)


def numbers(x):
    """Return an array as one of NumPy; PyTorch's zeros without storage have none before a sum."""
    return to_numpy(x + 0.0)


def members(k):
    """Return the places of the entries that segment k keeps."""
    return [i for i in range(len(IDS)) if IDS[i] == k and KEEP[i]]


FORMULAS = {spec.name: (spec.formula, spec.empty) for spec in SPECS if spec.formula}
NAIVE = {spec.name: spec.naive for spec in SPECS if spec.naive}


def exact(name):
    """Return values, and gradient and Hessian of their weighted sum."""
    formula, nothing = FORMULAS[name]
    value, gradient = np.full(COUNT, nothing), np.zeros(len(IDS))
    hessian = np.zeros((len(IDS), len(IDS)))
    for k in range(COUNT):
        here = members(k)
        if not here:
            continue
        x = [mpmath.mpf(DATA[i]) for i in here]
        value[k] = float(formula(x))
        if name == "segment_std" and value[k] == 0:
            continue  # chosen
        with mpmath.workdps(50):
            for a, i in enumerate(here):
                one = slices.unit(a, len(here))
                f = lambda *x: formula(x)  # noqa: E731  (mpmath passes numbers one by one)
                gradient[i] = WEIGHTS[k] * mpmath.diff(f, x, one)
                for b, j in enumerate(here):
                    both = tuple(np.add(one, slices.unit(b, len(here))))
                    hessian[i, j] = WEIGHTS[k] * mpmath.diff(f, x, both)
    return value, gradient, hessian


def weighted(framework):
    """Return the weighted sum of the finite results."""
    xp = load(framework).xp

    def reduce(out):
        finite = xp.where(xp.isfinite(out), out, 0.0)
        return sum(w * finite[..., k] for k, w in enumerate(WEIGHTS))

    return reduce


def run(way, name):
    """Return value and derivatives of an operation in a mode, and the directions."""
    framework, mode = way
    x = DATA[None]
    v, u = (d[0][0] for d in directions([x.shape]))
    ids = asarray(framework, IDS, "int32")
    keep = asarray(framework, KEEP, "bool")

    def one(x):
        return getattr(segments, name)(x, ids, COUNT, where=keep)

    def f(x):
        if len(x.shape) == 1:  # under vmap
            return one(x)
        return load(framework).xp.expand_dims(one(x[0, :]), axis=0)

    args = [[asarray(framework, a)] for a in (x, v[None], u[None])]
    got = derivatives_in(mode, framework, f, weighted(framework), *args)
    return got, v, u


@pytest.mark.parametrize("name", FORMULAS)
def test_segments_are_exact(name, way):
    """Value, gradient and second derivatives are those of the formula, in every mode."""
    got, v, u = run(way, name)

    value, gradient, hessian = exact(name)
    turned = hessian @ v
    wanted = {"value": value, "reverse": gradient, "forward": gradient @ v}
    wanted |= dict.fromkeys(SECOND[:3], turned) | {"fwd-fwd": turned @ u}
    used = KEEP & (IDS >= 0) & (IDS < COUNT)
    for order, x in got.items():
        found = numbers(x[0] if order in ("reverse", *SECOND[:3]) else x)[0]
        atol = 1e-13 * used if found.shape == used.shape else 1e-13
        assert_close(found, wanted[order], 1e-12, order, atol)


def test_softmax_of_segments_is_exact(way):
    """Shares, their gradient and its derivatives are those of each segment, 0 where left out."""
    framework, mode = way
    ids, keep = asarray(framework, IDS, "int32"), asarray(framework, KEEP, "bool")
    weights = np.linspace(-1, 2, len(IDS))
    x = DATA.copy()
    x[6] = -inf  # absent
    v, u = (d[0][0] for d in directions([x[None].shape]))
    w = asarray(framework, weights)

    def f(x):
        if len(x.shape) == 1:
            return segments.segment_softmax(x, ids, COUNT, where=keep)
        return f(x[0, :])[None, :]

    def reduce(out):
        return load(framework).xp.sum(out * w, axis=-1)

    args = [[asarray(framework, a[None])] for a in (x, v, u)]
    got = derivatives_in(mode, framework, f, reduce, *args)

    share, turn = np.zeros(len(x)), np.zeros((len(x), len(x)))
    slope = np.zeros(len(x))
    for k in range(COUNT):
        here = [i for i in members(k) if x[i] > -inf]
        if not here:
            continue
        p = np.exp(x[here] - x[here].max())
        p /= p.sum()
        share[here] = p
        away = weights[here] - p @ weights[here]
        slope[here] = p * away
        jacobian = np.diag(p) - np.outer(p, p)
        turn[np.ix_(here, here)] = np.diag(away) @ jacobian - np.outer(p, weights[here] @ jacobian)
    wanted = {"value": share, "reverse": slope, "forward": slope @ v}
    wanted |= dict.fromkeys(SECOND[:3], turn @ v) | {"fwd-fwd": u @ turn @ v}
    for order, out in got.items():
        found = numbers(out[0] if order in ("reverse", *SECOND[:3]) else out)[0]
        atol = 1e-14 * (share != 0) if found.shape == share.shape else 1e-14
        assert_close(found, wanted[order], 1e-12, order, atol)


@pytest.mark.parametrize("name", FORMULAS)
def test_values_are_exact_everywhere(name, framework):
    """Values are those of the formula on every framework, sorted or not, with trailing axes."""
    value, *_ = exact(name)
    order = np.argsort(IDS, kind="stable")
    for place in (np.arange(len(IDS)), order):
        table = np.stack([DATA[place], 2 * DATA[place]], -1)[:, None, :]
        got = getattr(segments, name)(
            asarray(framework, table),
            asarray(framework, IDS[place], "int64"),
            COUNT,
            where=asarray(framework, KEEP[place], "bool"),
        )
        assert to_numpy(got).shape == (COUNT, 1, 2)
        assert_close(to_numpy(got)[:, 0, 0], value, 1e-14)


@pytest.mark.parametrize("name", [*FORMULAS, "segment_softmax"])
def test_a_nan_that_is_kept_stays_in_its_segment(name, autodiff_framework):
    """Value and gradient of its segment are NaN, and of no other; a sum has its slope of 1."""
    x = asarray(autodiff_framework, [1.0, nan, 3.0, 4.0])
    ids = asarray(autodiff_framework, [0, 0, 1, 1], "int32")
    backend = backend_of(x)

    def f(x):
        return getattr(segments, name)(x, ids, 2)

    def square(x):
        return backend.xp.sum(f(x) ** 2)

    value, slope = to_numpy(f(x)), to_numpy(backend.grad(square)(x)[0])
    half = len(value) // 2
    assert np.isnan(value[:half]).all()
    assert np.isfinite(value[half:]).all()
    assert np.isnan(slope[:2]).all()
    assert np.isfinite(slope[2:]).all()


def test_extremes_of_infinite_entries(autodiff_framework):
    """An infinite extreme is one, shared by those that tie; beside it the finite ones have 0."""
    most = np.finfo(np.float64).max
    x = asarray(autodiff_framework, [inf, inf, 1.0, -inf, -inf, -inf, 2.0, -most, -inf])
    ids = asarray(autodiff_framework, [0, 0, 0, 1, 1, 2, 2, 3, 3], "int32")
    backend = backend_of(x)

    value = segments.segment_max(x, ids, 4)
    (slope,) = backend.grad(lambda x: backend.xp.sum(segments.segment_max(x, ids, 4)))(x)

    assert to_numpy(value).tolist() == [inf, -inf, 2, -most]
    assert to_numpy(slope).tolist() == [0.5, 0.5, 0, 0.5, 0.5, 0, 1, 1, 0]


def test_the_largest_number_ties_with_itself(autodiff_framework):
    """Ties of the largest number are that number: a mean of ten of them rounds to inf."""
    most = float(np.finfo(np.float32).max)
    ids = np.repeat(np.arange(12), np.arange(12) + 1)
    x = asarray(autodiff_framework, np.full(len(ids), most), "float32")
    segment = asarray(autodiff_framework, ids, "int32")
    backend = backend_of(x)

    parts = x / asarray(autodiff_framework, ids + 1.0, "float32")
    assert np.isinf(to_numpy(backend.segment_sum(parts, segment, 12))).any()  # the naive mean
    for f, sign in ((segments.segment_max, 1.0), (segments.segment_min, -1.0)):
        (slope,) = backend.grad(lambda x, f=f: backend.xp.sum(f(x, segment, 12)))(sign * x)
        assert (to_numpy(f(sign * x, segment, 12)) == sign * most).all()
        assert_close(to_numpy(slope), 1 / (ids + 1), 1e-6)


# The product of the middle two is too large, that of all is not.
FACTORS = [1e-30, 1e30, 1e30, 1.0]


def test_no_product_is_formed_beside_the_result(autodiff_framework):
    """Running products of a segment would have an inf, and a gradient of ``0 * inf``."""
    x = asarray(autodiff_framework, [*FACTORS, 2.0, *FACTORS[:3], 3.0], "float32")
    ids = asarray(autodiff_framework, [0, 0, 0, 0, 1, 2, 2, 2, 1], "int32")
    backend = backend_of(x)

    value = segments.segment_prod(x, ids, 3)
    (slope,) = backend.grad(lambda x: backend.xp.sum(segments.segment_prod(x, ids, 3)))(x)

    assert_close(to_numpy(value), [1e30, 6, 1e30], 1e-6)
    assert_close(to_numpy(slope), [inf, 1, 1, 1e30, 3, inf, 1, 1, 2], 1e-6)


@pytest.mark.parametrize("cotangent", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_a_slope_of_a_deviation_is_that_of_any_cotangent(size, cotangent, autodiff_framework):
    """It neither overflows nor is 0, although the cotangent times the deviation would be."""
    x = asarray(autodiff_framework, [3 * size, size], "float32")
    ids = asarray(autodiff_framework, [0, 0], "int32")
    backend = backend_of(x)

    def f(x):
        return backend.xp.sum(segments.segment_std(x, ids, 1) * cotangent)

    (slope,) = backend.grad(f)(x)

    assert_close(to_numpy(slope), [cotangent / 2, -cotangent / 2], 1e-6)


def test_what_is_absent_has_no_share_beside_nan(autodiff_framework):
    """The share of -inf is 0, with slope 0, where the others of its segment are NaN."""
    x = asarray(autodiff_framework, [nan, -inf, 1.0, 2.0, -inf])
    ids = asarray(autodiff_framework, [0, 0, 0, 1, 1], "int32")
    backend = backend_of(x)

    value = to_numpy(segments.segment_softmax(x, ids, 2))
    (slope,) = backend.grad(lambda x: backend.xp.sum(segments.segment_softmax(x, ids, 2) ** 2))(x)

    assert_close(value, [nan, 0, nan, 1, 0], 0)
    assert (to_numpy(slope)[[1, 4]] == 0).all()
    assert np.isnan(to_numpy(slope)[[0, 2]]).all()


RANGE = {"float16": 1e4, "bfloat16": 1e30, "float32": 1e30, "float64": 1e300}


@pytest.mark.parametrize("dtype", RANGE)
def test_segments_stay_in_range(dtype, autodiff_framework):
    """A deviation near either end of the range is right, and so is its slope; the dtype stays."""
    size = RANGE[dtype]
    x = asarray(autodiff_framework, [3 * size, size, 3 / size, 1 / size, 7.0], dtype)
    ids = asarray(autodiff_framework, [0, 0, 1, 1, 2], "int32")
    backend = backend_of(x)
    rtol = {"float16": 4e-3, "bfloat16": 4e-2}.get(dtype, 1e-6)

    value = segments.segment_std(x, ids, 3)
    (slope,) = backend.grad(lambda x: backend.xp.sum(segments.segment_std(x, ids, 3)))(x)
    top = segments.segment_max(x, ids, 3)

    assert {dtype_name(y.dtype) for y in (value, slope, top)} == {dtype}
    assert_close(to_numpy(value), [size, 1 / size, 0], rtol)
    assert_close(to_numpy(slope), [0.5, -0.5, 0.5, -0.5, 0], rtol)
    assert (to_numpy(top) == to_numpy(x)[[0, 2, 4]]).all()


def test_what_others_write_is_nan_or_wrong(autodiff_framework):
    """The naive softmax and deviation of a segment are NaN, or have a slope of NaN."""
    x = asarray(autodiff_framework, [1.0, -inf, 2.0, 2.0])
    ids = asarray(autodiff_framework, [0, 1, 2, 2], "int32")
    backend = backend_of(x)
    xp = backend.xp

    for name, naive in NAIVE.items():
        ours = getattr(segments, name)
        y = x if name == "segment_softmax" else xp.where(xp.isfinite(x), x, 1.0)
        (plain,) = backend.grad(lambda x, f=naive: xp.sum(f(backend, x, ids, 3)))(y)
        (slope,) = backend.grad(lambda x, f=ours: xp.sum(f(x, ids, 3)))(y)
        assert np.isnan(to_numpy(plain)).any()
        assert np.isfinite(to_numpy(slope)).all()


@pytest.mark.parametrize("name", [*FORMULAS, "segment_softmax"])
def test_nothing_and_no_segment(name, framework):
    """No entry gives empty segments, and no segment an empty result; a fill is the caller's."""
    f = getattr(segments, name)
    x, ids = asarray(framework, [[1.0, 2.0]]), asarray(framework, [4], "int32")
    none, no_ids = asarray(framework, np.zeros((0, 2))), asarray(framework, np.zeros(0), "int32")

    rows = 1 if name == "segment_softmax" else 3
    assert (to_numpy(f(x, ids, 3, fill_value=7.0)) == np.full((rows, 2), 7.0)).all()
    assert to_numpy(f(none, no_ids, 3, fill_value=7.0)).shape == (rows - (rows == 1), 2)
    assert to_numpy(f(x, ids, 0)).shape == ((1, 2) if rows == 1 else (0, 2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x, i: segments.segment_sum(x, i, 2.0), "expected an int as num_segments"),
        (
            lambda x, i: segments.segment_sum(x, i, -1),
            "expected at least 0 as num_segments, got -1",
        ),
        (lambda x, _: segments.segment_sum(x, x, 2), "expected a dtype out of"),
        (lambda x, i: segments.segment_sum(x, i[:1], 2), "expected data of shape .* segment_ids"),
        (
            lambda x, i: segments.segment_std(x, i, 2, correction="1"),
            "expected a number as correction",
        ),
    ],
)
def test_wrong_arguments_are_named(call, words, framework):
    """An error says what was given and what is taken."""
    x, ids = asarray(framework, [1.0, 2.0]), asarray(framework, [0, 1], "int32")
    with pytest.raises((TypeError, ValueError), match=f"^segment_(sum|std): {words}"):
        call(x, ids)


def test_the_tables_agree():
    """A segment of all entries is the slice of the row of that reduction."""
    for name in ("safe_sum", "safe_mean", "safe_prod", "safe_var", "safe_max"):
        row = next(row for row in specs.REDUCTION_ROWS if row.name == name)
        piece = row.slices[0]
        x, keep = np.array(piece.args[0]), np.array(piece.where)
        f = getattr(segments, name.replace("safe", "segment"))
        value, *_ = slices.exact(row, piece)
        assert math.isclose(f(x, np.zeros(3, int), 1, where=keep)[0], value, rel_tol=1e-14)


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("name", [*FORMULAS, "segment_softmax"])
def test_a_trace_of_any_length_takes_none(name):
    """One program of unknown length has the values of no entry, of one and of five."""
    import tensorflow as tf

    f = getattr(segments, name)
    lengths = [tf.TensorSpec([None], tf.float64), tf.TensorSpec([None], tf.int32)]
    traced = tf.function(lambda x, ids: f(x, ids, 3), input_signature=lengths)
    for n in (0, 1, 5):
        x, ids = tf.constant([1.0, 2, 3, 4, 5][:n], tf.float64), tf.constant([0, 2, 2, 0, 9][:n])
        assert_close(traced(x, tf.cast(ids, "int32")), f(x, tf.cast(ids, "int32"), 3), 1e-14)


@pytest.mark.only("tensorflow")
def test_an_unknown_rank_is_named():
    """Without the number of axes there is no segment; the error says so."""
    import tensorflow as tf

    unknown = tf.TensorSpec(None, tf.float64), tf.TensorSpec([None], tf.int32)
    traced = tf.function(lambda x, i: segments.segment_sum(x, i, 2), input_signature=unknown)
    with pytest.raises(ValueError, match="with a known number of dimensions"):
        traced(tf.constant([1.0], tf.float64), tf.constant([0]))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
@pytest.mark.parametrize("name", [*FORMULAS, "segment_softmax"])
def test_the_gradient_of_nothing_is_an_array(name, shape, autodiff_framework):
    """Data without entries has a gradient of its shape, with segments and without."""
    backend = load(autodiff_framework)
    ids = asarray(autodiff_framework, np.zeros(shape[0]), "int32")
    for number in (2, 0):
        (slope,) = backend.grad(lambda x: backend.xp.sum(getattr(segments, name)(x, ids, number)))(  # noqa: B023
            asarray(autodiff_framework, np.zeros(shape))
        )
        assert slope is not None
        assert tuple(slope.shape) == shape


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("xla", [False, True])
def test_the_tape_reaches_data_without_entries(xla):
    """A tape of TensorFlow has a gradient of the product of nothing, compiled too."""
    import tensorflow as tf

    @tf.function(jit_compile=xla)
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(segments.segment_prod(x, tf.zeros(0, tf.int32), 2))
        return tape.gradient(total, x)

    assert tuple(slope(tf.zeros((0, 3))).shape) == (0, 3)


@pytest.mark.whole
@pytest.mark.parametrize("name", ["segment_sum", "segment_mean", "segment_max", "segment_min"])
def test_a_fill_value_leaves_the_dtype(framework, name):
    """An array of another dtype as `fill_value` does not change that of the result."""
    data = asarray(framework, [1.0, 2.0, 3.0], "float32")
    ids, fill = asarray(framework, [0, 0, 1], "int32"), asarray(framework, 7.0, "float64")

    out = getattr(segments, name)(data, ids, 3, fill_value=fill)

    assert dtype_name(out.dtype) == "float32"
    assert to_numpy(out)[2] == 7.0
