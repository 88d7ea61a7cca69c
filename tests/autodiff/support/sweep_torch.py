# ruff: noqa: T201  (it prints a table)
"""
Every operation of PyTorch's own test database, its masked gradient beside the ordinary one.

``python tests/autodiff/support/sweep_torch.py`` prints the counts, ``--json`` every outcome, and
names of operations leave out the others. Three sweeps, in float64:

- whole: nothing is masked;
- half: half of the output is left out by a `where`, at a point where all is finite;
- planted: NaN stands in inputs that the other half does not read. The right gradient is that of
  `half`, where ordinary gradients are finite.

It runs in a process of its own: the module of the database switches global flags of PyTorch off,
and the profile of Hypothesis.
"""

import json
import re
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from itertools import starmap

import torch
from torch.utils._pytree import tree_leaves, tree_map

from safeops.autodiff import torch as masked

SAMPLES = 12  # of each operation, evenly out of as many as 1440
SWEEPS = ("whole", "half", "planted", "PyTorch")
PROBES = 32  # entries of each input that are tried, one after the other, for who reads them
# No NaN here: kernels of its backward pass read memory at an index that they make of it (2.13).
FATAL = "grid_sample"


def is_dense(x):
    """Whether a tensor is one that this sweep can take apart."""
    return isinstance(x, torch.Tensor) and x.layout is torch.strided


def is_leaf(x):
    """Whether a tensor is an input to differentiate with respect to."""
    return isinstance(x, torch.Tensor) and x.requires_grad


@dataclass
class Case:
    """An operation at one of its samples, between two changes of layout."""

    op: object
    sample: object
    before: object = lambda x, _: x
    after: object = lambda y: y
    selections: list = field(default_factory=list)
    cotangents: list = field(default_factory=list)

    def run(self, changed=lambda _, x: x):
        """Return the inputs, changed by their place in the list, and the outputs."""
        inputs = []

        def fresh(x):
            if not isinstance(x, torch.Tensor):
                return x
            if not x.requires_grad:
                return x.detach().clone()
            inputs.append(changed(len(inputs), x.detach().clone()).requires_grad_())
            return self.before(inputs[-1], x.detach())

        sample = self.sample
        args, kwargs = tree_map(fresh, ((sample.input, *sample.args), sample.kwargs))
        torch.manual_seed(0)  # some draw random numbers
        out = self.op(*args, **kwargs)
        if sample.output_process_fn_grad:
            out = sample.output_process_fn_grad(out)
        return inputs, [self.after(y) for y in tree_leaves(out) if is_leaf(y) and is_dense(y)]

    def choose(self, outputs):
        """Choose half of the outputs, and weights."""
        torch.manual_seed(1)
        self.selections = [torch.rand(y.shape) > 0.5 for y in outputs]
        self.cotangents = [torch.randn_like(y) for y in outputs]

    def loss(self, outputs):
        """Return the weighted sum of the chosen half."""
        triples = zip(self.selections, outputs, self.cotangents, strict=True)
        return sum((torch.where(s, y, 0.0) * c).sum() for s, y, c in triples).real

    def read(self, outputs):
        """Return the chosen half, without NaN that it has of its own."""
        return [y[s] for s, y in zip(self.selections, outputs, strict=True)]


def ordinary(outputs, inputs, cotangents=None):
    """Return the gradients of PyTorch."""
    return torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True, retain_graph=True)


def ours(outputs, inputs, cotangents=None):
    """Return the masked gradients, and the operations without a rule that they met."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        how = {"allow_unused": True, "retain_graph": True, "lazy": False}
        found = masked.grad(outputs, inputs, cotangents, **how)
    words = [str(w.message) for w in told if w.category is masked.UnknownOperationWarning]
    return found, {re.match(r"no rule for (\w+)", text)[1] for text in words}


def compare(found, wanted):
    """Return in one word how gradients differ from those that they should be."""
    words = set(starmap(compare_one, zip(found, wanted, strict=True)))
    order = ("different", "not finite", "mended", "rounding")
    return next((word for word in order if word in words), "equal")


def compare_one(found, wanted):
    """Return how one gradient differs."""
    if found is None or wanted is None or not is_dense(wanted):
        return "equal" if (found is None) == (wanted is None) else "different"
    if torch.equal(found.isnan(), wanted.isnan()) and torch.equal(numbers(found), numbers(wanted)):
        return "equal"
    good, ok = found.isfinite(), wanted.isfinite()
    if not is_close(found[good & ok], wanted[good & ok]):
        return "different"
    if (ok & ~good).any():
        return "not finite"
    return "mended" if (good & ~ok).any() else "rounding"


def is_close(found, wanted):
    """Whether numbers are equal but for rounding; in low precision that is one of the largest."""
    if wanted.dtype is torch.bfloat16:
        largest = wanted.abs().max() if wanted.numel() else 0.0
        return bool(((found - wanted).abs() <= LOW * largest + 1e-6).all())
    return torch.allclose(found, wanted, rtol=1e-9, atol=1e-11)


LOW = 2.0**-4  # of bfloat16, which has 8 bits


def numbers(x):
    """Return a tensor with 0 for NaN."""
    return torch.where(x.isnan(), 0.0, x)


def unread(case, inputs, outputs):
    """
    Return for each input which entries can all be NaN without a change in the chosen half.

    And how often the operation refused one.
    """
    wanted = case.read(outputs)
    places = [torch.zeros_like(x, dtype=torch.bool) for x in inputs]
    refused = 0
    for place in places:
        for j in range(0, place.numel(), place.numel() // PROBES + 1):
            one = (torch.arange(place.numel()) == j).view(place.shape)
            place.logical_or_(one)
            try:
                kept = same(case.read(planted(case, places)[1]), wanted)
            except RuntimeError:
                kept, refused = False, refused + 1
            place.logical_and_(~one | kept)
    return places, refused


def planted(case, places, value=lambda _: torch.nan):
    """Return inputs and outputs with other values, NaN by default, in some entries."""
    return case.run(lambda i, x: torch.where(places[i], value(x), x))


def same(found, wanted):
    """Whether outputs are equal."""
    pairs = list(zip(found, wanted, strict=False))
    return len(found) == len(wanted) and all(torch.equal(*pair) for pair in pairs)


OTHERS = (lambda x: 0.875 * x, lambda x: x + 1, lambda x: x - 1)


def is_free(case, places, outputs, wanted):
    """Whether another number in these entries changes nothing, gradients included."""
    for value in OTHERS:
        inputs, near = planted(case, places, value)
        if same(case.read(near), case.read(outputs)):
            slopes = ordinary(case.loss(near), inputs)
            if compare(slopes, wanted) in ("equal", "rounding"):
                return True
    return False


def sweep(op, sample):
    """Return the outcome of each sweep, by its name, and the operations without a rule."""
    case = Case(op, sample)
    try:
        inputs, outputs = case.run()
        if not inputs or not outputs:  # of sparse tensors
            return {"whole": "no gradient"}, set()
        case.choose(outputs)
        given = outputs, inputs, case.cotangents
        whole = ordinary(*given)
        loss = case.loss(outputs)
        half = ordinary(loss, inputs)
    except RuntimeError:
        return {"whole": "no gradient"}, set()
    found, unknown = ours(*given)
    outcomes = {"whole": compare(found, whole)}
    found, more = ours(loss, inputs)
    outcomes["half"] = compare(found, half)
    if FATAL not in op.name and all_finite(half):
        outcomes |= sweep_planted(case, inputs, outputs, half)
    return outcomes, unknown | more


def all_finite(gradients):
    """Whether gradients are finite; the sparse ones count as not."""
    return all(g is None or (is_dense(g) and g.isfinite().all()) for g in gradients)


def sweep_planted(case, inputs, outputs, wanted):
    """Return the outcomes of the sweep with NaN, ours and PyTorch's."""
    places, refused = unread(case, inputs, outputs)
    if not any(p.any() for p in places):
        return {"planted": "NaN refused" if refused else "all is read"}
    if not is_free(case, places, outputs, wanted):
        return {"planted": "read by slopes"}
    bad, bad_outputs = planted(case, places)
    loss = case.loss(bad_outputs)
    pairs = (("planted", ours(loss, bad)[0]), ("PyTorch", ordinary(loss, bad)))
    words = {name: compare(found, wanted) for name, found in pairs}
    return {name: "right" if w in ("equal", "rounding") else w for name, w in words.items()}


def operations(names=(), dtype=torch.float64):
    """Return the differentiable operations, all of them if there are no names."""
    from torch.testing._internal.common_methods_invocations import op_db

    able = [op for op in op_db if dtype in op.dtypes and op.supports_autograd]
    if dtype is not torch.float64:
        able = [op for op in able if dtype in op.supported_backward_dtypes("cpu")]
    return [op for op in able if not names or op.full_name in names]


def is_elementwise(op):
    """Whether an operation is elementwise, by the kind that the database gives it."""
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

    return isinstance(op, BinaryUfuncInfo | UnaryUfuncInfo)


def records(names=()):
    """Yield what came out at each sample."""
    for op in operations(names):
        every = list(op.sample_inputs("cpu", torch.float64, requires_grad=True))
        for number in range(0, len(every), max(1, len(every) // SAMPLES))[:SAMPLES]:
            outcomes, unknown = sweep(op, every[number])
            known = {"op": op.full_name, "sample": number, "elementwise": is_elementwise(op)}
            yield known | outcomes | {"unknown": sorted(unknown)}


def main():
    """Print what came out."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = list(records([name for name in sys.argv[1:] if name != "--json"]))
    if "--json" in sys.argv:
        print(json.dumps(found))
        return
    for name in SWEEPS:
        print(name, dict(Counter(record[name] for record in found if name in record)))


if __name__ == "__main__":
    main()
