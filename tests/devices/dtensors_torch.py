"""
Operations on DTensors of two ranks, held to the same on a tensor; a script, of which two run.

Each operation is a check: along every axis, spelt in every way, of tensors in parts along each,
evenly and not, and so small that a rank has nothing.
"""

import itertools
import math
from functools import partial

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode

import safeops as so
from ranks import answer_all, in_parts, meet

AXES = (None, 0, -1, (-1, 0))
ONE_AXIS = (0, 1, -1, -2)
# And along which axis they are in parts; the first rank has all of the last one.
SHAPES = (((4, 6), 1), ((5, 3), 0), ((5, 3), 1), ((1, 5), 0))
NAMES = """
    nansum nanmean nanvar nanstd nanmax nanmin safe_sum safe_mean safe_var safe_std safe_max
    safe_min safe_norm squared_norm safe_rms safe_logsumexp safe_logmeanexp safe_prod nanprod
    safe_softmax safe_log_softmax safe_normalize nanmedian
"""
REDUCTIONS = {name: getattr(so, name) for name in NAMES.split()} | {
    "safe_norm of order inf": partial(so.safe_norm, ord=math.inf),
    "safe_norm of order 3": partial(so.safe_norm, ord=3),
    "nanquantile": lambda x, **how: so.nanquantile(x, 0.3, **how),
    "safe_distance": lambda x, **how: so.safe_distance(x, 2 * x, **how),
    "safe_cosine_similarity": lambda x, **how: so.safe_cosine_similarity(x, x * x, **how),
}
ALONG = {
    name: getattr(so, name) for name in ("nancumsum", "nancumprod", "nanargmax", "safe_argmin")
}
ELEMENTWISE = {
    f.__name__: f
    for f in (so.safe_sqrt, so.safe_log, so.safe_exp, so.safe_reciprocal, so.sinc, so.entr)
} | {"safe_div": lambda x: so.safe_div(x * 2, x), "safe_pow": lambda x: so.safe_pow(x, 3.0)}
KEEPS_SHAPE = ("safe_softmax", "safe_log_softmax", "safe_normalize")
WITHOUT_MASK = ("safe_normalize",)


def numbers(shape):
    """Return numbers of very different size, one of them NaN, the largest in the last part."""
    n = math.prod(shape)
    x = torch.linspace(-1.0, 2.0, n, dtype=torch.float64).reshape(shape)
    x[-1, -1] = 700.0
    return x


def whole(x):
    """Return a tensor as it is on one device."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def slope(f, x):
    """Return the gradient of a sum with different cotangents; None where there is none."""
    value = f(x)
    if not value.is_floating_point():
        return None
    # Cotangents are made from what is whole: a random tensor would be another on each rank.
    weights = torch.arange(1.0, value.numel() + 1, dtype=torch.float64).reshape(value.shape)
    if hasattr(value, "placements"):
        weights = in_parts(weights, MESH, [None])
    return torch.autograd.grad((value * weights).sum(), x)[0]


def same(f, x, axes, case, *, slopes=True):
    """Check the value and the slope of a function of a tensor in parts."""
    part = in_parts(x, MESH, axes)
    torch.testing.assert_close(
        whole(f(part)), f(x), rtol=1e-12, atol=1e-12, equal_nan=True, msg=lambda m: f"{case}: {m}"
    )
    if not slopes:
        return
    got = slope(f, part.detach().requires_grad_())
    wanted = slope(f, x.clone().requires_grad_())
    if wanted is not None:
        torch.testing.assert_close(
            whole(got),
            wanted,
            rtol=1e-12,
            atol=1e-12,
            equal_nan=True,
            msg=lambda m: f"slope, {case}: {m}",
        )


def along(name, f, axes):
    """Check an operation along axes."""
    for shape, parts in SHAPES:
        x = numbers(shape)
        if name.startswith("nan"):
            x[0, 1] = math.nan
        for axis in axes:
            same(partial(f, axis=axis), x, [parts], (shape, parts, axis))
        options = [{"keepdims": True}] if name in REDUCTIONS and name not in KEEPS_SHAPE else []
        if name not in WITHOUT_MASK:
            # A mask that is whole on each rank, and one in parts along the other axis.
            for places in (None, 1 - parts):
                keep = x < 1
                options.append({"where": (keep, in_parts(keep, MESH, [places]))})
        for option in options:
            masked_same(f, x, parts, axes[-1], option)


def masked_same(f, x, parts, axis, option):
    """Check an operation with an option, a mask as it is and in parts."""

    def call(y):
        mask = option.get("where")
        if mask is None:
            return f(y, axis=axis, **option)
        return f(y, axis=axis, where=mask[hasattr(y, "placements")])

    same(call, x, [parts], (tuple(x.shape), parts, axis, [*option]))


def elementwise(f):
    """Check that an operation keeps where the parts are, and asks no other rank."""
    for shape, parts in SHAPES:
        x = numbers(shape)
        same(f, x, [parts], (shape, parts))
        part = in_parts(x, MESH, [parts]).requires_grad_()
        with CommDebugMode() as counter:
            value = f(part)
            value.backward(torch.ones_like(value))
        assert counter.get_total_counts() == 0, counter.get_comm_counts()
        assert value.placements == part.placements == part.grad.placements


def loss_of(labels, there, x):
    """Return the cross entropy of logits, in parts or not."""
    return so.safe_cross_entropy(x, there if hasattr(x, "placements") else labels)


def cross_entropy():
    """Check classes in parts, the last axis by default, with a label on each rank."""
    for n, parts in itertools.product((3, 4, 5), (0, 1)):
        logits = torch.arange(3.0 * n, dtype=torch.float64).reshape(3, n).cos() * 3
        for labels in (torch.tensor([0, n - 1, -1]), torch.tensor([1, 1, n])):
            there = in_parts(labels, MESH, [None])
            same(partial(loss_of, labels, there), logits, [parts], (n, parts, labels))


def bfloat16():
    """Check sums and maxima of bfloat16, which are taken in float32."""
    x = torch.linspace(-3, 3, 30).reshape(5, 6).to(torch.bfloat16)
    for f in (so.safe_softmax, so.safe_norm, so.nanmean, so.nanmax, so.safe_logsumexp):
        for axis, parts in itertools.product((None, -1, 0), (0, 1)):
            got = f(in_parts(x, MESH, [parts]), axis=axis)
            assert got.dtype == torch.bfloat16
            torch.testing.assert_close(whole(got), f(x, axis=axis), rtol=1e-2, atol=0)


def beside_plain_tensors():
    """Check scalars beside a DTensor, in both orders, and a sum that is still to be taken."""
    x = in_parts(numbers((5, 3)), MESH, [0])
    for got in (so.safe_div(x, torch.tensor(2.0)), so.safe_div(x, 2.0)):
        torch.testing.assert_close(whole(got), numbers((5, 3)) / 2)
    torch.testing.assert_close(
        whole(so.safe_div(torch.tensor(2.0, dtype=torch.float64), x)), 2 / numbers((5, 3))
    )
    partial_sum = x.sum(0)
    assert partial_sum.placements[0].is_partial()
    wanted = so.safe_log(numbers((5, 3)).sum(0))
    torch.testing.assert_close(whole(so.safe_log(partial_sum)), wanted)


COMPILED = (
    partial(so.safe_norm, axis=0), partial(so.safe_softmax, axis=0), partial(so.safe_std, axis=0),
    partial(so.nanmax, axis=0),
)  # fmt: skip


def compiled():
    """Check that a compiled function takes DTensors as an eager one does, without a break."""
    for f in COMPILED:
        torch._dynamo.reset()
        g = torch.compile(f, fullgraph=True, backend="aot_eager")
        both = lambda x, f=f, g=g: (g if hasattr(x, "placements") else f)(x)  # noqa: E731
        same(both, numbers((5, 3)), [0], f)


# What DTensor (2.13) does wrong, which `dtensor` is there for.


def amax_of_no_axes():
    """Check that ``amax(dim=())`` is that of the first part."""
    x = in_parts(torch.tensor([0.0, 1.0, 1000.0, 999.0]), MESH, [0])
    assert whole(torch.amax(x, (), keepdim=True)).tolist() != [1000.0]


def cumsum_along_a_negative_axis():
    """Check that a running sum begins anew in each part."""
    x = in_parts(torch.ones(2, 4), MESH, [1])
    assert whole(torch.cumsum(x, -1))[0].tolist() == [1.0, 2.0, 1.0, 2.0]
    assert whole(torch.cumsum(x, 1))[0].tolist() == [1.0, 2.0, 3.0, 4.0]


def second_derivative_of_a_pending_sum():
    """Check that `from_local` has no sum over ranks in it: 48, and not twice that."""

    def twice(total):
        x = in_parts(torch.ones(2), MESH, [0]).requires_grad_()
        (slope,) = torch.autograd.grad(
            (total(x).redistribute(placements=[Replicate()]) ** 4).sum(), x, create_graph=True
        )
        return whole(torch.autograd.grad(slope.sum(), x)[0]).tolist()

    pending = lambda x: DTensor.from_local(x.to_local().sum(0), MESH, [Partial()])  # noqa: E731
    assert twice(lambda x: x.sum(0)) == [96.0, 96.0]
    assert twice(pending) == [48.0, 48.0]


def second_derivative_of_moved_parts():
    """Check that it has none, without a word, if it moves a cotangent into the parts."""
    x = in_parts(torch.ones(2), MESH, [0]).requires_grad_()
    y = DTensor.from_local(x.to_local(), MESH, [Shard(0)])
    (slope,) = torch.autograd.grad(y.sum(0) ** 3, x, create_graph=True)
    assert not slope.requires_grad


CHECKS = (
    {name: partial(along, name, f, AXES) for name, f in REDUCTIONS.items()}
    | {name: partial(along, name, f, ONE_AXIS) for name, f in ALONG.items()}
    | {name: partial(elementwise, f) for name, f in ELEMENTWISE.items()}
    | {f.__name__: f for f in (cross_entropy, bfloat16, beside_plain_tensors, compiled)}
    | {f.__name__: f for f in (amax_of_no_axes, cumsum_along_a_negative_axis)}
    | {
        f.__name__: f
        for f in (second_derivative_of_a_pending_sum, second_derivative_of_moved_parts)
    }
)

if __name__ == "__main__":
    MESH = meet()
    answer_all(CHECKS)
