"""What the tests of masked autodiff on PyTorch share."""

import pytest


@pytest.fixture
def masked():
    """Return what is tested."""
    from safeops.autodiff import torch as masked

    return masked
