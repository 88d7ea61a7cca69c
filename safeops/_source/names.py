"""The names of operations: one row for each; every other table of names is made from it."""

from collections.abc import Iterator
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

# entry: a result entry depends on one entry of each operand; axis: on all entries along an axis.
Kind: TypeAlias = Literal["entry", "axis", ""]


class Operation(NamedTuple):
    """
    An operation and its names.

    Attributes
    ----------
    word : str
        Its name in the array API standard, or else the one that readers know.
    others : str
        Its other names in programs.
    kind : {"entry", "axis", ""}
        Which entries of an operand a result entry depends on.
    operands : int
        How many operands the safe function takes.
    has_twin : bool
        Whether safeops has a function that may replace it.
    own : str
        Names that a report takes from the program, where the framework has another name or several
        operations; "*" for all.
    part_of : str
        Functions that contain it, the likeliest first, which the program may have called.
    by_value : bool
        Whether it selects entries by their values, as max does.
    methods : str
        The methods of its Python operator, without underscores.
    jax, torch, tensorflow : str
        Its names in the graphs of the framework.
    """

    word: str
    others: str = ""
    kind: Kind = ""
    operands: int = 1
    has_twin: bool = False
    own: str = ""
    part_of: str = ""
    by_value: bool = False
    methods: str = ""
    jax: str = ""
    torch: str = ""
    tensorflow: str = ""

    @property
    def names(self) -> list[str]:
        """All its names in programs."""
        return [self.word, *self.others.split()]

    @property
    def safe(self) -> str:
        """The function of safeops that may take its place, or ""."""
        return f"safe_{self.word}" if self.has_twin else ""


# Operations that have a safe twin: entry by entry, and along an axis.
_entry = partial(Operation, kind="entry", has_twin=True)
_axis = partial(Operation, kind="axis", has_twin=True)


def _plain(
    names: str, kind: Kind = "", *, own: str = "", by_value: bool = False
) -> list[Operation]:
    """Return the rows of operations with one name."""
    return [Operation(x, kind=kind, own=own, by_value=by_value) for x in names.split()]


OPERATIONS = (
    # With a safe twin, entry by entry.
    _entry("acos", "arccos", own="*"),
    _entry("acosh", "arccosh", own="*"),
    _entry("asin", "arcsin", own="*"),
    _entry("atan2", "arctan2", operands=2, own="*"),
    _entry("atanh", "arctanh", own="*"),
    _entry(
        "div",
        "divide true_divide truediv",
        operands=2,
        own="divide true_divide",
        part_of="reciprocal softmax log_softmax norm",
        methods="truediv rtruediv rdiv",
        tensorflow="RealDiv",
    ),
    _entry("exp", part_of="softmax logsumexp expm1 power pow"),
    _entry("expm1"),
    _entry("hypot", operands=2, own="*"),
    _entry("log", part_of="logsumexp log_softmax log2 log10 pow power"),
    _entry("log10"),
    _entry("log1p", part_of="atanh acosh"),
    _entry("log2"),
    _entry("logaddexp", operands=2, own="*"),
    _entry("logit", own="*"),
    _entry(
        "pow",
        "power",
        operands=2,
        own="float_power power",
        part_of="sqrt rsqrt reciprocal div",
        methods="rpow",
        jax="integer_pow",
    ),
    _entry("reciprocal", own="*", part_of="div divide true_divide", tensorflow="Inv"),
    _entry("rsqrt", own="*", part_of="sqrt"),
    _entry("sqrt", part_of="norm vector_norm hypot"),
    # With a safe twin, along an axis.
    _axis("log_softmax", own="*"),
    _axis("logsumexp", "reduce_logsumexp", own="*"),
    _axis("norm", "vector_norm", own="norm", torch="linalg_norm linalg_vector_norm"),
    _axis("softmax", own="*"),
    # Entry by entry.
    Operation("abs", "absolute", kind="entry"),
    Operation("add", kind="entry", methods="radd"),
    Operation("atan", "arctan", kind="entry"),
    Operation("clip", "clamp", kind="entry", own="clip clip_by_value", by_value=True),
    Operation("logsigmoid", "log_sigmoid", kind="entry"),
    Operation("mul", "multiply", kind="entry", methods="rmul"),
    Operation("neg", "negative", kind="entry"),
    Operation(
        "sub", "subtract", kind="entry", part_of="softmax log_softmax logsumexp", methods="rsub"
    ),
    Operation("where", kind="entry", own="*", jax="select_n", tensorflow="Select SelectV2"),
    *_plain("maximum minimum relu", "entry", own="*", by_value=True),
    *_plain("sinc xlogy", "entry", own="*"),
    *_plain(
        """
        angle cbrt ceil cos cosh cube deg2rad digamma erf erfc erfinv exp2 floor gelu lgamma round
        sigmoid sign silu sin sinh softplus square squared_difference tan tanh xlog1py
        """,
        "entry",
    ),
    # Along axes, and those that move entries.
    Operation(
        "assignment",
        own="set",
        jax="scatter",
        torch="copy_slices index_put",
        tensorflow="TensorScatterUpdate",
    ),
    Operation("convolution", jax="conv_general_dilated", tensorflow="Conv2D Conv3D"),
    Operation(
        "index",
        own="take gather boolean_mask",
        methods="getitem",
        jax="gather dynamic_slice",
        torch="select unbind",
        tensorflow="DynamicPartition Gather GatherNd GatherV2 Unpack",
    ),
    Operation(
        "matmul",
        own="*",
        jax="dot_general",
        torch="mm bmm mv addmm dot",
        tensorflow="BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum MatMul",
    ),
    Operation(
        "max",
        "amax reduce_max",
        own="*",
        by_value=True,
        jax="reduce_max reduce_window_max",
        torch="amax",
    ),
    Operation("min", "amin reduce_min", own="*", by_value=True, jax="reduce_min", torch="amin"),
    Operation("pad", torch="constant_pad_nd"),
    Operation("slice", own="dynamic_slice", torch="split"),
    Operation("std", "reduce_std", own="*"),
    Operation("mean", "reduce_mean", own="mean"),
    Operation("sum", "reduce_sum", jax="reduce_sum"),
    Operation("var", "reduce_variance", own="*"),
    *_plain("median nanmax nanmean nanmin nansum sort", own="*", by_value=True),
    *_plain("cosine_similarity cumsum entr kl_div normalize", own="*"),
    *_plain(
        """
        aminmax argmax argmin clamp_max clamp_min cummax cummin fmax fmin kthvalue mode nan_to_num
        nanmedian threshold topk
        """,
        by_value=True,
    ),
)


def _pairs_of(column: str) -> Iterator[tuple[str, str]]:
    """Yield each name in a column, with the word of its row."""
    for row in OPERATIONS:
        yield from ((name, row.word) for name in getattr(row, column).split())


BY_WORD = {row.word: row for row in OPERATIONS}
# The row of each name in programs.
NAMED = {name: row for row in OPERATIONS for name in row.names}
# The word for each name that a report takes from the program.
OWN = {
    x: row.word for row in OPERATIONS for x in (row.names if row.own == "*" else row.own.split())
}
# The words for names in the graphs of each framework, and for methods of Python's operators.
IN_JAX, IN_TORCH, IN_TENSORFLOW = (dict(_pairs_of(x)) for x in ("jax", "torch", "tensorflow"))
METHODS = dict(_pairs_of("methods"))
# The safe function for each name.
SAFE = {name: row.safe for name, row in NAMED.items() if row.safe}
OF_ENTRIES = frozenset(name for name, row in NAMED.items() if row.kind == "entry")
BY_VALUE = frozenset(name for name, row in NAMED.items() if row.by_value)
