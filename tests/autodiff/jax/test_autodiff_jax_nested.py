"""Masked autodiff for JAX where a backward pass calls what has a rule itself, or holds zeros."""

import numpy as np
import pytest

from assertions import assert_close

pytestmark = [pytest.mark.only("jax"), pytest.mark.usefixtures("mixed_dtypes")]
jax = pytest.importorskip("jax", reason="JAX is not selected, and this file is about it alone")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from reported_jax import with_rule  # noqa: E402
from safeops.autodiff import jax as masked  # noqa: E402

NAN = np.nan
X = np.asarray([0.5, 1.5, 2.5])


# Functions of a cotangent whose derivative is not that of their text.


@jax.custom_jvp
def straight_through(x):
    """Round, with slope 1."""
    return jnp.round(x)


@straight_through.defjvp
def _(primals, tangents):
    return straight_through(primals[0]), tangents[0]


@jax.custom_vjp
def length(x):
    """Return the length of a vector, with slope 0 at its origin."""
    return jnp.sqrt(jnp.sum(x * x))


def _length_backward(x, g):
    size = length(x)
    return (jnp.where(size > 0, g * x / jnp.where(size > 0, size, 1.0), 0.0),)


length.defvjp(lambda x: (length(x), x), _length_backward)

NESTED = {
    "custom_jvp": lambda _, g: straight_through(4 * g) / 4,
    "custom_vjp": lambda _, g: g * length(g),
    "in a loop": lambda _, g: lax.fori_loop(0, 2, lambda _, g: straight_through(4 * g) / 4, g),
    "in a branch": lambda x, g: lax.cond(
        x[0] > 0, lambda g: straight_through(4 * g) / 4, jnp.sin, g
    ),
}
TWICE = {
    "masked of masked": lambda f: masked.grad(lambda x: masked.grad(f)(x).sum()),
    "jax of masked": lambda f: jax.jit(jax.grad(lambda x: jax.jit(masked.grad(f))(x).sum())),
}


@pytest.mark.parametrize("used", [3, 2])
@pytest.mark.parametrize("how", TWICE)
@pytest.mark.parametrize("name", NESTED)
def test_a_rule_within_a_rule_keeps_its_derivative(name, how, used):
    """The second derivative is that of jax.grad, if all of the result is used, or a part."""
    rule = with_rule(NESTED[name])

    def f(x):
        return jnp.sum((rule(x) ** 3)[:used])

    x = jnp.asarray(X)
    found = TWICE[how](f)(x)

    assert_close(found, jax.grad(lambda x: jax.grad(f)(x).sum())(x), rtol=1e-6)
    assert np.any(np.asarray(found))


def test_a_rule_within_a_rule_at_its_chosen_point():
    """Where the text has no derivative and the rule has one, the rule's is taken."""
    rule = with_rule(NESTED["custom_vjp"])

    found = TWICE["masked of masked"](lambda x: jnp.sum(rule(x) ** 2))(jnp.zeros(3))

    assert np.all(np.asarray(found) == 0)


@pytest.mark.parametrize("name", NESTED)
def test_a_rule_within_a_rule_beside_nan(name):
    """An entry that nothing reads is NaN: second derivatives are those without it."""
    rule = with_rule(NESTED[name])

    def f(x):
        return jnp.sum((rule(x) ** 3)[:2])

    found = TWICE["masked of masked"](f)(jnp.asarray(X).at[2].set(NAN))

    clean = TWICE["masked of masked"](f)(jnp.asarray(X).at[2].set(0.0))
    assert_close(found, clean, rtol=1e-6)


# Zeros that the text of a program writes.


def with_own_slope(f):
    """Return a function whose rule is its own derivative."""
    call = jax.custom_jvp(f)
    call.defjvp(lambda primals, tangents: jax.jvp(f, primals, tangents))
    return call


CALLED = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "custom_jvp": with_own_slope,
    "vmap": jax.vmap,
    "cond": lambda f: lambda z, g: lax.cond(g[0] > -9, f, lambda z, _: z, z, g),
    "scan": lambda f: lambda z, g: lax.scan(lambda c, g: (f(c, g), f(c, g)), z[0], g)[1],
    "scan of checkpoints": lambda f: (
        lambda z, g: lax.scan(jax.checkpoint(lambda c, g: (f(c, g), f(c, g))), z[0], g)[1]
    ),
    "fori_loop": lambda f: (
        lambda z, g: lax.fori_loop(0, 2, lambda _, c: (f(c[0], c[1]), c[1]), (z, g))[0]
    ),
}


@pytest.mark.parametrize("name", CALLED)
def test_zeros_go_into_all_that_runs_a_body(name):
    """A backward pass may hand zeros to a call, a loop or a branch: gradients are jax.grad's."""
    add = CALLED[name](lambda zeros, g: zeros + jnp.sin(g))
    rule = with_rule(lambda _, g: add(jnp.zeros_like(g), g))

    def f(x):
        return jnp.sum((rule(x) ** 2)[:2])

    assert_close(masked.grad(f)(jnp.asarray(X)), jax.grad(f)(jnp.asarray(X)), rtol=1e-6)


def test_a_loop_of_checkpoints_that_starts_at_zero():
    """JAX's own transposition hands zeros to a checkpoint: the gradient is jax.grad's."""

    def step(c, x):
        c = jnp.sin(c + x)
        return c, jnp.where(x > 1, c, 0.0)

    def f(x):
        return lax.scan(jax.checkpoint(step), 0.0, x)[1].sum()

    x = jnp.asarray(X, jnp.float32)

    assert_close(masked.grad(f)(x), jax.grad(f)(x), rtol=1e-6)


@jax.custom_vjp
def filled(x, number):
    """Return `x`, in whose gradient small entries have a number of one's own."""
    del number
    return x


filled.defvjp(
    lambda x, number: (x, (x, number)), lambda kept, g: (jnp.where(kept[0] > 1, g, kept[1]), None)
)


@pytest.mark.parametrize("number", [0.0, np.float32(0), np.zeros(()), jnp.zeros(())], ids=repr)
@pytest.mark.parametrize("compiled", [False, True])
def test_an_argument_of_a_rule_is_no_literal(number, compiled):
    """A number that is handed to a rule is data: that it is 0 hides no root at 0."""

    def f(x):
        return jnp.sum(filled(jnp.sqrt(x), number))

    slopes = masked.grad(f)
    found = (jax.jit(slopes) if compiled else slopes)(jnp.asarray([0.0, 4.0]))

    assert_close(found, [NAN, 0.25], rtol=1e-6)


LITERAL = {
    "where": lambda x, g: jnp.where(x > 1, g, 0.0),
    "pad": lambda _, g: lax.pad(g[1:], np.zeros((), g.dtype), [(1, 0, 0)]),
    "concatenate": lambda _, g: jnp.concatenate([jnp.zeros(1), g[1:]]),
    "set in zeros": lambda _, g: jnp.zeros(2).at[1].set(g[1]),
    "number of NumPy from around": lambda x, g: jnp.where(x > 1, g, np.zeros(())),
}
ZERO_OF_JAX = jnp.zeros(())
COMPUTED = {
    "array of JAX from around": lambda x, g: jnp.where(x > 1, g, ZERO_OF_JAX),
    "product": lambda _, g: g * jnp.asarray([0.0, 1.0]),
    "product with 0": lambda _, g: jnp.concatenate([0.0 * g[:1], g[1:]]),
    "data": lambda x, g: jnp.where(x > 1, g, 0.0 * x),
}


@pytest.mark.parametrize("name", [*LITERAL, *COMPUTED])
def test_literal_zeros_of_a_rule_are_absent(name):
    """A limit: behind a literal 0 of a rule a root at 0 is 0; behind one that is computed, NaN."""
    rule = with_rule((LITERAL | COMPUTED)[name])
    x = jnp.asarray([0.0, 4.0])

    found = masked.grad(lambda x: jnp.sum(rule(jnp.sqrt(x))))(x)

    assert_close(found, [0.0 if name in LITERAL else NAN, 0.25], rtol=1e-6)
    assert_close(jax.grad(lambda x: jnp.sum(rule(jnp.sqrt(x))))(x), [NAN, 0.25], rtol=1e-6)
