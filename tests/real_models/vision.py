"""
Make torchvision importable beside a PyTorch for CPUs.

Its wheel is built for CUDA, so that its library of operators does not load; it then registers fakes
for two of these operators, which have to be declared. No model here calls them.
"""

import torch

_OPERATORS = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _OPERATORS.define(f"{_name}(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
