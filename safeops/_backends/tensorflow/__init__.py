"""
TensorFlow: eager and symbolic tensors and variables, under names of the array API standard.

array-api-compat does not know TensorFlow (1.16; its pull request 441 is open). Once it does,
`namespace` and the modules that it is made of can go. Every function runs eagerly, in
`tf.function`, under XLA, and without static shapes.
Comments name the faults of TensorFlow 2.21, on CPU, that are repaired here; a number of six digits
in a comment is an issue of TensorFlow.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from safeops._backends.array_api import MATRICES, ArrayAPI
from safeops._backends.tensorflow import elementwise, losses, namespace, programs, rules, usual
from safeops._backends.tensorflow.derivatives import (
    accumulated,
    barrier,
    by_tapes_only,
    detects,
    fresh,
    pulled_back,
    tapes_only,
    transposed,
)
from safeops._backends.tensorflow.dtypes import (
    INEXACT,
    REAL,
    asarray,
    floating,
    result_type,
    tensor,
)
from safeops._backends.tensorflow.reductions import loses
from safeops._core.types import Array, Axis, DType, Function, Namespace

# Names in `scipy.special`, and here.
SPECIAL = {"gammaln": "lgamma", "gammainc": "igamma", "gammaincc": "igammac"}

# What rolls, gathers, scatters or factors: DTensor of TensorFlow (2.21) has no layouts for that,
# and ends the process for some of it. So do the functions of segments.
WITHOUT_LAYOUT = f"{MATRICES} nancumprod nanprod safe_interp safe_pdist safe_prod".split()


class TensorFlow(ArrayAPI):
    """TensorFlow tensors and variables."""

    name = "tensorflow"

    kernels: Mapping[str, Function] = losses.KERNELS
    kernels_of_steps: Mapping[str, Function] = usual.OF_STEPS
    formulas: Mapping[str, Function] = elementwise.PRODUCTS
    keeps_exponent = False  # at p == 0 the slope is 0 * inf (2.21)
    differentiates = True

    def __init__(self, xp: Namespace) -> None:
        super().__init__(xp)
        self.programs: dict[str, programs.Program] = {}

    def owns(self, x: object) -> bool:
        """Whether `x` is of TensorFlow, or a symbol of Keras; `check` refuses some of them."""
        return tf.is_tensor(x) or _is_of_keras(x)

    def kernel(self, name: str, generic: Function) -> Function | None:
        """Return a program of many kernels, or the kernel; some refuse a DTensor first."""
        kernel = self.kernels.get(name)
        if name in self.kernels_of_steps:
            kernel = partial(self.kernels_of_steps[name], generic)
        if name in programs.NAMES:
            if name not in self.programs:
                self.programs[name] = programs.Program(generic, kernel)
            return self.programs[name]
        if name in WITHOUT_LAYOUT or name.startswith("segment_"):
            return partial(_refuse_parts, kernel)
        return kernel

    def check(self, x: Array) -> None:
        """Refuse ragged and sparse tensors, whose empty entries have no place in a `where`."""
        if isinstance(x, tf.Tensor):
            return
        kind = type(x).__name__
        for refused, way_out in (
            (tf.RaggedTensor, "pass x.to_tensor(), and where= for its padding"),
            (tf.SparseTensor, "pass tf.sparse.to_dense(x)"),
            (tf.IndexedSlices, "pass tf.convert_to_tensor(x)"),
        ):
            if isinstance(x, refused):
                msg = f"expected a dense tensor, got {kind}; {way_out}"
                raise TypeError(msg)
        if _is_of_keras(x):
            msg = f"expected a tensor, got {kind}; wrap the call in keras.layers.Lambda or a Layer"
            raise TypeError(msg)

    def accepts_numpy(self, x: Any) -> bool:
        """Take all of NumPy's, as TensorFlow does."""
        del x
        return True

    def constant(self, x: Any, like: Array) -> Array:
        """Return a tensor: real numbers in the dtype of `like`, if this dtype is real too."""
        as_like = x.dtype.kind == "f" and like.dtype in REAL
        return tf.constant(x, like.dtype if as_like else None)

    def result_type(self, args: Sequence[Any]) -> DType:
        """Return the standard's promotion; integers divide to the dtype of `tf.truediv`."""
        return floating(result_type(*args))

    def cast(self, x: Any, dtype: DType, like: Array) -> Array:
        """Array, variable or Python scalar as a tensor of `dtype`."""
        del like  # TensorFlow moves a scalar to the device of its operand
        return asarray(x, dtype=dtype)

    def flatten_axes(self, x: Array, axis: Axis) -> Array:
        """Return `x` with these axes as one, the last; that it is one may be all that is known."""
        return x if axis == -1 and x.shape.rank is None else super().flatten_axes(x, axis)

    def flattened(self, x: Array, start: int) -> Array:
        """Return `x` with its axes from `start` on as one; its length need not be known."""
        shape = tf.shape(x)
        return tf.reshape(x, tf.concat([shape[:start], [tf.reduce_prod(shape[start:])]], 0))

    def with_trailing_shape(self, x: Array, tail: tuple[int, ...]) -> Array:
        """Return `x` with these last lengths; a running program finds that it has others."""
        return tf.reshape(x, tf.concat([tf.shape(x)[: -len(tail)], tail], 0))

    def extreme(self, x: Array, axis: Axis, sign: int) -> Array:
        """Return the largest or smallest entry of each slice, axes kept; others have slope 0."""
        function = tf.reduce_max if sign == 1 else tf.reduce_min
        x = loses(function, x, axis) if x.dtype in REAL else x
        return super().extreme(x, axis, sign)

    def rough_max(self, x: Array, axis: Axis) -> Array:
        """Return the largest entry of each slice, axes kept; XLA passes over NaN."""
        return tf.reduce_max(x, axis, keepdims=True)

    def unfused_product(self, x: Array) -> Array:
        """Return x plus a constant of which XLA does not know that it is 0."""
        # For the sum of squares of ``x * scale`` XLA multiplies ``sum(x**2)`` with ``scale**2`` in
        # programs with reverse over forward mode (2.21), and leaves the range.
        if tf.executing_eagerly():
            return x
        absent = tf.math.is_nan(tf.stop_gradient(x))
        return x + tf.where(absent, tf.constant(math.nan, x.dtype), tf.zeros_like(x))

    def special(self, name: str) -> Function | None:
        """Return a function of `tf.math`."""
        return getattr(tf.math, SPECIAL.get(name, name))

    def with_slope(self, f: Function, slope: Function, is_filled: Function) -> Function:
        """Return a function with a rule."""

        def pull(cotangent: Array, _: Array, x: Array) -> tuple[Array]:
            return (elementwise.where(is_filled(x), 0.0, cotangent) * slope(x),)

        return rules.short(f, f, pull)

    def shortened(
        self, steps: Function, value: Function, slopes: Function, inside: Function | None
    ) -> Function:
        """Return a function that is short if all entries are inside."""
        return rules.shortened(steps, value, slopes, inside)

    def barrier(
        self, excess: Function, arrays: tuple[Array, ...], constants: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        """Return 0, and NaN where there is an excess, as derivative too."""
        return barrier(excess, arrays, constants)

    def gather(self, x: Array, ids: Array) -> Array:
        """Return the entries of `x` with these indices along the first axis."""
        # With an axis before it, for which the gradient is dense; else it is IndexedSlices. Entries
        # without numbers are refused by tf.gather_nd (2.21).
        if x.shape.rank is not None and 0 in x.shape[1:]:
            return tf.gather(x, ids)
        return tf.gather_nd(x, ids[None, ..., None])[0]

    def ranks(self, knots: Array, x: Array) -> Array:
        """Return for each number how many knots are not above it."""
        found = tf.searchsorted(knots, tf.reshape(x, [-1]), side="right")
        return tf.reshape(found, tf.shape(x))

    def pairs(self, x: Array) -> tuple[Array, Array]:
        """Return the indices i and j of all pairs ``i < j``; XLA needs a length that is known."""
        if x.shape[-2] is not None:
            i, j = np.triu_indices(x.shape[-2], 1)
            return tf.constant(i), tf.constant(j)
        place = tf.range(tf.shape(x)[-2])
        found = tf.where(place[:, None] < place[None, :])
        return found[:, 0], found[:, 1]

    def segment_sum(self, x: Array, ids: Array, number: int) -> Array:
        """Return the sums of the entries of each id; the gradient is that of `gather`."""
        if x.shape.rank is not None and 0 in x.shape[1:]:  # refused by tf.scatter_nd (2.21)
            return tf.math.unsorted_segment_sum(x, ids, number)
        shape = tf.concat([[number], tf.shape(x)[1:]], 0)
        return tf.scatter_nd(ids[None, :, None], x[None], tf.cast(shape, ids.dtype))

    def segment_max(self, x: Array, ids: Array, number: int, least: float) -> Array:
        """Return the largest entry of each id."""
        found = tf.math.unsorted_segment_max(x, ids, number)
        return tf.maximum(found, tf.constant(least, x.dtype))

    def stop_gradient(self, x: Array) -> Array:
        """Return `x` without its derivative."""
        return tf.stop_gradient(tensor(x))

    def grad(self, f: Function) -> Function:
        """Reverse mode, by `tf.GradientTape`."""

        def gradients(*args: Any) -> tuple[Array, ...]:
            args = fresh(args)
            with tf.GradientTape() as tape:
                tape.watch([x for x in args if x.dtype in INEXACT])  # TensorFlow warns of others
                value = tensor(f(*args))
            return pulled_back(tape, value, args)

        return gradients

    def jvp(self, f: Function) -> Function:
        """Forward mode, by `tf.autodiff.ForwardAccumulator`; inside another, by two tapes."""

        def tangent(args: Sequence[Any], tangents: Sequence[Any]) -> Array:
            args = fresh(args)
            push = transposed if tapes_only.get() else accumulated
            pairs = [(x, t) for x, t in zip(args, tangents, strict=True) if x.dtype in INEXACT]
            along = [asarray(t, dtype=x.dtype) for x, t in pairs]
            return push(lambda: tensor(f(*args)), [x for x, _ in pairs], along)

        return tangent

    @contextmanager
    def nan_detector(self) -> Iterator[None]:
        """Raise InvalidArgumentError where a NaN or inf is made, by `enable_check_numerics`."""
        # A `tf.function` traced inside keeps its checks; a `tf.function` traced before has none,
        # and XLA compiles none. Inside, `jvp` uses tapes: ForwardAccumulator would trace each op
        # with its checks, and keep that trace for good.
        was_on = detects()
        with by_tapes_only():
            if not was_on:
                tf.debugging.enable_check_numerics()
            try:
                yield
            finally:
                if not was_on:
                    tf.debugging.disable_check_numerics()


def _refuse_parts(kernel: Function | None, *args: Any, **options: Any) -> Array | None:
    """Raise TypeError for a DTensor, which only an eager one is known to be; else ask a kernel."""
    if any("CUSTOM" in (getattr(x, "device", None) or "") for x in (*args, *options.values())):
        way_out = "dtensor.unpack(dtensor.relayout(x, dtensor.Layout.replicated(mesh, rank)))[0]"
        msg = (
            "expected tensors of one device, got a DTensor, in which TensorFlow has no layout for "
            f"this operation; pass {way_out}"
        )
        raise TypeError(msg)
    return None if kernel is None else kernel(*args, **options)


def _is_of_keras(x: object) -> bool:
    symbol = getattr(sys.modules.get("keras"), "KerasTensor", None)
    return symbol is not None and isinstance(x, symbol)


backend = TensorFlow(namespace)
