"""What torch.compile itself has no way for: loops of the graph, and data in the Python code."""

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
@pytest.mark.second  # a branch of the graph is held to the same
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


@pytest.mark.second  # the edges have tests of their own
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
