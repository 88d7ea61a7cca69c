"""The class of each type of operation of TensorFlow, in the words of `safeops.autodiff`."""

from safeops.autodiff.tensorflow import _choosers as choosers
from safeops.autodiff.tensorflow import _control as control
from safeops.autodiff.tensorflow import _evaluator as evaluator
from safeops.autodiff.tensorflow import _rules as rules

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
    rules.with_second_derivative(evaluator.transport): "IdentityN",
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
    rules.batched: """
        MatrixSolve MatrixTriangularSolve BandedTriangularSolve TridiagonalSolve TridiagonalMatMul
    """,
    rules.least_squares: "MatrixSolveLs",
    rules.along_last: "LRNGrad Cross",
    rules.spectral: """
        FFT FFT2D FFT3D IFFT IFFT2D IFFT3D RFFT RFFT2D RFFT3D IRFFT IRFFT2D IRFFT3D
    """,
    rules.resized: "ResizeBicubicGrad ScaleAndTranslateGrad",
    rules.cropped: "CropAndResizeGradBoxes",
    rules.uncropped: "CropAndResizeGradImage ImageProjectiveTransformV2 ImageProjectiveTransformV3",
    rules.normalized: "FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3",
    rules.reduced: "Max Min Prod EuclideanNorm",
    evaluator.elementwise: """
        Abs Acos Acosh Angle Asin Asinh Atan Atan2 Atanh Ceil ComplexAbs Cos Cosh Digamma
        Elu Equal ClipByValue Erf Erfc Exp Expm1 Fill Floor FloorDiv FloorMod Greater
        GreaterEqual Inv IsFinite IsInf IsNan LeakyRelu Less LessEqual Log Log1p Maximum
        Minimum NotEqual Pow Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin
        Sinh Softplus Softsign Sqrt Square SquaredDifference Tan Tanh TruncateDiv Xdivy
        Xlog1py Xlogy
    """,
    rules.with_second_derivative(control.call): "PartitionedCall StatefulPartitionedCall",
    rules.with_second_derivative(control.branch): "If StatelessIf Case StatelessCase",
    rules.with_second_derivative(control.while_loop): "While StatelessWhile",
}
RULES = {name: rule for rule, names in CLASSES.items() for name in names.split()}
# These read a shape, or make zeros or ones of it.
READERS = frozenset(
    """
    Shape ShapeN Size Rank ZerosLike OnesLike TensorListLength TensorListElementShape
    BroadcastGradientArgs
    """.split()  # noqa: SIM905  (a list of words)
)
