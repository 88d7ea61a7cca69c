"""What a program that PyTorch compiles keeps for its backward pass."""

import pytest

import safeops as so

pytestmark = pytest.mark.only("torch")

REDUCTIONS = (so.nansum, so.nanprod, so.nanmean, so.nanvar, so.nanstd, so.nanmax, so.nanmin)
KEEPING_NO_MASK = {f.__name__: f for f in REDUCTIONS}
KEEPING_NO_MASK["nansum, rows"] = lambda x: so.nansum(x, axis=-1)
KEEPING_NO_MASK["nanmean, where"] = lambda x: so.nanmean(x, where=x > 1)
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
