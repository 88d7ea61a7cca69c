"""What `explain` says of TensorFlow programs: the reported ones, control flow, hidden kernels."""

import inspect

import numpy as np
import pytest

pytestmark = [pytest.mark.only("tensorflow"), pytest.mark.usefixtures("quiet")]
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not selected; this is about it alone")

import reported_tensorflow as reported  # noqa: E402
import tape  # noqa: E402
from expected import kinds_expected, line_of  # noqa: E402
from safeops.autodiff import tensorflow as masked  # noqa: E402

total = tf.reduce_sum
X, NAN = np.array([0.0, 4.0]), np.nan
PROGRAMS_RUN = reported.PROGRAMS_RUN // 10


# The programs that people reported: operation, what its slope is, entries, selection. The line is
# that of the entry in the table, but for those whose functions stand elsewhere.
BLOCKED = {
    "where": ("div", "-inf", 1, "where"),
    "logarithm": ("log", "inf", 1, "where"),
    "entry of a stack": ("div", "-inf", 1, "index"),
    "gather": ("sqrt", "inf", 1, "index"),
    "scatter_nd": ("sqrt", "inf", 1, "slice"),
    "tensor_scatter_nd_update": ("sqrt", "inf", 1, "assignment"),
    "dynamic_partition": ("sqrt", "inf", 1, "index"),
    "boolean_mask": ("div", "inf", 1, "index"),
    "sequence_mask": ("log", "inf", 1, "where"),
    "segment_sum": ("sqrt", "inf", 1, "index"),
    "segment_max": ("log", "inf", 1, "segment_max"),
    "unsorted_segment_max": ("log", "inf", 1, "unsorted_segment_max"),
    "reduce_max": ("log", "inf", 1, "max"),
    "reduce_min": ("div", "-inf", 1, "min"),
    "tie": ("log", "inf", 1, "max"),
    "maximum": ("log", "inf", 1, "maximum"),
    "clip_by_value": ("log", "inf", 1, "clip"),
    "relu": ("log", "inf", 1, "relu"),
    "relu6": ("div", "-inf", 1, "relu6"),
    "sort": ("sqrt", "inf", 1, "index"),
    "top_k": ("sqrt", "inf", 1, "top_k"),
    "pad": ("sqrt", "inf", 1, "index"),
    "tile": ("sqrt", "inf", 1, "index"),
    "cumsum": ("sqrt", "inf", 1, "index"),
    "max_pool1d": ("sqrt", "inf", 2, "max_pool"),
    "einsum": ("sqrt", "inf", 2, "slice"),
    "softmax": ("log", "inf", 1, "index"),
    "cross entropy": ("log", "inf", 1, "index"),
    "function": ("log", "inf", 1, "where"),
    "cond": ("log", "inf", 1, "where"),
    "switch_case": ("sqrt", "inf", 1, "index"),
    "while_loop": ("sqrt", "inf", 2, "index"),  # once in each of two passes
    "nested loops": ("log", "inf", 1, "where"),
    "map_fn": ("sqrt", "inf", 1, "index"),
    "custom_gradient": ("sqrt", "inf", 1, "index"),
    "normalised gradient": ("pow", "inf", 1, "index"),
    "complex": ("div", "-inf", 1, "where"),
}
ELSEWHERE = {
    "logarithm": (reported.log_where, "tf.where"),
    "function": (reported.log_where, "tf.where"),
    "cond": (reported.log_where, "tf.where"),
    "while_loop": (reported.loop, "tf.sqrt"),
    "nested loops": (reported.nested_loops, "tf.where"),
}
# Kind, operation, what it is, entries.
UNDEFINED = {
    "zero times a logarithm": ("FORWARD", "log", "-inf", 1),
    "quotient of zeros": ("FORWARD", "div", "nan", 1),
    "square of a root": ("GENUINE", "sqrt", "inf", 1),
    "zero times an inverse": ("FORWARD", "reciprocal", "inf", 1),
    "zero times an inverse root": ("FORWARD", "rsqrt", "inf", 1),
    "root at the edge": ("GENUINE", "sqrt", "inf", 1),
    "product with a mask": ("GENUINE", "sqrt", "inf", 1),
    "largest of NaN": ("FORWARD", "mul", "nan", 1),
    "convention of a custom gradient": ("GENUINE", "sqrt", "inf", 2),
    "its condition, made with the value": ("GENUINE", "sqrt", "inf", 2),
    "that in a function": ("GENUINE", "sqrt", "inf", 2),
    "that in a branch": ("GENUINE", "sqrt", "inf", 2),
    "root in a loop": ("GENUINE", "sqrt", "inf", 1),
}


def lines_of(name):
    """Return the lines of a program of the tables, or the one that its function has."""
    if name in ELSEWHERE:
        return {line_of(*ELSEWHERE[name])}
    f = (reported.PROGRAMS | reported.UNDEFINED)[name][0]
    lines, start = inspect.getsourcelines(f)
    return set(range(start, start + len(lines)))


def report_on(name):
    """Return the only finding about a reported program."""
    f, x, _ = (reported.PROGRAMS | reported.UNDEFINED)[name]
    (finding,) = masked.explain(f, reported.at(x)).findings
    return finding


@pytest.mark.parametrize("name", BLOCKED)
def test_reported_programs(name):
    """Each has one finding, with its line, and that of the selection."""
    found = report_on(name)

    said = (found.operation, found.what, found.entries, found.selection)
    assert (found.kind, *said) == ("BLOCKED", *BLOCKED[name])
    assert found.where.line in lines_of(name)
    assert found.selected_at.line in lines_of(name)


@pytest.mark.parametrize("name", UNDEFINED)
def test_undefined_derivatives(name):
    """What no selection explains is found to be so, also where a kernel returns 0."""
    found = report_on(name)

    assert (found.kind, found.operation, found.what, found.entries) == UNDEFINED[name]
    assert found.where.line in lines_of(name)


def test_constants_of_a_custom_gradient_are_not_clean():
    """A NaN that its zeros meet is told, though no operation is known for it."""
    found = report_on("zeros of a custom gradient")

    assert (found.kind, found.reason) == ("UNKNOWN", "lost")


def test_all_of_them_are_there():
    """No reported program is left out, but three that have tests of their own."""
    apart = {"norm", "recompute_grad", "zeros of a custom gradient"}
    every = {*reported.PROGRAMS, *reported.UNDEFINED} - apart

    assert {*BLOCKED, *UNDEFINED} == every


def test_a_function_of_tensorflow_itself_stands_at_the_call_of_explain():
    """Without a line of the user's in it, the line that calls counts, and the library's name."""
    report = masked.explain(tf.norm, tf.zeros(2))

    here = line_of(test_a_function_of_tensorflow_itself_stands_at_the_call_of_explain, "tf.norm")
    (found,) = report.findings
    assert (found.kind, found.operation, found.where.line) == ("GENUINE", "norm", here)


def test_what_is_run_again_is_not_judged():
    """Selections are not seen in what `tf.recompute_grad` runs again, and it is said so."""
    (found,) = masked.explain(*reported.PROGRAMS["recompute_grad"][:1], tf.constant(X)).findings

    assert found.kind == "UNKNOWN"


def value_and_gradients(f, x):
    """Return the value, the ordinary gradient and the masked gradient."""
    with tf.GradientTape() as running:
        running.watch(x)
        value = f(x)
    zero = tf.UnconnectedGradients.ZERO
    ordinary = running.gradient(value, x, unconnected_gradients=zero)
    return value, *map(tf.convert_to_tensor, (ordinary, masked.grad(f)(x)))


def test_random_programs():
    """A report has the kinds that ordinary and masked gradient ask for, and a line for each."""
    found = []
    for seed in range(PROGRAMS_RUN):
        program, point = tape.drawn(seed)
        f, x = reported.on_tensorflow(program), tf.constant(point)

        wanted, report = kinds_expected(*value_and_gradients(f, x)), masked.explain(f, x)

        # There may be more: kernels hide some of it from the ordinary tape.
        kinds = {finding.kind for finding in report.findings}
        found.append(kinds)
        assert wanted <= kinds, f"seed {seed}: {program}"
        assert wanted != {"BLOCKED"} or kinds == wanted, f"seed {seed}: {program}"
        assert wanted or kinds <= {"BLOCKED"}, f"seed {seed}: {program}"
        assert all(f.where or f.operation == "input" for f in report.findings)
        assert all(f.selected_at for f in report.findings if f.kind == "BLOCKED")
    assert {"BLOCKED"} in found
    assert set() in found


# Where programs keep their lines: the marks say what is to be found where.


@tf.function
def by_autograph(x):
    """Branch and loop in Python, which AutoGraph rewrites."""
    s = tf.constant(0.0, x.dtype)
    for i in tf.range(2):
        y = tf.math.log(x)  # made
        if i > 0:
            s += y[i]  # dropped
    return s


def repeated(x):
    """Run a body three times, whose selection is in it."""

    def step(i, s):
        y = tf.math.log(x)  # made
        return i + 1, s + total(tf.where(x > 0, y, 0))  # dropped

    zero = tf.constant(0.0, x.dtype)
    return tf.while_loop(lambda i, _: i < 3, step, (0, zero), maximum_iterations=3)[1]


def called(x):
    """Call a compiled function."""
    y = inner(x)
    return y[1]  # dropped


@tf.function(autograph=False)
def inner(x):
    """Take the logarithm."""
    return tf.math.log(x)  # made


def branched(x):
    """Take one of two branches."""

    def taken():
        y = tf.math.log(x)  # made
        return total(tf.where(x > 0, y, 0))  # dropped

    return tf.cond(x[1] > 1, taken, lambda: total(x))


def hidden(x):
    """Take a root, whose kernel hides NaN outside XLA."""
    y = tf.sqrt(x)  # made
    return total(tf.where(x > 0, y, 0))  # dropped


WITH_LINES = [
    (by_autograph, by_autograph.python_function, by_autograph.python_function, 2),  # in two passes
    (repeated, repeated, repeated, 3),
    (called, inner.python_function, called, 1),
    (branched, branched, branched, 1),
    (hidden, hidden, hidden, 1),
]


@pytest.mark.parametrize(("f", "maker", "dropper", "entries"), WITH_LINES)
def test_lines_in_control_flow(f, maker, dropper, entries):
    """The line in the body is found, and that of the selection."""
    (found,) = masked.explain(f, tf.constant(X)).findings

    assert (found.kind, found.entries) == ("BLOCKED", entries)
    assert found.where.line == line_of(maker, "# made")
    assert found.selected_at.line == line_of(dropper, "# dropped")


# What else it says.


def test_nan_rows_of_a_layer():
    """The first operation that is given the NaN is named, and not what follows from it."""
    kernel = tf.Variable(tf.ones((2, 2)))
    rows = tf.constant([[1.0, 2.0], [np.nan, np.nan]])

    def f(kernel):
        hidden = tf.tanh(rows @ kernel)
        return total((hidden @ kernel)[:1])

    (found,) = masked.explain(f, kernel).findings

    assert (found.kind, found.operation, found.entries) == ("BLOCKED", "matmul", 2)
    assert (found.where.line, found.selected_at.line) == (
        line_of(f, "tf.tanh"),
        line_of(f, "[:1]"),
    )
    assert found.nan_operand


def test_unknown_operations():
    """One without a rule is named, and what is below it is not judged."""

    def f(x):
        sums = tf.math.cumulative_logsumexp(tf.sqrt(x), reverse=True)
        return sums[1]

    (found,) = masked.explain(f, tf.constant(X)).findings

    assert (found.kind, found.where.line) == ("UNKNOWN", line_of(f, "sums ="))


def test_two_causes_on_one_line():
    """Both are in one report, and in one edit."""

    def f(x):
        y = tf.math.log(x) / x
        return total(tf.where(x > 0, y, 0.0))

    report = masked.explain(f, tf.constant(X))

    assert {finding.operation for finding in report.findings} == {"log", "div"}
    edits = {finding.repair.edit.new.strip() for finding in report.findings}
    assert edits == {"y = safe_div(safe_log(x), x)"}


def test_an_operation_that_drops_entries_itself():
    """What an operation without a rule leaves out may be unused: never GENUINE."""

    def f(x):
        weights = x * tf.constant([1.0, NAN], x.dtype)
        kept = leave_out_the_last(weights)
        return total(kept)

    (found,) = masked.explain(f, tf.constant([1.0, 2.0])).findings

    line = line_of(leave_out_the_last, "tf.py_function")
    assert (found.kind, found.where.line) == ("UNKNOWN", line)


def leave_out_the_last(x):
    """Call Python, whose gradient nobody can look into."""
    return tf.py_function(lambda x: x[:-1], [x], x.dtype)


def test_several_arguments_and_structures():
    """Any of the arguments can be asked for, as structures; the others stay as they are."""

    def f(a, tree, *, power=1):
        return total(tf.where(tree["x"] > 0, a * tf.math.log(tree["x"]) ** power, 0.0))

    tree = {"x": tf.constant([0.0, 2.0])}
    of_both = masked.explain(f, 2.0, tree, argnums=(0, -1))
    of_first = masked.explain(f, 2.0, tree)

    assert "log" in [finding.operation for finding in of_both.findings]
    assert [finding.operation for finding in of_first.findings] == ["mul"]


def test_gradients_are_as_before():
    """A clean program has a clean report, and an explanation assigns nothing."""
    state = tf.Variable([1.0, 4.0])
    f = lambda x: total(tf.sqrt(x) * state)  # noqa: E731

    assert masked.explain(f, tf.constant([1.0, 4.0])).ok
    assert masked.explain(lambda x: f(x) * 2, state).ok
    assert state.numpy().tolist() == [1.0, 4.0]


def test_random_numbers_are_drawn_once():
    """Value and gradient see the same numbers."""
    f = lambda x: total(tf.where(tf.random.uniform([2]) > 2, 1 / x, x))  # noqa: E731

    (found,) = masked.explain(f, tf.constant([0.0, 0.0])).findings

    assert (found.kind, found.entries) == ("BLOCKED", 2)


def test_graphs_are_refused():
    """In a `tf.function` there are no values to look at."""
    with pytest.raises(RuntimeError, match=r"outside of tf\.function"):
        tf.function(lambda x: masked.explain(total, x).ok)(tf.ones(2))
    with pytest.raises(TypeError, match="scalar value"):
        masked.explain(lambda x: x, tf.ones(2))


# What the code relies on.


def test_formulas_are_named_after_operations():
    """`tf.gradients` puts the formula of an operation into a scope of its name."""
    with tf.Graph().as_default() as graph:
        x = tf.constant(1.0)
        y = tf.math.log(x, name="mine")
        tf.gradients([y], [x])

        names = [op.name for op in graph.get_operations()]

    assert any(name.startswith("gradients/mine_grad/") for name in names)


def test_one_of_two_equal_operations_is_not_edited():
    """TensorFlow tells the line alone: with two of a name on it there is no edit."""

    def loss(x, y):
        return tf.reduce_sum((tf.math.log(y) + tf.math.log(x))[1:])

    report = masked.explain(loss, tf.constant([0.0, 4.0]), tf.constant([1.0, 4.0]))

    assert report.findings[0].repair.edit is None
    assert "several operations of this name" in report.findings[0].repair.text
