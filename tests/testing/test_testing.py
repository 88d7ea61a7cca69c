"""The check of gradients: what it finds, what it passes, what it says."""

from collections import Counter

import numpy as np
import pytest

import safeops
import specs
from frameworks import asarray
from safeops.testing import Finding, Place, check_gradients

FIRST = {"reverse", "forward"}
SECOND = {"rev-rev", "fwd-rev", "rev-fwd", "fwd-fwd"}
DIFFERENCES = "finite differences"
VALUES = [2.0, 0.0, -1.0]


def found(f, points, **options):
    """Return the report on a function that may be wrong."""
    return check_gradients(f, points, raises=False, **options)


def checks(report):
    """Return the names of the checks that found something."""
    return {finding.check for finding in report.findings}


def pretending(value, slope_of):
    """Return a function with the value of one and all derivatives of another."""

    def f(x):
        return slope_of(x) + safeops.stop_gradient(value(x) - slope_of(x))

    return f


def wrong_square(framework):
    """Return the square of x with a rule of the framework that says 3 * x."""
    if framework == "torch":
        return square_of_torch(reverse=3, forward=3)
    return {"jax": wrong_in_jax, "tensorflow": wrong_in_tensorflow}[framework]()


def square_of_torch(*, reverse, forward=None):
    """Return the square of x with rules of PyTorch: a factor of x for each mode, or no rule."""
    import torch

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            del output
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, gradient):
            return reverse * ctx.saved_tensors[0] * gradient

    if forward is not None:
        Square.jvp = staticmethod(lambda ctx, tangent: forward * ctx.saved_tensors[0] * tangent)
    return Square.apply


def wrong_in_jax():
    """Return such a square of JAX."""
    import jax

    square = jax.custom_jvp(lambda x: x * x)
    square.defjvps(lambda t, _, x: 3 * x * t)
    return square


def wrong_in_tensorflow():
    """Return such a square of TensorFlow."""
    import tensorflow as tf

    return tf.custom_gradient(lambda x: (x * x, lambda gradient: 3 * x * gradient))


def reverse_only_in_jax():
    """Return a square of JAX without forward mode."""
    import jax

    square = jax.custom_vjp(lambda x: x * x)
    square.defvjp(lambda x: (x * x, x), lambda x, gradient: (2 * x * gradient,))
    return square


# What it finds.


def test_a_nan_gradient_is_found(xp, x):
    """An outer where alone fails in reverse mode, at its point, and forward mode says 0."""
    report = found(lambda x: xp.where(x > 0, xp.log(x), 0), x, order=1, nan_detector=False)

    assert checks(report) == FIRST
    assert {finding.places for finding in report.findings} == {(Place(0, (1,), 0.0),)}
    row = report.derivatives[Place(0, (1,), 0.0),]
    assert np.isnan(row["reverse"])
    assert row["forward"] == 0.0


def test_an_inner_where_alone_is_found(autodiff_framework, xp):
    """An inner where alone has the gradient 0 in reverse mode and fails in forward mode."""
    x = asarray(autodiff_framework, [0.5, 1.0, -0.5])

    def inner_only(x):
        return xp.acos(xp.where(x < 1, x, safeops.stop_gradient(x)))

    report = found(inner_only, x, order=1, nan_detector=False)

    assert [(f.check, f.places[0].entry) for f in report.findings] == [("forward", (1,))]


@pytest.mark.parametrize("slope", [1.0, 0.0])
def test_a_straight_through_trick_is_found(slope, xp, x):
    """A gradient of another function, or none, is found by finite differences, and only so."""
    report = found(pretending(xp.exp, lambda x: slope * x), x, order=1)

    assert checks(report) == {DIFFERENCES}
    first = report.findings[0]
    assert first.why == "reverse is not the slope"
    assert first.got == slope
    assert first.wanted == pytest.approx(np.exp(2), rel=1e-3)


def test_a_wrong_custom_rule_is_found(autodiff_framework, x):
    """A framework's custom rule with the wrong slope is found by finite differences."""
    report = found(wrong_square(autodiff_framework), x, order=1)

    # TensorFlow 2.21 does not ask a tf.custom_gradient in forward mode, which is right therefore.
    right = {"forward"} if autodiff_framework == "tensorflow" else set()
    assert checks(report) == {DIFFERENCES} | right
    assert [f.got for f in report.findings if f.check == DIFFERENCES] == [6.0, -3.0]


@pytest.mark.only("torch")
def test_a_wrong_forward_rule_is_found(x):
    """A rule that is wrong in forward mode alone is found there, and in compositions with it."""
    report = found(square_of_torch(reverse=2, forward=3), x)

    assert checks(report) == {"forward", "rev-fwd", "fwd-fwd"}
    assert [f.got for f in report.findings if f.check == "forward"] == [6.0, -3.0]
    whys = {(f.check == "forward", f.why) for f in report.findings}
    assert whys == {(True, "differs from reverse"), (False, "differs from rev-rev")}


def test_an_infinite_gradient_is_found(autodiff_framework, xp):
    """A gradient that is inf is a finding although all ways agree on it."""
    x = asarray(autodiff_framework, [4.0, 0.0, 1.0])

    report = found(xp.sqrt, x, order=1, nan_detector=False)

    assert checks(report) == {"reverse"}
    assert report.findings[0].why == "not finite"
    assert report.findings[0].got == np.inf


@pytest.mark.parametrize("name", ["sqrt", "log"])
def test_infinite_slopes_that_cancel_are_found(name, autodiff_framework, xp):
    """Slopes inf and -inf of two entries of the value make NaN, and no warning."""
    x, f = asarray(autodiff_framework, [4.0, 0.0, 1.0]), getattr(xp, name)

    report = found(lambda x: xp.concat([f(x), -f(x)]), x, order=1, nan_detector=False)

    assert [f.places[0].entry for f in report.findings] == [(1,)]
    assert np.isnan(report.findings[0].got)


def test_a_huge_gradient_is_found(autodiff_framework, xp):
    """A gradient much steeper than the function anywhere near is a finding."""
    x = asarray(autodiff_framework, [4.0, 0.0, 1.0])

    report = found(lambda x: xp.sqrt(xp.abs(x) + x + 1e-30), x, order=1)

    assert checks(report) == {DIFFERENCES}
    assert report.findings[0].why == "reverse is far steeper than the slopes"


def test_a_gradient_beside_a_kink_is_found(xp, x):
    """At a kink the chosen gradient has to lie between the two slopes."""
    steep = pretending(xp.abs, lambda x: 3 * x)

    report = found(lambda x: xp.where(x == 0, steep(x), xp.abs(x)), x, order=1)

    (finding,) = report.findings
    assert finding == Finding(DIFFERENCES, (Place(0, (1,), 0.0),), 3.0, finding.wanted, finding.why)
    assert finding.why == "reverse is not between the slopes"
    assert finding.wanted == pytest.approx(1, rel=1e-3)


def test_errors_that_cancel_in_the_sum_are_found(x):
    """The gradient of the sum of a softmax is 0; a softmax whose gradient is 0 is found."""

    def constant(x):
        return safeops.stop_gradient(safeops.safe_softmax(x, axis=-1))

    report = found(constant, x, order=1, nan_detector=False)

    assert checks(report) == {DIFFERENCES}
    assert len(report.findings) == 3


def test_a_second_derivative_that_is_not_finite_is_found(xp, x):
    """A NaN that only the second derivative has is found by rev-rev, not before."""
    report = found(
        lambda x: xp.where(x > 0, xp.pow(xp.where(x < 0, -x, x), 1.5), 0), x, nan_detector=False
    )

    assert "rev-rev" in checks(report)
    assert checks(report) <= SECOND
    assert {finding.places for finding in report.findings} == {(Place(0, (1,), 0.0),) * 2}


def test_a_second_derivative_wrong_in_all_ways_is_found(x):
    """Differences of the gradient find a Hessian on which all four compositions agree."""

    def tangent_line(x):
        at = safeops.stop_gradient(x)
        return at * at + 2 * at * (x - at)

    report = found(tangent_line, x)

    assert checks(report) == {DIFFERENCES}
    assert {f.why for f in report.findings} == {"rev-rev is not the slope"}
    assert [(f.places[0], f.got) for f in report.findings] == [
        (Place(0, (i,), VALUES[i]), 0.0) for i in range(3)
    ]


@pytest.mark.only("torch", "jax")
def test_a_missing_rule_is_found(autodiff_framework):
    """A way that raises is a finding with the words of the error; ``forward=False`` leaves it."""
    in_torch = autodiff_framework == "torch"
    square = square_of_torch(reverse=2) if in_torch else reverse_only_in_jax()
    x = asarray(autodiff_framework, VALUES)

    (finding,) = found(square, x, order=1).findings

    assert finding.check == "forward"
    assert finding.places == ()
    assert finding.why.startswith("raised ")
    assert check_gradients(square, x, forward=False).kinds[2] == Counter(smooth=9)


@pytest.mark.only("torch")
def test_a_missing_second_derivative_is_found(x):
    """That rev-rev raises is a finding, and there is nothing to hold the others against."""
    import torch

    def cube(x):
        each = torch.ones(x.shape[0], dtype=torch.int64)
        return torch.segment_reduce(x**3, "sum", lengths=each)

    report = found(cube, x, forward=False)

    (finding,) = report.findings
    assert finding.check == "rev-rev"
    assert finding.why.startswith("raised ")


def test_a_slope_of_a_plateau_is_found(x):
    """A constant has the slope 0, however large it is."""
    report = found(pretending(lambda x: 0 * x + 1e30, lambda x: x), x, order=1)

    assert checks(report) == {DIFFERENCES}
    assert len(report.findings) == 3


def test_a_hidden_nan_is_found(xp, x):
    """A NaN made on the way is found by the detector, though no derivative shows it."""

    def hiding(x):
        return safeops.safe_where(x > 0, x, xp.log, fill_value=0)

    report = found(hiding, x, order=1)

    assert checks(report) == {"NaN detector"}
    assert report.detector == "raised"
    assert "raised" not in str(found(hiding, x, order=1, nan_detector=False))


def test_an_unexpected_gradient_is_found(xp, x):
    """A gradient other than the expected one is a finding with both numbers."""
    report = found(xp.exp, x, order=1, expected=[np.exp(2), 1.5, np.exp(-1) + 1e-6])

    place = Place(0, (1,), 0.0)
    assert report.findings[0] == Finding("expected", (place,), 1.0, 1.5, "reverse of sum(f) is 1")
    assert len(report.findings) == 2
    assert report.derivatives[place,]["expected"] == 1.5


# What it passes.


@pytest.mark.parametrize("name", ["safe_log", "xlogy", "safe_acos", "safe_atan2"])
def test_a_safe_operation_passes(name, autodiff_framework):
    """Operations of this library have no findings at their singular points."""
    row = next(row for row in specs.ROWS if row.name == name)
    args, wanted = zip(*((p.args, p.gradient) for p in row.points[:3]), strict=True)
    args = tuple(asarray(autodiff_framework, x) for x in zip(*args, strict=True))

    report = check_gradients(row.op, args, expected=tuple(zip(*wanted, strict=True)))

    assert report.ok
    assert report.detector == "silent"


@pytest.mark.parametrize("name", ["safe_norm", "safe_softmax"])
def test_a_safe_operation_on_slices_passes(name, autodiff_framework):
    """Nor have those on slices, beside an ordinary one, where all is absent or zero."""
    row = next(row for row in specs.SLICE_ROWS if row.name == name)
    flat = next(piece for piece in row.slices if piece.flat is not None)
    x = asarray(autodiff_framework, [row.slices[0].args[0], flat.args[0]])
    where = asarray(autodiff_framework, [row.slices[0].where, flat.where], "bool")

    report = check_gradients(lambda x: row.op(x, where), x)

    assert len(report.derivatives) == 6 + 36


def test_a_safe_where_passes(x):
    """A double where of one's own has no findings."""

    def reciprocal(x):
        return safeops.safe_where(x != 0, x, lambda x: 1 / x, fill_value=0, placeholder=1.0)

    assert check_gradients(reciprocal, x).detector == "silent"


@pytest.mark.usefixtures("users_defaults")
def test_the_defaults_of_users_will_do(autodiff_framework):
    """In float32, without the options that tests set, a safe operation passes."""
    x = asarray(autodiff_framework, VALUES, "float32")

    report = check_gradients(safeops.safe_sqrt, x)

    assert report.detector == "silent"
    assert report.kinds[1] == Counter(smooth=2, singular=1)
    assert "give expected= to judge it" in str(report)


def test_a_function_of_two_arguments_passes(autodiff_framework, x):
    """Each argument has its places, and the Hessian those of all pairs."""
    y = asarray(autodiff_framework, [0.0, 4.0, 0.5])

    report = check_gradients(safeops.safe_div, (x, y), expected=([0.0, 0.25, 2.0], [0.0, 0.0, 4.0]))

    assert len(report.derivatives) == 6 + 36
    assert report.derivatives[Place(0, (1,), 0.0), Place(1, (1,), 4.0)]["rev-rev"] == -0.0625


KINKED = {
    "abs": lambda xp, x: xp.abs(x),
    "relu": lambda xp, x: xp.where(x > 0, x, 0),
    "maximum": lambda xp, x: xp.maximum(x, xp.zeros_like(x)),
}
SMOOTH = {
    "cube": lambda _, x: x * x * x,
    "exp": lambda xp, x: xp.exp(5 * x),
    "cancellation": lambda xp, x: xp.sin(x) + 1000 - 1000,
    "small beside a constant": lambda xp, x: 1e6 + 1e-3 * xp.sin(x),
    "jump in the second derivative": lambda xp, x: xp.abs(x) * x,
    "infinite second derivative": lambda xp, x: xp.where(x > 0, xp.pow(xp.abs(x), 1.5), 0),
    "small": lambda xp, x: 1e-12 * xp.cos(x),
}
SINGULAR = {
    "infinite slope": lambda _, x: safeops.safe_sqrt(x),
    "edge of the domain": lambda _, x: safeops.entr(x),
    "jump": lambda xp, x: xp.where(x > 0, 1 + x, 0 * x),
}


@pytest.mark.parametrize("name", KINKED)
def test_a_kink_is_a_choice(name, xp, x):
    """Any gradient between the slopes of a kink passes, and the kink is counted."""
    report = check_gradients(lambda x: KINKED[name](xp, x), x, order=1)

    assert report.kinds[1] == Counter(smooth=2, kink=1)


@pytest.mark.parametrize("name", SMOOTH)
def test_a_smooth_function_passes(name, xp, x):
    """Curvature, rounding and scale make no findings, and every place counts as smooth."""
    report = check_gradients(lambda x: SMOOTH[name](xp, x), x, order=1)

    assert report.kinds[1] == Counter(smooth=3)


@pytest.mark.parametrize("name", SINGULAR)
def test_a_singular_point_is_not_judged(name, autodiff_framework, xp):
    """Where there is no finite slope any number may be chosen, and that is counted."""
    x = asarray(autodiff_framework, [2.0, 0.0, 0.5])

    # Of the slope 707 of entr at the smallest normal number TensorFlow loses 1: it flushes that
    # number times a weight below 1.
    near = name != "edge of the domain"
    report = check_gradients(lambda x: SINGULAR[name](xp, x), x, order=1, neighbours=near)

    assert report.kinds[1] == Counter(smooth=2, singular=1)


def test_a_small_point_is_measured_at_its_scale(autodiff_framework):
    """At 1e-30 the slope of the logarithm is measured as 1e30, not across its singularity."""
    x = asarray(autodiff_framework, [1e-30, 1.0, 1e30])

    report = check_gradients(safeops.safe_log, x, order=1)

    assert report.kinds[1] == Counter(smooth=3)
    measured = report.derivatives[Place(0, (0,), 1e-30),][f"{DIFFERENCES}, right"]
    assert measured == pytest.approx(1e30, rel=1e-3)


def test_a_large_point_is_measured_at_its_scale(autodiff_framework):
    """At 1e30 the slope of the square is measured, with steps that move the point."""
    x = asarray(autodiff_framework, [1e30, 1e8, 1.0])

    report = check_gradients(lambda x: x * x, x, order=1)

    assert report.kinds[1] == Counter(smooth=3)


def test_a_slope_lost_in_rounding_is_not_judged(autodiff_framework, xp):
    """Beside a jump the steps are tiny, and 1 + x does not move by them: no slope is measured."""
    x = asarray(autodiff_framework, [1e-30, 1.0, 2.0])

    report = check_gradients(lambda x: xp.where(x > 0, 1 + x, 0), x, order=1)

    assert report.kinds[1] == Counter(smooth=2, singular=1)


def test_noise_is_not_judged(xp, x):
    """Where rounding is as large as the slope, differences say so and find nothing."""
    report = check_gradients(lambda x: 1e9 + xp.sin(x), x, order=1)

    assert report.kinds[1] == Counter(singular=3)


def test_a_value_that_stays_infinite_is_not_judged(autodiff_framework, x):
    """The slope of a sum is 1 beside an inf, too, though the sum does not move."""
    y = asarray(autodiff_framework, [np.inf, 1.0, 2.0])

    report = check_gradients(lambda x, y: x + y, (x, y), order=1)

    assert report.kinds[1] == Counter(smooth=4, singular=2)


def test_tolerances_can_be_given(xp, x):
    """What is farther from the expected gradient than `rtol` of it and `atol` is a finding."""
    options = {"order": 1, "expected": [np.exp(2) + 0.1, 1.0, np.exp(-1)]}

    assert checks(found(xp.exp, x, **options)) == {"expected"}
    assert found(xp.exp, x, rtol=0.1, **options).ok
    assert found(xp.exp, x, atol=0.2, **options).ok


INFINITE = {
    "point": (safeops.safe_exp, [np.inf, -np.inf, 0.0]),
    "value": (safeops.entr, [-1.0, 2.0, 3.0]),
}


@pytest.mark.parametrize("name", INFINITE)
def test_inf_is_no_nan(name, autodiff_framework):
    """A detector that takes inf for a fault is left out where there is one, another runs."""
    f, values = INFINITE[name]

    report = check_gradients(f, asarray(autodiff_framework, values), order=1)

    left_out = "not run, it takes inf for a fault and a point or a value is inf"
    assert report.detector == (left_out if autodiff_framework == "tensorflow" else "silent")


def test_nan_stays_nan(autodiff_framework):
    """The derivative at a point that is NaN may be NaN, and no detector runs there."""
    x = asarray(autodiff_framework, [2.0, np.nan, 0.0])

    report = check_gradients(safeops.safe_log, x)

    assert report.detector == "not run, a point is NaN"
    assert report.kinds[1] == Counter(smooth=1, singular=2)


def test_a_masked_nan_has_slope_zero(autodiff_framework, xp):
    """A NaN that does not reach the value must have the derivative 0."""
    x = asarray(autodiff_framework, [2.0, np.nan, 0.0])
    where = xp.isfinite(x)

    report = check_gradients(lambda x: xp.where(where, x, 0), x, order=1)

    assert report.kinds[1] == Counter(smooth=3)


def test_many_points_are_checked_along_one_vector(autodiff_framework, xp):
    """Above six points second derivatives are products, which still find the place."""
    x = asarray(autodiff_framework, [3.0, 0.0, 1.0, -1.0, 0.5, 2.0, -2.0])

    report = found(
        lambda x: xp.where(x > 0, xp.pow(xp.where(x < 0, -x, x), 1.5), 0),
        x,
        finite_differences=False,
        nan_detector=False,
    )

    assert {f.places for f in report.findings if f.check == "rev-rev"} == {(Place(0, (1,), 0.0),)}
    assert "second derivatives: the Hessian times one fixed vector" in report.remarks


def test_a_scalar_point_is_a_point(autodiff_framework, xp):
    """A 0-d array has a place without an index."""
    report = check_gradients(xp.exp, asarray(autodiff_framework, 0.0), expected=1.0)

    assert str(next(iter(report.derivatives))[0]) == "args[0] = 0"


@pytest.mark.parametrize("wide", ["point", "value"])
def test_tolerances_are_those_of_the_narrower_dtype(wide, autodiff_framework, xp):
    """Where points or values are float32 the wider dtype of the other does not count."""
    dtypes = ("float64", xp.float32) if wide == "point" else ("float32", xp.float64)
    x = asarray(autodiff_framework, VALUES, dtypes[0])

    report = check_gradients(lambda x: xp.astype(xp.exp(x / 10), dtypes[1]), x, order=1)

    assert report.kinds[1] == Counter(smooth=3)


def test_float16_has_no_differences(autodiff_framework):
    """The ways are compared in float16, and the report says what is left out."""
    x = asarray(autodiff_framework, VALUES, "float16")

    report = check_gradients(safeops.safe_sqrt, x, order=1)

    assert report.kinds == {}
    assert "finite differences: none, the dtype is too coarse" in str(report)


@pytest.mark.only("torch")
def test_points_are_left_as_they_are(x):
    """A function that writes into its argument writes into a copy."""
    with pytest.raises(RuntimeError, match="in-place operation"):
        check_gradients(lambda x: x.mul_(2), x)

    assert x.tolist() == VALUES


@pytest.mark.only("torch")
def test_points_that_require_gradients_are_points():
    """Leaves of a model can be given as they are."""
    x = asarray("torch", VALUES).requires_grad_()

    assert check_gradients(safeops.safe_log, x).ok
