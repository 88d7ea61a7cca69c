"""What holds for all operations beyond the case tables: NaN, infinities, the ends of the range."""

import mpmath
import numpy as np
import pytest

import safeops as so
import specs
from assertions import assert_close
from frameworks import asarray, to_numpy
from safeops._dispatch import backend_of

# Points at which every operation is smooth; others where these are outside a domain.
INSIDE = {"safe_acosh": (1.25,), "safe_logsubexp": (0.5, 0.25)}


@pytest.mark.parametrize("row", specs.ROWS, ids=lambda row: row.name)
def test_nan_stays_nan(row, framework):
    """A NaN in any argument of an elementwise operation is in the value."""
    inside = INSIDE.get(row.name, (0.25, 0.5)[: len(row.points[0].args)])

    for i in range(len(inside)):
        args = [asarray(framework, [np.nan if i == k else x]) for k, x in enumerate(inside)]
        assert np.isnan(to_numpy(row.op(*args))).all()


@pytest.mark.parametrize("row", specs.SLICE_ROWS, ids=lambda row: row.name)
def test_nan_of_a_kept_entry_stays(row, framework):
    """A NaN in a kept entry is in the value of its slice, and of no other."""
    for i in range(len(row.slices[0].args)):
        args = np.tile([[0.25, 0.5, 0.125]], (len(row.slices[0].args), 2, 1))
        args[i, 0, 0] = np.nan  # of running sums, the first is in all
        keep = asarray(framework, np.full((2, 3), fill_value=True), "bool")
        bad, good = to_numpy(row.op(*(asarray(framework, a) for a in args), keep))
        assert np.isnan(bad).all()
        assert np.isfinite(good).all()


SOFTMAX = {
    "safe_softmax": so.safe_softmax,
    "safe_log_softmax": so.safe_log_softmax,
    "safe_cross_entropy": lambda x: so.safe_cross_entropy(x, x * 0 + 0.5),
}


@pytest.mark.parametrize("name", SOFTMAX)
def test_infinite_logits_give_nan(name, framework):
    """A logit of inf has no softmax: its slice is NaN, whatever else is in it."""
    x = asarray(framework, [[0.0, np.inf], [np.inf, -np.inf], [0.0, 1.0]])

    with np.errstate(invalid="ignore"):  # inf - inf: NumPy warns, as it should
        got = to_numpy(SOFTMAX[name](x))

    assert np.isnan(got[:2]).any(axis=-1).all()
    assert np.isfinite(got[2]).all()


RANGE = {"float16": 1e4, "bfloat16": 1e30, "float32": 1e30, "float64": 1e300}
NORMS = {
    "safe_norm": lambda x: so.safe_norm(x, axis=-1),
    "safe_norm, ord=3": lambda x: so.safe_norm(x, axis=-1, ord=3),
    "safe_rms": lambda x: so.safe_rms(x, axis=-1) * 2**0.5,
    "safe_distance": lambda x: so.safe_distance(x, x * 0),
    "safe_hypot": lambda x: so.safe_hypot(x[..., 0], x[..., 1]),
}


@pytest.mark.parametrize("dtype", RANGE)
@pytest.mark.parametrize("name", NORMS)
def test_norms_neither_overflow_nor_vanish(name, dtype, autodiff_framework):
    """A vector near either end of the range has its length, and a gradient of length about 1."""
    size = RANGE[dtype]
    x = asarray(autodiff_framework, [[3 * size, 4 * size], [3 / size, 4 / size]], dtype)
    backend = backend_of(x)

    value = to_numpy(NORMS[name](x)).astype(float)
    (gradient,) = backend.grad(lambda x: backend.xp.sum(NORMS[name](x)))(x)

    p = 3 if "3" in name else 2
    length = float((mpmath.mpf(3) ** p + mpmath.mpf(4) ** p) ** (mpmath.mpf(1) / p))
    rtol = 4e-2 if dtype == "bfloat16" else 4e-3 if dtype == "float16" else 1e-6
    assert_close(value, [length * size, length / size], rtol)
    slope = np.array([3.0, 4.0]) ** (p - 1) / length ** (p - 1)
    assert_close(to_numpy(gradient), [slope, slope], rtol)


@pytest.mark.parametrize("dtype", RANGE)
def test_naive_norms_overflow_or_vanish(dtype, autodiff_framework):
    """The root of the sum of squares is inf at one end and 0 at the other."""
    size = RANGE[dtype]
    x = asarray(autodiff_framework, [[3 * size, 4 * size], [3 / size, 4 / size]], dtype)
    xp = backend_of(x).xp

    big, small = to_numpy(xp.sqrt(xp.sum(x * x, axis=-1)))

    assert np.isinf(big)
    # float16 has subnormal numbers at 1e-8, of few digits.
    assert small == 0 or dtype == "float16"


@pytest.mark.only("torch")
def test_inductor_compiles():
    """The default backend of torch.compile gives the same value and gradient, in one graph."""
    import torch

    x = torch.tensor([[4.0, 0.0, -1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    where = torch.tensor([[True, True, False], [False, False, False]])

    def f(x):
        total = so.safe_norm(x, axis=-1) + so.safe_softmax(x, where=where).square().sum(-1)
        return total.sum() + (so.safe_log(x, fill_value=0) + so.safe_div(1.0, x)).sum()

    def value_and_gradient(f):
        leaf = x.clone().requires_grad_()
        value = f(leaf)
        return value.detach(), torch.autograd.grad(value, leaf)[0]

    for got, wanted in zip(
        value_and_gradient(torch.compile(f, fullgraph=True)), value_and_gradient(f), strict=True
    ):
        assert_close(got, wanted, 1e-14, atol=1e-14)
    assert torch.isfinite(wanted).all()


CURVED = {
    "safe_hypot": (lambda x: so.safe_hypot(x[0], x[1]), (0.128, -0.096)),
    "safe_norm": (so.safe_norm, (0.128, -0.096)),
    "safe_atan2": (lambda x: so.safe_atan2(x[1], x[0]), (24 / 625, 7 / 625)),
}


@pytest.mark.parametrize("name", CURVED)
def test_second_derivatives_of_small_vectors(name, autodiff_framework):
    """At 1e-18 in float32 the first row of the Hessian is finite and right, in all compositions."""
    size, (f, row) = 1e-18, CURVED[name]
    x = asarray(autodiff_framework, [3 * size, 4 * size], "float32")
    v = asarray(autodiff_framework, [1.0, 0.0], "float32")
    grad, jvp, xp = backend_of(x).grad, backend_of(x).jvp, backend_of(x).xp
    wanted = np.array(row) / (size**2 if name == "safe_atan2" else size)

    def slope(x):
        return jvp(f)((x,), (v,))

    for got in (
        grad(lambda x: xp.sum(grad(f)(x)[0] * v))(x)[0],
        jvp(lambda x: grad(f)(x)[0])((x,), (v,)),
        grad(slope)(x)[0],
    ):
        assert_close(to_numpy(got), wanted, 1e-5, name)
    assert_close(to_numpy(jvp(slope)((x,), (v,))), wanted[0], 1e-5, name)
