"""Masks of TensorFlow that the graph remembers: parts of a whole, and sums of both branches."""

from functools import partial

import numpy as np
import pytest

from assertions import assert_close
from frameworks import to_numpy

pytestmark = [pytest.mark.only("tensorflow"), pytest.mark.usefixtures("quiet")]

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not selected; this is about it alone")

import sweep_tensorflow as sweep  # noqa: E402
from reported_tensorflow import INF, NAN, at, compiled, kinds_run, slope, total  # noqa: E402
from safeops.autodiff import tensorflow as masked  # noqa: E402
from safeops.autodiff.tensorflow import _evaluator as evaluator  # noqa: E402
from safeops.autodiff.tensorflow import _masks as masks  # noqa: E402
from safeops.autodiff.tensorflow import _rules as tables  # noqa: E402
from safeops.autodiff.tensorflow import _running as running  # noqa: E402

X = [2.0, 1.0, 0.5, -0.75, -2.0]


@pytest.fixture
def checked(monkeypatch):
    """Check behind each rule that a value is 0 where it is not active."""
    for name, rule in sweep.checked_rules(tables.RULES).items():
        monkeypatch.setitem(tables.RULES, name, rule)


def fork(x):
    """Return the logarithm, the square or the sine."""
    return tf.where(x > 0, tf.math.log(x), tf.where(x < -1, x * x, tf.sin(x)))


def chain(x):
    """Select three times, with a product in each branch."""
    for _ in range(3):
        x = tf.where(x > 0, tf.math.log1p(tf.abs(x)), tf.sin(x)) * 1.5
    return x


def graph_of(f):
    """Return the graph of the masked gradient and its mask."""
    both = tf.function(partial(slope_and_mask, f), autograph=False)
    return both.get_concrete_function(at(X)).graph


def slope_and_mask(f, x):
    """Return the masked gradient of the sum of a function, and its mask."""
    with masked.GradientTape() as running:
        running.watch(x)
        value = total(f(x))
    return running.gradient(value, x, return_mask=True, on_unknown="error")


# Unions.


def by_row(x):
    """Select by a condition that is broadcast."""
    rows = tf.stack([x, x])
    return tf.where([True, False, True, False, True], tf.exp(rows), tf.sin(rows))


@pytest.mark.parametrize(
    "f", [chain, fork, by_row, lambda x: tf.where(x > 0, x * x * x, x + tf.sin(x))]
)
def test_both_branches_are_the_whole(f):
    """Where all branches are used, the whole is True, and not a union of arrays."""
    graph = graph_of(f)

    mask = graph.outputs[1].op.inputs[0]
    assert tf.get_static_value(mask).all()
    assert "LogicalOr" not in kinds_run(graph)


def test_a_used_part_is_found_again():
    """Where a part of the result is used, the union of the branches is the mask of that part."""
    assert "LogicalOr" not in kinds_run(graph_of(lambda x: chain(x)[:3]))


# Each pair: masks of which the union is not told by the graph, or not everything.
APART = {
    "one part": (lambda a, _: [a], "a"),
    "a part twice": (lambda a, _: [a, a], "a"),
    "two conditions": (lambda a, b: [a, masks.negated(b)], "a | ~b"),
    "parts of two wholes": (lambda a, b: [a & b, b & masks.negated(a), a], "a | b"),
    "three of four": (
        lambda a, b: [a & b, a & masks.negated(b), masks.negated(a) & b],
        "a | b",
    ),
    "part of a part": (lambda a, b: [a & b, masks.negated(a)], "~a | b"),
    "a comparison": (lambda a, b: [b & tf.equal(a, [True]), b & a], "a & b"),
    "nothing": (lambda a, b: [a & b, False], "a & b"),
    "everything": (lambda a, b: [b, True, a], "a | ~a"),
    "all four": (
        lambda a, b: [x & y for x in (a, masks.negated(a)) for y in (b, masks.negated(b))],
        "a | ~a",
    ),
}


@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("turned", [False, True])
def test_a_union_is_that_of_its_masks(name, turned):
    """Whatever the graph remembers, and in each order, a union is where any mask is active."""
    parts, formula = APART[name]
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])

    def union(a, b):
        found = masks.union(*parts(a, b)[:: -1 if turned else 1])
        return tf.fill([4], found) if isinstance(found, bool) else found

    wanted = eval(formula, {"a": a, "b": b})  # noqa: S307  (a formula of this table)
    np.testing.assert_array_equal(tf.function(union, autograph=False)(a, b), wanted)
    np.testing.assert_array_equal(union(tf.constant(a), tf.constant(b)), wanted)


# Sums in which one of two is active.


def test_no_zeros_are_put_where_branches_meet():
    """The sum of the branches is a selection, which reads no zeros: they are not made."""
    kinds = kinds_run(graph_of(lambda x: tf.where(x > 0, tf.math.log(x), tf.sin(x))))

    assert "AddN" not in kinds
    assert kinds.count("Select") == 1 + 2  # the sum, and the gradient of where for each branch


def branches(x, hole):
    """Return a sine or an exponential; beside this, products of the sine have a hole."""
    beside = tf.where(x > 0, tf.ones_like(x), hole)
    return tf.where(x > 0, tf.sin(x) * beside * 3.0 * beside, tf.exp(x))


def ends(x, hole):
    """Return a function of a product in either branch, without two entries, which have the hole."""
    beside = tf.stack([hole, 1.0, 1.0, 1.0, hole])
    return tf.where(x > 0, tf.sin(x * beside), tf.exp(x * beside))[1:4]


# What is made of both branches. The point has entries on both sides.
PROGRAMS = {
    "products": branches,
    "twice": lambda x, hole: branches(branches(x, hole) - 1.0, hole),
    "sum": lambda x, hole: total(branches(x, hole)) * x[:1],
    "matrix": lambda x, hole: branches(x, hole)[None] @ tf.reshape(x, [5, 1]),
    "running sum": lambda x, hole: tf.cumsum(branches(x, hole)),
    "a part": lambda x, hole: branches(branches(x, hole), hole)[1:4],
    "ends": ends,
    "one branch": lambda x, hole: tf.where(x > 0, branches(x, hole), 0.0),
    "the other branch": lambda x, hole: tf.where(x > 0, 0.0, branches(x, hole)),
    "a branch of a branch": lambda x, hole: tf.where(x > -1, branches(x, hole), x) + x,
    "a branch as it is": lambda x, hole: tf.where(x > 0, x, branches(x, hole)),
    "loop": lambda x, hole: tf.while_loop(
        lambda i, _: i < 2,
        lambda i, x: (i + 1, branches(x, hole)),
        (0, x),
        maximum_iterations=2,  # for XLA
    )[1],
    "condition": lambda x, hole: tf.cond(x[0] > 0, lambda: branches(x, hole), lambda: x),
}
MODES = {
    "graph": compiled,
    "unknown dimensions": partial(compiled, unknown=True),
    "XLA": partial(compiled, jit_compile=True),
}


def assert_hole_is_not_read(name, mode="graph", x=X):
    """Compare a masked gradient beside NaN with the ordinary one beside 1."""
    holed, whole = (partial(PROGRAMS[name], hole=hole) for hole in (NAN, 1.0))

    got, mask = MODES[mode](partial(slope_and_mask, holed))(at(x))

    wanted = compiled(partial(slope, whole, tape_class=tf.GradientTape))(at(x))
    assert_close(got, to_numpy(wanted), 1e-6, name)
    np.testing.assert_array_equal(mask, to_numpy(wanted) != 0)


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_branch_that_is_not_taken_may_be_nan(name, mode):
    """A gradient does not depend on what a branch holds where it is not taken."""
    assert_hole_is_not_read(name, mode)


@pytest.mark.parametrize("hole", [NAN, INF])
def test_a_branch_that_is_taken_stays_nan(hole):
    """A coefficient that an active entry meets is in the gradient, in either branch."""
    hole = np.array([hole, 1.0, 1.0, 1.0, hole])

    got, mask = compiled(
        partial(slope_and_mask, lambda x: tf.where(x > 0, x * hole * 2.0, 3.0 * x * hole))
    )(at(X))

    np.testing.assert_array_equal(got, np.float32(hole * [2, 2, 2, 3, 3]))
    assert np.all(mask)


@pytest.mark.parametrize("outer", [masked.GradientTape, tf.GradientTape])
def test_second_derivatives_beside_nan(outer):
    """
    A product is 0 where it is absent, and not only what is made of it.

    The tape outside multiplies by what the product holds there.
    """
    hole = np.array([1.0, 2.0, 1.0, NAN, INF])

    def f(x):
        return tf.where(x > 0, x * x * hole, x)

    got = compiled(lambda x: slope(lambda x: total(slope(f, x)), x, tape_class=outer))(at(X))

    np.testing.assert_array_equal(got, [2, 4, 2, 0, 0])


# Planted bugs.


def careless_parts(mask):
    """Forget of which whole a mask is a part."""
    return [part._replace(whole=()) for part in PARTS(mask)]


def careless_product(op, ins, frame):
    """Multiply, and put no zeros where the product is absent."""
    at = [i for i, x in enumerate(ins) if isinstance(x, evaluator.Pair)]
    if len(at) != 1:
        return tables.choosers.product(op, ins, frame)
    (value,) = running.run(op, ins)
    return [evaluator.Pair(value, evaluator.widened(ins[at[0]].active, value))]


def careless_sum(values, masks):
    """Select the other one of two."""
    return EITHER(values, masks[::-1])


PARTS, EITHER = masks._parts, masks.either


@pytest.mark.parametrize(
    ("name", "owner", "attribute", "plant"),
    [
        ("a part", masks, "_parts", careless_parts),
        ("products", masks, "either", careless_sum),
    ],
)
def test_a_planted_bug_is_found(name, owner, attribute, plant, monkeypatch):
    """Masks of another whole, and sums that take the other side, are found."""
    monkeypatch.setattr(owner, attribute, plant)

    with pytest.raises(AssertionError):
        assert_hole_is_not_read(name)


def test_zeros_that_nobody_puts_are_missed(monkeypatch):
    """Products that keep their NaN where they are absent are found, by sum and by derivative."""
    monkeypatch.setitem(tables.RULES, "Mul", careless_product)

    with pytest.raises(AssertionError):
        assert_hole_is_not_read("sum")
    with pytest.raises(AssertionError):
        test_second_derivatives_beside_nan(tf.GradientTape)


# Literal conditions, which TensorFlow writes again into the formula of a loop or branch.


def looped(f, x):
    """Run a function in a loop of one step."""
    steps = tf.while_loop(
        lambda i, _: i < 1, lambda i, u: (i + 1, f(u)), (tf.constant(0), x), maximum_iterations=1
    )
    return steps[1]


def branched(f, x):
    """Run a function in a branch."""
    return tf.cond(x[1] > 0, lambda: f(x), lambda: x)


AROUND = {
    "loop": looped,
    "branch": branched,
    "map": lambda f, x: tf.map_fn(f, x[None])[0],
    "loop in a loop": lambda f, x: looped(lambda u: looped(f, u), x),
    "branch in a loop": lambda f, x: looped(lambda u: branched(f, u), x),
    "loop in a branch": lambda f, x: branched(lambda u: looped(f, u), x),
}


# XLA (TensorFlow 2.21) has no gradient of a loop in a branch, masked or not.
WAYS = [(kind, xla) for kind in AROUND for xla in (False, True)]
WAYS.remove(("loop in a branch", True))


@pytest.mark.parametrize(("kind", "xla"), WAYS)
def test_a_literal_condition_in_a_body_selects(kind, xla):
    """The pole that it leaves out is absent, and NaN in an ordinary gradient."""

    def f(x):
        return tf.reduce_sum(AROUND[kind](lambda u: tf.where([False, True], tf.math.log(u), 0), x))

    def plain(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x)

    def run(gradient):
        return tf.function(gradient, autograph=False, jit_compile=xla)(x).numpy()

    x = tf.constant([0.0, 2.0])
    np.testing.assert_array_equal(run(masked.grad(f)), [0.0, 0.5])
    assert np.isnan(run(plain)[0])


@pytest.mark.parametrize("kind", ["loop", "branch"])
def test_a_literal_condition_of_a_rule_in_a_body_is_a_number(kind):
    """What a custom gradient selects by is a convention, as it is outside of a body."""

    @tf.custom_gradient
    def second(x):
        return x, lambda g: tf.where(last, g, 0.0)

    def f(x):
        return tf.reduce_sum(AROUND[kind](lambda u: second(tf.math.log(u)), x))

    last = np.array([False, True])
    x = tf.constant([0.0, 2.0])
    np.testing.assert_array_equal(masked.grad(f)(x), [np.nan, 0.5])
