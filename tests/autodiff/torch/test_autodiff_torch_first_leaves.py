"""What the ordinary pass that runs first leaves on the leaves: what PyTorch leaves there."""

import threading

import pytest

from reported_torch import leaf, torch
from safeops._backends.torch import private
from safeops.autodiff import torch as masked

pytestmark = pytest.mark.only("torch")


def shapes(x):
    """Return what is seen of a gradient but for its numbers."""
    return x.grad.shape, x.grad.stride(), x.grad.dtype, x.grad.is_leaf, x.grad._is_view()


@pytest.mark.parametrize("lazy", [None, True])
@pytest.mark.parametrize("shape", [(5,), (1, 2), (2, 1), (1,), ()])
def test_data_of_another_shape_after_the_forward_pass(lazy, shape):
    """The leaf has the gradient that it has by PyTorch."""
    found = []
    for backward in (lambda loss: masked.backward(loss, lazy=lazy), torch.Tensor.backward):
        x = leaf([1.0, 4.0])
        loss = (x * torch.tensor([2.0, 3.0])).sum()
        x.data = torch.ones(shape, dtype=x.dtype)
        backward(loss)
        found.append(x.grad)

    assert found[0].shape == found[1].shape
    assert found[0].tolist() == found[1].tolist()


@pytest.mark.parametrize("lazy", [None, True])
@pytest.mark.parametrize("size", [4, 5000])
def test_strides_along_axes_of_one(lazy, size):
    """Large and small gradients have the strides that PyTorch gives them."""
    found = []
    for backward in (lambda loss: masked.backward(loss, lazy=lazy), torch.Tensor.backward):
        leaves = [torch.ones(size, 1).t().requires_grad_(), torch.ones(size, 1, requires_grad=True)]
        last = torch.ones(3, 1, requires_grad=True)
        solved = torch.linalg.solve(torch.eye(3), last).sum()
        backward((leaves[0] @ leaves[1]).sum() + solved)
        found.append([shapes(x) for x in (*leaves, last)])

    assert found[0] == found[1]


@pytest.mark.parametrize("lazy", [None, True, False])
@pytest.mark.parametrize("value", [0.0, 4.0], ids=["absent", "finite"])
def test_an_output_that_is_a_leaf(lazy, value):
    """It gets its cotangent beside the gradients of the others, once, and a mask."""
    x, w = leaf([value, 4.0]), leaf([1.0, 2.0])
    v = leaf([1.0, 2.0])
    others = [torch.where(x > 0, x.sqrt(), 0.0).sum(), (w * w).sum()]
    given = [*(torch.tensor([3.0, 5.0], dtype=w.dtype),) * 2, *map(torch.ones_like, others)]
    slope = 0.5 / value**0.5 if value else 0.0

    masked.backward([v, w, *others], given, lazy=lazy)

    assert x.grad.tolist() == [slope, 0.25]
    assert v.grad.tolist() == [3.0, 5.0]
    assert w.grad.tolist() == [5.0, 9.0]


@pytest.mark.parametrize("lazy", [None, True, False])
def test_the_tangent_of_a_gradient(lazy):
    """Forward mode over a gradient is masked too, though the gradient itself is finite."""
    x, forward_ad = leaf([0.0, 4.0]), torch.autograd.forward_ad

    with forward_ad.dual_level():
        y = forward_ad.make_dual(x, torch.ones_like(x))
        loss = torch.where(y > 0, y**1.5, 0.0).sum()
        gradient, tangent = forward_ad.unpack_dual(*masked.grad(loss, x, lazy=lazy))

    assert gradient.tolist() == [0.0, 3.0]
    assert tangent.tolist() == [0.0, 0.375]


def test_the_mask_of_an_output_that_is_a_leaf():
    """It is among those that are returned."""
    x, w = leaf([0.0, 4.0]), leaf([1.0, 2.0])

    masks = masked.backward([w, x.sqrt()[1]], [w.detach(), torch.ones_like(x[1])], return_mask=True)

    assert {id(key): mask.tolist() for key, mask in masks.items()} == {
        id(w): [True, True],
        id(x): [False, True],
    }


@pytest.mark.parametrize("lazy", [None, True, False])
def test_an_output_on_the_way_to_another(lazy):
    """Its cotangent is added to the gradient of the other; nothing retains that."""
    x = leaf([0.0, 4.0])
    first = torch.where(x > 0, x.sqrt(), 0.0).sum()

    masked.backward([first, 2.0 * first], lazy=lazy)

    assert x.grad.tolist() == [0.0, 0.75]


@pytest.mark.parametrize("lazy", [None, True, False])
@pytest.mark.parametrize("one", [False, True])
def test_inputs_that_are_edges_of_the_graph(lazy, one):
    """The edge of a leaf stands for the leaf; to another edge nothing is added, as in PyTorch."""
    x, other = leaf([0.0, 4.0]), leaf([1.0, 1.0])
    part = x * other
    edges = [torch.autograd.graph.get_gradient_edge(y) for y in (x, part)]

    loss = torch.where(part > 0, part.sqrt(), 0.0).sum()
    masked.backward(loss, inputs=edges[0] if one else edges, lazy=lazy)

    assert x.grad.tolist() == [0.0, 0.25]
    assert other.grad is None


@pytest.mark.parametrize("lazy", [None, True, False])
def test_gradients_of_edges(lazy):
    """`grad` returns the gradient of an edge of the graph."""
    x = leaf([0.0, 4.0])
    part = x * 1.0
    edge = torch.autograd.graph.get_gradient_edge(part)

    (found,) = masked.grad(torch.where(part > 0, part.sqrt(), 0.0).sum(), edge, lazy=lazy)

    assert found.tolist() == [0.0, 0.25]


@pytest.mark.parametrize("lazy", [None, True, False])
def test_a_leaf_that_no_longer_requires_a_gradient(lazy):
    """It has none, as in PyTorch."""
    x = leaf([1.0, 4.0])
    loss = (x**2).sum()
    x.requires_grad_(False)

    masked.backward(loss, lazy=lazy)

    assert x.grad is None


@pytest.mark.parametrize("keep", [False, True])
def test_a_large_gradient_takes_no_memory_twice(monkeypatch, keep):
    """The tensor of the pass becomes the gradient, unless a graph may still hold it."""
    from safeops.autodiff.torch import _first

    found, finite = [], _first.finite
    monkeypatch.setattr(_first, "finite", lambda *a: found.append(finite(*a)) or found[-1])
    x = torch.ones(5000, requires_grad=True)

    masked.backward((x**2).sum(), retain_graph=keep, lazy=True)

    assert (x.grad.data_ptr() == found[0][0].data_ptr()) is not keep
    assert not x.grad._is_view()


def test_a_hook_on_the_graph_of_another_thread_runs_once():
    """A pass of this thread does not make it known, though this one numbers its nodes alike."""
    x, seen, made, over = leaf([0.0, 4.0]), [], [], threading.Event()
    number = private.next_number()

    def work():
        while private.next_number() < number + 100:
            part = x * 1.0
        part.register_hook(lambda _: seen.append(1))
        made.append(torch.where(part > 0, part.sqrt(), 0.0).sum())
        ready.set()
        over.wait()

    ready = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    masked.backward(leaf([1.0]).sum(), lazy=False)
    while private.next_number() < number + 200:
        x.sin()
    masked.backward(made[0])
    over.set()
    thread.join()

    assert seen == [1]
    assert x.grad.tolist() == [0.0, 0.25]


@pytest.mark.parametrize("lazy", [None, True, False])
def test_an_output_that_retains_its_gradient(lazy):
    """It has its cotangent once, also where the ordinary gradient is NaN."""
    loss = torch.where((x := leaf([0.0, 4.0])) > 0, x.sqrt(), 0.0).sum()
    loss.retain_grad()

    masked.backward(loss, lazy=lazy)

    assert loss.grad.item() == 1.0
    assert x.grad.tolist() == [0.0, 0.25]


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("lazy", [None, True, False])
def test_a_gradient_with_a_graph(lazy):
    """With `create_graph` the gradient of a leaf can be differentiated."""
    x = leaf([1.0, 4.0])
    masked.backward((x**3).sum(), create_graph=True, lazy=lazy)
    first, x.grad = x.grad, None

    masked.backward(first.sum(), lazy=lazy)

    assert x.grad.tolist() == [6.0, 24.0]
