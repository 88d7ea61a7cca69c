"""
What the nan* reductions cost: ``python benchmarks/reductions.py [--quick] [--json FILE]``.

Prints a Markdown table with, for each function and size, the case in which its ratio to another is
worst: the median of pairs that are timed in turn, its quartiles, and the same for two timings of
the other function, which says what the machine adds. NumPy is compared with ``np.nan*`` and with
bottleneck, PyTorch with `torch.nansum` or the function that does not look for NaN, and JAX under
`jit` with the function and its ``where=``, forward, and with the gradient. One thread.
"""

import argparse
import json
import warnings
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import timing  # first: it sets the number of threads
import numpy as np

import safeops as so

SHAPES = {10: (2, 5), 10**4: (100, 100), 10**6: (1000, 1000)}
NAMES = [name for name in so.__all__ if name.startswith("nan")]
BARS = {"np": 1.0, "bottleneck": 1.2, "torch.nansum": 1.5, "jit": 1.05, "jit with gradient": 1.05}


class Case(NamedTuple):
    """One comparison."""

    other: str  # what it is compared with
    function: str
    where: str  # size, dtype, axis, share of NaN
    ours: object
    theirs: object


def points(size, dtype, axis, bad):
    """Return an array of numbers, of which a part is NaN, but none in the first row and column."""
    random = np.random.default_rng(0)
    shape = (size,) if axis is None else SHAPES[size]
    x = random.normal(size=shape).astype(dtype)
    absent = random.random(shape) < bad
    absent[0] = absent[..., 0] = False
    x[absent] = np.nan
    return x


def grid(quick):
    """Return sizes, dtypes, axes and shares of NaN, and what they are called."""
    for size in SHAPES:
        for dtype in ("float32",) if quick else ("float32", "float64"):
            for axis in (None, -1) if quick else (None, -1, 0):
                for bad in (0.01, 0.5) if quick else (0, 0.01, 0.5):
                    name = f"{size:.0e}, {dtype}, axis={axis}, {bad:.0%} NaN"
                    yield name, axis, points(size, dtype, axis, bad)


def in_numpy(quick):
    """Return the cases of NumPy; np.nan* warns of empty slices, of which there are none."""
    peers = {"np": np}
    if find_spec("bottleneck"):
        import bottleneck

        peers["bottleneck"] = bottleneck
    for where, axis, x in grid(quick):
        for name in NAMES:
            more = (0.3,) if name == "nanquantile" else ()
            for peer, module in peers.items():
                if hasattr(module, name):
                    ours, theirs = (partial(getattr(m, name), x, *more) for m in (so, module))
                    if axis is not None:
                        ours, theirs = (partial(f, axis=axis) for f in (ours, theirs))
                    yield Case(peer, name, where, ours, theirs)


def in_torch(quick):
    """Return the cases of PyTorch, whose plain functions give NaN where there is one."""
    import torch

    torch.set_num_threads(1)
    plain = {"nanmean": torch.mean, "nanvar": torch.var, "nanstd": torch.std}
    plain |= {"nanmax": torch.amax, "nanmin": torch.amin}
    for where, axis, values in grid(quick):
        x = torch.tensor(values)
        dim = tuple(range(x.ndim)) if axis is None else axis
        other = partial(torch.nansum, x, dim=dim)
        yield Case("torch.nansum", "nansum", where, partial(so.nansum, x, axis=axis), other)
        leaf = x.clone().requires_grad_()
        ours, other = (
            partial(so.nansum, leaf, axis=axis),
            partial(torch.nansum, leaf, dim=dim),
        )
        yield Case("torch.nansum", "nansum, recorded", where, ours, other)
        for name, f in plain.items():
            options = {"correction": 0} if f in (torch.var, torch.std) else {}
            other = partial(f, x, dim=dim, **options)
            yield Case("torch", name, where, partial(getattr(so, name), x, axis=axis), other)


def in_jax(quick):
    """Return the cases of JAX under `jit`, values and gradients."""
    import jax

    jax.config.update("jax_enable_x64", val=True)
    for where, axis, values in grid(quick):
        x = jax.numpy.asarray(values)
        for name, other in jax_plain(jax.numpy).items():
            ours = partial(getattr(so, name), axis=axis)
            both = [jax.jit(f) for f in (ours, partial(other, axis=axis))]
            yield Case("jit", name, where, *(partial(ready, f, x) for f in both))
            both = [
                jax.jit(jax.value_and_grad(lambda x, f=f: f(x).sum()))
                for f in (ours, partial(other, axis=axis))
            ]
            yield Case("jit with gradient", name, where, *(partial(ready, f, x) for f in both))


def jax_plain(jnp):
    """Return the reductions with ``where=``."""

    def masked(f, **options):
        return lambda x, axis: f(x, axis=axis, where=~jnp.isnan(x), **options)

    return {
        "nansum": masked(jnp.sum),
        "nanprod": masked(jnp.prod),
        "nanmean": masked(jnp.mean),
        "nanvar": masked(jnp.var),
        "nanstd": masked(jnp.std),
        "nanmax": masked(jnp.max, initial=-np.inf),
        "nanmin": masked(jnp.min, initial=np.inf),
    }


def ready(f, x):
    """Call a function of JAX and wait for it."""
    import jax

    return jax.block_until_ready(f(x))


def table(rows):
    """Print the worst case of each size, with its quartiles, and how many are above the bar."""
    print("| to | function | size | worst | quartiles | control | case | above the bar |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    groups = {}
    for case, result, control in rows:
        size, _, rest = case.where.partition(", ")
        groups.setdefault((case.other, case.function, size), []).append((result, control, rest))
    for (other, function, size), found in groups.items():
        worst, control, rest = max(found)
        bar = BARS.get(other)
        above = sum(result.ratio > bar for result, *_ in found) if bar else ""
        counted = f"{above} of {len(found)} ({bar})" if bar else ""
        row = other, function, size, f"{worst.ratio:.2f}", worst, control, rest, counted
        print(f"| {' | '.join(map(str, row))} |")


def main():
    """Measure what is installed and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer cases and pairs")
    parser.add_argument("--json", type=Path, help="a file for all cases")
    parser.add_argument("--framework", action="append", choices=["numpy", "torch", "jax"])
    options = parser.parse_args()
    makers = {"numpy": in_numpy, "torch": in_torch, "jax": in_jax}
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the other functions
        for name in options.framework or [name for name in makers if find_spec(name)]:
            for case in makers[name](options.quick):
                pairs = 7 if options.quick else 21
                rows.append((case, *timing.compare(case.ours, case.theirs, pairs)))
    table(rows)
    if options.json:
        found = [
            {**case._asdict(), **result._asdict(), "control": control}
            for case, result, control in rows
        ]
        found = [{k: v for k, v in one.items() if not callable(v)} for one in found]
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
