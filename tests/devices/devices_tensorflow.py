"""Masked gradients on two logical CPUs of TensorFlow: a script, as devices are made at start."""

import re
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import launched
import safeops as so
from operations import ALONG, BATCH, ROWS
from safeops import linalg, segments
from safeops.autodiff import tensorflow as masked

CHECKS = []
X = np.asarray([[0.0, 2.0], [3.0, 4.0]])


def check(function):
    """Add a check."""
    CHECKS.append(function)
    return function


def two_devices():
    """Return a strategy of the two CPUs."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def rows(strategy):
    """Return a row of numbers for each device."""
    place = lambda context: tf.constant(X[context.replica_id_in_sync_group])  # noqa: E731
    return strategy.experimental_distribute_values_from_function(place)


@check
def masked_gradients():
    """Each device has the gradient of its row, 0 where nothing was used, lazy or not."""
    strategy = two_devices()
    for lazy in (False, True):

        def slope(x, lazy=lazy):
            with masked.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(tf.where(x > 0, tf.math.log(x), 0.0))
            return tape.gradient(y, x, lazy=lazy)

        step = tf.function(lambda x, slope=slope: strategy.run(slope, args=(x,)))
        found = strategy.experimental_local_results(step(rows(strategy)))
        np.testing.assert_array_equal(np.stack(found), [[0.0, 0.5], [1 / 3, 0.25]])


@check
def variables():
    """The gradient of a mirrored variable is reduced as the ordinary one."""
    strategy = two_devices()
    with strategy.scope():
        w = tf.Variable(2.0, dtype=tf.float64)

    def slope(x):
        with masked.GradientTape() as tape:
            y = tf.reduce_sum(tf.where(x > 0, tf.math.log(w * x), 0.0))
        gradient = tape.gradient(y, w)
        return tf.distribute.get_replica_context().all_reduce("SUM", gradient)

    step = tf.function(lambda x: strategy.run(slope, args=(x,)))
    for found in strategy.experimental_local_results(step(rows(strategy))):
        np.testing.assert_array_equal(found, 1.5)


@check
def operations():
    """Values and slopes of operations stay where they are; a mean takes the count of all."""
    strategy = two_devices()

    def mean(x):
        context = tf.distribute.get_replica_context()
        number = context.all_reduce("SUM", tf.reduce_sum(tf.cast(x > 0, tf.float64)))
        return context.all_reduce("SUM", so.safe_mean(x, where=x > 0, count=number))

    step = tf.function(lambda x: strategy.run(mean, args=(x,)))
    for found in strategy.experimental_local_results(step(rows(strategy))):
        np.testing.assert_allclose(found, 3.0)


def on_mesh(x, axis, mesh):
    """Return a DTensor in parts along an axis; None: whole."""
    places = ["i" if a == axis else dtensor.UNSHARDED for a in range(np.ndim(x))]
    whole = dtensor.copy_to_mesh(tf.constant(x), dtensor.Layout.replicated(mesh, np.ndim(x)))
    return dtensor.relayout(whole, dtensor.Layout(places, mesh))


def gathered(x, mesh):
    """Return what a DTensor holds, by the way that an error names."""
    return dtensor.unpack(dtensor.relayout(x, dtensor.Layout.replicated(mesh, x.shape.rank)))[0]


def value_and_slopes(f, *args):
    """Return a value, and the gradients of the sum of its squares."""
    floats = [x for x in args if x.dtype.is_floating]
    with tf.GradientTape() as tape:
        tape.watch(floats)
        value = f(*args)
        total = tf.reduce_sum(value * value)
    return [value, *tape.gradient(total, floats)]


IN_PARTS = (
    "safe_log", "safe_clip_by_norm", "safe_norm", "safe_softmax", "safe_std, where", "nanmax",
    "nanmean, weights", "safe_cross_entropy", "safe_attention, where",
)  # fmt: skip


@check
def dtensors():
    """Values and gradients of DTensors are those of one device, eagerly and in a function."""
    mesh = dtensor.create_mesh([("i", 2)], device_type="CPU")
    for name in IN_PARTS:
        op, args = ROWS[name], ROWS[name].args(4)
        axes = op.parts.get(ALONG, op.parts[BATCH])
        f = partial(value_and_slopes, op.ours)
        wanted = f(*map(tf.constant, args))
        for run in (f, tf.function(f)):
            with dtensor.default_mesh(mesh):
                found = run(*(on_mesh(x, a, mesh) for x, a in zip(args, axes, strict=True)))
            for x, y in zip(found, wanted, strict=True):
                np.testing.assert_allclose(gathered(x, mesh), y, rtol=1e-10, atol=1e-12)


WITH_MORE = ("powm_psd", "spectral_function")  # arguments


@check
def dtensors_that_are_refused():
    """Where DTensor has no layouts, and may end the process, an error says what to pass."""
    mesh = dtensor.create_mesh([("i", 2)], device_type="CPU")
    x, k = on_mesh(X, 0, mesh), on_mesh(np.asarray([0, 1]), 0, mesh)
    calls = [partial(f, x) for f in (so.safe_prod, so.nanprod, so.nancumprod, so.safe_pdist)]
    calls += [partial(so.safe_interp, x[0], x[0], x[1])]
    calls += [partial(getattr(segments, name), x, k, 2) for name in segments.__all__]
    calls += [partial(getattr(linalg, name), x) for name in linalg.__all__ if name not in WITH_MORE]
    for call in calls:
        with pytest.raises(TypeError, match=re.escape("pass dtensor.unpack(dtensor.relayout(x,")):
            call()
    assert so.safe_prod(gathered(x, mesh), axis=1).numpy().tolist() == [0.0, 12.0]


if __name__ == "__main__":
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    for function in CHECKS:
        launched.answer(function.__name__, function)
