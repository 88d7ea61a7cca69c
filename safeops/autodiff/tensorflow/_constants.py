"""
Masks of a graph that depend on no argument, such as those of a slice and of a causal attention.

A symbolic tensor knows the operation that made it. By these operations its value is computed again
in NumPy, with length 1 along each axis along which it does not vary. So a mask that is known enters
the graph as a small constant, and XLA has no reductions to fold over it in its full shape.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from safeops._backends.tensorflow.private import in_xla
from safeops._core.types import Array
from safeops.autodiff._pairs import Pair
from safeops.autodiff._small import DEEPEST, LARGEST, SMALL, computed, folded, narrowed, reshaped
from safeops.autodiff.tensorflow._running import run, value_of

WHOLE = 2**24  # entries in their full shape, in which an operation of TensorFlow moves them
COUNTED = {tf.bfloat16: 2**8, tf.float16: 2**11}  # sums of ones that are exact

Rule: TypeAlias = Callable[[Any, Sequence[np.ndarray]], np.ndarray | None]


class Placed:
    """Known masks in a graph, one of a kind."""

    # XLA of TensorFlow (2.21) computes what depends on no argument in its full shape while it
    # compiles, whether a result needs it or not. So it gets as few of these as can be.

    def __init__(self) -> None:
        self.made: dict[Any, Array] = {}
        self.reader = Reader()

    def with_constant(self, x: Any, ins: Sequence[Any]) -> Any:
        """Return a result with True, False or a small constant for a known mask that is new."""
        if not isinstance(x, Pair):
            return x
        old = [*(y.active for y in ins if isinstance(y, Pair)), *self.made.values()]
        if any(x.active is y for y in old):
            return x
        entries = self.reader.entries_of(x.active) if x.value.shape.is_fully_defined() else None
        if entries is None or entries.dtype != bool:
            return x
        return replace(x, active=self.mask(entries, x.value, lambda: x.active))

    def mask(self, entries: np.ndarray, like: Array, make: Callable[[], Any] | None = None) -> Any:
        """Return known entries as a mask of a value, made by the graph if they are too many."""
        entries = folded(entries)
        if isinstance(entries, bool):
            return entries
        if not like.shape.is_fully_defined():
            return make() if make else tf.broadcast_to(tf.constant(entries), tf.shape(like))
        graph = tf.compat.v1.get_default_graph()
        key = (graph, tuple(like.shape), entries.shape, entries.tobytes())
        if key not in self.made:
            self.made[key] = (
                make()
                if make and entries.nbytes > SMALL
                else tf.broadcast_to(dependent(tf.constant(entries), like), like.shape)
            )
        return self.made[key]

    def computed(self, f: Any, masks: Sequence[Any], like: Array, make: Callable[..., Any]) -> Any:
        """Return what a function of NumPy makes of known masks; what `make` does if it must."""
        read = self.reader.entries_of
        every = (np.asarray(x) if isinstance(x, bool) else read(x) for x in masks)
        known = [x for x in every if x is not None]
        entries = computed(f, known, bool) if len(known) == len(masks) else None
        if entries is None or not like.shape.is_fully_defined():
            return make(*masks)
        entries = entries.reshape((1,) * (like.shape.rank - entries.ndim) + entries.shape)
        return self.mask(entries, like, lambda: make(*(dependent(x, like) for x in masks)))


def dependent(mask: Any, like: Array) -> Any:
    """Return a mask that is to be repeated in the shape of a value, and depends on it by name."""
    # What depends on no argument XLA of TensorFlow (2.21) computes in its full shape while it
    # compiles, for each use. Outside of XLA it is computed once, which makes each step shorter.
    if isinstance(mask, bool) or mask.shape == like.shape or not in_xla():
        return mask
    zero = tf.raw_ops.ZerosLike(x=tf.reshape(like, (-1,))[:1])
    none = tf.reshape(tf.not_equal(zero, tf.zeros((), like.dtype)), (1,) * mask.shape.rank)
    return tf.not_equal(mask, none)


def moved_entries(
    op: Any, ins: Sequence[Any], masks: Mapping[int, Any], reader: "Reader"
) -> list[np.ndarray] | None:
    """Return the masks of an operation's results by those of its arguments; None if not known."""

    def given(i: int) -> np.ndarray | None:
        x, mask = op.inputs[i], masks.get(i)
        if mask is None:
            return reader.read(value_of(ins[i]))
        if not x.shape.is_fully_defined():
            return None
        bare = isinstance(mask, bool)
        known = np.full((1,) * x.shape.rank, mask) if bare else reader.entries_of(mask)
        return None if known is None else known.astype(x.dtype.as_numpy_dtype)

    found = [result_of(x, given) for x in op.outputs]
    known = [x != 0 for x in found if x is not None]
    few = all(x.nbytes <= SMALL for x in known)
    return known if few and len(known) == len(found) else None


class Reader:
    """Computes values again, each once."""

    def __init__(self) -> None:
        self.found: dict[Any, np.ndarray | None] = {}

    def entries_of(self, mask: Any) -> np.ndarray | None:
        """Return the value of a symbolic tensor that depends on no argument; None if it does."""
        symbolic = tf.is_tensor(mask) and not hasattr(mask, "numpy")
        return self.read(mask) if symbolic else None

    def read(self, x: Array, depth: int = DEEPEST) -> np.ndarray | None:
        """Return a value; None if it depends on an argument, or on what is not computed here."""
        if hasattr(x, "numpy"):
            return None
        key = x.ref()
        if key in self.found:
            return self.found[key]
        value = result_of(x, lambda i: self.read(x.op.inputs[i], depth - 1)) if depth else None
        if value is not None or depth == DEEPEST:  # else it may be known in fewer steps
            self.found[key] = value
        return value


def result_of(x: Array, given: Callable[[int], np.ndarray | None]) -> np.ndarray | None:
    """Return the result of an operation; of numbers only what compares and moves them."""
    op, shape = x.op, x.shape
    rule = RULES.get(op.type)
    if op.type == "BroadcastGradientArgs":  # whose results have no shape that is known
        shapes = [v for i in range(len(op.inputs)) if (v := given(i)) is not None]
        return summed_over(shapes, x.value_index) if len(shapes) == len(op.inputs) else None
    if rule is None or not shape.is_fully_defined():
        return None
    if 0 in shape.as_list() and not x.dtype.is_integer:  # a list of axes may be empty
        return None
    if op.type in OF_INTEGERS and not x.dtype.is_integer:
        return None
    values = []
    for i in range(len(op.inputs))[: READ.get(op.type)]:
        value = given(i)
        if value is None:
            return None
        values.append(value)
    return rule(op, values)


def written(op: Any, _: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return a constant of the program."""
    if op.outputs[0].shape.num_elements() > LARGEST:
        return None
    return narrow(tf.make_ndarray(op.get_attr("value")))


def narrow(x: np.ndarray) -> np.ndarray:
    """Return an array with length 1 where it does not vary; a list of numbers as it is."""
    return x if x.ndim == 1 and x.dtype.kind in "iu" else narrowed(x)


def summed_over(shapes: Sequence[Any], which: int) -> np.ndarray:
    """Return the axes over which the cotangent of an operand that was broadcast is summed."""
    rank = max(map(len, shapes))
    own, other = (
        [1] * (rank - len(x)) + as_integers(x) for x in (shapes[which], shapes[1 - which])
    )
    missing = rank - len(shapes[which])
    axes = [i for i in range(rank) if i < missing or (own[i] == 1 and other[i] != 1)]
    return np.asarray(axes, np.int32)


def sized(op: Any, _: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return a shape that is known."""
    shape = op.inputs[0].shape
    dtype = op.outputs[0].dtype.as_numpy_dtype
    return np.asarray(shape.as_list(), dtype) if shape.is_fully_defined() else None


def filled(number: Any, op: Any, values: Sequence[np.ndarray]) -> np.ndarray:
    """Return one number throughout."""
    out = op.outputs[0]
    number = values[1] if number is None else number
    return np.full((1,) * out.shape.rank, number, out.dtype.as_numpy_dtype)


def converted(op: Any, values: Sequence[np.ndarray]) -> np.ndarray | None:
    """Convert, but no real number to an integer, which may be too large for it."""
    (x,), dtype = values, op.outputs[0].dtype
    exact = op.inputs[0].dtype.is_integer or op.inputs[0].dtype.is_bool or not dtype.is_integer
    return x.astype(dtype.as_numpy_dtype) if exact and x.dtype.kind != "c" else None


def shaped(op: Any, values: Sequence[np.ndarray]) -> np.ndarray:
    """Give entries another shape."""
    return reshaped(values[0], *(tuple(x.shape.as_list()) for x in (op.inputs[0], op.outputs[0])))


def transposed(op: Any, values: Sequence[np.ndarray]) -> np.ndarray:
    """Move axes."""
    del op
    return values[0].transpose(as_integers(values[1]))


def as_integers(x: np.ndarray) -> Any:
    """Return the numbers of a list of axes."""
    return [int(i) for i in np.ravel(x)]


def broadcast(op: Any, values: Sequence[np.ndarray]) -> np.ndarray:
    """Repeat entries along axes, along which they do not vary."""
    x, rank = values[0], op.outputs[0].shape.rank
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def tiled(op: Any, values: Sequence[np.ndarray]) -> np.ndarray:
    """Repeat entries in turn, but not along an axis along which they do not vary."""
    del op
    x, times = values
    return np.tile(
        x, [1 if n == 1 else t for n, t in zip(x.shape, as_integers(times), strict=True)]
    )


def reduced(f: Callable[..., Any], op: Any, values: Sequence[np.ndarray]) -> np.ndarray:
    """Ask for any or all entries along axes."""
    keep = op.get_attr("keep_dims")
    return np.asarray(f(values[0], axis=tuple(as_integers(values[1])), keepdims=keep))


def summed(op: Any, values: Sequence[np.ndarray]) -> np.ndarray | None:
    """Count entries along axes, of which a mask has 0 and 1."""
    x, shape = values[0], op.inputs[0].shape.as_list()
    if not np.isin(x, (0, 1)).all():
        return None
    axes = [i % x.ndim for i in as_integers(values[1])]
    times = math.prod(shape[i] for i in axes if x.shape[i] == 1)
    total = x.real.astype(float).sum(tuple(axes), keepdims=op.get_attr("keep_dims")) * times
    dtype = op.outputs[0].dtype
    return total.astype(dtype.as_numpy_dtype) if total.max() <= COUNTED.get(dtype, 2**24) else None


def elementwise(f: Callable[..., Any], op: Any, values: Sequence[np.ndarray]) -> np.ndarray | None:
    """Compute entries one by one."""
    return computed(f, values, op.outputs[0].dtype.as_numpy_dtype)


def moved(op: Any, values: Sequence[np.ndarray]) -> np.ndarray | None:
    """Move entries in their full shape, by the operation itself."""
    sizes = [x.shape.num_elements() for x in (*op.inputs, *op.outputs)]
    if any(n is None or n > WHOLE for n in sizes) or len(op.outputs) != 1:
        return None
    with tf.init_scope(), tf.device("CPU"):
        if not tf.executing_eagerly():  # a graph of TensorFlow 1
            return None
        given = [
            tf.constant(np.broadcast_to(v, x.shape.as_list()), x.dtype)
            for v, x in zip(values, op.inputs, strict=True)
        ]
        return narrow(run(op, given)[0].numpy())


def same(op: Any, values: Sequence[np.ndarray]) -> np.ndarray:
    """Pass a value on."""
    del op
    return values[0]


# How many arguments are read, where not all are: a shape is known from the result.
READ = dict.fromkeys(("Const", "Shape", "ZerosLike", "OnesLike"), 0) | dict.fromkeys(
    ("Reshape", "ExpandDims", "Squeeze", "BroadcastTo"), 1
)
OF_INTEGERS = (
    "AddV2", "Sub", "Mul", "Neg", "Maximum", "Minimum", "FloorDiv", "FloorMod", "Range", "Prod",
)  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
    "LogicalNot": np.logical_not,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "SelectV2": np.where,
}
MOVES = """
    Slice StridedSlice StridedSliceGrad Pad PadV2 ConcatV2 Pack Gather GatherV2 Reverse
    ReverseV2 MatrixBandPart Range FloorDiv FloorMod InvertPermutation Prod
""".split()  # noqa: SIM905  (a list of words)
RULES: dict[str, Rule] = {
    "Const": written,
    "Shape": sized,
    "Fill": partial(filled, None),
    "ZerosLike": partial(filled, 0),
    "OnesLike": partial(filled, 1),
    "Cast": converted,
    **dict.fromkeys(("Reshape", "ExpandDims", "Squeeze"), shaped),
    "Transpose": transposed,
    "BroadcastTo": broadcast,
    "Tile": tiled,
    "Any": partial(reduced, np.any),
    "All": partial(reduced, np.all),
    "Sum": summed,
    **dict.fromkeys(("Identity", "Snapshot", "StopGradient", "PreventGradient"), same),
    **{name: partial(elementwise, f) for name, f in _FUNCTIONS.items()},
    **dict.fromkeys(MOVES, moved),
}


# Products of tensors whose cotangent has a known mask. Most masks leave out rows of a batch. Then
# each coefficient meets active entries alone or absent ones alone, or each sum has summands of one
# kind alone, and one product is enough.
MATRICES = {
    "MatMul": ("transpose_a", "transpose_b"),
    "BatchMatMul": ("adj_x", "adj_y"),
    "BatchMatMulV2": ("adj_x", "adj_y"),
    "BatchMatMulV3": ("adj_x", "adj_y"),
}
PRODUCTS = (*MATRICES, "Einsum")  # in these, each entry of the result has a summand

Axes = tuple[str, ...]


class Meeting(NamedTuple):
    """Which coefficients meet an active entry, which results have one, and whether sums mix."""

    met: np.ndarray
    reached: np.ndarray
    mixes: bool


def meeting(op: Any, at: int, entries: np.ndarray) -> Meeting | None:
    """Return what meets in a product, by the known mask of one argument; None if not told."""
    names = names_of(op)
    if names is None:
        return None
    ours, theirs, out = names[at], names[1 - at], names[2]
    varying = {name for name, n in zip(ours, entries.shape, strict=True) if n > 1}
    mixes = not (varying <= set(theirs) or varying <= set(out))
    return Meeting(projected(entries, ours, theirs), projected(entries, ours, out), mixes)


def projected(entries: np.ndarray, names: Axes, others: Axes) -> np.ndarray:
    """Return where any entry is active, with the axes of another tensor."""
    found = entries.any(tuple(i for i, name in enumerate(names) if name not in others))
    left = [name for name in names if name in others]
    found = np.asarray(found).transpose([left.index(name) for name in others if name in left])
    return np.expand_dims(found, tuple(i for i, name in enumerate(others) if name not in left))


def names_of(op: Any) -> tuple[Axes, Axes, Axes] | None:
    """Return names of the axes of both arguments and of the result; None if not told."""
    tensors = [*op.inputs, *op.outputs]
    if len(tensors) != 3 or not all(x.shape.is_fully_defined() for x in tensors):  # noqa: PLR2004  (two and one)
        return None
    if op.type in MATRICES:
        found = _of_matrices(op, [x.shape.rank for x in tensors])
    else:
        left, _, out = op.get_attr("equation").decode().replace(" ", "").partition("->")
        found = [tuple(term) for term in (*left.split(","), out)]
    if "." in found[0] + found[1] + found[2] or any(len(set(x)) != len(x) for x in found):
        return None
    longest: dict[str, int] = {}
    for x, names in zip(tensors, found, strict=True):
        for name, n in zip(names, x.shape, strict=True):
            longest[name] = max(n, longest.get(name, 1))
    a, b, c = (_broadcast(x, names, longest) for x, names in zip(tensors, found, strict=True))
    return a, b, c


def _of_matrices(op: Any, ranks: Sequence[int]) -> list[Axes]:
    """Return names of the axes of a product of matrices, whose batches are aligned at their end."""
    turned = [op.get_attr(name) for name in MATRICES[op.type]]
    ends = ["km" if turned[0] else "mk", "nk" if turned[1] else "kn", "mn"]
    pairs = zip(ranks, ends, strict=True)
    return [(*(str(i) for i in range(rank - 2, 0, -1)), *end) for rank, end in pairs]


def _broadcast(x: Array, names: Axes, longest: dict[str, int]) -> Axes:
    """Return names of axes, where one that is repeated along another has a name of its own."""
    sizes = zip(names, x.shape, strict=True)
    return tuple(f"{name} of {x.name}" if n != longest[name] else name for name, n in sizes)
