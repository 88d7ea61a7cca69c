"""What two devices of TensorFlow do together."""

import pytest

import launched

pytestmark = pytest.mark.only("tensorflow")

SCRIPT = "devices_tensorflow.py"


@pytest.fixture(scope="module")
def answers():
    """Run all checks."""
    return launched.run(SCRIPT)


@pytest.mark.parametrize("check", launched.checks_of(SCRIPT))
def test_on_two_devices(check, answers):
    """What the check of that name says is right."""
    assert answers[check] == "right"
