"""The public functions of masked autodiff for PyTorch: options, masks, accumulation, refusals."""

import inspect

import pytest

from assertions import assert_close, assert_examples_run
from reported_torch import INF, NAN, leaf, root_of_positive, torch, unknown_program

pytestmark = pytest.mark.only("torch")


def test_backward_puts_the_gradient_into_the_leaf(masked, x):
    """`backward` fills .grad, and the mask of the leaf can be asked for."""
    masked.backward(root_of_positive(x))

    assert x.grad.tolist() == [0.0, 0.25]
    assert masked.gradient_mask(x).tolist() == [False, True]


def test_backward_returns_the_masks_of_leaves(masked, x):
    """With `return_mask` each leaf has its mask."""
    weight = leaf([2.0])

    masks = masked.backward(root_of_positive(x) * weight[0], return_mask=True)

    assert {leaf: mask.tolist() for leaf, mask in masks.items()} == {
        x: [False, True],
        weight: [True],
    }


def test_backward_takes_inputs_and_cotangents(masked, x):
    """Only `inputs` are accumulated into, and cotangents are given as in PyTorch."""
    weight = leaf([2.0])
    output = torch.where(x > 0, x.sqrt() * weight, 0.0)

    masked.backward(output, torch.tensor([1.0, 8.0]).double(), inputs=iter([x]))

    assert x.grad.tolist() == [0.0, 4.0]
    assert weight.grad is None


def test_gradients_accumulate_and_so_do_masks(masked, x):
    """After two passes the gradient is the sum, and active what one of them reached."""
    masked.backward(x.sqrt()[1])
    masked.backward(3.0 * x[1:].sum())

    assert x.grad.tolist() == [0.0, 3.25]
    assert masked.gradient_mask(x).tolist() == [False, True]


def test_a_gradient_that_was_written_into_is_active(masked, x):
    """What somebody else has put into .grad counts as active."""
    masked.backward(root_of_positive(x))
    x.grad[0] = 1.0

    assert masked.gradient_mask(x).tolist() == [True, True]


def test_an_earlier_gradient_is_data(masked, x):
    """The zeros of a gradient that is used in another program are numbers."""
    masked.backward(x[1])
    weights = x.grad
    x.grad = None

    (found,), (active,) = masked.grad((x.sqrt() * weights).sum(), x, return_mask=True)

    assert found[0].isnan()
    assert active.all()


def test_an_ordinary_gradient_has_no_mask(masked, x):
    """Asking for a mask that nobody made is an error; without a gradient nothing is active."""
    nothing = masked.gradient_mask(x)
    x.sum().backward()

    assert not nothing.any()
    with pytest.raises(ValueError, match="without a mask"):
        masked.gradient_mask(x)


def test_a_numeric_zero_is_active(masked, x):
    """A slope of 0 is not the same as never used."""
    _, masks = masked.grad(0.0 * x[1], x, return_mask=True)

    assert masks[0].tolist() == [False, True]


def test_unused_inputs_are_absent(masked, x):
    """An unused input has no gradient, or zeros on demand, of which none is active."""
    unused = leaf([1.0])

    found, masks = masked.grad(x.sum(), [x, unused], allow_unused=True, return_mask=True)
    zeros = masked.grad(x.sum(), [x, unused], materialize_grads=True)

    assert found[1] is None
    assert not masks[1].any()
    assert zeros[1].tolist() == [0.0]


def test_the_context_masks_every_door_of_autograd(masked, x):
    """In `masked_backward` the calls of others are masked, with PyTorch's own signatures."""
    with masked.masked_backward(on_unknown="error"):
        root_of_positive(x).backward(None, False, False)
        torch.autograd.backward([root_of_positive(x)])
        (found,) = torch.autograd.grad(root_of_positive(x), x, None, only_inputs=True)
    with masked.masked_backward(), pytest.raises(NotImplementedError, match="one gradient"):
        torch.autograd.grad(x.sqrt(), x, torch.eye(2).double(), is_grads_batched=True)

    assert x.grad.tolist() == [0.0, 0.5]
    assert found.tolist() == [0.0, 0.25]


def test_the_context_masks_another_name_of_backward(masked, x):
    """A function that was imported before, with gradients for several outputs, beside a mode."""
    backward = vars(torch.autograd)["backward"]
    seen = []

    class Passing(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    outputs = [root_of_positive(x), torch.where(x > 0, x.log(), 0.0)]
    with masked.masked_backward(on_unknown="error"), Passing():
        backward(outputs, [None, torch.ones(2).double()], inputs=[x])

    assert x.grad.tolist() == [0.0, 0.5]
    assert torch.autograd.backward in seen


def test_the_context_ends(masked, x):
    """After the context, and after an exception in it, gradients are ordinary again."""
    with pytest.raises(ZeroDivisionError), masked.masked_backward():
        raise ZeroDivisionError
    root_of_positive(x).backward()

    assert x.grad[0].isnan()


def test_value_and_grad(masked, x):
    """Value, gradient, mask and the other result, in the order of JAX."""

    def program(weights, x):
        return root_of_positive(x) * weights["a"], "aux"

    f = masked.value_and_grad(program, argnums=(1, 0), has_aux=True, return_mask=True)

    (value, aux), (gradients, masks) = f({"a": torch.tensor(3.0).double()}, x.detach())

    assert (value.item(), aux) == (6.0, "aux")
    assert gradients[0].tolist() == [0.0, 0.75]
    assert gradients[1]["a"].item() == 2.0
    assert masks[0].tolist() == [False, True]
    assert not value.requires_grad


@pytest.mark.parametrize("lazy", [False, True])
def test_value_and_grad_of_a_constant(masked, lazy):
    """A function that does not use its argument has gradient 0."""
    f = masked.value_and_grad(lambda _: torch.ones(()), lazy=lazy)

    assert f(torch.ones(2))[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("wrong", [1.0, [2.0], "integers"])
def test_value_and_grad_takes_tensors(masked, wrong):
    """A number or an integer tensor has no gradient, and a TypeError says so."""
    wrong = torch.arange(3) if wrong == "integers" else wrong

    with pytest.raises(TypeError, match="real or complex tensors"):
        masked.value_and_grad(lambda x: x)(wrong)


@pytest.mark.parametrize("door", ["grad", "backward"])
def test_lazy_gives_the_same(masked, x, door):
    """Lazy mode has the ordinary gradient if it is finite, else the masked one."""
    for program, wanted in ((root_of_positive, [0.0, 0.25]), (lambda x: (x * x).sum(), [0.0, 8.0])):
        x.grad = None
        output = program(x)
        found = getattr(masked, door)(output, *[x][: door == "grad"], lazy=True)

        assert (found[0] if door == "grad" else x.grad).tolist() == wanted


def test_lazy_accumulates_in_place(masked, x):
    """Lazy mode adds to the tensor that is there, once, bad passes included."""
    masked.backward(x.sum())
    there = x.grad
    masked.backward((x * x).sum(), lazy=True)
    masked.backward(root_of_positive(x), lazy=True)

    assert there.tolist() == x.grad.tolist() == [1.0, 9.25]


@pytest.mark.parametrize(("slope", "times"), [(1e308, 1), (INF, 2)])
def test_lazy_knows_large_gradients_from_infinite_ones(masked, slope, times):
    """A gradient whose sum overflows is finite, and is made once; an infinite one twice."""
    x, calls = leaf([1.0, 1.0]), []
    y = x * 1.0
    y.register_hook(calls.append)

    masked.grad((y * slope).sum(), x, lazy=True)

    assert len(calls) == times


@pytest.mark.parametrize("options", [{"on_unknown": "maybe"}, {"lazy": True, "return_mask": True}])
def test_options_are_checked(masked, x, options):
    """Each door refuses an option that it does not know, and two that exclude each other."""
    for call in (
        lambda: masked.grad(x.sum(), x, **options),
        lambda: masked.backward(x.sum(), **options),
        lambda: masked.value_and_grad(torch.sum, **options),
    ):
        with pytest.raises(ValueError, match="expected"):
            call()


def test_unknown_operations_are_reported(masked):
    """An operation without a rule warns, raises or is silent, and hides nothing."""
    x = leaf([0.0, 4.0])
    with pytest.warns(masked.UnknownOperationWarning, match="no rule for twice"):
        (warned,) = masked.grad(unknown_program(x), x)
    with pytest.raises(NotImplementedError, match="no rule"):
        masked.grad(unknown_program(x), x, on_unknown="error")
    (ignored,), (active,) = masked.grad(
        unknown_program(x), x, on_unknown="ignore", return_mask=True
    )

    assert not warned[0].isfinite()
    assert not ignored[0].isfinite()
    assert active.all()


def test_second_derivatives(masked, x):
    """With `create_graph` a second pass is masked too, and knows what the first left out."""

    def program(x):
        return torch.where(x > 0, x.sqrt() * x, 0.0).sum()

    (first,) = masked.grad(program(x), x, create_graph=True)
    (second,), (active,) = masked.grad(first.sum(), x, return_mask=True, on_unknown="error")
    (plain,) = torch.autograd.grad(program(x), x, create_graph=True)
    (naive,) = torch.autograd.grad(plain.sum(), x)

    assert first.tolist() == [0.0, 3.0]
    assert second.tolist() == [0.0, 0.375]
    assert active.tolist() == [False, True]
    assert not naive.isfinite().all()


SECOND = {
    "where": (lambda x: torch.where(x > 0, x**1.5, 0.0).sum(), 0.375),
    "index": (lambda x: (x**1.5)[1], 0.375),
    "product of matrices": (
        lambda x: (torch.stack([x**0.5, 1 / x]).T @ torch.stack([x, x]))[1, 1],
        0.375,
    ),
    "division": (lambda x: (1 / x / x.sqrt())[1:].sum(), 15 / 4 * 4**-3.5),
    "sort": (lambda x: (x**1.5).sort().values[1], 0.375),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_by_value_and_grad(masked, name):
    """`value_and_grad` of itself is the second derivative."""
    program, wanted = SECOND[name]
    first = masked.value_and_grad(program, create_graph=True, on_unknown="error")
    second = masked.value_and_grad(lambda x: first(x)[1].sum(), on_unknown="error")

    assert_close(second(leaf([0.0, 4.0]))[1].numpy(), [0.0, wanted], rtol=1e-12)


def test_autocast(masked):
    """Under autocast casts carry the mask along."""
    weight = torch.ones(2, 3, requires_grad=True)
    rows = torch.tensor([[1.0, 2.0], [NAN, 1.0]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = (rows @ weight).relu()

    masked.backward(out[:1].float().sum(), on_unknown="error")

    assert weight.grad.tolist() == [[1.0] * 3, [2.0] * 3]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_dtypes(masked, dtype):
    """Gradients have the dtype of the input."""
    x = torch.tensor([0.0, 4.0], dtype=getattr(torch, dtype), requires_grad=True)

    (found,) = masked.grad(abs((1 / x)[1:]).sum(), x, on_unknown="error")

    assert found.dtype == x.dtype
    assert found.tolist() == [0.0, -0.0625]


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_no_node_makes_a_nan(masked, x):
    """PyTorch's own detector of NaN is silent."""
    with torch.autograd.detect_anomaly(check_nan=True):
        (found,) = masked.grad(root_of_positive(x), x)

    assert found.tolist() == [0.0, 0.25]


def test_compiled_programs_are_refused(masked, x):
    """The result of torch.compile raises, and the way that the error names works."""
    program = torch.compile(lambda x: x.sqrt()[1], backend="aot_eager")

    with pytest.raises(RuntimeError, match="force_eager"):
        masked.grad(program(x), x)
    with torch.compiler.set_stance("force_eager"):
        (found,) = masked.grad(program(x), x)

    assert found.tolist() == [0.0, 0.25]


@pytest.mark.parametrize("transform", ["grad", "vmap"])
def test_functional_transforms_are_refused(masked, x, transform):
    """Inside torch.func an error names what to use."""
    inner = masked.value_and_grad(root_of_positive)

    with pytest.raises(RuntimeError, match="value_and_grad"):
        getattr(torch.func, transform)(lambda x: inner(x)[1].sum())(x.detach()[None])


def test_nothing_is_kept_alive(masked, x):
    """The tables hold their storages weakly."""
    from safeops.autodiff.torch import EARLIER_GRADIENTS

    EARLIER_GRADIENTS.forget_expired()
    before = len(EARLIER_GRADIENTS.entries)  # a gradient with a graph of its leaf is never freed
    for _ in range(3):
        masked.grad(root_of_positive(x), x, create_graph=True)
        masked.backward(root_of_positive(x.detach().requires_grad_()))
    EARLIER_GRADIENTS.forget_expired()

    # Of the last pass with create_graph, whose graph a name holds.
    assert len(EARLIER_GRADIENTS.entries) <= before + 4


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # the context sets that too
def test_lstm_without_mkldnn(masked):
    """The LSTM of mkldnn, float32 on a CPU, is one unknown operation; without mkldnn it is not."""
    lstm = torch.nn.LSTM(4, 3)
    steps = torch.full((5, 2, 4), NAN)
    steps[:3] = 0.5
    with torch.backends.mkldnn.flags(enabled=False):
        masked.backward(lstm(steps)[0][:3].sum(), on_unknown="error")
    good = lstm.weight_ih_l0.grad
    lstm.zero_grad()

    masked.backward(lstm(steps)[0][:3].sum(), on_unknown="ignore")

    assert good.isfinite().all()
    assert not lstm.weight_ih_l0.grad.isfinite().all()


DOORS = ("backward", "grad", "gradient_mask", "masked_backward", "value_and_grad")


@pytest.mark.parametrize("name", DOORS)
def test_docstrings(masked, name):
    """Examples print what they say; gradient and source are stated."""
    doc = inspect.getdoc(getattr(masked, name))

    assert set(DOORS) < set(masked.__all__)
    assert_examples_run(getattr(masked, name), vars(masked))
    assert "**Gradient.**" in doc
    assert "**Source.**" in doc
