"""Derivatives by TensorFlow: tapes, accumulators, and forward mode by two tapes."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from safeops._core.types import Array, Function

tapes_only: ContextVar[bool] = ContextVar("_tapes_only", default=False)


def detects() -> bool:
    with tf.init_scope():  # leaves the graph, if there is one
        try:
            tf.math.log(tf.constant(-1.0))
        except tf.errors.InvalidArgumentError:
            return True
    return False


def fresh(args: Sequence[Any]) -> tuple[Array, ...]:
    # Tapes know a tensor by identity. A function inside f that closes over x, and is also given x,
    # would be differentiated with respect to both.
    return tuple(tf.identity(x) for x in args)


def pulled_back(tape: Any, value: Array, args: Sequence[Array], *seed: Array) -> tuple[Array, ...]:
    found = tape.gradient(value, args, *seed, unconnected_gradients="zero")
    return tuple(_dense(gradient, x) for gradient, x in zip(found, args, strict=True))


def _dense(gradient: Array, x: Array) -> Array:
    # The gradient of tf.gather is IndexedSlices; converting it warns if shapes are unknown.
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    at = tf.expand_dims(gradient.indices, -1)
    return tf.tensor_scatter_nd_add(tf.zeros_like(x), at, gradient.values)


@contextmanager
def by_tapes_only() -> Iterator[None]:
    token = tapes_only.set(True)
    try:
        yield
    finally:
        tapes_only.reset(token)


def accumulated(f: Function, primals: Sequence[Array], tangents: Sequence[Array]) -> Array:
    with by_tapes_only(), tf.autodiff.ForwardAccumulator(primals, tangents) as accumulator:
        value = f()
    return accumulator.jvp(value, unconnected_gradients=tf.UnconnectedGradients.ZERO)


def transposed(f: Function, primals: Sequence[Array], tangents: Sequence[Array]) -> Array:
    # A ForwardAccumulator in another raises IndexError in graph mode, for tf.where among others.
    # So two tapes: a gradient is linear in its seed; its derivative for the seed is the tangent.
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(primals)
            value = f()
        seed = tf.ones_like(value)
        outer.watch(seed)
        gradients = pulled_back(inner, value, primals, seed)
    return outer.gradient(gradients, seed, tangents, unconnected_gradients="zero")


# A linear function of which all that is known is whether it is 0: see `barrier` of a backend.


def barrier(
    excess: Function, arrays: tuple[Array, ...], constants: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Return 0, and NaN where there is an excess, as derivative too."""

    @tf.custom_gradient
    def function(*given: Array) -> tuple[Any, Function]:
        bad = excess(*given, *constants)
        nan = tf.constant(math.nan, given[0].dtype)
        return tuple(tf.where(bad, nan, tf.zeros_like(x)) for x in given), function

    return tuple(function(*arrays))
