"""Losses of logits and of probabilities, whose values and gradients are right when saturated."""

import math
from collections.abc import Callable
from typing import Any

from safeops._core.dtypes import INTEGER, dtype_name
from safeops._core.types import Array, Axis, Condition, IsArray, Namespace, T
from safeops._dispatch import backend_of, fast_path, promote, promote_mask, refuse_none
from safeops._ops.logs import rel_entr
from safeops._ops.precision import in_float32
from safeops._ops.slices import drop_axes, enter_number, enter_slices, require_fit
from safeops._ops.softmax import enter_classes, one_hot
from safeops._ops.where import double_where, is_inf, is_nan


@fast_path
def safe_binary_cross_entropy(
    logits: T, labels: IsArray | complex, /, *, where: Condition | None = None
) -> T:
    """
    Binary cross entropy of logits, exact at saturated ones; 0, with gradient 0, where left out.

    Same as ``labels * log(1 + exp(-logits)) + (1 - labels) * log(1 + exp(logits))``, elementwise.

    Parameters
    ----------
    logits : array, shape (...), real floating
        Any value. NaN stays NaN.
    labels : array, shape (...), real floating
        Probabilities of the logits' class, such as 0 and 1. NaN stays NaN.
    where : array, boolean, optional
        True = keep. Entries left out are 0, whatever they hold.

    Returns
    -------
    array, shape (...)
        For a mean over what is kept: `safe_mean`, with the same `where` and, if need be,
        `count` and ``fill_value=0``.

    Notes
    -----
    **Gradient.** ``sigmoid(logits) - labels`` for `logits` and ``-logits`` for `labels`, with all
    digits at saturated logits; 0 where left out, at every order. At a logit of inf or -inf the
    value is the limit, 0 or inf, and 0 is chosen for both gradients.

    **Source.** The definition; each logarithm is that of ``1 + exp`` of a negative number.

    Examples
    --------
    >>> import numpy as np
    >>> safe_binary_cross_entropy(np.asarray([0.0, 900.0, -900.0]), np.asarray([1.0, 1.0, 1.0]))
    array([6.93147181e-01, 0.00000000e+00, 9.00000000e+02])
    """
    return _binary(logits, labels, where, lambda xp: lambda x, y: _cross_entropy(xp, x, y), 1.0)


@fast_path
def safe_focal_loss(
    logits: T,
    labels: IsArray | complex,
    /,
    *,
    gamma: float = 2.0,
    alpha: float | None = None,
    where: Condition | None = None,
) -> T:
    """
    Focal loss of logits, exact at saturated ones for every `gamma`; 0 where left out.

    Same as ``labels * loss(logits) + (1 - labels) * loss(-logits)`` elementwise, with
    ``loss(x) = sigmoid(-x) ** gamma * log(1 + exp(-x))``.

    Parameters
    ----------
    logits : array, shape (...), real floating
        Any value. NaN stays NaN.
    labels : array, shape (...), real floating
        Probabilities of the logits' class, such as 0 and 1. NaN stays NaN.
    gamma : float, default: 2.0
        At least 0: how much examples that are right already count less; for 0 the loss is
        `safe_binary_cross_entropy`.
    alpha : float, optional
        In [0, 1]: weight of the logits' class; that of the other one is ``1 - alpha``. Default: no
        weights.
    where : array, boolean, optional
        True = keep. Entries left out are 0, whatever they hold.

    Notes
    -----
    **Gradient.** The derivative, exact at every finite logit: a power of ``1 - p`` has an infinite
    slope for a `gamma` below 1 at ``p = 1``, to which probabilities round; its logarithm has not.
    0 where left out, at every order. At a logit of inf or -inf as for `safe_binary_cross_entropy`.
    Where the slope for the labels crosses 0, next to a logit of 0, it is right to a rounding of its
    two terms.

    **Source.** Lin et al., *Focal Loss for Dense Object Detection* (2017), with the power as
    ``exp(-gamma * log(1 + exp(x)))``.

    Examples
    --------
    >>> import numpy as np
    >>> safe_focal_loss(np.asarray([0.0, 900.0, -900.0]), np.asarray([1.0, 1.0, 1.0]))
    array([1.73286795e-01, 0.00000000e+00, 9.00000000e+02])
    """
    power = enter_number("expected a finite number of at least 0 as gamma", gamma)
    if not 0 <= power < math.inf:
        msg = f"expected a finite number of at least 0 as gamma, got {gamma}"
        raise ValueError(msg)
    weight = 0.5 if alpha is None else enter_number("expected a number in [0, 1] as alpha", alpha)
    if not 0 <= weight <= 1:
        msg = f"expected a number in [0, 1] as alpha, got {alpha}"
        raise ValueError(msg)
    scale = 2.0 if alpha is None else 1.0
    weights = (scale * weight, scale * (1.0 - weight))

    def formula(xp: Namespace) -> Callable[..., Array]:
        if power == 0 and alpha is None:
            return lambda x, y: _cross_entropy(xp, x, y)
        return lambda x, y: _focal(xp, x, y, power, weights)

    return _binary(logits, labels, where, formula, *weights)


@fast_path
def safe_kl_divergence(
    p: T | complex,
    q: T | complex,
    /,
    *,
    axis: Axis = -1,
    keepdims: bool = False,
    where: Condition | None = None,
) -> T:
    """
    Kullback-Leibler divergence of probabilities, in which one of 0 adds 0 and has gradient 0.

    Same as ``sum(p * log(p / q))`` over `axis`, with ``0 * log(0 / q) = 0``.

    Parameters
    ----------
    p, q : array, shape (...), real floating
        Probabilities. NaN stays NaN. Subnormal numbers count as zero; for float16 and bfloat16,
        those of float32.
    axis : int or tuple of ints, default: -1
        Axes of a distribution; None for all.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out count for nothing, whatever they hold.

    Returns
    -------
    array
        inf where `q` is 0 and `p` is not, 0 for an empty slice.

    Notes
    -----
    **Gradient.** ``log(p / q) + 1`` for `p` and ``-p / q`` for `q` where both are positive, 0 and 0
    elsewhere, at every order: at ``p = 0`` the slope is infinite, and 0 is chosen.

    **Source.** The sum of `rel_entr`. With logarithms of `q`, take `safe_cross_entropy` of logits.

    Examples
    --------
    >>> import numpy as np
    >>> safe_kl_divergence(np.asarray([[1.0, 0.0], [0.5, 0.5]]), np.asarray([0.5, 0.5]))
    array([0.69314718, 0.        ])
    """
    xp, dtype, keep, (p, q) = enter_slices(p, q, where=where)
    p, q = xp.broadcast_arrays(p, q)
    terms = rel_entr(p, q) if keep is None else double_where(xp, keep, (p, q), rel_entr, 0.0)
    total = xp.sum(terms, axis=axis, keepdims=True)
    return xp.astype(drop_axes(xp, total, axis, keepdims=keepdims), dtype)


@fast_path
def safe_nll(
    log_probs: T, labels: IsArray | int, /, *, axis: int = -1, where: Condition | None = None
) -> T:
    """
    Negative log-likelihood of classes; 0, with gradient 0, for a negative class.

    Same as ``-log_probs[labels]`` along `axis`, slice by slice.

    Parameters
    ----------
    log_probs : array, shape (..., n), real floating
        Logarithms of the probabilities of n classes. Those of other classes than the label may hold
        whatever they do.
    labels : array, shape (...) or (), integer
        The class, where a negative one marks a slice to leave out (value 0), and one of n or more
        gives NaN.
    axis : int, default: -1
        Axis of the classes in `log_probs`.
    where : array, boolean, shape (..., n), optional
        True = keep. A slice whose label is left out is 0.

    Returns
    -------
    array, shape (...)

    Notes
    -----
    **Gradient.** -1 to the entry of the label, 0 to all others, and to slices left out, at every
    order; NaN for a class of n or more.

    **Source.** `torch.nn.functional.nll_loss`, whose `ignore_index` is each negative class here.

    Examples
    --------
    >>> import numpy as np
    >>> log_probs = np.asarray([[-0.25, -1.5], [-np.inf, np.nan]])
    >>> safe_nll(log_probs, np.asarray([1, -1]))
    array([1.5, 0. ])
    """
    backend = backend_of(log_probs, labels)
    refuse_none((log_probs, labels))
    if not isinstance(axis, int):
        msg = f"expected an int as axis of the classes, got {axis}"
        raise TypeError(msg)
    if not isinstance(labels, int) and dtype_name(labels.dtype) not in INTEGER:
        msg = (
            f"expected integers as labels, got {dtype_name(labels.dtype)}; "
            "probabilities go to safe_cross_entropy"
        )
        raise TypeError(msg)
    classes, absent = enter_classes(backend, log_probs, labels, axis)
    xp, dtype, keep, (x,) = enter_slices(log_probs, where=where)
    chosen, known = one_hot(backend, x, classes, axis)
    known = known if absent is None else xp.logical_or(known, absent)
    chosen = xp.logical_or(chosen, xp.logical_not(known))
    chosen = chosen if keep is None else xp.logical_and(keep, chosen)
    total = xp.sum(xp.where(chosen, -x, 0.0), axis=axis, keepdims=True)
    # A product, of which the slope is NaN too.
    total = total * xp.where(known, xp.ones_like(total), math.nan)
    return xp.astype(drop_axes(xp, total, axis, keepdims=False), dtype)


def _binary(
    logits: Array,
    labels: Array,
    where: Any,
    formula: Callable[[Namespace], Callable[..., Array]],
    on_one: float,
    on_zero: float | None = None,
) -> Array:
    """Return a loss of two classes: the formula at finite logits, its limit at infinite ones."""
    xp, x, y = promote(logits, labels)
    on_zero = on_one if on_zero is None else on_zero
    keep = promote_mask(where, x)
    x, y = xp.broadcast_arrays(x, y)
    require_fit(keep, x)

    def loss(x: Array, y: Array) -> Array:
        infinite = is_inf(xp, x)
        other = xp.where(x > 0, (1.0 - y) * on_zero, y * on_one)
        endless = xp.logical_and(infinite, other != 0)
        limit = xp.where(is_nan(y), y, xp.where(endless, math.inf, xp.zeros_like(y)))
        return double_where(xp, infinite, (x, y), limit, in_float32(xp, formula(xp)), 0.0)

    return loss(x, y) if keep is None else double_where(xp, keep, (x, y), loss, 0.0, 0.0)


def _rest(xp: Namespace, x: Array) -> Array:
    """Return ``log(1 + exp(-abs(x)))``, which has both derivatives at 0 with the `x` beside it."""
    return xp.log1p(xp.exp(xp.where(x > 0, -x, x)))


def _cross_entropy(xp: Namespace, x: Array, y: Array) -> Array:
    """Return the sum of two terms that are not negative, so that none cancels for 0 <= y <= 1."""
    return xp.where(x > 0, x * (1.0 - y), -x * y) + _rest(xp, x)


def _softplus(xp: Namespace, x: Array) -> Array:
    return xp.where(x > 0, x, 0.0) + _rest(xp, x)


FAR = 800.0  # of such logits the exponential is 0 in every dtype: the loss is a line


def _focal(xp: Namespace, x: Array, y: Array, power: float, weights: tuple[float, float]) -> Array:
    on_one, on_zero = weights

    def line(x: Array, y: Array) -> Array:
        return xp.where(x < 0, y * (-x * on_one), (1.0 - y) * (x * on_zero))

    def near(x: Array, y: Array) -> Array:
        one, zero = _softplus(xp, -x), _softplus(xp, x)
        positive = y * on_one * (xp.exp(-power * zero) * one)
        return positive + (1.0 - y) * on_zero * (xp.exp(-power * one) * zero)

    return double_where(xp, xp.abs(x) > FAR, (x, y), line, near, 0.0)
