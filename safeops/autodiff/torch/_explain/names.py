"""The names of PyTorch's nodes, in the words of the array API standard and of the reader."""

import re
from typing import Any

from safeops.autodiff.torch._opaque import is_script
from safeops.autodiff.torch._tags import name_of

# Nodes whose names say little.
NAMES = {
    "amax": "max",
    "amin": "min",
    "mm": "matmul",
    "bmm": "matmul",
    "mv": "matmul",
    "addmm": "matmul",
    "dot": "matmul",
    "linalg_norm": "norm",
    "linalg_vector_norm": "norm",
    "select": "index",
    "copy_slices": "assignment",
    "index_put": "assignment",
    "constant_pad_nd": "pad",
    "split": "slice",
    "unbind": "index",
}


def operation_of(node: Any) -> str:
    """Return the name of the forward operation of a node."""
    if is_script(node):
        return "TorchScript"
    stem = re.sub(r"(Backward\w*)?\d*$", "", name_of(node).removeprefix("torch::autograd::"))
    words_of = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=.)(?=[A-Z][a-z])", "_", stem)
    name = words_of.lower().removeprefix("native_")
    return "attention" if name.startswith("scaled_dot_product") else NAMES.get(name, name)
