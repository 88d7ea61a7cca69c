"""Assertions about arrays; each raises by itself."""

import numpy as np


def assert_close(got, wanted, rtol, message=""):
    """
    Values are equal to `rtol`, exactly where they are 0, infinite or NaN.

    The tolerance is relative to the entry alone: a 0 that is chosen must be 0.
    """
    got = np.asarray(got, dtype=np.float64)
    np.testing.assert_allclose(
        got, np.broadcast_to(wanted, got.shape), rtol=rtol, atol=0, err_msg=message
    )


def assert_differs(got, wanted, message=""):
    """At least one value is off by more than a thousandth."""
    same = np.allclose(got, wanted, rtol=1e-3, atol=1e-3, equal_nan=True)
    if same:
        raise AssertionError(message or f"{got} equals {wanted}")
