"""
Masked gradients on two devices, held to those of JAX; a script, as devices are counted at start.

Prints what differs, and `right` if nothing does.
"""

import os
import sys
import warnings
from functools import partial

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


WAITS = {
    "permute": lambda y: lax.ppermute(y, "i", [(0, 1), (1, 0)]),
    "sum": lambda y: lax.psum(y, "i"),
}
KEPT = np.array([[True, True], [False, True]])
USUAL = np.array([[[7.0, 2.0], [3.0, 4.0]]] * 2)


def steps(w, x, wait):
    """Return a loop in which the devices wait for each other."""

    def step(c, _):
        y = jnp.where(KEPT, c @ w[0], 0.0)
        return y + wait(y), None

    return lax.scan(step, x[0], None, length=1)[0][None]


def differences_of_exact():
    """Yield what is not right if a coefficient of the first device alone is infinite."""
    x, infinite = jnp.ones((2, 2, 2)), USUAL.copy()
    infinite[0, 0, 0] = np.inf
    for name, wait in WAITS.items():
        local = partial(steps, wait=wait)
        f = jax.shard_map(local, mesh=MESH, in_specs=(PART, PART), out_specs=PART)
        loss = lambda x, w, f=f: f(w, x).sum()  # noqa: E731
        got, wanted = masked.grad(loss, exact=True)(x, infinite), np.array(jax.grad(loss)(x, USUAL))
        wanted[0, 0, 0] = np.inf  # an entry that is read met the coefficient here
        if not np.array_equal(got, wanted):
            yield f"exact {name}: {got}, {wanted}"


if __name__ == "__main__":
    warnings.simplefilter("error", masked.UnknownOperationWarning)
    wrong = [*differences(sys.argv[1:] or LOCAL), *differences_of_exact()]
    sys.stdout.write("\n".join(wrong or ["right"]))
