"""What the tests of masked autodiff share; a framework's folder is not read without it."""

import pytest

from frameworks import WITH_AUTODIFF


def pytest_ignore_collect(collection_path, config):
    """Leave out the folder of a framework that is not selected."""
    return True if collection_path.name in {*WITH_AUTODIFF} - {*config.frameworks} else None


@pytest.fixture
def masked(monkeypatch):
    """Return what is tested: the masked pass, also where the ordinary gradient would do."""
    from safeops.autodiff import torch as masked
    from safeops.autodiff.torch import _first

    monkeypatch.setattr(_first, "is_unseen", lambda *_: False)
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
