"""
Kernels of whole functions, such as a cross entropy, give what the steps give that they stand for.

Each is compared with the steps, in float64: value, slopes, and slopes of slopes, on arguments that
the kernel takes and on such as it must leave to the steps.
"""

import math
import re
from functools import partial

import numpy as np
import pytest

import safeops as so
from assertions import assert_close
from safeops import linalg, segments
from safeops._backends import load

pytestmark = [pytest.mark.only("torch", "jax", "tensorflow")]
RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(size=(4, 5)) * 3
IDS = np.asarray([0, 2, 2, 0, 3, 2])
MASK = RANDOM.random((4, 5)) < 0.7
LEFT_OUT = MASK.argmin(-1)  # of each row the first column that the mask leaves out
POINTS = RANDOM.normal(size=(2, 4, 3))
HEADS = RANDOM.normal(size=(3, 2, 2, 4, 3))


def with_entries(x, **entries):
    """Return numbers, some of them replaced: ``_0_2=nan`` is that of row 0 and column 2."""
    x = x.copy()
    for name, value in entries.items():
        x[tuple(map(int, name.split("_")[1:]))] = value
    return x


ABSENT = with_entries(LOGITS, _0_2=-math.inf, _1=-math.inf, _2_2=-math.inf)
BAD = with_entries(LOGITS, _0_2=math.nan, _1_1=math.inf, _2_2=-math.inf, _2_3=math.nan)
FOCAL = {
    "usual": so.safe_focal_loss,
    "root": partial(so.safe_focal_loss, gamma=0.5, alpha=0.25),
    "without": partial(so.safe_focal_loss, gamma=0.0),
}
CLASSES = {
    "": np.asarray([0, 4, 2, 1]),
    ", some left out": np.asarray([0, -1, 2, -5]),
    ", all left out": np.asarray([-1, -1, -2, -5]),
    ", unknown": np.asarray([0, 7, -3, 1], np.int8),
}


def cases():
    """Return names, functions, and arguments with a gradient."""
    for kind, logits in (("", LOGITS), (" with -inf", ABSENT), (" with NaN", BAD)):
        for which, labels in CLASSES.items():
            for name in ("safe_cross_entropy", "safe_nll"):
                f = partial(of_classes, getattr(so, name), labels)
                yield f"{name}{kind}{which}", f, (logits,)
        f = partial(of_mask, so.safe_cross_entropy, CLASSES[""])
        yield f"safe_cross_entropy{kind}, where", f, (logits,)
        f = partial(of_mask, so.safe_cross_entropy, np.asarray(LEFT_OUT))
        yield f"safe_cross_entropy{kind}, where a class is left out", f, (logits,)
        yield f"safe_softmax{kind}", so.safe_softmax, (logits,)
        yield f"safe_softmax{kind}, where", partial(of_mask, so.safe_softmax), (logits,)
        yield f"safe_log_softmax{kind}", so.safe_log_softmax, (logits,)
        yield f"safe_log_softmax{kind}, where", partial(of_mask, so.safe_log_softmax), (logits,)
        labels = 1 / (1 + np.exp(-LOGITS[::-1]))
        yield f"safe_binary_cross_entropy{kind}", so.safe_binary_cross_entropy, (logits, labels)
        f = partial(of_mask, so.safe_binary_cross_entropy)
        yield f"safe_binary_cross_entropy{kind}, where", f, (logits, labels)
        yield f"safe_cross_entropy of probabilities{kind}", so.safe_cross_entropy, (logits, labels)
    smooth = partial(so.safe_cross_entropy, label_smoothing=0.25)
    yield "safe_cross_entropy, smoothed", partial(of_classes, smooth, CLASSES[""]), (LOGITS,)
    yield (
        "safe_cross_entropy, smoothed probabilities",
        partial(smooth, axis=0),
        (LOGITS, np.abs(LOGITS)),
    )
    turned = partial(so.safe_cross_entropy, axis=0)
    yield (
        "safe_cross_entropy, another axis",
        partial(of_classes, turned, np.asarray([3, 1, 0, 2, 1])),
        (LOGITS,),
    )
    zeros = np.asarray([0.0, -0.0, 0.0, -0.0]), np.asarray([0.0, 0.0, 1.0, 1.0])
    yield "safe_binary_cross_entropy at 0", so.safe_binary_cross_entropy, zeros
    square = LOGITS[None, :, :4] * np.asarray([0.1, 1.0, 3.0])[:, None, None]
    yield "safe_det", linalg.safe_det, (square,)
    yield "safe_det, singular", linalg.safe_det, (with_entries(square, _1_2=square[1, 1]),)
    yield "safe_det, NaN", linalg.safe_det, (with_entries(square, _1_2=math.nan),)
    yield "safe_det, out of range", linalg.safe_det, (1e-90 * square,)
    yield from cases_of_matrices(square)
    near = with_entries(POINTS, _1_0=POINTS[0, 3])
    yield "safe_cdist", so.safe_cdist, tuple(near)
    yield "safe_cdist, tiny", so.safe_cdist, tuple(1e-200 * near)
    yield "safe_cdist, NaN", so.safe_cdist, tuple(with_entries(near, _0_1_2=math.nan))
    yield "safe_cdist, batches", so.safe_cdist, (POINTS, POINTS[::-1].copy())
    yield "safe_attention", so.safe_attention, tuple(HEADS)
    causal = partial(of_where, so.safe_attention, np.tril(np.ones((4, 4), bool)))
    yield "safe_attention, causal", causal, tuple(HEADS)
    hole = partial(of_where, so.safe_attention, np.tril(np.ones((4, 4), bool), -1))
    yield "safe_attention, a query without a key", hole, tuple(HEADS)
    for name in ("segment_sum", "segment_mean", "segment_max", "segment_min"):
        for kind, x in (("", np.round(LOGITS)), (" with NaN", BAD), (" with -inf", ABSENT)):
            x = np.concatenate([x, x[:2]])  # noqa: PLW2901
            yield f"{name}{kind}", partial(of_segments, getattr(segments, name)), (x,)


def cases_of_matrices(square):
    """Return the same of factors and eigenvalues of matrices."""
    even = square + square.swapaxes(-1, -2)
    definite = square @ square.swapaxes(-1, -2) + np.eye(4)
    bad = np.stack([np.full((4, 4), math.nan), -np.eye(4)])
    for name, usual in (
        ("safe_slogdet", square),
        ("safe_cholesky", definite + LOGITS[:, 0] - LOGITS[:, :1]),
        ("safe_eigh", even + LOGITS[:, 0] - LOGITS[:, :1]),
        ("safe_eigvalsh", even),
    ):
        f = partial(as_one, getattr(linalg, name))
        yield name, f, (usual,)
        yield f"{name}, one by itself", f, (usual[1],)
        yield f"{name}, tiny", f, (1e-90 * usual,)
        yield f"{name}, one not finite", f, (np.concatenate([usual, bad[:1]]),)
        yield f"{name}, one without", f, (np.concatenate([usual, bad[1:], 0 * bad[1:]]),)


def as_one(f, a):
    """Return what a function of matrices gives as one array."""
    found = f(a)
    if not isinstance(found, tuple):
        return found
    xp = load(framework_of(a)).xp
    wide = [x if x.ndim == a.ndim else x[..., None, :] for x in found if x.ndim > a.ndim - 2]
    return xp.concat(wide, axis=-2) if wide else xp.stack(list(found), axis=-1)


def cases_of_slices():
    """Return the same of sums and cosines of slices."""
    for kind, x in (("", LOGITS), (" with -inf", ABSENT), (" with NaN", BAD)):
        yield f"safe_logsumexp{kind}", partial(so.safe_logsumexp, axis=-1), (x,)
    f = partial(so.safe_logsumexp, axis=0, keepdims=True)
    yield "safe_logsumexp, another axis", f, (ABSENT[:1] * LOGITS,)
    other = LOGITS[::-1].copy()
    for kind, x in (("", LOGITS), (" with NaN", BAD), (", zero", with_entries(LOGITS, _1=0.0))):
        yield f"safe_cosine_similarity{kind}", so.safe_cosine_similarity, (x, other)
    yield "safe_cosine_similarity, tiny", so.safe_cosine_similarity, (1e-200 * LOGITS, other)
    f = partial(so.safe_cosine_similarity, axis=0, keepdims=True)
    yield "safe_cosine_similarity, a vector", f, (LOGITS, other[:, :1])


def cases_of_labels():
    """Return the same of losses and deviations."""
    labels = 1 / (1 + np.exp(-LOGITS[::-1]))
    for kind, logits in (("", LOGITS), (" with NaN", BAD)):
        for label, f in FOCAL.items():
            yield f"safe_focal_loss, {label}{kind}", f, (logits, labels)
        f = partial(so.safe_standardize, axis=-1)
        yield f"safe_standardize{kind}", f, (logits,)
        yield f"rel_entr{kind}", so.rel_entr, (np.abs(logits), labels)
    yield "safe_standardize, far from 0", f, (LOGITS + 100.0,)
    yield "safe_standardize, constant", f, (with_entries(LOGITS, _1=2.0),)
    near = (labels, labels * (1 + 1e-9 * LOGITS))
    yield "rel_entr, nearly equal", so.rel_entr, near
    yield "rel_entr, zeros", so.rel_entr, (with_entries(labels, _1=0.0), labels)
    zeros = with_entries(labels, _1=0.0, _2_2=1e-310)
    yield "rel_entr, zeros in both", so.rel_entr, (zeros, with_entries(labels, _1_1=0.0, _3=0.0))


def cases_of_numbers():
    """Return the same of functions of numbers."""
    for name in ("safe_lgamma", "log_ndtr", "safe_digamma"):
        f = getattr(so, name)
        yield f"{name}", f, (np.linspace(0.1, 8, 40),)
        yield f"{name}, one outside", f, (with_entries(np.linspace(0.1, 8, 40), _7=-30.5, _9=20.0),)
        yield f"{name}, NaN", f, (with_entries(np.linspace(0.1, 8, 40), _7=math.nan),)
    for name in ("safe_erfinv", "safe_ndtri", "safe_logit"):
        f, x = getattr(so, name), np.linspace(0.01, 0.99, 40)
        yield f"{name}", f, (x,)
        yield f"{name}, ends", f, (with_entries(x, _7=1.0, _9=-3.0),)
    for name in ("log_cosh", "log_sech2"):
        f, x = getattr(so, name), np.linspace(-8, 8, 61)
        yield name, f, (x * x * x / 10,)
        yield f"{name}, few", f, (with_entries(x, _7=math.inf, _9=math.nan, _11=-900.0),)
    for name in ("entr", "safe_rsqrt", "safe_acosh"):
        yield name, getattr(so, name), (np.linspace(1.6, 9, 40),)
        yield f"{name}, ends", getattr(so, name), (np.asarray([0.0, 1.0, 2.0, math.inf]),)
    yield from cases_of_few()
    yield from cases_of_singularities()
    pairs = ("safe_logaddexp", "safe_logsubexp", "safe_hypot", "safe_atan2", "safe_mul", "xdivy")
    for name in pairs:
        f = getattr(so, name)
        yield f"{name}", f, (LOGITS, LOGITS[::-1].copy())
        yield f"{name} with NaN and -inf", f, (BAD, ABSENT)
        tied = with_entries(LOGITS, _0_0=0.0)
        yield f"{name}, zero and equal", f, (tied, tied.copy())
        yield f"{name}, tiny", f, (1e-300 * LOGITS, 1e-310 * LOGITS)


def cases_of_singularities():
    """Return the same of functions that are 0 / 0 at a point, or a logarithm that is 0 there."""
    x = np.concatenate([np.linspace(-8, 8, 61) ** 3 / 10, [0.0, -0.0, 1e-40, 1e-6, 0.999, 1.001]])
    for name in ("exprel", "sinc", "sinhc", "log_sinhc"):
        f = getattr(so, name)
        yield name, f, (x,)
        yield f"{name}, few", f, (with_entries(x, _7=math.inf, _9=math.nan, _11=-900.0),)
    x = np.concatenate([np.linspace(0.02, 3, 61) ** 3, [math.log(2.0), 0.693, 0.44, 0.45, 100.0]])
    for name in ("log1mexp", "log_expm1"):
        f = getattr(so, name)
        yield name, f, (x,)
        yield f"{name}, few", f, (with_entries(x, _7=math.inf, _9=math.nan, _11=0.0),)
    x, y = np.linspace(0.2, 4, 67), np.linspace(-3, 3, 67)
    for name in ("boxcox", "inv_boxcox", "logarithmic_mean"):
        f = getattr(so, name)
        other = y[::-1].copy() if name != "logarithmic_mean" else x[::-1] ** 3
        first = x / 2 if name != "inv_boxcox" else other / 10
        near = with_entries(first, _33=1.0, _5=1.001), with_entries(other, _33=1.0, _6=1e-12)
        yield name, f, near
        yield f"{name}, few", f, (with_entries(first, _7=math.inf, _9=0.0), other)
        yield f"{name}, two", f, (first, with_entries(other, _7=math.nan, _9=0.0))


def cases_of_few():
    """Return the same of sixty numbers, of which two are left to the steps."""
    x, y = np.linspace(1.6, 2.4, 60), np.linspace(0.1, 0.9, 60)
    for name in ("safe_logit", "safe_digamma"):
        few = with_entries(y if name == "safe_logit" else x, _7=-math.inf, _9=math.nan)
        yield f"{name}, few", getattr(so, name), (few,)
    losses = ("safe_binary_cross_entropy", "safe_focal_loss")
    for name in ("safe_logsubexp", "safe_logaddexp", "rel_entr", *losses):
        few = with_entries(x, _7=math.inf), with_entries(y, _9=math.nan)
        yield f"{name}, few", getattr(so, name), few
        few = with_entries(x, _7=-math.inf), with_entries(y, _9=0.0)
        yield f"{name}, few at ends", getattr(so, name), few


def of_classes(f, labels, x):
    """Return a loss of classes."""
    return f(x, like(labels, x))


def of_mask(f, *args):
    """Return a function of what a mask keeps; its last argument is the first array."""
    *fixed, x = args if f is not so.safe_binary_cross_entropy else (args[1], args[0])
    keep = like(MASK, x)
    if f is so.safe_binary_cross_entropy:
        return f(x, fixed[0], where=keep)
    return f(x, *(like(y, x) for y in fixed), where=keep)


def of_where(f, keep, *args):
    """Return a function with a mask of its own."""
    return f(*args, where=like(keep, args[0]))


def of_segments(f, x):
    """Return a reduction of segments, of which one is empty."""
    return f(x, like(IDS, x), 5)


def like(x, other):
    """Return an array of the framework of another, on its device."""
    framework = framework_of(other)
    where = {"device": other.device} if framework == "torch" else {}
    return load(framework).xp.asarray(x, **where)


def framework_of(x):
    """Return the name of the framework of an array."""
    kinds = {"torch": "torch", "jaxlib": "jax", "jax": "jax", "tensorflow": "tensorflow"}
    return kinds[type(x).__module__.partition(".")[0]]


CASES = {
    name: (f, args)
    for name, f, args in (
        *cases(),
        *cases_of_slices(),
        *cases_of_labels(),
        *cases_of_numbers(),
    )
}


def factors(shape):
    """Return numbers of which none is the same."""
    return np.linspace(0.5, 1.5, math.prod(shape)).reshape(shape)


def in_torch(f, args):
    """Return the value, the slopes, those of a batch, slopes of slopes, and these forwards."""
    import torch
    from torch.autograd import forward_ad

    leaves = [torch.tensor(x, requires_grad=True) for x in args]
    value = f(*leaves)
    weights = torch.tensor(factors(value.shape))
    slopes = torch.autograd.grad(f(*leaves), leaves, weights)
    again = torch.autograd.grad(f(*leaves), leaves, weights, create_graph=True)
    total = sum((x * torch.tensor(factors(x.shape))).sum() for x in again)
    bends = torch.autograd.grad(total + 0 * sum(x.sum() for x in leaves), leaves)
    batched = []
    if getattr(f, "args", None) != (linalg.safe_eigh,):  # a barrier in its steps takes no batch
        batch = torch.stack([weights, 2 * weights])
        batched = torch.autograd.grad(f(*leaves), leaves, batch, is_grads_batched=True)
    out = f(*leaves)
    with forward_ad.dual_level():
        seed = forward_ad.make_dual(weights, torch.cos(weights))
        moved = [forward_ad.unpack_dual(x) for x in torch.autograd.grad(out, leaves, seed)]
        moved = [x if x is not None else 0 * y for y, x in moved]
    return [x.detach().numpy() for x in (value, *slopes, *again, *bends, *batched, *moved)]


def in_jax(f, args):
    """Return the value, the slopes in both modes and the slopes of slopes."""
    import jax
    import jax.numpy as jnp

    args = [jnp.asarray(x) for x in args]
    directions = [jnp.asarray(factors(x.shape)) for x in args]
    every = tuple(range(len(args)))

    def total(*args):
        value = f(*args)
        return jnp.sum(value * factors(value.shape))

    def along(*args):
        slopes = jax.grad(total, every)(*args)
        return sum(jnp.sum(x * y) for x, y in zip(slopes, directions, strict=True))

    value, moved = jax.jit(partial(jax.jvp, f))(args, directions)
    slopes = jax.jit(jax.grad(total, every))(*args)
    bends = jax.jit(jax.grad(along, every))(*args)
    return [np.asarray(x) for x in (value, moved, *slopes, *bends)]


def in_tensorflow(f, args):
    """Return the value, the slopes in both modes and the slopes of slopes, in a `tf.function`."""
    import tensorflow as tf

    args = [tf.constant(x) for x in args]
    directions = tuple(tf.constant(factors(x.shape)) for x in args)

    @tf.function(autograph=False)
    def all_of(*args):
        with tf.autodiff.ForwardAccumulator(args, directions) as accumulator:
            moved = accumulator.jvp(f(*args), unconnected_gradients="zero")
        with tf.GradientTape() as outer:
            outer.watch(args)
            with tf.GradientTape() as tape:
                tape.watch(args)
                value = f(*args)
                total = tf.reduce_sum(value * factors(value.shape))
            slopes = tape.gradient(total, args)
            along = sum(tf.reduce_sum(x * y) for x, y in zip(slopes, directions, strict=True))
        return value, moved, *slopes, *outer.gradient(along, args, unconnected_gradients="zero")

    return [x.numpy() for x in all_of(*args)]


@pytest.fixture
def without_kernels(framework, monkeypatch):
    """Return a function that takes the kernels away."""

    def take():
        if framework == "torch":
            from safeops._backends.torch import Torch

            monkeypatch.setattr(Torch, "kernel", lambda *_: None)
        elif framework == "tensorflow":
            monkeypatch.setattr(type(load(framework)), "kernel", lambda *_: None)
        else:
            from safeops._backends.jax import programs

            monkeypatch.setattr(programs, "KERNELS", {})
            load("jax").programs.clear()

    yield take
    if framework == "jax":
        load("jax").programs.clear()


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_gives_what_the_steps_give(framework, name, without_kernels):
    """Values and derivatives of both orders are those of the steps."""
    if re.split("[ ,]", name)[0] not in kernels_of(framework):
        pytest.skip(f"{framework} has no kernel of it")
    f, args = CASES[name]
    run = {"torch": in_torch, "jax": in_jax, "tensorflow": in_tensorflow}[framework]

    ours = run(f, args)
    without_kernels()
    steps = run(f, args)

    for place, (got, wanted) in enumerate(zip(ours, steps, strict=True)):
        finite = np.abs(wanted[np.isfinite(wanted)])
        size = finite.max() if finite.size else 0.0
        assert_close(got, wanted, 1e-10, f"result {place}", atol=1e-12 * size)


def kernels_of(framework):
    """Return the names of the functions that have such a kernel."""
    if framework == "torch":
        from safeops._backends.torch import Torch, fused, special
        from safeops._backends.torch import linalg as of_matrices
        from safeops._backends.torch import segments as of_segments

        kernels = fused.KERNELS | of_matrices.KERNELS | of_segments.KERNELS | special.KERNELS
        return {*kernels, *Torch.kernels_of_steps}
    if framework == "tensorflow":
        from safeops._backends.tensorflow import TensorFlow, losses

        return {*losses.KERNELS, *TensorFlow.kernels_of_steps}
    from safeops._backends.jax import linalg as of_matrices
    from safeops._backends.jax import losses
    from safeops._backends.jax import segments as of_segments

    return {*losses.KERNELS, *of_matrices.KERNELS, *of_segments.KERNELS}


def with_gap(x):
    """Return the same numbers, each next to one that is not among them."""
    import torch

    return torch.stack([x, torch.full_like(x, math.nan)], -1)[..., 0]


def turned(x):
    """Return the same numbers, with neighbours along another axis than the last."""
    return x.mT.contiguous().mT if x.ndim > 1 else x


def expanded(x):
    """Return its first entry of the last axis, once in memory and as often as there were others."""
    return x[..., :1].expand(x.shape)


LAYOUTS = {f.__name__: f for f in (with_gap, turned, expanded)}


def slopes_of(f, args):
    """Return in a row the value and slopes, for a cotangent that is one number in memory."""
    import torch

    out = f(*args)
    found = out, *torch.autograd.grad(out, args, out.new_ones(()).expand_as(out))
    return np.concatenate([x.detach().numpy().ravel() for x in found])


@pytest.mark.only("torch")
@pytest.mark.parametrize("view", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_takes_numbers_of_any_layout(name, view):
    """It reads the numbers of a tensor, wherever in memory these are, and no others."""
    import torch

    f, args = CASES[name]
    views = [LAYOUTS[view](torch.tensor(x, requires_grad=True)) for x in args]
    copies = [x.detach().clone(memory_format=torch.contiguous_format) for x in views]

    wanted = slopes_of(f, [x.requires_grad_() for x in copies])

    assert_close(slopes_of(f, views), wanted, 1e-12, atol=1e-300)


@pytest.mark.only("torch")
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_runs_in_a_checkpoint(name):
    """A checkpoint computes it again, and hands each tensor that it kept out once."""
    import torch
    from torch.utils.checkpoint import checkpoint

    f, args = CASES[name]
    leaves = [torch.tensor(x, requires_grad=True) for x in args]

    wanted = slopes_of(f, leaves)

    again = partial(checkpoint, f, use_reentrant=False)
    assert_close(slopes_of(again, leaves), wanted, 1e-12, atol=1e-300)


@pytest.mark.only("torch")
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_asks_no_default_device(name):
    """What it makes on the way is on the device of its arguments."""
    import torch

    f, args = CASES[name]
    leaves = [torch.tensor(x, requires_grad=True) for x in args]
    wanted = slopes_of(f, leaves)
    torch.set_default_device("meta")
    try:
        found = slopes_of(f, leaves)
    finally:
        torch.set_default_device(None)

    assert_close(found, wanted, 1e-12, atol=1e-300)


def test_every_fused_kernel_has_a_case(framework):
    """The table of cases names each kernel of a function that stands for all of its steps."""
    assert {re.split("[ ,]", name)[0] for name in CASES} >= kernels_of(framework)


def test_a_fused_kernel_answers(framework):
    """Usual arguments go to the kernel, by its name in the graph of PyTorch."""
    if framework != "torch":
        pytest.skip("programs of others have no such names")
    import torch

    x = torch.tensor(np.abs(LOGITS) / 12 + 0.1, requires_grad=True)
    nodes = {
        "log_cosh": "_LogCoshBackward",
        "safe_lgamma": "_LogGammaBackward",
        "log_ndtr": "_LogNormalBackward",
        "safe_erfinv": "_InverseErrorBackward",
        "safe_ndtri": "_QuantileBackward",
        "safe_logit": "_LogitBackward",
        "safe_log_softmax": "_LogSoftmaxBackward",
        "safe_rsqrt": "RsqrtBackward0",
    }
    assert {name: getattr(so, name)(x).grad_fn.name() for name in nodes} == nodes
    pairs = {"safe_cdist": "_DistancesBackward", "safe_binary_cross_entropy": "_BinaryBackward"}
    pairs |= {"safe_logaddexp": "_LogAddBackward", "safe_hypot": "_LengthBackward"}
    pairs |= {"safe_focal_loss": "_FocalBackward", "rel_entr": "_RelativeEntropyBackward"}
    pairs |= {"safe_logsubexp": "_LogDifferenceBackward"}
    assert {name: getattr(so, name)(2 * x, x).grad_fn.name() for name in pairs} == pairs
    x = torch.tensor(LOGITS, requires_grad=True)
    assert so.safe_standardize(x, axis=-1).grad_fn.name() == "_StandardBackward"
    a = torch.tensor(LOGITS[:, :4] + 9 * np.eye(4), requires_grad=True)
    found = linalg.safe_eigvalsh(a), *linalg.safe_eigh(a), *linalg.safe_slogdet(a)
    names = ["LinalgEighBackward0"] * 3 + ["LinalgSlogdetBackward0"] * 2
    assert [x.grad_fn.name() for x in found] == names
    assert linalg.safe_cholesky(a).grad_fn.name() == "TrilBackward0"


def test_a_usual_determinant_is_not_decomposed(framework):
    """A program has a singular value decomposition in its branches alone."""
    if framework == "torch":
        pytest.skip("there a determinant has a node, and asks for its numbers")
    a = np.eye(3) + LOGITS[:3, :3] / 9
    if framework == "jax":
        import jax

        names = outside_of_branches(jax.make_jaxpr(jax.grad(linalg.safe_det))(a).jaxpr)
    else:
        import tensorflow as tf

        slope = tf.function(lambda a: tf.gradients(linalg.safe_det(a), a))
        graph = slope.get_concrete_function(tf.constant(a)).graph
        names = {op.type for op in graph.get_operations()}
    assert names & {"cond", "If", "StatelessIf"}, names
    assert not names & {"svd", "Svd"}


def outside_of_branches(jaxpr):
    """Return the names of the primitives that run whatever the numbers are."""
    names = {equation.primitive.name for equation in jaxpr.eqns}
    for equation in jaxpr.eqns:
        bodies = [x.jaxpr for x in equation.params.values() if hasattr(x, "jaxpr")]
        names = names.union(*map(outside_of_branches, bodies))  # branches are in a tuple
    return names
