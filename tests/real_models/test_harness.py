"""The harness finds what is planted: it can fail."""

import numpy as np
import pytest
import torch
from real_models.engines import Torch, heard, operation_in
from real_models.harness import Case, Program, distance, is_wrong, measure

X = np.arange(1.0, 7.0).reshape(3, 2)
WEIGHT = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)


def row_of(outputs, engine=Torch):
    """Return the row of a model of one weight."""
    program = Program(outputs, X, parameters=[WEIGHT])
    return measure(Case("torch", "planted", lambda: program), engine, timed=False)


class Wrong(Torch):
    """An engine whose masked gradients are half of the right ones."""

    def masked(self, step):
        """Return half of them."""
        found, names = super().masked(step)
        return [g / 2 for g in found], names


class Hiding(Torch):
    """An engine that makes 0 of what is not finite."""

    def masked(self, step):
        """Return finite numbers."""
        found, names = super().masked(step)
        return [np.nan_to_num(g, posinf=0.0) for g in found], names


class Ordinary(Torch):
    """An engine that masks nothing."""

    def masked(self, step):
        """Return ordinary gradients."""
        return self.ordinary(step)


def product(parameters, x):
    """Return a product, in which a NaN row spoils the gradient of the weight."""
    return x * parameters[0]


def test_a_right_model_has_a_right_row():
    """A product with a weight is cured, and keeps what is undefined."""
    row = row_of(product)

    assert (row.healthy, row.left_out, row.cured) == (0, 0, 0)
    assert row.naive_is_nan
    assert row.used
    assert row.unused
    assert not row.finite_and_wrong
    assert not row.hidden
    assert row.warnings == row.healthy_warnings == []


def test_a_wrong_gradient_is_found():
    """Half of the gradient is finite and wrong."""
    row = row_of(product, Wrong)

    assert row.finite_and_wrong
    assert min(row.healthy, row.left_out, row.cured) > 0.4


def test_a_hidden_singularity_is_found():
    """A derivative that was infinite and is 0 counts as lost."""
    assert not row_of(product, Hiding).used


def test_a_hidden_nan_is_found():
    """A gradient that is finite although the loss reads NaN is found."""
    assert row_of(product, Hiding).hidden


def test_a_row_that_a_model_leaves_out_itself_is_not_hidden():
    """Where the loss is a number, none of it is NaN, and there is nothing to hide."""
    row = row_of(lambda parameters, x: product(parameters, x)[:2])

    assert row.naive_is_nan
    assert not row.hidden


def test_a_gradient_that_stays_nan_is_found():
    """The ordinary gradient is not cured, and not wrong."""
    row = row_of(product, Ordinary)

    assert np.isnan(row.cured)
    assert not row.unused
    assert not row.finite_and_wrong


def test_a_model_without_a_bug_is_found():
    """A model in which nothing spoils a NaN has nothing to cure."""
    assert not row_of(lambda _, x: x).naive_is_nan


def test_the_distance_keeps_nan_and_is_relative():
    """A NaN in one place is a distance of NaN; a difference counts beside the largest entry."""
    ten, eleven, nan = (np.array([10.0, last]) for last in (10, 11, np.nan))

    assert np.isnan(distance([nan], [ten]))
    assert distance([eleven], [ten]) == pytest.approx(0.1, rel=1e-2)
    assert is_wrong([eleven], [ten], 0.01)
    assert not is_wrong([nan], [ten], 0.01)


def test_a_distance_of_other_shapes_raises():
    """Gradients of two shapes are not compared."""
    with pytest.raises(AssertionError, match="shape"):
        distance([np.zeros(2)], [np.zeros(3)])


@torch.library.custom_op("safeops_harness::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    """Double a tensor, by an operation that nobody has a rule for."""
    return 2 * x


doubled.register_autograd(lambda _, g: doubled(g))


def test_a_warning_names_its_operation():
    """The name of the operation is read from the warning that masked autodiff gives."""
    from safeops.autodiff.torch import grad

    x = torch.ones(2, requires_grad=True)
    with heard() as names:
        grad(doubled(x)[0], x)

    assert names == ["doubled"]
    assert operation_in("something else") == "something else"
