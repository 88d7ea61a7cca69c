"""
What runs in parts: operations, what people write in their place, and their arguments.

A row knows no framework. Its arguments are made of NumPy for a number of rows, and `parts` says for
each layout along which axis each argument is in parts (None: it is whole).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

import safeops as so
from safeops import linalg, rotations, segments

BATCH = "slices in parts"  # each slice is whole on a device
ALONG = "along parts"  # the axis of the operation is in parts


class Row(NamedTuple):
    """An operation."""

    name: str
    ours: Callable  # of arrays
    plain: Callable | None  # of a namespace and arrays; None: nothing moves in what people write
    args: Callable  # of a number of rows
    parts: dict  # from layouts to axes


def wave(*shape, shift=0.0, scale=1.0):
    """Return numbers between -1 and 1, none of them equal."""
    return scale * np.cos(shift + 1.7 * np.arange(math.prod(shape), dtype=float)).reshape(shape)


def uneven(n, m=8):
    """Return numbers of very different size, the largest in the last part, and a zero."""
    x = wave(n, m) + 0.1 * np.arange(n)[:, None]
    x[0, 0], x[-1, -1] = 0.0, 700.0
    return x


def with_nan(n, m=8):
    """Return such numbers, of which one is NaN."""
    x = uneven(n, m)
    x[1 % n, 2] = np.nan
    return x


def kept(n, m=8):
    """Return a mask, which keeps something in each row and column."""
    return (np.add.outer(np.arange(n), np.arange(m)) % 3) > 0


def shares(n, m=8, shift=0.0):
    """Return probabilities, some of them 0."""
    x = np.abs(wave(n, m, shift=shift)) * kept(n, m)
    return x / x.sum(-1, keepdims=True)


def spd(n, k=3):
    """Return positive definite matrices; the first has equal eigenvalues."""
    a = wave(n, k, k)
    a = a @ a.swapaxes(-1, -2) + 0.5 * np.eye(k)
    a[0] = np.eye(k)
    return a


def turns(n):
    """Return rotation vectors; the first is 0."""
    w = wave(n, 3)
    w[0] = 0
    return w


def quaternions(n, shift=0.0):
    """Return rotations as quaternions."""
    q = wave(n, 4, shift=shift)
    return q / np.linalg.norm(q, axis=-1, keepdims=True)


def matrices(n):
    """Return rotations as matrices."""
    return np.asarray(rotations.rotvec_to_matrix(turns(n)))


def peak(xp, x, axis):
    """Return the largest entry, axes kept."""
    return xp.max(x, axis=axis, keepdims=True)


def plain_softmax(xp, x, axis):
    """Return shares."""
    e = xp.exp(x - peak(xp, x, axis))
    return e / xp.sum(e, axis=axis, keepdims=True)


def plain_logsumexp(xp, x, axis):
    """Return the logarithm of a sum of exponentials."""
    top = peak(xp, x, axis)
    return xp.squeeze(top, axis=axis) + xp.log(xp.sum(xp.exp(x - top), axis=axis))


def plain_log_softmax(xp, x, axis):
    """Return logarithms of shares."""
    x = x - peak(xp, x, axis)
    return x - xp.log(xp.sum(xp.exp(x), axis=axis, keepdims=True))


def plain_norm(xp, x, axis):
    """Return the root of the sum of squares."""
    return xp.sqrt(xp.sum(x * x, axis=axis))


def plain_var(xp, x, axis):
    """Return the mean square of deviations."""
    away = x - xp.mean(x, axis=axis, keepdims=True)
    return xp.mean(away * away, axis=axis)


def only(xp, x, keep, other=0.0):
    """Return an array with a number where it is NaN or left out."""
    keep = ~xp.isnan(x) if keep is None else keep
    return xp.where(keep, x, other)


def plain_nanmean(xp, x, axis):
    """Return the mean of what is not NaN."""
    number = xp.sum(xp.where(xp.isnan(x), 0.0, 1.0), axis=axis, keepdims=True)
    return xp.squeeze(xp.sum(only(xp, x, None), axis=axis, keepdims=True) / number, axis=axis)


def plain_nanvar(xp, x, axis):
    """Return the variance of what is not NaN."""
    keep = ~xp.isnan(x)
    number = xp.sum(xp.where(keep, 1.0, 0.0), axis=axis, keepdims=True)
    mean = xp.sum(xp.where(keep, x, 0.0), axis=axis, keepdims=True) / number
    away = xp.where(keep, x - mean, 0.0)
    return xp.squeeze(xp.sum(away * away, axis=axis, keepdims=True) / number, axis=axis)


def plain_weighted(xp, x, w, axis):
    """Return the mean with weights."""
    return xp.sum(w * x, axis=axis) / xp.sum(w, axis=axis)


def plain_weighted_var(xp, x, w, axis):
    """Return the variance with weights."""
    total = xp.sum(w, axis=axis, keepdims=True)
    away = x - xp.sum(w * x, axis=axis, keepdims=True) / total
    return xp.squeeze(xp.sum(w * away * away, axis=axis, keepdims=True) / total, axis=axis)


def plain_attention(xp, q, k, v):
    """Return attention without a mask."""
    return xp.matmul(plain_softmax(xp, xp.matmul(q, xp.matrix_transpose(k)), -1), v)


def plain_cosine(xp, x, y, axis):
    """Return the cosine of an angle."""
    return xp.sum(x * y, axis=axis) / (plain_norm(xp, x, axis) * plain_norm(xp, y, axis))


def plain_correlation(xp, x, y, axis):
    """Return the cosine of the deviations from the means."""
    away = (z - xp.mean(z, axis=axis, keepdims=True) for z in (x, y))
    return plain_cosine(xp, *away, axis)


def plain_cdist(xp, x, y):
    """Return the distances of all pairs."""
    return plain_norm(xp, x[..., :, None, :] - y[..., None, :, :], -1)


def plain_cross_entropy(xp, x, labels):
    """Return the loss of classes, which are counted where they are."""
    ones = xp.arange(x.shape[-1]) == labels[..., None]
    return -xp.sum(xp.where(ones, plain_log_softmax(xp, x, -1), 0.0), axis=-1)


def along(name, ours, plain, *args):
    """Return a row of a function with `axis`, of arrays with two axes."""
    parts = {BATCH: (1,) * len(args), ALONG: (0,) * len(args)}
    plain = None if plain is None else partial(plain_along, plain)
    return Row(name, partial(call_along, ours), plain, lambda n: [a(n) for a in args], parts)


def call_along(ours, *args):
    """Return a function along the first axis."""
    return ours(*args, axis=0)


def plain_along(plain, xp, *args):
    """Return a plain function along the first axis."""
    return plain(xp, *args, axis=0)


def rows(name, ours, *args, plain=None):
    """Return a row of a function of each slice along the first axis."""
    return Row(name, ours, plain, lambda n: [a(n) for a in args], {BATCH: (0,) * len(args)})


def masked(f):
    """Return a function of an array and a mask."""
    return lambda x, keep, **how: f(x, where=keep, **how)


def weighted(f):
    """Return a function of an array and weights."""
    return lambda x, w, **how: f(x, weights=w, **how)


def weights(n, m=8):
    """Return weights, some of them 0."""
    return np.abs(wave(n, m, shift=0.3)) * kept(n, m)


def positive(n, m=8):
    """Return numbers of at least 0.01, beside one 0."""
    x = np.abs(wave(n, m)) + 0.01
    x[0, 0] = 0.0
    return x


def small(n, m=8):
    """Return numbers between -1 and 1, one of them 0 and one 1."""
    x = wave(n, m)
    x[0, 0], x[0, 1] = 0.0, 1.0
    return x


def classes(n, m=8):
    """Return a class for each row, one of them negative, one the last."""
    k = (3 * np.arange(n)) % m
    k[0], k[-1] = -1, m - 1
    return k


def ids(n):
    """Return segments in no order, of which 1 has no entry; one entry is dropped."""
    k = (5 * np.arange(n)) % 4
    k[k == 1] = 2
    k[1 % n] = -1
    return k


ELEMENTWISE = {
    "safe_reciprocal": uneven, "safe_sqrt": uneven, "safe_rsqrt": uneven, "safe_log": uneven,
    "safe_log2": uneven, "safe_log10": uneven, "safe_log1p": small, "safe_exp": uneven,
    "safe_expm1": uneven, "safe_asin": small, "safe_acos": small, "safe_acosh": uneven,
    "safe_atanh": small, "entr": positive, "sinc": uneven, "sinhc": small, "exprel": uneven,
    "safe_logit": positive, "log_cosh": uneven, "log_sech2": uneven, "log_sinhc": uneven,
    "log1mexp": uneven, "log_expm1": uneven,
}  # fmt: skip
OF_TWO = """
    safe_div safe_mul safe_pow safe_atan2 safe_hypot xlogy xlog1py xdivy rel_entr safe_logaddexp
    safe_logsubexp logarithmic_mean boxcox inv_boxcox
"""
LOSSES = ("safe_binary_cross_entropy", "safe_focal_loss")
REDUCTIONS = {
    "safe_sum": lambda xp, x, axis: xp.sum(x, axis=axis),
    "safe_mean": lambda xp, x, axis: xp.mean(x, axis=axis),
    "safe_max": lambda xp, x, axis: xp.max(x, axis=axis),
    "safe_min": lambda xp, x, axis: xp.min(x, axis=axis),
    "safe_prod": lambda xp, x, axis: xp.prod(x, axis=axis),
    "safe_var": plain_var,
    "safe_std": lambda xp, x, axis: xp.sqrt(plain_var(xp, x, axis)),
    "safe_norm": plain_norm,
    "squared_norm": lambda xp, x, axis: xp.sum(x * x, axis=axis),
    "safe_rms": lambda xp, x, axis: xp.sqrt(xp.mean(x * x, axis=axis)),
    "safe_normalize": lambda xp, x, axis: x / xp.sqrt(xp.sum(x * x, axis=axis, keepdims=True)),
    "safe_standardize": lambda xp, x, axis: (
        (x - xp.mean(x, axis=axis, keepdims=True))
        / xp.expand_dims(xp.sqrt(plain_var(xp, x, axis)), axis=axis)
    ),
    "safe_softmax": plain_softmax,
    "safe_log_softmax": plain_log_softmax,
    "safe_logsumexp": plain_logsumexp,
    "safe_logmeanexp": lambda xp, x, axis: plain_logsumexp(xp, x, axis) - math.log(x.shape[axis]),
    "safe_logcumsumexp": lambda xp, x, axis: (
        peak(xp, x, axis) + xp.log(xp.cumulative_sum(xp.exp(x - peak(xp, x, axis)), axis=axis))
    ),
}
NAN_REDUCTIONS = {
    "nansum": lambda xp, x, axis: xp.sum(only(xp, x, None), axis=axis),
    "nanmean": plain_nanmean,
    "nanmax": lambda xp, x, axis: xp.max(only(xp, x, None, -math.inf), axis=axis),
    "nanmin": lambda xp, x, axis: xp.min(only(xp, x, None, math.inf), axis=axis),
    "nanprod": lambda xp, x, axis: xp.prod(only(xp, x, None, 1.0), axis=axis),
    "nanvar": plain_nanvar,
    "nanstd": lambda xp, x, axis: xp.sqrt(plain_nanvar(xp, x, axis)),
    "nancumsum": lambda xp, x, axis: xp.cumulative_sum(only(xp, x, None), axis=axis),
}


def clipped(x, axis):
    """Return slices of at most a norm."""
    return so.safe_clip_by_norm(x, 1.5, axis=axis)


def plain_clipped(xp, x, axis):
    """Return slices times a factor."""
    norm = xp.sqrt(xp.sum(x * x, axis=axis, keepdims=True))
    return x * xp.where(norm > 1.5, 1.5 / norm, 1.0)


def attention_rows():
    """Return rows of attention: heads in parts, queries in parts, keys in parts."""
    make = lambda n: [wave(n, 8, 2, shift=s) for s in (0, 1, 2)]  # noqa: E731

    def keep(n):
        k = (np.add.outer(np.arange(8), np.arange(8)) % 3) > 0
        k[3] = False
        return [*make(n), np.broadcast_to(k, (n, 8, 8)).copy()]

    def hidden(n):
        q, k, v, mask = keep(n)
        mask[:, :, 5] = False
        v[:, 5] = np.nan  # which no query sees
        return [q, k, v, mask]

    with_mask = lambda q, k, v, keep: so.safe_attention(q, k, v, where=keep)  # noqa: E731
    plain_mask = lambda xp, q, k, v, keep: xp.matmul(  # noqa: E731
        plain_softmax(xp, xp.where(keep, xp.matmul(q, xp.matrix_transpose(k)), -1e9), -1), v
    )
    return [
        Row("safe_attention", so.safe_attention, plain_attention, make,
            {BATCH: (0, 0, 0), "queries in parts": (1, None, None), ALONG: (None, 1, 1)}),
        Row("safe_attention, where", with_mask, plain_mask, hidden,
            {BATCH: (0, 0, 0, 0), "queries in parts": (1, None, None, 1),
             ALONG: (None, 1, 1, 2)}),
    ]  # fmt: skip


def segment_rows():
    """Return rows of segments: data in parts beside whole ids, and both in parts."""

    def plain(xp, x, k):
        ones = k[:, None] == xp.arange(4)[None, :]
        return xp.sum(xp.where(ones[:, :, None], x[:, None, :], 0.0), axis=0)

    for name in segments.__all__:
        f = getattr(segments, name)
        yield Row(
            name,
            lambda x, k, f=f: f(x, k, 4),
            plain if name == "segment_sum" else None,
            lambda n: [uneven(n) / 100, ids(n)],
            {BATCH: (1, None), ALONG: (0, 0)},
        )


def linear_rows():
    """Return rows of matrices: only the axis of many matrices is in parts."""
    pick = lambda f, k: lambda a: f(a)[k]  # noqa: E731
    spectrum = lambda a: linalg.spectral_function(  # noqa: E731
        a, lambda w: w * w, derivatives=(lambda w: 2 * w, lambda w: 2 + 0 * w)
    )
    by_name = "expm_symmetric inv_sqrtm_psd logm_psd sqrtm_psd safe_cholesky safe_det polar"
    given = {name: getattr(linalg, name) for name in by_name.split()} | {
        "powm_psd": lambda a: linalg.powm_psd(a, 0.3),
        "spectral_function": spectrum,
        "safe_eigvalsh": linalg.safe_eigvalsh,
        "safe_svdvals": linalg.safe_svdvals,
        "safe_eigh, values": pick(linalg.safe_eigh, 0),
        "safe_svd, values": pick(linalg.safe_svd, 1),
        "safe_slogdet": pick(linalg.safe_slogdet, 1),
    }
    return [rows(name, f, spd) for name, f in given.items()]


def rotation_rows():
    """Return rows of rotations."""
    of = {
        "matrix_to_quaternion": [matrices],
        "matrix_to_rotvec": [matrices],
        "quaternion_to_matrix": [quaternions],
        "quaternion_to_rotvec": [quaternions],
        "rotvec_to_matrix": [turns],
        "rotvec_to_quaternion": [turns],
        "twist_to_matrix": [lambda n: wave(n, 6)],
        "matrix_to_twist": [lambda n: np.asarray(rotations.twist_to_matrix(wave(n, 6)))],
        "quaternion_slerp": [quaternions, partial(quaternions, shift=0.5), wave],
        "safe_angle": [turns, partial(wave_rows, 3)],
        "squared_angle": [turns, partial(wave_rows, 3)],
        "safe_dihedral": [turns, *(partial(wave_rows, 3, shift=s) for s in (1, 2, 3))],
    }
    return [rows(name, getattr(rotations, name), *args) for name, args in of.items()]


def wave_rows(m, n, shift=0.4):
    """Return rows of m numbers."""
    return wave(n, m, shift=shift)


def where_rows():
    """Return rows of the combinators."""
    return [
        rows("safe_where", lambda x: so.safe_where(x > 0, x, lambda x: 1 / x, fill_value=0.0,
             placeholder=1.0), uneven),
        rows("make_safe", so.make_safe(lambda x: x**-0.5, lambda x: x > 0,
             placeholder=1.0, fill_value=0.0), uneven),
        rows("vectorized_cond", lambda x: so.vectorized_cond(x > 0, lambda x: x**0.5,
             lambda x: -x, x, placeholder=1.0), uneven),
        rows("radial", lambda x: so.radial(so.sinc, x), turns),
    ]  # fmt: skip


KNOTS = np.linspace(-2.0, 5.0, 8)


def all_rows():
    """Yield the rows of the table."""
    for name, args in ELEMENTWISE.items():
        yield rows(name, getattr(so, name), args)
    for name in OF_TWO.split():
        yield rows(name, getattr(so, name), positive, partial(wave_rows, 8))
    for name in LOSSES:
        yield rows(name, masked_two(getattr(so, name)), uneven, shares, kept)
    yield from where_rows()
    yield along("safe_clip_by_norm", clipped, plain_clipped, uneven)
    for name, plain in REDUCTIONS.items():
        yield along(name, getattr(so, name), plain, uneven)
    for name, plain in NAN_REDUCTIONS.items():
        yield along(name, getattr(so, name), plain, with_nan)
    for name in ("safe_mean", "safe_var", "safe_std", "safe_standardize", "safe_norm",
                 "safe_softmax", "safe_logsumexp", "safe_max", "safe_logcumsumexp"):  # fmt: skip
        yield along(f"{name}, where", masked(getattr(so, name)), None, with_nan, kept)
    for name, plain in (("safe_mean", plain_weighted), ("nanmean", None),
                        ("safe_var", plain_weighted_var), ("nanvar", None)):  # fmt: skip
        yield along(f"{name}, weights", weighted(getattr(so, name)), plain, with_nan, weights)
    yield along("safe_logsumexp, b", lambda x, b, axis: so.safe_logsumexp(x, b=b, axis=axis),
                lambda xp, x, b, axis: xp.squeeze(peak(xp, x, axis), axis=axis) + xp.log(
                    xp.sum(b * xp.exp(x - peak(xp, x, axis)), axis=axis)), uneven,
                weights)  # fmt: skip
    yield along("nanmedian", so.nanmedian, None, with_nan)
    yield along("nanquantile", lambda x, axis: so.nanquantile(x, 0.3, axis=axis), None, with_nan)
    yield along("nanargmax", so.nanargmax, None, with_nan)
    yield along("nancumprod", so.nancumprod, None, with_nan)
    yield along("safe_kl_divergence", so.safe_kl_divergence, lambda xp, p, q, axis: xp.sum(
        xp.where(p > 0, p * xp.log(p / q), 0.0), axis=axis), shares,
        partial(shares, shift=0.2))  # fmt: skip
    yield along("safe_distance", so.safe_distance,
                lambda xp, x, y, axis: plain_norm(xp, x - y, axis), uneven, small)  # fmt: skip
    yield along("safe_correlation", so.safe_correlation, plain_correlation, uneven, small)
    yield along("safe_cosine_similarity", so.safe_cosine_similarity, plain_cosine, uneven, small)
    of_classes = {BATCH: (0, 0), ALONG: (1, None)}
    pair = lambda n: [uneven(n, 16) / 100, classes(n, 16)]  # noqa: E731
    yield Row("safe_cross_entropy", so.safe_cross_entropy, plain_cross_entropy, pair, of_classes)
    yield Row("safe_cross_entropy, smoothed and weighted", smoothed, None,
              lambda n: [*pair(n), np.abs(wave(16))], {BATCH: (0, 0, None),
              ALONG: (1, None, 0)})  # fmt: skip
    yield Row("safe_nll", so.safe_nll, None, pair, of_classes)
    yield Row("safe_cdist", so.safe_cdist, plain_cdist,
              lambda n: [uneven(n, 8), wave(5, 8)], {BATCH: (0, None), ALONG: (1, 1)})  # fmt: skip
    yield Row("safe_pdist", so.safe_pdist, None,
              lambda n: [wave(n, 4, 8)], {BATCH: (0,), "points in parts": (2,)})  # fmt: skip
    yield Row("safe_pdist of points in parts", so.safe_pdist, None,
              lambda n: [uneven(n, 3)], {ALONG: (0,)})  # fmt: skip
    yield Row("safe_interp", so.safe_interp, None,
              lambda n: [uneven(n), KNOTS, KNOTS**2], {BATCH: (0, None, None),
              ALONG: (None, 0, 0)})  # fmt: skip
    yield from attention_rows()
    yield from segment_rows()
    yield from rotation_rows()
    yield from linear_rows()


def masked_two(f):
    """Return a function of two arrays and a mask."""
    return lambda x, y, keep: f(x, y, where=keep)


def smoothed(x, labels, w):
    """Return the loss of classes that weigh differently."""
    return so.safe_cross_entropy(x, labels, label_smoothing=0.1, weights=w)


ROWS = {row.name: row for row in all_rows()}
