"""The programs that people reported, and random ones, for masked autodiff of TensorFlow."""

import os

import numpy as np
import pytest

import tape

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not selected; this is about it alone")

from safeops.autodiff import tensorflow as masked  # noqa: E402

NAN, INF = np.nan, np.inf
total = tf.reduce_sum


def slope(f, x, tape_class=masked.GradientTape, **how):
    """Return the gradient of the sum of a function, as a tensor, by a tape."""
    with tape_class() as running:
        running.watch(x)
        value = f(x)
    found = running.gradient(value, x, **how)
    return tf.convert_to_tensor(found)


def compiled(f, *, unknown=False, **how):
    """Return a function without AutoGraph; the source of a lambda in a table is ambiguous."""

    def call(x):
        x = tf.convert_to_tensor(x)
        spec = [tf.TensorSpec([None] * x.shape.rank, x.dtype)] if unknown else None
        return tf.function(f, autograph=False, input_signature=spec, **how)(x)

    return call


def log_where(x):
    """Return the logarithm where there is one."""
    return tf.where(x > 0, tf.math.log(x), 0.0)


@tf.custom_gradient
def tripled(x):
    """Return the argument, with three times its gradient."""
    return x, lambda g: 3.0 * g


@tf.custom_gradient
def normalised(x):
    """Return the argument; its gradient is divided by its norm."""
    return tf.identity(x), lambda g: g / tf.norm(g)


@tf.custom_gradient
def blocked(x):
    """Return the argument; its gradient is 0, a convention."""
    return tf.identity(x), lambda _: tf.zeros(tf.shape(x))


@tf.custom_gradient
def safe_length(x):
    """Return a norm whose own formula has a double where: a convention about a number."""
    length = tf.norm(x)
    some = length > 0

    def backward(g):
        return tf.where(some, g * x / tf.where(some, length, 1.0), 0.0)

    return length, backward


@tf.custom_gradient
def shared_length(x):
    """Return a norm; the condition of its formula selects in the value as well."""
    length = tf.norm(x)
    some = length > 0
    safe = tf.where(some, length, 1.0)
    return safe * tf.where(some, 1.0, 0.0), lambda g: tf.where(some, g * x / safe, 0.0)


def loop(x):
    """Add the roots of the first two."""
    step = lambda i, s: (i + 1, s + tf.sqrt(x)[i])  # noqa: E731
    return tf.while_loop(lambda i, _: i < 2, step, (0, 0.0), maximum_iterations=2)[1]


def nested_loops(x):
    """Select in a loop in a loop, by what is made there."""
    inner = lambda j, b: (j + 1, tf.where(b > 0, tf.math.log(b) * x, 1.0))  # noqa: E731

    def outer(i, a):
        return i + 1, tf.while_loop(lambda j, _: j < 2, inner, (0, a), maximum_iterations=2)[1]

    return total(tf.while_loop(lambda i, _: i < 1, outer, (0, x), maximum_iterations=1)[1])


ROOTS = np.array([0.0, 4.0, 9.0])
# A program, a point, and the gradient that mathematics gives.
PROGRAMS = {
    "where": (lambda x: tf.where(x < 1.0, 0.0, 1.0 / x), 0.0, 0.0),
    "logarithm": (lambda x: total(log_where(x)), [0.0, 2.0], [0.0, 0.5]),
    "entry of a stack": (lambda x: tf.stack([tf.zeros_like(x), 1 / x])[0] + x, 0.0, 1.0),
    "gather": (lambda x: total(tf.gather(tf.sqrt(x), [1, 1])), ROOTS, [0.0, 0.5, 0.0]),
    "scatter_nd": (
        lambda x: total(tf.scatter_nd([[1], [0], [2]], tf.sqrt(x), [3])[:1]),
        ROOTS,
        [0.0, 0.25, 0.0],
    ),
    "tensor_scatter_nd_update": (
        lambda x: total(tf.tensor_scatter_nd_update(tf.sqrt(x), [[0]], [0.0])[:2]),
        ROOTS,
        [0.0, 0.25, 0.0],
    ),
    "dynamic_partition": (
        lambda x: total(tf.dynamic_partition(tf.sqrt(x), [0, 1, 0], 2)[1]),
        ROOTS,
        [0.0, 0.25, 0.0],
    ),
    "boolean_mask": (
        lambda x: total(tf.boolean_mask(x / tf.constant([0.0, 1.0]), [False, True])),
        np.array([1.0, 1.0], "float32"),
        [0.0, 1.0],
    ),
    "sequence_mask": (
        lambda x: total(tf.where(tf.sequence_mask([1, 2], 2), tf.math.log(x), 0.0)),
        [[1.0, 0.0], [2.0, 4.0]],
        [[1.0, 0.0], [0.5, 0.25]],
    ),
    "segment_sum": (
        lambda x: tf.math.segment_sum(tf.sqrt(x), [0, 1, 1])[1],
        ROOTS,
        [0.0, 0.25, 1 / 6],
    ),
    "segment_max": (
        lambda x: total(tf.math.segment_max(tf.math.log(x), [0, 0, 1])),
        [0.0, 4.0, 2.0],
        [0.0, 0.25, 0.5],
    ),
    "unsorted_segment_max": (
        lambda x: total(tf.math.unsorted_segment_max(tf.math.log(x), [1, 1, 0], 2)),
        [0.0, 4.0, 2.0],
        [0.0, 0.25, 0.5],
    ),
    "reduce_max": (lambda x: tf.reduce_max(tf.math.log(x)), [0.0, 4.0, 2.0], [0.0, 0.25, 0.0]),
    "reduce_min": (lambda x: tf.reduce_min(1 / x), [0.0, 4.0, 2.0], [0.0, -1 / 16, 0.0]),
    "tie": (lambda x: tf.reduce_max(tf.math.log(x)), [0.0, 4.0, 4.0], [0.0, 0.125, 0.125]),
    "maximum": (lambda x: total(tf.maximum(tf.math.log(x), 1.0)), [0.0, 4.0], [0.0, 0.25]),
    "clip_by_value": (
        lambda x: total(tf.clip_by_value(tf.math.log(x), 0.5, 2.0)),
        [0.0, 4.0, 9.0],
        [0.0, 0.25, 0.0],
    ),
    "relu": (lambda x: total(tf.nn.relu(tf.math.log(x))), [0.0, 4.0], [0.0, 0.25]),
    "relu6": (lambda x: total(tf.nn.relu6(1 / x)), [0.0, 4.0], [0.0, -1 / 16]),
    "sort": (lambda x: tf.sort(tf.sqrt(x))[1], ROOTS, [0.0, 0.25, 0.0]),
    "top_k": (lambda x: total(tf.math.top_k(tf.sqrt(x), 2)[0]), ROOTS, [0.0, 0.25, 1 / 6]),
    "pad": (lambda x: tf.pad(tf.sqrt(x), [[1, 0]])[2], ROOTS, [0.0, 0.25, 0.0]),
    "tile": (lambda x: tf.tile(tf.sqrt(x), [2])[1], ROOTS, [0.0, 0.25, 0.0]),
    "cumsum": (lambda x: tf.cumsum(tf.sqrt(x), reverse=True)[1], ROOTS, [0.0, 0.25, 1 / 6]),
    "max_pool1d": (
        lambda x: total(tf.nn.max_pool1d(tf.sqrt(x)[None, :, None], 2, 2, "VALID")),
        [0.0, 4.0, 1.0, 0.0],
        [0.0, 0.25, 0.5, 0.0],
    ),
    "einsum": (
        lambda x: total(
            tf.einsum("ij,kj->ik", tf.sqrt(x), tf.constant([[1.0, 3.0], [2.0, 4.0]]))[:1]
        ),
        np.array([[1.0, 4.0], [0.0, 0.0]], "float32"),
        [[1.5, 1.75], [0.0, 0.0]],
    ),
    "softmax": (
        lambda x: tf.nn.softmax(tf.math.log(x))[1, 0],
        [[0.0, 1.0], [1.0, 1.0]],
        [[0.0, 0.0], [0.25, -0.25]],
    ),
    "cross entropy": (
        lambda x: tf.nn.sparse_softmax_cross_entropy_with_logits([0, 0], tf.math.log(x))[1],
        [[0.0, 1.0], [1.0, 1.0]],
        [[0.0, 0.0], [-0.5, 0.5]],
    ),
    "function": (
        lambda x: total(tf.function(log_where, autograph=False)(x)),
        [0.0, 2.0],
        [0.0, 0.5],
    ),
    "cond": (
        lambda x: tf.cond(x[0] < 1, lambda: total(log_where(x)), lambda: total(x)),
        [0.0, 2.0],
        [0.0, 0.5],
    ),
    "switch_case": (
        lambda x: tf.switch_case(
            tf.cast(x[1] > 1, tf.int32), [lambda: total(x), lambda: tf.sqrt(x)[1]]
        ),
        ROOTS,
        [0.0, 0.25, 0.0],
    ),
    "while_loop": (loop, np.array([1.0, 4.0, 0.0], "float32"), [0.5, 0.25, 0.0]),
    "nested loops": (
        nested_loops,
        np.array([0.0, np.e**2], "float32"),
        # log(x log x) x at e^2 has slope log(x log x) + 1 + 1 / log x; at 0 it is log(1) x, and 0.
        [0.0, 3.5 + np.log(2.0)],
    ),
    "map_fn": (lambda x: tf.map_fn(tf.sqrt, x)[1], ROOTS, [0.0, 0.25, 0.0]),
    "custom_gradient": (lambda x: tripled(tf.sqrt(x))[1], ROOTS, [0.0, 0.75, 0.0]),
    "normalised gradient": (lambda x: 7 * normalised(x**0.5)[1], [0.0, 4.0], [0.0, 0.25]),
    "recompute_grad": (
        lambda x: total(tf.recompute_grad(log_where)(x)),
        [0.0, 2.0],
        [0.0, 0.5],
    ),
    "complex": (
        lambda x: total(tf.where(x > 0, tf.abs(tf.complex(tf.zeros_like(x), 1 / x)), 0.0)),
        [0.0, 2.0],
        [0.0, -0.25],
    ),
}


def at(point):
    """Return a point in float64, unless a program wants float32."""
    return tf.convert_to_tensor(point if getattr(point, "dtype", None) else np.float32(point))


UNDEFINED = {
    "zero times a logarithm": (lambda x: tf.math.log(x) * 0.0, 0.0, NAN),
    "quotient of zeros": (lambda x: x / x, 0.0, NAN),
    "square of a root": (lambda x: tf.sqrt(x) ** 2, 0.0, NAN),
    "zero times an inverse": (lambda x: 0.0 * tf.math.reciprocal(x), 0.0, NAN),
    "zero times an inverse root": (lambda x: 0.0 * tf.math.rsqrt(x), 0.0, NAN),
    "root at the edge": (lambda x: tf.where(x >= 0, tf.sqrt(x), 0.0), 0.0, INF),
    "norm": (tf.norm, [0.0, 0.0], [NAN, NAN]),
    "product with a mask": (
        lambda x: total(tf.sqrt(x) * tf.constant([0.0, 1.0])),
        [0.0, 4.0],
        [NAN, 0.25],
    ),
    "largest of NaN": (lambda x: tf.reduce_max(tf.stack([x, x * NAN])), 1.0, NAN),
    "convention of a custom gradient": (lambda x: safe_length(tf.sqrt(x)), [0.0, 0.0], [NAN, NAN]),
    "zeros of a custom gradient": (lambda x: total(blocked(x**0.5)), [0.0, 4.0], [NAN, 0.0]),
    "its condition, made with the value": (
        lambda x: shared_length(tf.sqrt(x)),
        [0.0, 0.0],
        [NAN, NAN],
    ),
    "that in a function": (
        lambda x: tf.function(shared_length, autograph=False)(tf.sqrt(x)),
        [0.0, 0.0],
        [NAN, NAN],
    ),
    "that in a branch": (
        lambda x: tf.cond(x[0] < 1, lambda: shared_length(tf.sqrt(x)), lambda: x[0]),
        [0.0, 0.0],
        [NAN, NAN],
    ),
    "root in a loop": (
        lambda x: total(
            tf.while_loop(
                lambda i, _: i < 1,
                lambda i, s: (i + 1, tf.sqrt(s) ** 2),
                (0, x),
                maximum_iterations=1,
            )[1]
        ),
        [0.0, 4.0],
        [NAN, 1.0],
    ),
}


def alike(f):
    """
    Return a function that rounds all entries alike.

    Kernels round the last entries, which do not fill a vector, in another way: there exp(1) is one
    bit less, and what was a tie is none.
    """
    return lambda x: f(tf.stack([x, x]))[0]


class Operations:
    """The array language of the tape, on TensorFlow."""

    sqrt, where = map(staticmethod, (tf.sqrt, tf.where))
    log, exp = staticmethod(alike(tf.math.log)), staticmethod(alike(tf.exp))
    matmul, maximum, total = map(staticmethod, (tf.matmul, tf.maximum, tf.reduce_sum))
    transpose = staticmethod(tf.transpose)
    reverse = staticmethod(lambda x: x[::-1])
    inverse = staticmethod(tf.math.reciprocal)
    positive = staticmethod(lambda x: x > 0.5)
    take = staticmethod(tf.gather)
    concat = staticmethod(lambda x, y: tf.concat([x, y], 0))
    cumsum = staticmethod(tf.cumsum)
    largest = staticmethod(lambda x: tf.reduce_max(x, axis=0))
    least = staticmethod(lambda x: tf.minimum(x, x[::-1]))
    clip = staticmethod(lambda x: tf.clip_by_value(x, tf.cast(0.25, x.dtype), tf.cast(2, x.dtype)))

    @staticmethod
    def set_zero(x, index):
        """Put 0 at an index of the first axis."""
        return tf.tensor_scatter_nd_update(x, [[index]], tf.zeros((1, tape.N), x.dtype))

    @staticmethod
    def sort(x):
        """Sort each column, NaN last; `tf.sort` leaves finite values unsorted beside NaN."""
        columns = tf.transpose(x)
        order = tf.argsort(tf.where(tf.math.is_nan(columns), tf.cast(INF, x.dtype), columns))
        is_nan = tf.cast(tf.math.is_nan(tf.gather(columns, order, batch_dims=1)), tf.int32)
        order = tf.gather(order, tf.argsort(is_nan, stable=True), batch_dims=1)
        return tf.transpose(tf.gather(columns, order, batch_dims=1))


PROGRAMS_RUN = int(os.environ.get("SAFEOPS_PROGRAMS", "150"))


def kinds_run(graph):
    """Return the kinds of the operations on which the results of a graph depend."""
    kinds, stack = {}, [x.op for x in graph.outputs]
    while stack:
        op = stack.pop()
        if op.name not in kinds:
            kinds[op.name] = op.type
            stack.extend(x.op for x in op.inputs)
    return list(kinds.values())


def on_tensorflow(program):
    """Return a program as a function of a tensor."""
    return lambda x: tape.run(program, Operations, x)
