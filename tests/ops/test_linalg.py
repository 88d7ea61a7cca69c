"""Functions of matrices: values and derivatives at ties, chosen gradients, errors."""

import numpy as np
import pytest
from mpmath import mp

import spectra
from derivatives import MODES, derivatives_in
from exponents import EXHAUSTIVE
from frameworks import asarray, stacked, to_numpy
from safeops import linalg
from safeops._backends import load
from safeops._dispatch import backend_of
from specs.linalg import SPECS, OfEigenvalues, by_hand

nan, inf = np.nan, np.inf
RTOL = {"float64": 1e-11, "float32": 2e-4, "complex128": 1e-11}
# XLA's own eigh is right to 1e-6 of the norm, also in float64; what is of the second order in its
# error is right to 1e-11, and the second derivative is of the first (tensorflow 2.21).
LOOSE = {
    ("tensorflow", "xla"): {"rev-rev": 1e-4, "fwd-rev": 1e-4, "rev-fwd": 1e-4, "fwd-fwd": 1e-4}
}
# This one has every mode; the others one mode of each framework, unless SAFEOPS_EXHAUSTIVE is set.
STANDS_FOR_ALL = "sqrtm_psd"
CHEAP = {"torch": "func", "jax": "jit", "tensorflow": "eager"}
LIMITS = {
    ("torch", "compile"): (
        ("rev-fwd",),
        "the tangents of some kernels have no device in a graph (torch 2.13)",
    ),
    ("tensorflow", "unknown-shape"): (("rev-fwd", "fwd-fwd"), "the mode function has them"),
    ("jax", "eager"): (("rev-rev", "rev-fwd", "fwd-fwd"), "the mode jit has them"),
    ("jax", "grad-of-jit"): (("rev-rev", "rev-fwd", "fwd-fwd"), "the mode vmap has them"),
}
SECOND = {"rev-rev", "fwd-rev", "rev-fwd", "fwd-fwd"}


ROWS = {row.name: row for spec in SPECS for row in spec.rows if isinstance(row, OfEigenvalues)}
NAIVE = {spec.name: spec.naive for spec in SPECS}


def pytest_generate_tests(metafunc):
    """Run each row in a mode of each selected framework, one row in all modes."""
    if "way" not in metafunc.fixturenames:
        return
    ways = [
        (row, (name, mode, dtype))
        for name, modes in MODES.items()
        for mode in modes
        for dtype in RTOL
        for row in ROWS
        if is_due(row, name, mode, dtype)
    ]
    ids = ["-".join([name, *way]) for name, way in ways]
    metafunc.parametrize(("name", "way"), ways, ids=ids)


def is_due(row, name, mode, dtype):
    """Whether a row runs in a mode."""
    if EXHAUSTIVE:
        return True
    cheap = mode == CHEAP[name]
    if dtype != "float64":
        return cheap and row == STANDS_FOR_ALL
    return cheap or row == STANDS_FOR_ALL


def found(name, framework, mode, dtype):
    """Return value and derivatives of a row: of a weighted sum along a direction."""
    of = complex if dtype == "complex128" else float
    backend, row = load(framework), ROWS[name]
    a = np.stack(list(spectra.matrices(of).values()))
    way = np.broadcast_to(spectra.direction(0, of=of), a.shape)
    weights = asarray(framework, spectra.direction(5, of=of)[None], dtype)
    xp = backend.xp

    def reduce(out):
        both = out * weights
        return xp.sum(xp.real(both) if of is complex else both, axis=(-2, -1))

    arrays = [[asarray(framework, x, dtype)] for x in (a, way, way)]
    cheap = name != STANDS_FOR_ALL and not EXHAUSTIVE
    skipped = LIMITS | ({(framework, mode): (SECOND - {"rev-rev", "fwd-rev"}, "")} if cheap else {})
    if of is complex:  # a gradient is conjugate in some frameworks
        skipped = {(framework, mode): (SECOND | {"reverse"}, "")}
    if (framework, mode) == ("jax", "jit") and cheap:
        skipped = {(framework, mode): (SECOND - {"fwd-rev"}, "compiling takes a second an order")}
    return derivatives_in(mode, framework, lambda a: row.op(a, xp), reduce, *arrays, skipped)


def test_values_and_derivatives_are_exact(name, way):
    """Value, gradient and Hessian are those of 60 digits, where eigenvalues tie too."""
    framework, mode, dtype = way
    of = complex if dtype == "complex128" else float
    weights, along = spectra.direction(5, of=of), spectra.direction(0, of=of)
    exact = spectra.exact(ROWS[name].f[0], of)

    got = found(name, *way)

    for order, result in got.items():
        y = stacked(result)
        rtol = LOOSE.get((framework, mode), {}).get(order, RTOL[dtype])
        if order == "value":
            right = exact.value
        else:
            right = exact.second if order in SECOND else exact.first
            right = np.sum(weights * right, axis=(-2, -1)).real
        if y.ndim > right.ndim:  # a gradient, of one argument
            y = np.sum(y[0] * along, axis=(-2, -1))
        size = np.max(np.abs(right.reshape(len(right), -1)), axis=1)
        scale = np.maximum(size, 1.0).reshape((-1,) + (1,) * (right.ndim - 1))
        np.testing.assert_allclose(y / scale, right / scale, rtol=0, atol=rtol, err_msg=order)


def test_values_without_derivatives_are_exact(framework):
    """Where nothing differentiates, the value is computed alone: it is that of 60 digits."""
    a = asarray(framework, np.stack(list(spectra.matrices().values())))
    xp = backend_of(a).xp

    for row in ROWS.values():
        got = to_numpy(row.op(a, xp))
        right = spectra.exact(row.f[0]).value
        np.testing.assert_allclose(got, right, rtol=1e-11, atol=1e-11 * np.max(np.abs(right)))


# Where the usual way fails.


def test_the_gradient_by_eigenvectors_is_wrong(autodiff_framework):
    """At the identity the gradient through eigh is NaN, or 0 off the diagonal on TensorFlow."""
    backend = load(autodiff_framework)
    xp, a = backend.xp, asarray(autodiff_framework, np.eye(3))
    weights = asarray(autodiff_framework, spectra.direction(1)[:3, :3])

    (naive,) = backend.grad(lambda a: xp.sum(weights * NAIVE["sqrtm_psd"](xp, a)))(a)
    (ours,) = backend.grad(lambda a: xp.sum(weights * linalg.sqrtm_psd(a)))(a)

    off = ~np.eye(3, dtype=bool)
    wrong = 0 if autodiff_framework == "tensorflow" else nan
    np.testing.assert_array_equal(to_numpy(naive)[off], wrong)
    np.testing.assert_allclose(to_numpy(ours), to_numpy(weights) / 2, rtol=1e-14)


# Singular matrices.

FACTOR = np.array([[1.0, 0.3], [-0.4, 2.0], [0.5, 0.5], [0.0, 1.0]])
TURN = np.array([[0.2, -1.0], [0.7, 0.1], [0.0, 0.3], [-0.6, 0.4]])


@pytest.mark.parametrize(
    ("op", "f"),
    [
        (linalg.sqrtm_psd, mp.sqrt),
        (linalg.inv_sqrtm_psd, lambda x: 1 / mp.sqrt(x)),
        (linalg.logm_psd, mp.log),
        (lambda a: linalg.powm_psd(a, 1.5), lambda x: x ** mp.mpf(1.5)),
        (lambda a: linalg.powm_psd(a, -1), lambda x: 1 / x),
    ],
)
def test_derivatives_are_exact_where_the_rank_stays(op, f, autodiff_framework):
    """Along matrices of rank 2 of 4 the first and the second derivative are exact."""
    backend = load(autodiff_framework)
    xp, weights = backend.xp, spectra.direction(1)
    factor, turn, given = (asarray(autodiff_framework, x) for x in (FACTOR, TURN, weights))

    def along(t):
        b = factor + t * turn
        return xp.sum(given * op(xp.matmul(b, xp.matrix_transpose(b))))

    def gram(a):  # of mpmath: the step is in the first entry of a, which has one
        b = mp.matrix(FACTOR.tolist()) + a[0, 0] * mp.matrix(TURN.tolist())
        return spectra.by_eigenvalues(lambda x: f(x) if x > 1e-30 else mp.mpf(0))(b * b.T)

    exact = spectra.along(gram, np.zeros((1, 1)), np.ones((1, 1)))
    t = asarray(autodiff_framework, 0.0)

    value = along(t)
    (first,) = backend.grad(along)(t)
    (second,) = backend.grad(lambda t: backend.grad(along)(t)[0])(t)

    got = [float(x) for x in (value, first, second)]
    right = [np.sum(weights * x) for x in (exact.value, exact.first, exact.second)]
    np.testing.assert_allclose(got, right, rtol=1e-10)


def test_between_zero_eigenvalues_the_slope_is_zero(autodiff_framework):
    """At the zero matrix value and gradient of the square root are 0, and of powers exact."""
    backend, zero = load(autodiff_framework), asarray(autodiff_framework, np.zeros((2, 2)))
    xp = backend.xp

    def slope(f):
        return to_numpy(backend.grad(lambda a: xp.sum(f(a)))(zero)[0])

    np.testing.assert_array_equal(slope(linalg.sqrtm_psd), 0)
    np.testing.assert_array_equal(slope(linalg.logm_psd), 0)
    np.testing.assert_array_equal(slope(lambda a: linalg.powm_psd(a, 0.5)), 0)
    np.testing.assert_array_equal(slope(lambda a: linalg.powm_psd(a, 1)), 1)
    np.testing.assert_array_equal(slope(lambda a: linalg.powm_psd(a, 2)), 0)


def test_the_square_has_its_derivatives_at_singular_matrices(autodiff_framework):
    """The power 2 of a matrix of rank 1 has the derivatives of the product."""
    backend = load(autodiff_framework)
    xp, matrix = backend.xp, np.diag([2.0, 0.0, 0.0])
    a, way = (asarray(autodiff_framework, x) for x in (matrix, spectra.direction(2)[:3, :3]))
    t = asarray(autodiff_framework, 0.0)

    def entry(t):
        return xp.sum(linalg.powm_psd(a + t * way, 2) * way)

    (first,) = backend.grad(entry)(t)
    (second,) = backend.grad(lambda t: backend.grad(entry)(t)[0])(t)

    x = spectra.direction(2)[:3, :3]
    right = [np.sum((matrix @ x + x @ matrix) * x), np.sum(2 * x @ x * x)]
    np.testing.assert_allclose([float(first), float(second)], right, rtol=1e-12)


def test_a_fill_stands_for_a_zero_eigenvalue(framework):
    """The fill is what the function has at a zero eigenvalue; a power below 0 has it too."""
    a = asarray(framework, np.diag([4.0, 0.0]))

    found = [
        linalg.inv_sqrtm_psd(a),
        linalg.inv_sqrtm_psd(a, fill_value=7),
        linalg.logm_psd(a, fill_value=-1.0),
        linalg.powm_psd(a, -1),
        linalg.powm_psd(a, -1, fill_value=3.0),
        linalg.powm_psd(a, 0),
        linalg.sqrtm_psd(a),
    ]

    right = [[0.5, 0], [0.5, 7], [np.log(4), -1], [0.25, 0], [0.25, 3], [1, 1], [2, 0]]
    for got, diagonal in zip(found, right, strict=True):
        np.testing.assert_allclose(to_numpy(got), np.diag(diagonal), rtol=1e-14)


# Bad matrices, and unusual ones.


def test_a_bad_matrix_is_nan_alone(framework):
    """NaN, inf or a negative eigenvalue make one matrix of a batch NaN, and no other."""
    a = np.stack([np.diag([4.0, 1.0])] * 4)
    a[1, 0, 1], a[2, 1, 1], a[3, 1, 1] = nan, inf, -1.0

    got = to_numpy(linalg.sqrtm_psd(asarray(framework, a)))
    exponential = to_numpy(linalg.expm_symmetric(asarray(framework, a)))

    np.testing.assert_allclose(got[0], np.diag([2.0, 1.0]), rtol=1e-14)
    assert np.isnan(got[1:]).all()
    assert np.isnan(exponential[1:3]).all()
    np.testing.assert_allclose(exponential[3], np.diag(np.exp([4.0, -1.0])), rtol=1e-14)


def test_the_gradient_of_a_bad_matrix_is_nan(autodiff_framework):
    """A matrix with a NaN has gradient NaN, and its neighbour the right one."""
    backend, a = load(autodiff_framework), np.stack([np.eye(2)] * 2)
    a[1, 0, 0] = nan

    (got,) = backend.grad(lambda a: backend.xp.sum(linalg.sqrtm_psd(a)))(
        asarray(autodiff_framework, a)
    )

    np.testing.assert_allclose(to_numpy(got)[0], 0.5, rtol=1e-14)
    assert np.isnan(to_numpy(got)[1]).all()


def test_a_third_derivative_is_no_number(autodiff_framework):
    """What lies beyond the jet is inf or NaN, and never 0."""
    backend = load(autodiff_framework)
    a, t = asarray(autodiff_framework, np.diag([1.0, 1.0, 2.0])), asarray(autodiff_framework, 0.0)
    way = asarray(autodiff_framework, spectra.direction(2)[:3, :3])

    def f(t):
        return backend.xp.sum(linalg.expm_symmetric(a + t * way))

    def slope(f):
        return lambda t: backend.grad(f)(t)[0]

    assert np.isfinite(float(slope(slope(f))(t)))
    assert not np.isfinite(float(slope(slope(slope(f)))(t)))


@pytest.mark.parametrize("shape", [(0, 0), (0, 3, 3), (2, 0, 0), (1, 1), (2, 3, 1, 1)])
def test_empty_and_small_matrices_have_values(shape, framework):
    """A matrix without entries, a batch without matrices, and numbers as matrices."""
    a = asarray(framework, np.full(shape, 4.0) if shape[-1] == 1 else np.zeros(shape))

    got = to_numpy(linalg.sqrtm_psd(a))

    np.testing.assert_allclose(got, np.full(shape, 2.0 if shape[-1] == 1 else 0.0), rtol=1e-15)


def test_of_another_matrix_the_hermitian_part_is_taken(framework):
    """A matrix that is not symmetric stands for half the sum of itself and its transpose."""
    a = np.array([[2.0, 1.0], [0.0, 3.0]])

    got, right = (
        to_numpy(linalg.expm_symmetric(asarray(framework, x))) for x in (a, (a + a.T) / 2)
    )

    np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e300])
def test_roots_keep_their_digits_at_any_size(scale, framework):
    """The square root of a large or small matrix is exact: nothing leaves the range."""
    a = spectra.matrices()["general"]

    got = to_numpy(linalg.sqrtm_psd(asarray(framework, scale * a)))

    root = to_numpy(linalg.sqrtm_psd(asarray(framework, a)))
    np.testing.assert_allclose(got / np.sqrt(scale), root, rtol=1e-12, atol=1e-13)


def test_differences_keep_their_digits_without_a_scale(autodiff_framework):
    """Near ties are found by the function, not by a bound: at 1e-18 the slope of exp is 1."""
    backend = load(autodiff_framework)
    xp, tiny = backend.xp, asarray(autodiff_framework, np.diag([1e-18, 2e-18]))
    small = asarray(autodiff_framework, np.diag([1e-7, 2e-7, 1.0]))

    def entry(f, a):
        return to_numpy(backend.grad(lambda a: xp.sum(f(a)))(a)[0])

    exp = entry(lambda a: linalg.spectral_function(a, xp.exp, derivatives=(xp.exp, xp.exp)), tiny)
    log = entry(lambda a: by_hand(a, xp), small)

    np.testing.assert_allclose(exp, 1, rtol=1e-14)
    np.testing.assert_allclose(log[0, 1], np.log(2) / 1e-7, rtol=1e-9)


def test_a_kink_between_eigenvalues_is_seen(autodiff_framework):
    """The positive part, whose second derivative is 0, has that of the projector."""
    backend = load(autodiff_framework)
    xp, matrix, way = backend.xp, np.diag([-1.0, 1.0, 3.0]), spectra.direction(0)[:3, :3]
    a, x, t = (asarray(autodiff_framework, v) for v in (matrix, way, 0.0))
    slopes = (lambda x: xp.where(x > 0, 1.0, 0.0 * x), lambda x: 0.0 * x)

    def f(t):
        part = linalg.spectral_function(
            a + t * x, lambda x: xp.where(x > 0, x, 0.0), derivatives=slopes
        )
        return xp.sum(part * x)

    (second,) = backend.grad(lambda t: backend.grad(f)(t)[0])(t)

    positive = spectra.by_eigenvalues(lambda x: max(x, mp.mpf(0)))
    right = np.sum(spectra.along(positive, matrix, way).second * way)
    np.testing.assert_allclose(float(second), right, rtol=1e-12)


def test_numpy_has_nothing_to_warn_of():
    """No entry that is not taken is computed where it would be infinite."""
    rows = [ROWS[name] for name in ROWS if name != "spectral_function"]  # its log is infinite

    with np.errstate(all="raise", under="ignore"):
        found = [row.op(np.diag([0.0, 1.0, 1.0]), np) for row in rows]

    assert np.isfinite(found).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_dtypes_are_computed_in_float32(dtype, autodiff_framework):
    """The result has the dtype of the argument, and the error of one rounding."""
    got = linalg.expm_symmetric(asarray(autodiff_framework, np.diag([1.0, 2.0]), dtype))

    assert dtype in str(got.dtype)
    np.testing.assert_allclose(to_numpy(got), np.diag(np.exp([1.0, 2.0])), rtol=4e-3)


# Errors.


def test_errors_name_the_function_and_the_way_out(framework):
    """A matrix that is not square, and functions that are none, are named."""
    a = asarray(framework, np.ones((2, 3)))
    b = asarray(framework, np.eye(2))

    with pytest.raises(ValueError, match=r"^sqrtm_psd: expected square matrices of shape"):
        linalg.sqrtm_psd(a)
    with pytest.raises(ValueError, match=r"^expm_symmetric: expected square matrices"):
        linalg.expm_symmetric(a[0, ...])
    with pytest.raises(TypeError, match=r"^spectral_function: expected two functions"):
        linalg.spectral_function(b, abs, derivatives=abs)
    with pytest.raises(TypeError, match=r"^spectral_function: expected functions of eigenvalues"):
        linalg.spectral_function(b, abs, derivatives=(1.0, abs))
    with pytest.raises(TypeError, match=r"^powm_psd: expected a number as exponent"):
        linalg.powm_psd(b, "2")
    with pytest.raises(TypeError, match=r"^logm_psd: expected a number as fill_value"):
        linalg.logm_psd(b, fill_value=None)
