"""Polar factors, eigenvalues and singular values: derivatives at ties, where none is unique."""

from functools import cache

import numpy as np
import pytest

import spectra
from derivatives import MODES, derivatives_in
from exponents import EXHAUSTIVE
from frameworks import asarray, stacked, to_numpy
from safeops import linalg
from safeops._backends import load
from specs.linalg import SPECS, OfMatrices
from spectra import GRID, WAY

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
ROWS = {row.name: row for spec in SPECS for row in spec.rows if isinstance(row, OfMatrices)}


@cache
def exact(name):
    """Return what a row has in mpmath at its matrices, along a direction."""
    return [
        spectra.along(f, a, way_of(name)[: a.shape[0], : a.shape[1]])
        for a, f in ROWS[name].matrices
    ]


def way_of(name):
    """Return a direction: a symmetric one for eigenvalues."""
    return spectra.direction(0) if name == "safe_eigvalsh" else WAY


def pytest_generate_tests(metafunc):
    """Run each function in two modes of each framework, and the polar factor in more."""
    if "way" not in metafunc.fixturenames:
        return
    ways = [
        (row, (name, mode, dtype))
        for name, modes in MODES.items()
        for mode in modes
        for row in ROWS
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
    op, xp = ROWS[name].op, load(framework).xp
    a, rows = np.stack([a for a, _ in ROWS[name].matrices]), exact(name)
    along = np.broadcast_to(way_of(name)[: a.shape[-2], : a.shape[-1]], a.shape)
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
