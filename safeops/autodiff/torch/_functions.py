"""Nonlinear functions of a cotangent, as hooks and custom functions apply them."""

from typing import Any

import torch

from safeops._typing import Array
from safeops.autodiff.torch._evaluator import Call, unknown
from safeops.autodiff.torch._masks import any_over, either, is_partial, not_zero, spread
from safeops.autodiff.torch._tags import Mask, is_number


def elementwise(call: Call) -> Any:
    """
    Map each entry: an absent one enters as 0, and stays absent if the function maps 0 to 0.

    Beside a bound that is 0, the result may be the bound or the entry: it counts as active.
    """
    others = [x for i, x in enumerate(call.args) if i not in call.masks]
    bounds = [x for x in (*others, *call.kwargs.values()) if isinstance(x, torch.Tensor)]
    active: Mask = False
    for mask in call.masks.values():
        active = either(active, mask)
    return finish(call, active, bounds)


def reduced(call: Call) -> Any:
    """Reduce along axes by a function that ignores zeros, such as a norm."""
    if 0 not in call.masks or len(call.masks) > 1:
        return unknown(call)
    first = AXES.get(call.name, 1)
    dims, keepdim = (*call.args[first : first + 2], None, False)[:2]
    active = call.masks[0]
    if is_partial(active):
        mask = spread(active, call.args[0])
        dims = [dims] if isinstance(dims, int) else dims
        active = any_over(mask, tuple(dims), keepdim=bool(keepdim)) if dims else mask.any()
    return finish(call, active)


AXES = {"linalg_vector_norm": 2, "norm": 2}  # the position of the axes among the arguments; else 1


def finish(call: Call, active: Mask, bounds: list[Array] | tuple[()] = ()) -> Any:
    """Run the operation; every entry of the result that is not 0 is active."""
    value = call.run()
    if isinstance(value, torch.Tensor) and is_number(value) and is_partial(active):
        active = spread(active, value) | not_zero(value)
        for bound in bounds:
            active = active | (bound == 0)
    call.mode.state(value, active)
    return value
