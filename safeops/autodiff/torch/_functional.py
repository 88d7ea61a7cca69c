"""
Masked backward passes inside the transforms of `torch.func`.

In a transform tensors are wrapped, once for each `grad` and `vmap` around them. A dispatch mode
runs below the wrappers: it sees the tensors in memory, of whole batches. So the evaluator of eager
mode serves here too. Cotangents are unwrapped once, to state that they are active.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from safeops._typing import Array
from safeops.autodiff.torch._graph import nodes_of
from safeops.autodiff.torch._passes import masking
from safeops.autodiff.torch._sharded import local_of


class Functional(TorchFunctionMode):
    """Mask the backward pass of one transform, but no backward pass inside its function."""

    def __init__(self, on_unknown: str, *, basis: bool = False) -> None:
        super().__init__()
        self.on_unknown = on_unknown
        self.basis = basis
        self.within = False

    def outside(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function in which the mode does nothing."""

        @wraps(func)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.within = True
            try:
                return func(*args, **kwargs)
            finally:
                self.within = False

        return wrapped

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one function of PyTorch."""
        del types
        if func is not torch.autograd.grad or self.within:
            return func(*args, **(kwargs or {}))
        outputs, inputs = args
        cotangents = seeds(outputs, kwargs["grad_outputs"])
        nodes, create_graph = nodes_of(outputs), kwargs["create_graph"]
        masked = masking(nodes, outputs, cotangents, self.on_unknown, create_graph=create_graph)
        with masked as mode:
            for g in cotangents if self.basis else ():
                mode.tags.write(local_of(g), local_of(g != 0))
            return func(outputs, inputs, **{**kwargs, "grad_outputs": cotangents})


def seeds(outputs: Any, given: Any) -> list[Array]:
    """Return cotangents in memory of their own."""
    if given is None:
        return [torch.ones_like(y) for y in outputs]
    return [g.clone() for g in given]
