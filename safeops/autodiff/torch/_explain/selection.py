"""Which node dropped each absent entry: numbers beside the masks, which move as these do."""

from contextlib import suppress
from typing import Any

import torch

from safeops._backends.torch import private
from safeops._backends.torch.private import tree_map
from safeops._core.types import Array
from safeops.autodiff.torch import _rules as rules
from safeops.autodiff.torch._evaluator import Masking, kind_of
from safeops.autodiff.torch._masks import is_partial, spread, tensors_of
from safeops.autodiff.torch._nodes import BY_PRODUCT, node_name
from safeops.autodiff.torch._tags import Entry, Mask, Tags, is_number, is_plain

# Rules by which entries may become absent; by others absent entries are moved or summed.
MAY_DROP = (
    rules.copy,
    rules.fill,
    rules.select,
    rules.threshold,
    rules.transport,
    rules.triangle,
    rules.zero,
)
MANY = 16  # nodes: beyond, as where a loop selects in each step, the first stands for all
DTYPE = torch.int32  # of the numbers


class Selections(Tags):
    """A table from storages to the numbers of the nodes that dropped their absent entries."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[Any, int] = {}  # of nodes, from 1

    def flat(self, earlier: Entry | None, count: int, size: int, x: Array) -> Mask:
        """Return a copy of the numbers of a storage."""
        if earlier is None:
            return torch.zeros(count, dtype=DTYPE, device=x.device)
        return super().flat(earlier, count, size, x)

    def of(self, x: Array) -> Array:
        """Return the numbers for the entries of a tensor, 0 where they are unknown."""
        entry = self.find(x)
        if entry is None:
            return torch.zeros((), dtype=DTYPE, device=x.device).expand(x.shape)
        flat = torch.as_tensor(entry.active)
        return flat[0].expand(x.shape) if is_one(flat) else torch.as_tensor(self.read(x))

    def note(self, mode: Masking, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Note of absent entries of a result which node dropped them: an earlier one, or this."""
        for i, x in enumerate(tensors_of(result)):
            active = mode.tags.read(x)
            if not is_partial(active) or kind_of(func).is_view:
                continue
            known = self.of(x)  # the parts of a kernel have noted it
            if numbers_in(known) and (is_one(known) or known[~spread(active, x)].all()):
                continue
            found = self.moved(mode, func, (args, kwargs), i, x)
            if not (is_one(found) and numbers_in(found)):  # this node may have dropped some
                number = self.numbers.setdefault(private.current_node(), len(self.numbers) + 1)
                found = torch.where(found > 0, found, number)
            self.write(x, torch.where(known > 0, known, found) if numbers_in(known) else found)

    def write(self, x: Array, active: Mask) -> None:
        """State the numbers for a tensor; one for a whole storage is kept as such."""
        storage, labels = x.untyped_storage(), torch.as_tensor(active)
        count = storage.nbytes() // x.element_size()
        if is_one(labels) and x.numel() == count:
            number = labels.as_strided((), ()).clone()
            self._put(storage, number.expand(count), x.element_size())
        else:
            super().write(x, active)

    def moved(self, mode: Masking, func: Any, given: Any, i: int, x: Array) -> Array:
        """Return the numbers that a result has from its operands, by the rule of the operation."""
        partial = [y for y in tensors_of(given) if is_partial(mode.tags.read(y))]
        numbers = sorted({k for y in partial for k in numbers_in(self.of(y))})
        kind = kind_of(func)
        rule = rules.RULES.get(kind.base) if kind.between_ranks is None else None
        # Where ranks wait for each other, or a result is written into `out`, nothing runs again.
        is_final = rule is None or "out" in given[1] or len(numbers) > MANY
        may_drop = rule in MAY_DROP or (rule is rules.scale and node_name()[1] in BY_PRODUCT)
        found = torch.zeros((), dtype=DTYPE, device=x.device)
        if numbers and (is_final or (len(numbers) == 1 and not may_drop)):
            return (found + numbers[0]).expand(x.shape)
        for number in reversed(numbers):  # of two, the node nearer to the output counts
            found = torch.where(spread(self.again(mode, func, given, i, number), x), number, found)
        return found.expand(x.shape)

    def again(self, mode: Masking, func: Any, given: Any, i: int, number: int) -> Mask:
        """Return what is active in a result if the entries that one node dropped are so."""
        again, kind = Masking(Tags(), "ignore"), kind_of(func)
        is_moved = rules.RULES[kind.base] is rules.transport  # also into zeros

        def shown(x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or not is_number(x) or not is_plain(x):
                return x
            mask, is_tagged = mode.tags.read(x), mode.tags.find(x) is not None
            active = (self.of(x) == number) & ~spread(mask, x) if is_partial(mask) else False
            if 0 in x.stride() or (kind.name.endswith("_") and x is given[0][0]):  # written into
                x = x.clone(memory_format=torch.contiguous_format)
            if is_tagged or is_moved:
                again.tags.write(x, active)
            return x

        args, kwargs = tree_map(shown, given)
        active: Mask | None = None
        # An operation may refuse a copy; then its node is named, and the report is there.
        with suppress(RuntimeError, IndexError), again:
            active = again.tags.read(tensors_of(func(*args, **kwargs))[i])
        return False if active is None else active


def is_one(labels: Array) -> bool:
    """Whether numbers are one in memory."""
    return bool(labels.numel()) and not any(labels.stride())


def numbers_in(labels: Array) -> list[int]:
    """Return which nodes dropped entries; mostly it is one, which takes no sorting to see."""
    if is_one(labels):
        labels = labels.as_strided((), ())
    return [k for k in labels.unique().tolist() if k]


def lean(labels: Array) -> Array:
    """Return numbers of nodes in memory of their own: one, if one node dropped all."""
    known = numbers_in(labels)
    return labels.clone() if len(known) > 1 else labels.new_tensor(max(known, default=0))
