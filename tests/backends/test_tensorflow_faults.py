"""The faults of TensorFlow that its namespace repairs: they are still there, and repaired."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from frameworks import asarray
from namespace import EVERY_MODE, MODES, Array, in_mode, inf, nan, slope, wide
from safeops._backends import load

pytestmark = pytest.mark.only("tensorflow")

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
