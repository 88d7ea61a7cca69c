"""
Functions of `shard_map` as maps over the axes of their mesh, whose operations can be looked at.

A map with a name for its axis has the collectives that a mesh has, and runs on one device.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from safeops._backends.jax.private import Shards
from safeops._typing import Array


def as_map(shards: Shards, f: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return what a `shard_map` computes, by what it is and its function for one device."""
    sizes = dict(shards.mesh.shape)
    names = [name for name in sizes if name in shards.names]
    into = [names_in(spec) for spec in shards.into]
    out_of = [names_in(spec) for spec in shards.out_of]
    for name in reversed(names):
        places = tuple(0 if any(name in some for some in given) else None for given in into)
        f = jax.vmap(f, places, axis_name=name, axis_size=sizes[name])

    def run(*args: Any) -> list[Any]:
        parts = [split(x, given, names, sizes) for x, given in zip(args, into, strict=True)]
        outs = f(*parts)
        return [joined(y, given, names) for y, given in zip(outs, out_of, strict=True)]

    return run


def names_in(spec: Any) -> list[tuple[str, ...]]:
    """Return the names of the mesh by which each axis of an array is split."""
    return [() if x is None else (x,) if isinstance(x, str) else tuple(x) for x in spec]


def split(
    x: Array, given: Sequence[tuple[str, ...]], names: Sequence[str], sizes: Mapping[str, int]
) -> Array:
    """Return an array with a leading axis for each name by which it is split."""
    shape: list[int] = []
    at: dict[str, int] = {}
    for size, some in zip(x.shape, (*given, *[()] * x.ndim), strict=False):
        for name in some:
            at[name] = len(shape)
            shape.append(sizes[name])
            size //= sizes[name]  # noqa: PLW2901  (what is left of the axis)
        shape.append(size)
    first = [at[name] for name in names if name in at]
    rest = [i for i in range(len(shape)) if i not in first]
    return x.reshape(shape).transpose(*first, *rest)


def joined(x: Array, given: Sequence[tuple[str, ...]], names: Sequence[str]) -> Array:
    """Return a result without its leading axes; what is not split is the same on each device."""
    used = [name for some in given for name in some]
    x = x[tuple(slice(None) if name in used else 0 for name in names)]
    left = [name for name in names if name in used]
    order: list[int] = []
    shape: list[int] = []
    for i, size in enumerate(x.shape[len(left) :]):
        some = given[i] if i < len(given) else ()
        order += [*(left.index(name) for name in some), len(left) + i]
        for name in some:
            size *= x.shape[left.index(name)]  # noqa: PLW2901  (the axis as a whole)
        shape.append(size)
    return x.transpose(order).reshape(shape)
