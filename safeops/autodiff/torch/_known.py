"""
Masks that are known while a compiler traces: computed there and then, and small in the program.

What a slice leaves out depends on no number, nor does what becomes of that mask, layer by layer. As
operations of the program its masks would be more than all else there. Rules compute with such a
mask as with any other: an operation on known tensors alone runs at once, and one that meets tensors
of the program gets a comparison of places in its stead.
"""

from typing import Any

import numpy as np
import torch

from safeops._backends.torch import private
from safeops._backends.torch.private import TorchDispatchMode
from safeops._core.types import Array
from safeops.autodiff._small import LARGEST, narrowed, reshaped
from safeops.autodiff.torch._masks import MARK, is_known, tensors_of, thin
from safeops.autodiff.torch._tags import Mask

RUNS = 4  # of entries side by side; a mask of more is a constant and not made by comparisons


def marked(x: Any, device: torch.device) -> Any:
    """Mark what an operation has made of known tensors."""
    for y in tensors_of(x):
        setattr(y, MARK, device)
    return x


@private.unseen_mode
class Knowing(TorchDispatchMode):
    """A mode that computes with known tensors, and puts them where the program needs them."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[Any, Array] = {}

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether compiled functions run under the mode."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation."""
        del types
        options = kwargs or {}
        tensors = tensors_of((args, options))
        known = [x for x in tensors if is_known(x)]
        if not known:
            return truth(args, options) if is_truth(func, args) else func(*args, **options)
        if len(known) == len(tensors) and is_worth_it(func, known, args):
            with private.without_modes():
                return marked(func(*args, **options), getattr(known[0], MARK))
        if private.schema(func).is_mutable and is_known(args[0]):
            msg = f"{func} writes a value of the program into a mask that is known"
            raise AssertionError(msg)
        args, options = private.tree_map(self.in_program, (args, options))
        return func(*args, **options)

    def in_program(self, x: Any) -> Any:
        """Return a known tensor as the program has it, and anything else as it is."""
        if not is_known(x):
            return x
        with private.without_modes():
            entries = thin(x)
            ones = (entries != 0).numpy()
            plain = bool((entries == (entries != 0)).all())
        device = getattr(x, MARK)
        if not plain:
            return torch.tensor(entries.tolist(), dtype=x.dtype).to(device).expand(x.shape)
        # A branch of `cond` has a trace of its own.
        trace = private.dispatch_mode(private.mode_keys.PROXY)
        key = (trace, device, x.dtype, x.shape, ones.shape, ones.tobytes())
        if key not in self.made:
            self.made[key] = at_places(ones, device).to(x.dtype).expand(x.shape)
        return self.made[key]


def is_truth(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operation makes the one number of a mask that is the same everywhere."""
    return func is torch.ops.aten.full.default and not args[0] and isinstance(args[1], bool)


def truth(args: tuple[Any, ...], options: dict[str, Any]) -> Array:
    """Return that number, known."""
    device = torch.device(options.get("device") or "cpu")
    with private.without_modes():
        made: Array = marked(torch.full((), args[1]), device)
    return made


def is_worth_it(func: Any, known: list[Array], args: tuple[Any, ...]) -> bool:
    """Whether known tensors are few enough to compute with, and sizes are numbers."""
    few = func.is_view or all(x.numel() <= LARGEST for x in known)
    return few and not any(isinstance(x, torch.SymInt) for x in private.tree_leaves(args))


def at_places(ones: np.ndarray, device: torch.device) -> Array:
    """Return a mask as the program has it; along each axis by itself if it is such a product."""
    axes = range(ones.ndim)
    factors = [np.logical_or.reduce(ones, axis=tuple({*axes} - {i}), keepdims=True) for i in axes]
    whole = np.ones(ones.shape, bool)
    for factor in factors:
        whole = whole & factor
    if not np.array_equal(whole, ones):
        factors = [ones]
    made = [compared(factor, device) for factor in factors if factor.size > 1]
    found = made[0] if made else torch.full(ones.shape, bool(ones.all()), device=device)
    for factor in made[1:]:
        found = found & factor
    return found


def compared(ones: np.ndarray, device: torch.device) -> Array:
    """Return a mask by comparisons of places, or a constant if that takes too many."""
    edges = np.flatnonzero(np.diff(ones.ravel(), prepend=False, append=False)).reshape(-1, 2)
    if len(edges) > RUNS:
        return torch.tensor(ones.tolist()).to(device)
    places = torch.arange(ones.size, device=device).view(ones.shape)
    found = None
    for start, end in edges.tolist():
        within = places >= start
        if end < ones.size:
            within = (places < end) & within if start else places < end
        found = within if found is None else found | within
    return places < 0 if found is None else found


def small(active: Array) -> Mask:
    """Return a known mask of as few entries as it has different ones, True if all are True."""
    with private.without_modes():
        entries = narrowed(thin(active).numpy())
        if entries.all():
            return True
        found: Array = torch.tensor(entries).expand(active.shape)
    return marked(found, getattr(active, MARK))


def in_form(active: Array, shape: tuple[int, ...]) -> Array:
    """Return a known mask in another shape, with no entries that it did not have."""
    with private.without_modes():
        entries = reshaped(thin(active).numpy(), tuple(active.shape), shape)
        found = torch.tensor(entries).expand(shape)
    return marked(found, getattr(active, MARK))
