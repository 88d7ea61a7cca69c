"""
The evaluator: a linear TensorFlow program, run over pairs of a value and its mask.

TensorFlow has built the backward graph already. The evaluator runs it forwards, with an arithmetic
in which an entry may be absent. No derivative is written in this file, except for three kernels
that return 0 for 0 times infinity. The table in `_rules` gives each type of operation its class;
one function serves a class.

Operations run through `tf.raw_ops`, so that outer tapes see them. An operation that meets only
active entries is the ordinary operation itself, and costs nothing.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from safeops._backends.tensorflow import private
from safeops._core.types import Array
from safeops.autodiff._options import report_unknown
from safeops.autodiff._pairs import Pair
from safeops.autodiff.tensorflow import _constants, _masks
from safeops.autodiff.tensorflow._constants import MATRICES, PRODUCTS, Meeting, meeting
from safeops.autodiff.tensorflow._running import is_of_formula, run, value_of

# True: all entries are active; False: none is. The mask of a list of tensors (a variant) is a list
# of 0 and 1 in the dtype of the values, so that operations on such lists serve both.
Mask: TypeAlias = bool | Array

# Operations that run bodies, and the attributes that name the bodies.
BODIES = {
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "StatelessCase": ("branches",),
    "While": ("body",),
    "StatelessWhile": ("body",),
}


@dataclass(frozen=True)
class Options:
    """The options of the user."""

    rules: Mapping[str, "Rule"]
    readers: frozenset[str]  # operations that read shapes only
    on_unknown: str = "warn"


@dataclass
class Frame:
    """One graph that runs: its tensors, and, for a body, the frame of its call."""

    how: Options
    backward: frozenset[str] = frozenset()  # names of the gradient's operations, outermost graph
    known: dict[Any, Any] = field(default_factory=dict)
    arguments: dict[Any, tuple[Array, "Frame"]] = field(default_factory=dict)
    inner: bool = False
    program: bool = False  # whether it is a body of the program, not of the gradient
    since: Container[str] = frozenset()  # names of operations after the seed, outermost graph
    # Of these, the ones that `tf.recompute_grad` runs again, which still belong to the program.
    again: Container[str] = frozenset()
    placed: _constants.Placed = field(default_factory=_constants.Placed)

    def read(self, tensor: Array) -> Any:
        """Return the value of a tensor."""
        key = tensor.ref()
        if not self.inner:
            return self.known.get(key, tensor)
        return self.known[key]


Rule: TypeAlias = Callable[[Any, list[Any], Frame], list[Any]]


def evaluate(targets: Sequence[Array], frame: Frame) -> list[Any]:
    """Return the values of tensors of a linear program; the inputs stand in the frame."""
    for op in _in_order(targets, frame):
        if op.type == "Placeholder":
            continue  # an argument that no caller gives, such as an unused one
        ins = [frame.read(x) for x in op.inputs]
        for i in unused_cotangents(op, frame.since):
            ins[i] = Pair(ins[i], active=False)
        if op.type in frame.how.readers or not any(isinstance(x, Pair) for x in ins):
            outs = run(op, ins)
        else:
            outs = frame.how.rules.get(op.type, unknown)(op, ins, frame)
            outs = [frame.placed.with_constant(x, ins) for x in outs]
        for tensor, out in zip(op.outputs, outs, strict=True):
            frame.known[tensor.ref()] = _shaped(out, tensor.shape)
    return [frame.read(x) for x in targets]


def _shaped(x: Any, shape: Any) -> Any:
    """Give a value and its mask the static shape that the program knows."""
    value_of(x).set_shape(shape)
    if isinstance(x, Pair) and not isinstance(x.active, bool):
        x.active.set_shape(shape)
    return x


def _in_order(targets: Sequence[Array], frame: Frame) -> list[Any]:
    """Return the operations that make tensors, each after those that it depends on."""
    order, seen = [], set()
    stack = [(x.op, False) for x in targets]
    while stack:
        op, done = stack.pop()
        if done:
            order.append(op)
            continue
        if op.name in seen or not _is_ours(op, frame):
            continue
        seen.add(op.name)
        stack.append((op, True))
        stack.extend((x.op, False) for x in op.inputs)
    return order


def _is_ours(op: Any, frame: Frame) -> bool:
    """Whether an operation is to be run: in the outermost graph, only if it depends on the seed."""
    if frame.inner:
        return any(x.ref() not in frame.known for x in op.outputs)
    return op.name in frame.backward


def dependents(
    seeds: Iterable[Array],
    operations: Sequence[Any],
    how: Options,
    new: Container[str] = frozenset(),
) -> tuple[frozenset[str], set[Any]]:
    """Return the names of the operations, and the tensors, that are linear in the seeds."""
    reached = {x.ref() for x in seeds}
    found: set[str] = set()
    for op in operations:
        if op.type in how.readers:
            continue
        if any(x.ref() in reached for x in op.inputs) or unused_cotangents(op, new):
            found.add(op.name)
            reached |= {x.ref() for x in op.outputs if is_linear(x)}
    return frozenset(found), reached


def unused_cotangents(op: Any, new: Container[str]) -> list[int]:
    """Return the positions of an operation's arguments that are cotangents of unused results."""
    # TensorFlow puts zeros there: inside a call, loop or branch, or beside the formula.
    if op.type in BODIES:
        return _unused_in_call(op, new)
    return [i for i, x in enumerate(op.inputs) if _is_formula_zero(x, new) and is_zero(x)]


def _is_formula_zero(x: Array, new: Container[str]) -> bool:
    """Whether a tensor is, by its name, a zero that TensorFlow hands to a formula."""
    is_number = x.dtype.is_floating or x.dtype.is_complex
    if x.op.type not in ("Const", "Fill", "ZerosLike") or not is_number:
        return False
    *scopes, name = x.op.name.split("/")
    if not private.ZEROS.fullmatch(name):
        return False
    users = [op.name.split("/") for op in x.consumers()]
    if scopes and private.GRADIENTS.fullmatch(scopes[-1]):
        n = len(scopes)
        return all(user[:n] == scopes and user[n].endswith(private.SUFFIX) for user in users)
    is_new = x.op.name in new and private.FORMULA not in scopes
    of_formulas = is_new and all(private.FORMULA in user for user in users)
    return of_formulas and not private.made_by_custom_gradient(x.op)


def _unused_in_call(op: Any, new: Container[str]) -> list[int]:
    """Return the arguments that are cotangents of unused results of a call, loop or branch."""
    if not new:
        return []
    called = getattr(op.get_attr(BODIES[op.type][0]), "name", "")
    if not is_of_formula(op) and private.BACKWARD not in called:
        return []
    return [
        i
        for i, x in enumerate(op.inputs)
        if x.op.name in new and is_linear(x) and x.dtype != tf.variant and is_zero(x)
    ]


def recomputed(operations: Iterable[Any]) -> frozenset[str]:
    """Return the names of a tape's operations that are outside of its own formulas."""
    return frozenset(op.name for op in operations if private.FORMULA not in op.name)


def is_linear(x: Array) -> bool:
    """Whether a tensor can be a cotangent; a list of tensors can."""
    return x.dtype.is_floating or x.dtype.is_complex or x.dtype == tf.variant


# Values and masks


def active_of(x: Any) -> Mask:
    """Return which entries are active."""
    # A coefficient where a linear value belongs is absent if it is known to be 0. Whatever else a
    # custom gradient adds is active.
    if isinstance(x, Pair):
        return x.active
    if x.dtype == tf.variant:
        return x
    return False if is_zero(x) else tf.not_equal(x, tf.zeros((), x.dtype))


def is_zero(x: Array) -> bool:
    """Whether a tensor is known to be 0."""
    if hasattr(x, "numpy"):  # an eager tensor
        return not x.numpy().any()
    if x.op.type == "ZerosLike":
        return True
    if x.op.type in ("Fill", "BroadcastTo"):
        return is_zero(x.op.inputs[x.op.type == "Fill"])
    number = tf.get_static_value(x)
    return number is not None and not number.any()


def spread(mask: Mask, like: Array) -> Array:
    """Return a mask as an array in the shape of a value."""
    if like.dtype == tf.variant:
        return mask if tf.is_tensor(mask) else like  # False: a list of zeros is its own mask
    if isinstance(mask, bool):
        return tf.fill(tf.shape(like), mask)
    if mask.shape.is_fully_defined() and mask.shape == like.shape:
        return mask
    return tf.broadcast_to(mask, tf.shape(like))


def widened(mask: Mask, like: Array) -> Mask:
    """Return a mask in the shape of a value; True and False stay as they are."""
    return mask if isinstance(mask, bool) else spread(mask, like)


def cleaned(value: Array, active: Mask) -> Array:
    if active is True:
        return value
    if active is False:
        return _masks.zeros(value)
    zero = _masks.zeros(value) if _masks.one_shape(active, value) else tf.zeros((), value.dtype)
    return _masks.chosen(active, value, zero)


def indicator(x: Any) -> Array:
    """Return a mask as 0 and 1 in the dtype of the values, for which the operations are made."""
    value, active = value_of(x), active_of(x)
    if value.dtype == tf.variant:
        return spread(active, value)
    if isinstance(active, bool):
        return tf.ones_like(value) if active else _masks.zeros(value)
    return tf.cast(spread(active, value), value.dtype)


def counted_active(value: Array, counts: Array) -> Pair:
    """Return a pair from the results of an operation for a value and for its indicator."""
    if value.dtype == tf.variant:
        return Pair(value, counts)
    return Pair(value, tf.not_equal(counts, tf.zeros((), counts.dtype)))


# Classes


def transport(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
    """Move entries, or sum them: the same operation on the mask."""
    linear = [i for i, x in enumerate(ins) if is_linear(value_of(x))]
    values = run(op, ins)
    masks = [active_of(ins[i]) for i in linear]
    if all(m is False for m in masks):
        return [Pair(v, active=False) for v in values]
    if op.type in _FILLS_NOTHING and not _excludes(op) and all(m is True for m in masks):
        return [Pair(v) for v in values]
    given = dict(zip(linear, masks, strict=True))
    entries = _constants.moved_entries(op, ins, given, frame.placed.reader)
    if entries is not None:
        for value, tensor in zip(values, op.outputs, strict=True):
            value.set_shape(tensor.shape)
        return [Pair(v, frame.placed.mask(m, v)) for v, m in zip(values, entries, strict=True)]
    moved = [indicator(x) if i in linear else x for i, x in enumerate(ins)]
    pairs = zip(values, run(op, moved), strict=True)
    return [counted_active(v, m) if is_linear(v) else v for v, m in pairs]


# Operations that only move entries of their arguments. An empty sum is 0, and active.
_FILLS_NOTHING = frozenset(
    """
    Reshape ExpandDims Squeeze Transpose ConjugateTranspose Slice StridedSlice Gather GatherV2
    GatherNd ConcatV2 Concat Pack Unpack Split SplitV Tile BroadcastTo Reverse ReverseV2
    ReverseSequence Roll Identity IdentityN Snapshot PreventGradient StopGradient EnsureShape
    CheckNumerics CheckNumericsV2 DepthToSpace SpaceToDepth Sum Mean Cumsum BiasAddGrad
    DynamicPartition TensorScatterUpdate TensorScatterAdd
    """.split()  # noqa: SIM905  (a list of words)
)


def _excludes(op: Any) -> bool:
    """Whether some results are a 0 without an entry: an empty sum, or an index out of range."""
    if op.type == "Cumsum":
        return bool(op.get_attr("exclusive"))
    if op.type == "GatherNd" and op.get_attr("bad_indices_policy") == b"IGNORE":
        return True
    # On a GPU an index out of range gives 0; on a CPU it is an error.
    return op.type in ("Gather", "GatherV2", "GatherNd") and bool(
        tf.config.list_logical_devices("GPU")
    )


def total(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
    """Sum entries: active where any summand is, which is a sum over the mask."""
    return transport(op, ins, frame)


def unpool(op: Any, ins: list[Any], _: Frame) -> list[Any]:
    """Send entries to the places that a coefficient tells, as in max pooling."""
    (value,) = run(op, ins)
    moved = [indicator(x) if isinstance(x, Pair) else x for x in ins]
    return [counted_active(value, run(op, moved)[0])]


def same(op: Any, ins: list[Any], _: Frame) -> list[Any]:
    """Map each entry to itself, linearly: the mask is unchanged."""
    (value,) = run(op, ins)
    if not is_linear(value):
        return [value]
    return [Pair(value, active_of(ins[0]))]


def add(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
    """Add: absent plus a number is the number."""
    (value,) = run(op, ins)
    if value.dtype == tf.variant:
        return [Pair(value, run(op, [indicator(x) for x in ins])[0])]
    masks = [active_of(x) for x in ins]
    active = frame.placed.computed(
        lambda *masks: np.logical_or.reduce(np.broadcast_arrays(*masks)),
        masks,
        value,
        lambda *masks: _masks.union(*(widened(m, value) for m in masks)),
    )
    if op.type in _SUMS and (one := _masks.either([value_of(x) for x in ins], masks)) is not None:
        value = cleaned(one, active)
    return [Pair(value, active)]


_SUMS = ("Add", "AddV2", "AddN")


def scale(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
    """Multiply by coefficients, elementwise; absent stays absent."""
    at = [i for i, x in enumerate(ins) if isinstance(x, Pair)]
    if len(at) != 1 or (op.type in _QUOTIENTS and at != [0]):
        return elementwise(op, ins, frame)
    (value,) = run(op, ins)
    active = widened(ins[at[0]].active, value)
    if len(ins) == 2 and _is_harmless(ins[1 - at[0]], op.type):  # noqa: PLR2004  (a product)
        return [Pair(value, active)]
    return [Pair(cleaned(value, active), active)]


def elementwise(op: Any, ins: list[Any], _: Frame) -> list[Any]:
    """Compute entry by entry, in the formula of a custom gradient."""
    # An absent entry enters as 0. A result that is not 0 is a number; a result 0 is as absent as
    # its operands. Booleans are numbers.
    values = run(op, ins)
    masks = [x.active for x in ins if isinstance(x, Pair)]
    return [
        Pair(x, _masks.union(*(widened(m, x) for m in masks), unless_zero(masks, x)))
        if is_linear(x)
        else x
        for x in values
    ]


def unless_zero(masks: Sequence[Mask], value: Array) -> Mask:
    """Return where a value is not 0, if a mask has absent entries."""
    if any(m is True for m in masks):
        return True
    return tf.not_equal(value, tf.zeros((), value.dtype))


def _is_harmless(factor: Array, kind: str) -> bool:
    """Whether a literal coefficient, such as 2.0, maps 0 to 0."""
    number = tf.get_static_value(factor)
    if number is None or kind not in ("Mul", "RealDiv", "Div"):
        return False
    number = number.astype(complex)
    return bool(np.isfinite(number).all() and (kind == "Mul" or number.all()))


_QUOTIENTS = ("RealDiv", "Div", "DivNoNan")


def root(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
    """Differentiate sqrt, rsqrt and 1/x in IEEE arithmetic."""
    # TensorFlow's kernels return 0 for a zero cotangent beside an infinite slope (2.21, outside
    # XLA).
    y, cotangent = ins
    if isinstance(y, Pair):
        return unknown(op, ins, frame)
    root = tf.math.conj(y) if y.dtype.is_complex else y
    dy = cotangent.value
    half = tf.constant(0.5, y.dtype)
    formulas = {
        "SqrtGrad": lambda: dy * half / root,
        "RsqrtGrad": lambda: dy * (-half * root * root * root),
        "ReciprocalGrad": lambda: dy * (-root * root),
        "InvGrad": lambda: dy * (-root * root),
    }
    value = formulas[op.type]()
    return [Pair(cleaned(value, cotangent.active), cotangent.active)]


def rectify(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
    """Select where a rectifier lets entries through, and where its input is NaN."""
    cotangent, features = ins
    if isinstance(features, Pair) or not isinstance(cotangent, Pair):
        return unknown(op, ins, frame)
    passes = _masks.negated(features <= 0)
    if op.type == "Relu6Grad":
        passes &= _masks.negated(features >= 6)  # noqa: PLR2004  (the six of its name)
    active = passes if cotangent.active is True else passes & spread(cotangent.active, features)
    (value,) = run(op, ins)
    return [Pair(cleaned(value, active), active)]


def contract(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
    """Multiply and sum: an absent entry meets no coefficient that is not finite."""
    at = [i for i, x in enumerate(ins) if isinstance(x, Pair)]
    others = [i for i, x in enumerate(ins) if i not in at and is_linear(value_of(x))]
    if not others:  # an Einsum of one operand
        return transport(op, ins, frame)
    if len(at) != 1 or len(others) != 1:
        return unknown(op, ins, frame)
    pair, other = ins[at[0]], ins[others[0]]
    if pair.active is False:
        return [Pair(_masks.zeros(run(op, ins)[0]), active=False)]

    def product(x: Array, y: Array) -> Array:
        return run(
            op, [x if i == at[0] else y if i == others[0] else z for i, z in enumerate(ins)]
        )[0]

    if pair.active is True and op.type in PRODUCTS:
        return [Pair(product(pair.value, other))]
    entries = frame.placed.reader.entries_of(pair.active) if op.type in PRODUCTS else None
    known = None if entries is None else meeting(op, at[0], entries)
    if known is not None:
        return [_of_known(product, pair, other, known, frame.placed)]
    return [_of_some(op, at[0], product, pair, other)]


def _of_some(op: Any, at: int, product: Any, pair: Pair, other: Array) -> Pair:
    """Return a product by a mask that the graph computes."""
    if op.type in MATRICES:
        mask = spread(pair.active, pair.value)
        value = _exact(product, pair, other, _met_by(op, at, mask))
        return Pair(value, _reached(op, at, mask, value))
    counts = product(indicator(pair), tf.ones_like(other))
    active = tf.math.real(counts) > 0.5  # noqa: PLR2004  (whole, but for rounding)
    return Pair(_exact(product, pair, other), active)


def _of_known(
    product: Any, pair: Pair, y: Array, known: Meeting, placed: _constants.Placed
) -> Pair:
    """Return a product by a known mask: most often coefficients that meet nothing are set to 0."""
    met_by = placed.mask(known.met, y)
    alone = not known.mixes
    value = product(pair.value, cleaned(y, met_by)) if alone else _used(product, pair, y, met_by)
    active = placed.mask(known.reached, value)
    return Pair(cleaned(value, active), active)


def _summed(op: Any, at: int) -> int:
    """Return the axis of an argument over which a product of matrices sums."""
    return -1 if (at == 0) != op.get_attr(MATRICES[op.type][at]) else -2


def _reached(op: Any, at: int, mask: Array, value: Array) -> Array:
    """Return where a product of matrices is active: where any summand is."""
    reached = tf.reduce_any(mask, _summed(op, at), keepdims=True)
    turned = op.get_attr(MATRICES[op.type][at])
    return spread(tf.linalg.matrix_transpose(reached) if turned else reached, value)


def _met_by(op: Any, at: int, mask: Array) -> Array:
    """Return which coefficients of a product of matrices meet an active entry."""
    ours, theirs = _summed(op, at), _summed(op, 1 - at)
    met_by = tf.reduce_any(mask, -3 - ours, keepdims=True)  # any over the other axis
    return met_by if ours == theirs else tf.linalg.matrix_transpose(met_by)


def _exact(product: Any, pair: Pair, y: Array, met_by: Any = None) -> Array:
    """Return a product in which absent entries meet no coefficient that is not finite."""
    return _if_finite(product, pair.value, y, lambda _: _used(product, pair, y, met_by))


def _used(product: Any, pair: Pair, y: Array, met_by: Any) -> Array:
    """Set coefficients to 0 that meet absent entries only; most often that is enough."""
    x = pair.value

    def careful(y: Array) -> Array:
        # The exact product: where an active entry meets one that is not finite, the IEEE product
        # stands.
        finite = is_finite(y)
        counts = product(indicator(pair), tf.cast(~finite, y.dtype))
        hit = tf.math.real(counts) > 0.5  # noqa: PLR2004  (whole, but for rounding)
        return tf.where(hit, product(x, y), product(x, cleaned(y, finite)))

    return careful(y) if met_by is None else _if_finite(product, x, cleaned(y, met_by), careful)


def _if_finite(product: Any, x: Array, y: Array, otherwise: Any) -> Array:
    """Return a product, or `otherwise` if a coefficient is not finite."""
    finite = tf.reduce_all(is_finite(y))
    return tf.cond(finite, lambda: product(x, y), lambda: otherwise(y))


def is_finite(x: Array) -> Array:
    """Return where a real or complex array is finite."""
    if x.dtype.is_complex:
        return is_finite(tf.math.real(x)) & is_finite(tf.math.imag(x))
    if private.in_xla():  # which takes 12 ms to translate `is_finite`, and 0.4 for this (2.21)
        return tf.logical_and(x > -np.inf, x < np.inf)
    return tf.math.is_finite(x)


def unknown(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
    """Run an operation as it is: all its results are active, and nothing is hidden."""
    active = [x.active for x in ins if isinstance(x, Pair)]
    msg = f"{op.type} has no rule: what it leaves out counts as used, as in tf.GradientTape"
    if any(m is not True for m in active):
        msg = (
            f"{op.type} has no rule for absent entries: from here on they are zeros, as in "
            "tf.GradientTape"
        )
    report_unknown(msg, frame.how.on_unknown)
    if any(x.dtype == tf.variant for x in op.outputs):
        msg = f"expected operations on lists of tensors that have a rule, got {op.type}"
        raise NotImplementedError(msg)
    return [Pair(x) if is_linear(x) else x for x in run(op, ins)]
