"""Attention: values and derivatives by the closed form, whatever masked entries hold."""

import numpy as np
import pytest

import safeops as so
from assertions import assert_close
from derivatives import SECOND, derivatives_in
from elementwise import pytest_generate_tests
from frameworks import asarray, stacked, to_numpy
from safeops._dispatch import backend_of
from specs.attention import plain_attention

__all__ = ["pytest_generate_tests"]  # runs the tests below in each `way`

nan, inf = np.nan, np.inf
# All of one shape: TensorFlow's forward mode of a gradient stacks its parts.
QUERY = np.array([[0.5, -1.0, 0.25], [2.0, 0.25, -0.5], [-1.0, 0.5, 1.0]])
KEY = np.array([[1.0, 0.5, -1.0], [-0.5, 2.0, 0.75], [0.25, 1.5, 0.5]])
VALUE = np.array([[1.0, -2.0, 0.5], [0.5, 3.0, -1.0], [-1.5, 0.75, 2.0]])
WEIGHTS = np.array([[1.0, -0.5, 0.75], [2.0, 0.25, -1.0], [0.5, 1.5, -0.25]])  # of the results
ALL, NONE = [True, True, True], [False, False, False]
MASKS = np.array(
    [
        [ALL, ALL, ALL],
        [[True, False, False], [True, True, False], NONE],
        [[True, True, False], NONE, [False, True, False]],
        [NONE, NONE, NONE],
    ]
)


MORE = [(1, inf), (2, nan)]


def closed_form(q, k, v, keep):
    """Return attention of one head over the keys kept, and the gradient of its weighted sum."""
    q, k, v = (np.asarray(x) for x in (q, k, v))
    gradient = [np.zeros_like(x) for x in (q, k, v)]
    out = np.zeros((len(q), v.shape[1]), dtype=q.dtype)
    scale = 1 / np.sqrt(3.0)
    for i, row in enumerate(keep):
        if not row.any():
            continue
        scores = scale * k[row] @ q[i]
        parts = np.exp(scores - scores.real.max())
        w = parts / parts.sum()
        out[i] = w @ v[row]
        to_w = v[row] @ WEIGHTS[i]
        to_score = scale * w * (to_w - w @ to_w)
        gradient[0][i] = to_score @ k[row]
        gradient[1][row] += np.outer(to_score, q[i])
        gradient[2][row] += np.outer(w, WEIGHTS[i])
    return out, gradient


def curvature(args, along, keep):
    """Return the Hessian of the weighted sum times a direction, by a complex step."""
    step = 1e-30
    moved = (a + 1j * step * t for a, t in zip(args, along, strict=True))
    return [x.imag / step for x in closed_form(*moved, keep)[1]]


def used(keep):
    """Return which queries, keys and values take part: the others have slopes of exactly 0."""
    return keep.any(1), keep.any(0), keep.any(0)


def masked_with(filler):
    """Return heads of each mask, whose keys and values that no query keeps hold a filler."""
    heads = []
    for keep in MASKS:
        q, k, v = QUERY.copy(), KEY.copy(), VALUE.copy()
        k[~keep.any(0)] = v[~keep.any(0)] = filler
        q[~keep.any(1)] = filler
        heads.append((q, k, v))
    return [np.stack(x) for x in zip(*heads, strict=True)]


def weighted(framework):
    """Return the weighted sum of each head as a reduction."""
    weights = asarray(framework, WEIGHTS)
    return lambda out: sum(out[..., i, j] * weights[i, j] for i in range(3) for j in range(3))


def derivatives_of(way, op, args, keep, skipped=()):
    """Return value and derivatives of an operation on heads, and the directions of them."""
    framework, mode = way
    ramps = [np.linspace(1.0, 1.5, a.size).reshape(a.shape) for a in args]
    along = [a * size for a, size in zip(ramps, (1, -0.6, 0.3), strict=True)]
    other = [a**2 * 0.7 for a in along]
    masks = asarray(framework, keep.astype(float))
    nothing = asarray(framework, np.zeros(keep.shape))
    groups = [[asarray(framework, a) for a in group] for group in (args, along, other)]
    given = [[*group, last] for group, last in zip(groups, (masks, nothing, nothing), strict=True)]

    def f(*args):
        return op(*args[:3], where=args[3] > 0)

    options = {way: (skipped, "first order")}
    got = derivatives_in(mode, framework, f, weighted(framework), *given, options)
    return got, along, other


@pytest.mark.parametrize("filler", [nan, 0.5, 1e30, inf])
def test_attention_is_exact_whatever_is_masked(filler, way):
    """Value, gradient and second derivatives are those of the entries kept, in every mode."""
    args = masked_with(filler)
    got, along, other = derivatives_of(way, so.safe_attention, args, MASKS)

    for h, keep in enumerate(MASKS):
        # What is masked by all is 0 in the closed form, which takes no NaN.
        clean = [np.where(np.isfinite(x[h]) & (np.abs(x[h]) < 1e9), x[h], 0) for x in args]
        value, gradient = closed_form(*clean, keep)
        v, u = [x[h] for x in along], [x[h] for x in other]
        turned = curvature(clean, v, keep)
        slope = sum(np.sum(g * t) for g, t in zip(gradient, v, strict=True))
        wanted = {"reverse": gradient, **dict.fromkeys(SECOND[:3], turned)}
        assert_close(to_numpy(got["value"])[h], value, 1e-12, "value")
        for order in got.keys() & wanted.keys():
            for x, exact, here in zip(got[order], wanted[order], used(keep), strict=False):
                assert_close(to_numpy(x)[h], exact, 1e-11, order, atol=1e-13 * here[:, None])
        numbers = {
            "forward": slope,
            "fwd-fwd": sum(np.sum(t * a) for t, a in zip(turned, u, strict=True)),
        }
        for order in got.keys() & numbers.keys():
            assert_close(to_numpy(got[order])[h], numbers[order], 1e-11, order, atol=1e-12)


@pytest.mark.parametrize(("place", "filler"), [(1, nan), (2, inf), *MORE])
def test_what_one_query_masks_is_absent_for_that_one(place, filler, way):
    """A key or value that only one query keeps makes that one NaN; the other's slopes are exact."""
    keep = np.array([[[True, False, False], [False, True, True], NONE]])
    args = [x[None].copy() for x in (QUERY, KEY, VALUE)]
    args[place][0, 2, 0] = filler
    got, _, _ = derivatives_of(way, so.safe_attention, args, keep, SECOND)

    value, gradient = closed_form(QUERY, KEY, VALUE, np.array([keep[0, 0], NONE, NONE]))
    out, slopes = to_numpy(got["value"])[0], [to_numpy(x)[0] for x in got["reverse"][:3]]
    assert_close(out[0], value[0], 1e-14)
    assert np.isnan(out[1]).all()
    assert (out[2] == 0).all()
    assert_close(slopes[0][::2], gradient[0][::2], 1e-13, atol=1e-15)
    assert np.isnan(slopes[0][1]).all()
    for slope, exact in zip(slopes[1:], gradient[1:], strict=True):
        assert_close(slope[0], exact[0], 1e-13, atol=1e-15)
        assert np.isnan(slope[1:]).all()
    if "forward" in got:
        assert np.isnan(to_numpy(got["forward"])).all()


def test_a_cotangent_of_nan_stays_with_what_its_query_keeps(autodiff_framework):
    """The square of a NaN sends NaN back: to what that query keeps, and to no other."""
    keep = np.array([[True, False, False], [False, True, True], NONE])
    key = KEY.copy()
    key[2] = nan
    args = [asarray(autodiff_framework, x) for x in (QUERY, key, VALUE)]
    backend, mask = backend_of(*args), asarray(autodiff_framework, keep, "bool")

    def loss(*args):
        return backend.xp.sum(so.safe_attention(*args, where=mask) ** 2)

    slopes = [to_numpy(x) for x in backend.grad(loss)(*args)]
    assert all(np.isfinite(x[0]).all() for x in slopes)
    assert all(np.isnan(x[1]).all() for x in slopes)
    assert (slopes[0][2] == 0).all()
    assert all(np.isnan(x[2]).all() for x in slopes[1:])


@pytest.mark.parametrize("cotangent", [nan, inf])
def test_what_comes_back_to_nothing_reaches_nothing(cotangent, autodiff_framework):
    """A query without a key sends nothing back, and what no query keeps gets nothing."""
    keep = np.array([[True, True, False], [True, False, False], NONE])
    args = [asarray(autodiff_framework, x) for x in (QUERY, KEY, VALUE)]
    backend, mask = backend_of(*args), asarray(autodiff_framework, keep, "bool")
    to_last, to_first = (np.where(np.arange(3) == k, cotangent, 1.0)[:, None] for k in (2, 0))

    def slopes(weights):
        weights = asarray(autodiff_framework, weights)
        f = lambda *a: backend.xp.sum(so.safe_attention(*a, where=mask) * weights)  # noqa: E731
        return [to_numpy(x) for x in backend.grad(f)(*args)]

    plain = slopes(np.ones((3, 1)))
    for slope, exact in zip(slopes(to_last), plain, strict=True):
        assert_close(slope, exact, 1e-14, atol=1e-15)
    query, key, value = slopes(to_first)
    assert_close(query[1:], plain[0][1:], 1e-14, atol=1e-15)
    assert (key[2] == 0).all()
    assert (value[2] == 0).all()


def test_a_score_out_of_range_stays_with_what_its_query_keeps(autodiff_framework):
    """A product of two finite numbers that is inf makes its query NaN, and no value it masks."""
    keep = np.array([[True, True, False], [False, True, True], NONE])
    query, key = QUERY.copy(), KEY.copy()
    query[0], key[0] = 1e200, 1e200
    args = [asarray(autodiff_framework, x) for x in (query, key, VALUE)]
    backend, mask = backend_of(*args), asarray(autodiff_framework, keep, "bool")

    out = to_numpy(so.safe_attention(*args, where=mask))
    slopes = backend.grad(lambda *a: backend.xp.sum(so.safe_attention(*a, where=mask)))(*args)

    assert np.isnan(out[0]).all()
    assert np.isfinite(out[1:]).all()
    for slope, finite in zip(map(to_numpy, slopes), ([1, 2], [2], [2]), strict=True):
        assert np.isfinite(slope[finite]).all()


def test_softmax_before_a_product_is_nan(autodiff_framework):
    """The naive attention is NaN in value and gradient, for a NaN that no query keeps."""
    value = VALUE.copy()
    value[2] = nan
    args = [asarray(autodiff_framework, x) for x in (QUERY, KEY, value)]
    mask = asarray(autodiff_framework, [[True, True, False]] * 3, "bool")
    backend = backend_of(*args)
    xp = backend.xp

    def naive(q, k, v):
        return plain_attention(xp, q, k, v, mask)

    slope = backend.grad(lambda *a: xp.sum(naive(*a)))(*args)
    assert np.isnan(to_numpy(naive(*args))).all()
    assert np.isnan(to_numpy(slope[0])).any()
    ours = backend.grad(lambda *a: xp.sum(so.safe_attention(*a, where=mask)))(*args)
    assert np.isfinite(stacked(so.safe_attention(*args, where=mask))).all()
    assert all(np.isfinite(to_numpy(x)).all() for x in ours)


def test_values_are_exact_everywhere(framework):
    """Values of all masks, and with none, are those of the closed form."""
    heads = masked_with(nan)
    got = so.safe_attention(
        *(asarray(framework, x) for x in heads), where=asarray(framework, MASKS, "bool")
    )
    plain = so.safe_attention(*(asarray(framework, x) for x in (QUERY, KEY, VALUE)))

    wanted = [closed_form(*(np.nan_to_num(x[h]) for x in heads), m)[0] for h, m in enumerate(MASKS)]
    assert_close(to_numpy(got), np.stack(wanted), 1e-13)
    assert_close(to_numpy(plain), wanted[0], 1e-13)


def test_heads_broadcast(framework):
    """Two heads of queries share the keys and values of one, and a mask of its own dimensions."""
    queries = np.stack([QUERY, 2 * QUERY])
    mask = MASKS[1:3]
    got = so.safe_attention(
        asarray(framework, queries),
        asarray(framework, KEY),
        asarray(framework, VALUE[None]),
        where=asarray(framework, mask, "bool"),
    )

    wanted = [closed_form(q, KEY, VALUE, m)[0] for q, m in zip(queries, mask, strict=True)]
    assert_close(to_numpy(got), np.stack(wanted), 1e-13)


@pytest.mark.parametrize(("n", "m", "e"), [(2, 0, 2), (0, 3, 2), (2, 3, 0)])
def test_empty_arrays_give_empty_results_or_zeros(n, m, e, framework):
    """No keys give 0 to each query; no queries, or values of no length, an empty array."""
    shapes = ((n, 2), (m, 2), (m, e))
    got = so.safe_attention(*(asarray(framework, np.ones(shape)) for shape in shapes))

    assert to_numpy(got).shape == (n, e)
    assert (to_numpy(got) == (m > 0)).all()


NARROW = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6}


@pytest.mark.parametrize("dtype", NARROW)
def test_large_entries_of_narrow_dtypes(dtype, autodiff_framework):
    """Products beyond the range of float16 have a softmax, and the dtype is kept."""
    key = np.array([[300.0, 0.0, 0.0], [300.0, 0.0, 0.0], [-300.0, 0.0, 0.0]])
    args = [asarray(autodiff_framework, x, dtype) for x in (key[:1], key, VALUE)]
    backend = backend_of(*args)

    value = so.safe_attention(*args)
    slopes = backend.grad(lambda *a: backend.xp.sum(so.safe_attention(*a)))(*args)

    assert value.dtype == args[0].dtype
    assert_close(to_numpy(value), [[0.75, 0.5, -0.25]], NARROW[dtype])
    assert_close(to_numpy(slopes[2]), [[0.5] * 3, [0.5] * 3, [0] * 3], NARROW[dtype])
    assert all(np.isfinite(to_numpy(x)).all() for x in slopes)


def test_shapes_that_do_not_fit_are_named(framework):
    """Lengths that do not fit, and a vector, are errors that name the shapes."""
    q, k, v = (asarray(framework, x) for x in (QUERY, KEY, VALUE))
    heads = (asarray(framework, np.stack([x] * n)) for x, n in ((QUERY, 2), (KEY, 3), (VALUE, 3)))
    for args in ((q, k[:, :1], v), (q, k, v[:2, :]), (q[0, :], k, v), tuple(heads)):
        with pytest.raises(ValueError, match=r"^safe_attention: expected query"):
            so.safe_attention(*args)
    with pytest.raises(ValueError, match=r"^safe_attention: expected where of a shape"):
        so.safe_attention(q, k, v, where=asarray(framework, [[True] * 2] * 3, "bool"))
    with pytest.raises(TypeError, match=r"^safe_attention: expected a number as scale"):
        so.safe_attention(q, k, v, scale="2")


def test_a_scale_replaces_the_root(framework):
    """`scale` is the factor of the products."""
    q, k, v = (asarray(framework, x) for x in (QUERY, KEY, VALUE))
    scaled = so.safe_attention(q * 3**0.5, k, v, scale=1.0)

    assert_close(to_numpy(scaled), to_numpy(so.safe_attention(q * 3.0, k, v)), 1e-14)
