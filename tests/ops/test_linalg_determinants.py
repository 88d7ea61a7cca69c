"""Determinants and Cholesky factors: where matrices are singular, or not definite."""

import numpy as np
import pytest

import spectra
from frameworks import asarray, to_numpy
from safeops import linalg
from safeops._backends import load

WAY = spectra.WAY[:3, :3]
RANKS = [np.diag([2.0, -3.0, 5.0]), np.diag([2.0, 3.0, 0.0]), np.diag([0.0, 2.0, 0.0])]
RANKS += [np.zeros((3, 3)), np.outer(WAY[0], WAY[1]), WAY, np.ones((3, 3)) + np.diag([1.0, 0, 0])]


def cofactors(a):
    """Return the transpose of the adjugate, by minors."""
    minors = [
        [np.linalg.det(np.delete(np.delete(a, i, 0), k, 1)) for k in range(3)] for i in range(3)
    ]
    return np.array(minors) * (-1) ** np.add.outer(np.arange(3), np.arange(3))


def slopes(framework, f, a):
    """Return gradients of the sum of a function of matrices."""
    backend = load(framework)
    return to_numpy(backend.grad(lambda a: backend.xp.sum(f(a)))(asarray(framework, a))[0])


def test_the_gradient_of_a_determinant_is_the_adjugate(autodiff_framework):
    """At matrices of every rank the gradient is the matrix of cofactors."""
    found = slopes(autodiff_framework, linalg.safe_det, np.stack(RANKS))

    np.testing.assert_allclose(found, [cofactors(a) for a in RANKS], atol=1e-13)


def test_the_second_derivative_of_a_determinant_is_exact(autodiff_framework):
    """Along a direction it is that of the polynomial, at matrices of every rank."""
    backend = load(autodiff_framework)
    a, way = (asarray(autodiff_framework, x) for x in (np.stack(RANKS), WAY[None]))
    t = asarray(autodiff_framework, 0.0)
    weights = asarray(autodiff_framework, np.arange(1.0, len(RANKS) + 1))

    def f(t):
        return backend.xp.sum(weights * linalg.safe_det(a + t * way))

    (second,) = backend.grad(lambda t: backend.grad(f)(t)[0])(t)

    steps = [[np.linalg.det(x + s * WAY) for s in (-1, 0, 1)] for x in RANKS]
    right = [low + high - 2 * at for low, at, high in steps]  # the cubic part cancels
    np.testing.assert_allclose(
        float(second), np.dot(np.arange(1, len(RANKS) + 1), right), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("numbers", "right"),
    [
        ([1e5] * 64 + [1e-5] * 64, [1e-5] * 64 + [1e5] * 64),
        ([1e200, 1e200, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_a_determinant_is_right_wherever_it_is_in_range(numbers, right, autodiff_framework):
    """No product on the way leaves the range; the plain value is inf, 0 or NaN."""
    a = np.diag(numbers)

    value = to_numpy(linalg.safe_det(asarray(autodiff_framework, a)))
    found = slopes(autodiff_framework, linalg.safe_det, a)

    np.testing.assert_allclose(value, np.prod(numbers[::2]) * np.prod(numbers[1::2]), rtol=1e-12)
    np.testing.assert_allclose(found, np.diag(right), rtol=1e-12)


def test_the_square_of_rounding_may_leave_the_range(autodiff_framework):
    """A value and a gradient in range are numbers, for rows far apart in size."""
    a = np.random.default_rng(3).normal(size=(8, 2, 2)) * [[1e250], [1e-250]]  # rounding is 1e234

    found = slopes(autodiff_framework, lambda a: linalg.safe_det(a) ** 2 / 2.0, a)

    assert np.isfinite(found).all()  # of the size 1e250


def test_what_leaves_the_range_is_no_number(autodiff_framework):
    """A gradient out of range is no finite number."""
    backend = load(autodiff_framework)
    a, way = (asarray(autodiff_framework, x) for x in (1e150 * np.eye(3), np.ones((3, 3))))

    large = slopes(autodiff_framework, linalg.safe_det, 1e200 * np.eye(3))
    second = backend.grad(lambda t: backend.grad(lambda t: linalg.safe_det(a + t * way))(t)[0])(
        asarray(autodiff_framework, 0.0)
    )[0]

    assert not np.isfinite(large).any()
    assert np.isfinite(float(second))  # a number of the size 1e150


def test_second_derivatives_of_logarithms_are_exact_in_every_order(autodiff_framework):
    """Forward mode inside of forward mode too, where that of `torch.linalg.slogdet` is 0."""
    backend = load(autodiff_framework)
    matrix = WAY + np.eye(3)
    a, way = (asarray(autodiff_framework, x) for x in (matrix, WAY.T.copy()))
    one, zero = (asarray(autodiff_framework, x) for x in (1.0, 0.0))

    def f(t):
        return linalg.safe_slogdet(a + t * way)[1]

    def reverse(f):
        return lambda t: backend.grad(f)(t)[0]

    def forward(f):
        return lambda t: backend.jvp(f)((t,), (one,))

    found = [float(g(h(f))(zero)) for g in (reverse, forward) for h in (reverse, forward)]

    step = np.linalg.solve(matrix, WAY.T)
    np.testing.assert_allclose(found, -np.trace(step @ step), rtol=1e-12)


def test_values_are_those_of_the_framework(framework):
    """Values are those of NumPy; a singular matrix has the logarithm -inf, and a bad one is NaN."""
    a = np.stack([*RANKS, np.full((3, 3), np.nan)])

    value = to_numpy(linalg.safe_det(asarray(framework, a)))
    sign, size = (to_numpy(x) for x in linalg.safe_slogdet(asarray(framework, a)))

    np.testing.assert_allclose(value[:-1], np.linalg.det(RANKS), atol=1e-14)
    np.testing.assert_allclose(sign[:4], [-1, 0, 0, 0])
    np.testing.assert_allclose(size[:4], [np.log(30), -np.inf, -np.inf, -np.inf])
    assert np.isnan([value[-1], sign[-1], size[-1]]).all()


def test_the_gradient_of_the_logarithm_is_the_inverse(autodiff_framework):
    """At a singular matrix it is 0, at others the transpose of the inverse."""
    general = WAY + np.eye(3)
    a = np.stack([np.diag([2.0, -3.0, 5.0]), np.zeros((3, 3)), general])

    found = slopes(autodiff_framework, lambda a: linalg.safe_slogdet(a)[1], a)

    np.testing.assert_allclose(found[0], np.diag([1 / 2, -1 / 3, 1 / 5]), rtol=1e-14)
    np.testing.assert_array_equal(found[1], 0)
    np.testing.assert_allclose(found[2], np.linalg.inv(general).T, rtol=1e-10)


DEFINITE = np.array([[4.0, 2.0], [2.0, 5.0]])
OTHERS = [
    DEFINITE.tolist(),
    [[1.0, 2.0], [2.0, 1.0]],
    [[np.nan, 0.0], [0.0, 1.0]],
    [[-1.0, 0], [0, 1.0]],
]


def test_a_matrix_that_is_not_definite_is_nan_alone(framework):
    """A failure is NaN in every framework, and its neighbours have their factors."""
    found = to_numpy(linalg.safe_cholesky(asarray(framework, OTHERS)))

    np.testing.assert_allclose(found[0], [[2.0, 0.0], [1.0, 2.0]], rtol=1e-15)
    assert np.isnan(found[1:]).all()


def test_the_gradient_of_a_failure_is_nan(autodiff_framework):
    """The gradient is NaN where there is no factor, and right where there is one."""
    weights = asarray(autodiff_framework, [[1.0, 0.0], [0.0, 0.0]])

    found = slopes(autodiff_framework, lambda a: weights * linalg.safe_cholesky(a), OTHERS)

    np.testing.assert_allclose(found[0], [[0.25, 0.0], [0.0, 0.0]], atol=1e-15)
    assert np.isnan(found[1:]).all()


@pytest.mark.parametrize("op", [linalg.safe_det, linalg.safe_slogdet, linalg.safe_cholesky])
def test_what_is_not_square_is_named(op, framework):
    """An error names the function and the shape."""
    with pytest.raises(ValueError, match=f"^{op.__name__}: expected square matrices"):
        op(asarray(framework, np.ones((2, 3))))


def test_complex_matrices_have_a_phase(framework):
    """The determinant of a complex matrix is complex, and its logarithm real: here 6i."""
    a = asarray(framework, [[2j, 1.0], [0.0, 3.0]], "complex128")

    sign, size = linalg.safe_slogdet(a)

    np.testing.assert_allclose(to_numpy(linalg.safe_det(a)), 6j, rtol=1e-15, atol=1e-15)
    np.testing.assert_allclose(to_numpy(sign), 1j, rtol=1e-15, atol=1e-15)
    np.testing.assert_allclose(to_numpy(size), np.log(6.0), rtol=1e-15)
    assert not np.iscomplexobj(to_numpy(size))


@pytest.mark.parametrize("matrix", [[[1.0, 2.0], [2.0, 1.0]], [[1.0, np.nan], [np.nan, 1.0]]])
def test_a_factor_that_is_not_there_has_no_second_derivative(matrix, autodiff_framework):
    """Where a factor is NaN, so is each derivative of its sum, the second ones included."""
    backend = load(autodiff_framework)
    a, v = (asarray(autodiff_framework, x) for x in (matrix, np.ones((2, 2))))

    def slope(a):
        return backend.grad(lambda a: backend.xp.sum(linalg.safe_cholesky(a)))(a)[0]

    (turn,) = backend.grad(lambda a: backend.xp.sum(slope(a) * v))(a)

    assert np.isnan(to_numpy(slope(a))).all()
    assert np.isnan(to_numpy(turn)).all()
