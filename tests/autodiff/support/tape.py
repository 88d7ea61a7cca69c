"""
The specification of masked autodiff, executable: a tape of scalars.

Arrays are NumPy arrays of scalars, so that `where`, indexing, slicing and sorting move scalars and
leave nothing behind. The backward pass visits only the scalars that the output reaches: an entry
that nothing selected is not among them. Programs of the array language below run on the tape and,
with another set of operations, on a framework.
"""

import math
from dataclasses import dataclass

import numpy as np

from assertions import assert_close


@dataclass(eq=False)
class Scalar:
    """A number, and the scalars it was made of, each with its partial derivative."""

    value: float
    parents: tuple = ()

    def __add__(self, other):
        """Return a sum."""
        other = scalar(other)
        return Scalar(self.value + other.value, ((self, 1.0), (other, 1.0)))

    def __mul__(self, other):
        """Return a product."""
        other = scalar(other)
        return Scalar(self.value * other.value, ((self, other.value), (other, self.value)))

    def __sub__(self, other):
        """Return a difference."""
        other = scalar(other)
        return Scalar(self.value - other.value, ((self, 1.0), (other, -1.0)))

    def __truediv__(self, other):
        """Return a quotient."""
        x, y = np.float64(self.value), np.float64(scalar(other).value)
        return Scalar(x / y, ((self, 1 / y), (scalar(other), -x / (y * y))))

    __radd__, __rmul__ = __add__, __mul__


def scalar(x):
    """Return a number as a scalar of no parents."""
    return x if isinstance(x, Scalar) else Scalar(np.float64(x))


def reached(output):
    """Return the scalars that the output reaches, each before its parents."""
    order, seen, stack = [], set(), [(output, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((parent, False) for parent, _ in node.parents)
    return order[::-1]


def backward(output):
    """Return the cotangent of each scalar that the output reaches, by identity."""
    cotangents = {id(output): np.float64(1.0)}
    for node in reached(output):
        for parent, slope in node.parents:
            earlier = cotangents.get(id(parent))
            step = cotangents[id(node)] * slope
            cotangents[id(parent)] = step if earlier is None else earlier + step
    return cotangents


def masked_gradient(program, x):
    """Return the value of a program, its masked gradient, and what of that is active."""
    with np.errstate(all="ignore"):
        leaves = np.vectorize(scalar, otypes=[object])(x)
        output = program(Tape, leaves)
        cotangents = backward(output)
    found = [cotangents.get(id(leaf)) for leaf in leaves.ravel()]
    gradient = np.array([0.0 if g is None else g for g in found]).reshape(x.shape)
    return output.value, gradient, np.array([g is not None for g in found]).reshape(x.shape)


def values(x):
    """Return the numbers in an array of scalars."""
    return np.vectorize(lambda s: s.value, otypes=[float])(x)


def one_by_one(value, slope):
    """Return a function of arrays from one of numbers and its derivative."""

    def of_scalar(x):
        return Scalar(value(x.value), ((x, slope(x.value)),))

    return np.vectorize(of_scalar, otypes=[object])


def largest_of(entries, slope_at_nan=()):
    """Return the largest of scalars; ties share the slope evenly, and each has one beside NaN."""
    if any(math.isnan(s.value) for s in entries):
        return Scalar(math.nan, tuple((s, slope) for s in entries for slope in slope_at_nan))
    best = max(s.value for s in entries)
    ties = [s for s in entries if s.value == best]
    return ties[0] if len(ties) == 1 else Scalar(best, tuple((s, 1 / len(ties)) for s in ties))


class Tape:
    """The array language, on scalars."""

    sqrt = one_by_one(np.sqrt, lambda x: 0.5 / np.sqrt(x))
    log = one_by_one(np.log, lambda x: 1 / np.float64(x))
    exp = one_by_one(np.exp, np.exp)
    inverse = one_by_one(lambda x: 1 / np.float64(x), lambda x: -1 / (np.float64(x) * x))

    @staticmethod
    def where(cond, x, y):
        """Select scalars."""
        return np.where(cond, x, y)

    @staticmethod
    def positive(x):
        """Return where entries are above 0.5, as no scalars."""
        return values(x) > 0.5

    @staticmethod
    def set_zero(x, index):
        """Put 0 at an index of the first axis."""
        x = x.copy()
        x[index] = np.vectorize(scalar, otypes=[object])(np.zeros(x[index].shape))
        return x

    @staticmethod
    def take(x, index):
        """Take entries of the first axis."""
        return x[np.asarray(index)]

    @staticmethod
    def concat(x, y):
        """Join along the first axis."""
        return np.concatenate([x, y])

    @staticmethod
    def matmul(x, y):
        """Multiply matrices."""
        return np.dot(x, y)

    @staticmethod
    def total(x, axis=None):
        """Sum."""
        return np.sum(x, axis=axis)

    @staticmethod
    def cumsum(x):
        """Sum up along the first axis."""
        return np.cumsum(x, axis=0)

    @staticmethod
    def largest(x):
        """Return the largest of each column."""
        return np.apply_along_axis(lambda c: largest_of(c, (math.nan,)), 0, x)

    @staticmethod
    def maximum(x, y):
        """Return the larger of two; beside NaN, both have the slope 0, which is a number."""
        return np.vectorize(lambda a, b: largest_of((a, b), (0.0,)), otypes=[object])(x, y)

    @classmethod
    def minimum(cls, x, y):
        """Return the smaller of two."""
        return cls.maximum(x * -1.0, y * -1.0) * -1.0

    @classmethod
    def least(cls, x):
        """Return the smaller of each entry and the one on the other side."""
        return cls.minimum(x, x[::-1])

    @classmethod
    def clip(cls, x):
        """Clip between two numbers."""
        return cls.minimum(cls.maximum(x, scalar(0.25)), scalar(2.0))

    @staticmethod
    def sort(x):
        """Sort each column; NaN comes last."""
        order = np.argsort(values(x), axis=0, kind="stable")
        return np.take_along_axis(x, order, axis=0)

    @staticmethod
    def reverse(x):
        """Turn the first axis around."""
        return x[::-1]

    @staticmethod
    def transpose(x):
        """Exchange the axes."""
        return x.T


# Random programs

N = 3  # all arrays are N x N: an array language, not a shape checker
UNARY = ("sqrt", "log", "exp", "inverse", "cumsum", "sort", "reverse", "transpose", "half")
BINARY = ("add", "mul", "sub", "div", "where", "maximum", "matmul", "mix")
POINTS = (0.0, 0.0, 1.0, 1.0, 2.0, 4.0, -1.0, 0.25, math.inf, math.nan)


def random_program(numbers, length=5, more=()):
    """
    Return a program of the array language: instructions on a growing list of arrays.

    More instructions of one array are given by their names.
    """
    steps = []
    for i in range(length):
        kind = numbers.choice(
            ["unary", "binary", "zero", "take", "largest"], p=[0.4, 0.4, 0.1, 0.05, 0.05]
        )
        name = {"unary": (*UNARY, *more), "binary": BINARY}.get(kind, (kind,))
        latest = int(numbers.integers(max(0, i - 1), i + 1))
        other = int(numbers.integers(0, i + 1))
        index = tuple(int(k) for k in numbers.integers(0, N, N))
        steps.append((str(numbers.choice(name)), latest, other, index))
    keep = tuple(int(k) for k in numbers.integers(0, N, 2))
    return steps, keep


def run(program, ops, x):
    """Run a program on one set of operations: the sum of one entry, or of one row."""
    steps, (row, column) = program
    arrays = [x]
    for step in steps:
        arrays.append(apply(ops, arrays, *step))
    out = arrays[-1][row]
    return ops.total(out) if column == 0 else ops.total(out[column : column + 1])


def apply(ops, arrays, name, latest, other, index):
    """Run one instruction."""
    a, b = arrays[latest], arrays[other]
    special = {
        "add": lambda: a + b,
        "mul": lambda: a * b,
        "sub": lambda: a - b,
        "div": lambda: a / b,
        "half": lambda: a * 0.5,
        "where": lambda: ops.where(ops.positive(a), a, b),
        "mix": lambda: ops.concat(a[:1], b[1:]),
        "zero": lambda: ops.set_zero(a, index[0]),
        "take": lambda: ops.take(a, index),
        "largest": lambda: ops.concat(ops.largest(a)[None], b[1:]),
        "maximum": lambda: ops.maximum(a, b),
        "matmul": lambda: ops.matmul(a, b),
    }
    return special[name]() if name in special else getattr(ops, name)(a)


def assert_as_the_tape(found, wanted):
    """A gradient and a mask equal those of the tape; what is not finite there is not here."""
    (gradient, active), (of_tape, active_on_tape) = found, wanted
    finite = np.isfinite(of_tape)
    assert np.array_equal(np.isfinite(gradient), finite)
    assert np.array_equal(active, active_on_tape)
    assert_close(gradient[finite], of_tape[finite], rtol=1e-9, atol=1e-12)  # order of sums


def drawn(seed):
    """Return a random program, and a point with zeros, infinities and NaN."""
    numbers = np.random.default_rng(seed)
    return random_program(numbers), numbers.choice(POINTS, (N, N))


def clipped(seed):
    """Return a random program that compares more, and a point with many NaN."""
    numbers = np.random.default_rng(seed)
    program = random_program(numbers, more=3 * ("clip", "least"))
    return program, numbers.choice((*POINTS, math.nan, math.nan), (N, N))
