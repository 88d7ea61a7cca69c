"""
What masked autodiff costs on JAX: ``python benchmarks/autodiff_jax.py [--quick]``.

For each program, ``jit(grad)`` by safeops divided by ``jit(grad)`` by JAX: run time (the median of
pairs that take turns in one process, with quartiles), time to trace and compile, and peak temporary
memory. A row "A/A" compares JAX with itself.
"""

import time
from statistics import geometric_mean

import timing  # first: it sets the number of threads
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from options import parsed

from safeops.autodiff import jax as masked

N, D = 256, 128
NUMBERS = np.random.default_rng(0)
X = jnp.asarray(NUMBERS.normal(size=(N, D)), jnp.float32)
W = jnp.asarray(NUMBERS.normal(size=(4, D, D)) / D**0.5, jnp.float32)
KEEP = jnp.arange(N) < N - 16
IMAGES = jnp.asarray(NUMBERS.normal(size=(16, 8, 32, 32)), jnp.float32)
BATCH = jnp.asarray(NUMBERS.normal(size=(8, 512, 512)), jnp.float32)  # of a real size
WEIGHTS = jnp.asarray(NUMBERS.normal(size=(4, 512, 512)) / 512**0.5, jnp.float32)
KERNELS = jnp.asarray(NUMBERS.normal(size=(2, 8, 8, 3, 3)) / 9, jnp.float32)


def mlp(w, x):
    """Run layers without a selection."""
    for layer in w:
        x = jnp.tanh(x @ layer)
    return x


def attention(w, x, keep=None):
    """Run one head of attention."""
    query, key, value = (x @ w[i] for i in range(3))
    scores = query @ key.T / D**0.5
    if keep is not None:
        scores = jnp.where(keep[None, :], scores, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1) @ value


def chain(w, x):
    """Run twenty elementwise operations, five of them selections."""
    x = x * w[0, 0]
    for _ in range(5):
        x = jnp.where(x > 0, jnp.log1p(jnp.abs(x)), jnp.sin(x)) * 1.5
    return x


def recurrent(w, x):
    """Scan over rows as steps."""

    def step(state, row):
        state = jnp.tanh(state @ w[0] + row)
        return state, state

    return lax.scan(step, jnp.zeros(D), x)[1]


def convolutions(w, x):
    """Run two convolutions with relu."""
    for kernel in w:
        x = jax.nn.relu(lax.conv_general_dilated(x, kernel, (1, 1), "SAME"))
    return x


def layer(w, x):
    """Attend by eight heads to the positions before, and add the result."""

    def heads(matrix):
        return (x @ matrix).reshape(*x.shape[:2], 8, -1).transpose(0, 2, 1, 3)

    query, key, value = map(heads, w[:3])
    scores = query @ key.transpose(0, 1, 3, 2) / 8.0
    scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), scores, -jnp.inf)
    out = jax.nn.softmax(scores, axis=-1) @ value
    return x + jnp.tanh(out.transpose(0, 2, 1, 3).reshape(x.shape) @ w[3])


def used(out):
    """Return the sum over the rows that are kept."""
    return jnp.where(KEEP[:, None], out, 0.0).sum()


PROGRAMS = {
    "MLP": (lambda w, x: mlp(w, x).sum(), (W, X)),
    "MLP, rows masked": (lambda w, x: used(mlp(w, x)), (W, X)),
    "attention": (lambda w, x: attention(w, x).sum(), (W, X)),
    "attention, masked": (lambda w, x: used(attention(w, x, KEEP)), (W, X)),
    "elementwise chain": (lambda w, x: chain(w, x).sum(), (W, X)),
    "RNN, steps masked": (lambda w, x: used(recurrent(w, x)), (W, X)),
    "conv net": (lambda w, x: convolutions(w, x)[:12].sum(), (KERNELS, IMAGES)),
    "layer of length 512": (lambda w, x: layer(w, x)[:7].sum(), (WEIGHTS, BATCH)),
    "per example": (
        lambda w, x: jax.vmap(lambda r: jnp.where(r[0] > 0, mlp(w, r), 0.0).sum())(x).sum(),
        (W, X),
    ),
}
WAYS = {
    "A/A": jax.grad,
    "default": masked.grad,
    "exact": lambda f: masked.grad(f, exact=True),
    "lazy": lambda f: masked.grad(f, lazy=True),
}


def compiled(way, f, args):
    """Return a compiled gradient, the time to trace and compile it, and its temporary memory."""
    start = time.process_time()
    program = jax.jit(way(f)).lower(*args).compile()
    return program, time.process_time() - start, program.memory_analysis().temp_size_in_bytes


def ready(program, args):
    """Return a call that waits for the result."""
    return lambda: jax.block_until_ready(program(*args))


def main():
    """Print the table."""
    pairs = 15 if parsed(__doc__).quick else 60
    print("| program | way | run time | quartiles | compile time | memory |")
    print("| --- | --- | --- | --- | --- | --- |")
    means = {way: [] for way in WAYS}
    for name, (f, args) in PROGRAMS.items():
        base, base_compile, base_memory = compiled(jax.grad, f, args)
        for way, transform in WAYS.items():
            ours, compile_time, memory = compiled(transform, f, args)
            result, _ = timing.compare(ready(ours, args), ready(base, args), pairs)
            means[way].append(result.ratio)
            print(
                f"| {name} | {way} | {result.ratio:.2f} | {result} | "
                f"{compile_time / base_compile:.1f} | {memory / max(base_memory, 1):.2f} |"
            )
    for way, ratios in means.items():
        print(f"| geometric mean | {way} | {geometric_mean(ratios):.2f} | | | |")


if __name__ == "__main__":
    main()
