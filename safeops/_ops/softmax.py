"""The softmax family, in which an entry at -inf or with ``where=False`` is absent."""

import math
from typing import Any, NamedTuple

from safeops._dtypes import INTEGER, dtype_name, limits
from safeops._entry import backend_of, fast_path, promote_mask, refuse_none
from safeops._ops.powers import safe_exp
from safeops._ops.slices import count, drop_axes, enter_slices, scale_of
from safeops._ops.where import double_where
from safeops._typing import Array, Axis, Backend, DType, Namespace


class _Rows(NamedTuple):
    """Slices of logits, and what their exponentials need."""

    xp: Namespace
    dtype: DType
    x: Array
    keep: Array | None
    zero: Array  # kept, and at -inf
    absent: Array  # at -inf or not kept
    peak: Array  # the largest entry present, as a constant; finite in an empty slice
    empty: Array | None  # slices in which no factor counts, axes kept; None without factors


@fast_path
def safe_softmax(x: Array, /, *, axis: Axis = -1, where: Array | None = None) -> Array:
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
        Framework, dtype and device of `x`. Slices sum to 1, empty slices to 0.

    Raises
    ------
    TypeError
        If `x` is not a real array of a supported framework, or `where` not boolean.

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
    return rows.xp.astype(parts / rows.xp.where(empty, 1.0, total), rows.dtype)


@fast_path
def safe_log_softmax(x: Array, /, *, axis: Axis = -1, where: Array | None = None) -> Array:
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

    Returns
    -------
    array, shape (...)
        Nats; framework, dtype and device of `x`.

    Raises
    ------
    TypeError
        If `x` is not a real array of a supported framework, or `where` not boolean.

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


@fast_path
def safe_logsumexp(
    x: Array,
    /,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    where: Array | None = None,
    b: Array | None = None,
) -> Array:
    """
    Logarithm of the sum of exponentials; an empty slice is -inf, with gradient 0.

    Same as ``log(sum(b * exp(x)))`` over the entries present, without overflow.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN. Entries at -inf are absent; inf gives NaN.
    axis : int or tuple of ints, optional
        Axes of a slice. Default: all.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out are absent, whatever they hold.
    b : array, shape (...), real floating, optional
        Factors of the exponentials. A slice whose factors are all 0 counts as empty; a slice with
        a negative sum is NaN.

    Returns
    -------
    array
        Nats; framework and device of the arguments, their dtypes promoted.

    Raises
    ------
    TypeError
        If the arguments are not real arrays of one supported framework, or `where` not boolean.

    Notes
    -----
    **Gradient.** ``b * exp(x - out)`` for `x` and ``exp(x - out)`` for `b`; 0 at absent entries
    and in empty slices, at every order.

    **Source.** `scipy.special.logsumexp` for the values and for `b`.

    Examples
    --------
    >>> import numpy as np
    >>> safe_logsumexp(np.asarray([[0.0, -np.inf], [-np.inf, -np.inf]]), axis=-1)
    array([  0., -inf])
    """
    rows, b = _rows(x, axis, where, factors=b)
    if b is None:
        parts = _exponentials(rows)
    else:
        # The peak is the largest entry whose factor is not 0. An entry above it has factor 0, and
        # safe_exp because 0 * inf would be NaN.
        parts = double_where(
            rows.xp,
            rows.absent,
            (rows.x, b),
            0.0,
            lambda x, b: b * safe_exp(x - rows.peak),
            placeholder=(rows.peak, 1.0),
        )
    return _finish(rows, _log_total(rows, *_total(rows, parts, axis)), axis, keepdims=keepdims)


@fast_path
def safe_logmeanexp(
    x: Array, /, *, axis: Axis = None, keepdims: bool = False, where: Array | None = None
) -> Array:
    """
    Logarithm of the mean of exponentials; an empty slice is -inf, with gradient 0.

    Same as ``log(mean(exp(x)))`` over the entries with ``where=True``, without overflow.

    Parameters
    ----------
    x : array, shape (...), real floating
        Any value. NaN stays NaN. Entries at -inf count in the mean, as zeros; inf gives NaN.
    axis : int or tuple of ints, optional
        Axes of a slice. Default: all.
    keepdims : bool, default: False
        Whether reduced axes stay, with length 1.
    where : array, boolean, optional
        True = keep. Entries left out do not count, whatever they hold.

    Returns
    -------
    array
        Nats; framework, dtype and device of `x`.

    Raises
    ------
    TypeError
        If `x` is not a real array of a supported framework, or `where` not boolean.

    Notes
    -----
    **Gradient.** The softmax of `x`; 0 at absent entries and in empty slices, at every order.

    **Source.** `safe_logsumexp` less the logarithm of the count.

    Examples
    --------
    >>> import numpy as np
    >>> safe_logmeanexp(np.asarray([0.0, 0.0, 7.0]), where=np.asarray([True, True, False]))
    np.float64(0.0)
    """
    rows, _ = _rows(x, axis, where)
    total, empty = _total(rows, _exponentials(rows), axis)
    number = rows.xp.where(empty, 1.0, count(rows.xp, rows.x, rows.keep, axis))
    value = _log_total(rows, total, empty) - rows.xp.log(number)
    return _finish(rows, value, axis, keepdims=keepdims)


@fast_path
def safe_cross_entropy(
    logits: Array, labels: Array, /, *, axis: int = -1, where: Array | None = None
) -> Array:
    """
    Cross entropy of labels and the softmax of logits; an empty slice is 0, with gradient 0.

    Same as ``-sum(labels * log_softmax(logits))`` over the entries present.

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

    Returns
    -------
    array, shape (...)
        Nats; framework, dtype and device of `logits`. A label above 0 at a logit of -inf makes the
        result inf, unless the slice is empty.

    Raises
    ------
    TypeError
        If the arguments are not arrays of one supported framework, `logits` not real, `where`
        not boolean, or `axis` not an int.
    ValueError
        If integer labels do not have one dimension less than `logits`.

    Notes
    -----
    **Gradient.** ``softmax(logits) * sum(labels) - labels`` for `logits`, ``-log_softmax(logits)``
    for `labels`; 0 at absent entries, in empty slices and in slices left out, at every order; NaN
    for a class of n or more.

    **Source.** `torch.nn.functional.cross_entropy` for the two kinds of labels.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.asarray([[0.0, 0.0, -np.inf], [-np.inf, -np.inf, -np.inf]])
    >>> safe_cross_entropy(logits, np.asarray([1, 0]))
    array([0.69314718, 0.        ])
    """
    backend = backend_of(logits, labels)
    refuse_none((logits, labels))
    if not isinstance(axis, int):
        msg = f"expected an int as axis of the classes, got {axis}"
        raise TypeError(msg)
    if _are_classes(labels):
        classes, absent_slices = _enter_classes(backend, logits, labels, axis)
        rows, _ = _rows(logits, axis, _without(backend, logits, where, absent_slices))
        weights, known = _one_hot(backend, rows, classes, axis)
        known = known if absent_slices is None else rows.xp.logical_or(known, absent_slices)
    else:
        rows, weights = _rows(logits, axis, where, labels=labels)
        known = None
    xp = rows.xp
    log_parts, empty = _log_parts(rows, axis)
    terms = double_where(
        xp, rows.absent, (weights, log_parts), 0.0, lambda w, q: -w * q, placeholder=0.0
    )
    total = xp.sum(terms, axis=axis, keepdims=True)
    impossible = xp.any(xp.logical_and(rows.zero, weights > 0), axis=axis, keepdims=True)
    total = total + xp.where(impossible, math.inf, xp.zeros_like(total))
    if known is not None:  # multiply: the slope of the product is NaN too
        total = total * xp.where(known, xp.ones_like(total), math.nan)
    return _finish(rows, xp.where(empty, 0.0, total), axis, keepdims=False)


def _rows(
    x: Array, axis: Axis, where: Any, *, factors: Any = None, labels: Any = None
) -> tuple[_Rows, Array | None]:
    """Return the slices, and factors or labels in their dtype; a factor of 0 makes no peak."""
    others = [y for y in (factors, labels) if y is not None]
    xp, dtype, keep, (x, *others) = enter_slices(x, *others, where=where)
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
    rows = _Rows(xp, dtype, x, keep, zero, absent, peak, empty)
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
    """
    Return the sum of `parts`, and which slices are empty, axes kept.

    The largest entry present contributes 1. So a sum of 0 means an empty slice, and no reduction is
    needed to find empty slices. With factors a sum may be 0 for another reason.
    """
    total = rows.xp.sum(parts, axis=axis, keepdims=True)
    return total, total == 0 if rows.empty is None else rows.empty


def _log_total(rows: _Rows, total: Array, empty: Array) -> Array:
    """Return the logarithm of a sum of parts, axes kept; -inf for an empty slice."""
    return double_where(
        rows.xp, empty, (total,), -math.inf, lambda total: rows.peak + rows.xp.log(total)
    )


def _log_parts(rows: _Rows, axis: Axis) -> tuple[Array, Array]:
    """Return the logarithm of the softmax, finite at absent entries too, and the empty slices."""
    total, empty = _total(rows, _exponentials(rows), axis)
    total = rows.xp.where(empty, 1.0, total)
    return rows.xp.where(rows.absent, rows.peak, rows.x) - rows.peak - rows.xp.log(total), empty


def _are_classes(labels: Any) -> bool:
    return isinstance(labels, int) or (
        hasattr(labels, "dtype") and dtype_name(labels.dtype) in INTEGER
    )


def _enter_classes(
    backend: Backend, logits: Array, labels: Any, axis: int
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


def _without(backend: Backend, logits: Array, where: Any, absent_slices: Array | None) -> Any:
    """Return `where`, with False in the slices left out."""
    if absent_slices is None:
        return where
    kept, keep = backend.xp.logical_not(absent_slices), promote_mask(where, logits)
    return kept if keep is None else backend.xp.logical_and(keep, kept)


def _one_hot(backend: Backend, rows: _Rows, classes: Array, axis: int) -> tuple[Array, Array]:
    """Return the classes as probabilities, and where a class is below the number of classes."""
    xp = rows.xp
    chosen = backend.as_index(backend.places(rows.x, axis)) == classes
    return xp.where(chosen, xp.ones_like(rows.x), 0.0), xp.any(chosen, axis=axis, keepdims=True)


def _finish(rows: _Rows, x: Array, axis: Axis, *, keepdims: bool) -> Array:
    return rows.xp.astype(drop_axes(rows.xp, x, axis, keepdims=keepdims), rows.dtype)
