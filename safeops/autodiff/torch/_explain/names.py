"""The names of PyTorch's nodes, as names of operations of the array API standard."""

import re
from typing import Any

from safeops._source.names import IN_TORCH
from safeops.autodiff.torch._tags import name_of
from safeops.autodiff.torch._unseen import is_script


def operation_of(node: Any) -> str:
    """Return the name of the forward operation of a node."""
    if is_script(node):
        return "TorchScript"
    stem = re.sub(r"(Backward\w*)?\d*$", "", name_of(node).removeprefix("torch::autograd::"))
    words_of = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=.)(?=[A-Z][a-z])", "_", stem)
    name = words_of.lower().removeprefix("native_")
    return "attention" if name.startswith("scaled_dot_product") else IN_TORCH.get(name, name)
