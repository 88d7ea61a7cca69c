"""
Masked gradients on two devices, held to those of JAX; a script, as devices are counted at start.

Prints what differs, and `right` if nothing does.
"""

import os
import sys
import warnings

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from safeops.autodiff import jax as masked

jax.config.update("jax_enable_x64", True)
MESH = jax.make_mesh((2,), ("i",), axis_types=(AxisType.Auto,))
WHOLE, PART = PartitionSpec(), PartitionSpec("i")


def log(x):
    """Return the logarithm where there is one."""
    return jnp.where(x > 0, jnp.log(x), 0.0)


def scan(w, x):
    """Return a loop over the entries of a device."""

    def step(c, row):
        c = jnp.tanh(c * w + log(w * row))
        return c, c

    return lax.scan(step, x[0] * 0 + 1.0, x)[1][:1]


# What each device makes of a weight, which all have, and of its own entries.
LOCAL = {
    "sum": lambda w, x: log(w * x),
    "gather": lambda w, x: (log(lax.all_gather(w * x, "i", tiled=True)) * jnp.arange(4.0))[:3],
    "gather of logarithms": lambda w, x: lax.all_gather(log(w * x), "i", tiled=True)[:3],
    "scan": scan,
    "permute": lambda w, x: lax.ppermute(log(w * x), "i", [(0, 1)]),
    "all to all": lambda w, x: lax.all_to_all(log(w * x), "i", 0, 0, tiled=True)[:1],
    "scatter": lambda w, x: lax.psum_scatter(log(jnp.stack([w * x, x])), "i")[:1],
    "mean": lambda w, x: lax.pmean(log(w * x), "i")[:1],
    "matmul": lambda w, x: (log(x)[:, None] @ (w * jnp.ones((1, 2))))[:1],
    "loop": lambda w, x: lax.fori_loop(0, 3, lambda _, c: (c + log(x[:1])) * w, w * x[:1]),
    "branch": lambda w, x: lax.cond(  # which all devices take
        lax.psum(x.sum(), "i") > 0, lambda: log(w * x)[:1] * lax.psum(w * x[:1], "i"), lambda: x[:1]
    ),
    "convolution": lambda w, x: jnp.convolve(log(x), w * jnp.ones(1))[:1],
}

EAGER = "gather of logarithms"  # the others are compiled, which takes a tenth of the time


def on_devices(f, *, check):
    """Return the sum over all devices."""

    def whole(w, x):
        return lax.psum(f(w, x).sum(), "i")

    return jax.shard_map(whole, mesh=MESH, in_specs=(WHOLE, PART), out_specs=WHOLE, check_vma=check)


def differences(names):
    """Yield what is not as it is in JAX, or not finite at the entries that are 0."""
    healthy, with_zeros = jnp.asarray([1.0, 3.0, 4.0, 1.5]), jnp.asarray([0.0, 2.0, 3.0, 0.0])
    for name in names:
        for check in (True, False):
            f = on_devices(LOCAL[name], check=check)
            ours, theirs = (jax.jit(grad(f, (0, 1))) for grad in (masked.grad, jax.grad))
            ours = masked.grad(f, (0, 1)) if name == EAGER else ours
            got, wanted = ours(1.3, healthy), theirs(1.3, healthy)
            same = all(np.allclose(a, b, 1e-12) for a, b in zip(got, wanted, strict=True))
            cured = ours(1.3, with_zeros)
            if not (same and all(np.isfinite(x).all() for x in cured)):
                yield f"{name}, check_vma={check}: {got}, {wanted}, {cured}"


if __name__ == "__main__":
    warnings.simplefilter("error", masked.UnknownOperationWarning)
    wrong = list(differences(sys.argv[1:] or LOCAL))
    sys.stdout.write("\n".join(wrong or ["right"]))
