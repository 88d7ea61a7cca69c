"""
What this package reads of TensorFlow's inside, each once: bodies, scopes of names, Python stacks.

Above each name stands a comment with the name, the newest version of TensorFlow in which it was
seen, and its purpose. No public name serves that purpose. The documentation shows these comments as
a table, and a test asks the installed TensorFlow for each. Types and attributes of operations are
public, as those of `tf.raw_ops`.
"""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pkgutil import resolve_name
from typing import Any, TypeVar, cast

import tensorflow as tf

from safeops._core.errors import gone, require
from safeops._core.types import Array, Function

F = TypeVar("F", bound=Function)

NEWEST = "2.21"  # that was tried
FOUND = str(tf.__version__)
require("safeops", "TensorFlow", FOUND, "2.18")


def reading(f: F) -> F:
    """Let a function that reads TensorFlow's inside say in one sentence that a name is gone."""

    @wraps(f)
    def read(*args: Any) -> Any:
        try:
            return f(*args)
        except AttributeError as error:
            layer = "safeops.autodiff.tensorflow"
            raise gone(layer, "TensorFlow", FOUND, NEWEST, str(error)) from error

    return cast("F", read)


# Who looks on


# tensorflow.dtensor.python.api._dtensor_singleton (2.21): whether there are DTensors, which a trace
# does not tell from other tensors.
def has_dtensors() -> bool:
    """Whether DTensors are in use; where TensorFlow has no longer that name, yes is safe."""
    api = sys.modules.get("tensorflow.dtensor.python.api")
    return getattr(api, "_dtensor_singleton", api) is not None


def asked(path: str) -> Callable[..., bool]:
    """Return a question that TensorFlow answers; where it has no longer that name, yes is safe."""
    try:
        return resolve_name(path)
    except (AttributeError, ImportError):  # pragma: no cover
        return lambda *_: True


# tensorflow.python.eager.record.could_possibly_record (2.21): whether a tape or an accumulator
# looks on; then no operation is run as a part of a program.
is_differentiated = asked("tensorflow.python.eager.record.could_possibly_record")

# tensorflow.python.framework.op_callbacks.should_invoke_op_callbacks (2.21): whether a check of
# numbers does.
is_watched = asked("tensorflow.python.framework.op_callbacks.should_invoke_op_callbacks")

# tensorflow.python.ops.control_flow_util.GraphOrParentsInXlaContext (2.21): whether XLA compiles a
# graph: some operations cost it more to compile, and others the kernels more to run.
_is_for_xla: Callable[..., bool] = asked(
    "tensorflow.python.ops.control_flow_util.GraphOrParentsInXlaContext"
)


def in_xla() -> bool:
    """Whether XLA compiles this graph; what another graph does to its function is not known."""
    return not tf.executing_eagerly() and _is_for_xla(tf.compat.v1.get_default_graph())


# tensorflow.python.eager.forwardprop_util.pack_tangents (2.21): what accumulators follow.
_tangents: Callable[..., Any] = asked("tensorflow.python.eager.forwardprop_util.pack_tangents")


def is_accumulated(args: Sequence[Array]) -> bool:
    """Whether an accumulator, and not a tape alone, follows one of the tensors."""
    found = _tangents(list(args))
    return found is True or any(found.indices)


# Bodies


@reading
def body_of(graph: Any, name: str) -> Any:
    """Return the graph of a function that an operation of a graph calls."""
    # Graph._get_function (2.21): the body of a call, loop or branch.
    # FuncGraph.outer_graph (2.21): the graph around, which may know the function.
    while (body := graph._get_function(name)) is None:
        graph = graph.outer_graph
    return body.graph


@reading
def captures_of(graph: Any) -> Sequence[tuple[Any, Array]]:
    """Return what a graph reads from outside, each beside its own input for it."""
    # FuncGraph.captures (2.21): the numbers and variables with which a program runs again.
    return list(graph.captures)


@reading
def has_custom_gradient(op: Any) -> bool:
    """Whether an `IdentityN` is a function with a gradient of its own."""
    # IdentityN._gradient_op_type (2.21): the mark of `tf.custom_gradient` in a graph.
    return "_gradient_op_type" in op.node_def.attr


# Scopes of names: whose formula an operation belongs to.

# gradient_tape (2.21): the scope of the formulas of a tape.
FORMULA = "gradient_tape"
# gradients (2.21): the scope in which `tf.gradients` writes formulas, also those of a body.
GRADIENTS = re.compile(r"gradients(_\d+)?")
# _grad (2.21): ends the scope of the formula of one operation, after the name of this.
SUFFIX = "_grad"
# zeros (2.21): names a zero that stands for the cotangent of an unused result.
ZEROS = re.compile(r"zeros(_like)?(_\d+)?")
# __backward_ (2.21): begins the name of the derivative of a call.
BACKWARD = "__backward_"


def in_gradients(scopes: Iterable[str]) -> bool:
    """Whether one of the scopes is that of a body's formulas."""
    return "gradients" in scopes


# Python stacks: who made an operation.


def is_repeated(op: Any) -> bool:
    """Whether a formula in a body repeats a literal of the program."""
    # _capture_helper (2.21): the function that copies the literal.
    return any(frame.name == "_capture_helper" for frame in op.traceback)


def made_by_custom_gradient(op: Any) -> bool:
    """Whether a custom gradient made an operation, and not the tape itself."""
    frames = list(op.traceback)
    # imperative_grad (2.21): the function by which a tape runs formulas.
    taped = [i for i, frame in enumerate(frames) if frame.name == "imperative_grad"]
    since = frames[taped[-1] :] if taped else frames
    return any(frame.filename.endswith(CUSTOM) for frame in since)


def made_by_recomputing(op: Any) -> bool:
    """Whether the formula of `tf.recompute_grad` made an operation."""
    # grad_wrapper (2.21): the function in which that formula refuses a second derivative.
    return any(x.name == "grad_wrapper" and x.filename.endswith(CUSTOM) for x in op.traceback)


# tensorflow.python.ops.custom_gradient (2.21): its file, in which custom gradients are called.
CUSTOM = "ops/custom_gradient.py"
