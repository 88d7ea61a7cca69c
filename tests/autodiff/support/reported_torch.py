"""The programs that people reported, and random ones, for masked autodiff of PyTorch."""

import math
from functools import cache

import numpy as np

import tape
from frameworks import Lazy, torch_from

NAN, INF = math.nan, math.inf
torch, functional = Lazy("torch"), Lazy("torch.nn.functional")


def leaf(values):
    """Return a leaf of float64."""
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def root_of_its_own(x):
    """Return the square root, by a custom function whose backward method is the user's."""

    class Root(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sqrt()

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * 0.5 / x.sqrt()

    return Root.apply(x)


class TapeOfTorch(tape.Tape):
    """The tape with PyTorch's own convention: beside NaN both arguments of maximum have slope 1."""

    @staticmethod
    def maximum(x, y):
        """Return the larger of two."""
        return np.vectorize(lambda a, b: tape.largest_of((a, b), (1.0,)), otypes=[object])(x, y)


class Torch:
    """The array language, on PyTorch."""

    def __init__(self):
        """Take over what has the same name."""
        for name in ("sqrt", "log", "exp", "where", "matmul", "maximum"):
            setattr(self, name, getattr(torch, name))

    def inverse(self, x):
        """Return 1 / x."""
        return 1 / x

    def positive(self, x):
        """Return where entries are above 0.5."""
        return x > 0.5

    def set_zero(self, x, index):
        """Put 0 at an index of the first axis, in place."""
        x = x.clone()
        x[index] = 0.0
        return x

    def take(self, x, index):
        """Take entries of the first axis."""
        return x[torch.as_tensor(index)]

    def concat(self, x, y):
        """Join along the first axis."""
        return torch.cat([x, y])

    def total(self, x):
        """Sum."""
        return x.sum()

    def cumsum(self, x):
        """Sum up along the first axis."""
        return x.cumsum(0)

    def largest(self, x):
        """Return the largest of each column."""
        return x.amax(0)

    def sort(self, x):
        """Sort each column."""
        return x.sort(dim=0, stable=True).values

    def reverse(self, x):
        """Turn the first axis around."""
        return x.flip(0)

    def transpose(self, x):
        """Exchange the axes."""
        return x.T


def programs(start, stop):
    """Return random programs, and the points to run them at."""
    for seed in range(start, stop):
        numbers = np.random.default_rng(seed)
        program = tape.random_program(numbers, int(numbers.integers(3, 9)))
        yield seed, program, numbers.choice(tape.POINTS, (tape.N, tape.N))


def sliced_zero(x):
    """Overwrite a slice in place."""
    y = 1 / x
    y[0] = 0.0
    return y.sum()


def masked_zero(x):
    """Overwrite by a boolean mask in place."""
    y = 1 / x
    y[x == 0] = 0.0
    return y.sum()


def both_columns(x):
    """Select one entry of a stack (issue 52248)."""
    return torch.stack([x, 1 / x])[0].sum()


REPORTED = {
    "jax: one of two": (both_columns, [0.0], [1.0]),
    "4132: index": (
        lambda x: (x / (x * 0 + torch.tensor([0.0, 1.0])))[1:].sum(),
        [1.0, 1.0],
        [0.0, 1.0],
    ),
    "4132: division and boolean mask": (
        lambda x: (x / torch.tensor([0.0, 1.0]))[torch.tensor([False, True])].sum(),
        [1.0, 1.0],
        [0.0, 1.0],
    ),
    "4132: y[mask] = 0": (masked_zero, [0.0, 2.0], [0.0, -0.25]),
    "4132: y[0] = 0": (sliced_zero, [0.0, 2.0], [0.0, -0.25]),
    "4132: masked_fill": (
        lambda x: (1 / x).masked_fill(x == 0, 0.0).sum(),
        [0.0, 2.0],
        [0.0, -0.25],
    ),
    "4132: masked_select": (
        lambda x: (1 / x).masked_select(x != 0).sum(),
        [0.0, 2.0],
        [0.0, -0.25],
    ),
    "10729: where and sqrt": (
        lambda x: torch.where(x > 0, x.sqrt(), 0.0).sum(),
        [0.0, 4.0],
        [0.0, 0.25],
    ),
    "52248: where and division": (
        lambda x: torch.where(x == 0, 1.0, x.sin() / x).sum(),
        [0.0],
        [0.0],
    ),
    "67180: nansum": (
        lambda x: (x * torch.tensor([NAN, 3.0])).nansum(),
        [1.0, 1.0],
        [0.0, 3.0],
    ),
    "55056: index of a power": (lambda x: (x**0.5)[x > 0].sum(), [0.0, 4.0], [0.0, 0.25]),
    "late mask": (lambda x: x.log().exp().sqrt()[1:].sum(), [0.0, 4.0], [0.0, 0.25]),
    "clamp of an overflow": (lambda x: x.exp().exp().clamp(max=1.0).sum(), [100.0], [0.0]),
    "clamp_max of an overflow": (
        lambda x: x.exp().exp().clamp_max(1.0).sum(),
        [100.0],
        [0.0],
    ),
    "amax of log": (lambda x: x.log().amax(), [0.0, 2.0], [0.0, 0.5]),
    "max of log": (lambda x: x.log().max(), [0.0, 2.0], [0.0, 0.5]),
    "max with indices": (lambda x: x.log().max(0).values, [0.0, 2.0], [0.0, 0.5]),
    "aminmax": (lambda x: x.log().aminmax().max, [0.0, 2.0], [0.0, 0.5]),
    "maximum": (lambda x: torch.maximum(x.log(), x * 0).sum(), [0.0, 2.0], [0.0, 0.5]),
    "fmax": (lambda x: torch.fmax(x.sqrt(), x * 0).sum(), [-1.0, 4.0], [0.0, 0.25]),
    "relu": (lambda x: x.log().relu().sum(), [0.0, 2.0], [0.0, 0.5]),
    "sort": (lambda x: x.log().sort().values[-1], [0.0, 2.0], [0.0, 0.5]),
    "topk": (lambda x: x.log().topk(1).values.sum(), [0.0, 2.0], [0.0, 0.5]),
    "median": (lambda x: x.log().median(), [0.0, 2.0, 3.0], [0.0, 0.5, 0.0]),
    "nanmedian": (
        lambda x: x.sqrt().nanmedian(),
        [-1.0, 1.0, 4.0, 9.0],
        [0.0, 0.0, 0.25, 0.0],
    ),
    "cumsum": (lambda x: x.log().cumsum(0)[0], [2.0, 0.0], [0.5, 0.0]),
    "cummax": (lambda x: x.log().cummax(0).values[-1], [2.0, 0.0], [0.5, 0.0]),
    "nan_to_num": (lambda x: x.sqrt().nan_to_num(0.0).sum(), [-1.0, 4.0], [0.0, 0.25]),
    "gather with repeats": (
        lambda x: x.log().gather(0, torch.tensor([1, 1])).sum(),
        [0.0, 2.0],
        [0.0, 1.0],
    ),
    "index_select": (
        lambda x: x.log().index_select(0, torch.tensor([1])).sum(),
        [0.0, 2.0],
        [0.0, 0.5],
    ),
    "take_along_dim": (
        lambda x: x.log().take_along_dim(torch.tensor([1])).sum(),
        [0.0, 2.0],
        [0.0, 0.5],
    ),
    "segment sum": (
        lambda x: torch.zeros(2, dtype=x.dtype).index_add(0, torch.tensor([0, 1]), x.log())[1],
        [0.0, 2.0],
        [0.0, 0.5],
    ),
    "scatter": (
        lambda x: x.log().scatter(0, torch.tensor([0]), x[1:]).sum(),
        [0.0, 2.0],
        [0.0, 1.5],
    ),
    "index_fill": (
        lambda x: x.log().index_fill(0, torch.tensor([0]), 0.0).sum(),
        [0.0, 2.0],
        [0.0, 0.5],
    ),
    "index_put": (
        lambda x: x.log().index_put((torch.tensor([0]),), x[1:]).sum(),
        [0.0, 2.0],
        [0.0, 1.5],
    ),
    "masked_scatter": (
        lambda x: x.log().masked_scatter(x == 0, x[1:]).sum(),
        [0.0, 2.0],
        [0.0, 1.5],
    ),
    "split": (lambda x: x.log().split(1)[1].sum(), [0.0, 2.0], [0.0, 0.5]),
    "unbind": (lambda x: x.log().unbind()[1], [0.0, 2.0], [0.0, 0.5]),
    "chunk": (lambda x: x.log().chunk(2)[1].sum(), [0.0, 2.0], [0.0, 0.5]),
    "unfold": (lambda x: x.log().unfold(0, 1, 1)[1].sum(), [0.0, 2.0], [0.0, 0.5]),
    "diagonal": (
        lambda x: x.log().outer(torch.ones(2, dtype=x.dtype)).diagonal()[1],
        [0.0, 2.0],
        [0.0, 0.5],
    ),
    "as_strided": (
        lambda x: x.log().as_strided((1,), (1,), 1).sum(),
        [0.0, 2.0],
        [0.0, 0.5],
    ),
    "negative pad": (
        lambda x: functional.pad(x.log(), (-1, 1)).sum(),
        [0.0, 2.0],
        [0.0, 0.5],
    ),
    "repeat and roll": (lambda x: x.log().repeat(2).roll(1)[0], [0.0, 2.0], [0.0, 0.5]),
    "complex": (
        lambda x: (1 / torch.complex(x, x)).abs()[1],
        [0.0, 1.0],
        [0.0, -math.sqrt(0.5)],
    ),
    "real view": (
        lambda x: torch.view_as_real(torch.complex(x.sqrt(), x))[1].sum(),
        [0.0, 4.0],
        [0.0, 1.25],
    ),
    "einsum": (lambda x: torch.einsum("i,j->ij", x.log(), x)[1, 1], [0.0, 1.0], [0.0, 1.0]),
    "triu": (lambda x: x.log().diag().triu()[1, 1], [0.0, 2.0], [0.0, 0.5]),
    "a stride that passes over": (
        lambda x: functional.conv1d(x.log().view(1, 1, -1), x.new_ones(1, 1, 1), stride=2).sum(),
        [2.0, 0.0, 4.0],
        [0.5, 0.0, 0.25],
    ),
    "mse with unknown targets": (
        lambda x: functional.mse_loss(x, torch.tensor([NAN, 1.0], dtype=x.dtype), reduction="none")[
            1:
        ].sum(),
        [3.0, 3.0],
        [0.0, 4.0],
    ),
}


if torch_from(2, 14):
    del REPORTED["fmax"]  # PyTorch counts a NaN there as used: test_facts.py
if not torch_from(2, 12):
    del REPORTED["aminmax"]  # which has no derivative there


UNDEFINED = {
    "sqrt(x)**2": (lambda x: (x.sqrt() ** 2).sum(), [0.0]),
    "where(x >= 0, sqrt(x), 0)": (lambda x: torch.where(x >= 0, x.sqrt(), 0.0).sum(), [0.0]),
    "x / x": (lambda x: (x / x).sum(), [0.0]),
    "0 * log(x)": (lambda x: (0.0 * x.log()).sum(), [0.0]),
    "mask * log(x)": (lambda x: ((x > 0) * x.log()).sum(), [0.0]),
    "dropout": (lambda x: functional.dropout(x.log(), 0.999).sum(), [0.0]),
    "norm of sqrt": (lambda x: x.sqrt().norm(), [0.0]),
    "hardtanh of sqrt": (
        lambda x: functional.hardtanh(x.sqrt() - 2.0).sum(),
        [0.0],
    ),
    "clamp(nan)": (lambda x: (x.sqrt() + x.log()).clamp(0.0, 1.0).sum(), [-1.0]),
    "clamp_min(nan)": (lambda x: (x.sqrt() + x.log()).clamp_min(0.0).sum(), [-1.0]),
    "amax with nan": (lambda x: x.amax(), [NAN]),
    "max with nan": (lambda x: x.sqrt().max(), [-1.0]),
    "a tie": (lambda x: torch.maximum(x.sqrt(), x * 0).sum(), [0.0]),
    "relu of nan": (lambda x: x.sqrt().relu().sum(), [-1.0]),
    "std of a constant": (lambda x: (x.sqrt() * torch.ones(2, dtype=x.dtype)).std(), [0.0]),
    "sum of all": (lambda x: torch.where(x > 0, x, x.sqrt()).sum(), [0.0]),
    "zeros of a custom function": (
        lambda x: (x.sqrt() * torch.zeros(1, dtype=x.dtype)).sum(),
        [0.0],
    ),
    "matrix product": (
        lambda x: (x.log()[None] @ torch.zeros(1, 1, dtype=x.dtype)).sum(),
        [0.0],
    ),
}


def build(kind, *args, **options):
    """Return a module with the same float64 weights each time."""
    torch.manual_seed(0)
    return getattr(torch.nn, kind)(*args, **options).double()


def of_module(*args, rows=4, **options):
    """Return a program: some rows of what a module makes of the input."""

    def program(x):
        module = build(*args, **options)
        return (module(x)[:rows] ** 2).sum(), list(module.parameters())

    return program


def perceptron(activation):
    """Return a program: some rows of what a network of two layers makes of the input."""

    def program(x):
        layers = build("Linear", 4, 8), build("Linear", 8, 3)
        hidden = getattr(torch.nn.functional, activation)(layers[0](x))
        return (layers[1](hidden)[:4] ** 2).sum(), [p for m in layers for p in m.parameters()]

    return program


def function(f):
    """Return a program without weights, as those above have."""
    return lambda x: (f(x), [])


def with_cat(x):
    """Join good rows and bad ones, and read the good ones (a question in PyTorch's forum)."""
    layer = build("Linear", 4, 1)
    return layer(torch.cat([x[:4], x[4:]]))[:4].sum(), list(layer.parameters())


def batch_norm(x):
    """Read some rows of a batch norm that runs with known statistics."""
    layer = build("BatchNorm1d", 4).eval()
    return (layer(x)[:4] ** 2).sum(), list(layer.parameters())


def encoder(x):
    """Read the first of two sequences that an encoder layer is given."""
    layer = build("TransformerEncoderLayer", 4, 2, 8, dropout=0.0, batch_first=True)
    both = x.view(3, 2, 4)
    padded = torch.tensor([[False, False], [False, True], [True, True]])
    out = layer(both, src_key_padding_mask=padded)
    return (out[:2] ** 2).sum(), list(layer.parameters())


def attention(x):
    """Read the first of two sequences that attention with weights is given."""
    layer = build("MultiheadAttention", 4, 2, batch_first=True)
    both = x.view(3, 2, 4)
    out, weights = layer(both, both, both, need_weights=True)
    return (out[:2] ** 2).sum() + (weights[:2] ** 2).sum(), list(layer.parameters())


def shared_keys(x):
    """Read the first of two sequences of attention in which four heads share two keys."""
    pairs = x.view(3, 2, 4).permute(0, 2, 1)[..., None]
    keys = pairs[:, :2] * 2
    attend = functional.scaled_dot_product_attention
    return (attend(pairs, keys, keys, enable_gqa=True)[:2] ** 2).sum()


def later_tokens(x):
    """Read the first tokens of causal attention, which do not attend to later keys."""
    tokens = x.view(1, 1, 6, 4)
    values = tokens.detach().nan_to_num(0.5, 0.5)  # the kernel multiplies later ones by 0
    attend = functional.scaled_dot_product_attention
    return attend(tokens, tokens * 2, values, is_causal=True)[:, :, :4].square().sum()


def padded_attention(x):
    """Read the first of two sequences, of which the other is all padding."""
    layer = build("MultiheadAttention", 4, 2, batch_first=True)
    both = x.nan_to_num(0.5, 0.5).view(3, 2, 4)
    padded = torch.tensor([[False, False], [False, True], x.isnan().any(1)[4:].tolist()])
    out, _ = layer(both, both, both, key_padding_mask=padded)
    return (out[:2] ** 2).sum(), list(layer.parameters())


def lstm(x):
    """Read the steps of an LSTM before the padding."""
    layer = build("LSTM", 4, 3)
    return (layer(x[:, None])[0][:4] ** 2).sum(), list(layer.parameters())


def embedding(x):
    """Look up rows, and read those that are known."""
    rows = functional.embedding(torch.tensor([0, 5, 1, 0]), x.log())
    return rows[torch.tensor([True, False, True, True])].sum(), []


def labels(x):
    """Leave out the rows with an ignored label."""
    target = torch.tensor([0, 1, 2, 3, -100, -100])
    layer = build("Linear", 4, 4)
    return functional.cross_entropy(layer(x), target), list(layer.parameters())


LATE = {
    "linear": of_module("Linear", 4, 3),
    "linear and cat": with_cat,
    "gram matrix": function(lambda x: (x @ x.T)[:4, :4].square().sum()),
    "relu": perceptron("relu"),
    "gelu": perceptron("gelu"),
    "silu": perceptron("silu"),
    "elu": perceptron("elu"),
    "tanh": perceptron("tanh"),
    "softplus": perceptron("softplus"),
    "leaky_relu": perceptron("leaky_relu"),
    "layer norm": of_module("LayerNorm", 4),
    "group norm": of_module("GroupNorm", 2, 4),
    "batch norm": batch_norm,
    "rms norm": of_module("RMSNorm", 4),
    "softmax": function(lambda x: x.softmax(-1)[:4, 0].sum()),
    "log_softmax": function(lambda x: x.log_softmax(-1)[:4, 0].sum()),
    "logsumexp": function(lambda x: x.logsumexp(-1)[:4].sum()),
    "norm of rows": function(lambda x: x.norm(dim=1)[:4].sum()),
    "var": function(lambda x: x.var(1)[:4].sum()),
    "attention": function(
        lambda x: (
            functional.scaled_dot_product_attention(*3 * [x.view(3, 1, 2, 4)])[:2].square().sum()
        )
    ),
    "causal attention": function(
        lambda x: (
            functional.scaled_dot_product_attention(*3 * [x.view(3, 1, 2, 4)], is_causal=True)[:2]
            .square()
            .sum()
        )
    ),
    "causal attention, later tokens": function(later_tokens),
    "attention with shared keys": function(shared_keys),
    "attention by hand": function(
        lambda x: (
            ((x @ x.mT).masked_fill(torch.arange(6) > 3, -INF).softmax(-1)[:4, :4] @ x[:4])
            .square()
            .sum()
        )
    ),
    "attention with weights": attention,
    "attention to padding": padded_attention,
    "encoder layer": encoder,
    "lstm": lstm,
    "gru": lambda x: (
        (m := build("GRU", 4, 3))(x[:, None])[0][:4].sum(),
        list(m.parameters()),
    ),
    "embedding": embedding,
    "cross entropy": labels,
    "conv of images": lambda x: (
        ((m := build("Conv2d", 1, 2, 2))(x.view(6, 1, 2, 2))[:4] ** 2).sum(),
        list(m.parameters()),
    ),
    "conv over time": lambda x: (
        ((m := build("Conv1d", 4, 2, 3))(x.T[None])[..., :2] ** 2).sum(),
        list(m.parameters()),
    ),
    "strided conv": lambda x: (
        ((m := build("Conv1d", 4, 2, 2, stride=2))(x.T[None])[..., :2] ** 2).sum(),
        list(m.parameters()),
    ),
    "transposed conv": lambda x: (
        ((m := build("ConvTranspose1d", 4, 2, 2))(x.T[None])[..., :4] ** 2).sum(),
        list(m.parameters()),
    ),
    "max pooling": function(lambda x: functional.max_pool1d(x.log().T[None], 2)[..., :2].sum()),
    "average pooling": function(lambda x: functional.avg_pool1d(x.log().T[None], 2)[..., :2].sum()),
    "adaptive pooling": function(
        lambda x: functional.adaptive_avg_pool1d(x.log().T[None], 3)[..., :2].sum()
    ),
    "2d pooling": function(lambda x: functional.max_pool2d(x.log().view(6, 1, 2, 2), 2)[:4].sum()),
    "upsampling": function(
        lambda x: functional.interpolate(x.log().T[None], scale_factor=2)[..., :8].sum()
    ),
    "reflection": function(
        lambda x: functional.pad(x.log().T[None], (2, 0), mode="reflect")[..., :6].sum()
    ),
    "einsum": function(lambda x: torch.einsum("ij,kj->ik", x, x)[:4, :4].square().sum()),
    "cumsum": function(lambda x: x.log().cumsum(0)[3].sum()),
    "cumprod": function(lambda x: x.cumprod(1)[:4].sum()),
    "sort": function(lambda x: x.log().sort(1).values[:4, 1:].sum()),
    "prod": function(lambda x: x.prod(1)[:4].sum()),
    "nanmean": function(lambda x: (x * x.sqrt()).nanmean(1)[:4].sum()),
    "weights of rows": function(
        lambda x: (x.sqrt().sum(1) * torch.ones(6, dtype=x.dtype))[:4].sum()
    ),
    "cosine similarity": function(lambda x: functional.cosine_similarity(x, x + 1)[:4].sum()),
    "addmm and transposes": function(
        lambda x: torch.addmm(x.log()[:, :3], x, x.new_ones(4, 3)).T[:, :4].exp().sum()
    ),
    "batched product": function(lambda x: (x.view(3, 2, 4) @ x.view(3, 4, 2))[:2].square().sum()),
}


CLEAN = [[0.3 + (3 * i + 5 * j) % 7 / 7 for j in range(4)] for i in range(6)]
DIRTY = [row if i < 4 else [NAN, INF, NAN, 0.0] for i, row in enumerate(CLEAN)]


def root_of_positive(x):
    """Return the program that everybody writes."""
    return torch.where(x > 0, x.sqrt(), 0.0).sum()


@cache
def made_twice():
    """Return an operation of a user, whose derivative is one too, for which there is no rule."""

    def double(x):
        return 2 * x

    double.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
    made = torch.library.custom_op("safeops_tests::twice", double, mutates_args=())
    made.register_autograd(lambda _, g: made(g))
    return made


def unknown_program(x):
    """Return a program with an operation without a rule, of which one half is read."""
    return made_twice()(x.sqrt())[1:].sum()


def gradients(program, rows, grad):
    """Return the gradients of a program with respect to the input and the weights."""
    x = leaf(rows)
    output, weights = program(x)
    found = grad(output, [x, *weights])
    return [g.numpy() for g in found]
