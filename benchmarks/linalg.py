"""
What functions of matrices cost beside plain ones: ``python benchmarks/linalg.py``.

Prints, for each installed framework and size, the time of `sqrtm_psd` divided by the time of a
square root by the framework's own `eigh`: forward, with a gradient, and with a gradient of a
gradient; beside each ratio the control, that of the plain root to itself. The matrices have no
equal eigenvalues: with equal ones the plain root has no gradient.

``tensorflow-xla`` compiles by XLA what ``tensorflow`` runs as a graph.
"""

from functools import partial
from importlib.util import find_spec

import timing  # first: it sets the number of threads
import numpy as np
from options import parsed

from safeops import linalg
from safeops._backends import load

SHAPES = ((256, 3, 3), (64, 8, 8), (100, 100), (300, 300))
FRAMEWORKS = ("torch", "jax", "tensorflow", "tensorflow-xla")
ROUNDS = 7


def array_of(framework, shape):
    """Return positive definite matrices."""
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    values = x @ np.swapaxes(x, -1, -2) / shape[-1] + np.eye(shape[-1], dtype=np.float32)
    return load(framework).xp.asarray(values) if framework != "torch" else of_torch(values)


def of_torch(values):
    """Return a tensor."""
    import torch

    return torch.as_tensor(values)


def plain(xp, a):
    """Return the square root by eigenvectors, as people write it."""
    values, vectors = xp.linalg.eigh(a)
    return xp.matmul(vectors * xp.sqrt(values)[..., None, :], xp.matrix_transpose(vectors))


def levels(framework, f):
    """Return a function, its gradient, and the gradient of that along a direction."""
    backend = load(framework)
    xp = backend.xp

    def slope(a):
        return backend.grad(lambda a: xp.sum(f(a)))(a)[0]

    second = lambda a: backend.grad(lambda a: xp.sum(a * slope(a)))(a)[0]  # noqa: E731  (a row)
    return {"forward": f, "gradient": slope, "second order": second}


def compiled(way, f):
    """Return a function as it is run: as a program, but for PyTorch."""
    if way == "jax":
        import jax

        program = jax.jit(f)
        return lambda a: program(a).block_until_ready()
    if way != "torch":
        import tensorflow as tf

        return tf.function(f, jit_compile=way == "tensorflow-xla")
    return f


def main():
    """Print the table."""
    ways = parsed(__doc__, quick=False, way={"nargs": "*", "default": FRAMEWORKS}).way
    ways = [way for way in ways if find_spec(way.partition("-")[0])]
    print(
        "| framework | shape | forward | gradient | second order |\n| --- | --- | --- | --- | --- |"
    )
    for way in ways:
        framework = way.partition("-")[0]
        xp = load(framework).xp
        ours, theirs = (levels(framework, f) for f in (linalg.sqrtm_psd, partial(plain, xp)))
        for shape in SHAPES:
            a = array_of(framework, shape)
            cells = []
            for level, f in ours.items():
                both = [partial(compiled(way, g), a) for g in (f, theirs[level])]
                found, control = timing.compare(*both, ROUNDS)
                cells.append(f"{found.ratio:.2f} ({control.ratio:.2f})")
            print(f"| {way} | {shape} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
