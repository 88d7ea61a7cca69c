"""
Products of tensors over pairs: matrix products and convolutions.

Absent entries and active ones may stand in one sum, where both meet a coefficient that is not
finite. By default the product is taken once, with coefficients that meet absent entries only set to
0; with `exact` it is taken once more, in parts, where that is not enough.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from safeops._backends.jax import private
from safeops._core.types import Array
from safeops.autodiff._pairs import Pair
from safeops.autodiff._small import folded
from safeops.autodiff.jax import _evaluator as evaluator
from safeops.autodiff.jax._evaluator import Factors, Mask, Options
from safeops.autodiff.jax._known import is_here, is_known


def contract(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Pair]:
    """Multiply and sum: coefficients that meet absent entries only are set to 0."""
    factors = evaluator.factors_of(eqn, ins)
    if factors is None:
        return _of_pairs(eqn, ins)
    _, at, pair, other = factors
    if pair.active is False:
        return evaluator.absent(eqn)
    if pair.active is True:
        return [Pair(factors.product(pair.value, other))]
    ((left, right), (left_batch, right_batch)) = private.axes_of_product(eqn)
    ours, theirs = ((left_batch, left), (right_batch, right))[:: 1 if at == 0 else -1]

    def met(mask: Any) -> Mask:
        kept = _any_but(mask, (*ours[0], *ours[1]))
        order = sorted(range(kept.ndim), key=lambda i: (*theirs[0], *theirs[1])[i])
        return _placed(kept.transpose(order), sorted((*theirs[0], *theirs[1])), other.shape)

    others = other.ndim - len(theirs[0]) - len(theirs[1])
    shape = eqn.outvars[0].aval.shape
    reached = evaluator.on_entries(lambda mask: _reached(mask, ours, others, at, shape), pair)
    return [
        _product(
            factors.product, pair, other, lambda: evaluator.on_entries(met, pair), reached, how
        )
    ]


def _of_pairs(eqn: JaxprEqn, ins: list[Any]) -> list[Pair]:
    """Multiply two pairs: absent times anything is absent."""
    (value,) = evaluator.run(eqn, ins)
    if all(x.active is True for x in ins) and eqn.primitive.name == "dot_general":
        return [Pair(value)]
    masks = [evaluator.array_of(x).astype(x.value.dtype) for x in ins]
    return [evaluator.cleared(value, private.plain(eqn, masks)[0] != 0)]


def _any_but(mask: Any, axes: Sequence[int]) -> Any:
    """Return where any entry is active along the other axes; the given axes keep their order."""
    rest = tuple(i for i in range(mask.ndim) if i not in axes)
    left = [i for i in range(mask.ndim) if i in axes]
    return mask.any(rest).transpose([left.index(i) for i in axes])


def _placed(mask: Any, axes: Sequence[int], shape: tuple[int, ...]) -> Mask:
    """Return a mask over some axes, in their order, as one that broadcasts to a shape."""
    if not is_known(mask):
        return lax.broadcast_in_dim(mask, shape, axes)
    return folded(np.expand_dims(mask, tuple(i for i in range(len(shape)) if i not in axes)))


def _reached(mask: Any, ours: Any, others: int, at: int, shape: tuple[int, ...]) -> Mask:
    """Return where a product of tensors is active: where any entry that it sums is."""
    batch, contracted = ours
    free = [i for i in range(mask.ndim) if i not in (*batch, *contracted)]
    kept = _any_but(mask, (*batch, *free))
    start = len(batch) + (0 if at == 0 else others)
    return _placed(kept, (*range(len(batch)), *range(start, start + len(free))), shape)


def _product(
    product: Any, pair: Pair, y: Array, met: Callable[[], Mask], reached: Mask, how: Options
) -> Pair:
    """
    Return the product; with `exact`, absent entries of x meet no coefficient that is not finite.

    They are 0: where all results are finite they met none, and the product is right as it is.
    """
    x = pair.value
    if not how.exact or is_here(y):
        kept = evaluator.cleared(y, met()).value
        # The coefficients may be here, and which of them an active entry meets be traced.
        if not how.exact or (is_here(kept) and evaluator.all_finite(kept)):
            return evaluator.cleared(product(x, kept), reached)
    once = evaluator.cleared(product(x, y), reached)

    def again() -> Array:
        used = evaluator.cleared(y, met()).value
        finite = jnp.isfinite(used)
        safe = product(x, jnp.where(finite, used, jnp.zeros((), y.dtype)))
        # Where an active entry meets one that is not finite, the IEEE product stands.
        some = evaluator.array_of(pair).astype(x.dtype)
        hit = product(some, (~finite).astype(y.dtype)) != 0
        return evaluator.cleared(jnp.where(hit, product(x, used), safe), reached).value

    (value,) = evaluator.if_finite([once.value], lambda: [again()])
    return Pair(value, once.active)


def convolve(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Pair]:
    """Contract over windows: coefficients that meet absent entries only are set to 0."""
    factors = evaluator.factors_of(eqn, ins)
    if factors is None:
        return _of_pairs(eqn, ins)
    pair, other = factors.pair, factors.other
    if pair.active is False:
        return evaluator.absent(eqn)
    mask = (
        evaluator.spread(pair.active, pair.value.shape)
        if is_known(pair.active)
        else evaluator.array_of(pair)
    )
    reached = evaluator.on_masks(partial(_in_windows, factors), mask)
    if pair.active is True:
        return [Pair(factors.product(pair.value, other), reached)]
    met = partial(evaluator.on_masks, partial(_met_in_windows, factors), mask)
    return [_product(factors.product, pair, other, met, reached, how)]


def _in_windows(factors: Factors, mask: Array) -> Array:
    """Return where a convolution is active; its strides and padding add zeros that are not."""
    other, (ours, theirs) = factors.other, _specs(factors)
    ones = jnp.ones(other.shape, other.dtype)  # not like a value of a shard: masks are not there
    if private.is_one_group(factors.eqn):  # one feature is enough, and one row of coefficients
        mask = mask.any(ours[1], keepdims=True)
        for axis in theirs[:2]:
            ones = lax.slice_in_dim(ones, 0, 1, axis=axis)
    reached = factors.product(mask.astype(ones.dtype), ones) != 0
    return jnp.broadcast_to(reached, factors.eqn.outvars[0].aval.shape)


def _met_in_windows(factors: Factors, mask: Array) -> Array:
    """Return which coefficients of a convolution an active entry meets."""
    other, (ours, theirs) = factors.other, _specs(factors)
    zeros = jnp.zeros(other.shape, other.dtype)
    if private.is_one_group(factors.eqn):  # one row of entries is enough, and one of coefficients
        mask = mask.any(ours[0], keepdims=True)
        zeros = lax.slice_in_dim(zeros, 0, 1, axis=theirs[0])
    entries = mask.astype(zeros.dtype)
    reach, back = jax.vjp(lambda y: factors.product(entries, y), zeros)
    return jnp.broadcast_to(back(jnp.ones_like(reach))[0] != 0, factors.other.shape)


def _specs(factors: Factors) -> Any:
    """Return the axes for batch, features and windows, of the pair and of the coefficients."""
    return private.axes_of_windows(factors.eqn)[:: 1 if factors.at == 0 else -1]
