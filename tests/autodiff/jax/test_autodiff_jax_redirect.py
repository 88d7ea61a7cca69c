"""`jax.grad` and `jax.value_and_grad` are masked in a context, for code that calls them."""

import pytest

pytestmark = pytest.mark.only("jax")
jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402  (it is JAX)

from assertions import assert_examples_run  # noqa: E402  (beside those of JAX)
from safeops.autodiff import jax as masked  # noqa: E402  (it takes JAX)
from safeops.autodiff.jax import masked_grad  # noqa: E402  (it takes JAX)

X = jnp.asarray([0.0, 2.0])
PLAIN = (jax.grad, jax.value_and_grad)


def loss(x, scale=1.0):
    """Return a sum of logarithms of positive entries, whose plain gradient is NaN at 0."""
    return scale * jnp.where(x > 0, jnp.log(x), 0.0).sum()


def library(x, **options):
    """Return a gradient as other people's code takes it."""
    return jax.value_and_grad(lambda x: (loss(x), {"n": x.size}), 0, has_aux=True, **options)(x)


def test_plain_gradients_are_nan():
    """Outside of the context there is something to mask."""
    assert jnp.isnan(jax.grad(loss)(X)[0])


def test_gradients_are_masked():
    """Value, auxiliary result, gradient and a keyword argument are as in JAX."""
    with masked_grad():
        (value, aux), gradient = library(X)
        scaled = jax.grad(loss)(X, scale=2.0)
        compiled = jax.jit(jax.vmap(jax.grad(loss)))(X[None])
        second = jax.grad(jax.grad(lambda x: loss(x * X)))(1.0)

    assert (float(value), aux) == (float(jnp.log(2.0)), {"n": 2})
    assert gradient.tolist() == [0.0, 0.5]
    assert scaled.tolist() == [0.0, 1.0]
    assert compiled.tolist() == [[0.0, 0.5]]
    assert float(second) == -1.0


def test_the_names_are_put_back():
    """Also after an error, and after a context within a context."""
    with pytest.raises(ZeroDivisionError), masked_grad(), masked_grad():
        raise ZeroDivisionError

    assert (jax.grad, jax.value_and_grad) == PLAIN


def test_what_is_refused():
    """A complex derivative is refused, and an unknown choice."""
    with masked_grad(), pytest.raises(NotImplementedError, match="holomorphic"):
        jax.grad(jnp.sin, holomorphic=True)(1j)
    with pytest.raises(ValueError, match="expected on_unknown out of"), masked_grad(on_unknown="x"):
        pass


@pytest.mark.usefixtures("users_defaults")
@pytest.mark.parametrize("name", [name for name in masked.__all__ if name.islower()])
def test_examples(name):
    """The examples of the module run as they are printed."""
    assert_examples_run(getattr(masked, name), vars(masked))


def test_a_context_that_masks_nothing_warns(monkeypatch):
    """A step that was traced before is not masked: the first context says what to do."""
    monkeypatch.setattr("safeops.autodiff.jax._redirect.MET", set())
    step = jax.jit(lambda x: jax.grad(loss)(x) + 0.0)
    assert jnp.isnan(step(X)[0])
    words = r"^no call of jax.grad .* call jax.clear_caches\(\)"

    with pytest.warns(UserWarning, match=words) as said, masked_grad():
        assert jnp.isnan(step(X)[0])
    assert said[0].filename == __file__

    jax.clear_caches()
    for _ in range(2):  # the second time it is compiled, and masked
        with masked_grad():
            assert step(X)[0] == 0
