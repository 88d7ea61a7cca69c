"""Masks that are known while JAX traces a program stay small, whatever the length of the values."""

from functools import partial

import numpy as np
import pytest

from assertions import assert_close
from heads_jax import ROWS, WIDTH, split

pytestmark = pytest.mark.only("jax")
jax = pytest.importorskip("jax", reason="JAX is not selected, and this file is about it alone")

import jax.numpy as jnp  # noqa: E402

from safeops.autodiff import jax as masked  # noqa: E402
from safeops.autodiff._small import folded, reshaped  # noqa: E402

SHAPES = [(12,), (3, 4), (4, 3), (2, 6, 1), (1, 12), (2, 3, 2), (6, 1, 2), (3, 2, 2, 1)]


def attention(weights, x):
    """Return a layer of attention that looks back, and a residual."""
    query, key, value = (split(x @ w) for w in weights)
    scores = query @ key.transpose(0, 1, 3, 2)
    scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), scores, -jnp.inf)
    out = jax.nn.softmax(scores, -1) @ value
    return x + out.transpose(0, 2, 1, 3).reshape(x.shape)


def convolution(weights, x):
    """Return rows that are convolved along their positions."""
    kernel = weights[0, :3, :, None].transpose(1, 2, 0)
    channels = x.transpose(0, 2, 1)
    return jax.lax.conv_general_dilated(channels, kernel, (1,), "SAME", feature_group_count=WIDTH)


def loss(layer, weights, x):
    """Return a loss of all rows but the last, which may be NaN."""
    return jnp.sum(layer(weights, x)[:-1] ** 2)


def program(layer, length):
    """Return the text of a compiled masked gradient before it is compiled."""
    f = jax.jit(masked.grad(partial(loss, layer)))
    return f.lower(jnp.ones((3, WIDTH, WIDTH)), jnp.ones((ROWS, length, WIDTH))).as_text()


@pytest.mark.parametrize("layer", [attention, convolution])
def test_a_program_does_not_grow_with_the_length(layer):
    """Constants and operations are as many at 16 times the length; only numbers get digits."""
    short, long = program(layer, 16), program(layer, 256)

    assert short.count("\n") == long.count("\n")
    assert len(long) < 1.1 * len(short)


def test_a_constant_in_the_shape_of_the_values_is_seen():
    """The count of the text fails for a mask that is written out."""

    def written(weights, x):
        keep = np.arange(x.size).reshape(x.shape) % 3 > 0
        return jnp.where(keep, x @ weights[0], 0.0)

    assert len(program(written, 256)) > 1.1 * len(program(written, 16))


@pytest.mark.parametrize("layer", [attention, convolution])
@pytest.mark.parametrize("exact", [False, True])
def test_a_row_that_is_left_out_is_absent(layer, exact):
    """With small masks the gradient is that of the batch without the row."""
    numbers = np.random.default_rng(0)
    weights = jnp.asarray(numbers.normal(size=(3, WIDTH, WIDTH)))
    x = numbers.normal(size=(ROWS, 6, WIDTH))
    wanted = jax.grad(lambda w: jnp.sum(layer(w, jnp.asarray(x[:-1])) ** 2))(weights)
    x[-1] = np.nan

    got = masked.grad(partial(loss, layer), exact=exact)(weights, jnp.asarray(x))

    assert_close(np.asarray(got), np.asarray(wanted), 1e-12, layer.__name__, 1e-12)


def test_masks_reach_the_user_in_the_shape_of_the_gradient():
    """`return_mask` has an array for each entry, though the mask is small within."""
    mask = masked.grad(lambda x: jnp.sum(x[1:, None]), return_mask=True)(jnp.ones((3, 5)))[1]

    np.testing.assert_array_equal(mask, np.repeat([[False], [True], [True]], 5, axis=1))


BRANCHES = {
    "maximum": lambda h: jnp.maximum(h, 0.0),
    "where": lambda h: jnp.where(h > 0, jnp.log(h), 0.0),
    "relu": jax.nn.relu,
    "standardized": jax.nn.standardize,
    "layer": lambda h: jax.nn.standardize(jax.nn.relu(h)) @ jnp.ones((WIDTH, WIDTH)),
    "gated": lambda h: jnp.tile(jax.nn.relu(h[..., : WIDTH // 2]) * h[..., WIDTH // 2 :], 2),
    "turned": lambda h: jnp.concatenate([-jax.nn.relu(h[..., 3:]), h[..., :3]], -1),
}


def residual(branch, keep, weights, x):
    """Return a loss of the rows to keep, behind a branch whose mask depends on data."""
    hidden = x @ weights[0]
    out = split(hidden + BRANCHES[branch](hidden))
    return jnp.sum(jnp.where(jnp.reshape(keep, (-1, 1, 1, 1)), out, 0.0) ** 2)


@pytest.mark.parametrize("branch", BRANCHES)
def test_masks_are_known_again_behind_a_residual(branch):
    """A mask that lies within that of the residual is in no union of the program."""
    f = jax.jit(masked.grad(partial(residual, branch, np.arange(ROWS) < ROWS - 1)))
    text = f.lower(jnp.ones((3, WIDTH, WIDTH)), jnp.ones((ROWS, 16, WIDTH))).as_text()

    assert "stablehlo.or" not in text


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_mask_within_a_known_one_gives_the_gradient_of_one_that_is_an_argument(branch):
    """Gradients and their masks are the same, with NaN in rows that are left out and in others."""
    numbers = np.random.default_rng(0)
    weights = jnp.asarray(numbers.normal(size=(3, WIDTH, WIDTH)))
    x, keep = numbers.normal(size=(ROWS, 2, WIDTH)), np.arange(ROWS) < ROWS - 1
    x[-1], x[0, 0] = np.nan, 0.0
    for nan in (False, True):
        x[1, 1, 3] = np.nan if nan else 1.0
        pull = masked.grad(partial(residual, branch), (1, 2), return_mask=True)
        wanted = jax.jit(pull)(jnp.asarray(keep), weights, jnp.asarray(x))

        got = jax.jit(partial(pull, keep))(weights, jnp.asarray(x))

        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(a, b, 1e-12, 1e-12)
        assert nan or np.isfinite(got[0][0]).all()


@pytest.mark.parametrize("out", SHAPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_small_masks_are_reshaped_as_whole_ones(shape, out):
    """A mask with lengths of 1 becomes the mask that its whole form becomes."""
    numbers = np.random.default_rng(0)
    for _ in range(8):
        small = numbers.random([n if numbers.random() < 0.5 else 1 for n in shape]) < 0.5
        whole = np.broadcast_to(small, shape).reshape(out)

        got = np.broadcast_to(reshaped(small, shape, out), out)

        np.testing.assert_array_equal(got, whole)


def test_axes_along_which_a_mask_does_not_vary_have_length_1():
    """Folding a mask keeps what broadcasts to it, and nothing more."""
    mask = np.zeros((4, 3, 5), bool)
    mask[:3] = True

    assert folded(mask).shape == (4, 1, 1)
    assert folded(np.ones((2, 0), bool)) is True
    assert folded(np.zeros((2, 2), bool)) is False
    assert folded(np.eye(2, dtype=bool)).shape == (2, 2)
    assert folded(np.eye(2, dtype=bool).any()) is True  # which is no array
