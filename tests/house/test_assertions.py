"""The assertions of the tests: each can fail."""

import numpy as np
import pytest

from assertions import assert_close, assert_examples_run, differs


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (1.001, 1.0),
        ([0.0, 1.0], [0.0, np.nan]),
        (np.nan, 0.0),
        (np.inf, -np.inf),
        (np.inf, 1e300),
        (1e-300, 0.0),
    ],
)
def test_another_number_is_not_close(got, wanted):
    """A number that is off, NaN, infinite or next to 0 is told from the wanted one."""
    with pytest.raises(AssertionError, match="got"):
        assert_close(got, wanted, 1e-6)


def test_what_is_close_passes():
    """Numbers within the tolerance pass, and infinities and NaN that are wanted."""
    assert_close([1.0, np.nan, -np.inf, 0.0], [1.0 + 1e-9, np.nan, -np.inf, 0.0], 1e-6)
    assert_close([1e-9], [0.0], 1e-6, atol=1e-8)


@pytest.mark.parametrize(("got", "is_off"), [(np.nan, True), (1.1, True), (1.0001, False)])
def test_what_differs(got, is_off):
    """NaN and what is off by more than a thousandth differ."""
    assert differs(got, 1.0) is is_off


def documented(examples):
    """Return a function with examples in its docstring."""

    def function():
        pass

    function.__doc__ = examples
    return function


@pytest.mark.parametrize("examples", ["None.", ">>> 1 + 1\n3", ">>> unknown"])
def test_examples_that_do_not_run(examples):
    """No example, one that prints something else, and one that raises are told."""
    with pytest.raises(AssertionError, match="examples"):
        assert_examples_run(documented(examples), {})


def test_examples_that_run():
    """An example that prints what it says passes."""
    assert_examples_run(documented(">>> x + 1\n2"), {"x": 1})
