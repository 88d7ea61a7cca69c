"""
The derivative of logcumsumexp, which takes logarithms of the cotangent.

Its formula sums exponentials of ``log |g| - result``. A cotangent that is absent is one whose
logarithm is -inf, whatever the result is there: on the way, that stands in place of 0.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from safeops.autodiff.torch._evaluator import RULES, Call
from safeops.autodiff.torch._masks import is_partial, spread


def logarithm(call: Call) -> Any:
    """Take a logarithm, or add a coefficient to one; the formula ends with a sum of cotangents."""
    if len(call.masks) > 1:
        return RULES[call.name](call)
    (mask,) = call.masks.values()
    value = call.run()
    if is_partial(mask):
        value = torch.where(spread(mask, value), value, -math.inf)
    call.mode.state(value, mask)
    return value


def exponential(call: Call) -> Any:
    """Go back from logarithms to cotangents."""
    return call.finish(call.masks[0], clean=True)


def summed(call: Call) -> Any:
    """Sum exponentials up: what is absent adds nothing to what comes after it."""
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
