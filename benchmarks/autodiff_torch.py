"""
What masked autodiff costs on PyTorch: ``python benchmarks/autodiff_torch.py [--quick]``.

For each program, a backward pass of safeops over that of PyTorch, on one thread: the median of
pairs that take turns in one process, with quartiles. A row "A/A" holds PyTorch against itself.
"""

import sys
import time
from statistics import geometric_mean, quantiles

import torch

from safeops.autodiff import torch as masked

torch.set_num_threads(1)
torch.manual_seed(0)
N, D = 256, 512
X = torch.randn(N, D)
BAD = torch.cat([X[: N // 2], torch.full((N // 2, D), torch.nan)])
LAYERS = torch.nn.Sequential(
    *(m for _ in range(3) for m in (torch.nn.Linear(D, D), torch.nn.Tanh()))
)
ENCODER = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
TOKENS = torch.randn(16, 32, 128)
IMAGES = torch.randn(8, 8, 32, 32)
NET = torch.nn.Sequential(
    torch.nn.Conv2d(8, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3), torch.nn.ReLU()
)
LEAF = torch.randn(N, D, requires_grad=True)


def chain(x):
    """Run twenty elementwise operations, five of them selections."""
    for _ in range(5):
        x = torch.where(x > 0, torch.log1p(x.abs()), torch.sin(x)) * 1.5
    return x


# A function, its argument, and how many rows of the result are used.
PROGRAMS = {
    "MLP": (LAYERS, X, N),
    "MLP, NaN rows": (LAYERS, BAD, N // 2),
    "encoder layer": (ENCODER, TOKENS, 16),
    "elementwise chain": (chain, LEAF, N),
    "conv net": (NET, IMAGES, 6),
}
WAYS = {
    "A/A": torch.Tensor.backward,
    "default": masked.backward,
    "lazy": lambda loss: masked.backward(loss, lazy=True),
}


def seconds(program, backward):
    """Return the time of a forward and a backward pass."""
    f, x, rows = program
    start = time.perf_counter()
    backward(f(x)[:rows].sum())
    return time.perf_counter() - start


def main():
    """Print the table."""
    pairs = 8 if "--quick" in sys.argv else 40
    print("| program | way | run time | quartiles |")
    print("| --- | --- | --- | --- |")
    means = {way: [] for way in WAYS}
    for name, program in PROGRAMS.items():
        for way, backward in WAYS.items():
            seconds(program, backward)
            ratios = [
                seconds(program, backward) / seconds(program, WAYS["A/A"]) for _ in range(pairs)
            ]
            low, middle, high = quantiles(ratios, n=4)
            means[way].append(middle)
            print(f"| {name} | {way} | {middle:.2f} | {low:.2f} to {high:.2f} |")
    for way, ratios in means.items():
        print(f"| geometric mean | {way} | {geometric_mean(ratios):.2f} | |")


if __name__ == "__main__":
    main()
