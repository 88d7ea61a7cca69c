"""`weights` of means and variances: derivatives by mpmath, for the weights too."""

from functools import cache

import mpmath
import numpy as np
import pytest

import safeops as so
from assertions import assert_close
from derivatives import SECOND, derivatives_in, directions
from elementwise import pytest_generate_tests
from frameworks import asarray, to_numpy
from safeops._dispatch import backend_of

__all__ = ["pytest_generate_tests"]  # runs the tests below in each `way`

nan, inf = np.nan, np.inf
# Entries, weights, which are kept; in the last two nothing counts.
X = np.array(
    [[3.0, 4.0, 12.0], [2.0, nan, -1.0], [0.1, 0.1, 0.1], [1.0, 2.0, 3.0], [nan, 1.0, inf]]
)
W = np.array([[1.0, 2.0, 0.5], [1.0, nan, 3.0], [1.0, 2.0, 4.0], [0.0, 0.0, 0.0], [nan, 1.0, inf]])
KEEP = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1], [1, 1, 1], [0, 0, 0]], dtype=bool)
EMPTY = np.array([False, False, False, True, True])
RTOL = 1e-13


def mean(x, w):
    """Return the mean of numbers with weights."""
    return mpmath.fsum(a * b for a, b in zip(x, w, strict=True)) / mpmath.fsum(w)


def var(x, w, correction=0):
    """Return the variance of numbers, each as often as its weight says."""
    away = [(t - mean(x, w)) ** 2 for t in x]
    total = mpmath.fsum(w)
    return mean(away, w) * total / (total - correction)


OPS = {
    "mean": (mean, {}),
    "var": (var, {}),
    "var, correction=0.5": (lambda x, w: var(x, w, 0.5), {"correction": 0.5}),
}


@cache
def exact(name):
    """Return values, and gradients and Hessians by entries and weights, of each slice."""
    formula, _ = OPS[name]
    values, gradients, hessians = np.full(5, -7.0), np.zeros((5, 6)), np.zeros((5, 6, 6))
    for s in np.flatnonzero(~EMPTY):
        here = np.flatnonzero(KEEP[s])
        point = [mpmath.mpf(float(t)) for t in (*X[s, here], *W[s, here])]
        n, places = len(here), [*here, *(3 + here)]

        def f(*numbers, n=n):
            return formula(numbers[:n], numbers[n:])

        with mpmath.workdps(50):
            values[s], unit = float(f(*point)), np.eye(2 * n, dtype=int)
            for i, row in enumerate(places):
                gradients[s, row] = mpmath.diff(f, point, tuple(map(int, unit[i])))
                for j, column in enumerate(places):
                    order = tuple(map(int, unit[i] + unit[j]))
                    hessians[s, row, column] = mpmath.diff(f, point, order)
    return values, gradients, hessians


@pytest.mark.parametrize("family", ["safe", "nan"])
@pytest.mark.parametrize("name", OPS)
def test_weighted_reductions_are_exact(name, family, way):
    """Value and derivatives for entries and weights, in every mode; 0 where nothing counts."""
    framework, mode = way
    kind, options = name.split(",", maxsplit=1)[0], OPS[name][1]
    op = getattr(so, {"safe": "safe_", "nan": "nan"}[family] + kind)
    v, u = directions([X.shape, W.shape])
    none = np.zeros(X.shape)
    groups = [
        [asarray(framework, a) for a in g] for g in ((X, W, KEEP * 1.0), (*v, none), (*u, none))
    ]

    def f(x, w, keep):
        return op(x, axis=-1, where=keep > 0, weights=w, fill_value=-7.0, **options)

    got = derivatives_in(mode, framework, f, lambda out: out, *groups)

    value, gradient, hessian = exact(name)
    v, u = np.concatenate(v, -1), np.concatenate(u, -1)
    turn = np.einsum("sij,sj->si", hessian, v)
    assert_close(to_numpy(got["value"]), value, RTOL, "value", 1e-16)
    wanted = {"reverse": gradient, **dict.fromkeys(SECOND[:3], turn)}
    absent = np.tile(~KEEP | EMPTY[:, None], 2)
    for order in got.keys() & wanted.keys():
        found = np.concatenate([to_numpy(a) for a in got[order][:2]], -1)
        atol = np.where(absent, 0.0, 1e-12)
        assert_close(found, wanted[order], RTOL, order, atol)
    for order, numbers in (("forward", gradient * v), ("fwd-fwd", turn * u)):
        if order in got:
            assert_close(to_numpy(got[order]), numbers.sum(-1), RTOL, order, 1e-12)


@pytest.mark.parametrize("name", ["safe_mean", "nanmean", "safe_var", "nanvar"])
def test_equal_weights_change_nothing(name, framework):
    """With weights of 1 the value is that without; a count replaces the weight of all."""
    x = asarray(framework, np.random.default_rng(0).normal(size=(3, 8)))
    ones = asarray(framework, np.ones(8))
    op = getattr(so, name)

    assert_close(to_numpy(op(x, axis=1, weights=ones)), to_numpy(op(x, axis=1)), 1e-14)
    if name.endswith("mean"):
        got = to_numpy(op(x, axis=1, weights=2 * ones, count=4.0))
        assert_close(got, to_numpy(so.safe_sum(x, axis=1)) / 2, 1e-14)


def test_a_weight_of_zero_is_no_mask(framework):
    """A NaN with weight 0 stays NaN, and a large number with weight 0 costs no digits."""
    x = asarray(framework, [[nan, 1.0, 3.0], [1e30, 1.0, 3.0]])
    w = asarray(framework, [0.0, 1.0, 1.0])

    np.testing.assert_array_equal(to_numpy(so.safe_mean(x, axis=1, weights=w)), [nan, 2.0])
    np.testing.assert_array_equal(to_numpy(so.nanmean(x, axis=1, weights=w)), [2.0, 2.0])
    np.testing.assert_array_equal(to_numpy(so.safe_var(x, axis=1, weights=w)), [nan, 1.0])


def test_plain_weights_are_nan(autodiff_framework):
    """What people write is NaN in the gradient for weights, of a NaN that they cover with 0."""
    x, w = (asarray(autodiff_framework, a) for a in ([1.0, nan], [1.0, 1.0]))
    backend = backend_of(x)
    xp = backend.xp
    keep = asarray(autodiff_framework, [True, False], "bool")

    def naive(w):
        return xp.sum(xp.where(keep, w * x, 0.0)) / xp.sum(xp.where(keep, w, 0.0))

    assert np.isnan(to_numpy(backend.grad(naive)(w)[0])[1])
    ours = backend.grad(lambda w: so.nanmean(x, weights=w))(w)[0]
    assert_close(to_numpy(ours), [0.0, 0.0], 0.0)


def test_weights_that_are_none_are_refused(framework):
    """A number is no weights, and complex numbers are none."""
    x = asarray(framework, [1.0, 2.0])
    with pytest.raises(TypeError, match="expected an array as weights, got float"):
        so.nanmean(x, weights=2.0)
    with pytest.raises(TypeError, match="expected a dtype out of"):
        so.safe_var(x, weights=asarray(framework, [1.0, 2.0], "complex128"))


@pytest.mark.whole
@pytest.mark.parametrize("exponent", [64, 100, 124, 126])
def test_large_weights_have_their_slopes(exponent, autodiff_framework):
    """No reciprocal of a large sum is formed: above 8.5e37 JAX and TensorFlow flush it to 0."""
    size = 2.0**exponent
    x, weights = np.array([1.0, 2.0, 3.5]) * size, np.array([1.0, 2.0, 1.0]) * size
    arrays = [asarray(autodiff_framework, a, "float32") for a in (x, weights)]
    total = float(np.sum(weights))
    away = x - np.sum(x * (weights / total))

    slopes = backend_of(*arrays).grad(lambda x, w: so.safe_mean(x, weights=w))(*arrays)

    assert_close(to_numpy(slopes[0]), weights / total, 1e-6)
    assert_close(to_numpy(slopes[1]), away / total, 1e-6)
