"""A guarded gradient of TensorFlow: nothing changes while it is finite; else it is explained."""

import json
import logging

import numpy as np
import pytest

from safeops.integrations import NonFiniteGradientError

pytestmark = pytest.mark.only("tensorflow")
tf = pytest.importorskip("tensorflow")

from safeops.integrations.tensorflow import value_and_grad  # noqa: E402  (it takes TensorFlow)

QUIET = logging.getLogger("quiet")
QUIET.disabled = True
GOOD = tf.constant([[1.0, 2.0], [3.0, 1.0]])
BAD = tf.constant([[1.0, 2.0], [0.0, 0.0], [3.0, 1.0]])  # the second row is left out of the loss


class Program:
    """A loss with noise, a moving average, a table of rows and a weight without use."""

    def __init__(self):
        self.w = tf.Variable([[0.5], [0.25]], name="weight")
        self.table = tf.Variable([[1.0, 1.0], [2.0, 1.0]], name="table")
        self.unused = tf.Variable(1.0)
        self.mean = tf.Variable([0.0, 0.0], trainable=False)
        self.noise = tf.random.Generator.from_seed(1)
        self.variables = [self.w, self.table, self.unused]

    def loss(self, x):
        """Return the sum of the logarithms of positive rows, and the rows."""
        self.mean.assign(0.5 * self.mean + 0.5 * tf.reduce_mean(x, 0))
        drop = self.noise.uniform([2], 0.5, 1.0)
        rows = (x * drop) @ self.w
        rows = rows * tf.reduce_sum(tf.gather(self.table, [0, 0]))
        kept = tf.where(rows > 0, tf.math.log(rows), 0.0)
        return tf.reduce_sum(kept), rows

    def state(self):
        """Return what a step leaves."""
        return [x.numpy() for x in (*self.variables, self.mean, self.noise.state)]


def numbers_of(gradients):
    """Return gradients as arrays."""
    return [None if g is None else tf.convert_to_tensor(g).numpy() for g in gradients]


def assert_same(found, wanted):
    """Two lists have the same numbers."""
    assert [x is None for x in found] == [x is None for x in wanted]
    assert all(np.array_equal(x, y) for x, y in zip(found, wanted, strict=True) if y is not None)


def test_the_comparison_can_fail():
    """Another number is found, and a missing one."""
    for other in ([np.ones(1)], [None]):
        with pytest.raises(AssertionError):
            assert_same([np.zeros(1)], other)


def test_finite_steps_are_the_same():
    """Values, gradients, averages and random states have the bits of the compiled plain steps."""
    plain, watched = Program(), Program()

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            found = plain.loss(x)
        return found, tape.gradient(found[0], plain.variables)

    gradient = value_and_grad(watched.loss, watched.variables, has_aux=True)
    for _ in range(3):
        (wanted, aux), slopes = step(GOOD)
        (found, rows), gradients = gradient(GOOD)
        assert_same(numbers_of([found, rows, *gradients]), numbers_of([wanted, aux, *slopes]))

    assert_same(watched.state(), plain.state())


def test_the_report(caplog, tmp_path):
    """It has kind, line, step and variables, and goes to the logger and a file."""
    program, file = Program(), tmp_path / "reports.jsonl"
    gradient = value_and_grad(program.loss, program.variables, has_aux=True, file=file)
    gradient(GOOD)
    before = program.state()

    with pytest.raises(NonFiniteGradientError) as caught:
        gradient(BAD)

    report = caught.value.report
    assert [(f.kind, f.operation, f.selection) for f in report.findings] == [
        ("BLOCKED", "log", "where")
    ]
    assert "tf.math.log(rows)" in report.findings[0].where.source
    assert report.step == 1
    assert report.parameters == ("weight", "table")
    assert json.loads(file.read_text(encoding="utf-8"))["step"] == 1
    assert "at step 1" in caplog.text
    assert_same(program.state(), before)  # caught, the step is skipped


def test_the_masked_gradient():
    """It is that of the batch without the rows that nothing reads, with the same random state."""
    program, part = Program(), Program()
    gradient = value_and_grad(
        program.loss, program.variables, has_aux=True, on_nan="mask", logger=QUIET
    )

    (value, _), found = gradient(BAD)

    (wanted, _), slopes = value_and_grad(part.loss, part.variables, has_aux=True)(GOOD)
    assert np.isclose(value, wanted)
    for x, y in zip(numbers_of(found)[:2], numbers_of(slopes)[:2], strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
    assert found[2] is None
    assert_same(program.state()[4:], part.state()[4:])
    np.testing.assert_allclose(program.mean, [2 / 3, 0.5])  # written once


def test_what_masking_cannot_cure():
    """A NaN that is used is an error, and nothing has changed."""
    program = Program()
    before = program.state()
    gradient = value_and_grad(
        program.loss, program.variables, has_aux=True, on_nan="mask", logger=QUIET
    )

    with pytest.raises(NonFiniteGradientError) as caught:
        gradient(tf.constant([[np.inf, 1.0]]))

    assert caught.value.__notes__ == ["the masked gradient is not finite either"]
    assert_same(program.state(), before)


def test_where_it_is_refused():
    """A graph has no values, and an unknown choice is named."""
    gradient = value_and_grad(lambda x: x, [])
    with pytest.raises(RuntimeError, match=r"outside of tf\.function"):
        tf.function(gradient)(tf.constant(1.0))
    with pytest.raises(ValueError, match="expected on_nan out of"):
        value_and_grad(lambda x: x, [], on_nan="skip")


@pytest.mark.parametrize("given", ["one variable", "a tensor"])
def test_what_is_no_list_of_variables(given):
    """A variable by itself, or a tensor, of which the gradient would be None, is an error."""
    wrong = tf.Variable(1.0) if given == "one variable" else [tf.constant(1.0)]

    with pytest.raises(TypeError, match="expected a sequence of variables of TensorFlow"):
        value_and_grad(tf.reduce_sum, wrong)


def test_a_loss_of_several_numbers():
    """A loss that is no scalar is an error, where `tf.GradientTape` takes its sum."""
    w = tf.Variable([1.0, 2.0])

    with pytest.raises(TypeError, match="expected a function with a scalar value"):
        value_and_grad(lambda x: w * x, [w])(GOOD[0])


def test_a_masked_step_keeps_averages_finite():
    """An average to which a NaN came is what it was before the step."""
    program = Program()
    program.mean.assign([1.0, 2.0])
    bad = tf.constant([[1.0, 2.0], [np.nan, 0.0]])
    gradient = value_and_grad(
        program.loss, program.variables, has_aux=True, on_nan="mask", logger=QUIET
    )

    _, gradients = gradient(bad)

    assert all(np.isfinite(g).all() for g in numbers_of(gradients) if g is not None)
    assert program.mean.numpy().tolist() == [1.0, 2.0]
