"""
Logarithms of a softmax and the losses made of them, with the rule that has one softmax in it.

The steps of `safe_cross_entropy` make a row of labels of each class, and select five times. Here
one entry is gathered, and the slope is the softmax less 1 at the label.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from safeops._backends.jax.rules import Context, _absent, _is_condition, _wide
from safeops._core.types import Array, Function


def _parts(x: Array, absent: Array, axis: int) -> tuple[Array, Array, Array]:
    """Return exponentials below the peak of a slice, the peak, 0 if empty, and their sum."""
    inside = jnp.where(absent, -math.inf, x)
    peak = jax.lax.stop_gradient(jnp.max(inside, axis, keepdims=True))
    peak = jnp.where(peak == -math.inf, 0, peak)
    parts = jnp.exp(inside - peak)  # NaN for inf
    return parts, peak, jnp.sum(parts, axis, keepdims=True)


def _softmax(x: Array, absent: Array, axis: int) -> tuple[Array, Array]:
    """Return the softmax, and which slices are empty."""
    # Not by `_softmax_without`: XLA makes the exponentials once if value and slope have the same.
    parts, _, total = _parts(x, absent, axis)
    return parts / jnp.where(total == 0, 1, total), total == 0


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _log_softmax_without(x: Array, absent: Array, axis: int) -> Array:
    _, peak, total = _parts(x, absent, axis)
    return jnp.where(absent, -math.inf, x - peak - jnp.log(jnp.where(total == 0, 1, total)))


@_log_softmax_without.defjvp
def _log_softmax_jvp(axis: int, given: Any, dots: Any) -> tuple[Array, Array]:
    (x, absent), (dot, _) = given, dots
    (shares, _), dot = _softmax(x, absent, axis), jnp.where(absent, 0, dot)
    away = dot - jnp.sum(shares * dot, axis, keepdims=True)
    return _log_softmax_without(x, absent, axis), jnp.where(absent, 0, away)


def _log_softmax(context: Context, x: Array, *, axis: Any = -1, where: Any = None) -> Array | None:
    (x,) = context.backend.promoted((x,))
    if type(axis) is not int or not x.size or not _is_condition(where, x.shape):
        return None  # the generic function knows the way, or says what is wrong
    out = _log_softmax_without(_wide(x), _absent(x, where), axis)
    return out.astype(x.dtype)


def _at(x: Array, places: Array, axis: int) -> Array:
    return jnp.take_along_axis(x, places, axis=axis)


@partial(jax.custom_jvp, nondiff_argnums=(4,))
def _loss_of_classes(x: Array, absent: Array, classes: Array, unknown: Array, axis: int) -> Array:
    """Return the cross entropy of each slice; inf for an absent class, 0 for an empty slice."""
    _, peak, total = _parts(x, absent, axis)
    value = jnp.log(jnp.where(total == 0, 1, total)) - (_at(x, classes, axis) - peak)
    value = jnp.where(_at(absent, classes, axis), math.inf + total, value)
    return jnp.where(total == 0, 0, jnp.where(unknown, math.nan, value))


@_loss_of_classes.defjvp
def _loss_of_classes_jvp(axis: int, given: Any, dots: Any) -> tuple[Array, Array]:
    (x, absent, classes, unknown), (dot, *_) = given, dots
    shares, empty = _softmax(x, absent, axis)
    slope = jnp.where(_is_at(x, classes, axis), shares - 1, shares)
    slope = jnp.where(_at(absent, classes, axis), 0 * shares, slope)
    undefined = unknown & ~empty
    dot = jnp.sum(slope * jnp.where(absent, 0, dot), axis, keepdims=True)
    dot = dot * jnp.where(undefined, math.nan, jnp.ones_like(dot))
    return _loss_of_classes(x, absent, classes, unknown, axis), dot


def _is_at(x: Array, places: Array, axis: int) -> Array:
    return jax.lax.broadcasted_iota(places.dtype, x.shape, axis % x.ndim) == places


@partial(jax.custom_jvp, nondiff_argnums=(4,))
def _entry_of_classes(
    x: Array, left_out: Array, classes: Array, unknown: Array, axis: int
) -> Array:
    """Return minus the entry of each class; 0 for slices left out, NaN for an unknown class."""
    return jnp.where(unknown, math.nan, jnp.where(left_out, 0, -_at(x, classes, axis)))


@_entry_of_classes.defjvp
def _entry_of_classes_jvp(axis: int, given: Any, dots: Any) -> tuple[Array, Array]:
    (x, left_out, classes, unknown), (dot, *_) = given, dots
    used = unknown | (_is_at(x, classes, axis) & ~left_out)
    dot = jnp.sum(jnp.where(used, -dot, 0), axis, keepdims=True)
    dot = dot * jnp.where(unknown, math.nan, jnp.ones_like(dot))  # not where(unknown, nan * dot, 0)
    return _entry_of_classes(x, left_out, classes, unknown, axis), dot


def _cross_entropy(
    context: Context,
    logits: Array,
    labels: Any,
    /,
    *,
    axis: Any = -1,
    where: Any = None,
    label_smoothing: Any = 0.0,
    weights: Any = None,
) -> Array | None:
    """Cross entropy of classes, without smoothing and weights."""
    plain = weights is None and type(label_smoothing) is float and label_smoothing == 0
    (x,) = context.backend.promoted((logits,))
    if not plain or not _are_classes(labels, x, axis) or not _is_condition(where, x.shape):
        return None
    classes, left_out, unknown = _entered(context, labels, x, axis, where)
    absent = _absent(x, where) | left_out
    out = _loss_of_classes(_wide(x), absent, classes, unknown, axis)
    return jnp.squeeze(out, axis).astype(x.dtype)


def _nll(
    context: Context, log_probs: Array, labels: Any, /, *, axis: Any = -1, where: Any = None
) -> Array | None:
    """Minus the entry of each class."""
    (x,) = context.backend.promoted((log_probs,))
    if not _are_classes(labels, x, axis) or not _is_condition(where, x.shape):
        return None
    classes, left_out, unknown = _entered(context, labels, x, axis, where)
    return jnp.squeeze(_entry_of_classes(x, left_out, classes, unknown, axis), axis)


def _are_classes(labels: Any, x: Array, axis: Any) -> bool:
    """Whether there is a signed integer for each slice, and its entry can be gathered."""
    if type(axis) is not int or not x.size or not -x.ndim <= axis < x.ndim:
        return False
    if jax.typeof(x).sharding.spec[axis] is not None:
        return False  # JAX does not gather along an explicit axis that is in parts
    if not isinstance(labels, jax.Array) or not jnp.issubdtype(labels.dtype, jnp.signedinteger):
        return False
    axis %= x.ndim
    return bool(labels.shape == (*x.shape[:axis], *x.shape[axis + 1 :]))


def _entered(
    context: Context, labels: Array, x: Array, axis: int, where: Any
) -> tuple[Array, Array, Array]:
    """Return the classes beside the slices, which slices they leave out, and which are unknown."""
    backend: Any = context.backend
    classes = jnp.expand_dims(backend.as_index(labels), axis)
    most = x.shape[axis] - 1
    places, left_out, unknown = jnp.clip(classes, 0, most), classes < 0, classes > most
    if where is not None:  # a class that is left out leaves out its slice
        kept = _at(jnp.broadcast_to(where, x.shape), places, axis)
        left_out = left_out | ~(kept | unknown)
    return places, left_out, unknown


KERNELS: dict[str, Function] = {
    "safe_cross_entropy": _cross_entropy,
    "safe_log_softmax": _log_softmax,
    "safe_nll": _nll,
}
