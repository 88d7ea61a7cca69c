"""Masked autodiff in the transforms of torch.func: the programs of eager mode, and compositions."""

import inspect

import pytest

import reported_torch
from assertions import assert_close, assert_examples_run
from reported_torch import CLEAN, DIRTY, NAN, REPORTED, UNDEFINED, root_of_positive, torch

pytestmark = pytest.mark.only("torch")

# What vmap itself refuses (2.13): a result whose shape depends on the numbers.
NOT_BATCHED = {"4132: y[mask] = 0", "4132: masked_select", "55056: index of a power"}


@pytest.fixture
def func():
    """Return what is tested."""
    from safeops.autodiff.torch import func

    return func


def double(values):
    """Return a tensor of float64, which needs no gradient."""
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("name", REPORTED)
def test_reported_programs_have_the_right_gradient(func, name):
    """The gradient is exact, and nothing in the program is unknown."""
    program, point, wanted = REPORTED[name]

    found = func.grad(program, on_unknown="error")(double(point))

    assert_close(found.numpy(), wanted, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("name", sorted(set(REPORTED) - NOT_BATCHED))
def test_reported_programs_have_the_right_gradient_in_a_batch(func, name):
    """Each row of a batch has its gradient, beside that of another one."""
    program, point, wanted = REPORTED[name]
    x = double(point)
    beside = func.grad(program)(x + 1)

    found = torch.func.vmap(func.grad(program, on_unknown="error"))(torch.stack([x, x + 1]))

    assert_close(found[0].numpy(), wanted, rtol=1e-12)
    assert_close(found[1].numpy(), beside.numpy(), rtol=1e-12)


@pytest.mark.parametrize("name", ["10729: where and sqrt", "amax of log", "4132: y[0] = 0"])
def test_the_ordinary_transform_fails(name):
    """The gradient of torch.func is NaN."""
    program, point, _ = REPORTED[name]

    assert torch.func.grad(program)(double(point)).isnan().any()


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("name", UNDEFINED)
def test_undefined_derivatives_stay_undefined(func, name, batched):
    """What no selection leaves out stays as it is: NaN or inf."""
    program, point = UNDEFINED[name]
    transform = func.grad(program)
    if batched:
        transform = torch.func.vmap(transform, randomness="different")

    found = transform(double([point] if batched else point))

    assert not found.isfinite().all()


def test_gradients_per_sample(func):
    """A sample that is NaN has a gradient of NaN, and one that reads half of it a number."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 2).double()
    weights = {name: x.detach() for name, x in layer.named_parameters()}

    def loss(weights, row):
        out = torch.func.functional_call(layer, weights, (torch.stack([row, row.nan_to_num(1.0)]),))
        return out[1].square().sum()

    def of(transform, rows):
        return torch.func.vmap(transform(loss), in_dims=(None, 0))(weights, rows)

    found = of(func.grad, double(DIRTY))
    wanted = of(torch.func.grad, double(DIRTY).nan_to_num(1.0))
    naive = of(torch.func.grad, double(DIRTY))

    for name in weights:
        assert_close(found[name].numpy(), wanted[name].numpy(), rtol=1e-12)
    assert naive["weight"][4:].isnan().any()


def test_around_vmap(func):
    """The gradient of a loss over a batch that vmap makes."""

    def loss(x):
        return torch.func.vmap(lambda row: row.log().sum())(x)[:4].sum()

    found = func.grad(loss)(double(DIRTY))

    assert_close(found[:4].numpy(), (1 / double(CLEAN)[:4]).numpy(), rtol=1e-12)
    assert found[4:].tolist() == [[0.0] * 4] * 2


def test_value_and_aux(func):
    """Value, aux and gradient come in the order of the name; arguments by their numbers."""
    both = func.value_and_grad(lambda x, y: ((x * y).sqrt()[1], x), argnums=(0, 1), has_aux=True)

    (value, aux), (of_x, of_y) = both(double([0.0, 4.0]), double([0.0, 1.0]))
    _, aux_of_grad = func.grad(lambda x: (x[0], 2 * x), has_aux=True)(double([1.0]))

    assert value == 2.0
    assert aux.tolist() == [0.0, 4.0]
    assert of_x.tolist() == [0.0, 0.25]
    assert of_y.tolist() == [0.0, 1.0]
    assert aux_of_grad.tolist() == [2.0]


def test_a_pullback(func):
    """It can be called again, also in a batch; a zero that it is given is a number."""
    value, pull, aux = func.vjp(
        lambda x: (x.sqrt()[1:], 2 * x), double([0.0, 4.0, 0.0]), has_aux=True
    )

    assert value.tolist() == [2.0, 0.0]
    assert aux.tolist() == [0.0, 8.0, 0.0]
    for _ in range(2):
        (found,) = pull(double([1.0, 0.0]))
        assert found[:2].tolist() == [0.0, 0.25]
        assert found[2].isnan()
    (batch,) = torch.func.vmap(pull)(double([[1.0, 1.0], [2.0, 1.0]]))
    assert batch[:, :2].tolist() == [[0.0, 0.25], [0.0, 0.5]]


@pytest.mark.parametrize("chunk_size", [None, 1])
def test_a_jacobian(func, chunk_size):
    """In a row of the Jacobian the other entries of the output are absent."""
    found = func.jacrev(lambda x: 1 / x, chunk_size=chunk_size)(double([0.0, 2.0]))
    naive = torch.func.jacrev(lambda x: 1 / x)(double([0.0, 2.0]))

    assert found.tolist() == [[-float("inf"), 0.0], [0.0, -0.25]]
    assert naive.isnan().any()


def test_second_order(func):
    """Both passes are masked: the Hessian, in a batch too, and a gradient of a gradient."""

    def program(x):
        return torch.where(x > 0, x.log(), 0.0).sum()

    points = double([[0.0, 2.0], [1.0, -1.0]])
    wanted = [[[0.0, 0.0], [0.0, -0.25]], [[-1.0, 0.0], [0.0, 0.0]]]

    assert func.hessian(program)(points[0]).tolist() == wanted[0]
    assert torch.func.vmap(func.hessian(program))(points).tolist() == wanted
    assert func.grad(lambda x: func.grad(program)(x)[1])(points[0]).tolist() == [0.0, -0.25]
    assert torch.func.hessian(program)(points[0]).isnan().any()


def test_an_inner_gradient_is_not_touched(func):
    """A gradient that the program takes by torch.func stays as it is, and so does its NaN."""

    def program(x):
        return torch.func.grad(root_of_positive)(x).sum()

    assert func.grad(program)(double([0.0, 4.0])).isnan().tolist() == [True, False]


def test_nothing_masked_is_bitwise_the_same(func):
    """Without a selection the gradient is that of torch.func, bit for bit."""

    def program(x):
        return ((x @ x.mT).softmax(-1).tanh() * x[:, :1].exp()).square().mean()

    x = double(CLEAN)

    assert torch.equal(func.grad(program)(x), torch.func.grad(program)(x))


def pulled_back(func, x):
    """Return a gradient by a pullback."""
    value, pull = func.vjp(root_of_positive, x)
    return pull(torch.ones_like(value))[0]


CALLS = {
    "grad": lambda func, x: func.grad(root_of_positive)(x),
    "value_and_grad": lambda func, x: func.value_and_grad(root_of_positive)(x)[1],
    "vjp": pulled_back,
    "jacrev": lambda func, x: func.jacrev(root_of_positive)(x),
    "hessian": lambda func, x: func.hessian(root_of_positive)(x),
    "vmap": lambda func, x: torch.func.vmap(func.grad(root_of_positive))(x[None])[0],
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("by_us", [True, False])
def test_in_a_compiled_function_the_graph_breaks(masked, func, monkeypatch, name, by_us):
    """Dynamo does not trace them, and says why; after the break they are what they are."""
    import torch as real  # Dynamo cannot see it being loaded

    monkeypatch.setitem(globals(), "torch", real)
    monkeypatch.setattr(reported_torch, "torch", real)
    real._dynamo.reset()
    compile_it = masked.compile if by_us else torch.compile
    x = double([0.0, 4.0])
    wanted = CALLS[name](func, x)

    program = compile_it(lambda x: CALLS[name](func, x), backend="aot_eager", fullgraph=False)
    whole = compile_it(lambda x: CALLS[name](func, x), backend="aot_eager", fullgraph=True)

    assert wanted.isfinite().all()
    assert torch.equal(program(x), wanted)
    with pytest.raises(
        torch._dynamo.exc.Unsupported, match=r"compile a loss with safeops.autodiff.torch.compile"
    ):
        whole(x)


def test_options_are_checked(func):
    """A wrong option is an error before anything runs."""
    for make in (func.grad, func.value_and_grad, func.jacrev, func.hessian):
        with pytest.raises(ValueError, match="on_unknown"):
            make(root_of_positive, on_unknown="no")
    with pytest.raises(ValueError, match="on_unknown"):
        func.vjp(root_of_positive, double([NAN]), on_unknown="no")


@pytest.mark.parametrize("name", ["grad", "hessian", "jacrev", "value_and_grad", "vjp"])
def test_docstrings(func, name):
    """Examples print what they say; gradient and source are stated."""
    doc = inspect.getdoc(getattr(func, name))

    assert name in func.__all__
    assert_examples_run(getattr(func, name), vars(func))
    assert "**Gradient.**" in doc
    assert "**Source.**" in doc
