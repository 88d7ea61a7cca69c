# ruff: noqa: T201  (it prints a table)
"""
Random programs as a compiler traces them, against the tape of scalars.

``python tests/autodiff/support/programs_torch_compiled.py 5000 7000`` runs the programs of these
seeds, each with ``exact=True`` and without, prints those that differ from their tape, and counts.
Without `exact` the tape has the conservative matrix product too, and ``conservative`` counts the
programs in which it makes NaN of a finite number. Every second program has ``edges=True``, for its
mask.
"""

import sys
import warnings
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "support"))  # run as a script

import numpy as np
import torch

import reported_torch
import tape
from reported_torch import TapeOfTorch, Torch, programs
from safeops.autodiff import torch as masked


class Conservative(TapeOfTorch):
    """
    The tape with the matrix product of a compiled program that is not exact.

    An absent entry that shares its index of the sum with an active one, in a sum with active
    entries, is a 0 that meets its coefficient: it makes NaN if that is not finite.
    """

    def __init__(self):
        """Know no product yet."""
        self.products = []

    def matmul(self, x, y):
        """Multiply matrices, and note the product."""
        product = super().matmul(x, y)
        self.products.append((x, y, product))
        return product

    def finished(self, output):
        """Return an output whose products have further slopes of NaN, which reach nothing new."""
        reached = set(map(id, tape.reached(output)))
        for x, y, product in self.products:
            active = np.vectorize(lambda s: id(s) in reached)(product)
            spoil(product, active, x, y)
            spoil(product.T, active.T, y.T, x.T)
        return output


def spoil(product, active, x, y):
    """Give active entries of ``product = x @ y`` the slopes for `x` that are NaN."""
    for i, j in zip(*np.nonzero(~active), strict=True):
        if active[i].any() and active[:, j].any():
            result = product[i, active[i].argmax()]
            bad = [x[i, k] for k in range(len(y)) if not np.isfinite(y[k, j].value)]
            result.parents += tuple((s, np.nan) for s in bad)


def of_tape(program, x, *, exact):
    """Return the gradient of a tape, and what of it is active."""

    def run(_, leaves):
        ops = TapeOfTorch() if exact else Conservative()
        output = tape.run(program, ops, leaves)
        return output if exact else ops.finished(output)

    _, gradient, active = tape.masked_gradient(run, x)
    return gradient, active


def compiled(program, x, **options):
    """Return the masked gradient of a compiled program, and its mask where there is one."""
    torch._dynamo.reset()
    inputs = reported_torch.leaf(x)
    f = masked.compile(
        lambda x: tape.run(program, Torch(), x),
        backend="aot_eager",
        on_unknown="error",
        **options,
    )
    output = f(inputs)
    if not output.requires_grad:
        return None
    if not options["edges"]:
        output.backward()
        return inputs.grad.numpy(), None
    (gradient,), (active,) = masked.grad(output, inputs, return_mask=True, on_unknown="error")
    return gradient.numpy(), active.numpy()


def compare(program, x, *, exact, edges):
    """Return "equal", "conservative" or "no gradient"; raise if a program differs from its tape."""
    found = compiled(program, x, exact=exact, edges=edges)
    if found is None:
        return "no gradient"
    (ours, mask), (gradient, active) = found, of_tape(program, x, exact=exact)
    tape.assert_as_the_tape((ours, active if mask is None else mask), (gradient, active))
    ideal, _ = of_tape(program, x, exact=True)
    return "equal" if np.array_equal(*map(np.isfinite, (gradient, ideal))) else "conservative"


def main():
    """Print the programs that differ, and the counts."""
    reported_torch.torch = torch  # Dynamo cannot see it being loaded
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    counts = {exact: Counter() for exact in (True, False)}
    for seed, program, x in programs(*map(int, sys.argv[1:])):
        for exact, count in counts.items():
            try:
                word = compare(program, x, exact=exact, edges=bool(seed % 2))
            except Exception as error:  # noqa: BLE001  (a compiler raises what it likes)
                word = "different" if isinstance(error, AssertionError) else type(error).__name__
                print(f"seed {seed}, exact={exact}: {word}: {program}", flush=True)
            count[word] += 1
    for exact, count in counts.items():
        print(f"exact={exact}: {dict(count)}")


if __name__ == "__main__":
    main()
