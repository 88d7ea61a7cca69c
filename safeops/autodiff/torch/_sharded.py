"""DTensors: the part of a tensor on this rank, which has tags of its own, and back."""

from typing import Any

import torch

from safeops._backends.torch import private
from safeops._typing import Array

AsyncCollectiveTensor: Any = private.collectives().AsyncCollectiveTensor
FakeTensor: Any = private.fake_tensor()


def is_sharded(x: Any) -> bool:
    """Whether this is a DTensor; the module of that is imported by who makes one."""
    return type(x).__name__ == "DTensor" and hasattr(x, "placements")


def is_wrapped(types: Any) -> bool:
    """Whether operations on these types come again, with the tensors that they wrap."""
    return any(t.__name__ == "DTensor" or issubclass(t, AsyncCollectiveTensor) for t in types)


def is_shape_alone(types: Any) -> bool:
    """Whether DTensor asks for the shape of a result, beside the result itself."""
    return any(issubclass(t, FakeTensor) for t in types)


def local_of(x: Any) -> Any:
    """Return the part of a DTensor on this rank, any other tensor as it is."""
    if is_sharded(x):
        x = private.local_tensor(x)
    return x.trigger_wait() if isinstance(x, AsyncCollectiveTensor) else x


def whole_of(mask: Array, x: Array) -> Array:
    """
    Return the mask of this rank's part of a tensor as that of the tensor.

    Of a sum that is still to be taken over ranks, what one of them reached is active.
    """
    if not is_sharded(x):
        return mask
    from torch.distributed.tensor import DTensor, Partial, Replicate  # noqa: PLC0415  (slow)

    mesh, places = x.device_mesh, x.placements
    union = [Partial("max") if p.is_partial() else p for p in places]
    shape = {"shape": x.shape, "stride": x.stride()}
    whole = DTensor.from_local(mask.to(torch.uint8), mesh, union, run_check=False, **shape)
    return whole.redistribute(mesh, [Replicate() if p.is_partial() else p for p in union]) != 0
