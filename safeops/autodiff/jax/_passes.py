"""One masked pass of JAX: a linear program, its arguments, and its results."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from safeops._backends.jax.bodies import constants
from safeops._core.types import Array
from safeops.autodiff._options import places_of
from safeops.autodiff._pairs import Pair
from safeops.autodiff.jax import _evaluator as pairs
from safeops.autodiff.jax._evaluator import Options


def as_array(x: Any) -> Any:
    return jnp.asarray(x) if isinstance(x, (bool, int, float, complex, np.generic)) else x


def in_array(x: Any) -> Any:
    """Return an array of JAX; the zero of an argument that is not used is a literal (0.10.2)."""
    return x if isinstance(x, jax.Array) else jnp.asarray(x)


def run_linear(
    f: Any, args: Any, how: Options, masks: Any = None, *, forward: bool = False
) -> tuple[Any, Any]:
    """Return the results of a linear function of pairs (by default all active), and their masks."""
    leaves, tree = jax.tree.flatten(args)
    actives = [True] * len(leaves) if masks is None else jax.tree.leaves(masks)
    out_tree: list[Any] = []
    fixed: dict[int, Any] = {}  # float0, for integers, which no program carries

    def flat(*leaves: Any) -> list[Array]:
        outs, structure = jax.tree.flatten(f(*jax.tree.unflatten(tree, leaves)))
        out_tree.append(structure)
        fixed.update({i: x for i, x in enumerate(outs) if is_float0(x)})
        return [x for i, x in enumerate(outs) if i not in fixed]

    program = jax.make_jaxpr(flat)(*leaves)
    ins = [x if is_float0(x) else Pair(x, m) for x, m in zip(leaves, actives, strict=True)]
    outs = iter(pairs.evaluate(program, ins, how, _given(constants(program), forward=forward)))
    found = [
        fixed[i] if i in fixed else next(outs) for i in range(len(program.out_avals) + len(fixed))
    ]
    values = [x if i in fixed else in_array(pairs.value_of(x)) for i, x in enumerate(found)]
    active = [
        np.zeros(np.shape(v), bool) if i in fixed else jnp.broadcast_to(pairs.active_of(x), v.shape)
        for i, (x, v) in enumerate(zip(found, values, strict=True))
    ]
    return jax.tree.unflatten(out_tree[0], values), jax.tree.unflatten(out_tree[0], active)


def _given(consts: Any, *, forward: bool) -> list[Any]:
    """Return the constants of a linear program; in forward mode these are zeros beside tangents."""
    arrays = [jnp.asarray(x) if isinstance(x, (np.ndarray, np.generic)) else x for x in consts]
    return [pairs.Zero(x) if forward and pairs.is_inexact(x) else x for x in arrays]


def is_float0(x: Any) -> bool:
    """Whether a value is the cotangent of an integer, which has no entries."""
    return getattr(x, "dtype", None) == jax.dtypes.float0


def lazily(ordinary: Any, masked: Callable[[], Any]) -> Any:
    """Return the ordinary gradient if it is finite, else the masked one."""
    # The masked pass starts again from the function: handing it the results of the ordinary pass
    # would keep all of these in memory (a chain of elementwise operations took 2.7 times as long).
    numbers = [x for x in jax.tree.leaves(ordinary) if not is_float0(x)]
    finite = jnp.asarray(True)  # noqa: FBT003  (a value)
    for x in numbers:
        finite = finite & jnp.isfinite(x).all()
    if not isinstance(finite, jax.core.Tracer):
        return ordinary if finite else masked()
    finite = _on_all_devices(finite)

    def again() -> list[Array]:
        return [x for x in jax.tree.leaves(masked()) if not is_float0(x)]

    chosen = iter(lax.cond(finite, lambda: numbers, again))
    return jax.tree.map(lambda x: x if is_float0(x) else next(chosen), ordinary)


def _on_all_devices(finite: Array) -> Array:
    """Return one decision for the devices of a `shard_map` or `pmap`."""
    # With different decisions they would take different branches, and wait in collectives for ever.
    axes = jax.sharding.get_abstract_mesh().manual_axes
    return lax.pmin(finite.astype(jnp.int32), axes) == 1 if axes else finite


def of_one(fun: Any, args: Any, kwargs: Any, argnums: int) -> tuple[Any, Any]:
    """Return the function of one of its arguments, and that argument."""
    (place,) = places_of(argnums, len(args), one=True)

    def function(x: Any) -> Any:
        return fun(*args[:place], x, *args[place + 1 :], **kwargs)

    return function, args[place]


def basis_of(leaves: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Return the unit vectors of all leaves, stacked along a first axis, and their masks."""
    sizes = [int(np.prod(np.shape(x), dtype=int)) for x in leaves]
    one = np.eye(sum(sizes), dtype=bool)
    starts = np.cumsum([0, *sizes])
    masks = [
        one[:, a : a + n].reshape(-1, *np.shape(x))
        for a, n, x in zip(starts, sizes, leaves, strict=False)
    ]
    return [jnp.asarray(m, jnp.result_type(x)) for m, x in zip(masks, leaves, strict=True)], [
        jnp.asarray(m) for m in masks
    ]


def cut(stacked: Any, leaves: Sequence[Array], *, first: bool) -> list[Any]:
    """Return the parts of stacked rows (or columns) that belong to each leaf, in its shape."""
    sizes = [int(np.prod(np.shape(x), dtype=int)) for x in leaves]
    starts = np.cumsum([0, *sizes])

    def part(x: Array, a: int, n: int, shape: tuple[int, ...]) -> Array:
        if first:
            return x[a : a + n].reshape(*shape, *x.shape[1:])
        return x[..., a : a + n].reshape(*x.shape[:-1], *shape)

    return [
        jax.tree.map(partial(part, a=a, n=n, shape=np.shape(x)), stacked)
        for a, n, x in zip(starts, sizes, leaves, strict=False)
    ]


def check_inputs(args: Any, *, allow_int: bool) -> None:
    for x in jax.tree.leaves(args):
        if not jnp.issubdtype(jnp.result_type(x), jnp.inexact) and not allow_int:
            msg = (
                f"expected real or complex arguments, got {jnp.result_type(x)}; "
                "convert them, or pass allow_int=True"
            )
            raise TypeError(msg)


def check_output(value: Any) -> None:
    if jax.tree.structure(value) != jax.tree.structure(0.0) or np.shape(value):
        shapes = jax.tree.map(np.shape, value)
        msg = f"expected a function with a scalar value, got {shapes}; sum it, or use jacrev or vjp"
        raise TypeError(msg)
    if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        msg = f"expected a function with a real value, got {jnp.result_type(value)}; use vjp"
        raise TypeError(msg)
