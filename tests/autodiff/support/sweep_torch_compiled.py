# ruff: noqa: T201  (it prints a table)
"""
Every operation of PyTorch's own test database, its masked gradient as a compiler traces it.

``python tests/autodiff/support/sweep_torch_compiled.py`` prints the cases that are not as they
should be, and the counts; ``--json`` every case, ``--samples 12`` more than one of each operation,
and names of operations leave out the others. The sweeps are those of `sweep_torch`. What
AOTAutograd records is run as it is, without a compiler.
"""

import argparse
import copy
import json
import re
import warnings
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch._functorch.aot_autograd import aot_function
from torch._functorch.compilers import nop
from torch.utils._pytree import tree_flatten, tree_unflatten

import sweep_torch
from safeops.autodiff import torch as masked
from safeops.autodiff.torch._compiled import MaskJointGraph


def traced(case, inputs, *, half, context):
    """Return the gradients of a traced function: of half of the output, or of all of it."""
    given = (case.sample.input, *case.sample.args), case.sample.kwargs
    flat, structure = tree_flatten(given)
    leaves = [i for i, x in enumerate(flat) if sweep_torch.is_leaf(x)]
    places = [i for i, x in enumerate(flat) if isinstance(x, torch.Tensor)]
    others = [i for i in places if i not in leaves]

    def f(xs, constants, selections, cotangents):
        every = dict(enumerate(flat)) | dict(zip(leaves, xs, strict=True))
        every |= dict(zip(others, constants, strict=True))
        sample = copy.copy(case.sample)
        (sample.input, *sample.args), sample.kwargs = tree_unflatten(every.values(), structure)
        here = replace(case, sample=sample, selections=selections, cotangents=cotangents)
        _, outputs = here.run(lambda i, _: xs[i])
        return (here.loss(outputs),) if half else tuple(outputs)

    xs = [x.detach().clone().requires_grad_() for x in inputs]
    constants = [flat[i].detach().clone() for i in others]
    with context:  # it is traced when it is called
        torch.manual_seed(0)
        outputs = aot_function(f, nop)(xs, constants, case.selections, case.cotangents)
    seeds = None if half else case.cotangents
    found = torch.autograd.grad(outputs, xs, seeds, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, xs, strict=True)]


def ours(case, inputs, *, half):
    """Return the masked gradients, and the operations without a rule that were told of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = traced(case, inputs, half=half, context=MaskJointGraph("warn"))
    words = [str(w.message) for w in told if w.category is masked.UnknownOperationWarning]
    return found, {re.match(r"no rule for (\w+)", text)[1] for text in words}


def ordinary(outputs, inputs, cotangents=None):
    """Return the gradients of eager PyTorch, zeros for what is not used."""
    found = sweep_torch.ordinary(outputs, inputs, cotangents)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)]


def sweep(op, sample):
    """Return the outcome of each sweep, by its name, and the operations without a rule."""
    case = sweep_torch.Case(op, sample)
    try:
        inputs, outputs = case.run()
        if not inputs or not outputs:
            return {"whole": "no gradient"}
        case.choose(outputs)
        whole = ordinary(outputs, inputs, case.cotangents)
        half = ordinary(case.loss(outputs), inputs)
    except RuntimeError:
        return {"whole": "no gradient"}
    try:
        return outcomes_of(case, inputs, outputs, whole, half)
    except Exception as error:  # noqa: BLE001  (a compiler raises what it likes)
        word = "PyTorch differs" if refused(case, inputs) else f"{type(error).__name__}: {error}"
        return {"whole": word}


def outcomes_of(case, inputs, outputs, whole, half):
    """Return how the gradients compare."""
    found, unknown = ours(case, inputs, half=False)
    outcomes = {"whole": sweep_torch.compare(found, whole)}
    if outcomes["whole"] == "different":  # as where random numbers are drawn
        plain = traced(case, inputs, half=False, context=nullcontext())
        if sweep_torch.compare(plain, whole) == "different":
            return {"whole": "PyTorch differs"}
    found, more = ours(case, inputs, half=True)
    outcomes["half"] = sweep_torch.compare(found, half)
    if sweep_torch.FATAL not in case.op.name and sweep_torch.all_finite(half):
        places, _ = sweep_torch.unread(case, inputs, outputs)
        some = any(p.any() for p in places)
        if some and sweep_torch.is_free(case, places, outputs, half):
            bad, _ = sweep_torch.planted(case, places)
            found, _ = ours(case, bad, half=True)
            outcomes["planted"] = sweep_torch.compare(found, half)
    return outcomes | {"unknown": sorted(unknown | more)}


def refused(case, inputs):
    """Whether PyTorch itself cannot trace an operation."""
    try:
        traced(case, inputs, half=True, context=nullcontext())
    except Exception:  # noqa: BLE001  (as above)
        return True
    return False


def records(names, count):
    """Yield what came out at each sample."""
    for op in sweep_torch.operations(names):
        every = list(op.sample_inputs("cpu", torch.float64, requires_grad=True))
        for number in range(0, len(every), max(1, len(every) // count))[:count]:
            known = {"op": op.full_name, "sample": number}
            yield known | sweep(op, every[number])


SWEEPS = ("whole", "half", "planted")
GOOD = {"equal", "rounding", "mended", "no gradient", "PyTorch differs"}


def main():
    """Print what came out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--samples", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    counts = Counter()
    for record in records(options.names, options.samples):
        found = {name: record[name] for name in SWEEPS if name in record}
        counts.update(found.items())
        if options.json or set(found.values()) - GOOD or record.get("unknown"):
            print(json.dumps(record), flush=True)
    print({" ".join(key): count for key, count in counts.items()})


if __name__ == "__main__":
    main()
