"""What eight devices of JAX do together."""

import pytest

import launched
import operations

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


def test_operations_in_parts():
    """Each operation is as on one device, moves what the table says, and stays where it says."""
    answers = launched.run("operations_jax.py")

    moving = {name for name, op in operations.ROWS.items() if op.parts.keys() - {operations.BATCH}}
    assert answers.keys() >= moving | {"types", "from safe_reciprocal"}
    assert any(name.startswith("rows, from") for name in answers)
    assert {name: said for name, said in answers.items() if said != "right"} == {}
