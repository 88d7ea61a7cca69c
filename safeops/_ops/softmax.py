"""The softmax family, in which an entry at -inf or with ``where=False`` is absent."""

import math
from typing import Any, NamedTuple

from safeops._backends.array_api import ArrayAPI
from safeops._core.dtypes import INTEGER, REAL, dtype_name, limits, require
from safeops._core.types import Array, Axis, Condition, DType, IsArray, Namespace, T, reduces
from safeops._dispatch import backend_of, fast_path, promote_mask, refuse_none
from safeops._ops.logs import safe_logaddexp
from safeops._ops.powers import safe_exp
from safeops._ops.slices import (
    count,
    drop_axes,
    enter_number,
    enter_slices,
    length,
    scale_of,
    with_same_slices,
)
from safeops._ops.where import double_where, is_nan, stop_gradient

LONGEST = 31  # doublings of a length that is not known


class _Rows(NamedTuple):
    """Slices of logits, and what their exponentials need."""

    xp: Namespace
    dtype: DType
    x: Array
    keep: Array | None
    zero: Array  # kept, and at -inf
    absent: Array  # at -inf or not kept
    inside: Array  # x, and the least number where absent or with a factor of 0
    peak: Array  # the largest entry present, as a constant; finite in an empty slice
    empty: Array | None  # slices in which no factor counts, axes kept; None without factors


@fast_path
def safe_softmax(x: T, /, *, axis: Axis = -1, where: Condition | None = None) -> T:
    """
    Softmax in which entries at -inf are absent; an empty slice is 0, with gradient 0.

    Same as ``exp(x) / sum(exp(x))`` over the entries present, 0 elsewhere.

    Parameters
    ----------
    x : array, shape (...), real floating
        Logits. NaN stays NaN; inf gives NaN.
    axis : int or tuple of ints, default: -1
        Axes of a slice; None for all.
    where : array, boolean, optional
        True = keep. Entries left out are absent, whatever they hold.

    Returns
    -------
    array, shape (...)
        Slices sum to 1, empty slices to 0.

    Notes
    -----
    **Gradient.** ``diag(s) - s s^T`` over the entries present, with s the softmax; 0 to and from
    absent entries, at every order.

    **Source.** The masked attention of PyTorch issue 55056; `torch._safe_softmax` for the value.

    Examples
    --------
    >>> import numpy as np
    >>> safe_softmax(np.asarray([[0.0, 0.0, -np.inf], [-np.inf, -np.inf, -np.inf]]))
    array([[0.5, 0.5, 0. ],
           [0. , 0. , 0. ]])
    """
    rows, _ = _rows(x, axis, where)
    parts = _exponentials(rows)
    total, empty = _total(rows, parts, axis)
    out = parts / rows.xp.where(empty, 1.0, total)
    out = rows.xp.where(rows.absent, 0.0, out)  # beside a NaN too
    return rows.xp.astype(out, rows.dtype)


@fast_path
def safe_log_softmax(x: T, /, *, axis: Axis = -1, where: Condition | None = None) -> T:
    """
    Logarithm of `safe_softmax`: -inf, with gradient 0, at absent entries and in empty slices.

    Same as ``x - log(sum(exp(x)))`` over the entries present, -inf elsewhere.

    Parameters
    ----------
    x : array, shape (...), real floating
        Logits. NaN stays NaN; inf gives NaN.
    axis : int or tuple of ints, default: -1
        Axes of a slice; None for all.
    where : array, boolean, optional
        True = keep. Entries left out are absent, whatever they hold.

    Notes
    -----
    **Gradient.** ``I - 1 s^T`` over the entries present, with s the softmax; 0 to and from absent
    entries, at every order.

    **Source.** As for `safe_softmax`.

    Examples
    --------
    >>> import numpy as np
    >>> safe_log_softmax(np.asarray([0.0, -np.inf]))
    array([  0., -inf])
    """
    rows, _ = _rows(x, axis, where)
    parts, _ = _log_parts(rows, axis)
    out = rows.xp.where(rows.absent, -math.inf, parts)
    return rows.xp.astype(out, rows.dtype)


@reduces
@fast_path
def safe_logsumexp(
    x: T,
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Condition | None = None,
    b: IsArray | complex | None = None,
) -> T:
    """
    Logarithm of the sum of exponentials; an empty slice is -inf, with gradient 0.

    Same as ``log(sum(b * exp(x)))`` over the entries present, without overflow.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN. Entries at -inf are absent; beside inf all others are.
    axis : int or tuple of ints, optional
        Axes of a slice. Default: all.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out are absent, whatever they hold.
    b : array, shape (...), real floating, optional
        Factors of the exponentials. A slice whose factors are all 0 counts as empty; a slice with
        a negative sum is NaN, and so is one with factors of both signs at inf.

    Notes
    -----
    **Gradient.** ``b * exp(x - out)`` for `x` and ``exp(x - out)`` for `b`; 0 at absent entries
    and in empty slices, at every order. Entries at inf share the slope by their factors, evenly
    without `b`, as ties of a maximum do, and their second derivatives for `x` are 0.

    **Source.** `scipy.special.logsumexp` for the values and for `b`. The softmax at inf is NaN: its
    value, of which only the sum is known, would be a choice.

    Examples
    --------
    >>> import numpy as np
    >>> safe_logsumexp(np.asarray([[0.0, -np.inf], [-np.inf, -np.inf]]), axis=-1)
    array([  0., -inf])
    """
    rows, b = _rows(x, axis, where, factors=b)
    return _finish(rows, _log_sum(rows, b, axis), axis, keepdims=keepdims)


@fast_path
def safe_logcumsumexp(x: T, /, *, axis: int | None = None, where: Condition | None = None) -> T:
    """
    Logarithm of the running sum of exponentials; -inf, with gradient 0, before the first entry.

    Same as ``log(cumsum(exp(x)))`` over the entries present, without overflow or underflow.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN, from its entry on. Entries at -inf are absent.
    axis : int, optional
        Axis along which the sum runs. Default: all entries, flattened.
    where : array, boolean, optional
        True = keep. Entries left out are absent, whatever they hold: the sum stays as it was.

    Notes
    -----
    **Gradient.** ``exp(x[j] - out[i])`` for ``j <= i``; 0 at absent entries, and from an entry
    before which nothing is present, at every order. From an entry of inf on the value is inf, and
    the entries at inf share the slope evenly, as those of `safe_logsumexp` do.

    **Source.** `safe_logaddexp` of neighbours, then of pairs, and so on: so a small sum beside a
    large entry keeps its digits, which one maximum for all would take away.

    Examples
    --------
    >>> import numpy as np
    >>> safe_logcumsumexp(np.asarray([-np.inf, -1000.0, 0.0, 0.0]))
    array([           -inf, -1.00000000e+03,  0.00000000e+00,  6.93147181e-01])
    """
    if isinstance(axis, tuple):
        msg = f"expected an int or None as axis, got {axis}: entries follow each other along one"
        raise TypeError(msg)
    xp, dtype, keep, (x,) = enter_slices(x, where=where)
    there = x != -math.inf if keep is None else xp.logical_and(keep, x != -math.inf)
    x = xp.where(there, x, -math.inf)  # the first entry is the first sum itself, with slope 1
    last = axis == -1  # whatever the rank, which TensorFlow may not know
    x = x if last else backend_of(x).flatten_axes(x, axis)
    total = _lifted(x, _running(xp, xp.where(x == math.inf, -math.inf, x)))
    if axis is not None and not last:
        rank = len(x.shape)
        order = list(range(rank - 1))
        order.insert(axis % rank, rank - 1)
        total = xp.permute_dims(total, tuple(order))
    return xp.astype(total, dtype)


def _running(xp: Namespace, x: Array) -> Array:
    """Return the logarithms of the running sums along the last axis, in doublings."""
    size = length(x, -1)
    for doubling in range(LONGEST if size is None else max(size - 1, 0).bit_length()):
        step = 2**doubling
        x = xp.concat([x[..., :step], safe_logaddexp(x[..., :-step], x[..., step:])], axis=-1)
    return x


def _lifted(x: Array, total: Array) -> Array:
    """Return running sums that are inf from the first inf of x on; each inf has the same share."""
    backend = backend_of(x)
    xp, top, undefined = backend.xp, x == math.inf, is_nan(total)
    tops = xp.where(top, xp.ones_like(x), 0.0), xp.where(top, x, 0.0)
    number, lift = (backend.cumulative(y, -1, product=False) for y in tops)
    endless, number = number > 0, stop_gradient(number)
    number = xp.where(undefined, math.nan, xp.where(endless, number, 1.0))
    return xp.where(undefined, total, xp.where(endless, 0.0, total)) + lift / number


@reduces
@fast_path
def safe_logmeanexp(
    x: T, /, *, axis: Axis = None, keepdims: bool = False, where: Condition | None = None
) -> T:
    """
    Logarithm of the mean of exponentials; an empty slice is -inf, with gradient 0.

    Same as ``log(mean(exp(x)))`` over the entries with ``where=True``, without overflow.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN. Entries at -inf count in the mean, as zeros.
    axis : int or tuple of ints, optional
        Axes of a slice. Default: all.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out do not count, whatever they hold.

    Notes
    -----
    **Gradient.** The softmax of `x`; 0 at absent entries and in empty slices, at every order.
    Entries at inf share it evenly, as in `safe_logsumexp`.

    **Source.** `safe_logsumexp` less the logarithm of the count.

    Examples
    --------
    >>> import numpy as np
    >>> safe_logmeanexp(np.asarray([0.0, 0.0, 7.0]), where=np.asarray([True, True, False]))
    np.float64(0.0)
    """
    xp, dtype, keep, (x,) = enter_slices(x, where=where)
    value = safe_logsumexp(x, axis=axis, keepdims=True, where=keep)
    number = count(xp, x, keep, axis)
    value = value - xp.log(xp.where(number == 0, 1.0, number))
    return xp.astype(drop_axes(xp, value, axis, keepdims=keepdims), dtype)


@fast_path
def safe_cross_entropy(
    logits: T,
    labels: IsArray | complex,
    /,
    *,
    axis: int = -1,
    where: Condition | None = None,
    label_smoothing: float = 0.0,
    weights: IsArray | complex | None = None,
) -> T:
    """
    Cross entropy of labels and the softmax of logits; an empty slice is 0, with gradient 0.

    Same as ``-sum(weights * labels * log_softmax(logits))`` over the entries present.

    Parameters
    ----------
    logits : array, shape (..., n), real floating
        NaN stays NaN; inf gives NaN. Entries at -inf have probability 0.
    labels : array, shape (..., n), real floating; or shape (...) or (), integer
        Probabilities of the n classes; or the class. A negative class leaves its slice out (value
        0), whatever the logits hold. A class of n or more gives NaN.
    axis : int, default: -1
        Axis of the classes in `logits`.
    where : array, boolean, shape (..., n), optional
        True = keep. Classes left out are absent, and so are their labels, whatever both hold.
    label_smoothing : float, default: 0.0
        In [0, 1]: the part of the labels that all classes present share evenly.
    weights : array, shape (n,), real, optional
        Factors of the classes; of a class that is no label, none is read. Default: all 1.

    Returns
    -------
    array, shape (...)
        A label above 0 at a logit of -inf makes it inf, unless the slice is empty or its
        weight 0, and -inf if its weight is negative. For a mean over the slices kept: `safe_mean`
        with `where`, `count` and ``fill_value=0``.

    Notes
    -----
    **Gradient.** ``softmax(logits) * sum(labels) - labels`` for `logits`, ``-log_softmax(logits)``
    for `labels`, both times `weights`; 0 at absent entries, in empty slices and in those left out,
    at every order; NaN for a class of n or more.

    **Source.** `torch.nn.functional.cross_entropy` for the two kinds of labels, their smoothing and
    the weights; there a class at -inf takes part in the smoothing, which makes the loss inf.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.asarray([[0.0, 0.0, -np.inf], [-np.inf, -np.inf, -np.inf]])
    >>> safe_cross_entropy(logits, np.asarray([1, 0]))
    array([0.69314718, 0.        ])
    """
    backend = backend_of(logits, labels, beside=(weights,))
    refuse_none((logits, labels))
    if not isinstance(axis, int):
        msg = f"expected an int as axis of the classes, got {axis}"
        raise TypeError(msg)
    part = _enter_smoothing(label_smoothing)
    if _are_classes(labels):
        classes, absent_slices = enter_classes(backend, logits, labels, axis)
        rows, _ = _rows(logits, axis, _without(backend, logits, where, absent_slices))
        chosen, known = one_hot(backend, rows.x, classes, axis)
        known = known if absent_slices is None else rows.xp.logical_or(known, absent_slices)
        labels = rows.xp.where(chosen, rows.xp.ones_like(rows.x), 0.0)
    else:
        rows, labels = _rows(logits, axis, where, labels=labels)
        known = None
    labels = _smoothed(rows, labels, part, axis) if part else labels
    if weights is not None:
        factors = _along(backend, rows, weights, axis)
        if known is not None:  # the weights of other classes are not read
            factors = rows.xp.where(labels == 0, 1.0, factors)
        labels = labels * factors
    total, empty = _terms(rows, labels, axis)
    if known is not None:  # a product, of which the slope is NaN too
        total = total * rows.xp.where(known, rows.xp.ones_like(total), math.nan)
    return _finish(rows, rows.xp.where(empty, 0.0, total), axis, keepdims=False)


def _terms(rows: _Rows, labels: Array, axis: int) -> tuple[Array, Array]:
    """Return the cross entropy of each slice, and which are empty, axes kept."""
    xp = rows.xp
    log_parts, empty = _log_parts(rows, axis)
    terms = double_where(
        xp, rows.absent, (labels, log_parts), 0.0, lambda w, q: -w * q, placeholder=0.0
    )
    total = xp.sum(terms, axis=axis, keepdims=True)
    # The labels of logits at -inf: their sign is that of an infinite loss, and NaN stays NaN.
    impossible = xp.sum(xp.where(rows.zero, labels, 0.0), axis=axis, keepdims=True)
    nothing = xp.zeros_like(total)
    endless = xp.where(impossible < 0, -math.inf, nothing)
    endless = xp.where(impossible > 0, math.inf, endless)
    # A product, of which the slope is NaN too.
    return total * xp.where(is_nan(impossible), math.nan, nothing + 1.0) + endless, empty


def _enter_smoothing(part: Any) -> float:
    """Return the part of the labels that is shared; an error for what is none."""
    wanted = "expected a number in [0, 1] as label_smoothing"
    found = enter_number(wanted, part)
    if not 0 <= found <= 1:
        msg = f"{wanted}, got {part}"
        raise ValueError(msg)
    return found


def _smoothed(rows: _Rows, labels: Array, part: float, axis: int) -> Array:
    """Return labels, a part of which the entries present share."""
    xp = rows.xp
    present = xp.logical_not(rows.absent)
    number = count(xp, rows.x, present, axis)
    share = part / xp.where(number == 0, 1.0, number)
    return (1.0 - part) * labels + xp.where(present, share, 0.0)


def _along(backend: ArrayAPI, rows: _Rows, weights: Any, axis: int) -> Array:
    """Return the weights of classes beside the logits."""
    require(weights.dtype, INTEGER + REAL, weights)
    shape = weights.shape
    known = getattr(shape, "rank", 0) is not None
    if known and (len(shape) != 1 or len({shape[0], length(rows.x, axis)} - {None}) > 1):
        msg = f"expected a vector, one number a class, as weights, got shape {tuple(weights.shape)}"
        raise ValueError(msg)
    weights = backend.cast(weights, rows.x.dtype, rows.x)
    for _ in range(-axis - 1 if axis < 0 else len(rows.x.shape) - axis - 1):
        weights = rows.xp.expand_dims(weights, axis=-1)
    return weights


def _rows(
    x: Array, axis: Axis, where: Any, *, factors: Any = None, labels: Any = None
) -> tuple[_Rows, Any]:
    """Return the slices, and factors or labels in their dtype; a factor of 0 makes no peak."""
    others = [y for y in (factors, labels) if y is not None]
    xp, dtype, keep, (x, *others) = enter_slices(x, *others, where=where)
    if labels is not None:
        x, *others = with_same_slices(xp, (x, *others), axis)
    zero = x == -math.inf
    if keep is None:
        absent = zero
    else:
        absent = xp.logical_or(zero, xp.logical_not(keep))
        zero = xp.logical_and(zero, keep)
    weightless = absent if factors is None else xp.logical_or(absent, others[0] == 0)
    least = -limits(xp, x).max  # NaN detectors report -inf
    inside = xp.where(weightless, least, x)
    peak = scale_of(xp, inside, axis, of_none=least, of_sum=factors is None)
    empty = None
    if factors is not None:  # an entry with factor 0 may hold inf or NaN
        empty = xp.all(weightless, axis=axis, keepdims=True)
        absent = xp.logical_or(absent, empty)
        peak = xp.where(empty, 0.0, peak)
    rows = _Rows(xp, dtype, x, keep, zero, absent, inside, peak, empty)
    return rows, others[0] if others else None


def _exponentials(rows: _Rows) -> Array:
    """Return ``exp(x - peak)``, 0 where absent; the peak cancels, and so may be a constant."""
    return double_where(
        rows.xp,
        rows.absent,
        (rows.x,),
        0.0,
        lambda x: rows.xp.exp(x - rows.peak),
        placeholder=(rows.peak,),
    )


def _total(rows: _Rows, parts: Array, axis: Axis) -> tuple[Array, Array]:
    """Return the sum of `parts`, and which slices are empty, axes kept."""
    # The largest entry present contributes 1. So a sum of 0 means an empty slice, and no reduction
    # is needed to find empty slices. With factors a sum may be 0 for another reason.
    total = rows.xp.sum(parts, axis=axis, keepdims=True)
    return total, total == 0 if rows.empty is None else rows.empty


def _log_sum(rows: _Rows, factors: Array | None, axis: Axis) -> Array:
    """Return the logarithms of sums of exponentials, axes kept; -inf for an empty slice."""
    xp = rows.xp
    usual = rows.peak < math.inf  # a NaN is not
    peak = xp.where(usual, rows.peak, limits(xp, rows.x).max)
    top = rows.inside == math.inf  # counts 1, or its factor
    args: tuple[Array, ...] = (rows.x,)
    if factors is None:
        ones = xp.where(top, xp.ones_like(rows.x), 0.0)
    else:
        top = xp.logical_and(rows.x == math.inf, xp.logical_not(xp.logical_or(rows.absent, usual)))
        args, ones = (rows.x, factors), xp.where(top, factors, 0.0)
    # The peak is the largest entry whose factor is not 0. An entry above it has factor 0, and
    # safe_exp because 0 * inf would be NaN.
    parts = double_where(
        xp,
        xp.logical_or(rows.absent, top),
        args,
        ones,
        lambda x, *b: b[0] * safe_exp(x - peak) if b else xp.exp(x - peak),
        placeholder=(peak, 1.0)[: len(args)],
    )
    total, empty = _total(rows, parts, axis)
    lift = _lift(rows, top, factors, xp.where(usual, 1.0, total), axis)
    peak = xp.where(usual, rows.peak, lift)
    return double_where(xp, empty, (peak, total), -math.inf, lambda m, t: m + xp.log(t))


def _lift(rows: _Rows, top: Array, factors: Array | None, total: Array, axis: Axis) -> Array:
    """Return inf for slices with entries at inf, which share its slope by their factors."""
    xp, total = rows.xp, stop_gradient(total)
    x = xp.where(top, rows.x, 0.0)
    if factors is None:
        return xp.sum(x, axis=axis, keepdims=True) / total
    share = xp.where(top, stop_gradient(factors), 1.0) / total
    return xp.sum(xp.where(share == 0, 0.0, x) * share, axis=axis, keepdims=True)


def _log_parts(rows: _Rows, axis: Axis) -> tuple[Array, Array]:
    """Return the logarithm of the softmax, finite at absent entries too, and the empty slices."""
    total, empty = _total(rows, _exponentials(rows), axis)
    total = rows.xp.where(empty, 1.0, total)
    return rows.xp.where(rows.absent, rows.peak, rows.x) - rows.peak - rows.xp.log(total), empty


def _are_classes(labels: Any) -> bool:
    return isinstance(labels, int) or (
        hasattr(labels, "dtype") and dtype_name(labels.dtype) in INTEGER
    )


def enter_classes(
    backend: ArrayAPI, logits: Array, labels: Any, axis: int
) -> tuple[Array, Array | None]:
    """Return the classes as indices of the logits' framework, and which slices they leave out."""
    if isinstance(labels, int):  # treated alike within int32 and beyond it
        labels = backend.cast(max(-1, min(labels, 2**31 - 1)), backend.xp.int32, logits)
    labels = backend.cast(labels, labels.dtype, labels)
    _require_classes(logits, labels)
    if getattr(labels.shape, "rank", 0) is None or len(labels.shape):
        labels = backend.xp.expand_dims(labels, axis=axis)
    # A uint64 class above int64 wraps to a negative index. It leaves no slice out: it is unknown.
    classes = backend.as_index(labels)
    return classes, classes < 0 if dtype_name(labels.dtype).startswith("int") else None


def _require_classes(logits: Array, labels: Array) -> None:
    """Raise ValueError for integer labels of a wrong shape, such as one-hot vectors."""
    if any(getattr(x.shape, "rank", 0) is None for x in (logits, labels)):
        return
    if len(labels.shape) not in {0, len(logits.shape) - 1}:
        msg = (
            f"expected a class for each slice as integer labels, of {len(logits.shape) - 1} "
            f"dimensions beside logits of shape {tuple(logits.shape)}, got shape "
            f"{tuple(labels.shape)}; one-hot vectors are probabilities: pass them as floats"
        )
        raise ValueError(msg)


def _without(backend: ArrayAPI, logits: Array, where: Any, absent_slices: Array | None) -> Any:
    """Return `where`, with False in the slices left out."""
    if absent_slices is None:
        return where
    kept, keep = backend.xp.logical_not(absent_slices), promote_mask(where, logits)
    return kept if keep is None else backend.xp.logical_and(keep, kept)


def one_hot(backend: ArrayAPI, x: Array, classes: Array, axis: int) -> tuple[Array, Array]:
    """Return which entry of each slice is that of the class, and where the class is known."""
    chosen = backend.as_index(backend.positions(x, axis)) == classes
    return chosen, backend.xp.any(chosen, axis=axis, keepdims=True)


def _finish(rows: _Rows, x: Array, axis: Axis, *, keepdims: bool) -> Array:
    return rows.xp.astype(drop_axes(rows.xp, x, axis, keepdims=keepdims), rows.dtype)
