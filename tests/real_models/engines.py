"""The gradients of a program in each framework, ordinary and masked."""

import re
import warnings
from contextlib import contextmanager
from functools import partial

import numpy as np
from real_models.harness import direction_of, weights_of

from safeops.autodiff._options import UnknownOperationWarning


@contextmanager
def heard():
    """Collect what masked autodiff warns of, by the name of the operation."""
    names = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnknownOperationWarning)
        yield names
    for warning in caught:
        if warning.category is UnknownOperationWarning:
            name = operation_in(str(warning.message))
            names += [name] * (name not in names)
        else:
            place = warning.filename, warning.lineno
            warnings.warn_explicit(warning.message, warning.category, *place)


def operation_in(message):
    """Return the operation that a warning names."""
    found = re.search(r"no rule for (\S+?)[,:;.]?(\s|$)|^(\S+) has no rule", message)
    return next(filter(None, found.groups()), message).strip() if found else message


class Torch:
    """PyTorch, eager."""

    def __init__(self, program):
        self.program = program

    def leaves_of(self, step):
        """Return the leaves: parameters, rows, and the two that pass singularities."""
        import torch

        rows = [torch.tensor(v, requires_grad=True) for v in (step.x, step.t, step.s)]
        return [*self.program.parameters, *rows]

    def loss(self, leaves, step):
        """Return the loss of the outputs that are kept."""
        import torch

        *_, x, t, s = leaves
        shape = (-1,) + (1,) * (x.ndim - 1)
        along = torch.as_tensor(direction_of(x.shape), dtype=x.dtype)
        x = x + t.sqrt().reshape(shape) * along + 0 * s.sqrt().reshape(shape)
        out = self.program.outputs(self.program.parameters, x)
        out = out[: step.kept_outputs] if step.kept_outputs >= 0 else out
        return (out * torch.as_tensor(weights_of(out.shape), dtype=out.dtype)).sum()

    def value(self, step):
        """Return the loss."""
        return self.loss(self.leaves_of(step), step).item()

    def ordinary(self, step):
        """Return the ordinary gradients."""
        import torch

        return self.gradients(torch.autograd.backward, step), []

    def masked(self, step):
        """Return the masked gradients, and what was warned of."""
        from safeops.autodiff.torch import backward

        with heard() as names:
            gradients = self.gradients(partial(backward, lazy=False), step)
        return gradients, names

    def gradients(self, backward, step):
        """Return the gradients by a function of the signature of `torch.autograd.backward`."""
        leaves = self.leaves_of(step)
        for leaf in leaves:
            leaf.grad = None
        backward(self.loss(leaves, step))
        zero = (leaf.detach() * 0 for leaf in leaves)
        found = (
            z if leaf.grad is None else leaf.grad for leaf, z in zip(leaves, zero, strict=True)
        )
        return [g.double().numpy() for g in found]


class Compiled:
    """What the two frameworks share that compile: a function for each number of rows kept."""

    def __init__(self, program):
        self.program = program
        self.compiled = {}

    def value(self, step):
        """Return the loss."""
        loss = self.compile(partial(self.loss, kept=step.kept_outputs))
        return float(loss(self.program.parameters, step.x, step.t, step.s))

    def ordinary(self, step):
        """Return the ordinary gradients."""
        return self.run(step, masked=False), []

    def masked(self, step):
        """Return the masked gradients, and what was warned of."""
        with heard() as names:
            gradients = self.run(step, masked=True)
        return gradients, names

    def run(self, step, *, masked):
        """Return gradients by a function that is compiled once."""
        key = (len(step.x), step.kept_outputs, masked)
        if key not in self.compiled:
            self.compiled[key] = self.function(step.kept_outputs, masked=masked)
        found = self.compiled[key](self.program.parameters, step.x, step.t, step.s)
        return [np.asarray(g, np.float64) for g in found]


class Jax(Compiled):
    """JAX, compiled."""

    @staticmethod
    def compile(f):
        """Compile a function."""
        import jax

        return jax.jit(f)

    def loss(self, parameters, x, t, s, *, kept):
        """Return the loss of the outputs that are kept."""
        import jax.numpy as jnp

        shape = (-1,) + (1,) * (x.ndim - 1)
        along = jnp.asarray(direction_of(x.shape), x.dtype)
        x = x + jnp.sqrt(t).reshape(shape) * along + 0 * jnp.sqrt(s).reshape(shape)
        out = self.program.outputs(parameters, x)
        out = out[:kept] if kept >= 0 else out
        return (out * jnp.asarray(weights_of(out.shape), out.dtype)).sum()

    def function(self, kept, *, masked):
        """Return the compiled function from arrays to a list of gradients."""
        import jax

        from safeops.autodiff import jax as ours

        grad = ours.grad if masked else jax.grad
        gradients = jax.jit(grad(partial(self.loss, kept=kept), argnums=(0, 1, 2, 3)))
        return lambda *args: jax.tree.leaves(gradients(*args))


class TensorFlow(Compiled):
    """TensorFlow, in a `tf.function`."""

    @staticmethod
    def compile(f):
        """Compile a function."""
        import tensorflow as tf

        return tf.function(f)

    def loss(self, parameters, x, t, s, *, kept):
        """Return the loss of the outputs that are kept."""
        import tensorflow as tf

        shape = [-1] + [1] * (len(x.shape) - 1)
        # tf.sqrt is no singularity: outside XLA its kernel makes 0 of 0 times infinity
        along = tf.constant(direction_of(x.shape), x.dtype)
        x = x + tf.reshape(t**0.5, shape) * along + 0 * tf.reshape(s**0.5, shape)
        out = self.program.outputs(parameters, x)
        out = out[:kept] if kept >= 0 else out
        return tf.reduce_sum(out * tf.constant(weights_of(out.shape), out.dtype))

    def function(self, kept, *, masked):
        """Return the compiled function from arrays to a list of gradients."""
        import tensorflow as tf

        from safeops.autodiff.tensorflow import GradientTape

        tape_of = GradientTape if masked else tf.GradientTape

        @tf.function
        def gradients(parameters, x, t, s):
            leaves = [*parameters, x, t, s]
            with tape_of() as tape:
                for leaf in leaves:
                    tape.watch(leaf)
                loss = self.loss(parameters, x, t, s, kept=kept)
            return tape.gradient(loss, leaves, unconnected_gradients="zero")

        def run(parameters, *rows):
            rows = [tf.constant(row) for row in rows]
            found = gradients(parameters, *rows)
            return [tf.convert_to_tensor(g).numpy() for g in found]

        return run
