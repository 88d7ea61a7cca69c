"""What two ranks of PyTorch do together: gloo, on this machine."""

import pytest

import launched
import operations

pytestmark = pytest.mark.only("torch")

SCRIPT = "ranks_torch.py"
DTENSORS = "dtensors_torch.py"
OPERATIONS = "operations_torch.py"


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Run all checks, on both ranks."""
    meeting = tmp_path_factory.mktemp("ranks") / "store"
    return launched.together(SCRIPT, [(rank, meeting) for rank in (0, 1)])


@pytest.mark.parametrize("check", launched.checks_of(SCRIPT))
def test_on_two_ranks(check, answers):
    """Each rank finds right what the check of that name says."""
    assert [said[check] for said in answers] == ["right", "right"]


def test_operations_on_dtensors(tmp_path):
    """Each operation has the value and the slope of one process, and DTensor its faults."""
    both = launched.together(DTENSORS, [(rank, tmp_path / "store") for rank in (0, 1)])

    assert len(both[0]) == 48
    for answers in both:
        assert {name: said for name, said in answers.items() if said != "right"} == {}


def test_operations_in_parts(tmp_path):
    """Each operation is as on one device, moves what the table says, and stays where it says."""
    both = launched.together(OPERATIONS, [(rank, tmp_path / "store") for rank in (0, 1)])

    assert both[0].keys() == operations.ROWS.keys()
    for answers in both:
        assert {name: said for name, said in answers.items() if said != "right"} == {}
