"""Masked autodiff for PyTorch in other dtypes and layouts, and in place on views."""

import math
import warnings

import numpy as np
import pytest

from assertions import assert_close
from frameworks import Lazy

pytestmark = pytest.mark.only("torch")

NAN, INF = math.nan, math.inf


torch, functional = Lazy("torch"), Lazy("torch.nn.functional")


def leaf(values, dtype="float64"):
    """Return a leaf."""
    return torch.tensor(values, dtype=getattr(torch, dtype), requires_grad=True)


# Attention in the layout of transformers: heads are a transposed view, and so is the cotangent.

LENGTH, HEADS, SIZE = 6, 2, 8


def heads(x, count):
    """Return the heads of a projection, as a view."""
    return x.view(-1, LENGTH, count, SIZE).transpose(1, 2)


def padding(x):
    """Return which tokens are attended to: of the first sequence, the first four."""
    kept = torch.ones(len(x), 1, LENGTH, LENGTH, dtype=torch.bool)
    kept[0, ..., 4:] = False
    return kept


OPTIONS = {
    "plain": lambda _: {},
    "causal": lambda _: {"is_causal": True},
    "boolean mask": lambda x: {"attn_mask": padding(x)},
    "float mask": lambda x: {
        "attn_mask": torch.zeros(padding(x).shape, dtype=x.dtype).masked_fill(~padding(x), -INF)
    },
    "shared keys": lambda _: {"enable_gqa": True},
}


def attend(x, weights, kind):
    """Return the output of an attention layer."""
    count = 1 if kind == "shared keys" else HEADS
    sizes = [HEADS * SIZE, count * SIZE, count * SIZE]
    parts = (x @ weights[:, : sum(sizes)]).split(sizes, -1)
    query, key, value = map(heads, parts, (HEADS, count, count))
    attention = functional.scaled_dot_product_attention
    return attention(query, key, value, **OPTIONS[kind](x)).transpose(1, 2).flatten(2)


def attention_gradients(masked, kind, dtype):
    """Return the gradient for the weights: exact, PyTorch's of two sequences, ours beside a NaN."""
    torch.manual_seed(0)
    numbers = torch.randn(16, 48), torch.randn(3, LENGTH, 16), torch.randn(2, LENGTH, 16)
    weights, x, cotangent = (y.to(getattr(torch, dtype)) for y in numbers)

    def gradient(grad, x, dtype):
        leaf = weights.to(dtype).requires_grad_()
        out = attend(x.to(dtype), leaf, kind)[:2]
        return grad((out * cotangent.to(dtype)).sum(), leaf)[0].double()

    bad = x.clone()
    bad[2] = NAN
    ordinary = torch.autograd.grad
    assert gradient(ordinary, bad, x.dtype).isnan().any()
    exact = gradient(ordinary, x[:2], torch.float64)
    return exact, gradient(ordinary, x[:2], x.dtype), gradient(masked.grad, bad, x.dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", OPTIONS)
def test_attention_is_right_in_the_layout_of_transformers(masked, kind, dtype):
    """A sequence of NaN changes nothing, and the error is at most twice PyTorch's without it."""
    exact, ordinary, ours = attention_gradients(masked, kind, dtype)

    wide = torch.promote_types(getattr(torch, dtype), torch.float32)  # what kernels add up in
    rounding = 64 * torch.finfo(wide).eps * exact.norm()
    assert (ours - exact).norm() <= 2 * (ordinary - exact).norm() + rounding


@pytest.mark.parametrize("kind", ["plain", "causal"])
def test_an_entry_of_attention_uses_its_query_its_keys_and_a_column_of_values(masked, kind):
    """The mask has the query of the entry, each key that it attends to, and a column of values."""
    torch.manual_seed(0)
    inputs = [torch.randn(2, HEADS, LENGTH, SIZE, requires_grad=True) for _ in range(3)]
    out = functional.scaled_dot_product_attention(*inputs, **OPTIONS[kind](None))
    loss = out[0, 1, 3, 2]

    ordinary = torch.autograd.grad(loss, inputs, retain_graph=True)
    ours, (query, key, value) = masked.grad(loss, inputs, return_mask=True)

    used = 4 if kind == "causal" else LENGTH
    for mask, entries in ((query, (3, slice(None))), (key, slice(used)), (value, (slice(used), 2))):
        wanted = torch.zeros(2, HEADS, LENGTH, SIZE, dtype=torch.bool)
        wanted[0, 1][entries] = True
        assert torch.equal(mask.expand(wanted.shape), wanted)
    for found, other in zip(ours, ordinary, strict=True):
        assert_close(found, other, rtol=1e-5, atol=1e-7)


# Complex numbers: views that are conjugated when they are read.


def complex_row(y):
    """Return a real number of the first row."""
    return y[0].sum().real


PRODUCTS = {
    "mm": lambda x, w: complex_row(x @ w),
    "conjugated mm": lambda x, w: complex_row(x @ w.conj()),
    "adjoint mm": lambda x, w: complex_row((w.mH @ x.mH).mH),
    "linear": lambda x, w: complex_row(functional.linear(x, w.mT)),
    "einsum": lambda x, w: complex_row(torch.einsum("ij,jk->ik", x, w)),
    "bmm": lambda x, w: complex_row(x[:, None] @ w.expand(2, 2, 2)),
    "mv": lambda x, w: (x @ w[:, 0])[0].real,
    "imaginary part": lambda x, w: (x @ w)[0].conj().imag.sum(),
    "negative view": lambda x, w: (x.conj().imag @ w.conj().imag)[0].sum(),
    "inverse": lambda x, w: complex_row(x @ torch.linalg.inv(w)),
    "solve": lambda x, w: complex_row(
        torch.linalg.solve(w, x[..., None, :], left=False)[..., 0, :]
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_complex_products_are_right(masked, name):
    """A NaN row that nothing reads changes nothing: the conjugate of a coefficient is taken."""
    rows = torch.tensor([[1 + 2j, 0.5j], 2 * [complex(NAN, NAN)]], dtype=torch.complex128)
    weights = [[1 + 2j, 0.5j], [0.25, 2 - 1j]]

    def gradient(grad, rows):
        w = leaf(weights, "complex128")
        return torch.view_as_real(grad(PRODUCTS[name](rows, w), w)[0].resolve_conj()).numpy()

    wanted = gradient(torch.autograd.grad, rows[:1].expand(2, 2))
    assert_close(gradient(masked.grad, rows), wanted, rtol=1e-12, atol=1e-15)
    assert not np.isfinite(gradient(torch.autograd.grad, rows)).all()


@pytest.mark.parametrize(
    "name", ["pinv", "lstsq", "solve_left", "lu_solve", "eigh", "svdvals", "qr", "cholesky"]
)
def test_complex_linear_algebra_is_that_of_pytorch(masked, name):
    """With nothing left out, and with half of it, a complex gradient is PyTorch's."""
    torch.manual_seed(0)
    a, b = torch.randn(2, 3, 3, dtype=torch.complex128)
    linalg = torch.linalg
    functions = {
        "pinv": lambda a, _: linalg.pinv(a[:2]),
        "lstsq": lambda a, b: linalg.lstsq(a[:, :2], b).solution,
        "solve_left": lambda a, b: linalg.solve(a, b, left=False),
        "lu_solve": lambda a, b: linalg.lu_solve(*linalg.lu_factor(a), b, left=False, adjoint=True),
        "eigh": lambda a, _: linalg.eigh(a + a.mH)[0],
        "svdvals": lambda a, _: linalg.svdvals(a),
        "qr": lambda a, _: linalg.qr(a)[1],
        "cholesky": lambda a, _: linalg.cholesky(a @ a.mH + torch.eye(3)),
    }
    a, b = a.requires_grad_(), b.requires_grad_()
    y = functions[name](a, b)
    for loss in (y.abs().sum(), y[:1].abs().sum()):
        pairs = [grad(loss, (a, b), retain_graph=True, allow_unused=True)
                 for grad in (masked.grad, torch.autograd.grad)]  # fmt: skip
        for found, wanted in zip(*pairs, strict=True):
            assert wanted is found is None or torch.allclose(found, wanted, rtol=1e-12)


# In place on a view, beside the same operation out of place.


def on_a_view(write):
    """Return a function that writes into the first two of three entries."""

    def f(y):
        y = y.clone()
        write(y[:2])
        return y.sum()

    return f


ROUNDINGS = {
    "floor_": lambda y: y.floor_(),
    "ceil_": lambda y: y.ceil_(),
    "round_": lambda y: y.round_(),
    "trunc_": lambda y: y.trunc_(),
    "sign_": lambda y: y.sign_(),
    "div_": lambda y: y.div_(2.0, rounding_mode="floor"),
    "mul_": lambda y: y.mul_(0.0),
    "clamp_ of NaN": lambda y: y.mul_(NAN).clamp_(0, 1),
}


@pytest.mark.parametrize("name", ROUNDINGS)
def test_a_slope_of_zero_in_place_on_a_view_is_a_number(masked, name):
    """Zero times the infinite slope of sqrt at 0 is NaN, as out of place."""
    gradients = []
    for f in (on_a_view(ROUNDINGS[name]), lambda y: ROUNDINGS[name](y.clone()).sum()):
        x = leaf([0.0, 0.0, 4.0])
        gradients.append(masked.grad(f(x.sqrt()), x)[0])
    x = leaf([0.0, 0.0, 4.0])

    assert gradients[0][:2].isnan().all()
    assert gradients[1][:2].isnan().all()
    assert torch.autograd.grad(on_a_view(ROUNDINGS[name])(x.sqrt()), x)[0][:2].isnan().all()


ALONE = {
    "take": lambda y: 0 * y.take(torch.tensor([0])),
    "index": lambda y: 0 * y[[0]],
    "put, accumulated": lambda y: (0 * y).put(torch.tensor([1]), y[1:], accumulate=True),
    "put_": lambda y: y.clone().put_(torch.tensor([1]), 0 * y[:1])[1:],
}


@pytest.mark.parametrize("name", ALONE)
def test_an_entry_that_is_used_with_slope_zero_stays_undefined(masked, name):
    """The values of a source are no mask: 0 in it is a number, and 0 times inf is NaN."""
    x = leaf([0.0, 4.0])
    loss = ALONE[name](x.sqrt()).sum()

    assert masked.grad(loss, x, retain_graph=True)[0][0].isnan()
    assert torch.autograd.grad(loss, x)[0][0].isnan()


def second(y):
    """Return the index of the second entry."""
    return torch.tensor([1], device=y.device)


def is_second(y):
    """Return where the second entry is."""
    return torch.arange(2, device=y.device) == 1


CHOICES = {
    "masked_fill_": lambda y: y.masked_fill_(is_second(y), 0.0),
    "index_fill_": lambda y: y.index_fill_(0, second(y), 0.0),
    "index_copy_": lambda y: y.index_copy_(0, second(y), y.new_zeros(1)),
    "masked_scatter_": lambda y: y.masked_scatter_(is_second(y), y.new_zeros(1)),
    "scatter_": lambda y: y.scatter_(0, second(y), 0.0),
    "index_put_": lambda y: y.index_put_((is_second(y),), y.new_zeros(())),
    "put_": lambda y: y.put_(second(y), y.new_zeros(1)),
    "nan_to_num_": lambda y: y.nan_to_num_(0.0),
    "fill_": lambda y: y[1:].fill_(0.0),
    "zero_": lambda y: y[1:].zero_(),
    "slice assignment": lambda y: y.__setitem__(slice(1, None), 0.0),
    "clamp_": lambda y: y.nan_to_num_(9.0).clamp_(0, 5),
    "tril_": lambda y: y[:, None].T.tril_(),
    "triu_": lambda y: y[:, None].triu_(),
}


@pytest.mark.parametrize("name", CHOICES)
def test_selections_in_place_on_a_view_select(masked, name):
    """What is overwritten by a selection in place on a view is absent."""
    p = leaf(1.0)
    loss = on_a_view(CHOICES[name])(torch.tensor([4.0, NAN, 9.0]).double() * p)

    assert masked.grad(loss, p, retain_graph=True)[0].item() == 13.0
    assert torch.autograd.grad(loss, p)[0].isnan()


# Sparse and nested tensors.


def ordinary_and_ours(masked, loss, inputs):
    """Return the gradients of PyTorch, and ours without what they say."""
    ordinary = torch.autograd.grad(loss, inputs, retain_graph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", masked.UnknownOperationWarning)
        return ordinary, masked.grad(loss, inputs)


@pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC) tensor support is in beta")
@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr", "sparse_csc"])
def test_sparse_products_have_a_gradient(masked, layout):
    """A gradient beside sparse tensors is PyTorch's wherever that is finite, and no error."""
    dense = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
    a = dense.to_sparse(layout=getattr(torch, layout)).requires_grad_()
    x = torch.tensor([[1.0, 2.0], [3.0, NAN]], requires_grad=True)
    ordinary, ours = ordinary_and_ours(masked, (a @ x)[0, :1].sum(), (a, x))

    for sparse in zip(ours, ordinary, strict=True):
        found, wanted = (x.to_dense() for x in sparse)
        assert torch.equal(found[wanted.isfinite()], wanted[wanted.isfinite()])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("layout", ["jagged", "strided"])
def test_nested_tensors_have_a_gradient(masked, layout):
    """A gradient through nested tensors is PyTorch's, and no error."""
    torch.manual_seed(0)
    parts = [torch.randn(n, SIZE, requires_grad=True) for n in (2, 3)]
    nested = torch.nested.as_nested_tensor(parts, layout=getattr(torch, layout))
    if layout == "jagged":
        query = nested.unflatten(-1, (2, SIZE // 2)).transpose(1, 2)
        out = functional.scaled_dot_product_attention(query, query, query).transpose(1, 2)
        loss = out.values()[:2].square().sum()
    else:
        loss = nested.relu().to_padded_tensor(0.0)[:, :1].square().sum()
    ordinary, ours = ordinary_and_ours(masked, loss, parts)

    assert all(torch.equal(*pair) for pair in zip(ours, ordinary, strict=True))
