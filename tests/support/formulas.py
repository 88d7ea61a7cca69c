"""
The formula of every elementwise operation, with its derivatives, in extended precision.

Each formula is written to keep its digits over the whole range. `test_formulas.py` compares each
with mpmath.
"""

# ruff: noqa: ARG001  (every formula takes the format)

import math
from dataclasses import dataclass

import numpy as np

import safeops as so
from exponents import FORMATS, around, pairs, positive, rounded, signed, wide

LN2, LN10, PI = np.log(wide(2)), np.log(wide(10)), 4 * np.arctan(wide(1))


@dataclass
class Exact:
    """Value, slopes (i), second derivatives (i, j), and the terms that these are sums of."""

    value: object
    gradient: tuple
    hessian: tuple
    # Where terms cancel, what the value, the slopes and the second derivatives are sums of.
    size: object = None
    gradient_size: tuple = ()
    hessian_size: object = None
    # Terms that PyTorch and TensorFlow form on the way to a second derivative in forward mode.
    steps: tuple = ()
    # Terms that TensorFlow alone forms there.
    squares: tuple = ()
    # Terms that TensorFlow forms on the way to a second derivative in reverse mode.
    transposed: tuple = ()
    # Terms that TensorFlow forms on the way to a tangent.
    tangents: tuple = ()
    bad: object = False  # where it is filled

    @property
    def constant(self):
        """Where the value is the fill, so that every derivative is 0."""
        parts = (*self.gradient, *(h for row in self.hessian for h in row))
        return np.all(
            [np.broadcast_to(self.bad, np.shape(self.value)), *(x == 0 for x in parts)], 0
        )

    def filled(self, bad, fill_value):
        """Return this with a constant where `bad`."""
        return Exact(
            np.where(bad, fill_value, self.value),
            tuple(np.where(bad, 0, g) for g in self.gradient),
            tuple(tuple(np.where(bad, 0, h) for h in row) for row in self.hessian),
            self.size,
            self.gradient_size,
            self.hessian_size,
            tuple(np.where(bad, 0, step) for step in self.steps),
            tuple(np.where(bad, 0, step) for step in self.squares),
            tuple(np.where(bad, 0, step) for step in self.transposed),
            tuple(np.where(bad, 0, step) for step in self.tangents),
            self.bad | bad,
        )

    def sizes(self):
        """Return the sizes of value, slopes and second derivatives."""
        size = np.abs(self.value) if self.size is None else self.size
        slopes = self.gradient_size or tuple(np.abs(g) for g in self.gradient)
        # Of the largest: a second derivative is made in a step or two from each of the others.
        second = sum(np.abs(h) for row in self.hessian for h in row)
        return size, slopes, second if self.hessian_size is None else self.hessian_size


def one(value, slope, second, **sizes):
    """Return the derivatives of a function of one argument."""
    return Exact(value, (slope,), ((second,),), **sizes)


def two(value, gradient, xx, xy, yy, **sizes):
    """Return the derivatives of a function of two arguments."""
    return Exact(value, gradient, ((xx, xy), (xy, yy)), **sizes)


def nonzero(form):
    """Return the least number that safeops tells from 0 in every framework."""
    return form.normal * form.eps if form.bits == 11 else form.normal


def quotient(form, x, y, *, bad):
    """Return x / y."""
    zero = np.zeros_like(x)
    square = 1 / y / y
    derivatives = two(x / y, (1 / y, -x * square), zero, -square, 2 * x / y * square)
    return derivatives.filled(bad, 0)


def divided(form, x, y):
    """`safe_div`."""
    return quotient(form, x, y, bad=np.abs(y) < form.normal)


def divided_at_zero(form, x, y):
    """`xdivy`."""
    return quotient(form, x, y, bad=(np.abs(x) < nonzero(form)) & (np.abs(y) < form.normal))


def reciprocal(form, x):
    """`safe_reciprocal`."""
    return one(1 / x, -1 / x / x, 2 / x / x / x).filled(np.abs(x) < form.normal, 0)


def product(form, x, y):
    """`safe_mul`."""
    zero = np.zeros_like(x)
    return two(x * y, (y, x), zero, zero + 1, zero)


def root(form, x):
    """`safe_sqrt`."""
    s = np.sqrt(x)
    return one(s, 0.5 / s, -0.25 / s / x).filled(x < nonzero(form), 0)


def reciprocal_root(form, x):
    """`safe_rsqrt`."""
    s = np.sqrt(x)
    return one(1 / s, -0.5 / s / x, 0.75 / s / x / x).filled(x < nonzero(form), 0)


def power(form, x, p):
    """`safe_pow`: at 0 monomials, below 0 of whole exponents, which have no slope there."""
    zero = np.abs(x) < nonzero(form)
    unreal = ((x < 0) & ~zero & (np.floor(p) != p)) | (zero & (p < 0))
    size = np.abs(np.where(zero, 1, x))
    sign = np.where((x < 0) & (np.mod(p, 2) == 1), -1, 1)
    log = np.where(x < 0, 0, np.log(size))
    # Below 0 what p would have for a slope is multiplied with 0.
    large = np.log(size) * np.where(size**p * np.log(size) > form.max / 2, np.inf, 1)
    value = sign * size**p
    along = sign * np.sign(x) * size ** (p - 1)
    twice = sign * size ** (p - 2)
    derivatives = two(
        value,
        (p * along, np.where((x < 0) & np.isinf(size**p * large), np.nan, value * log)),
        p * (p - 1) * twice,
        np.where(x < 0, 0, along * (1 + p * log)),
        value * log * log,
        steps=((p / size) ** 2,),
        squares=(1 / size / size,),
        transposed=(p * p, np.ones_like(p)),
        tangents=(1 / size,),
    )
    derivatives = derivatives.filled(zero, np.where(p == 0, 1, 0))
    (xx, xy), (_, yy) = derivatives.hessian
    derivatives.gradient = (
        np.where(zero & (p == 1), 1, derivatives.gradient[0]),
        derivatives.gradient[1],
    )
    derivatives.hessian = (np.where(zero & (p == 2), 2, xx), xy), (xy, yy)
    return derivatives.filled(unreal, 0)


def largest_exponent(form):
    """Return the largest number of the dtype whose exponential is finite."""
    exact = math.log(form.max)
    spacing = form.eps * 2.0 ** math.floor(math.log2(exact))
    return math.floor(exact / spacing) * spacing


def exponential(form, x):
    """`safe_exp`."""
    y = np.exp(x)
    return one(y, y, y).filled(x > largest_exponent(form), form.max)


def exponential_minus_1(form, x):
    """`safe_expm1`."""
    y = np.exp(x)
    return one(np.expm1(x), y, y).filled(x > largest_exponent(form), form.max)


def logarithm(base, form, x):
    """`safe_log` and its like."""
    bad = x < form.normal
    fill = np.log(wide(form.normal)) / base
    return one(np.log(x) / base, 1 / x / base, -1 / x / x / base).filled(bad, fill)


def logarithm_of_1_plus(form, x):
    """`safe_log1p`."""
    y = 1 + x
    bad = x <= -1
    return one(np.log1p(x), 1 / y, -1 / y / y).filled(bad, np.log(wide(form.eps / 2)))


def logit(form, x):
    """`safe_logit`."""
    rest = 1 - x
    near = np.abs(x - 0.5) < 0.25
    value = np.where(near, np.log1p((x - rest) / rest), np.log(x) - np.log1p(-x))
    ends = np.where(x > 0.5, -np.log(wide(form.eps / 2)), np.log(wide(form.normal)))
    left, right = 1 / x / x, 1 / rest / rest
    derivatives = one(value, 1 / x / rest, right - left, hessian_size=left + right)
    return derivatives.filled((x < form.normal) | (x >= 1), ends)


def log_product(form, x, y):
    """`xlogy`."""
    bad = (np.abs(x) < nonzero(form)) & (y < form.normal)
    zero, log = np.zeros_like(x), np.log(y)
    derivatives = two(x * log, (log, x / y), zero, 1 / y, -x / y / y)
    return derivatives.filled(bad, 0)


def log1p_product(form, x, y):
    """`xlog1py`."""
    bad = (np.abs(x) < nonzero(form)) & (y <= -1)
    zero, log, over = np.zeros_like(x), np.log1p(y), 1 / (1 + y)
    square = over * over
    derivatives = two(x * log, (log, x * over), zero, over, -x * square)
    return derivatives.filled(bad, 0)


def entropy(form, p):
    """`entr`."""
    log = np.log(p)
    size = (np.abs(log) + 1,)
    derivatives = one(-p * log, -log - 1, -1 / p, gradient_size=size)
    return derivatives.filled(p < form.normal, np.where(p <= -form.normal, -np.inf, 0))


def log_ratio(p, q):
    """Return ``log(p / q)``, near 1 from the difference, which is exact there."""
    near = (p < 2 * q) & (q < 2 * p)
    return np.where(near, np.log1p((p - q) / q), np.log(p / q))


def relative_entropy(form, p, q):
    """`rel_entr`."""
    ratio = p / q
    log = log_ratio(p, q)
    derivatives = two(
        p * log,
        (log + 1, -ratio),
        1 / p,
        -1 / q,
        ratio / q,
        gradient_size=(np.abs(log) + 1, ratio),
        steps=(1 / p / p, 1 / q / q),
        tangents=(1 / p, 1 / q),
    )
    nothing = (np.abs(p) < form.normal) & (q > -form.normal)
    bad = (p < form.normal) | (q < form.normal)
    return derivatives.filled(bad, np.where(nothing, 0, np.inf))


def by_difference(x, y, *slopes):
    """Return the sizes of slopes that are exponentials of the rounded ``x - y``."""
    return tuple(np.abs(slope) * (1 + np.abs(x - y) / 8) for slope in slopes)


def log_sum(form, x, y):
    """`safe_logaddexp`."""
    rest = np.log1p(np.exp(-np.abs(x - y)))
    value = np.maximum(x, y) + rest
    to_x, to_y = 1 / (1 + np.exp(y - x)), 1 / (1 + np.exp(x - y))
    both = to_x * to_y
    size = np.maximum(np.abs(np.maximum(x, y)), rest)
    slopes = by_difference(x, y, to_x, to_y)
    return two(value, (to_x, to_y), both, -both, both, size=size, gradient_size=slopes)


def log_difference(form, x, y):
    """`safe_logsubexp`."""
    d = y - x
    rest = np.where(d > -LN2, np.log(-np.expm1(d)), np.log1p(-np.exp(d)))
    to_x = -1 / np.expm1(d)
    to_y = -np.exp(d) * to_x
    both = to_y * to_x
    size = np.maximum(np.abs(x), np.abs(rest))
    slopes = by_difference(x, y, to_x, to_y)
    exact = two(x + rest, (to_x, to_y), both, -both, both, size=size, gradient_size=slopes)
    return exact.filled((x <= y) | (x - y < nonzero(form)), -np.inf)


def cross_entropy_of_two(form, x, y):
    """`safe_binary_cross_entropy`."""
    far = np.exp(-np.abs(x))
    rest, tail = np.log1p(far), far / (1 + far)
    line, slope = np.where(x > 0, x * (1 - y), -x * y), np.where(x > 0, 1 - y, -y)
    zero = np.zeros_like(x)
    return two(
        line + rest,
        (slope + np.where(x > 0, -tail, tail), -x),
        tail / (1 + far),
        zero - 1,
        zero,
        gradient_size=(np.abs(slope) + tail, np.abs(x)),
    )


def focal_of_one(x):
    """Return the focal loss of a label of 1, its derivatives, and the sizes of these."""
    far = np.exp(-np.abs(x))
    small, large = far / (1 + far), 1 / (1 + far)
    s, t = np.where(x > 0, large, small), np.where(x > 0, small, large)
    loss = np.where(x > 0, 0, -x) + np.log1p(far)
    power = t**2
    second = 2 * s * (2 * s * loss + t) + s * t * (2 * (1 - loss) + 1)
    size = 2 * s * (2 * s * loss + t) + s * t * (2 * (1 + loss) + 1)
    found = power * loss, -power * (2 * s * loss + t), power * second
    # The power is the exponential of a rounded number.
    blur = 1 + np.abs(np.where(x > 0, x, 0)) / 2
    return found, (found[0] * blur, -found[1] * blur, power * size * blur)


def focal(form, x, y):
    """`safe_focal_loss`."""
    ((a, a1, a2), at), ((b, b1, b2), bt) = focal_of_one(x), focal_of_one(-x)
    one, other = np.abs(y), np.abs(1 - y)
    return two(
        y * a + (1 - y) * b,
        (y * a1 - (1 - y) * b1, a - b),
        y * a2 + (1 - y) * b2,
        a1 + b1,
        np.zeros_like(x),
        size=one * at[0] + other * bt[0],
        gradient_size=(one * at[1] + other * bt[1], at[0] + bt[0]),
        hessian_size=one * at[2] + other * bt[2] + at[1] + bt[1],
    )


def where_cancelled(x, second, terms):
    """Return the sizes of second derivatives; beyond one half those of terms, which cancel."""
    return np.where(np.abs(x) < 0.5, np.abs(second), terms)


def arc_sine(form, x):
    """`safe_asin`."""
    square = (1 - x) * (1 + x)
    slope = 1 / np.sqrt(square)
    ends = np.where(x > 0, PI / 2, -PI / 2)
    second = x * slope / square
    size = where_cancelled(x, second, slope / square)
    derivatives = one(np.arcsin(x), slope, second, hessian_size=size)
    return derivatives.filled(np.abs(x) >= 1, ends)


def arc_cosine(form, x):
    """`safe_acos`."""
    square = (1 - x) * (1 + x)
    slope = -1 / np.sqrt(square)
    ends = np.where(x > 0, 0, PI)
    second = x * slope / square
    size = where_cancelled(x, second, np.abs(slope / square))
    derivatives = one(np.arccos(x), slope, second, hessian_size=size)
    return derivatives.filled(np.abs(x) >= 1, ends)


def area_cosine(form, x):
    """`safe_acosh`."""
    slope = 1 / np.sqrt(x - 1) / np.sqrt(x + 1)
    second = -x * slope * slope * slope
    return one(np.arccosh(x), slope, second).filled(x <= 1, 0)


def area_tangent(form, x):
    """`safe_atanh`."""
    slope = 1 / ((1 - x) * (1 + x))
    largest = wide(1) - form.eps / 2
    ends = np.sign(x) * np.arctanh(largest)
    second = 2 * x * slope * slope
    size = where_cancelled(x, second, 2 * slope * slope)
    derivatives = one(np.arctanh(x), slope, second, hessian_size=size)
    return derivatives.filled(np.abs(x) >= 1, ends)


def is_origin(form, x, y):
    """Whether both coordinates count as 0."""
    return (np.abs(x) < nonzero(form)) & (np.abs(y) < nonzero(form))


def angle(form, y, x):
    """`safe_atan2`."""
    r = np.hypot(x, y)
    c, s = x / r, y / r
    along, across = 2 * c * s / r / r, (s - c) * (s + c) / r / r
    derivatives = two(np.arctan2(y, x), (c / r, -s / r), -along, across, along)
    return derivatives.filled(is_origin(form, x, y), 0)


def length(form, x, y):
    """`safe_hypot`."""
    r = np.hypot(x, y)
    c, s = x / r, y / r
    derivatives = two(r, (c, s), s * s / r, -c * s / r, c * c / r)
    return derivatives.filled(is_origin(form, x, y), 0)


def cardinal_sine(form, x):
    """`sinc`."""
    t = PI * x
    turn = PI * (x - np.rint(x))  # exact before the product, and near 0 where the sine is
    side = np.where(np.mod(np.rint(x), 2) == 1, -1, 1)
    sine, cosine = side * np.sin(turn), side * np.cos(turn)
    small = np.abs(t) < 0.25
    u = np.where(small, t * t, 0)
    t = np.where(small, 1, t)
    value = np.where(small, _series(u, 0), sine / t)
    slope = np.where(small, PI * x * PI * _series(u, 1), PI * (cosine - sine / t) / t)
    second = (
        PI * PI * np.where(small, _series(u, 2), (-sine - 2 * cosine / t + 2 * sine / t / t) / t)
    )
    # Terms of size 1 / t, and pi * t, whose rounding goes into the sine.
    size = np.minimum(1, 1 / np.abs(t)) + 1 * (~small)
    sizes = {"gradient_size": (PI * size,), "hessian_size": PI * PI * size}
    return one(value, slope, second, size=size, **sizes)


def _series(u, order):
    """Return sin(t) / t, its derivative over t, or its second derivative, of u = t**2."""
    total = np.zeros_like(u)
    for n in range(14, -1, -1):
        top = (2 * n + 2 * (order > 0), 2 * n + 1)
        factor = (1, top[0], top[0] * top[1])[order]
        shift = n + (order > 0)
        total = total * u + (-1) ** shift * wide(factor) / math.factorial(2 * shift + 1)
    return total


def whole_line(dtype):
    """Return points for one argument: every exponent, and the neighbourhoods of 1 and -1."""
    return (np.unique(np.concatenate([signed(dtype), around(1, dtype), around(-1, dtype)])),)


def half_line(dtype):
    """Return points for a probability: every exponent, and the neighbourhoods of 1 and 1/2."""
    x = [positive(dtype), around(1, dtype), around(0.5, dtype), np.array([-1.0])]
    return (np.unique(np.concatenate(x)),)


def exponents_of_e(dtype):
    """Return points for exponentials: also steps over the range in which they are finite."""
    bound = largest_exponent(FORMATS[dtype])
    return (rounded(np.concatenate([*whole_line(dtype), np.linspace(-bound, bound, 999)]), dtype),)


def near_and_far(dtype):
    """Return two arguments whose difference is of every size, beside those of the grid."""
    x, y = pairs(dtype)
    distance = positive(dtype)
    start = np.array([0.0, 1.0, -3.0])[:, None]
    more = np.broadcast_arrays(start, start - distance)
    x, y = (np.concatenate([a, b.ravel()]) for a, b in zip((x, y), more, strict=True))
    return rounded(x, dtype), rounded(y, dtype)


def bases_and_exponents(dtype):
    """Return bases of every exponent with the powers that people use, and a grid."""
    powers = np.array([-3, -2, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4])
    x, p = np.meshgrid(np.concatenate(whole_line(dtype))[:: 7 if dtype == "float64" else 1], powers)
    more = pairs(dtype)
    return np.concatenate([x.ravel(), more[0]]), np.concatenate([p.ravel(), more[1]])


def probabilities(dtype):
    """
    Return two arguments, none next to the smallest normal number.

    There TensorFlow's product with ``1 / 1``, which it rounds down, is flushed.
    """
    x, y = pairs(dtype)
    form = FORMATS[dtype]
    least = np.minimum(*(np.where(np.abs(a) < form.normal, 1, np.abs(a)) for a in (x, y)))
    usual = least > form.normal * (1 + 4 * form.eps)
    return x[usual], y[usual]


def logits_and_labels(dtype):
    """Return logits of every exponent, and some where no exponential is 0 or 1, with labels."""
    x = np.concatenate([*whole_line(dtype), np.linspace(-40, 40, 81)])
    x, y = np.meshgrid(x[:: 7 if dtype == "float64" else 1], [0, 0.25, 0.5, 1])
    return rounded(x.ravel(), dtype), rounded(y.ravel(), dtype)


def beside_minus_1(dtype):
    """Return two arguments, the second of which comes near to -1 too."""
    x, y = pairs(dtype)
    more = np.meshgrid(
        signed(dtype, mantissas=(1.0,))[:: 60 if dtype == "float64" else 9], around(-1, dtype)
    )
    return tuple(np.concatenate([a, b.ravel()]) for a, b in zip((x, y), more, strict=True))


@dataclass(frozen=True)
class Row:
    """An operation: its name at the door, what it is, where, and how exact it is."""

    name: str
    exact: object
    points: object
    ulps: float = 8.0  # of the value, the slopes, and the second derivatives times 4
    lost: float = 2.0  # how many times the least normal number may be lost

    @property
    def op(self):
        """The operation."""
        return getattr(so, self.name)


def log_of(base):
    """Return the formula of a logarithm."""
    return lambda form, x: logarithm(base, form, x)


ROWS = (
    Row("safe_div", divided, pairs),
    Row("safe_reciprocal", reciprocal, whole_line),
    Row("safe_mul", product, pairs),
    Row("xdivy", divided_at_zero, pairs),
    Row("safe_sqrt", root, whole_line),
    Row("safe_rsqrt", reciprocal_root, whole_line),
    Row(
        "safe_pow", power, bases_and_exponents, lost=6e5
    ),  # a power times the square of a logarithm
    Row("safe_exp", exponential, exponents_of_e),
    Row("safe_expm1", exponential_minus_1, exponents_of_e),
    Row("safe_log", log_of(1), whole_line),
    Row("safe_log2", log_of(LN2), whole_line),
    Row("safe_log10", log_of(LN10), whole_line),
    Row("safe_log1p", logarithm_of_1_plus, whole_line),
    Row("safe_logit", logit, half_line),
    Row("xlogy", log_product, pairs),
    Row("xlog1py", log1p_product, beside_minus_1),
    Row("entr", entropy, half_line),
    Row("rel_entr", relative_entropy, probabilities),
    Row("safe_logaddexp", log_sum, near_and_far),
    Row("safe_logsubexp", log_difference, near_and_far),
    Row("safe_asin", arc_sine, whole_line),
    Row("safe_acos", arc_cosine, whole_line),
    Row("safe_acosh", area_cosine, whole_line, lost=4),
    Row("safe_atanh", area_tangent, whole_line),
    Row("safe_atan2", angle, pairs),
    Row("safe_hypot", length, pairs),
    Row("sinc", cardinal_sine, whole_line),
)
# The sweeps have these too; the page of accuracy does not measure them.
LOSSES = (
    Row("safe_binary_cross_entropy", cross_entropy_of_two, logits_and_labels),
    Row("safe_focal_loss", focal, logits_and_labels),
)
EVERY = (*ROWS, *LOSSES)
