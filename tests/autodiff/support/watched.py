"""
Correct programs of PyTorch, of the kinds that meet what watches them in unusual ways: the table.

Each returns tensors. It draws its random numbers after a seed, and touches no global state. The
modules `watched_autograd`, `watched_modules` and `watched_tensors` fill the table.
"""

from contextlib import contextmanager

from reported_torch import Lazy

torch, nn, functional = Lazy("torch"), Lazy("torch.nn"), Lazy("torch.nn.functional")
init, parametrize = Lazy("torch.nn.init"), Lazy("torch.nn.utils.parametrize")
parametrizations = Lazy("torch.nn.utils.parametrizations")

PROGRAMS = {}


def program(f):
    """Put a program into the table."""
    PROGRAMS[f.__name__] = f
    return f


def parameter(*shape):
    """Return a parameter of random entries."""
    return nn.Parameter(torch.rand(shape) + 0.5)


def gradients(loss, *parameters):
    """Run a backward pass; return what it has accumulated."""
    loss.backward()
    return [x.grad for x in parameters]


def trained(model, x, optimizer=None, steps=2):
    """Take steps; return the parameters."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    return [x.detach() for x in model.parameters()]


@contextmanager
def seeded():
    """Have the same random numbers each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
