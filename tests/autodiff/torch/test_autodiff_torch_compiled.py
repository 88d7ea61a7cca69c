"""Masked autodiff under torch.compile: the programs of eager mode, training, and what is said."""

import inspect
import os
import tomllib
import warnings
from collections import Counter
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

import reported_torch
from assertions import assert_close, assert_examples_run
from frameworks import torch_from
from reported_torch import (
    CLEAN,
    DIRTY,
    LATE,
    NAN,
    REPORTED,
    UNDEFINED,
    leaf,
    programs,
    root_of_positive,
    torch,
)

pytestmark = pytest.mark.only("torch")
EVERY = bool(os.environ.get("SAFEOPS_EXHAUSTIVE"))

# What Dynamo itself does not trace (2.13); before 2.10 no constant condition as an index.
UNTRACED = {"lstm", "gru", "attention to padding", *([] if torch_from(2, 10) else ["embedding"])}


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """Compile each test by itself, and let Dynamo see PyTorch, which it cannot see being loaded."""
    import torch as real

    monkeypatch.setitem(globals(), "torch", real)
    monkeypatch.setattr(reported_torch, "torch", real)
    monkeypatch.setattr(reported_torch, "functional", real.nn.functional)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The use of `x.T`", UserWarning)
        yield


@pytest.fixture
def compiled(masked):
    """Return what is tested, which traces as a compiler does, and compiles nothing."""

    def compiled(f, backend="aot_eager", **options):
        return masked.compile(f, backend=backend, **({"on_unknown": "error"} | options))

    return compiled


def gradient(program, x):
    """Return the gradient of a program at a leaf, by an ordinary backward pass."""
    program(x).backward()
    return x.grad


# The programs of eager mode.


# Results whose length depends on the values, which PyTorch 2.9 does not compile as one graph.
OF_ANY_LENGTH = {
    "4132: division and boolean mask",
    "4132: masked_select",
    "55056: index of a power",
}
IN_ONE_GRAPH = [name for name in REPORTED if torch_from(2, 10) or name not in OF_ANY_LENGTH]


@pytest.mark.parametrize("name", IN_ONE_GRAPH)
def test_reported_programs_have_the_right_gradient(compiled, name):
    """The gradient is exact, nothing is unknown, and what ordinary compile makes is not finite."""
    program, point, wanted = REPORTED[name]

    assert_close(gradient(compiled(program), leaf(point)).numpy(), wanted, rtol=1e-12)


@pytest.mark.parametrize("name", ["10729: where and sqrt", "amax of log", "4132: y[0] = 0"])
def test_ordinary_compile_fails(name):
    """The ordinary gradient of a compiled program is NaN."""
    program, point, _ = REPORTED[name]

    assert gradient(torch.compile(program, backend="aot_eager"), leaf(point)).isnan().any()


@pytest.mark.parametrize("name", UNDEFINED)
def test_undefined_derivatives_stay_undefined(compiled, name):
    """What no selection leaves out stays as it is: NaN or inf."""
    program, point = UNDEFINED[name]

    assert not gradient(compiled(program), leaf(point)).isfinite().all()


@pytest.fixture
def kept_modules(monkeypatch):
    """Build each module once: a compiled program makes none."""
    build, made = reported_torch.build, {}

    def once(kind, *args, **options):
        key = (kind, args, tuple(options.items()))
        if key not in made:
            made[key] = build(kind, *args, **options)
        return made[key]

    monkeypatch.setattr(reported_torch, "build", once)


@pytest.mark.usefixtures("kept_modules")
@pytest.mark.parametrize("name", sorted(set(LATE) - UNTRACED))
def test_late_selections_have_the_gradient_of_eager_mode(masked, compiled, name):
    """Rows that are left out at the end are NaN at the start; weights are no part of that."""
    program = LATE[name]
    program(leaf(CLEAN))
    x = leaf(DIRTY)
    loss, weights = program(x)
    wanted = masked.grad(loss, [x, *weights])
    y = leaf(DIRTY)

    compiled(lambda x: program(x)[0])(y).backward()

    for found, right in zip([y, *weights], wanted, strict=True):
        assert right.isfinite().all()
        assert_close(found.grad.numpy(), right.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("part", range(20 if EVERY else 1))
def test_random_programs_have_the_gradient_of_the_tape(part):
    """
    Gradient and mask are those of the tape, NaN where that is not finite.

    Without `exact` NaN comes from what the tape of conservative matrix products names, and from
    nothing else.
    """
    import programs_torch_compiled as harness

    count = 100 if EVERY else 20
    seeds = [5088, *range(5000 + count * part, 5000 + count * part + count)]
    drawn = [next(programs(seed, seed + 1)) for seed in seeds]

    exact, naive = (
        Counter(harness.compare(p, x, exact=exact, edges=seed % 2 == 1) for seed, p, x in drawn)
        for exact in (True, False)
    )

    assert not exact["conservative"]
    assert naive["conservative"]  # of the first one


def test_a_coefficient_that_meets_both_kinds(compiled):
    """A product with a NaN coefficient is exact if asked for; else active entries are NaN too."""

    def program(x):
        y = x @ torch.tensor([[1.0, NAN], [1.0, 2.0]], dtype=torch.float64)
        return y[0, 0] + y[1, 1]

    ones = [[1.0, 1.0], [1.0, 1.0]]
    naive, exact = (gradient(compiled(program, exact=e), leaf(ones)) for e in (False, True))

    assert naive.isnan().tolist() == [[True, False], [True, False]]
    assert exact.isnan().tolist() == [[False, False], [True, False]]
    assert exact[0].tolist() == [1.0, 1.0]


def test_masks_of_transposed_cotangents(compiled):
    """Parts of a cotangent in another order of memory have the masks of their own entries."""

    def program(x):
        y = x.clone()
        y[0] = 0.0
        return torch.cat([x.amax(0)[None], y[1:]]).exp().T[1].sum()

    found = gradient(compiled(program), leaf([[1.0, 2.0], [0.0, 1.0]]))

    assert_close(found.numpy(), [[0.0, np.exp(2.0)], [0.0, np.exp(1.0)]], rtol=1e-12)


# The compiler.


@pytest.mark.parametrize(
    "part", ["10729: where and sqrt", "amax of log", "maximum", "4132: y[0] = 0"]
)
def test_inductor(compiled, part):
    """What the compiler of PyTorch makes has the right gradient."""
    program, point, wanted = REPORTED[part]

    found = gradient(compiled(program, backend="inductor"), leaf(point))

    assert_close(found.numpy(), wanted, rtol=1e-12)


def joint_graphs(compile_it, program, x):
    """Return the text of the graphs that a compiler is given."""
    seen = []

    def keep(graph, _):
        seen.append("\n".join(f"{node.op} {node.target} {node.args}" for node in graph.graph.nodes))
        return torch._functorch.compilers.nop(graph, _)

    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    compile_it(program, backend)(x).backward()
    return seen, x.grad


def healthy(x):
    """Return a program in which nothing is selected."""
    images, weight = x[None, None], torch.ones_like(x)[:3, :3][None, None]
    images = torch.nn.functional.conv2d(images, weight, stride=2, padding=1)
    return ((x @ x.mT).softmax(-1).tanh() * x.exp()).square().mean() + images.sin().mean()


@pytest.mark.skipif(not torch_from(2, 10), reason="2.9 calls detach more often")
def test_nothing_selected_is_ordinary(monkeypatch):
    """The graphs are those of ordinary compile, node for node, and the gradient bit for bit."""
    from safeops.autodiff.torch import _compiled

    monkeypatch.setattr(_compiled.private, "lookup_backend", lambda inner: inner)
    point = np.random.default_rng(0).normal(size=(4, 4))
    masked = lambda f, b: torch.compile(f, backend=_compiled.Backend(b, "error"))  # noqa: E731
    ordinary = lambda f, b: torch.compile(f, backend=b)  # noqa: E731

    ours, found = joint_graphs(masked, healthy, leaf(point))
    theirs, wanted = joint_graphs(ordinary, healthy, leaf(point))
    with_masks, _ = joint_graphs(masked, lambda x: healthy(x.sqrt()[:3, :3]), leaf(point))
    without, _ = joint_graphs(ordinary, lambda x: healthy(x.sqrt()[:3, :3]), leaf(point))

    assert ours == theirs
    assert torch.equal(found, wanted)
    assert with_masks != without  # else the comparison could not fail


def healthy_models():
    """Return models of the usual layers, and the shapes of their inputs."""
    nn = torch.nn
    encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True)
    images = nn.Sequential(nn.Conv2d(2, 4, 3), nn.SiLU(), nn.Conv2d(4, 2, 1))
    return {
        "MLP": (nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), (5, 4)),
        "norms": (nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.BatchNorm1d(8)), (5, 4)),
        "attention": (encoder, (2, 3, 4)),
        "images": (images, (2, 2, 6, 6)),
        "cell": (nn.GRUCell(4, 3), (5, 4)),
    }


@pytest.mark.parametrize("part", ["MLP", "norms", "attention", "images", "cell"])
def test_healthy_models_are_bitwise_those_of_ordinary_compile(compiled, part):
    """Where nothing selects, gradients, random numbers and buffers are those of torch.compile."""
    found = []
    for transform in (compiled, lambda f: torch.compile(f, backend="aot_eager")):
        torch.manual_seed(0)
        model, shape = healthy_models()[part]
        x = torch.randn(shape)
        torch._dynamo.reset()
        transform(lambda x, m=model: m(x).square().mean())(x).backward()
        found.append([p.grad for p in model.parameters()] + list(model.buffers()))

    assert len(found[0]) > 1
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("mark", [False, True])
def test_dynamic_shapes(compiled, mark):
    """One graph serves rows of any number."""
    torch._dynamo.utils.counters.clear()
    program = compiled(lambda x: torch.where(x > 0, x.sqrt(), 0.0).sum(), dynamic=True)

    for rows in (3, 5, 8):
        x = leaf([[0.0, 4.0]] * rows)
        if mark:
            torch._dynamo.mark_dynamic(x, 0)
        assert gradient(program, x).tolist() == [[0.0, 0.25]] * rows
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


# Training.


def rows_with_padding():
    """Return rows of which a quarter is NaN, targets, and which rows are good."""
    numbers = np.random.default_rng(1)
    rows, targets = numbers.normal(size=(16, 4)), numbers.normal(size=(16, 2))
    good = np.arange(16) % 4 != 0
    return [torch.tensor(x) for x in (np.where(good[:, None], rows, NAN), targets, good)]


def network():
    """Return a small network, the same each time."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 2)
    return torch.nn.Sequential(*layers).double()


def trained(step, model, batches):
    """Return the weights after some steps of Adam that accumulate gradients of batches."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        for batch in batches:
            step(model, *batch).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def padded_loss(model, rows, targets, good):
    """Return the mean loss of the good rows."""
    error = torch.where(good[:, None], model(rows) - targets, 0.0)
    return error.square().sum() / good.sum()


def checkpointed_loss(model, rows, targets, good):
    """Return the same with a checkpoint around the model."""
    from torch.utils.checkpoint import checkpoint

    out = checkpoint(model, rows, use_reentrant=False)
    return torch.where(good[:, None], out - targets, 0.0).square().sum() / good.sum()


@pytest.mark.parametrize("loss", [padded_loss, checkpointed_loss])
def test_training_with_padding_is_training_without(compiled, loss):
    """Adam, accumulation and a checkpoint: the weights are those that the good rows make."""
    rows, targets, good = rows_with_padding()
    halves = [(rows[i], targets[i], good[i]) for i in (slice(0, 8), slice(8, 16))]
    without = [(r[g], t[g], g[g]) for r, t, g in halves]

    found = trained(compiled(loss), network(), halves)
    wanted = trained(padded_loss, network(), without)
    naive = trained(torch.compile(loss, backend="aot_eager"), network(), halves)

    assert_close(found.numpy(), wanted.numpy(), rtol=1e-9, atol=1e-12)
    assert naive.isnan().any()


def test_autocast(compiled):
    """Under autocast casts carry the mask along."""
    weight = torch.ones(2, 3, requires_grad=True)
    rows = torch.tensor([[1.0, 2.0], [NAN, 1.0]])

    def program(weight):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = (rows @ weight).relu()
        return out[:1].float().sum()

    assert gradient(compiled(program), weight).tolist() == [[1.0] * 3, [2.0] * 3]


def test_a_module(compiled):
    """A module that holds its loss is compiled as a module."""

    class Rows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x):
            return self.layer(x)[:1].sum()

    module = Rows()

    compiled(module)(torch.tensor([[1.0, 2.0], [NAN, NAN]])).backward()

    assert module.layer.weight.grad.tolist() == [[1.0, 2.0]]


def test_safeops_is_known(compiled):
    """What safeops leaves out is absent: entries that are NaN reach no logarithm."""
    import safeops

    def program(x):
        return safeops.nansum(torch.where(x > 0, 1.0, NAN) * (x.log() + safeops.safe_sqrt(x)))

    assert gradient(compiled(program), leaf([0.0, 1.0])).tolist() == [0.0, 1.5]


def test_an_inner_gradient_is_not_touched(compiled):
    """A gradient that the program takes itself stays PyTorch's."""

    def program(x):
        slope = torch.func.grad(lambda y: (y.sqrt() ** 2).sum())(x)
        return torch.where(x > 0, slope * x, 0.0).sum()

    found = gradient(compiled(program), leaf([0.0, 4.0]))

    assert found[1] == 1.0


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_custom_function_makes_numbers(compiled):
    """A zero that the backward method of a user writes is a number."""

    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return torch.where(x > 1.0, gradient, 0.0)

    found = gradient(compiled(lambda x: Half.apply(x.sqrt()).sum()), leaf([0.0, 4.0]))
    selected = gradient(
        compiled(lambda x: torch.where(x > 1.0, x.sqrt(), 0.0).sum()), leaf([0.0, 4.0])
    )

    assert found.isnan().tolist() == [True, False]
    assert selected.tolist() == [0.0, 0.25]


def test_the_name_of_the_backend():
    """`torch.compile` finds the backend by its name, which pyproject.toml states."""
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    groups = tomllib.loads(text)["project"]["entry-points"]
    entry = EntryPoint("safeops", groups["torch_dynamo_backends"]["safeops"], "torch")

    backend = replace(entry.load(), inner="aot_eager")
    torch._dynamo.register_backend(backend, name="safeops of a test")  # as for an entry point
    found = torch.compile(root_of_positive, backend="safeops of a test")

    assert entry.load().inner == "inductor"
    assert gradient(found, leaf([0.0, 4.0])).tolist() == [0.0, 0.25]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_graph_break_hides_nothing(compiled):
    """Each part has masks of its own; at the edge absent entries become zeros, and NaN stays."""

    def program(x):
        y = x.sqrt()
        torch._dynamo.graph_break()
        return torch.where(x > 0, y.sqrt(), 0.0).sum()

    with pytest.warns(UserWarning, match="graph breaks.*edges=True"):
        found = gradient(compiled(program, fullgraph=False, on_unknown="warn"), leaf([0.0, 1.0]))

    assert found[0].isnan()
    assert found[1] == 0.25
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="break"):
        compiled(program)(leaf([0.0, 1.0]))


# What is said.


@cache
def tripled():
    """Return an operation of a user without a rule."""

    def triple(x):
        return 3 * x

    triple.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
    made = torch.library.custom_op("safeops_tests::triple", triple, mutates_args=())
    made.register_autograd(lambda _, g: made(g))
    made.register_fake(torch.empty_like)
    return made


def test_an_unknown_operation_is_said_once_with_its_line(masked):
    """The warning comes when it compiles, names the line, and comes no second time."""
    triple = tripled()

    def program(x):
        y = triple(x.sqrt())
        return triple(y)[1:].sum()

    compiled = masked.compile(program, backend="aot_eager")
    with pytest.warns(masked.UnknownOperationWarning) as told:
        compiled(leaf([0.0, 4.0])).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = gradient(compiled, leaf([0.0, 4.0]))

    ours = [str(w.message) for w in told if w.category is masked.UnknownOperationWarning]
    assert len(ours) == 1
    assert ours[0].startswith("no rule for triple, for File")
    assert "test_autodiff_torch_compiled.py" in ours[0]
    assert "triple(y)[1:].sum()" in ours[0]
    assert found.isnan().tolist() == [True, False]  # it hides nothing


def test_an_unknown_operation_can_be_an_error(masked):
    """With on_unknown="error" the compiler stops."""
    triple = tripled()
    program = masked.compile(
        lambda x: triple(x.sqrt())[1:].sum(), backend="aot_eager", on_unknown="error"
    )

    with pytest.raises(Exception, match="no rule for triple"):
        program(leaf([0.0, 4.0]))


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_of_the_graph(masked, compiled, taken):
    """Masks go through `torch.cond`; a selection in a branch makes zeros, which hide nothing."""
    weight = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)

    def program(x):
        y = torch.cond(taken_now, lambda x: (x @ weight).sqrt(), lambda x: (x @ weight).log(), (x,))
        return y[1:].sum()

    def selecting(x):
        root = lambda x: torch.where(x > 0, x.sqrt(), 0.0)  # noqa: E731  (a name for one line)
        return torch.cond(taken_now, root, root, (x,))[1:].sum()

    taken_now = torch.tensor(taken)
    wanted = 0.25  # of the root, and of the logarithm, at 4
    for transform in (lambda f: f, compiled):
        x, y = leaf([[NAN, 0.0], [1.0, 3.0]]), leaf([0.0, 0.0, 4.0])
        weight.grad = None
        for out in (transform(program)(x), transform(selecting)(y)):
            (masked.backward if transform is not compiled else torch.Tensor.backward)(out)

        assert x.grad.tolist() == [[0.0, 0.0], [2 * wanted, 2 * wanted]]
        assert weight.grad.tolist() == [[wanted] * 2, [3 * wanted] * 2]
        assert y.grad.isnan().tolist() == [True, True, False]


def points_of_an_image(x):
    """Sample images, one of which is NaN and is sampled at NaN, and leave that one out."""
    grid = torch.where(x.isnan(), NAN, 0.3 * torch.tanh(x))[:, :, :2]
    return torch.nn.functional.grid_sample(x[:, None], grid[:, None], align_corners=True)[1:].sum()


def largest_of_bags(x):
    """Take rows of a table in bags, one of which has a row of NaN and is left out."""
    rows, bags = torch.tensor([0, 1, 2, 1, 3]), torch.tensor([0, 1, 1, 3])
    found = torch.nn.functional.embedding_bag(rows, x[:, 0], bags, mode="max")
    return found[1:].square().sum()


def weighted_bags(x):
    """Weigh the rows of bags; a row of NaN is padding."""
    rows, bags = torch.tensor([1, 0, 2, 1, 3]), torch.tensor([0, 2, 3])
    weights = x[1, 0, :1].exp().expand(5)
    return torch.nn.functional.embedding_bag(
        rows, x[:, 0], bags, per_sample_weights=weights, mode="sum", padding_idx=0
    )[:2].sum()


@pytest.mark.parametrize("program", [points_of_an_image, largest_of_bags, weighted_bags])
def test_resampling_and_bags(masked, compiled, program):
    """Kernels whose rules look at numbers in eager mode have rules where there are none."""
    point = np.random.default_rng(2).normal(size=(4, 3, 3))
    point[0] = NAN
    (wanted,) = masked.grad(program(x := leaf(point)), x)

    found = gradient(compiled(program), leaf(point))

    assert wanted.isfinite().all()
    assert wanted.any()
    assert_close(found.numpy(), wanted.numpy(), rtol=1e-12)


@pytest.mark.parametrize("backend", ["eager", "no such one", None])
def test_a_backend_without_aot_is_refused(masked, backend):
    """What runs the program as it is would not mask anything."""
    with pytest.raises(ValueError, match="AOTAutograd"):
        masked.compile(root_of_positive, backend=backend)


def test_options_are_checked(masked):
    """A wrong option is an error before anything runs."""
    with pytest.raises(ValueError, match="on_unknown"):
        masked.compile(root_of_positive, on_unknown="no")


def test_the_docstring(masked):
    """Examples print what they say; gradient and source are stated."""
    doc = inspect.getdoc(masked.compile)

    assert_examples_run(masked.compile, vars(masked))
    assert "**Gradient.**" in doc
    assert "**Source.**" in doc
