"""A linear function of which all that is known is whether it is 0: see `barrier` of a backend."""

import math
from typing import Any

import tensorflow as tf

from safeops._core.types import Array, Function


def barrier(
    excess: Function, arrays: tuple[Array, ...], constants: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Return 0, and NaN where there is an excess, as derivative too."""

    @tf.custom_gradient
    def function(*given: Array) -> tuple[Any, Function]:
        bad = excess(*given, *constants)
        nan = tf.constant(math.nan, given[0].dtype)
        return tuple(tf.where(bad, nan, tf.zeros_like(x)) for x in given), function

    return tuple(function(*arrays))
