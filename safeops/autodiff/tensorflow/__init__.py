"""
Masked autodiff for TensorFlow: a gradient tape in which an entry that nothing used is absent.

In a `tf.function`, `tf.GradientTape` builds the backward pass as a graph, a linear program. This
module runs it over pairs of a value and the mask of its active entries. The result is plain
TensorFlow: it can be compiled, saved and differentiated again.

Not covered: a gradient tape outside `tf.function` (`grad` and `value_and_grad` make a
`tf.function`), forward mode, `jacobian` and `batch_jacobian`, sparse tensors and `tf.py_function`.
Operations without a rule, such as `tf.math.cumulative_logsumexp` and fused recurrent layers, run as
they are, with a warning, and hide nothing. In a loop or branch, what a loop inside it reads and
does not differentiate hides nothing, such as numbers that are compared alone. Solves and
factorisations are dense within a matrix, cubic resampling within a channel of an image, Fourier
transforms along their axes: there a NaN stays where any entry is read. A selection counts as a
number, which hides nothing, within `tf.recompute_grad` in the body of a function, branch or loop,
in the formula of a custom gradient, and where the gradient is taken in another body than its
forward pass. But a literal 0 that a custom gradient puts around a cotangent (`tf.pad`, `tf.concat`,
an update of `tf.zeros`) is absent, as in TensorFlow's own formulas, and a NaN behind it becomes 0:
write ``g * mask`` for a number. XLA ignores NaN in a maximum, in its gradient as in its value
(TensorFlow issue 116992). A literal NaN that is used, as in `tf.where(bad, np.nan, y)`, leaves
nothing out: what it takes the place of has the slope 0, and, if `bad` asks for NaN as in
`keras.ops.median`, the slope NaN. Side effects of a backward pass, such as printing, may happen
twice.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from safeops._backends.tensorflow.private import FOUND
from safeops._core.errors import require
from safeops._doors import show

require("safeops.autodiff.tensorflow", "TensorFlow", FOUND, "2.18")

from safeops.autodiff._explain.report import Report
from safeops.autodiff._options import Reaction, UnknownOperationWarning, is_one, places_of
from safeops.autodiff.tensorflow import _passes as passes
from safeops.autodiff.tensorflow._explain.explanation import explained_call
from safeops.autodiff.tensorflow._watch import watch_tape

__all__ = [
    "GradientTape", "UnknownOperationWarning", "explain", "grad", "value_and_grad", "watch_tape",
]  # fmt: skip


class GradientTape(tf.GradientTape):
    """
    `tf.GradientTape`, in whose gradients an entry that nothing selected is absent, and not 0.

    Parameters
    ----------
    persistent : bool, default: False
        Whether more than one gradient can be taken.
    watch_accessed_variables : bool, default: True
        Whether trainable variables are watched automatically.

    Notes
    -----
    **Gradient.** The gradient of a scalar tape, which visits only what the target reaches. It
    equals the gradient of `tf.GradientTape` where that is finite, except for ``tf.sqrt``,
    ``tf.math.rsqrt`` and ``tf.math.reciprocal``, whose kernels outside XLA turn 0 times infinity
    into 0.

    **Source.** JAX issue 1052, "only tracking a symbolic-zero mask through the entire backward
    pass".

    Examples
    --------
    >>> import tensorflow as tf
    >>> @tf.function
    ... def slope(x):
    ...     with GradientTape() as tape:
    ...         tape.watch(x)
    ...         y = tf.where(x > 0, tf.math.log(x), 0.0)
    ...     return tape.gradient(y, x)
    >>> slope(tf.constant([0.0, 2.0])).numpy().tolist()
    [0.0, 0.5]
    """

    @tf.autograph.experimental.do_not_convert
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        *,
        return_mask: bool = False,
        lazy: bool = False,
        on_unknown: Reaction = "warn",
    ) -> Any:
        """
        Return the masked gradient of targets with respect to sources.

        Parameters
        ----------
        target, sources, output_gradients, unconnected_gradients
            As for `tf.GradientTape.gradient`; all entries of `output_gradients` count as active.
        return_mask : bool, default: False
            Whether to return also where the gradient is active: a 0 that is not active belongs to
            an unused entry.
        lazy : bool, default: False
            Whether to take the ordinary gradient, and the masked one only if the ordinary one is
            not finite.
        on_unknown : {"warn", "error", "ignore"}, default: "warn"
            What to do about an operation without a rule that meets absent entries. It runs as it
            is, and hides nothing.

        Returns
        -------
        structure of tensors
            Gradients in the structure of `sources`, or a pair of gradients and masks.

        Raises
        ------
        RuntimeError
            Outside `tf.function`.
        ValueError
            If `on_unknown` is none of the three, or `lazy` and `return_mask` are both given.

        Notes
        -----
        **Gradient.** The gradient of a scalar tape.

        **Source.** `tf.GradientTape.gradient`.
        """
        how = passes.options_of(on_unknown, lazy=lazy, return_mask=return_mask)
        if tf.executing_eagerly():
            msg = (
                "expected a GradientTape inside tf.function, got an eager one; decorate the "
                "function with tf.function, or use grad or value_and_grad"
            )
            raise RuntimeError(msg)
        before = len(tf.compat.v1.get_default_graph().get_operations())
        seeds = passes.seeds_of(target, output_gradients)
        found = super().gradient(target, sources, seeds, unconnected_gradients)
        if return_mask:  # the sparse rows of a gradient have no mask for the other rows
            found = tf.nest.map_structure(passes.dense, found)
        return passes.masked(
            found, passes.frame_of(seeds, before, how), lazy=lazy, return_mask=return_mask
        )

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """Raise NotImplementedError: the pass is mapped over rows there, which have no masks."""
        del args, kwargs
        msg = (
            "expected gradient, got jacobian, which has no masked form; stack the masked gradients "
            "of a persistent tape, one for each entry of the target"
        )
        raise NotImplementedError(msg)

    batch_jacobian = jacobian


def value_and_grad(
    f: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    return_mask: bool = False,
    lazy: bool = False,
    on_unknown: Reaction = "warn",
) -> Callable[..., Any]:
    """
    Value and masked gradient of a scalar function.

    An eager call runs as a `tf.function`, traced once for each signature. AutoGraph does not
    convert `f`: write it with `tf.cond` and `tf.while_loop`, or make it a `tf.function`.

    Parameters
    ----------
    f : callable
        Function of tensors or structures to a real scalar.
    argnums : int or sequence of ints, default: 0
        Arguments to differentiate with respect to.
    return_mask, lazy, on_unknown
        As for `GradientTape.gradient`.

    Returns
    -------
    callable
        Function of the arguments of `f` to ``(value, gradient)``; the gradient is
        ``(gradient, mask)`` with `return_mask`, each of them a tuple if `argnums` is a sequence.

    Raises
    ------
    TypeError
        If the value is not a real scalar, or an argument has integers.

    Notes
    -----
    **Gradient.** As for `GradientTape`. An unused argument has gradient 0, in its shape.

    **Source.** `jax.value_and_grad`.

    Examples
    --------
    >>> import tensorflow as tf
    >>> value, slope = value_and_grad(lambda x: tf.stack([x, 1 / x])[0])(tf.constant(0.0))
    >>> float(value), float(slope)
    (0.0, 1.0)
    """
    passes.options_of(on_unknown, lazy=lazy, return_mask=return_mask)  # raises if they are wrong
    how = {"return_mask": return_mask, "lazy": lazy, "on_unknown": on_unknown}
    both = _of_arguments(f, argnums, how)
    compiled = tf.function(both, autograph=False)

    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        # Before tracing, in which a Python number is a constant.
        args = passes.with_tensors(args, places_of(argnums, len(args)))
        return (compiled if tf.executing_eagerly() else both)(*args, **kwargs)

    return wrapped


def _of_arguments(
    f: Callable[..., Any], argnums: int | Sequence[int], how: dict[str, Any]
) -> Callable[..., Any]:
    """Return the function of arguments to value and gradient, for use inside a graph."""

    @tf.autograph.experimental.do_not_convert
    def both(*args: Any, **kwargs: Any) -> Any:
        chosen = [args[i] for i in places_of(argnums, len(args))]
        with GradientTape() as tape:
            tape.watch(tf.nest.flatten(chosen))
            value = f(*args, **kwargs)
        passes.check_output(value)
        zero = tf.UnconnectedGradients.ZERO
        found = tape.gradient(value, chosen, unconnected_gradients=zero, **how)
        unwrap = operator.itemgetter(0) if is_one(argnums) else tuple
        return value, tuple(map(unwrap, found)) if how["return_mask"] else unwrap(found)

    return both


def grad(
    f: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    return_mask: bool = False,
    lazy: bool = False,
    on_unknown: Reaction = "warn",
) -> Callable[..., Any]:
    """
    Masked gradient of a scalar function.

    Parameters
    ----------
    f, argnums, return_mask, lazy, on_unknown
        As for `value_and_grad`.

    Returns
    -------
    callable
        Function of the arguments of `f` to the gradient.

    Notes
    -----
    **Gradient.** As for `GradientTape`. Apply it twice for second derivatives: in the pass of a
    `tf.GradientTape` around it, absent entries are zeros again.

    **Source.** `jax.grad`.

    Examples
    --------
    >>> import tensorflow as tf
    >>> x = tf.constant([0.0, 4.0])
    >>> grad(lambda x: tf.sqrt(x)[1])(x).numpy().tolist()
    [0.0, 0.25]
    >>> grad(lambda x: tf.sqrt(x)[1], return_mask=True)(x)[1].numpy().tolist()
    [False, True]
    """
    both = value_and_grad(f, argnums, return_mask=return_mask, lazy=lazy, on_unknown=on_unknown)

    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return both(*args, **kwargs)[1]

    return wrapped


def explain(
    f: Callable[..., Any], *args: Any, argnums: int | Sequence[int] = 0, interim: bool = False
) -> Report:
    """
    Which line of a function makes its gradient not finite, and whether the entries are used.

    Parameters
    ----------
    f : callable
        Function of tensors or structures to a real scalar; as for `value_and_grad`.
    *args : structure of tensors
        Where to take the gradient.
    argnums : int or sequence of ints, default: 0
        Arguments to differentiate with respect to.
    interim : bool, default: False
        As for `safeops.autodiff.explain`.

    Returns
    -------
    Report
        The findings, each with its kind, operation, line and repair. Clean if value and gradient
        are finite.

    Raises
    ------
    RuntimeError
        Inside `tf.function`.
    TypeError
        If the value is not a real scalar, or an argument has integers.

    Notes
    -----
    **Gradient.** None is changed, and none is returned. The explained gradient is that of IEEE
    arithmetic, as under XLA: outside XLA the kernels of ``tf.sqrt``, ``tf.math.rsqrt`` and
    ``tf.math.reciprocal`` turn 0 times infinity into 0, and hide that a derivative does not exist.

    **Source.** JAX issue 1052.

    Examples
    --------
    >>> import tensorflow as tf
    >>> x = tf.constant([0.0, 2.0])
    >>> report = explain(lambda x: tf.reduce_sum(tf.where(x > 0, tf.math.log(x), 0.0)), x)
    >>> [(finding.kind, finding.operation, finding.selection) for finding in report.findings]
    [('BLOCKED', 'log', 'where')]
    """
    if not tf.executing_eagerly():
        msg = "expected eager tensors, got those of a graph, which have no values; call explain "
        raise RuntimeError(msg + "outside of tf.function")
    return explained_call(f, args, argnums, interim=interim, trial=True)


__dir__ = show("safeops.autodiff.tensorflow", __all__, globals())
