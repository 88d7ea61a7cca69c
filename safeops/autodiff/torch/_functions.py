"""Nonlinear functions of a cotangent, as hooks and custom functions apply them."""

import math
from collections.abc import Callable
from typing import Any

import torch

from safeops._core.types import Array
from safeops.autodiff.torch._evaluator import RULES, Call, unknown
from safeops.autodiff.torch._masks import any_over, either, is_partial, not_zero, spread
from safeops.autodiff.torch._tags import Mask, is_number

# The derivative of logcumsumexp, whose formula takes logarithms of the cotangent.
#
# The formula sums exponentials of ``log |g| - result``. The logarithm of an absent cotangent is
# -inf, even where the result is infinite; -inf takes the place of 0 on the way.


def logarithm(call: Call) -> Any:
    """Take a logarithm, or add a coefficient to a logarithm; absent entries become -inf."""
    if len(call.masks) > 1:
        return RULES[call.name](call)
    (mask,) = call.masks.values()
    value = call.run()
    if is_partial(mask):
        value = torch.where(spread(mask, value), value, -math.inf)
    call.mode.state(value, mask)
    return value


def exponential(call: Call) -> Any:
    """Map logarithms back to cotangents."""
    return call.finish(call.masks[0], clean=True)


def summed(call: Call) -> Any:
    """Sum exponentials cumulatively: an absent entry adds nothing."""
    value, mask = call.run(), call.masks[0]
    if is_partial(mask):
        mask = spread(mask, value).to(torch.int64).cumsum(call.args[1]) > 0
    call.mode.state(value, mask)
    return value


LOGARITHMS: dict[str, Callable[[Call], Any]] = dict.fromkeys(
    ("abs", "log", "where", "add", "sub"), logarithm
) | {
    "logcumsumexp": summed,
    "exp": exponential,
}


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
