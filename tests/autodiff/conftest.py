"""What the tests of masked autodiff share."""

import pytest


@pytest.fixture
def masked():
    """Return what is tested."""
    from safeops.autodiff import torch as masked

    return masked


@pytest.fixture
def quiet():
    """Silence the advice against tracing many functions, which these tests must."""
    import tensorflow as tf

    level = tf.get_logger().level
    tf.get_logger().setLevel("ERROR")
    yield
    tf.get_logger().setLevel(level)


@pytest.fixture(name="x")
def make_x():
    """Return a leaf with a bad entry and a good one."""
    from reported_torch import leaf

    return leaf([0.0, 4.0])
