"""A training step of one's own, for a model of Keras on each of its backends."""

from importlib import import_module

import keras


def of_tensorflow(loss):
    """Return a `train_step` without metrics."""
    tf = import_module("tensorflow")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            value = keras.ops.mean(loss(y, self(x, training=True)))
        slopes = tape.gradient(value, self.trainable_variables)
        self.optimizer.apply_gradients(zip(slopes, self.trainable_variables, strict=True))
        return {"loss": value}

    return train_step


def of_torch(loss):
    """Return a `train_step` without metrics."""
    torch = import_module("torch")

    def train_step(self, data):
        x, y = data
        self.zero_grad()
        value = keras.ops.mean(loss(y, self(x, training=True)))
        value.backward()
        with torch.no_grad():
            variables = self.trainable_variables
            self.optimizer.apply([v.value.grad for v in variables], variables)
        return {"loss": value}

    return train_step


def of_jax(loss):
    """Return a `train_step` without metrics."""
    jax = import_module("jax")

    def train_step(self, state, data):
        trainable, others, optimizer, metrics = state
        x, y = data

        def mean(trainable):
            found, updated = self.stateless_call(trainable, others, x, training=True)
            return keras.ops.mean(loss(y, found)), updated

        (value, others), slopes = jax.value_and_grad(mean, has_aux=True)(trainable)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, slopes, trainable)
        return {"loss": value}, (trainable, others, optimizer, metrics)

    return train_step


def own_step(loss):
    """Return a `train_step` for the backend of Keras."""
    steps = {"jax": of_jax, "tensorflow": of_tensorflow, "torch": of_torch}
    return steps[keras.config.backend()](loss)
