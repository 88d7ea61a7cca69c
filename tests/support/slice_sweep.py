"""Slices over all exponents: entries, ways to differentiate and what is swept."""

import numpy as np

from derivatives import MODES, tools
from exponents import EXHAUSTIVE, FORMATS
from frameworks import asarray, to_numpy
from safeops._backends import load

PATTERNS = ((1.0, -0.7, 0.02, 1e-5), (0.3, 0.3, -1.0, 0.0), (1.0, 0.0, 0.0, 0.0))
ALONG = (0.5, 1.0, -0.25, 2.0)  # the direction of tangents
MODES_HERE = {
    "torch": ("autograd", "func", "compile"),
    "jax": ("eager", "jit"),
    "tensorflow": ("eager", "function", "xla"),
}


DTYPES = ("float16", "bfloat16", "float32", "float64")
SWEPT = DTYPES if EXHAUSTIVE else ("float32",)  # in all modes, and in both orders


def pytest_generate_tests(metafunc):
    """Run a test in each mode of each framework that has other kernels."""
    if "way" in metafunc.fixturenames:
        ways = [(name, mode) for name, modes in MODES_HERE.items() for mode in modes]
        assert all(mode in MODES[name] for name, mode in ways)
        metafunc.parametrize("way", ways, ids="-".join)


def scales(dtype):
    """Return powers of two of all exponents of normal numbers; of float64 every eighth."""
    form = FORMATS[dtype]
    step = 8 if dtype == "float64" and not EXHAUSTIVE else 1
    return np.ldexp(1.0, np.arange(form.least, form.most + 1, step))


def derivatives_of(op, x, dtype, way, *, second):
    """Return gradient, tangent and, if asked for, the Hessian times the direction by its orders."""
    framework, mode = way
    around, within, grad, jvp = tools(framework, mode)
    xp, f = load(framework).xp, within(op)
    direction = asarray(framework, np.broadcast_to(ALONG, x.shape), dtype)

    def gradient(x):
        return grad(lambda x: xp.sum(f(x)))(x)[0]

    def compute(x, v):
        found = {"reverse": gradient(x), "forward": jvp(f)((x,), (v,))}
        if second:
            found["rev-rev"] = grad(lambda x: xp.sum(gradient(x) * v))(x)[0]
            found["fwd-rev"] = jvp(gradient)((x,), (v,))
        return found

    found = around(compute)(asarray(framework, x, dtype), direction)
    return {order: to_numpy(y).astype(float) for order, y in found.items()}
