"""PyTorch's kernels: values and derivatives of the double where, and when they are asked."""

import math
import warnings
from unittest.mock import patch

import numpy as np
import pytest

import safeops as so
from assertions import assert_close
from safeops._backends import load
from specials import special_numbers

pytestmark = pytest.mark.only("torch")

NAN, INF = np.nan, np.inf
# Every kernel by a call of the public door, its number of arguments, and what is bad in them.
CALLS = {
    "safe_div": (so.safe_div, 2),
    "safe_reciprocal": (so.safe_reciprocal, 1),
    "safe_sqrt": (so.safe_sqrt, 1),
    "safe_log": (so.safe_log, 1),
    "safe_log, filled": (lambda x: so.safe_log(x, fill_value=0), 1),
    "safe_log2": (so.safe_log2, 1),
    "safe_log2, filled": (lambda x: so.safe_log2(x, fill_value=0.0), 1),
    "safe_log10": (so.safe_log10, 1),
    "safe_log1p": (so.safe_log1p, 1),
    "safe_log1p, filled": (lambda x: so.safe_log1p(x, fill_value=0), 1),
    "safe_exp": (so.safe_exp, 1),
    "safe_expm1": (so.safe_expm1, 1),
    "safe_asin": (so.safe_asin, 1),
    "safe_acos": (so.safe_acos, 1),
    "safe_atanh": (so.safe_atanh, 1),
    "safe_pow": (so.safe_pow, 2),
    "safe_pow, positive": (lambda x, p: so.safe_pow(x.abs(), p), 2),
    "safe_pow, scalar": (lambda x: so.safe_pow(x.abs(), 1.5), 1),
    "safe_pow, square": (lambda x: so.safe_pow(x.abs(), 2), 1),
    "xlogy": (so.xlogy, 2),
    "xlogy, positive": (lambda x, y: so.xlogy(x * (y > 0), y.abs()), 2),
    "safe_norm": (so.safe_norm, 1),
    "safe_norm, rows": (lambda x: so.safe_norm(x, axis=-1), 1),
    "safe_norm, columns": (lambda x: so.safe_norm(x, axis=0, keepdims=True), 1),
    "safe_logsumexp, rows": (lambda x: so.safe_logsumexp(x, axis=-1), 1),
    "safe_logsumexp, columns": (lambda x: so.safe_logsumexp(x, axis=0, keepdims=True), 1),
    "safe_softmax": (so.safe_softmax, 1),
    "safe_softmax, masked": (lambda x: so.safe_softmax(x, where=mask_of(x)), 1),
    "safe_softmax, columns": (lambda x: so.safe_softmax(x, axis=0, where=mask_of(x)), 1),
    "nansum": (so.nansum, 1),
    "nansum, rows": (lambda x: so.nansum(x, axis=-1), 1),
    "nanmean": (so.nanmean, 1),
    "nanmean, rows": (lambda x: so.nanmean(x, axis=(-1,), keepdims=True), 1),
    "nanvar": (so.nanvar, 1),
    "nanvar, rows": (lambda x: so.nanvar(x, axis=-1, correction=1), 1),
    "nanvar, far columns": (lambda x: so.nanvar(x + 1e5, axis=0), 1),
    "nanstd": (so.nanstd, 1),
    "nanstd, rows": (lambda x: so.nanstd(x, axis=(-1,), keepdims=True), 1),
    "nanmax": (so.nanmax, 1),
    "nanmax, columns": (lambda x: so.nanmax(x, axis=0), 1),
    "nanmin": (so.nanmin, 1),
    "nanmin, rows": (lambda x: so.nanmin(x, axis=-1), 1),
    "safe_max": (so.safe_max, 1),
    "safe_max, rows": (lambda x: so.safe_max(x, axis=-1, keepdims=True), 1),
    "safe_min": (so.safe_min, 1),
    "safe_min, columns": (lambda x: so.safe_min(x, axis=0), 1),
}
NAMES = pytest.mark.parametrize("name", CALLS)
# Whose double where makes NaN of an infinite cotangent, by the product rule of (1 - x) * (1 + x).
TIDY = ("safe_asin", "safe_acos")


def mask_of(x):
    """Return a mask of the shape of `x`, without an entry in the first row and the first column."""
    import torch

    keep = torch.arange(x.numel(), device=x.device).reshape(x.shape) % 3 != 0
    keep[..., 0] = False
    keep[0] = False
    return keep


def tensor(dtype, shape, seed):
    """Return special numbers as a tensor."""
    import torch

    return torch.tensor(special_numbers(dtype, shape, seed))


def laid_out(x, seed):
    """Return `x` with another layout in memory."""
    way = seed % 4
    if not x.ndim or way == 0:
        return x
    if way == 1:
        return x.movedim(0, -1).contiguous().movedim(-1, 0)
    if way == 2:
        return x.repeat_interleave(2, -1)[..., ::2]
    return x[:1].expand(x.shape)


SHAPES = {1: [((6, 7),)], 2: [((6, 7), (6, 7)), ((6, 7), (7,)), ((6, 1), (6, 7)), ((), (6, 7))]}
SHAPES[1] += [((),), ((1,),), ((0,),), ((3, 4, 5),)]
SLICED = ("rows", "columns", "masked")


def arguments(name, dtype, seed):
    """Return leaves for a call, of a shape that the seed chooses."""
    shapes = SHAPES[CALLS[name][1]]
    fits = [s for s in shapes if all(0 not in x and len(x) > 1 for x in s)]
    narrow = any(word in name for word in SLICED) or "softmax" in name
    shapes = (fits if narrow else shapes)[seed % len(fits if narrow else shapes)]
    drawn = (tensor(dtype, s, 2 * seed + i) for i, s in enumerate(shapes))
    return [laid_out(x, seed // 2 + i).detach().requires_grad_() for i, x in enumerate(drawn)]


def generic(f):
    """Return a function that goes by the double where."""

    def call(*args):
        with patch.object(load("torch"), "kernels", {}):
            return f(*args)

    return call


def derivatives(f, leaves):
    """Return value, gradients and second derivatives along ones and along a random direction."""
    import torch

    random = torch.Generator().manual_seed(0)
    out = f(*leaves)
    seed = torch.randn(out.shape, generator=random, dtype=out.dtype)
    first = torch.autograd.grad(out, leaves, seed, retain_graph=True)
    recorded = torch.autograd.grad(f(*leaves), leaves, seed.requires_grad_(), create_graph=True)
    along = [torch.randn(x.shape, generator=random, dtype=x.dtype) for x in leaves]
    second = torch.autograd.grad(
        recorded, [*leaves, seed], along, allow_unused=True, materialize_grads=True
    )
    return {"value": [out], "first": first, "recorded": recorded, "second": second}


@pytest.mark.parametrize("name", ["safe_pow", "safe_sqrt", "safe_div", "xlogy", "safe_exp"])
def test_third_derivatives_are_those_of_the_double_where(name):
    """What the derivatives above the second are at a singular point is one choice too."""
    import torch

    f, n = CALLS[name]
    args = [torch.tensor([0.0] * 5 + [2.0] * 5, dtype=torch.float64), torch.arange(10.0).double()]
    args = [x.requires_grad_() for x in (args[::-1] if name == "safe_div" else args)[:n]]

    def third(f):
        slopes = [f(*args)]
        for _ in range(3):
            total = sum(((i + 2) * x).sum() for i, x in enumerate(slopes))
            slopes = torch.autograd.grad(
                total, args, create_graph=True, allow_unused=True, materialize_grads=True
            )
        return slopes

    for a, b in zip(third(f), third(generic(f)), strict=True):
        assert_near(a.detach(), b.detach(), 1e-13, name)


# Relative to the size of the result: sums of other order, slopes by other formulas.
RTOL = {"float32": 2e-5, "float64": 1e-13}
CANCELS = {name for name in CALLS if "norm" in name or "softmax" in name}  # in derivatives
EXACT = ("safe_div", "safe_reciprocal", "safe_sqrt", "safe_log", "safe_log2", "safe_exp")


@pytest.mark.parametrize("dtype", RTOL)
@NAMES
def test_values_and_derivatives_are_those_of_the_double_where(name, dtype):
    """A kernel has the value and the first and second derivatives of the double where."""
    f, _ = CALLS[name]
    for seed in range(40):
        leaves = arguments(name, dtype, seed)

        got, wanted = derivatives(f, leaves), derivatives(generic(f), leaves)

        for order, ours in got.items():
            for a, b in zip(ours, wanted[order], strict=True):
                assert (a.shape, a.dtype) == (b.shape, b.dtype)
                exact = order == "value" and name in EXACT
                rtol = 0.0 if exact else RTOL[dtype]
                assert_near(a.detach(), b.detach(), rtol, (order, seed), cancels=name in CANCELS)


@pytest.mark.parametrize("dtype", RTOL)
@NAMES
def test_a_few_numbers_of_any_size_have_the_results_of_the_double_where(name, dtype):
    """Of a handful of entries a kernel asks in Python whether a square or a sum is lost."""
    import torch

    def slopes(f, leaves):
        out = f(*leaves)
        return out, *torch.autograd.grad(out.sum(), leaves, materialize_grads=True)

    f, number = CALLS[name]
    random, most = np.random.default_rng(7), 0.95 * math.log10(np.finfo(dtype).max)
    for turn in range(60):
        sizes = 10 ** random.uniform(-most, most, (number, 1, 1) if turn % 2 else (number, 3, 5))
        with np.errstate(over="ignore", invalid="ignore"):
            x = (special_numbers(dtype, (number, 3, 5), turn) * sizes).astype(dtype)
        leaves = [torch.tensor(part, requires_grad=True) for part in x]

        for a, b in zip(slopes(f, leaves), slopes(generic(f), leaves), strict=True):
            assert_near(a.detach(), b.detach(), RTOL[dtype], turn, cancels="soft" in name)


def assert_near(got, wanted, rtol, what, *, cancels=False):
    """Two results are equal up to rounding, relative to their largest or to terms of size 1."""
    got, wanted = (x.numpy().astype(float) for x in (got, wanted))
    largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)
    assert_close(got, wanted, rtol, str(what), rtol * (1.0 if cancels else min(largest, 1.0)))


def test_assert_near_can_fail():
    """It tells numbers apart, and NaN from 0."""
    import torch

    for wrong in (2.0, NAN):
        with pytest.raises(AssertionError):
            assert_near(torch.tensor([wrong]), torch.tensor([0.0]), 1e-5, "")


@NAMES
def test_forward_mode_over_a_recorded_kernel(name):
    """What a kernel has recorded is differentiated in forward mode too, gradient by gradient."""
    import torch
    from torch.autograd import forward_ad

    f, _ = CALLS[name]

    def along(f):
        leaves = arguments(name, "float64", 0)
        out = f(*leaves)
        with forward_ad.dual_level():
            random = torch.linspace(-1.0, 2.0, out.numel(), dtype=out.dtype).reshape(out.shape)
            seed = forward_ad.make_dual(random, torch.cos(random))
            gradients = torch.autograd.grad(out, leaves, seed)
            return [forward_ad.unpack_dual(x) for x in gradients]

    for ours, theirs in zip(along(f), along(generic(f)), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert_near(a, b, RTOL["float64"], name)


@NAMES
def test_kernels_are_silent_in_anomaly_mode(name):
    """No backward function of a kernel makes a NaN where the gradient is finite."""
    import torch

    f, n = CALLS[name]
    x = torch.tensor([[0.0, 1.0, 1e-40], [0.0, 0.0, 0.0], [2.0, 3.0, -0.0]]).requires_grad_()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Anomaly Detection has been enabled")
        with torch.autograd.detect_anomaly():
            (first,) = torch.autograd.grad(f(*[x] * n).sum(), x, create_graph=True)
            if first.requires_grad:
                torch.autograd.grad(first.sum(), x)

    assert torch.isfinite(first).all()


@NAMES
def test_kernels_are_asked(name):
    """A plain tensor goes to the kernel, and the kernel answers."""
    import torch

    asked, kernels = [], load("torch").kernels
    key = name.partition(",")[0]

    def spy(*args, **options):
        asked.append(kernels[key](*args, **options))
        return asked[-1]

    f, n = CALLS[name]
    with patch.object(load("torch"), "kernels", {**kernels, key: spy}):
        f(*[torch.ones(2, 3)] * n)

    assert len(asked) == 1
    assert asked[0] is not None


def test_every_kernel_has_a_call_here():
    """The table of calls names each kernel of a function that users call, but for fused ones."""
    from safeops._backends.torch import elementwise, exact_slopes, reductions, slices

    names = {name for x in (elementwise, reductions, slices, exact_slopes) for name in x.KERNELS}
    assert {name.partition(",")[0] for name in CALLS} == {x for x in names if x[0] != "_"}


@NAMES
def test_inputs_are_not_written(name):
    """A call leaves its arguments as they were."""
    for seed in range(8):
        leaves = arguments(name, "float32", seed)
        before = [x.detach().clone() for x in leaves]
        CALLS[name][0](*(x.detach() for x in leaves))
        CALLS[name][0](*leaves).sum().backward()
        for x, y in zip(leaves, before, strict=True):
            assert_near(x.detach(), y, 0.0, name)


@NAMES
def test_the_default_device_is_not_asked(name):
    """No tensor on the way is made on a default device that is not that of the arguments."""
    import torch

    leaves = arguments(name, "float32", 0)
    torch.set_default_device("meta")
    try:
        out = CALLS[name][0](*leaves)
        out.backward(out.detach())
    finally:
        torch.set_default_device(None)

    assert out.device.type == leaves[0].grad.device.type == "cpu"


@NAMES
def test_make_fx_traces_no_branch_on_a_value(name):
    """What `make_fx` traces with good arguments is right for bad ones."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    f, n = CALLS[name]
    good, bad = torch.ones(2, 3), torch.tensor([[0.0, -1.0, 2.0], [NAN, 0.5, NAN]])

    def call(*args):  # make_fx counts keywords as arguments
        return f(*args)

    traced = make_fx(call)(*[good] * n)

    assert_near(traced(*[bad] * n), generic(f)(*[bad] * n), 0.0, name)


@NAMES
def test_inside_a_transform_of_something_else(name):
    """In `torch.func.vmap` over another argument a recorded tensor goes by the double where."""
    import torch

    f, n = CALLS[name]
    x = (torch.arange(6.0).reshape(2, 3) - 1).requires_grad_()

    out = torch.func.vmap(lambda a: a + f(*[x] * n))(torch.zeros(2))
    (gradient,) = torch.autograd.grad(out.sum(), x)

    (wanted,) = torch.autograd.grad(2 * generic(f)(*[x] * n).sum(), x)
    assert_near(gradient, wanted, RTOL["float32"], name)


@NAMES
def test_many_cotangents_at_once(name):
    """A recorded kernel is differentiated along a batch of cotangents too."""
    import torch

    f, _ = CALLS[name]
    leaves = arguments(name, "float64", 0)
    out = f(*leaves)
    batch = torch.stack([torch.ones_like(out), torch.full_like(out, -2.0)])

    got = torch.autograd.grad(out, leaves, batch, is_grads_batched=True, retain_graph=True)

    for along, *rows in zip(batch, *got, strict=True):
        wanted = torch.autograd.grad(out, leaves, along, retain_graph=True)
        for a, b in zip(rows, wanted, strict=True):
            assert_near(a, b, RTOL["float64"], name, cancels=name in CANCELS)


@pytest.mark.parametrize("name", ["safe_div", "safe_sqrt", "safe_log", "safe_exp", "safe_norm"])
def test_as_much_is_saved_as_by_the_plain_function(name):
    """A kernel keeps no more for its backward pass than the unsafe function does."""
    import torch

    plain = {
        "safe_div": torch.div,
        "safe_norm": lambda x: (x * x).sum().sqrt(),
        "safe_sqrt": torch.sqrt,
        "safe_log": torch.log,
        "safe_exp": torch.exp,
    }
    f, n = CALLS[name]

    def saved(f):
        kept = {}

        def pack(x):
            kept[x.data_ptr()] = x.untyped_storage().nbytes()
            return x

        leaves = [torch.ones(1000, requires_grad=True) for _ in range(n)]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            keep_alive = f(*leaves)
        return sum(kept.values()), keep_alive

    assert saved(f)[0] <= saved(plain[name])[0] + 1000
    assert saved(generic(f))[0] > saved(plain[name])[0] or name == "safe_norm"


def test_more_than_eight_functions_can_be_compiled_each():
    """What asks for a kernel does so in a code of its own, so that no limit is reached."""
    import torch

    torch.compiler.reset()
    names = [name for name, (_, n) in CALLS.items() if n == 1 and "," not in name]
    x = torch.ones(3)
    for name in names:
        f = torch.compile(getattr(so, name), fullgraph=True, backend="eager")
        assert_near(f(x), getattr(so, name)(x), 1e-6, name)

    assert len(names) > 8


UNASKED = {
    "another dtype": lambda torch: torch.ones(2, 3, dtype=torch.float16),
    "integers": lambda torch: torch.ones(2, 3, dtype=torch.int32),
    "another device": lambda torch: torch.ones(2, 3, device="meta"),
    "a subclass": lambda torch: torch.ones(2, 3).as_subclass(type("Mine", (torch.Tensor,), {})),
    "sparse": lambda torch: torch.eye(2).to_sparse(),
}


@pytest.mark.parametrize("what", UNASKED)
@pytest.mark.parametrize("name", [name for name in CALLS if "," not in name])
def test_the_rest_is_left_to_the_double_where(name, what):
    """A kernel returns None for what it was not made for."""
    import torch

    x = UNASKED[what](torch)

    assert load("torch").kernels[name](*[x] * CALLS[name][1]) is None


@pytest.mark.parametrize("name", ["safe_div", "xlogy"])
def test_a_number_as_second_argument_is_left_to_the_double_where(name):
    """Only a power has a kernel for that."""
    import torch

    assert load("torch").kernels[name](torch.ones(3), 1.0) is None


@NAMES
def test_masked_autodiff_sees_the_same_entries_left_out(name):
    """What a kernel fills is absent in masked backward passes, as behind the double where."""
    from safeops.autodiff import torch as masked

    f, _ = CALLS[name]
    for seed in range(24):
        leaves = usual(arguments(name, "float64", seed))

        got, wanted = (masked_slopes(masked, g, leaves) for g in (f, generic(f)))

        for (slope, active), (exact, used) in zip(got, wanted, strict=True):
            assert (active == used).all()
            assert_close(slope, exact, 1e-12, atol=1e-12)


def masked_slopes(masked, f, leaves):
    """Return the masked gradients of half of the entries behind roots, and what is active."""
    out = f(*(x.abs().sqrt() for x in leaves)).flatten()
    pair = masked.grad(out[: (len(out) + 1) // 2].sum(), leaves, return_mask=True)
    return list(zip(*pair, strict=True))


def usual(leaves):
    """Make arguments finite, so that they ask the kernels, and zeros exact."""
    for leaf in leaves:
        values = leaf.detach().nan_to_num(4.0, 9.0, 0.0).clamp(-9.0, 9.0)
        leaf.data = values * (values.abs() > 1e-6)
    return leaves


@NAMES
def test_what_is_filled_has_slope_0_for_any_cotangent(name):
    """A cotangent that is infinite or NaN makes what the double where makes of it."""
    import torch

    f, _ = CALLS[name]
    for seed in range(24):
        leaves = usual(arguments(name, "float64", seed))
        got, wanted = f(*leaves), generic(f)(*leaves)
        special = np.resize([INF, 1.0, NAN, -INF, 2.0], got.numel()).reshape(got.shape)
        cotangent = torch.tensor(special, dtype=torch.float64)

        slopes = torch.autograd.grad(got, leaves, cotangent)

        if name in TIDY:
            (slope,) = torch.autograd.grad(wanted, leaves, torch.ones_like(wanted))
            expected = [torch.where(slope == 0, 0, slope * cotangent)]
        else:
            expected = torch.autograd.grad(wanted, leaves, cotangent)
        for ours, exact in zip(slopes, expected, strict=True):
            assert_close(ours, exact, 1e-12, f"{name}, {seed}", 1e-12)


@pytest.mark.parametrize("name", ["safe_div", "safe_reciprocal", "safe_pow, scalar", "safe_pow"])
def test_derivatives_of_batched_gradients(name):
    """A vectorised Jacobian has derivatives of its own, as behind the double where."""
    import torch

    f, count = CALLS[name]
    points = (
        torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64),
        torch.tensor([1.5, 3.0, 0.25], dtype=torch.float64),
    )
    leaves = [x.clone().requires_grad_() for x in points[:count]]

    def slopes(f):
        rows = torch.autograd.functional.jacobian(
            f, tuple(leaves), vectorize=True, create_graph=True
        )
        total = sum((row**2).sum() for row in rows)
        return torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)

    for ours, exact in zip(slopes(f), slopes(generic(f)), strict=True):
        assert_close(ours.detach(), exact.detach(), 1e-12)


@pytest.mark.parametrize("name", ["safe_div", "safe_pow, square", "safe_log"])
def test_results_may_be_written_into(name):
    """As with the unsafe operation, the result of most can be changed in place."""
    f, count = CALLS[name]
    leaves = usual(arguments(name, "float64", 0))

    out = f(*leaves)
    out += 1
    out.sum().backward()

    assert all(leaf.grad is not None for leaf in leaves[:count])


@NAMES
def test_a_checkpoint_runs_again_under_masks(name):
    """What a checkpoint computes again in a masked backward pass is what it computed before."""
    from torch.utils.checkpoint import checkpoint

    from safeops.autodiff import torch as masked

    f, _ = CALLS[name]
    leaves = usual(arguments(name, "float64", 0))
    whole = checkpoint(f, *leaves, use_reentrant=False).sum()

    got = masked.grad(whole, leaves)

    for ours, exact in zip(got, masked.grad(generic(f)(*leaves).sum(), leaves), strict=True):
        assert_close(ours, exact, 1e-12, name, 1e-12)


@pytest.mark.parametrize("name", ["safe_norm", "nanstd"])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_long_slices_keep_their_digits(name, axis):
    """A million squares are summed in float32 as exactly as by `torch.sum`."""
    import torch

    x = torch.rand((10**6, 2), generator=torch.Generator().manual_seed(0))
    x = x.mT.contiguous() if axis == -1 else x

    got = getattr(so, name)(x, axis=axis)

    assert_close(got, getattr(so, name)(x.double(), axis=axis), 1e-6, name)
    if axis != -1:  # what rows of a few hundred take is not good enough here
        lost = torch.linalg.vector_norm(x, dim=axis) / x.double().norm(dim=axis) - 1
        assert lost.abs().max() > 1e-6


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo looks at it
@NAMES
def test_compiled_autograd_takes_a_recorded_kernel(name):
    """A backward pass that torch.compile traces has the gradient of the one that runs."""
    import torch

    f, _ = CALLS[name]
    leaves = usual(arguments(name, "float64", 0))
    wanted = torch.autograd.grad(f(*leaves).sum(), leaves)
    whole = f(*leaves).sum()

    @torch.compile(backend="eager")
    def backward(whole):
        whole.backward()

    with torch._dynamo.config.patch(compiled_autograd=True):
        backward(whole)
    torch._dynamo.reset()

    for x, slope in zip(leaves, wanted, strict=True):
        assert_near(x.grad, slope, 1e-13, name)


@pytest.mark.parametrize("name", ["safe_prod", "nanprod"])
def test_a_slope_is_the_product_of_the_others_outside_of_a_transform(name):
    """What `torch.func.vjp` returns divides by no entry, where the product is 0 by underflow."""
    import torch

    x = torch.tensor([[5e-37, -6e-37], [2.0, 3.0]])
    _, pull = torch.func.vjp(lambda x: getattr(so, name)(x, axis=-1), x)
    _, plain = torch.func.vjp(lambda x: torch.prod(x, -1), x)

    assert pull(torch.ones(2))[0].tolist() == x.flip(-1).tolist()
    assert plain(torch.ones(2))[0][0].tolist() == [0, 0]
