"""The case tables, run through value and derivatives in every mode of every framework."""

from dataclasses import replace
from functools import cache
from math import nan

import numpy as np
import pytest

import safeops as so
import slices
import specs
from assertions import assert_close, differs
from derivatives import SECOND, derivatives_in, directions, due
from elementwise import (
    PLAIN,
    first_order,
    products,
    pytest_generate_tests,
    repeated,
    run_elementwise,
    under_detector,
)
from frameworks import asarray, in_one_program, stacked, to_numpy
from safeops._backends import load
from safeops._core.dtypes import dtype_name
from safeops._dispatch import backend_of

__all__ = ["pytest_generate_tests"]  # runs the tests below in each `way`

# float64 arithmetic of a few operations; where terms cancel, relative to their size of about 1.
RTOL = 1e-13
ATOL = 1e-13
SLICES = 8

ELEMENTWISE = pytest.mark.parametrize("row", specs.ROWS, ids=lambda row: row.name)
SLICE_ROWS = (*specs.SLICE_ROWS, *specs.REDUCTION_ROWS)
ALONG_SLICES = pytest.mark.parametrize("row", SLICE_ROWS, ids=lambda row: row.name)


@cache
def exact_slices(name):
    """Return values, gradients (slice, entry) and Hessians (slice, entry, entry) of a row."""
    row = next(row for row in SLICE_ROWS if row.name == name)
    pieces = repeated(row.slices, SLICES)
    found = {piece: slices.exact(row, piece) for piece in row.slices}
    return tuple(np.array(x) for x in zip(*(found[piece] for piece in pieces), strict=True))


def run_slices(row, op, framework, mode):
    """Return value and derivatives of an operation on slices, and the exact ones."""
    pieces = repeated(row.slices, SLICES)
    args = [np.array(x, dtype=float) for x in zip(*(piece.args for piece in pieces), strict=True)]
    v, u = directions([a.shape for a in args])
    keep = asarray(framework, [piece.where for piece in pieces])
    none = asarray(framework, np.zeros_like(args[0]))

    def f(*args):
        # The mask goes along as numbers, so that vmap cuts it up like the arguments.
        return op(*args[:-1], args[-1] > 0)

    def reduce(out):
        # TensorFlow's forward mode has 0 as the tangent of a weight, and multiplies it with -inf.
        xp = load(framework).xp
        finite = xp.where(xp.isinf(out), 0.0, out) if row.absent == -np.inf else out
        parts = (w * finite[..., i] for i, w in enumerate(slices.WEIGHTS))
        return sum(parts) if slices.is_slice(row) else out

    groups = zip((args, v, u), (keep, none, none), strict=True)
    arrays = [[*(asarray(framework, a) for a in group), last] for group, last in groups]
    got = derivatives_in(mode, framework, f, reduce, *arrays, row.unsupported)
    got = {order: stacked(x) for order, x in got.items()}
    by_argument = ("reverse", "rev-rev", "fwd-rev", "rev-fwd")
    got |= {order: got[order][:-1] for order in by_argument if order in got}
    return got, wanted_slices(row, np.array(v), np.array(u))


def wanted_slices(row, v, u):
    """Return the exact value and derivatives of a row, in the shapes that `run_slices` gets."""
    value, gradient, hessian = exact_slices(row.name)
    entries = v.transpose(0, 2, 1).reshape(-1, SLICES), u.transpose(0, 2, 1).reshape(-1, SLICES)
    exact = products(gradient.T, hessian.transpose(1, 2, 0), *entries)
    folded = {
        order: x.reshape(len(v), 3, SLICES).transpose(0, 2, 1) if x.ndim > 1 else x
        for order, x in exact.items()
    }
    return {"value": value, **folded}


@ELEMENTWISE
def test_values_and_derivatives_are_exact(row, way):
    """Value, gradient and second derivatives are those of the table, in all compositions."""
    got, exact = run_elementwise(due(row, way), row.op, *way)

    for order, x in got.items():
        tested = ~np.isnan(exact[order]) | (order == "value")
        assert_close(x[tested], exact[order][tested], RTOL, order)


@ALONG_SLICES
def test_slices_are_exact(row, way):
    """Value, gradient and second derivatives of slices are those of the formula."""
    got, exact = run_slices(due(row, way), row.op, *way)

    for order, x in got.items():
        # What is absent or chosen is exactly 0.
        atol = np.where(exact[order] == 0, 0.0, ATOL) if order == "reverse" else ATOL
        assert_close(x, exact[order], RTOL, order, atol)


@pytest.mark.parametrize("op", [so.safe_max, so.safe_min, so.safe_std, so.safe_norm])
def test_a_nan_that_is_kept_has_a_gradient_of_nan(op, way):
    """No mode makes 0 of the slope of a slice with a NaN; an entry left out has 0 all the same."""
    framework, mode = way
    x = np.array([[1.0, nan, 3.0], [1.0, 2.0, 4.0]])
    keep = np.array([[1.0, 1.0, 0.0]] * 2)
    args, v = ([asarray(framework, a) for a in group] for group in ((x, keep), (x * 0 + 1,) * 2))
    none = {way: (SECOND, "the first order is what this is about")}

    def f(x, keep):
        return op(x, axis=-1, where=keep > 0)

    got = derivatives_in(mode, framework, f, lambda out: out, args, v, v, none)

    slope = to_numpy(got["reverse"][0])
    assert np.isnan(slope[0, :2]).all()
    assert np.isfinite(slope[1]).all()
    assert (slope[:, 2] == 0).all()


@ELEMENTWISE
def test_naive_versions_fail(row, autodiff_framework):
    """What people write has another value or gradient at one of the points."""
    naive = first_order(row.naive, autodiff_framework)
    row = replace(row, unsupported={(autodiff_framework, PLAIN[autodiff_framework]): (SECOND, "")})

    got, exact = run_elementwise(row, naive, autodiff_framework, PLAIN[autodiff_framework])

    assert_naive(row, autodiff_framework, got, exact)


@ALONG_SLICES
def test_naive_slices_fail(row, autodiff_framework):
    """What people write has another value or gradient in one of the slices."""
    naive = first_order(row.naive, autodiff_framework)
    row = replace(row, unsupported={(autodiff_framework, PLAIN[autodiff_framework]): (SECOND, "")})

    got, exact = run_slices(row, naive, autodiff_framework, PLAIN[autodiff_framework])

    assert_naive(row, autodiff_framework, got, exact)


def assert_naive(row, framework, got, exact):
    """The gradient is wrong, or the row says why it is right on this framework."""
    wrong = differs(got["reverse"], exact["reverse"])
    if wrong == (framework in row.naive_is_right):
        found = "wrong: drop it from" if wrong else "right: write it another way, or say why in"
        msg = f"the gradient of naive {row.name} is {found} naive_is_right[{framework!r}]: {got}"
        raise AssertionError(msg)


def test_a_naive_version_that_is_right_is_found():
    """A gradient that is right fails the test of the naive version, unless the row says why."""
    row, right = specs.ROWS[0], {"reverse": 1.0}
    with pytest.raises(AssertionError, match="is right"):
        assert_naive(row, "torch", right, right)
    assert_naive(replace(row, naive_is_right={"torch": ""}), "torch", right, right)


@ELEMENTWISE
def test_values_are_exact_everywhere(row, framework):
    """Values are those of the table, also where there are no derivatives."""
    args = [asarray(framework, x) for x in zip(*(p.args for p in row.points), strict=True)]

    value = to_numpy(row.op(*args))

    assert_close(value, [p.value for p in row.points], RTOL)


@ALONG_SLICES
def test_values_of_slices_are_exact_everywhere(row, framework):
    """Values of slices are those of the formula, also where there are no derivatives."""
    args = [asarray(framework, x) for x in zip(*(s.args for s in row.slices), strict=True)]
    where = asarray(framework, [s.where for s in row.slices], "bool")

    value = to_numpy(row.op(*args, where))

    assert_close(value, exact_slices(row.name)[0][: len(row.slices)], RTOL, atol=ATOL)


def is_finite(*numbers):
    """Whether all numbers are finite."""
    return bool(np.isfinite(numbers).all())


@ELEMENTWISE
def test_detectors_are_silent(row, framework):
    """No NaN or inf is made on the way, so that the framework's detector raises nothing."""
    points = [p for p in row.points if is_finite(p.value, *p.args)]
    args = [asarray(framework, x) for x in zip(*(p.args for p in points), strict=True)]

    value, gradient = under_detector(framework, row.op, args)

    assert np.isfinite(value).all()
    assert np.isfinite(gradient).all()


@ALONG_SLICES
def test_detectors_are_silent_on_slices(row, framework):
    """No NaN or inf is made on the way of slices either, with numbers in the entries left out."""
    # TensorFlow's detector reports -inf as well, which absent entries of a logarithm are.
    pieces = [s for s in row.slices if s.flat is None or is_finite(s.flat)]
    if framework == "tensorflow" and row.absent == -np.inf:
        pieces = [s for s in pieces if all(s.where) and is_finite(*s.args)]
    args = np.array([s.args for s in pieces], dtype=float).swapaxes(0, 1)
    args[~np.isfinite(args)] = 1e30
    where = np.array([s.where for s in pieces]) & (args[0] < 1e30)
    keep = asarray(framework, where, "bool")

    value, gradient = under_detector(
        framework, lambda *a: row.op(*a, keep), [asarray(framework, a) for a in args]
    )

    assert np.isfinite(gradient).all()
    assert not np.isnan(value).any()


NARROW = {"float32": 2e-6, "float16": 1e-2, "bfloat16": 6e-2}


@pytest.mark.parametrize("dtype", NARROW)
@ELEMENTWISE
def test_dtypes_are_kept(row, dtype, autodiff_framework):
    """In each dtype the result has that dtype, and value and gradient are those of the table."""
    points = [p for p in row.points if fits(p) and not row.only_float64]
    if not points:
        pytest.skip(f"{row.name} has another value in {dtype} at each point, by definition")
    columns = zip(*(p.args for p in points), strict=True)
    args = [asarray(autodiff_framework, x, dtype) for x in columns]
    backend = backend_of(*args)

    value = row.op(*args)
    slope = backend.grad(lambda *a: backend.xp.sum(row.op(*a)))
    gradient = in_one_program(autodiff_framework, slope)(*args)

    assert dtype_name(value.dtype) == dtype
    assert {dtype_name(g.dtype) for g in gradient} == {dtype}
    rtol = NARROW[dtype]
    assert_close(to_numpy(value), [p.value for p in points], rtol, atol=rtol)
    assert_close(stacked(gradient), np.array([p.gradient for p in points]).T, rtol, atol=rtol)


def fits(point):
    """Whether arguments and results of a point are within the range of every dtype."""
    numbers = np.array([*point.args, point.value, *point.gradient], dtype=float)
    numbers = np.abs(numbers[np.isfinite(numbers) & (numbers != 0)])
    return (numbers < 1e4).all() and (numbers > 1e-4).all()
