"""Masked autodiff through functions of matrices: each matrix of a batch is by itself."""

from functools import partial
from importlib import import_module

import numpy as np
import pytest

from frameworks import asarray, to_numpy
from safeops import linalg
from safeops._backends import load

READ = np.array([[2.0, 0.5], [0.5, 1.0]])
# What is not read: its root has no derivative at the zeros, or it is NaN, or has a tie.
UNREAD = {
    "zeros": np.zeros((2, 2)),
    "a tie": np.array([[1.0, 0.0], [0.0, 1.0]]),
    "NaN": np.full((2, 2), np.nan),
}
FUNCTIONS = {
    "spectral_function": lambda xp, a: linalg.spectral_function(
        a, xp.exp, derivatives=(xp.exp, xp.exp)
    ),
    "powm_psd": lambda _, a: linalg.powm_psd(a, 1.5),
    "polar, proper": lambda _, a: linalg.polar(a, proper=True),
}
FUNCTIONS |= {
    name: lambda _, a, name=name: getattr(linalg, name)(a)
    for name in linalg.__all__
    if name not in FUNCTIONS
}


def total(xp, results):
    """Return a number that depends on all entries of the first matrix, or on its numbers."""
    parts = [x[0, ...] for x in (results if isinstance(results, tuple) else [results])]
    ramps = [xp.cumulative_sum(xp.ones_like(xp.reshape(x, (-1,)))) for x in parts]
    return sum(
        xp.sum(ramp * xp.reshape(x, (-1,)) ** 2) for ramp, x in zip(ramps, parts, strict=True)
    )


def masked_gradient(framework, loss, *matrices):
    """Return the masked gradient of a loss of a batch of matrices, and its mask."""
    masked = import_module(f"safeops.autodiff.{framework}")
    a = asarray(framework, np.stack(matrices))
    if framework == "torch":
        a.requires_grad_()
        (slope,), (mask,) = masked.grad(loss(a), [a], return_mask=True, on_unknown="error")
    else:
        slope, mask = masked.grad(loss, return_mask=True, on_unknown="error")(a)
    return to_numpy(slope), to_numpy(mask)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_matrix_that_is_not_read_is_absent(name, autodiff_framework):
    """Its gradient is 0 and masked, behind a root without a derivative too; plain, it is NaN."""
    backend = load(autodiff_framework)
    xp = backend.xp

    def loss(a):
        return total(xp, FUNCTIONS[name](xp, xp.sqrt(a)))

    wanted, _ = masked_gradient(autodiff_framework, loss, READ**2)
    slope, mask = masked_gradient(autodiff_framework, loss, READ**2, *UNREAD.values())
    ordinary = backend.grad(loss)(asarray(autodiff_framework, np.stack([READ**2, UNREAD["zeros"]])))

    assert np.isfinite(wanted).all()
    np.testing.assert_allclose(slope[0], wanted[0], rtol=1e-12)
    np.testing.assert_array_equal(slope[1:], 0)
    assert mask[0].all()
    assert not mask[1:].any()
    if autodiff_framework != "tensorflow":  # whose own root has the slope 0 there
        assert np.isnan(to_numpy(ordinary[0])[1]).all()


# The frameworks' own functions: where they stand, and the arguments that differ.
MODULES = {
    "torch": ("torch.linalg", "torch.linalg"),
    "jax": ("jax.numpy.linalg", "jax.scipy.linalg"),
    "tensorflow": ("tensorflow.linalg", "tensorflow.linalg"),
}
THIN = {"torch": {"full_matrices": False}, "jax": {"full_matrices": False}, "tensorflow": {}}
TRIANGULAR = {
    "torch": ("solve_triangular", {"upper": False}),
    "jax": ("solve_triangular", {"lower": True}),
    "tensorflow": ("triangular_solve", {}),
}
OF_ONE = ("eigh", "eigvalsh", "svd", "cholesky", "qr", "det", "slogdet")
PLAIN = (*OF_ONE, "solve", "solve, right side", "triangular", "triangular, right side")


def plain_of(name, framework):
    """Return a function of the framework, of a matrix or of the right-hand side of a system."""
    one, two = (module_at(path) for path in MODULES[framework])
    if name in OF_ONE:
        given = THIN[framework] if name == "svd" else {}
        return lambda a: getattr(one, name)(a, **given)
    kind, given = TRIANGULAR[framework] if name.startswith("triangular") else ("solve", {})
    solve = partial(getattr(two, kind), **given)
    fixed = partial(asarray, framework, np.stack([READ, READ]))
    return (lambda b: solve(fixed(), b)) if "right" in name else (lambda a: solve(a, fixed()))


def module_at(path):
    """Return a module, or what a module has, by its path."""
    package, _, name = path.rpartition(".")
    return getattr(import_module(package), name)


@pytest.mark.parametrize("name", PLAIN)
def test_plain_functions_take_each_matrix_by_itself(name, autodiff_framework):
    """
    What the frameworks have leaves out a matrix that is not read, without a warning.

    It is the identity, which has a tie, behind a power without a derivative at its zeros.
    """
    backend = load(autodiff_framework)
    function = plain_of(name, autodiff_framework)

    def loss(a):
        found = function(a**0.5)
        return total(backend.xp, tuple(found) if isinstance(found, (tuple, list)) else found)

    wanted, _ = masked_gradient(autodiff_framework, loss, READ**2, READ**2)
    slope, mask = masked_gradient(autodiff_framework, loss, READ**2, np.eye(2))
    ordinary = backend.grad(loss)(asarray(autodiff_framework, np.stack([READ**2, np.eye(2)])))

    assert np.isfinite(wanted).all()
    np.testing.assert_allclose(slope[0], wanted[0], rtol=1e-12)
    np.testing.assert_array_equal(slope[1], 0)
    assert not mask[1].any()
    assert np.isnan(to_numpy(ordinary[0])[1]).any()
