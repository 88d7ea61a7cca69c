# ruff: noqa: T201  (it prints a table)
"""
Every operation of PyTorch's own test database in other dtypes and layouts, and in place on a view.

``python tests/autodiff/support/sweep_torch_layouts.py`` prints the counts, ``--json`` every
outcome, and ``--all`` takes all dtypes, layouts and samples, not one or two of each; names leave
out the other operations.

Each case goes through the sweeps of `sweep_torch`, and one more:

- used: ``x + sqrt(t)`` at ``t = 0`` takes the place of each input ``x``. What the ordinary gradient
  leaves undefined may become a number only where another ``x`` changes nothing that is read.

In place on a view, the operation out of place says what is right.
"""

import json
import sys
import warnings
from collections import Counter
from functools import partial

import torch

from sweep_torch import (
    FATAL,
    Case,
    all_finite,
    compare,
    operations,
    ordinary,
    ours,
    planted,
    same,
    sweep_planted,
)

DTYPES = (torch.float64, torch.complex128, torch.bfloat16)
SAMPLES = 12  # of each operation with --all


def turned(x, _=None):
    """Return a tensor of the same numbers, laid out from its last axis to its first."""
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)


def spaced(x, _=None):
    """Return a tensor of the same numbers, every second one in its memory."""
    return torch.stack([x, x], -1)[..., 0]


def expanded(x, _=None):
    """Return the first entry along an axis, seen as often as that is long."""
    return x[:1].expand(x.shape) if x.dim() and x.shape[0] else x


def untouched(x, _=None):
    """Return a tensor as it is."""
    return x


def permuted(y):
    """Return a tensor with its axes in reverse, as a view."""
    return y.permute(tuple(reversed(range(y.dim()))))


def flattened(y):
    """Return the entries of the reversed tensor in a row, which is a copy."""
    return permuted(y).reshape(-1)


def narrowed(y):
    """Return the first half, as a view."""
    return y.narrow(0, 0, (y.shape[0] + 1) // 2) if y.dim() else y


LAYOUTS = {
    "turned, permuted": (turned, permuted),
    "spaced, flattened": (spaced, flattened),
    "expanded, narrowed": (expanded, narrowed),
    "contiguous, permuted": (untouched, permuted),
    "turned, flattened": (turned, flattened),
    "spaced, narrowed": (spaced, narrowed),
    "contiguous": (untouched, untouched),
}


def in_place(op):
    """Return an operation that writes into the first half of a tensor."""
    write = op.get_inplace()

    def f(x, *args, **kwargs):
        base = torch.stack([x, x])
        write(base[0], *args, **kwargs)
        return base[0]

    f.name = op.name
    return f


def sweep(case, right=None):
    """Return the outcomes of a case; `right` is the case that says what is right, if another."""
    right = right or case
    try:
        inputs, outputs = right.run()
        if not inputs or not outputs:
            return {}
        right.choose(outputs)
        case.selections, case.cotangents = right.selections, right.cotangents
        whole = ordinary(outputs, inputs, right.cotangents)
        half = ordinary(right.loss(outputs), inputs)
        inputs, outputs = case.run()
        of_pytorch = compare(ordinary(case.loss(outputs), inputs), half)
        if of_pytorch == "different":  # in place it keeps the result, which is rounded
            return {"half": "PyTorch differs"}
        if not same(case.read(outputs), right.read(right.run()[1])):
            return {}
    except (RuntimeError, TypeError, ValueError, IndexError):
        return {}
    found = {"whole": compare(ours(outputs, inputs, case.cotangents)[0], whole)}
    of_half, unknown = ours(case.loss(outputs), inputs)
    found["half"] = compare(of_half, half)
    if FATAL not in case.op.name and all_finite(half):
        found |= sweep_planted(case, inputs, outputs, half)
        found["used"] = sweep_used(case)
    return found | {"unknown": sorted(unknown)}


def sweep_used(case):
    """Return whether something that is used, and undefined, has become a number."""
    layout = case.before
    case.before = lambda t, x: layout(x + t.sqrt(), x)
    try:
        inputs, outputs = case.run(lambda _, x: torch.zeros_like(x))
        loss = case.loss(outputs)
        without = ordinary(loss, inputs)
    except RuntimeError:
        return "refused"
    finally:
        case.before = layout
    found = ours(loss, inputs)[0]
    pairs = [(f, w) for f, w in zip(found, without, strict=True) if f is not None]
    if any((f.isfinite() & ~w.isfinite() & w.isinf()).any() for f, w in pairs):
        return "hidden"
    freed = [f.isfinite() & ~w.isfinite() for f, w in pairs]
    if not any(x.any() for x in freed):
        return "stays"
    every = iter(freed)
    places = [next(every) if f is not None else None for f in found]
    return "freed" if changes_nothing(case, places) else "hidden"


NEARBY = (lambda x: x * (1 + 1e-4), lambda x: x + 1e-4, lambda x: x - 1e-4)
# The next numbers of bfloat16; either may pass a neighbour in the order of the entries.
NEXT = (lambda x: x + x.abs().clamp(min=1e-3) / 128, lambda x: x - x.abs().clamp(min=1e-3) / 128)


def changes_nothing(case, places):
    """Whether other numbers at these places change nothing that is read."""
    inputs, outputs = case.run()
    wanted = case.read(outputs)
    zeros = [torch.zeros_like(x, dtype=torch.bool) for x in inputs]
    places = [z if p is None else p for p, z in zip(places, zeros, strict=True)]
    low = any(x.dtype is torch.bfloat16 for x in inputs)
    values = NEXT if low else NEARBY
    kept = [is_same(case.read(planted(case, places, f)[1]), wanted) for f in values]
    return any(kept) if low else all(kept)


def is_same(found, wanted):
    """Whether outputs are equal, but for a rounding far below what moved the inputs, squared."""
    pairs = list(zip(found, wanted, strict=False))
    options = {"rtol": 1e-12, "atol": 1e-13, "equal_nan": True}
    return len(found) == len(wanted) and all(
        x.shape == y.shape and torch.allclose(x, y, **options) for x, y in pairs
    )


def cases(names, *, every):
    """Yield operation, dtype, layout, number of the sample, and what makes the cases."""
    for dtype in DTYPES:
        for place, op in enumerate(operations(names, dtype)):
            samples = list(op.sample_inputs("cpu", dtype, requires_grad=True))
            if not samples:
                continue
            layouts = list(LAYOUTS.items())
            count = SAMPLES if every else 1
            for number in range(0, len(samples), max(1, len(samples) // count))[:count]:
                some = layouts if every else [layouts[place % len(layouts)]]
                if dtype is torch.float64 and not every:
                    some = [layouts[(place + i) % len(layouts)] for i in (0, 3)]
                where = number if every else (7 * place) % len(samples)
                for name, pair in some:
                    yield op, dtype, name, where, partial(Case, op, samples[where], *pair), None
                if op.get_inplace():
                    right = Case(op, samples[where])
                    make = partial(Case, in_place(op), samples[where])
                    yield op, dtype, "in place on a view", where, make, right


def records(names=(), *, every=False):
    """Yield what came out of each case."""
    for op, dtype, layout, number, make, right in cases(names, every=every):
        known = {"op": op.full_name, "dtype": str(dtype)[6:], "layout": layout, "sample": number}
        yield known | sweep(make(), right)


def main():
    """Print what came out."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    found = []
    for record in records(names, every="--all" in sys.argv):
        found.append(record)
        if "--json" in sys.argv:
            print(json.dumps(record), flush=True)
    if "--json" in sys.argv:
        return
    for name in ("whole", "half", "planted", "PyTorch", "used"):
        print(name, dict(Counter(record[name] for record in found if name in record)))


if __name__ == "__main__":
    main()
