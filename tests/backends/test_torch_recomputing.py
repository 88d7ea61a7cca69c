"""What a program that PyTorch compiles keeps for its backward pass."""

import subprocess
import sys

import pytest

import safeops as so
from safeops import segments

pytestmark = pytest.mark.only("torch")

REDUCTIONS = (so.nansum, so.nanprod, so.nanmean, so.nanvar, so.nanstd, so.nanmax, so.nanmin)
KEEPING_NO_MASK = {f.__name__: f for f in REDUCTIONS}
KEEPING_NO_MASK["nansum, rows"] = lambda x: so.nansum(x, axis=-1)
KEEPING_NO_MASK["nanmean, where"] = lambda x: so.nanmean(x, where=x > 1)
KEEPING_NO_MASK["boxcox"] = lambda x: so.boxcox(x, 0.5).sum()
KEEPING_NO_MASK["safe_pow"] = lambda x: so.safe_pow(x, 3.0).sum()


def kept_by_a_compiler(f):
    """Return the dtypes of what a compiled function of 4 entries keeps for its backward pass."""
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    x, kept = torch.tensor([1.0, torch.nan, 2.0, 3.0], requires_grad=True), []
    torch.compiler.reset()
    with saved_tensors_hooks(lambda y: kept.append(y.dtype) or y, lambda y: y):
        value = torch.compile(f, backend="aot_eager_decomp_partition", fullgraph=True)(x)
    value.backward()
    wanted = torch.autograd.grad(f(x), x)[0]
    torch.testing.assert_close(x.grad, wanted, equal_nan=True)
    return kept


@pytest.mark.parametrize("name", KEEPING_NO_MASK)
def test_a_compiler_keeps_no_mask(name):
    """It makes the mask again of the entries; of a plain `where` it keeps the mask."""
    import torch

    assert set(kept_by_a_compiler(KEEPING_NO_MASK[name])) == {torch.float32}
    assert torch.bool in kept_by_a_compiler(lambda x: torch.where(x > 0, x, 0.0).nansum())


def test_a_softmax_of_segments_keeps_no_mask():
    """Beside numbers it keeps the segments of entries, which the masks are made of too."""
    import torch

    def squares(x):
        return segments.segment_softmax(x, torch.arange(4) // 2, 2).square().sum()

    assert torch.bool not in kept_by_a_compiler(squares)


@pytest.mark.parametrize("dynamic", [None, True])
def test_one_reduction_of_another_compiles(dynamic):
    """The numbers of two powers are no inputs that their checkpoints would share."""
    import torch

    def mean_of_powers(x):
        return so.nanmean(so.safe_pow(so.safe_pow(x, 3.0), 0.5))

    x = torch.tensor([[1.0, 4.0, 9.0]], requires_grad=True)
    options = {"backend": "aot_eager", "dynamic": dynamic, "fullgraph": True}
    torch.compiler.reset()
    torch.compile(mean_of_powers, **options)(x).backward()

    torch.testing.assert_close(x.grad, torch.tensor([[0.5, 1.0, 1.5]]))  # 3/2 * sqrt(x) / 3


def test_a_program_with_a_reduction_is_exported():
    """What Dynamo exports has no checkpoint, which the exported program could not run."""
    import torch

    class Model(torch.nn.Linear):
        def forward(self, x):
            return so.nanmean(super().forward(x), axis=-1)

    model, x = Model(2, 3), torch.tensor([[1.0, 2.0]])

    exported = torch.export.export(model, (x,), strict=True).module()
    torch.testing.assert_close(exported(x), model(x))


FIRST_IN_A_CHECKPOINT = """
import torch
from torch.utils.checkpoint import checkpoint

import safeops as so

x = torch.tensor([4.0, 0.0], requires_grad=True)
part = lambda x: so.safe_sqrt(x)
program = lambda x: checkpoint(part, checkpoint(part, x, use_reentrant=False), use_reentrant=False)
value = torch.compile(program, backend="aot_eager", fullgraph=True)(x)
torch.testing.assert_close(value, program(x))
"""


def test_the_first_call_may_be_in_a_compiled_checkpoint():
    """An operation remembers nothing while a checkpoint is compiled, which Dynamo refuses."""
    command = [sys.executable, "-c", FIRST_IN_A_CHECKPOINT]
    run = subprocess.run(command, capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr
