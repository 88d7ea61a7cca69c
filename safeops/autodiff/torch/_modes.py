"""Modes that intercept calls of `torch.autograd`, to explain them or to mask them."""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from safeops.autodiff._explain.report import Report
from safeops.autodiff.torch._explain.lines import RecordLines, in_a_transform, not_finite
from safeops.autodiff.torch._explain.passes import explained_if_possible
from safeops.autodiff.torch._graph import leaves_of, listed, nodes_of
from safeops.autodiff.torch._ranks import in_a_stage, tell_of_stage

# The entry points of autograd, and the names of their arguments in this package.
ENTRIES: Mapping[Any, Mapping[str, str]] = {
    torch.Tensor.backward: {"self": "tensors", "gradient": "grad_tensors"},
    torch.autograd.backward: {},
    torch.autograd.grad: {},
}
IGNORED = ("grad_variables", "only_inputs")  # PyTorch ignores them too


class Watch(RecordLines):
    """Explain each call of autograd whose gradients are not finite."""

    def __init__(self, on_report: Callable[[Report], None]) -> None:
        super().__init__()
        self.on_report = on_report
        self.passes: list[bool] = []
        self.batch = 0  # rows of the batch, where they are known

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one function of PyTorch."""
        if func not in ENTRIES:
            return super().__torch_function__(func, types, args, kwargs)
        bound = signature(func).bind(*args, **(kwargs or {}))
        if in_a_transform() or bound.arguments.get("is_grads_batched"):
            return func(*args, **(kwargs or {}))
        bound.arguments["retain_graph"] = True
        result = super().__torch_function__(func, types, bound.args, bound.kwargs)
        renamed = ENTRIES[func]
        given = {renamed.get(key, key): x for key, x in bound.arguments.items()}
        outputs = listed(given.get("tensors", given.get("outputs")))
        inputs = given.get("inputs")
        leaves = leaves_of(nodes_of(outputs)) if inputs is None else listed(inputs)
        found = [x.grad for x in leaves] if result is None else result
        nonfinite = any(g is not None and not_finite(g) is not None for g in found)
        if nonfinite:
            seeds = given.get("grad_tensors", given.get("grad_outputs"))
            report = explained_if_possible(outputs, seeds, leaves, self.batch)
            nonfinite = not report.ok  # else the NaN is from an earlier pass
            if nonfinite:
                self.on_report(report)
        self.passes.append(nonfinite)
        return result


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
