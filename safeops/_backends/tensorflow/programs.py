"""
Operations of many kernels as one program: eager TensorFlow takes 5 to 8 us for each kernel.

Only where nothing differentiates and nothing watches: a program has no derivative here, so that
derivatives are those of the kernels, one by one.
"""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from safeops._backends.devices import runs_as_program
from safeops._backends.tensorflow.private import is_differentiated, is_watched
from safeops._core.dtypes import SCALARS
from safeops._core.types import Array, Function

# Of 10 entries these took 2.6 to 20 times as long as a double where by hand, and as programs 1.1 to
# 1.9, the power 3.2 (CPU, 2.21). The others have few kernels; a deviation differs in its last bit
# as a program. GPUs were not measured: there each kernel runs by itself.
_MANY = """
    nanmax nanmin nansum safe_distance safe_log_softmax safe_logsumexp safe_max safe_min safe_norm
    safe_normalize safe_pow safe_softmax safe_sum xlog1py xlogy
"""
NAMES = frozenset(_MANY.split())

# Of 10,000 entries each is still faster as a program; of a million `xlogy` takes 4.7 in place of
# 1.9, as a graph computes it in more terms.
_FEW = 2**14
_MOST = 64  # programs of one function: one called with ever new numbers is then not compiled
_CONSTANTS = (*SCALARS, str, type(None))
_ARRAY = object()


class Program:
    """A function of the house as one program for each dtype, rank and constant."""

    # It knows no shapes, so that it is traced once. What asks for shapes, such as an error for
    # arrays that do not fit, has nothing to say about entries in one shape.

    def __init__(self, generic: Function, kernel: Function | None = None) -> None:
        self.generic, self.kernel = generic, kernel or (lambda *_, **__: None)
        self.programs: dict[Any, Function | None] = {}

    def __call__(self, *args: Any, **options: Any) -> Array | None:
        """Return the value, by the kernel where no program runs; None: the function is to run."""
        value = self.value(*args, **options)
        return self.kernel(*args, **options) if value is None else value

    def value(self, *args: Any, **options: Any) -> Array | None:
        """Return the value by a program, if one is to run."""
        if not tf.executing_eagerly() or is_differentiated() or is_watched():
            return None
        values = (*args, *options.values())
        arrays = [x for x in values if isinstance(x, tf.Tensor)]
        if not _fit(arrays):
            return None
        constants = [_ARRAY if isinstance(x, tf.Tensor) else x for x in values]
        if not all(x is _ARRAY or _is_constant(x) for x in constants):
            return None
        program = self.program(arrays, constants, tuple(options))
        if program is None:
            return None
        # A call of the program itself would take twice as long, and of a `tf.function` five times.
        [value] = tf.raw_ops.PartitionedCall(args=arrays, Tout=[program.output_dtypes], f=program)
        return value

    def program(self, arrays: list[Array], constants: list[Any], names: Sequence[str]) -> Any:
        """Return what was traced for such arguments; None if there is nothing, or too much."""
        kinds = tuple((x.dtype, len(x.shape)) for x in arrays)
        # By type and spelling: 1, 1.0 and True are equal, and so are 0.0 and -0.0.
        key = (kinds, *map(type, constants), *map(repr, constants), *names)
        if key not in self.programs:
            if len(self.programs) == _MOST:
                return None
            self.programs[key] = self.traced(kinds, constants, names)
        return self.programs[key]

    def traced(self, kinds: Any, constants: list[Any], names: Sequence[str]) -> Any:
        """Return a graph of the arrays among the arguments; None if the function raises."""

        def call(*arrays: Array) -> Array:
            rest = iter(arrays)
            values = [next(rest) if x is _ARRAY else x for x in constants]
            first = len(values) - len(names)
            args, options = values[:first], dict(zip(names, values[first:], strict=True))
            value = self.kernel(*args, **options)
            return self.generic(*args, **options) if value is None else value

        specs = [tf.TensorSpec([None] * rank, dtype) for dtype, rank in kinds]
        try:
            return tf.function(call, specs, autograph=False).get_concrete_function()
        except (TypeError, ValueError, tf.errors.OpError):
            return None  # the function says what is wrong, as if there were no program


def _fit(arrays: Sequence[Array]) -> bool:
    """Whether arrays on a CPU have one shape, with a few entries; or no axes, as numbers."""
    shapes = {tuple(x.shape) for x in arrays} - {()}
    return (
        bool(arrays)
        and len(shapes) < 2  # noqa: PLR2004  (one shape)
        and all(map(runs_as_program, arrays))
        and all(0 < math.prod(shape) <= _FEW for shape in shapes)
    )


def _is_constant(x: Any) -> bool:
    return type(x) in _CONSTANTS or (type(x) is tuple and all(map(_is_constant, x)))
