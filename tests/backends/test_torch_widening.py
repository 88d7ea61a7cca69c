"""Norms of float32 that a compiler on a CPU sums in float64."""

import numpy as np
import pytest

import safeops as so

pytestmark = pytest.mark.only("torch")

ROWS = [[3e30, 4e30], [3e-30, 4e-30], [3.0, 4.0], [3e38, 3e38], [0.0, 0.0], [1e-40, 0.0]]


def compiled(f):
    """Return a function whose trace runs as it is."""
    import torch

    torch.compiler.reset()
    return torch.compile(f, backend="aot_eager", fullgraph=True)


def value_and_gradient(f):
    """Return the values of `ROWS`, and the gradient of their sum."""
    import torch

    x = torch.tensor(ROWS, requires_grad=True)
    value = f(x)
    value.backward(torch.ones_like(value))
    return value.detach(), x.grad


def test_a_compiled_norm_is_right_at_both_ends():
    """No square over- or underflows, subnormal slices are 0; those of the plain norm do."""
    import torch

    value, slope = value_and_gradient(compiled(lambda x: so.safe_norm(x, axis=-1)))
    plain, plain_slope = value_and_gradient(compiled(lambda x: (x * x).sum(-1).sqrt()))

    np.testing.assert_allclose(value, [5e30, 5e-30, 5.0, np.inf, 0.0, 0.0], rtol=2e-7)
    even = 2**-0.5
    wanted = [[0.6, 0.8], [0.6, 0.8], [0.6, 0.8], [even, even], [0.0, 0.0], [0.0, 0.0]]
    np.testing.assert_allclose(slope, wanted, rtol=2e-7)
    assert plain[0] == torch.inf
    assert plain[1] == 0
    assert torch.isnan(plain_slope[4]).all()


def test_a_compiled_norm_looks_for_no_largest_entry():
    """It sums in float64; a norm of float64 is scaled by its largest entry."""
    import torch

    def traced(dtype):
        found = []

        def keep(graph, _):
            found.append(graph.code)
            return graph

        torch.compiler.reset()
        f = torch.compile(lambda x: so.safe_norm(x, axis=-1), backend=keep, fullgraph=True)
        f(torch.tensor(ROWS, dtype=dtype))
        return found[0]

    assert "amax" not in traced(torch.float32)
    assert "torch.float64" in traced(torch.float32)
    assert "amax" in traced(torch.float64)
