"""Masked autodiff for PyTorch beside hooks and custom functions, and what kernels leave out."""

import math
from itertools import product

import numpy as np
import pytest

from frameworks import Lazy

pytestmark = pytest.mark.only("torch")

NAN, INF = math.nan, math.inf
torch, functional = Lazy("torch"), Lazy("torch.nn.functional")


def leaf(entries):
    """Return a tensor to differentiate with respect to."""
    return torch.tensor(entries, dtype=torch.float64, requires_grad=True)


def gradients(masked, f, x, **how):
    """Return the masked gradient of a sum, the ordinary one, and where the masked one is active."""
    out = f(x).sum()
    (ordinary,) = torch.autograd.grad(out, x, retain_graph=True)
    (found,), (active,) = masked.grad(out, x, return_mask=True, **how)
    return found, ordinary, active


# What is made of a cotangent, by a hook or by the backward method of a custom function.


def by_hook(f):
    """Return a function that is 2 x, with a hook."""

    def g(x):
        y = 2 * x
        y.register_hook(f)
        return y

    return g


def by_function(f):
    """Return a function that is 2 x, with a backward pass of its own."""

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return 2 * x

        @staticmethod
        def backward(_, g):
            return 2 * f(g)

    return Custom.apply


ZERO_AT_ZERO = {
    "clamp": lambda g: g.clamp(-1.0, 1.0),
    "clamp_": lambda g: g.clone().clamp_(-1.0, 1.0),
    "clamp by tensors": lambda g: g.clamp(-torch.ones_like(g), torch.ones_like(g)),
    "sign": lambda g: g.sign(),
    "minimum": lambda g: torch.minimum(g, torch.ones(())),
    "nan_to_num": lambda g: g.nan_to_num(),
    "tanh": lambda g: g.tanh(),
    "root of the size": lambda g: g.sign() * g.abs().sqrt(),
    "over the norm": lambda g: g / g.norm(),
    "over the largest": lambda g: g / g.abs().max(),
    "over the norm of rows": lambda g: g / torch.linalg.vector_norm(g, dim=-1, keepdim=True),
    "clipped by the norm": lambda g: torch.where(g.norm() > 1, g / g.norm(), g),
}
NUMBER_AT_ZERO = {
    "rsub": lambda g: 1 - g,
    "clamp above 0": lambda g: g.clamp(0.5, 1.0),
    "clamp by a 0": lambda g: g.clamp(min=torch.zeros_like(g)),
    "cos": lambda g: g.cos(),
    "maximum": lambda g: torch.maximum(g, torch.full((), 0.25)),
    "power 0": lambda g: g.pow(0),
}
BY = {"hook": by_hook, "function": by_function}


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("name", ZERO_AT_ZERO)
def test_what_is_0_at_0_keeps_absent_entries_absent(masked, by, name):
    """An entry that nothing selected meets no singularity, and nothing is warned of."""
    f = BY[by](ZERO_AT_ZERO[name])
    found, ordinary, active = gradients(
        masked, lambda x: f(x.sqrt())[1:3], leaf([0.0, 4.0, 0.0, 1.0]), on_unknown="error"
    )

    assert active.tolist() == [False, True, True, False]
    assert found[[0, 3]].tolist() == [0.0, 0.0]
    assert ordinary[0].isnan()
    assert torch.equal(found[1:3], ordinary[1:3])
    assert found[2] == INF


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("name", NUMBER_AT_ZERO)
def test_what_is_a_number_at_0_makes_entries_active(masked, by, name):
    """A number that is made of an absent entry is the ordinary one, singular or not."""
    f = BY[by](NUMBER_AT_ZERO[name])
    found, ordinary, active = gradients(
        masked, lambda x: f(x.sqrt())[1:3], leaf([0.0, 4.0, 0.0, 1.0]), on_unknown="error"
    )

    assert active.all()
    assert torch.equal(found.nan_to_num(7.0), ordinary.nan_to_num(7.0))
    assert not found[0].isfinite()


PADDING = {
    "zeros": lambda g: torch.zeros(4, dtype=g.dtype).index_copy(0, torch.arange(2), g),
    "a part of zeros": lambda g: _written(torch.zeros(4, dtype=g.dtype), g),
    "zero_": lambda g: _written(torch.empty(4, dtype=g.dtype).zero_(), g),
    "cat": lambda g: torch.cat([g, torch.zeros(2, dtype=g.dtype)]),
    "stack": lambda g: torch.stack([g, torch.zeros_like(g)]).flatten(),
    "pad": lambda g: functional.pad(g, (0, 2)),
    "diagonal": lambda g: torch.diag_embed(g).flatten()[[0, 3, 1, 2]],
    "index_add": lambda g: torch.zeros(4, dtype=g.dtype).index_add(0, torch.arange(2), g),
    "scatter": lambda g: torch.zeros(4, dtype=g.dtype).scatter(0, torch.arange(2), g),
    "where": lambda g: torch.where(torch.arange(4) < 2, g.repeat(2), 0.0),
}


def _written(x, g):
    x[:2] = g
    return x


@pytest.mark.parametrize("name", PADDING)
def test_zeros_around_a_cotangent_are_numbers_in_a_custom_function(masked, name):
    """A used NaN behind a zero that a custom function writes stays NaN."""

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x * torch.tensor([1.0, 1.0, 2.0, 2.0], dtype=x.dtype)  # all is used

        @staticmethod
        def backward(_, g):
            return PADDING[name](g[:2])

    found, ordinary, active = gradients(
        masked, lambda x: Custom.apply(x.sqrt()), leaf([1.0, 4.0, 0.0, 0.0])
    )

    assert ordinary[2:].isnan().all()
    assert torch.equal(found.isnan(), ordinary.isnan())
    assert active[2:].all()


def test_operations_that_a_custom_function_differentiates_have_their_own_zeros(masked):
    """A graph inside a backward method is PyTorch's: what its slice does not read is absent."""

    class Inside(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x[:2].clone()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return torch.autograd.grad(x[:2].clone(), x, g)

    found, ordinary, active = gradients(
        masked, lambda x: Inside.apply(x.sqrt()), leaf([1.0, 4.0, 0.0, 0.0])
    )

    assert ordinary[2:].isnan().all()
    assert found.tolist() == [0.5, 0.25, 0.0, 0.0]
    assert active.tolist() == [True, True, False, False]


# What a kernel leaves out by itself.


@pytest.mark.parametrize("reduction", ["sum", "mean", "max"])
def test_a_row_that_is_in_no_bag_is_absent(masked, reduction):
    """Bags of which all are used do not read the last row; nor one that is padding."""
    indices, offsets = torch.tensor([0, 1, 2, 1]), torch.tensor([0, 2])

    def f(x):
        bag = functional.embedding_bag
        return bag(indices, x.sqrt()[:, None], offsets, mode=reduction, padding_idx=0)

    found, ordinary, active = gradients(masked, f, leaf([0.0, 4.0, 9.0, 0.0]), on_unknown="error")

    assert ordinary[[0, 3]].isnan().all()
    assert found[[0, 3]].tolist() == [0.0, 0.0]
    assert torch.equal(found[1:3], ordinary[1:3])
    assert active.tolist() == [False, True, True, False]


def test_a_row_of_a_bag_that_counts_0_is_used(masked):
    """The weight of a row of a bag is a number, 0 or not."""
    indices, offsets, weights = torch.tensor([0, 1]), torch.tensor([0]), [0.0, 1.0]

    def f(x):
        weighted = torch.tensor(weights, dtype=x.dtype)
        bag = functional.embedding_bag
        return bag(indices, x.sqrt()[:, None], offsets, mode="sum", per_sample_weights=weighted)

    found, ordinary, active = gradients(masked, f, leaf([0.0, 4.0, 0.0]))

    assert ordinary[[0, 2]].isnan().all()
    assert found[0].isnan()
    assert found[2] == 0
    assert active.tolist() == [True, True, False]


@pytest.mark.parametrize("lengths", ["tensor", "list", "one"])
def test_steps_behind_the_end_of_a_sequence_are_absent(masked, lengths):
    """A CTC loss does not read them, though all losses are used."""
    numbers = torch.tensor(np.random.default_rng(0).uniform(0.5, 1.5, (4, 2, 3)))
    numbers[2, 1], numbers[3, 1] = NAN, 0.0
    ends = [4, 2]
    targets, count = torch.tensor([[1], [2]]), torch.tensor([1, 1])
    if lengths == "one":
        numbers, ends, targets, count = numbers[:, 1], 2, targets[1], torch.tensor(1)
    ends = ends if lengths == "list" else torch.tensor(ends)
    count = count.tolist() if lengths == "list" else count

    def f(x):
        return functional.ctc_loss(x.sqrt(), targets, ends, count, reduction="none")

    x = numbers.clone().requires_grad_()
    found, ordinary, active = gradients(masked, f, x, on_unknown="error")

    past = torch.zeros_like(x, dtype=torch.bool)
    past[2:] = True
    if lengths != "one":
        past[:, 0] = False
    assert ordinary[past].isnan().any()
    assert torch.equal(active, ~past)
    assert (found[past] == 0).all()
    assert torch.equal(found[~past], ordinary[~past])


def test_as_strided_scatter_is_ordinary_with_a_warning(masked):
    """Its derivative in PyTorch takes what was written over for what was kept (2.13)."""
    x = leaf([0.0, 4.0, 9.0, 1.0])
    out = torch.as_strided_scatter(x.sqrt(), torch.ones(2, dtype=x.dtype), (2,), (1,), 2)
    (ordinary,) = torch.autograd.grad(out.sum(), x, retain_graph=True)

    with pytest.warns(masked.UnknownOperationWarning, match="as_strided_scatter"):
        (found,) = masked.grad(out.sum(), x)

    assert found[0].isnan()
    assert torch.equal(found[1:], ordinary[1:])
    with pytest.raises(NotImplementedError, match="as_strided_scatter"):
        masked.grad(out.sum(), x, on_unknown="error")


# The sampling of a grid.

GRIDS = [
    (axes, mode, padding, corners)
    for axes, mode, padding, corners in product(
        (2, 3), ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (True, False)
    )
    if (axes, mode) != (3, "bicubic")
]


@pytest.mark.parametrize(("axes", "mode", "padding", "corners"), GRIDS)
def test_what_a_grid_does_not_read_is_absent(masked, axes, mode, padding, corners):
    """
    NaN in pixels and places that are not active changes nothing; all that is read is active.

    Places lie on pixels, between them, on the edge, and outside of the image.
    """
    numbers = np.random.default_rng(axes)
    inside, outside = [5, 4, 3][:axes], [3, 4, 2][:axes]
    images = torch.tensor(numbers.normal(size=(2, 2, *inside)))
    grid = torch.tensor(numbers.uniform(-1.5, 1.5, (2, *outside, axes)))
    grid[0] = (2 * grid[0]).round() / 2
    chosen = torch.tensor(numbers.uniform(size=(2, 2, *outside)) > 0.5)
    weights = torch.tensor(numbers.normal(size=chosen.shape))

    def read(images, grid):
        options = {"mode": mode, "padding_mode": padding, "align_corners": corners}
        return torch.where(chosen, functional.grid_sample(images, grid, **options), 0.0)

    def gradient(grad, *arrays, **how):
        inputs = [x.clone().requires_grad_() for x in arrays]
        return grad((weights * read(*inputs)).sum(), inputs, **how)

    ordinary = gradient(torch.autograd.grad, images, grid)
    found, masks = gradient(masked.grad, images, grid, return_mask=True, on_unknown="error")
    bad = [torch.where(m, x, NAN) for m, x in zip(masks, (images, grid), strict=True)]
    cured = gradient(masked.grad, *bad, on_unknown="error")

    for one, two, three in zip(ordinary, found, cured, strict=True):
        assert torch.allclose(one, two, rtol=1e-12, atol=1e-12)
        assert torch.allclose(two, three, rtol=1e-12, atol=1e-12)
    for i in range(images.numel()):
        one_bad = torch.where(torch.arange(images.numel()).view(images.shape) == i, NAN, images)
        is_read = bool(read(one_bad, grid).isnan().any())
        assert not is_read or masks[0].flatten()[i]


def test_a_place_that_reads_a_nan_keeps_it(masked):
    """The place has the slope of the kernel, NaN; others that share no pixel with it do not."""
    images = torch.ones(1, 2, 4, 4, dtype=torch.float64)
    images[0, 1, 0, 0] = NAN
    grid = torch.tensor([[[[-0.9, -0.9], [0.6, 0.6]]]], dtype=torch.float64, requires_grad=True)

    out = functional.grid_sample(images, grid, align_corners=True)
    (all_used,) = masked.grad(out.sum(), grid, retain_graph=True)
    (one_used,) = masked.grad(out[:, 0].sum(), grid, retain_graph=True)
    (ordinary,) = torch.autograd.grad(out[:, 0].sum(), grid)

    assert all_used.isnan().tolist() == [[[[True, True], [False, False]]]]
    assert not one_used.isnan().any()
    assert ordinary.isnan().any()


def test_a_place_that_is_not_finite_and_is_used_is_ordinary_with_a_warning(masked):
    """Nobody knows what it reads; where it is not used it changes nothing."""
    images = leaf([[[[1.0, 2.0], [3.0, 4.0]]]])
    grid = torch.tensor([[[[0.0, 0.0], [INF, 0.0], [0.0, 0.0]]]], dtype=torch.float64)
    out = functional.grid_sample(images, grid, align_corners=False)

    (found,) = masked.grad(out[..., 0].sum(), images, retain_graph=True, on_unknown="error")

    assert found.flatten().tolist() == [0.25] * 4
    with pytest.warns(masked.UnknownOperationWarning, match="grid_sampler_2d_backward"):
        masked.grad(out[..., :2].sum(), images)


def test_zeros_times_a_number_are_zeros_of_the_formula(masked):
    """A convolution over time adds to zeros by `addmm_`, which multiplies these by 1."""
    weight = torch.ones(1, 1, 1, dtype=torch.float64)

    def f(x):
        return torch.conv_tbc(x.sqrt().view(2, 1, 1), weight, torch.zeros_like(weight[0, 0]))[:1]

    found, ordinary, active = gradients(masked, f, leaf([4.0, 0.0]), on_unknown="error")

    assert ordinary[1].isnan()
    assert found.tolist() == [0.25, 0.0]
    assert active.tolist() == [True, False]
