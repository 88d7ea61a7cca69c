"""A cluster of dask with two processes, on this machine."""

import pytest

import launched

pytestmark = pytest.mark.only("array-api-strict")


def test_operations_on_a_cluster():
    """Each operation is computed by two workers as by one process."""
    pytest.importorskip("distributed", reason="only nox -s tests-devices installs distributed")

    answers = launched.run("cluster_dask.py")

    assert answers == {"workers": "right", "all_operations": "right"}
