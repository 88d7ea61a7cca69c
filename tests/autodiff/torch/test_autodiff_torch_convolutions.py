"""Convolutions in masked autodiff for PyTorch, eager and as a compiler traces them."""

import warnings

import pytest

from assertions import assert_close
from reported_torch import NAN, torch

pytestmark = pytest.mark.only("torch")

# Taps, stride, padding, dilation, groups, whether transposed, and the sizes of the images.
FORMS = {
    "plain": ((2, 3), 1, 0, 1, 1, False, (5, 4)),
    "pointwise": ((1, 1), 1, 0, 1, 1, False, (2, 3)),
    "padding": ((3, 3), 1, 1, 1, 1, False, (1, 4)),
    "more padding than taps": ((2, 2), 1, 3, 1, 1, False, (2, 3)),
    "stride": ((3, 2), (2, 3), 1, 1, 1, False, (6, 7)),
    "stride that leaves out": ((1, 2), 3, 0, 1, 2, False, (4, 6)),
    "dilation": ((2, 3), 1, 1, 2, 2, False, (5, 6)),
    "dilation that leaves out": ((2,), 1, 0, 4, 1, False, (5,)),
    "groups": ((2, 2), 1, 1, 1, 2, False, (4, 4)),
    "volumes": ((2, 2, 1), (1, 2, 1), 1, 1, 1, False, (2, 3, 2)),
    "transposed": ((3, 2), 1, 0, 1, 2, True, (3, 2)),
    "transposed, stride and padding": ((3, 2), 2, 1, 1, 1, True, (3, 2)),
    "transposed, padding over the image": ((2,), 1, 2, 1, 2, True, (5,)),
    "transposed, dilation": ((3, 2), 3, 2, 2, 1, True, (3, 2)),
}


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """Compile each test by itself, and let Dynamo see PyTorch, which it cannot see being loaded."""
    import torch as real

    monkeypatch.setitem(globals(), "torch", real)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        # Of PyTorch, about the gradient of a tensor that is no leaf.
        warnings.filterwarnings("ignore", "The .grad attribute", UserWarning)
        yield


def leaf(x):
    """Return a copy of a tensor as a leaf."""
    return x.clone().requires_grad_()


def convolution(form):
    """Return a convolution as a function, and images and weights for it."""
    taps, stride, padding, dilation, groups, transposed, sizes = FORMS[form]
    torch.manual_seed(0)
    x = torch.randn(3, 4, *sizes, dtype=torch.float64)
    weight = torch.randn(4, 4 // groups, *taps, dtype=torch.float64)
    bias = torch.randn(4, dtype=torch.float64)
    every = [v if isinstance(v, tuple) else [v] for v in (stride, padding, dilation)]

    def run(x, weight, bias):
        return torch.convolution(x, weight, bias, *every, transposed, [0], groups)

    return run, [x, weight, bias]


def chosen(count, like):
    """Return masks of outputs: a few entries, all of them, and those of some images or channels."""
    few = torch.rand(count, *like.shape, generator=torch.Generator().manual_seed(1)) < 0.1
    every = torch.ones_like(few[0])
    images, channels = ~every, ~every
    images[1:] = True
    channels[:, ::2] = True
    return [*few, every, images, channels]


@pytest.mark.parametrize("form", FORMS)
def test_what_a_used_output_reads_is_active(masked, form):
    """An entry is active if it has a slope where all coefficients are 1, and absent if not."""
    run, args = convolution(form)
    for kept in chosen(8, run(*args)):
        leaves = [leaf(torch.ones_like(v)) for v in args]
        output = run(*leaves)[kept].sum()
        counts = torch.autograd.grad(output, leaves, retain_graph=True)

        _, masks = masked.grad(output, leaves, return_mask=True, on_unknown="error")

        for mask, count in zip(masks, counts, strict=True):
            assert torch.equal(mask, count != 0)


def gradients(masked, f, args, **options):
    """Return gradients and masks of a compiled program, which keeps its masks at its edges."""
    torch._dynamo.reset()
    leaves = [leaf(v) for v in args]
    f = masked.compile(f, backend="aot_eager", edges=True, on_unknown="error", **options)
    return masked.grad(f(*leaves), leaves, return_mask=True, on_unknown="error")


def spoilt(args, what):
    """Return arguments with NaN in an image, in a pixel of each image, or in a weight."""
    x, weight, bias = (v.clone() for v in args)
    if what == "image":
        x[0] = NAN
    elif what == "pixels":
        x.flatten(2)[:, :, 0] = NAN
    else:
        weight[0, 0].flatten()[0] = NAN
    return [x, weight, bias]


@pytest.mark.parametrize("what", ["image", "pixels", "weight"])
@pytest.mark.parametrize("form", ["plain", "stride", "groups", "transposed, stride and padding"])
def test_traced_is_eager(masked, form, what):
    """
    With `exact` gradient and mask are those of eager mode.

    Without it the mask is, and a number may be NaN, but only if an active entry reads a NaN.
    """
    run, args = convolution(form)
    args = spoilt(args, what)
    output = run(*args)
    kept = chosen(1, output)[-2 if what == "image" else 0]
    program = lambda *args: torch.where(kept, run(*args), 0.0).square().sum()  # noqa: E731
    leaves = [leaf(v) for v in args]
    wanted, active = masked.grad(program(*leaves), leaves, return_mask=True, on_unknown="error")
    ordinary = torch.autograd.grad(program(*leaves), leaves)

    exact, naive = (gradients(masked, program, args, exact=e) for e in (True, False))

    reads_nan = bool(output[kept].isnan().any())
    assert not all(g.isfinite().all() for g in ordinary)
    for i in range(3):
        assert torch.equal(exact[1][i], active[i])
        assert torch.equal(naive[1][i], active[i])
        assert_close(exact[0][i].numpy(), wanted[i].numpy(), rtol=1e-9, atol=1e-12)
        found = naive[0][i]
        assert not (found.isfinite() & ~wanted[i].isfinite()).any()
        here = found.isfinite() if reads_nan else torch.ones_like(found, dtype=torch.bool)
        assert_close(found[here].numpy(), wanted[i][here].numpy(), rtol=1e-9, atol=1e-12)


def test_images_of_nan_change_no_bit(masked):
    """Behind an image of NaN that is left out, gradients are those of an image of zeros."""
    run, (x, weight, bias) = convolution("padding")
    kept = torch.tensor([False, True, True]).view(3, 1, 1, 1)
    program = lambda *args: torch.where(kept, run(*args).relu(), 0.0).square().sum()  # noqa: E731
    for layout in (torch.contiguous_format, torch.channels_last):
        good = torch.where(kept, x, 0).to(memory_format=layout)
        bad = torch.where(kept, x, NAN).to(memory_format=layout)
        ordinary = torch.compile(program, backend="aot_eager")
        leaves = [leaf(v) for v in (good, weight, bias)]
        torch._dynamo.reset()
        ordinary(*leaves).backward()

        found, _ = gradients(masked, program, [bad, weight, bias])

        assert all(torch.equal(g, v.grad) for g, v in zip(found, leaves, strict=True))


def test_a_nan_that_meets_both_kinds(masked):
    """A NaN pixel that a used and an unused entry read spoils all its weights, unless exact."""
    x = torch.tensor([[[1.0, NAN, 2.0, 3.0]]], dtype=torch.float64)
    weight = torch.tensor([[[1.0, 1.0]], [[2.0, 1.0]]], dtype=torch.float64)

    def program(x, weight):
        y = torch.nn.functional.conv1d(x, weight)
        return y[0, 0, 0] + y[0, 1, 2]

    exact, _ = gradients(masked, program, [x, weight], exact=True)
    naive, _ = gradients(masked, program, [x, weight])

    assert exact[1].flatten()[[0, 2, 3]].tolist() == [1.0, 2.0, 3.0]
    assert exact[1].isnan().sum() == 1
    assert naive[1].isnan().all()
    assert naive[0].tolist() == exact[0].tolist() == [[[1.0, 1.0, 2.0, 1.0]]]
