"""The ordinary pass of PyTorch that runs before a masked one: nobody sees that there were two."""

import sys
from contextlib import suppress

import pytest

from reported_torch import leaf, torch

pytestmark = pytest.mark.only("torch")


@pytest.fixture
def masked():
    """Return what is tested, by default."""
    from safeops.autodiff import torch as masked

    return masked


@pytest.fixture
def marked(monkeypatch):
    """Return a list that has an entry for each masked pass."""
    from safeops.autodiff.torch import _first

    passes, masking = [], _first.masking
    monkeypatch.setattr(_first, "masking", lambda *a, **how: passes.append(1) or masking(*a, **how))
    return passes


def root(x):
    """Return a loss whose ordinary gradient is NaN at 0, and whose masked one is not."""
    return torch.where(x > 0, x.sqrt(), 0.0).sum()


def test_a_finite_gradient_is_the_ordinary_one(masked, marked):
    """Where it is finite no masked pass runs, by any door."""
    x = leaf([1.0, 4.0])

    masked.backward(root(x))
    found = [x.grad, *masked.grad(root(x), x), masked.value_and_grad(root)(x.detach())[1]]
    with masked.masked_backward():
        root(x).backward()

    assert [g.tolist() for g in found] == [[1.0, 0.5], [0.5, 0.25], [0.5, 0.25]]
    assert not marked


def test_else_it_is_masked(masked, marked):
    """Where it is not finite the masked pass adds to the tensor that is there, once."""
    x = leaf([0.0, 4.0])
    masked.backward(x.sum())
    there = x.grad

    masked.backward(root(x))

    assert there is x.grad
    assert there.tolist() == [1.0, 1.25]
    assert masked.grad(root(x), x)[0].tolist() == [0.0, 0.25]
    assert len(marked) == 2


@pytest.mark.parametrize("point", [0.0, 1.0])
def test_the_graph_is_freed_as_by_an_ordinary_pass(masked, point):
    """A second pass is the error of PyTorch, also through a part; unless the graph is kept."""
    x = leaf([point, 4.0])
    part = x.sqrt()
    loss = torch.where(x > 0, part, 0.0).sum()

    masked.backward(loss, retain_graph=True)
    masked.grad(loss, x)

    for y in (loss, part.sum()):
        with pytest.raises(RuntimeError, match="a second time"):
            y.backward()


def hooked_before(h, seen, loss):
    """Register a hook, and run another pass, after which it is not new any more."""
    from safeops.autodiff.torch import backward

    h.register_hook(lambda _: seen.append(1))
    backward(leaf([0.0, 1.0]).sqrt().sum(), lazy=False)
    return loss


def custom(h, seen):
    """Return what a custom function returns that counts its backward passes."""

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            del ctx
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            del ctx
            seen.append(1)
            return g

    return Counted.apply(h)


def checkpointed(h, seen):
    """Return what a checkpoint returns that counts how often it is computed again."""
    from torch.utils.checkpoint import checkpoint

    out = checkpoint(lambda h: seen.append(1) or h.sin(), h, use_reentrant=False)
    seen.clear()
    return out


def in_a_module(h, seen):
    """Return what a module returns with a hook on its backward pass."""
    module = torch.nn.Tanh()
    module.register_full_backward_hook(lambda *_: seen.append(1))
    return module(h)


# What may be noticed of a backward pass: a function of a leaf, of what is made of it, and of a list
# of what was seen. It returns what the loss is made of, or None if that is the same.
SEERS = {
    "hook of a leaf": lambda x, _, seen: x.register_hook(seen.append) and None,
    "accumulation": lambda x, _, seen: x.register_post_accumulate_grad_hook(seen.append) and None,
    "hook": lambda _, h, seen: h.register_hook(lambda _: seen.append(1)) and None,
    "hook in C": lambda _, h, seen: h.register_hook(seen.append) and None,
    "hook of before": lambda _, h, seen: hooked_before(h, seen, None),
    "prehook of a node": lambda _, h, seen: h.grad_fn.register_prehook(seen.append) and None,
    "hook of a node": lambda _, h, s: h.grad_fn.register_hook(lambda *_: s.append(1)) and None,
    "module": lambda _, h, seen: in_a_module(h, seen),
    "custom function": lambda _, h, seen: custom(h, seen),
    "checkpoint": lambda _, h, seen: checkpointed(h, seen),
}


@pytest.mark.parametrize("point", [0.0, 1.0])
@pytest.mark.parametrize("seer", SEERS)
def test_what_sees_a_pass_sees_one(masked, seer, point):
    """A hook, a function of the user and a checkpoint run once, finite or not; with True twice."""
    counts = {}
    for lazy in (None, True):
        x, seen = leaf([point, 4.0]), []
        h = x.sqrt()
        other = SEERS[seer](x, h, seen)
        masked.backward(torch.where(x > 0, h if other is None else other, 0.0).sum(), lazy=lazy)
        counts[lazy] = len(seen)
        assert x.grad.isfinite().all()

    assert counts == {None: 1, True: 1 if point else 2}


def test_a_tensor_that_retains_its_gradient_has_it_once(masked):
    """PyTorch would add the gradients of both passes: that is an error, with the way out."""
    x = leaf([0.0, 4.0])
    found = []
    for lazy in (None, False):
        h = x.sqrt()
        h.retain_grad()
        loss = torch.where(x > 0, h, 0.0).sum()
        with suppress(RuntimeError) if lazy is False else pytest.raises(RuntimeError, match="lazy"):
            masked.backward(loss, lazy=lazy)
        found.append(x.grad)

    assert h.grad.tolist() == [0.0, 1.0]
    assert found[0] is None
    assert found[1].tolist() == [0.0, 0.25]


def test_what_retains_a_finite_gradient(masked):
    """A finite gradient is retained as by PyTorch, of the loss too."""
    part = leaf([1.0, 4.0]) * 1.0
    loss = root(part)
    part.retain_grad()
    masked.backward(loss, retain_graph=True)
    first = part.grad.tolist()
    loss.retain_grad()

    masked.backward(loss)

    assert first == [0.5, 0.25]
    assert part.grad.tolist() == [1.0, 0.5]
    assert loss.grad.item() == 1.0


def test_masks_need_a_masked_pass(masked, marked):
    """`return_mask`, `create_graph` and ``on_unknown="error"`` do not try an ordinary one."""
    x = leaf([1.0, 4.0])
    for how in ({"return_mask": True}, {"create_graph": True}, {"on_unknown": "error"}):
        masked.grad(root(x), x, **how)
    assert len(marked) == 3

    masked.backward(x[1], lazy=False)
    known = masked.gradient_mask(x).tolist()
    masked.backward(0.0 * x[0])

    assert known == [False, True]
    with pytest.raises(ValueError, match="lazy=False"):
        masked.gradient_mask(x)


def test_who_watches_sees_one_pass(masked):
    """Anomaly mode, a watch, a dispatch mode and a profile function see one pass, without NaN."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counted(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            del types
            count[0] += 1
            return func(*args, **(kwargs or {}))

    x, counts, profile = leaf([0.0, 4.0]), [], lambda *_: None
    with torch.autograd.set_detect_anomaly(True):
        masked.backward(root(x))
    with masked.watch_backward(lambda _: None) as passes:
        masked.backward(root(x))
    for lazy in (None, False):
        count, loss = [0], root(x)
        with Counted():
            masked.backward(loss, lazy=lazy)
        counts += count
    sys.setprofile(profile)
    try:
        masked.backward(root(x))
        kept = sys.getprofile()
    finally:
        sys.setprofile(None)

    assert passes == [False]
    assert counts[0] == counts[1]
    assert kept is profile
    assert x.grad[0] == 0.0


def test_an_error_leaves_gradients_as_they_were(masked):
    """What was overwritten is PyTorch's error, and no gradient is changed or lost."""
    x = leaf([1.0, 4.0])
    masked.backward(x.sum())
    there, y = x.grad, x.exp()
    loss = y.sin().sum()
    y.mul_(2.0)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        masked.backward(loss + x.exp().sum())

    assert x.grad is there
    assert there.tolist() == [1.0, 1.0]
    assert sys.getprofile() is None


def test_an_embedding_bag_by_frequency_is_masked(masked, marked):
    """PyTorch's own gradient there is finite and wrong where a bag is left out (2.13)."""
    weight = leaf([[1.0], [2.0]])
    places, starts = torch.tensor([0, 0, 1]), torch.tensor([0, 1])
    out = torch.nn.functional.embedding_bag(
        places, weight, starts, mode="sum", scale_grad_by_freq=True
    )

    masked.backward(out[0].sum())

    assert marked
