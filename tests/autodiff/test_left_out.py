"""Masked autodiff knows what attention, segments, losses and distances leave out."""

from importlib import import_module

import numpy as np
import pytest

import safeops as so
from assertions import assert_close
from frameworks import asarray, in_one_program, to_numpy
from safeops._backends import load

KEEP = np.array([True, False, True, True])
ENTRIES, PAIRS = np.stack([KEEP] * 3, -1), np.outer(KEEP, KEEP)
CLEAN = np.array([[1.0, 2.0, 0.5], [1.0, 1.0, 1.0], [0.25, 1.5, 3.0], [2.0, 0.75, 1.25]])
LABELS, IDS = np.array([0, 1, 2, 0]), np.array([0, 1, 1, 0])
OUTSIDE = np.where(KEEP, IDS, -1)
OF_SEGMENTS = ("sum", "mean", "max", "prod", "softmax", "logsumexp", "std")


def segment(name):
    """Return a function of two segments."""
    f = getattr(so.segments, f"segment_{name}")
    return lambda h, ids, keep=None: f(h, ids, 2, where=keep)


def masked(f, **options):
    """Return a function whose last argument is the mask."""
    return lambda *args: f(*args[:-1], where=args[-1], **options)


# A program of rows of which one is left out, and its other arguments.
PROGRAMS = {
    "attention": (
        lambda h, query, keep: so.safe_attention(query, h, h, where=keep),
        (CLEAN[:2] - 1.0, np.stack([KEEP, KEEP])),
    ),
    "cross entropy": (masked(so.safe_cross_entropy), (LABELS, ENTRIES)),
    "nll": (masked(so.safe_nll), (LABELS, ENTRIES)),
    "binary cross entropy": (masked(so.safe_binary_cross_entropy), (CLEAN / 4.0, ENTRIES)),
    "focal loss": (masked(so.safe_focal_loss), (CLEAN / 4.0, ENTRIES)),
    "kl divergence": (masked(so.safe_kl_divergence), (CLEAN / 4.0, ENTRIES)),
    "cdist": (masked(so.safe_cdist), (CLEAN, PAIRS)),
    "pdist": (masked(so.safe_pdist), (PAIRS[np.triu_indices(4, 1)],)),
    "standardize": (masked(so.safe_standardize, axis=0), (ENTRIES,)),
    **{f"{name}, mask": (segment(name), (IDS, ENTRIES)) for name in OF_SEGMENTS},
    **{f"{name}, id out of range": (segment(name), (OUTSIDE,)) for name in OF_SEGMENTS[::3]},
}


def loss(framework, name):
    """Return a loss of x, whose root a program leaves a row out of."""
    program, constants = PROGRAMS[name]
    dtypes = {"f": "float64", "b": "bool", "i": "int64"}
    others = [asarray(framework, c, dtypes[c.dtype.kind]) for c in constants]
    xp = load(framework).xp

    def f(x):
        # TensorFlow's own root has 0 for 0 times its infinite slope; this one has NaN.
        out = program(xp.exp(0.5 * xp.log(x)), *others)
        return xp.sum(out * out)

    return f


def gradient(framework, f, x, compiled):
    """Return the masked gradient."""
    module = import_module(f"safeops.autodiff.{framework}")
    if framework == "torch":
        return of_torch(module, f, x.requires_grad_(), compiled=compiled)
    slope = module.grad(f, on_unknown="error")
    if compiled and framework == "jax":
        import jax

        return jax.jit(slope)(x)
    if compiled:
        import tensorflow as tf

        return tf.function(slope, jit_compile=True)(x)
    return slope(x)


def of_torch(module, f, x, *, compiled):
    """Return the masked gradient of PyTorch."""
    if not compiled:
        return module.grad(f(x), [x], on_unknown="error")[0]
    import torch

    torch.compiler.reset()
    module.compile(f, backend="aot_eager", on_unknown="error")(x).backward()
    return x.grad


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_the_gradient_upstream_is_that_of_what_is_kept(name, mode, autodiff_framework):
    """Where a row is left out, a root at 0 and at -1 upstream has gradient 0, the rest its own."""
    f = loss(autodiff_framework, name)
    plain = in_one_program(autodiff_framework, load(autodiff_framework).grad(f))
    (clean,) = plain(asarray(autodiff_framework, CLEAN))
    wanted = to_numpy(clean) * KEEP[:, None]
    bad = np.where(KEEP[:, None], CLEAN, [0.0, -1.0, 0.0])

    got = gradient(autodiff_framework, f, asarray(autodiff_framework, bad), mode == "compiled")

    assert np.isfinite(wanted).all()
    assert wanted.any()
    assert_close(to_numpy(got), wanted, 1e-10, name, atol=1e-12)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_ordinary_gradient_fails(name, autodiff_framework):
    """The slope of the root is infinite or NaN, and times 0 that is NaN."""
    backend = load(autodiff_framework)
    bad = np.where(KEEP[:, None], CLEAN, [0.0, -1.0, 0.0])

    (slope,) = backend.grad(loss(autodiff_framework, name))(asarray(autodiff_framework, bad))

    assert np.isnan(to_numpy(slope)[1]).any()
