"""What `check_gradients` finds beside the points, of third order, and with constants."""

import numpy as np
import pytest

from frameworks import asarray
from safeops import safe_div, safe_hypot, safe_sqrt
from safeops._check import neighbours
from safeops._dispatch import backend_of
from safeops.testing import check_gradients


@pytest.mark.only("torch")
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_neighbours_are_the_next_numbers(dtype):
    """On either side stands the next number of the dtype, and beside 0 what is nearly 0."""
    import torch

    from safeops._core.dtypes import limits

    kind = getattr(torch, dtype)
    points = torch.tensor([0.0, 1.0, -1.0, 3.0, 1e-30], dtype=kind)
    bounds = limits(torch, points)

    found = neighbours(points.double().numpy(), bounds)

    for name, end in (("next above", np.inf), ("next below", -np.inf)):
        wanted = torch.nextafter(points, torch.full_like(points, end))
        np.testing.assert_array_equal(found[name], wanted.double().numpy())
    assert np.signbit(found["-0.0"][0])
    assert found["smallest normal"][0] == bounds.smallest_normal
    assert 0 < found["subnormal"][0] < bounds.smallest_normal
    assert all((x[1:4] == [1, -1, 3]).all() for name, x in found.items() if "next" not in name)


def guarded_at_zero(x):
    """Return a root that is guarded at 0 alone, and 0 at the negative numbers beside it."""
    xp = backend_of(x).xp
    # Not sqrt, of which TensorFlow hides the slope (2.21).
    return xp.where(x > 0, xp.exp(0.5 * xp.log(xp.where(x == 0, 1.0, x))), 0.0)


@pytest.mark.parametrize("f", [guarded_at_zero])
def test_a_fault_beside_a_point_is_found(f, autodiff_framework):
    """A guard of one point alone is right there, and found to be NaN next to it."""
    x = asarray(autodiff_framework, [0.0, 2.0])

    assert check_gradients(f, x, neighbours=False).ok
    report = check_gradients(f, x, raises=False)

    assert {"next below", "minus smallest normal"} & {x.check for x in report.findings}
    assert check_gradients(safe_sqrt, x).ok


@pytest.mark.only("torch")
def test_a_constant_that_changes_a_gradient_is_found():
    """A rule that is wrong if one argument is constant agrees with all others, and is found."""
    import torch

    class Product(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, y):
            return x * y

        @staticmethod
        def setup_context(ctx, inputs, _):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, cotangent):
            x, y = ctx.saved_tensors
            wrong = 1 if all(ctx.needs_input_grad) else 2
            return cotangent * y * wrong, cotangent * x

    args = tuple(torch.tensor([a], dtype=torch.float64) for a in (2.0, 3.0))

    report = check_gradients(Product.apply, args, order=1, forward=False, raises=False)

    assert [(x.check, x.got, x.wanted) for x in report.findings] == [("constant args[1]", 6, 3)]
    assert "constant args[1]" in str(report)


@pytest.mark.parametrize("f", [safe_div, safe_hypot])
def test_constants_change_no_gradient_of_ours(f, autodiff_framework):
    """With each subset of the arguments constant the gradients to the others are the same."""
    x, y = (asarray(autodiff_framework, a) for a in ([1.0, 0.0, 2.0], [4.0, 0.0, -1.0]))

    assert check_gradients(f, (x, y), order=1).ok


def cube(x):
    """Return a power whose third derivative is 6."""
    return x * x * x


def test_third_derivatives_are_compared(autodiff_framework):
    """Three compositions of third order give 6 for a cube."""
    x = asarray(autodiff_framework, [0.0, 2.0])

    report = check_gradients(cube, x, order=3, neighbours=False)

    rows = [row for places, row in report.derivatives.items() if len(places) == 3]
    ways = ("rev-rev-rev", "fwd-rev-rev", "fwd-fwd-rev")
    assert [[row[way] for way in ways] for row in rows] == [[6, 6, 6]] * 2


def test_a_third_derivative_that_is_nan_is_found(autodiff_framework):
    """A power that is smooth to second order, and whose third derivative at 0 is NaN, is found."""

    def power(x):
        xp = backend_of(x).xp
        return xp.where(x > 0, x * x * xp.sqrt(x), 0.0 * x)

    x = asarray(autodiff_framework, [0.0, 2.0])
    bad = check_gradients(power, x, order=3, raises=False, nan_detector=False)

    assert not bad.ok
    with pytest.raises(ValueError, match="order 1, 2 or 3, got 4"):
        check_gradients(cube, x, order=4)
