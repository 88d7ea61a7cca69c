"""`torch.cond` in a backward pass: both branches over pairs, with masks as further operands."""

from collections.abc import Callable
from typing import Any

import torch

from safeops.autodiff.torch._masks import is_partial


def branched(mode: Any, func: Any, args: tuple[Any, ...]) -> Any:
    """Run the branch that a condition takes, and state what of its results is active."""
    condition, one, two, operands = args
    masks = [mode.tags.read(x) if isinstance(x, torch.Tensor) else None for x in operands]
    partial = [i for i, mask in enumerate(masks) if is_partial(mask)]
    known = [mode.apart(masks[i], operands[i]) for i in partial]

    def over_pairs(branch: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            inputs = given[: len(masks)]
            own = dict(enumerate(masks)) | dict(zip(partial, given[len(masks) :], strict=True))
            for i, x in enumerate(inputs):
                if own[i] is not None:
                    mode.tags.write(x, own[i])
            with mode:
                results = branch(*inputs)
            return (*results, *(mode.apart(mode.tags.read(y), y) for y in results))

        return run

    every = func(condition, over_pairs(one), over_pairs(two), (*operands, *known))
    results, active = every[: len(every) // 2], every[len(every) // 2 :]
    for y, mask in zip(results, active, strict=True):
        mode.state(y, mask)
    return results
