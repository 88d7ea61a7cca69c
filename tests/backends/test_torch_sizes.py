"""Norms to a compiler on a CPU: their scale comes of a sum."""

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


@pytest.mark.parametrize("cotangent", [2.0**-30, 1.0, 2.0**30, 2.0**50])
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


@pytest.mark.parametrize(
    ("row", "cotangent"), [([2.0**64.5, 1.0], 2.0**43), ([2.0**64.2, 1e-19], 1e10)]
)
def test_a_compiled_norm_is_scaled_by_its_size(row, cotangent):
    """By the largest number in place of its size a slope of these is infinite, or loses digits."""
    x = np.array([row], "float32")
    exact = x.astype("float64") / np.hypot(*x[0].astype("float64")) * cotangent

    _, slope = value_and_gradient(compiled(norm), x, cotangent)
    _, lost = value_and_gradient(lambda x: 2.0**76 * plain(x / 2.0**76), x, cotangent)

    np.testing.assert_allclose(slope, exact, rtol=1e-6)
    assert not np.allclose(lost, exact, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("name", ["safe_norm", "safe_rms"])
def test_a_compiled_norm_of_an_infinite_complex_slice_is_infinite(name):
    """A complex infinity divided by a scale is NaN."""
    import torch

    x = torch.tensor([[complex(np.inf, 0), 1 + 1j], [3 + 4j, 0], [3e30 + 4e30j, 0]])
    f = compiled(lambda x: getattr(so, name)(x, axis=-1))

    wanted = torch.tensor([np.inf, 5.0, 5e30]) / (1 if name == "safe_norm" else 2**0.5)
    torch.testing.assert_close(f(x), wanted)
    assert torch.isnan((x / torch.tensor(2.0**40, dtype=x.dtype)).imag[0, 0])


@pytest.mark.parametrize("n", [1, 3, 1000])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_rough_size_is_beside_the_norm(n, dynamic):
    """It is from the norm over the root of the number of entries to the norm."""
    import torch

    from safeops._backends.torch.slices import rough_size

    rows = torch.rand(50, n, dtype=torch.float64) ** 8 * 2.0 ** torch.arange(-25, 25)[:, None]
    rows[0], rows[1] = 1e308, 2.0**-1022
    found = torch.compile(rough_size, backend="aot_eager", dynamic=dynamic)(rows, -1)[:, 0]

    norm = torch.linalg.vector_norm(rows / rows.amax(-1, keepdim=True), dim=-1) * rows.amax(-1)
    norm = norm.clamp(max=torch.finfo(torch.float64).max)
    assert (found <= norm * (1 + 1e-14)).all()
    assert (found >= norm * n**-0.5 * (1 - 1e-14)).all()


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
