"""The rows of `operations` on a cluster of dask: a script, as its workers are processes."""

import warnings

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

import launched
import operations

SECONDS = 60  # in which workers start, and after which one ends whose scheduler is gone


def cut(args, axes):
    """Return arrays in blocks of two rows along their axes."""
    pairs = zip(args, axes, strict=True)
    return [da.from_array(x, tuple(2 if k == a else -1 for k in range(x.ndim))) for x, a in pairs]


def graphs():
    """Return for each operation, in each layout, what it returns and what it is to be."""
    for name, op in operations.ROWS.items():
        args = op.args(6)
        for layout, axes in op.parts.items():
            yield name, layout, op.ours(*cut(args, axes)), op.ours(*args)


def all_operations(client):
    """Workers find the operations by name, and compute what one process computes."""
    names, layouts, made, wanted = zip(*graphs(), strict=True)
    values = client.gather(client.compute(list(made)))
    wrong = [
        f"{name}, {layout}"
        for name, layout, got, x in zip(names, layouts, values, wanted, strict=True)
        if not np.allclose(got, x, rtol=1e-10, atol=1e-12, equal_nan=True)
    ]
    assert not wrong, wrong


def workers(client):
    """There are two, on this machine alone, and both took part."""
    addresses = list(client.scheduler_info()["workers"])
    assert len(addresses) == 2
    assert all(address.startswith("tcp://127.0.0.1:") for address in addresses)


CHECKS = {f.__name__: f for f in (workers, all_operations)}

if __name__ == "__main__":
    warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's, of operations on whole arrays
    dask.config.set({"distributed.comm.timeouts.connect": SECONDS})
    there = {"host": "127.0.0.1", "dashboard_address": None, "worker_dashboard_address": None}
    with (
        LocalCluster(2, threads_per_worker=1, death_timeout=SECONDS, **there) as cluster,
        Client(cluster, timeout=SECONDS) as client,
    ):
        for name, check in CHECKS.items():
            launched.answer(name, lambda check=check: check(client))
