"""Masked autodiff for PyTorch against the tape of scalars, and on the programs people reported."""

import numpy as np
import pytest

import tape
from assertions import assert_close
from frameworks import torch_from
from reported_torch import (
    CLEAN,
    DIRTY,
    LATE,
    NAN,
    REPORTED,
    UNDEFINED,
    TapeOfTorch,
    Torch,
    gradients,
    leaf,
    programs,
    torch,
)

pytestmark = pytest.mark.only("torch")


# Against the tape.


@pytest.mark.parametrize("wrong", [([0.0], [True]), ([NAN], [True]), ([1.0], [False])])
def test_the_comparison_with_the_tape_can_fail(wrong):
    """A silent zero, a NaN and another mask are each found."""
    with pytest.raises(AssertionError):
        tape.assert_as_the_tape(map(np.asarray, wrong), (np.asarray([1.0]), np.asarray([True])))


@pytest.mark.parametrize("part", range(10))
def test_random_programs_have_the_gradient_of_the_tape(masked, part):
    """Gradient and mask are those of the tape, in 30 programs of each part."""
    for _, program, x in programs(30 * part, 30 * part + 30):
        of_tape = tape.masked_gradient(lambda _, t, p=program: tape.run(p, TapeOfTorch, t), x)[1:]
        inputs = leaf(x)
        output = tape.run(program, Torch(), inputs)
        if output.requires_grad:
            gradient, active = masked.grad(
                output, inputs, materialize_grads=True, return_mask=True, on_unknown="error"
            )
            tape.assert_as_the_tape((gradient[0].numpy(), active[0].numpy()), of_tape)


def test_a_finite_ordinary_gradient_is_ours(masked):
    """Where the ordinary gradient is finite ours is equal; where it is inf, ours is inf."""
    for _, program, x in programs(300, 450):
        inputs = leaf(x)
        output = tape.run(program, Torch(), inputs)
        if output.requires_grad:
            options = {"materialize_grads": True, "retain_graph": True}
            (ours,) = masked.grad(output, inputs, **options)
            (ordinary,) = torch.autograd.grad(output, inputs, **options)
            kept = ~ordinary.isnan()

            assert_close(ours[kept].numpy(), ordinary[kept].numpy(), rtol=1e-12)


# Programs that people reported: name, program, point, masked gradient.


@pytest.mark.parametrize("name", REPORTED)
def test_reported_programs_have_the_right_gradient(masked, name):
    """The masked gradient is exact, and nothing in the program is unknown."""
    program, point, wanted = REPORTED[name]
    x = leaf(point)

    (gradient,) = masked.grad(program(x), x, on_unknown="error")

    assert_close(gradient.numpy(), wanted, rtol=1e-12)


@pytest.mark.parametrize("name", REPORTED)
def test_reported_programs_fail_without_masks(name):
    """The ordinary gradient of each program is not finite."""
    program, point, _ = REPORTED[name]
    x = leaf(point)

    (gradient,) = torch.autograd.grad(program(x), x)

    assert not gradient.isfinite().all()


@pytest.mark.skipif(not torch_from(2, 10), reason="before 2.10 the slope of atan2 is NaN there")
def test_arctan2_is_safe_already(masked):
    """PyTorch's own gradient of arctan2 at the origin is 0, and so is ours."""
    x = leaf([0.0])
    output = torch.where(x > 0.5, torch.atan2(x, x), 0.0).sum()

    (ordinary,) = torch.autograd.grad(output, x, retain_graph=True)

    assert ordinary.item() == masked.grad(output, x)[0].item() == 0.0


# Undefined derivatives stay undefined.


@pytest.mark.parametrize("name", UNDEFINED)
def test_undefined_derivatives_stay_undefined(masked, name):
    """A NaN or inf that is active is no zero: the ordinary gradient, and all of it active."""
    program, point = UNDEFINED[name]
    x = leaf(point)
    output = program(x)
    (ordinary,) = torch.autograd.grad(output, x, retain_graph=True)

    (gradient,), (active,) = masked.grad(output, x, return_mask=True, on_unknown="error")

    assert not ordinary.isfinite().all()
    assert not gradient.isfinite().all()
    assert active.all()


@pytest.mark.parametrize("name", ["norm", "std"])
def test_slopes_that_pytorch_chooses_are_kept(masked, name):
    """Where PyTorch gives a kink the slope 0 that is a number, and active."""
    x = leaf([0.0, 0.0])

    (gradient,), (active,) = masked.grad(getattr(x, name)(), x, return_mask=True)

    assert gradient.tolist() == [0.0, 0.0]
    assert active.all()


# Rows that are never read: a program at a point with NaN in them has the gradient of the same
# program at a clean point.


@pytest.mark.parametrize("name", LATE)
def test_rows_that_nothing_reads_do_no_harm(masked, name):
    """The gradient is that of the same program at a clean point."""
    wanted = gradients(LATE[name], CLEAN, torch.autograd.grad)

    found = gradients(LATE[name], DIRTY, lambda *a: masked.grad(*a, on_unknown="error"))

    for ours, clean in zip(found, wanted, strict=True):
        assert_close(ours, clean, rtol=1e-9, atol=1e-12)  # parts of kernels, summed otherwise


@pytest.mark.parametrize("name", LATE)
def test_rows_that_nothing_reads_do_harm_without_masks(name):
    """The ordinary gradient is not finite."""
    found = gradients(LATE[name], DIRTY, torch.autograd.grad)

    assert not all(np.isfinite(g).all() for g in found)


@pytest.mark.parametrize("name", LATE)
def test_a_clean_point_has_the_ordinary_gradient(masked, name):
    """Where nothing is wrong the gradient is that of PyTorch."""
    wanted = gradients(LATE[name], CLEAN, torch.autograd.grad)

    found = gradients(LATE[name], CLEAN, masked.grad)

    for ours, ordinary in zip(found, wanted, strict=True):
        assert_close(ours, ordinary, rtol=1e-9, atol=1e-12)  # parts of kernels, summed otherwise


@pytest.mark.parametrize("name", LATE)
def test_what_is_active_does_not_depend_on_values(masked, name):
    """Quick ways for finite numbers have the masks of the long way round NaN."""
    found = []
    for rows in (CLEAN, DIRTY):
        x = leaf(rows)
        output, weights = LATE[name](x)
        found.append(masked.grad(output, [x, *weights], return_mask=True)[1])

    for clean, dirty in zip(*found, strict=True):
        assert clean.tolist() == dirty.tolist()
