"""
The class of each type of operation of TensorFlow, and the rules of those that no other file has.

A solve mixes the rows of a matrix, a Fourier transform entries along some axes, batch normalisation
a channel: a result of a part without active entries is absent, whatever the coefficients. A custom
gradient is any program: a result made from absent entries is absent if it is 0, else a number.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from safeops._backends.tensorflow import private
from safeops._core.types import Array
from safeops.autodiff._pairs import Pair
from safeops.autodiff.tensorflow import _choosers as choosers
from safeops.autodiff.tensorflow import _control as control
from safeops.autodiff.tensorflow import _evaluator as evaluator
from safeops.autodiff.tensorflow._choosers import bodies
from safeops.autodiff.tensorflow._evaluator import BODIES, Frame, Mask, Rule
from safeops.autodiff.tensorflow._masks import union
from safeops.autodiff.tensorflow._running import run


def only_pair(ins: Sequence[Any]) -> int | None:
    """Return the position of the linear argument if there is exactly one, else None."""
    at = [i for i, x in enumerate(ins) if isinstance(x, Pair)]
    return at[0] if len(at) == 1 else None


def any_along(pair: Pair, axes: Any) -> Mask:
    """Return where any entry along axes is active; the axes stay, with length 1."""
    if isinstance(pair.active, bool):
        return pair.active
    return tf.reduce_any(evaluator.spread(pair.active, pair.value), axes, keepdims=True)


def of_parts(op: Any, ins: list[Any], parts: Mask) -> list[Any]:
    """Run an operation on independent parts, only some of them active."""
    values = run(op, ins)
    masks = [evaluator.widened(parts, x) for x in values]
    return [Pair(evaluator.cleaned(x, m), m) for x, m in zip(values, masks, strict=True)]


def mixed(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
    """Mix entries along axes, as a solve or a Fourier transform: independent along the others."""
    place, axes = MIXED[op.type]
    at = only_pair(ins)
    if at is None or (place is not None and at != place % len(ins)):
        return evaluator.unknown(op, ins, frame)
    return of_parts(op, ins, any_along(ins[at], axes))


# Which argument is mixed (None: any) along which axes, by coefficients that are the other ones.
MIXING: dict[tuple[int | None, tuple[int, ...]], str] = {
    # Columns of the last argument; the derivative for a matrix consists of products.
    (-1, (-2,)): """
        MatrixSolve MatrixTriangularSolve BandedTriangularSolve TridiagonalSolve TridiagonalMatMul
    """,
    (1, (-2,)): "MatrixSolveLs",  # before the regularisation
    (None, (-1,)): "LRNGrad Cross",
    (0, (-1,)): "FFT IFFT RFFT IRFFT",
    (0, (-2, -1)): "FFT2D IFFT2D RFFT2D IRFFT2D",
    (0, (-3, -2, -1)): "FFT3D IFFT3D RFFT3D IRFFT3D",
    # Of cubic interpolation some weights are negative: sums of them do not tell what meets.
    (0, (1, 2)): "ResizeBicubicGrad ScaleAndTranslateGrad",
}
MIXED = {name: row for row, names in MIXING.items() for name in names.split()}


def cropped(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
    """Differentiate a crop for its box: boxes are independent, whatever the image holds."""
    if only_pair(ins) != 0:
        return evaluator.unknown(op, ins, frame)
    parts = any_along(ins[0], [1, 2, 3])
    (value,) = run(op, ins)
    active = parts if isinstance(parts, bool) else tf.reshape(parts, [-1, 1])
    active = evaluator.widened(active, value)
    return [Pair(evaluator.cleaned(value, active), active)]


def uncropped(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
    """Put crops back into the image: by their weights, which are not negative, and used boxes."""
    if only_pair(ins) != 0:
        return evaluator.unknown(op, ins, frame)
    crops, boxes, *rest = ins
    used = any_along(crops, [1, 2, 3])
    boxes = evaluator.cleaned(boxes, used if isinstance(used, bool) else tf.reshape(used, [-1, 1]))
    (value,) = run(op, [crops, boxes, *rest])
    return [evaluator.counted_active(value, run(op, [evaluator.indicator(crops), boxes, *rest])[0])]


def normalized(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
    """Differentiate batch normalisation: channels are independent."""
    if only_pair(ins) != 0:
        return evaluator.unknown(op, ins, frame)
    if not op.get_attr("is_training"):
        return _by_fixed_moments(op, ins)
    last = op.get_attr("data_format").endswith(b"C")
    rank = ins[0].value.shape.rank
    axes = [i for i in range(rank) if i != (rank - 1 if last else 1)]
    parts = any_along(ins[0], axes)
    by_channel = parts if isinstance(parts, bool) else tf.reshape(parts, [-1])
    values = run(op, ins)
    masks = [evaluator.widened(parts, values[0]), evaluator.widened(by_channel, values[1])]
    masks += [masks[1], True, True]  # the other results are empty
    return [Pair(evaluator.cleaned(x, m), m) for x, m in zip(values, masks, strict=True)]


def _by_fixed_moments(op: Any, ins: list[Any]) -> list[Any]:
    """Differentiate ``(x - mean) / sqrt(variance + epsilon) * scale + offset``, elementwise."""
    dy, x, scale, mean, variance, *_ = ins
    rank = x.shape.rank
    last = op.get_attr("data_format").endswith(b"C")
    axes = [i for i in range(rank) if i != (rank - 1 if last else 1)]
    wide = [1] * (rank - 1) if last else [1] * (rank - 2)

    def spread_out(v: Array) -> Array:
        v = tf.cast(v, tf.float32)
        return v if last else tf.reshape(v, [-1, *wide])

    root = tf.math.rsqrt(spread_out(variance) + op.get_attr("epsilon"))
    g, active = tf.cast(dy.value, tf.float32), evaluator.widened(dy.active, x)
    normal = (tf.cast(x, tf.float32) - spread_out(mean)) * root
    found = [evaluator.cleaned(g * spread_out(scale) * root, active)]
    found += [tf.reduce_sum(evaluator.cleaned(g * normal, active), axes), tf.reduce_sum(g, axes)]
    some = active if isinstance(active, bool) else tf.reduce_any(active, axes)
    values = [tf.cast(found[0], x.dtype), *found[1:]]
    masks = [active, some, some]
    outs = [Pair(v, m) for v, m in zip(values, masks, strict=True)]
    return [*outs, *(Pair(y) for y in op.outputs[3:])]


def reduced(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
    """Reduce along axes, in the formula of a custom gradient."""
    if only_pair(ins) != 0:
        return evaluator.unknown(op, ins, frame)
    (value,) = run(op, ins)
    active = ins[0].active
    if not isinstance(active, bool):
        mask = evaluator.spread(active, ins[0].value)
        active = tf.reduce_any(mask, ins[1], keepdims=op.get_attr("keep_dims"))
    return [
        Pair(value, union(evaluator.widened(active, value), evaluator.unless_zero([active], value)))
    ]


# Second derivatives where a custom gradient stands in the formula of another.
#
# A masked result is made of new operations, which have TensorFlow's derivatives. Where a custom
# gradient made the ordinary result, the masked result gets the user's second derivative as well.


def with_second_derivative(rule: Rule) -> Rule:
    """Return a rule whose results keep the derivatives of custom gradients."""

    @functools.wraps(rule)
    def run(op: Any, ins: list[Any], frame: Frame) -> list[Any]:
        outs = rule(op, ins, frame)
        # A body is handled where it is called; in `explain` there is no second derivative.
        if frame.inner or tf.executing_eagerly() or not _is_custom(op):
            return outs
        return [_ruled_by(x, y) for x, y in zip(outs, op.outputs, strict=True)]

    return run


def _is_custom(op: Any) -> bool:
    """Whether an operation has a custom gradient, or runs an operation that has one."""
    # `tf.recompute_grad` has one in its formula, which says that there is no second derivative;
    # then the derivative is that of the recomputed operations.
    if op.type in BODIES:
        return any(_is_custom(x) for body in bodies(op) for x in body.get_operations())
    if op.type != "IdentityN" or not private.has_custom_gradient(op):
        return False
    return not private.made_by_recomputing(op)


def _ruled_by(x: Any, ruled: Array) -> Any:
    """Return a masked result with the derivative of the ordinary result, where it is active."""
    if not isinstance(x, Pair) or x.active is False or x.value.dtype == tf.variant:
        return x
    value = tf.stop_gradient(x.value)

    @tf.custom_gradient
    def as_ordinary(ruled: Array) -> tuple[Array, Callable[[Array], Array]]:
        del ruled
        return tf.identity(value), lambda cotangent: cotangent

    return Pair(evaluator.cleaned(as_ordinary(ruled), x.active), x.active)


# An operation that is not listed is unknown.
CLASSES = {
    evaluator.transport: """
        Reshape ExpandDims Squeeze Transpose ConjugateTranspose Slice StridedSlice StridedSliceGrad
        Gather GatherV2 GatherNd ConcatV2 Concat Pack Unpack Split SplitV Pad PadV2 Tile BroadcastTo
        Reverse ReverseV2 ReverseSequence Roll Identity Snapshot PreventGradient
        StopGradient EnsureShape CheckNumerics CheckNumericsV2 DepthToSpace SpaceToDepth
        SpaceToBatch SpaceToBatchND BatchToSpace BatchToSpaceND MatrixDiag MatrixDiagV2 MatrixDiagV3
        MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixSetDiag MatrixSetDiagV2
        MatrixSetDiagV3 MatrixBandPart Diag DiagPart DynamicPartition DynamicStitch
        ParallelDynamicStitch TensorScatterUpdate
        TensorListFromTensor TensorListStack TensorListGetItem TensorListSetItem
        TensorListPushBack TensorListPopBack TensorListGather TensorListScatter TensorListScatterV2
        TensorListScatterIntoExistingList TensorListConcat TensorListConcatV2 TensorListConcatLists
        TensorListSplit TensorListResize OptionalFromValue OptionalGetValue
    """,
    with_second_derivative(evaluator.transport): "IdentityN",
    evaluator.total: """
        Sum Mean Cumsum SegmentSum SegmentSumV2 UnsortedSegmentSum ScatterNd TensorScatterAdd
        MirrorPadGrad BiasAddGrad AvgPoolGrad AvgPool3DGrad FractionalAvgPoolGrad
        ResizeNearestNeighborGrad SparseSegmentSumGrad SparseSegmentMeanGrad
        SparseSegmentSqrtNGrad SparseSegmentSumGradV2 SparseSegmentMeanGradV2
        SparseSegmentSqrtNGradV2
    """,
    evaluator.same: "Neg Cast Conj Real Imag",
    evaluator.add: "Add AddV2 AddN Sub AccumulateNV2 Complex",
    choosers.select: "Select SelectV2",
    evaluator.rectify: "ReluGrad Relu6Grad",
    choosers.product: "Mul",
    choosers.quotient: "RealDiv",
    evaluator.scale: """
        Div DivNoNan MulNoNan TanhGrad SigmoidGrad EluGrad SeluGrad LeakyReluGrad
        SoftplusGrad SoftsignGrad FakeQuantWithMinMaxArgsGradient
    """,
    evaluator.root: "SqrtGrad RsqrtGrad ReciprocalGrad InvGrad",
    evaluator.contract: """
        MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum SparseTensorDenseMatMul
        Conv2D Conv2DBackpropInput Conv2DBackpropFilter Conv3D Conv3DBackpropInputV2
        Conv3DBackpropFilterV2 DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput
        DepthwiseConv2dNativeBackpropFilter
    """,
    evaluator.unpool: """
        MaxPoolGrad MaxPoolGradV2 MaxPool3DGrad MaxPoolGradWithArgmax FractionalMaxPoolGrad
        ResizeBilinearGrad Dilation2DBackpropInput Dilation2DBackpropFilter
    """,
    mixed: " ".join(MIXED),
    cropped: "CropAndResizeGradBoxes",
    uncropped: "CropAndResizeGradImage ImageProjectiveTransformV2 ImageProjectiveTransformV3",
    normalized: "FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3",
    reduced: "Max Min Prod EuclideanNorm",
    evaluator.elementwise: """
        Abs Acos Acosh Angle Asin Asinh Atan Atan2 Atanh Ceil ComplexAbs Cos Cosh Digamma
        Elu Equal ClipByValue Erf Erfc Exp Expm1 Fill Floor FloorDiv FloorMod Greater
        GreaterEqual Inv IsFinite IsInf IsNan LeakyRelu Less LessEqual Log Log1p Maximum
        Minimum NotEqual Pow Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin
        Sinh Softplus Softsign Sqrt Square SquaredDifference Tan Tanh TruncateDiv Xdivy
        Xlog1py Xlogy
    """,
    with_second_derivative(control.call): "PartitionedCall StatefulPartitionedCall",
    with_second_derivative(control.branch): "If StatelessIf Case StatelessCase",
    with_second_derivative(control.while_loop): "While StatelessWhile",
}
RULES = {name: rule for rule, names in CLASSES.items() for name in names.split()}
# These read a shape, or make zeros or ones of it.
READERS = frozenset(
    """
    Shape ShapeN Size Rank ZerosLike OnesLike TensorListLength TensorListElementShape
    BroadcastGradientArgs
    """.split()  # noqa: SIM905  (a list of words)
)
