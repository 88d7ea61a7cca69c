"""
The rows of `operations` as DTensors of two ranks; a script, of which two run.

With ``--write`` behind its arguments it puts what it counts in the table.
"""

import numpy as np
import torch
from torch.distributed.tensor.debug import CommDebugMode

import launched
import operations
import table
from ranks import RANK, in_parts, meet

EVEN, UNEVEN, FEW = 6, 5, 1  # of one row the second rank has nothing
SAME = {"rtol": 1e-10, "atol": 1e-12, "equal_nan": True}
FOUND = {}


def whole(x):
    """Return a tensor as it is on one device."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def counted(f):
    """Return what a function returns, and how many collectives of each kind it takes."""
    with CommDebugMode() as counter:
        value = f()
    return value, {
        str(kind).split(".")[-1]: n for kind, n in counter.get_comm_counts().items() if n
    }


def places(x):
    """Return where the parts of a tensor are, as a word."""
    return ",".join(
        f"shard {p.dim}" if p.is_shard() else "whole" if p.is_replicate() else "pending"
        for p in x.placements
    )


def leaves(arrays, axes=None):
    """Return tensors, those of floating numbers as leaves; in parts along axes."""
    tensors = [torch.as_tensor(np.array(x)) for x in arrays]
    if axes is not None:
        tensors = [in_parts(x, MESH, [axis]) for x, axis in zip(tensors, axes, strict=True)]
    return [x.requires_grad_(x.is_floating_point()) for x in tensors]


def cotangent(value):
    """Return a cotangent, in the parts of the value."""
    numbers = 2 + operations.wave(*value.shape, shift=0.7)
    ct = torch.as_tensor(numbers)
    if not hasattr(value, "placements"):
        return ct
    return in_parts(ct, MESH, [p.dim if p.is_shard() else None for p in value.placements])


def measured(f, args):
    """Return the value, the gradients, and what they cost."""
    value, forward = counted(lambda: f(*args))
    cost = {"forward": forward}
    if hasattr(value, "placements"):
        cost["result"] = places(value)
    if not value.is_floating_point():
        return value, [], cost
    inputs = [x for x in args if x.requires_grad]
    ct = cotangent(value)
    slopes, cost["gradient"] = counted(
        lambda: torch.autograd.grad(value, inputs, ct, allow_unused=True, retain_graph=True)
    )
    return value, slopes, cost


def second(value, args):
    """Return second derivatives of a sum of squares."""
    inputs = [x for x in args if x.requires_grad]
    slopes = torch.autograd.grad((value * value).sum(), inputs, create_graph=True)
    return torch.autograd.grad(sum((g * g * g).sum() for g in slopes), inputs)


def equal(got, wanted, what):
    """Check tensors against those of one device."""
    for x, y in zip(got, wanted, strict=True):
        if x is None or y is None:
            assert x is y, what
            continue
        torch.testing.assert_close(whole(x), y, **SAME, msg=lambda m: f"{what}: {m}")


# What is put together by hand on each rank (safeops/_backends/torch/ranks.py).
OF_RANKS = (
    "segment_sum", "segment_softmax", "segment_logsumexp", "safe_interp", "safe_pdist", "polar",
    "safe_slogdet",
)  # fmt: skip


def row(name):
    """Check an operation in each layout: value, gradient, collectives, and where the result is."""
    op = operations.ROWS[name]
    for n in (EVEN,) if table.WRITES else (UNEVEN, FEW):
        args = op.args(n)
        value, slopes, _ = measured(op.ours, alone := leaves(args))
        twice = second(value, alone) if n == UNEVEN and name in OF_RANKS else None
        for layout, axes in op.parts.items():
            parts = leaves(args, axes)
            got, found, cost = measured(op.ours, parts)
            equal([got], [value], f"{layout}, {n} rows")
            equal(found, slopes, f"gradient, {layout}, {n} rows")
            if twice is not None:
                equal(second(got, parts), twice, f"second derivatives, {layout}")
            if table.WRITES:
                FOUND.setdefault(name, {})[layout] = cost | plain(op, args, axes)
            elif n == UNEVEN:
                table.hold("DTensor", name, layout, cost)


def plain(op, args, axes):
    """Return what people write in its place costs; "error" if PyTorch raises."""
    import array_api_compat.torch as xp

    if op.plain is None:
        return {}
    try:
        _, _, cost = measured(lambda *x: op.plain(xp, *x), leaves(args, axes))
    except (RuntimeError, NotImplementedError) as error:
        return {"plain": f"{type(error).__name__}"}
    return {"plain": cost}


if __name__ == "__main__":
    MESH = meet()
    for name in operations.ROWS:
        launched.answer(name, lambda name=name: row(name))
    if table.WRITES and RANK == 0:
        table.write("DTensor", FOUND)
    torch.distributed.destroy_process_group()
