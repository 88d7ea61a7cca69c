"""
What other guards cost per step: ``python benchmarks/guard_keras.py tensorflow [--quick]``.

Or jax, or torch. A row each for the callback of Keras on that backend, and for the gradient that is
guarded in a loop of one's own; for PyTorch for the diary; for JAX and TensorFlow for the context
that watches the gradients of a script. A step of Keras is that of `fit`, with
Adam. The median of pairs that take turns in one process, on one thread, with quartiles, guarded
over plain. A row "A/A" holds the plain step against itself.
"""

import os
import tempfile
from contextlib import ExitStack, nullcontext
from functools import partial
from importlib import import_module
from itertools import repeat
from pathlib import Path

from timing import compare
from options import parsed

OPTIONS = parsed(__doc__, backend={"choices": ["jax", "tensorflow", "torch"]})
BACKEND, OURS = OPTIONS.backend, "safeops.autodiff"
os.environ["KERAS_BACKEND"] = BACKEND

import keras  # noqa: E402  (it reads the name of its backend)
import numpy as np  # noqa: E402

from safeops.integrations.keras import GuardCallback  # noqa: E402

X = np.random.default_rng(0).normal(size=(8, 64, 128)).astype("float32")


def encoder():
    """Return an encoder of 4 layers of 128 units, as the other guards are measured with."""
    keras.utils.set_random_seed(0)
    inputs = x = keras.Input(X.shape[1:])
    for _ in range(4):
        x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(4, 32)(x, x))
        inner = keras.layers.Dense(128)(keras.layers.Dense(512, "relu")(x))
        x = keras.layers.LayerNormalization()(x + inner)
    model = keras.Model(inputs, x)
    model.compile(keras.optimizers.Adam(1e-4), "mse")
    model.optimizer.build(model.trainable_variables)
    model.train_on_batch(X, X)
    return model


def step_of_keras(*, guarded):
    """Return a step of `fit`."""
    model = encoder()
    if guarded:
        callback = GuardCallback()
        callback.set_model(model)
        callback.on_train_begin()
    if BACKEND == "torch":
        torch = import_module("torch")
        torch.set_num_threads(1)
        return partial(model.train_function, [(torch.from_numpy(X), torch.from_numpy(X))])
    if BACKEND == "tensorflow":
        tf = import_module("tensorflow")
        batches = iter(tf.data.Dataset.from_tensors((X, X)).repeat())
        return lambda: {k: float(v) for k, v in model.train_function(batches).items()}
    groups = (model.trainable_variables, model.non_trainable_variables)
    groups += (model.optimizer.variables, model.metrics_variables)
    state = tuple([v.value for v in group] for group in groups)
    jax = import_module("jax")
    data = repeat((jax.numpy.asarray(X), jax.numpy.asarray(X)))

    def step():
        nonlocal state
        _, state = model.train_function(state, data)
        jax.block_until_ready(state)

    return step


def gradients():
    """Return a guarded and a plain gradient, or a step with and without a diary."""
    model = encoder()
    if BACKEND == "torch":
        torch = import_module("torch")
        watch_backward = import_module("safeops.autodiff.torch").watch_backward
        x, file = torch.from_numpy(X), Path(tempfile.mkdtemp()) / "diary.csv"
        named = [(v.path, v.value) for v in model.trainable_variables]

        def written(*, diary):
            about = watch_backward(print, record=file, parameters=named)
            with about if diary else nullcontext():
                model.zero_grad()
                model(x).square().mean().backward()

        return partial(written, diary=True), partial(written, diary=False)
    guards = import_module(f"safeops.integrations.{BACKEND}")
    if BACKEND == "tensorflow":
        tf = import_module("tensorflow")
        x, variables = tf.constant(X), [v.value for v in model.trainable_variables]

        def loss(x):
            return tf.reduce_mean(tf.square(model(x)))

        @tf.function(autograph=False)
        def plain(x):
            with tf.GradientTape() as tape:
                value = loss(x)
            return value, tape.gradient(value, variables)

        return partial(guards.value_and_grad(loss, variables), x), partial(plain, x)
    jax = import_module("jax")
    weights, x = [v.value for v in model.trainable_variables], jax.numpy.asarray(X)
    others = [v.value for v in model.non_trainable_variables]

    def loss_of(weights, x):
        return (model.stateless_call(weights, others, x)[0] ** 2).mean()

    plain = jax.jit(jax.value_and_grad(loss_of))
    ours = guards.value_and_grad(loss_of)
    return tuple(lambda f=f: jax.block_until_ready(f(weights, x)) for f in (ours, plain))


def watched_by_tensorflow(context):
    """Return gradients by tapes that a context watches, and by tapes made before it."""
    tf, watch_tape = import_module("tensorflow"), import_module(f"{OURS}.tensorflow").watch_tape
    model, x, ordinary = encoder(), tf.constant(X), tf.GradientTape
    variables = [v.value for v in model.trainable_variables]

    def gradient(tape_of):
        with tape_of() as tape:
            value = tf.reduce_mean(tf.square(model(x)))
        return tape.gradient(value, variables)

    def compiled(tape_of):
        return tf.function(partial(gradient, tape_of), autograph=False)

    plain = compiled(ordinary)
    plain()
    context.enter_context(watch_tape(print))
    ours = compiled(tf.GradientTape)
    return {
        "watch_tape, eager": (partial(gradient, tf.GradientTape), partial(gradient, ordinary)),
        "watch_tape, tf.function": (ours, plain),
    }


def watched_by_jax(context):
    """Return a compiled gradient that a context watches, and one made before it."""
    jax, watch_grad = import_module("jax"), import_module(f"{OURS}.jax").watch_grad
    model, x = encoder(), import_module("jax.numpy").asarray(X)
    weights = [v.value for v in model.trainable_variables]
    others = [v.value for v in model.non_trainable_variables]

    def compiled():
        def loss_of(weights, x):
            return (model.stateless_call(weights, others, x)[0] ** 2).mean()

        both = jax.jit(jax.value_and_grad(loss_of))
        return lambda: jax.block_until_ready(both(weights, x))

    plain = compiled()
    plain()
    context.enter_context(watch_grad(print))
    return {"watch_grad, jax.jit": (compiled(), plain)}


def main():
    """Print the rows."""
    pairs = 15 if OPTIONS.quick else 60
    rows = {
        "fit of Keras": (step_of_keras(guarded=True), step_of_keras(guarded=False)),
        "diary" if BACKEND == "torch" else "value_and_grad": gradients(),
    }
    context = ExitStack()
    if BACKEND != "torch":
        rows |= {"tensorflow": watched_by_tensorflow, "jax": watched_by_jax}[BACKEND](context)
    print("| step | guarded / plain | quartiles | A/A |")
    print("| --- | --- | --- | --- |")
    with context:
        for name, pair in rows.items():
            found, control = compare(*pair, pairs)
            print(f"| {name}, {BACKEND} | {found.ratio:.3f} | {found} | {control.ratio:.3f} |")


if __name__ == "__main__":
    main()
