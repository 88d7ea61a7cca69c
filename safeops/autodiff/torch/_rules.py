"""The class of each operation of PyTorch, and the rules: which entries of a result are active."""

import math
from collections.abc import Callable
from typing import Any

import torch

from safeops._backends.torch import private
from safeops._core.types import Array
from safeops.autodiff.torch import _contractions as contractions
from safeops.autodiff.torch import _fused as fused
from safeops.autodiff.torch import _masks
from safeops.autodiff.torch._convolutions import KIND, convolve_backward, resampled, sampled
from safeops.autodiff.torch._evaluator import (
    BY_NODE,
    OWN_PARTS,
    RULES,
    SPARSE,
    Call,
    aten,
    decompose,
    unknown,
)
from safeops.autodiff.torch._nodes import BY_PRODUCT, CLAMPS, COPY_SLICES, is_foreign, words
from safeops.autodiff.torch._tags import Mask, is_number


def scale(call: Call) -> Any:
    """Multiply each entry by a coefficient: absent stays absent, whatever the coefficient."""
    factors = LINEAR_IN.get(call.name.removesuffix("_"), (0,))
    used = [call.masks[i] for i in factors if i in call.masks]
    if not used:
        return unknown(call)
    active: Mask = True
    for mask in used:
        active = _masks.both(active, mask)
    counts = [x for x in map(call.mode.as_condition, call.args) if x is not None]
    if counts and call.selects(BY_PRODUCT):
        active = _masks.both(active, chosen(call, *counts))
    return call.finish(active, clean=True)


def chosen(call: Call, which: Array) -> Mask:
    """Return the mask of a selection that PyTorch writes as a product; all True where NaN wins."""
    if call.name == "div":  # by the number of ties, 0 where the result is NaN
        call.mode.empty = (call.node, which == 0)
        return True
    if which.dtype is not torch.bool:
        return True
    node, empty = call.mode.empty
    if node is not call.node or node is None:
        return which.clone()  # the program may write into its own condition
    if empty.dim():  # under `vmap` both have one axis more
        empty = empty.reshape(*empty.shape, *[1] * (which.dim() - empty.dim()))
    return which | empty


def threshold(call: Call) -> Any:
    """Select by ``x > threshold``, as relu does; NaN is selected too."""
    x, limit = call.args[1:]
    if 0 not in call.masks:
        return unknown(call)
    return call.finish(_masks.both(call.masks[0], ~at_most(x, limit)))  # it writes 0 elsewhere


def at_most(x: Array, limit: float) -> Array:
    """Return ``x <= limit``; on a CPU half as slow by way of numbers (PyTorch 2.13)."""
    if _masks.is_traced() or x.numel() < FEW:
        return x <= limit
    return _masks.not_zero(torch.le(x, limit, out=torch.empty_like(x)))


def add(call: Call) -> Any:
    """Add: absent plus a number is the number."""
    return call.finish(_masks.either(call.active(0), call.active(1)))


def same(call: Call) -> Any:
    """Map each entry to itself, or linearly to another value."""
    return call.finish(call.masks[0]) if 0 in call.masks else unknown(call)


def copy(call: Call) -> Any:
    """Copy into a tensor; in an in-place write into a view a literal 0 becomes a number."""
    active = call.masks.get(1, True) if call.node_name == COPY_SLICES else call.active(1)
    if not isinstance(active, bool):
        active = active.expand(call.args[0].shape)
    return call.finish(active)


def zero(call: Call) -> Any:
    """Write 0 over what an assignment has replaced (absent), or over a cotangent in a hook (0)."""
    replaced = call.selects(frozenset([COPY_SLICES]))
    return call.finish(call.active(0) if not replaced else False)


def select(call: Call) -> Any:
    """Select by a condition; a literal 0 is absent if the forward operation is a selection."""
    cond, x, y = call.args
    masks = [call.masks.get(i, None) for i in (1, 2)]
    gated = call.selects()
    for i, operand in enumerate((x, y)):
        if masks[i] is None:
            masks[i] = not (gated and is_zero(call, operand))
    if masks[0] is True and masks[1] is True:
        return call.finish(active=True)
    active = selected(cond, x, y, masks)
    if call.selects(CLAMPS):
        cotangent = _masks.either(*(call.masks.get(i, False) for i in (1, 2)))
        active = active | (nan_of(call, active) & _masks.spread(cotangent, active))
    return call.finish(active)


def selected(cond: Array, x: Any, y: Any, masks: list[Mask]) -> Array:
    """Return which entries of a selection of two operands are active."""
    shape = _masks.common_shape(cond.shape, *(getattr(v, "shape", ()) for v in (x, y)))
    cond = cond.expand(shape)
    first, second = masks
    if first is True and second is False:
        return _masks.combined(torch.clone, cond)  # a copy, as above
    if first is False and second is True:
        return _masks.combined(torch.bitwise_not, cond)
    return _masks.combined(
        torch.where, cond, _masks.spread(first, cond), _masks.spread(second, cond)
    )


def is_zero(call: Call, x: Any) -> bool:
    """Whether an operand of a selection is a literal 0."""
    if not isinstance(x, torch.Tensor):
        return bool(x == 0)
    number = x.dim() == 0 and x.device.type == "cpu"
    return call.is_literal_zero(x) or (number and is_zero_number(x))


def is_zero_number(x: Any) -> bool:
    """Whether a number, which may be one in a tensor, is known to be 0."""
    if not _masks.is_traced() or not isinstance(x, torch.Tensor):
        return bool(x == 0)
    if type(x) is not torch.Tensor:  # it is traced itself
        return False
    with private.without_modes():
        return bool(x == 0)


def nan_of(call: Call, like: Array) -> Array:
    """Return where a clamp compares NaN: its slope of 0 there is a convention, so a number."""
    node, compared = call.mode.compared
    if node is not call.node:
        return torch.ones_like(like)
    nan = torch.zeros_like(like)
    for x in compared:
        nan = nan | x.isnan()
    return nan


def fill(call: Call) -> Any:
    """Fill entries with a number; a 0 is absent if the forward operation is a selection."""
    number = call.args[-1]
    is_cotangent = isinstance(number, torch.Tensor) and len(call.args) - 1 in call.masks
    zero = not is_cotangent and is_zero_number(number)
    if zero and not call.selects():
        return call.finish(call.active(0))
    base = call.args[0]
    mask = _masks.spread(call.active(0), base).clone()
    where = call.args[1:-1]
    new = _masks.spread(call.masks[len(call.args) - 1], number) if is_cotangent else not zero
    # The packet has a functional overload for a tensor as the value.
    marked = getattr(aten, call.name.removesuffix("_"))(mask, *where, new)
    return call.finish(marked)


def total(call: Call) -> Any:
    """Sum entries: active where one of them is."""
    active = call.masks[0]
    if active is True:
        return call.finish(active=True)
    x = call.args[0]
    dims = call.args[1] if len(call.args) > 1 else None
    keepdim = call.args[2] if len(call.args) > 2 else False  # noqa: PLR2004  (a place)
    mask = _masks.spread(active, x)
    if not dims:
        return call.finish(mask.any())
    return call.finish(_masks.any_over(mask, tuple(dims), keepdim=keepdim))


def transport(call: Call) -> Any:
    """Move entries, and add those that meet: the same operation on the masks, as numbers."""
    name = call.name.removesuffix("_")
    places = entries_of(name, call.args)
    if name in FILLS_NOTHING and all(call.masks.get(i) is True for i in places):
        return call.finish(active=True)
    args = list(call.args)
    if name in ("slice_backward", "select_backward"):
        return call.finish(put_back(call, _masks.spread(call.active(0), args[0])))
    for i in places:
        if isinstance(args[i], torch.Tensor):
            args[i] = _masks.as_numbers(_masks.spread(call.active(i), args[i]), args[i].dtype)
        elif isinstance(args[i], (list, tuple)):
            args[i] = [_entries(call, x) for x in args[i]]
        else:  # a number that is filled in
            args[i] = int(args[i] != 0 or not call.selects())
    if call.name in ("nll_loss_backward", "nll_loss2d_backward"):
        args[3], args[6] = None, torch.ones_like(args[6])  # a weight of 0 keeps its entry active
    if call.name.endswith("_"):
        args[0] = args[0].clone()
    active = _masks.not_zero(call.func(*args, **call.kwargs))
    if name not in FILLS_NOTHING and is_foreign(call.node):
        active = active | filled(call, args, places)
    return call.finish(active)


def put_back(call: Call, active: Array) -> Array:
    """Return the mask of entries that are put at their places in an array of absent ones."""
    _, sizes, axis, *place = call.args
    if not _masks.is_traced():  # these run on bool
        return call.func(active, *call.args[1:])
    axis %= len(sizes)
    is_slice = active.dim() == len(sizes)
    lean = _masks.thin(active, but=axis if is_slice else None)
    shape = list(lean.shape)
    shape[axis : axis + is_slice] = [sizes[axis]]
    # As numbers: Inductor's C++ does not compile a padded disjunction of masks (PyTorch 2.13).
    found = call.func(lean.to(torch.float32), shape, axis, *place) != 0
    return found.expand(sizes)


def filled(call: Call, masks: list[Any], places: tuple[int, ...]) -> Array:
    """Return where an operation writes zeros around its entries, numbers in a custom function."""
    args = list(masks)
    for i in places:
        if isinstance(args[i], torch.Tensor):  # and not a number that is filled in
            args[i] = torch.ones_like(args[i])
    return call.func(*args, **call.kwargs) == 0


def entries_of(name: str, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the positions of the arguments with entries; in a derivative, of the cotangent."""
    listed = ENTRIES.get(name, (0,))
    if name.endswith("_backward"):
        return listed
    numbers = [i for i, x in enumerate(args) if isinstance(x, torch.Tensor) and is_number(x)]
    return tuple({*listed, *numbers})


def triangle(call: Call) -> Any:
    """Take a triangle: a selection in the formula of tril or triu, else a product with 0 and 1."""
    return transport(call) if call.selects() else call.finish(call.active(0))


def mixed(call: Call) -> Any:
    """Solve equations, or transform: dense in a matrix, or along these axes; the rest is apart."""
    place = BATCHED_IN.get(call.name, 0)
    if place not in call.masks:
        return unknown(call)
    active = call.masks[place]
    if isinstance(active, torch.Tensor):
        axes = tuple(call.args[1]) if call.name.startswith("_fft") else (-2, -1)
        active = _masks.any_over(active, axes, keepdim=True)
    return call.finish(active, clean=True)


def matrix_exponential(call: Call) -> Any:
    """Differentiate a matrix exponential, whose formula puts the cotangent in a corner block."""
    active = call.masks[0]
    if not call.selects(frozenset(["LinalgMatrixExp"])):
        return unknown(call)
    if isinstance(active, torch.Tensor):
        n = active.shape[-1] // 2
        active = _masks.any_over(active[..., :n, n:], (-2, -1), keepdim=True)
    return call.finish(active, clean=True)


def normalized(call: Call) -> Any:
    """Differentiate a softmax: dense within a row; rows are independent."""
    # A softmax with a NaN is NaN in the whole row, so that a NaN coefficient never meets absent
    # entries alone in an active row.
    if 0 not in call.masks or len(call.masks) > 1:
        return decompose(call)
    active = call.masks[0]
    if isinstance(active, torch.Tensor):
        active = _masks.any_over(active, (call.args[2],), keepdim=True)
    return call.finish(active, clean=True)


def _entries(call: Call, x: Array) -> Array:
    active = call.mode.tags.read(x)
    if active is None:
        active = not call.is_literal_zero(x)
    return _masks.as_numbers(_masks.spread(active, x), x.dtype)


def layer_norm_backward(call: Call) -> Any:
    """Differentiate a layer norm; by its parts if an active row has a NaN."""
    # If what the kernel returns is finite, so is all that absent entries have met.
    cotangent, x, shape, mean, rstd, *weights, wanted = call.args
    if set(call.masks) != {0} or not _masks.is_partial(call.masks[0]):
        return decompose(call)
    active = _masks.spread(call.masks[0], cotangent)
    outer = tuple(range(x.dim() - len(shape)))
    of_weights = _masks.any_over(active, outer) if outer else active
    of_rows = _masks.any_over(active, tuple(range(len(outer), x.dim())), keepdim=True)
    values = None if _masks.is_traced() else call.run()
    if values is None or not all(_masks.is_finite(y) for y in values if y is not None):
        whole = _masks.is_traced() and all(
            _masks.repeats(active, i) for i in range(len(outer), x.dim())
        )
        rows = [y if _masks.is_finite(y) else _masks.beside(of_rows, y) for y in (x, mean, rstd)]
        if not (whole or all(_masks.is_finite(y) for y in (*rows, *weights) if y is not None)):
            return decompose(call)
        values = call.func(cotangent, rows[0], shape, *rows[1:], *weights, wanted)
        if whole and values[0] is not None:  # a weight may be NaN
            values = (_masks.cleaned(values[0], of_rows), *values[1:])
    for value, mask in zip(values, (of_rows, of_weights, of_weights), strict=True):
        call.mode.state(value, mask)  # no tensor for a gradient that was not asked for
    return values


FEW = 16384  # entries: below, the overhead of two more calls costs more than their work

# The positions of the factors of a product; of the cotangent; of the entries. (0,) if not listed.
LINEAR_IN = {"mul": (0, 1)}
BATCHED_IN = {
    "linalg_solve_triangular": 1,
    "linalg_lu_solve": 2,
    "_linalg_solve_ex": 1,
    "ormqr": 2,
}
ENTRIES = {
    "index_put": (0, 2),
    "_index_put_impl": (0, 2),
    "_unsafe_index_put": (0, 2),
    "scatter": (0, 3),
    "scatter_add": (0, 3),
    "index_add": (0, 3),
    "index_copy": (0, 3),
    "masked_scatter": (0, 2),
    "slice_scatter": (0, 1),
    "select_scatter": (0, 1),
    "diagonal_scatter": (0, 1),
    "as_strided_scatter": (0, 1),
}
# Operations whose results have only entries of their arguments.
FILLS_NOTHING = words(
    """
    index _unsafe_index gather index_select take flip roll repeat cat stack cumsum view_copy
    _reshape_copy masked_select slice_scatter select_scatter diagonal_scatter
    """
)


# Nonlinear functions of a cotangent, as hooks and custom functions apply them.


# The derivative of logcumsumexp, whose formula takes logarithms of the cotangent.
#
# The formula sums exponentials of ``log |g| - result``. The logarithm of an absent cotangent is
# -inf, even where the result is infinite; -inf takes the place of 0 on the way.


def logarithm(call: Call) -> Any:
    """Take a logarithm, or add a coefficient to a logarithm; absent entries become -inf."""
    if len(call.masks) > 1:
        return RULES[call.name](call)
    (mask,) = call.masks.values()
    value = call.run()
    if _masks.is_partial(mask):
        value = torch.where(_masks.spread(mask, value), value, -math.inf)
    call.mode.state(value, mask)
    return value


def summed(call: Call) -> Any:
    """Sum exponentials cumulatively: an absent entry adds nothing."""
    value, mask = call.run(), call.masks[0]
    if _masks.is_partial(mask):
        mask = _masks.spread(mask, value).to(torch.int64).cumsum(call.args[1]) > 0
    call.mode.state(value, mask)
    return value


LOGARITHMS: dict[str, Callable[[Call], Any]] = dict.fromkeys(
    ("abs", "log", "where", "add", "sub"), logarithm
) | {"logcumsumexp": summed, "exp": lambda call: call.finish(call.masks[0], clean=True)}


def elementwise(call: Call) -> Any:
    """Map each entry: an absent one enters as 0, and stays absent if the function maps 0 to 0."""
    # Beside a bound that is 0, the result may be the bound or the entry: it counts as active.
    others = [x for i, x in enumerate(call.args) if i not in call.masks]
    bounds = [x for x in (*others, *call.kwargs.values()) if isinstance(x, torch.Tensor)]
    active: Mask = False
    for mask in call.masks.values():
        active = _masks.either(active, mask)
    return finish(call, active, bounds)


def reduced(call: Call) -> Any:
    """Reduce along axes by a function that ignores zeros, such as a norm."""
    if 0 not in call.masks or len(call.masks) > 1:
        return unknown(call)
    first = AXES.get(call.name, 1)
    dims, keepdim = (*call.args[first : first + 2], None, False)[:2]
    active = call.masks[0]
    if _masks.is_partial(active):
        mask = _masks.spread(active, call.args[0])
        dims = [dims] if isinstance(dims, int) else dims
        active = _masks.any_over(mask, tuple(dims), keepdim=bool(keepdim)) if dims else mask.any()
    return finish(call, active)


AXES = {"linalg_vector_norm": 2, "norm": 2}  # the position of the axes among the arguments; else 1


def finish(call: Call, active: Mask, bounds: list[Array] | tuple[()] = ()) -> Any:
    """Run the operation; every entry of the result that is not 0 is active."""
    value = call.run()
    if isinstance(value, torch.Tensor) and is_number(value) and _masks.is_partial(active):
        active = _masks.spread(active, value) | _masks.not_zero(value)
        for bound in bounds:
            active = active | (bound == 0)
    call.mode.state(value, active)
    return value


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
    same: "neg clone _to_copy conj_physical _conj_physical lift_fresh alias_copy",
    copy: "copy",
    zero: "zero",
    add: "add sub rsub",
    total: "sum mean",
    elementwise: """
        abs asin asinh atan atanh ceil clamp clamp_max clamp_min cos erf exp expm1 floor fmax fmin
        frac hardshrink hardtanh log log1p maximum minimum nan_to_num pow reciprocal relu round
        rsqrt sgn sigmoid sign sin sinh softshrink sqrt tan tanh threshold trunc
    """,
    reduced: "amax amin linalg_vector_norm max min norm",
    select: "where",
    fill: "masked_fill index_fill",
    threshold: "threshold_backward",
    scale: """
        mul div tanh_backward sigmoid_backward gelu_backward silu_backward elu_backward
        leaky_relu_backward hardtanh_backward hardswish_backward hardsigmoid_backward
        xlogy special_xlog1py soft_margin_loss_backward rrelu_with_noise_backward
        softplus_backward softshrink_backward hardshrink_backward mish_backward
        log_sigmoid_backward logit_backward mse_loss_backward smooth_l1_loss_backward
        huber_loss_backward binary_cross_entropy_backward native_dropout_backward
    """,
    transport: """
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
    triangle: "tril triu",
    mixed: """
        linalg_solve_triangular linalg_lu_solve _linalg_solve_ex triangular_solve cholesky_solve
        ormqr _fft_c2c _fft_r2c _fft_c2r
    """,
    matrix_exponential: "linalg_matrix_exp",
    fused.rows: "multi_margin_loss_backward multilabel_margin_loss_backward",
    fused.sequences: "_ctc_loss_backward",
    fused.segments: "_segment_reduce_backward",
    fused.distances: "_cdist_backward",
    fused.distances_within: "_pdist_backward",
    contractions.matrix: "mm bmm",
    contractions.contract: "mv dot vdot _grouped_mm",
    convolve_backward: "convolution_backward",
    normalized: "_softmax_backward_data _log_softmax_backward_data",
    layer_norm_backward: "native_layer_norm_backward",
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
BY_NODE["Logcumsumexp"] = LOGARITHMS
SPARSE |= {"mm": contractions.sparse_matrix, "mv": contractions.sparse_matrix}
