"""
A comparison with NaN chooses the NaN, in masked autodiff of JAX.

Each operation that chooses by comparing gets a NaN at each place of its operand. If the loss uses
it, a gradient that is NaN in JAX is not finite; if not, the gradient is that without the entry.
"""

import logging
from functools import partial

import numpy as np
import pytest

from assertions import assert_close

pytestmark = pytest.mark.only("jax")
jax = pytest.importorskip("jax", reason="JAX is not selected, and this file is about it alone")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import AxisType, PartitionSpec  # noqa: E402

from safeops.autodiff import explain  # noqa: E402
from safeops.autodiff import jax as masked  # noqa: E402
from safeops.integrations import NonFiniteGradientError  # noqa: E402
from safeops.integrations.jax import value_and_grad as guarded  # noqa: E402

NAN, INF = np.nan, np.inf
QUIET = logging.getLogger("quiet")
QUIET.disabled = True
POINT = np.array([0.5, -1.0, 3.0, 2.0])
OTHER = np.array([1.0, -2.0, 0.25, 2.0])


def of_a_rule(value, slope):
    """Return a function with a rule of one's own for the backward pass, given its slope."""

    @jax.custom_vjp
    def ruled(x):
        return value(x)

    ruled.defvjp(lambda x: (ruled(x), x), lambda x, g: (slope(x, g),))
    return ruled


@jax.custom_jvp
def largest(x):
    """Return the largest of all, with a tangent that compares."""
    return jnp.max(x)


@largest.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return largest(x), jnp.sum(jnp.where(x == jnp.max(x), t, 0))


@jax.custom_vjp
def clipped_to(x, low):
    """Return what is not below a bound, which counts at no entry that is NaN."""
    return jnp.maximum(x, low)


clipped_to.defvjp(
    lambda x, low: (clipped_to(x, low), (x, low)),
    lambda r, g: (
        jnp.where(r[0] > r[1], g, 0),
        jnp.sum(jnp.where(r[0] < r[1], g, 0)),
    ),
)


def on_one_device(f, out=PartitionSpec("i")):  # noqa: B008  (a constant)
    """Return a function that is split over a mesh of one device."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))
    return jax.shard_map(f, mesh=mesh, in_specs=PartitionSpec("i"), out_specs=out)


def positive_part(x, g):
    """Return a cotangent where an operand is positive."""
    return jnp.where(x > 0, g, 0)


def sum_over_devices(x, g):
    """Return the cotangent of a sum over devices of positive parts."""
    varying = partial(lax.pcast, to="varying") if hasattr(lax, "pcast") else lax.pvary  # 0.8.0
    return positive_part(x, varying(g, "i"))


def pooled(x, of=lax.max, start=-INF, width=2, stride=1, padding="VALID"):
    """Return the extremes of windows."""
    return lax.reduce_window(x, x.dtype.type(start), of, (width,), (stride,), padding)


smallest_pooled = partial(pooled, of=lax.min, start=INF)

# From four entries to any number, each of which is NaN if one that it depends on is.
CHOOSERS = {
    "maximum": lambda x: jnp.maximum(x, 0.0),
    "maximum, second": lambda x: jnp.maximum(0.0, x),
    "maximum of two": lambda x: jnp.maximum(x[:2], x[2:]),
    "maximum beside data": lambda x: jnp.maximum(x, OTHER),
    "minimum": lambda x: jnp.minimum(x, 1.0),
    "minimum of two": lambda x: jnp.minimum(x[:2], x[2:]),
    "clip": lambda x: jnp.clip(x, -0.75, 2.5),
    "clip, bounds": lambda x: jnp.clip(OTHER[:2], x[:2], x[2:]),
    "clamp": lambda x: lax.clamp(-0.75, x, 2.5),
    "clamp, bounds": lambda x: lax.clamp(x[:2], OTHER[:2], x[2:]),
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "relu of a rule": of_a_rule(jax.nn.relu, positive_part),
    "max of a rule": of_a_rule(jnp.max, lambda x, g: jnp.where(x == jnp.max(x), g, 0)),
    "sum of a rule": of_a_rule(lambda x: jnp.sum(jax.nn.relu(x)), positive_part),
    "reversed by a rule": of_a_rule(
        lambda x: jax.nn.relu(x)[None, ::-1], lambda x, g: positive_part(x, g[0, ::-1])
    ),
    "cast by a rule": of_a_rule(
        lambda x: jax.nn.relu(x).astype(np.float32),
        lambda x, g: positive_part(x, g.astype(x.dtype)),
    ),
    "bound of a rule": lambda x: clipped_to(jnp.zeros(3), jnp.sum(x)),
    "max of a tangent": largest,
    "relu in a shard": on_one_device(jax.nn.relu),
    "median in a shard": on_one_device(partial(jnp.median, keepdims=True)),
    "sum over devices by a rule": on_one_device(
        of_a_rule(lambda x: lax.psum(jax.nn.relu(x), "i"), sum_over_devices), PartitionSpec()
    ),
    "hard_tanh": jax.nn.hard_tanh,
    "hard_sigmoid": jax.nn.hard_sigmoid,
    "hard_swish": jax.nn.hard_swish,
    "leaky_relu": jax.nn.leaky_relu,
    "elu": jax.nn.elu,
    "celu": jax.nn.celu,
    "sparse_plus": jax.nn.sparse_plus,
    "sparse_sigmoid": jax.nn.sparse_sigmoid,
    "hinge": lambda x: jnp.maximum(1 - x * OTHER, 0.0),
    "abs": jnp.abs,
    "hypot": lambda x: jnp.hypot(x, OTHER),
    "logaddexp": lambda x: jnp.logaddexp(x, OTHER),
    "max": jnp.max,
    "min": jnp.min,
    "ptp": jnp.ptp,
    "median": jnp.median,
    "quantile": lambda x: jnp.quantile(x, 0.3),
    "norm of order inf": lambda x: jnp.linalg.norm(x, ord=INF),
    "norm of order -inf": lambda x: jnp.linalg.norm(x, ord=-INF),
    "sort": jnp.sort,
    "top_k": lambda x: lax.top_k(x, 4)[0],
    "argmax": lambda x: x[jnp.argmax(x)],
    "segment_max": lambda x: jax.ops.segment_max(x, jnp.asarray([0, 0, 1, 1]), 2),
    "at max": lambda x: jnp.zeros(2, x.dtype).at[jnp.asarray([0, 0, 1, 1])].max(x),
    "cummax": lax.cummax,
    "cummin, reversed": lambda x: lax.cummin(x, reverse=True),
    "associative_scan": lambda x: lax.associative_scan(jnp.maximum, x),
    "max pool": pooled,
    "max pool, width 3": partial(pooled, width=3, padding="SAME"),
    "max pool, stride 2": partial(pooled, stride=2),
    "min pool": smallest_pooled,
    "min pool, width 4": partial(smallest_pooled, width=4),
    "literal NaN": lambda x: jnp.where(jnp.isnan(x), NAN, x),
    "scan": lambda x: lax.scan(lambda c, a: (jax.nn.relu(c + a), c), 0.0 * x[0], x)[0],
    "while": lambda x: lax.fori_loop(0, 2, lambda _, y: jnp.maximum(y, 0.5), x),
    "cond": lambda x: lax.cond(x[0] < INF, jax.nn.relu, lambda x: jnp.maximum(x, 1.0), x),
}
MODES = {
    "eager": masked.grad,
    "jit": lambda f: jax.jit(masked.grad(f)),
    "exact": partial(masked.grad, exact=True),
    "lazy": partial(masked.grad, lazy=True),
    "forward": masked.jacfwd,
    "vmap": lambda f: lambda w: jax.vmap(masked.grad(f))(w[None])[0],
    "checkpoint": lambda f: masked.grad(jax.checkpoint(f)),
    "jit of the function": lambda f: masked.grad(jax.jit(f)),
}


def in_every_mode(test):
    """Run a test for each operation in each mode."""
    test = pytest.mark.parametrize("mode", MODES)(test)
    return pytest.mark.parametrize("name", CHOOSERS)(test)


def transformed(name, mode, f):
    """Return a masked gradient in a mode."""
    if mode == "forward" and name.endswith("a rule"):
        pytest.skip("JAX has no forward mode of a custom_vjp")
    return MODES[mode](f)


def loss_of(name, data):
    """Return a loss of weights that uses each result of an operation on weighted data."""
    return lambda w: jnp.sum(CHOOSERS[name](w * jnp.asarray(data)))


@in_every_mode
def test_a_nan_that_is_used_is_not_hidden(name, mode):
    """If the loss is NaN, and so is the ordinary gradient, the masked one is not finite."""
    hidden = 0
    for place in range(4):
        data = POINT.copy()
        data[place] = NAN
        loss, w = loss_of(name, data), jnp.ones(4)
        assert np.isnan(loss(w))
        ordinary = np.asarray(jax.grad(loss)(w))
        hidden += not np.isfinite(ordinary).all()

        gradient = np.asarray(transformed(name, mode, loss)(w))

        assert not np.isfinite(gradient).all() or np.isfinite(ordinary).all(), (place, gradient)
    assert hidden > 0  # else nothing was there to hide


@in_every_mode
def test_a_nan_that_is_left_out_is_absent(name, mode):
    """Behind a `where` that leaves the row of a NaN out, the gradient is that of the other row."""
    wanted = jax.grad(loss_of(name, POINT))(jnp.ones(4))
    for place in range(4):
        data = POINT.copy()
        data[place] = NAN

        def loss(w, rows=(data, POINT)):
            outs = [CHOOSERS[name](w * jnp.asarray(row)) for row in rows]
            kept = jnp.reshape(jnp.asarray([False, True]), (2,) + (1,) * outs[0].ndim)
            return jnp.sum(jnp.where(kept, jnp.stack(outs), 0.0))

        assert_close(
            np.asarray(transformed(name, mode, loss)(jnp.ones(4))), wanted, 1e-12, str(place)
        )


def test_the_mask_tells_that_the_nan_is_used():
    """The entry of a NaN that is chosen is active; one that a number beats is not."""
    x = jnp.asarray([NAN, 2.0, -1.0])

    gradient, mask = masked.grad(lambda x: jnp.sum(jax.nn.relu(x)), return_mask=True)(x)

    np.testing.assert_array_equal(mask, [True, True, False])
    np.testing.assert_array_equal(gradient, jax.grad(lambda x: jnp.sum(jax.nn.relu(x)))(x))


ROWS = jnp.asarray([[1.0, 2.0], [NAN, 1.0]])
LOSSES = {
    "relu": lambda w: jnp.mean(jax.nn.relu(ROWS @ w)),
    "maximum": lambda w: -jnp.mean(jnp.log(jnp.maximum(ROWS @ w, 1e-6))),
    "clamp": lambda w: jnp.mean(lax.clamp(0.0, ROWS @ w, 9.0)),
    "median": lambda w: jnp.sum(jnp.median(w * ROWS, axis=-1)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_report_says_one_thing_of_one_nan(name):
    """A NaN that is used is FORWARD; that it was dropped is not said beside it."""
    report = explain(LOSSES[name], jnp.ones(2))

    assert {finding.kind for finding in report.findings} == {"FORWARD"}


GUARDED = {
    "relu": (LOSSES["relu"], "the masked gradient is not finite either"),
    "maximum": (LOSSES["maximum"], "the masked gradient is not finite either"),
    "added": (
        lambda w: jnp.sum(ROWS[1]) + (ROWS @ w)[0],
        "the masked gradient is finite, but the loss is NaN by an entry that is used",
    ),
}


@pytest.mark.parametrize("name", GUARDED)
def test_a_guard_that_masks_raises(name):
    """Where the loss is NaN by an entry that is used, there is no masked gradient to go on with."""
    loss, why = GUARDED[name]

    with pytest.raises(NonFiniteGradientError) as caught:
        guarded(loss, on_nan="mask", logger=QUIET)(jnp.ones(2))
    assert caught.value.__notes__ == [why]


@jax.custom_vjp
def parts_of(x):
    """Return the positive and the negative part, with a rule of one's own that compares twice."""
    return jax.nn.relu(x), jnp.minimum(x, 0)


parts_of.defvjp(
    lambda x: (parts_of(x), x),
    lambda x, g: (jnp.where(x > 0, g[0], jnp.where(x < 0, g[1], 0)),),
)


def test_a_choice_between_a_cotangent_that_no_result_has_and_0_is_absent():
    """A NaN that is left out stays so where a rule also chooses from a result that is not used."""
    gradient = masked.grad(lambda w: parts_of(ROWS @ w)[0][0])(jnp.ones(2))

    np.testing.assert_array_equal(gradient, ROWS[0])
