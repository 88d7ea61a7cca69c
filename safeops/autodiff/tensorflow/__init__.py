"""
Masked autodiff for TensorFlow: a gradient tape, in which what was never used is absent.

In a `tf.function`, `tf.GradientTape` builds the backward pass as a graph, a linear program, and
that is run over pairs of a value and what of it is active. The result is plain TensorFlow: it can
be compiled, saved and differentiated again.

Not covered: a gradient tape outside `tf.function` (`grad` and `value_and_grad` make one), forward
mode, `jacobian` and `batch_jacobian`, sparse tensors and `tf.py_function`. Operations that the
table does not name, such as `tf.math.cumulative_logsumexp` and fused recurrent layers, run as they
are, with a warning, and hide nothing. Solves and factorisations are dense within a matrix, cubic
resampling within a channel of an image, Fourier transforms along their axes: there a NaN that is
read in part stays. Selections count as numbers, and hide nothing either, within
`tf.recompute_grad` in the body of a function, branch or loop, in the formula of a custom gradient,
and where the gradient is taken in another body than its forward pass. But a literal 0 that a custom
gradient puts around a cotangent (`tf.pad`, `tf.concat`, an update of `tf.zeros`) is absent, as in
TensorFlow's own formulas, and a NaN behind it is 0: write ``g * mask`` for a number. XLA drops NaN
in largest entries, as in their values (TensorFlow issue 116992). What a backward pass does beside
its result, such as printing, it may do twice.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from safeops._typing import Array
from safeops.autodiff._explain.evidence import Evidence, Forward, missing, reaching
from safeops.autodiff._explain.report import Finding, Report, counted, make_report
from safeops.autodiff._options import UnknownOperationWarning, check_options
from safeops.autodiff.tensorflow import _choices as choices
from safeops.autodiff.tensorflow import _control as control
from safeops.autodiff.tensorflow import _pairs as pairs
from safeops.autodiff.tensorflow import _rules as rules
from safeops.autodiff.tensorflow._explain.backward import Marked, Run
from safeops.autodiff.tensorflow._explain.sites import Program, named, numbers_of, values_of
from safeops.autodiff.tensorflow._pairs import Frame, Options, Pair

__all__ = ["GradientTape", "UnknownOperationWarning", "explain", "grad", "value_and_grad"]

# The classes of operations, in the words of `safeops.autodiff`. What is not here is unknown.
CLASSES = {
    pairs.transport: """
        Reshape ExpandDims Squeeze Transpose ConjugateTranspose Slice StridedSlice StridedSliceGrad
        Gather GatherV2 GatherNd ConcatV2 Concat Pack Unpack Split SplitV Pad PadV2 Tile BroadcastTo
        Reverse ReverseV2 ReverseSequence Roll Identity IdentityN Snapshot PreventGradient
        StopGradient EnsureShape CheckNumerics CheckNumericsV2 DepthToSpace SpaceToDepth
        SpaceToBatch SpaceToBatchND BatchToSpace BatchToSpaceND MatrixDiag MatrixDiagV2 MatrixDiagV3
        MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixSetDiag MatrixSetDiagV2
        MatrixSetDiagV3 MatrixBandPart Diag DiagPart DynamicPartition DynamicStitch
        ParallelDynamicStitch TensorScatterUpdate
        TensorListFromTensor TensorListStack TensorListGetItem TensorListSetItem
        TensorListPushBack TensorListPopBack TensorListGather TensorListScatter TensorListScatterV2
        TensorListScatterIntoExistingList TensorListConcat TensorListConcatV2 TensorListConcatLists
        TensorListSplit TensorListResize
    """,
    pairs.total: """
        Sum Mean Cumsum SegmentSum SegmentSumV2 UnsortedSegmentSum ScatterNd TensorScatterAdd
        MirrorPadGrad BiasAddGrad AvgPoolGrad AvgPool3DGrad FractionalAvgPoolGrad
        ResizeNearestNeighborGrad SparseSegmentSumGrad SparseSegmentMeanGrad
        SparseSegmentSqrtNGrad SparseSegmentSumGradV2 SparseSegmentMeanGradV2
        SparseSegmentSqrtNGradV2
    """,
    pairs.same: "Neg Cast Conj Real Imag",
    pairs.add: "Add AddV2 AddN Sub AccumulateNV2 Complex",
    choices.select: "Select SelectV2",
    pairs.rectify: "ReluGrad Relu6Grad",
    choices.product: "Mul",
    choices.quotient: "RealDiv",
    pairs.scale: """
        Div DivNoNan MulNoNan TanhGrad SigmoidGrad EluGrad SeluGrad LeakyReluGrad
        SoftplusGrad SoftsignGrad FakeQuantWithMinMaxArgsGradient
    """,
    pairs.root: "SqrtGrad RsqrtGrad ReciprocalGrad InvGrad",
    pairs.contract: """
        MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum SparseTensorDenseMatMul
        Conv2D Conv2DBackpropInput Conv2DBackpropFilter Conv3D Conv3DBackpropInputV2
        Conv3DBackpropFilterV2 DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput
        DepthwiseConv2dNativeBackpropFilter
    """,
    pairs.unpool: """
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
    pairs.elementwise: """
        Abs Acos Acosh Angle Asin Asinh Atan Atan2 Atanh Ceil ComplexAbs Cos Cosh Digamma
        Elu Equal ClipByValue Erf Erfc Exp Expm1 Fill Floor FloorDiv FloorMod Greater
        GreaterEqual Inv IsFinite IsInf IsNan LeakyRelu Less LessEqual Log Log1p Maximum
        Minimum NotEqual Pow Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin
        Sinh Softplus Softsign Sqrt Square SquaredDifference Tan Tanh TruncateDiv Xdivy
        Xlog1py Xlogy
    """,
    control.call: "PartitionedCall StatefulPartitionedCall",
    control.branch: "If StatelessIf Case StatelessCase",
    control.while_loop: "While StatelessWhile",
}
RULES = {name: rule for rule, names in CLASSES.items() for name in names.split()}
# These ask for a shape, or make a 0 or a 1 of it.
READERS = frozenset(
    """
    Shape ShapeN Size Rank ZerosLike OnesLike TensorListLength TensorListElementShape
    BroadcastGradientArgs
    """.split()  # noqa: SIM905  (a list of words)
)


class GradientTape(tf.GradientTape):
    """
    `tf.GradientTape`, in whose gradients an entry that nothing selected is absent, and not 0.

    Parameters
    ----------
    persistent : bool, default: False
        Whether several gradients can be taken.
    watch_accessed_variables : bool, default: True
        Whether trainable variables are watched without being asked for.

    Notes
    -----
    **Gradient.** That of a scalar tape, which visits only what the target reaches. Where that of
    `tf.GradientTape` is finite, the two are equal, but for ``tf.sqrt``, ``tf.math.rsqrt`` and
    ``tf.math.reciprocal``: there TensorFlow's kernels, outside XLA, turn 0 times infinity into 0.

    **Source.** JAX issue 1052, "only tracking a symbolic-zero mask through the entire backward
    pass".

    Examples
    --------
    >>> import tensorflow as tf
    >>> @tf.function
    ... def slope(x):
    ...     with GradientTape() as tape:
    ...         tape.watch(x)
    ...         y = tf.where(x > 0, tf.math.log(x), 0.0)
    ...     return tape.gradient(y, x)
    >>> slope(tf.constant([0.0, 2.0])).numpy().tolist()
    [0.0, 0.5]
    """

    @tf.autograph.experimental.do_not_convert
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        *,
        return_mask: bool = False,
        lazy: bool = False,
        on_unknown: str = "warn",
    ) -> Any:
        """
        Return the masked gradient of targets with respect to sources.

        Parameters
        ----------
        target, sources, output_gradients, unconnected_gradients
            As for `tf.GradientTape.gradient`; all entries of `output_gradients` count as active.
        return_mask : bool, default: False
            Whether to return also where the gradient is active: a 0 that is not active was never
            used.
        lazy : bool, default: False
            Whether to take the ordinary gradient, and the masked one only if that is not finite.
        on_unknown : {"warn", "error", "ignore"}, default: "warn"
            What to do about an operation without a rule that meets absent entries. It runs as it
            is, which hides nothing.

        Returns
        -------
        structure of tensors
            Gradients in the structure of `sources`, or a pair of gradients and masks.

        Raises
        ------
        RuntimeError
            Outside `tf.function`.
        ValueError
            If `on_unknown` is none of the three, or `lazy` and `return_mask` are both given.

        Notes
        -----
        **Gradient.** That of a scalar tape.

        **Source.** `tf.GradientTape.gradient`.
        """
        how = _options(on_unknown, lazy=lazy, return_mask=return_mask)
        if tf.executing_eagerly():
            msg = (
                "expected a GradientTape inside tf.function, got an eager one; decorate the "
                "function with tf.function, or use grad or value_and_grad"
            )
            raise RuntimeError(msg)
        before = len(tf.compat.v1.get_default_graph().get_operations())
        seeds = _seeds(target, output_gradients)
        found = super().gradient(target, sources, seeds, unconnected_gradients)
        if return_mask:  # rows have none for the rest
            found = tf.nest.map_structure(_dense, found)
        return _masked(found, _frame(seeds, before, how), lazy=lazy, return_mask=return_mask)

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: it maps the backward pass over rows, which have no masks there."""
        del args, kwargs
        msg = (
            "expected gradient, got jacobian, which has no masked form; stack the masked gradients "
            "of a persistent tape, one for each entry of the target"
        )
        raise NotImplementedError(msg)

    batch_jacobian = jacobian


def _options(on_unknown: str, *, lazy: bool, return_mask: bool) -> Options:
    check_options(on_unknown, lazy=lazy, return_mask=return_mask)
    return Options(RULES, READERS, on_unknown)


def _seeds(target: Any, output_gradients: Any) -> Any:
    """Return the cotangents of targets, as tensors of their own."""

    def seed(y: Any, given: Any = None) -> Array:
        return tf.identity(tf.ones_like(y) if given is None else given)

    if output_gradients is None:
        return tf.nest.map_structure(seed, target)
    given = tf.nest.flatten(output_gradients)
    each = [seed(y, g) for y, g in zip(tf.nest.flatten(target), given, strict=True)]
    return tf.nest.pack_sequence_as(target, each)


def _frame(seeds: Any, before: int, how: Options) -> Frame:
    """Return a frame for the backward pass in the graph that is being built."""
    made = tf.compat.v1.get_default_graph().get_operations()[before:]
    every = tf.nest.flatten(seeds)
    since = frozenset(op.name for op in made)
    linear, _ = pairs.dependents(every, made, how, since)
    return Frame(how, linear, {x.ref(): Pair(x) for x in every}, since=since)


def _masked(found: Any, frame: Frame, *, lazy: bool, return_mask: bool) -> Any:
    """Return the masked form of gradients, and where they are active if asked."""
    every = tf.nest.flatten(found)
    place = [i for i, x in enumerate(every) if x is not None]
    tensors = [getattr(every[i], "values", every[i]) for i in place]  # of rows, the rows alone

    def run() -> list[Any]:
        return pairs.evaluate(tensors, frame)

    if lazy:
        healthy = _healthy(tensors, frame)
        values = tf.cond(healthy, lambda: tensors, lambda: [pairs.value_of(x) for x in run()])
    else:
        values = run()
    out, masks = list(every), list(every)
    for i, x in zip(place, values, strict=True):
        value = pairs.value_of(x)
        rows = isinstance(every[i], tf.IndexedSlices)
        out[i] = tf.IndexedSlices(value, every[i].indices, every[i].dense_shape) if rows else value
        if return_mask:
            masks[i] = pairs.spread(pairs.active_of(x), value)
    pack = functools.partial(tf.nest.pack_sequence_as, found)
    return (pack(out), pack(masks)) if return_mask else pack(out)


def _dense(x: Any) -> Any:
    """Return a gradient as a tensor, if there is one."""
    return None if x is None else tf.convert_to_tensor(x)


def _healthy(tensors: Sequence[Array], frame: Frame) -> Array:
    """Return whether ordinary gradients are finite, and no kernel hid that they are not."""
    healthy = tf.constant(True)  # noqa: FBT003  (a value)
    for x in tensors:
        healthy &= tf.reduce_all(pairs.is_finite(x))
    graph = tf.compat.v1.get_default_graph()
    for name in frame.backward:
        op = graph.get_operation_by_name(name)
        if op.type in pairs.BODIES:
            return tf.constant(False)  # noqa: FBT003  (what is in a body is not looked at)
        if RULES.get(op.type) is pairs.root:
            y = op.inputs[0]
            healthy &= tf.reduce_all(pairs.is_finite(y))
            if op.type == "SqrtGrad":
                healthy &= tf.reduce_all(tf.not_equal(y, tf.zeros((), y.dtype)))
    return healthy


def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, **how: Any
) -> Callable[..., Any]:
    """
    Value and masked gradient of a scalar function.

    An eager call is run as a `tf.function`, once traced for each signature; f is not converted by
    AutoGraph, so that it is written with `tf.cond` and `tf.while_loop`, or is a `tf.function`.

    Parameters
    ----------
    f : callable
        Function of tensors or structures to a real scalar.
    argnums : int or sequence of ints, default: 0
        Arguments to differentiate with respect to.
    **how
        `return_mask`, `lazy` and `on_unknown`, as for `GradientTape.gradient`.

    Returns
    -------
    callable
        Function of the arguments of `f` to ``(value, gradient)``; the gradient is
        ``(gradient, mask)`` with `return_mask`, each of them a tuple if `argnums` is a sequence.

    Raises
    ------
    TypeError
        If the value is no real scalar, or an argument has integers.

    Notes
    -----
    **Gradient.** As for `GradientTape`. What is not used has gradient 0, of the same shape.

    **Source.** `jax.value_and_grad`.

    Examples
    --------
    >>> import tensorflow as tf
    >>> value, slope = value_and_grad(lambda x: tf.stack([x, 1 / x])[0])(tf.constant(0.0))
    >>> float(value), float(slope)
    (0.0, 1.0)
    """
    _options(
        how.get("on_unknown", "warn"),
        lazy=how.get("lazy", False),
        return_mask=how.get("return_mask", False),
    )
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    both = _of_arguments(f, numbers, how, one=isinstance(argnums, int))
    compiled = tf.function(both, autograph=False)

    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        # Before the function is traced: there a Python number is a constant.
        args = _with_tensors(args, numbers)
        return (compiled if tf.executing_eagerly() else both)(*args, **kwargs)

    return wrapped


def _of_arguments(
    f: Callable[..., Any], numbers: tuple[int, ...], how: dict[str, Any], *, one: bool
) -> Callable[..., Any]:
    """Return the function of arguments to value and gradient, for the graph that is being built."""

    @tf.autograph.experimental.do_not_convert
    def both(*args: Any, **kwargs: Any) -> Any:
        chosen = [args[i] for i in numbers]
        with GradientTape() as tape:
            tape.watch(tf.nest.flatten(chosen))
            value = f(*args, **kwargs)
        _check_output(value)
        zero = tf.UnconnectedGradients.ZERO
        found = tape.gradient(value, chosen, unconnected_gradients=zero, **how)
        unwrap = operator.itemgetter(0) if one else tuple
        masked = how.get("return_mask", False)
        return value, tuple(map(unwrap, found)) if masked else unwrap(found)

    return both


def _with_tensors(args: tuple[Any, ...], numbers: tuple[int, ...]) -> tuple[Any, ...]:
    """Return arguments, those that are differentiated as tensors or variables."""
    every = list(args)
    for i in numbers:
        every[i] = tf.nest.map_structure(_differentiable, every[i])
    return tuple(every)


def _differentiable(x: Any) -> Any:
    """Return an argument as a tensor or a variable of real or complex numbers."""
    x = x if isinstance(x, tf.Variable) else tf.convert_to_tensor(x)
    if not (x.dtype.is_floating or x.dtype.is_complex):
        msg = f"expected real or complex arguments, got {x.dtype.name}; convert them"
        raise TypeError(msg)
    return x


def _check_output(value: Any) -> None:
    if not tf.is_tensor(value) or value.shape.rank not in (0, None):
        shapes = tf.nest.map_structure(lambda x: getattr(x, "shape", x), value)
        msg = f"expected a function with a scalar value, got {shapes}; sum it, or use GradientTape"
        raise TypeError(msg)
    if not value.dtype.is_floating:
        msg = f"expected a function with a real value, got {value.dtype.name}; use GradientTape"
        raise TypeError(msg)


def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, **how: Any) -> Callable[..., Any]:
    """
    Masked gradient of a scalar function.

    Parameters
    ----------
    f, argnums, **how
        As for `value_and_grad`.

    Returns
    -------
    callable
        Function of the arguments of `f` to the gradient.

    Notes
    -----
    **Gradient.** As for `GradientTape`. Take it twice for second derivatives: a `tf.GradientTape`
    around it has absent entries as zeros again, in its own pass.

    **Source.** `jax.grad`.

    Examples
    --------
    >>> import tensorflow as tf
    >>> x = tf.constant([0.0, 4.0])
    >>> grad(lambda x: tf.sqrt(x)[1])(x).numpy().tolist()
    [0.0, 0.25]
    >>> grad(lambda x: tf.sqrt(x)[1], return_mask=True)(x)[1].numpy().tolist()
    [False, True]
    """
    both = value_and_grad(f, argnums, **how)

    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return both(*args, **kwargs)[1]

    return wrapped


def explain(f: Callable[..., Any], *args: Any, argnums: int | Sequence[int] = 0) -> Report:
    """
    Say which line makes a gradient not finite, and whether the program or the mathematics does.

    Parameters
    ----------
    f : callable
        Function of tensors or structures to a real scalar; as for `value_and_grad`.
    *args : structure of tensors
        Where to take the gradient.
    argnums : int or sequence of ints, default: 0
        Arguments to differentiate with respect to.

    Returns
    -------
    Report
        Findings, each with a kind, an operation, its line, and what to do. It is clean if value
        and gradient are finite.

    Raises
    ------
    RuntimeError
        Inside `tf.function`.
    TypeError
        If the value is no real scalar, or an argument has integers.

    Notes
    -----
    **Gradient.** Nothing changes in it. What is explained is that of IEEE arithmetic, as XLA has
    it: outside XLA the kernels of ``tf.sqrt``, ``tf.math.rsqrt`` and ``tf.math.reciprocal`` turn 0
    times infinity into 0, and hide that a derivative does not exist.

    **Source.** JAX issue 1052.

    Examples
    --------
    >>> import tensorflow as tf
    >>> x = tf.constant([0.0, 2.0])
    >>> report = explain(lambda x: tf.reduce_sum(tf.where(x > 0, tf.math.log(x), 0.0)), x)
    >>> [(finding.kind, finding.operation, finding.selection) for finding in report.findings]
    [('BLOCKED', 'log', 'where')]
    """
    if not tf.executing_eagerly():
        msg = "expected eager tensors, got those of a graph, which have no values; call explain "
        raise RuntimeError(msg + "outside of tf.function")
    places = [i % len(args) for i in ((argnums,) if isinstance(argnums, int) else argnums)]
    args = _with_tensors(args, tuple(places))
    traced = _traced(f, args, places)
    entries = sum(tf.size(x).numpy() for x in tf.nest.flatten([args[i] for i in places]))
    checked = f"the gradient at {counted(entries)}"
    return make_report("tensorflow", _found(traced), checked)


class _Traced(NamedTuple):
    """A graph of a program and its gradient, and what is put into it."""

    graph: Any
    inputs: Sequence[Array]
    known: dict[Any, Any]
    value: Array
    seed: Array
    gradients: list[Array]
    since: list[Any]  # the operations of the gradient


def _traced(f: Callable[..., Any], args: tuple[Any, ...], places: Sequence[int]) -> _Traced:
    """Return a program and its gradient as a graph, by `tf.gradients`, which names formulas."""
    every = list(args)
    leaves = tf.nest.flatten([args[i] for i in places])
    inputs = [x for x in leaves if not isinstance(x, tf.Variable)]
    made: list[Any] = []

    @tf.autograph.experimental.do_not_convert
    def both(*tensors: Array) -> Any:
        given = iter(tensors)
        sources = [x if isinstance(x, tf.Variable) else next(given) for x in leaves]
        packed = tf.nest.pack_sequence_as([args[i] for i in places], sources)
        for i, x in zip(places, packed, strict=True):
            every[i] = x
        value = f(*every)
        _check_output(value)
        operations = tf.compat.v1.get_default_graph().get_operations
        before, seed = len(operations()), _seeds(value, None)
        found = tf.gradients([value], sources, [seed], unconnected_gradients="zero")
        rows = [getattr(x, "values", x) for x in found]
        made.extend([value, seed, rows, operations()[before:]])
        return value, rows

    specs = [tf.TensorSpec(x.shape, x.dtype) for x in inputs]
    concrete = tf.function(both, autograph=False).get_concrete_function(*specs)
    known = {x.ref(): y for x, y in zip(concrete.inputs[: len(inputs)], inputs, strict=True)}
    known |= {inner.ref(): outer for outer, inner in concrete.graph.captures}
    return _Traced(concrete.graph, inputs, known, *made)


def _found(traced: _Traced) -> list[Finding]:
    """Return what makes a value or a gradient not finite."""
    graph, inputs, known, value, seed, gradients, new = traced
    evidence = Evidence(Forward(numbers_of, inputs))
    since = frozenset(op.name for op in new)
    how = Options(RULES, READERS, "ignore")
    run = Run(Frame(how, known=known, since=since), Program(graph), evidence)
    (result,) = run.evaluate([value])
    known[seed.ref()] = Marked(tf.ones_like(result))
    # A gradient that is made of the constants of a custom gradient alone is used whole.
    outs = [x if isinstance(x, Marked) else Marked(x) for x in run.evaluate(gradients)]
    values = [values_of(x.value) for x in outs]
    results = zip((x.spoilt for x in outs), values, strict=True)
    findings = list(evidence.findings(reaching(results), result, named))
    actives = (pairs.spread(x.active, x.value).numpy() for x in outs)
    masked = sum(np.sum(~np.isfinite(x) & y) for x, y in zip(values, actives, strict=True))
    bad = not np.isfinite(values_of(result))
    return [*findings, *missing(findings, value=bad, ordinary=0, masked=masked)]
