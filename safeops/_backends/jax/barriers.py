"""The barrier of JAX: a linear map to 0, or to NaN where its input exceeds a bound."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from safeops._core.types import Array, Function

# `linear_call`, which could do it, has no rule for vmap (jax 0.10.2).
_barrier = Primitive("safeops_barrier")
_barrier.multiple_results = True


def barrier(
    excess: Function, arrays: tuple[Array, ...], constants: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Return 0, and NaN where there is an excess, as derivative too."""
    return tuple(_barrier.bind(*arrays, *constants, excess=excess, number=len(arrays)))


def _apply(*arrays: Array, excess: Function, number: int) -> list[Array]:
    bad = excess(*arrays)
    return [jnp.where(bad, jnp.nan, jnp.zeros_like(x)) for x in arrays[:number]]


def _jvp(primals: Any, tangents: Any, *, excess: Function, number: int) -> Any:
    constants = primals[number:]
    moved = [ad.instantiate_zeros(t) for t in tangents[:number]]
    options = {"excess": excess, "number": number}
    return _barrier.bind(*primals, **options), _barrier.bind(*moved, *constants, **options)


def _transpose(cotangents: Any, *arrays: Any, excess: Function, number: int) -> list[Any]:
    constants = arrays[number:]
    given = [ad.instantiate_zeros(ct) for ct in cotangents]
    passed = _barrier.bind(*given, *constants, excess=excess, number=number)
    return [*passed, *(None for _ in constants)]


def _batched(arrays: Any, axes: Any, **options: Any) -> Any:
    size = next(x.shape[d] for x, d in zip(arrays, axes, strict=True) if d is not None)
    first = [
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(arrays, axes, strict=True)
    ]
    found = _barrier.bind(*first, **options)
    return found, [0] * len(found)


_barrier.def_impl(jax.jit(_apply, static_argnames=("excess", "number")))
_barrier.def_abstract_eval(lambda *arrays, number, **_: list(arrays[:number]))
ad.primitive_jvps[_barrier] = _jvp
ad.primitive_transposes[_barrier] = _transpose
batching.primitive_batchers[_barrier] = _batched
mlir.register_lowering(_barrier, mlir.lower_fun(_apply, multiple_results=True))
