"""
What special functions cost beside the frameworks' own: ``python benchmarks/special.py``.

Prints a Markdown table of 10,000 numbers in float32: for each function and framework, the processor
time of safeops over that of the framework's own function, of the value and of value and gradient.
They take turns in one process, on one thread. PyTorch is eager, JAX and TensorFlow are compiled.
"""

import timing  # first: it sets the number of threads
import numpy as np
import ops
from plain import plain

import safeops as so
from safeops._dispatch import backend_of

SIZE, PAIRS = 10_000, 15
MODES = {"numpy": "eager", "torch": "eager", "jax": "jit", "tensorflow": "function"}
LINES = {
    "log_ndtr": (-8, 8),
    "safe_ndtri": (0.001, 0.999),
    "safe_erfinv": (-0.999, 0.999),
    "safe_lgamma": (0.1, 30),
    "safe_digamma": (0.1, 30),
    "safe_gammainc": (0.1, 30),
    "safe_gammaincc": (0.1, 30),
}
SHAPES = {"safe_gammainc": "gammainc", "safe_gammaincc": "gammaincc"}  # functions of a, too


def of_shape(f, shape):
    """Return a function of x alone."""
    return lambda x: f(shape, x)


def pair(name, framework, asarray):
    """Return our function and the framework's own."""
    if name not in SHAPES:
        return getattr(so, name), plain(framework, name)
    shape = asarray(np.random.default_rng(1).uniform(0.5, 20, SIZE).astype(np.float32))
    own = backend_of(shape).special(SHAPES[name])
    return of_shape(getattr(so, name), shape), of_shape(own, shape)


def cell(name, framework, world, *, slopes):
    """Return a ratio with its quartiles, or why there is none."""
    _, asarray, modes, gradient = world
    if slopes and gradient is None:
        return ""
    x = np.random.default_rng(0).uniform(*LINES[name], SIZE).astype(np.float32)
    calls = []
    for f in pair(name, framework, asarray):
        run = modes[MODES[framework]](f)
        args = [asarray(x)]
        calls.append(gradient(run, args, 1) if slopes else waiting(run, args[0]))
    try:
        calls[1]()
    except (NotImplementedError, LookupError, RuntimeError):
        return "has no gradient"
    found, control = timing.compare(*calls, PAIRS)
    return f"{found.ratio:.2f} ({found.low:.2f} to {found.high:.2f}; A/A {control.ratio:.2f})"


def waiting(f, x):
    """Return a call that ends when its result is there; that of JAX says when."""

    def call():
        value = f(x)
        if hasattr(value, "block_until_ready"):
            value.block_until_ready()

    return call


def main():
    """Print the table."""
    print("| function | framework | value | value and gradient |")
    print("| --- | --- | --- | --- |")
    for framework, mode in MODES.items():
        world = ops.SET_UP[framework]()
        for name in LINES:
            cells = (cell(name, framework, world, slopes=slopes) for slopes in (False, True))
            print(f"| {name} | {framework}, {mode} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
