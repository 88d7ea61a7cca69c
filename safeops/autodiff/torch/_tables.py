"""The class of each operation of PyTorch, in the words of `safeops.autodiff`."""

from collections.abc import Callable
from typing import Any

from safeops.autodiff.torch import _contractions as contractions
from safeops.autodiff.torch import _fused as fused
from safeops.autodiff.torch import _rules as rules
from safeops.autodiff.torch._convolutions import convolve_backward
from safeops.autodiff.torch._evaluator import BY_NODE, OWN_PARTS, RULES, SPARSE, Call, decompose
from safeops.autodiff.torch._resampling import KIND, resampled, sampled

__all__ = ["CLASSES", "RULES"]

OWN_PARTS |= {
    "_scaled_dot_product_flash_attention_for_cpu_backward": contractions.attention_backward,
    "_embedding_bag_backward": fused.embedding_bag_backward,
    "_embedding_bag_per_sample_weights_backward": fused.bag_weights_backward,
    "_trilinear": fused.trilinear,
    "_weight_norm_interface_backward": fused.weight_norm_backward,
}

# An operation that is not listed is unknown.
CLASSES: dict[Callable[[Call], Any], str] = {
    rules.same: "neg clone _to_copy conj_physical _conj_physical lift_fresh alias_copy",
    rules.copy: "copy",
    rules.zero: "zero",
    rules.add: "add sub rsub",
    rules.total: "sum mean",
    rules.elementwise: """
        abs asin asinh atan atanh ceil clamp clamp_max clamp_min cos erf exp expm1 floor fmax fmin
        frac hardshrink hardtanh log log1p maximum minimum nan_to_num pow reciprocal relu round
        rsqrt sgn sigmoid sign sin sinh softshrink sqrt tan tanh threshold trunc
    """,
    rules.reduced: "amax amin linalg_vector_norm max min norm",
    rules.select: "where",
    rules.fill: "masked_fill index_fill",
    rules.threshold: "threshold_backward",
    rules.scale: """
        mul div tanh_backward sigmoid_backward gelu_backward silu_backward elu_backward
        leaky_relu_backward hardtanh_backward hardswish_backward hardsigmoid_backward
        xlogy special_xlog1py soft_margin_loss_backward rrelu_with_noise_backward
        softplus_backward softshrink_backward hardshrink_backward mish_backward
        log_sigmoid_backward logit_backward mse_loss_backward smooth_l1_loss_backward
        huber_loss_backward binary_cross_entropy_backward native_dropout_backward
    """,
    rules.transport: """
        index _unsafe_index gather index_select take flip roll repeat cat stack constant_pad_nd
        cumsum _reshape_copy view_copy
        slice_backward select_backward diagonal_backward unfold_backward
        slice_scatter select_scatter diagonal_scatter as_strided_scatter
        index_put _index_put_impl _unsafe_index_put put scatter scatter_add index_add index_copy
        masked_scatter masked_scatter_backward masked_select embedding_dense_backward
        max_pool2d_with_indices_backward max_pool3d_with_indices_backward
        avg_pool2d_backward avg_pool3d_backward
        _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
        adaptive_max_pool2d_backward adaptive_max_pool3d_backward
        fractional_max_pool2d_backward fractional_max_pool3d_backward
        reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward
        replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward
        _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward
        _upsample_nearest_exact3d_backward rot90 diag_embed pixel_shuffle pixel_unshuffle
        channel_shuffle
        upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
        nll_loss_backward nll_loss2d_backward col2im im2col
    """,
    rules.triangle: "tril triu",
    rules.batched: """
        linalg_solve_triangular linalg_lu_solve _linalg_solve_ex triangular_solve cholesky_solve
        ormqr
    """,
    rules.matrix_exponential: "linalg_matrix_exp",
    fused.rows: "multi_margin_loss_backward multilabel_margin_loss_backward",
    fused.sequences: "_ctc_loss_backward",
    fused.segments: "_segment_reduce_backward",
    fused.distances: "_cdist_backward",
    fused.distances_within: "_pdist_backward",
    rules.spectral: "_fft_c2c _fft_r2c _fft_c2r",
    contractions.matrix: "mm bmm",
    contractions.contract: "mv dot vdot _grouped_mm",
    convolve_backward: "convolution_backward",
    rules.normalized: "_softmax_backward_data _log_softmax_backward_data",
    rules.layer_norm_backward: "native_layer_norm_backward",
    decompose: """
        native_group_norm_backward native_batch_norm_backward batch_norm_backward
        _fused_rms_norm_backward glu_backward _prelu_kernel_backward linalg_cross addmm baddbmm
        addmv addcmul _unsafe_masked_index _unsafe_masked_index_put_accumulate _trilinear
        _embedding_bag_per_sample_weights_backward _weight_norm_interface_backward
    """,
    contractions.attention: "_scaled_dot_product_flash_attention_for_cpu_backward",
    fused.bag: "_embedding_bag_backward",
    resampled: " ".join(KIND),
    sampled: "grid_sampler_2d_backward grid_sampler_3d_backward",
}
RULES.update({name: rule for rule, names in CLASSES.items() for name in names.split()})
BY_NODE["Logcumsumexp"] = rules.LOGARITHMS
SPARSE |= {"mm": contractions.sparse_matrix, "mv": contractions.sparse_matrix}
