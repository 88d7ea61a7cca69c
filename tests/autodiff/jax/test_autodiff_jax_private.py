"""What the JAX side takes from JAX by inner names is there, and what JAX has is known."""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version

import numpy as np
import pytest

from private_names import FILES, HOUSE, described, numbers
from reported_jax import jax, jnp, lax, with_rule
from safeops._backends.jax import bodies, private
from safeops.autodiff import jax as masked
from safeops.autodiff.jax._rules import RULES

pytestmark = pytest.mark.only("jax")

INSTALLED = version("jax")
# Operations of equinox are not asked for here.
NAMES = [row for row in described(FILES["jax"].read_text()) if not row.name.startswith("vprim")]
ROWS = [row for row in NAMES if row.is_in(INSTALLED)]
HALF = np.float32(0.5)
VECTOR = np.ones(4, np.float32)
MATRIX = np.eye(3, dtype=np.float32)
IMAGE = np.ones((1, 1, 4, 4), np.float32)


def equations(f, *args):
    """Return the operations of a function by their names, and those in their bodies."""
    found, left = {}, [bodies.opened(jax.make_jaxpr(f)(*args))]
    for jaxpr in left:  # which grows
        for eqn in jaxpr.eqns:
            found[eqn.primitive.name] = eqn
            left += bodies.bodies_in(eqn.params)
    return found


def sharded(x):
    """Have a collective, and a sum that is the same on each device."""
    from jax.sharding import AxisType, PartitionSpec

    def local(x):
        return lax.psum(lax.all_gather(x, "i", tiled=True), "i")

    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))
    return jax.shard_map(local, mesh=mesh, in_specs=PartitionSpec("i"), out_specs=PartitionSpec())(
        x
    )


@jax.custom_vjp
def ruled(x):
    """Have a rule of its own."""
    return x


ruled.defvjp(lambda x: (x, None), lambda _, g: (g,))


def every(x, matrix, image):
    """Have each operation whose parameters are read."""
    lax.scan(lambda c, y: (c + y, y), x[0], x)
    lax.while_loop(lambda c: c < 3, lambda c: c + 1, x[0])
    lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)
    lax.custom_linear_solve(lambda y: matrix @ y, x[:3], lambda f, b: f(b), symmetric=True)
    lax.linalg.triangular_solve(matrix, x[:3, None], left_side=True)
    lax.conv_general_dilated(image, image, (1, 1), "SAME")
    lax.integer_pow(x, 3), lax.sort(x), lax.cummax(x), x.max(), jnp.fft.fft(x), ruled(x)
    jax.pure_callback(np.sin, x, x), image.transpose(0, 2, 3, 1)
    jax.grad(lambda x: lax.reduce_window(x, -np.inf, lax.max, (2,), (1,), "VALID").sum())(x)
    lax.pad(x, x[0], ((1, 1, 0),))
    lax.slice(lax.iota(np.int32, 4), (1,), (2,))
    return x.at[np.array([9])].get(mode="fill"), jax.jit(jnp.sin)(x)


@pytest.fixture(scope="module")
def owners():
    """Return what a name is looked for in, by what stands before the name."""
    found = equations(every, VECTOR, MATRIX, IMAGE) | equations(sharded, VECTOR)
    traces = []
    jax.jvp(lambda x: traces.append(private.running_trace()) or x, (1.0,), (1.0,))
    tracers = []
    jax.jit(lambda x: tracers.append(x + 1) or x)(1.0)
    jax.vjp(lambda x: tracers.append(x) or x, 1.0)
    eqn, jaxpr = found["integer_pow"], bodies.opened(jax.make_jaxpr(jnp.sin)(1.0))
    owners = {
        "Trace": traces[0],
        "JaxprEqn": eqn,
        "Traceback": eqn.source_info.traceback,
        "Jaxpr": jaxpr,
        "Primitive": eqn.primitive,
        "ShapedArray": jaxpr.invars[0].aval,
        "DynamicJaxprTracer": tracers[0],
        "LinearizeTracer": tracers[1],
        "TracingEqn": tracers[0].parent,
        "FlatTree": next(filter(None, map(module_of, TREES)), None),
        "WrappedFun": module_of("jax._src.linear_util.WrappedFun"),
    }
    return owners | {name: eqn.params for name, eqn in found.items()}


# From 0.11 on, and before it.
TREES = ("jax._src.flattree.FlatTree", "jax._src.tree_util.FlatTree")


def module_of(name):
    """Return what a full name stands for; None if there is nothing."""
    module, _, last = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), last, None)
    except ImportError:
        return None


def has(owner, name):
    """Whether an operation has a parameter, or anything else an attribute."""
    if isinstance(owner, Mapping):
        return name in owner
    first, _, rest = name.partition(".")
    return hasattr(owner, first) and (not rest or has(getattr(owner, first), rest))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_inner_names_are_there(row, owners):
    """JAX has each name in the versions that its comment says."""
    first, _, rest = row.name.partition(".")

    found = module_of(row.name) is not None if first == "jax" else has(owners[first], rest)

    assert found, f"JAX {INSTALLED} has no {row.name}"


def test_a_name_that_is_gone_is_missed(owners):
    """What is not there is found missing, in an operation, an object and a module."""
    assert not has(owners["scan"], "ft_gone")
    assert not has(owners["JaxprEqn"], "source_info.gone")
    assert module_of("jax.gone.x") is None


def test_a_name_that_is_gone_is_told_in_one_sentence():
    """A program without what is read of it ends with the versions, and no error from inside."""
    with pytest.raises(
        ImportError, match=r"^safeops\.autodiff\.jax .* up to JAX .* and found .*'jaxpr'"
    ):
        private.scan_of({"num_consts": 1, "num_carry": 1, "length": 1, "reverse": 0, "unroll": 1})


# Operations of JAX without a rule, by the reason. Those of one version alone are known by it. What
# is not linear stands in the backward pass of a custom_vjp alone, and may get a rule.
LEFT_OUT = {
    "whole numbers, random keys, tokens and shapes": """
        after_all axis_index clz create_token dim_as_value dimension_size empty empty2 from_edtype
        igamma_grad_a inspect_sharding iota iota_2x32_shape lu_pivots_to_permutation mulhi
        philox2x32 philox4x32 platform_index population_count random_bits random_clone
        random_fold_in random_seed random_split random_unwrap random_wrap rng_bit_generator
        rng_uniform shape_assertion shift_left shift_right_arithmetic shift_right_logical
        threefry2x32 threefry4x32 to_edtype unreachable zeros_like check program_order
    """,
    "not linear: its derivative is made of other operations": """
        approx_top_k cholesky cholesky_update cumlogsumexp eig eigh eigh_jacobi geqp3 geqrf
        hessenberg householder_product lu ormqr pmax pmin qr random_gamma reduce reduce_window
        reduce_window_max reduce_window_min scatter-max scatter-min schur select_and_scatter svd
        symmetric_product top_k tridiagonal unreduced_pmax unreduced_pmin zeta
    """,
    "memory that is written into": """
        accum_grad_in_ref addupdate box_get box_set core_map empty_ref free_ref freeze get
        log_extend log_read new_box new_log new_ref pin run_state swap unpin
    """,
    "a program, or a kernel, that only the user or a library knows": """
        bias_bwd bias_fwd call call_exported call_hi_primitive call_hi_primitive_linearized
        create_linear cudnn_fusion custom_jvp_call_jaxpr custom_lin custom_partitioning
        custom_transpose_call custom_vmap_call dot_product_attention_bwd
        dot_product_attention_bwd_wrapper dot_product_attention_fp8_bwd
        dot_product_attention_fp8_bwd_wrapper dot_product_attention_fp8_fwd
        dot_product_attention_fp8_fwd_wrapper dot_product_attention_fwd
        dot_product_attention_fwd_wrapper ffi_call io_callback linear_call pure_callback remat_opt
        scaled_dot scaled_matmul scaled_matmul_wrapper vmap xla_pmap
    """,
    "a collective in two halves, or between two devices": """
        ag_done ag_start all_gather_done all_gather_reduced_start all_gather_start all_to_all_done
        all_to_all_start pbroadcast_done pbroadcast_start pgather ppermute_done ppermute_start precv
        psend psum_done psum_invariant_start psum_start ragged_all_to_all reduce_scatter_done
        reduce_scatter_start unreduced_psum_start unreduced_reduce_scatter_start
    """,
    "a type of shard_map that the mask, which is no sum, cannot have": """
        full_to_shard preduced reduced_vary_cast reduced_vary_cast_p shard_to_full
        vary_unreduced_cast vary_unreduced_cast_p
    """,
    "linear, but rare: it runs with a warning": """
        broadcast_to ragged_dot_general tie with_memory_space_constraint
    """,
}
# Names of other packages, and of ours, in the tables.
NOT_OF_JAX = {
    "linear_solve",
    "nondifferentiable_backward",
    "safeops_barrier",
    "select_if_vmap",
    "vprim",
}


# Modules of JAX's own language.
OWN = re.compile(r"jax\.(?!.*(?:experimental|pallas|mosaic|tpu))|jax\Z")


def primitives():
    """Return the names of the operations of JAX, without experiments and languages for kernels."""
    modules = [module for name, module in sys.modules.items() if OWN.match(name)]
    values = (x for module in modules for x in list(vars(module).values()))
    return {x.name for x in values if isinstance(x, jax.extend.core.Primitive)}


def test_operations_without_a_rule_are_known():
    """Each operation of JAX has a rule, or is left out for a reason; what is new is told."""
    left_out = {name for names in LEFT_OUT.values() for name in names.split()}

    new = sorted(primitives() - set(RULES) - left_out)

    if new and numbers(INSTALLED) > numbers(private.NEWEST):
        pytest.skip(f"JAX {INSTALLED} has operations that have no rule yet: {', '.join(new)}")
    assert new == [], "list each in CLASSES of safeops/autodiff/jax/_tables.py, or in LEFT_OUT here"


def test_no_operation_is_left_out_that_has_a_rule():
    """The two lists have no name in common, and what has a rule is an operation of some JAX."""
    left_out = [name for names in LEFT_OUT.values() for name in names.split()]

    assert len(left_out) == len(set(left_out))
    assert set(left_out) & set(RULES) == set()


@pytest.mark.skipif(not hasattr(lax, "polynomial"), reason="JAX has no polynomial before 0.12")
def test_absent_coefficients_of_a_polynomial_meet_nothing():
    """A coefficient that nothing uses is absent: the powers that it would meet may be infinite."""
    f = with_rule(lambda x, g: lax.polynomial(1.0 / x, [g, g * jnp.sign(x)]))
    loss = lambda x: f(x)[0]  # noqa: E731

    np.testing.assert_array_equal(masked.grad(loss)(jnp.asarray([2.0, 0.0])), [1.5, 0.0])


@pytest.mark.skipif(not hasattr(lax, "polynomial"), reason="JAX maps no broadcast before 0.12")
@pytest.mark.parametrize("source", [0, 1])
def test_what_is_broadcast_has_the_mask_of_its_source(source):
    """Each device has the tangent of the source, which is active if that of the source is."""
    logs = lambda x: jnp.where(x > 0, jnp.log(x), 0.0)  # noqa: E731
    f = lambda x, y: lax.pbroadcast(logs(x), "i", jnp.int32(source)) * y  # noqa: E731

    def tangent(x, y):
        return masked.jvp(lambda x: f(x, y), (x,), (1.0,), return_mask=True)[1]

    points, factors = jnp.asarray([2.0, 0.0]), jnp.asarray([3.0, 5.0])
    got, mask = jax.vmap(tangent, axis_name="i")(points, factors)

    np.testing.assert_array_equal(got, [[1.5, 2.5], [0.0, 0.0]][source])
    np.testing.assert_array_equal(mask, [source == 0] * 2)


OLD = """
import jax
import jax.numpy as jnp
jax.__version__ = "0.5.3"
import safeops, safeops.autodiff
from safeops.integrations import jax as guards

f = lambda x: x.sum()
for use in (safeops.safe_log, safeops.autodiff.grad(f), lambda x: guards.value_and_grad(f)(x)):
    try:
        use(jnp.ones(2))
    except ImportError as error:
        print(error)
"""


def test_a_version_that_is_too_old_is_told_at_the_first_use():
    """`import safeops` succeeds; a layer says what it needs when it is first used."""
    path = os.pathsep.join((str(HOUSE.parent), *sys.path))
    done = subprocess.run(
        [sys.executable, "-c", OLD],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )

    needs = "safeops.autodiff.jax needs JAX 0.8 or later and found 0.5.3"
    assert done.stdout.splitlines() == [
        "safeops needs JAX 0.6 or later and found 0.5.3",
        "safeops needs JAX 0.6 or later and found 0.5.3",
        f"{needs}; the operations need 0.6 or later",
    ]
