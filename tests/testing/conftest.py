"""What the tests of the check of gradients share."""

import pytest

from frameworks import asarray
from safeops._backends import load


@pytest.fixture
def xp(autodiff_framework):
    """Return the namespace of the framework under test."""
    return load(autodiff_framework).xp


@pytest.fixture
def x(autodiff_framework):
    """Return three points, with one where functions break in the middle."""
    return asarray(autodiff_framework, [2.0, 0.0, -1.0])
