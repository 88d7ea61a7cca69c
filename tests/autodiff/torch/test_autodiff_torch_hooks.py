"""Masked autodiff for PyTorch with checkpoints, hooks, custom functions and writes in place."""

import pytest

from assertions import assert_close
from reported_torch import leaf, root_of_its_own, torch

pytestmark = pytest.mark.only("torch")


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints(masked, x, use_reentrant):
    """A checkpoint computes its part again, and that is no part of the backward pass."""
    from torch.utils.checkpoint import checkpoint

    def part(x):
        return torch.where(x > 0, x.sqrt(), 0.0) * torch.where(x > 0, x, 0.0)

    masked.backward(checkpoint(part, x * 1.0, use_reentrant=use_reentrant).sum())

    assert x.grad.tolist() == [0.0, 3.0]
    assert masked.gradient_mask(x).tolist() == [False, True]


def test_hooks_run_once_and_see_the_gradient(masked, x):
    """Hooks of tensors and of accumulation run, and what they return is used."""
    seen = []
    root = x.sqrt()
    root.register_hook(lambda g: seen.append(g.tolist()) or 2 * g)
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))

    masked.backward(torch.where(x > 0, root, 0.0).sum(), on_unknown="error")

    assert seen == [[0.0, 1.0], [0.0, 0.5]]


def test_zeros_that_a_hook_writes_are_numbers(masked, x):
    """A hook that writes zeros is no selection, not even that of the output of a selection."""
    root = torch.where(x >= 0, x.sqrt(), 0.0)
    root.register_hook(lambda g: torch.where(x > 0, g, 0.0))
    other = x.sqrt().nansum(0, keepdim=True)
    other.register_hook(lambda g: g * torch.tensor([False]))

    (found,), (active,) = masked.grad(root.sum() + other.sum(), x, return_mask=True)

    assert not found[0].isfinite()
    assert active.all()


def test_a_hook_may_scatter_a_number(masked, x):
    """A 0 that a hook scatters into a cotangent is a number, given as such or as a tensor."""
    place, zero = torch.tensor([0]), x.new_zeros(1)
    roots = [x.sqrt(), x.sqrt()]
    roots[0].register_hook(lambda g: g.scatter(0, place, 0.0))
    roots[1].register_hook(lambda g: g.scatter(0, place, zero))

    for root in roots:
        (found,), (active,) = masked.grad(root[1], x, return_mask=True)

        assert not found[0].isfinite()
        assert active.all()


def test_clamp_in_a_checkpoint(masked, x):
    """A clamp finds NaN without unpacking what a checkpoint saved a second time."""
    from torch.utils.checkpoint import checkpoint

    out = checkpoint(lambda x: x.log().clamp(min=0.0), x * 1.0, use_reentrant=False)

    assert masked.grad(out.sum(), x)[0].tolist() == [0.0, 0.25]


def test_what_is_written_into_is_active(masked, x):
    """After an operation without a rule has written into a cotangent all of it is active."""
    out = x.exp()

    @out.register_hook
    def write(gradient):
        torch._foreach_add_([gradient], 1.0)

    (found,), (active,) = masked.grad(out[1], x, return_mask=True, on_unknown="ignore")

    assert active.all()
    assert found[0] == 1.0


def test_custom_functions_run_as_they_are(masked, x):
    """The operations in the backward method of a custom function are seen."""
    (found,) = masked.grad(torch.where(x > 0, root_of_its_own(x), 0.0).sum(), x, on_unknown="error")

    assert found.tolist() == [0.0, 0.25]


def test_a_zero_that_a_custom_function_writes_is_a_number(masked, x):
    """A where in somebody's backward method is a convention, and hides no NaN."""

    class Where(torch.autograd.Function):  # the name of a selection of PyTorch
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return torch.where(x > 0, gradient, 0.0)

    (found,), (active,) = masked.grad(Where.apply(x.sqrt()).sum(), x, return_mask=True)

    assert found[0].isnan()
    assert active.all()


def test_our_own_functions_can_be_selections(masked):
    """What `safeops.nansum` leaves out is absent, though a custom function of ours makes it."""
    from safeops import nansum

    x = leaf([-1.0, 4.0])
    out = nansum(x.sqrt())
    (ordinary,) = torch.autograd.grad(out, x, retain_graph=True)

    (found,), (active,) = masked.grad(out, x, return_mask=True, on_unknown="error")

    (node, _), *_ = out.grad_fn.next_functions  # below a change of shape
    assert node._forward_cls.__name__ == "_Nansum"  # private in PyTorch
    assert found.tolist() == [0.0, 0.25]
    assert active.tolist() == [False, True]
    assert ordinary[0].isnan()


SELECTING = {
    "masked_fill": lambda g, x: g.masked_fill(x.isnan(), 0.0),
    "where": lambda g, x: torch.where(x.isnan(), 0.0, g),
    "zeros": lambda g, x: torch.where(x.isnan(), torch.zeros_like(g), g),
    "a boolean product": lambda g, x: g * ~x.isnan(),
}


@pytest.mark.parametrize("way", SELECTING)
def test_a_function_of_ours_says_that_it_is_a_selection(masked, way):
    """One that derives from `FillingFunction` has absent entries; the same without it has not."""
    from safeops._backends.torch.fast_paths import FillingFunction

    found = []
    for base in (FillingFunction, torch.autograd.Function):

        class Kept(base):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.nan_to_num()

            @staticmethod
            def backward(ctx, gradient):
                return SELECTING[way](gradient, *ctx.saved_tensors)

        x = leaf([-1.0, 4.0])
        found += masked.grad(Kept.apply(x.sqrt()).sum(), x, on_unknown="error")

    assert found[0].tolist() == [0.0, 0.25]
    assert found[1][0].isnan()


def test_a_hook_of_our_own_selection_is_a_hook(masked):
    """The zeros of a hook are numbers, though the node is that of a selection of ours."""
    from safeops import nansum

    x = leaf([0.0, 4.0])
    out = nansum(x.sqrt(), axis=0, keepdims=True)
    out.register_hook(lambda g: g.masked_fill(torch.tensor([True]), 0.0))

    (found,), (active,) = masked.grad(out.sum(), x, return_mask=True)

    assert found[0].isnan()
    assert active.all()


def test_views_and_writes_in_place(masked):
    """Writes through several views of one tensor keep their masks apart."""
    x = leaf([[0.0, 4.0], [9.0, 0.0]])
    root = x.log()
    root[0, 0] = 1.0
    root.view(-1)[3:].zero_()
    root.t()[0].mul_(2.0)

    (found,), (active,) = masked.grad(root.sum(), x, return_mask=True, on_unknown="error")

    assert_close(found.numpy(), [[0.0, 0.25], [2 / 9, 0.0]], rtol=1e-15)
    assert active.tolist() == [[False, True], [True, False]]
