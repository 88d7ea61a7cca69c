"""
Gradients of TensorFlow that a program takes by itself, explained when they are not finite.

In a `tf.function` a tape leaves its program in the graph. The graph gets a check of each gradient
and hands out, if one is not finite, the numbers from which the program can run again. An eager tape
leaves no program: there the report has the parameters and the line of the tape.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import tensorflow as tf

from safeops._core.types import Array
from safeops._source.locations import Location, frame_of_user, location_of
from safeops.autodiff._explain.repairs import masked_by_others
from safeops.autodiff._explain.report import Report, advised, report_or_unknown, unknown_report
from safeops.autodiff._explain.watching import NotFiniteError, Watch, Watches
from safeops.autodiff.tensorflow import _evaluator as evaluator
from safeops.autodiff.tensorflow._explain.explanation import explained_graph
from safeops.autodiff.tensorflow._redirect import FUNCTION, PLAIN, taped_everywhere
from safeops.autodiff.tensorflow._variables import is_finite, name_of, tensorflow_variable

NO_NUMBERS = (tf.resource, tf.variant)
OPEN = Watches()


class WatchedTape(PLAIN):
    """A tape whose gradients are looked at."""

    busy = False

    @tf.autograph.experimental.do_not_convert
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Return the gradient of targets with respect to sources."""
        found = super().gradient(target, sources, output_gradients, unconnected_gradients)
        if not OPEN.looking() or self.busy:
            return found
        pass_ = Pass(target, sources, output_gradients, found)
        if tf.executing_eagerly():
            pass_.tell_contexts()
            return found
        return pass_.checked()

    @tf.autograph.experimental.do_not_convert
    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """Return a Jacobian, whose rows are not looked at."""
        return self.unwatched(super().jacobian, *args, **kwargs)

    @tf.autograph.experimental.do_not_convert
    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """Return Jacobians, whose rows are not looked at."""
        return self.unwatched(super().batch_jacobian, *args, **kwargs)

    def unwatched(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a method that asks for many gradients."""
        self.busy = True
        try:
            return method(*args, **kwargs)
        finally:
            self.busy = False


class Pass:
    """A backward pass: its targets, what it is taken for, and its gradients."""

    def __init__(self, target: Any, sources: Any, seeds: Any, found: Any) -> None:
        self.found, self.where = found, line_of_user()
        self.words = masked_by_others(sys._getframe(1))  # noqa: SLF001  (documented)
        self.targets, self.seeds = tf.nest.flatten(target), seeds
        flat = zip(tf.nest.flatten(sources), tf.nest.flatten(found), strict=True)
        self.pairs = [(x, g) for x, g in flat if g is not None]
        self.names = [source_name(i, x) for i, (x, _) in enumerate(self.pairs)]
        self.frontier: list[Array] = []

    def flags(self) -> list[Array]:
        """Return of each gradient whether it is not finite."""
        return [~is_finite(g) for _, g in self.pairs]

    def tell_contexts(self) -> None:
        """Tell the contexts of a gradient that is there."""
        flags = [bool(x) for x in self.flags()]
        if self.note(*flags):
            report = unknown_report("tensorflow", "the tape", "tape", where=self.where)
            self.report(report, flags)
            OPEN.report(OPEN.looking())

    def note(self, *flags: Any) -> bool:
        """Write a gradient down; return whether it is not finite, and a context looks."""
        return OPEN.note(is_bad=any(map(bool, flags)))

    def report(self, report: Report, flags: Sequence[Any]) -> None:
        """Hand the contexts a report."""
        bad = tuple(name for name, flag in zip(self.names, flags, strict=True) if flag)
        report = advised(report, self.words) if self.words else report
        OPEN.add(lambda _: report, bad)

    def checked(self) -> Any:
        """Return the gradients, behind a check that ends the program if they are not finite."""
        flags = self.flags()
        if not flags:
            return self.found
        self.frontier = list(frontier_of(self.targets))
        bad = tf.numpy_function(self.note, flags, tf.bool)
        bad.set_shape(())
        numbers = partial(tf.numpy_function, self.end, [*flags, *self.frontier], tf.bool)
        ended = tf.cond(bad, numbers, lambda: False)
        with tf.control_dependencies([ended]):
            return tf.nest.map_structure(same, self.found)

    def end(self, *values: Any) -> Any:
        """Explain a gradient that is not finite, and end the program."""
        flags, numbers = values[: len(self.names)], values[len(self.names) :]
        with tf.init_scope():
            self.report(self.explained(numbers), flags)
        raise NotFiniteError

    def explained(self, numbers: Sequence[Any]) -> Report:
        """Return the report on a pass of a graph, or one that says why there is none."""
        sources = [tensorflow_variable(x) for x, _ in self.pairs]
        given = zip(self.frontier, numbers, strict=True)
        known = {x.ref(): tf.constant(y, x.dtype) for x, y in given}
        explain = partial(explained_graph, self.targets, self.seeds, sources, known)
        return report_or_unknown("tensorflow", explain, where=self.where)


def same(gradient: Any) -> Any:
    """Return a gradient again, as a tensor of this place in the graph."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.identity(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return tf.identity(gradient)


def source_name(i: int, x: Any) -> str:
    """Return the name of a variable, or the place of a tensor."""
    return name_of(x) if isinstance(tensorflow_variable(x), tf.Variable) else f"source {i}"


def line_of_user() -> Location | None:
    """Return the line that asks for a gradient."""
    frame = frame_of_user(sys._getframe(1))  # noqa: SLF001  (documented, for this purpose)
    return None if frame is None else location_of(frame.f_code, frame.f_lasti, frame.f_lineno)


def frontier_of(targets: Sequence[Array]) -> Iterator[Array]:
    """Yield what a graph does not make again: what it is given, reads, and draws at random."""
    seen: set[str] = set()
    stack = [x.op for x in targets]
    while stack:
        op = stack.pop()
        if op.name in seen or op.type == "Const":
            continue
        seen.add(op.name)
        if is_source(op):
            yield from (x for x in op.outputs if x.dtype not in NO_NUMBERS)
        else:
            stack.extend(x.op for x in op.inputs)


def is_source(op: Any) -> bool:
    """Whether an operation does not give the same again."""
    return not op.inputs or (op.op_def.is_stateful and op.type not in evaluator.BODIES)


@contextmanager
def watch_tape(on_report: Callable[[Report], None], /) -> Iterator[list[bool]]:
    """
    Context in which each gradient of a tape is checked, and explained if it is not finite.

    Parameters
    ----------
    on_report : callable
        Called with the report on each gradient of `tf.GradientTape` that has a NaN or inf; of a
        gradient inside of a `tf.function`, when the context ends.

    Yields
    ------
    list
        For each gradient, whether it had a NaN or inf.

    Raises
    ------
    tf.errors.OpError
        In the context, if a gradient inside of a `tf.function` is not finite: the program ends
        there, before its optimizer.

    Notes
    -----
    **Gradient.** None is changed. A gradient is seen if the program makes its tape in the context,
    by this name of the module `tensorflow`; Jacobians and `tf.gradients` are not. A `tf.function`
    is not compiled by XLA if it is made in the context, because compiled code calls no Python; one
    that was made before with ``jit_compile=True`` fails there if it is traced. An eager tape keeps
    no program: the report then is UNKNOWN, with the line of the tape and the parameters.

    **Source.** `tf.debugging.enable_check_numerics`, which stops at the first NaN, used or not.

    Examples
    --------
    >>> import tensorflow as tf
    >>> x = tf.Variable([0.0, 2.0])
    >>> with watch_tape(lambda report: print(report.findings[0].kind)):
    ...     with tf.GradientTape() as tape:
    ...         y = tf.reduce_sum(tf.where(x > 0, tf.math.log(x), 0.0))
    ...     slope = tape.gradient(y, x)
    UNKNOWN
    """
    watching = OPEN.watching(Watch(on_report))
    with watching as passes, taped_everywhere(WatchedTape), FUNCTION.replaced():
        yield passes
