"""Hessians of functions of matrices: eigenvalues in clusters, singular values of any size."""

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

import second_order
from derivatives import derivatives_in
from exponents import EXHAUSTIVE
from frameworks import asarray, stacked
from safeops import linalg
from safeops._backends import load
from specs.linalg import SPECS, OfEigenvalues, orthonormal

MODES = {"torch": ("func", "compile"), "jax": ("jit",), "tensorflow": ("eager", "xla")}
# Of the largest entry. XLA's own eigh and svd are right to 1e-6, in float64 too (tensorflow 2.21).
RTOL = {"float64": 1e-11, "float32": 5e-5, "xla": 1e-4}
UNSUPPORTED = [("xla", "polar, proper")]  # XLA has no determinant (tensorflow 2.21)
SIZES = [(0, 6)] + EXHAUSTIVE * [(0, 16), *((seed, n) for seed in range(1, 9) for n in (3, 6))]


# Matrices.


def turn(rng, n):
    """Return a random rotation."""
    return orthonormal(rng.normal(size=(n, n)))


def symmetric(a):
    """Return the symmetric part."""
    return (a + np.swapaxes(a, -1, -2)) / 2


def spectra_of(rng, n):
    """Return eigenvalues near each other in every way: chains, clusters, random gaps, none."""
    steps = 10.0 ** rng.uniform(-20, 0, (3, n))
    centres = rng.uniform(0.5, 2.0, 3)[rng.integers(0, 3, (3, n))]
    width = 10.0 ** rng.uniform(-5, -0.5, (3, 1))
    return [
        *(1 + gap * np.arange(n) for gap in (0.1, 0.03, 1e-3, 3e-4, 1e-4, 1e-6)),
        *np.minimum(0.3 + np.cumsum(steps, -1), 3.0),
        *(centres + width * rng.uniform(0, 1, (3, n))),
        10.0 ** rng.uniform(-2, 0.5, n),
    ]


def near(dtype, seed, n):
    """Return matrices with these eigenvalues, diagonal and turned, and covariances of noise."""
    rng = np.random.default_rng(seed)
    found = []
    for values in spectra_of(rng, n):
        basis = turn(rng, n)
        found += [np.diag(values), basis @ np.diag(values) @ basis.T]
    found += [np.cov(rng.normal(size=(number, n)).T) for number in (2000, 50)]
    return rounded(symmetric(np.stack(found)), dtype), rng


def rounded(a, dtype):
    """Return numbers as a dtype holds them."""
    return a.astype(dtype).astype(np.float64)


def white(dtype, seed, _):
    """Return the covariance of 2,000 white samples in 16 dimensions."""
    rng = np.random.default_rng(seed)
    return rounded(np.cov(rng.normal(size=(2000, 16)).T)[None], dtype), rng


def with_singular(values, dtype):
    """Return matrices with these singular values, diagonal and turned."""
    rng = np.random.default_rng(len(values))
    n = len(values[0])
    turned = [turn(rng, n) @ np.diag(x) @ turn(rng, n) for x in values]
    return rounded(np.stack([*map(np.diag, values), *turned]), dtype), rng


# Singular values of real matrices, of which the least may be anything.
SMALL = [
    *([2.0, 1.0, s] for s in 10.0 ** -np.array([0, 1, 2, 3, 4, 5, 6, 8, 12, 13, 20, 100, 300])),
    *([2.0, 1.0, s] for s in (0.0, -1e-300, -1e-12, -1e-6, -1e-2, -0.5)),
    *([2.0, 2.0, s] for s in (0.0, 1e-10, 1e-4, -1e-4)),
    [1.0, 1.0, 1.0],
]
# Of a plain factor, in the dtype: smaller ones are 0, and have no derivative.
LEAST = {"float32": 1e-5, "float64": 2e-14}


def unique(dtype, *_):
    """Return matrices of which the nearest rotation is unique."""
    return with_singular(SMALL, dtype)


def regular(dtype, *_):
    """Return matrices that are not singular."""
    return with_singular([x for x in SMALL if abs(x[2]) >= LEAST[dtype]], dtype)


def adjoint(x):
    """Return the conjugate transpose."""
    return np.swapaxes(x, -1, -2).conj()


# Functions.


class Row(NamedTuple):
    """A function of matrices and a namespace, its matrices, and what it is of eigenvalues."""

    op: object
    given: object
    f: object = None  # with two derivatives, in mpmath; None for a polar factor


NEAR = {
    row.name: Row(row.op, near, row.f)
    for spec in SPECS
    for row in spec.near or spec.rows
    if isinstance(row, OfEigenvalues)
}
ROWS = NEAR | {
    "inv_sqrtm_psd, white": NEAR["inv_sqrtm_psd"]._replace(given=white),
    "polar": Row(lambda a, _: linalg.polar(a), regular),
    "polar, proper": Row(lambda a, _: linalg.polar(a, proper=True), unique),
}
BOTH = ("float32", "float64")
# The dtypes of the default run in PyTorch, and elsewhere, where each takes seconds to compile.
DUE = {
    "inv_sqrtm_psd": (BOTH, ("float32",)),
    "inv_sqrtm_psd, white": (("float32",), ()),
    "spectral_function": (BOTH, ("float64",)),
    "polar": (BOTH, ("float32",)),
    "polar, proper": (BOTH, ("float64",)),
}


# How they are compared.


class Case(NamedTuple):
    """Matrices, two directions, weights, and the second derivatives in mpmath."""

    a: np.ndarray
    v: np.ndarray
    u: np.ndarray
    weights: np.ndarray
    exact: np.ndarray


@cache
def case_of(name, dtype, seed, n):
    """Return the case of a row, with random directions that float32 holds."""
    row = ROWS[name]
    a, rng = row.given(dtype, seed, n)
    v, u, weights = (rounded(x, "float32") for x in rng.normal(size=(3, *a.shape)))
    if row.f is not None:
        v, u = symmetric(v), symmetric(u)
    return Case(a, v, u, weights, np.stack([exact(name, *x) for x in zip(a, v, u, strict=True)]))


def exact(name, *given):
    """Return a second derivative in mpmath."""
    f = ROWS[name].f
    if f is None:
        return second_order.of_polar(*given, proper="proper" in name).second
    return second_order.of_symmetric(f, *given).second


def pytest_generate_tests(metafunc):
    """Run each row in both dtypes of each framework, in the default run as few as `is_due` says."""
    if "way" not in metafunc.fixturenames:
        return
    found = [
        (name, (framework, mode, dtype))
        for framework, modes in MODES.items()
        for mode in modes
        for dtype in BOTH
        for name in ROWS
        if is_due(name, framework, mode, dtype)
    ]
    ids = ["-".join([name, *way]) for name, way in found]
    metafunc.parametrize(("name", "way"), found, ids=ids)


def is_due(name, framework, mode, dtype):
    """Whether a row runs in a mode."""
    if EXHAUSTIVE:
        return (mode, name) not in UNSUPPORTED
    dtypes = DUE.get(name, ((), ()))[framework != "torch"]
    return mode == MODES[framework][0] and dtype in dtypes


def test_second_derivatives_are_exact(name, way):
    """In all compositions of modes they are those of mpmath, as a part of the largest entry."""
    framework, mode, dtype = way
    op, xp = ROWS[name].op, load(framework).xp
    for seed, n in SIZES:
        case = case_of(name, dtype, seed, n)
        weights = asarray(framework, case.weights, dtype)
        right = np.sum(case.weights * case.exact, axis=(-2, -1))
        size = np.max(np.abs(case.exact), axis=(-2, -1))
        size *= np.sum(np.abs(case.weights), axis=(-2, -1))

        got = derivatives_in(
            mode,
            framework,
            lambda a: op(a, xp),
            lambda out, weights=weights: xp.sum(out * weights, axis=(-2, -1)),
            *([asarray(framework, x, dtype)] for x in (case.a, case.v, case.u)),
            {(framework, mode): (("reverse", "forward"), "first orders")},
        )

        for order in set(got) - {"value"}:
            y = stacked(got[order]).astype(float)
            y = np.sum(y[0] * case.u, axis=(-2, -1)) if y.ndim > 1 else y
            error = np.abs(y - right) / size
            assert np.max(error) <= RTOL[mode if mode == "xla" else dtype], (order, error)


@pytest.mark.parametrize("name", ["inv_sqrtm_psd", "polar"])
def test_second_derivatives_of_complex_matrices_are_exact(name, autodiff_framework):
    """Along a direction they are exact, by the condition where phases turn with 1 / s."""
    row, framework, (a, v, weights) = ROWS[name], autodiff_framework, complex_case(name)
    exact_ones = np.stack([exact(name, x, y, y) for x, y in zip(a, v, strict=True)])
    size = np.max(np.abs(exact_ones), axis=(-2, -1)) * np.sum(np.abs(weights), axis=(-2, -1))
    right = np.sum(weights * exact_ones, axis=(-2, -1)).real
    xp, mode = load(framework).xp, MODES[framework][0]
    matrix, way, given = (asarray(framework, x, "complex128") for x in (a, v, weights))
    zeros, ones = ([asarray(framework, x)] for x in (np.zeros(len(a)), np.ones(len(a))))

    got = derivatives_in(
        mode,
        framework,
        lambda t: row.op(matrix + xp.astype(t, matrix.dtype)[:, None, None] * way, xp),
        lambda out: xp.sum(xp.real(out * given), axis=(-2, -1)),
        *(zeros, ones, ones),
        {(framework, mode): (("reverse", "forward", "fwd-rev", "rev-fwd"), "real ones have them")},
    )

    for order in set(got) - {"value"}:
        error = np.abs(stacked(got[order]).reshape(right.shape) - right) / size
        assert np.all(error <= 1e-11 + 1e-15 * np.linalg.cond(a)), (order, error)


def complex_case(name):
    """Return complex matrices with the values of a row, directions and weights."""
    rng = np.random.default_rng(1)
    a, _ = ROWS[name].given("float64", 0, 6)
    v, weights, turn = (x + 1j * y for x, y in rng.normal(size=(3, 2, *a.shape)))
    turn, _ = np.linalg.qr(turn)
    a = turn @ a @ adjoint(turn)
    if ROWS[name].f is None:
        return a, v, weights
    return (a + adjoint(a)) / 2, (v + adjoint(v)) / 2, weights
