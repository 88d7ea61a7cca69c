"""Masked autodiff for PyTorch against the tape of scalars, and on the programs people reported."""

import inspect

import numpy as np
import pytest

import tape
from assertions import assert_close, assert_examples_run
from reported_torch import (
    CLEAN,
    DIRTY,
    INF,
    LATE,
    NAN,
    REPORTED,
    UNDEFINED,
    TapeOfTorch,
    Torch,
    function,
    leaf,
    programs,
    root_of_its_own,
    root_of_positive,
    torch,
    unknown_program,
)

pytestmark = pytest.mark.only("torch")


# Against the tape.


def assert_as_the_tape(found, wanted):
    """A gradient and a mask equal those of the tape; what is not finite there is not here."""
    (gradient, active), (of_tape, active_on_tape) = found, wanted
    finite = np.isfinite(of_tape)
    assert np.array_equal(np.isfinite(gradient), finite)
    assert np.array_equal(active, active_on_tape)
    assert_close(gradient[finite], of_tape[finite], rtol=1e-9, atol=1e-12)  # order of sums


@pytest.mark.parametrize("wrong", [([0.0], [True]), ([NAN], [True]), ([1.0], [False])])
def test_the_comparison_with_the_tape_can_fail(wrong):
    """A silent zero, a NaN and another mask are each found."""
    with pytest.raises(AssertionError):
        assert_as_the_tape(map(np.asarray, wrong), (np.asarray([1.0]), np.asarray([True])))


@pytest.mark.parametrize("part", range(10))
def test_random_programs_have_the_gradient_of_the_tape(masked, part):
    """Gradient and mask are those of the tape, in 30 programs of each part."""
    for _, program, x in programs(30 * part, 30 * part + 30):
        of_tape = tape.masked_gradient(lambda _, t, p=program: tape.run(p, TapeOfTorch, t), x)[1:]
        inputs = leaf(x)
        output = tape.run(program, Torch(), inputs)
        if output.requires_grad:
            gradient, active = masked.grad(
                output, inputs, materialize_grads=True, return_mask=True, on_unknown="error"
            )
            assert_as_the_tape((gradient[0].numpy(), active[0].numpy()), of_tape)


def test_a_finite_ordinary_gradient_is_ours(masked):
    """Where the ordinary gradient is finite ours is equal; where it is inf, ours is inf."""
    for _, program, x in programs(300, 450):
        inputs = leaf(x)
        output = tape.run(program, Torch(), inputs)
        if output.requires_grad:
            options = {"materialize_grads": True, "retain_graph": True}
            (ours,) = masked.grad(output, inputs, **options)
            (ordinary,) = torch.autograd.grad(output, inputs, **options)
            kept = ~ordinary.isnan()

            assert_close(ours[kept].numpy(), ordinary[kept].numpy(), rtol=1e-12)


# Second derivatives, against a tape whose slopes are on the tape.


class Twice:
    """A number, and what it was made of: nodes, each with the function that pulls back to it."""

    def __init__(self, value, parents=()):
        """Make a node."""
        self.value, self.parents = np.float64(value), parents

    def __add__(self, other):
        """Return a sum."""
        other = twice(other)
        parents = ((self, lambda g: g), (other, lambda g: g))
        return Twice(self.value + other.value, parents)

    def __sub__(self, other):
        """Return a difference."""
        return self + -twice(other)

    def __neg__(self):
        """Return the opposite."""
        return Twice(-self.value, ((self, lambda g: -g),))

    def __mul__(self, other):
        """Return a product."""
        other = twice(other)
        parents = ((self, lambda g: g * other), (other, lambda g: g * self))
        return Twice(self.value * other.value, parents)

    def __truediv__(self, other):
        """Return a quotient, with PyTorch's formula of its slope."""
        other = twice(other)
        parents = ((self, lambda g: g / other), (other, lambda g: -g * (self / other / other)))
        return Twice(self.value / other.value, parents)

    __radd__, __rmul__ = __add__, __mul__


def twice(x):
    """Return a number as a node of no parents."""
    return x if isinstance(x, Twice) else Twice(x)


def of_node(value, pull):
    """Return a function of arrays from one of numbers and its pullback, by (g, x, y)."""

    def of_one(x):
        y = Twice(value(x.value))
        y.parents = ((x, lambda g: pull(g, x, y)),)
        return y

    return staticmethod(np.vectorize(of_one, otypes=[object]))


def largest_of(entries, slopes_at_nan):
    """Return the largest of nodes, as `tape.largest_of` does."""
    chosen = tape.largest_of([tape.scalar(node.value) for node in entries], ())
    best = [node for node in entries if node.value == chosen.value]
    if not best:
        parents = [(node, lambda g, s=s: g * s) for node in entries for s in slopes_at_nan]
        return Twice(NAN, tuple(parents))
    return Twice(chosen.value, tuple((node, lambda g: g * (1 / len(best))) for node in best))


class TapeTwice(tape.Tape):
    """The array language, on nodes."""

    sqrt = of_node(np.sqrt, lambda g, _, y: g / (y * 2.0))
    log = of_node(np.log, lambda g, x, _: g / x)
    exp = of_node(np.exp, lambda g, _, y: g * y)
    inverse = of_node(lambda x: 1 / x, lambda g, _, y: -g * (y * y))

    @staticmethod
    def set_zero(x, index):
        """Put 0 at an index of the first axis."""
        x = x.copy()
        x[index] = np.vectorize(twice, otypes=[object])(np.zeros(x[index].shape))
        return x

    @staticmethod
    def largest(x):
        """Return the largest of each column."""
        return np.apply_along_axis(lambda c: largest_of(c, (NAN,)), 0, x)

    @staticmethod
    def maximum(x, y):
        """Return the larger of two."""
        return np.vectorize(lambda a, b: largest_of((a, b), (1.0,)), otypes=[object])(x, y)


def pulled_back(output):
    """Return the cotangent of each node that the output reaches, by identity."""
    order, seen, stack = [], set(), [(output, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((parent, False) for parent, _ in node.parents)
    found = {id(output): Twice(1.0)}
    for node in reversed(order):
        for parent, pull in node.parents:
            step = pull(found[id(node)])
            found[id(parent)] = found[id(parent)] + step if id(parent) in found else step
    return found


def second_gradient(program, x, weights):
    """Return gradient and mask of the weighted sum of the gradient; None if that is constant."""
    leaves = np.vectorize(Twice, otypes=[object])(x)
    with np.errstate(all="ignore"):
        first = pulled_back(tape.run(program, TapeTwice, leaves))
        pairs = [(first.get(id(n)), w) for n, w in zip(leaves.flat, weights.flat, strict=True)]
        terms = [gradient * w for gradient, w in pairs if gradient is not None]
        second = pulled_back(sum(terms[1:], terms[0])) if terms else {}
    found = [second.get(id(node)) for node in leaves.flat]
    values = np.asarray([0.0 if node is None else node.value for node in found])
    return values.reshape(x.shape), np.asarray([n is not None for n in found]).reshape(x.shape)


@pytest.mark.parametrize("part", range(4))
def test_second_derivatives_are_those_of_the_tape(masked, part):
    """The gradient of the gradient, both masked, is that of the tape, in 25 programs a part."""
    for seed, program, point in programs(1000 + 25 * part, 1025 + 25 * part):
        weights = np.random.default_rng(seed).normal(size=point.shape)
        of_tape = second_gradient(program, point, weights)
        x = leaf(point)
        output = tape.run(program, Torch(), x)
        options = {"materialize_grads": True, "on_unknown": "error"}
        if output.requires_grad:
            (first,) = masked.grad(output, x, create_graph=True, **options)
            if first.requires_grad:
                total = (first * torch.tensor(weights)).sum()
                found, active = masked.grad(total, x, return_mask=True, **options)
                assert_as_the_tape((found[0].numpy(), active[0].numpy()), of_tape)


# Programs that people reported: name, program, point, masked gradient.


@pytest.mark.parametrize("name", REPORTED)
def test_reported_programs_have_the_right_gradient(masked, name):
    """The masked gradient is exact, and nothing in the program is unknown."""
    program, point, wanted = REPORTED[name]
    x = leaf(point)

    (gradient,) = masked.grad(program(x), x, on_unknown="error")

    assert_close(gradient.numpy(), wanted, rtol=1e-12)


@pytest.mark.parametrize("name", REPORTED)
def test_reported_programs_fail_without_masks(name):
    """The ordinary gradient of each program is not finite."""
    program, point, _ = REPORTED[name]
    x = leaf(point)

    (gradient,) = torch.autograd.grad(program(x), x)

    assert not gradient.isfinite().all()


def test_arctan2_is_safe_already(masked):
    """PyTorch's own gradient of arctan2 at the origin is 0, and so is ours."""
    x = leaf([0.0])
    output = torch.where(x > 0.5, torch.atan2(x, x), 0.0).sum()

    (ordinary,) = torch.autograd.grad(output, x, retain_graph=True)

    assert ordinary.item() == masked.grad(output, x)[0].item() == 0.0


# Undefined derivatives stay undefined.


@pytest.mark.parametrize("name", UNDEFINED)
def test_undefined_derivatives_stay_undefined(masked, name):
    """A NaN or inf that is active is no zero: the ordinary gradient, and all of it active."""
    program, point = UNDEFINED[name]
    x = leaf(point)
    output = program(x)
    (ordinary,) = torch.autograd.grad(output, x, retain_graph=True)

    (gradient,), (active,) = masked.grad(output, x, return_mask=True, on_unknown="error")

    assert not ordinary.isfinite().all()
    assert not gradient.isfinite().all()
    assert active.all()


@pytest.mark.parametrize("name", ["norm", "std"])
def test_slopes_that_pytorch_chooses_are_kept(masked, name):
    """Where PyTorch gives a kink the slope 0 that is a number, and active."""
    x = leaf([0.0, 0.0])

    (gradient,), (active,) = masked.grad(getattr(x, name)(), x, return_mask=True)

    assert gradient.tolist() == [0.0, 0.0]
    assert active.all()


# Rows that are never read: a program at a point with NaN in them has the gradient of the same
# program at a clean point.


def gradients(program, rows, grad):
    """Return the gradients of a program with respect to the input and the weights."""
    x = leaf(rows)
    output, weights = program(x)
    found = grad(output, [x, *weights])
    return [g.numpy() for g in found]


@pytest.mark.parametrize("name", LATE)
def test_rows_that_nothing_reads_do_no_harm(masked, name):
    """The gradient is that of the same program at a clean point."""
    wanted = gradients(LATE[name], CLEAN, torch.autograd.grad)

    found = gradients(LATE[name], DIRTY, lambda *a: masked.grad(*a, on_unknown="error"))

    for ours, clean in zip(found, wanted, strict=True):
        assert_close(ours, clean, rtol=1e-9, atol=1e-12)  # parts of kernels, summed otherwise


@pytest.mark.parametrize("name", LATE)
def test_rows_that_nothing_reads_do_harm_without_masks(name):
    """The ordinary gradient is not finite."""
    found = gradients(LATE[name], DIRTY, torch.autograd.grad)

    assert not all(np.isfinite(g).all() for g in found)


@pytest.mark.parametrize("name", LATE)
def test_a_clean_point_has_the_ordinary_gradient(masked, name):
    """Where nothing is wrong the gradient is that of PyTorch."""
    wanted = gradients(LATE[name], CLEAN, torch.autograd.grad)

    found = gradients(LATE[name], CLEAN, masked.grad)

    for ours, ordinary in zip(found, wanted, strict=True):
        assert_close(ours, ordinary, rtol=1e-9, atol=1e-12)  # parts of kernels, summed otherwise


@pytest.mark.parametrize("name", LATE)
def test_what_is_active_does_not_depend_on_values(masked, name):
    """Quick ways for finite numbers have the masks of the long way round NaN."""
    found = []
    for rows in (CLEAN, DIRTY):
        x = leaf(rows)
        output, weights = LATE[name](x)
        found.append(masked.grad(output, [x, *weights], return_mask=True)[1])

    for clean, dirty in zip(*found, strict=True):
        assert clean.tolist() == dirty.tolist()


# The doors, and what else autograd does.


@pytest.fixture(name="x")
def make_x():
    """Return a leaf with a bad entry and a good one."""
    return leaf([0.0, 4.0])


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
    x.register_hook(calls.append)

    masked.grad((x * slope).sum(), x, lazy=True)

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


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints(masked, x, use_reentrant):
    """A checkpoint computes its part again, and that is no part of the backward pass."""
    from torch.utils.checkpoint import checkpoint

    def part(x):
        return torch.where(x > 0, x.sqrt(), 0.0) * torch.where(x > 0, x, 0.0)

    masked.backward(checkpoint(part, x * 1.0, use_reentrant=use_reentrant).sum())

    assert x.grad.tolist() == [0.0, 3.0]
    assert masked.gradient_mask(x).tolist() == [False, True]


def test_hooks_run_once_and_see_the_gradient(masked, x):
    """Hooks of tensors and of accumulation run, and what they return is used."""
    seen = []
    root = x.sqrt()
    root.register_hook(lambda g: seen.append(g.tolist()) or 2 * g)
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))

    masked.backward(torch.where(x > 0, root, 0.0).sum(), on_unknown="error")

    assert seen == [[0.0, 1.0], [0.0, 0.5]]


def test_zeros_that_a_hook_writes_are_numbers(masked, x):
    """A hook that writes zeros is no selection, not even that of the output of a selection."""
    root = torch.where(x >= 0, x.sqrt(), 0.0)
    root.register_hook(lambda g: torch.where(x > 0, g, 0.0))
    other = x.sqrt().nansum(0, keepdim=True)
    other.register_hook(lambda g: g * torch.tensor([False]))

    (found,), (active,) = masked.grad(root.sum() + other.sum(), x, return_mask=True)

    assert not found[0].isfinite()
    assert active.all()


def test_a_hook_may_scatter_a_number(masked, x):
    """A 0 that a hook scatters into a cotangent is a number, given as such or as a tensor."""
    place, zero = torch.tensor([0]), x.new_zeros(1)
    roots = [x.sqrt(), x.sqrt()]
    roots[0].register_hook(lambda g: g.scatter(0, place, 0.0))
    roots[1].register_hook(lambda g: g.scatter(0, place, zero))

    for root in roots:
        (found,), (active,) = masked.grad(root[1], x, return_mask=True)

        assert not found[0].isfinite()
        assert active.all()


def test_clamp_in_a_checkpoint(masked, x):
    """A clamp finds NaN without unpacking what a checkpoint saved a second time."""
    from torch.utils.checkpoint import checkpoint

    out = checkpoint(lambda x: x.log().clamp(min=0.0), x * 1.0, use_reentrant=False)

    assert masked.grad(out.sum(), x)[0].tolist() == [0.0, 0.25]


def test_what_is_written_into_is_active(masked, x):
    """After an operation without a rule has written into a cotangent all of it is active."""
    out = x.exp()

    @out.register_hook
    def write(gradient):
        torch._foreach_add_([gradient], 1.0)

    (found,), (active,) = masked.grad(out[1], x, return_mask=True, on_unknown="ignore")

    assert active.all()
    assert found[0] == 1.0


def test_custom_functions_run_as_they_are(masked, x):
    """The operations in the backward method of a custom function are seen."""
    (found,) = masked.grad(torch.where(x > 0, root_of_its_own(x), 0.0).sum(), x, on_unknown="error")

    assert found.tolist() == [0.0, 0.25]


def test_a_zero_that_a_custom_function_writes_is_a_number(masked, x):
    """A where in somebody's backward method is a convention, and hides no NaN."""

    class Where(torch.autograd.Function):  # the name of a selection of PyTorch
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return torch.where(x > 0, gradient, 0.0)

    (found,), (active,) = masked.grad(Where.apply(x.sqrt()).sum(), x, return_mask=True)

    assert found[0].isnan()
    assert active.all()


def test_our_own_functions_can_be_selections(masked):
    """What `safeops.nansum` leaves out is absent, though a custom function of ours makes it."""
    from safeops import nansum

    x = leaf([-1.0, 4.0])
    out = nansum(x.sqrt())
    (ordinary,) = torch.autograd.grad(out, x, retain_graph=True)

    (found,), (active,) = masked.grad(out, x, return_mask=True, on_unknown="error")

    (node, _), *_ = out.grad_fn.next_functions  # below a change of shape
    assert node._forward_cls.__name__ == "_Nansum"  # private in PyTorch
    assert found.tolist() == [0.0, 0.25]
    assert active.tolist() == [False, True]
    assert ordinary[0].isnan()


SELECTING = {
    "masked_fill": lambda g, x: g.masked_fill(x.isnan(), 0.0),
    "where": lambda g, x: torch.where(x.isnan(), 0.0, g),
    "zeros": lambda g, x: torch.where(x.isnan(), torch.zeros_like(g), g),
    "a boolean product": lambda g, x: g * ~x.isnan(),
}


@pytest.mark.parametrize("way", SELECTING)
def test_a_function_of_ours_says_that_it_is_a_selection(masked, way):
    """One that derives from `FillingFunction` has absent entries; the same without it has not."""
    from safeops._backends.torch.filling import FillingFunction

    found = []
    for base in (FillingFunction, torch.autograd.Function):

        class Kept(base):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.nan_to_num()

            @staticmethod
            def backward(ctx, gradient):
                return SELECTING[way](gradient, *ctx.saved_tensors)

        x = leaf([-1.0, 4.0])
        found += masked.grad(Kept.apply(x.sqrt()).sum(), x, on_unknown="error")

    assert found[0].tolist() == [0.0, 0.25]
    assert found[1][0].isnan()


def test_a_hook_of_our_own_selection_is_a_hook(masked):
    """The zeros of a hook are numbers, though the node is that of a selection of ours."""
    from safeops import nansum

    x = leaf([0.0, 4.0])
    out = nansum(x.sqrt(), axis=0, keepdims=True)
    out.register_hook(lambda g: g.masked_fill(torch.tensor([True]), 0.0))

    (found,), (active,) = masked.grad(out.sum(), x, return_mask=True)

    assert found[0].isnan()
    assert active.all()


def test_views_and_writes_in_place(masked):
    """Writes through several views of one tensor keep their masks apart."""
    x = leaf([[0.0, 4.0], [9.0, 0.0]])
    root = x.log()
    root[0, 0] = 1.0
    root.view(-1)[3:].zero_()
    root.t()[0].mul_(2.0)

    (found,), (active,) = masked.grad(root.sum(), x, return_mask=True, on_unknown="error")

    assert_close(found.numpy(), [[0.0, 0.25], [2 / 9, 0.0]], rtol=1e-15)
    assert active.tolist() == [[False, True], [True, False]]


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
    from safeops.autodiff.torch import FORMER

    for _ in range(3):
        masked.grad(root_of_positive(x), x, create_graph=True)
        masked.backward(root_of_positive(x.detach().requires_grad_()))
    FORMER.forget_expired()

    assert len(FORMER.entries) <= 4  # of the last pass with create_graph, whose graph a name holds


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


@pytest.mark.gpu
def test_an_accelerator(masked):
    """On a GPU the engine runs in a thread of its own, and the mode goes with it."""
    x = torch.tensor([0.0, 4.0], device="cuda", requires_grad=True)

    masked.backward(root_of_positive(x), on_unknown="error")

    assert x.grad.tolist() == [0.0, 0.25]
    assert masked.gradient_mask(x).tolist() == [False, True]


def two_layers(x):
    """Run a network whose weights are on the device of the input, and read some rows."""
    weights = [x.new_full((4, 4), slope).requires_grad_() for slope in (0.5, -0.25)]
    return ((x @ weights[0]).relu() @ weights[1])[:4].square().sum(), weights


def indexed(x):
    """Take rows, columns and entries of a logarithm."""
    rows = x.log()[torch.tensor([0, 3, 3], device=x.device)]
    return rows.index_select(1, torch.tensor([2, 0], device=x.device))[x[:3, :2] > 0.5].sum(), []


ON_DEVICES = {
    "two layers": two_layers,
    "contraction": function(lambda x: (x @ x.mT)[:4, :4].square().sum()),
    "batched contraction": LATE["batched product"],
    "indexing": indexed,
    "where": function(lambda x: torch.where(x > 0.5, x.sqrt(), 0.0)[:4].nansum()),
    "softmax": LATE["softmax"],
    "causal attention": LATE["causal attention"],
    "sort": LATE["sort"],
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ON_DEVICES)
def test_devices_have_the_gradient_of_a_clean_point(masked, name, device):
    """On each device NaN rows that nothing reads do no harm, and the mask lives there too."""
    wanted = gradients(ON_DEVICES[name], CLEAN, torch.autograd.grad)
    x = torch.tensor(DIRTY, dtype=torch.float64, device=device, requires_grad=True)
    output, weights = ON_DEVICES[name](x)

    found, active = masked.grad(output, [x, *weights], return_mask=True, on_unknown="error")

    assert {a.device.type for a in active} == {device}
    for ours, clean in zip(found, wanted, strict=True):
        assert_close(ours.cpu().numpy(), clean, rtol=1e-6, atol=1e-9)  # another device's kernels


@pytest.mark.gpu
def test_an_accelerator_in_half_precision(masked):
    """Under autocast on a GPU, with `backward`, the weights have finite gradients."""
    layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    layer, rows = layer.to("cuda"), torch.tensor(DIRTY, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = layer(rows)[:4].float().square().sum()

    masked.backward(loss, on_unknown="error")

    assert all(p.grad.isfinite().all() for p in layer.parameters())


# What is private in PyTorch.


def test_private_names_are_there():
    """PyTorch has the private names that the evaluator uses; when one goes this says which."""
    from torch.multiprocessing.reductions import StorageWeakRef

    x = leaf([1.0])
    storage = x.untyped_storage()

    assert torch._C._current_autograd_node() is None
    assert torch._C._functorch.peek_interpreter_stack() is None
    assert torch.autograd.function.BackwardCFunction.apply.__code__.co_name == "apply"
    assert callable(torch.autograd.graph._engine_run_backward)
    assert StorageWeakRef(storage).cdata == storage._cdata
    assert not StorageWeakRef(storage).expired()
    assert hasattr(torch.ops.aten.mul.Tensor, "decompose")
    assert "__file__" in vars(torch._compile)
    assert "__file__" in vars(torch._dynamo.eval_frame)
    assert storage._cdata == storage._weak_ref()
    assert torch.ops.aten.mul_.Tensor._opname == "mul_"
    assert torch.ops.aten.mul_.Tensor._schema.is_mutable
    assert torch.ops.aten.view.default.is_view
    assert torch.ops.aten._softmax_backward_data.default in torch._decomp.decomposition_table


def test_the_running_node_is_named():
    """While a formula runs its node is known, and it is the same object each time."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            del types
            node = torch._C._current_autograd_node()
            seen.append((node.name(), node is torch._C._current_autograd_node()))
            return func(*args, **(kwargs or {}))

    output, cotangent = leaf([1.0]).relu(), torch.ones(1).double()
    with Watch():
        output.backward(cotangent)

    assert ("ReluBackward0", True) in seen


def test_nodes_have_their_names():
    """The names of nodes by which writing over, and accumulating, are known."""
    x = leaf([1.0, 2.0])
    sliced, copied = x.clone(), x.clone()
    sliced[0] = 0.0
    copied.copy_(x)
    accumulating = x.exp().grad_fn.next_functions[0][0]

    assert accumulating.name() == "torch::autograd::AccumulateGrad"
    assert sliced.grad_fn.name() == "torch::autograd::CopySlices"
    assert copied.grad_fn.name() == "torch::autograd::CopyBackwards"
    assert x.clone().zero_().grad_fn.name().startswith("ZeroBackward")
    assert x.clone().fill_(1.0).grad_fn.name().startswith("FillBackward")


def test_every_operation_of_the_table_exists():
    """No name in the table of classes is misspelt."""
    from safeops.autodiff.torch._tables import RULES

    assert [name for name in RULES if not hasattr(torch.ops.aten, name)] == []


def test_every_selection_exists():
    """No name in the list of selections is misspelt: PyTorch has a node of that name."""
    from safeops.autodiff.torch._nodes import OURS, SELECTIONS

    nodes = {name.rpartition("Backward")[0] for name in dir(torch._C._functions)}

    assert nodes >= SELECTIONS - {OURS}


def test_the_framework_of_the_arguments_is_picked():
    """`safeops.autodiff.grad` is this one for tensors, with several arguments and masks too."""
    from safeops import autodiff

    x = torch.tensor([0.0, 2.0])
    log = autodiff.grad(lambda x: torch.where(x > 0, torch.log(x), 0.0).sum())(x)
    product = autodiff.grad(lambda a, x: a * x[1], (0, 1), return_mask=True)
    gradients, masks = product(torch.tensor(2.0), x)

    assert log.tolist() == [0.0, 0.5]
    assert gradients[1].tolist() == [0.0, 2.0]
    assert masks[1].tolist() == [False, True]
