"""Gradients of TensorFlow that a program takes by itself: `watch_tape`, and the command."""

import subprocess
import sys
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import safeops

tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")

from safeops.autodiff.tensorflow import watch_tape  # noqa: E402  (it takes TensorFlow)

pytestmark = pytest.mark.only("tensorflow")
HOUSE = Path(safeops.__file__).parent
NOT_FINITE = 3  # the exit code
BAD, GOOD = [0.0, 2.0], [1.0, 2.0]

SCRIPT = """
import tensorflow as tf

w = tf.Variable([1.0, 1.0], name="w")


@tf.function(jit_compile=True)
def step(x):
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(tf.where(x > 0, tf.math.log(w * x), 0.0))
    w.assign_sub(0.1 * tape.gradient(y, w))


step(tf.constant([1.0, 2.0]))
step(tf.constant([0.0, 2.0]))
print("behind")
"""


def loss(w, x):
    """Return logarithms of what is above 0."""
    return tf.reduce_sum(tf.where(x > 0, tf.math.log(w * x), 0.0))


def descent(w):
    """Return a compiled step of gradient descent."""

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = loss(w, x)
        w.assign_sub(0.1 * tape.gradient(y, w))
        return y

    return step


def in_function(w, x):
    """Take a gradient in a compiled function."""
    descent(w)(x)


def in_loop(w, x):
    """Take a gradient in a loop of a compiled function."""

    @tf.function
    def steps():
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                y = loss(w, x)
            w.assign_sub(0.1 * tape.gradient(y, w))

    steps()


def in_branch(w, x):
    """Take a gradient in a branch of a compiled function."""

    @tf.function
    def step():
        if tf.reduce_sum(x) > 0:
            with tf.GradientTape() as tape:
                y = loss(w, x)
            w.assign_sub(0.1 * tape.gradient(y, w))

    step()


def of_function(w, x):
    """Take the gradient of a compiled function, at random numbers."""
    inner = tf.function(loss)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            y = inner(w, x * tf.random.uniform([2], 0.5, 1.0))
        return tape.gradient(y, w)

    step()


def of_vector(w, x):
    """Take a gradient with cotangents, by a tape that stays."""

    @tf.function
    def step():
        with tf.GradientTape(persistent=True) as tape:
            y = tf.where(x > 0, tf.math.log(w * x), 0.0)
        return tape.gradient(y, w, output_gradients=tf.constant([1.0, 2.0])), tape.gradient(y, w)

    step()


PROGRAMS = [in_function, in_loop, in_branch, of_function, of_vector]


def watched(program, w, x):
    """Return the reports on a program, and what the context has seen."""
    reports = []
    with pytest.raises(tf.errors.OpError), watch_tape(reports.append) as passes:
        program(w, tf.constant(x))
    return reports, passes


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_compiled_gradient(program):
    """The program ends before the weights change; the report has line, selection and variable."""
    w = tf.Variable([1.0, 1.0], name="w")

    (report,), passes = watched(program, w, BAD)

    (finding,) = report.findings
    assert (finding.kind, finding.operation, finding.selection) == ("BLOCKED", "log", "where")
    assert "tf.math.log(w * x)" in finding.where.source
    assert (report.parameters, report.step, passes) == (("w",), 0, [True])
    assert w.numpy().tolist() == [1.0, 1.0]


def test_an_eager_tape():
    """It leaves no program: the report has the line of the tape and the variable."""
    w, reports = tf.Variable([1.0, 1.0], name="w"), []

    with watch_tape(reports.append):
        with tf.GradientTape() as tape:
            y = loss(w, tf.constant(BAD))
        tape.gradient(y, w)

    (report,) = reports
    (finding,) = report.findings
    assert (finding.kind, finding.operation, finding.reason) == ("UNKNOWN", "the tape", "tape")
    assert "tape.gradient(y, w)" in finding.where.source
    assert report.parameters == ("w",)


def test_finite_gradients():
    """They are the same bits, also of embeddings and of second order; a Jacobian is not seen."""
    x, rows = tf.constant(GOOD), tf.constant([1, 1, 0])

    def numbers():
        w, table = tf.Variable([1.5, 0.3]), tf.Variable(tf.reshape(tf.range(6.0), [3, 2]))
        step = descent(w)
        step(x)
        step(x)

        @tf.function
        def others():
            with tf.GradientTape(persistent=True) as outer:
                with tf.GradientTape() as tape:
                    y = tf.reduce_sum(tf.gather(table, rows) ** 3)
                slope = tape.gradient(y, table)
                again = tf.reduce_sum(tf.convert_to_tensor(slope) ** 2)
                vector = w * x
            return slope, outer.gradient(again, table), outer.jacobian(vector, w)

        return [w.numpy(), *(tf.convert_to_tensor(g).numpy() for g in others())]

    reports = []
    plain = numbers()
    with watch_tape(reports.append) as passes:
        found = numbers()

    assert all(map(np.array_equal, found, plain))
    assert (reports, passes) == ([], [False] * 4)


def test_compiled_code_outlives_a_context():
    """It runs on without the context, and another context sees its gradients."""
    w, reports = tf.Variable([1.0, 1.0]), []
    with watch_tape(reports.append):
        step = descent(w)
        step(tf.constant(GOOD))
    step(tf.constant(BAD))
    assert np.isnan(w.numpy()[0])

    w.assign([1.0, 1.0])
    with pytest.raises(tf.errors.OpError), watch_tape(reports.append):
        step(tf.constant(BAD))

    assert len(reports) == 1


def test_contexts_that_end_in_any_order():
    """The tape of TensorFlow and its `function` are there again."""
    plain = tf.GradientTape, tf.function
    first, second = watch_tape(print), watch_tape(print)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)

    assert (tf.GradientTape, tf.function) == plain


def test_another_thread():
    """A gradient of another thread is seen too."""
    w, found = tf.Variable([1.0, 1.0]), []

    def take():
        with tf.GradientTape() as tape:
            y = loss(w, tf.constant(GOOD))
        found.append(tape.gradient(y, w).numpy())

    with watch_tape(print) as passes:
        thread = Thread(target=take)
        thread.start()
        thread.join()

    assert passes == [False]
    assert found[0].tolist() == [1.0, 1.0]


def test_a_script(tmp_path):
    """The command ends a script at such a gradient, also where XLA would compile it."""
    (tmp_path / "train.py").write_text(SCRIPT)
    code = (
        f"import sys; sys.path.insert(0, {str(HOUSE.parent)!r}); from safeops.__main__ import main"
    )
    command = [sys.executable, "-c", f"{code}; sys.exit(main(['explain', 'train.py']))"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == NOT_FINITE, done.stderr
    assert done.stdout.startswith("BLOCKED  the derivative of log is inf at 1 of 2 entries")
    assert "train.py:10" in done.stdout
    assert "gradients that were not finite: w" in done.stdout
    assert "behind" not in done.stdout
