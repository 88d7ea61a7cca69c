"""Masked gradients on 8 virtual devices of JAX: a script, as devices are counted at start."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import launched
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


if __name__ == "__main__":
    for function in CHECKS:
        launched.answer(function.__name__, function)
