"""Gradients of functions of whole arrays, in each mode of a framework."""

from derivatives import MODES, tools
from frameworks import asarray, to_numpy
from safeops._backends import load


def pytest_generate_tests(metafunc, without=("vmap",)):
    """Run a test in each mode of each framework that takes whole arrays."""
    if "way" in metafunc.fixturenames:
        ways = [
            (name, mode) for name, modes in MODES.items() for mode in modes if mode not in without
        ]
        metafunc.parametrize("way", ways, ids="-".join)


def gradient_in(way, f, x, dtype="float64"):
    """Return the gradient of the sum of a function in a mode."""
    framework, mode = way
    around, within, grad, _ = tools(framework, mode)

    def gradient(x):
        return grad(lambda x: load(framework).xp.sum(within(f)(x)))(x)[0]

    return to_numpy(around(gradient)(asarray(framework, x, dtype)))
