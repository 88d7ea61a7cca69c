"""The incomplete gamma functions: at their borders, for every size of a, in every mode."""

import sys
from math import e, inf, nan

import mpmath
import numpy as np
import pytest

import safeops as so
from assertions import assert_close
from derivatives import due
from elementwise import pytest_generate_tests, run_elementwise, under_detector
from frameworks import asarray, in_one_program, to_numpy
from safeops._core.dtypes import dtype_name
from safeops._dispatch import backend_of
from specs.incomplete import ROW, share

__all__ = ["pytest_generate_tests"]  # runs the tests below in each `way`

# The framework's own value, and slopes of some steps.
RTOL = 2e-12
NAMES = pytest.mark.parametrize("name", ["safe_gammainc", "safe_gammaincc"])
OF_STRICT = "array-api-strict has no special functions"


def framework_has(framework):
    """Skip where the framework has no such function."""
    if framework == "array-api-strict":
        pytest.skip(OF_STRICT)


@pytest.mark.parametrize("row", [ROW], ids=lambda row: row.name)
def test_values_and_derivatives_for_x_are_exact(row, way):
    """Value, gradient and second derivatives are right in all compositions, at each border too."""
    got, exact = run_elementwise(due(row, way), row.op, *way)

    for order, x in got.items():
        assert_close(x, exact[order], RTOL, order, atol=1e-14)


def columns(points, framework):
    """Return a and x of some points."""
    return [asarray(framework, z) for z in zip(*(p.args for p in points), strict=True)]


def test_values_are_exact_everywhere(framework):
    """Both functions have the exact value, also where there are no derivatives."""
    framework_has(framework)
    a, x = columns(ROW.points, framework)

    below, above = so.safe_gammainc(a, x), so.safe_gammaincc(a, x)

    assert_close(to_numpy(below), [p.value for p in ROW.points], RTOL)
    assert_close(to_numpy(above), [1 - p.value for p in ROW.points], RTOL, atol=1e-14)


def test_the_naive_version_fails(autodiff_framework):
    """The framework's own function behind a `where` has gradient NaN at (1, 0)."""
    x = asarray(autodiff_framework, [0.0, 1.0])
    backend = backend_of(x)

    (slope,) = backend.grad(lambda x: backend.xp.sum(ROW.naive(backend.xp, x * 0 + 1, x)))(x)

    assert np.isnan(to_numpy(slope)).tolist() == [True, False]


def test_detectors_are_silent(framework):
    """No NaN or inf is made on the way."""
    framework_has(framework)
    args = columns([p for p in ROW.points if p.args[1] < inf], framework)

    value, gradient = under_detector(framework, ROW.op, args)

    assert np.isfinite(value).all()
    assert np.isfinite(gradient).all()


LARGE = [(200.0, 180.0), (500.0, 520.0), (1e4, 1.01e4), (3.0, 2.0), (0.25, 0.125), (1.0, 30.0)]


@NAMES
@pytest.mark.only("jax", "tensorflow")
def test_the_derivatives_for_a_are_exact(name, autodiff_framework):
    """The slope for a, and the second derivative for a and x in either order."""
    a, x = (asarray(autodiff_framework, z) for z in zip(*LARGE, strict=True))
    backend, op = backend_of(a), getattr(so, name)
    sign = 1 if name == "safe_gammainc" else -1
    exact = sign * np.array([share(*point)[2:] for point in LARGE]).T

    def total(a, x):
        return backend.xp.sum(op(a, x))

    def of_x(a, x):
        return backend.grad(lambda x: total(a, x))(x)[0]

    def of_a(a, x):
        return backend.grad(lambda a: total(a, x))(a)[0]

    def derivatives(a, x):
        mixed = backend.grad(lambda a: backend.xp.sum(of_x(a, x)))(a)[0]
        turned = backend.grad(lambda x: backend.xp.sum(of_a(a, x)))(x)[0]
        return of_x(a, x), of_a(a, x), mixed, turned

    found = map(to_numpy, in_one_program(autodiff_framework, derivatives)(a, x))

    for got, i in zip(found, (0, 1, 3, 3), strict=True):
        assert_close(got, exact[i], RTOL)


@NAMES
@pytest.mark.only("jax", "tensorflow")
def test_the_derivative_for_a_is_0_at_the_borders(name, autodiff_framework):
    """Where x is 0 or inf, or a is 0 or inf, neither slope is NaN; that for a is 0."""
    points = [(1.0, 0.0), (0.5, 0.0), (2.0, inf), (0.0, 1.0), (0.0, 0.0), (inf, 1.0)]
    a, x = (asarray(autodiff_framework, column) for column in zip(*points, strict=True))
    backend, op = backend_of(a), getattr(so, name)

    slopes = backend.grad(lambda a, x: backend.xp.sum(op(a, x)))
    of_a, of_x = in_one_program(autodiff_framework, slopes)(a, x)

    assert not to_numpy(of_a).any()
    assert np.abs(to_numpy(of_x)).tolist() == [1, 0, 0, 0, 0, 0]


@NAMES
@pytest.mark.only("torch")
def test_pytorch_raises_for_the_derivative_for_a(name):
    """PyTorch has no derivative for a: an error in both modes, and no silent 0."""
    import torch

    a, x = torch.tensor([1.0, 300.0], requires_grad=True), torch.tensor([2.0, 300.0])
    op = getattr(so, name)

    with pytest.raises(NotImplementedError, match="igamma"):
        op(a, x).sum().backward()
    with pytest.raises(NotImplementedError, match="igamma"):
        torch.func.jvp(lambda a: op(a, x), (a.detach(),), (torch.ones(2),))


@NAMES
@pytest.mark.only("jax", "tensorflow")
@pytest.mark.parametrize("a", [2.0, 300.0])
def test_a_second_derivative_for_a_is_no_number(name, a, autodiff_framework):
    """It is an error of the framework, or NaN or infinite, never a silent 0."""
    a, x = (asarray(autodiff_framework, z) for z in (a, a))
    backend, op = backend_of(a), getattr(so, name)

    try:
        (second,) = backend.grad(lambda a: backend.grad(lambda a: op(a, x))(a)[0])(a)
    except (LookupError, NotImplementedError, ValueError):
        return

    assert not np.isfinite(to_numpy(second))


@NAMES
def test_outside_is_nan(name, framework):
    """Below 0, and with both at inf, the value is NaN; a NaN stays."""
    framework_has(framework)
    points = [(-1.0, 1.0), (1.0, -1.0), (inf, inf), (nan, 1.0), (1.0, nan), (0.0, nan), (nan, 0.0)]
    a, x = (asarray(framework, column) for column in zip(*points, strict=True))

    assert np.isnan(to_numpy(getattr(so, name)(a, x))).all()


@pytest.mark.only("torch", "jax", "tensorflow")
def test_outside_the_gradient_is_nan(autodiff_framework):
    """Where the value is NaN, so is the slope for x."""
    x = asarray(autodiff_framework, [-1.0, nan, 1.0])
    backend = backend_of(x)

    (slope,) = backend.grad(lambda x: backend.xp.sum(so.safe_gammainc(1.0, x)))(x)

    assert np.isnan(to_numpy(slope)).tolist() == [True, True, False]


def test_a_framework_without_the_function_is_named(framework):
    """A namespace of the standard has no such function: a TypeError says so."""
    if framework != "array-api-strict":
        pytest.skip("has the function")
    x = asarray(framework, [1.0])

    with pytest.raises(TypeError, match=r"safe_gammainc: .*strict has no function gammainc"):
        so.safe_gammainc(x, x)


@pytest.mark.only("numpy")
def test_numpy_without_scipy_says_how_to_install(monkeypatch):
    """Without SciPy the error has the command."""
    monkeypatch.setitem(sys.modules, "scipy", None)

    with pytest.raises(ModuleNotFoundError, match=r"pip install \"\.\[scipy\]\""):
        so.safe_gammaincc(np.ones(2), np.ones(2))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtypes_are_kept(dtype, autodiff_framework):
    """In each dtype the result has that dtype, and value and slope are right, for a large a too."""
    points = [(1.0, 0.0), (1.0, 1.0), (2.0, 1.0), (250.0, 256.0), (2.0, 1000.0)]
    a, x = (asarray(autodiff_framework, c, dtype) for c in zip(*points, strict=True))
    backend = backend_of(x)
    rtol = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]

    value = so.safe_gammainc(a, x)
    slopes = backend.grad(lambda x: backend.xp.sum(so.safe_gammainc(a, x)))
    (slope,) = in_one_program(autodiff_framework, slopes)(x)

    large = share(*points[3])
    assert dtype_name(value.dtype) == dtype_name(slope.dtype) == dtype
    assert_close(to_numpy(value), [0, 1 - 1 / e, 1 - 2 / e, large[0], 1], rtol, atol=rtol)
    assert_close(to_numpy(slope), [1, 1 / e, 1 / e, large[2], 0], rtol, atol=rtol * 1e-2)


def spread(dtype, count=12):
    """Return a and x: of all sizes, and x near a where the share is neither 0 nor 1."""
    top = 38 if dtype == "float32" else 300
    a = np.concatenate([np.logspace(-2, 2, count), np.logspace(2.4, top - 1, count)])
    away = np.array([-6.0, -2.0, -0.5, 0.0, 0.5, 2.0, 6.0])
    x = a[:, None] + away * np.sqrt(a)[:, None]
    a = np.broadcast_to(a[:, None], x.shape)
    kept = x > 0
    rounded = (z[kept].astype(dtype).astype(float) for z in (a, x))
    return tuple(rounded)


def by_formula(a, x):
    """Return shares and the slope for x of one point, in mpmath; None where it takes too long."""
    if a > 1e5:
        with mpmath.workdps(400):
            a, x = mpmath.mpf(a), mpmath.mpf(x)
            slope = mpmath.exp((a - 1) * mpmath.log(x) - x - mpmath.loggamma(a))
            return None, None, float(slope)
    return share(a, x)[:3]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_sizes_of_a_are_right(dtype, autodiff_framework):
    """From 1e-2 to the end of the range, x within six deviations: shares and slope are right."""
    a, x = spread(dtype)
    args = [asarray(autodiff_framework, z, dtype) for z in (a, x)]
    backend = backend_of(*args)
    xp = backend.xp
    program = in_one_program(autodiff_framework, lambda a, x: (
        so.safe_gammainc(a, x),
        so.safe_gammaincc(a, x),
        backend.grad(lambda x: xp.sum(so.safe_gammainc(a, x)))(x)[0],
    ))  # fmt: skip
    got = [to_numpy(z).astype(float) for z in program(*args)]

    # The rounding of x is that of the deviate, times the root of a.
    eps = np.finfo(dtype).eps
    # PyTorch's own values have eight digits around a = 50, in float64 too (2.13).
    of_framework_only = max(5e2 * eps, 1e-8 if autodiff_framework == "torch" else 0)
    for i, exact in enumerate(map(by_formula, a, x)):
        for k, number in enumerate(exact):
            if number is not None:
                # JAX and TensorFlow take a small share above from 1, if a is small.
                least = 0.1 if k == 1 and a[i] < 1 else 1e-30
                room = (of_framework_only if a[i] < 200 else 64 * eps) * max(abs(number), least)
                assert abs(got[k][i] - number) <= room, (k, a[i], x[i], got[k][i], number)


def test_a_float32_of_jax_loses_its_digits_where_ours_does_not(framework):
    """At (1e30, 1e30) the share is one half."""
    if framework == "array-api-strict":
        pytest.skip(OF_STRICT)
    a = asarray(framework, 1e30, "float32")

    for name in ("safe_gammainc", "safe_gammaincc"):
        assert_close(to_numpy(getattr(so, name)(a, a)), 0.5, 1e-6)
