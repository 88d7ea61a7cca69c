"""Resampling: which entries of an image a resampled one reads, those with weight 0 included."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from safeops._typing import Array
from safeops.autodiff._torch_evaluator import Call, aten, unknown
from safeops.autodiff._torch_masks import spread

# Along one axis: the operation, and which neighbours it reads too of an entry with all the weight.
KINDS: dict[str, tuple[Callable[..., Array], tuple[int, ...]]] = {
    "linear": (aten.upsample_linear1d, (1,)),
    "bicubic": (aten.upsample_bicubic2d, (-1, 1, 2)),
    "antialiased": (aten._upsample_bilinear2d_aa, (-1, 1)),  # noqa: SLF001  (its name)
    "antialiased cubic": (aten._upsample_bicubic2d_aa, (-2, -1, 1, 2)),  # noqa: SLF001  (its name)
}
KIND = {
    "upsample_linear1d_backward": "linear",
    "upsample_bilinear2d_backward": "linear",
    "upsample_trilinear3d_backward": "linear",
    "upsample_bicubic2d_backward": "bicubic",
    "_upsample_bilinear2d_aa_backward": "antialiased",
    "_upsample_bicubic2d_aa_backward": "antialiased cubic",
}


def resampled(call: Call) -> Any:
    """Send cotangents to all that was read: axis by axis, as the weights are products."""
    cotangent, _, size, corners, *given = call.args
    if 0 not in call.masks:
        return unknown(call)
    scales = given + [None] * (len(size) - 2 - len(given))
    dtype = torch.promote_types(cotangent.dtype, torch.float32)  # in which a kernel finds places
    active = spread(call.masks[0], cotangent).to(dtype)
    for axis in range(2, len(size)):
        old, new = size[axis], cotangent.shape[axis]
        reads = read(KIND[call.name], old, new, corners, scales[axis - 2], dtype)
        active = (active.movedim(axis, -1) @ reads.to(active)).movedim(-1, axis)
    return call.finish(active > 0)


@lru_cache(maxsize=64)
def read(kind: str, old: int, new: int, corners: Any, scale: Any, dtype: Any) -> Array:
    """Return which of the old entries of an axis each new one reads, as numbers."""
    resample, neighbours = KINDS[kind]
    if kind == "linear":
        weights = resample(torch.eye(old, dtype=dtype)[None], [new], corners, scale)[0].T
    else:
        row = torch.eye(old, dtype=dtype)[None, :, None, :]
        weights = resample(row, [1, new], corners, None, scale)[0, :, 0].T
    reads = weights != 0
    alone = reads & ((reads.sum(-1, keepdim=True) == 1) if kind in ("linear", "bicubic") else True)
    for step in neighbours:
        moved = torch.zeros_like(reads)
        length = max(old - abs(step), 0)
        start, end = max(step, 0), max(-step, 0)
        moved[:, start : start + length] = alone[:, end : end + length]
        reads = reads | moved
    return reads
