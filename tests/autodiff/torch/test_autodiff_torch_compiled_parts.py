"""What torch.compile has no way for, and the masks that it is given: as small as they can be."""

import re

import pytest

from assertions import assert_close
from reported_torch import leaf, torch

pytestmark = pytest.mark.only("torch")


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """Compile each test by itself, and let Dynamo see PyTorch, which it cannot see being loaded."""
    import torch as real

    monkeypatch.setitem(globals(), "torch", real)
    torch._dynamo.reset()


def loop_of_the_graph(x):
    """Take roots in a `while_loop`; the loss reads all but the first."""
    steps = torch.zeros((), dtype=torch.int64)
    body = lambda i, y: (i + 1, y.sqrt())  # noqa: E731  (a name for one line)
    _, y = torch._higher_order_ops.while_loop(lambda i, _: i < 2, body, (steps, x))
    return y[1:].sum()


def scan_of_the_graph(x):
    """Take roots in a `scan`; the loss reads all but the first."""
    add = lambda total, y: (total + y, y.sqrt().sqrt())  # noqa: E731  (a name for one line)
    start = torch.zeros((), dtype=x.dtype)
    return torch._higher_order_ops.scan(add, start, x)[1][1:].sum()


@pytest.mark.filterwarnings("ignore:.*script_method.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize("program", [loop_of_the_graph, scan_of_the_graph])
def test_loops_of_the_graph_are_unknown(masked, program):
    """A loop has no rule: it is said with its line, and hides nothing."""
    f = masked.compile(program, backend="aot_eager")
    with pytest.warns(masked.UnknownOperationWarning) as told:
        f(x := leaf([0.0, 16.0])).backward()

    (text,) = [str(w.message) for w in told if w.category is masked.UnknownOperationWarning]
    name = program.__name__.partition("_")[0]
    assert re.match(rf"no rule for (while_)?{name}, for File .*compiled_parts.py", text)
    assert f"{name}(" in text
    assert x.grad[0].isnan()
    assert_close(x.grad[1].item(), 0.25 * 16**-0.75, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_norm_that_counts_its_batches(masked):
    """
    A batch norm with ``momentum=None`` reads a number in Python, at which the graph breaks.

    With edges masks pass the break; as one graph PyTorch refuses it, masked or not.
    """
    norm = torch.nn.BatchNorm1d(2, momentum=None).double()
    x = leaf([[1.0, 2.0], [3.0, -1.0], [0.0, 0.0]])

    def program(x):
        return norm(x[:2]).exp().sum() + torch.where(x > 0, x.sqrt(), 0.0).sum()

    parts = masked.compile(program, backend="aot_eager", fullgraph=False, edges=True)
    (found,) = masked.grad(parts(x), x)
    (wanted,) = masked.grad(program(x), x)

    assert_close(found.numpy(), wanted.numpy(), rtol=1e-9, atol=1e-12)
    assert found.isfinite().all()
    assert norm.num_batches_tracked == 2
    for compile_it in (torch.compile, masked.compile):
        with pytest.raises(torch._dynamo.exc.UserError, match="data-dependent"):
            compile_it(program, backend="aot_eager", fullgraph=True)(x)


def of_padded_rows(x, kept):
    """Take a layer and a norm, and a loss of some of the rows."""
    h = x @ torch.linspace(-1, 1, 32 * 32, dtype=x.dtype).reshape(32, 32)
    y = torch.nn.functional.layer_norm(h * h.cos() + h.sigmoid(), (32,)).tanh()
    return torch.where(kept[..., None], y, 0).square().sum()


def of_rotated_rows(x, kept):
    """Do the same with rotated halves, as in Llama."""
    x = x + x.sigmoid()
    return of_padded_rows(x.sin() + torch.cat([-x[..., 16:], x[..., :16]], -1), kept)


def rows(dtype):
    """Return a batch of which half of the rows are NaN and padding."""
    kept = torch.arange(8 * 16).reshape(8, 16) % 2 == 0
    x = torch.linspace(-1, 1, 8 * 16 * 32, dtype=dtype).reshape(8, 16, 32)
    x = torch.where(kept[..., None], x, float("nan"))
    return x.requires_grad_(), kept


def test_a_mask_of_rows_stays_one(monkeypatch):
    """No disjunction and no reduction of masks is as wide as the rows: they repeat one entry."""
    from torch._dynamo.backends.common import aot_autograd

    from safeops.autodiff.torch import _compiled

    wide = []

    def keep(graph, _):
        for node in graph.graph.nodes:
            made = str(node.target).startswith(("aten.any", "aten.bitwise_or", "aten.logical_or"))
            if made and node.args[0].meta["val"].shape[-1:] == (32,):
                wide.append(str(node))
        return torch._functorch.compilers.nop(graph, _)

    monkeypatch.setattr(_compiled.private, "lookup_backend", lambda inner: inner)
    inner = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    x, kept = rows(torch.float64)
    torch.compile(of_padded_rows, backend=_compiled.Backend(inner, "error"))(x, kept).backward()

    assert wide == []
    good = x.detach()[kept].requires_grad_()
    of_padded_rows(good, torch.ones(len(good), dtype=torch.bool)).backward()
    assert_close(x.grad[kept].numpy(), good.grad.numpy(), rtol=1e-9, atol=1e-12)
    assert not x.grad[~kept].any()


def test_rotated_halves_of_padded_rows_compile(masked):
    """Inductor's C++ compiles the masks of slices that are put back, also of disjunctions."""
    x, kept = rows(torch.float64)
    y, _ = rows(torch.float64)

    masked.compile(of_rotated_rows, on_unknown="error")(x, kept).backward()
    masked.backward(of_rotated_rows(y, kept))

    assert x.grad.isfinite().all()
    assert_close(x.grad.numpy(), y.grad.numpy(), rtol=1e-9, atol=1e-12)


def test_an_axis_of_a_number(masked):
    """Where PyTorch takes an axis of an array without axes, masks do too."""
    x = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)

    def program(x):
        y = torch.where(x > 0, x.softmax(0), 0.0)
        return y.logsumexp(-1) + x.cumsum(0)

    masked.compile(program, backend="aot_eager", on_unknown="error")(x).backward()

    assert x.grad == 1
