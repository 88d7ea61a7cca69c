"""The table of operations: what is known of each, whatever its framework and its operands."""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

INF = math.inf
Slopes: TypeAlias = Callable[..., tuple[float, ...]]


class Bounds(NamedTuple):
    """An interval; with `above` its lower end is excluded."""

    low: float = -INF
    high: float = INF
    above: bool = False

    @property
    def is_positive(self) -> bool:
        return self.low > 0 or (self.low == 0 and self.above)


ALL = Bounds()
AT_LEAST_0 = Bounds(0.0)
ABOVE_0 = Bounds(0.0, INF, above=True)
WITHIN_1 = Bounds(-1.0, 1.0)
OPEN_UNIT = Bounds(0.0, 1.0, above=True)
AT_MOST_0 = Bounds(-INF, 0.0)


class Operation(NamedTuple):
    """What is known of an operation."""

    value: Callable[..., float] | None = None  # for numbers
    slopes: Slopes | None = None  # for numbers; without it they are finite wherever the value is
    bounds: Bounds = ALL  # of its values, whatever the operands
    ends: tuple[float, float] | None = None  # of its domain, at which the slope is infinite
    arrays: int = 1  # that it takes; 0 where a function of `terms` says which
    # Whether its values are 0 on purpose, as those of booleans, or depend on several entries.
    kind: Literal["truth", "reduction", ""] = ""
    names: str = ""  # in programs, that the table of `_source` lacks
    interval: Callable[..., Bounds] | None = None  # of its values, from those of the operands

    def at(self, *given: float) -> float:
        """Return the value for numbers; NaN outside the domain."""
        try:
            return math.nan if self.value is None else self.value(*given)
        except OverflowError:
            return INF
        except (ValueError, ZeroDivisionError):
            return math.nan

    def slopes_at(self, *given: float) -> tuple[float, ...]:
        """Return the derivatives for numbers; NaN where there are none."""
        try:
            return (0.0,) * len(given) if self.slopes is None else self.slopes(*given)
        except (ValueError, ArithmeticError):
            return (math.nan,) * len(given)


def divided(x: float, y: float) -> float:
    if y:
        return x / y
    return math.nan if not x or math.isnan(x) else math.copysign(INF, x)


def logarithm(x: float) -> float:
    """Return a logarithm, -inf at 0."""
    return math.log(x) if x else -INF


def power(x: float, p: float) -> float:
    """Return a power, inf for a negative power of 0."""
    if not x and p < 0:
        return INF
    found = x**p
    return math.nan if isinstance(found, complex) else found


def _inverse(x: float) -> tuple[float, ...]:
    return (divided(1.0, math.sqrt(1 - x * x)),)


def _log_slope(x: float) -> tuple[float, ...]:
    return (divided(1.0, x),)


def _angle(y: float, x: float) -> tuple[float, ...]:
    r = x * x + y * y
    return divided(x, r), divided(y, r)


def _length(x: float, y: float) -> tuple[float, ...]:
    r = math.hypot(x, y)
    return divided(x, r), divided(y, r)


def _gamma(x: float) -> tuple[float, ...]:
    return (math.nan if x <= 0 else 1.0,)


def _signed(above: bool, at_least: bool = True) -> Bounds:  # noqa: FBT001, FBT002  (of the two, which holds)
    """Return the interval of what is above 0, at least 0, or any number."""
    return ABOVE_0 if above else AT_LEAST_0 if at_least else ALL


def _power(a: Bounds, p: Bounds) -> Bounds:
    is_known = p.low == p.high
    is_even = is_known and p.low % 2 == 0
    return _signed(a.is_positive or (is_even and a.high < 0), is_even or (is_known and a.low >= 0))


def _clipped(a: Bounds, low: Bounds, high: Bounds) -> Bounds:
    least = a.low if math.isnan(low.low) else max(a.low, low.low)
    most = a.high if math.isnan(high.high) else min(a.high, high.high)
    return Bounds(least, most, above=a.above and least == a.low)


def _either(lower: Callable[..., Bounds], upper: Callable[..., float], *ends: Bounds) -> Bounds:
    """Return the interval of a maximum, a minimum or a choice, from the ends that it takes."""
    end = lower(ends, key=lambda one: (one.low, one.above))
    return Bounds(end.low, upper(x.high for x in ends), above=end.above)


def _choice(_: Bounds, x: Bounds, y: Bounds) -> Bounds:
    return _either(min, max, x, y)


def _same(a: Bounds, *_: Bounds) -> Bounds:
    return a


def _total(a: Bounds) -> Bounds:
    return a if a.low < 0 else _signed(a.is_positive)


_truth = partial(Operation, kind="truth")
_reduction = partial(Operation, kind="reduction")
OPERATIONS: dict[str, Operation] = {
    "abs": Operation(abs, bounds=AT_LEAST_0),
    "acos": Operation(math.acos, _inverse, ends=(-1.0, 1.0)),
    "acosh": Operation(math.acosh, lambda x: (divided(1, math.sqrt(x * x - 1)),), ends=(1.0, INF)),
    "add": Operation(
        lambda x, y: x + y,
        interval=lambda a, b: Bounds(a.low + b.low, a.high + b.high, above=a.above or b.above),
        arrays=2,
        names="add_n",
    ),
    "asin": Operation(math.asin, _inverse, ends=(-1.0, 1.0)),
    "atan2": Operation(math.atan2, _angle, arrays=2),
    "atanh": Operation(
        lambda x: math.atanh(x) if abs(x) < 1 else INF,
        lambda x: (divided(1, 1 - x * x),),
        ends=(-1.0, 1.0),
    ),
    "cdist": _reduction(bounds=AT_LEAST_0, arrays=2),
    "cos": Operation(math.cos, bounds=WITHIN_1),
    "cosh": Operation(math.cosh, lambda x: (math.sinh(x),), bounds=Bounds(1.0)),
    "cosine_similarity": _reduction(arrays=0),
    "digamma": Operation(lambda x: 0.0 if x > 0 else math.nan, _gamma),
    "div": Operation(
        divided,
        lambda x, y: (divided(1, y), divided(-x, y * y)),
        interval=lambda a, b: _signed(b.low >= 0 and a.is_positive, b.low >= 0 and a.low >= 0),
        arrays=2,
    ),
    "eq": _truth(lambda x, y: float(x == y), arrays=2, names="equal"),
    "exp": Operation(math.exp, lambda x: (math.exp(x),), bounds=ABOVE_0),
    "expm1": Operation(math.expm1, lambda x: (math.exp(x),)),
    "ge": _truth(lambda x, y: float(x >= y), arrays=2, names="greater_equal"),
    "gt": _truth(lambda x, y: float(x > y), arrays=2, names="greater"),
    "hypot": Operation(math.hypot, _length, bounds=AT_LEAST_0, arrays=2),
    "isfinite": _truth(lambda x: float(math.isfinite(x)), names="is_finite"),
    "isinf": _truth(lambda x: float(math.isinf(x)), names="is_inf"),
    "isnan": _truth(lambda x: float(math.isnan(x)), names="is_nan"),
    "le": _truth(lambda x, y: float(x <= y), arrays=2, names="less_equal"),
    "lgamma": Operation(lambda x: math.lgamma(x) if x > 0 else INF, _gamma, names="gammaln"),
    "log": Operation(logarithm, _log_slope, ends=(0.0, INF)),
    "log10": Operation(logarithm, _log_slope, ends=(0.0, INF)),
    "log1p": Operation(
        lambda x: logarithm(1 + x), lambda x: (divided(1, 1 + x),), ends=(-1.0, INF)
    ),
    "log2": Operation(logarithm, _log_slope, ends=(0.0, INF)),
    "log_softmax": _reduction(bounds=AT_MOST_0),
    "logical_and": _truth(lambda x, y: float(bool(x and y)), arrays=2, names="bitwise_and"),
    "logical_not": _truth(lambda x: float(not x), names="bitwise_not"),
    "logical_or": _truth(lambda x, y: float(bool(x or y)), arrays=2, names="bitwise_or"),
    "logical_xor": _truth(lambda x, y: float(bool(x) != bool(y)), arrays=2),
    "logit": Operation(
        lambda x: logarithm(x) - logarithm(1 - x),
        lambda x: (divided(1, x * (1 - x)),),
        ends=(0.0, 1.0),
    ),
    "logsigmoid": Operation(bounds=AT_MOST_0),
    "lt": _truth(lambda x, y: float(x < y), arrays=2, names="less"),
    "mul": Operation(
        lambda x, y: x * y,
        lambda x, y: (y, x),
        interval=lambda a, b: _signed(a.is_positive and b.is_positive, a.low >= 0 and b.low >= 0),
        arrays=2,
    ),
    "ne": _truth(lambda x, y: float(x != y), arrays=2, names="not_equal"),
    "neg": Operation(lambda x: -x, interval=lambda a: Bounds(-a.high, -a.low)),
    "norm": _reduction(bounds=AT_LEAST_0, names="reduce_euclidean_norm"),
    "pow": Operation(
        power,
        lambda x, p: (p and p * power(x, p - 1), 0.0),
        interval=_power,
        arrays=2,
        names="float_power",
    ),
    "reciprocal": Operation(lambda x: divided(1, x), lambda x: (divided(1, x * x),)),
    "relu": Operation(bounds=AT_LEAST_0),
    "rsqrt": Operation(
        lambda x: divided(1, math.sqrt(x)),
        lambda x: (divided(1, math.sqrt(x) ** 3),),
        ends=(0.0, INF),
    ),
    "segment": _reduction(interval=_total, arrays=0),
    "sigmoid": Operation(
        lambda x: 1 / (1 + math.exp(min(-x, 700))), bounds=OPEN_UNIT, names="expit"
    ),
    # The factor `sign(x)` is 0 at 0, as a mask is.
    "sign": _truth(lambda x: math.copysign(1.0, x) if x else 0.0),
    "sin": Operation(math.sin, bounds=WITHIN_1),
    "sinh": Operation(math.sinh, lambda x: (math.cosh(x),)),
    "softmax": _reduction(bounds=OPEN_UNIT),
    "softplus": Operation(lambda x: math.log1p(math.exp(-abs(x))) + max(x, 0.0), bounds=ABOVE_0),
    "sqrt": Operation(math.sqrt, lambda x: (divided(0.5, math.sqrt(x)),), AT_LEAST_0, (0.0, INF)),
    "square": Operation(
        lambda x: x * x, lambda x: (2 * x,), interval=lambda a: _signed(a.is_positive or a.high < 0)
    ),
    "std": _reduction(bounds=AT_LEAST_0),
    "sub": Operation(
        lambda x, y: x - y, interval=lambda a, b: Bounds(a.low - b.high, a.high - b.low), arrays=2
    ),
    "tanh": Operation(math.tanh, bounds=WITHIN_1),
    "var": _reduction(bounds=AT_LEAST_0),
    "clip": Operation(interval=_clipped, arrays=0, names="clip_by_value"),
    "if": Operation(interval=_choice, arrays=0),
    "index": Operation(interval=_same, arrays=0),
    "matrixnorm": Operation(arrays=0, names="matrix_norm"),
    "maximum": Operation(interval=partial(_either, max, max), arrays=2, names="clamp_min fmax"),
    "mean": _reduction(interval=_same),
    "minimum": Operation(interval=partial(_either, min, min), arrays=2, names="clamp_max fmin"),
    "mse_loss": Operation(
        bounds=AT_LEAST_0, arrays=2, kind="reduction", names="MSE mean_squared_error mse"
    ),
    "prod": _reduction(interval=_total, names="reduce_prod"),
    "sum": _reduction(interval=_total, names="nansum"),
    "where": Operation(interval=_choice, arrays=0, names="select where_v2"),
}
OPERATIONS |= dict.fromkeys(
    ["asinh", "atan", "erf", "erfc", "erfinv", "nan_to_num", "ndtri", "sinc", "tan"], Operation()
)
OF_TWO = "cross divide_no_nan multiply_no_nan xdivy xlog1py xlogy"
OPERATIONS |= dict.fromkeys(OF_TWO.split(), Operation(arrays=2))
OPERATIONS |= dict.fromkeys(["max", "min"], _reduction(interval=_same))
OPERATIONS |= {"cumsum": _reduction(interval=_total), "logsumexp": _reduction()}
OPERATIONS |= dict.fromkeys(["dot", "inner", "matmul", "vdot"], _reduction(arrays=2))

UNKNOWN = Operation()  # for words that the table lacks
TRUTH = frozenset(word for word, row in OPERATIONS.items() if row.kind == "truth")
REDUCTIONS = frozenset(word for word, row in OPERATIONS.items() if row.kind == "reduction")
# Operations whose derivative may not be finite; a product passes on the faults of its factors.
SINGULAR = frozenset(word for word, row in OPERATIONS.items() if row.slopes is not None)
ENDS = {word: row.ends for word, row in OPERATIONS.items() if row.ends is not None}
# Operations that return their argument in another shape, dtype or place.
SAME = frozenset(
    """
    array as_tensor asarray astype broadcast_arrays broadcast_to cast clone constant contiguous
    convert_to_tensor copy cpu cuda double ensure_shape expand expand_as expand_dims flatten float
    float32 float64 half identity item moveaxis permute ravel repeat reshape scalar_tensor squeeze
    swapaxes tensor tile to transpose type type_as unsqueeze view view_as
    """.split()  # noqa: SIM905  (names read best in a row)
)
# Functions whose results are all one number: which, or the place of the argument that says it.
CONSTANTS = {"ones": 1.0, "ones_like": 1.0, "new_ones": 1.0}
CONSTANTS |= {"zeros": 0.0, "zeros_like": 0.0, "new_zeros": 0.0}
FULL = {"fill": 1, "full": 1, "full_like": 1, "new_full": 2}
# Operations without a gradient: counts, indices, booleans.
PLAIN = frozenset(
    """
    all any arange argmax argmin argsort argwhere bincount bool bucketize byte ceil colcount
    count_nonzero degree detach digitize eye floor from_numpy int int32 int64 isin len linspace long
    meshgrid nonzero numel numpy one_hot ones rand rand_like randint randn randn_like range rank
    rint round rowcount searchsorted shape size sorted stop_gradient tolist tril tril_indices triu
    triu_indices unique zero_stop_gradient zeros
    """.split()  # noqa: SIM905  (names read best in a row)
)
