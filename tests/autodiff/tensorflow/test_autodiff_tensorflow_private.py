"""What the TensorFlow side reads of TensorFlow's inside is there, and means what it says."""

import inspect
from pkgutil import resolve_name

import pytest

from frameworks import Lazy
from private_names import FILES, described

pytestmark = pytest.mark.only("tensorflow")

tf = Lazy("tensorflow")
ROWS = list(described(FILES["tensorflow"].read_text()))


@pytest.fixture(scope="module")
def program():
    """Return the operations of a gradient through a call, a loop and a custom gradient."""
    from safeops._backends.tensorflow import private

    @tf.custom_gradient
    def ruled(x):
        return x * 2.0, lambda g: g * 2.0

    @tf.function(autograph=False)
    def called(x):
        return tf.sin(x), tf.cos(x)

    def step(i, y):
        return i + 1, tf.where(tf.constant(True), tf.sin(y), 0.0)

    variable = tf.Variable(1.0)

    @tf.function(autograph=False)
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            first, _ = tf.unstack(called(x)[0] * variable)
            y = tf.while_loop(lambda i, _: i < 3, step, (0, ruled(first)))[1]
        return tape.gradient(y, x)

    graph = gradient.get_concrete_function(tf.TensorSpec((2,))).graph
    operations = list(graph.get_operations())
    loops = [op for op in operations if "While" in op.type]
    for op in loops:
        operations += private.body_of(graph, op.get_attr("body").name).get_operations()
    return graph, operations


def scopes(operations):
    """Return the parts of the names of operations."""
    return {part for op in operations for part in op.name.split("/")}


def functions(operations):
    """Return the names of the functions that calls run."""
    return [op.get_attr("f").name for op in operations if op.type == "PartitionedCall"]


def source(module):
    """Return the source of a module of TensorFlow."""
    return inspect.getsource(resolve_name(f"tensorflow.python.{module}"))


# How a name is looked for, in the graph and its operations.
FOUND = {
    "gradient_tape": lambda _, ops: "gradient_tape" in scopes(ops),
    "gradients": lambda _, ops: "gradients" in scopes(ops),
    "_grad": lambda _, ops: "Sin_grad" in scopes(ops),
    "zeros": lambda _, ops: "zeros" in scopes(ops),
    "__backward_": lambda _, ops: any("__backward_called" in x for x in functions(ops)),
    "_capture_helper": lambda _, ops: any(
        frame.name == "_capture_helper" for op in ops for frame in op.traceback
    ),
    "imperative_grad": lambda _, ops: any(
        frame.name == "imperative_grad" for op in ops for frame in op.traceback
    ),
    "grad_wrapper": lambda *_: "def grad_wrapper" in source("ops.custom_gradient"),
    "IdentityN._gradient_op_type": lambda _, ops: any(
        "_gradient_op_type" in op.node_def.attr for op in ops if op.type == "IdentityN"
    ),
    "Graph._get_function": lambda graph, _: callable(graph._get_function),
    "FuncGraph.outer_graph": lambda graph, _: graph.outer_graph is not None,
    "FuncGraph.captures": lambda graph, _: len(list(graph.captures)) == 1,
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_names_inside_of_tensorflow_are_there(row, program):
    """TensorFlow has each name that the file has, where a program of its own shows it."""
    if row.name.startswith("tensorflow."):
        module, _, name = row.name.rpartition(".")
        assert hasattr(resolve_name(module), name)  # which may be None
    else:
        assert FOUND[row.name](*program)


def test_names_inside_of_tensorflow_mean_what_they_say(program):
    """What is asked of a graph has the answers that the evaluator expects."""
    from safeops._backends.tensorflow import private

    graph, operations = program
    outer = next(iter(private.captures_of(graph)))[0]

    assert outer.dtype == tf.resource
    assert any(op.type == "Const" and private.is_repeated(op) for op in operations)
    assert [op.name for op in operations if private.has_custom_gradient(op)] == ["IdentityN"]
    assert not private.is_differentiated()
    assert not private.is_watched()
    with tf.GradientTape():
        assert private.is_differentiated()


def test_a_name_that_has_gone_is_told_in_one_sentence():
    """Where a graph has not what is read of it, the error says so, with both versions."""
    from safeops._backends.tensorflow import private

    said = f"up to TensorFlow {private.NEWEST} and found {private.FOUND}, .*captures"
    with pytest.raises(ImportError, match=said):
        private.captures_of(object())
