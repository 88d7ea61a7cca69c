"""Gradients of TensorFlow for a training loop, explained when they are not finite."""

from collections.abc import Callable, Sequence
from logging import Logger
from os import PathLike
from typing import Any, Literal

from safeops.integrations._options import Outlet, check

__all__ = ["value_and_grad"]


def value_and_grad(
    f: Callable[..., Any],
    variables: Sequence[Any],
    /,
    *,
    has_aux: bool = False,
    on_nan: Literal["raise", "mask"] = "raise",
    logger: Logger | None = None,
    file: str | PathLike[str] | None = None,
) -> Callable[..., Any]:
    """
    Compiled value and gradient of a loss, which explains the first gradient that is not finite.

    Parameters
    ----------
    f : callable
        Function of a batch to a real scalar. AutoGraph does not convert it: write it with `tf.cond`
        and `tf.while_loop`, or make it a `tf.function`.
    variables : sequence of tf.Variable
        Variables to differentiate with respect to, also those of a model of Keras.
    has_aux : bool, default: False
        Whether `f` returns a pair of the scalar and something else.
    on_nan : {"raise", "mask"}, default: "raise"
        What follows the report: an error, or the masked gradient, and an error if that is not
        finite either. To skip a step, catch the error: nothing has changed.
    logger, file
        As for `safeops.integrations.guard`.

    Returns
    -------
    callable
        Function of the arguments of `f` to ``(value, gradients)``, ``((value, aux), gradients)``
        with `has_aux`; a list of gradients, None for a variable that `f` does not use. It asks for
        the gradient at each step, so call it outside of `tf.function`.

    Raises
    ------
    ValueError
        If `on_nan` is none of the two.
    TypeError
        If `variables` are no variables; from the result, if the loss is no real scalar.
    NonFiniteGradientError
        From the result, with the report as its attribute `report`.
    RuntimeError
        From the result, inside `tf.function` and in a strategy of several replicas.

    Notes
    -----
    **Gradient.** That of `tf.GradientTape` in a `tf.function`, bit for bit, while it is finite. The
    other variables that `f` reads or writes, such as moving averages, the state of a
    `tf.random.Generator` and the seeds of Keras, are put back before the explanation, before the
    masked gradient, and before an error. Random numbers without such a state, those of
    `tf.random.uniform` and `tf.nn.dropout`, are others when `f` runs again. An average to which a
    NaN came in a masked step is what it was before.

    **Source.** `tf.debugging.enable_check_numerics`, which stops at the first NaN, used or not.

    Examples
    --------
    >>> import tensorflow as tf
    >>> w = tf.Variable(2.0)
    >>> gradient = value_and_grad(lambda x: tf.reduce_sum(w * tf.math.log(x)), [w])
    >>> value, (slope,) = gradient(tf.constant([1.0, 1.0]))
    >>> float(value), float(slope)
    (0.0, 0.0)
    """
    check(on_nan, ("raise", "mask"))
    tell = Outlet(on_nan, logger, file)
    from safeops.integrations import _tensorflow  # noqa: PLC0415  (it imports TensorFlow)

    return _tensorflow.guarded(f, variables, has_aux, on_nan, tell)
