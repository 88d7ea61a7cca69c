"""What the check of gradients says, and what it refuses."""

import numpy as np
import pytest

import safeops
from assertions import assert_examples_run
from frameworks import asarray
from safeops.testing import check_gradients

VALUES = [2.0, 0.0, -1.0]


def test_findings_are_raised(xp, x):
    """An AssertionError has the report as its message."""
    with pytest.raises(AssertionError) as error:
        check_gradients(lambda x: xp.where(x > 0, xp.log(x), 0), x, order=1, nan_detector=False)

    assert str(error.value).splitlines() == [
        "check_gradients: 2 findings",
        "compared: reverse, forward",
        "finite differences of order 1: 2 smooth, 0 kink, 1 singular",
        "NaN detector: not run",
        "",
        "at args[0][1] = 0",
        "  reverse                             nan  not finite",
        "  forward                               0  differs from reverse",
        "  finite differences, left              0",
        "  finite differences, right  -2.63216e+07",
    ]


def test_a_report_names_both_places_of_a_second_derivative(xp, x):
    """The table of a Hessian entry has all four compositions."""

    def f(x):
        return xp.where(x > 0, xp.pow(xp.where(x < 0, -x, x), 1.5), 0)

    report = check_gradients(f, x, nan_detector=False, raises=False)
    text = str(report)

    assert "at args[0][1] = 0 and args[0][1] = 0\n  rev-rev" in text
    assert all(f"\n  {name}  " in text for name in ("rev-rev", "fwd-rev", "rev-fwd", "fwd-fwd"))


MOVES = (
    "next above",
    "next below",
    "-0.0",
    "smallest normal",
    "subnormal",
    "minus smallest normal",
)


def test_a_report_without_findings_says_what_was_checked(x):
    """A report that is fine names the ways, and counts what differences took the places for."""
    assert str(check_gradients(safeops.safe_sqrt, x)).splitlines() == [
        "check_gradients: no findings",
        "compared: reverse, forward, rev-rev, fwd-rev, rev-fwd, fwd-fwd",
        "finite differences of order 1: 2 smooth, 0 kink, 1 singular",
        "finite differences of order 2: 4 smooth, 0 kink, 5 singular",
        "NaN detector: silent",
        f"neighbours: {', '.join(MOVES)}",
        "a derivative at a singular place, such as an edge, is chosen; give expected= to judge it",
    ]


def test_a_long_report_is_cut(autodiff_framework, xp):
    """A report writes out twelve places and counts the rest."""
    x = asarray(autodiff_framework, np.zeros(15))

    text = str(check_gradients(xp.sqrt, x, order=1, nan_detector=False, raises=False))

    assert text.count("\nat ") == 12
    assert text.endswith("... and at 3 more places")


@pytest.mark.only("torch")
def test_the_example_runs():
    """The example in the docstring prints what it says."""
    assert_examples_run(check_gradients, {"check_gradients": check_gradients})


# What it refuses.


@pytest.mark.parametrize(
    ("f", "make", "options", "error", "words"),
    [
        (1.0, lambda x: x, {}, TypeError, "expected a function, got float"),
        (abs, lambda _: (), {}, ValueError, "expected at least one point, got none"),
        (abs, lambda x: x[:0], {}, ValueError, "expected at least one point, got none"),
        (abs, lambda x: [x], {}, TypeError, "got list"),
        (abs, lambda _: 1.0, {}, TypeError, "expected at least one array"),
        (abs, lambda x: x, {"order": 4}, ValueError, "expected order 1, 2 or 3, got 4"),
        (abs, lambda x: x, {"expected": (1, 1)}, ValueError, "expected 1 gradients"),
        (abs, lambda x: x, {"expected": [1, 1]}, ValueError, "expected a gradient"),
        (lambda _: 1.0, lambda x: x, {}, TypeError, "expected f to return an array of"),
        (lambda x: (x, x), lambda x: x, {}, TypeError, "got tuple"),
        (lambda _: None, lambda x: x, {}, TypeError, "got NoneType"),
        (lambda _: np.ones(3), lambda x: x, {}, TypeError, "got ndarray"),
        (lambda x: x[:0], lambda x: x, {}, ValueError, "expected f to return at least one number"),
        (lambda x: x > 0, lambda x: x, {}, TypeError, "got bool"),
    ],
)
def test_what_is_no_function_at_points_is_refused(f, make, options, error, words, x):
    """An argument of the wrong kind or content raises an error that names it."""
    with pytest.raises(error, match=words):
        check_gradients(f, make(x), **options)


@pytest.mark.parametrize("dtype", ["int64", "complex64"])
def test_a_dtype_without_real_derivatives_is_refused(dtype, autodiff_framework):
    """Integers and complex numbers raise a TypeError that names their dtype."""
    with pytest.raises(TypeError, match=f"got {dtype}"):
        check_gradients(abs, asarray(autodiff_framework, [1, 2], dtype))


def test_two_dtypes_are_refused(autodiff_framework, x):
    """Points of two dtypes raise a TypeError that names both."""
    with pytest.raises(TypeError, match=r"expected points of one dtype, got .*float64.*float32"):
        check_gradients(safeops.safe_div, (x, asarray(autodiff_framework, VALUES, "float32")))


@pytest.mark.only("numpy", "array-api-strict")
def test_arrays_without_derivatives_are_refused(framework):
    """NumPy has no automatic differentiation, and the TypeError says where there is one."""
    with pytest.raises(TypeError, match="no automatic differentiation"):
        check_gradients(abs, asarray(framework, VALUES))
