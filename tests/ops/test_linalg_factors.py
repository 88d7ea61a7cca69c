"""Polar factors, eigenvalues and singular values: derivatives at ties, where none is unique."""

from functools import cache

import numpy as np
import pytest
from mpmath import mp

import spectra
from derivatives import MODES, derivatives_in
from exponents import EXHAUSTIVE
from frameworks import asarray, stacked, to_numpy
from safeops import linalg
from safeops._backends import load

nan = np.nan
RTOL = {"float64": 1e-11, "float32": 2e-4}
CHEAP = {"torch": "func", "jax": "jit", "tensorflow": "eager"}
SECOND = {"rev-rev", "fwd-rev", "rev-fwd", "fwd-fwd"}
COMPILED = ("compile", "xla")
SQUARE = ("polar", "safe_eigvalsh", "safe_svdvals")
# XLA's own eigh and svd are right to 1e-6 of the norm, also in float64; what is of the second
# order in its error is right to 1e-11, and the second derivative is of the first (tensorflow 2.21).
LOOSE = {"xla": dict.fromkeys(SECOND, 1e-4)}
LEFT_OUT = {  # each order takes seconds to compile
    "jit": SECOND - {"fwd-rev"},
    "compile": {"forward", *SECOND} - {"fwd-rev"},
    "xla": {"forward", *SECOND} - {"rev-rev"},
}
GRID = np.sin(1 + np.add.outer(2.3 * np.arange(4), np.arange(4) ** 2))
WAY = np.cos(np.add.outer(1.9 * np.arange(4), 0.4 * np.arange(4) ** 3)) / 2


def with_values(values):
    """Return a matrix with these singular values."""
    return ORTHOGONAL @ np.diag(values) @ orthonormal(GRID + GRID.T)


def orthonormal(a):
    """Return a rotation that is made of a matrix."""
    basis, _ = np.linalg.qr(a)
    return basis * np.append(np.ones(len(a) - 1), np.linalg.det(basis))


ORTHOGONAL = orthonormal(GRID)


MATRICES = {
    "identity": np.eye(4),
    "orthogonal": ORTHOGONAL,
    "repeated": with_values([5.0, 2.0, 2.0, 2.0]),
    "1e-9 apart": with_values([3.0, 1 + 1e-9, 1.0, 0.5]),
    "general": WAY + 0.3 * np.eye(4),
    "reflected": np.diag([1.0, -1.0, 1.0, 1.0]) @ with_values([4.0, 3.0, 2.0, 1.0]),
}
SYMMETRIC = {
    "identity": (np.eye(4), ((0, 1, 2, 3),)),
    "a tie": (spectra.rotated([1.0, 1.0, 2.0, 3.0]), ((0, 1), (2,), (3,))),
    "general": (spectra.rotated([0.3, 1.0, 2.2, 4.0]), ((0,), (1,), (2,), (3,))),
}
VALUES = {
    "a tie": (with_values([3.0, 2.0, 2.0, 1.0]), ((0,), (1, 2), (3,))),
    "general": (WAY + 0.3 * np.eye(4), ((0,), (1,), (2,), (3,))),
    "wide": (WAY[:3], ((0,), (1,), (2,))),
    "tall": (WAY[:, :2], ((0,), (1,))),
}


def rotation(a):
    """Return the nearest rotation in mpmath."""
    left, values, right = mp.svd_r(a)
    sign = mp.sign(mp.det(left) * mp.det(right))
    last = values.rows - 1
    return left * mp.diag([sign if k == last else 1 for k in range(last + 1)]) * right


def orthogonal(a):
    """Return the nearest orthogonal matrix in mpmath."""
    left, _, right = mp.svd_r(a)
    return left * right


def means(numbers, clusters):
    """Return numbers as a column, those of a cluster by their mean."""
    found = [mp.fsum(numbers[k] for k in c) / len(c) for c in clusters for _ in c]
    return mp.matrix(found)


def eigenvalues(a, clusters):
    """Return eigenvalues in mpmath."""
    return means(sorted(mp.eigsy(a, eigvals_only=True)), clusters)


def singular_values(a, clusters):
    """Return singular values in mpmath."""
    return means(sorted(mp.svd_r(a, compute_uv=False), reverse=True), clusters)


@cache
def exact(function, name):
    """Return what a function in mpmath has at a matrix, along a direction."""
    if function in {orthogonal, rotation}:
        return spectra.along(function, MATRICES[name], WAY)
    matrix, clusters = (SYMMETRIC if function is eigenvalues else VALUES)[name]
    way = WAY[: matrix.shape[0], : matrix.shape[1]]
    way = spectra.direction(0) if function is eigenvalues else way
    return spectra.along(lambda a: function(a, clusters), matrix, way)


FUNCTIONS = {
    "polar": (linalg.polar, orthogonal, MATRICES),
    "polar, proper": (lambda a: linalg.polar(a, proper=True), rotation, MATRICES),
    "safe_eigvalsh": (linalg.safe_eigvalsh, eigenvalues, {k: v[0] for k, v in SYMMETRIC.items()}),
    "safe_svdvals": (
        linalg.safe_svdvals,
        singular_values,
        {k: VALUES[k][0] for k in list(VALUES)[:2]},
    ),
    "safe_svdvals, wide": (linalg.safe_svdvals, singular_values, {"wide": VALUES["wide"][0]}),
    "safe_svdvals, tall": (linalg.safe_svdvals, singular_values, {"tall": VALUES["tall"][0]}),
}


def pytest_generate_tests(metafunc):
    """Run each function in two modes of each framework, and the polar factor in more."""
    if "way" not in metafunc.fixturenames:
        return
    ways = [
        (row, (name, mode, dtype))
        for name, modes in MODES.items()
        for mode in modes
        for row in FUNCTIONS
        for dtype in RTOL
        if EXHAUSTIVE or is_due(row, name, mode, dtype)
    ]
    ids = ["-".join([name, *way]) for name, way in ways]
    metafunc.parametrize(("name", "way"), ways, ids=ids)


def is_due(row, name, mode, dtype):
    """Whether a row runs in a mode: in a compiled one, if it is a function by itself."""
    if dtype == "float32":
        return row == "polar" and mode == CHEAP[name]
    if mode in COMPILED:
        return row in SQUARE
    return mode == CHEAP[name] or (row == "polar" and mode in {"vmap", "function", "autograd"})


def test_values_and_derivatives_are_exact(name, way):
    """Value, gradient and Hessian are those of 60 digits, where singular values tie too."""
    framework, mode, dtype = way
    op, function, matrices = FUNCTIONS[name]
    xp, a = load(framework).xp, np.stack(list(matrices.values()))
    rows = [exact(function, key) for key in matrices]
    along = spectra.direction(0) if function is eigenvalues else WAY
    along = np.broadcast_to(along[: a.shape[-2], : a.shape[-1]], a.shape)
    shape = to_numpy(op(asarray(framework, a, dtype))).shape[1:]
    weights = WAY[tuple(slice(n) for n in shape)] if len(shape) == 2 else WAY[0, : shape[0]]
    given = asarray(framework, weights[None], dtype)
    axes = tuple(range(1, len(shape) + 1))
    arrays = [[asarray(framework, x, dtype)] for x in (a, along, along)]
    less = LEFT_OUT.get(mode, {"rev-fwd", "fwd-fwd"})

    got = derivatives_in(
        mode,
        framework,
        op,
        lambda out: xp.sum(out * given, axis=axes),
        *arrays,
        {(framework, mode): (less, "each order takes seconds to compile")},
    )

    for order, result in got.items():
        y = stacked(result)
        right = np.stack([getattr(row, of_order(order)) for row in rows])
        right = right.reshape(len(a), *shape)
        if order != "value":
            right = np.sum(weights * right, axis=axes)
            y = np.sum(y[0] * along, axis=(-2, -1)) if y.ndim > 1 else y
        rtol = LOOSE.get(mode, {}).get(order, RTOL[dtype])
        np.testing.assert_allclose(y, right, rtol=rtol, atol=rtol, err_msg=order)


def of_order(order):
    """Return the name of a number of `spectra.Exact`."""
    return "value" if order == "value" else "second" if order in SECOND else "first"


def slope(framework, f, a):
    """Return the gradient of a weighted sum of a result."""
    backend = load(framework)

    def g(a):
        out = f(a)
        weights = (
            WAY[: out.shape[-2], : out.shape[-1]] if len(out.shape) > 1 else WAY[0, : out.shape[0]]
        )
        return backend.xp.sum(out * asarray(framework, weights))

    return to_numpy(backend.grad(g)(asarray(framework, a))[0])


def test_the_gradient_by_singular_vectors_is_wrong(autodiff_framework):
    """At a rotation the gradient through svd is NaN or 0, and that of the polar factor exact."""
    xp = load(autodiff_framework).xp

    def naive(a):
        left, _, right = xp.linalg.svd(a)
        return xp.matmul(left, right)

    wrong, right = (slope(autodiff_framework, f, np.eye(4)) for f in (naive, linalg.polar))

    assert not np.allclose(wrong, right)
    np.testing.assert_allclose(right, (WAY - WAY.T) / 2, atol=1e-14)


@pytest.mark.parametrize(
    ("matrix", "proper", "unique"),
    [
        (np.diag([2.0, 1.0, 0.0]), True, True),  # points in a plane
        (np.diag([2.0, 1.0, -0.5]), True, True),
        (np.diag([2.0, 1.0, -1.0]), True, False),  # two rotations are equally near
        (np.diag([2.0, 0.0, 0.0]), True, False),  # points on a line
        (np.diag([2.0, 1.0, 0.0]), False, False),
        (np.zeros((3, 3)), False, False),
    ],
)
def test_where_the_factor_is_not_unique_its_gradient_is_no_number(
    matrix, proper, unique, autodiff_framework
):
    """One of the nearest matrices is the value; the gradient is finite where there is but one."""
    value = to_numpy(linalg.polar(asarray(autodiff_framework, matrix), proper=proper))

    found = slope(autodiff_framework, lambda a: linalg.polar(a, proper=proper), matrix)

    np.testing.assert_allclose(value @ value.T, np.eye(3), atol=1e-14)
    assert not proper or np.linalg.det(value) > 0
    assert np.isfinite(found).any() == unique
    assert np.isfinite(found).all() == unique


def test_ties_share_the_slope(autodiff_framework):
    """Each of three equal eigenvalues has a third of the projector; a zero singular value has 0."""
    found = slope(autodiff_framework, linalg.safe_eigvalsh, np.diag([2.0, 2.0, 2.0, 5.0]))
    zero = slope(autodiff_framework, linalg.safe_svdvals, np.zeros((2, 3)))

    mean = np.mean(WAY[0, :3])
    np.testing.assert_allclose(found, np.diag([mean] * 3 + [WAY[0, 3]]), atol=1e-14)
    np.testing.assert_array_equal(zero, 0)


@pytest.mark.parametrize("op", [linalg.polar, linalg.safe_eigvalsh, linalg.safe_svdvals])
def test_a_bad_matrix_is_nan_alone(op, framework):
    """NaN makes one matrix of a batch NaN, and no other; and sizes do not count."""
    a = np.stack([np.eye(2)] * 2)
    a[1, 0, 1] = nan

    got = to_numpy(op(asarray(framework, a)))
    with pytest.raises(ValueError, match=r"^(polar|safe_\w+): expected (square )?matrices"):
        op(asarray(framework, [1.0, 2.0]))
    empty = to_numpy(op(asarray(framework, np.zeros((2, 0, 0)))))
    large = to_numpy(op(asarray(framework, np.diag([1e-300, 1e-300]))))

    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1]).all()
    assert empty.size == 0
    scale = 1.0 if op is linalg.polar else 1e-300
    np.testing.assert_allclose(large / scale, got[0], rtol=1e-14)


def test_a_rotation_of_complex_matrices_is_refused():
    """There is no nearest rotation of a complex matrix."""
    with pytest.raises(TypeError, match=r"^polar: expected a dtype out of \(float16"):
        linalg.polar(np.eye(2) * 1j, proper=True)


def test_complex_matrices_have_a_unitary_factor(framework):
    """The factor of a unitary matrix is itself, and its singular values are 1."""
    a, _ = np.linalg.qr(WAY + 1j * GRID)
    given = asarray(framework, 3.0 * a, "complex128")

    np.testing.assert_allclose(to_numpy(linalg.polar(given)), a, atol=1e-14)
    np.testing.assert_allclose(to_numpy(linalg.safe_svdvals(given)), 3.0, rtol=1e-14)
