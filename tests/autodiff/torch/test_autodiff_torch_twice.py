"""Second derivatives of masked autodiff for PyTorch, against a tape whose slopes are on it too."""

import numpy as np
import pytest

import tape
from reported_torch import NAN, Torch, leaf, programs, torch

pytestmark = pytest.mark.only("torch")


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
    found = {id(output): Twice(1.0)}
    for node in tape.reached(output):
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
                tape.assert_as_the_tape((found[0].numpy(), active[0].numpy()), of_tape)
