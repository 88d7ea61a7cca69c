"""Sums of products (matrices, windows, attention), in which absent entries meet no coefficient."""

from collections.abc import Callable
from typing import Any

import torch

from safeops._backends.torch import private
from safeops._core.types import Array
from safeops.autodiff.torch import _masks
from safeops.autodiff.torch._evaluator import Call, Masking, decompose, unknown
from safeops.autodiff.torch._tags import Mask, is_plain

# Products with a sparse matrix: an entry that it does not store reaches nothing.


def sparse_matrix(call: Call) -> Any:
    """Multiply a cotangent by a sparse matrix of coefficients."""
    places = [i for i in (0, 1) if is_plain(call.args[i])]
    if len(call.args) > 2 or len(places) != 1 or not _masks.is_partial(call.masks.get(places[0])):  # noqa: PLR2004  (two factors)
        return unknown(call)
    (i,) = places
    dense, sparse = call.args[i], call.args[1 - i]
    ones = _masks.as_numbers(_masks.spread(call.masks[i], dense), dense.dtype)

    def multiply(coefficients: Array, x: Array) -> Array:
        pair = (x, with_stored(sparse, coefficients))
        return call.func(*(pair if i == 0 else pair[::-1]))

    known = stored(sparse)
    value = multiply(torch.where(known.isfinite(), known, 0), dense)
    if not _masks.is_finite(known):
        # An active entry meets one that is not finite: there the IEEE product stands.
        hit = met_by(multiply, (~known.isfinite()).to(known.dtype), ones)
        value = torch.where(hit, call.run(), value)
    call.mode.state(value, met_by(multiply, torch.ones_like(known), ones))
    return value


def stored(x: Array) -> Array:
    return private.stored_values(x) if x.layout is torch.sparse_coo else x.values()


def with_stored(x: Array, numbers: Array) -> Array:
    """Return a sparse tensor with other values at the same indices."""
    x = x.detach().clone()
    stored(x).copy_(numbers)
    return x


def contract(call: Call) -> Any:
    """Multiply and sum; absent entries meet no coefficient."""
    x, y = call.args[:2]
    rest = call.args[2:]
    call_it = lambda a, b: call.func(a, b, *rest, **call.kwargs)  # noqa: E731  (a name for one line)
    value, active = product(call_it, (x, call.masks.get(0)), (y, call.masks.get(1)))
    call.mode.state(value, active)
    return value


def product(
    multiply: Callable[[Array, Array], Array],
    one: tuple[Array, Any],
    two: tuple[Array, Any],
    reached: Mask | None = None,
) -> tuple[Array, Mask]:
    """
    Return a bilinear function of two pairs; a mask of None means a coefficient, active everywhere.

    `reached` is what is active in the result, if that is known.
    """
    (x, mx), (y, my) = one, two
    if not _masks.is_partial(mx) and not _masks.is_partial(my):
        return multiply(x, y), True
    ones_x, ones_y = (
        _masks.as_numbers(_masks.spread(m, v), v.dtype)
        if _masks.is_partial(m)
        else torch.ones_like(v)
        for v, m in (one, two)
    )
    if reached is None:
        reached = _masks.folded(met_by(multiply, ones_x, ones_y))
    if _meets_no_hole(x, my) and _meets_no_hole(y, mx):
        return multiply(x, y), reached
    finite = multiply(*(torch.where(v.isfinite(), v, 0) for v in (x, y)))
    hit = torch.zeros((), dtype=torch.bool, device=x.device)
    # An active entry meets one that is not finite: there the IEEE product stands.
    if _masks.is_any(bad := ~x.isfinite() & (ones_x != 0)):
        hit = hit | met_by(multiply, bad.to(x.dtype), ones_y)
    if _masks.is_any(bad := ~y.isfinite() & (ones_y != 0)):
        hit = hit | met_by(multiply, ones_x, bad.to(y.dtype))
    value = torch.where(hit, multiply(x, y), finite) if _masks.is_any(hit) else finite
    return value, reached


HALF = 0.5  # a count is at least 1, or 0 with the rounding of a fast convolution


def met_by(multiply: Callable[[Array, Array], Array], x: Array, y: Array) -> Array:
    """Return where, in a product of two 0/1 arrays, a 1 has met a 1."""
    count = multiply(x, y)
    return (count.real if count.is_complex() else count) > HALF


def _meets_no_hole(values: Array, partner: Any) -> bool:
    """Whether no absent entry meets a value that is not finite."""
    return not _masks.is_partial(partner) or _masks.is_finite(values)


def matrix(call: Call) -> Any:
    """Multiply matrices; quickly where absent entries meet finite values only."""
    # They do if the product is finite, as 0 times what is not finite is NaN.
    x, y = call.args
    mx, my = (call.masks.get(i) for i in (0, 1))
    if _masks.is_partial(mx) == _masks.is_partial(my):
        return contract(call)
    summed = -1 if _masks.is_partial(mx) else -2
    mask, other = (_masks.spread(mx, x), y) if _masks.is_partial(mx) else (_masks.spread(my, y), x)
    value = None if _masks.is_traced() else call.run()
    if value is None or not (
        _masks.is_finite(min(value, other, key=torch.numel)) or _masks.is_finite(other)
    ):
        met = _masks.any_over(mask, (-3 - summed,), keepdim=True).mT  # for each contracted index
        bad = ~other.isfinite().all(summed, keepdim=True)
        if call.mode.exact if _masks.is_traced() else (bad & met).any():
            return contract(call)
        # Where nothing of a matrix is absent, or all of it, the result is cleaned, or needs not be.
        used = other if _masks.repeats(met, -3 - summed) else _masks.beside(met, other)
        value = call.func(*((x, used) if summed == -1 else (used, y)))
    active = _masks.any_over(mask, (summed,), keepdim=True)
    # A coefficient that is not finite may meet both kinds: what it makes of them is kept.
    value = _masks.cleaned(value, active) if _masks.is_traced() else value
    call.mode.state(value, active)
    return value


def attention(call: Call) -> Any:
    """Differentiate attention: by the kernel if what it returns is finite, else by its parts."""
    query, key = call.args[1:3]
    partial = {i for i, active in call.masks.items() if _masks.is_partial(active)}
    # With `is_causal` later keys are absent, and heads that share a key add up their masks.
    if partial != {0} or call.args[7] or key.shape[1] != query.shape[1] or _masks.is_traced():
        return decompose(call)
    found = call.run()
    if not all(map(_masks.is_finite, found)):
        return decompose(call)
    active = _masks.spread(call.masks[0], query)
    reached = _masks.any_over(active, (-1,), keepdim=True)  # the queries
    masks = (
        reached,
        _masks.any_over(reached, (-2,), keepdim=True),
        _masks.any_over(active, (-2,), keepdim=True),
    )
    for slope, mask in zip(found, masks, strict=True):
        call.mode.state(slope, mask)
    return found


def attention_backward(
    mode: Masking,
    cotangent: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    logsumexp: Array,
    *options: Any,
    attn_mask: Any = None,
    scale: Any = None,
) -> tuple[Array, Array, Array]:
    """Return the gradients of attention without dropout, which the CPU kernel does not have."""
    # Computed in float32 at least, as in the kernel: `exp` of bfloat16 scores is inexact.
    _, is_causal = options
    dtype = query.dtype
    wide = torch.promote_types(dtype, torch.float32)
    cotangent, query, key, value, out = (x.to(wide) for x in (cotangent, query, key, value, out))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    heads = key.shape[1]
    shared = query.shape[1] // heads
    key, value = (x.repeat_interleave(shared, 1) for x in (key, value))
    scores = query @ key.mT * scale
    if attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.exp(scores - logsumexp[..., None])
    if is_causal:
        weights = without_future(mode, weights)
    of_value = (weights.mT @ cotangent).unflatten(1, (heads, shared)).sum(2)
    change = cotangent @ value.mT - (cotangent * out).sum(-1, keepdim=True)
    of_scores = weights * change * scale
    of_key = (of_scores.mT @ query).unflatten(1, (heads, shared)).sum(2)
    return (of_scores @ key).to(dtype), of_key.to(dtype), of_value.to(dtype)


def without_future(mode: Masking, weights: Array) -> Array:
    """Return weights without keys after their query: these are absent, as nothing selects them."""
    past = torch.ones(weights.shape[-2:], dtype=torch.bool, device=weights.device).tril()
    weights = torch.where(past, weights, 0)
    mode.state(weights, past.expand(weights.shape))
    return weights
