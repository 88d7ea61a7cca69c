"""
What masked autodiff costs on PyTorch: ``python benchmarks/autodiff_torch.py [--quick]``.

CPU time of forward and backward pass together, divided by PyTorch's, on one thread: the median of
pairs that take turns in one process, with quartiles. A row "A/A" compares PyTorch with itself.

Three networks of torch_geometric are measured where it is installed: three layers of width 64 on
200 nodes and 800 edges, of which 150 nodes are used.

Then come the programs that people reported (tests/autodiff/support/reported_torch.py), beside
`torch.masked.masked_tensor`: which of the two runs them and has the right gradient, and if both do,
the time of MaskedTensor divided by the time of safeops.
"""

import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from statistics import geometric_mean, median

import timing  # before torch: it sets the number of threads
import numpy as np
import torch
from torch.masked import masked_tensor

from safeops.autodiff import torch as masked

sys.path += [str(Path(__file__).parents[1] / f"tests/{x}support") for x in ("", "autodiff/")]
from reported_torch import REPORTED, leaf

torch.set_num_threads(1)
torch.manual_seed(0)
NAN = torch.nan


def layers(width, activation):
    """Return three layers."""
    pairs = [(torch.nn.Linear(width, width), activation()) for _ in range(3)]
    return torch.nn.Sequential(*(m for pair in pairs for m in pair))


def half_bad(x):
    """Return a batch whose second half is NaN."""
    return torch.cat([x[: len(x) // 2], torch.full_like(x[len(x) // 2 :], NAN)])


def chain(x):
    """Run twenty elementwise operations, five of them selections."""
    for _ in range(5):
        x = torch.where(x > 0, torch.log1p(x.abs()), torch.sin(x)) * 1.5
    return x


X, TOKENS, IMAGES = torch.randn(256, 1024), torch.randn(8, 32, 512), torch.randn(8, 8, 32, 32)
LEAF = torch.randn(256, 512, requires_grad=True)
SMALL = torch.nn.TransformerEncoder(
    torch.nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True), 2
)
MLP = layers(1024, torch.nn.ReLU)
ENCODER = torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
NET = torch.nn.Sequential(
    torch.nn.Conv2d(8, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3), torch.nn.ReLU()
)
# A function, its argument, and how many rows of the result are used.
PROGRAMS = {
    "MLP, 256 x 1024": (MLP, X, 256),
    "MLP, half of the rows used": (MLP, X, 128),
    "MLP, the other half NaN": (MLP, half_bad(X), 128),
    "encoder layer, 256 x 512": (ENCODER, TOKENS, 8),
    "encoder layer, half of the sequences used": (ENCODER, TOKENS, 4),
    "encoder layer, the other half NaN": (ENCODER, half_bad(TOKENS), 4),
    "two encoder layers, 6 of 8 sequences of 32 x 128 used": (SMALL, TOKENS[..., :128], 6),
    "elementwise chain": (chain, LEAF, 256),
    "conv net, 6 of 8 images used": (NET, IMAGES, 6),
}


def graph_networks():
    """Return networks whose steps are many small operations."""
    from torch_geometric.nn import models

    x, edges = torch.randn(200, 16), torch.randint(200, (2, 800))
    degrees = torch.bincount(edges[1].bincount())
    pna = {"aggregators": ["mean", "max", "std"], "scalers": ["identity"], "deg": degrees}
    for name, how in {"GIN": {}, "GAT": {"heads": 4}, "PNA": pna}.items():
        net = getattr(models, name)(16, 64, 3, **how)
        yield name, (net, (x, edges), 150)


WAYS = {
    "A/A": torch.Tensor.backward,
    "default": masked.backward,
    "masked": lambda loss: masked.backward(loss, lazy=False),
}


def step(program, backward):
    """Return a forward and a backward pass as a function."""
    f, x, rows = program
    parameters = list(f.parameters()) if isinstance(f, torch.nn.Module) else [x]
    args = x if isinstance(x, tuple) else (x,)

    def run():
        for parameter in parameters:
            parameter.grad = None
        backward(f(*args)[:rows].square().sum())

    return run


def print_costs(pairs):
    """Print what a step costs."""
    print("| program | way | step | quartiles |")
    print("| --- | --- | --- | --- |")
    networks = graph_networks() if find_spec("torch_geometric") else ()
    for name, program in (*PROGRAMS.items(), *networks):
        for way, backward in WAYS.items():
            cost, _ = timing.compare(step(program, backward), step(program, WAYS["A/A"]), pairs)
            print(f"| {name} | {way} | {cost.ratio:.2f} | {cost} |")


# Beside MaskedTensor.


def inverse(x):
    """Sum the reciprocals."""
    return (1 / x).sum()


def largest(x):
    """Take the largest logarithm."""
    return x.log().amax()


def beside(x, values):
    """Return a constant with the mask of a masked tensor."""
    return masked_tensor(torch.tensor(values, dtype=x.dtype), x.get_mask())


# Programs that do not run on a masked tensor, as a user of MaskedTensor would write them if the
# mask is known beforehand.
REWRITTEN = {
    "4132: division and boolean mask": lambda x: (x / beside(x, [0.0, 1.0])).sum(),
    "4132: y[mask] = 0": inverse,
    "4132: y[0] = 0": inverse,
    "4132: masked_fill": inverse,
    "4132: masked_select": inverse,
    "10729: where and sqrt": lambda x: x.sqrt().sum(),
    "52248: where and division": lambda x: (x.sin() / x).sum(),
    "67180: nansum": lambda x: (x * beside(x, [NAN, 3.0])).sum(),
    "55056: index of a power": lambda x: (x**0.5).sum(),
    "max of log": largest,
    "max with indices": largest,
    "aminmax": largest,
    "index_fill": lambda x: x.log().sum(),
    "mse with unknown targets": lambda x: ((x - beside(x, [NAN, 1.0])) ** 2).sum(),
}


def by_us(program, point):
    """Return a masked gradient."""
    x = leaf(point)
    masked.backward(program(x), on_unknown="error")
    return x.grad


def by_masked_tensor(program, point, active):
    """Return the gradient of MaskedTensor, which is told what is active."""
    x = masked_tensor(torch.tensor(point, dtype=torch.float64), active, requires_grad=True)
    program(x).backward()
    return x.grad.to_tensor(0.0)


def is_right(gradient, *args):
    """Whether a gradient is that of the table; MaskedTensor raises errors of many kinds."""
    try:
        return np.allclose(gradient(*args[:-1]), args[-1], rtol=1e-12)
    except (NotImplementedError, RecursionError, RuntimeError, TypeError, ValueError):
        return False


def print_comparison(pairs):
    """Print what MaskedTensor runs, and how long both take."""
    print("| program | MaskedTensor | its time over ours |")
    print("| --- | --- | --- |")
    count, times = {"ours": 0, "as it is": 0, "rewritten": 0}, []
    for name, (program, point, wanted) in REPORTED.items():
        x = leaf(point)
        _, (active,) = masked.grad(program(x), x, return_mask=True)
        count["ours"] += is_right(by_us, program, point, wanted)
        for way, other in (("as it is", program), ("rewritten", REWRITTEN.get(name))):
            if other and is_right(by_masked_tensor, other, point, active, wanted):
                theirs = lambda f=other, p=point, a=active: by_masked_tensor(f, p, a)  # noqa: E731
                ours = lambda f=program, p=point: by_us(f, p)  # noqa: E731
                times.append(timing.compare(theirs, ours, pairs)[0].ratio)
                print(f"| {name} | {way} | {times[-1]:.1f} |")
                count[way] += 1
                break
    print(f"\nright, of {len(REPORTED)} programs: {count}")
    print(
        f"time of MaskedTensor over ours: from {min(times):.1f}, median {median(times):.1f}, ",
        end="",
    )
    print(f"geometric mean {geometric_mean(times):.1f}")


if __name__ == "__main__":
    warnings.filterwarnings("ignore", ".*MaskedTensor")  # that it is a prototype, and what it lacks
    pairs = 8 if "--quick" in sys.argv else 40
    print_costs(pairs)
    print()
    print_comparison(10 * pairs)
