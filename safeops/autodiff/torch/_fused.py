"""Fused derivative kernels, each linear in a cotangent per row, sequence, segment or bag."""

from typing import Any

import torch

from safeops._core.types import Array
from safeops.autodiff.torch._contractions import HALF
from safeops.autodiff.torch._evaluator import Call, Masking, decompose, unknown
from safeops.autodiff.torch._masks import any_over, both, is_finite, is_partial, spread

MEAN, LARGEST = 1, 2  # modes of embedding_bag; 0 is the sum


def rows(call: Call) -> Any:
    """Scale each row by the cotangent of its loss, in margin losses with and without reduction."""
    active = call.masks.get(0)
    if active is None:
        return unknown(call)
    if isinstance(active, torch.Tensor) and active.dim() and active.dim() < call.args[1].dim():
        active = active[..., None]
    return call.finish(active, clean=True)


def sequences(call: Call) -> Any:
    """Scale each sequence, along axis 1, by the cotangent of its CTC loss; absent after its end."""
    active = call.masks.get(0)
    if active is None:
        return unknown(call)
    _, x, _, lengths = call.args[:4]
    if isinstance(active, torch.Tensor) and active.dim():
        active = active.reshape(-1, 1)
    ends = torch.as_tensor(lengths, device=x.device).reshape(-1, 1)
    steps = torch.arange(len(x), device=x.device).reshape(-1, 1, 1)
    return call.finish(both(active, steps < ends), clean=True)


def segments(call: Call) -> Any:
    """Scale the entries of each segment by its cotangent; entries outside segments are absent."""
    if 0 not in call.masks or len(call.masks) > 1:
        return unknown(call)
    cotangent, _, data, _ = call.args
    axis = call.kwargs.get("axis", 0)
    ends = call.kwargs.get("offsets")
    ends = call.kwargs["lengths"].cumsum(-1) if ends is None else ends[..., 1:]
    places = torch.arange(data.shape[axis], device=ends.device).expand(*ends.shape[:-1], -1)
    segment = torch.searchsorted(ends.contiguous(), places.contiguous(), right=True)
    segment = segment.reshape(*segment.shape, *[1] * (data.dim() - axis - 1)).expand(data.shape)
    outside = [0, 0] * (data.dim() - axis - 1) + [0, 1]
    known = torch.nn.functional.pad(spread(call.masks[0], cotangent), outside)
    return call.finish(known.gather(axis, segment), clean=True)


def bag(call: Call) -> Any:
    """Sum rows of a table in bags: a row in no bag is absent; sparse gradients have no rule."""
    cotangent, *rest = call.args
    if rest[SPARSE_BAG] or call.masks.get(0) is not True or len(call.masks) > 1:
        return (unknown if rest[SPARSE_BAG] else decompose)(call)
    rest[BAG_WEIGHTS] = None  # a row with weight 0 is used
    return call.finish(embedding_bag_backward(call.mode, torch.ones_like(cotangent), *rest) != 0)


SPARSE_BAG, BAG_WEIGHTS = 8, 9  # positions among the arguments after the cotangent


def embedding_bag_backward(
    _mode: Masking,
    cotangent: Array,
    indices: Array,
    offsets: Array,
    _: Any,
    sizes: Array,
    largest: Array,
    *options: Any,
) -> Any:
    """Return the gradient for the rows of the table in embedding_bag."""
    count, by_frequency, how, _, weights, *padding = options
    # What counts for no row goes to one more row: a compiler has to know how many there are.
    zeros = cotangent.new_zeros(count + 1, cotangent.shape[-1])
    if how == LARGEST:
        filled = (sizes != 0).unsqueeze(-1)
        return zeros.scatter_add(0, torch.where(filled, largest, count), cotangent)[:count]
    bag = bags(indices, offsets)
    kept = indices != (padding or [-1])[0]
    parts = cotangent[bag]
    if weights is not None:
        parts = parts * weights[:, None]
    if how == MEAN:
        parts = parts / sizes[bag][:, None]
    if by_frequency:
        ones = torch.ones_like(indices)
        often = indices.new_zeros(count).index_add(0, indices, ones)
        parts = parts / often[indices][:, None]
    return zeros.index_add(0, torch.where(kept, indices, count), parts)[:count]


def bags(indices: Array, offsets: Array) -> Array:
    places = torch.arange(len(indices), device=indices.device)
    return torch.searchsorted(offsets, places, right=True) - 1


def bag_weights_backward(
    _mode: Masking,
    cotangent: Array,
    table: Array,
    indices: Array,
    offsets: Array,
    _bags: Array,
    *options: Any,
) -> Any:
    """Return the gradient for the weights of the rows in embedding_bag."""
    _, *padding = options
    kept = indices != (padding or [-1])[0]
    products = cotangent[bags(indices, offsets)] * table[indices]
    places = torch.arange(len(indices), device=indices.device)
    zeros = cotangent.new_zeros(len(indices) + 1)  # one more, as above
    return zeros.index_add(0, torch.where(kept, places, len(indices)), products.sum(-1))[:-1]


def weight_norm_backward(
    _mode: Masking, cotangent: Array, v: Array, g: Array, norms: Array, dim: int
) -> tuple[Array, Array]:
    """Return the gradients for the direction and the length of each row of a normalised weight."""
    axes = [i for i in range(v.dim()) if i != dim % v.dim()]
    of_length = (cotangent * v).sum(axes, keepdim=True) / norms
    of_direction = (cotangent - of_length * (v / norms)) * (g / norms)
    return of_direction.to(v.dtype), of_length.to(g.dtype)


def trilinear(_mode: Masking, *args: Any) -> Any:
    """Return the sum of products of three tensors."""
    *tensors, first, second, third, summed = args[:7]
    for i, places in enumerate((first, second, third)):
        for place in sorted(places):
            tensors[i] = tensors[i].unsqueeze(place)
    x, y, z = tensors
    return (x * y * z).sum(summed)


def distances(call: Call) -> Any:
    """Differentiate the distances between rows of two matrices."""
    cotangent, x, y, p, found = call.args
    if set(call.masks) != {0} or not is_partial(call.masks[0]):
        return unknown(call)
    active = spread(call.masks[0], cotangent)
    reached = any_over(active, (-1,), keepdim=True)
    x_met, y_met = (reached, any_over(active, (-2,), keepdim=True).mT)
    kernel = lambda x, y, d: call.func(cotangent, x, y, p, d)  # noqa: E731  (a name for one line)
    x, y = torch.where(x_met, x, 0), torch.where(y_met, y, 0)
    found = torch.where(active, found, 1)
    value = kernel(*(torch.where(v.isfinite(), v, 0) for v in (x, y, found)))
    if not all(map(is_finite, (x, y, found))):
        # An active pair meets an entry that is not finite: there the kernel's result stands.
        bad = active.to(x.dtype) @ (~y.isfinite()).to(x.dtype) > HALF
        bad = bad | (~x.isfinite() & reached) | (active & ~found.isfinite()).any(-1, keepdim=True)
        value = torch.where(bad, kernel(x, y, found), value)
    call.mode.state(value, reached)
    return value


def distances_within(call: Call) -> Any:
    """Differentiate the distances between all pairs of rows of one matrix."""
    cotangent, x, p, found = call.args
    if set(call.masks) != {0} or not is_partial(call.masks[0]):
        return unknown(call)
    count = len(x)
    one, two = torch.triu_indices(count, count, 1)
    active = spread(call.masks[0], cotangent)
    pairs = active.new_zeros(count, count).index_put((one, two), active)
    pairs = pairs | pairs.mT
    reached = pairs.any(-1, keepdim=True)
    x, found = torch.where(reached, x, 0), torch.where(active, found, 1)
    kernel = lambda x, d: call.func(cotangent, x, p, d)  # noqa: E731  (a name for one line)
    value = kernel(*(torch.where(v.isfinite(), v, 0) for v in (x, found)))
    if not (is_finite(x) and is_finite(found)):
        bad = pairs.to(x.dtype) @ (~x.isfinite()).to(x.dtype) > HALF
        overflown = active.new_zeros(count, count).index_put((one, two), active & ~found.isfinite())
        bad = bad | (~x.isfinite() & reached) | (overflown | overflown.mT).any(-1, keepdim=True)
        value = torch.where(bad, kernel(x, found), value)
    call.mode.state(value, reached)
    return value
