"""
The derivative of logcumsumexp, whose formula takes logarithms of the cotangent.

The formula sums exponentials of ``log |g| - result``. The logarithm of an absent cotangent is -inf,
even where the result is infinite; -inf takes the place of 0 on the way.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from safeops.autodiff.torch._evaluator import RULES, Call
from safeops.autodiff.torch._masks import is_partial, spread


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
