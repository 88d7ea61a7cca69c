"""
Choosers: which products and selections in the formula of a derivative stand for a selection.

The gradient of `tf.where` selects by the condition of the program. Any other `where` in a formula
is a convention about a number, and not a selection. So a condition is traced back to where it was
made, through calls, loops and branches; it counts if a `tf.where`, a maximum or a minimum of the
program uses it. A condition that is not recognised counts as a number, which hides nothing. So does
one that puts a literal NaN in place of an entry; if it asks for NaN, as a median does, what it
leaves out has the slope NaN.
"""

import functools
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from safeops._backends.tensorflow import private
from safeops._core.types import Array
from safeops.autodiff._pairs import Pair
from safeops.autodiff.tensorflow import _evaluator as evaluator
from safeops.autodiff.tensorflow._evaluator import Frame, Mask
from safeops.autodiff.tensorflow._masks import chosen, negated, one_shape, union, zeros
from safeops.autodiff.tensorflow._running import is_of_formula, run, value_of

WHERE = frozenset({"Select", "SelectV2"})
LARGER = frozenset({"Maximum", "Minimum"})
LARGEST = frozenset({"Max", "Min", "NthElement", "TensorScatterMax", "TensorScatterMin"})
UNSORTED = frozenset(f"UnsortedSegment{kind}" for kind in ("Sum", "Max", "Min", "Prod"))
OF_SEGMENTS = frozenset(
    f"{kind}Segment{which}" for kind in ("", "Unsorted") for which in ("Max", "Min")
) | {"SegmentMaxV2", "SegmentMinV2"}
ASKING = frozenset(
    {"Any", "LogicalOr", "Reshape", "ExpandDims", "Squeeze", "Transpose", "BroadcastTo"}
)
LOOPS = frozenset({"While", "StatelessWhile"})
BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})


def bodies(op: Any, names: tuple[str, ...] | None = None) -> list[Any]:
    """Return the graphs that a call, a loop or a branch runs."""
    found = []
    for name in evaluator.BODIES[op.type] if names is None else names:
        functions = op.get_attr(name)
        every = functions if isinstance(functions, list) else [functions]
        found += [private.body_of(op.graph, function.name) for function in every]
    return found


def arguments(op: Any) -> list[Array]:
    """Return the tensors that an operation hands to its bodies."""
    return list(op.inputs)[op.type in BRANCHES :]


def origins(tensor: Array, frame: Frame) -> Iterator[tuple[Array, Frame]]:
    """Follow a tensor back through arguments, results, lists and options to its origin."""
    for _ in range(1000):  # a bound on the steps, so that the search ends
        yield tensor, frame
        step = _arrived(tensor, frame)
        if step is None:
            return
        tensor, frame = step


def _arrived(tensor: Array, frame: Frame) -> tuple[Array, Frame] | None:
    """Return the tensor of which this one is a copy, and its frame."""
    op = tensor.op
    if op.type == "Placeholder":
        return frame.arguments.get(tensor.ref())
    if op.type == "Identity":
        return op.inputs[0], frame
    if op.type in ("TensorListPopBack", "OptionalGetValue"):
        maker = {"TensorListPopBack": "TensorListPushBack", "OptionalGetValue": "OptionalFromValue"}
        for origin, where in origins(op.inputs[0], frame):
            if origin.op.type == maker[op.type] and origin.ref() != op.inputs[0].ref():
                return origin.op.inputs[origin.op.type == "TensorListPushBack"], where
        return None
    if op.type in evaluator.BODIES:
        return _returned(tensor, frame)
    return None


def _returned(tensor: Array, frame: Frame) -> tuple[Array, Frame] | None:
    """Return the tensor in a body that is a result of its operation, and its frame."""
    op, places = tensor.op, [i for i, x in enumerate(tensor.op.outputs) if x is tensor]
    for graph in bodies(op):
        out = graph.outputs[places[0]]
        if out.op.type not in ("OptionalNone", "FakeParam"):  # the result is another branch's
            return out, called(op, graph, frame)
    return None


def called(op: Any, graph: Any, frame: Frame) -> Frame:
    """Return the frame of a body of the program."""
    given = zip(graph.inputs, arguments(op), strict=True)
    fixed = {x.ref(): (y, frame) for i, (x, y) in enumerate(given) if is_fixed(op, graph, i)}
    return Frame(frame.how, arguments=fixed, program=True)


def is_fixed(op: Any, graph: Any, i: int) -> bool:
    """Whether an argument is the same in each step of a loop; a list is, if its origin is."""
    if op.type not in LOOPS:
        return True
    if len(graph.outputs) != len(graph.inputs):  # the condition of a loop, which has no selection
        return False
    return graph.outputs[i] is graph.inputs[i] or graph.inputs[i].dtype == tf.variant


def consumers_in_program(tensor: Array, frame: Frame, asked_by: Any) -> Iterator[tuple[Any, int]]:
    """Yield the operations of the program that use a tensor, and the positions where they do."""
    of_tape = private.FORMULA in asked_by.name
    for found, where in origins(tensor, frame):
        # A body of the formula contains no operation of the program.
        new = None if where.inner and not where.program else where.since
        yield from _used(found, new, where.again if of_tape else frozenset())


def _used(
    tensor: Array, new: Container[str] | None, again: Container[str] = frozenset()
) -> Iterator[tuple[Any, int]]:
    """Yield the uses of a tensor by operations that are not new, or are run again."""
    for op in tensor.consumers():
        if (new is None or op.name in new) and op.name not in again:
            continue
        for i, x in enumerate(op.inputs):
            if x is not tensor:
                continue
            yield op, i
            at = i - (op.type in BRANCHES)
            if op.type in evaluator.BODIES and at >= 0:
                for graph in bodies(op):
                    yield from _used(graph.inputs[at], frozenset())  # all in it is of the program


def name_of(op: Any) -> tuple[int, str]:
    """Return a key by which operations are told apart."""
    return id(op.graph), op.name


# Selections


def select(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
    """Select entries, and their masks alike, if this is a selection of the program."""
    cond, *cases = ins
    if isinstance(cond, Pair):
        return evaluator.unknown(op, ins, frame)
    (value,) = run(op, ins)
    masks = [evaluator.active_of(x) for x in cases]
    if value.dtype == tf.variant:
        return evaluator.unknown(op, ins, frame)
    if any(m is False for m in masks) and one_shape(cond, value):
        zero = zeros(value)  # in full, for a faster kernel
        full = [zero if m is False else value_of(x) for x, m in zip(cases, masks, strict=True)]
        value = chosen(cond, *full)
    by = _condition(op, frame)
    linear = union(*(evaluator.widened(x.active, value) for x in cases if isinstance(x, Pair)))
    if by is None and linear is True:
        return [Pair(value)]
    if by in COMPARED and masks[0] is not False:  # the other side has what is left, NaN too
        is_nan = COMPARED[by](op, frame)
        cond = union(in_shape(cond, op, value), evaluator.widened(is_nan, value))
    active = _selected(op, cond, masks, value, frame)
    if by in COMPARED and frame.inner:  # a selection that a pass around this one recognises
        value = evaluator.cleaned(value, active)
    if by == "nan":  # which does not tell the entry that it is because of
        kept = tf.where(evaluator.spread(active, value), value, np.nan)
        value, active = evaluator.cleaned(kept, linear), linear
    if by is None:  # a convention: cotangents keep their masks, other values are numbers
        active = union(linear, active)
    return [Pair(value, active)]


def _selected(op: Any, cond: Array, masks: list[Mask], value: Array, frame: Frame) -> Mask:
    """Return which entries are active after a selection from two cases."""
    if all(m is True for m in masks):
        return True

    def selected(cond: Array, first: Mask, second: Mask) -> Mask:
        cond = evaluator.spread(cond, value)
        if second is False:
            return intersection(evaluator.widened(first, value), cond)
        if first is False:
            return intersection(evaluator.widened(second, value), negated(cond))
        return tf.where(cond, evaluator.spread(first, value), evaluator.spread(second, value))

    cond = aligned(cond, op, value)
    return frame.placed.computed(np.where, [cond, *masks], value, selected)


def in_shape(cond: Array, op: Any, value: Array) -> Array:
    return evaluator.spread(aligned(cond, op, value), value)


def aligned(cond: Array, op: Any, value: Array) -> Array:
    """Return a condition that broadcasts to a value; the condition of `Select` may be by row."""
    if op.type == "Select" and cond.shape.rank != value.shape.rank:
        cond = tf.reshape(
            cond, tf.concat([tf.shape(cond), tf.ones(tf.rank(value) - tf.rank(cond), tf.int32)], 0)
        )
    return cond


def _condition(op: Any, frame: Frame) -> str | None:
    """Return the kind of selection of the program that an operation stands for; None if none."""
    cond, test = op.inputs[0], op.inputs[0].op
    if not _is_formula(op):
        return None
    if _is_formula(test) and (by := _comparison(test, frame, op)) is not None:
        return by
    if any(_is_chooser(origin.op) for origin, _ in islice(origins(cond, frame), 1, None)):
        return None  # of a formula in a loop or branch, where there is no telling what is NaN
    if users := [
        user for user, i in consumers_in_program(cond, frame, op) if user.type in WHERE and i == 0
    ]:
        return _of_where(op, frame, users)
    if any(_is_repeated(origin.op) for origin, _ in origins(cond, frame)):
        return "where"
    return "dropped" if _is_dropping(test, frame, op) else None


def _of_where(op: Any, frame: Frame, users: Sequence[Any]) -> str | None:
    """Return the kind of a `tf.where`: none, if a literal NaN stands for what it leaves out."""
    place = 1 if evaluator.is_zero(op.inputs[1]) else 2
    numbers = (tf.get_static_value(user.inputs[place]) for user in users)
    if not all(x is not None and np.isnan(x).all() for x in numbers):
        return "where"
    return "nan" if _asks_for_nan(op.inputs[0], frame) else None


def _asks_for_nan(cond: Array, frame: Frame) -> bool:
    """Whether a condition is that any entry is NaN."""
    for tensor, where in origins(cond, frame):
        if tensor.op.type in ASKING:
            asked = (x for x in tensor.op.inputs if x.dtype == tf.bool)
            return any(_asks_for_nan(x, where) for x in asked)
        if tensor.op.type == "IsNan":
            return True
    return False


def _comparison(test: Any, frame: Frame, asked_by: Any) -> str | None:
    """Return the kind of a comparison that TensorFlow's formula of a chooser makes."""
    if test.type in ("GreaterEqual", "LessEqual") and _is_larger(test, frame, asked_by):
        return "larger"
    if _equality(test) is not None and _is_of_segments(_equality(test), frame, asked_by):
        return "equal"
    return None


def _is_chooser(test: Any) -> bool:
    """Whether a formula's comparison of real numbers, as `run` has repeated it, makes a tensor."""
    if not is_of_formula(test):
        return False
    compared = test if test.type in ("GreaterEqual", "LessEqual") else _equality(test)
    return compared is not None and compared.inputs[0].dtype.is_floating


def _is_repeated(op: Any) -> bool:
    """Whether a condition is a literal that stands in a loop or branch of the program."""
    # The formula's body has a literal of its own in place of it (2.21), told by the Python stack.
    # No operation but a selection has a condition that its formula asks for again.
    return op.type == "Const" and private.is_repeated(op)


def _is_dropping(test: Any, frame: Frame, asked_by: Any) -> bool:
    """Whether a condition drops entries of no segment, which have a negative segment number."""
    ids = _tested_by(test)
    if ids is None or ids.dtype.is_floating:
        return False
    known = tf.get_static_value(ids) is not None  # formulas in loops repeat constants
    return known or any(
        user.type in UNSORTED and i == 1 for user, i in consumers_in_program(ids, frame, asked_by)
    )


def _tested_by(test: Any) -> Array | None:
    """Return the tensor that is compared with 0, before it was broadcast."""
    while test.type in ("LogicalAnd", "Reshape"):
        test = test.inputs[0].op
    is_test = test.type == "GreaterEqual" and _same_constant(test.inputs[1], tf.constant(0))
    return test.inputs[0] if is_test else None


def _is_formula(op: Any) -> bool:
    """Whether an operation belongs to TensorFlow's own formulas, and not to a custom gradient."""
    # Told by its name scope: that of a tape, or the scope that `tf.gradients` makes for each
    # operation in the body of a function. A custom gradient stands in the scope of an `IdentityN`.
    scopes = op.name.split("/")[:-1]
    in_body = private.in_gradients(scopes)
    for scope in reversed(scopes):
        if scope == private.FORMULA or (in_body and scope.endswith(private.SUFFIX)):
            return not scope.startswith("IdentityN")
    return False


def _is_larger(test: Any, frame: Frame, asked_by: Any) -> bool:
    """Whether a maximum or minimum of the program makes this comparison."""
    x, y = test.inputs
    for a, b, place in ((x, y, 0), (y, x, 1)):
        other = {
            name_of(user) for user, i in consumers_in_program(b, frame, asked_by) if i == 1 - place
        }
        for user, i in consumers_in_program(a, frame, asked_by):
            if user.type in LARGER and i == place:
                known = _same_constant(user.inputs[1 - place], b)
                if known or name_of(user) in other:
                    return True
    return False


def _same_constant(x: Array, y: Array) -> bool:
    """Whether two tensors are equal constants, as formulas in loops repeat these."""
    a, b = tf.get_static_value(x), tf.get_static_value(y)
    return a is not None and b is not None and np.array_equal(a, b)


def _equality(test: Any) -> Any:
    """Return the comparison of entries with the largest of their segment."""
    if test.type == "LogicalAnd":
        tests = [x.op for x in test.inputs if x.op.type == "Equal"]
        return tests[0] if tests else None
    return test if test.type == "Equal" else None


def _is_of_segments(test: Any, frame: Frame, asked_by: Any) -> bool:
    x, y = test.inputs
    makers = {name_of(t.op) for t, _ in origins(_gathered(y), frame) if t.op.type in OF_SEGMENTS}
    return any(
        name_of(user) in makers and i == 0 for user, i in consumers_in_program(x, frame, asked_by)
    )


def _gathered(x: Array) -> Array:
    while x.op.type in ("GatherV2", "Reshape", "Select", "SelectV2"):
        x = x.op.inputs[1 if x.op.type in WHERE else 0]
    return x


def _nan_operand(op: Any, frame: Frame) -> Array:
    """Return where the first operand of a maximum or minimum is NaN, which is never the larger."""
    return tf.math.is_nan(value_of(frame.read(op.inputs[0].op.inputs[0])))


def _of_nan_segment(op: Any, frame: Frame) -> Array:
    """Return where an entry is NaN, and so is the largest of its segment: none is equal to it."""
    test = op.inputs[0].op
    both = (tf.math.is_nan(value_of(frame.read(x))) for x in _equality(test).inputs)
    rest = [x for x in test.inputs if test.type == "LogicalAnd" and x.op.type != "Equal"]
    return functools.reduce(tf.logical_and, (*both, *(value_of(frame.read(x)) for x in rest)))


# A comparison with NaN chooses the NaN: the operand is active, and the formula has its 0 there.
COMPARED = {"larger": _nan_operand, "equal": _of_nan_segment}


def product(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
    """Multiply by a coefficient; a coefficient that marks the largest entry selects."""
    at = [i for i, x in enumerate(ins) if isinstance(x, Pair)]
    if len(at) > 1:
        return of_two(op, ins, intersection)
    (pair,) = evaluator.scale(op, ins, frame)
    if len(at) != 1 or not _is_share(op.inputs[1 - at[0]], frame, op):
        return [pair]
    share = value_of(ins[1 - at[0]])
    has_share = tf.not_equal(share, tf.zeros((), share.dtype))
    best = value_of(frame.read(_compared(op.inputs[1 - at[0]]).inputs[0]))
    other = value_of(frame.read(_compared(op.inputs[1 - at[0]]).inputs[1]))
    # Where an entry is NaN nobody has a share, and the derivative is NaN.
    active = evaluator.spread(has_share | tf.math.is_nan(best) | tf.math.is_nan(other), pair.value)
    if pair.active is not True:
        active = tf.logical_and(active, evaluator.spread(pair.active, pair.value))
    return [Pair(evaluator.cleaned(pair.value, active), active)]


def quotient(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
    """Divide; the formula of `tf.math.reduce_euclidean_norm` divides by a cotangent, twice."""
    number, divisor = ins
    if isinstance(number, Pair) and isinstance(divisor, Pair):
        return of_two(op, ins, lambda number, _: number)
    if isinstance(number, Pair) or not isinstance(divisor, Pair) or not _is_formula(op):
        return evaluator.scale(op, ins, frame)
    active = divisor.active
    if active is not True:
        one = tf.ones((), divisor.value.dtype)
        divisor = one if active is False else tf.where(active, divisor.value, one)
    (value,) = run(op, [number, value_of(divisor)])
    active = evaluator.widened(active, value)
    return [Pair(evaluator.cleaned(value, active), active)]


def of_two(op: Any, ins: list[Any], active_in: Callable[[Mask, Mask], Mask]) -> list[Any]:
    """Multiply or divide two cotangents, in a custom gradient: absent times anything is absent."""
    (value,) = run(op, ins)
    active = active_in(*(evaluator.widened(x.active, value) for x in ins))
    return [Pair(evaluator.cleaned(value, active), active)]


def intersection(a: Mask, b: Mask) -> Mask:
    """Return where both masks are active."""
    if isinstance(a, bool) or isinstance(b, bool):
        first, second = (a, b) if isinstance(a, bool) else (b, a)
        return second if first is True else False
    return tf.logical_and(a, b)


def _is_share(share: Array, frame: Frame, asked_by: Any) -> bool:
    """Whether a coefficient marks a largest entry: ``cast(largest == x)``, or its quotient."""
    test = _compared(share)
    if test is None or not _is_formula(asked_by) or not evaluator.is_linear(test.inputs[0]):
        return False
    return any(_is_chosen(x, y, frame, asked_by) for x, y in (test.inputs, test.inputs[::-1]))


def _compared(share: Array) -> Any:
    """Return the comparison from which a coefficient is made; None if there is none."""
    cast = share.op.inputs[0].op if share.op.type == "RealDiv" else share.op
    test = cast.inputs[0].op if cast.type == "Cast" else None
    return test if test is not None and test.type == "Equal" else None


def _is_chosen(x: Array, y: Array, frame: Frame, asked_by: Any) -> bool:
    """Whether `x` is the largest of `y`, as a maximum or minimum of the program made it."""
    while y.op.type in ("ExpandDims", "GatherNd", "Reshape"):
        y = y.op.inputs[0]
    makers = {name_of(t.op) for t, _ in origins(y, frame) if t.op.type in LARGEST}
    return any(
        name_of(user) in makers and i != 1 for user, i in consumers_in_program(x, frame, asked_by)
    )
