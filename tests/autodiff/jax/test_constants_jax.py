"""What a traced program of JAX computes from no argument is known, and its masks cost nothing."""

from functools import partial

import numpy as np
import pytest

from assertions import assert_close
from heads_jax import HEADS, ROWS, WIDTH, split

pytestmark = pytest.mark.only("jax")
jax = pytest.importorskip("jax", reason="JAX is not selected, and this file is about it alone")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from safeops.autodiff import jax as masked  # noqa: E402
from safeops.autodiff.jax import _known as constants  # noqa: E402
from safeops.autodiff.jax import _known as known  # noqa: E402

N = 12
HELD = np.tri(N) > 0


def rows():
    """Return indices of rows."""
    return jnp.arange(N)[:, None]


def columns():
    """Return indices of columns."""
    return jnp.arange(N)[None]


VALUES = {
    "tri": lambda: jnp.tri(N, dtype=bool),
    "tril": lambda: jnp.tril(jnp.ones((N, N), bool)),
    "triu": lambda: jnp.triu(jnp.ones((N, N)), 1) == 0,
    "of float16": lambda: jnp.tril(jnp.ones((N, N), jnp.bfloat16)) != 0,
    "compared": lambda: rows() >= columns(),
    "shifted": lambda: rows() < columns() + 3 - 2 * 1,
    "window": lambda: jnp.abs(rows() - columns()) <= 2,
    "blocks": lambda: rows() // 4 == columns() // 4,
    "blocks of negative numbers": lambda: (rows() - 5) // 4 == (columns() - 5) // 4,
    "strides": lambda: (rows() - columns()) % 3 == 0,
    "remainders": lambda: lax.rem(rows() - columns(), jnp.full((N, N), 3, rows().dtype)) > 0,
    "together": lambda: (rows() >= columns()) & ~(rows() == 7) | (columns() == 1),
    "either": lambda: (rows() > 3) ^ (columns() > 3),
    "extremes": lambda: jnp.minimum(rows(), 5) >= jnp.maximum(columns(), 2),
    "signs": lambda: jnp.sign(rows() - columns()) == -1,
    "narrow": lambda: (rows().astype(jnp.int8) * 40).astype(columns().dtype) < columns(),
    "unsigned": lambda: (rows().astype(jnp.uint8) - 3) > columns().astype(jnp.uint8),
    # Not by indices: before JAX 0.9 these gather, where there are strides.
    "cut": lambda: lax.slice(jnp.tri(2 * N, dtype=bool), (3, 0), (N + 3, 2 * N), (1, 2)),
    "reshaped": lambda: jnp.tri(N, dtype=bool).reshape(2, N // 2, N, 1),
    "transposed": lambda: jnp.broadcast_to(jnp.arange(N) > 3, (2, 3, N)).transpose(2, 0, 1),
    "selected": lambda: jnp.where(rows() > 4, columns() > 5, columns() > 6),
    "held": lambda: jnp.asarray(HELD) & (rows() >= 0),
    "of NumPy": lambda: rows() >= np.arange(N),
    "nested": jax.jit(jax.jit(lambda: jax.jit(jnp.tri, static_argnums=0)(N) > 0)),
    "remade": jax.checkpoint(lambda: rows() >= columns()),
    "behind a barrier": lambda: lax.optimization_barrier((rows() > 1, rows() >= columns()))[1],
}


def read(f, *args):
    """Return what is known of the value of a function while it is traced."""
    found = []

    @jax.jit
    def traced(x, *args):
        found.append(constants.entries_by_program(f(*args), x))
        return x

    traced(jnp.ones(()), *args)
    return found[0]


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_depends_on_no_argument_is_known(name):
    """The value that is read is the one that JAX computes."""
    wanted = np.asarray(VALUES[name]())

    found = read(VALUES[name])

    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(np.broadcast_to(found, wanted.shape), wanted)


def test_a_broadcast_value_stays_small():
    """Along an axis along which a value is broadcast it has length 1."""
    assert read(lambda: jnp.broadcast_to(jnp.tri(N) > 0, (64, 32, N, N))).shape == (1, 1, N, N)
    assert read(lambda: jnp.broadcast_to(rows() > 3, (N, 10**9))).shape == (N, 1)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x > 0,
        lambda x: jnp.tri(N, dtype=bool) & (x > 0),
        lambda x: jnp.where(x > 0, rows() > 3, columns() > 3),
        lambda x: jnp.arange(N, dtype=x.dtype) * 0.1 < 0.3 + 0 * x,
        lambda _: jnp.arange(N, dtype=float) * 0.1 < 0.3,  # whose rounding is the compiler's
        lambda _: jax.random.bernoulli(jax.random.key(0), 0.5, (N,)),
        lambda _: lax.div(jnp.arange(N), jnp.arange(N)) > 0,  # by 0
        lambda _: jnp.zeros((0, N), bool),
        lambda _: jnp.arange(6000)[:, None] > jnp.arange(6000),  # too large
    ],
)
def test_another_value_is_not_known(f):
    """What depends on an argument, on rounding or on chance is computed by the program alone."""
    assert read(f, jnp.ones(N)) is None


def test_a_long_program_is_not_read_to_its_end():
    """A chain of thousands of operations ends the search, and no recursion of Python."""

    def long():
        count = jnp.arange(N)
        for _ in range(3000):
            count = count + count
        return count > 3

    assert read(long) is None


MASKS = ["tri", "triu", "window", "blocks", "held", "of NumPy"]


def attention(mask, weights, x):
    """Return a layer of attention with a mask, and a residual."""
    query, key, value = (split(x @ w) for w in weights)
    scores = jnp.where(mask(), query @ key.transpose(0, 1, 3, 2), -jnp.inf)
    out = jax.nn.softmax(scores, -1, where=jnp.isfinite(scores)) @ value
    return x + out.transpose(0, 2, 1, 3).reshape(x.shape)


def loss(mask, weights, x):
    """Return a loss of two layers in all rows but the last, which may be NaN."""
    out = attention(mask, weights, attention(mask, weights, x))
    return jnp.sum(out[:-1] ** 2)


def inputs():
    """Return weights, and rows of which the last is NaN."""
    numbers = np.random.default_rng(0)
    weights, x = numbers.normal(size=(3, WIDTH, WIDTH)), numbers.normal(size=(ROWS, N, WIDTH))
    x[-1] = np.nan
    return jnp.asarray(weights), jnp.asarray(x)


def operations(f):
    """Return how many lines the program of a function has."""
    return jax.jit(f).lower(*inputs()).as_text().count("\n")


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_of_the_program_costs_nothing_where_all_is_used(name):
    """With a mask from no argument, the masked program of a whole batch is hardly the longer."""

    def healthy(weights, x):
        query, key, value = (split(x @ w) for w in weights)
        scores = jnp.where(VALUES[name](), query @ key.transpose(0, 1, 3, 2), -jnp.inf)
        return jnp.sum((jax.nn.softmax(scores, -1) @ value) ** 2)

    assert operations(masked.grad(healthy)) <= operations(jax.grad(healthy)) + 2


@pytest.mark.parametrize(("name", "exact"), [("triu", False), ("blocks", True)])
@pytest.mark.parametrize("small", [known.SMALL, 0])
def test_a_row_that_is_left_out_is_absent_behind_a_mask(name, small, exact, monkeypatch):
    """The gradient is that of the batch without the row, whether masks are made or constants."""
    monkeypatch.setattr(known, "SMALL", small)
    weights, x = inputs()
    mask = VALUES[name]
    whole = lambda w: loss(mask, w, jnp.concatenate([x[:-1], x[:1]]))  # noqa: E731
    wanted = jax.jit(jax.grad(whole))(weights)

    got = jax.jit(masked.grad(partial(loss, mask), exact=exact))(weights, x)

    assert_close(np.asarray(got), np.asarray(wanted), 1e-12, name, 1e-12 * float(wanted.max()))


def moves(x, kept):
    """Do what moves, adds and sums entries that a condition has selected."""
    y = jnp.where(kept(), x, 0.0)
    y = y.T.reshape(3, N // 3, N)[:, ::-1] * 2.0 + jnp.where(kept().T, 1 / x, 0.0)[: N // 3]
    return jnp.cumsum(y, 1).sum((0, 2)), jnp.tensordot(y, jnp.log(x), 1), y.max(0)


@pytest.mark.parametrize("name", ["compared", "blocks"])
@pytest.mark.parametrize("small", [known.SMALL, 0])
def test_masks_are_the_same_compiled_and_not(name, small, monkeypatch):
    """Compiled, where masks are known, gradients and their masks are those of one by one."""
    monkeypatch.setattr(known, "SMALL", small)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(N, N)))
    x = x.at[3, 4].set(jnp.nan).at[5].set(0.0).at[:, 2].set(-jnp.inf)
    _, pull = masked.vjp(partial(moves, kept=VALUES[name]), x, return_mask=True)
    ones = (jnp.ones(N // 3), jnp.ones((3, N // 3, N)).at[0].set(0.0), jnp.zeros((N // 3, N)))

    @jax.jit
    def compiled(x):
        return masked.vjp(partial(moves, kept=VALUES[name]), x, return_mask=True)[1](ones)

    for got, wanted in zip(jax.tree.leaves(compiled(x)), jax.tree.leaves(pull(ones)), strict=True):
        np.testing.assert_allclose(got, wanted, 1e-12)


def test_heads_are_more_than_one():
    """The layer has an axis along which no mask varies."""
    assert HEADS > 1
