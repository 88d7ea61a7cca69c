"""Eigenvectors and singular vectors: exact derivatives, or NaN where a tie leaves none."""

from functools import partial

import numpy as np
import pytest
from mpmath import mp

import spectra
from derivatives import derivatives_in
from exponents import EXHAUSTIVE
from frameworks import asarray, stacked, to_numpy
from safeops import linalg
from safeops._backends import load
from specs.linalg import SPECS
from spectra import GRID as WEIGHTS

nan = np.nan
CHEAP = {"torch": ("func", "vmap"), "jax": ("vmap",), "tensorflow": ("eager",)}
SECOND = {"rev-rev", "fwd-rev", "rev-fwd", "fwd-fwd"}
GENERAL, TRIPLE = (spectra.matrices()[name] for name in ("general", "rotated, a triple"))
WAY = spectra.direction(0)
TALL = np.cos(np.add.outer(1.9 * np.arange(4), 0.4 * np.arange(3) ** 3)) + np.eye(4, 3)
# A direction that leaves the triple together, and mixes one of its vectors with the other.
BASIS = np.linalg.eigh(TRIPLE)[1]
MIX = np.outer(BASIS[:, 3], BASIS[:, 0])
TOGETHER = np.eye(4) + MIX + MIX.T


def pytest_generate_tests(metafunc):
    """Run what knows modes in the cheap ones of each framework."""
    if "way" in metafunc.fixturenames:
        metafunc.parametrize("way", [(n, mode) for n, modes in CHEAP.items() for mode in modes])


def like(vectors, signs):
    """Return vectors of mpmath, in columns, in the directions of others."""
    columns = [
        vectors[:, k] * mp.sign(mp.fsum(vectors[i, k] * signs[i, k] for i in range(len(signs))))
        for k in range(vectors.cols)
    ]
    return mp.matrix([[column[i] for column in columns] for i in range(vectors.rows)])


def loss_of(factors, weights):
    """Return a number of mpmath that depends on every entry of matrices."""
    total = mp.fsum(
        mp.mpf(w[i][k]) * (x[i, k] + x[i, k] ** 2)
        for x, w in zip(factors, weights, strict=True)
        for i in range(x.rows)
        for k in range(x.cols)
    )
    return mp.matrix([[total]])


def exact_eigh(matrix, way, weights):
    """Return the derivatives of the loss of eigenvalues and eigenvectors."""
    signs = np.linalg.eigh(matrix)[1]

    def loss(a):
        values, vectors = mp.eigsy(a)
        return loss_of((values, like(vectors, signs)), weights)

    return spectra.along(loss, matrix, way), signs


def exact_svd(matrix, way, weights):
    """Return the derivatives of the loss of singular vectors and values."""
    signs, _, _ = np.linalg.svd(matrix, full_matrices=False)

    def loss(a):
        left, values, _ = mp.svd_r(a)
        left = like(left, signs)
        right = mp.diag([1 / x for x in values]) * left.T * a
        return loss_of((left, values, right), weights)

    return spectra.along(loss, matrix, way), signs


@pytest.mark.parametrize(
    ("op", "exact", "matrix", "change", "shapes", "signed"),
    [
        (linalg.safe_eigh, exact_eigh, GENERAL, WAY, ((4, 1), (4, 4)), 1),
        (linalg.safe_svd, exact_svd, TALL, WEIGHTS[:, :3], ((4, 3), (3, 1), (3, 3)), 0),
    ],
)
def test_derivatives_are_exact_where_nothing_ties(op, exact, matrix, change, shapes, signed, way):
    """Value, gradient and second derivatives in every order are those of 60 digits."""
    framework, mode = way
    xp = load(framework).xp
    weights = [WEIGHTS[:m, :n] + k for k, (m, n) in enumerate(shapes)]
    right, signs = exact(matrix, change, weights)
    given = [asarray(framework, w[None]) for w in weights]
    ours = to_numpy(op(asarray(framework, matrix))[signed])
    turns = np.sign(np.sum(ours * signs, axis=0))  # the vectors that the framework has chosen
    turns = [
        turns[None, :] if shape[-1] == len(turns) and shape[0] == len(signs) else 1.0
        for shape in shapes
    ]
    if op is linalg.safe_svd:
        turns[2] = turns[0].T
    turns = [
        asarray(framework, np.broadcast_to(t, w.shape)[None])
        for t, w in zip(turns, weights, strict=True)
    ]

    def reduce(out):
        factors = [
            xp.expand_dims(x, axis=-1) if w.shape[-1] == 1 else x
            for x, w in zip(out, given, strict=True)
        ]
        return sum(
            xp.sum(w * (t * x + x * x), axis=(-2, -1))
            for x, w, t in zip(factors, given, turns, strict=True)
        )

    arrays = [[asarray(framework, x[None])] for x in (matrix, change, change)]
    less = {
        ("torch", "vmap"): (SECOND - {"fwd-rev"}, "func has them"),
        ("jax", "vmap"): (SECOND - {"fwd-rev"}, "each takes seconds to compile"),
        ("tensorflow", "eager"): (SECOND - {"rev-rev"}, "each takes seconds to trace"),
    }
    unsupported = {} if EXHAUSTIVE else less
    got = derivatives_in(mode, framework, op, reduce, *arrays, unsupported)

    for order in set(got) - {"value"}:
        y = stacked(got[order])
        y = np.sum(y.reshape(matrix.shape) * change) if y.size > 1 else float(y.reshape(()))
        number = right.first if order in {"reverse", "forward"} else right.second
        np.testing.assert_allclose(y, number.item(), rtol=1e-9, err_msg=order)


# Ties.


def slope(framework, f, a, dtype="float64"):
    """Return a gradient."""
    return to_numpy(load(framework).grad(f)(asarray(framework, a, dtype))[0])


def projector(framework, eigh=linalg.safe_eigh, dtype="float64"):
    """Return a weighted sum of the projector on the three smallest eigenvalues."""
    xp, weights = load(framework).xp, asarray(framework, WEIGHTS, dtype)

    def f(a):
        vectors = eigh(a)[1][..., :3]
        return xp.sum(weights * xp.matmul(vectors, xp.matrix_transpose(vectors)))

    return f


def on_smallest(a):
    """Return that projector in mpmath."""
    return spectra.by_eigenvalues(lambda x: mp.mpf(x < 3.5))(a)


def test_a_loss_that_no_turn_changes_has_its_gradient(autodiff_framework):
    """The gradient of a projector is exact at a triple eigenvalue; the plain one is not."""
    (plain,) = (spec.naive for spec in SPECS if spec.name == "safe_eigh")
    plain = partial(plain, load(autodiff_framework).xp)
    exact = spectra.along(on_smallest, TRIPLE, WAY)

    found = slope(autodiff_framework, projector(autodiff_framework), TRIPLE)
    naive = slope(autodiff_framework, projector(autodiff_framework, plain), TRIPLE)
    narrow = projector(autodiff_framework, dtype="float32")
    rounded = slope(autodiff_framework, narrow, TRIPLE, "float32")

    right = np.sum(WEIGHTS * exact.first)
    np.testing.assert_allclose(np.sum(found * WAY), right, rtol=1e-12)
    np.testing.assert_allclose(np.sum(rounded * WAY), right, rtol=1e-5)
    assert not np.allclose(np.sum(naive * WAY), right, rtol=1e-12, atol=0)


def test_second_derivatives_at_a_tie_are_exact_or_nan(autodiff_framework):
    """Along what leaves a block together they are exact, in each order; along others NaN."""
    backend = load(autodiff_framework)
    a, one, zero = (asarray(autodiff_framework, x) for x in (TRIPLE, 1.0, 0.0))
    f = projector(autodiff_framework)

    def seconds(way):
        x = asarray(autodiff_framework, way)

        def g(t):
            return f(a + t * x)

        def reverse(f):
            return lambda t: backend.grad(f)(t)[0]

        def forward(f):
            return lambda t: backend.jvp(f)((t,), (one,))

        return [float(h(reverse(g))(zero)) for h in (reverse, forward)]

    exact = spectra.along(on_smallest, TRIPLE, TOGETHER)

    np.testing.assert_allclose(seconds(TOGETHER), np.sum(WEIGHTS * exact.second), rtol=1e-9)
    assert np.isnan(seconds(WAY)).all()


LOSSES = {
    "a vector": lambda _, v: v[1][0, 0] + v[1][1, 0],
    "one eigenvalue": lambda _, v: v[0][1],
    "a square root": lambda xp, v: xp.sum(
        xp.matmul(v[1] * xp.sqrt(v[0]), xp.matrix_transpose(v[1]))[0, ...]
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_that_a_turn_changes_has_gradient_nan(loss, autodiff_framework):
    """What depends on the choice of vectors in a block has no gradient, and never a number."""
    xp = load(autodiff_framework).xp

    found = slope(autodiff_framework, lambda a: LOSSES[loss](xp, linalg.safe_eigh(a)), TRIPLE)

    assert np.isnan(found).all()


def test_what_has_one_slope_in_a_block_is_exact(autodiff_framework):
    """Sums of squares of eigenvalues, and the vector of the other eigenvalue."""
    xp = load(autodiff_framework).xp

    squares = slope(autodiff_framework, lambda a: xp.sum(linalg.safe_eigh(a)[0] ** 2), TRIPLE)
    other = slope(autodiff_framework, lambda a: linalg.safe_eigh(a)[1][0, 3] ** 2, TRIPLE)

    v, x = BASIS[:, 3], (np.eye(4) - np.outer(BASIS[:, 3], BASIS[:, 3]))[0]
    step = np.outer(x, v) * 2 * v[0] / 3.0  # the gap is 3
    np.testing.assert_allclose(squares, 2 * TRIPLE, atol=1e-14)
    np.testing.assert_allclose(other, (step + step.T) / 2, atol=1e-14)


def tall(*values):
    """Return a matrix of 4 rows with these singular values."""
    left, _, right = np.linalg.svd(TALL, full_matrices=False)
    return left @ np.diag(values) @ right


def test_singular_vectors_at_ties_and_at_zero(autodiff_framework):
    """The polar factor is exact at a tie, the part of full rank at rank 2; others are NaN."""
    xp, weights = load(autodiff_framework).xp, asarray(autodiff_framework, WEIGHTS[:3, :3])
    square = linalg.polar(TALL[:3]) @ np.diag([2.0, 2.0, 1.0])

    def factor(a):
        left, _, right = linalg.safe_svd(a)
        return xp.sum(weights * xp.matmul(left, right))

    def reduced(a):
        left, values, right = linalg.safe_svd(a)
        return xp.sum(xp.matmul(left[:, :2] * values[:2], right[:2, :])[0, ...])

    def kernel(a):
        return linalg.safe_svd(a)[2][2, 0] ** 2

    found = slope(autodiff_framework, factor, square)
    polar = slope(autodiff_framework, lambda a: xp.sum(weights * linalg.polar(a)), square)
    low = slope(autodiff_framework, reduced, tall(3.0, 2.0, 0.0))
    null = slope(autodiff_framework, kernel, tall(3.0, 2.0, 0.0))

    np.testing.assert_allclose(found, polar, atol=1e-13)
    left, _, right = np.linalg.svd(TALL, full_matrices=False)
    u, v = left[:, :2], right[:2]
    g = np.zeros((4, 3))
    g[0] = 1
    # What keeps the rank, and what turns the spaces: the derivative of u u^T a.
    rest = (np.eye(4) - u @ u.T) @ g @ v.T @ v + u @ u.T @ g
    np.testing.assert_allclose(low, rest, atol=1e-13)
    pseudo = u @ np.diag([1 / 3, 1 / 2]) @ v  # of the transpose
    turn = -2 * right[2, 0] * np.outer(pseudo[:, 0], right[2])
    np.testing.assert_allclose(null, turn, atol=1e-13)
    for loss in (
        lambda a: linalg.safe_svd(a)[0][0, 2],  # one of two vectors orthogonal to the image
        lambda a: xp.sum(linalg.safe_svd(a)[1]),  # a cone
    ):
        assert np.isnan(slope(autodiff_framework, loss, tall(3.0, 2.0, 0.0))).all()
    assert np.isnan(slope(autodiff_framework, lambda a: linalg.safe_svd(a)[1][0], square)).all()


def test_a_phase_is_a_choice_too(autodiff_framework):
    """Of complex vectors a projector has a gradient, and what depends on the phase has none."""
    backend = load(autodiff_framework)
    xp = backend.xp
    a, way = (spectra.matrices(complex)["general"], spectra.direction(0, of=complex))
    given, x = (asarray(autodiff_framework, y, "complex128") for y in (a, way))
    zero = asarray(autodiff_framework, 0.0, "float64")

    def along(f):
        def g(t):
            return f(linalg.safe_eigh(given + xp.astype(t, given.dtype) * x)[1][:, 0])

        return float(backend.grad(g)(zero)[0])

    values, vectors = np.linalg.eigh(a)
    inner = vectors.conj().T @ way @ vectors[:, 0]
    step = vectors[:, 1:] @ (inner[1:] / (values[0] - values[1:]))
    right = 2 * np.real(np.conj(vectors[0, 0]) * step[0])

    found = along(lambda v: xp.real(v[0]) ** 2 + xp.imag(v[0]) ** 2)
    phase = along(lambda v: xp.real(v[0]) + xp.imag(v[0]) + xp.real(v[1]) - 2 * xp.imag(v[1]))

    np.testing.assert_allclose(found, right, rtol=1e-11)
    assert np.isnan(phase)


def test_a_relative_phase_is_no_choice(autodiff_framework):
    """Of a row a left vector times a right one is (2 + i t, t) / sqrt(4 + 2 t^2), exactly."""
    backend = load(autodiff_framework)
    xp = backend.xp
    given, x = (asarray(autodiff_framework, [y], "complex128") for y in ([2.0, 0.0], [1j, 1.0]))
    zero, one = (asarray(autodiff_framework, y, "float64") for y in (0.0, 1.0))

    def f(t):
        left, _, right = linalg.safe_svd(given + xp.astype(t, given.dtype) * x)
        product = xp.matmul(left, right)[0, 0]
        return xp.real(product) + 3 * xp.imag(product)

    def reverse(f):
        return lambda t: backend.grad(f)(t)[0]

    def forward(f):
        return lambda t: backend.jvp(f)((t,), (one,))

    first = [float(order(f)(zero)) for order in (reverse, forward)]
    second = [float(order(reverse(f))(zero)) for order in (reverse, forward)]

    np.testing.assert_allclose(first, 3 / 2, rtol=1e-14)
    np.testing.assert_allclose(second, -1 / 2, rtol=1e-14)


@pytest.mark.parametrize("op", [linalg.safe_eigh, linalg.safe_svd])
def test_a_bad_matrix_is_nan_alone(op, framework):
    """NaN makes one matrix of a batch NaN, and no other; sizes and shapes do not count."""
    a = np.stack([np.diag([1e-300, 2e-300])] * 2)
    a[1, 0, 1] = nan

    found = [to_numpy(x) for x in op(asarray(framework, a))]
    empty = [to_numpy(x) for x in op(asarray(framework, np.zeros((2, 0, 0))))]
    with pytest.raises(ValueError, match=f"^{op.__name__}: expected (square )?matrices"):
        op(asarray(framework, [1.0, 2.0]))

    assert all(np.isnan(x[1]).all() for x in found)
    (values,) = (x[0] for x in found if x.ndim == 2)
    np.testing.assert_allclose(np.sort(values), [1e-300, 2e-300], rtol=1e-15)
    assert all(np.allclose(x[0] @ x[0].T, np.eye(2)) for x in found if x.ndim == 3)
    assert all(x.size == 0 for x in empty)


def test_the_gradient_of_a_bad_matrix_is_nan(autodiff_framework):
    """A batch has a matrix with NaN, one with a tie, and one without."""
    a = np.stack([np.eye(4), GENERAL, np.full((4, 4), nan)])
    xp = load(autodiff_framework).xp

    found = slope(autodiff_framework, lambda a: xp.sum(linalg.safe_eigh(a)[1][:, :, 0]), a)

    alone = slope(autodiff_framework, lambda a: xp.sum(linalg.safe_eigh(a)[1][:, 0]), GENERAL)
    np.testing.assert_allclose(found[1], alone, atol=1e-14)
    assert np.isnan(found[[0, 2]]).all()


TURNS = [np.linalg.qr(np.random.default_rng(21 + i).normal(size=(500, 3, 3)))[0] for i in (0, 1)]


def test_rounding_parts_no_tie(autodiff_framework):
    """Of 500 matrices with a tie, none has a gap that counts: what moved by 1e-15 has its slope."""
    xp, weights = load(autodiff_framework).xp, asarray(autodiff_framework, WEIGHTS[:3, :3])
    left, right = TURNS
    matrices = left * [2.0, 2.0, 1.0] @ right
    symmetric = left * [1.0, 2.0, 2.0] @ left.swapaxes(-1, -2)
    symmetric = (symmetric + symmetric.swapaxes(-1, -2)) / 2

    def factor(a):
        left, _, right = linalg.safe_svd(a)
        return xp.sum(weights * xp.matmul(left, right))

    def projector(a):
        _, vectors = linalg.safe_eigh(a)
        low = vectors[..., :1]
        return xp.sum(weights * xp.matmul(low, xp.matrix_transpose(low)))

    found = slope(autodiff_framework, factor, matrices)
    polar = slope(autodiff_framework, lambda a: xp.sum(weights * linalg.polar(a)), matrices)
    turned = slope(autodiff_framework, projector, symmetric)

    low = left[..., :1] @ left[..., :1].swapaxes(-1, -2)
    rest = np.eye(3) - low
    even = (WEIGHTS[:3, :3] + WEIGHTS[:3, :3].T) / 2
    exact = -(low @ even @ rest + rest @ even @ low)
    np.testing.assert_allclose(found, polar, atol=1e-12)
    np.testing.assert_allclose((turned + turned.swapaxes(-1, -2)) / 2, exact, atol=1e-12)


@pytest.mark.only("torch")
def test_compiled_as_one_graph():
    """A compiled loss has the gradient of the eager one, or NaN; no tangent is dropped."""
    import torch
    from torch.autograd import forward_ad

    def whole(f):
        return torch.compile(f, fullgraph=True, backend="aot_eager")

    def vector(a):
        return linalg.safe_eigh(a)[1][0, 0]

    for loss in (projector("torch"), vector):
        a = torch.tensor(TRIPLE, requires_grad=True)
        whole(loss)(a).backward()
        np.testing.assert_allclose(a.grad, slope("torch", loss, TRIPLE), rtol=1e-12, atol=1e-14)
    assert torch.isnan(a.grad).all()
    compiled, point = whole(vector), torch.tensor(TRIPLE)
    compiled(point)
    with forward_ad.dual_level(), pytest.raises(torch._dynamo.exc.TorchDynamoException):
        compiled(forward_ad.make_dual(point, torch.tensor(WAY)))


# Small singular values.


def weighted(xp, matrix, factors):
    """Return a number made of the least singular value and its vectors, whatever their sign."""
    left, values, right = factors
    turn = xp.matmul(left[:, 2:], right[2:, :])
    return 0.7 * values[2] + xp.sum(turn * matrix)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("op", [linalg.safe_svd, linalg.safe_svdvals])
def test_derivatives_at_a_small_singular_value_keep_their_digits(op, dtype, autodiff_framework):
    """Of square matrices gradient and Hessian are smooth there: nothing is divided by the value."""
    backend, way = load(autodiff_framework), np.cos(3 * WEIGHTS[1:, 1:]).astype("float32")
    basis, other = (np.linalg.qr(x)[0] for x in (WEIGHTS[:3, :3], TALL[:3]))
    least = {"float64": 1e-10, "float32": 2e-5}[dtype]
    matrix = (basis @ np.diag([2.0, 1.0, least]) @ other).astype(dtype).astype(float)
    vectors = op is linalg.safe_svd

    def of_least(a):
        left, values, right = mp.svd_r(a)
        both = left[:, 2] * right[2, :]
        turn = mp.fsum(both[i, j] * mp.mpf(float(way[i, j])) for i in range(3) for j in range(3))
        return mp.matrix([[mp.mpf(0.7) * values[2] + (turn if vectors else 0)]])

    exact = spectra.along(of_least, matrix, way.astype(float))
    xp, a, x = backend.xp, *(asarray(autodiff_framework, v, dtype) for v in (matrix, way))

    def loss(a):
        return weighted(xp, x, op(a)) if vectors else 0.7 * op(a)[2]

    def along(a):
        return xp.sum(backend.grad(loss)(a)[0] * x)

    (second,) = backend.grad(along)(a)

    got = np.array([float(along(a)), float(xp.sum(second * x))])
    right = np.array([exact.first.item(), exact.second.item()])
    np.testing.assert_allclose(got, right, rtol={"float64": 1e-12, "float32": 1e-5}[dtype])


def test_a_chain_of_ties_is_one_tie(autodiff_framework):
    """Of eigenvalues each within rounding of the next the sum has the gradient of the trace."""
    chain = 1.0 + 6 * 3 * np.finfo(float).eps * np.arange(3)
    weights = asarray(autodiff_framework, np.ones(3))
    xp = load(autodiff_framework).xp

    for op in (linalg.safe_eigvalsh, linalg.safe_svdvals):
        found = slope(autodiff_framework, lambda a, op=op: xp.sum(weights * op(a)), np.diag(chain))
        np.testing.assert_allclose(found, np.eye(3), atol=1e-14)
