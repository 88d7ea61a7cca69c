"""Functions of a length: value, gradient and Hessian at length 0 and beside it, in every mode."""

import math

import numpy as np
import pytest
from numpy.exceptions import AxisError

import safeops as so
from derivatives import MODES, derivatives_in
from exponents import EXHAUSTIVE
from frameworks import asarray, to_numpy
from safeops._backends import load
from safeops._core.dtypes import dtype_name
from safeops._dispatch import backend_of
from specs.radial import SPECS

RTOL = {"float64": 1e-9, "float32": 1e-5}
A, B, ALPHA = 3**0.5, 5**0.5, 0.7
# Matern 3/2 and 5/2, Gaussian, rational quadratic; with each its slope over r, and the slope of
# that, without a difference in any of them.
KERNELS = (
    (
        lambda xp, r: (1 + A * r) * xp.exp(-A * r),
        lambda r: -3 * np.exp(-A * r),
        lambda r: A**3 * np.exp(-A * r),
    ),
    (
        lambda xp, r: (1 + B * r + 5 / 3 * r**2) * xp.exp(-B * r),
        lambda r: -5 / 3 * (1 + B * r) * np.exp(-B * r),
        lambda r: 25 / 3 * r * np.exp(-B * r),
    ),
    (
        lambda xp, r: xp.exp(-(r**2) / 2),
        lambda r: -np.exp(-(r**2) / 2),
        lambda r: r * np.exp(-(r**2) / 2),
    ),
    (
        lambda _, r: (1 + r * r / (2 * ALPHA)) ** -ALPHA,
        lambda r: -((1 + r * r / (2 * ALPHA)) ** (-ALPHA - 1)),
        lambda r: (1 + 1 / ALPHA) * r * (1 + r * r / (2 * ALPHA)) ** (-ALPHA - 2),
    ),
)
DIRECTION = np.array([2.0, -1.0, 2.0]) / 3
# From all exponents; 0.1 is about where the polynomial ends.
SIZES = {
    "float64": (0.0, *np.geomspace(1e-300, 4.0, 120), 1e-160, 0.1, 0.3, 1.0),
    "float32": (0.0, *np.geomspace(1e-35, 4.0, 80), 1e-20, 0.1, 0.3, 1.0),
}
V, U = np.array([1.0, -0.5, 0.25]), np.array([0.5, 1.25, 1.0])
# The mode that has float32 too.
BOTH = {"torch": "func", "jax": "jit", "tensorflow": "eager"}
# What TensorFlow makes a graph of first, in which it takes minutes to take all derivatives.
SLOW = ("function", "unknown-shape")


def points(dtype):
    """Return vectors of all sizes, rounded to a dtype, as float64."""
    return np.outer(SIZES[dtype], DIRECTION).astype(dtype).astype(float)


def exact(x, kernel):
    """Return the value of a kernel and its derivatives by order; the terms of those that sum."""
    f, first, second = kernel
    size = np.abs(x).max(-1, keepdims=True)
    r = size * np.linalg.norm(x / np.where(size > 0, size, 1), axis=-1, keepdims=True)
    n = x / np.where(r > 0, r, 1)
    product = first(r) * V + second(r) * (n * V).sum(-1, keepdims=True) * x
    return {
        "value": f(np, r)[:, 0],
        "reverse": first(r) * x,
        "forward": first(r) * x * V,
        **dict.fromkeys(("rev-rev", "fwd-rev", "rev-fwd"), product),
        "fwd-fwd": product * U,
    }


def assert_near(found, x, kernel, dtype):
    """What was found, by order, is what it is in mathematics, as a part of its largest entry."""
    wanted = exact(x, kernel)
    for order, result in found.items():
        got = to_numpy(result[0] if isinstance(result, (tuple, list)) else result).astype(float)
        right = wanted[order]
        # What is smaller has not all its digits in float32.
        least = 1e-36 if dtype == "float32" else 1e-320
        size = np.maximum(np.abs(right).max(tuple(range(1, right.ndim)), keepdims=True), least)
        if got.ndim < right.ndim:
            right, size = right.sum(-1), size[:, 0]
        error = np.abs(got - right) / size
        assert error.max() <= RTOL[dtype], (order, error)


def matern(xp):
    """Return the kernel whose expansion has a third power: of the length, not of its square."""
    return lambda r: KERNELS[0][0](xp, r)


def pytest_generate_tests(metafunc):
    """Run in each mode of each framework."""
    if "way" in metafunc.fixturenames:
        ways = [
            (name, mode, dtype)
            for name, modes in MODES.items()
            for mode in modes
            for dtype in RTOL
            if EXHAUSTIVE or mode == BOTH[name] or (dtype == "float64" and mode not in SLOW)
        ]
        metafunc.parametrize("way", ways, ids="-".join)


def test_all_derivatives_are_exact(way):
    """Value, gradient and Hessian of Matern 3/2 are exact from 0 on, in all compositions."""
    framework, mode, dtype = way
    xp, x = load(framework).xp, points(dtype)
    arrays = [
        [asarray(framework, np.broadcast_to(a, x.shape), dtype)] for a in (x, V.copy(), U.copy())
    ]

    found = derivatives_in(
        mode,
        framework,
        lambda x: so.radial(matern(xp), x),
        lambda out: out,
        *arrays,
    )

    assert_near(found, x, KERNELS[0], dtype)


@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("number", range(4))
def test_each_kernel(number, dtype, autodiff_framework):
    """Value, gradient and Hessian are those of the kernel, at 0, beside it and far from it."""
    backend, kernel, x = load(autodiff_framework), KERNELS[number], points(dtype)
    array = asarray(autodiff_framework, x, dtype)
    v = asarray(autodiff_framework, np.broadcast_to(V, x.shape), dtype)

    def f(x):
        return so.radial(lambda r: kernel[0](backend.xp, r), x)

    def gradient(x):
        return backend.grad(lambda x: backend.xp.sum(f(x)))(x)[0]

    found = {"value": f(array), "reverse": gradient(array)}
    found["fwd-rev"] = backend.jvp(gradient)((array,), (v,))
    assert_near(found, x, kernel, dtype)


def test_a_wrong_derivative_is_found():
    """The comparison fails for a derivative that has an error of 1e-4."""
    x = points("float64")
    right = exact(x, KERNELS[0])

    with pytest.raises(AssertionError):
        assert_near({"reverse": 1.0001 * right["reverse"]}, x, KERNELS[0], "float64")


# What people write.


def hessian(backend, f, x):
    """Return the Hessian at a point."""
    columns = [
        backend.jvp(lambda x: backend.grad(f)(x)[0])((x,), (asarray(backend.name, e),))
        for e in np.eye(x.shape[-1])
    ]
    return np.stack([to_numpy(column) for column in columns])


def test_the_naive_version_fails(autodiff_framework):
    """Over a root of the sum of squares, the gradient at 0 is not finite."""
    backend = load(autodiff_framework)
    xp, zero = backend.xp, asarray(autodiff_framework, np.zeros(3))

    naive = backend.grad(lambda x: SPECS[0].naive(xp, matern(xp), x))(zero)[0]
    ours = backend.grad(lambda x: so.radial(matern(xp), x))(zero)[0]

    assert not np.isfinite(to_numpy(naive)).all()
    np.testing.assert_array_equal(to_numpy(ours), 0)


@pytest.mark.parametrize("size", [0.0, 1e-9])
def test_a_safe_norm_has_another_hessian(size, autodiff_framework):
    """Over `safe_norm` the Hessian at 0 is 0, finite and wrong; beside 0 it has lost its digits."""
    backend = load(autodiff_framework)
    x = asarray(autodiff_framework, size * DIRECTION)
    kernel = matern(backend.xp)

    plain = hessian(backend, lambda x: kernel(so.safe_norm(x, axis=-1)), x)
    ours = hessian(backend, lambda x: so.radial(kernel, x), x)

    np.testing.assert_allclose(ours, -3 * np.eye(3), rtol=1e-8, atol=1e-8)
    if size:
        assert np.abs(plain + 3 * np.eye(3)).max() > 1e-8
    else:
        np.testing.assert_array_equal(plain, 0)


# What a function may be.


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e6])
@pytest.mark.parametrize("dtype", RTOL)
def test_any_scale(scale, dtype, autodiff_framework):
    """A kernel may vary over any length, that of a molecule in metres too."""
    backend = load(autodiff_framework)
    scale = float(np.asarray(scale if dtype == "float64" else max(scale, 1e-9), dtype))
    sizes = np.array([0.0, 1e-9, 1e-4, 1e-2, 0.1, 0.5])
    x = (scale * np.outer(sizes, DIRECTION)).astype(dtype)

    def total(x):
        return backend.xp.sum(so.radial(lambda r: matern(backend.xp)(r / scale), x))

    found = to_numpy(backend.grad(total)(asarray(autodiff_framework, x, dtype))[0]) * scale

    x = x.astype(float) / scale
    right = KERNELS[0][1](np.linalg.norm(x, axis=-1, keepdims=True)) * x
    np.testing.assert_allclose(found, right, rtol=RTOL[dtype], atol=0)


def test_parameters_have_gradients(autodiff_framework):
    """What a function closes over has its own gradient, entry by entry, and a mixed one with x."""
    backend = load(autodiff_framework)
    xp = backend.xp
    x = np.outer([0.0, 1e-30, 1e-4, 0.1, 2.0], DIRECTION)
    width = np.array([0.5, 1.0, 2.0, 1.5, 1.0])

    def total(x, width):
        return xp.sum(so.radial(lambda r: xp.exp(-((r / width) ** 2) / 2), x))

    def mixed(x, width):
        return xp.sum(backend.grad(total)(x, width)[0])

    args = asarray(autodiff_framework, x), asarray(autodiff_framework, width)
    slope, cross = backend.grad(total)(*args)[1], backend.grad(mixed)(*args)[1]

    square = (x * x).sum(-1)
    bell = np.exp(-square / width**2 / 2)
    np.testing.assert_allclose(to_numpy(slope), square / width**3 * bell, rtol=1e-10, atol=1e-300)
    right = x.sum(-1) * bell * (2 / width**3 - square / width**5)
    np.testing.assert_allclose(to_numpy(cross), right, rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", ["exp(-r)", "r", "constant", "r * r", "r**4", "r**1.5"])
def test_functions_of_other_kinds(name, autodiff_framework):
    """A function that is not even has the derivatives that it has over `safe_norm`; so has each."""
    backend = load(autodiff_framework)
    xp = backend.xp
    f = {
        "exp(-r)": lambda r: xp.exp(-r),
        "r": lambda r: 1.0 * r,
        "constant": lambda r: 3.0 + 0.0 * r,
        "r * r": lambda r: r * r,
        "r**4": lambda r: r * r * r * r,
        "r**1.5": lambda r: r**1.5,
    }[name]
    x = asarray(autodiff_framework, np.outer([0.0, 1e-9, 1e-4, 0.1, 2.0], DIRECTION))

    def over_norm(x):
        return f(so.safe_norm(x, axis=-1))

    for g in (lambda h: h, lambda h: lambda x: backend.grad(lambda x: xp.sum(h(x)))(x)[0]):
        got, right = (to_numpy(g(h)(x)) for h in (lambda x: so.radial(f, x), over_norm))
        np.testing.assert_allclose(got, right, rtol=1e-12, atol=1e-100)


def test_what_a_polynomial_misses_is_left_to_the_function(autodiff_framework):
    """Where the second derivative is not smooth nearby, value and gradient are those of f."""
    backend = load(autodiff_framework)
    xp = backend.xp

    def bump(r):  # the bump is at 0.01, and not seen from 0
        return xp.exp(-r * r / 2) + xp.exp(-(((r - 0.01) * 1e3) ** 2))

    x = asarray(autodiff_framework, np.outer([0.0, 1e-4, 0.009, 0.01, 0.012, 0.1], DIRECTION))
    for f in (bump, lambda r: xp.where(r < 0.01, xp.exp(-r * r), 2.0 + r)):
        got, right = (
            to_numpy(backend.grad(lambda x, h=h: xp.sum(h(x)))(x)[0])
            for h in (
                lambda x, f=f: so.radial(f, x),
                lambda x, f=f: f(so.safe_norm(x, axis=-1)),
            )
        )
        np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-12)


# Values, dtypes, shapes, errors.


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_values_everywhere(dtype, framework):
    """Values are those of the function, in the dtype of x, which it gets; NaN stays, alone."""
    if dtype in ("float16", "bfloat16") and framework in ("numpy", "array-api-strict"):
        pytest.skip("has no such dtype in the standard")
    x = asarray(framework, [[0.0, 0.0], [3.0, 4.0], [1e-3, 0.0], [math.nan, 1.0]], dtype)
    xp = backend_of(x).xp

    value = so.radial(lambda r: (1 + r) * xp.exp(-r), x)

    assert dtype_name(value.dtype) == dtype
    rtol = {"float64": 1e-15, "float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
    right = [(1 + r) * math.exp(-r) for r in (0.0, 5.0, 1e-3, math.nan)]
    np.testing.assert_allclose(to_numpy(value).astype(float), right, rtol=rtol)


def test_axes(framework):
    """A slice is along any axis, or all; the norm comes without it."""
    x = asarray(framework, np.ones((2, 3, 4)))
    shapes = []

    def f(r):
        shapes.append(tuple(r.shape))
        return r * r

    assert so.radial(f, x).shape == (2, 3)
    assert so.radial(f, x, axis=0).shape == (3, 4)
    assert so.radial(f, x, axis=(0, 2)).shape == (3,)
    assert float(so.radial(f, x, axis=None)) == pytest.approx(24)
    assert {(2, 3), (3, 4), (3,), ()} <= set(shapes)


def test_an_array_in_place_of_the_function(framework):
    """What is no function is an error that says so."""
    x = asarray(framework, [1.0, 2.0])

    with pytest.raises(TypeError, match=r"^radial: expected a function as f, got "):
        so.radial(x, x)
    with pytest.raises(TypeError, match=r"^radial: .*got list as x; pass .*\(x\)$"):
        so.radial(abs, [1.0])


def test_functions_that_are_not_elementwise(framework):
    """What does not keep the shape is an error: a sum, a new axis, a tuple, a number."""
    x = asarray(framework, [[0.0, 0.0], [3.0, 4.0]])
    xp = backend_of(x).xp
    two = asarray(framework, [1.0, 2.0])

    with pytest.raises(ValueError, match=r"^radial: .* elementwise function as f, got .*\(\) of"):
        so.radial(lambda r: xp.sum(r * r), x)
    with pytest.raises(ValueError, match=r"^radial: .* makes \(2, 2\) of the shape \(2,\); give"):
        so.radial(lambda r: xp.expand_dims(r * r, axis=-1) * two, x)
    for f in (lambda r: (r, r), lambda _: 1.0):
        with pytest.raises(TypeError, match=r"^radial: expected a function that returns one array"):
            so.radial(f, x)
    assert so.radial(lambda r: r * r * two, xp.expand_dims(x, axis=-2)).shape == (2, 2)


def test_a_number_is_no_vector(framework):
    """A number has no axis: an error, but for `axis=None`, which takes its absolute value."""
    x = asarray(framework, -2.0)

    with pytest.raises(AxisError, match=r"^radial: .* with 0 axes, got axis=-1$"):
        so.radial(lambda r: r * r, x)
    assert float(so.radial(lambda r: 3 * r, x, axis=None)) == pytest.approx(6)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
def test_nan_detectors_stay_silent(autodiff_framework):
    """Neither the value nor a derivative makes a NaN on the way, at 0 or far out."""
    backend = load(autodiff_framework)
    xp = backend.xp
    x = asarray(autodiff_framework, np.outer([0.0, 1e-300, 1e-4, 1.0, 1e200], DIRECTION))

    with backend.nan_detector():
        slope = backend.grad(
            lambda x: xp.sum(
                so.radial(lambda r: 1 / (1 + r), x) + so.radial(matern(xp), x[:4, :])[0]
            )
        )(x)[0]

    assert np.isfinite(to_numpy(slope)).all()


@pytest.mark.only("torch")
def test_without_gradients():
    """The value is there where PyTorch records nothing."""
    import torch

    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert so.radial(lambda r: r * r, x).tolist() == pytest.approx([0.0, 25.0])


def test_slopes_of_a_power_series_have_all_digits(autodiff_framework):
    """In float64 the polynomial near 0 is as exact as the function itself."""
    backend, r = load(autodiff_framework), np.geomspace(1e-3, 0.1, 60)[:, None]

    def total(x):
        return backend.xp.sum(so.radial(lambda r: 1 / (1 + r * r), x))

    (found,) = backend.grad(total)(asarray(autodiff_framework, r))

    np.testing.assert_allclose(to_numpy(found), -2 * r / (1 + r * r) ** 2, rtol=1e-14)
