"""DTensors: from a DTensor to the tensor on this rank, which has the tags, and back."""

from typing import Any

import torch

from safeops._backends.torch import private
from safeops._core.types import Array

AsyncCollectiveTensor: Any = private.collectives().AsyncCollectiveTensor
FakeTensor: Any = private.fake_tensor()


def is_sharded(x: Any) -> bool:
    """Whether `x` is a DTensor; told by name, as the import of DTensor is slow."""
    return type(x).__name__ == "DTensor" and hasattr(x, "placements")


def is_wrapped(types: Any) -> bool:
    """Whether these types wrap tensors on which the same operation is dispatched again."""
    return any(t.__name__ == "DTensor" or issubclass(t, AsyncCollectiveTensor) for t in types)


def is_shape_alone(types: Any) -> bool:
    """Whether DTensor only infers the shape of a result, on fake tensors."""
    return any(issubclass(t, FakeTensor) for t in types)


def local_of(x: Any) -> Any:
    """Return the tensor in memory: without wrappers of `torch.func`, and that of this rank."""
    while isinstance(x, torch.Tensor) and private.is_wrapper(x):
        x = private.unwrapped(x)
    if is_sharded(x):
        x = private.local_tensor(x)
    return x.trigger_wait() if isinstance(x, AsyncCollectiveTensor) else x


def whole_of(mask: Array, x: Array) -> Array:
    """Return the mask of this rank's part as the mask of the whole tensor."""
    # Where a sum over ranks is pending, an entry is active if it is active on any rank.
    if not is_sharded(x):
        return mask
    from torch.distributed.tensor import DTensor, Partial, Replicate  # noqa: PLC0415  (slow)

    mesh, places = x.device_mesh, x.placements
    union = [Partial("max") if p.is_partial() else p for p in places]
    shape = {"shape": x.shape, "stride": x.stride()}
    whole = DTensor.from_local(mask.to(torch.uint8), mesh, union, run_check=False, **shape)
    return whole.redistribute(mesh, [Replicate() if p.is_partial() else p for p in union]) != 0
