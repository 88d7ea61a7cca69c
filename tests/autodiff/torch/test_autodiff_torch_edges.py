"""Masks at the edges of compiled graphs: a loss in eager code, parts in a row, unused outputs."""

import warnings

import pytest

from assertions import assert_close
from reported_torch import torch

pytestmark = [
    pytest.mark.only("torch"),
    # Dynamo looks at `.grad` of what a part is handed (2.13).
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]
NAN = float("nan")
GOOD = [False, True, True, False, True, True]


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """Compile each test by itself, and let Dynamo see PyTorch, which it cannot see being loaded."""
    import torch as real

    monkeypatch.setitem(globals(), "torch", real)
    torch._dynamo.reset()


@pytest.fixture
def parts():
    """Return two layers, their inputs with NaN rows, and which rows are good."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 4).double() for _ in range(2)]
    good = torch.tensor(GOOD)
    x = torch.where(good[:, None], torch.randn(6, 4, dtype=torch.float64), NAN)
    return layers, x, good


def loss_of(out, good):
    """Return a loss of the good rows."""
    return torch.where(good[:, None], out, 0.0).square().sum()


def eager_loss(part, layers, x, good):
    """The loss, and what stands between the parts, are eager."""
    first, second = map(part, layers)
    return loss_of(second(first(x).exp().T.contiguous().T), good)


def chained(part, layers, x, good):
    """All is compiled, in two parts."""
    first, last = part(layers[0]), part(lambda h: loss_of(layers[1](h), good))
    return last(first(x))


def unused_output(part, layers, x, good):
    """Nobody uses two of the outputs, one of which has no gradient."""

    def both(x):
        h = layers[0](x)
        return h.T, h.detach(), loss_of(layers[1](h), good)

    return part(both)(x)[2]


def used_twice(part, layers, x, good):
    """The engine adds up cotangents of one output, in place."""
    first, second = map(part, layers)
    h = first(x)
    return loss_of(second(h), good) + second(h)[1].sum() + h[2].sum()


def hooked(part, layers, x, good):
    """A hook at the edge writes into a cotangent: its entries are numbers then."""
    h = part(layers[0])(torch.nan_to_num(x))
    h.register_hook(lambda g: g.mul_(0).add_(1.0))
    return part(lambda h: loss_of(layers[1](h), good))(h)


def checkpointed(part, layers, x, good):
    """A checkpoint runs the compiled parts again, within the backward pass."""
    first, second = map(part, layers)
    run = lambda x: second(first(x)).exp()  # noqa: E731  (a name for one line)
    from torch.utils.checkpoint import checkpoint

    return loss_of(checkpoint(run, x, use_reentrant=False), good)


PROGRAMS = [eager_loss, chained, unused_output, used_twice, hooked, checkpointed]
# What an ordinary backward pass masks too: where nothing eager selects, adds or computes.
ALONE = [chained, unused_output, hooked]


def run(program, part, parts, backward):
    """Return the gradients of the layers."""
    layers, x, good = parts
    leaves = [p for layer in layers for p in layer.parameters()]
    for p in leaves:
        p.grad = None
    backward(program(part, layers, x, good))
    return leaves, [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in leaves]


@pytest.mark.parametrize("program", PROGRAMS)
def test_compiled_parts_keep_their_masks(masked, parts, program):
    """Gradients and their masks are those of eager mode, and nothing is unknown."""
    part = lambda f: masked.compile(f, backend="aot_eager", edges=True)  # noqa: E731

    def strict(loss):
        masked.backward(loss, on_unknown="error")

    leaves, wanted = run(program, lambda f: f, parts, strict)
    masks = [masked.gradient_mask(p) for p in leaves]
    _, found = run(program, part, parts, strict)

    for p, one, two, mask in zip(leaves, found, wanted, masks, strict=True):
        assert two.isfinite().all()
        assert_close(one.numpy(), two.numpy(), rtol=1e-12)
        assert torch.equal(masked.gradient_mask(p), mask)


@pytest.mark.parametrize("program", ALONE)
def test_an_ordinary_backward_is_masked_in_the_compiled_parts(masked, parts, program):
    """A part hands its masks to the one before; what nobody used is absent."""
    part = lambda f: masked.compile(f, backend="aot_eager", edges=True)  # noqa: E731
    without = lambda f: masked.compile(f, backend="aot_eager")  # noqa: E731
    _, wanted = run(program, lambda f: f, parts, masked.backward)

    _, found = run(program, part, parts, torch.Tensor.backward)
    _, naive = run(program, without, parts, torch.Tensor.backward)

    for one, two in zip(found, wanted, strict=True):
        assert_close(one.numpy(), two.numpy(), rtol=1e-12)
    assert program is hooked or naive[0].isnan().any()


def test_what_the_engine_adds_up_in_place_is_active(masked):
    """A mask is not believed of a cotangent into which something was written since."""
    first = masked.compile(torch.sqrt, backend="aot_eager", edges=True)
    second = masked.compile(lambda y: y[1:] * 2.0, backend="aot_eager", edges=True)
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    y = first(x)

    (second(y).sum() + y.sum()).backward()

    assert x.grad.tolist() == [float("inf"), 0.75]


def test_undefined_derivatives_stay_undefined(masked):
    """What the eager loss uses is a number in the compiled part, a 0 of it too."""
    part = masked.compile(lambda x: x.sqrt(), backend="aot_eager", edges=True)
    x = torch.tensor([0.0, 0.0, 4.0], requires_grad=True)

    masked.backward((part(x)[:2] * torch.tensor([0.0, 1.0])).sum())

    assert x.grad.isfinite().tolist() == [False, False, True]
    assert masked.gradient_mask(x).tolist() == [True, True, False]


def test_a_graph_break_keeps_masks(masked):
    """The parts around a graph break are one program."""

    def program(x):
        y = x.sqrt()
        torch._dynamo.graph_break()
        return torch.where(x > 0, y.sqrt(), 0.0).sum()

    x = torch.tensor([0.0, 1.0], requires_grad=True)

    masked.compile(program, backend="aot_eager", fullgraph=False, edges=True)(x).backward()

    assert x.grad.tolist() == [0.0, 0.25]


def test_a_part_without_edges_is_said(masked, parts):
    """Without edges absent entries become zeros, which is said once; nothing is hidden."""
    part = lambda f: masked.compile(f, backend="aot_eager")  # noqa: E731

    with pytest.warns(masked.UnknownOperationWarning, match="edges=True"):
        leaves, _ = run(eager_loss, part, parts, masked.backward)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        masked.backward(part(lambda x: x.square().sum())(torch.ones(2, requires_grad=True)))

    assert all(masked.gradient_mask(p).all() for p in leaves)


def test_the_mask_of_a_compiled_function(masked):
    """A gradient of a compiled function has the mask that it has without a compiler."""

    def program(x):
        return (x[1:].sqrt() * x[:-1]).sum() * 0.0 + 1 / x[1]

    x = torch.tensor([0.0, 2.0, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    first = lambda x: program(x[:3])  # noqa: E731  (a name for one line)
    compiled = masked.compile(first, backend="aot_eager", edges=True)

    (found,), (mask,) = masked.grad(compiled(x), x, return_mask=True)
    (wanted,), (mask_without,) = masked.grad(first(x), x, return_mask=True)

    assert mask.tolist() == mask_without.tolist() == [True, True, True, False]
    assert_close(found.numpy(), wanted.numpy(), rtol=1e-12)
    assert found.tolist() == [0.0, -0.25, 0.0, 0.0]
