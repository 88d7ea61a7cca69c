"""
Products of tensors whose cotangent has a known mask: what meets what is told by names of axes.

Most masks leave out rows of a batch. Then each coefficient meets active entries alone or absent
ones alone, or each sum has summands of one kind alone, and one product is enough.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from safeops._core.types import Array

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
