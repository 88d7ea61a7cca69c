"""The specifications of the operations in `_ops/softmax.py`."""

from math import inf, nan

import mpmath

import safeops as so
import slice_formulas as swept
from derivatives import SECOND
from slice_formulas import Sweep
from slices import ABSENT, NONE, PART, Row, Slice, SliceSpec, V


def softmax(x):
    """Return the softmax of numbers."""
    return [mpmath.exp(t) / sum(map(mpmath.exp, x)) for t in x]


def logsumexp(x):
    """Return the logarithm of the sum of exponentials."""
    return mpmath.log(sum(map(mpmath.exp, x)))


def plain_softmax(xp, x, where):
    """Return the softmax in which entries left out are at -inf."""
    z = xp.exp(xp.where(where, x, -inf) - xp.max(xp.where(where, x, -inf), axis=-1, keepdims=True))
    return z / xp.sum(z, axis=-1, keepdims=True)


def plain_running(xp, x, where):
    """Return running sums of exponentials below one maximum, as people write them."""
    x = xp.where(where, x, -inf)
    peak = xp.max(x, axis=-1, keepdims=True)
    z = xp.exp(x - peak)
    sums = [sum(z[..., j : j + 1] for j in range(i + 1)) for i in range(3)]
    return peak + xp.log(xp.concat(sums, axis=-1))


SLOW = {
    ("tensorflow", "unknown-shape"): (
        SECOND,
        "31 doublings, each differentiated twice, trace for 20 s",
    ),
}


def one_two_three(x):
    """Return those numbers, weights of classes, as an array of the framework of x."""
    from safeops._dispatch import backend_of

    xp = backend_of(x).xp
    one = xp.ones_like(xp.reshape(x, (-1, 3))[0, :1])
    return xp.concat([one, 2.0 * one, 3.0 * one], axis=0)


LOGITS_AND_LABELS = (
    Slice(((0.0, 1.0, -1.0), (0.25, 0.5, 0.25))),
    Slice(((0.0, 1.0, -inf), (0.5, 0.5, 0.0))),
    Slice(((0.0, 1.0, nan), (0.5, 0.25, nan)), PART),
    Slice((ABSENT, (0.25, 0.5, 0.25)), flat=0),
    Slice((V, (0.25, 0.5, 0.25)), NONE, 0),
)

SPECS = (
    SliceSpec(
        "safe_softmax",
        (
            Row(
                "safe_softmax",
                lambda x, where: so.safe_softmax(x, where=where),
                plain_softmax,
                softmax,
                (
                    Slice(((0.0, 1.0, -1.0),)),
                    Slice(((0.0, 1.0, -inf),)),
                    Slice(((0.0, 1.0, nan),), PART),
                    Slice(((0.0, 1.0, inf),), PART),
                    Slice(((1000.0, 1001.0, 1e30),), PART),
                    Slice((ABSENT,), flat=0),
                    Slice(((0.0, nan, 1.0),), NONE, 0),
                    Slice(((-inf, 5.0, -inf),)),
                ),
                absent=0.0,
                minus_inf_is_absent=True,
            ),
        ),
        (Sweep(swept.softmax),),
    ),
    SliceSpec(
        "safe_log_softmax",
        (
            Row(
                "safe_log_softmax",
                lambda x, where: so.safe_log_softmax(x, where=where),
                lambda xp, x, where: xp.log(plain_softmax(xp, x, where)),
                lambda x: [t - logsumexp(x) for t in x],
                (
                    Slice(((0.0, 1.0, -1.0),)),
                    Slice(((0.0, 1.0, -inf),)),
                    Slice(((0.0, 1.0, nan),), PART),
                    Slice((ABSENT,), flat=-inf),
                    Slice(((0.0, nan, 1.0),), NONE, -inf),
                ),
                absent=-inf,
                minus_inf_is_absent=True,
            ),
        ),
        (Sweep(swept.log_softmax),),
        synonyms="log_softmax",
    ),
    SliceSpec(
        "safe_logsumexp",
        (
            Row(
                "safe_logsumexp",
                lambda x, where: so.safe_logsumexp(x, axis=-1, where=where),
                lambda xp, x, where: xp.log(xp.sum(xp.exp(xp.where(where, x, -inf)), axis=-1)),
                logsumexp,
                (
                    Slice(((0.0, 1.0, -1.0),)),
                    Slice(((0.0, 1.0, -inf),)),
                    Slice(((0.0, 1.0, nan),), PART),
                    Slice(((1000.0, 1001.0, 999.0),)),
                    Slice((ABSENT,), flat=-inf),
                    Slice(((0.0, nan, 1.0),), NONE, -inf),
                ),
                minus_inf_is_absent=True,
            ),
            Row(
                "safe_logsumexp with b",
                lambda x, b, where: so.safe_logsumexp(x, axis=-1, where=where, b=b),
                lambda xp, x, b, where: xp.log(
                    xp.sum(xp.where(where, b * xp.exp(x), 0.0), axis=-1)
                ),
                lambda x, b: mpmath.log(sum(c * mpmath.exp(t) for t, c in zip(x, b, strict=True))),
                (
                    Slice(((0.0, 1.0, -1.0), (1.0, 2.0, -0.5))),
                    Slice(((0.0, 1.0, 2.0), (1.0, 2.0, 0.0))),
                    Slice(((0.0, 1.0, nan), (1.0, 2.0, nan)), PART),
                    Slice(((0.0, 1.0, -inf), (1.0, 2.0, 3.0))),
                    Slice(((0.0, 1.0, 2.0), (0.0, 0.0, 0.0)), flat=-inf),
                    Slice((ABSENT, (1.0, 1.0, 1.0)), flat=-inf),
                ),
                minus_inf_is_absent=True,
            ),
        ),
        (Sweep(swept.log_sum),),
    ),
    SliceSpec(
        "safe_logcumsumexp",
        (
            Row(
                "safe_logcumsumexp",
                lambda x, where: so.safe_logcumsumexp(x, axis=-1, where=where),
                plain_running,
                lambda x: [logsumexp(x[: i + 1]) for i in range(len(x))],
                (
                    Slice(((0.0, 1.0, -1.0),)),
                    Slice(((-inf, 1.0, 3.0),)),
                    Slice(((-inf, -inf, 3.0),)),
                    Slice(((nan, 1.0, 2.0),), (False, True, True)),
                    Slice(((inf, 1e30, 2.0),), (False, False, True)),
                    Slice(((-1000.0, 0.0, 1.0),)),
                    Slice((ABSENT,), flat=-inf),
                    Slice(((0.0, nan, 1.0),), NONE, -inf),
                ),
                absent=-inf,
                minus_inf_is_absent=True,
                unsupported=SLOW,
            ),
        ),
    ),
    SliceSpec(
        "safe_logmeanexp",
        (
            Row(
                "safe_logmeanexp",
                lambda x, where: so.safe_logmeanexp(x, axis=-1, where=where),
                lambda xp, x, where: xp.log(xp.mean(xp.exp(xp.where(where, x, -inf)), axis=-1)),
                lambda x: logsumexp(x) - mpmath.log(len(x)),
                (
                    Slice(((0.0, 1.0, -1.0),)),
                    Slice(((0.0, 1.0, nan),), PART),
                    Slice((ABSENT,), flat=-inf),
                    Slice(((0.0, nan, 1.0),), NONE, -inf),
                ),
                minus_inf_is_absent=True,
            ),
        ),
        (Sweep(lambda x, v: swept.log_sum(x, v, mean=True)),),
    ),
    SliceSpec(
        "safe_cross_entropy",
        (
            Row(
                "safe_cross_entropy",
                lambda x, p, where: so.safe_cross_entropy(x, p, where=where),
                lambda xp, x, p, where: (
                    -xp.sum(xp.where(where, p * xp.log(plain_softmax(xp, x, where)), 0.0), axis=-1)
                ),
                lambda x, p: sum(c * (logsumexp(x) - t) for t, c in zip(x, p, strict=True)),
                LOGITS_AND_LABELS,
                minus_inf_is_absent=True,
            ),
            Row(
                "safe_cross_entropy, label_smoothing and weights",
                lambda x, p, where: so.safe_cross_entropy(
                    x, p, where=where, label_smoothing=0.25, weights=one_two_three(x)
                ),
                lambda xp, x, p, where: (
                    -xp.sum(
                        one_two_three(x)
                        * (0.75 * p + 0.25 / 3)
                        * xp.log(plain_softmax(xp, x, where)),
                        axis=-1,
                    )
                ),
                lambda x, p: sum(
                    w * (0.75 * c + mpmath.mpf(1) / 4 / len(x)) * (logsumexp(x) - t)
                    for t, c, w in zip(x, p, (1, 2, 3), strict=False)
                ),
                LOGITS_AND_LABELS,
                minus_inf_is_absent=True,
            ),
        ),
        (
            Sweep(
                swept.loss(swept.TARGETS),
                call=lambda x: so.safe_cross_entropy(x, swept.constant(x, swept.TARGETS)),
            ),
            Sweep(
                swept.loss((0, 0, 1, 0)), call=lambda x: so.safe_cross_entropy(x, 2), of="classes"
            ),
        ),
        synonyms="negative log likelihood",
    ),
)
