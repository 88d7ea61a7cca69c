"""
What masked autodiff costs on TensorFlow: ``python benchmarks/autodiff_tensorflow.py [--quick]``.

For each program, the time of a gradient in a `tf.function` by safeops, divided by the time of one
by `tf.GradientTape`: the median of pairs that take turns in one process, with quartiles. A row
"A/A" compares TensorFlow with itself.
"""

from statistics import geometric_mean

import timing  # first: it sets the number of threads
import tensorflow as tf
from options import parsed

from safeops.autodiff import tensorflow as masked

N, D = 256, 512
tf.random.set_seed(0)
X = tf.random.normal([N, D])
BAD = tf.concat([X[: N // 2], tf.fill([N // 2, D], float("nan"))], 0)
WEIGHTS = tf.random.normal([3, D, D]) / D**0.5


def mlp(w, x, activation):
    """Run three layers."""
    for layer in tf.unstack(w):
        x = activation(tf.matmul(x, layer))
    return x


def chain(w, x):
    """Run twenty elementwise operations, five of them selections."""
    x = x * w[0, 0]
    for _ in range(5):
        x = tf.where(x > 0, tf.math.log1p(tf.abs(x)), tf.sin(x)) * 1.5
    return x


PROGRAMS = {
    "MLP, tanh": lambda w: tf.reduce_sum(mlp(w, X, tf.tanh)),
    "MLP, relu": lambda w: tf.reduce_sum(mlp(w, X, tf.nn.relu)),
    "MLP, NaN rows": lambda w: tf.reduce_sum(mlp(w, BAD, tf.tanh)[: N // 2]),
    "elementwise chain": lambda w: tf.reduce_sum(chain(w, X)),
}


def plain(f):
    """Return the gradient by TensorFlow's own tape."""

    def gradient(w):
        with tf.GradientTape() as tape:
            tape.watch(w)
            value = f(w)
        return tape.gradient(value, w)

    return tf.function(gradient)


WAYS = {
    "A/A": plain,
    "default": lambda f: tf.function(masked.grad(f)),
    "lazy": lambda f: tf.function(masked.grad(f, lazy=True)),
}


def ready(gradient):
    """Return a call that waits for the result."""
    return lambda: gradient(WEIGHTS).numpy()


def main():
    """Print the table."""
    pairs = 20 if parsed(__doc__).quick else 100
    print("| program | way | run time | quartiles |")
    print("| --- | --- | --- | --- |")
    means = {way: [] for way in WAYS}
    for name, f in PROGRAMS.items():
        base = plain(f)
        for way, transform in WAYS.items():
            result, _ = timing.compare(ready(transform(f)), ready(base), pairs)
            means[way].append(result.ratio)
            print(f"| {name} | {way} | {result.ratio:.2f} | {result} |")
    for way, ratios in means.items():
        print(f"| geometric mean | {way} | {geometric_mean(ratios):.2f} | |")


if __name__ == "__main__":
    main()
