"""The class of each primitive of JAX, in the words of `safeops.autodiff`."""

from safeops.autodiff.jax import _contractions as contractions
from safeops.autodiff.jax import _control as control
from safeops.autodiff.jax import _evaluator as pairs
from safeops.autodiff.jax import _rules as rules

# An operation that is not listed is unknown.
CLASSES = {
    pairs.transport: """
        reshape transpose broadcast_in_dim squeeze slice dynamic_slice dynamic_update_slice rev copy
        stack unstack tile
        copy_p gather concatenate pad split scatter all_gather all_gather_invariant
        all_gather_reduced all_to_all ppermute pbroadcast pbroadcast_dynamic
    """,
    pairs.same: """
        neg real imag conj convert_element_type reduce_precision sharding_constraint
        layout_constraint mesh_cast reshard pvary name stop_gradient nondifferentiable_backward
        relayout stage
        abs sign sqrt cbrt square sin tan asin atan sinh tanh asinh atanh expm1 log1p erf erf_inv
        round floor ceil
    """,
    pairs.barrier: "optimization_barrier device_put",
    pairs.add: "add add_any sub complex",
    pairs.total: """
        reduce_sum cumsum reduce_window_sum psum psum_invariant unreduced_psum reduce_scatter
        unreduced_reduce_scatter
    """,
    pairs.scatter_add: "scatter-add scatter-sub",
    pairs.scatter_mul: "scatter-mul",
    pairs.unpool: "select_and_scatter_add select_and_gather_add",
    pairs.select: "select_n",
    pairs.select_if: "select_if_vmap",  # of equinox
    pairs.scale: "mul div",
    contractions.contract: "dot_general",
    contractions.convolve: "conv_general_dilated",
    pairs.call: """
        jit pjit closed_call core_call checkpoint remat2 composite eval_jaxpr
    """,
    pairs.call_with_rule: "custom_jvp_call custom_vjp_call",
    control.scan: "scan",
    control.while_loop: "while",
    control.cond: "cond",
    control.shard_map: "shard_map",
    rules.triangular_solve: "triangular_solve",
    rules.tridiagonal_solve: "tridiagonal_solve",
    rules.transform: "fft",
    rules.linear_solve: "custom_linear_solve",
    rules.nothing_or_nan: "safeops_barrier",
    rules.solve_all: "linear_solve",  # of lineax
    rules.mapped: "vprim",  # of equinox
    rules.predicate: """
        is_finite eq ne lt le gt ge eq_to lt_to le_to and or xor not argmax argmin reduce_and
        reduce_or reduce_xor debug_callback debug_print dce_sink
    """,
    rules.number: """
        exp exp2 log log2 logistic cos cosh acos acosh rsqrt pow atan2 rem nextafter erfc lgamma
        digamma polygamma igamma igammac bessel_i0e bessel_i1e regularized_incomplete_beta
        bitcast_convert_type one_minus_square
    """,
    rules.polynomial: "polynomial",
    rules.power: "integer_pow",
    rules.choose: "max min clamp",
    rules.extreme: "reduce_max reduce_min reduce_prod",
    rules.running: "cummax cummin cumprod",
    rules.order: "sort",
}
RULES = {name: rule for rule, names in CLASSES.items() for name in names.split()}
