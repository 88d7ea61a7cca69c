"""
What an explanation costs on JAX or TensorFlow: ``python benchmarks explain_traced jax [--quick]``.

For each program, the time of `explain` with its text, divided by the time of value and gradient by
the framework itself, eager and compiled: the median of pairs that take turns in one process, with
quartiles. A row "A/A" compares the eager ones with themselves. The last three programs are not
finite. `explain.py` measures PyTorch.
"""

import time
from functools import partial
from statistics import quantiles

import numpy as np
from options import parsed

N, D = 256, 512
NUMBERS = np.random.default_rng(0)
ROWS = NUMBERS.normal(size=(N, D)).astype(np.float32)
BAD = np.where(np.arange(N)[:, None] < N // 2, ROWS, np.float32("nan"))
WEIGHTS = (NUMBERS.normal(size=(3, D, D)) / D**0.5).astype(np.float32)
ZEROS = np.maximum(ROWS, 0)
STEPS = ZEROS[0, :20]


def mlp(xp, w, rows):
    """Run three layers; the second half of the rows is not used."""
    x = xp.asarray(rows)
    for i in range(3):
        x = xp.sin(x @ w[i])
    return xp.sum(x[: N // 2])


def chain(xp, x):
    """Run twenty elementwise operations, five of them selections."""
    for _ in range(5):
        x = xp.where(x > 0, xp.log1p(xp.abs(x)), xp.sin(x)) * 1.5
    return xp.sum(x)


def roots(xp, x):
    """Run ten elementwise operations, five of which have an infinite slope that is not used."""
    for _ in range(5):
        x = xp.where(x > 0, xp.sqrt(x), x)
    return xp.sum(x)


# A function, and its arguments.
PROGRAMS = {
    "MLP": (partial(mlp, rows=ROWS), WEIGHTS),
    "elementwise chain": (chain, ROWS),
    "tiny elementwise chain": (chain, ROWS[0, :10]),
    "MLP, NaN rows": (partial(mlp, rows=BAD), WEIGHTS),
    "chain of roots at 0": (roots, ZEROS),
    "loop of roots at 0": (None, STEPS),  # by the framework
}


def of_jax():
    """Return the array, the namespace, a loop, the ways to a gradient, and `explain`."""
    import jax
    import jax.numpy as jnp

    from safeops.autodiff.jax import explain

    def loop(_, x):
        def step(total, r):
            return total + jnp.where(r > 0, jnp.sqrt(r), 0.0), None

        return jax.lax.scan(step, jnp.float32(0), x)[0]

    def eager(f, x):
        return jax.block_until_ready(jax.value_and_grad(f)(x))

    def compiled(f):
        both = jax.jit(jax.value_and_grad(f))
        return lambda _, x: jax.block_until_ready(both(x))

    return jnp.asarray, jnp, loop, eager, compiled, explain


def of_tensorflow():
    """Return the same for TensorFlow."""
    import tensorflow as tf

    from safeops._backends import load
    from safeops.autodiff.tensorflow import explain

    def loop(_, x):
        def step(i, total):
            return i + 1, total + tf.where(x[i] > 0, tf.sqrt(x[i]), 0.0)

        return tf.while_loop(lambda i, _: i < len(STEPS), step, (0, 0.0))[1]

    def eager(f, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = f(x)
        return value, tape.gradient(value, x)

    def compiled(f):
        both = tf.function(lambda x: eager(f, x), autograph=False)
        return lambda _, x: both(x)

    return tf.constant, load("tensorflow").xp, loop, eager, compiled, explain


def seconds(way, f, x):
    """Return the time that a way takes."""
    start = time.perf_counter()
    way(f, x)
    return time.perf_counter() - start


def main():
    """Print the table."""
    options = parsed(__doc__, framework={"choices": ["jax", "tensorflow"]})
    array, xp, loop, eager, compiled, explain = globals()[f"of_{options.framework}"]()
    pairs = 4 if options.quick else 16
    print("| program | over | way | run time | quartiles |")
    print("| --- | --- | --- | --- | --- |")
    for name, (program, numbers) in PROGRAMS.items():
        f, x = partial(program or loop, xp), array(numbers)
        explained = lambda f, x: str(explain(f, x))  # noqa: E731
        quick = compiled(f)
        for over, base, way, run in (
            ("eager", eager, "A/A", eager),
            ("eager", eager, "explain", explained),
            ("compiled", quick, "explain", explained),
        ):
            seconds(run, f, x), seconds(base, f, x)
            ratios = [seconds(run, f, x) / seconds(base, f, x) for _ in range(pairs)]
            low, middle, high = quantiles(ratios, n=4)
            print(f"| {name} | {over} | {way} | {middle:.2f} | {low:.2f} to {high:.2f} |")


if __name__ == "__main__":
    main()
