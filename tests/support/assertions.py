"""Assertions about arrays and docstrings; each raises by itself."""

import doctest
import inspect

import numpy as np


def assert_close(got, wanted, rtol, message="", atol=0.0):
    """
    Each value equals the wanted one to `rtol` of it and to `atol`, which may be an array.

    Infinite and NaN are equal to themselves only; with no `atol` a 0 must be 0.
    """
    got, wanted = np.broadcast_arrays(np.asarray(got, float), np.asarray(wanted, float))
    finite = np.isfinite(wanted) & np.isfinite(got)
    with np.errstate(invalid="ignore"):
        near = np.abs(got - wanted) <= atol + rtol * np.abs(wanted)
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted)) | (finite & near)
    if not same.all():
        msg = f"{message}: at {np.argwhere(~same).tolist()} got {got[~same]}, not {wanted[~same]}"
        raise AssertionError(msg)


def assert_examples_run(thing, names, name=None):
    """The docstring has examples, and with these names they print what they say."""
    doc = inspect.getdoc(thing)
    example = doctest.DocTestParser().get_doctest(doc, {**names}, name or thing.__name__, None, 0)
    result = doctest.DocTestRunner().run(example)
    if result.failed or not result.attempted:
        msg = f"{result.failed} of {result.attempted} examples print something else"
        raise AssertionError(msg)


def differs(got, wanted):
    """Whether a value is off by more than a thousandth, or not finite where it should be."""
    return not np.allclose(got, wanted, rtol=1e-3, atol=1e-3, equal_nan=True)
