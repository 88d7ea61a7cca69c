"""Norms to a compiler on a CPU: their scale comes of two sums of squares."""

from functools import partial

import numpy as np
import pytest

import safeops as so

pytestmark = pytest.mark.only("torch")

ROWS = [[3e30, 4e30], [3e-30, 4e-30], [3.0, 4.0], [3e38, 3e38], [0.0, 0.0], [1e-40, 0.0]]
ENDS = {"float32": (-126, 127), "float64": (-1022, 1023)}
MATRIX = 2.0 ** np.array([[0, -1, -3, -20], [-60, 0, -60, -60], [-7, -7, -7, 0]])


def compiled(f):
    """Return a function whose trace runs as it is."""
    import torch

    torch.compiler.reset()
    return torch.compile(f, backend="aot_eager", fullgraph=True)


def value_and_gradient(f, rows, cotangent=1.0):
    """Return the values of `rows`, and the gradient of their sum times a number."""
    import torch

    x = torch.tensor(rows, requires_grad=True)
    value = f(x)
    value.backward(torch.full_like(value, cotangent))
    return value.detach(), x.grad


def norm(x):
    """Return the norm of each row."""
    return so.safe_norm(x, axis=-1)


def plain(x):
    """Return the norm of each row, whose squares leave the range."""
    return (x * x).sum(-1).sqrt()


def test_a_compiled_norm_is_right_at_both_ends():
    """No square over- or underflows, subnormal slices are 0; those of the plain norm do."""
    import torch

    rows = np.array(ROWS, "float32")
    value, slope = value_and_gradient(compiled(norm), rows)
    lost, lost_slope = value_and_gradient(compiled(plain), rows)

    np.testing.assert_allclose(value, [5e30, 5e-30, 5.0, np.inf, 0.0, 0.0], rtol=2e-7)
    even = 2**-0.5
    wanted = [[0.6, 0.8], [0.6, 0.8], [0.6, 0.8], [even, even], [0.0, 0.0], [0.0, 0.0]]
    np.testing.assert_allclose(slope, wanted, rtol=2e-7)
    assert lost[0] == torch.inf
    assert lost[1] == 0
    assert torch.isnan(lost_slope[4]).all()


@pytest.mark.parametrize("cotangent", [2.0**-30, 1.0, 2.0**30])
@pytest.mark.parametrize("dtype", list(ENDS))
def test_a_compiled_norm_is_right_at_every_exponent(dtype, cotangent):
    """So are its slopes for small and large cotangents; the plain norm is wrong at half of them."""
    first, last = ENDS[dtype]
    scales = 2.0 ** np.arange(first, last).repeat(len(MATRIX))[:, None]
    rows = (np.tile(MATRIX, (last - first, 1)) * scales).astype(dtype)
    near = rows / scales
    length = np.sqrt((near**2).sum(-1))
    close = partial(np.testing.assert_allclose, rtol=8 * np.finfo(dtype).eps)

    value, slope = value_and_gradient(compiled(norm), rows, cotangent)
    lost, _ = value_and_gradient(compiled(plain), rows)

    with np.errstate(over="ignore"):
        close(value, (length * scales[:, 0]).astype(dtype), atol=np.finfo(dtype).smallest_normal)
    close(slope, near / length[:, None] * cotangent, atol=np.finfo(dtype).smallest_normal)
    assert np.mean(~np.isclose(lost, length * scales[:, 0], atol=0.0)) > 1 / 3


def test_a_compiled_norm_has_its_second_derivative_at_every_exponent():
    """It is ``(v - n (n v)) / length``; that of the plain norm is NaN or 0 at both ends."""
    import torch

    first, last = ENDS["float32"]
    scales = 2.0 ** np.arange(first + 8, last - 8)[:, None]
    rows = torch.as_tensor((np.array([0.6, 0.8]) * scales).astype("float32"))
    along = torch.as_tensor((np.array([0.8, -0.6]) * scales).astype("float32"))

    def curve(f):
        slope = torch.func.grad(lambda x: f(x).sum())
        return compiled(lambda x, v: torch.func.jvp(slope, (x,), (v,))[1])(rows, along).numpy()

    wanted = np.broadcast_to([0.8, -0.6], rows.shape)
    np.testing.assert_allclose(curve(norm), wanted, rtol=1e-5)
    assert np.mean(~np.isclose(curve(plain), wanted)) > 1 / 3


def test_a_compiled_norm_looks_for_no_largest_entry():
    """Other norms do."""
    import torch

    def traced(f):
        found = []

        def keep(graph, _):
            found.append(graph.code)
            return graph

        torch.compiler.reset()
        torch.compile(f, backend=keep, fullgraph=True)(torch.tensor(ROWS))
        return found[0]

    assert "amax" not in traced(norm)
    assert "amax" in traced(lambda x: so.safe_norm(x, axis=-1, ord=3))
