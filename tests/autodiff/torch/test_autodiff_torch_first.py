"""The ordinary pass of PyTorch that runs before a masked one: nobody sees that there were two."""

import gc
import sys
import threading

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
    from safeops._backends.torch import private
    from safeops.autodiff.torch import _first

    if private.names_of_saved(type) is None:
        pytest.skip("this PyTorch does not tell of hooks on what is saved (2.9)")
    # Hooks of other tests would be news to the first pass, and threads that they left keep it so.
    left, enumerate_all = threading.enumerate(), threading.enumerate
    monkeypatch.setattr(
        threading, "enumerate", lambda: [t for t in enumerate_all() if t not in left]
    )
    _first.KNOWN.note()
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


def unpacked(h, seen):
    """Return a sine that counts how often it is asked for its argument."""
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: seen.append(1) or x):
        return h.sin()


def watching(h, seen):
    """Return a product with a tensor whose class sees what is computed with it."""

    class Watching(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            del types, kwargs
            seen.append(1)
            return func(*[torch.ones_like(h) if isinstance(x, cls) else x for x in args])

    out = h * torch.Tensor._make_subclass(Watching, torch.ones(2, dtype=h.dtype))
    seen.clear()
    return out


def of_accumulation(x, hook):
    """Register a hook on the node that accumulates, before a pass by which hooks are known."""
    x.expand_as(x).grad_fn.next_functions[0][0].register_prehook(hook)
    hooked_before(leaf([0.0]) * 1.0, [], None)
    return x.sqrt()


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
    "hook of what is saved": lambda _, h, seen: unpacked(h, seen),
    "class of what is saved": lambda _, h, seen: watching(h, seen),
    "hook of an accumulation": lambda x, _, seen: of_accumulation(x, seen.append),
    "hook of an accumulation in Python": lambda x, _, s: of_accumulation(x, lambda _: s.append(1)),
}
ON_LEAVES = ("hook of a leaf", "accumulation", "hook of an accumulation")


@pytest.mark.parametrize("point", [0.0, 1.0])
@pytest.mark.parametrize("seer", SEERS)
def test_what_sees_a_pass_sees_one(masked, seer, point):
    """What is on the way runs once, finite or not, and with True twice; on a leaf always once."""
    counts = {}
    for lazy in (None, True):
        x, seen = leaf([point, 4.0]), []
        h = x.sqrt()
        other = SEERS[seer](x, h, seen)
        masked.backward(torch.where(x > 0, h if other is None else other, 0.0).sum(), lazy=lazy)
        counts[lazy] = len(seen)
        assert x.grad.isfinite().all()

    twice = not (point or seer.startswith(ON_LEAVES))
    assert counts == {None: 1, True: 1 + twice}


@pytest.mark.parametrize("lazy", [None, True, False])
def test_a_tensor_that_retains_its_gradient_has_it_once(masked, lazy):
    """It has the masked gradient, not the sum of both passes, where nothing was there before."""
    x = leaf([0.0, 4.0])
    h = x.sqrt()
    h.retain_grad()

    masked.backward(torch.where(x > 0, h, 0.0).sum(), lazy=lazy)

    assert h.grad.tolist() == [0.0, 1.0]
    assert x.grad.tolist() == [0.0, 0.25]


def test_tensors_in_a_model_retain_their_gradients(masked):
    """Where another part of the loss is NaN they have those of one pass, zeros among them."""
    torch.manual_seed(0)
    first, last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
    rows, used = torch.randn(3, 4), torch.tensor([True, False, True])[:, None]
    found = []
    for lazy in (None, False):
        h = first(rows)
        a = torch.nn.functional.gelu(h)
        y = last(a)
        zero = 0.0 * h
        kept = (h, a, y, zero)
        for x in kept:
            x.retain_grad()
        loss = torch.where(used, y**2, 0.0).sum() + (0.0 * zero).sum() + root(leaf([0.0]))
        masked.backward(loss, lazy=lazy)
        found.append([x.grad for x in kept])

    for x, expected in zip(*found, strict=True):
        assert torch.allclose(x, expected)


@pytest.mark.parametrize("points", [[0.0, 4.0], [0.0, 0.0]])
def test_an_earlier_gradient_that_is_retained_is_not_lost(masked, points):
    """Where it may be in the sum, or where all of the sum is NaN: an error, with the way out."""
    h = leaf(points) * 1.0
    h.retain_grad()
    loss = root(h)
    masked.backward(loss, lazy=False, retain_graph=True)

    with pytest.raises(RuntimeError, match="lazy=False"):
        masked.backward(loss, lazy=True)


def test_a_small_earlier_gradient_that_is_retained_is_not_lost(masked):
    """What is small beside the gradient of this pass, and is no rounding, is an error too."""
    h = leaf([0.0, 4.0]).float() * 1.0
    h.retain_grad()
    masked.backward((h * 1e-5).sum(), lazy=False, retain_graph=True)

    with pytest.raises(RuntimeError, match="lazy=False"):
        masked.backward(root(h), lazy=True)


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


def test_a_hook_in_c_on_a_graph_that_is_there_runs_once(masked):
    """A pass through another graph does not make it known; nor does a pass that keeps the graph."""
    x, seen = leaf([0.0, 4.0]), []
    losses = []
    for _ in range(2):
        h = x * 1.0
        h.register_hook(seen.append)
        losses.append(root(h))

    for loss in (*losses, losses[1]):
        masked.backward(loss, retain_graph=True)

    assert [g.tolist() for g in seen] == [[0.0, 0.25]] * 3


def test_a_finite_pass_leaves_what_pytorch_leaves(masked):
    """The gradient is the same tensor as before if PyTorch adds to it, and else another one."""
    table = torch.nn.Embedding(3, 2, sparse=True)
    squares = (table.weight**2).sum()
    places = torch.tensor([0, 1])

    masked.backward(table(places).sum())
    sparse = table.weight.grad
    masked.backward(squares)
    dense = table.weight.grad
    masked.backward(table(places).sum())

    assert sparse.is_sparse
    assert sparse.to_dense().tolist() == [[1.0] * 2] * 2 + [[0.0] * 2]
    assert table.weight.grad is dense
    expected = 2.0 * table.weight + 2.0 * sparse.to_dense()
    assert torch.allclose(dense, expected)


def test_sparse_gradients_that_are_not_finite(masked):
    """They are masked, or found to be finite though their sum overflows."""
    table = torch.nn.Embedding.from_pretrained(torch.zeros(2, 1), freeze=False, sparse=True)
    both = torch.tensor([0, 1])

    masked.backward(root(table(both)), on_unknown="ignore")
    first = table.weight.grad.to_dense().tolist()
    table.weight.grad = None
    masked.backward((3e38 * table(both)).sum())

    assert first == [[0.0], [0.0]]
    assert table.weight.grad.to_dense().isfinite().all()


@pytest.mark.parametrize("hidden", [False, True])
def test_a_gradient_that_the_loss_has_saved(masked, hidden):
    """A loss of an earlier gradient, as in a penalty, adds to that very tensor."""
    x = leaf([0.0, 4.0])
    (there,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    x.grad = there

    masked.backward((x.grad**2).sum() + (root(x) if hidden else 0.0))

    assert x.grad is there
    assert there.tolist() == [0.0, 48.0 + 2 * 48.0 * 24.0 + 0.25 * hidden]


def test_views_of_one_buffer_are_restored(masked):
    """Gradients that share memory, and its count of writes, are all as before the first pass."""
    x, y, buffer = leaf([0.0, 4.0]), leaf([1.0, 2.0]), leaf([1.0] * 4).detach()
    x.grad, y.grad = buffer[:2], buffer[2:]

    masked.backward(root(x) + (y**2).sum())

    assert buffer.tolist() == [1.0, 1.25, 3.0, 5.0]


def test_an_output_that_is_a_leaf(masked):
    """Its gradient is its cotangent: there is no graph to free."""
    x = leaf([2.0])

    masked.backward(x)
    masked.backward([x, 2.0 * x])

    assert x.grad.tolist() == [4.0]


def test_an_error_of_the_ordinary_pass_alone(masked):
    """PyTorch refuses eigenvectors with a NaN in their gradient; the masked one has none."""
    matrix = torch.tensor([[1.0, 1j], [-1j, 3.0]]).repeat(2, 1, 1).requires_grad_()
    size = torch.linalg.eigh(matrix)[1].abs() ** 2
    used = torch.tensor([True, False])[:, None, None]
    loss = torch.where(used, size**2, (size - size.detach()).sqrt()).sum()
    expected = torch.autograd.grad((size[0] ** 2).sum(), matrix, retain_graph=True)[0]

    with pytest.raises(RuntimeError, match="ill-defined"):
        torch.autograd.grad(loss, matrix, retain_graph=True)
    masked.backward(loss)

    assert torch.allclose(matrix.grad[0], expected[0])


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("hidden", [False, True])
def test_threads_add_to_one_gradient(masked, hidden, plain):
    """What one thread adds is not lost where the ordinary pass of another one is not finite."""
    w, one = leaf([[1.0] * 80] * 80), torch.eye(80, dtype=torch.float64)
    w.grad = torch.zeros_like(w)
    start = threading.Barrier(4)

    def work(bad):
        start.wait()
        for _ in range(15):
            y = w @ one @ one
            add = torch.Tensor.backward if plain and not bad else masked.backward
            add(y.sum() + (root(0.0 * y) if bad else 0.0))

    threads = [threading.Thread(target=work, args=(hidden and k % 2,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (w.grad == 60.0).all()


def test_what_the_collector_calls_is_not_called_by_the_engine(masked):
    """No garbage is collected during the pass, in which its finalizers would be ended."""
    import safeops

    calls = []
    gc.callbacks.append(lambda phase, _: calls.append(phase))
    threshold = gc.get_threshold()
    try:
        for k in range(40):
            y = leaf([1.0, 4.0])
            for _ in range(20):
                y = safeops.safe_sqrt(y) + 1.0
            gc.set_threshold(k + 1, 1, 1)
            masked.backward(y.sum())
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.pop()

    assert calls.count("start") == calls.count("stop")
    assert gc.isenabled()


@pytest.mark.parametrize("device", [False, True])
def test_a_graph_that_may_have_been_on_a_device_is_masked(
    masked, marked, monkeypatch, request, device
):
    """Leaves and loss may be on the CPU, and what is between them on a device."""
    from safeops.autodiff.torch._first import names_if_silent

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: device)
    names_if_silent.cache_clear()
    request.addfinalizer(names_if_silent.cache_clear)
    x, y = leaf([1.0, 4.0]), torch.zeros(2)
    y[:] = x

    for loss in (x.float().sum(), torch.zeros(2).copy_(x).sum(), y.sum()):
        masked.backward(loss)
    masked.backward(x.sum())

    assert len(marked) == 3 * device


def test_inputs_and_tensors_that_are_shared(masked, marked):
    """An input that is named twice counts once; gradients that are one tensor become two."""
    x, y, z = leaf([1.0, 4.0]), leaf([2.0, 3.0]), leaf([1.0, 1.0])

    masked.backward(root(x) + (x + y).sum(), inputs=[x, x, y])
    masked.backward((x + y + z).sum())
    x.grad.zero_()

    assert y.grad.tolist() == [2.0, 2.0]
    assert z.grad.tolist() == [1.0, 1.0]
    assert not marked


def test_gradients_that_are_views_of_one_tensor(masked, marked):
    """They become tensors of their own, as in PyTorch: writing into one leaves the other."""
    x, y = leaf([[1.0, 4.0]]), leaf([2.0, 3.0])

    masked.backward(((x.view(-1) + y) ** 2).sum())
    masked.backward(y.sum())
    x.grad.mul_(0.5)

    assert x.grad.tolist() == [[3.0, 7.0]]
    assert y.grad.tolist() == [7.0, 15.0]
    assert not marked


def test_a_write_into_a_view_is_masked(masked, marked):
    """Its node hides what it has saved, in which a hook may be."""
    x, y = leaf([1.0, 4.0]), torch.zeros(3, dtype=torch.float64)
    y[:2] = x

    masked.backward(y.sum())

    assert marked
    assert x.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("lazy", [None, True])
def test_inference_mode(masked, lazy):
    """A pass in inference mode is masked from the start, as no nodes are made there."""
    x = leaf([1.0, 4.0])
    loss = root(x)

    with torch.inference_mode():
        masked.backward(loss, lazy=lazy)

    assert x.grad.tolist() == [0.5, 0.25]


@pytest.mark.parametrize("lazy", [None, True])
@pytest.mark.parametrize("dtype", ["float8_e5m2", "float16"])
def test_gradients_of_few_bits(masked, dtype, lazy):
    """Those of 8 bits, which PyTorch cannot sum, are masked and have the ordinary values."""
    x = torch.tensor([1.0, 4.0]).to(getattr(torch, dtype)).requires_grad_()

    masked.backward(root(x.float()), lazy=lazy)

    assert x.grad.dtype is x.dtype
    assert x.grad.float().tolist() == [0.5, 0.25]


@pytest.mark.parametrize("lazy", [None, True])
def test_a_parameter_that_was_made_in_inference_mode(masked, lazy):
    """It has its gradient outside of that mode too."""
    with torch.inference_mode():
        x = leaf([1.0, 4.0])

    masked.backward((x + 1.0).sum(), lazy=lazy)

    assert x.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("lazy", [None, True])
def test_data_of_another_dtype_after_the_forward_pass(masked, lazy):
    """The leaf has the gradient of the data that were used, as in PyTorch."""
    x = leaf([1.0, 4.0])
    loss = root(x)
    x.data = x.data.float()

    masked.backward(loss, lazy=lazy)

    assert x.grad.tolist() == [0.5, 0.25]
