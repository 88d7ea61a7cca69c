"""TensorFlow under standard names: each function means what it means in NumPy, in every mode."""

import re
from pathlib import Path

import numpy as np
import pytest

import safeops
from frameworks import asarray
from namespace import ALL, EVERY_MODE, OF_DTYPES, RTOL, TABLE, assert_same, expected, nan, run
from safeops._backends import load

pytestmark = pytest.mark.only("tensorflow")


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


def test_the_operations_use_no_name_that_is_missing():
    """What an operation asks of its namespace is there, whichever of its lines runs."""
    folder = Path(safeops.__file__).parent
    sources = [f.read_text("utf-8") for f in (*folder.glob("*.py"), *folder.glob("_ops/*.py"))]
    asked = {name for text in sources for name in re.findall(r"\bxp\.(\w+)\(", text)}

    assert {"where", "logical_not"} <= asked  # the pattern finds what it looks for
    assert {name for name in asked if not hasattr(load("tensorflow").xp, name)} == set()


# No functions of the standard, or such that their operation guards: `hypot` at the origin. What
# they are for is their slopes, and `test_exponents` holds these through the operations.
BY_OPERATION = {
    "log_difference",
    "hypot",
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
