"""A guarded gradient of JAX: nothing changes while it is finite, and what is not is explained."""

import logging
from contextlib import suppress

import numpy as np
import pytest

from safeops.integrations import NonFiniteGradientError

pytestmark = pytest.mark.only("jax")
jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402  (it is JAX)

from safeops.integrations.jax import value_and_grad  # noqa: E402  (it takes JAX)

QUIET = logging.getLogger("quiet")
QUIET.disabled = True
WEIGHTS = {"cell": jnp.asarray([[1.0, 0.5], [0.25, 2.0]])}
SERIES = jnp.asarray([[[1.0, 2.0], [0.5, 1.0]], [[0.5, 1.0], [2.0, 0.0]]])  # time, row, feature


def network(weights, series):
    """Return a loss of a recurrent network that normalises its state at each step."""

    def advance(state, x):
        state = (x + state) @ weights["cell"]
        size = jnp.sqrt(jnp.sum(state**2, axis=1, keepdims=True))
        state = jnp.where(size > 0, state / size, 0.0)
        return state, size

    state, sizes = jax.lax.scan(advance, jnp.zeros((2, 2)), series)
    return jnp.sum(state[:, 0] + state[:, 1] ** 2), sizes


EMPTY = SERIES.at[:, 1].set(0.0)  # the second row


def test_a_finite_gradient_is_the_same():
    """Value, auxiliary result and gradient have the bits of the compiled plain ones."""
    wanted = jax.jit(jax.value_and_grad(network, has_aux=True))(WEIGHTS, SERIES)

    found = value_and_grad(network, has_aux=True)(WEIGHTS, SERIES)

    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    assert all((x == y).all() for x, y in pairs)


def test_the_report(caplog):
    """It has kind, the line inside `scan`, step and path of the parameter, and is logged."""
    gradient = value_and_grad(network, has_aux=True)
    gradient(WEIGHTS, SERIES)

    with pytest.raises(NonFiniteGradientError) as caught:
        gradient(WEIGHTS, EMPTY)

    report = caught.value.report
    assert {f.kind for f in report.findings} == {"BLOCKED"}
    assert any(f.operation == "sqrt" and "jnp.sqrt(" in f.where.source for f in report.findings)
    assert (report.step, report.parameters) == (1, ("['cell']",))
    assert report.to_dict()["parameters"] == ["['cell']"]
    assert "a gradient is not finite at step 1\n" in caplog.text


def test_an_explanation_that_does_not_run(monkeypatch):
    """It is a report with the error as a sentence, such as where a model leaves no memory."""

    def fail(*args, **_):
        raise MemoryError(len(args))

    monkeypatch.setattr("safeops.integrations._jax.explained_call", fail)
    gradient = value_and_grad(lambda x: jnp.sqrt(x).sum(), logger=QUIET)

    with pytest.raises(NonFiniteGradientError, match="MemoryError") as caught:
        gradient(jnp.zeros(2))

    (finding,) = caught.value.report.findings
    assert (finding.kind, finding.reason) == ("UNKNOWN", "apart")


def test_the_masked_gradient():
    """It is that of the rows that are not empty."""
    _, found = value_and_grad(network, has_aux=True, on_nan="mask", logger=QUIET)(WEIGHTS, EMPTY)

    one = jax.grad(lambda w: jnp.sum(single(w)))(WEIGHTS)
    assert jnp.allclose(found["cell"], one["cell"], rtol=1e-12)
    assert not jnp.isfinite(jax.grad(lambda w: network(w, EMPTY)[0])(WEIGHTS)["cell"]).all()


def single(weights):
    """Return the loss of the first row alone, written out."""
    state = jnp.zeros(2)
    for x in SERIES[:, 0]:
        state = (x + state) @ weights["cell"]
        state = state / jnp.sqrt(jnp.sum(state**2))
    return state[0] + state[1] ** 2


def test_what_masking_cannot_cure():
    """A NaN that is used is an error that says so."""
    gradient = value_and_grad(lambda x: (jnp.sqrt(x) ** 2).sum(), on_nan="mask", logger=QUIET)

    with pytest.raises(NonFiniteGradientError, match="GENUINE") as caught:
        gradient(jnp.zeros(2))

    assert caught.value.__notes__ == ["the masked gradient is not finite either"]


def test_wrong_options():
    """What JAX cannot do is no choice."""
    with pytest.raises(ValueError, match=r"expected on_nan out of \(raise, mask\), got 'skip'"):
        value_and_grad(network, on_nan="skip")


@pytest.mark.parametrize(
    ("argnums", "names"),
    [
        (0, ("argument 0",)),
        (np.int64(1), ("argument 1",)),
        ((-1, 0), ("argument 1", "argument 0")),
    ],
)
def test_arguments_by_name(argnums, names):
    """Keyword arguments are given on, and arrays are named by the number of their argument."""

    def loss(w, x, *, shift):
        return jnp.where(x > 0, jnp.sqrt(w * (x - shift)), 0.0).sum()

    gradient = value_and_grad(loss, argnums, logger=QUIET)
    assert gradient(2.0, jnp.ones(2), shift=0.5)[0] == 2.0

    with pytest.raises(NonFiniteGradientError) as caught:
        gradient(2.0, jnp.ones(2), shift=1.0)

    assert caught.value.report.parameters == names


def test_a_traced_call():
    """It is refused, as it has no values to look at."""
    gradient = value_and_grad(lambda x: x**2)

    for transform in (jax.jit, jax.grad, jax.vmap):
        with pytest.raises(TypeError, match="outside of jit"):
            transform(gradient)(jnp.ones(2) if transform is jax.vmap else 1.0)


@pytest.mark.parametrize("on_nan", ["raise", "mask"])
def test_the_advice_of_a_guard(on_nan, caplog):
    """A guard advises what it can do, or says that it does so, and no call of `jax.grad`."""
    gradient = value_and_grad(lambda x: jnp.where(x > 0, jnp.log(x), 0.0), on_nan=on_nan)

    with suppress(NonFiniteGradientError):
        gradient(jnp.asarray(0.0))

    told = {
        "raise": 'on_nan="mask" of this guard, which takes the masked gradient',
        "mask": "the masked gradient, which this guard takes if it is finite",
    }
    assert f"  or: {told[on_nan]}" in caplog.text
    assert "in place of" not in caplog.text
