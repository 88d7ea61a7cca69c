"""
Formulas with a short value and a short pullback; all other derivatives are those of the steps.

The steps of a formula are right at every order, and TensorFlow writes an array at each: a pullback
of steps takes five times as long as that of a plain formula.
"""

from collections.abc import Sequence
from functools import partial

import tensorflow as tf

from safeops._backends.tensorflow.derivatives import fresh, pulled_back
from safeops._backends.tensorflow.private import in_xla, is_accumulated
from safeops._core.types import Array, Function


def short(steps: Function, value: Function, pull: Function) -> Function:
    """Return `steps` as a function with a value and a pullback of its own."""

    # `pull` gets the cotangent, the value and the arguments. In a graph a ForwardAccumulator takes
    # the derivatives of the value, and not the rule (2.21): what it follows gets the steps, and so
    # does XLA, which makes one pass of them.
    @tf.custom_gradient
    def function(*args: Array) -> tuple[Array, Function]:
        out = _constant(value(*args))

        def pulled(cotangent: Array) -> list[Array]:
            # Copies in the graph of this pullback, which alone a pullback of it may take from: that
            # of a `tf.function` may not take from the function itself (2.21).
            given = fresh(args)
            found = pull(cotangent, out, *given)
            return [
                _with_slopes_of(steps, i, _constant(x))(cotangent, *given)
                for i, x in enumerate(found)
            ]

        return out, pulled

    def chosen(*args: Array) -> Array:
        return (steps if in_xla() or is_accumulated(args) else function)(*_in_one_shape(args))

    return chosen


def _with_slopes_of(steps: Function, i: int, found: Array) -> Function:
    """Return a function with a value, which is a pullback of steps, and the slopes of that."""

    # It is a function for each argument: of two together the one that nothing uses would get a
    # cotangent of 0, and make NaN of it where its own slope is infinite.
    @tf.custom_gradient
    def pulled(*given: Array) -> tuple[Array, Function]:
        def again(cotangent: Array) -> tuple[Array, ...]:
            return _pulled_back(lambda *inner: pulled_by(steps, *inner)[i], given, cotangent)

        return found, again

    return pulled


def pulled_by(steps: Function, cotangent: Array, *args: Array) -> tuple[Array, ...]:
    """Return the pullback of steps."""
    return _pulled_back(steps, args, cotangent)


def _pulled_back(f: Function, args: Sequence[Array], cotangent: Array) -> tuple[Array, ...]:
    """Return the pullback; in a graph without a tape, which records nothing for accumulators."""
    args = fresh(args)
    if not tf.executing_eagerly():
        return tuple(tf.gradients(f(*args), args, cotangent, unconnected_gradients="zero"))
    with tf.GradientTape() as tape:
        tape.watch(args)
        out = f(*args)
    return pulled_back(tape, out, args, cotangent)


def shortened(
    steps: Function, value: Function, slopes: Function, inside: Function | None
) -> Function:
    """Return steps, with a value and slopes that are taken if all entries are inside."""

    def sloped(cotangent: Array, out: Array, *args: Array) -> list[Array]:
        return [cotangent * slope for slope in slopes(out, *args)]

    if inside is None:
        return short(steps, value, sloped)

    def chosen(*args: Array) -> Array:
        return tf.cond(tf.reduce_all(inside(*args)), partial(value, *args), partial(steps, *args))

    def pull(cotangent: Array, out: Array, *args: Array) -> Sequence[Array]:
        def by_steps() -> list[Array]:
            return list(pulled_by(steps, cotangent, *args))

        short_way = partial(sloped, cotangent, out, *args)
        return tf.cond(tf.reduce_all(inside(*args)), short_way, by_steps)

    return short(steps, chosen, pull)


def tried(steps: Function, run: Function, pull: Function, is_usual: Function) -> Function:
    """
    Return steps, in whose place something is tried: its value and its pullback, if it is usual.

    `run` returns the value, and what `is_usual` looks at and `pull` needs beside the cotangent and
    the arguments. A cotangent that is not finite is left to the steps.
    """

    def value(*args: Array) -> Array:
        out, *kept = run(*args)
        return tf.cond(is_usual(out, *kept), lambda: out, partial(steps, *args))

    def pulled(cotangent: Array, _: Array, *args: Array) -> Sequence[Array]:
        found = run(*args)
        finite = tf.reduce_all(tf.math.is_finite(cotangent))
        return tf.cond(
            tf.logical_and(is_usual(*found), finite),
            partial(pull, cotangent, found, *args),
            lambda: list(pulled_by(steps, cotangent, *args)),
        )

    return short(steps, value, pulled)


def _constant(x: Array) -> Array:
    """Return what eager TensorFlow would record beside the rule as a constant."""
    return tf.stop_gradient(x) if tf.executing_eagerly() else x


def _in_one_shape(args: Sequence[Array]) -> Sequence[Array]:
    shapes = [x.shape for x in args]
    known = all(shape.is_fully_defined() and shape == shapes[0] for shape in shapes)
    if known or len(args) == 1:
        return args
    total = tf.shape(args[0])
    for x in args[1:]:
        total = tf.broadcast_dynamic_shape(total, tf.shape(x))
    return [tf.broadcast_to(x, total) for x in args]
