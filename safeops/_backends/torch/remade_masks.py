"""
Masks that a compiler makes again for the backward pass, where it would keep them.

A backward pass needs to know which entries were NaN. Inductor (2.13) keeps the mask for it, and on
a CPU it stores a mask entry by entry: for a million entries that takes 6.5 ms, the sum itself 0.25
ms, and making the mask again of the entries 0.1 ms. To Dynamo a checkpoint means: compute again.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from safeops._backends.devices import makes_masks_again
from safeops._backends.torch import private
from safeops._backends.torch.barriers import in_forward_mode
from safeops._backends.torch.fast_paths import _records
from safeops._core.types import Array, Function

# Measured, over what they took: the reductions take 0.1 to 0.3, products, sinc and logaddexp 0.16,
# the relative entropy 0.25, angles and hypotenuses 0.3, logsubexp 0.5, the power 0.75, boxcox 0.8;
# of segments softmax and sums of exponentials take 0.4, variances 0.65 and deviations 0.8.
# Logarithms, roots, exponentials and inverse functions take as much as before; norms, directions
# and softmax more, whose sums would be made again.
NAMES = frozenset(
    {"nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin"}
    | {"rel_entr", "safe_atan2", "safe_hypot", "safe_logaddexp", "safe_logsubexp", "safe_mul"}
    | {"safe_pow", "sinc", "boxcox"}
    | {"segment_softmax", "segment_logsumexp", "segment_var", "segment_std"}
)


def recomputed(generic: Function, *args: Any, **options: Any) -> Array | None:
    """Return a function's value; for a backward pass only `args` are kept. None: no gain known."""
    if in_forward_mode() or not (_has_checkpoints() and _is_differentiated(args)):
        return None
    formula = partial(generic, **options)
    return checkpoint(formula, *args, use_reentrant=False, preserve_rng_state=False)


def _has_checkpoints() -> bool:
    """Whether the compiler takes a checkpoint here."""
    # A program exported strictly cannot run one. With ``dynamic=True`` numbers in Python are inputs
    # of a program, and two checkpoints cannot share an input (2.13).
    return not torch.compiler.is_exporting() and private.numbers_are_constants()


def _is_differentiated(args: Sequence[Any]) -> bool:
    arrays = [x for x in args if isinstance(x, torch.Tensor)]
    each = (type(x) is torch.Tensor and makes_masks_again(x) for x in arrays)
    return _records(*arrays) and all(each)
