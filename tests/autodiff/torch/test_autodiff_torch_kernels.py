"""Masked autodiff for PyTorch behind fused kernels: a NaN beside what is read changes nothing."""

import math
import warnings

import numpy as np
import pytest

from assertions import assert_close
from frameworks import Lazy

pytestmark = pytest.mark.only("torch")

NAN, INF = math.nan, math.inf


torch, functional = Lazy("torch"), Lazy("torch.nn.functional")


# A batch of two matrices and two right sides, of which the loss reads the first.

BATCHES = {
    "solve": lambda s, a, b: torch.linalg.solve_ex(s * a, b)[0],
    "solve from the right": lambda s, a, b: torch.linalg.solve_ex(s * a, b.mT, left=False)[0],
    "solve, for the right side": lambda s, a, b: torch.linalg.solve_ex(a, s * b)[0],
    "solve_triangular": lambda s, a, b: torch.linalg.solve_triangular(s * a.triu(), b, upper=True),
    "triangular_solve": lambda s, a, b: torch.triangular_solve(s * b, a.triu())[0],
    "inv": lambda s, a, _: torch.linalg.inv_ex(s * a)[0],
    "det": lambda s, a, _: torch.linalg.det(s * a),
    "slogdet": lambda s, a, _: torch.linalg.slogdet(s * a)[1],
    "cholesky": lambda s, a, _: torch.linalg.cholesky_ex(s * a @ a.mT)[0],
    "cholesky_solve": lambda s, a, b: torch.cholesky_solve(b, s * a.tril()),
    "lu": lambda s, a, _: torch.linalg.lu(s * a)[2],
    "lu_solve": lambda s, a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor_ex(s * a)[:2], b),
    "qr": lambda s, a, _: torch.linalg.qr(s * a)[1],
    "matrix_exp": lambda s, a, _: torch.linalg.matrix_exp(s * a),
    "matrix_power": lambda s, a, _: torch.linalg.matrix_power(s * a, 3),
    "ormqr": lambda s, a, b: torch.ormqr(a, b.mT[..., 0, :], s * b),
    "cdist": lambda s, a, b: torch.cdist(s * a, b.mT),
    "fft": lambda s, a, _: torch.fft.fft(s * a).abs(),
    "rfft": lambda s, a, _: torch.fft.rfft2(s * a).abs(),
    "irfft": lambda s, a, _: torch.fft.irfft(s * a),
}


@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")
@pytest.mark.parametrize("name", BATCHES)
def test_a_matrix_of_nan_in_a_batch_changes_nothing(masked, name):
    """Linear algebra of a batch is apart from matrix to matrix."""
    numbers = np.random.default_rng(0)
    a = torch.tensor(numbers.normal(size=(3, 3)) + 2 * np.eye(3))
    b = torch.tensor(numbers.normal(size=(3, 2)))
    bad = [torch.stack([x, x * NAN]) for x in (a, b)]

    def gradient(grad, *arrays):
        s = torch.tensor(1.25, dtype=torch.float64, requires_grad=True)
        return grad(BATCHES[name](s, *arrays)[:1].sum(), s)[0].item()

    wanted = gradient(torch.autograd.grad, a[None], b[None])
    with warnings.catch_warnings():
        warnings.simplefilter("error", masked.UnknownOperationWarning)
        assert_close(gradient(masked.grad, *bad), wanted, rtol=1e-9)
    assert math.isnan(gradient(torch.autograd.grad, *bad))


# Functions of rows. The loss reads part of the result: `read` of it is what a NaN row leaves alone.


def bags(**options):
    """Return a function that sums rows up in two bags of two."""
    indices, offsets = [0, 1, 2, 3], [0, 2]

    def f(x):
        embed = functional.embedding_bag
        return embed(torch.tensor(indices), x, torch.tensor(offsets), **options)[:1]

    return f


def weighted(x):
    """Sum rows up in bags, weighted by other rows."""
    indices, offsets = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 2])
    weights = x[:, 0].exp()
    embed = functional.embedding_bag
    return embed(indices, x, offsets, mode="sum", per_sample_weights=weights)[:1]


def segments(reduce):
    """Return a function that reduces segments of two rows; the last row is in none."""
    return lambda x: torch.segment_reduce(x, reduce, lengths=torch.tensor([2, 1]), unsafe=True)[:1]


def grouped(x):
    """Multiply the first two rows, and the others, by matrices of their own, in float32."""
    groups = torch.tensor([2, 4], dtype=torch.int32)
    weights = torch.ones(2, 8, 8).cumsum(-1)
    return functional.grouped_mm(x.float().repeat(1, 2), weights, offs=groups)[:2, :4]


def grouped_weights(x):
    """Multiply constant rows, of which two are NaN, by matrices of their own that rows make."""
    groups = torch.tensor([2, 4], dtype=torch.int32)
    weights = x[:2].sum().float() * torch.ones(2, 8, 8).cumsum(-1)
    return functional.grouped_mm(x.detach().float().repeat(1, 2), weights, offs=groups)[:2, :4]


def ctc(x):
    """Return the CTC loss of the first of two sequences."""
    logits = torch.stack([x[:2], x[2:]], 1).log_softmax(-1)
    lengths = torch.tensor([2, 2])
    targets = torch.tensor([[1], [1]])
    return functional.ctc_loss(logits, targets, lengths, lengths // 2, reduction="none")[:1]


def resized(mode, **options):
    """Return a function that resizes two images of two by four, and reads the first."""

    def f(x):
        images = x.view(2, 1, 2, 4)
        return functional.interpolate(images, size=(3, 7), mode=mode, **options)[:1]

    return f


def lengthened(x):
    """Resize two rows, and read the first."""
    return functional.interpolate(x.view(2, 1, 8), size=5, mode="linear")[:1]


def sparse(layout):
    """Return a function that multiplies by a sparse matrix whose second row is of NaN."""

    def f(x):
        dense = torch.eye(4, dtype=x.dtype) + torch.eye(4, dtype=x.dtype).flip(0)
        dense[3] *= x.detach()[3, 0]
        return (dense.to_sparse(layout=getattr(torch, layout)) @ x[:2].repeat(2, 1))[:2]

    return f


FUNCTIONS = {
    "logcumsumexp": lambda x: x.logcumsumexp(0)[:2],
    "logcumsumexp of negative cotangents": lambda x: -x.logcumsumexp(0)[:2],
    "logcumsumexp of one": lambda x: x.logcumsumexp(0)[1] * x[0],
    "complex logcumsumexp": lambda x: torch.complex(x, x / 2).logcumsumexp(0)[:2].imag,
    "cdist of pairs": lambda x: torch.cdist(x, x)[0, 1],
    "cdist by p = 1": lambda x: torch.cdist(x, x + 1, p=1.0)[:2, :2],
    "pdist": lambda x: torch.pdist(x)[0],
    "bags summed": bags(mode="sum"),
    "bags averaged": bags(mode="mean"),
    "bags of the largest": bags(mode="max"),
    "bags by frequency": bags(mode="sum", scale_grad_by_freq=True),
    "bags with padding": bags(mode="sum", padding_idx=1),
    "bags weighted": weighted,
    "segments summed": segments("sum"),
    "segments averaged": segments("mean"),
    "segments' largest": segments("max"),
    "segments' products": segments("prod"),
    "grouped product": grouped,
    "grouped product, weights": grouped_weights,
    "bilinear": lambda x: functional.bilinear(x, x, torch.ones(2, 4, 4, dtype=x.dtype).tril())[:2],
    "weight norm": lambda x: torch._weight_norm(x, x[:, :1].exp(), 0)[:2],
    "weight norm of columns": lambda x: torch._weight_norm(x.T, x[:, 0].exp()[None], 1)[:, :2].T,
    "multi margin loss": lambda x: functional.multi_margin_loss(
        x, torch.arange(4), reduction="none"
    )[:2],
    "multilabel margin loss": lambda x: functional.multilabel_margin_loss(
        x, torch.tensor([[1, -1, 0, 0]] * 4), reduction="none"
    )[:2],
    "CTC loss": ctc,
    "linear resampling": lengthened,
    "bilinear resampling": resized("bilinear"),
    "bilinear resampling, corners": resized("bilinear", align_corners=True),
    "bicubic resampling": resized("bicubic"),
    "antialiased resampling": resized("bilinear", antialias=True),
    "antialiased bicubic resampling": resized("bicubic", antialias=True),
    "sparse product": sparse("sparse_coo"),
    "sparse product by rows": sparse("sparse_csr"),
    "sparse product by columns": sparse("sparse_csc"),
}


def rows():
    """Return four rows of four numbers."""
    return torch.tensor(np.random.default_rng(1).uniform(0.25, 1, (4, 4)))


@pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC) tensor support is in beta")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_that_are_not_read_change_nothing(masked, name):
    """A function of rows of which the last two are NaN has the gradient of the first two."""
    weights = torch.tensor(np.random.default_rng(2).normal(size=4))
    f = FUNCTIONS[name]

    def gradient(grad, x, scale):
        # In front stands what makes NaN of 0: the parameter scales rows, of which two are NaN.
        s = torch.tensor(1.5, dtype=x.dtype, requires_grad=True)
        y = f(x * scale * s)
        return grad((y * weights[: y.shape[-1]].sum() if y.dim() else y).sum(), s)[0].item()

    bad = torch.tensor([1.0, 1.0, NAN, NAN], dtype=torch.float64)[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("error", masked.UnknownOperationWarning)
        found = gradient(masked.grad, rows(), bad)
    rtol = 1e-5 if "grouped" in name else 1e-9  # which has no float64
    assert_close(found, gradient(torch.autograd.grad, rows(), 1.0), rtol=rtol)
    assert math.isnan(gradient(torch.autograd.grad, rows(), bad))


@pytest.mark.parametrize("absent", [0, 1])
def test_a_compiled_weight_norm(masked, monkeypatch, absent):
    """A row of length 0 that is not used changes nothing; without one no bit is another."""
    import torch as real  # Dynamo cannot see it being loaded

    monkeypatch.setitem(globals(), "torch", real)
    torch.manual_seed(0)
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 4).double())
    parameters = [layer.bias, *layer.parametrizations.weight.parameters()]
    x = torch.randn(5, 3, dtype=torch.float64)
    program = lambda x: layer(x)[:, absent:].exp().sum()  # noqa: E731  (a name for one line)

    def gradients(compile_it):
        torch._dynamo.reset()
        layer.zero_grad()
        compile_it(program)(x).backward()
        return [p.grad.clone() for p in parameters]

    ordinary = lambda f: torch.compile(f, backend="aot_eager")  # noqa: E731  (as above)
    wanted = gradients(ordinary)
    with torch.no_grad():
        layer.parametrizations.weight.original1[:absent] = 0.0
    found = gradients(lambda f: masked.compile(f, backend="aot_eager", on_unknown="error"))

    for one, two in zip(found, wanted, strict=True):
        assert torch.allclose(one[absent:], two[absent:], rtol=1e-12, atol=1e-12)
        assert absent or torch.equal(one, two)
        assert not one[:absent].any()
    assert absent == sum(bool(g.isnan().any()) for g in gradients(ordinary)[2:])
