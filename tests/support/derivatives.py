"""All derivatives of a function, in every mode of every framework."""

from dataclasses import replace
from functools import partial

import numpy as np

from exponents import EXHAUSTIVE
from frameworks import torch_from
from safeops._backends import load
from safeops._dispatch import backend_of

SECOND = ("rev-rev", "fwd-rev", "rev-fwd", "fwd-fwd")
ORDERS = ("reverse", "forward", *SECOND)

MODES = {
    "jax": ("eager", "jit", "vmap", "grad-of-jit"),
    "torch": ("autograd", "func", "vmap", "compile", "compiled-then-autograd"),
    "tensorflow": ("eager", "function", "xla", "unknown-shape"),
}

# What a framework cannot do, for any function: the fact, and the derivatives that it concerns.
UNSUPPORTED = {
    ("torch", "autograd"): (
        ("fwd-fwd",),
        "torch.autograd.forward_ad has no nested levels (torch 2.13)",
    ),
    ("torch", "compiled-then-autograd"): (
        ("forward", *SECOND),
        "a compiled function has a first backward pass only (torch 2.13)",
    ),
}

# Modes that repeat another mode. The default run has second derivatives there for some rows of each
# kind, the exhaustive run for all rows.
REPEATED = {
    ("jax", "eager"): "jit has the same program",
    ("jax", "grad-of-jit"): "jit has the same program",
    ("torch", "compile"): "func has the same operations",
    ("tensorflow", "function"): "xla has the same graph",
    ("tensorflow", "unknown-shape"): "xla has the same graph with a shape",
}
OF_EACH_KIND = (
    *("safe_div", "safe_sqrt", "safe_pow", "xlogy", "safe_norm"),  # with rules of their own in JAX
    *("safe_exp", "safe_expm1", "safe_log", "safe_asin", "safe_softmax"),  # in PyTorch
    *("safe_max", "nanmean", "nanstd", "safe_atan2"),
)


def is_left(row, way):
    """Whether second derivatives of a row in a mode are left to the exhaustive run."""
    return way in REPEATED and row.name not in OF_EACH_KIND


def due(row, way):
    """Return a row, without the derivatives that this run leaves to the exhaustive run."""
    if EXHAUSTIVE or not is_left(row, way):
        return row
    skipped, _ = row.unsupported.get(way, ((), ""))
    return replace(row, unsupported=row.unsupported | {way: ({*skipped, *SECOND}, REPEATED[way])})


def derivatives_in(mode, framework, f, reduce, args, v, u, unsupported=None):
    """Return the value of `f` and the derivatives that a mode offers, by their names."""
    around, within, grad, jvp = tools(framework, mode)
    skipped, _ = ((unsupported or {}) | UNSUPPORTED).get((framework, mode), ((), ""))
    n = len(args)

    def compute(*flat):
        every = all_derivatives(
            within(f), reduce, flat[:n], flat[n : 2 * n], flat[2 * n :], grad=grad, jvp=jvp
        )
        return {order: rule() for order, rule in every.items() if order not in skipped}

    return around(compute)(*args, *v, *u)


def all_derivatives(f, reduce, args, v, u, *, grad, jvp):
    """
    Return the rules for the value of `f`, and for the derivatives of ``g = reduce(f)``.

    g gives one number a point, which depends on the entries of that point alone. reverse: its
    gradient; forward: the product with v; rev-rev, fwd-rev, rev-fwd: the Hessian times v; fwd-fwd:
    the Hessian between u and v.
    """
    xp = backend_of(*args).xp

    def g(*args):
        return reduce(f(*args))

    def gradient(*args):
        return grad(lambda *args: xp.sum(g(*args)))(*args)

    def along_v(*args):
        return sum(xp.sum(a * b) for a, b in zip(gradient(*args), v, strict=True))

    def slope(*args):
        return jvp(g)(args, v)

    return {
        "value": lambda: f(*args),
        "reverse": lambda: gradient(*args),
        "forward": lambda: slope(*args),
        "rev-rev": lambda: grad(along_v)(*args),
        "fwd-rev": lambda: jvp(gradient)(args, v),
        "rev-fwd": lambda: grad(lambda *args: xp.sum(slope(*args)))(*args),
        "fwd-fwd": lambda: jvp(slope)(args, u),
    }


def directions(shapes):
    """Return v and u, an array for each shape, without symmetry, so that no error cancels."""
    ramps = [np.broadcast_to(np.linspace(1.0, 1.5, shape[-1]), shape) for shape in shapes]
    v = [k * ramp for k, ramp in zip((1.0, -0.625, 0.25), ramps, strict=False)]
    u = [k * ramp**2 for k, ramp in zip((0.375, 1.25, -0.5), ramps, strict=False)]
    return v, u


def tools(framework, mode):
    """Return a wrapper of all derivatives, a wrapper of the function, grad and jvp."""
    backend = load(framework)
    transforms = {"jax": in_jax, "torch": in_torch, "tensorflow": in_tensorflow}[framework]
    around, within = transforms(mode)
    if mode in ("autograd", "compiled-then-autograd"):
        return around, within, torch_grad, torch_jvp
    return around, within, backend.grad, backend.jvp


def unchanged(f):
    """Return the function itself."""
    return f


def in_jax(mode):
    """Return the transformations of a JAX mode."""
    import jax

    return {
        "eager": (unchanged, unchanged),
        "jit": (jax.jit, unchanged),
        "vmap": (jax.jit, jax.vmap),
        "grad-of-jit": (unchanged, jax.jit),
    }[mode]


def in_torch(mode):
    """
    Return the transformations of a PyTorch mode; aot_eager traces all and compiles no kernel.

    The function alone is traced with sizes, and numbers such as a fill, that are not known.
    """
    import torch

    torch.compiler.reset()
    # A trace with unknown sizes donates its buffers, but create_graph needs them (2.13).
    torch._functorch.config.donated_buffer = False
    # The cache hands forward mode inside of another a tensor that it cannot write to (2.13).
    torch._dynamo.config.fake_tensor_cache_enabled = False
    if torch_from(2, 9) and not torch_from(2, 10):  # guards in C++ round a number: limits.md
        torch._dynamo.config.enable_cpp_symbolic_shape_guards = False

    def traced(f, dynamic=None):
        return torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=dynamic)

    return {
        "autograd": (unchanged, unchanged),
        "func": (unchanged, unchanged),
        "vmap": (unchanged, torch.func.vmap),
        "compile": (traced, unchanged),
        "compiled-then-autograd": (unchanged, partial(traced, dynamic=True)),
    }[mode]


def in_tensorflow(mode):
    """Return the transformations of a TensorFlow mode."""
    import tensorflow as tf

    def unknown(f):
        def call(*args):
            specs = [tf.TensorSpec([None] * len(a.shape), a.dtype) for a in args]
            return tf.function(f, input_signature=specs)(*args)

        return call

    return {
        "eager": (unchanged, unchanged),
        "function": (tf.function, unchanged),
        "xla": (lambda f: tf.function(f, jit_compile=True), unchanged),
        "unknown-shape": (unknown, unchanged),
    }[mode]


def torch_grad(f):
    """Reverse mode as models use it: leaves, and the autograd engine."""
    import torch

    def gradient(*args):
        leaves = [x if x.requires_grad else x.detach().requires_grad_() for x in args]
        out = f(*leaves)
        if not out.requires_grad:  # the gradient of a linear function, which PyTorch refuses
            return [torch.zeros_like(x) for x in leaves]
        return torch.autograd.grad(
            out, leaves, create_graph=True, allow_unused=True, materialize_grads=True
        )

    return gradient


def torch_jvp(f):
    """Forward mode by dual numbers."""
    from torch.autograd import forward_ad

    def tangent(args, tangents):
        leaves = [x if x.requires_grad else x.detach().requires_grad_() for x in args]
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(x, t) for x, t in zip(leaves, tangents, strict=True)]
            return tangent_of(f(*duals))

    def tangent_of(out):
        if isinstance(out, tuple):
            return tuple(tangent_of(x) for x in out)
        primal, tangent = forward_ad.unpack_dual(out)
        return primal.new_zeros(primal.shape) if tangent is None else tangent

    return tangent
