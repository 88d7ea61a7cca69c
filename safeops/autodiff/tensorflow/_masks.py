"""
Masks of a graph: two parts of a whole are told by how they were made.

The gradient of `tf.where` parts a mask into ``mask & cond`` and ``mask & ~cond``, and the sum over
both branches joins the parts. The graph remembers how a mask was made, so that the whole is found
there and not computed. An eager tensor remembers nothing.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import tensorflow as tf

from safeops._backends.tensorflow import private
from safeops._core.types import Array
from safeops.autodiff import _pairs


class Part(NamedTuple):
    """Where a whole is active and a condition is True, or is False, by references to tensors."""

    whole: tuple[Any, ...]  # one mask; none: everywhere
    cond: Any
    side: bool

    @property
    def rest(self) -> "Part":
        """The other part of the whole."""
        return self._replace(side=not self.side)


def negated(cond: Array) -> Array:
    """Return where a condition is False."""
    # Grappler turns the negation of `x <= 0` into `x > 0` (TensorFlow 2.21), which is False for
    # NaN.
    return tf.equal(cond, False)  # noqa: FBT003  (a value)


def union(*masks: Any) -> Any:
    """Return where any of several masks of one shape is active."""
    todo, apart = list(masks), {}
    known: dict[Part, Any] = {}
    while todo:
        mask = todo.pop()
        found = list(_covered(mask))
        part = next((part for part in found if id(known.get(part.rest)) in apart), None)
        if part is None:
            apart[id(mask)] = mask
            known |= dict.fromkeys(found, mask)
        else:
            del apart[id(known[part.rest])]
            todo.append(_in_shape(part.whole[0].deref(), mask) if part.whole else True)
    return _pairs.union(*apart.values())


def _parts(mask: Any) -> Iterator[Part]:
    """Yield what a mask is a part of, as `negated` and a logical and have made it."""
    if isinstance(mask, bool) or hasattr(mask, "numpy"):  # an eager tensor
        return
    op = _origin(mask).op
    yield Part((), *_sided(mask))
    if op.type == "LogicalAnd":
        whole, cond = op.inputs
        yield Part((_origin(whole).ref(),), *_sided(cond))


def _covered(mask: Any) -> Iterator[Part]:
    """Yield the parts that a mask contains, of a whole that contains the mask."""
    yield from _parts(mask)
    if isinstance(mask, bool) or hasattr(mask, "numpy"):
        return
    op = _origin(mask).op
    whole: tuple[Any, ...] = ()
    if op.type == "LogicalAnd":
        op, whole = _origin(op.inputs[1]).op, (_origin(op.inputs[0]).ref(),)
    if op.type == "LogicalOr":
        yield from (Part(whole, *_sided(x)) for x in op.inputs)


def _origin(mask: Array) -> Array:
    """Return a mask as it was before it was broadcast."""
    while mask.op.type == "BroadcastTo":
        mask = mask.op.inputs[0]
    return mask


def _sided(mask: Array) -> tuple[Any, bool]:
    """Return a condition, and whether a mask is where it is True, or where it is False."""
    mask, side = _origin(mask), True
    while _is_negation(mask.op):
        mask, side = _origin(mask.op.inputs[0]), not side
    return mask.ref(), side


def _is_negation(op: Any) -> bool:
    """Whether an operation is that of `negated`."""
    if op.type != "Equal" or op.inputs[1].dtype != tf.bool:
        return False
    other = tf.get_static_value(op.inputs[1])
    return other is not None and not other.any()


def _in_shape(mask: Array, like: Array) -> Array:
    return mask if one_shape(mask, like) else tf.broadcast_to(mask, tf.shape(like))


def one_shape(*arrays: Array) -> bool:
    """Whether arrays are known to have one shape."""
    shape = arrays[0].shape
    return shape.is_fully_defined() and all(x.shape == shape for x in arrays)


# Values


def zeros(like: Array) -> Array:
    """Return zeros in the shape of a value, which XLA does not write out while it compiles."""
    return tf.compat.v1.zeros_like(like, optimize=not private.in_xla())


def chosen(cond: Array, x: Array, y: Array) -> Array:
    """Select like `tf.where`."""
    if one_shape(cond, x, y) and not private.in_xla():
        # The kernel of `tf.where` broadcasts, and takes twice the time (TensorFlow 2.21, CPU); for
        # XLA it is the other way round: to translate this operation takes 7 ms, and that 0.2.
        return tf.raw_ops.Select(condition=cond, x=x, y=y)
    return tf.where(cond, x, y)


def either(values: Sequence[Array], masks: Sequence[Any]) -> Array | None:
    """Return the sum of two values as the one that is active; None if that is not told."""
    # Nobody reads the zeros where a value is not active. So the operation that put them there does
    # not run, and that is what is saved. Where none is active, the result is any number.
    if len(values) != 2 or not one_shape(*values):  # noqa: PLR2004  (one or the other)
        return None
    rest = set(_parts(masks[1]))
    part = next((part for part in _parts(masks[0]) if part.rest in rest), None)
    if part is None:
        return None
    before = [_in_part(x, y) for x, y in zip(values, (part, part.rest), strict=True)]
    # Of a whole that is not everything, the result gets zeros again.
    if sum(x is not None for x in before) <= len(part.whole):
        return None
    cases = [x if y is None else y for x, y in zip(values, before, strict=True)]
    return chosen(_in_shape(part.cond.deref(), values[0]), *cases[:: 1 if part.side else -1])


def _in_part(value: Array, part: Part) -> Array | None:
    """Return what a selection has selected in a part; None if `value` is no such selection."""
    if value.op.type not in ("Select", "SelectV2"):
        return None
    cond, *cases = value.op.inputs
    if not one_shape(*cases, value) or (value.op.type == "Select" and not one_shape(cond, value)):
        return None  # the condition of `Select` may be one per row
    for found, known in product(_parts(cond), (part, part._replace(whole=()))):
        if found in (known, known.rest):
            return cases[found != known]
    return None
