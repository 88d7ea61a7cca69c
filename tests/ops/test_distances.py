"""Distances of pairs: values and derivatives by the closed form, whatever absent pairs hold."""

import numpy as np
import pytest

import safeops as so
from assertions import assert_close
from derivatives import SECOND, derivatives_in, tools
from elementwise import PLAIN, pytest_generate_tests
from frameworks import asarray, to_numpy
from safeops._backends import load
from safeops._core.dtypes import dtype_name
from safeops._dispatch import backend_of
from specs.distances import plain_distances

__all__ = ["pytest_generate_tests"]  # runs the tests below in each `way`

nan, inf = np.nan, np.inf
X = np.array([[0.5, -1.0, 0.25], [2.0, 0.25, -0.5], [-1.0, 0.5, 1.0]])
Y = np.array([[2.0, 0.25, -0.5], [-0.5, 2.0, 0.75], [0.25, 1.5, 0.5]])  # the first is X[1]
TWICE = np.array([[0.5, -1.0, 0.25], [2.0, 0.25, -0.5], [0.5, -1.0, 0.25]])
WEIGHTS = np.array([[1.0, -0.5, 0.75], [2.0, 0.25, -1.0], [0.5, 1.5, -0.25]])
ALL = np.ones((3, 3), dtype=bool)
PART = np.array([[True, True, False], [True, False, False], [False, False, False]])
UPPER = ([0, 0, 1], [1, 2, 2])
RTOL = 1e-13


def closed_form(difference, along, other, keep):
    """Return distances, slopes of their weighted sum for differences, and second derivatives."""
    with np.errstate(all="ignore"):
        distance = np.where(keep, np.sqrt((difference**2).sum(-1)), 0)
        far = keep & (distance > 0)
        size = np.where(far, distance, 1)[..., None]
        unit = np.where(far[..., None], difference / size, 0)
    turn = along - unit * (unit * along).sum(-1, keepdims=True)
    turn = np.where(far[..., None], turn / size, 0)
    return distance, unit, turn, (turn * other).sum(-1)


def orders(got, slopes, turns, forward, twice):
    """Each derivative is that of the closed form; 0 is exactly 0 in the gradient."""
    wanted = {"reverse": slopes, **dict.fromkeys(SECOND[:3], turns)}
    for order in got.keys() & wanted.keys():
        for x, exact in zip(got[order], wanted[order], strict=False):
            atol = np.where(exact == 0, 0.0, RTOL) if order == "reverse" else RTOL
            for head in to_numpy(x):
                assert_close(head, exact, RTOL, order, atol)
    for order, exact in (("forward", forward), ("fwd-fwd", twice)):
        if order in got:
            assert_close(to_numpy(got[order]), [exact] * 2, RTOL, order, RTOL)


def directions_of(x):
    """Return two directions without symmetry."""
    ramp = np.linspace(1.0, 1.5, x.size).reshape(x.shape)
    return ramp, ramp**2 * 0.7


def weighted(framework, weights):
    """Return the weighted sum of the distances of each head as a reduction."""
    axes = tuple(range(-weights.ndim, 0))
    w = asarray(framework, weights)
    return lambda out: load(framework).xp.sum(out * w, axis=axes)


@pytest.mark.parametrize(("keep", "filler"), [(ALL, 0.25), (PART, nan), (PART, inf), (PART, 1e30)])
def test_distances_of_two_sets_are_exact(keep, filler, way):
    """Value and derivatives of all pairs, two coincident, in every mode, whatever is left out."""
    framework, mode = way
    args = [np.where(kept[:, None], p, filler) for p, kept in ((X, keep.any(1)), (Y, keep.any(0)))]
    (v, s), (u, t) = directions_of(X), directions_of(-Y)
    groups = [[np.stack([a, a]) for a in group] for group in (args, (v, u), (s, t))]
    masks = [np.stack([keep, keep]) * 1.0, np.zeros((2, 3, 3)), np.zeros((2, 3, 3))]
    given = [
        [asarray(framework, a) for a in (*group, m)] for group, m in zip(groups, masks, strict=True)
    ]

    def f(x, y, keep):
        return so.safe_cdist(x, y, where=keep > 0)

    got = derivatives_in(mode, framework, f, weighted(framework, WEIGHTS), *given)

    difference, along, other = (np.asarray(a)[:, None] - b for a, b in ((X, Y), (v, u), (s, t)))
    distance, unit, turn, twice = closed_form(difference, along, other, keep)
    w = WEIGHTS[..., None]
    assert_close(to_numpy(got["value"]), [distance] * 2, RTOL)
    slopes, turns = (((w * a).sum(1), -(w * a).sum(0)) for a in (unit, turn))
    orders(got, slopes, turns, (w * unit * along).sum(), (WEIGHTS * twice).sum())


@pytest.mark.parametrize("filler", [None, nan])
def test_distances_of_one_set_are_exact(filler, way):
    """Value and derivatives of pairs of one set, two of them coincident, in every mode."""
    framework, mode = way
    keep = np.array([True, filler is None, filler is None])[[1, 0, 1]]  # the pair 0, 2
    x = TWICE if filler is None else np.where([[True], [False], [True]], X, filler)
    v, u = directions_of(x)
    given = [[asarray(framework, np.stack([a, a]))] for a in (x, v, u)]
    where = None if filler is None else asarray(framework, keep, "bool")

    def f(x):
        return so.safe_pdist(x, where=where)

    got = derivatives_in(mode, framework, f, weighted(framework, WEIGHTS[0]), *given)

    i, j = UPPER
    w = WEIGHTS[0][:, None]
    differences = (a[i] - a[j] for a in (x, v, u))
    along = v[i] - v[j]
    distance, unit, turn, twice = closed_form(*differences, keep)
    slopes, turns = np.zeros((2, 3, 3))
    for total, part in ((slopes, w * unit), (turns, w * turn)):
        np.add.at(total, i, part)
        np.add.at(total, j, -part)
    assert_close(to_numpy(got["value"]), [distance] * 2, RTOL)
    orders(got, [slopes], [turns], (w * unit * along).sum(), (WEIGHTS[0] * twice).sum())


def test_values_are_exact_everywhere(framework):
    """Values have the shapes of batches; a NaN is in its own row alone."""
    x = np.stack([X, np.where([[True], [False], [True]], X, nan)])

    got = to_numpy(so.safe_cdist(asarray(framework, x), asarray(framework, Y[:2])))
    pairs = to_numpy(so.safe_pdist(asarray(framework, x)))

    assert got.shape == (2, 3, 2)
    assert pairs.shape == (2, 3)
    assert_close(got, np.sqrt(((x[:, :, None] - Y[:2]) ** 2).sum(-1)), RTOL)
    assert_close(pairs, np.sqrt(((x[:, UPPER[0]] - x[:, UPPER[1]]) ** 2).sum(-1)), RTOL)


@pytest.mark.parametrize(("p", "wanted"), [(1, 7.0), (inf, 4.0), (3, 91 ** (1 / 3))])
def test_orders_are_those_of_norms(p, wanted, framework):
    """`ord` is that of the norm of a difference."""
    x, y = asarray(framework, [[0.0, 0.0], [3.0, -4.0]]), asarray(framework, [[0.0, 0.0]])

    assert_close(to_numpy(so.safe_cdist(x, y, ord=p)), [[0.0], [wanted]], 1e-14)
    assert_close(to_numpy(so.safe_pdist(x, ord=p)), [wanted], 1e-14)


@pytest.mark.parametrize("shapes", [((0, 2), (3, 2)), ((2, 2), (0, 2)), ((1, 2), (1, 2))])
def test_empty_sets_have_empty_results(shapes, framework):
    """No points have no distances, and one point has no pair."""
    x, y = (asarray(framework, np.ones(shape)) for shape in shapes)
    n, m = shapes[0][0], shapes[1][0]

    assert to_numpy(so.safe_cdist(x, y)).shape == (n, m)
    assert to_numpy(so.safe_pdist(x)).shape == (n * (n - 1) // 2,)


SIZES = {"float16": 2.0**12, "bfloat16": 2.0**100, "float32": 2.0**100, "float64": 2.0**800}


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("sign", [1, -1])
def test_large_and_small_distances(dtype, sign, autodiff_framework):
    """No square leaves the range; points far from 0 and close together keep all digits."""
    size = SIZES[dtype] ** (sign if dtype != "float16" or sign == 1 else -0.75)
    x = asarray(autodiff_framework, np.array([[3.0, 4.0], [0.0, 0.0]]) * size, dtype)
    backend = backend_of(x)

    value = so.safe_cdist(x, x)
    (slope,) = backend.grad(lambda x: backend.xp.sum(so.safe_pdist(x)))(x)

    eps = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-15}[dtype]
    assert dtype_name(value.dtype) == dtype
    assert_close(to_numpy(value).astype(float) / size, [[0, 5], [5, 0]], eps)
    assert_close(to_numpy(slope).astype(float), [[0.6, 0.8], [-0.6, -0.8]], eps)
    near = asarray(autodiff_framework, [[1000.0, 0.0], [1001.0, 0.0]], dtype)
    exact = float(np.subtract(*to_numpy(near).astype(float)[::-1, 0]))
    assert to_numpy(so.safe_pdist(near)) == exact


def test_plain_distances_have_a_gradient_of_nan(autodiff_framework):
    """What people write is NaN where points coincide, under a compiler at least."""
    x = asarray(autodiff_framework, TWICE)
    backend = backend_of(x)
    xp = backend.xp

    def naive(x):
        return xp.sum(plain_distances(xp, x, x))

    around, *_ = tools(autodiff_framework, PLAIN[autodiff_framework])
    assert np.isnan(to_numpy(around(backend.grad(naive))(x)[0])).any()
    ours = around(backend.grad(lambda x: xp.sum(so.safe_cdist(x, x))))(x)[0]
    assert np.isfinite(to_numpy(ours)).all()


def test_shapes_that_do_not_fit_are_named(framework):
    """A vector, points of another dimension, and a mask of other pairs are errors."""
    x = asarray(framework, X)
    with pytest.raises(ValueError, match=r"^safe_cdist: expected points of one dimension, got 3 "):
        so.safe_cdist(x, x[:, :1])
    for f in (lambda x: so.safe_cdist(x, x), so.safe_pdist):
        with pytest.raises(ValueError, match=r"expected points of shape \(..., n, d\) as x"):
            f(x[0, :])
    few = asarray(framework, [True, True], "bool")
    for f, pairs in (
        (lambda x, where: so.safe_cdist(x, x, where=where), "3, 3"),
        (so.safe_pdist, 3),
    ):
        with pytest.raises(ValueError, match=rf"that of the pairs, \(..., {pairs}\), got \(2,\)"):
            f(x, where=few)
