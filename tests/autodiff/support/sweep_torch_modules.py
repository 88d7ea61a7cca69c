# ruff: noqa: T201  (it prints a table)
"""
The modules of PyTorch's own test database, in train and eval, in float64, as `sweep_torch`.

``python tests/autodiff/support/sweep_torch_modules.py`` prints one outcome a line; names leave out
the others.
"""

import json
import sys
import warnings
from types import SimpleNamespace

import torch

from sweep_torch import Case
from sweep_torch_layouts import LAYOUTS, sweep

SAMPLES = 2  # of each module


def as_operation(info, inputs, *, training):
    """Return a module as an operation of its input and parameters, and a sample of those."""
    torch.manual_seed(0)
    made = inputs.constructor_input
    module = info.module_cls(*made.args, **made.kwargs).double().train(training)
    first, *args = inputs.forward_input.args
    parameters = {name: p.detach().requires_grad_() for name, p in module.named_parameters()}

    def f(x, *args, parameters, **kwargs):
        return torch.func.functional_call(module, parameters, (x, *args), kwargs)

    f.name = info.name
    kwargs = dict(inputs.forward_input.kwargs, parameters=parameters)
    keep = None
    return f, SimpleNamespace(input=first, args=args, kwargs=kwargs, output_process_fn_grad=keep)


def records(names=()):
    """Yield what came out of each module, in train and eval, in one layout after the other."""
    from torch.testing._internal.common_modules import module_db

    for place, info in enumerate(i for i in module_db if not names or i.name in names):
        for training in (True, False):
            given = {"device": "cpu", "dtype": torch.float64, "requires_grad": True}
            every = info.module_inputs_func(info, **given, training=training)
            for number, inputs in enumerate(every[:SAMPLES]):
                layout = list(LAYOUTS)[(place + number) % len(LAYOUTS)]
                known = {"op": info.name, "training": training, "layout": layout, "sample": number}
                try:
                    f, sample = as_operation(info, inputs, training=training)
                except (RuntimeError, TypeError, ValueError):
                    yield known
                    continue
                before, after = LAYOUTS[layout]
                before = before if "expanded" not in layout else LAYOUTS["contiguous"][0]
                yield known | sweep(Case(f, sample, before, after))


def main():
    """Print what came out."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for record in records(sys.argv[1:]):
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
