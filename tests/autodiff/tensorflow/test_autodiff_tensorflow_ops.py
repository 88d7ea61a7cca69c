"""Masked autodiff for TensorFlow: each operation, and rules that a user may write."""

import os

import numpy as np
import pytest

pytestmark = [pytest.mark.only("tensorflow"), pytest.mark.usefixtures("quiet")]
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not selected; this is about it alone")

import sweep_tensorflow as sweep  # noqa: E402
from assertions import assert_close  # noqa: E402
from frameworks import to_numpy  # noqa: E402
from parts import IN_PARTS, seeds_of  # noqa: E402
from programs_tensorflow import ELEMENTWISE, PROGRAMS  # noqa: E402
from safeops.autodiff import tensorflow as masked  # noqa: E402
from safeops.autodiff.tensorflow import _evaluator as evaluator  # noqa: E402
from safeops.autodiff.tensorflow import _masks as masks  # noqa: E402
from safeops.autodiff.tensorflow import _rules as tables  # noqa: E402
from safeops.autodiff.tensorflow import _running as running  # noqa: E402

NAN, INF = np.nan, np.inf
total = tf.reduce_sum
EXHAUSTIVE = bool(os.environ.get("SAFEOPS_EXHAUSTIVE"))
PROGRAMS_RUN = int(os.environ.get("SAFEOPS_PROGRAMS", "150")) // 6


# The rest takes minutes: most elementwise functions, and what is slow to trace.
SLOW = {"linalg.expm", *(f"math.{name}" for name in ELEMENTWISE[6:])}
DEFAULT = [name for name in PROGRAMS if EXHAUSTIVE or name not in SLOW]


@pytest.fixture
def checked(monkeypatch):
    """Check behind each rule that a value is 0 where it is not active."""
    for name, rule in sweep.checked_rules(tables.RULES).items():
        monkeypatch.setitem(tables.RULES, name, rule)


def ordinary(f, *args):
    """Return the gradient of `tf.GradientTape` for the first argument, in a graph."""

    def plain(*args):
        with tf.GradientTape() as tape:
            tape.watch(args[0])
            value = f(*args)
        return tf.convert_to_tensor(tape.gradient(value, args[0]))

    return to_numpy(tf.function(plain, autograph=False)(*map(tf.convert_to_tensor, args)))


# Each operation.


@pytest.mark.usefixtures("checked")
@pytest.mark.filterwarnings("ignore:.*")  # of operations that TensorFlow has deprecated
@pytest.mark.parametrize("name", DEFAULT)
def test_operations(name):
    """Healthy: ordinary. Planted: as without the NaN. Used: undefined. Not active: 0."""
    found = sweep.verdict(name)

    assert found.wrong == ()
    assert bool(found.stays) == bool(PROGRAMS[name].stays)


@pytest.mark.skipif(not EXHAUSTIVE, reason="SAFEOPS_EXHAUSTIVE is not set: it takes minutes")
@pytest.mark.usefixtures("checked")
@pytest.mark.filterwarnings("ignore:.*")  # of operations that TensorFlow has deprecated
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_operations_in_low_precision(name, dtype):
    """In the precision of the ordinary gradient the same holds, where there is such a kernel."""
    found = sweep.verdict_or_none(name, dtype)
    if found is None:
        pytest.skip(f"TensorFlow has no kernel of {name} for {dtype}, or of its gradient")

    assert found.wrong == ()


@pytest.mark.parametrize(
    ("name", "kind", "rule"),
    [
        ("where", "SelectV2", evaluator.unknown),
        ("unsorted_segment_sum", "GatherV2", evaluator.unknown),
        ("linalg.triangular_solve", "MatrixTriangularSolve", evaluator.unknown),
        ("linalg.solve", "MatrixSolve", evaluator.same),  # which says that rows are apart
        ("resize, bilinear", "ResizeBilinearGrad", evaluator.unknown),
        ("reduce_max", "Mul", evaluator.same),  # so that the loser has a slope, and the winner too
    ],
)
@pytest.mark.usefixtures("checked")
def test_a_wrong_rule_is_found(name, kind, rule, monkeypatch):
    """With another rule for an operation its program fares otherwise, or fails."""
    monkeypatch.setitem(tables.RULES, kind, rule)

    try:
        found = sweep.verdict(name)
    except (tf.errors.InvalidArgumentError, ValueError, TypeError):
        return
    assert found.wrong or found.stays


# What a batch leaves out.

FIRST = np.array([[2.0, 0.5], [1.0, 1.5]])
# A matrix with an inverse that overflows, which TensorFlow solves without an error; and NaN, which
# it takes in a factorisation.
UPPER = np.array([[1e-200, 1.0], [0.0, 1e-200]])
LOWER = UPPER[::-1, ::-1]
HOLES = np.full((2, 2), NAN)
BATCHES = {
    "triangular solve": (lambda m: tf.linalg.triangular_solve(m, ones(m)), LOWER),
    "solve": (lambda m: tf.linalg.solve(np.stack([FIRST, FIRST]), m), HOLES),
    "inverse": (tf.linalg.inv, UPPER),
    "determinant": (tf.linalg.det, LOWER),
    "logarithm of the determinant": (lambda m: tf.linalg.slogdet(m)[1], LOWER),
    "banded solve": (lambda m: tf.linalg.banded_triangular_solve(m, ones(m)), HOLES),
    "tridiagonal solve": (lambda m: tf.linalg.tridiagonal_solve(tf.pad(m, BORDER), ones(m)), HOLES),
    "cholesky": (lambda m: tf.linalg.cholesky(m @ tf.linalg.matrix_transpose(m)), HOLES),
    "qr": (lambda m: tf.linalg.qr(m)[1], HOLES),
    "svd": (lambda m: tf.linalg.svd(m)[1], HOLES),
    "least squares": (lambda m: tf.linalg.lstsq(m, ones(m), 0.1), HOLES),
    "fourier": (lambda m: tf.math.real(tf.signal.rfft(1 / m)), np.zeros((2, 2))),
}
BORDER = [[0, 0], [1, 0], [0, 0]]


def ones(m):
    """Return a right-hand side for each matrix."""
    return tf.ones([2, 2, 1], m.dtype)


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("name", BATCHES)
def test_one_matrix_of_a_batch_that_nothing_reads(name):
    """The gradient by what all matrices share is that without it; the ordinary one is NaN."""
    f, bad = BATCHES[name]
    loss = lambda s, m: total(f(s * m)[:1] * 1.5)  # noqa: E731
    clean = ordinary(loss, np.float64(1.25), np.stack([FIRST, FIRST]))

    got = masked.grad(loss, on_unknown="error")(np.float64(1.25), np.stack([FIRST, bad]))

    assert_close(to_numpy(got), clean, 1e-9, name)
    assert np.isnan(ordinary(loss, np.float64(1.25), np.stack([FIRST, bad])))


def test_what_a_matrix_of_the_batch_is_used_for_stays_undefined():
    """A singular matrix that is read has no gradient."""
    loss = lambda s, m: total(tf.linalg.triangular_solve(s * m, tf.ones([2, 2, 1], m.dtype)))  # noqa: E731
    pair = np.stack([FIRST, np.zeros((2, 2))])

    assert np.isnan(to_numpy(masked.grad(loss)(np.float64(1.0), pair)))


@pytest.mark.parametrize("name", ["sum", "mean", "sqrt_n", "max", "min", "prod"])
@pytest.mark.parametrize("where", ["eager", "known ids", "loop"])
def test_entries_of_no_segment(name, where):
    """An entry with a negative id is absent, whatever its coefficient is."""
    segments = getattr(tf.math, f"unsorted_segment_{name}")

    def one(c, x, ids):
        return segments(c * x, ids, 2)[0]

    def repeated(c, x, ids):
        step = lambda i, s: (i + 1, s + one(c, x, ids))  # noqa: E731
        zero = tf.zeros((), x.dtype)
        return tf.while_loop(lambda i, _: i < 2, step, (0, zero), maximum_iterations=2)[1] / 2

    f = repeated if where == "loop" else one
    c, x, ids = np.array([1.0, 1.0, 1.0, NAN]), np.array([2.0, 3.0, 4.0, 5.0]), [0, 0, 1, -1]
    loss = (lambda x: f(c, x, ids)) if where == "known ids" else (lambda x, i: f(c, x, i))
    rest = () if where == "known ids" else (np.array(ids),)
    clean = ordinary(lambda x: f(np.ones(4), x, ids), x)

    got, mask = masked.grad(loss, return_mask=True, on_unknown="error")(x, *rest)

    assert_close(to_numpy(got), clean, 1e-12)
    assert not to_numpy(mask)[3]
    assert np.isnan(ordinary(loss, x, *rest)[3])


# Custom gradients: a backward pass may be any program.


def with_rule(backward):
    """Return the identity with a gradient of its own."""

    @tf.custom_gradient
    def call(x):
        return tf.identity(x), lambda g: backward(x, g)

    return call


def constant_like(x, number):
    """Return a number in the dtype of a tensor."""
    return tf.cast(number, x.dtype)


def size(g):
    """Return the absolute values of real or complex numbers."""
    return tf.abs(g) if g.dtype.is_complex else g


AFFINE = {
    "add a penalty": lambda x, g: g + 0.1 * x,
    "from a constant": lambda _, g: constant_like(g, 0.3) - g,
    "scaled": lambda x, g: 2 * g * x,
    "constant": lambda x, _: tf.ones_like(x) * constant_like(x, 0.7),
    "assign": lambda x, g: tf.tensor_scatter_nd_update(g, [[2]], x[:1] * 0.3),
    "assign by adding": lambda x, g: tf.tensor_scatter_nd_add(g, [[2]], x[:1] * 0.3),
    "join": lambda x, g: tf.concat([g[:1], 0.2 * x[1:]], 0),
    "running sum": lambda _, g: tf.cumsum(g, 0) + 0.1,
    "mean": lambda _, g: g - tf.reduce_mean(g, 0),
    "product": lambda x, g: g @ tf.linalg.adjoint(x) + 0.01 * x,
}
OTHERS = {
    "square": lambda _, g: g * g,
    "hyperbolic tangent": lambda _, g: tf.tanh(g),
    "exponential": lambda _, g: tf.exp(0.1 * g),
    "norm": lambda _, g: g / (1 + tf.linalg.norm(g)),
    "root": lambda _, g: tf.sqrt(1 + g * g),
    "quotient": lambda x, g: x / (1 + g * g),
    "back into the box": lambda x, g: tf.where(size(x) < 1.0, g, constant_like(g, 0.1)),
    "where it is positive": lambda _, g: tf.where(size(g) > 0, g, constant_like(g, 0.2)),
    "where it is finite": lambda _, g: tf.where(tf.math.is_finite(size(g)), g, constant_like(g, 0)),
    "where it is 0": lambda x, g: tf.where(tf.equal(g, constant_like(g, 0)), 0.7 * x, g),
    "a branch": lambda _, g: tf.cond(total(size(g)) > 0.5, lambda: g + 0.1, lambda: 2 * g),
    "a loop": lambda x, g: tf.while_loop(
        lambda i, _: i < 2, lambda i, s: (i + 1, s + 0.1 * x), (0, g), maximum_iterations=2
    )[1],
}
OF_REALS = {
    "clip": lambda _, g: tf.clip_by_value(g, -0.5, 0.5),
    "clip above 0": lambda _, g: tf.clip_by_value(g, 0.1, 0.5),
    "round": lambda _, g: tf.round(g + 0.4),
    "sign": lambda x, g: tf.sign(g) + 0.1 * tf.sign(x),
    "largest": lambda _, g: g / (1 + tf.reduce_max(tf.abs(g))),
    "rectify": lambda _, g: tf.nn.relu(g) + 0.1,
    "clip by norm": lambda _, g: tf.clip_by_norm(g, 0.5),
}
OF_COMPLEX = {
    "conjugate": lambda _, g: tf.math.conj(g) + 0.1j,
    "real part": lambda x, g: tf.complex(tf.math.real(g), 0.1 * tf.math.imag(x)),
}
RULES = {False: {**AFFINE, **OTHERS, **OF_REALS}, True: {**AFFINE, **OTHERS, **OF_COMPLEX}}
CASES = [(is_complex, name) for is_complex in RULES for name in RULES[is_complex]]
POINT = np.array([[0.5, -1.25, 0.75], [1.5, 0.25, -0.6], [2.5, 1.75, 0.4]])


@pytest.mark.parametrize(("is_complex", "name"), CASES)
def test_custom_gradients_see_what_they_saw(is_complex, name):
    """Part of the results used, nothing singular: the gradient is the ordinary one."""
    rule = with_rule(RULES[is_complex][name])
    x = POINT + 0.5j * POINT.T if is_complex else POINT

    def f(x):
        return total(tf.math.real((rule(x * x) * 3.0)[:2, :2]))

    got, mask = masked.grad(f, return_mask=True, on_unknown="error")(x)

    np.testing.assert_allclose(to_numpy(got), ordinary(f, x), rtol=1e-12, atol=1e-15)
    assert (to_numpy(got)[~to_numpy(mask)] == 0).all()


SMOOTH = {
    "sin": lambda x, _: tf.sin(x),
    "mul": lambda x, y: x * y,
    "sub": lambda x, y: x - 0.5 * y,
    "matmul": lambda x, y: 0.3 * (x @ y),
    "conj": lambda x, _: tf.math.conj(x) + 0.1,
    "tanh": lambda x, _: tf.tanh(0.5 * x),
    "div": lambda x, y: x / (2.0 + size_of(y)),
    "where": lambda x, y: tf.where(tf.math.real(x) > tf.math.real(y), x, y),
    "index": lambda x, y: tf.concat([x[:1], tf.gather(y, [2, 0])], 0),
    "pad": lambda x, _: tf.pad(x[1:, 1:], [[0, 1], [1, 0]]),
    "set": lambda x, y: tf.tensor_scatter_nd_update(x, [[1]], y[:1]),
    "cumsum": lambda x, _: tf.cumsum(x, 1),
    "adjoint": lambda x, _: tf.linalg.adjoint(x),
}


def size_of(x):
    """Return absolute values in the dtype of the argument."""
    return tf.cast(tf.abs(x), x.dtype)


def drawn(seed):
    """Return a random program with custom rules, and a point without singularities."""
    numbers = np.random.default_rng(seed)
    is_complex = bool(numbers.integers(0, 2))
    rules, steps = RULES[is_complex], []
    for i in range(5):
        names = rules if numbers.random() < 0.4 else SMOOTH
        name = list(names)[numbers.integers(0, len(names))]
        steps.append((name, int(numbers.integers(0, i + 1))))
    x = numbers.uniform(-2, 2, (3, 3))
    return steps, rules, x + 1j * numbers.uniform(-2, 2, (3, 3)) if is_complex else x


def run(steps, rules, x):
    """Run a program, and sum a part of what it returns."""
    arrays = [x]
    for name, other in steps:
        y = arrays[-1]
        step = SMOOTH.get(name)
        arrays.append(with_rule(rules[name])(y) if step is None else step(y, arrays[other]))
    return total(tf.math.real(arrays[-1][:2, 1:]))


@pytest.mark.filterwarnings("ignore::safeops.autodiff.tensorflow.UnknownOperationWarning")
@pytest.mark.usefixtures("checked")
@IN_PARTS
def test_random_programs_with_custom_gradients(part):
    """Where nothing is singular the masked gradient equals the ordinary one, always."""
    differ = []
    for seed in seeds_of(part, PROGRAMS_RUN):
        steps, rules, x = drawn(seed)
        f = lambda x, steps=steps, rules=rules: run(steps, rules, x)  # noqa: E731
        wanted, got = ordinary(f, x), to_numpy(masked.grad(f)(x))
        if np.isfinite(wanted).all() and not np.allclose(got, wanted, rtol=1e-9, atol=1e-12):
            differ.append((seed, steps, got, wanted))

    assert differ == []


def drop_what_is_no_cotangent(op, ins, _):
    """Select as if what is no cotangent were absent."""
    (value,) = running.run(op, ins)
    linear = [evaluator.widened(x.active, value) for x in ins if isinstance(x, evaluator.Pair)]
    active = masks.union(*linear)
    return [evaluator.Pair(evaluator.cleaned(value, active), active)]


def test_a_rule_that_drops_what_is_no_cotangent_is_found(monkeypatch):
    """With a selection that takes a constant for absent, the gradients differ."""
    monkeypatch.setitem(tables.RULES, "SelectV2", drop_what_is_no_cotangent)

    with pytest.raises(AssertionError):
        test_custom_gradients_see_what_they_saw(is_complex=False, name="back into the box")


# What has a custom gradient, in the formula of another.


@tf.custom_gradient
def straight_through(x):
    """Round, with slope 1."""
    return tf.round(x), lambda g: g


def rounded(g):
    """Return a cotangent in quarters."""
    return straight_through(4 * g) / 4


def repeated(g):
    """Round twice, in a loop."""
    return tf.while_loop(lambda i, _: i < 2, lambda i, g: (i + 1, rounded(g)), (0, g))[1]


NESTED = {
    "plain": lambda _, g: rounded(g),
    "in a function": lambda _, g: tf.function(rounded, autograph=False)(g),
    "in a loop": lambda _, g: repeated(g),
    "in a branch": lambda x, g: tf.cond(x[0] > 0, lambda: rounded(g), lambda: tf.sin(g)),
}


def second(outer, inner, f, x):
    """Return a second derivative, by two tapes."""

    @tf.function(autograph=False)
    def run(x):
        with outer() as tape:
            tape.watch(x)
            with inner() as inside:
                inside.watch(x)
                value = f(x)
            slope = total(inside.gradient(value, x))
        return tape.gradient(slope, x)

    return to_numpy(run(tf.constant(x)))


@pytest.mark.parametrize("used", [3, 2])
@pytest.mark.parametrize("outer", [tf.GradientTape, masked.GradientTape])
@pytest.mark.parametrize("name", NESTED)
def test_a_rule_within_a_rule_keeps_its_derivative(name, outer, used):
    """The second derivative is that of two ordinary tapes, if all is used, or a part."""
    rule = with_rule(NESTED[name])

    def f(x):
        return total((rule(x) ** 3)[:used])

    x = [0.5, 1.5, 2.5]
    found = second(outer, masked.GradientTape, f, x)

    assert_close(found, second(tf.GradientTape, tf.GradientTape, f, x), rtol=1e-6)
    assert np.any(found)


def test_a_rule_within_a_rule_beside_nan():
    """An entry that nothing reads is NaN: the second derivative is that without it."""
    rule = with_rule(NESTED["plain"])

    found = second(
        masked.GradientTape,
        masked.GradientTape,
        lambda x: total((rule(x) ** 3)[:2]),
        [0.5, 1.5, NAN],
    )

    assert_close(found, [3.0, 9.0, 0.0], rtol=1e-6)


def test_a_recomputed_function_has_second_derivatives():
    """TensorFlow refuses to take them; masked twice, they are those of the function."""
    again = tf.recompute_grad(lambda x: tf.sin(x) * x)

    def f(x):
        return total(again(x)[:2])

    found = second(masked.GradientTape, masked.GradientTape, f, [0.5, 1.5, NAN])

    x = np.asarray([0.5, 1.5])
    assert_close(found, [*(2 * np.cos(x) - x * np.sin(x)), 0.0], rtol=1e-5)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("last", [2.5, NAN])
def test_branches_in_branches(last, compiled, persistent):
    """The gradient of `tf.case` is the ordinary one, and one without the row that is not read."""

    @tf.function(autograph=False, jit_compile=compiled)
    def slope(w, x):
        with masked.GradientTape(persistent=persistent) as tape:
            tape.watch(w)
            cases = [(x[0] > 1, lambda: w * x), (x[1] > 1, lambda: (w * x) ** 2)]
            value = tf.case(cases, default=lambda: tf.sqrt(w * x))[:2]
        return tape.gradient(value, w)

    found = slope(tf.constant(2.0), tf.constant([0.5, 1.5, last]))

    assert_close(found, 2 * 2.0 * (0.5**2 + 1.5**2), rtol=1e-6)


LITERAL = {
    "pad": lambda g: tf.pad(g[1:], [[1, 0]]),
    "concat": lambda g: tf.concat([tf.zeros([1]), g[1:]], 0),
    "stack": lambda g: tf.stack([0.0, g[1]]),
    "update of zeros": lambda g: tf.tensor_scatter_nd_update(tf.zeros([2]), [[1]], g[1:]),
    "scatter": lambda g: tf.scatter_nd([[1]], g[1:], [2]),
}
COMPUTED = {
    "where": lambda g: tf.where([False, True], g, 0.0),
    "product": lambda g: g * [0.0, 1.0],
    "product with 0": lambda g: tf.concat([0.0 * g[:1], g[1:]], 0),
}


@pytest.mark.parametrize("name", [*LITERAL, *COMPUTED])
def test_literal_zeros_of_a_rule_are_absent(name):
    """A limit: beside zeros that a rule writes a pole is 0; beside those it computes, NaN."""
    rule = with_rule(lambda _, g: (LITERAL | COMPUTED)[name](g))

    def f(x):
        return total(rule(tf.pow(x, 0.5)))

    x = tf.constant([0.0, 4.0])
    assert_close(masked.grad(f)(x), [0.0 if name in LITERAL else NAN, 0.25], rtol=1e-6)
    assert_close(ordinary(f, x), [NAN, 0.25], rtol=1e-6)
