"""
Control flow over pairs: masks are carried by the loop or branch as further values.

The kind of a value (coefficient, zero, pair without, with all or with some active entries) is known
from the program alone: it is found by tracing before anything runs, for loops to a fixed point.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn

from safeops._backends.jax.bodies import Program, bodies_in, opened
from safeops._backends.jax.private import branches_of, has_axis, scan_of, shards_of, while_of
from safeops._core.types import Array
from safeops.autodiff._pairs import Pair
from safeops.autodiff.jax import _evaluator as evaluator
from safeops.autodiff.jax._contractions import contract
from safeops.autodiff.jax._evaluator import Options, Zero

COEFFICIENT, ZERO, NONE, ALL, SOME = "coefficient", "zero", "none", "all", "some"


def kind_of(x: Any) -> str:
    if not isinstance(x, Pair):
        return ZERO if evaluator.is_zero(x) else COEFFICIENT
    return {True: ALL, False: NONE}[x.active] if isinstance(x.active, bool) else SOME


def join(a: str, b: str) -> str:
    """Return a kind that holds both; beside a pair a coefficient is active, and a zero absent."""
    if a == b:
        return a
    if {a, b} == {COEFFICIENT, ZERO}:
        return COEFFICIENT
    a, b = ({COEFFICIENT: ALL, ZERO: NONE}.get(kind, kind) for kind in (a, b))
    return a if a == b else SOME


def pack(x: Any, kind: str) -> tuple[Array, ...]:
    """Return a value of a kind as arrays."""
    if kind != SOME:
        return (evaluator.value_of(x),)
    return evaluator.value_of(x), evaluator.array_of(x)


def unpack(arrays: tuple[Array, ...], kind: str) -> Any:
    """Return the value of a kind from its arrays."""
    if kind in (COEFFICIENT, ZERO):
        return Zero(arrays[0]) if kind == ZERO else arrays[0]
    return Pair(arrays[0], arrays[1] if kind == SOME else kind == ALL)


def pack_all(values: Sequence[Any], kinds: Sequence[str]) -> list[tuple[Array, ...]]:
    return [pack(x, kind) for x, kind in zip(values, kinds, strict=True)]


def unpack_all(arrays: Sequence[Any], kinds: Sequence[str]) -> list[Any]:
    return [unpack(x, kind) for x, kind in zip(arrays, kinds, strict=True)]


def kinds_after(run: Callable[..., list[Any]], *args: Any) -> list[str]:
    """Return the kinds of a function's results, by tracing it."""
    found: list[str] = []

    def watched(*args: Any) -> list[Array]:
        outs = run(*args)
        found.extend(map(kind_of, outs))
        return [evaluator.value_of(x) for x in outs]

    jax.eval_shape(watched, *args)
    return found


def body_of(program: Program, first: Sequence[Any], how: Options) -> Callable[..., list[Any]]:
    """Return a body as a function of arrays and kinds, with its first arguments fixed."""

    def run(arrays: Sequence[Any], kinds: Sequence[str]) -> list[Any]:
        args = [*first, *unpack_all(arrays, kinds)]
        return evaluator.evaluate(program, args, how)

    return run


def settled(
    carry: Sequence[Any], kinds_from: Callable[[Any, list[str]], list[str]]
) -> tuple[Any, list[str], list[str]]:
    """Return the carry as arrays, its kinds in all steps, and the kinds of the other results."""
    kinds = [kind_of(x) for x in carry]
    while True:
        start = pack_all(carry, kinds)
        after = kinds_from(start, kinds)
        joined = [join(a, b) for a, b in zip(kinds, after, strict=False)]
        if joined == kinds:
            return start, kinds, after[len(kinds) :]
        kinds = joined


def scan(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Any]:
    """Scan a body over pairs."""
    # With `exact` it is scanned once without, and again if a result is not finite: a question in
    # each step would take longer than the step. Not so where a NaN in a step may not reach the
    # result, and where devices wait for each other in a step: one would scan again, and the others
    # not.
    body = opened(scan_of(eqn.params).body)
    if not how.exact or _has_collective(body) or not _keeps_nan(eqn, ins, how):
        return _scan(eqn, ins, how)
    once = _scan(eqn, ins, replace(how, exact=False))
    kinds = [kind_of(x) for x in once]

    def again() -> list[Array]:
        outs = as_kinds(_scan(eqn, ins, how), kinds)
        return jax.tree.leaves(pack_all(outs, kinds))

    arrays, form = jax.tree.flatten(pack_all(once, kinds))
    return unpack_all(jax.tree.unflatten(form, evaluator.if_finite(arrays, again)), kinds)


def _has_collective(body: Jaxpr) -> bool:
    """Whether a body has a collective: an effect, or one with an axis but none (JAX 0.10.2)."""
    found = bool(body.effects) or any(has_axis(e.params) for e in body.eqns)
    return found or any(_has_collective(x) for e in body.eqns for x in bodies_in(e.params))


def _keeps_nan(eqn: JaxprEqn, ins: list[Any], how: Options) -> bool:
    """Whether a scan does to pairs only what a NaN comes through, by tracing it."""
    linear = {name: rule for name, rule in how.rules.items() if rule.__module__ in _LINEAR}
    linear = {**linear, "while": evaluator.unknown, "convert_element_type": _converted}
    how = replace(how, rules=linear, exact=False, on_unknown="error")
    try:
        kinds_after(lambda: _scan(eqn, ins, how))
    except NotImplementedError:
        return False
    return True


_LINEAR = {
    f.__module__ for f in (contract, evaluator.evaluate, kind_of)
}  # no functions, no solvers


def _converted(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Any]:
    return (evaluator.same if evaluator.is_inexact(eqn.outvars[0].aval) else evaluator.unknown)(
        eqn, ins, how
    )


def _scan(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Any]:
    loop = scan_of(eqn.params)
    fixed, carry, xs = loop.parts(ins)
    run = body_of(loop.body, fixed, how)
    x_kinds = [kind_of(x) for x in xs]
    packed_xs = pack_all(xs, x_kinds)

    def after(start: Any, kinds: list[str]) -> list[str]:
        def first(carry: Any, xs: Any) -> list[Any]:
            return run([*carry, *jax.tree.map(_first, xs)], [*kinds, *x_kinds])

        return kinds_after(first, start, packed_xs)

    start, kinds, y_kinds = settled(carry, after)

    def step(carry: Any, x: Any) -> Any:
        outs = run([*carry, *x], [*kinds, *x_kinds])
        return pack_all(outs[: loop.carried], kinds), pack_all(outs[loop.carried :], y_kinds)

    last, ys = lax.scan(
        step, start, packed_xs, length=loop.length, reverse=loop.reverse, unroll=loop.unroll
    )
    return [*unpack_all(last, kinds), *unpack_all(ys, y_kinds)]


def _first(x: Array) -> Array:
    """Return the type of a slice along the first axis, which may be empty."""
    return x[0] if x.shape[0] else jnp.zeros(x.shape[1:], x.dtype)


def while_loop(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Any]:
    """Repeat a body over pairs, while a condition holds."""
    loop = while_of(eqn.params)
    cond_consts, body_consts, carry = loop.parts(ins)
    body = body_of(loop.body, body_consts, how)

    def holds(carry: Sequence[Any]) -> Array:
        values = [evaluator.value_of(x) for x in (*cond_consts, *carry)]
        return evaluator.value_of(evaluator.evaluate(loop.test, values, how)[0])

    def run(arrays: Any, kinds: list[str]) -> list[Any]:
        new, old = body(arrays, kinds), unpack_all(arrays, kinds)
        if not loop.test.out_avals[0].shape:
            return new
        going = holds(old)  # in a mapped loop: an instance that has ended keeps its carry
        return [_select(going, x, y) for x, y in zip(new, old, strict=True)]

    start, kinds, _ = settled(
        carry, lambda start, kinds: kinds_after(lambda c: run(c, kinds), start)
    )
    last = lax.while_loop(
        lambda carry: holds(unpack_all(carry, kinds)).any(),
        lambda carry: pack_all(run(carry, kinds), kinds),
        start,
    )
    return unpack_all(last, kinds)


def _select(cond: Array, x: Any, y: Any) -> Any:
    """Return `x` where a condition over its leading axes holds, else `y`."""
    shape = evaluator.shape_of(x)
    cond = lax.broadcast_in_dim(cond, shape, range(cond.ndim))
    kind = join(kind_of(x), kind_of(y))
    pairs = zip(pack(x, kind), pack(y, kind), strict=True)
    return unpack(tuple(lax.select(cond, new, old) for new, old in pairs), kind)


def cond(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Any]:
    """Run one of several branches over pairs."""
    index, *operands = ins
    if isinstance(index, Pair):
        return evaluator.unknown(eqn, ins, how)
    bodies = [body_of(branch, operands, how) for branch in branches_of(eqn.params)]
    kinds = kinds_of_branches(bodies)
    if not isinstance(index, jax.core.Tracer):
        return as_kinds(bodies[int(index)]([], []), kinds)
    branches = [lambda body=body: pack_all(body([], []), kinds) for body in bodies]
    return unpack_all(lax.switch(index.astype(jnp.int32), branches), kinds)


def kinds_of_branches(bodies: Sequence[Callable[..., list[Any]]]) -> list[str]:
    """Return the kinds of results that hold those of every branch."""
    every = [kinds_after(lambda body=body: body([], [])) for body in bodies]
    kinds = every[0]
    for more in every[1:]:
        kinds = [join(a, b) for a, b in zip(kinds, more, strict=True)]
    return kinds


def as_kinds(outs: Sequence[Any], kinds: Sequence[str]) -> list[Any]:
    """Return results of a branch as given kinds; what only another branch uses is absent."""
    return [
        Pair(evaluator.value_of(x), evaluator.active_of(x))
        if kind in (NONE, ALL, SOME) and not isinstance(x, Pair)
        else x
        for x, kind in zip(outs, kinds, strict=True)
    ]


def shard_map(eqn: JaxprEqn, ins: list[Any], how: Options) -> list[Any]:
    """Run a body on the part of each device."""
    shards = shards_of(eqn.params)
    kinds = [kind_of(x) for x in ins]

    def run(*arrays: Any) -> list[Any]:
        return pack_all(evaluator.evaluate(shards.body, unpack_all(arrays, kinds), how), out_kinds)

    out_kinds = [
        SOME if evaluator.is_inexact(x.aval) else COEFFICIENT for x in opened(shards.body).outvars
    ]
    out = jax.shard_map(
        run,
        mesh=shards.mesh,
        in_specs=tuple(_specs(shards.into, kinds)),
        out_specs=_specs(shards.out_of, out_kinds),
        check_vma=shards.checked,
    )(*pack_all(ins, kinds))
    return unpack_all(out, out_kinds)


def _specs(specs: Sequence[Any], kinds: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the partition specs of values and their masks."""
    return [(s, s) if k == SOME else (s,) for s, k in zip(specs, kinds, strict=True)]
