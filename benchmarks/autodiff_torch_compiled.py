"""
What `compile` costs on PyTorch: ``python benchmarks/autodiff_torch_compiled.py [--quick] [NAME]``.

CPU time of forward and backward pass together, divided by that of `torch.compile`, on one thread:
the median of pairs that take turns in one process, with quartiles; A/A is `torch.compile` over
itself. Then the time to compile, and the bytes that are kept for the backward pass, both divided by
those of `torch.compile`. Names select the programs that begin with them; `--quick` takes small
ones, to try the script.
"""

import os
import sys
import warnings

import timing  # before torch: it sets the number of threads

# Each compilation is done, in this process and those that it waits for.
os.environ |= {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}

import torch

from safeops.autodiff import torch as masked

torch.set_num_threads(1)
torch.manual_seed(0)
QUICK = "--quick" in sys.argv
SMALL = 8 if QUICK else 1
PAIRS = 5 if QUICK else 40
WORDS = 48  # of 64; the others are padding


def layers(width):
    """Return three layers."""
    pairs = [(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(3)]
    return torch.nn.Sequential(*(m for pair in pairs for m in pair))


def half_bad(x):
    """Return a batch whose second half is NaN."""
    return torch.cat([x[: len(x) // 2], torch.full_like(x[len(x) // 2 :], torch.nan)])


def chain(x):
    """Run twenty elementwise operations, five of them selections."""
    for _ in range(5):
        x = torch.where(x > 0, torch.log1p(x.abs()), torch.sin(x)) * 1.5
    return x


class Transformer(torch.nn.Module):
    """A language model of two layers, with norms first and its embedding as its head."""

    def __init__(self, words=512 // SMALL, width=256 // SMALL, length=64):
        """Make the layers."""
        super().__init__()
        self.words = torch.nn.Embedding(words, width)
        self.places = torch.nn.Parameter(0.02 * torch.randn(length, width))
        options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, 4, 4 * width, **options) for _ in range(2)
        )
        self.norm = torch.nn.LayerNorm(width)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        self.register_buffer("later", later)

    def forward(self, tokens):
        """Return the loss of each next word; a word of 0 is padding, which has none."""
        x = self.words(tokens) + self.places
        for layer in self.layers:
            x = layer(x, src_mask=self.later)
        scores = (self.norm(x) @ self.words.weight.T)[:, :-1].flatten(0, 1)
        aims = tokens[:, 1:].flatten()
        lost = torch.nn.functional.cross_entropy(scores, aims, reduction="none")
        return torch.where(aims > 0, lost, 0.0)


X = torch.randn(256 // SMALL, 1024 // SMALL)
TOKENS = torch.randn(8, 32 // SMALL, 512 // SMALL)
IMAGES = torch.randn(8, 8, 32 // SMALL + 8, 32 // SMALL + 8)
LEAF = torch.randn(256, 512 // SMALL, requires_grad=True)
TEXT = torch.randint(1, 512 // SMALL, (8, 64)) * (torch.arange(64) < WORDS)
MLP = layers(1024 // SMALL)
ENCODER = torch.nn.TransformerEncoderLayer(
    512 // SMALL, 8, 2048 // SMALL, dropout=0.0, batch_first=True
)
NET = torch.nn.Sequential(
    torch.nn.Conv2d(8, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3), torch.nn.ReLU()
)
# A function, its argument, and how many rows of the result are used.
PROGRAMS = {
    "MLP": (MLP, X, len(X)),
    "MLP, half of the rows used": (MLP, X, len(X) // 2),
    "MLP, the other half NaN": (MLP, half_bad(X), len(X) // 2),
    "encoder layer": (ENCODER, TOKENS, 8),
    "encoder layer, half of the sequences used": (ENCODER, TOKENS, 4),
    "encoder layer, the other half NaN": (ENCODER, half_bad(TOKENS), 4),
    "elementwise chain": (chain, LEAF, 256),
    "conv net, 6 of 8 images used": (NET, IMAGES, 6),
    "transformer of two layers, padded": (Transformer(), TEXT, None),
}


def step(program, compile_it):
    """Return a forward and a backward pass as a function."""
    f, x, rows = program
    leaves = list(f.parameters()) if isinstance(f, torch.nn.Module) else [x]
    loss = compile_it(lambda x: f(x)[:rows].square().sum())

    def run():
        for leaf in leaves:
            leaf.grad = None
        loss(x).backward()

    run.loss = lambda: loss(x)
    return run


def first_call(run):
    """Return the CPU time of the first call, which compiles, with that of the C++ compiler."""
    start = sum(os.times()[:4])
    run()
    return sum(os.times()[:4]) - start


def kept_bytes(run):
    """Return the bytes of the tensors that a forward pass keeps, each memory once."""
    kept = {}

    def keep(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = run.loss()
    del loss
    return sum(kept.values())


def print_costs(names):
    """Print what a step costs, beside PyTorch's own."""
    print("| program | step | quartiles | A/A | quartiles | compiling | kept |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    torch.compile(torch.sin)(torch.zeros(2, requires_grad=True)).sum().backward()  # all is loaded
    for name in names:
        torch.compiler.reset()
        plain = step(PROGRAMS[name], lambda f: torch.compile(f, fullgraph=True))
        ours = step(PROGRAMS[name], lambda f: masked.compile(f, on_unknown="error"))
        compiling = [first_call(run) for run in (plain, ours)]
        kept = [kept_bytes(run) for run in (plain, ours)]
        cost, same = timing.compare(ours, plain, PAIRS)
        others = [f"{b / a:.2f}" for a, b in (compiling, kept)]
        cells = [name, f"{cost.ratio:.2f}", cost, f"{same.ratio:.2f}", same, *others]
        print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=UserWarning)
    wanted = tuple(x for x in sys.argv[1:] if not x.startswith("--"))
    print_costs([name for name in PROGRAMS if not wanted or name.startswith(wanted)])
