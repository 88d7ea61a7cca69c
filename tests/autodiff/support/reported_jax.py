"""The programs that people reported, and random ones, for masked autodiff of JAX."""

import os
from functools import partial

import numpy as np
import pytest

import tape
from assertions import assert_close

jax = pytest.importorskip("jax", reason="JAX is not selected, and this file is about it alone")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

NAN, INF = np.nan, np.inf
ROWS = np.array([[1.0, -2.0, 0.5], [0.25, 3.0, 1.0]])
BAD_ROWS = np.concatenate([ROWS, np.full((2, 3), NAN)])
WEIGHTS = np.array([[1.0, 2.0, -1.0], [0.5, 0.0, 1.0], [2.0, 1.0, 1.0]])


def first_rows(f):
    """Return a loss of the first two rows of what `f` makes of weights and rows."""

    def loss(weights, rows):
        out = f(rows, weights)
        return jnp.sum(out[:2] * jnp.arange(1.0, 1.0 + out[:2].size).reshape(out[:2].shape))

    return loss


def layer_norm(x, weights):
    """Normalise rows."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weights[0]


def attention(x, weights):
    """Attend to the rows that are not NaN; a NaN row attends to none, and is NaN."""
    keep = ~jnp.isnan(x).any(-1)
    scores = jnp.where(keep[None, :] & keep[:, None], x @ weights @ x.T, -jnp.inf)
    values = jnp.where(keep[:, None], x @ weights, 0.0)
    return jax.nn.softmax(scores, axis=-1) @ values


def recurrent(x, weights):
    """Run over rows as steps."""

    def step(state, row):
        state = jnp.tanh(state @ weights + row)
        return state, state

    return lax.scan(step, jnp.zeros(3), x)[1]


def convolved(x, weights):
    """Convolve each row by itself."""
    return lax.conv_general_dilated(x[:, None, :], weights[None, :1, :2], (1,), "VALID")[:, 0]


# Programs of weights and rows; those of NaN rows that nothing uses must give what they give
# without these rows.
NAN_ROWS = {
    "matmul": lambda x, w: x @ w,
    "einsum": lambda x, w: jnp.einsum("ij,kj->ik", x, w),
    "mlp": lambda x, w: jnp.maximum(jnp.maximum(x @ w, 0) @ w, 0) @ w,
    "layer norm": layer_norm,
    "softmax": lambda x, w: jax.nn.softmax(x @ w, axis=-1),
    "attention": attention,
    "scan": recurrent,
    "checkpointed scan": jax.checkpoint(recurrent),
    "convolution": convolved,
    "mapped": lambda x, w: jax.vmap(lambda row: jnp.tanh(row @ w) * w[0])(x),
    "jitted": jax.jit(lambda x, w: jnp.log(jnp.abs(x @ w))),
    "cumulative sum": lambda x, w: jnp.cumsum(x @ w, axis=0),
    "segment sum": lambda x, w: jax.ops.segment_sum(x @ w, jnp.asarray([0, 1, 2, 2])[: len(x)], 3),
    "gather with repeats": lambda x, w: (x @ w)[jnp.asarray([0, 0, 1])],
    "sort": lambda x, w: jnp.sort(x @ w, axis=0),
    "maximum of rows": lambda x, w: jnp.max((x @ w)[:, :, None] * w, axis=1),
    "padded": lambda x, w: jnp.pad(x @ w, ((0, 1), (0, 0))),
    "set to zero": lambda x, w: (x @ w).at[2:].set(0.0),
    "mean over a mask": lambda x, w: jnp.where(jnp.isnan(x).any(-1)[:, None], 0.0, x @ w),
}


EVEN = np.array([False, True])
# A function, a point, and the gradient that mathematics gives.
PROGRAMS = {
    "arctan2 of the origin": (
        lambda x: jnp.where(x > 0.5, jnp.arctan2(x, x), 0.0),
        0.0,
        0.0,
    ),
    "entry of a stack": (lambda x: jnp.stack([jnp.zeros_like(x), 1 / x])[0], 0.0, 0.0),
    "division, then a mask": (
        lambda x: (x / np.array([0.0, 1.0]))[EVEN].sum(),
        np.array([1.0, 1.0]),
        [0.0, 1.0],
    ),
    "nansum of a product": (
        lambda b: jnp.nansum(np.array([3.0, NAN]) * b),
        np.array([1.0, 1.0]),
        [3.0, 0.0],
    ),
    "clipped exponential": (lambda x: jnp.clip(jnp.exp(x), max=1.0), 1000.0, 0.0),
    "largest logarithm": (lambda x: jnp.log(x).max(), np.array([0.0, 4.0, 2.0]), [0, 0.25, 0]),
    "smallest inverse": (lambda x: (1 / x).min(), np.array([0.0, 4.0, 2.0]), [0, -1 / 16, 0]),
    "tie": (lambda x: jnp.log(x).max(), np.array([0.0, 4.0, 4.0]), [0, 0.125, 0.125]),
    "running maximum": (
        lambda x: lax.cummax(jnp.sqrt(x))[1],
        np.array([0.0, 4.0, 9.0]),
        [0, 0.25, 0],
    ),
    "set to zero": (
        lambda x: jnp.sqrt(x).at[np.array([0])].set(0.0).sum(),
        np.array([0.0, 4.0]),
        [0.0, 0.25],
    ),
    "branch of cond": (
        lambda x: lax.cond(x > 1, jnp.log, lambda x: 2.0 * x, x),
        0.0,
        2.0,
    ),
    "cond of a value that one branch uses": (
        lambda x: lax.cond(x[1] > 1, lambda _: x[1], lambda y: y[0], jnp.log(x)),
        np.array([0.0, 4.0]),
        [0.0, 1.0],
    ),
    "mapped cond": (
        lambda x: jax.vmap(lambda x: lax.cond(x > 0, jnp.log, lambda x: 2.0 * x, x))(x).sum(),
        np.array([0.0, 4.0]),
        [2.0, 0.25],
    ),
    "largest of a pool": (
        lambda x: lax.reduce_window(jnp.sqrt(x), -INF, lax.max, (2,), (2,), "VALID").sum(),
        np.array([0.0, 4.0, 1.0, 0.0]),
        [0.0, 0.25, 0.5, 0.0],
    ),
    "flipped and joined": (
        lambda x: jnp.concatenate([jnp.sqrt(x)[::-1], x])[:1].sum(),
        np.array([0.0, 4.0]),
        [0.0, 0.25],
    ),
    "median": (lambda x: jnp.median(jnp.sqrt(x)), np.array([0.0, 4.0, 9.0]), [0.0, 0.25, 0.0]),
    "fori loop": (
        lambda x: lax.fori_loop(0, 2, lambda i, t: t + jnp.sqrt(x)[i], 0.0),
        np.array([1.0, 4.0, 0.0]),
        [0.5, 0.25, 0.0],
    ),
    "dynamic slice": (
        lambda x: lax.dynamic_slice(jnp.sqrt(x), (1,), (2,)).sum(),
        np.array([0.0, 4.0, 1.0]),
        [0.0, 0.25, 0.5],
    ),
    "complex": (
        lambda x: jnp.where(x > 0, jnp.abs(1j / x), 0.0).sum(),
        np.array([0.0, 2.0]),
        [0.0, -0.25],
    ),
}


UNDEFINED = {
    "square of a root": (lambda x: jnp.sqrt(x) ** 2, 0.0, NAN),
    "root at the edge": (lambda x: jnp.where(x >= 0, jnp.sqrt(x), 0.0), 0.0, INF),
    "quotient of zeros": (lambda x: x / x, 0.0, NAN),
    "zero times a logarithm": (lambda x: 0.0 * jnp.log(x), 0.0, NAN),
    "norm": (jnp.linalg.norm, np.zeros(2), [NAN, NAN]),
    "product with a mask": (
        lambda x: (jnp.sqrt(x) * np.array([0.0, 1.0])).sum(),
        np.array([0.0, 4.0]),
        [NAN, 0.25],
    ),
    "maximum with a NaN": (
        lambda x: jnp.max(jnp.stack([x, x * NAN])),
        1.0,
        NAN,
    ),
}


class Operations:
    """The array language of the tape, on JAX."""

    sqrt, log, exp, where = map(staticmethod, (jnp.sqrt, jnp.log, jnp.exp, jnp.where))
    matmul, maximum, total = map(staticmethod, (jnp.matmul, jnp.maximum, jnp.sum))
    transpose = staticmethod(jnp.transpose)
    reverse = staticmethod(lambda x: x[::-1])
    inverse = staticmethod(jnp.reciprocal)
    positive = staticmethod(lambda x: x > 0.5)
    set_zero = staticmethod(lambda x, index: x.at[index].set(0.0))
    take = staticmethod(lambda x, index: x[jnp.asarray(index)])
    concat = staticmethod(lambda x, y: jnp.concatenate([x, y]))
    cumsum = staticmethod(partial(jnp.cumsum, axis=0))
    largest = staticmethod(partial(jnp.max, axis=0))
    least = staticmethod(lambda x: jnp.minimum(x, x[::-1]))
    clip = staticmethod(lambda x: jnp.clip(x, 0.25, 2.0))
    sort = staticmethod(partial(jnp.sort, axis=0))


PROGRAMS_RUN = int(os.environ.get("SAFEOPS_PROGRAMS", "500"))


def on_jax(program):
    """Return a program as a function of a JAX array."""
    return lambda x: tape.run(program, Operations, x)


def assert_same(got, wanted, message):
    """Equal where finite, and finite in the same places."""
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(np.isfinite(got), finite, message)
    assert_close(got[finite], wanted[finite], 1e-9, message, 1e-12)


def with_rule(backward):
    """Return the identity, with a backward pass of one's own."""

    @jax.custom_vjp
    def identity(x):
        return x

    identity.defvjp(lambda x: (x, x), lambda x, g: (backward(x, g),))
    return identity
