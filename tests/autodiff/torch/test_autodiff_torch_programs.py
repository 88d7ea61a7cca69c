"""
Random programs for PyTorch with custom functions and complex numbers.

Their backward passes are any program: affine, not linear, constant, selecting. No tape says what a
mask is there. One thing holds always: where nothing is singular, the masked gradient is PyTorch's.
"""

import math
import os

import numpy as np
import pytest

import tape
from frameworks import Lazy

NAN = math.nan
pytestmark = pytest.mark.only("torch")
PROGRAMS = 4000 if os.environ.get("SAFEOPS_EXHAUSTIVE") else 150  # of each kind, in each part


torch = Lazy("torch")


def is_large(x):
    """Return where numbers are large, complex ones by their real part."""
    return (x.real if x.is_complex() else x) > 1.5


# Backward passes by their names: of the input and the cotangent.
RULES = {
    "affine": lambda x, g: 2 * g + 0.125 * x.detach().sgn(),
    "constant": lambda _, g: torch.full_like(g, 0.25),
    "constant minus": lambda _, g: 0.5 - g,
    "scaled": lambda x, g: g * x,
    "conjugated": lambda x, g: (g * x).conj(),
    "not linear": lambda _, g: g / (1 + g.abs()),
    "normalised": lambda _, g: g / (g.abs().max() + 1),
    "selecting": lambda x, g: torch.where(is_large(x), g, 0),
    "selecting a constant": lambda x, g: torch.where(is_large(x), g, 0.125),
    "written in place": lambda _, g: g.clone().index_fill_(0, torch.tensor([1]), 0.25),
    "added in place": lambda x, g: g.index_add(0, torch.tensor([1]), x[:1]),
    "filled": lambda x, g: g.masked_fill(is_large(x), 0.0),
    "joined": lambda x, g: torch.cat([g[:1], x[1:]]),
    "finite only": lambda _, g: torch.where(g.isfinite(), g, 0),
    "product": lambda x, g: g @ x.mT,
    "added up": lambda _, g: g.cumsum(0).flip(0),
}
WRITES = {
    "floor": lambda y: torch.view_as_real(y).floor_() if y.is_complex() else y.floor_(),
    "fill": lambda y: y.fill_(0.5),
    "scale": lambda y: y.mul_(0.75),
    "masked": lambda y: y.masked_fill_(is_large(y), 0.0),
    "copy": lambda y: y.copy_(y.flip(0)),
    "put": lambda y: y.put_(torch.tensor([1]), y.flatten()[:1].clone()),
}
MOVES = {
    "conj": lambda x: x.conj(),
    "real and imaginary": lambda x: torch.complex(x.imag, x.real) if x.is_complex() else -x,
    "size": lambda x: x.abs() + 0 * x,
    "heads": lambda x: (x[None] @ x[None].mT).transpose(0, 1).reshape(x.shape),
    "picture": lambda x: torch.einsum("ij,kj->ki", x, x),
    "taken": lambda x: x.take(torch.tensor([[0, 4, 8], [1, 5, 6], [3, 3, 7]])),
}


def beside(x, padding, axis=0):
    """Return entries, and constants beside them that are times the padding: NaN, or a number."""
    return torch.cat([x, padding * x.detach()], axis)


def attended(x, padding):
    """Return the first of two sequences that attention is given; complex ones are multiplied."""
    both = beside(x[None], padding)
    if x.is_complex():
        return (both @ x.mH)[0]
    heads = both[:, None] + 0 * x
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(heads, heads, heads).transpose(1, 2).flatten(2)[0]


# What reads nothing of the padding.
PADDED = {
    "rows": lambda x, padding: (beside(x, padding) @ x)[:3],
    "columns": lambda x, padding: (x.conj() @ beside(x, padding, 1))[:, :3],
    "batch": lambda x, padding: (beside(x[None], padding) @ x.mH).permute(2, 0, 1)[:, 0],
    "linear": lambda x, padding: torch.nn.functional.linear(beside(x, padding), x)[:3],
    "attention": attended,
    "in place": lambda x, padding: written("scale")(beside(x, padding) * x.sum())[:3],
}


def custom(name):
    """Return a function, 2 x, with a backward pass of its own."""

    class Custom(torch.autograd.Function):
        """2 x."""

        @staticmethod
        def forward(ctx, x):
            """Return 2 x."""
            ctx.save_for_backward(x)
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            """Return anything."""
            return RULES[name](*ctx.saved_tensors, g)

    return Custom.apply


def written(name):
    """Return a function that writes into the first two rows of a copy."""

    def f(x):
        y = x.clone()
        WRITES[name](y[:2])
        return y

    return f


class Ops:
    """The array language on PyTorch; what complex numbers have no order for is something else."""

    def __init__(self, padding=1.0):
        """Take over what has the same name."""
        self.padding = padding
        for name in ("sqrt", "log", "exp", "where", "matmul"):
            setattr(self, name, getattr(torch, name))

    positive = staticmethod(is_large)
    inverse = staticmethod(lambda x: 1 / x)
    take = staticmethod(lambda x, index: x[torch.as_tensor(index)])
    concat = staticmethod(lambda x, y: torch.cat([x, y]))
    total = staticmethod(lambda x: x.sum())
    cumsum = staticmethod(lambda x: x.cumsum(0))
    reverse = staticmethod(lambda x: x.flip(0))
    transpose = staticmethod(lambda x: x.T)
    maximum = staticmethod(lambda x, y: x - y if x.is_complex() else torch.maximum(x, y))
    least = staticmethod(lambda x: x.flip(0) if x.is_complex() else torch.minimum(x, x.flip(0)))
    clip = staticmethod(lambda x: x / 2 if x.is_complex() else x.clip(0.25, 2.0))
    largest = staticmethod(lambda x: x.sum(0) if x.is_complex() else x.amax(0))
    sort = staticmethod(lambda x: x.tril() if x.is_complex() else x.sort(dim=0, stable=True).values)

    @staticmethod
    def set_zero(x, index):
        """Put 0 at an index of the first axis, in place."""
        x = x.clone()
        x[index] = 0.0
        return x

    def __getattr__(self, name):
        """Return what the programs of this file have more."""
        kind, _, which = name.partition(": ")
        if kind == "padded":
            return lambda x: PADDED[which](x, self.padding)
        makers = {"custom": custom, "written": written, "moved": MOVES.get}
        return makers[kind](which)


MORE = [f"{kind}: {name}" for kind, names in
        {"custom": RULES, "written": WRITES, "moved": MOVES, "padded": PADDED}.items()
        for name in names]  # fmt: skip


def programs(start, stop):
    """Yield random programs of which about half of the steps are those of this file, and points."""
    for seed in range(start, stop):
        numbers = np.random.default_rng(seed)
        steps, keep = tape.random_program(numbers, int(numbers.integers(3, 8)), ("clip", "least"))
        for i in np.flatnonzero(numbers.uniform(size=len(steps)) < 0.5):
            steps[i] = (str(numbers.choice(MORE)), *steps[i][1:])
        real, imaginary = numbers.uniform(0.25, 2.5, (2, tape.N, tape.N))
        yield (steps, keep), real, imaginary


def outcome(program, x, padding):
    """Return the result of a program, and the arrays on the way."""
    steps, (row, column) = program
    arrays, ops = [x], Ops(padding)
    for step in steps:
        arrays.append(tape.apply(ops, arrays, *step))
    out = arrays[-1][row][None if column == 0 else slice(column, column + 1)].sum()
    return out.real if out.is_complex() else out, arrays


def both_gradients(masked, program, point):
    """
    Return the masked gradient and PyTorch's, or None if anything on the way is not finite.

    The padding is NaN for ours, and a number for PyTorch.
    """
    found = [outcome(program, torch.tensor(point, requires_grad=True), p) for p in (NAN, 1.0)]
    (out, _), (plain, arrays) = found
    if not plain.requires_grad or not all(y.isfinite().all() for y in arrays):
        return None
    options = {"retain_graph": True, "allow_unused": True}
    wanted = torch.autograd.grad(plain, [y for y in arrays if y.requires_grad], **options)
    if wanted[0] is None or not all(g is None or g.isfinite().all() for g in wanted):
        return None
    (ours,) = masked.grad(out, found[0][1][0], on_unknown="ignore")
    return ours, wanted[0]


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("kind", ["real", "complex"])
def test_where_nothing_is_singular_the_gradient_is_that_of_pytorch(masked, kind, part):
    """
    With custom functions of every kind, and complex numbers, a finite gradient is PyTorch's.

    That is so also where products have NaN beside what is read.
    """
    compared = 0
    for program, real, imaginary in programs(PROGRAMS * part, PROGRAMS * (part + 1)):
        point = real if kind == "real" else real + 1j * imaginary
        pair = both_gradients(masked, program, point)
        if pair is not None:
            compared += 1
            assert torch.allclose(*pair, rtol=1e-9, atol=1e-12), program

    assert compared >= PROGRAMS / 3


def test_the_default_is_what_a_masked_pass_gives():
    """On random programs, custom functions included, the two differ in no bit."""
    from safeops.autodiff import torch as masked  # as it is by default, which the fixture is not

    ordinary = 0
    for program, point, _ in programs(0, 60):
        out, arrays = outcome(program, torch.tensor(point, requires_grad=True), NAN)
        if out.requires_grad:
            how = {"on_unknown": "ignore", "retain_graph": True, "materialize_grads": True}
            first, second = (masked.grad(out, arrays[0], lazy=z, **how)[0] for z in (None, False))
            assert torch.equal(first.nan_to_num(), second.nan_to_num()), program
            assert torch.equal(first.isnan(), second.isnan()), program
            ordinary += bool(first.isfinite().all())

    assert ordinary >= 20


def assert_nothing_is_hidden(grad, kind):
    """If a loss is NaN by one entry, the gradient of a factor of all entries is not finite."""
    used = 0
    for seed, (program, real, imaginary) in enumerate(programs(0, PROGRAMS)):
        known = torch.tensor(real if kind == "real" else real + 1j * imaginary)
        x, w = known.clone(), torch.ones_like(known, requires_grad=True)
        x.view(-1)[seed % x.numel()] = NAN
        out, _ = outcome(program, w * x, NAN)
        if out.isnan() and out.requires_grad and outcome(program, known, NAN)[0].isfinite():
            used += 1
            assert not grad(out, w, on_unknown="ignore")[0].isfinite().all(), program
    assert used >= PROGRAMS / 5  # else nothing was there to hide


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_a_nan_that_is_used_is_not_hidden(masked, kind):
    """With custom functions of every kind, too, a NaN of the loss is in the gradient."""
    assert_nothing_is_hidden(masked.grad, kind)


def test_a_hidden_nan_is_found():
    """A gradient without NaN is one that hides it."""
    with pytest.raises(AssertionError):
        assert_nothing_is_hidden(lambda _, w, **how: [torch.zeros_like(w)], "real")  # noqa: ARG005


def test_the_programs_leave_something_out(masked):
    """Masks with absent entries come up in them, and the comparison sees a lost conjugate."""
    partial = 0
    for program, real, _ in programs(0, 50):
        x = torch.tensor(real, requires_grad=True)
        out = tape.run(program, Ops(), x)
        if out.requires_grad:
            _, (mask,) = masked.grad(
                out, x, return_mask=True, materialize_grads=True, on_unknown="ignore"
            )
            partial += not mask.all()

    assert partial >= 10
