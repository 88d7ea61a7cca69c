"""What the default backend of `torch.compile` makes of formulas; other tests only trace them."""

import pytest

import safeops as so

pytestmark = pytest.mark.only("torch")

# Of positive numbers, and with their signs turned.
OF_SIZES = (so.log1mexp, so.log_expm1)
OF_NUMBERS = (so.safe_expm1, so.safe_atanh, so.log_cosh, so.log_sech2)


def values(sizes):
    """Return values at numbers of all sizes below 1, which a vector loop computes."""
    numbers = (sizes, -sizes)
    yield from (f(sizes) for f in OF_SIZES)
    yield from (f(x) for f in OF_NUMBERS for x in numbers)
    yield so.safe_logsubexp(sizes, 0.0)


def value_and_slopes(f, sizes):
    """Return all values, and the slopes of their sum."""
    import torch

    leaf = sizes.clone().requires_grad_()
    found = torch.stack(f(leaf))
    slopes = (torch.autograd.grad(x.sum(), leaf, retain_graph=True)[0] for x in found)
    return found.detach(), torch.stack(list(slopes))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_small_numbers_keep_their_digits(dtype):
    """Values and slopes are those of eager mode, down to the least numbers."""
    import torch

    sizes = torch.logspace(-30, -0.5, 64, dtype=getattr(torch, dtype))
    torch.compiler.reset()
    compiled = torch.compile(lambda x: list(values(x)), fullgraph=True)

    wanted = value_and_slopes(lambda x: list(values(x)), sizes)

    for got, exact in zip(value_and_slopes(compiled, sizes), wanted, strict=True):
        tolerance = 16 * torch.finfo(sizes.dtype).eps
        torch.testing.assert_close(got, exact, rtol=tolerance, atol=2 * sizes[0].item() ** 2)
