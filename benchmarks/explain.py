"""
What an explanation costs: ``python benchmarks/explain.py [--quick]``.

For each program, the time of forward and backward pass under `explain`, divided by the time of the
plain passes, on one thread: the median of pairs that take turns in one process, with quartiles. A
row "A/A" compares the plain passes with themselves; "anomaly mode" runs them under PyTorch's own
detector, and "watched" as a script under ``python -m safeops explain``. The last two programs are
not finite.
"""

import time
import warnings
from functools import partial
from statistics import quantiles

import torch
from options import parsed

from safeops.autodiff.torch import explain_backward, record_lines, watch_backward

torch.set_num_threads(1)
torch.manual_seed(0)
warnings.filterwarnings("ignore", "Anomaly Detection has been enabled")
N, D = 256, 512
X = torch.randn(N, D)
BAD = torch.cat([X[: N // 2], torch.full((N // 2, D), torch.nan)])
LAYERS = torch.nn.Sequential(
    *(m for _ in range(3) for m in (torch.nn.Linear(D, D), torch.nn.Tanh()))
)
ENCODER = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
TOKENS = torch.randn(16, 32, 128)
LEAF = torch.randn(N, D, requires_grad=True)
ZEROS = torch.randn(N, D).clamp(min=0.0).requires_grad_()
SMALL = torch.randn(10, requires_grad=True)


def chain(x):
    """Run twenty elementwise operations, five of them selections."""
    for _ in range(5):
        x = torch.where(x > 0, torch.log1p(x.abs()), torch.sin(x)) * 1.5
    return x


def roots(x):
    """Run ten elementwise operations, five of which have an infinite slope that is not used."""
    for _ in range(5):
        x = torch.where(x > 0, torch.sqrt(x), x)
    return x


# A function, its argument, and how many rows of the result are used.
PROGRAMS = {
    "MLP": (LAYERS, X, N),
    "encoder layer": (ENCODER, TOKENS, 16),
    "elementwise chain": (chain, LEAF, N),
    "tiny elementwise chain": (chain, SMALL, 10),
    "MLP, NaN rows": (LAYERS, BAD, N // 2),
    "chain of roots at 0": (roots, ZEROS, N),
}
SICK = ("MLP, NaN rows", "chain of roots at 0")


def loss_of(f, x, rows):
    """Run the forward pass."""
    return f(x)[:rows].sum()


def plain(loss):
    """Run forward and backward pass."""
    loss().backward()


def in_anomaly_mode(loss):
    """Run them under PyTorch's detector."""
    with torch.autograd.detect_anomaly():
        loss().backward()


def watched(loss):
    """Run them as the command does."""
    with watch_backward(str):
        loss().backward()


def explained(loss):
    """Explain them, text included."""
    with record_lines():
        value = loss()
    str(explain_backward(value))


WAYS = {"A/A": plain, "anomaly mode": in_anomaly_mode, "watched": watched, "explain": explained}


def seconds(way, program):
    """Return the time that a way takes."""
    start = time.perf_counter()
    way(partial(loss_of, *program))
    return time.perf_counter() - start


def main():
    """Print the table."""
    pairs = 8 if parsed(__doc__).quick else 40
    print("| program | way | run time | quartiles |")
    print("| --- | --- | --- | --- |")
    for name, program in PROGRAMS.items():
        for way, run in WAYS.items():
            if way == "anomaly mode" and name in SICK:
                continue  # it stops at the first NaN
            take = partial(seconds, run, program)
            take()
            ratios = [take() / seconds(plain, program) for _ in range(pairs)]
            low, middle, high = quantiles(ratios, n=4)
            print(f"| {name} | {way} | {middle:.2f} | {low:.2f} to {high:.2f} |")


if __name__ == "__main__":
    main()
