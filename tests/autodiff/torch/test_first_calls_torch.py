"""The first calls cost what they do: nothing imports PyTorch's compiler for them."""

import os
import subprocess
import sys

import pytest

from private_names import HOUSE

pytestmark = pytest.mark.only("torch")
pytest.importorskip("torch", reason="PyTorch is not selected, and this file is about it alone")

# The compiler takes as long to import as PyTorch itself, and symbolic shapes a third of that.
PROGRAM = """
import sys, torch
from torch.autograd import forward_ad

known = set(sys.modules)
slow = {"torch._dynamo", "torch._inductor", "sympy", "array_api_compat.numpy"}

def tell(name):
    new = set(sys.modules) - known
    print(name, sorted(new & slow), len([x for x in new if x.split(".")[0] != "safeops"]))

def leaf():
    return torch.tensor([0.0, 4.0], requires_grad=True)

import safeops
safeops.safe_log(leaf()).sum().backward()
tell("operation")

safeops.safe_where(leaf() > 0, leaf(), torch.log, fill_value=0.0).sum().backward()
safeops.safe_logsumexp(leaf()).backward()
safeops.nanstd(leaf()).backward()
tell("operations")

with forward_ad.dual_level():
    safeops.safe_sqrt(forward_ad.make_dual(torch.ones(2), torch.ones(2)))
tell("forward")

from safeops.autodiff import torch as masked

def loss(x):
    return torch.where(x > 0, x.log(), 0.0).sum()

x = leaf()
masked.backward(loss(x), return_mask=True)
assert x.grad.tolist() == [0.0, 0.25], x.grad
tell("backward")

masked.grad(loss(x), x, create_graph=True, return_mask=True)
masked.value_and_grad(loss)(x)
with masked.masked_backward():
    loss(x).backward()
tell("masked")

total = lambda x: safeops.nansum(x * x)
print(torch.compile(total, backend="aot_eager", fullgraph=True)(leaf()).item())
marked = torch.compile(lambda x: masked.backward(total(x)), backend="aot_eager", fullgraph=True)
try:
    marked(leaf())
except torch._dynamo.exc.Unsupported as error:
    print(masked.REASON in str(error))
broken = torch.compile(lambda x: masked.backward(loss(x)), backend="eager")
broken(x := leaf())
print(x.grad.tolist())
"""


@pytest.fixture(scope="module")
def said():
    """What a program prints that counts modules after each first call."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(HOUSE.parent), *sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", ["operation", "operations", "forward", "backward", "masked"])
def test_a_first_call_imports_no_compiler(name, said):
    """Operations and masked passes import neither the compiler nor symbolic shapes."""
    (line,) = [line for line in said if line.startswith(f"{name} ")]

    assert line.startswith(f"{name} [] ")
    assert int(line.rpartition(" ")[2]) <= 80  # modules that are not of safeops: collectives


def test_programs_that_are_compiled_afterwards_are_what_they_were(said):
    """Marks set before there is a compiler hold: constants, and what no program takes up."""
    assert said[-3:] == ["16.0", "True", "[0.0, 0.25]"]
