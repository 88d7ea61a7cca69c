"""How much a masked backward pass that `torch.compile` compiles has beside the plain one."""

import pytest

pytestmark = pytest.mark.only("torch")

SEQUENCES, LENGTH, WIDTH, HEADS = 4, 5, 16, 2


@pytest.fixture
def torch():
    """Return PyTorch, with nothing compiled so far."""
    import torch

    torch._dynamo.reset()
    return torch


@pytest.fixture
def transformer(torch):
    """Return a function that makes a transformer of some layers, with norms first."""
    nn = torch.nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
            self.heads, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

        def forward(self, x):
            parts = self.heads(self.norms[0](x)).chunk(3, -1)
            query, key, value = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in parts)
            weights = (query @ key.mT / (WIDTH // HEADS) ** 0.5).softmax(-1)
            x = x + self.out((weights @ value).transpose(1, 2).flatten(2))
            return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))

    def transformer(layers):
        torch.manual_seed(0)
        return nn.Sequential(*(Layer() for _ in range(layers)))

    return transformer


@pytest.fixture
def counts():
    """Return a list to which a backend "aot_counting" adds how many operations a graph has."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.registry import _COMPILER_FNS, register_backend
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    found = []

    def counted(graph, inputs):
        del inputs
        found.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return make_boxed_func(graph.forward)

    def aot_counting(graph, inputs, **options):
        """Compile nothing; decompose operations and part the graph as Inductor does."""
        del options
        compiler = aot_autograd(
            fw_compiler=counted,
            bw_compiler=counted,
            decompositions=select_decomp_table(),
            partition_fn=min_cut_rematerialization_partition,
        )
        return compiler(graph, inputs)

    register_backend(aot_counting, name="aot_counting")
    yield found
    del _COMPILER_FNS["aot_counting"]


@pytest.fixture
def batch(torch):
    """Return sequences, the last of which is NaN."""
    torch.manual_seed(1)
    x = torch.randn(SEQUENCES, LENGTH, WIDTH)
    x[-1] = torch.nan
    return x


def test_a_layer_has_few_operations_beside_the_plain_one(masked, torch, transformer, counts, batch):
    """
    Masks that are known while a compiler traces are no operations of its graph.

    What is left for each layer is a selection beside each product.
    """

    def of_layer(compile_it):
        """Return how many operations a layer adds to the forward and to the backward pass."""
        sizes = []
        for layers in (1, 2):
            torch._dynamo.reset()
            counts.clear()
            model = transformer(layers)
            loss = compile_it(lambda x, model=model: model(x)[: SEQUENCES - 1].square().mean())
            loss(batch).backward()
            sizes.append(tuple(counts))
        return [b - a for a, b in zip(*sizes, strict=True)]

    plain = of_layer(lambda f: torch.compile(f, backend="aot_counting", fullgraph=True))
    ours = of_layer(lambda f: masked.compile(f, backend="aot_counting", on_unknown="error"))

    assert ours[0] <= 1.1 * plain[0]
    assert ours[1] <= 1.5 * plain[1]


def test_the_gradient_is_that_of_the_other_sequences(masked, torch, transformer, batch):
    """A sequence of NaN that the loss leaves out is nowhere in the gradients of the weights."""
    model = transformer(2)
    rest = batch[:-1]
    model(rest).square().mean().backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()

    loss = masked.compile(
        lambda x: model(x)[: SEQUENCES - 1].square().mean(),
        backend="aot_eager",
        on_unknown="error",
    )
    loss(batch).backward()

    for p, right in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, right, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_coefficient_of_an_absent_row_is_kept_out_of_a_sum(masked, torch, axis):
    """In a product of which one row, or column, is left out, its NaN reaches no other gradient."""
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    x[2], y[:, 4] = torch.nan, torch.nan
    x.requires_grad_(axis == 1)
    y.requires_grad_(axis == 0)

    loss = masked.compile(lambda x, y: (x @ y)[:2, :4].sum(), backend="aot_eager")
    loss(x, y).backward()

    found = x.grad[:2] if axis else y.grad[:, :4]
    assert found.isfinite().all()


@pytest.mark.parametrize("kind", ["every second entry", "rows and columns"])
def test_masks_of_many_pieces(masked, torch, kind):
    """A mask that takes many comparisons of places is a constant of the program."""
    used = torch.zeros(8, 12, dtype=torch.bool)
    if kind == "rows and columns":
        used[:2], used[:, :3] = True, True
    else:
        used[::2, ::2] = True
    x = torch.where(used, 4.0, torch.nan).requires_grad_()

    def program(x):
        y = x.sqrt()
        if kind == "rows and columns":
            return y[:2].sum() + y[2:, :3].sum()
        return y[::2, ::2].sum()

    masked.compile(program, backend="aot_eager")(x).backward()

    torch.testing.assert_close(x.grad, torch.where(used, 0.25, 0.0))


@pytest.mark.parametrize("dynamic", [None, True])
def test_lengths_that_are_symbols(masked, torch, dynamic):
    """A mask whose length is not known while a compiler traces is an operation of the program."""

    def program(x):
        return (x.sqrt() * 2)[: len(x) - 1].sum()

    loss = masked.compile(program, backend="aot_eager", dynamic=dynamic)
    for length in (3, 5, 6):
        x = torch.full((length, 2), 4.0)
        x[-1] = torch.nan
        x.requires_grad_()
        loss(x).backward()

        assert x.grad[-1].eq(0).all()
        assert x.grad[:-1].eq(0.5).all()
