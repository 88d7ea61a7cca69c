"""The functions of the array API standard in TensorFlow: what each means in NumPy, and calls."""

import itertools
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from frameworks import asarray
from safeops._backends import load

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
REAL = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
INTEGER = SIGNED + UNSIGNED
INEXACT = REAL + COMPLEX
ALL = ("bool", *INTEGER, *INEXACT)

MODES = ("eager", "unknown-shape", "xla")
EVERY_MODE = pytest.mark.parametrize("mode", MODES)

# A few units in the last place of the result.
RTOL = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 2e-6, "float64": 1e-14}
RTOL |= {"complex64": 2e-6, "complex128": 1e-14}

nan, inf = np.nan, np.inf


class Array(NamedTuple):
    """A tensor to be: tables are made before TensorFlow is imported."""

    values: Any
    dtype: str


class Dtype(str):
    """A dtype among arguments, by its name."""

    __slots__ = ()


class Call(NamedTuple):
    """Arguments and options of a call, and the dtypes of what it returns."""

    args: tuple
    options: dict
    dtype: str


class Row(NamedTuple):
    """What a function does, in NumPy with 64 bits, and calls that show it."""

    reference: Any
    calls: list
    exact: bool = True


# The dtype of a result: by the standard, or chosen where the standard has no answer.


def numpy_dtype(name):
    """Return a dtype of NumPy, or of what TensorFlow brings along."""
    import tensorflow as tf

    return np.dtype(tf.as_dtype(name).as_numpy_dtype)


def floating(name):
    """Return the dtype in which TensorFlow divides; booleans take part as small integers."""
    if name in INEXACT:
        return name
    return "float32" if name in {"bool", "int8", "uint8", "int16", "uint16"} else "float64"


def promoted(a, b):
    """Return the standard's promotion, by NumPy's; integers give way to what is floating."""
    if (a in INEXACT) != (b in INEXACT):
        return a if a in INEXACT else b
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"
    if "bfloat16" in {a, b}:
        return b if a in {"bfloat16", "float16"} else a
    return np.promote_types(a, b).name


def weak(name, scalar):
    """Return the dtype of an array that meets a Python scalar."""
    if isinstance(scalar, complex):
        return promoted(floating(name), "complex64")
    if isinstance(scalar, float):
        return floating(name)
    return "int64" if name == "bool" and not isinstance(scalar, bool) else name


def same(name):
    """Return the dtype itself."""
    return name


def accumulated(name):
    """Return the dtype of a sum."""
    return name if name in INEXACT else "uint64" if name in UNSIGNED else "int64"


def always(dtype):
    """Return a rule with one answer."""
    return lambda _: dtype


# Calls.


def values(dtype, special=True):
    """Return numbers of a dtype: its edge cases, or only numbers that add up without rounding."""
    if dtype == "bool":
        return [True, False, True]
    if dtype in UNSIGNED:
        return [0, 1, 2, 5]
    if dtype in SIGNED:
        return [-3, -1, 0, 1, 2]
    if dtype in COMPLEX:
        return [1 + 2j, -0.5j, -2.0, 0.25 - 1j]
    edges = [inf, -inf, nan] if special else []
    return [-2.5, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, *edges]


def filled(shape, dtype, special=False):
    """Return an array of a shape."""
    return Array(np.resize(np.array(values(dtype, special)), shape), dtype)


def unary(dtypes, result, special=True):
    """Return calls of a function of one array: a row, a number, nothing."""
    calls = [Call((Array(values(d, special), d),), {}, result(d)) for d in dtypes]
    odd = (Array(values(dtypes[-1])[0], dtypes[-1]), Array(np.zeros((0, 3)), dtypes[-1]))
    return calls + [Call((x,), {}, result(dtypes[-1])) for x in odd]


MIXED = (
    ("int8", "float32"),
    ("float16", "bfloat16"),
    ("uint8", "int8"),
    ("int32", "int64"),
    ("uint64", "int8"),
    ("int64", "float16"),
    ("float32", "float64"),
    ("bool", "bfloat16"),
    ("uint32", "uint8"),
    ("complex64", "float64"),
    ("int16", "complex64"),
)


def binary(dtypes, result=same, scalars=(2, 2.5), left=values, right=values):
    """Return calls of a function of two: of one dtype, of two, and with Python scalars."""
    pairs = [(d, d) for d in dtypes] + [p for p in MIXED if promoted(*p) in dtypes]
    calls = [
        Call((Array(np.c_[left(a)], a), Array(right(b), b)), {}, result(promoted(a, b)))
        for a, b in pairs
    ]
    for d, scalar in itertools.product(dtypes, scalars):
        calls += [Call((Array(left(d), d), scalar), {}, result(weak(d, scalar)))]
        calls += [Call((scalar, Array(right(d), d)), {}, result(weak(d, scalar)))]
    return calls


AXES = (None, 0, -1, 1, (0, -1), (1,), ())


def reduction(dtypes, result, empty=True, axes=AXES, special=False):
    """Return calls along axes: all calls in one dtype, a few in others; 0-d; without entries."""
    calls = [
        Call((filled((2, 3, 2), d, special),), {"axis": axis, "keepdims": keepdims}, result(d))
        for d, axis, keepdims in itertools.product(dtypes, axes, (False, True))
        if d == dtypes[-1] or (axis, keepdims) in {(None, False), (-1, True)}
    ]
    kind = dtypes[-1]
    calls.append(Call((filled((), kind),), {}, result(kind)))
    calls.append(Call((filled((0, 3), kind),), {"axis": 1}, result(kind)))
    if empty:
        nothing = (filled((0,), kind), filled((2, 0), kind))
        calls += [Call((x,), {"axis": -1}, result(kind)) for x in nothing]
    return calls


def with_nan(result):
    """Return calls with a NaN at each place of a slice: first, in the middle, last, everywhere."""
    rows = [[nan, 1, 3, 2], [2, 3, nan, 1], [2, 1, 3, nan], [nan] * 4, [1, 3, 3, 1]]
    rows += [[-inf, nan, inf, 0], [inf, inf, -inf, -inf]]
    return [Call((Array(rows, d),), {"axis": 1}, result(d)) for d in REAL]


def along_axis(dtypes, result, axes=(0, 1, -1)):
    """Return calls of a function that keeps the shape."""
    calls = [
        Call((filled((2, 3, 2), d),), {"axis": axis}, result(d))
        for d, axis in itertools.product(dtypes, axes)
        if d == dtypes[-1] or axis == 1
    ]
    kind = dtypes[-1]
    calls.append(Call((filled((0, 3), kind),), {"axis": 1}, result(kind)))
    return [*calls, Call((filled((2, 0), kind),), {"axis": -1}, result(kind))]


def each(dtypes, *tails, **options):
    """Return calls with an array of three dimensions and more arguments."""
    calls = [Call((filled((1, 3, 2), d), *tails), options, d) for d in dtypes]
    return [*calls, Call((filled((1, 0, 2), dtypes[-1]), *tails), options, dtypes[-1])]


def shapes(dtypes=("bool", "int32", "bfloat16", "complex64", "float32")):
    """Return calls of a function that looks at shape and dtype alone."""
    return [Call((filled(s, d),), {}, d) for d in dtypes for s in ((), (0, 2), (2, 3))]


def scalars_of(dtype):
    """Return Python scalars that a dtype can hold, in full."""
    held = {"bool": [True], "int64": [2], "float32": [0.5], "complex64": [2j]}
    return held.get(dtype, [])


# References for functions that NumPy does not have.


def unmoved(x, dtype=None):
    """Return the array itself."""
    return np.asarray(x) if dtype is None else np.asarray(x).astype(dtype)


def of_numbers(f):
    """Return a function that takes booleans as integers."""
    return lambda x: f(x + 0)


def small(dtype):
    """Return exponents that keep integers in their dtype, negative ones where they may be."""
    return values(dtype) if dtype in INEXACT else [0, 1, 2, 3] if dtype != "bool" else [True]


def nonzero(dtype):
    """Return numbers to divide by."""
    return [x for x in values(dtype, special=False) if x]


COUNTED = ("bool", "int8", "uint8", "int32", "uint64", "complex64", *REAL)
ORDERED = ("bool", *INTEGER, *REAL)
NUMBERS = ("int8", "uint8", "int64", "uint64", *INEXACT)
# The least number of float16, whose half is 0, and the greatest, whose double is inf.
LIMITS = Array([2.0**-24, 65504.0], "float16")
TIED = [Call((LIMITS, LIMITS), {}, "float16")]
CONDITION = Array([[[True]], [[False]]], "bool")

TABLE = {
    **{
        name: Row(
            of_numbers(getattr(np, name)),
            unary(("int8", "int64", "bool", *INEXACT), floating),
            False,
        )
        for name in ("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos")
    },
    **{
        name: Row(reference, unary(("int8", *INEXACT), floating), False)
        for name, reference in {
            "acos": np.arccos,
            "acosh": np.arccosh,
            "asin": np.arcsin,
            "atanh": np.arctanh,
            "log2": np.log2,
            "log10": np.log10,
            "tanh": np.tanh,
        }.items()
    },
    "abs": Row(np.abs, unary(("bool", *INTEGER, *REAL), same)),
    "floor": Row(np.floor, unary((*INTEGER, *REAL), same)),
    "round": Row(np.round, unary((*INTEGER, *REAL), same)),
    "asinh": Row(np.arcsinh, unary(("int8", *REAL), floating), False),
    "real": Row(np.real, unary(("complex64",), always("float32")) + unary(REAL, same)),
    "imag": Row(np.imag, unary(("complex64",), always("float32"))),
    "isnan": Row(np.isnan, unary(ALL, always("bool"))),
    "isinf": Row(np.isinf, unary(ALL, always("bool"))),
    "isfinite": Row(np.isfinite, unary(ALL, always("bool"))),
    "logical_not": Row(np.logical_not, unary(("bool",), same)),
    "logical_and": Row(np.logical_and, binary(("bool",), scalars=(True,))),
    "logical_or": Row(np.logical_or, binary(("bool",), scalars=(True,))),
    "multiply": Row(np.multiply, binary(NUMBERS), False),
    "divide": Row(
        np.divide,
        # Complex division by 0 and inf is left open by the standard.
        binary((*INTEGER, *REAL), floating) + binary(COMPLEX, right=nonzero),
        exact=False,
    ),
    "atan2": Row(np.arctan2, binary(("int8", "int64", *REAL), floating), False),
    "pow": Row(
        np.power,
        [
            *binary(("int8", "uint8", "int64", *REAL), right=small),
            Call((Array([3], "uint64"), 40), {}, "uint64"),  # above what int64 holds
        ],
        exact=False,
    ),
    "maximum": Row(np.maximum, binary(("int8", "uint8", "uint64", *REAL)) + TIED),
    "minimum": Row(np.minimum, binary(("int8", "uint8", "uint64", *REAL)) + TIED),
    "where": Row(
        np.where,
        [
            Call((CONDITION, *call.args), {}, call.dtype)
            for call in binary(("bool", *NUMBERS), scalars=(2, 2.5, True))
        ],
    ),
    "any": Row(np.any, reduction(COUNTED, always("bool"))),
    "all": Row(np.all, reduction(COUNTED, always("bool"))),
    "sum": Row(np.sum, reduction(COUNTED, accumulated)),
    "prod": Row(np.prod, reduction(COUNTED, accumulated)),
    "mean": Row(np.mean, reduction(COUNTED, floating, empty=False), False),
    "max": Row(np.max, reduction(ORDERED, same, empty=False) + with_nan(same)),
    "min": Row(np.min, reduction(ORDERED, same, empty=False) + with_nan(same)),
    **{
        name: Row(
            getattr(np, name),
            reduction(ORDERED, always("int64"), empty=False, axes=(None, 0, 1, -1))
            + with_nan(always("int64")),
        )
        for name in ("argmax", "argmin")
    },
    "cumulative_sum": Row(np.cumsum, along_axis(COUNTED, accumulated)),
    "cumulative_prod": Row(np.cumprod, along_axis(("int8", "uint8", *INEXACT), accumulated)),
    "sort": Row(np.sort, along_axis(ORDERED, same) + with_nan(same)),
    "argsort": Row(
        partial(np.argsort, kind="stable"),
        along_axis(ORDERED, always("int64")) + with_nan(always("int64")),
    ),
    "take_along_axis": Row(
        np.take_along_axis,
        [
            Call((filled((2, 3, 2), d), Array(at, kind)), {"axis": axis}, d)
            for d in ("bool", "int32", "complex64", "bfloat16", "float32")
            for at, kind, axis in (
                ([[[0], [-1], [1]]], "int64", 2),
                ([[[0, 2]]], "int32", 1),
                ([[[-1]]], "int32", -3),
                (np.zeros((2, 0, 2)), "int64", 1),
            )
        ],
    ),
    "asarray": Row(
        unmoved,
        [Call((filled((2,), d),), {}, d) for d in ALL]
        + [Call((s,), {}, d) for d in ("bool", "float32") for s in scalars_of(d)]
        + [Call(([1.0, 2.0],), {}, "float32")],
    ),
    "astype": Row(
        lambda x, dtype: x.astype(dtype),
        [
            Call((filled((3,), a), Dtype(b)), {}, b)
            for a in ("bool", "int32", "bfloat16", "float64")
            for b in ALL
            if not (b in UNSIGNED and a in REAL + SIGNED)  # below zero C leaves it open
        ]
        + [Call((filled((3,), "complex64"), Dtype("complex128")), {}, "complex128")],
    ),
    "expand_dims": Row(
        np.expand_dims,
        [c for axis in (0, -1, 1) for c in each(("bool", "float32"), axis=axis)],
    ),
    "squeeze": Row(np.squeeze, [c for axis in (0, (0,), -3) for c in each(("int8",), axis=axis)]),
    "reshape": Row(
        np.reshape,
        [
            Call((filled((3, 2), "float32"), (2, -1)), {}, "float32"),
            Call((filled((1, 1), "bool"), ()), {}, "bool"),
        ],
    ),
    "conj": Row(np.conj, unary(COMPLEX, same)),
    "matrix_transpose": Row(
        lambda x: np.swapaxes(x, -1, -2), [Call((filled((2, 3, 2), d),), {}, d) for d in INEXACT]
    ),
    "matmul": Row(
        np.matmul,
        [Call((filled((2, 3, 2), d), filled((2, 2, 3), d)), {}, d) for d in ("float32", *COMPLEX)],
    ),
    "permute_dims": Row(
        np.transpose, [c for order in ((2, 0, 1), (-1, 1, 0)) for c in each(("int8",), order)]
    ),
    "ones_like": Row(np.ones_like, shapes()),
    "zeros_like": Row(np.zeros_like, shapes()),
    "full_like": Row(
        np.full_like,
        [Call((*call.args, True), {}, call.dtype) for call in shapes()]
        + [Call((filled((2, 3), "float32"), Array(2.5, "float64")), {}, "float32")]
        + [Call((filled((2,), "float16"), nan), {}, "float16")],
    ),
    "concat": Row(
        lambda arrays, axis=0: np.concatenate(arrays, axis=axis),
        [
            Call(([filled((2, 2), a), filled((2, 2), b)],), {"axis": axis}, promoted(a, b))
            for a, b in MIXED
            for axis in (0, -1, None)
        ]
        + [Call(([filled((2,), "int8"), filled((0,), "int8")],), {}, "int8")],
    ),
    "broadcast_arrays": Row(
        np.broadcast_arrays,
        [
            Call((filled((3, 1), "float32"), filled((), "float32")), {}, "float32"),
            Call((filled((3, 1), "int8"), filled((1, 2), "int8")), {}, "int8"),
            Call((filled((0,), "bool"), filled((2, 1), "bool")), {}, "bool"),
        ],
    ),
}
# These look at dtypes alone, and have tests of their own.
OF_DTYPES = {"finfo", "iinfo", "result_type"}


# Ways to run and to compare.


def in_mode(mode, f, tensors):
    """Return what `f` makes of tensors: eagerly, in a graph that knows no sizes, or under XLA."""
    import tensorflow as tf

    if mode == "eager":
        return f(*tensors)
    if mode == "xla":
        return tf.function(f, jit_compile=True, autograph=False)(*tensors)
    lengths = [None] if mode == "unknown-shape" else None
    specs = [tf.TensorSpec(lengths and lengths * len(x.shape), x.dtype) for x in tensors]
    return tf.function(f, input_signature=specs, autograph=False)(*tensors)


def leaves(tree):
    """Yield the arrays of nested arguments."""
    if isinstance(tree, Array):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for part in tree:
            yield from leaves(part)


def put(tree, supply, dtype):
    """Return nested arguments with what is supplied in the place of arrays and dtypes."""
    if isinstance(tree, Array):
        return next(supply)
    if isinstance(tree, Dtype):
        return dtype(tree)
    return type(tree)(put(x, supply, dtype) for x in tree) if type(tree) in {list, tuple} else tree


def run(mode, function, calls):
    """Return what a function gives in each call, all of them in one graph."""
    arrays = [x for call in calls for x in leaves(call.args)]
    tensors = [asarray("tensorflow", *x) for x in arrays]
    dtype = partial(getattr, load("tensorflow").xp)

    def every(*tensors):
        supply = iter(tensors)
        return [function(*put(call.args, supply, dtype), **call.options) for call in calls]

    return in_mode(mode, every, tensors)


def wide(x):
    """Return an array with 64 bits, so that NumPy neither rounds nor overflows."""
    x = np.asarray(x.numpy() if hasattr(x, "numpy") else x)  # TensorFlow's own way fails, 0-d
    widest = {"b": "bool", "i": "int64", "u": "uint64", "c": "complex128"}
    return x.astype(widest.get(x.dtype.kind, "float64"))


def expected(row, call):
    """Return NumPy's result in 64 bits, for arguments rounded to their dtypes."""
    supply = iter([wide(asarray("tensorflow", *x)) for x in leaves(call.args)])
    with np.errstate(all="ignore"):
        return row.reference(*put(call.args, supply, numpy_dtype), **call.options)


def assert_same(got, wanted, dtype, rtol=0.0, message=""):
    """Shape, dtype and values are those wanted; bools and NaN are equal to themselves only."""
    found, sought = (got.dtype.name, tuple(got.shape)), (dtype, np.shape(wanted))
    if found != sought:
        msg = f"{message}: got dtype and shape {found}, not {sought}"
        raise AssertionError(msg)
    got, wanted = (x.astype(int) if x.dtype == bool else x for x in map(wide, (got, wanted)))
    np.testing.assert_allclose(got, wanted, rtol=rtol, err_msg=message)


def slope(f):
    """Return the gradients of a function of some of TensorFlow's or our names."""

    def gradients(names, *args):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(args)
            value = f(names, *args)
        return tf.stack(tape.gradient(value, args))

    return gradients


def backend_slope(backend, f):
    """Return the derivative of a function along ones."""
    import tensorflow as tf

    return lambda *args: backend.jvp(f)(args, [tf.ones_like(x) for x in args])
