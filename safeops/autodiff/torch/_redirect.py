"""Calls of `torch.autograd` that are masked ones for a while."""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from safeops._backends.torch import private
from safeops.autodiff.torch._ranks import in_a_stage, tell_of_stage

# The entry points of autograd, and the names of their arguments in this package.
ENTRIES: Mapping[Any, Mapping[str, str]] = {
    torch.Tensor.backward: {"self": "tensors", "gradient": "grad_tensors"},
    torch.autograd.backward: {},
    torch.autograd.grad: {},
}
private.hand_on_backward()
IGNORED = ("grad_variables", "only_inputs")  # PyTorch ignores them too


class Redirect(TorchFunctionMode):
    """Redirect calls of autograd to masked functions with the same argument names."""

    def __init__(self, ours: Mapping[Any, Callable[..., Any]], on_unknown: str) -> None:
        super().__init__()
        self.ours = ours
        self.on_unknown = on_unknown
        self.told = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one function of PyTorch."""
        del types
        if func not in ENTRIES:
            return func(*args, **(kwargs or {}))
        if not self.told and in_a_stage():
            self.told = True
            tell_of_stage(self.on_unknown)
        renamed = ENTRIES[func]
        given = signature(func).bind(*args, **(kwargs or {})).arguments
        if given.pop("is_grads_batched", False):
            msg = "expected one gradient at a time, got is_grads_batched=True; loop over outputs"
            raise NotImplementedError(msg)
        options = {renamed.get(key, key): x for key, x in given.items() if key not in IGNORED}
        return self.ours[func](**options, on_unknown=self.on_unknown)
