"""TensorFlow under standard names: against NumPy, in every mode, and the faults it repairs."""

import itertools
import logging
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import safeops
from assertions import assert_close, differs
from derivatives import derivatives_in, directions
from frameworks import asarray, to_numpy
from safeops._backends import load

pytestmark = pytest.mark.only("tensorflow")

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


# What dtype comes out, by the standard, and by choice where that has no answer.


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
    """Return numbers of a dtype: those of its edges, or only such as add up without rounding."""
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
    """Return calls along axes: all in one dtype, a few in the others; of a number; of nothing."""
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


# The references that NumPy has not.


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
    """Return what NumPy gives, in 64 bits, from the numbers that the dtypes hold."""
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


@pytest.mark.parametrize(
    ("wanted", "dtype"),
    [([1.0, 3.0], "float32"), ([1.0, nan], "float32"), ([1.0], "float32"), ([1.0, 2.0], "int8")],
)
def test_the_comparison_can_fail(wanted, dtype):
    """Another value, NaN, shape or dtype is seen."""
    got = asarray("tensorflow", [1.0, 2.0], "float32")

    with pytest.raises(AssertionError):
        assert_same(got, np.array(wanted), dtype)


# The namespace.


@EVERY_MODE
@pytest.mark.parametrize("name", TABLE)
def test_a_function_means_what_it_means_in_numpy(name, mode):
    """Values, shapes and dtypes of each call are those of the standard."""
    row = TABLE[name]

    results = run(mode, getattr(load("tensorflow").xp, name), row.calls)

    for call, got in zip(row.calls, results, strict=True):
        wanted = expected(row, call)
        several = isinstance(wanted, tuple)
        for one, other in zip(got, wanted, strict=True) if several else [(got, wanted)]:
            rtol = 0.0 if row.exact else RTOL.get(call.dtype, 0.0)
            assert_same(one, other, call.dtype, rtol, f"{call.args} {call.options}")


# No functions of the standard, or such that their operation guards: `hypot` at the origin. What
# they are for is their slopes, and `test_exponents` holds these through the operations.
BY_OPERATION = {
    "entropy",
    "hypot",
    "log1p_product",
    "log_by_quotient",
    "log_difference",
    "log_product",
    "quotient",
}


def test_every_name_is_in_the_table():
    """A function of the namespace that nobody tests does not exist."""
    names = {name for name, x in vars(load("tensorflow").xp).items() if callable(x)} - set(ALL)

    assert names == {*TABLE, *OF_DTYPES} | BY_OPERATION


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (("int8", 2), "int8"),
        (("int8", True), "int8"),
        (("bool", True), "bool"),
        (("bool", 2), "int64"),
        (("bool", 2.5), "float32"),
        (("uint8", 2.5), "float32"),
        (("int32", 2.5), "float64"),
        (("bfloat16", 2.5), "bfloat16"),
        (("float16", "bfloat16"), "float32"),
        (("int64", "float16"), "float16"),
        (("uint8", "int8"), "int16"),
        (("uint16", "int8"), "int32"),
        (("uint32", "int64"), "int64"),
        (("uint32", "int32"), "int64"),
        (("uint64", "int8"), "float64"),
        (("bool", "uint64"), "uint64"),
        (("float64", "complex64"), "complex128"),
        (("bfloat16", "complex64"), "complex64"),
        (("float64", 2j), "complex128"),
        (("int16", 2j), "complex64"),
        (("float16", "float32", 2.5, "bool"), "float32"),
        ((2.5,), "float32"),
        ((2, True), "int32"),
    ],
)
def test_dtypes_promote_by_the_standard(args, wanted):
    """Dtypes, arrays of them and weak Python scalars have the common dtype of the standard."""
    xp = load("tensorflow").xp
    dtypes = [getattr(xp, x) if isinstance(x, str) else x for x in args]
    arrays = [asarray("tensorflow", 1, x) if isinstance(x, str) else x for x in args]

    assert xp.result_type(*dtypes).name == wanted
    assert xp.result_type(*reversed(arrays)).name == wanted


@pytest.mark.parametrize(
    ("dtype", "bits", "exponent"),
    [("float16", 10, 14), ("bfloat16", 7, 126), ("float32", 23, 126), ("complex128", 52, 1022)],
)
def test_limits_are_those_of_the_format(dtype, bits, exponent):
    """Of a dtype, an array or a complex dtype: the limits follow from the numbers of bits."""
    xp = load("tensorflow").xp

    for x in (getattr(xp, dtype), asarray("tensorflow", [1.0], dtype)):
        assert float(xp.finfo(x).eps) == 2.0**-bits
        assert float(xp.finfo(x).smallest_normal) == 2.0**-exponent
        assert float(xp.finfo(x).max) == (2 - 2.0**-bits) * 2.0 ** (exponent + 1)


@pytest.mark.parametrize(
    ("dtype", "least", "greatest"),
    [("int8", -128, 127), ("uint16", 0, 65535), ("int64", -(2**63), 2**63 - 1)],
)
def test_limits_of_integers_are_those_of_their_bits(dtype, least, greatest):
    """Of a dtype or an array: the least and the greatest number."""
    xp = load("tensorflow").xp

    for x in (getattr(xp, dtype), asarray("tensorflow", [1], dtype)):
        assert (xp.iinfo(x).min, xp.iinfo(x).max) == (least, greatest)


RANKLESS = {
    "sum": ({"axis": 0}, np.sum),
    "prod": ({"axis": (0, -1)}, np.prod),
    "max": ({"axis": 1}, np.max),
    "argmax": ({"axis": 0}, np.argmax),
    "argmin": ({}, np.argmin),
    "cumulative_sum": ({"axis": 0}, np.cumsum),
    "cumulative_prod": ({"axis": 1}, np.cumprod),
    "sort": ({"axis": -2}, np.sort),
    "argsort": ({}, np.argsort),
}


@pytest.mark.parametrize("name", RANKLESS)
def test_a_rank_need_not_be_known(name):
    """A graph that does not know how many dimensions there are gives the same."""
    import tensorflow as tf

    options, reference = RANKLESS[name]
    x = tf.constant([[3.0, 1.0, 2.0], [0.5, 5.0, -1.0]])
    signature = [tf.TensorSpec(None, x.dtype)]
    function = getattr(load("tensorflow").xp, name)

    got = tf.function(lambda x: function(x, **options), signature, autograph=False)(x)

    np.testing.assert_array_equal(got, reference(x.numpy(), **options))


def test_a_cumulative_function_needs_an_axis():
    """Without an axis only one dimension will do, as in the standard."""
    xp = load("tensorflow").xp

    np.testing.assert_array_equal(xp.cumulative_sum([1, 2]), [1, 3])
    with pytest.raises(ValueError, match="expected an axis for 2 dimensions, got None"):
        xp.cumulative_sum([[1, 2]])


# The faults of TensorFlow 2.21 on CPU. When one is gone, its test fails, and the repair can go.


class Fault(NamedTuple):
    """What TensorFlow gives by mode, where it is wrong, and what is right in each."""

    theirs: Any
    ours: Any
    args: tuple
    wrong: dict
    right: Any


RAISES = "raises"
IN_GRAPHS = ("unknown-shape", "xla")
OUTSIDE_XLA = ("eager", "unknown-shape")


def wrong_in(modes, answer):
    """Return one wrong answer for several modes."""
    return dict.fromkeys(modes, answer)


def slope(f):
    """Return the gradients of a function of some of TensorFlow's or our names."""

    def gradients(names, *args):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(args)
            value = f(names, *args)
        return tf.stack(tape.gradient(value, args))

    return gradients


def fault(theirs, ours, args, wrong, right):
    """Return a fault; arguments without a dtype are float32."""
    arrays = [x if isinstance(x, Array) else Array(x, "float32") for x in args]
    return Fault(theirs, ours, tuple(arrays), wrong, right)


HOLE = [1.0, nan, 2.0]
UNSORTED = [4.0, nan, 7.0, 1.0, nan, 3.0]

FAULTS = {
    "XLA drops NaN in reduce_max (116992, 118673)": fault(
        lambda tf, x: tf.reduce_max(x), lambda xp, x: xp.max(x), [HOLE], {"xla": 2.0}, nan
    ),
    "XLA drops NaN in reduce_min (116992, 118673)": fault(
        lambda tf, x: tf.reduce_min(x), lambda xp, x: xp.min(x), [HOLE], {"xla": 1.0}, nan
    ),
    "XLA drops NaN in reduce_max, and the gradient is silently 0": fault(
        slope(lambda tf, x: tf.reduce_max(x)),
        slope(lambda xp, x: xp.max(x)),
        [HOLE],
        {"xla": [[0.0, 0.0, 1.0]]},
        [[nan, nan, nan]],
    ),
    "XLA drops NaN in the second operand of maximum (118673)": fault(
        lambda tf, x, y: tf.maximum(x, y),
        lambda xp, x, y: xp.maximum(x, y),
        [[1.0, nan], [nan, 1.0]],
        {"xla": [1.0, nan]},
        [nan, nan],
    ),
    "XLA drops NaN in the second operand of minimum (118673)": fault(
        lambda tf, x, y: tf.minimum(x, y),
        lambda xp, x, y: xp.minimum(x, y),
        [[1.0, nan], [nan, 1.0]],
        {"xla": [1.0, nan]},
        [nan, nan],
    ),
    "a tie in maximum sends all to the first": fault(
        slope(lambda tf, x, y: tf.maximum(x, y)),
        slope(lambda xp, x, y: xp.maximum(x, y)),
        [[3.0], [3.0]],
        wrong_in(MODES, [[1.0], [0.0]]),
        [[0.5], [0.5]],
    ),
    "Grappler turns LogicalNot(x <= 0) into x > 0": fault(
        lambda tf, x: tf.logical_not(x <= 0),
        lambda xp, x: xp.logical_not(x <= 0),
        [HOLE],
        {"unknown-shape": [True, False, True]},
        [True, True, True],
    ),
    "tf.sort leaves numbers unsorted where there are NaN (117287, 119359)": fault(
        lambda tf, x: tf.sort(x),
        lambda xp, x: xp.sort(x),
        [UNSORTED],
        wrong_in(OUTSIDE_XLA, [1.0, 4.0, nan, 7.0, nan, 3.0]),
        [1.0, 3.0, 4.0, 7.0, nan, nan],
    ),
    "tf.argsort leaves numbers unsorted where there are NaN (117287, 119359)": fault(
        lambda tf, x: tf.argsort(x),
        lambda xp, x: xp.argsort(x),
        [UNSORTED],
        wrong_in(OUTSIDE_XLA, [3, 0, 1, 2, 4, 5]),
        [3, 5, 0, 2, 1, 4],
    ),
    "XLA sorts -0 before 0": fault(
        lambda tf, x: tf.argsort(x, stable=True),
        lambda xp, x: xp.argsort(x),
        [[0.0, -0.0, 0.0, -0.0]],
        {"xla": [1, 3, 0, 2]},
        [0, 1, 2, 3],
    ),
    "tf.argmax passes over NaN, in XLA in another way (118177, 120232)": fault(
        lambda tf, x: tf.argmax(x),
        lambda xp, x: xp.argmax(x),
        [[5.0, nan, 3.0]],
        {"eager": 0, "unknown-shape": 0, "xla": 2},
        1,
    ),
    "tf.argmin passes over NaN, in XLA in another way (118647)": fault(
        lambda tf, x: tf.argmin(x),
        lambda xp, x: xp.argmin(x),
        [[1.0, nan, 3.0]],
        {"eager": 0, "unknown-shape": 0, "xla": 2},
        1,
    ),
    "tf.math.is_nan refuses integers": fault(
        lambda tf, x: tf.math.is_nan(x),
        lambda xp, x: xp.isnan(x),
        [Array([1], "int32")],
        wrong_in(MODES, RAISES),
        [False],
    ),
    "tf.math.is_nan refuses complex numbers": fault(
        lambda tf, x: tf.math.is_nan(x),
        lambda xp, x: xp.isnan(x),
        [Array([1.0, complex(0, nan)], "complex64")],
        wrong_in(MODES, RAISES),
        [False, True],
    ),
    "a sum of int8 overflows": fault(
        lambda tf, x: tf.reduce_sum(x),
        lambda xp, x: xp.sum(x),
        [Array([100, 100], "int8")],
        wrong_in(MODES, -56),
        200,
    ),
    "a mean of integers truncates": fault(
        lambda tf, x: tf.reduce_mean(x),
        lambda xp, x: xp.mean(x),
        [Array([1, 2], "int32")],
        wrong_in(MODES, 1),
        1.5,
    ),
    "the sum in a mean of float16 overflows": fault(
        lambda tf, x: tf.reduce_mean(x),
        lambda xp, x: xp.mean(x),
        [Array([60000.0] * 4, "float16")],
        wrong_in(OUTSIDE_XLA, inf),
        60000.0,
    ),
    "a running sum of bfloat16 sticks at 256": fault(
        lambda tf, x: tf.cumsum(x)[-1],
        lambda xp, x: xp.cumulative_sum(x)[-1],
        [Array([1.0] * 512, "bfloat16")],
        wrong_in(OUTSIDE_XLA, 256.0),
        512.0,
    ),
    "XLA has no cumsum of complex numbers": fault(
        lambda tf, x: tf.cumsum(x),
        lambda xp, x: xp.cumulative_sum(x),
        [Array([1j, 2.0], "complex64")],
        {"xla": RAISES},
        [1j, 2 + 1j],
    ),
    "XLA has no cumsum of uint64": fault(
        lambda tf, x: tf.cumsum(x),
        lambda xp, x: xp.cumulative_sum(x),
        [Array([1, 2], "uint64")],
        {"xla": RAISES},
        [1, 3],
    ),
    "XLA has no cumprod of complex numbers": fault(
        lambda tf, x: tf.math.cumprod(x),
        lambda xp, x: xp.cumulative_prod(x),
        [Array([1j, 2.0], "complex64")],
        {"xla": RAISES},
        [1j, 2j],
    ),
    "XLA has no cumprod of uint64": fault(
        lambda tf, x: tf.math.cumprod(x),
        lambda xp, x: xp.cumulative_prod(x),
        [Array([3, 2], "uint64")],
        {"xla": RAISES},
        [3, 6],
    ),
    "mixed dtypes raise": fault(
        lambda tf, x, y: tf.multiply(x, y),
        lambda xp, x, y: xp.multiply(x, y),
        [Array([2], "int32"), [1.5]],
        wrong_in(MODES, RAISES),
        [3.0],
    ),
    "a scalar first in where raises in graphs": fault(
        lambda tf, x: tf.where(x > 2, 1.0, x),
        lambda xp, x: xp.where(x > 2, 1.0, x),
        [Array([2.0, 3.0], "float16")],
        wrong_in(IN_GRAPHS, RAISES),
        [2.0, 1.0],
    ),
    "True is no number of int8": fault(
        lambda tf, x: tf.where(x > 2, x, True),
        lambda xp, x: xp.where(x > 2, x, True),
        [Array([2, 3], "int8")],
        {"eager": RAISES},
        [1, 3],
    ),
    "XLA turns cast(mask) * x into a select": fault(
        lambda tf, x: tf.cast(x > 0, x.dtype) * x,
        lambda xp, x: xp.where(x > 0, x, 0.0),
        [[-inf, 1.0]],
        wrong_in(OUTSIDE_XLA, [nan, 1.0]),  # and 0 in XLA
        [0.0, 1.0],
    ),
    "tf.cast to bool looks at the real part alone": fault(
        lambda tf, x: tf.cast(x, tf.bool),
        lambda xp, x: xp.astype(x, xp.bool),
        [Array([1j, 0.0], "complex64")],
        wrong_in(OUTSIDE_XLA, [False, False]),
        [True, False],
    ),
    "XLA takes no axis below 0 in tf.transpose": fault(
        lambda tf, x: tf.transpose(x, (-1, 0)),
        lambda xp, x: xp.permute_dims(x, (-1, 0)),
        [[[1.0, 2.0]]],
        {"xla": RAISES},
        [[1.0], [2.0]],
    ),
    "tf.pow has no unsigned integers": fault(
        lambda tf, x: tf.pow(x, x),
        lambda xp, x: xp.pow(x, x),
        [Array([3], "uint8")],
        wrong_in(MODES, RAISES),
        [27],
    ),
    "tf.abs has no unsigned integers": fault(
        lambda tf, x: tf.abs(x),
        lambda xp, x: xp.abs(x),
        [Array([3], "uint8")],
        wrong_in(MODES, RAISES),
        [3],
    ),
    "tf.floor has no integers": fault(
        lambda tf, x: tf.floor(x),
        lambda xp, x: xp.floor(x),
        [Array([-3], "int8")],
        wrong_in(MODES, RAISES),
        [-3],
    ),
    "tf.reduce_max has no bool": fault(
        lambda tf, x: tf.reduce_max(x),
        lambda xp, x: xp.max(x),
        [Array([False, True], "bool")],
        wrong_in(MODES, RAISES),
        True,
    ),
    "tf.argsort has no bool": fault(
        lambda tf, x: tf.argsort(x),
        lambda xp, x: xp.argsort(x),
        [Array([True, False], "bool")],
        wrong_in(MODES, RAISES),
        [1, 0],
    ),
    "XLA has no argsort of uint16": fault(
        lambda tf, x: tf.argsort(x),
        lambda xp, x: xp.argsort(x),
        [Array([2, 1], "uint16")],
        {"xla": RAISES},
        [1, 0],
    ),
    "tf.truediv has no bool": fault(
        lambda tf, x: tf.truediv(x, x),
        lambda xp, x: xp.divide(x, x),
        [Array([True], "bool")],
        wrong_in(MODES, RAISES),
        [1.0],
    ),
}


@pytest.mark.parametrize(
    ("name", "mode"), [(name, mode) for name, row in FAULTS.items() for mode in row.wrong]
)
def test_tensorflow_still_has_the_fault(name, mode):
    """TensorFlow itself is wrong; where it no longer is, the repair can go."""
    import tensorflow as tf

    row = FAULTS[name]
    args = [asarray("tensorflow", *x) for x in row.args]

    if row.wrong[mode] == RAISES:
        with pytest.raises((TypeError, tf.errors.InvalidArgumentError)):
            in_mode(mode, partial(row.theirs, tf), args)
    else:
        got = in_mode(mode, partial(row.theirs, tf), args)
        np.testing.assert_array_equal(wide(got), row.wrong[mode])


@EVERY_MODE
@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_repaired(name, mode):
    """The namespace is right in every mode."""
    row = FAULTS[name]
    args = [asarray("tensorflow", *x) for x in row.args]

    got = in_mode(mode, partial(row.ours, load("tensorflow").xp), args)

    np.testing.assert_array_equal(wide(got), row.right)


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_right_is_not_what_is_wrong(name):
    """The two answers of a row differ, so that both tests cannot pass by one answer."""
    row = FAULTS[name]

    assert row.wrong
    assert all(wrong == RAISES or str(wrong) != str(row.right) for wrong in row.wrong.values())


def test_a_cast_to_complex_warns_of_its_gradient_and_ours_does_not(tensorflow_log):
    """The gradient of tf.cast from real to complex logs that it discards a part."""
    import tensorflow as tf

    backend = load("tensorflow")
    x = tf.constant([1.0])

    theirs = backend.grad(lambda x: tf.math.real(tf.cast(x, tf.complex64)))(x)
    said = list(tensorflow_log)
    tensorflow_log.clear()
    ours = backend.grad(lambda x: tf.math.real(backend.xp.astype(x, tf.complex64)))(x)

    assert "You are casting an input of type complex64" in said[0]
    assert tensorflow_log == []
    assert theirs[0].numpy() == ours[0].numpy() == [1.0]


@pytest.fixture
def tensorflow_log():
    """Yield the list of what TensorFlow logs."""
    import tensorflow as tf

    said = []

    class Listener(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())

    listener = Listener()
    tf.get_logger().addHandler(listener)
    yield said
    tf.get_logger().removeHandler(listener)


# Derivatives.

WEIGHTS = (1.0, -2.0, 3.0)


class Slope(NamedTuple):
    """A function of points (point, entry), with gradient and Hessian at a point."""

    f: Any
    points: list
    gradient: Any
    hessian: Any
    naive: Any = None  # of TensorFlow's names
    fails: str = ""  # the derivative in which the naive one is wrong
    slow_if_unknown: tuple = ()  # derivatives that take seconds where lengths are unknown


def weighted(ys):
    """Return the sum with weights along the last axis."""
    return sum(w * ys[..., i] for i, w in enumerate(WEIGHTS))


def other_entries(x, *left_out):
    """Return the product of a point without some of its entries."""
    return np.prod(np.delete(x, left_out))


def flat(*_):
    """Return a Hessian of zeros."""
    return np.zeros((3, 3))


def product_hessian(x):
    """Return the second derivatives of a product."""
    return [[0 if i == j else other_entries(x, i, j) for j in range(len(x))] for i in range(len(x))]


def heads(x, derivative, *shape):
    """Return the weighted sum of a derivative of the products of the first entries."""
    total = np.zeros(shape)
    for k, w in enumerate(WEIGHTS, start=1):
        total[(slice(k),) * len(shape)] += w * np.array(derivative(x[:k]))
    return total


def product_gradient(x):
    """Return the first derivatives of a product."""
    return [other_entries(x, i) for i in range(len(x))]


def shared(extreme):
    """Return a gradient that ties share."""
    return lambda x: (x == extreme(x)) / np.sum(x == extreme(x))


def ranks(x):
    """Return the weights in the order of the entries."""
    return np.array(WEIGHTS)[np.argsort(np.argsort(x))]


def power_hessian(x):
    """Return the second derivatives of ``x ** y``."""
    x, y = x
    mixed = x ** (y - 1) * (1 + y * np.log(x))
    return [[y * (y - 1) * x ** (y - 2), mixed], [mixed, x**y * np.log(x) ** 2]]


FACTORS = [[2.0, 3.0, 5.0], [0.0, 3.0, 5.0], [0.0, 0.0, 5.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
TIES = [[1.0, 3.0, 2.0], [3.0, 3.0, 1.0], [2.0, 2.0, 2.0], [inf, 1.0, inf], [-1.0, -inf, -inf]]
PAIRS = [[1.0, 2.0], [2.0, 2.0], [3.0, 2.0], [0.0, -0.0], [inf, inf]]
QUOTIENTS = [[1.0, 2.0], [0.0, -4.0], [-1.0, 0.5]]
POWERS = [[2.0, 3.0], [0.5, -1.5], [4.0, 0.5], [1.0, 0.0]]

# Where a length is unknown it is doubled 31 times, and each derivative of that takes long to trace.
SLOW = ("rev-fwd", "fwd-rev", "fwd-fwd")
PRODUCT = {
    "slow_if_unknown": SLOW,
    "points": FACTORS,
    "gradient": product_gradient,
    "hessian": product_hessian,
}
SLOPES = {
    "prod": Slope(
        f=lambda xp, x: xp.prod(x, axis=-1),
        naive=lambda tf, x: tf.reduce_prod(x, -1),
        fails="rev-rev",
        **PRODUCT,
    ),
    "prod of two axes": Slope(
        f=lambda xp, x: xp.prod(xp.expand_dims(x, axis=1), axis=(2, 1)), **PRODUCT
    ),
    "prod of all axes": Slope(
        f=lambda xp, x: xp.prod(x, keepdims=True)[:, 0], **PRODUCT | {"points": FACTORS[2:3]}
    ),
    "cumulative_prod": Slope(
        f=lambda xp, x: weighted(xp.cumulative_prod(x, axis=1)),
        points=FACTORS,
        gradient=lambda x: heads(x, product_gradient, 3),
        hessian=lambda x: heads(x, product_hessian, 3, 3),
        slow_if_unknown=SLOW,
        naive=lambda tf, x: weighted(tf.math.cumprod(x, 1)),
        fails="reverse",
    ),
    "cumulative_sum": Slope(
        f=lambda xp, x: weighted(xp.cumulative_sum(x, axis=1)),
        points=FACTORS,
        gradient=lambda _: np.cumsum(WEIGHTS[::-1])[::-1],
        hessian=flat,
    ),
    "mean": Slope(
        f=lambda xp, x: xp.mean(x * x, axis=-1),
        points=FACTORS,
        gradient=lambda x: 2 * x / 3,
        hessian=lambda _: np.eye(3) * 2 / 3,
    ),
    "max": Slope(lambda xp, x: xp.max(x, axis=-1), TIES, shared(np.max), flat),
    "min": Slope(lambda xp, x: xp.min(x, axis=-1), TIES, shared(np.min), flat),
    "maximum": Slope(
        f=lambda xp, x: xp.maximum(x[:, 0], x[:, 1]),
        points=PAIRS,
        gradient=shared(np.max),
        hessian=lambda _: np.zeros((2, 2)),
        naive=lambda tf, x: tf.maximum(x[:, 0], x[:, 1]),
        fails="reverse",
    ),
    "minimum": Slope(
        f=lambda xp, x: xp.minimum(x[:, 0], x[:, 1]),
        points=PAIRS,
        gradient=shared(np.min),
        hessian=lambda _: np.zeros((2, 2)),
        naive=lambda tf, x: tf.minimum(x[:, 0], x[:, 1]),
        fails="reverse",
    ),
    "sort": Slope(
        f=lambda xp, x: weighted(xp.sort(x, axis=1)),
        points=[[3.0, 1.0, 2.0], [-1.0, 0.0, 5.0], [2.0, 1.0, -5.0]],
        gradient=ranks,
        hessian=flat,
    ),
    "take_along_axis": Slope(
        f=lambda xp, x: weighted(xp.take_along_axis(x * x, [[2, 0, -3]], axis=1)),
        points=FACTORS[:2],
        gradient=lambda x: 2 * x * [1, 0, 1],  # the weights of 0 are -2 and 3
        hessian=lambda _: np.diag([2.0, 0.0, 2.0]),
    ),
    "divide": Slope(
        f=lambda xp, x: xp.divide(x[:, 0], x[:, 1]),
        points=QUOTIENTS,
        gradient=lambda x: [1 / x[1], -x[0] / x[1] ** 2],
        hessian=lambda x: [[0, -1 / x[1] ** 2], [-1 / x[1] ** 2, 2 * x[0] / x[1] ** 3]],
    ),
    "pow": Slope(
        f=lambda xp, x: xp.pow(x[:, 0], x[:, 1]),
        points=POWERS,
        gradient=lambda x: [x[1] * x[0] ** (x[1] - 1), x[0] ** x[1] * np.log(x[0])],
        hessian=power_hessian,
    ),
    "where": Slope(
        f=lambda xp, x: xp.where(x[:, 0] > 0, x[:, 1] * x[:, 1], 1.0),
        points=[[1.0, 3.0], [-1.0, 3.0]],
        gradient=lambda x: [0, 2 * x[1] if x[0] > 0 else 0],
        hessian=lambda x: [[0, 0], [0, 2.0 if x[0] > 0 else 0]],
    ),
}


def exact_derivatives(row, v, u):
    """Return derivatives by their names, from gradient and Hessian at each point."""
    points = np.array(row.points)
    gradient = np.array([row.gradient(x) for x in points], dtype=float)
    hessian = np.array([row.hessian(x) for x in points], dtype=float)
    along = np.einsum("pij,pj->pi", hessian, v)
    return {
        "reverse": gradient,
        "forward": np.sum(gradient * v, axis=1),
        **dict.fromkeys(("rev-rev", "fwd-rev", "rev-fwd"), along),
        "fwd-fwd": np.sum(along * u, axis=1),
    }


def derivatives(row, f, mode):
    """Return the derivatives of a function in a mode, and the exact ones."""
    shape = np.shape(row.points)
    (v,), (u,) = directions([shape])
    arrays = [[asarray("tensorflow", x)] for x in (row.points, v, u)]
    fewer = {("tensorflow", "unknown-shape"): (row.slow_if_unknown, "")}
    got = derivatives_in(mode, "tensorflow", f, lambda out: out, *arrays, fewer)
    del got["value"]
    got = {order: to_numpy(x[0] if isinstance(x, tuple) else x) for order, x in got.items()}
    return got, exact_derivatives(row, v, u)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SLOPES)
def test_derivatives_are_exact(name, mode):
    """Gradient, forward mode and four second-order compositions are those of mathematics."""
    row = SLOPES[name]

    got, exact = derivatives(row, partial(row.f, load("tensorflow").xp), mode)

    assert {"reverse", "forward"} <= set(got)
    for order, x in got.items():
        assert_close(x, exact[order], 1e-13, order)


@pytest.mark.parametrize("name", [name for name, row in SLOPES.items() if row.naive])
def test_derivatives_of_naive_tensorflow_fail(name):
    """TensorFlow's own function has another derivative at one of the points."""
    import tensorflow as tf

    row = SLOPES[name]

    got, exact = derivatives(row, partial(row.naive, tf), "eager")

    assert differs(got[row.fails], exact[row.fails])


def slope_by_accumulator(f):
    """Return the derivative along ones, by TensorFlow's own forward mode."""

    def tangent(x):
        import tensorflow as tf

        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
            value = f(x)
        return accumulator.jvp(value, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    return tangent


def slope_by_tape(f):
    """Return the gradient, by TensorFlow's own reverse mode."""
    return lambda x: slope(lambda _, x: f(x))(None, x)[0]


def test_forward_mode_in_forward_mode_still_raises_in_graphs():
    """A ForwardAccumulator in another raises IndexError for tf.where; hence the two tapes."""
    import tensorflow as tf

    x = tf.constant([1.0, 2.0])
    twice = slope_by_accumulator(slope_by_accumulator(lambda x: tf.where(x > 1, x * x, x)))

    np.testing.assert_array_equal(in_mode("eager", twice, [x]), [0.0, 2.0])
    with pytest.raises(IndexError):
        in_mode("unknown-shape", twice, [x])


def test_tapes_in_custom_gradients_still_have_no_forward_mode():
    """
    ForwardAccumulator makes 0 of a backward pass that has a tape; hence the doubling.

    So does `jvp` of the backend: it is the forward mode of the user, its faults included.
    """
    import tensorflow as tf

    @tf.custom_gradient
    def f(x):
        def backward(upstream):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = x * x
            return tape.gradient(y, x, upstream)

        return tf.stop_gradient(x * x), backward

    x = tf.constant([3.0])

    np.testing.assert_array_equal(slope_by_tape(f)(x), [6.0])
    np.testing.assert_array_equal(slope_by_accumulator(f)(x), [0.0])
    np.testing.assert_array_equal(backend_slope(load("tensorflow"), f)(x), [0.0])


@EVERY_MODE
@pytest.mark.parametrize("name", ["max", "min", "maximum", "minimum"])
def test_a_nan_reaches_the_gradient(name, mode):
    """A NaN among the entries makes the gradient NaN, and nothing else in other slices."""
    import tensorflow as tf

    backend = load("tensorflow")
    row = SLOPES[name]
    x = tf.constant([[1.0, nan], [nan, 2.0], [1.0, 2.0]])

    def gradient(x):
        return backend.grad(partial(row.f, backend.xp))(x)[0]

    got = in_mode(mode, gradient, [x]).numpy()

    assert np.isnan(got[:2]).any(axis=1).all()
    np.testing.assert_array_equal(got[2], shared(np.max if "max" in name else np.min)(x[2]))


# The backend.


def test_unconnected_arguments_have_gradient_zero():
    """What does not depend on an argument has derivative 0, in both modes, also nested."""
    backend = load("tensorflow")
    x, y = asarray("tensorflow", [1.0, 2.0]), asarray("tensorflow", [[3.0]])

    def constant(_):
        return x

    gradients = backend.grad(lambda x, _: x * x)(x, y)
    forward = backend.jvp(constant)((y,), (y,))
    nested = backend.jvp(backend_slope(backend, constant))((y,), (y,))

    np.testing.assert_array_equal(gradients[0], [2.0, 4.0])
    np.testing.assert_array_equal(gradients[1], [[0.0]])
    np.testing.assert_array_equal(forward, [0.0, 0.0])
    np.testing.assert_array_equal(nested, [0.0, 0.0])


def backend_slope(backend, f):
    """Return the derivative of a function along ones."""
    import tensorflow as tf

    return lambda *args: backend.jvp(f)(args, [tf.ones_like(x) for x in args])


def test_integers_have_no_slope_and_are_not_warned_of(tensorflow_log):
    """An integer argument has gradient 0 and its tangent no effect; TensorFlow says nothing."""
    import tensorflow as tf

    backend = load("tensorflow")
    x, n = tf.constant([1.0, 2.0]), tf.constant([3, 4])

    def f(x, n):
        return x * x * tf.cast(n, x.dtype)

    gradients = backend.grad(f)(x, n)
    slopes = backend_slope(backend, f)
    second = backend_slope(backend, slopes)(x, n)

    np.testing.assert_array_equal(gradients[0], [6.0, 16.0])
    np.testing.assert_array_equal(gradients[1], [0, 0])
    np.testing.assert_array_equal(slopes(x, n), [6.0, 16.0])
    np.testing.assert_array_equal(second, [6.0, 8.0])
    assert tensorflow_log == []


@pytest.mark.parametrize("mode", MODES)
def test_gathered_gradients_are_dense(mode):
    """The gradient of tf.gather is an array, twice differentiable, though TensorFlow's is not."""
    import tensorflow as tf

    at = [2, 0, 0]
    row = Slope(
        f=lambda x: weighted(tf.transpose(tf.gather(tf.transpose(x * x), at))),
        points=FACTORS[:2],
        gradient=lambda x: 2 * x * [1, 0, 1],
        hessian=lambda _: np.diag([2.0, 0.0, 2.0]),
    )
    x = tf.constant([1.0, 2.0])

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.gather(x, [0])
    got, exact = derivatives(row, row.f, mode)

    assert isinstance(tape.gradient(y, x), tf.IndexedSlices)
    for order, found in got.items():
        assert_close(found, exact[order], 1e-13, order)


def test_a_gathered_argument_has_a_dense_gradient():
    """IndexedSlices become an array also where they reach the argument itself, in a graph."""
    import tensorflow as tf

    backend = load("tensorflow")
    x = tf.constant([1.0, 2.0, 3.0])

    def gradient(x):
        return backend.grad(lambda x: tf.gather(x, [2, 0, 0]) * WEIGHTS)(x)[0]

    for mode in MODES:
        np.testing.assert_array_equal(in_mode(mode, gradient, [x]), [1.0, 0.0, 1.0])


def test_variables_are_arguments_like_any_other():
    """Functions take variables, and the backend differentiates with respect to them."""
    import tensorflow as tf

    backend = load("tensorflow")
    x = tf.Variable([1.0, 2.0])

    np.testing.assert_array_equal(backend.xp.max(x), 2.0)
    np.testing.assert_array_equal(backend.grad(lambda x: x * x)(x)[0], [2.0, 4.0])
    np.testing.assert_array_equal(backend_slope(backend, lambda x: x * x)(x), [2.0, 4.0])


def test_what_a_function_closes_over_is_constant():
    """An array that is argument and closed over is differentiated as argument alone."""
    import tensorflow as tf

    backend = load("tensorflow")
    x = tf.constant([3.0])

    np.testing.assert_array_equal(backend.grad(lambda y: x * y)(x)[0], [3.0])
    np.testing.assert_array_equal(backend_slope(backend, lambda y: x * y)(x), [3.0])


def test_a_detector_that_was_on_stays_on():
    """The NaN detector raises inside, and leaves the user's own setting as it was."""
    import tensorflow as tf

    detector = load("tensorflow").nan_detector
    bad = tf.constant([-1.0])

    with detector():
        with detector():
            pass
        with pytest.raises(tf.errors.InvalidArgumentError, match="NaN"):
            tf.math.log(bad)

    assert np.isnan(tf.math.log(bad)).all()


def make_refused():
    """Return what safe operations refuse, by the words of the error."""
    import keras
    import tensorflow as tf

    return {
        "got RaggedTensor; pass x.to_tensor()": tf.ragged.constant([[1.0], [2.0, 3.0]]),
        "got SparseTensor; pass tf.sparse.to_dense(x)": tf.sparse.from_dense([[1.0, 0.0]]),
        "got IndexedSlices; pass tf.convert_to_tensor(x)": tf.IndexedSlices([1.0], [0]),
        "got string; convert the array first": tf.constant(["1.0"]),
        "got KerasTensor; wrap the call in keras.layers.Lambda": keras.Input((3,)),
    }


@pytest.mark.parametrize(
    "kind", ["RaggedTensor", "SparseTensor", "IndexedSlices", "string", "KerasTensor"]
)
def test_what_is_no_dense_number_is_refused(kind):
    """The TypeError names the kind and the way out."""
    ((words, x),) = (pair for pair in make_refused().items() if f"got {kind}" in pair[0])

    with pytest.raises(TypeError, match=re.escape(words)):
        safeops.safe_log(x)


def test_a_keras_model_takes_the_way_out():
    """Inside keras.layers.Lambda a safe operation works in a functional model."""
    import keras

    symbol = keras.Input((2,))
    layer = keras.layers.Lambda(lambda x: safeops.safe_log(x, fill_value=-1.0), output_shape=(2,))
    model = keras.Model(symbol, layer(symbol))

    value = model(np.array([[1.0, 0.0]], dtype="float32"))

    np.testing.assert_array_equal(value, [[0.0, -1.0]])


STATE = """
import tensorflow as tf

def state():
    answers = [tf.executing_eagerly(), tf.config.functions_run_eagerly()]
    answers += [tf.config.optimizer.get_jit(), tf.config.optimizer.get_experimental_options()]
    answers += [tf.config.get_soft_device_placement(), tf.keras.backend.floatx()]
    answers += [tf.config.experimental.tensor_float_32_execution_enabled()]
    answers += [set(dir(tf.Tensor)), set(dir(type(tf.constant(1.0)))), tf.constant([1.0]).shape]
    answers += [tf.debugging.get_log_device_placement(), tf.keras.config.backend()]
    try:
        answers.append(tf.constant(1) + tf.constant(1.0))
    except tf.errors.InvalidArgumentError:
        answers.append("mixed dtypes raise")
    return answers

before = state()
PLANT
from safeops._backends import tensorflow
assert state() == before, [pair for pair in zip(before, state()) if pair[0] != pair[1]]
"""


def run_state(plant):
    """Return the exit status of a process that compares flags before and after the import."""
    done = subprocess.run(
        [sys.executable, "-c", STATE.replace("PLANT", plant)],
        cwd=Path(safeops.__file__).parents[1],
        capture_output=True,
        check=False,
    )
    return done.returncode


def test_import_changes_no_flag():
    """TensorFlow behaves after the import of the backend as it did before."""
    assert run_state("") == 0


def test_a_changed_flag_is_seen():
    """NumPy behaviour switched on makes the comparison fail."""
    assert run_state("tf.experimental.numpy.experimental_enable_numpy_behavior()") == 1


@pytest.mark.parametrize("options", [{}, {"ord": 1}, {"ord": 3}, {"ord": np.inf}, {"b": [1, 0, 2]}])
@pytest.mark.parametrize("values", [[0, 1, np.nan], [0, np.inf, np.nan], [np.nan, -np.inf, 1]])
def test_a_nan_reaches_the_same_slopes_in_xla(options, values):
    """XLA passes over NaN in a maximum, and loses none by that."""
    import tensorflow as tf

    if "b" in options:
        options = {"b": tf.constant(options["b"], tf.float32)}
    f = safeops.safe_logsumexp if "b" in options else safeops.safe_norm

    def slopes(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x, **options)
        return y, tape.gradient(y, x)

    x = tf.constant(values, tf.float32)
    got = tf.function(slopes, jit_compile=True, autograph=False)(x)

    for a, b in zip(got, slopes(x), strict=True):
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
