"""
The rows of `operations` on 8 virtual devices of JAX: a script, as devices are counted at start.

With ``--write`` it puts what it counts in the table.
"""

import os
import re

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import launched
import operations
import table

jax.config.update("jax_enable_x64", True)
SAME = {"rtol": 1e-10, "atol": 1e-12}
ROWS = 16  # two for each device
COLLECTIVE = r"\b(all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
FOUND = {}


def mesh(kind=AxisType.Auto):
    """Return all devices in a row."""
    return jax.make_mesh((8,), ("i",), axis_types=(kind,))


def spec(x, axis):
    """Return where the parts of an array are."""
    return PartitionSpec(*("i" if a == axis else None for a in range(np.ndim(x))))


def placed(args, axes, on):
    """Return arrays in parts."""
    pairs = zip(args, axes, strict=True)
    return [jax.device_put(jnp.asarray(x), NamedSharding(on, spec(x, a))) for x, a in pairs]


def slopes_of(f, args):
    """Return a function of a cotangent and arrays: the gradients for those of floating numbers."""
    floats = [i for i, x in enumerate(args) if jnp.issubdtype(x.dtype, jnp.floating)]

    def slopes(cotangent, *arrays):
        def of_floats(*numbers):
            given = dict(zip(floats, numbers, strict=True))
            return f(*(given.get(i, x) for i, x in enumerate(arrays)))

        return jax.vjp(of_floats, *(arrays[i] for i in floats))[1](cotangent)

    return slopes


def cotangent(value):
    """Return a cotangent; None for integers."""
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return None
    return jnp.asarray(2 + operations.wave(*value.shape, shift=0.7), value.dtype)


def run(f, *args):
    """Return what a compiled function returns, and how many collectives of each kind it has."""
    program = jax.jit(f).lower(*args).compile()
    kinds = re.findall(COLLECTIVE, program.as_text())
    return program(*args), {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def places(x):
    """Return where the parts of an array are, as a word."""
    axes = [a for a, name in enumerate(x.sharding.spec) if name]
    return f"shard {axes[0]}" if axes else "whole"


def measured(f, args):
    """Return the value, the gradients, and what they cost."""
    value, forward = run(f, *args)
    cost = {"forward": forward, "result": places(value)}
    ct = cotangent(value)
    if ct is None:
        return value, [], cost
    ct = jax.device_put(ct, value.sharding)
    slopes, cost["gradient"] = run(slopes_of(f, args), ct, *args)
    return value, slopes, cost


def reference(op, args):
    """Return the value and the gradients on one device."""
    arrays = [jnp.asarray(x) for x in args]
    value = jax.jit(op.ours)(*arrays)
    ct = cotangent(value)
    return value, [] if ct is None else jax.jit(slopes_of(op.ours, arrays))(ct, *arrays)


def equal(got, wanted, what):
    """Check arrays against those of one device."""
    for x, y in zip(got, wanted, strict=True):
        np.testing.assert_allclose(x, y, **SAME, err_msg=what)


def moving(op):
    """Return the layouts in which something may move."""
    return {name: axes for name, axes in op.parts.items() if name != operations.BATCH}


def row(op):
    """Check an operation in parts: value, gradient, collectives, and where the result is."""
    args = op.args(ROWS)
    value, slopes = reference(op, args)
    for layout, axes in moving(op).items():
        with jax.set_mesh(mesh()):
            got, found, cost = measured(op.ours, placed(args, axes, mesh()))
        equal([got], [value], layout)
        equal(found, slopes, f"gradient, {layout}")
        if not table.WRITES:
            table.hold("JAX", op.name, layout, cost)
            continue
        FOUND.setdefault(op.name, {})[layout] = cost | plain(op, args, axes)
        table.write("JAX", FOUND)


def plain(op, args, axes):
    """Return what people write in its place costs."""
    if op.plain is None:
        return {}
    with jax.set_mesh(mesh()):
        arrays = placed(args, axes, mesh())
        return {"plain": measured(lambda *x: op.plain(jnp, *x), arrays)[2]}


ALONG, SLICES = operations.ALONG, operations.BATCH
# What JAX refuses with explicit axes, as it refuses the plain operation: it asks for the sharding
# of products, running products, gathers and scatters, and has no gradient of a sort.
REFUSED = {
    (name, layout)
    for layout, names in {
        ALONG: "safe_prod nanprod nancumsum nancumprod safe_logcumsumexp safe_attention",
        SLICES: "safe_cholesky",
    }.items()
    for name in names.split()
}
REFUSED |= {(f"{name}, where", ALONG) for name in ("safe_logcumsumexp", "safe_attention")}
REFUSED |= {("safe_pdist of points in parts", ALONG)}
REFUSED |= {
    (name, layout)
    for name in ("nanmedian", "nanquantile", "safe_interp", *operations.segments.__all__)
    for layout in (ALONG, SLICES)
} - {("segment_prod", SLICES)}  # whose product is a scatter that JAX places


def typed(op, layout):
    """Check that an operation has types with explicit axes: where the result is, and the slopes."""
    args, on = op.args(ROWS), mesh(AxisType.Explicit)
    with jax.set_mesh(on):
        arrays = placed(args, op.parts[layout], on)
        out = jax.eval_shape(op.ours, *arrays)
        if layout in moving(op):
            assert places(out) == table.known("JAX")[op.name][layout]["result"], (op.name, layout)
        if cotangent(out) is not None:
            ct = jax.device_put(cotangent(out), NamedSharding(on, out.sharding.spec))
            jax.eval_shape(slopes_of(op.ours, arrays), ct, *arrays)


def types():
    """Each operation has types with explicit axes, or JAX says that it needs a sharding."""
    refused = set()
    for op in operations.ROWS.values():
        for layout in op.parts:
            try:
                typed(op, layout)
            except Exception as error:  # ShardingTypeError is not public
                if type(error).__name__ not in ("ShardingTypeError", "ValueError"):
                    raise
                refused.add((op.name, layout))
    assert refused == REFUSED


def several(ops, f):
    """Return a function of the arguments of several operations, one behind the other."""
    counts = [len(op.args(ROWS)) for op in ops]
    ends = np.cumsum(counts)

    def whole(*args):
        return [f(op, args[end - n : end]) for op, n, end in zip(ops, counts, ends, strict=True)]

    return whole


def value_and_slopes(op, args):
    """Return the value, and the gradients of a sum with weights, which are the same for a part."""
    value = op.ours(*args)
    if cotangent(value) is None:
        return (value,)
    ct = 2 + jnp.tanh(jnp.nan_to_num(value))
    return (value, *slopes_of(op.ours, args)(ct, *args))


def slices_in_parts(ops):
    """Nothing moves, forward and backward, and values and gradients are those of one device."""
    args = [x for op in ops for x in op.args(ROWS)]
    axes = [axis for op in ops for axis in op.parts[operations.BATCH]]
    program = several(ops, value_and_slopes)
    wanted = jax.tree.leaves(jax.jit(program)(*map(jnp.asarray, args)))
    with jax.set_mesh(mesh()):
        got, cost = run(program, *placed(args, axes, mesh()))
    assert cost == {}
    equal(jax.tree.leaves(got), wanted, "slices in parts")


def rows_in_shard_map(ops):
    """Values and gradients of rows that each device has by itself are those of one device."""
    args = [x for op in ops for x in op.args(ROWS)]
    axes = [axis for op in ops for axis in op.parts[operations.BATCH]]
    program = several(ops, value_and_slopes)
    wanted = jax.tree.leaves(jax.jit(program)(*map(jnp.asarray, args)))
    specs = {
        "in_specs": tuple(spec(x, axis) for x, axis in zip(args, axes, strict=True)),
        "out_specs": PartitionSpec("i"),
    }
    for check_vma in (True, False):
        f = jax.jit(jax.shard_map(program, mesh=mesh(), check_vma=check_vma, **specs))
        equal(jax.tree.leaves(f(*args)), wanted, f"check_vma={check_vma}")


def on_two_axes(ops):
    """So are those of slices whose parts are on a mesh of two axes, on both axes or on one."""
    args = [x for op in ops for x in op.args(ROWS)]
    axes = [axis for op in ops for axis in op.parts[operations.BATCH]]
    program = several(ops, value_and_slopes)
    wanted = jax.tree.leaves(jax.jit(program)(*map(jnp.asarray, args)))
    on = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(on):
        got = jax.jit(program)(*placed(args, axes, on))
    equal(jax.tree.leaves(got), wanted, "a mesh of two axes")


def groups(size=20, *, of_rows=False):
    """Return the operations of which nothing is whole on each device but integers, in groups."""
    ops = [op for op in operations.ROWS.values() if operations.BATCH in op.parts]
    if of_rows:  # each argument is in parts along its first axis, and so is the result
        ops = [op for op in ops if not any(op.parts[operations.BATCH])]
    whole = lambda op: [  # noqa: E731
        x.dtype.kind == "f"
        for x, axis in zip(op.args(ROWS), op.parts[operations.BATCH], strict=True)
        if axis is None
    ]
    alone = [op for op in ops if not any(whole(op))]
    return [alone[k : k + size] for k in range(0, len(alone), size)]


if __name__ == "__main__":
    for op in operations.ROWS.values():
        if moving(op):
            launched.answer(op.name, lambda op=op: row(op))
    if not table.WRITES:
        launched.answer("types", types)
        for ops in groups():
            launched.answer(f"from {ops[0].name}", lambda ops=ops: slices_in_parts(ops))
        # Every fourth one: all of them were right, and compile for four minutes (jax 0.10.2).
        launched.answer("two axes", lambda: on_two_axes(groups()[0][::4]))
        for ops in groups(of_rows=True):
            some = ops[::4]
            launched.answer(f"rows, from {ops[0].name}", lambda ops=some: rows_in_shard_map(ops))
