"""Masked gradients on 8 virtual devices of JAX: a script, as devices are counted at start."""

import os
import re
from functools import partial

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import launched
import safeops as so
from safeops.autodiff import jax as masked

jax.config.update("jax_enable_x64", True)
CHECKS = []
WHOLE, PART = PartitionSpec(), PartitionSpec("i")


def check(function):
    """Add a check."""
    CHECKS.append(function)
    return function


def mesh(kind=AxisType.Auto):
    """Return all devices in a row."""
    return jax.make_mesh((8,), ("i",), axis_types=(kind,))


def loss(w, x):
    """Return a sum over devices, whose ordinary gradient is NaN where an entry is 0."""
    return lax.psum(jnp.where(x > 0, jnp.log(w * x), 0.0).sum(), "i")


HEALTHY = np.arange(1.0, 17.0)
WITH_ZERO = np.where(HEALTHY == 5, 0.0, HEALTHY)  # on one device of eight


def mapped(f, *, check_vma):
    """Return a function of a weight and the parts of an array, compiled."""
    both = {"in_specs": (WHOLE, PART), "out_specs": (WHOLE, PART)}
    return jax.jit(jax.shard_map(f, mesh=mesh(), check_vma=check_vma, **both))


@check
def lazy_in_shard_map():
    """One device that is not finite has all of them take the masked gradient; none waits."""
    for check_vma in (True, False):
        ordinary = mapped(jax.grad(loss, (0, 1)), check_vma=check_vma)
        ours = mapped(masked.grad(loss, (0, 1)), check_vma=check_vma)
        lazy = mapped(masked.grad(loss, (0, 1), lazy=True), check_vma=check_vma)
        assert not np.isfinite(ordinary(1.3, WITH_ZERO)[1]).all()
        for x in (HEALTHY, WITH_ZERO):
            for got, wanted in zip(lazy(1.3, x), ours(1.3, x), strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-14)
                assert np.isfinite(got).all()
        for got, wanted in zip(lazy(1.3, HEALTHY), ordinary(1.3, HEALTHY), strict=True):
            np.testing.assert_array_equal(got, wanted)


@check
def lazy_in_pmap():
    """So it is in `pmap`."""
    f = jax.pmap(masked.grad(loss, (0, 1), lazy=True), axis_name="i", in_axes=(None, 0))
    for got in f(1.3, WITH_ZERO.reshape(8, 2)):
        assert np.isfinite(got).all()


@check
def lazy_on_automatic_and_explicit_axes():
    """Of arrays in parts the decision is one of the whole program, in both modes of a mesh."""
    total = lambda w, x: jnp.where(x > 0, jnp.log(w * x), 0.0).sum()  # noqa: E731
    for kind in (AxisType.Auto, AxisType.Explicit):
        with jax.set_mesh(mesh(kind)):
            x = jax.device_put(WITH_ZERO, NamedSharding(mesh(kind), PART))
            w, slope = jax.jit(masked.grad(total, (0, 1), lazy=True))(1.3, x)
            np.testing.assert_allclose(w, 15 / 1.3)
            wanted = np.where(WITH_ZERO > 0, 1 / HEALTHY, 0)
            np.testing.assert_allclose(slope, wanted)
            assert slope.sharding.spec == PART


@check
def masked_behind_a_reshard():
    """On explicit axes a mask enters the body of `shard_map` in the parts of its values."""
    on = mesh(AxisType.Explicit)
    root = jax.shard_map(jnp.sqrt, mesh=on, in_specs=PART, out_specs=PART)
    used = WITH_ZERO > 0
    total = lambda x: jnp.where(used, jax.sharding.reshard(root(x), WHOLE), 0.0).sum()  # noqa: E731
    with jax.set_mesh(on):
        x = jax.device_put(WITH_ZERO, NamedSharding(on, PART))
        slope = jax.jit(masked.grad(total))(x)
    np.testing.assert_allclose(slope, np.where(used, 0.5 / np.sqrt(HEALTHY), 0))
    assert slope.sharding.spec == PART


# How many collectives a reduction over the axis that is in parts may have in the compiled program,
# forward, more than the plain operation.
TABLE = {
    "safe_sum": (so.safe_sum, jnp.sum, 0),
    "nansum": (so.nansum, jnp.nansum, 0),
    "safe_mean": (so.safe_mean, jnp.mean, 0),
    "nanmean": (so.nanmean, jnp.nanmean, 0),
    "safe_max": (so.safe_max, jnp.max, 0),
    "safe_min": (so.safe_min, jnp.min, 0),
    "nanmax": (so.nanmax, jnp.nanmax, -1),
    "nanmin": (so.nanmin, jnp.nanmin, -1),
    "safe_var": (so.safe_var, jnp.var, 1),
    "safe_std": (so.safe_std, jnp.std, 2),  # the scale of the deviations too
    "safe_norm": (so.safe_norm, jnp.linalg.norm, 1),
    "safe_rms": (so.safe_rms, lambda x, axis: jnp.sqrt(jnp.mean(x * x, axis)), 1),
    "safe_softmax": (so.safe_softmax, jax.nn.softmax, 0),
    "safe_log_softmax": (so.safe_log_softmax, jax.nn.log_softmax, 0),
    "safe_logsumexp": (so.safe_logsumexp, jax.scipy.special.logsumexp, 0),
}
COLLECTIVE = r"(?:all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("


def collectives(f, x):
    """Return how many collectives the compiled program of a function has."""
    return len(re.findall(COLLECTIVE, jax.jit(f).lower(x).compile().as_text()))


@check
def collectives_of_reductions():
    """A reduction moves no more than the plain one, and those that scale one row more."""
    x = jax.device_put(np.arange(64.0).reshape(16, 4), NamedSharding(mesh(), PART))
    for name, (ours, plain, more) in TABLE.items():
        counts = [collectives(partial(f, axis=0), x) for f in (ours, plain)]
        assert counts[0] <= counts[1] + more, (name, counts)
        value, wanted = ours(x, axis=0), plain(x, axis=0)
        np.testing.assert_allclose(value, wanted, rtol=1e-12, err_msg=name)


@check
def collectives_of_elementwise_operations():
    """There are none, forward and backward, and the layout stays."""
    x = jax.device_put(np.arange(16.0), NamedSharding(mesh(), PART))
    for f in (
        so.safe_log,
        so.safe_sqrt,
        lambda x: so.safe_div(x, x),
        so.sinc,
        so.safe_exp,
        so.entr,
    ):
        slopes = lambda x, f=f: jax.vjp(f, x)[1](jnp.ones_like(x))[0]  # noqa: E731
        for g in (f, slopes):
            assert collectives(g, x) == 0
            assert jax.jit(g)(x).sharding.spec == PART


@check
def cross_entropy_of_classes_in_parts():
    """Classes are counted where they are: nothing of the size of the logits moves."""
    logits = np.cos(np.arange(64.0)).reshape(4, 16)
    labels = np.asarray([0, 15, 7, -1])
    parts = jax.device_put(logits, NamedSharding(mesh(), PartitionSpec(None, "i")))
    loss = partial(so.safe_cross_entropy, axis=-1)
    text = jax.jit(loss).lower(parts, labels).compile().as_text()
    assert not re.findall(r"all-gather|all-to-all", text)
    np.testing.assert_allclose(loss(parts, labels), loss(logits, labels), rtol=1e-12)


@check
def means_over_all_devices():
    """With `count`, reduced first, the sum over devices of means is the mean of all."""
    keep = np.arange(16) % 3 > 0

    def local(x, keep):
        number = lax.psum(keep.sum(), "i")
        return lax.psum(so.safe_mean(x, where=keep, count=number), "i")

    for check_vma in (True, False):
        how = {"mesh": mesh(), "in_specs": (PART, PART), "out_specs": WHOLE}
        mean = jax.jit(jax.shard_map(local, check_vma=check_vma, **how))
        np.testing.assert_allclose(mean(HEALTHY, keep), HEALTHY[keep].mean(), rtol=1e-14)


if __name__ == "__main__":
    for function in CHECKS:
        launched.answer(function.__name__, function)
