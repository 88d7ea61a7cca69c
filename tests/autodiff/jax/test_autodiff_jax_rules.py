"""Masked autodiff for JAX where the backward pass is any program: custom rules, solvers, loops."""

import warnings
from functools import partial

import numpy as np
import pytest

import tape
from assertions import assert_close

pytestmark = [pytest.mark.only("jax"), pytest.mark.usefixtures("mixed_dtypes")]
jax = pytest.importorskip("jax", reason="JAX is not selected, and this file is about it alone")

import jax.numpy as jnp  # noqa: E402
import jax.scipy.linalg as jsl  # noqa: E402
from jax import lax  # noqa: E402
from jax.ad_checkpoint import checkpoint_name  # noqa: E402
from jax.experimental import sparse  # noqa: E402
from jax.experimental.ode import odeint  # noqa: E402

from reported_jax import PROGRAMS_RUN, Operations, assert_same, with_rule  # noqa: E402
from safeops.autodiff import jax as masked  # noqa: E402
from safeops.autodiff.jax import _evaluator as pairs  # noqa: E402

NAN = np.nan


# Backward passes that people write: of the argument and the cotangent, both of three entries.
LINEAR = {
    "scaled": lambda x, g: g * x,
    "selected": lambda x, g: jnp.where(x > 1, g, 0.0),
    "finite only": lambda _, g: jnp.where(jnp.isfinite(g), g, 0.0),
    "without NaN": lambda _, g: jnp.nan_to_num(g),
}
ANY = LINEAR | {
    "another where": lambda x, g: jnp.where(x < 2, g, 0.1),
    "penalty": lambda x, g: g + 0.1 * jnp.sign(x),
    "penalty of zero": lambda x, g: g + 0.0 * x,
    "subtracted from": lambda _, g: 0.3 - g,
    "one entry set": lambda _, g: g.at[2].set(0.3),
    "one entry added to": lambda _, g: g.at[2].add(0.3),
    "joined": lambda x, g: jnp.concatenate([g[:1], 0.1 * x[1:]]),
    "constant": lambda x, _: jnp.full_like(x, 0.1),
    "guided": lambda x, g: jnp.maximum(g, 0.0) * (x > 1),
    "clipped": lambda _, g: jnp.clip(g, -0.1, 0.1),
    "clipped to what zero is not in": lambda _, g: jnp.clip(g, 0.2, 0.4),
    "normalised": lambda _, g: g / jnp.linalg.norm(g),
    "scaled by the largest": lambda _, g: g / jnp.max(jnp.abs(g)),
    "squared": lambda _, g: g * g - g**3,
    "inverted": lambda _, g: 1.0 / (g + 2.0),
    "exponential": lambda _, g: jnp.exp(g) - jnp.tanh(g),
    "logarithm to base 2": lambda _, g: jnp.log2(g + 2.0),
    "slope of a tangent": lambda _, g: jax.vmap(jax.grad(jnp.tanh))(g),
    "sorted": lambda _, g: jnp.sort(g),
    "running": lambda _, g: lax.cummax(g) + jnp.cumsum(g),
    "outer product": lambda _, g: jnp.outer(g, g) @ g,
    "scan": lambda _, g: lax.scan(lambda c, y: (c * 0.5 + y + 0.1, c), 0.0, g)[1],
    "branch": lambda _, g: lax.cond(g[0] > 0, lambda: g, lambda: g + 0.1),
    "loop": lambda _, g: lax.while_loop(lambda c: c.sum() < 9.0, lambda c: 2.0 * c + 0.1, g),
    "complex": lambda _, g: ((g + 1j) * (2.0 - 1j * g)).real,
    "taken out of bounds": lambda _, g: jnp.take(
        g, jnp.asarray([0, 1, 7]), mode="fill", fill_value=0.5
    ),
}
if hasattr(lax, "polynomial"):  # from JAX 0.12 on
    LINEAR["polynomial of coefficients"] = lambda x, g: lax.polynomial(x, [g, 2.0 * g, 0.0 * x])
    ANY |= LINEAR | {"polynomial": lambda _, g: lax.polynomial(g, [0.3, 2.0, 1.0])}
POINT = np.array([0.5, 1.5, 2.5])


@pytest.mark.parametrize("used", [3, 2, 0])
@pytest.mark.parametrize("name", ANY)
def test_rules_of_the_user(name, used):
    """A custom backward pass may be any program: where nothing is singular, as in jax.grad."""
    f = with_rule(ANY[name])
    loss = lambda w: jnp.sum((f(w * jnp.asarray(POINT)) * 3.0)[:used])  # noqa: E731

    for how in ({}, {"exact": True}, {"lazy": True}):
        with warnings.catch_warnings():
            warnings.simplefilter("error", masked.UnknownOperationWarning)
            got = masked.grad(loss, **how)(1.1)
        ordinary = jax.grad(loss)(1.1)
        # Nothing used: the norm is that of nothing, and 0 / 0 is not met.
        wanted = 0.0 if np.isnan(ordinary) and not used else ordinary
        assert_close(got, wanted, 1e-12, f"{name}, {how}")


@pytest.mark.parametrize("name", ["another where", "penalty", "branch", "clipped"])
def test_rules_of_the_user_compiled(name):
    """So it is under jit and vmap, where no value is known when the program is traced."""
    f = with_rule(ANY[name])
    loss = lambda w: jnp.sum((f(w * jnp.asarray(POINT)) * 3.0)[:2])  # noqa: E731
    points = jnp.asarray([0.5, 1.1])

    wanted = [jax.grad(loss)(w) for w in points]

    assert_close(jax.jit(jax.vmap(masked.grad(loss)))(points), np.array(wanted), 1e-12, name)


@pytest.mark.parametrize(
    "name", ["scaled", "selected", "finite only", "clipped", "guided", "squared", "scan"]
)
def test_absent_cotangents_pass_rules_of_the_user(name):
    """What a rule makes of absent entries is absent where it is 0: no coefficient meets it."""
    f = with_rule(ANY[name])
    used = lambda w, x: jnp.sum(f(jnp.sqrt(w * x))[:2])  # noqa: E731
    if name == "scan":  # which takes a constant to all later entries, so that these are numbers
        assert np.isnan(masked.grad(used)(1.0, jnp.asarray([4.0, 9.0, 0.0])))
        return

    wanted = jax.grad(lambda w: used(w, jnp.asarray([4.0, 9.0, 1.0])))(1.0)

    assert_close(masked.grad(used)(1.0, jnp.asarray([4.0, 9.0, 0.0])), wanted, 1e-12, name)
    assert np.isnan(jax.grad(used)(1.0, jnp.asarray([4.0, 9.0, 0.0])))


def test_a_number_that_a_rule_adds_is_used():
    """``g + 0 * x`` is a number where g is absent: behind a root at 0 it is undefined."""
    f = with_rule(ANY["penalty of zero"])
    loss = lambda x: f(jnp.sqrt(x))[0]  # noqa: E731
    x = jnp.asarray([4.0, 0.0])

    np.testing.assert_array_equal(masked.grad(loss)(x), jax.grad(loss)(x))
    assert np.isnan(jax.grad(loss)(x)[1])


@pytest.mark.parametrize("number", [0.0, np.float64(0.0)])
def test_a_number_of_python_is_no_literal(number):
    """An argument that is 0 is data, though it is a number of Python."""
    f = with_rule(lambda x, g: g + x)
    loss = lambda x, y: jnp.stack([f(x), y])[1]  # noqa: E731

    assert masked.grad(loss, return_mask=True)(number, 1.0)[1]


# Random programs, with rules of the user and complex numbers.


class Ruled(Operations):
    """The array language on JAX, with more instructions."""

    scaled = staticmethod(with_rule(lambda _, g: 2.0 * g))
    selected = staticmethod(with_rule(lambda x, g: jnp.where(x > 0.5, g, 0.0)))
    penalty = staticmethod(with_rule(lambda x, g: g + jnp.where(x > 0.5, 0.25, 0.0)))
    constant = staticmethod(with_rule(lambda x, _: jnp.full_like(x, 0.5)))
    clipped = staticmethod(with_rule(lambda _, g: jnp.clip(g, -0.5, 0.5)))
    another = staticmethod(with_rule(lambda x, g: jnp.where(x > 0.5, g, 0.1)))
    complex = staticmethod(lambda x: ((x + 1j) * jnp.conj(x * x - 2j)).real)


class RuledTape(tape.Tape):
    """The instructions whose rules are linear, on the tape."""

    scaled = tape.one_by_one(lambda x: x, lambda _: 2.0)

    @staticmethod
    def selected(x):
        """Return scalars without parents at or below 0.5; NaN, which is neither, has slope 0."""
        beyond = np.vectorize(lambda s: tape.largest_of((s,), (0.0,)), otypes=[object])
        alone = np.vectorize(lambda s: tape.Scalar(s.value), otypes=[object])
        is_nan = np.isnan(tape.values(x))
        return np.where(tape.values(x) > 0.5, x, np.where(is_nan, beyond(x), alone(x)))


MORE = ("scaled", "selected", "penalty", "constant", "clipped", "another", "complex")
POINTS = {
    "singular": lambda numbers: numbers.choice(tape.POINTS, (tape.N, tape.N)),
    "regular": lambda numbers: numbers.uniform(0.3, 2.0, (tape.N, tape.N)),
}


def ruled(seed, more):
    """Return a random program, and the numbers for a point."""
    numbers = np.random.default_rng(seed)
    return tape.random_program(numbers, more=more * 2), numbers


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("points", POINTS)
def test_random_programs_with_rules_are_those_of_jax(points, exact):
    """Where jax.grad is finite ours is equal, whatever rules and complex numbers are inside."""
    finite = 0
    for seed in range(PROGRAMS_RUN // 16):
        program, numbers = ruled(seed, MORE)
        x = jnp.asarray(POINTS[points](numbers))
        f = partial(tape.run, program, Ruled)

        ordinary = np.asarray(jax.grad(f)(x))
        got = np.asarray(masked.grad(f, exact=exact, on_unknown="error")(x))

        known = np.isfinite(ordinary)
        finite += known.all()
        assert_close(got[known], ordinary[known], 1e-10, f"seed {seed}: {program}", 1e-12)
    assert finite > PROGRAMS_RUN // 100  # else nothing was compared


def test_random_programs_with_linear_rules_agree_with_the_tape():
    """Rules that scale and select are those of the tape, their masks too."""
    for seed in range(PROGRAMS_RUN // 16):
        program, numbers = ruled(seed, ("scaled", "selected"))
        x = POINTS["singular"](numbers)
        of_tape = partial(tape.run, program, RuledTape)
        _, wanted, wanted_mask = tape.masked_gradient(lambda _, t, f=of_tape: f(t), x)

        f = masked.grad(partial(tape.run, program, Ruled), return_mask=True, exact=True)
        got, mask = map(np.asarray, f(jnp.asarray(x)))

        assert_same(got, wanted, f"seed {seed}: {program}")
        np.testing.assert_array_equal(mask, wanted_mask, f"seed {seed}: {program}")


# A value is 0 where it is not active.


def assert_zero_where_absent(outs, name):
    """Hold the results of a rule to what all others rely on; values that are traced are not."""
    for out in outs:
        if isinstance(out, pairs.Pair) and not isinstance(out.value, jax.core.Tracer):
            absent = ~np.broadcast_to(np.asarray(pairs.active_of(out)), np.shape(out.value))
            assert not np.asarray(out.value)[absent].any(), name  # a NaN is no zero


def checked(rules):
    """Return rules whose results are looked at."""

    def look(name, rule):
        def run(eqn, ins, how):
            outs = rule(eqn, ins, how)
            assert_zero_where_absent(outs, name)
            return outs

        return run

    return {name: look(name, rule) for name, rule in rules.items()}


def test_a_number_where_nothing_is_active_is_found():
    """The assertion fails for a NaN that is not active, and for a number."""
    for value in (NAN, 1.0):
        with pytest.raises(AssertionError):
            assert_zero_where_absent([pairs.Pair(jnp.asarray(value), active=False)], "")
    assert_zero_where_absent([pairs.Pair(jnp.asarray(NAN)), NAN], "")


@pytest.mark.parametrize("exact", [False, True])
def test_what_is_not_active_is_zero(monkeypatch, exact):
    """Behind every rule, in programs with zeros, infinities and NaN."""
    monkeypatch.setattr(masked, "RULES", checked(masked.RULES))

    for seed in range(PROGRAMS_RUN // 16):
        program, numbers = ruled(seed, MORE)
        x = jnp.asarray(POINTS["singular"](numbers))
        masked.grad(partial(tape.run, program, Ruled), exact=exact)(x)
    for f in (SOLVED["solve"], SOLVED["cholesky"], *MOVED.values()):
        masked.grad(lambda w, f=f: of_the_first(f, w * MATRICES), exact=exact)(1.3)


# Linear algebra by batches, of which one matrix is used.

MATRICES = np.stack([[[2.0, 0.5], [0.5, 1.0]], np.full((2, 2), NAN)])
RIGHT = np.array([[1.0, 2.0], [3.0, 4.0]])
SOLVED = {
    "solve": lambda m: jnp.linalg.solve(m, RIGHT),
    "solve a vector": lambda m: jnp.linalg.solve(m, m[..., :1]),
    "inverse": jnp.linalg.inv,
    "logarithm of the determinant": lambda m: jnp.linalg.slogdet(m)[1][:, None],
    "determinant": lambda m: jnp.linalg.det(m)[:, None],
    "cholesky": jnp.linalg.cholesky,
    "cho_solve": jax.vmap(lambda m: jsl.cho_solve((jsl.cholesky(m, lower=True), True), RIGHT)),
    "triangular": jax.vmap(lambda m: jsl.solve_triangular(m, RIGHT)),
    "triangular, transposed": jax.vmap(
        lambda m: jsl.solve_triangular(m, RIGHT, trans=1, lower=True)
    ),
    "lu": jax.vmap(lambda m: jsl.lu(m)[2]),
    "lu_factor": lambda m: jsl.lu_factor(m)[0],
    "qr": lambda m: jnp.linalg.qr(m)[1],
    "exponential": jsl.expm,
    "eigenvalues": lambda m: jnp.linalg.eigh(m)[0],
    "singular values": lambda m: jnp.linalg.svd(m, full_matrices=False)[1],
    "pseudo-inverse": jnp.linalg.pinv,
    "least squares": jax.vmap(lambda m: jnp.linalg.lstsq(m, RIGHT)[0]),
    "tridiagonal": jax.vmap(
        lambda m: lax.linalg.tridiagonal_solve(m[0], m[1], m[0] / 3, RIGHT + m[:1, :1])
    ),
    "conjugate gradients": jax.vmap(
        lambda m: jax.scipy.sparse.linalg.cg(lambda v: m @ v, RIGHT[0])[0]
    ),
    "Fourier": lambda m: jnp.abs(jnp.fft.fft(m)),
}
MOVED = {
    "scatter-mul": lambda m: m.at[1].multiply(m[1], unique_indices=True),
    "scatter-mul of what is used": lambda m: m.at[0].multiply(RIGHT, unique_indices=True),
    "convolution": lambda m: jax.vmap(partial(jnp.convolve, mode="same"))(m[:, 0], m[:, 1]),
    "product": lambda m: m @ m,
}


def of_the_first(f, matrices):
    """Return a number of the first result of a batch."""
    out = f(matrices)[0]
    return jnp.sum(out * jnp.arange(1.0, 1.0 + out.size).reshape(out.shape))


@pytest.mark.parametrize("name", SOLVED | MOVED)
def test_a_matrix_that_nothing_reads(name):
    """One matrix of a batch is NaN: the gradient is that of the program without it."""
    f = (SOLVED | MOVED)[name]
    wanted = jax.grad(lambda w: of_the_first(f, w * jnp.stack([MATRICES[0]] * 2)))(1.3)

    loss = lambda w: of_the_first(f, w * MATRICES)  # noqa: E731

    assert_close(masked.grad(loss, on_unknown="error")(1.3), wanted, 1e-9, name)
    assert np.isnan(jax.grad(loss)(1.3))


@pytest.mark.parametrize("name", ["solve", "inverse", "cholesky", "lu_factor", "Fourier"])
def test_a_singularity_that_is_read(name):
    """A root at 0 in the matrix that is used leaves the gradient undefined, as in jax.grad."""
    point = np.stack([[[4.0, 0.0], [0.0, 1.0]]] * 2)
    loss = lambda x: of_the_first(SOLVED[name], jnp.sqrt(x))  # noqa: E731

    ordinary, got = np.asarray(jax.grad(loss)(point)), np.asarray(masked.grad(loss)(point))

    np.testing.assert_array_equal(np.isfinite(got[0]), np.isfinite(ordinary[0]))
    assert not np.isfinite(got[0]).all()
    np.testing.assert_array_equal(got[1], 0.0)


def test_second_derivatives_of_a_solution():
    """Masked twice, a solver that nothing else can differentiate is still differentiated."""
    solve = jax.vmap(lambda m: jax.scipy.sparse.linalg.cg(lambda v: m @ v, RIGHT[0])[0])
    f = lambda w: of_the_first(solve, w * MATRICES)  # noqa: E731
    wanted = jax.grad(jax.grad(lambda w: of_the_first(solve, w * MATRICES[:1])))(1.3)

    assert_close(masked.grad(masked.grad(f))(1.3), wanted, 1e-8, "")


# Contractions.


def test_a_coefficient_that_is_not_read_stays_out_of_absent_rows():
    """Row 1 is never used: 0, though its coefficient is NaN, by default and with `exact`."""
    weights = jnp.asarray([[1.0, NAN], [2.0, 3.0]])
    for exact in (False, True):
        f = masked.grad(lambda x: (x @ weights)[0].sum(), return_mask=True, exact=exact)
        gradient, mask = f(jnp.ones((2, 2)))

        np.testing.assert_array_equal(gradient, [[NAN, 5.0], [0.0, 0.0]])
        np.testing.assert_array_equal(mask, [[True, True], [False, False]])


CONVOLUTIONS = {
    "padded": {"window_strides": (1,), "padding": "SAME"},
    "strided": {"window_strides": (2,), "padding": "VALID"},
    "dilated": {"window_strides": (1,), "padding": "VALID", "rhs_dilation": (2,)},
    "in groups": {"window_strides": (1,), "padding": "VALID", "feature_group_count": 2},
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_over_one_sequence(name):
    """A NaN at the end that no output read reaches stays out, without `exact`."""
    how = CONVOLUTIONS[name]
    features = 1 if name == "in groups" else 2
    x = np.arange(1.0, 17.0).reshape(1, 2, 8)
    kernel = np.arange(1.0, 1.0 + 8 * features).reshape(4, features, 2)

    def loss(kernel, x):
        return (lax.conv_general_dilated(x, kernel, **how)[:, :, :2] ** 2).sum()

    bad = np.concatenate([x[..., :-1], np.full((1, 2, 1), NAN)], -1)
    wanted = jax.grad(loss, (0, 1))(kernel, x)
    got = masked.grad(loss, (0, 1))(kernel, bad)

    np.testing.assert_allclose(got[0], wanted[0], 1e-12)
    np.testing.assert_allclose(got[1], wanted[1], 1e-12)
    assert np.isnan(jax.grad(loss)(kernel, bad)).any()


# Programs without singularities, in which something unusual happens to a cotangent.


COSTS = np.array([[0.0, 1.0], [2.0, 0.5]])


def sinkhorn(w):
    """Return a difference of potentials, which are differentiated as a fixed point."""

    def step(f, w):
        g = -jax.nn.logsumexp(f[:, None] - w * COSTS, axis=0)
        return -jax.nn.logsumexp(g - w * COSTS, axis=1)

    @jax.custom_vjp
    def fixed(w):
        return lax.while_loop(
            lambda c: (c[1] < 50) & (jnp.abs(step(c[0], w) - c[0]).max() > 1e-12),
            lambda c: (step(c[0], w), c[1] + 1),
            (jnp.zeros(2), 0),
        )[0]

    def backward(saved, g):
        w, f = saved
        pull = jax.vjp(step, f, w)[1]
        operator = lambda v: v - pull(v)[0] + v.mean()  # noqa: E731
        solution, _ = jax.scipy.sparse.linalg.bicgstab(operator, g, tol=1e-12)
        return (pull(jnp.where(jnp.isfinite(solution), solution, 0.0))[1],)

    fixed.defvjp(lambda w: (fixed(w), (w, fixed(w))), backward)
    return fixed(w)[0] - fixed(w)[1]


def rooted(w):
    """Return where ``x**3 + x = w``, by Newton's method with implicit derivatives."""
    f = lambda x: x**3 + x - w  # noqa: E731
    solve = lambda f, x: lax.fori_loop(0, 20, lambda _, x: x - f(x) / jax.grad(f)(x), x)  # noqa: E731
    return lax.custom_root(f, 1.0, solve, lambda g, y: y / g(1.0))


HEALTHY = {
    "odeint": lambda w: odeint(lambda y, _: -w * y, 1.0, jnp.asarray([0.0, 1.0]))[1],
    "cg": lambda w: jax.scipy.sparse.linalg.cg(lambda v: w * (MATRICES[0] @ v), RIGHT[0])[0][0],
    "bicgstab": lambda w: jax.scipy.sparse.linalg.bicgstab(
        lambda v: w * (MATRICES[0] @ v), RIGHT[0]
    )[0][0],
    "sinkhorn": sinkhorn,
    "root": rooted,
    "printed": with_rule(lambda _, g: (jax.debug.callback(lambda _: None, g), g)[1]),
    "named": lambda w: checkpoint_name(w, "w") ** 2,
    "fourier": lambda w: jnp.abs(jnp.fft.rfft(w * jnp.arange(5.0)))[1],
    "kernel": lambda w: jsl.solve_triangular(
        jnp.linalg.cholesky(w * MATRICES[0]), RIGHT, lower=True
    )[0, 0],
    "largest of a window": lambda w: lax.reduce_window(
        w * jnp.arange(4.0), -np.inf, lax.max, (2,), (2,), "VALID"
    )[1],
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_programs(name):
    """The gradient is that of jax.grad, and nothing is said."""
    f = HEALTHY[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", masked.UnknownOperationWarning)
        got = masked.grad(f)(1.1)

    assert_close(got, jax.grad(f)(1.1), 1e-9, name)


def test_a_loop_that_is_mapped():
    """Each runs as often as its own condition holds, in forward mode and unrolled in reverse."""

    def f(x):
        return lax.while_loop(
            lambda c: c[0] < 3.0, lambda c: (c[0] * 1.5, c[1] * jnp.sin(c[0])), (x, x)
        )[1]

    points = jnp.asarray([0.5, 1.0, 2.0, 4.0])
    wanted = np.asarray(jax.vmap(jax.jacfwd(f))(points))

    loss = lambda w: jax.vmap(f)(w * points)  # noqa: E731
    assert_close(masked.jacfwd(loss)(1.0), np.asarray(jax.jacfwd(loss)(1.0)), 1e-12, "")
    assert_close(jax.vmap(masked.jacfwd(f))(points), wanted, 1e-12, "")
    bounded = lambda x: lax.fori_loop(0, 3, lambda _, y: jnp.where(y < 3.0, y * y, y), x)  # noqa: E731
    assert_close(
        jax.vmap(masked.grad(bounded))(points), jax.vmap(jax.grad(bounded))(points), 1e-12, ""
    )


def test_a_loop_that_is_mapped_keeps_masks():
    """In forward mode an entry that has left the loop keeps what was active when it left."""

    def f(x, y):
        step = lambda c: (c[0] + 1.0, jnp.where(c[1] > 0, jnp.sqrt(c[1]), 0.0))  # noqa: E731
        return lax.while_loop(lambda c: c[0] < 2.0, step, (x, y))[1]

    x, y = jnp.asarray([0.0, 1.0, 2.0]), jnp.asarray([16.0, 0.0, 5.0])
    out, (tangent, mask) = masked.jvp(
        lambda y: jax.vmap(f)(x, y), (y,), (jnp.ones(3),), return_mask=True
    )

    np.testing.assert_array_equal(out, [2.0, 0.0, 5.0])
    np.testing.assert_array_equal(tangent, [1 / 32, 0.0, 1.0])
    np.testing.assert_array_equal(mask, [True, False, True])


# What has no rule, and what other packages define.


def test_operations_without_a_rule_are_named():
    """One without a rule runs as it is, with a warning, and hides nothing."""
    f = with_rule(lambda _, g: lax.top_k(g, 3)[0])
    loss = lambda x: f(jnp.sqrt(x))[1]  # noqa: E731
    x = jnp.asarray([1.0, 4.0, 9.0])

    with pytest.warns(masked.UnknownOperationWarning, match="top_k has no rule for absent entries"):
        got = masked.grad(loss)(x)
    np.testing.assert_allclose(got, jax.grad(loss)(x))
    with pytest.raises(NotImplementedError, match="top_k"):
        masked.grad(loss, on_unknown="error")(x)
    np.testing.assert_allclose(masked.grad(loss, on_unknown="ignore")(x), jax.grad(loss)(x))


def test_operations_without_a_rule_that_leave_entries_out():
    """A sparse product drops what is out of bounds by itself: nothing absent comes in."""
    values = jnp.asarray([1.0, 1.2, NAN])
    where = jnp.asarray([[0, 0], [1, 1], [3, 3]])  # the last is padding
    loss = lambda w: jnp.sum(sparse.BCOO((values * w, where), shape=(3, 3)) @ jnp.ones(3))  # noqa: E731

    with pytest.warns(masked.UnknownOperationWarning, match="bcoo"):
        assert np.isnan(masked.grad(loss)(1.0))


def primitive(name, run):
    """Return an operation as a package of its own defines it."""
    from jax.extend.core import Primitive

    def type_of(*types, **how):
        of = jax.eval_shape(partial(run, **how), *types)
        return jax.core.ShapedArray(of.shape, of.dtype)

    made = Primitive(name)
    made.def_impl(run)
    made.def_abstract_eval(type_of)
    return made


def test_the_selection_of_equinox():
    """``select_if_vmap(cond, x, y)`` is a selection, in that order."""
    select = primitive("select_if_vmap", lambda _, x, y: x + 0 * y)
    f = with_rule(lambda x, g: select.bind(x[0] > 1, g, jnp.zeros(2)))
    loss = lambda x: f(jnp.sqrt(x))[0]  # noqa: E731

    got, mask = masked.grad(loss, return_mask=True, on_unknown="error")(jnp.asarray([4.0, 0.0]))

    np.testing.assert_array_equal(got, [0.25, 0.0])
    np.testing.assert_array_equal(mask, [True, False])


def test_what_equinox_has_mapped():
    """``vprim`` does the same to each entry along an axis: one does not spoil another."""
    solve = jax.vmap(jnp.linalg.solve)
    vprim = primitive("vprim", lambda m, g, **_: solve(m, g.T[..., None])[..., 0])
    f = with_rule(lambda _, g: vprim.bind(jnp.asarray(MATRICES), g, __batch_axes=(0, 1)).T)
    loss = lambda w: f(w * RIGHT)[:, 0] @ jnp.arange(1.0, 3.0)  # noqa: E731

    got = masked.grad(loss, on_unknown="error")(1.0)

    wanted = RIGHT[:, 0] @ np.linalg.solve(MATRICES[0], [1.0, 2.0])  # the first column is used
    assert_close(got, wanted, 1e-12, "")
    assert np.isnan(jax.grad(loss)(1.0))
