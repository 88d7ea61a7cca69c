"""
Sites: the operation of the user's program, and its line, from which an operation comes.

`tf.gradients` puts the formula of each operation into a name scope with the name of the operation,
also in the bodies of functions, loops and branches. Each operation also keeps its Python stack.
"""

import re
from typing import Any

import numpy as np
import tensorflow as tf

from safeops._backends.tensorflow import private
from safeops._core.types import Array
from safeops._source.locations import is_library, location
from safeops._source.names import IN_TENSORFLOW, OWN
from safeops.autodiff._explain.evidence import Site


def site_of(op: Any) -> Site:
    """Return the site of an operation of the program."""
    frames = [frame for frame in op.traceback if not is_library(frame.filename)]
    where = location(frames[-1].filename, frames[-1].lineno) if frames else None
    word = NAMES.get(op.type, _words(op.type))
    if op.type == "StridedSlice":
        word = "index" if op.get_attr("shrink_axis_mask") else "slice"
    return Site(word, where, (id(op.graph), op.name), _caller(op))


def _words(kind: str) -> str:
    """Return the type of an operation in lower case with underscores."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", re.sub(r"V\d+$", "", kind)).lower()


def _caller(op: Any) -> str:
    """Return the TensorFlow function that an operation is part of, by its name scope."""
    scopes = [re.sub(r"_\d+$", "", scope) for scope in op.name.split("/")]
    return next((OWN[scope] for scope in scopes if scope in OWN), "")


def named(site: Site) -> str:
    """Return the name of an operation, as in the array API standard."""
    return site.caller or site.operation


NAMES = IN_TENSORFLOW | {
    "IdentityN": "a function with a gradient of its own",
    "Neg": "negative",
    "ReadVariableOp": "input",
}


class Program:
    """The graph of the program or of one of its bodies, whose formulas name its operations."""

    def __init__(self, graph: Any) -> None:
        self.by_name = {op.name: op for op in graph.get_operations()}

    def origin(self, op: Any) -> Any:
        """Return the operation of the program to whose formula an operation belongs."""
        scopes = op.name.split("/")
        starts = [i + 1 for i, x in enumerate(scopes) if private.GRADIENTS.fullmatch(x)]
        for start in reversed(starts):
            for end in range(len(scopes), start, -1):
                name = "/".join(scopes[start:end])
                if name.endswith(private.SUFFIX):
                    found = self.by_name.get(name.removesuffix(private.SUFFIX))
                    if found is not None:
                        return found
        return None

    def dropping(self, op: Any) -> Any:
        """Return the operation of the program that this formula makes absent entries for."""
        if op.type == "UnsortedSegmentSum":  # it puts the rows of a gather in their places
            return self.origin(op.inputs[0].op) or self.origin(op)
        return self.origin(op)


def numbers_of(x: Any) -> np.ndarray | None:
    """Return the numbers of a value; None if it cannot be infinite."""
    is_number = tf.is_tensor(x) and (x.dtype.is_floating or x.dtype.is_complex)
    return values_of(x) if is_number else None


def values_of(x: Array) -> np.ndarray:
    """Return real or complex numbers as an array."""
    numbers: np.ndarray = x.numpy()
    return numbers if numbers.dtype.kind in "fc" else numbers.astype(np.float32)  # bfloat16
