"""Masked gradients on two logical CPUs of TensorFlow: a script, as devices are made at start."""

import numpy as np
import tensorflow as tf

import launched
import safeops as so
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


if __name__ == "__main__":
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    for function in CHECKS:
        launched.answer(function.__name__, function)
