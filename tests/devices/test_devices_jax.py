"""What eight devices of JAX do together."""

import pytest

import launched

pytestmark = pytest.mark.only("jax")

SCRIPT = "devices_jax.py"


@pytest.fixture(scope="module")
def answers():
    """Run all checks."""
    return launched.run(SCRIPT)


@pytest.mark.parametrize("check", launched.checks_of(SCRIPT))
def test_on_eight_devices(check, answers):
    """What the check of that name says is right."""
    assert answers[check] == "right"
