"""The namespace of the array API standard for PyTorch: that of array-api-compat, but for one."""

import array_api_compat.torch
import torch

globals().update(
    {name: x for name, x in vars(array_api_compat.torch).items() if not name.startswith("_")}
)
# That of array-api-compat (1.16) asks for a shape by a function of PyTorch that imports symbolic
# shapes, which takes 0.3 s; this one is written in C++.
broadcast_arrays = torch.broadcast_tensors
